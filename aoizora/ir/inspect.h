#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "aoizora/ir/program.h"

namespace aoizora::ir {

/// Instructions by opcode as XLA's own reader counts them: an async form printed short ("slice-start") stands there for
/// an async-start and a computation that holds the slice and its parameters. StableHLO: operations by name, block
/// arguments as "parameter".
std::map<std::string, std::int64_t, std::less<>> opcode_counts(const Program& program);

/// What `aoizora inspect FILE --json` prints:
///   dialect, name, devices, is_scheduled, instructions (how many), opcodes (by name),
///   computations: [{name, instructions, runs}] of those that run, and how many there are,
///   loops: [{name, where, trips (null where unknown), runs, body}],
///   collectives: [{kind, name, where, async, done, carriers, runs, groups, group_size, replica_groups or pairs
///   (null where the program names more than 131,072 ids),
///   payload_bytes,
///                  result_bytes, operand_bytes, op_name}],
///   totals: {kind: {count, payload_bytes, result_bytes}}, runs multiplied,
///   parameter_bytes of the entry.
std::string inspect_json(const Program& program);

/// The graph itself: computations [{name, entry, instructions: [{name, opcode, types: [[dtype, [dims]]], operands:
/// [[name, result]], called: [position of a computation]}]}], in order of print.
std::string graph_json(const Program& program);

}  // namespace aoizora::ir
