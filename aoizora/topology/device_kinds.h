#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "aoizora/topology/slice.h"

namespace aoizora::topology {

/// One row of the table of device kinds: the shapes its slices take, and its numbers. A new kind is a new row.
struct DeviceKind {
  std::string_view name;  ///< before the colon of a slice's name
  int dimensions = 2;
  int largest_dimension = 0;
  std::string_view shapes;                             ///< the rule of `takes` for people
  bool (*takes)(std::span<const int> dims) = nullptr;  ///< dims.size() == dimensions
  std::vector<bool> (*wraps)(std::span<const int> dims) =
      nullptr;  ///< which dimensions of such a slice close to a ring
  int cores_per_chip = 1;
  Hardware hardware;
};

/// All rows, in the order they are listed to people.
std::span<const DeviceKind> device_kind_table();

}  // namespace aoizora::topology
