#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aoizora/candidates/candidate.h"
#include "aoizora/ir/program.h"
#include "aoizora/placement/placement.h"
#include "aoizora/ranking/q2.h"
#include "aoizora/ranking/schedule.h"
#include "aoizora/topology/slice.h"
#include "aoizora/workload/workload.h"

namespace aoizora::planner {

/// Mesh axes along which some collective runs, and those along which permutes do: what a contention signature must look
/// at.
placement::PlacementOptions axes_in_use(const std::vector<candidates::MeshAxis>& mesh,
                                        const ranking::CompiledProgram& program);

/// Windowed einsum shows as loops inside the block that permute while they multiply.
bool is_windowed(const ranking::CompiledProgram& program);

/// What the planner prices of a compiled program: of a proxy the repeated block, of a whole program all of it.
ranking::CompiledProgram compiled_program(const ir::Program& program, const workload::Workload& workload,
                                          const candidates::Candidate& candidate, const topology::Hardware& hardware,
                                          ranking::Rung rung);

/// Q2 of a program without a block as that of one block that runs once; others as they are.
ranking::Q2 as_block(ranking::Q2 q2, const ranking::CompiledProgram& program);

/// Q2 of every distinct placement of one compiled sharding, in the placement room's order.
struct PricedPlacements {
  std::vector<placement::Placement> placements;
  std::vector<ranking::Q2> q2;  ///< one a placement
};
PricedPlacements price_placements(const ranking::CompiledProgram& program, std::span<const candidates::MeshAxis> mesh,
                                  const topology::Slice& slice, std::int64_t layers,
                                  const ranking::Q2Options& options = {});

/// The same for one compiler answer from outside, as JSON: hbm_bytes at `layers`, windowed, rung, and placements with
/// order, devices, block_seconds, step_seconds, contention_seconds. `rung` is "passes" or "code"; `slice` as for
/// make_slice. Throws InvalidRequest, ParseError.
std::string price_json(std::string text, const std::string& memory_report, const std::string& workload_json,
                       const std::string& candidate_json, const std::string& slice, std::int64_t layers,
                       const std::string& rung, double rate_scale);

}  // namespace aoizora::planner
