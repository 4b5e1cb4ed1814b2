// How often what runs: trips of loops, runs of computations.
#include <string>

#include "aoizora/ir/collectives.h"
#include "aoizora/ir/scan_impl.h"
#include "aoizora/ir/storage_impl.h"

namespace aoizora::ir {
namespace {

const Instruction& at(const Program& program, InstructionId id) {
  return program.instructions[static_cast<std::size_t>(id)];
}

/// The regions of a while loop in either dialect.
struct Loop {
  ComputationId condition = none;
  ComputationId body = none;
};

Loop loop_of(const Program& program, const Instruction& i) {
  if (program.dialect == Dialect::hlo) return {called(program, i, "condition"), called(program, i, "body")};
  if (i.called.size() != 2) return {};
  return {i.called[0], i.called[1]};
}

bool is_while(const Instruction& i) { return i.opcode == "while" || i.opcode == "stablehlo.while"; }

/// offset, or the loop's value number `element` + offset.
struct Value {
  bool known = false;
  std::int32_t element = none;
  std::int64_t offset = 0;
};

/// Follows scalars backwards through what compilers put between a counter and its use.
class Follower {
 public:
  Follower(const Program& program, ComputationId loop_region) : program_(program), region_(loop_region) {}

  /// One fusion or call on the way: parameters mean its operands.
  struct Frame {
    const Frame* outer = nullptr;
    InstructionId call = none;
  };

  /// Element `index` of the result, -1 where it is no tuple.
  Value value(InstructionId id, std::int32_t index, const Frame* frame, int depth) {
    if (depth > max_depth || ++steps_ > max_steps) return {};
    const Instruction& i = at(program_, id);
    const std::string_view op = i.opcode;
    const auto through = [&](std::size_t operand, std::int32_t element) -> Value {
      if (operand >= i.operands.size()) return {};
      const Operand& o = i.operands[operand];
      // StableHLO names the result in the operand.
      return value(o.instruction, program_.dialect == Dialect::stablehlo ? o.result : element, frame, depth + 1);
    };
    if (op == "parameter") return parameter(i, id, index, frame, depth);
    if (op == "constant" || op == "stablehlo.constant" || op == "sdy.constant") return constant(i);
    if (op == "get-tuple-element") {
      // Printed first. What else is there may be long, and many loops may come this way.
      constexpr std::string_view first = ", index=";
      const bool is_first = i.attributes.starts_with(first);
      if (!is_first && i.attributes.size() > 256) return {};
      Cursor number(is_first ? i.attributes.substr(first.size()) : attribute(i, "index"));
      const auto element = number.number();
      if (!element || *element > 1'000'000) return {};
      return through(0, static_cast<std::int32_t>(*element));
    }
    if (op == "tuple") return index >= 0 ? through(static_cast<std::size_t>(index), -1) : Value{};
    if (op == "copy" || op == "bitcast" || op == "convert" || op == "reshape" || op == "opt-barrier" ||
        op == "copy-done" || op == "stablehlo.convert" || op == "stablehlo.reshape") {
      return through(0, index);
    }
    if (op == "copy-start") return through(0, -1);
    if (op == "broadcast" && i.types.size() == 1 && i.types[0].dims.empty()) return through(0, -1);
    if (op == "stablehlo.optimization_barrier") return through(static_cast<std::size_t>(std::max(index, 0)), 0);
    const bool add = op == "add" || op == "stablehlo.add";
    if (add || op == "subtract" || op == "stablehlo.subtract") {
      const Value a = through(0, -1);
      const Value b = through(1, -1);
      if (!a.known || !b.known || (b.element != none && (a.element != none || !add))) return {};
      Value out{true, a.element != none ? a.element : b.element, 0};
      const bool overflow = add ? __builtin_add_overflow(a.offset, b.offset, &out.offset)
                                : __builtin_sub_overflow(a.offset, b.offset, &out.offset);
      return overflow ? Value{} : out;
    }
    if ((op == "fusion" || op == "call" || op == "func.call") && i.called.size() == 1) {
      const Frame inner{frame, id};
      const Computation& callee = program_.computations[static_cast<std::size_t>(i.called[0])];
      if (callee.root == none) return {};
      if (op != "func.call") return value(callee.root, index, &inner, depth + 1);
      const Instruction& last = at(program_, callee.root);
      if (index < 0 || static_cast<std::size_t>(index) >= last.operands.size()) return {};
      const Operand& o = last.operands[static_cast<std::size_t>(index)];
      return value(o.instruction, o.result, &inner, depth + 1);
    }
    return {};
  }

