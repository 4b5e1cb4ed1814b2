#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "aoizora/candidates/candidate.h"
#include "aoizora/ir/collectives.h"
#include "aoizora/ir/program.h"
#include "aoizora/ranking/psi.h"
#include "aoizora/topology/slice.h"
#include "aoizora/workload/workload.h"

namespace aoizora::ranking {

/// Which rung of the compiler a program came from; scores are compared only within one.
enum class Rung : std::uint8_t { passes, code };

/// What compute is spent on.
enum class Work : std::uint8_t { none, matmul, attention, relayout, other };

/// What the core does next, in the HLO's own order.
struct Step {
  enum class Kind : std::uint8_t {
    compute,
    synchronous,
    start,
    done,
    loop,
    copy_start,
    copy_done
  } kind = Kind::compute;
  double seconds =
      0;  ///< compute: what the core spends; cycles / clock, or max(FLOP time, HBM time). copy_start: the DMA's
  std::int32_t collective = -1;   ///< synchronous, start, done: index into CompiledProgram::collectives
  std::int32_t body = -1;         ///< loop: index into CompiledProgram::sequences
  std::int64_t trips = 1;         ///< loop
  std::int32_t instruction = -1;  ///< in the program, for the trace; -1 where merged
  std::int32_t copy = -1;         ///< copy_start, copy_done: which DMA, below CompiledProgram::copies
  std::int32_t ready =
      -1;  ///< start, synchronous: last step of this sequence whose result the operands need; -1 for none
  std::vector<std::int32_t>
      after;                 ///< start, synchronous: collectives of this sequence whose results the operands need
  std::int32_t needed = -1;  ///< done, synchronous: first step that needs the result, or the number of steps
  Work work = Work::none;    ///< compute: of which kind
};

/// A kind of compute time, for the breakdown.
struct ComputeSplit {
  double matmul_seconds = 0;
  double attention_seconds = 0;
  double padding_seconds = 0;   ///< part of attention spent on padded lengths
  double relayout_seconds = 0;  ///< copies, transposes, slices: no FLOPs
  double other_seconds = 0;
  double total() const { return matmul_seconds + attention_seconds + relayout_seconds + other_seconds; }
};

/// One computation's schedule.
struct Sequence {
  std::string name;
  std::vector<Step> steps;
  ComputeSplit compute;  ///< of one run of this sequence, inner loops included
};

/// The part of a compiled program that ranking reads: extracted once, priced under any number of placements without the
/// text.
struct CompiledProgram {
  Rung rung = Rung::passes;
  std::vector<ir::Collective> collectives;  ///< views in them are empty: they outlive the program
  std::vector<std::string> collective_names;
  std::vector<Pattern> patterns;         ///< distinct kinds and groups
  std::vector<std::int32_t> pattern_of;  ///< one a collective: index into patterns
  std::int32_t copies = 0;               ///< DMAs between memory spaces
  std::vector<Sequence> sequences;
  std::int32_t entry = 0;
  std::int32_t block = -1;                  ///< sequence of the repeated block's body; -1 where nothing repeats
  std::int64_t proxy_layers = 1;            ///< its trips in this program
  std::int64_t argument_bytes = 0;          ///< entry parameters a device
  std::int64_t stacked_argument_bytes = 0;  ///< those of them that grow with depth
};

/// Reads the schedule. Without cycles a fusion takes the largest of its FLOP, HBM and vector-unit time; attention
/// kernels take grid steps of padded blocks at the kernel's efficiency. Helper computations that never run cost
/// nothing.
CompiledProgram extract(const ir::Program& program, const workload::Workload& workload,
                        const candidates::Candidate& candidate, const topology::Hardware& hardware, Rung rung);

/// A program nobody knows the model of (`rank`, `inspect`): attention kernels are costed from their shapes.
CompiledProgram extract(const ir::Program& program, const topology::Hardware& hardware);

}  // namespace aoizora::ranking
