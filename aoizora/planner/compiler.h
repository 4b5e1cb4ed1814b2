#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aoizora/candidates/candidate.h"
#include "aoizora/placement/placement.h"
#include "aoizora/topology/slice.h"
#include "aoizora/workload/workload.h"

namespace aoizora::planner {

/// How far the compiler is asked to go.
enum class CompilerRung : std::uint8_t {
  propagate,  ///< trace, lower, Shardy: propagated StableHLO in generic form
  passes,     ///< XLA:TPU HLO passes only: optimized HLO and the memory report, no code
  code,       ///< whole compile: the same with estimated_cycles
};
std::string_view name(CompilerRung rung);

/// One question to the compiler.
struct Job {
  std::int64_t id = 0;  ///< the planner's own, unique in one run
  candidates::Candidate candidate;
  CompilerRung rung = CompilerRung::propagate;
  double priority = 0;                            ///< lower first
  std::int64_t layers = 3;                        ///< trips of the block's loop
  std::optional<placement::Placement> placement;  ///< device order to compile under; row-major where absent
  bool own_process = false;                       ///< in a process that does nothing else
};

/// One answer. Exactly one of `text` and `failure` is filled.
struct Answer {
  std::int64_t id = 0;
  std::string text;
  std::string memory_report;  ///< passes and code
  std::string failure;        ///< the compiler's message, or what happened to the worker
  enum class Outcome : std::uint8_t { ok, refused, out_of_memory, crashed, timed_out } outcome = Outcome::ok;
  double seconds = 0;  ///< in the worker
};

std::string_view name(Answer::Outcome outcome);
/// Throws InvalidRequest for a name that is none.
Answer::Outcome read_outcome(const std::string& text);

/// The job as JSON: id, candidate, rung, priority, layers, own_process, placement (device ids by rank, or null).
std::string to_json(const Job& job);

/// The one interface between C++ and JAX. A queue: submit, take the next finished one, cancel.
class Compiler {
 public:
  virtual ~Compiler() = default;
  virtual void submit(const Job& job) = 0;
  /// Blocks until a job finishes. Throws CompilerFailed where the compiler itself cannot go on (no libtpu).
  virtual Answer next() = 0;
  /// Jobs not yet started are dropped; a running one may still answer.
  virtual void cancel(std::int64_t id) = 0;
  /// Versions of jax, jaxlib, libtpu for the plan and the cache key, "name=version" each.
  virtual std::vector<std::string> versions() const = 0;
};

}  // namespace aoizora::planner
