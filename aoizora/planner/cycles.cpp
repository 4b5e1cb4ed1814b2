#include "aoizora/planner/cycles.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace aoizora::planner {
namespace {

using ir::ComputationId;
using ir::Instruction;
using ir::InstructionId;

// Attributes that change no work: names, channels, hints.
constexpr std::array<std::string_view, 6> ignored{"metadata", "backend_config",      "channel_id",
                                                  "sharding", "frontend_attributes", "kind"};

/// Two FNV-1a hashes of 64 bits with different offsets: 128 bits, the same on every machine.
class Digest {
 public:
  void add(std::string_view text) {
    for (const char c : text) add(static_cast<std::uint64_t>(static_cast<unsigned char>(c)));
    add(256);  // no byte: ends the text
  }
  void add(std::uint64_t value) {
    a_ = (a_ ^ value) * 1099511628211ull;
    b_ = (b_ ^ (value + 0x9e3779b97f4a7c15ull)) * 1099511628211ull;
    b_ ^= b_ >> 29;
  }
  void add(const Digest& other) {
    add(other.a_);
    add(other.b_);
  }
  Fingerprint text() const {
    Fingerprint result;
    for (const std::uint64_t half : {a_, b_}) {
      for (int shift = 60; shift >= 0; shift -= 4) result += "0123456789abcdef"[half >> shift & 15];
    }
    return result;
  }

 private:
  std::uint64_t a_ = 14695981039346656037ull, b_ = 0x6c62272e07bb0142ull;
};

/// Digests of the instructions of one program.
class Printer {
 public:
  explicit Printer(const ir::Program& program)
      : program_(program), trees_(program.computations.size()), begun_(program.computations.size(), false) {}

  Fingerprint print(const Instruction& instruction) {
    Digest digest = node(instruction);
    for (const ir::Operand& operand : instruction.operands) {
      if (operand.instruction < 0) continue;
      const Instruction& source = program_.instructions[static_cast<std::size_t>(operand.instruction)];
      digest.add(static_cast<std::uint64_t>(operand.result));
      add_types(digest, source);
    }
    return digest.text();
  }

 private:
  static void add_types(Digest& digest, const Instruction& instruction) {
    for (const ir::ArrayType& type : instruction.types) {
      digest.add(static_cast<std::uint64_t>(type.dtype));
      for (const std::int64_t dim : type.dims) digest.add(static_cast<std::uint64_t>(dim));
      digest.add(type.layout);
    }
    digest.add(static_cast<std::uint64_t>(instruction.types.size()));
  }

  /// An instruction with what it calls; not where its operands come from.
  Digest node(const Instruction& instruction) {
    Digest digest;
    digest.add(instruction.opcode);
    add_types(digest, instruction);
    add_attributes(digest, instruction.attributes);
    if (instruction.opcode == "parameter" || instruction.opcode == "constant")
      digest.add(ir::operand_text(instruction));
    for (const ComputationId called : instruction.called) digest.add(tree(called));
    return digest;
  }

  /// "dimensions={0}, calls=%f, metadata={...}": what shapes the work, called computations aside.
  static void add_attributes(Digest& digest, std::string_view text) {
    int depth = 0;
    bool quoted = false;
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= text.size(); ++i) {
      const char c = i < text.size() ? text[i] : ',';
      if (i < text.size() && c == '"' && (i == 0 || text[i - 1] != '\\')) quoted = !quoted;
      if (quoted && i < text.size()) continue;
      if (c == '(' || c == '[' || c == '{') ++depth;
      if (c == ')' || c == ']' || c == '}') --depth;
      if (c != ',' || (depth > 0 && i < text.size())) continue;
      add_attribute(digest, text.substr(begin, i - begin));
      begin = i + 1;
    }
  }

  static void add_attribute(Digest& digest, std::string_view part) {
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    const std::string_view key = part.substr(0, part.find('='));
    if (key.empty() || key == "calls" || key == "to_apply") return;
    if (std::find(ignored.begin(), ignored.end(), key) == ignored.end()) digest.add(part);
  }

