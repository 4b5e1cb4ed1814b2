#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aoizora/candidates/candidate.h"
#include "aoizora/errors.h"
#include "aoizora/placement/placement.h"
#include "aoizora/planner/compiler.h"
#include "aoizora/prediction/prediction.h"
#include "aoizora/ranking/q2.h"
#include "aoizora/topology/slice.h"
#include "aoizora/workload/workload.h"

namespace aoizora::planner {

/// Prices by the HLO passes nearer than this are even: what was measured is six times as far from them
/// (docs/evaluation.md, Table 4). Of even ones the one compiled first leaves more memory free, by more than less_memory
/// of what it needs.
inline constexpr double even_gap = 0.005;
inline constexpr double less_memory = 0.05;
/// How far code generation moves the price of a block from what the HLO passes alone say, less or more, is measured and
/// not proved: over 143 programs of Wan 2.1 14B, v5e-4 to v5e-16, by -10.9 to +8.3 % (docs/evaluation.md, "Cycles lent
/// between programs"), over four of 1.3B by -11.9 to -9.4 %. Where the cycles of a fusion are known from another
/// program it moves nothing: equal fingerprints have equal cycles.
inline constexpr double rung_gap = 0.12;
/// Runners-up slower than the best by more than this are listed only where they are compiled anyway.
inline constexpr double listed_gap = 0.1;

class CycleMemory;

/// Settings of Algorithm 1; all are in the cache key.
struct Settings {
  double survivor_fraction = 0.15;
  std::int64_t survivor_floor = 12;
  std::int64_t finalists = 2;    ///< at most so many are compiled to compare their cycles, where that may pay
  std::int64_t verify = 1;       ///< plans compiled to the end under their own placement
  std::int64_t runners_up = 10;  ///< at most so many are listed
  std::int64_t proxy_layers = 3;
  std::int64_t minimum_weight_sharding = 0;  ///< 0: from HBM
  bool ulysses = true;
  bool windowed_einsum = true;          ///< survivors are also compiled with windowed einsum off
  bool survivors_of_each_kind = false;  ///< stage 1 keeps so many of each attention kind
};
std::string to_json(const Settings& settings);
Settings read_settings(const std::string& json);

/// Something a person waiting wants to know.
struct Progress {
  std::string stage;  ///< "stage 1: propagate", "stage 2: HLO passes", "decision", "code generation", "verify"
  std::int64_t done = 0;
  std::int64_t total = 0;
  double elapsed_seconds = 0;    ///< of this stage
  double remaining_seconds = 0;  ///< estimate for this stage
  std::string best;              ///< best so far, one line
};

/// One priced pair of sharding and placement.
struct Ranked {
  candidates::Candidate candidate;
  placement::Placement placement;
  ranking::Rung rung = ranking::Rung::passes;
  prediction::Q1 q1;
  ranking::Q2 q2;
  double passes_block_seconds = 0;  ///< one block under `placement` by the HLO passes alone: comparable for all
  double passes_step_seconds = 0;   ///< one denoising step, likewise
  double hbm_bytes = 0;             ///< a device at full depth, by the compiler's buffer assignment
  double argument_bytes = 0;        ///< of them, the program's arguments; known of the winner only
  bool verified = false;            ///< compiled to the end at full depth under its own placement
};

/// A deployment people run today, priced by the same Q2 from the HLO passes of its own device order: compared with the
/// plan's passes_step_seconds.
struct Comparison {
  std::string name;
  bool split_physical_axes = false;  ///< jax's default raises: its order needs allow_split_physical_axes=True
  std::optional<Ranked> ranked;      ///< absent where it does not fit or is not legal
  std::string reason;                ///< why it is absent
};

struct StageCount {
  std::string name;
  std::int64_t count = 0;
  double seconds = 0;
};

/// The answer: s* and p*, why it won, and what was looked at.
struct Plan {
  std::optional<workload::Request> request;  ///< none where a table was planned
  std::int64_t reserved_hbm_bytes = 0;
  topology::Slice slice;
  Settings settings;
  workload::Workload workload;
  Ranked best;
  std::vector<Ranked> runners_up;
  std::vector<Comparison> comparisons;  ///< what people deploy today: deployments()
  std::vector<StageCount> counts;
  std::vector<std::string> searched;  ///< attention kinds, windowed einsum, placements: what was looked at
  bool idle_axes_searched = false;    ///< nothing fits without a mesh axis that divides no tensor
  std::vector<std::string> versions;
  std::vector<std::string> lost;     ///< candidates lost to a crash or a limit; a plan with any is not cached
  std::vector<std::string> refused;  ///< sharding-placement pairs the compiler would not finish; the next was taken
  double worst_placement_block_seconds = 0;  ///< of the winner's sharding
  std::int64_t placements = 0;               ///< distinct ones of the winner's sharding
  /// Block time and axis order of each of them that the compiler takes, best first.
  std::vector<std::pair<double, std::string>> priced_placements;
  double decision_seconds = 0;   ///< from the start until sharding and placement were chosen
  double verified_seconds = 0;   ///< until the compiler had finished them under their own placement
  std::string half_rate_winner;  ///< the order at half the ICI rate: empty where the same plan wins, else what would
  std::string why;               ///< one paragraph: what the winner does better than the runner-up
};

/// Algorithm 1. Deterministic: the same inputs give the same plan whatever order the compiler answers in.
/// `memory` spares compiles of shardings that the cycles it knows show to be slower; it does not change the plan.
/// Throws InvalidRequest, Infeasible, CompilerFailed. `progress` is called from this thread; returning false stops
/// (throws Interrupted).
Plan plan(const workload::Request& request, const topology::Slice& slice, const Settings& settings, Compiler& compiler,
          const std::function<bool(const Progress&)>& progress = {}, CycleMemory* memory = nullptr);

/// The same for any table, a user's own program's for one (workload::Workload::whole_program); the compiler answers for
/// what the table describes.
Plan plan(const workload::Workload& workload, std::int64_t reserved_hbm_bytes, const topology::Slice& slice,
          const Settings& settings, Compiler& compiler, const std::function<bool(const Progress&)>& progress = {},
          CycleMemory* memory = nullptr);

/// plan.json: versioned, documented in docs/plan-format.md.
std::string to_json(const Plan& plan);

}  // namespace aoizora::planner
