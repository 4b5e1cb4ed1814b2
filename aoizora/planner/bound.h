#pragma once
#include <span>

#include "aoizora/candidates/candidate.h"
#include "aoizora/prediction/prediction.h"
#include "aoizora/topology/slice.h"

namespace aoizora::planner {

/// What one block's Q2 by the HLO passes cannot be below under any placement, from the propagated program: the compute
/// that the prediction counts and, on top, the collectives the compiler never hides under compute, each at its own
/// price under the placement; or the time for which the busiest link is taken; or what must run before the first and
/// after the last of some collectives that belong together (the gathers of keys and values need the norm before them,
/// the attention needs them), and their own time between. The least over all placements. bounds_test proves it over
/// recorded programs.
struct BlockBound {
  double seconds = 0;
  double compute_seconds = 0;
  double synchronous_seconds = 0;  ///< at the placement that gives `seconds`
  double busiest_seconds = 0;      ///< likewise
  double passage_seconds = 0;      ///< likewise
};
BlockBound block_bound(const prediction::PredictionGraph& graph, std::span<const candidates::MeshAxis> mesh,
                       const topology::Slice& slice);

}  // namespace aoizora::planner
