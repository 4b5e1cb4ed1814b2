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
  double seconds = 0;              ///< α_τ + Ψ / b_ICI + hops: all groups together
  double lone_group_seconds = 0;   ///< the slowest group if it ran alone: seconds minus this is what sharing costs
  double paper_seconds = 0;        ///< the paper's way: spans charged, no sharing between groups
  std::vector<double> dimension_seconds;  ///< busy time of each physical dimension's engine
  std::vector<LinkLoad> loads;     ///< every link it uses, by link id
};

/// Ψ: expands a collective into transfers over directed links. Ring where the group's chips close a cycle, line otherwise, one a
/// dimension; several dimensions use several ports; AR = RS + AG; A2A every ordered pair over its route; permutes and broadcasts
/// over dimension-ordered routes.
PhysicalCost physical_cost(const ir::Collective& collective, const placement::Placement& placement, const topology::Slice& slice);

}  // namespace aoizora::ranking
