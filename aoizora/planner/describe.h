#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aoizora/planner/planner.h"

namespace aoizora::planner {

/// A sharding in one line: "data 2 x context 8; embed on context; ulysses; windowed einsum off". The attention kind is
/// left out where the workload has no attention to choose for.
std::string describe(const candidates::Candidate& candidate, const workload::Workload& workload);

/// The deployment people run today: `data` x `context`, the workload's stock rules, keys gathered, the compiler's
/// defaults.
candidates::Candidate stock_candidate(const workload::Workload& workload, std::int64_t data, std::int64_t context);

/// What people run today, to compare the plan with. A video model: all devices on context; data 2 and context the rest.
/// A program: the batch over all devices with whole weights; and with the weights' largest axis divided as well.
struct Deployment {
  std::string name;
  candidates::Candidate candidate;
};
std::vector<Deployment> deployments(const workload::Workload& workload, std::int64_t devices);

/// jax mesh_utils' order by its defaults; where they raise, the one that splits physical axes. Throws Infeasible where
/// that raises too.
struct StockOrder {
  placement::Placement placement;
  bool split_physical_axes = false;
};
StockOrder stock_order(std::span<const candidates::MeshAxis> mesh, const topology::Slice& slice);

/// What the search looked at, one line each.
std::vector<std::string> searched(const Plan& plan);

/// Why the winner won: its block in parts, beside the runner-up's and the stock deployment's.
std::string why(const Plan& plan);

/// The text up to its first line end, at most 300 characters.
std::string first_line(std::string_view text);

}  // namespace aoizora::planner
