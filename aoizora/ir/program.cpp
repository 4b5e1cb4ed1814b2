#include "aoizora/ir/program.h"

#include <charconv>
#include <limits>
#include <utility>

#include "aoizora/ir/scan_impl.h"
#include "aoizora/ir/storage_impl.h"

namespace aoizora::ir {
namespace {

/// Goes over the value that starts here: up to a comma at the top, or, in MLIR's custom forms, up to blanks before the
/// next key.
std::string_view value_here(Cursor& c, bool mlir) {
  const char* start = c.at;
  const char* stop = nullptr;
  while (!c.done()) {
    const char ch = *c.at;
    if (ch == '"') {
      c.skip_string();
    } else if (ch == '(' || ch == '[' || ch == '{' || (mlir && ch == '<')) {
      c.skip_balanced(mlir);
    } else if (ch == ',' || ch == '}' || ch == ')' || ch == ']') {
      break;
    } else if (mlir && ch == ' ') {
      const char* blank = c.at;
      c.skip_blanks();
      Cursor next = c;
      const bool key = !next.name().empty() && (next.skip_blanks(), next.peek() == '=');
      if (key || c.starts_with("(%") || c.starts_with("{")) {
        stop = blank;
        break;
      }
    } else {
      ++c.at;
    }
  }
  if (!stop) stop = c.at;
  while (stop > start && is_space(stop[-1])) --stop;
  return {start, static_cast<std::size_t>(stop - start)};
}

std::string_view hlo_attribute(std::string_view text, std::string_view key) {
  Cursor c(text);
  while (!c.done()) {
    while (c.peek() == ',' || is_space(c.peek())) ++c.at;
    const std::string_view found = c.name();
    if (!c.take('=')) {
      if (c.done()) break;
      if (found.empty() && c.peek() != '"' && c.peek() != '(' && c.peek() != '[' && c.peek() != '{') ++c.at;
      value_here(c, false);
      if (!c.done() && c.peek() != ',') ++c.at;
      continue;
    }
    const char* start = c.at;
    value_here(c, false);
    // mesh['a'=4,'b'=16], device_ids=([4,16]T(1,0)) {'a'} is one value.
    if (c.starts_with(", device_ids=(")) {
      ++c.at;
      value_here(c, false);
    }
    if (found == key) return {start, static_cast<std::size_t>(c.at - start)};
  }
  return {};
}

std::string_view mlir_attribute(std::string_view text, std::string_view key) {
  Cursor c(text);
  while (!c.done()) {
    const char ch = *c.at;
    if (ch == '"') {
      c.skip_string();
    } else if (ch == '{' || c.starts_with("<{")) {
      c.at += ch == '{' ? 1 : 2;  // a dictionary: its keys count as the operation's
    } else if (ch == '(' || ch == '[' || ch == '<') {
      c.skip_balanced(true);
    } else if (is_letter(ch)) {
      const std::string_view found = c.name();
      c.skip_blanks();
      if (c.peek() != '=') {
        if (found == key) return found;  // a unit attribute
        continue;
      }
      ++c.at;
      c.skip_blanks();
      const std::string_view value = value_here(c, true);
      if (found == key) return value;
    } else if (is_name(ch) || ch == '%' || ch == '@' || ch == '#' || ch == '^') {
      ++c.at;
      while (!c.done() && (is_name(*c.at) || *c.at == '#')) ++c.at;
    } else {
      ++c.at;
    }
  }
  return {};
}

}  // namespace

std::int64_t ArrayType::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t dim : dims) {
    if (dim == 0) return 0;
    product = saturating_multiply(product, dim);
  }
  return product;
}

std::int64_t ArrayType::bytes() const {
  const std::int64_t total = saturating_multiply(elements(), bits(dtype));
  return total / 8 + (total % 8 != 0 ? 1 : 0);
}

std::vector<ComputationId> callers_first(const Program& program) {
  const std::size_t count = program.computations.size();
  std::vector<std::int32_t> callers(count, 0);
  for (const Instruction& i : program.instructions) {
    for (const ComputationId id : i.called) ++callers[static_cast<std::size_t>(id)];
  }
  std::vector<ComputationId> order;
  order.reserve(count);
  for (std::size_t id = 0; id < count; ++id) {
    if (callers[id] == 0) order.push_back(static_cast<ComputationId>(id));
  }
  for (std::size_t next = 0; next < order.size(); ++next) {
    for (const Instruction& i : program.of(order[next])) {
      for (const ComputationId id : i.called) {
        if (--callers[static_cast<std::size_t>(id)] == 0) order.push_back(id);
      }
    }
  }
  return order;
}

void check_acyclic(const Program& program) {
  const std::vector<ComputationId> order = callers_first(program);
  if (order.size() == program.computations.size()) return;
  std::vector<bool> sorted(program.computations.size(), false);
  for (const ComputationId id : order) sorted[static_cast<std::size_t>(id)] = true;
  Cursor c(program.text());
  for (std::size_t id = 0; id < sorted.size(); ++id) {
    const std::string_view name = program.computations[id].name;
    if (sorted[id] || name.empty()) continue;
    c.fail_at(name.data(), "computation " + std::string(name) + " calls itself, or is called by one that does");
  }
  c.fail("computations call themselves");
}

Program::Program() : storage(std::make_unique<Storage>()) {}
Program::~Program() = default;
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;

std::span<const Instruction> Program::of(ComputationId computation) const {
  const Computation& c = computations[static_cast<std::size_t>(computation)];
  return instructions.subspan(static_cast<std::size_t>(c.first), static_cast<std::size_t>(c.count));
}

std::string_view Program::text() const { return storage ? std::string_view(storage->text) : std::string_view(); }

std::string_view attribute(const Instruction& instruction, std::string_view key) {
  const std::string_view text = instruction.attributes;
  if (text.empty()) return {};
  // Only StableHLO's operations have a dot in their name; its block arguments hold a dictionary.
  const bool mlir = instruction.opcode.find('.') != std::string_view::npos || text.front() == '{';
  return mlir ? mlir_attribute(text, key) : hlo_attribute(text, key);
}

std::optional<std::int64_t> estimated_cycles(const Instruction& instruction) {
  if (instruction.opcode == "custom-call") return std::nullopt;  // kernel bodies are long and carry none
  const std::size_t at = instruction.attributes.find(estimated_cycles_key);
  if (at == std::string_view::npos) return std::nullopt;
  std::int64_t cycles = 0;
  const std::string_view rest = instruction.attributes.substr(at + estimated_cycles_key.size());
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), cycles);
  if (error != std::errc{} || cycles < 0 || cycles == std::numeric_limits<std::int64_t>::max()) return std::nullopt;
  return cycles;
}

std::string_view operand_text(const Instruction& instruction) {
  const char* start = instruction.opcode.data() + instruction.opcode.size();
  const char* stop = instruction.attributes.data();
  if (!stop || stop - start < 2 || *start != '(') return {};
  return {start + 1, static_cast<std::size_t>(stop - start - 2)};
}

ComputationId called(const Program& program, const Instruction& instruction, std::string_view key) {
  std::string_view name = attribute(instruction, key);
  if (!name.empty() && name.front() == '%') name.remove_prefix(1);
  for (const ComputationId id : instruction.called) {
    if (program.computations[static_cast<std::size_t>(id)].name == name) return id;
  }
  return none;
}

}  // namespace aoizora::ir
