#pragma once
#include <string>
#include <vector>

#include "aoizora/topology/slice.h"

namespace aoizora::topology {

/// v5e's numbers on another shape, for tests of shapes no known kind has.
inline Slice slice_of(const std::vector<int>& dims, const std::vector<bool>& wraps, int cores_per_chip = 1) {
  Hardware hardware = make_slice("v5e:1x1").hardware;
  hardware.core_bytes_per_second = {600e9, "test"};
  return build_slice("test", dims, wraps, cores_per_chip, hardware);
}

/// Shapes that leave nothing of "two dimensions, no wrap, one core" standing.
inline std::vector<Slice> assorted_slices() {
  return {make_slice("v5e:1x1"),
          make_slice("v5e:1x8"),
          make_slice("v5e:2x4"),
          make_slice("v5e:4x4"),
          make_slice("v5e:2x16"),
          slice_of({8}, {true}),
          slice_of({3, 5}, {true, true}),
          slice_of({6, 4}, {false, true}),
          slice_of({2, 2}, {true, true}),
          slice_of({2, 2, 1}, {false, false, false}, 2),
          slice_of({4, 4, 4}, {true, true, true}),
          slice_of({3, 2, 3}, {false, true, true}, 2),
          slice_of({2, 3}, {false, false}, 3),
          slice_of({2, 2, 2, 2}, {false, true, false, true})};
}

}  // namespace aoizora::topology
