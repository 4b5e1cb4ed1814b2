#include "aoizora/ir/inspect.h"

#include <boost/json.hpp>

#include "aoizora/ir/collectives.h"
#include "aoizora/ir/scan_impl.h"

namespace aoizora::ir {
namespace {

namespace json = boost::json;

const Instruction& at(const Program& program, InstructionId id) {
  return program.instructions[static_cast<std::size_t>(id)];
}
const Computation& of(const Program& program, ComputationId id) {
  return program.computations[static_cast<std::size_t>(id)];
}

/// Names of computations. Regions of StableHLO have none of their own: "main/12.1" is the second region of
/// operation 12.
std::vector<std::string> computation_names(const Program& program) {
  std::vector<std::string> out(program.computations.size());
  std::vector<std::size_t> region(program.computations.size(), 0);
  for (const Instruction& i : program.instructions) {
    for (std::size_t k = 0; k < i.called.size(); ++k) region[static_cast<std::size_t>(i.called[k])] = k;
  }
  // A region comes after the block that holds it.
  for (std::size_t id = 0; id < out.size(); ++id) {
    const Computation& computation = program.computations[id];
    out[id] = computation.name;
    if (computation.caller == none || !computation.name.empty()) continue;
    const Instruction& caller = at(program, computation.caller);
    out[id] = out[static_cast<std::size_t>(caller.computation)] + "/" + std::string(caller.name) + "." +
              std::to_string(region[id]);
  }
  return out;
}

/// Bytes that are no UTF-8 become '?': JSON has no others.
std::string as_utf8(std::string text) {
  const auto byte = [&](std::size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0U; };
  for (std::size_t k = 0; k < text.size();) {
    const unsigned lead = byte(k);
    const std::size_t more = lead < 0x80                   ? 0
                             : lead >= 0xC2 && lead < 0xE0 ? 1
                             : lead >= 0xE0 && lead < 0xF0 ? 2
                             : lead >= 0xF0 && lead < 0xF5 ? 3
                                                           : 4;
    bool good = more < 4;
    for (std::size_t n = 1; good && n <= more; ++n) good = (byte(k + n) & 0xC0U) == 0x80;
    // Overlong forms, surrogates and what lies above U+10FFFF.
    good = good && !(lead == 0xE0 && byte(k + 1) < 0xA0) && !(lead == 0xED && byte(k + 1) > 0x9F) &&
           !(lead == 0xF0 && byte(k + 1) < 0x90) && !(lead == 0xF4 && byte(k + 1) > 0x8F);
    if (!good) text[k] = '?';
    k += good ? more + 1 : 1;
  }
  return text;
}

bool starts_natively(std::string_view base) {
  return base == "all-gather" || base == "all-reduce" || base == "collective-permute" || base == "copy" ||
         base == "async";
}

/// More ids than that are not listed: JSON takes ten times the memory.
constexpr std::size_t most_listed_ids = 1 << 17;

json::value group_list(const ReplicaGroups& groups, std::size_t& listed) {
  for (const auto& group : groups) listed += 2 + group.size();
  if (listed > most_listed_ids) return nullptr;
  json::array out;
  for (const auto& group : groups) out.emplace_back(json::array(group.begin(), group.end()));
  return out;
}

json::object to_json(const Program& program, const Collective& c, const std::vector<std::int64_t>& runs,
                     const std::vector<std::string>& names, std::size_t& listed) {
  json::object out;
  out["kind"] = topology::name(c.kind);
  out["name"] = at(program, c.start).name;
  out["where"] = names[static_cast<std::size_t>(c.computation)];
  out["async"] = c.is_async();
  if (c.is_async()) {
    out["done"] = at(program, c.done).name;
    json::array carriers;
    for (const InstructionId carrier : c.carriers) carriers.emplace_back(at(program, carrier).name);
    out["carriers"] = std::move(carriers);
  }
  out["runs"] = runs[static_cast<std::size_t>(c.computation)];
  if (c.kind == topology::CollectiveKind::permute) {
    json::array pairs;
    listed += 4 * c.pairs.size();
    for (const auto& [from, to] : c.pairs) {
      if (listed <= most_listed_ids) pairs.emplace_back(json::array{from, to});
    }
    out["pairs"] = listed <= most_listed_ids ? json::value(std::move(pairs)) : nullptr;
  } else {
    out["groups"] = c.groups.size();
    out["group_size"] = c.groups.empty() ? 0 : c.groups.front().size();
    out["replica_groups"] = group_list(c.groups, listed);
  }
  out["payload_bytes"] = c.payload_bytes();
  out["result_bytes"] = c.result_bytes;
  out["operand_bytes"] = c.operand_bytes;
  out["op_name"] = c.op_name;
  return out;
}

json::array loops_json(const Program& program, const std::vector<std::int64_t>& runs,
                       const std::vector<std::string>& names) {
  json::array out;
  for (std::size_t id = 0; id < program.instructions.size(); ++id) {
    const Instruction& i = program.instructions[id];
    const bool hlo = i.opcode == "while";
    if (!hlo && i.opcode != "stablehlo.while") continue;
    const ComputationId body = hlo ? called(program, i, "body") : i.called.size() == 2 ? i.called[1] : none;
    const auto trips = trip_count(program, static_cast<InstructionId>(id));
    json::object one;
    one["name"] = i.name;
    one["where"] = names[static_cast<std::size_t>(i.computation)];
    one["trips"] = trips ? json::value(*trips) : json::value(nullptr);
    one["runs"] = runs[static_cast<std::size_t>(i.computation)];
    one["body"] = body == none ? std::string() : names[static_cast<std::size_t>(body)];
    out.emplace_back(std::move(one));
  }
  return out;
}

}  // namespace

std::map<std::string, std::int64_t, std::less<>> opcode_counts(const Program& program) {
  std::map<std::string, std::int64_t, std::less<>> out;
  const auto count = [&](std::string_view opcode, std::int64_t by) {
    const auto found = out.find(opcode);
    if (found == out.end()) {
      if (by > 0) out.emplace(opcode, by);
    } else {
      found->second += by;
    }
  };
  for (const Instruction& i : program.instructions) {
    const std::size_t dash = i.opcode.rfind('-');
    const std::string_view ending = dash == std::string_view::npos ? std::string_view() : i.opcode.substr(dash + 1);
    const std::string_view base = i.opcode.substr(0, dash);
    const bool async = program.dialect == Dialect::hlo &&
                       (ending == "start" || ending == "update" || ending == "done") && !starts_natively(base) &&
                       base != "send" && base != "recv";
    if (!async) {
      count(i.opcode, 1);
      continue;
    }
    count("async-" + std::string(ending), 1);
    if (ending == "start" && i.called.empty()) {
      count(base, 1);
      count("parameter", static_cast<std::int64_t>(i.operands.size()));
    }
  }
  return out;
}

std::string inspect_json(const Program& program) {
  const std::vector<std::int64_t> runs = execution_counts(program);
  const std::vector<std::string> names = computation_names(program);
  json::object out;
  out["dialect"] = program.dialect == Dialect::hlo ? "hlo" : "stablehlo";
  out["name"] = program.name;
  out["devices"] = device_count(program);
  out["is_scheduled"] = program.is_scheduled;

  json::object opcodes;
  std::int64_t instructions = 0;
  for (const auto& [opcode, count] : opcode_counts(program)) {
    opcodes[opcode] = count;
    instructions += count;
  }
  out["instructions"] = instructions;
  out["opcodes"] = std::move(opcodes);

  out["computation_count"] = program.computations.size();
  json::array computations;
  for (std::size_t id = 0; id < program.computations.size(); ++id) {
    if (runs[id] == 0) continue;
    json::object one;
    one["name"] = names[id];
    one["instructions"] = program.computations[id].count;
    one["runs"] = runs[id];
    computations.emplace_back(std::move(one));
  }
  out["computations"] = std::move(computations);
  out["loops"] = loops_json(program, runs, names);

  json::array list;
  std::size_t listed = 0;
  struct Total {
    std::int64_t count = 0;
    std::int64_t payload_bytes = 0;
    std::int64_t result_bytes = 0;
  };
  std::map<topology::CollectiveKind, Total> totals;
  for (const Collective& c : collectives(program)) {
    list.emplace_back(to_json(program, c, runs, names, listed));
    const std::int64_t times = runs[static_cast<std::size_t>(c.computation)];
    Total& total = totals[c.kind];
    total.count = saturating_add(total.count, times);
    total.payload_bytes = saturating_add(total.payload_bytes, saturating_multiply(times, c.payload_bytes()));
    total.result_bytes = saturating_add(total.result_bytes, saturating_multiply(times, c.result_bytes));
  }
  out["collectives"] = std::move(list);
  json::object sums;
  for (const auto& [kind, total] : totals) {
    sums[topology::name(kind)] = {
        {"count", total.count}, {"payload_bytes", total.payload_bytes}, {"result_bytes", total.result_bytes}};
  }
  out["totals"] = std::move(sums);

  std::int64_t parameter_bytes = 0;
  for (const InstructionId id : of(program, program.entry).parameters) {
    for (const ArrayType& type : at(program, id).types) parameter_bytes = saturating_add(parameter_bytes, type.bytes());
  }
  out["parameter_bytes"] = parameter_bytes;
  return as_utf8(json::serialize(out));
}

std::string graph_json(const Program& program) {
  json::array computations;
  for (std::size_t id = 0; id < program.computations.size(); ++id) {
    json::array instructions;
    for (const Instruction& i : program.of(static_cast<ComputationId>(id))) {
      json::array types;
      for (const ArrayType& type : i.types) {
        types.emplace_back(json::array{name(type.dtype), json::array(type.dims.begin(), type.dims.end())});
      }
      json::array operands;
      for (const Operand& o : i.operands) {
        operands.emplace_back(json::array{at(program, o.instruction).name, o.result});
      }
      instructions.emplace_back(json::object{{"name", i.name},
                                             {"opcode", i.opcode},
                                             {"types", std::move(types)},
                                             {"operands", std::move(operands)},
                                             {"called", json::array(i.called.begin(), i.called.end())}});
    }
    computations.emplace_back(json::object{{"name", program.computations[id].name},
                                           {"entry", static_cast<ComputationId>(id) == program.entry},
                                           {"instructions", std::move(instructions)}});
  }
  return as_utf8(json::serialize(json::object{{"computations", std::move(computations)}}));
}

}  // namespace aoizora::ir