  /// The comparison that a condition's root is, with its frame kept in `frames_`.
  std::pair<InstructionId, const Frame*> comparison(InstructionId id) {
    const Frame* frame = nullptr;
    for (int depth = 0; depth < max_depth; ++depth) {
      const Instruction& i = at(program_, id);
      if (i.opcode == "compare" || i.opcode == "stablehlo.compare") return {id, frame};
      if ((i.opcode == "fusion" || i.opcode == "call" || i.opcode == "func.call") && i.called.size() == 1) {
        frames_.push_back(std::make_unique<Frame>(Frame{frame, id}));
        frame = frames_.back().get();
        id = program_.computations[static_cast<std::size_t>(i.called[0])].root;
        if (id == none) break;
        continue;
      }
      const bool passes = i.opcode == "copy" || i.opcode == "bitcast" || i.opcode == "convert" ||
                          i.opcode == "reshape" || i.opcode == "stablehlo.return" || i.opcode == "func.return";
      if (!passes || i.operands.size() != 1) break;
      id = i.operands[0].instruction;
    }
    return {none, nullptr};
  }

 private:
  static constexpr int max_depth = 64;
  static constexpr int max_steps = 128;

  Value parameter(const Instruction& i, InstructionId id, std::int32_t index, const Frame* frame, int depth) {
    const bool hlo = program_.dialect == Dialect::hlo;
    Cursor printed(operand_text(i));
    const std::int64_t number =
        hlo ? printed.number().value_or(0) : id - program_.computations[static_cast<std::size_t>(i.computation)].first;
    if (frame && program_.dialect == Dialect::stablehlo) {
      // Values of a region around belong to no frame.
      const Instruction& call = at(program_, frame->call);
      if (call.called.empty() || call.called[0] != i.computation) return {};
    }
    if (frame) {
      const Instruction& call = at(program_, frame->call);
      if (static_cast<std::size_t>(number) >= call.operands.size()) return {};
      const Operand& o = call.operands[static_cast<std::size_t>(number)];
      return value(o.instruction, program_.dialect == Dialect::stablehlo ? o.result : index, frame->outer, depth + 1);
    }
    if (i.computation != region_) return {};
    if (program_.dialect == Dialect::stablehlo) return {true, static_cast<std::int32_t>(number), 0};
    return {true, std::max(index, 0), 0};
  }

  static Value constant(const Instruction& i) {
    if (i.types.size() != 1 || i.types[0].elements() != 1) return {};
    std::string_view text = operand_text(i);
    if (i.opcode != "constant") {
      text = attribute(i, "value");
      if (text.empty()) text = i.attributes;
      const std::size_t dense = text.find("dense<");
      if (dense == std::string_view::npos) return {};
      text = text.substr(dense + 6);
    }
    Cursor c(text);
    while (c.peek() == '{' || c.peek() == '[' || is_space(c.peek())) ++c.at;
    const auto number = c.number();
    while (c.peek() == '}' || c.peek() == ']' || is_space(c.peek())) ++c.at;
    const bool whole = number && (c.done() || (i.opcode != "constant" && c.peek() == '>'));
    return whole ? Value{true, none, *number} : Value{};
  }

