#pragma once
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "aoizora/ir/program.h"
#include "aoizora/ir/replica_groups.h"
#include "aoizora/topology/collective_kind.h"

namespace aoizora::ir {

/// One collective the program runs, however many instructions print it: an async one is printed at its start, inside
/// the fusions that carry it and at its done, all with one chain_id (seen in the output of libtpu 0.0.52).
struct Collective {
  topology::CollectiveKind kind{};
  ComputationId computation =
      none;                    ///< the computation whose schedule runs it (a loop body, the entry), never a fusion's
  InstructionId start = none;  ///< scheduled instruction at which it starts
  InstructionId done = none;   ///< scheduled instruction at which the core waits; equal to start if synchronous
  std::vector<InstructionId> carriers;  ///< scheduled fusions between them that carry it, in order
  bool is_async() const { return start != done; }
  std::int64_t result_bytes = 0;   ///< of the whole result on one device, all results of a variadic one
  std::int64_t operand_bytes = 0;  ///< of the operands on one device
  ReplicaGroups groups;            ///< logical ids; empty for a permute
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;  ///< permutes only
  std::string_view op_name;                                  ///< metadata's op_name: where in the model it comes from

  /// B in Ψ: bytes as one group holds them: AG the gathered result, RS the operand, AR the operand, A2A the operand of
  /// one device, permute and broadcast the payload.
  std::int64_t payload_bytes() const;
};

/// All collectives of the program that run, in order of computation and schedule. Those inside computations that
/// nothing scheduled calls do not run. Throws ParseError where a collective's attributes do not read.
std::vector<Collective> collectives(const Program& program);

/// Trip count of a while loop: known_trip_count where printed, otherwise from bound, start and step of its induction
/// variable in condition and body; nullopt where it cannot be told.
std::optional<std::int64_t> trip_count(const Program& program, InstructionId while_instruction);

/// How often each computation runs a step of the entry: product of trips on the way; 0 for one that never runs by
/// itself (bodies of fusions, reducers). One a computation. An unknown trip counts as 1.
std::vector<std::int64_t> execution_counts(const Program& program);

/// Partitions of the module: num_partitions x replica_count from the header, or the largest id named.
std::int32_t device_count(const Program& program);

}  // namespace aoizora::ir
