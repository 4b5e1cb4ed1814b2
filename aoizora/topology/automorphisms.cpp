#include <algorithm>
#include <cstddef>
#include <numeric>

#include "aoizora/errors.h"
#include "aoizora/topology/slice.h"

namespace aoizora::topology {
namespace {

constexpr double kMostEntries = 64.0 * 1024 * 1024;

using Permutation = std::vector<int>;

std::vector<Permutation> permutations(int size) {
  Permutation current(size);
  std::iota(current.begin(), current.end(), 0);
  std::vector<Permutation> result;
  do {
    result.push_back(current);
  } while (std::next_permutation(current.begin(), current.end()));
  return result;
}

// Where coordinate d of an image comes from: dimensions exchange only with their like, and one of a single chip stays.
std::vector<Permutation> exchanges(const Slice& slice) {
  std::vector<Permutation> result;
  for (Permutation& p : permutations(static_cast<int>(slice.dims.size()))) {
    bool fits = true;
    for (int d = 0; d < static_cast<int>(p.size()); ++d) {
      fits = fits && slice.dims[p[d]] == slice.dims[d] && slice.is_ring(p[d]) == slice.is_ring(d) &&
             (slice.dims[d] > 1 || p[d] == d);
    }
    if (fits) result.push_back(std::move(p));
  }
  return result;
}

// Symmetries of one dimension: of a line the mirror, of a ring the rotations too. The identity is first.
std::vector<Permutation> symmetries(int size, bool ring) {
  std::vector<Permutation> result;
  for (const int sign : {+1, -1}) {
    for (int shift = 0; shift < (ring ? size : 1); ++shift) {
      Permutation p(size);
      for (int i = 0; i < size; ++i) p[i] = ((sign > 0 ? i : size - 1 - i) + shift) % size;
      if (sign > 0 || size > 1) result.push_back(std::move(p));
    }
  }
  return result;
}

double factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1); }

}  // namespace

std::vector<std::vector<DeviceId>> automorphisms(const Slice& slice) {
  const std::size_t dimensions = slice.dims.size();
  const std::vector<Permutation> exchanged = exchanges(slice);
  double count = static_cast<double>(exchanged.size()) * factorial(slice.cores_per_chip);
  std::vector<std::vector<Permutation>> moves;
  for (std::size_t d = 0; d < dimensions; ++d) {
    moves.push_back(symmetries(slice.dims[d], slice.is_ring(static_cast<int>(d))));
    count *= static_cast<double>(moves.back().size());
  }
  if (count * static_cast<double>(slice.devices.size()) > kMostEntries) {
    throw InvalidRequest(slice.name + " has too many symmetries to list them");
  }
  const std::vector<Permutation> cores = permutations(slice.cores_per_chip);

  std::vector<std::vector<DeviceId>> result;
  std::vector<std::size_t> pick(dimensions, 0);
  std::vector<int> at(dimensions);
  for (const Permutation& from : exchanged) {
    while (true) {
      for (const Permutation& core : cores) {
        std::vector<DeviceId> image;
        image.reserve(slice.devices.size());
        for (const Device& device : slice.devices) {
          for (std::size_t d = 0; d < dimensions; ++d) at[d] = moves[d][pick[d]][device.coordinates[from[d]]];
          image.push_back(slice.device_at(at, core[device.core]));
        }
        result.push_back(std::move(image));
      }
      std::size_t d = dimensions;
      while (d > 0 && ++pick[d - 1] == moves[d - 1].size()) pick[--d] = 0;
      if (d == 0) break;
    }
  }
  return result;
}

}  // namespace aoizora::topology