  const Program& program_;
  ComputationId region_;
  int steps_ = 0;
  std::vector<std::unique_ptr<Frame>> frames_;
};

std::string_view direction(const Instruction& compare) {
  for (const char* key : {"direction", "comparison_direction"}) {
    std::string_view found = attribute(compare, key);
    if (found.empty()) continue;
    // #stablehlo<comparison_direction LT>
    while (!found.empty() && !is_letter(found.back())) found.remove_suffix(1);
    const std::size_t space = found.rfind(' ');
    return space == std::string_view::npos ? found : found.substr(space + 1);
  }
  Cursor c(compare.attributes);  // stablehlo.compare LT, %a, %b
  while (is_space(c.peek())) ++c.at;
  return c.name();
}

std::string_view mirrored(std::string_view d) {
  if (d == "LT") return "GT";
  if (d == "LE") return "GE";
  if (d == "GT") return "LT";
  if (d == "GE") return "LE";
  return d;
}

__extension__ using Wide = __int128;  // differences of any two 64-bit numbers

/// n of the first test that fails: value start + n step against bound.
std::optional<std::int64_t> trips(std::string_view d, Wide start, Wide step, Wide bound) {
  if (d == "GT" || d == "GE") {
    return trips(d == "GT" ? "LT" : "LE", -start, -step, -bound);
  }
  if (d == "LE") return trips("LT", start, step, bound + 1);
  Wide n = 0;
  if (d == "LT") {
    if (start >= bound) return 0;
    if (step <= 0) return std::nullopt;
    n = (bound - start + step - 1) / step;
  } else if (d == "NE") {
    if (start == bound) return 0;
    if (step == 0 || (bound - start) % step != 0 || (bound - start) / step < 0) return std::nullopt;
    n = (bound - start) / step;
  } else if (d == "EQ") {
    if (start != bound) return 0;
    if (step == 0) return std::nullopt;
    n = 1;
  } else {
    return std::nullopt;
  }
  if (n > std::numeric_limits<std::int64_t>::max()) return std::nullopt;
  return static_cast<std::int64_t>(n);
}

std::optional<std::int64_t> printed_trips(const Instruction& i) {
  const std::string_view config = attribute(i, "backend_config");
  const std::size_t found = config.find("known_trip_count");
  if (found == std::string_view::npos) return std::nullopt;
  Cursor c(config.substr(found + 16));  // "known_trip_count":{"n":"4"}, quotes escaped or not
  while (!c.done() && !is_digit(c.peek()) && c.peek() != '}') ++c.at;
  return c.number();
}

}  // namespace

std::optional<std::int64_t> trip_count(const Program& program, InstructionId while_instruction) {
  const Instruction& i = at(program, while_instruction);
  if (!is_while(i)) return std::nullopt;
  if (const auto printed = printed_trips(i)) return printed;
  const Loop loop = loop_of(program, i);
  if (loop.condition == none || loop.body == none) return std::nullopt;

  const InstructionId test = program.computations[static_cast<std::size_t>(loop.condition)].root;
  const InstructionId next = program.computations[static_cast<std::size_t>(loop.body)].root;
  if (test == none || next == none) return std::nullopt;
  const bool hlo = program.dialect == Dialect::hlo;

  // The value before the first trip, and after one trip as a function of the values before it.
  const auto initial = [&](std::int32_t element) -> Value {
    Follower outside(program, none);
    if (!hlo) {
      if (static_cast<std::size_t>(element) >= i.operands.size()) return {};
      const Operand& o = i.operands[static_cast<std::size_t>(element)];
      return outside.value(o.instruction, o.result, nullptr, 0);
    }
    if (i.operands.size() != 1) return {};
    const bool tuple = at(program, next).types.size() != 1 || at(program, next).opcode == "tuple";
    return outside.value(i.operands[0].instruction, tuple ? element : -1, nullptr, 0);
  };
  const auto after = [&](std::int32_t element) -> Value {
    Follower body(program, loop.body);
    if (!hlo) {
      const Instruction& last = at(program, next);
      if (static_cast<std::size_t>(element) >= last.operands.size()) return {};
      const Operand& o = last.operands[static_cast<std::size_t>(element)];
      return body.value(o.instruction, o.result, nullptr, 0);
    }
    const bool tuple = at(program, next).types.size() != 1 || at(program, next).opcode == "tuple";
    return body.value(next, tuple ? element : -1, nullptr, 0);
  };
  // A bound carried through the loop unchanged is its initial value.
  const auto fixed = [&](Value v) -> Value {
    if (!v.known || v.element == none) return v;
    const Value kept = after(v.element);
    const Value first = initial(v.element);
    if (!kept.known || kept.element != v.element || kept.offset != 0 || !first.known || first.element != none)
      return {};
    Value out{true, none, 0};
    return __builtin_add_overflow(first.offset, v.offset, &out.offset) ? Value{} : out;
  };

  Follower condition(program, loop.condition);
  const auto [compare, frame] = condition.comparison(test);
  if (compare == none || at(program, compare).operands.size() != 2) return std::nullopt;
  const auto side = [&](std::size_t k) {
    const Operand& o = at(program, compare).operands[k];
    return condition.value(o.instruction, hlo ? -1 : o.result, frame, 0);
  };
  Value counter = side(0);
  Value bound = fixed(side(1));
  std::string_view d = direction(at(program, compare));
  if (!bound.known || counter.element == none) {
    counter = side(1);
    bound = fixed(side(0));
    d = mirrored(d);
  }
  if (!counter.known || counter.element == none || !bound.known) return std::nullopt;
  const Value first = initial(counter.element);
  const Value step = after(counter.element);
  if (!first.known || first.element != none || !step.known || step.element != counter.element) return std::nullopt;
  return trips(d, static_cast<Wide>(first.offset) + counter.offset, step.offset, bound.offset);
}

std::vector<std::int64_t> execution_counts(const Program& program) {
  std::vector<std::int64_t> counts(program.computations.size(), 0);
  if (program.entry == none) return counts;
  counts[static_cast<std::size_t>(program.entry)] = 1;
  const auto add = [&](ComputationId id, std::int64_t runs) {
    if (id == none) return;
    std::int64_t& count = counts[static_cast<std::size_t>(id)];
    count = saturating_add(count, runs);
  };
  for (const ComputationId id : callers_first(program)) {
    const std::int64_t runs = counts[static_cast<std::size_t>(id)];
    if (runs == 0) continue;
    const InstructionId first = program.computations[static_cast<std::size_t>(id)].first;
    const std::int32_t count = program.computations[static_cast<std::size_t>(id)].count;
    for (InstructionId next = first; next < first + count; ++next) {
      const Instruction& i = at(program, next);
      if (i.called.empty()) continue;
      if (is_while(i)) {
        const Loop loop = loop_of(program, i);
        const std::int64_t trips_of = trip_count(program, next).value_or(1);
        add(loop.body, saturating_multiply(runs, trips_of));
        add(loop.condition, saturating_multiply(runs, saturating_add(trips_of, 1)));
      } else if (i.opcode == "conditional" || i.opcode == "call" || i.opcode == "func.call" ||
                 i.opcode == "stablehlo.case" || i.opcode == "stablehlo.if" || i.opcode == "sdy.manual_computation" ||
                 i.opcode == "sdy.named_computation" || i.opcode == "stablehlo.composite") {
        for (const ComputationId callee : i.called) add(callee, runs);
      }
    }
  }
  return counts;
}

}  // namespace aoizora::ir
