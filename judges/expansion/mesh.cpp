#include "expansion/mesh.h"

#include <stdexcept>

namespace judge {

std::vector<int> Mesh::route(int from, int to) const {
  std::vector<int> at = coordinates.at(from);
  const std::vector<int>& goal = coordinates.at(to);
  const auto chip = [&] {
    int id = 0;
    for (std::size_t d = 0; d < dims.size(); ++d) id = id * dims[d] + at[d];
    return id;
  };
  std::vector<int> result;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const int up = ((goal[d] - at[d]) % dims[d] + dims[d]) % dims[d];
    const bool rises = circular(static_cast<int>(d)) ? 2 * up <= dims[d] : goal[d] > at[d];
    while (at[d] != goal[d]) {
      const int before = chip();
      at[d] = (at[d] + (rises ? 1 : dims[d] - 1)) % dims[d];
      const auto wire = wire_between.find({before, chip()});
      if (wire == wire_between.end())
        throw std::runtime_error("no link from chip " + std::to_string(before) + " to " + std::to_string(chip()));
      result.push_back(wire->second);
    }
  }
  if (at.back() != goal.back()) result.push_back(wire_between_cores.at({chip(), at.back(), goal.back()}));
  return result;
}

}  // namespace judge
