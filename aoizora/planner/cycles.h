#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "aoizora/ir/program.h"

namespace aoizora::planner {

/// Cycles that code generation gave a fusion in one program hold for the same fusion in every other: only code
/// generation prints them and it takes half a minute a program, the HLO passes a second. A fusion's fingerprint is a
/// digest of the fused computation as a tree from its root (each node its opcode, types with layout and memory space,
/// the attributes that shape its work, and its operands; a parameter its number) and of the types the fusion reads and
/// writes. Names, metadata, backend_config, channels and the order of the text are not in it. cycles_test proves over
/// recorded programs that equal fingerprints have equal cycles.
using Fingerprint = std::string;  ///< 32 hexadecimal digits

/// What is known of a fingerprint: cycles, or that code generation gives none.
inline constexpr std::int64_t no_cycles = -1;
using Cycles = std::map<Fingerprint, std::int64_t>;

/// The fingerprints of the instructions of `program` that run by themselves and have no cycles of their own, one an
/// instruction; empty where it has cycles or runs inside a fusion.
std::vector<Fingerprint> fingerprints(const ir::Program& program);

/// Cycles by fingerprint of a code-generated program.
Cycles cycles_of(const ir::Program& program);

/// A program's text with cycles written into it, for the code rung of ranking::extract.
struct Lent {
  std::string text;
  std::int64_t fusions = 0;  ///< that run by themselves and had no cycles
  std::int64_t lent = 0;     ///< of these, got some
};
Lent lend(const ir::Program& program, const Cycles& known);

/// Cycles that outlive a plan. Implementations are free to forget; what they return must be what was remembered for the
/// same versions of the compiler.
class CycleMemory {
 public:
  virtual ~CycleMemory() = default;
  /// What is remembered of these fingerprints.
  virtual Cycles lookup(std::span<const Fingerprint> fingerprints) = 0;
  virtual void remember(const Cycles& cycles) = 0;
};

}  // namespace aoizora::planner
