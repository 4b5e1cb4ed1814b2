#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "aoizora/planner/planner.h"

namespace aoizora::planner {

/// A sharding in one line: "data 2 x context 8; embed on context; ulysses; windowed einsum off".
std::string describe(const candidates::Candidate& candidate);

/// The deployment people run today: `data` x `context`, the workload's stock rules, keys gathered, the compiler's
/// defaults.
candidates::Candidate stock_candidate(const workload::Workload& workload, std::int64_t data, std::int64_t context);

/// What the search looked at, one line each.
std::vector<std::string> searched(const Settings& settings);

/// Why the winner won: its block in parts, beside the runner-up's and the stock deployment's.
std::string why(const Plan& plan);

/// The text up to its first line end, at most 300 characters.
std::string first_line(std::string_view text);

}  // namespace aoizora::planner
