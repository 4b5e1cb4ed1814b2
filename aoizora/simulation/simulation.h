#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aoizora/ir/replica_groups.h"
#include "aoizora/placement/placement.h"
#include "aoizora/ranking/schedule.h"
#include "aoizora/simulation/flows.h"
#include "aoizora/topology/slice.h"

namespace aoizora::simulation {

struct Options {
  double rate_scale = 1.0;  ///< every link's rate and flow limit times this
  /// Every trip of every loop, every collective event by event: no short cut. For checking the short cuts.
  bool exhaustive = false;
};

/// One run of a collective in the block's last trip, or in the whole program where nothing repeats.
struct CollectiveTiming {
  std::int32_t collective = -1;
  double start_seconds = 0;  ///< from the beginning of the block
  double end_seconds = 0;
  double exposed_seconds = 0;  ///< what the core waited for it
};

/// Comparable with ranking::Q2 number by number.
struct Timing {
  double step_seconds = 0;                   ///< one denoising step at full depth
  double block_seconds = 0;                  ///< the block's last trip; 0 where nothing repeats
  double outside_seconds = 0;                ///< step less layers x block
  double exposed_communication_seconds = 0;  ///< of one block, or of the program where nothing repeats
  std::vector<CollectiveTiming>
      collectives;  ///< in the order they are done; a loop inside the block shows its last trip
};

/// Times the schedule under a placement, event by event, link by link (docs/simulation.md). Throws InvalidRequest for a
/// placement that does not fit the slice or the program.
Timing simulate(const ranking::CompiledProgram& program, const placement::Placement& placement,
                const topology::Slice& slice, std::int64_t layers, const Options& options = {});

/// The same for many placements of one program: what placements have in common is timed once. Keeps references to the
/// program and the slice. Not for two threads at once.
class Simulator {
 public:
  Simulator(const ranking::CompiledProgram& program, const topology::Slice& slice, std::int64_t layers,
            const Options& options = {});
  ~Simulator();
  Simulator(Simulator&&) noexcept;
  Simulator& operator=(Simulator&&) noexcept;
  Timing simulate(const placement::Placement& placement);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// One collective, all its groups at once, nothing else in flight. An empty list of groups is one group of all ranks.
double collective_seconds(topology::CollectiveKind kind, const ir::ReplicaGroups& groups, double bytes,
                          const placement::Placement& placement, const topology::Slice& slice,
                          const Options& options = {});

/// The same for a permute.
double permute_seconds(std::span<const std::pair<std::int32_t, std::int32_t>> pairs, double bytes,
                       const placement::Placement& placement, const topology::Slice& slice,
                       const Options& options = {});

/// Either, of texts: `kind` is HLO's opcode, `groups` JSON such as [[0, 1], [2, 3]]; the pairs of a permute.
double collective_seconds(std::string_view kind, std::string_view groups, double bytes,
                          const placement::Placement& placement, const topology::Slice& slice,
                          const Options& options = {});

/// The schedule as neutral JSON, for a judge from outside (docs/simulation.md has the format).
std::string schedule_json(const ranking::CompiledProgram& program, const placement::Placement& placement,
                          const topology::Slice& slice, std::int64_t layers);

/// Timing as JSON text, numbers under the names above.
std::string to_json(const Timing& timing, const ranking::CompiledProgram& program);

/// Throws InvalidRequest unless every device of the placement is one of the slice, none twice.
void check_placement(const placement::Placement& placement, const topology::Slice& slice);

}  // namespace aoizora::simulation
