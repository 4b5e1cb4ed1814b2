#pragma once
#include <optional>
#include <string>
#include <vector>

#include "aoizora/candidates/candidate.h"
#include "aoizora/placement/placement.h"
#include "aoizora/topology/slice.h"
#include "aoizora/workload/workload.h"

// The expert deployment (paper 6.2): what a user of the stock program sets by hand. The family: every mesh
// data x fsdp x context x tensor of the device count under the workload's stock axis rules (for Wan those of
// MaxDiffusion's base_wan_14b.yml: batch on data and fsdp, sequence on context, embed on context and fsdp, heads and
// mlp on tensor), flash attention with gathered keys, blocks of 512, on the device order jax's mesh_utils gives.
//
// The rule, one member after the other until one fits in HBM:
//   1. data as large as the batch divides, the rest on context. Two videos of classifier-free guidance never talk:
//      MaxDiffusion's README (data 2, context 2 on 4 chips) and its v6e-8 and v7x-8 recipes (data 2, context 4).
//   2. the same with fsdp in place of data: the weights are divided by it too, as the paper says an expert fits them.
//   3. all on context: the program's default, ici_context_parallelism = -1.
//   4. context and tensor, tensor from 2 up: heads and MLP divided where nothing else fits.
// A rule's member that does not exist for the batch or the heads is left out.

namespace aoizora::baseline {

struct ExpertMember {
  candidates::Candidate candidate;
  int rank = -1;                     ///< place in the rule's order, -1 for a member the rule never comes to
  double memory_estimate_bytes = 0;  ///< M̂, a lower bound
  std::optional<placement::Placement> placement;  ///< empty: jax cannot lay this mesh over the slice
  bool split_physical_axes = false;  ///< jax raises unless allow_split_physical_axes is set; then it lays it so
};

struct ExpertOptions {
  bool ulysses = false;  ///< with MaxDiffusion's `attention=ulysses` beside flash
};

/// All legal members, the rule's first in its order, then by sizes of the mesh. Whether a member fits in HBM only the
/// compiler can say: M̂ above the slice's HBM says that it does not. Throws Infeasible where there is no legal member.
std::vector<ExpertMember> expert_family(const workload::Workload& workload, const topology::Slice& slice,
                                        const ExpertOptions& options);

ExpertOptions read_expert_options(const std::string& json);
std::string to_json(const std::vector<ExpertMember>& family, const topology::Slice& slice);

}  // namespace aoizora::baseline
