#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aoizora/candidates/candidate.h"
#include "aoizora/topology/slice.h"

namespace aoizora::placement {

/// A bijection from logical ranks (row-major over the logical mesh) to devices of the slice.
struct Placement {
  std::vector<topology::DeviceId> devices;  ///< devices[rank]
  std::string order;  ///< how it was made, for people: the axis order "data=y0 context=x0 tensor=y1", "mesh_utils", "given"
  friend bool operator==(const Placement& a, const Placement& b) { return a.devices == b.devices; }
};

struct PlacementOptions {
  std::vector<std::string> active_axes;   ///< mesh axes that some collective uses; empty: all of size > 1
  std::vector<std::string> ordered_axes;  ///< those along which permutes run: for them the order inside a group counts too
  std::size_t limit = 100000;             ///< at most this many; reaching it is reported by DistinctPlacements::truncated
};

struct DistinctPlacements {
  std::vector<Placement> placements;  ///< in a fixed order; placements.front() is the row-major one where it survives
  std::int64_t axis_orders = 0;       ///< before symmetry and signature
  bool truncated = false;
};

/// Axis orders: each physical dimension is factored into digits (4x4: x1 x0 y1 y0), an order deals the digits to the logical axes.
/// Mirror images (automorphisms of the slice) and orders with equal contention signatures of the active axes are dropped: 2x2x2 on
/// 2x4 leaves the paper's 6. Throws Infeasible where the mesh's sizes do not multiply to the device count or cannot be dealt.
DistinctPlacements distinct_axis_orders(std::span<const candidates::MeshAxis> mesh, const topology::Slice& slice,
                                        const PlacementOptions& options);

/// The row-major order of coordinates.
Placement row_major(const topology::Slice& slice);

/// The device order jax.experimental.mesh_utils.create_device_mesh gives for this mesh on a TPU slice, for the stock deployment;
/// checked against jax itself by a test.
Placement mesh_utils_order(std::span<const candidates::MeshAxis> mesh, const topology::Slice& slice);

/// Groups of logical ranks that differ only along the given mesh axes, as collectives over them use.
std::vector<std::vector<std::int32_t>> groups_along(std::span<const candidates::MeshAxis> mesh,
                                                    std::span<const std::string> axes);

}  // namespace aoizora::placement