  /// Of a computation: its root, each node with those of its operands.
  Digest tree(ComputationId id) {
    const auto index = static_cast<std::size_t>(id);
    if (begun_[index]) return trees_[index];  // HLO has no circles; a damaged text may
    begun_[index] = true;
    const ir::Computation& computation = program_.computations[index];
    std::vector<Digest> digests(static_cast<std::size_t>(computation.count));
    for (std::int32_t i = 0; i < computation.count; ++i) {
      const Instruction& instruction =
          program_.instructions[static_cast<std::size_t>(computation.first) + static_cast<std::size_t>(i)];
      Digest digest = node(instruction);
      for (const ir::Operand& operand : instruction.operands) {
        const std::int32_t at = operand.instruction - computation.first;
        if (at >= 0 && at < i) digest.add(digests[static_cast<std::size_t>(at)]);  // a value stands before its uses
        digest.add(static_cast<std::uint64_t>(operand.result));
      }
      digests[static_cast<std::size_t>(i)] = digest;
      if (computation.first + i == computation.root) trees_[index] = digest;
    }
    return trees_[index];
  }

  const ir::Program& program_;
  std::vector<Digest> trees_;
  std::vector<bool> begun_;
};

std::vector<bool> called_by_fusions(const ir::Program& program) {
  std::vector<bool> fused(program.computations.size(), false);
  for (const Instruction& instruction : program.instructions) {
    if (instruction.opcode != "fusion") continue;
    for (const ComputationId called : instruction.called) fused[static_cast<std::size_t>(called)] = true;
  }
  return fused;
}

}  // namespace

std::vector<Fingerprint> fingerprints(const ir::Program& program) {
  const auto fused = called_by_fusions(program);
  Printer printer(program);
  std::vector<Fingerprint> result(program.instructions.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    const Instruction& instruction = program.instructions[i];
    if (instruction.computation == ir::none || fused[static_cast<std::size_t>(instruction.computation)]) continue;
    if (instruction.opcode == "custom-call" || ir::estimated_cycles(instruction)) continue;
    result[i] = printer.print(instruction);
  }
  return result;
}

Cycles cycles_of(const ir::Program& program) {
  Printer printer(program);
  Cycles result;
  for (const Instruction& instruction : program.instructions) {
    if (const auto cycles = ir::estimated_cycles(instruction)) result.emplace(printer.print(instruction), *cycles);
  }
  return result;
}

Lent lend(const ir::Program& program, const Cycles& known) {
  const auto prints = fingerprints(program);
  const std::string_view text = program.text();
  Lent result;
  std::vector<std::pair<std::size_t, std::string>> inserts;  // where in the text, and what
  for (std::size_t i = 0; i < prints.size(); ++i) {
    if (prints[i].empty()) continue;
    const Instruction& instruction = program.instructions[i];
    // What only starts or ends a collective has no cycles to get.
    const bool counts = instruction.opcode == "fusion" && !instruction.name.starts_with("async-collective-");
    result.fusions += counts ? 1 : 0;
    const auto found = known.find(prints[i]);
    const std::string_view attributes = instruction.attributes;
    // What has no attribute at all has no cycles either, and nothing to hang them on.
    if (found == known.end() || found->second < 0 || attributes.empty()) continue;
    result.lent += counts ? 1 : 0;
    const std::string config =
        "\"window_config\":{" + std::string(ir::estimated_cycles_key) + std::to_string(found->second) + "\"}";
    constexpr std::string_view key = "backend_config={";
    const auto begin = static_cast<std::size_t>(attributes.data() - text.data());
    if (const std::size_t at = attributes.find(key); at != std::string_view::npos) {
      const std::size_t after = at + key.size();
      const bool empty = after < attributes.size() && attributes[after] == '}';
      inserts.emplace_back(begin + after, config + (empty ? "" : ","));
    } else {
      inserts.emplace_back(begin + attributes.size(), ", backend_config={" + config + "}");
    }
  }
  std::sort(inserts.begin(), inserts.end());
  result.text.reserve(text.size() + 64 * inserts.size());
  std::size_t copied = 0;
  for (const auto& [at, what] : inserts) {
    result.text += text.substr(copied, at - copied);
    result.text += what;
    copied = at;
  }
  result.text += text.substr(copied);
  return result;
}

}  // namespace aoizora::planner
