#pragma once
#include <memory>
#include <string>
#include <vector>

#include "aoizora/placement/placement.h"
#include "aoizora/ranking/psi.h"
#include "aoizora/ranking/schedule.h"
#include "aoizora/topology/slice.h"

namespace aoizora::ranking {

/// Overrides for a what-if: every link's rate and flow limit times `rate_scale` ("nominal and half of it").
struct Q2Options {
  double rate_scale = 1.0;
  bool dependency_order = false;  ///< the second model: dependencies only, as the paper words it
};

/// One collective in the breakdown.
struct CollectiveCost {
  std::int32_t collective = -1;
  topology::CollectiveKind kind{};
  std::string name;                       ///< the instruction that starts it, with its op_name where printed
  double runs = 1;                        ///< how often it runs in one block (loops inside the block multiply)
  double bytes = 0;                       ///< payload of one run, as one group holds it
  double seconds = 0;                     ///< physical cost of one run
  double exposed_seconds = 0;             ///< what the core waited for it, one run
  double contention_seconds = 0;          ///< seconds less what the slowest group would take alone
  double effective_bytes_per_second = 0;  ///< payload x φ / seconds
  std::vector<topology::LinkId> links;
  std::vector<double> link_bytes_per_byte;  ///< on each of `links` over one run, for a byte of payload
};

/// What the core does for a while.
struct CoreSlot {
  enum class Kind : std::uint8_t {
    matmul,
    attention,
    relayout,
    other,
    wait,       ///< for a collective
    copy_wait,  ///< for a DMA between memory spaces
    trips       ///< of an inner loop that has too many to be listed one by one
  } kind = Kind::other;
  double seconds = 0;
  std::int32_t collective = -1;  ///< wait: index into Q2::collectives
};

/// One run of a collective; what began in the block before begins at 0, what goes on in the next one ends with this.
struct FlightSlot {
  std::int32_t collective = -1;  ///< index into Q2::collectives
  double begin_seconds = 0;      ///< from the block's begin
  double end_seconds = 0;
};

/// One block as the schedule has it, the last of the model's: the core's slots follow each other and fill it.
struct BlockTimeline {
  std::vector<CoreSlot> core;
  std::vector<FlightSlot> flights;  ///< by begin
};

/// Q2 = RS_phys + R_cont (paper 4.4), of the deployed depth. RS_phys: the schedule with every collective as fast as
/// alone. R_cont: what is added by collectives in flight together that share links, max-min fairly, instead of the
/// paper's one engine a dimension.
struct Q2 {
  double step_seconds = 0;   ///< one denoising step at full depth: entry + layers x block + exit
  double block_seconds = 0;  ///< one block, R_cont included
  double outside_seconds = 0;
  double contention_seconds = 0;             ///< R_cont of one block, never negative
  double exposed_communication_seconds = 0;  ///< of one block, R_cont included
  ComputeSplit compute;                      ///< of one block
  std::vector<CollectiveCost> collectives;   ///< of one block, in schedule order; filled by explain() only
  BlockTimeline timeline;                    ///< of one block; filled by explain() only
};

/// Scores placements of one program one after the other, remembering what does not depend on the placement and what
/// placements have in common; the answers do not depend on which came before. Not for several threads at once. Program
/// and slice must outlive it.
class Scorer {
 public:
  Scorer(const CompiledProgram& program, const topology::Slice& slice, std::int64_t layers,
         const Q2Options& options = {});
  ~Scorer();
  Scorer(Scorer&&) noexcept;
  Scorer& operator=(Scorer&&) noexcept;

  Q2 score(const placement::Placement& placement);
  /// The same with the breakdown.
  Q2 explain(const placement::Placement& placement);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Score of one placement. Costs microseconds to milliseconds; safe to call from many threads.
Q2 score(const CompiledProgram& program, const placement::Placement& placement, const topology::Slice& slice,
         std::int64_t layers, const Q2Options& options = {});

/// The same with the breakdown.
Q2 explain(const CompiledProgram& program, const placement::Placement& placement, const topology::Slice& slice,
           std::int64_t layers, const Q2Options& options = {});

/// The breakdown as JSON text, numbers under the names above.
std::string to_json(const Q2& q2);

/// HBM of one device at full depth: peak of the proxy less its arguments, plus the arguments at `layers` (the part of
/// the peak that is not arguments stays put with depth, compiler-facts).
double hbm_bytes_at_depth(const CompiledProgram& program, std::int64_t proxy_total_bytes, std::int64_t layers);

}  // namespace aoizora::ranking
