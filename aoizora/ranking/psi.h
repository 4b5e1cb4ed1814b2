#pragma once
#include <span>
#include <utility>
#include <vector>

#include "aoizora/ir/collectives.h"
#include "aoizora/placement/placement.h"
#include "aoizora/topology/slice.h"

namespace aoizora::ranking {

/// Bytes one collective, all its groups at once, puts on one directed link over its whole run.
struct LinkLoad {
  topology::LinkId link = 0;
  double bytes = 0;
};

/// Physical cost of one collective under a placement (paper 4.4).
struct PhysicalCost {
  double seconds = 0;             ///< α_τ + Ψ / b_ICI + hops: all groups together
  double lone_group_seconds = 0;  ///< the slowest group if it ran alone: seconds minus this is what sharing costs
  double paper_seconds = 0;       ///< the paper's way: spans charged, no sharing between groups
  std::vector<LinkLoad> loads;    ///< every link it uses, by link id
};

/// Ψ: expands a collective into transfers over directed links. Ring where the group's chips close a cycle, line
/// otherwise, one a dimension; several dimensions use several ports; AR = RS + AG; A2A every ordered pair over its
/// route; permutes and broadcasts over dimension-ordered routes.
PhysicalCost physical_cost(const ir::Collective& collective, const placement::Placement& placement,
                           const topology::Slice& slice);

/// Who talks to whom, without how much: programs repeat few of these, so Ψ is computed once for each.
struct Pattern {
  topology::CollectiveKind kind{};
  ir::ReplicaGroups groups;
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  friend bool operator==(const Pattern&, const Pattern&) = default;
};

/// A pattern on its devices, without the names of ranks: equal for all placements under which the same chips do the
/// same. Groups of two and more; only a broadcast's first device is told from the others; pairs of different devices.
struct PlacedPattern {
  topology::CollectiveKind kind{};
  std::vector<std::vector<topology::DeviceId>> groups;
  std::vector<std::pair<topology::DeviceId, topology::DeviceId>> pairs;
  friend bool operator==(const PlacedPattern&, const PlacedPattern&) = default;
};

/// Throws InvalidRequest where a logical id has no device or a group names one twice.
PlacedPattern place(const Pattern& pattern, std::span<const topology::DeviceId> devices);

/// What a collective does to one link.
struct LinkUse {
  topology::LinkId link = 0;
  double bytes = 0;  ///< over the whole run, for a byte of payload
  double share = 0;  ///< of the link's time while the collective's bytes flow alone
  double flows = 0;  ///< transfers over the link at one time
};

/// Ψ of a pattern for one byte of payload: every cost is `fixed + B x per_byte`.
struct UnitCost {
  double fixed_seconds = 0;  ///< α_τ and hop latency
  double seconds_per_byte = 0;
  double lone_fixed_seconds = 0;
  double lone_seconds_per_byte = 0;
  double paper_fixed_seconds = 0;
  double paper_seconds_per_byte = 0;
  std::vector<LinkUse> links;  ///< by link id
};

/// The part of a slice that routing needs, laid out flat; built once for many patterns. The slice must outlive it.
class Network {
 public:
  explicit Network(const topology::Slice& slice);
  /// Appends the links of the dimension-ordered route; the same links as Slice::route.
  void route(topology::DeviceId from, topology::DeviceId to, std::vector<topology::LinkId>& links) const;

  const topology::Slice* slice;
  int dimensions;  ///< of the slice; coordinates have one more, the core
  bool ici_only;
  std::vector<int> coordinates;           ///< [device][dimension], the core last
  std::vector<int> extents;               ///< of each dimension, cores last
  std::vector<topology::LinkId> reverse;  ///< the same wire's other direction
};

/// Ψ of a pattern on its devices.
UnitCost unit_cost(const PlacedPattern& pattern, const Network& network);
UnitCost unit_cost(const Pattern& pattern, std::span<const topology::DeviceId> devices, const Network& network);

}  // namespace aoizora::ranking
