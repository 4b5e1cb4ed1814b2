#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace judge {

/// How one kind of collective is driven.
struct Rate {
  double alpha_seconds = 0;
  double link_fraction = 1;
  double flow_bytes_per_second = 0;  ///< 0: no limit
  int ring_directions = 0;
};

/// One directed link, between chips or between two cores of a chip.
struct Wire {
  double bytes_per_second = 0;
};

/// The machine: devices at coordinates (the core is the last one) and the wires between them.
struct Mesh {
  std::vector<int> dims;
  std::vector<bool> wraps;
  int cores = 1;
  double hop_seconds = 0;
  std::vector<std::vector<int>> coordinates;  ///< [device][dimension, core]
  std::vector<Wire> wires;
  std::map<std::pair<int, int>, int> wire_between;     ///< chips
  std::map<std::vector<int>, int> wire_between_cores;  ///< {chip, from core, to core}
  std::map<std::string, Rate> rates;                   ///< by kind of collective

  int devices() const { return static_cast<int>(coordinates.size()); }
  int chip_of(int device) const { return device / cores; }
  bool circular(int dimension) const { return wraps[dimension] && dims[dimension] > 2; }
  /// Wires from one device to another: dimension 0 first, the shorter way round, up on a tie, the core last.
  std::vector<int> route(int from, int to) const;
  int hops(int from, int to) const { return static_cast<int>(route(from, to).size()); }
};

}  // namespace judge
