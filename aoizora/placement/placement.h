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
  std::string
      order;  ///< how it was made, for people: the axis order "data=y0 context=x0 tensor=y1", "mesh_utils", "given"
  friend bool operator==(const Placement& a, const Placement& b) { return a.devices == b.devices; }
};

struct PlacementOptions {
  std::vector<std::string> active_axes;  ///< mesh axes that some collective uses; empty: all of size > 1
  std::vector<std::string>
      ordered_axes;  ///< those along which permutes run (active, listed or not): the order inside a group counts
  std::size_t limit = 100000;  ///< at most this many; reaching it is reported by DistinctPlacements::truncated
};

struct DistinctPlacements {
  std::vector<Placement> placements;  ///< in a fixed order; placements.front() is the row-major one where it survives
  std::int64_t axis_orders = 0;       ///< before symmetry and signature; saturates
  bool truncated = false;             ///< more exist than the limit, or than 2^26 ranks in all placements together
};

/// Axis orders: each physical dimension is factored into digits (4x4: x1 x0 y1 y0), an order deals the digits to the
/// logical axes. Of all orders with one contention signature the first is kept: 2x2x2 on 2x4 leaves the paper's 6.
///
/// Signature: for each active axis the family of its groups as sets of devices; for an ordered axis each group as a
/// sequence, its first rank known. That settles collectives over several axes too: their groups are the joins of the
/// families, their rings follow from the positions along each axis. Two signatures are equal if one automorphism of the
/// slice takes every family of one to that of the other; axis_orders.cpp says why they then load the links alike.
///
/// Throws Infeasible where the mesh's sizes do not multiply to the device count (where they do, the digits can always
/// be dealt: both have the same primes), InvalidRequest for an axis that the mesh has not.
DistinctPlacements distinct_axis_orders(std::span<const candidates::MeshAxis> mesh, const topology::Slice& slice,
                                        const PlacementOptions& options);

/// The row-major order of coordinates.
Placement row_major(const topology::Slice& slice);

/// The device order jax.experimental.mesh_utils.create_device_mesh gives for this mesh on a TPU slice, for the stock
/// deployment; checked against jax itself by a test. Throws Infeasible where jax raises: a dimension would have to be
/// split between axes and `allow_split_physical_axes` is false, or jax cannot factor the sizes.
Placement mesh_utils_order(std::span<const candidates::MeshAxis> mesh, const topology::Slice& slice,
                           bool allow_split_physical_axes = false);

/// Groups of logical ranks that differ only along the given mesh axes, as collectives over them use: by least rank;
/// inside a group the first of `axes` is the slowest. Throws InvalidRequest for an axis that the mesh has not or that
/// comes twice.
std::vector<std::vector<std::int32_t>> groups_along(std::span<const candidates::MeshAxis> mesh,
                                                    std::span<const std::string> axes);

/// Reads a mesh, axes in the order of the text: {"data": 2, "context": 4}, [["data", 2], ["context", 4]] or
/// [{"name": "data", "size": 2}, {"name": "context", "size": 4}]. Throws ParseError or InvalidRequest.
std::vector<candidates::MeshAxis> read_mesh(const std::string& json);

/// Product of the mesh's sizes. Throws InvalidRequest for a size below 1, a name that is empty or comes twice, or more
/// than 2^20 ranks.
std::int64_t rank_count(std::span<const candidates::MeshAxis> mesh);

/// Position of an axis in the mesh. Throws InvalidRequest where it has none of that name.
std::size_t axis_position(std::span<const candidates::MeshAxis> mesh, const std::string& name);

/// Throws Infeasible unless the mesh has as many ranks as the slice has devices.
void check_fits(std::span<const candidates::MeshAxis> mesh, const topology::Slice& slice);

}  // namespace aoizora::placement
