#include "aoizora/ranking/schedule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "aoizora/errors.h"
#include "aoizora/prediction/prediction.h"

namespace aoizora::ranking {
namespace {

using ir::ArrayType;
using ir::ComputationId;
using ir::Instruction;
using ir::InstructionId;
using ir::Program;

constexpr int depth_limit = 64;

/// VMEM is read and written at about 22 times the rate of HBM (JAX scaling book, "How to think about TPUs").
constexpr double vmem_to_hbm = 22;

/// What the compiler itself charges the vector unit: about 40 cycles for 2048 elements, a register tile of 4 KiB of
/// 2-byte ones (18 to 55 for reductions, copies, pads and GELU; of 4-byte ones half a tile). A copy to HBM that makes
/// another dimension the minor one takes 53 (f32 54), into tiles of one row 242. Read off estimated_cycles of libtpu
/// 0.0.52 for v5e; used only where a text has no cycles.
using prediction::vector_cycles_per_element;
constexpr double turning_cycles_per_element = 53.0 / 2048;
constexpr double one_row_cycles_per_element = 242.0 / 2048;
/// A matmul takes so much longer where it writes 2-byte elements with another than the last dimension minor: 1.41
/// to 1.66 by the same cycles, 1.05 for f32.
constexpr double turned_matmul = 1.45;

struct Cost {
  double seconds = 0;
  double padding_seconds = 0;
  Work work = Work::none;
};

template <std::size_t N>
bool one_of(std::string_view opcode, const std::array<std::string_view, N>& opcodes) {
  return std::find(opcodes.begin(), opcodes.end(), opcode) != opcodes.end();
}

/// Names for a value, or work the core does not see.
bool costs_nothing(std::string_view opcode) {
  static constexpr std::array<std::string_view, 12> opcodes{
      "parameter", "constant",       "tuple",       "get-tuple-element",    "bitcast", "partition-id", "replica-id",
      "after-all", "add-dependency", "opt-barrier", "optimization-barrier", "domain"};
  return one_of(opcode, opcodes);
}

bool moves_only(std::string_view opcode) {
  static constexpr std::array<std::string_view, 12> opcodes{
      "copy", "transpose",   "reshape",   "slice",   "dynamic-slice", "dynamic-update-slice",
      "pad",  "concatenate", "broadcast", "reverse", "iota",          "convert"};
  return one_of(opcode, opcodes);
}

bool is_collective_opcode(std::string_view opcode) {
  return opcode.starts_with("all-") || opcode.starts_with("reduce-scatter") || opcode.starts_with("collective-") ||
         opcode.starts_with("ragged-all-to-all");
}

bool ends_with_start(const Instruction& instruction) { return instruction.opcode.ends_with("-start"); }
bool ends_with_done(const Instruction& instruction) { return instruction.opcode.ends_with("-done"); }

std::string_view custom_call_target(const Instruction& instruction) {
  std::string_view target = ir::attribute(instruction, "custom_call_target");
  if (target.size() >= 2 && target.front() == '"') target = target.substr(1, target.size() - 2);
  return target;
}

/// "20x1" -> {20, 1}.
std::vector<std::int64_t> read_by_x(std::string_view text) {
  std::vector<std::int64_t> values;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('x'), text.size());
    std::int64_t value = 0;
    std::from_chars(text.data(), text.data() + end, value);
    values.push_back(value);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return values;
}

/// Value of `key=` in a window: "{size=1x2 pad=0_0x1_1}" and "pad" give "0_0x1_1".
std::string_view window_value(std::string_view window, std::string_view key) {
  if (window.size() >= 2 && window.front() == '{') window = window.substr(1, window.size() - 2);
  while (!window.empty()) {
    const std::size_t end = std::min(window.find(' '), window.size());
    const std::string_view item = window.substr(0, end);
    if (item.size() > key.size() && item.starts_with(key) && item[key.size()] == '=')
      return item.substr(key.size() + 1);
    window.remove_prefix(std::min(end + 1, window.size()));
  }
  return {};
}

std::int64_t value_at(const std::vector<std::int64_t>& values, std::size_t index, std::int64_t fallback) {
  return index < values.size() ? values[index] : fallback;
}

/// Pairs (output position, window position) of one spatial dimension that meet an input element. XLA writes batch
/// dimensions as dilated windows and concatenations as padded ones, so size x size would count multiplications that
/// never happen.
double meeting_points(std::int64_t input, std::int64_t output, std::int64_t size, std::int64_t stride,
                      std::int64_t pad_low, std::int64_t base_dilation, std::int64_t window_dilation) {
  constexpr std::int64_t exact_up_to = 1 << 14;
  if (output <= 0 || size <= 0 || input <= 0) return 0;
  base_dilation = std::max<std::int64_t>(base_dilation, 1);
  const double all = static_cast<double>(output) * static_cast<double>(size);
  const auto small = [](std::int64_t value) { return value > -exact_up_to && value < exact_up_to; };
  if (!small(output) || !small(size) || all > exact_up_to || !small(stride) || !small(pad_low) ||
      !small(window_dilation) || !small(base_dilation) ||
      input > std::numeric_limits<std::int64_t>::max() / exact_up_to) {
    return all / static_cast<double>(base_dilation);
  }
  std::int64_t count = 0;
  for (std::int64_t o = 0; o < output; ++o) {
    for (std::int64_t k = 0; k < size; ++k) {
      const std::int64_t at = o * stride + k * window_dilation - pad_low;
      if (at >= 0 && at <= (input - 1) * base_dilation && at % base_dilation == 0) ++count;
    }
  }
  return static_cast<double>(count);
}

/// "1,0:T(8,128)" -> {1, 0}: as far as numbers and commas go.
std::vector<std::int64_t> read_list(std::string_view text) {
  std::vector<std::int64_t> values;
  while (!text.empty()) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{}) break;
    values.push_back(value);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty() || text.front() != ',') break;
    text.remove_prefix(1);
  }
  return values;
}

/// The dimension of more than one element that varies fastest in memory; -1 where the text has no layout.
std::int64_t minor_dimension(const ArrayType& type) {
  for (const std::int64_t dim : read_list(type.layout)) {
    if (dim < 0 || dim >= static_cast<std::int64_t>(type.dims.size())) return -1;
    if (type.dims[dim] > 1) return dim;
  }
  return -1;
}

/// Elements of an array as its layout stores them: "1,0:T(8,128)(2,1)" pads the minor dimensions to whole tiles.
double stored_bytes(const ArrayType& type) {
  const double plain = static_cast<double>(type.bytes());
  const std::size_t colon = type.layout.find(':');
  const std::size_t tile = type.layout.find("T(", colon == std::string_view::npos ? type.layout.size() : colon);
  if (tile == std::string_view::npos || type.dims.empty()) return plain;
  const std::vector<std::int64_t> minor_to_major = read_list(type.layout.substr(0, colon));
  const std::vector<std::int64_t> tiles = read_list(type.layout.substr(tile + 2));
  double padding = 1;
  for (std::size_t k = 0; k < tiles.size() && k < minor_to_major.size(); ++k) {
    const std::int64_t dim = minor_to_major[k], unit = tiles[tiles.size() - 1 - k];
    if (dim < 0 || dim >= static_cast<std::int64_t>(type.dims.size()) || unit < 1) return plain;
    const double size = static_cast<double>(type.dims[dim]);
    if (size > 0) padding *= std::ceil(size / static_cast<double>(unit)) * static_cast<double>(unit) / size;
  }
  return plain * padding;
}

class Extractor {
 public:
  Extractor(const Program& program, const topology::Hardware& hardware, Rung rung, const workload::Workload* workload,
            const candidates::Candidate* candidate)
      : program_(program), hardware_(hardware), workload_(workload), candidate_(candidate) {
    result_.rung = rung;
  }

  CompiledProgram run();

 private:
  void index_users();
  void index_collectives();
  std::int32_t sequence_of(ComputationId computation, int depth);
  void add_steps(InstructionId id, Sequence& sequence, std::vector<std::int32_t>& step_of, int depth);
  void add_loop(InstructionId id, ComputationId body, std::int64_t trips, Sequence& sequence, int depth);
  void add_compute(Cost cost, InstructionId id, Sequence& sequence);
  void link_dependencies(ComputationId computation, Sequence& sequence, const std::vector<std::int32_t>& step_of);
  void find_block();
  void count_arguments();

  Cost cost(InstructionId id);
  double vector_cycles(const Instruction& instruction) const;
  bool writes_turned(const Instruction& fusion) const;
  Cost attention_cost(const Instruction& instruction, bool& recognised) const;
  /// Bytes an instruction moves, in seconds of HBM, and the largest of its arrays.
  struct Traffic {
    double seconds = 0;
    double largest_elements = 0;
  };
  Traffic traffic(const Instruction& instruction, InstructionId id);
  void add_traffic(Traffic& traffic, double bytes, const ArrayType& type) const {
    traffic.seconds += seconds_at(bytes, type.memory_space);
    if (type.memory_space > 1 || bits(type.dtype) <= 0) return;
    traffic.largest_elements = std::max(traffic.largest_elements, bytes * 8 / static_cast<double>(bits(type.dtype)));
  }
  double flops(InstructionId id, int depth);
  double flops_of(ComputationId computation, int depth);
  double convolution_flops(const Instruction& instruction) const;
  double dot_flops(const Instruction& instruction) const;
  bool only_moves(ComputationId computation, int depth);
  double bytes_read(InstructionId value, double whole, int depth);
  double bytes_written(InstructionId value, int depth) const;
  double copy_seconds(const Instruction& instruction) const;
  ComputationId body_of(const Instruction& loop) const;

  const Instruction& at(InstructionId id) const { return program_.instructions[id]; }
  bool valid(InstructionId id) const {
    return id >= 0 && id < static_cast<InstructionId>(program_.instructions.size());
  }
  std::span<const InstructionId> users(InstructionId id) const {
    return std::span<const InstructionId>(users_).subspan(first_user_[id], first_user_[id + 1] - first_user_[id]);
  }
  /// Seconds to move bytes to or from the memory a value lives in; registers, flags and scalars move for nothing.
  double seconds_at(double bytes, int memory_space) const {
    const double rate = hardware_.hbm_bytes_per_second.value;
    if (memory_space == 0) return bytes / rate;
    return memory_space == 1 ? bytes / (rate * vmem_to_hbm) : 0.0;
  }

  const Program& program_;
  const topology::Hardware& hardware_;
  const workload::Workload* workload_;
  const candidates::Candidate* candidate_;
  CompiledProgram result_;
  std::vector<std::int32_t> first_user_;
  std::vector<InstructionId> users_;
  std::vector<std::vector<std::int32_t>> starts_, dones_;  ///< collectives by instruction
  std::vector<std::int32_t> copy_of_;                      ///< by instruction that starts one
  std::vector<std::int32_t> sequence_of_;                  ///< by computation; -1 not yet, -2 being read
  std::vector<double> flops_;                              ///< by computation; negative where not yet known
  std::vector<signed char> moves_;                         ///< only_moves by computation; negative where not yet known
  std::vector<double> expanded_;                           ///< steps a simulation of each sequence walks
  int visits_left_ = 0;                                    ///< of bytes_read: bounds what a crafted text can cost
};

void Extractor::index_users() {
  const std::size_t count = program_.instructions.size();
  first_user_.assign(count + 1, 0);
  for (const Instruction& instruction : program_.instructions) {
    for (const ir::Operand& operand : instruction.operands) {
      if (valid(operand.instruction)) ++first_user_[operand.instruction + 1];
    }
  }
  for (std::size_t i = 0; i < count; ++i) first_user_[i + 1] += first_user_[i];
  users_.resize(first_user_.back());
  std::vector<std::int32_t> next(first_user_.begin(), first_user_.end() - 1);
  for (InstructionId id = 0; id < static_cast<InstructionId>(count); ++id) {
    for (const ir::Operand& operand : at(id).operands) {
      if (valid(operand.instruction)) users_[next[operand.instruction]++] = id;
    }
  }
}

void Extractor::index_collectives() {
  const std::size_t count = program_.instructions.size();
  starts_.resize(count);
  dones_.resize(count);
  result_.collectives = ir::collectives(program_);
  for (std::size_t c = 0; c < result_.collectives.size(); ++c) {
    ir::Collective& collective = result_.collectives[c];
    if (valid(collective.start)) starts_[collective.start].push_back(static_cast<std::int32_t>(c));
    if (collective.is_async() && valid(collective.done))
      dones_[collective.done].push_back(static_cast<std::int32_t>(c));
    std::string name(valid(collective.start) ? at(collective.start).name : topology::name(collective.kind));
    if (!collective.op_name.empty()) name += " " + std::string(collective.op_name);
    result_.collective_names.push_back(std::move(name));
    collective.op_name = {};
    Pattern pattern{collective.kind, collective.groups, collective.pairs};
    const auto found = std::find(result_.patterns.begin(), result_.patterns.end(), pattern);
    result_.pattern_of.push_back(static_cast<std::int32_t>(found - result_.patterns.begin()));
    if (found == result_.patterns.end()) result_.patterns.push_back(std::move(pattern));
  }
}

double Extractor::dot_flops(const Instruction& instruction) const {
  if (instruction.types.empty() || instruction.operands.empty() || !valid(instruction.operands[0].instruction))
    return 0;
  const Instruction& lhs = at(instruction.operands[0].instruction);
  if (lhs.types.empty()) return 0;
  double contracted = 1;
  std::string_view dims = ir::attribute(instruction, "lhs_contracting_dims");
  while (!dims.empty()) {
    if (dims.front() < '0' || dims.front() > '9') {
      dims.remove_prefix(1);
      continue;
    }
    std::size_t dim = 0;
    const auto [end, error] = std::from_chars(dims.data(), dims.data() + dims.size(), dim);
    dims.remove_prefix(static_cast<std::size_t>(end - dims.data()));
    if (error == std::errc{} && dim < lhs.types[0].dims.size())
      contracted *= static_cast<double>(lhs.types[0].dims[dim]);
  }
  return 2 * static_cast<double>(instruction.types[0].elements()) * contracted;
}

/// 2 x batch x output features x input features of the kernel x the window's meeting points, by dim_labels
/// ("b01f_01io->b01f").
double Extractor::convolution_flops(const Instruction& instruction) const {
  if (instruction.types.empty() || instruction.operands.size() < 2) return 0;
  if (!valid(instruction.operands[0].instruction) || !valid(instruction.operands[1].instruction)) return 0;
  const Instruction& lhs = at(instruction.operands[0].instruction);
  const Instruction& rhs = at(instruction.operands[1].instruction);
  const std::string_view labels = ir::attribute(instruction, "dim_labels");
  const std::size_t bar = labels.find('_'), arrow = labels.find("->");
  if (lhs.types.empty() || rhs.types.empty() || bar == std::string_view::npos || arrow == std::string_view::npos ||
      arrow < bar)
    return 0;
  const auto size_of = [](std::string_view names, char label, const ArrayType& type) -> std::int64_t {
    const std::size_t dim = names.find(label);
    return dim < type.dims.size() ? type.dims[dim] : 1;
  };
  const std::string_view in = labels.substr(0, bar), kernel = labels.substr(bar + 1, arrow - bar - 1),
                         out = labels.substr(arrow + 2);
  double total = 2 * static_cast<double>(size_of(out, 'b', instruction.types[0])) *
                 static_cast<double>(size_of(out, 'f', instruction.types[0])) *
                 static_cast<double>(size_of(kernel, 'i', rhs.types[0]));
  const std::string_view window = ir::attribute(instruction, "window");
  const auto sizes = read_by_x(window_value(window, "size")), strides = read_by_x(window_value(window, "stride"));
  const auto pads = read_by_x(window_value(window, "pad"));  // reads the low side, "1_1" stops at '_'
  const auto base = read_by_x(window_value(window, "lhs_dilate")),
             dilation = read_by_x(window_value(window, "rhs_dilate"));
  for (std::size_t d = 0; d < sizes.size() && d < 8; ++d) {
    const char label = static_cast<char>('0' + d);
    total *=
        meeting_points(size_of(in, label, lhs.types[0]), size_of(out, label, instruction.types[0]), sizes[d],
                       value_at(strides, d, 1), value_at(pads, d, 0), value_at(base, d, 1), value_at(dilation, d, 1));
  }
  return total;
}

double Extractor::flops(InstructionId id, int depth) {
  const Instruction& instruction = at(id);
  if (instruction.opcode == "convolution") return convolution_flops(instruction);
  if (instruction.opcode == "dot") return dot_flops(instruction);
  if (instruction.opcode != "fusion" || instruction.called.empty()) return 0;
  return flops_of(instruction.called.front(), depth + 1);
}

double Extractor::flops_of(ComputationId computation, int depth) {
  if (depth > depth_limit) return 0;
  if (flops_[computation] >= 0) return flops_[computation];
  flops_[computation] = 0;  // a call in a circle counts once
  double total = 0;
  const ir::Computation& body = program_.computations[computation];
  for (InstructionId id = body.first; id < body.first + body.count; ++id) total += flops(id, depth);
  return flops_[computation] = total;
}

/// True for a fusion that only rearranges: moves, index arithmetic on scalars, and concatenations written as max of
/// pads.
bool Extractor::only_moves(ComputationId computation, int depth) {
  if (depth > depth_limit) return false;
  if (moves_[computation] >= 0) return moves_[computation] != 0;
  moves_[computation] = 0;
  const auto is_pad = [&](const ir::Operand& operand) {
    return valid(operand.instruction) && at(operand.instruction).opcode == "pad";
  };
  for (const Instruction& instruction : program_.of(computation)) {
    if (costs_nothing(instruction.opcode) || moves_only(instruction.opcode)) continue;
    if (is_collective_opcode(instruction.opcode) || instruction.opcode == "custom-call") continue;
    if (instruction.opcode == "fusion" && !instruction.called.empty() &&
        only_moves(instruction.called.front(), depth + 1))
      continue;
    if (!instruction.types.empty() && instruction.types[0].elements() <= 1) continue;
    if (instruction.opcode == "maximum" &&
        std::all_of(instruction.operands.begin(), instruction.operands.end(), is_pad))
      continue;
    return false;
  }
  moves_[computation] = 1;
  return true;
}

/// Bytes of a fused parameter that are really read: a dynamic-slice reads its slice, an update in place nothing, and
/// what a carrier fusion passes on for its collective is not touched.
double Extractor::bytes_read(InstructionId value, double whole, int depth) {
  if (depth == 0) visits_left_ = 1000;
  if (depth > 8) return whole;
  double total = 0;
  for (const InstructionId id : users(value)) {
    if (--visits_left_ < 0) return whole;
    const Instruction& user = at(id);
    const std::string_view opcode = user.opcode;
    if (opcode == "tuple" || is_collective_opcode(opcode) || custom_call_target(user).starts_with("AsyncCollective"))
      continue;
    if (opcode == "dynamic-slice" || opcode == "slice" || opcode == "gather") {
      if (!user.types.empty()) total += stored_bytes(user.types[0]);
    } else if (opcode == "dynamic-update-slice" && !user.operands.empty() && user.operands[0].instruction == value) {
      continue;
    } else if (opcode == "bitcast" || opcode == "reshape") {
      total += bytes_read(id, whole, depth + 1);
    } else if (opcode == "fusion" && !user.called.empty()) {
      const auto parameters = program_.computations[user.called.front()].parameters;
      for (std::size_t k = 0; k < user.operands.size() && k < parameters.size(); ++k) {
        if (user.operands[k].instruction == value) total += bytes_read(parameters[k], whole, depth + 1);
      }
    } else {
      return whole;
    }
    if (total >= whole) return whole;
  }
  return std::min(total, whole);
}

/// Bytes a root really writes: an update in place writes the update.
double Extractor::bytes_written(InstructionId value, int depth) const {
  const Instruction& instruction = at(value);
  if (instruction.opcode == "parameter" || is_collective_opcode(instruction.opcode) ||
      instruction.opcode == "custom-call")
    return 0;
  if (instruction.types.empty()) return 0;
  const double whole = stored_bytes(instruction.types[0]);
  if (depth > 8) return whole;
  if (instruction.opcode == "bitcast" && !instruction.operands.empty() && valid(instruction.operands[0].instruction)) {
    return std::min(whole, bytes_written(instruction.operands[0].instruction, depth + 1));
  }
  if (instruction.opcode == "dynamic-update-slice" && instruction.operands.size() > 1 &&
      valid(instruction.operands[1].instruction)) {
    const Instruction& update = at(instruction.operands[1].instruction);
    return update.types.empty() ? whole : stored_bytes(update.types[0]);
  }
  return whole;
}

Extractor::Traffic Extractor::traffic(const Instruction& instruction, InstructionId id) {
  Traffic traffic;
  const bool fused = instruction.opcode == "fusion" && !instruction.called.empty();
  const auto parameters =
      fused ? program_.computations[instruction.called.front()].parameters : std::span<const InstructionId>{};
  for (std::size_t k = 0; k < instruction.operands.size(); ++k) {
    const ir::Operand& operand = instruction.operands[k];
    if (!valid(operand.instruction) || static_cast<std::size_t>(operand.result) >= at(operand.instruction).types.size())
      continue;
    const ArrayType& type = at(operand.instruction).types[operand.result];
    double bytes = stored_bytes(type);
    if (k < parameters.size()) bytes = bytes_read(parameters[k], bytes, 0);
    const bool slices =
        instruction.opcode == "dynamic-slice" || instruction.opcode == "slice" || instruction.opcode == "gather";
    if (slices && k == 0 && !instruction.types.empty()) bytes = std::min(bytes, stored_bytes(instruction.types[0]));
    if (instruction.opcode == "dynamic-update-slice" && k == 0) bytes = 0;
    add_traffic(traffic, bytes, type);
  }
  if (!fused) {
    for (const ArrayType& type : instruction.types) {
      add_traffic(traffic, instruction.opcode == "dynamic-update-slice" ? bytes_written(id, 0) : stored_bytes(type),
                  type);
    }
    return traffic;
  }
  const InstructionId root = program_.computations[instruction.called.front()].root;
  if (!valid(root)) return traffic;
  if (at(root).opcode != "tuple") {
    for (const ArrayType& type : instruction.types) add_traffic(traffic, bytes_written(root, 0), type);
    return traffic;
  }
  for (std::size_t k = 0; k < instruction.types.size() && k < at(root).operands.size(); ++k) {
    const InstructionId value = at(root).operands[k].instruction;
    if (valid(value)) add_traffic(traffic, bytes_written(value, 0), instruction.types[k]);
  }
  return traffic;
}

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return b > 0 ? a / b + (a % b != 0) : 0; }

/// An attention kernel reads queries, keys and values [.., length, head_dim]: its time is grid steps of padded blocks,
/// heads x ceil(q / block_q) x ceil(kv / block_kv) x cycles of a step / clock, the cycles in proportion to the block's
/// area.
Cost Extractor::attention_cost(const Instruction& instruction, bool& recognised) const {
  recognised = false;
  std::vector<const ArrayType*> arrays;
  for (const ir::Operand& operand : instruction.operands) {
    if (!valid(operand.instruction) || static_cast<std::size_t>(operand.result) >= at(operand.instruction).types.size())
      continue;
    const ArrayType& type = at(operand.instruction).types[operand.result];
    const bool real = type.dtype == DType::bf16 || type.dtype == DType::f16 || type.dtype == DType::f32;
    if (real && type.dims.size() >= 3) arrays.push_back(&type);
  }
  if (arrays.size() < 3) return {};
  const auto queries = arrays[0]->dims, keys = arrays[1]->dims, values = arrays[2]->dims;
  const std::size_t rank = queries.size();
  if (keys.size() != rank || values.size() != rank || queries[rank - 1] != keys[rank - 1] ||
      keys[rank - 2] != values[rank - 2])
    return {};
  double heads = 1;
  for (std::size_t d = 0; d + 2 < rank; ++d) heads *= static_cast<double>(queries[d]);
  const candidates::KernelBlocks blocks = candidate_ ? candidate_->blocks : candidates::KernelBlocks{};
  const std::int64_t block_q = std::max<std::int64_t>(1, std::min(blocks.queries, queries[rank - 2]));
  const std::int64_t block_kv = std::max<std::int64_t>(1, std::min(blocks.keys, keys[rank - 2]));
  const std::int64_t q = ceil_divide(queries[rank - 2], block_q) * block_q,
                     kv = ceil_divide(keys[rank - 2], block_kv) * block_kv;
  Cost cost;
  cost.work = Work::attention;
  cost.seconds =
      topology::attention_kernel_cycles(hardware_, heads, static_cast<double>(q), static_cast<double>(kv),
                                        static_cast<double>(block_kv), static_cast<double>(queries[rank - 1])) /
      hardware_.clock_hz.value;
  recognised = true;
  if (!workload_ || !candidate_) return cost;

  // The real length is the longest the workload knows that the padded one could come from.
  const auto real_length = [&](std::int64_t padded, std::int64_t block, bool is_query) {
    std::int64_t best = 0;
    for (const workload::Attention& attention : workload_->attentions) {
      const std::int64_t whole = is_query ? attention.queries : attention.keys;
      const std::string& axis = is_query ? attention.query_axis : attention.key_axis;
      const std::int64_t factor = axis.empty() ? 1 : std::max<std::int64_t>(1, candidate_->factor(axis));
      for (const std::int64_t length : {whole, ceil_divide(whole, factor)}) {
        if (length <= padded) best = std::max(best, length);
      }
    }
    return best > 0 && padded - best < block * 2 ? best : padded;
  };
  const double useful = static_cast<double>(real_length(q, block_q, true)) *
                        static_cast<double>(real_length(kv, block_kv, false)) /
                        (static_cast<double>(q) * static_cast<double>(kv));
  cost.padding_seconds = cost.seconds * (1 - useful);
  return cost;
}

/// Cycles of the vector unit for each element of the largest array.
double Extractor::vector_cycles(const Instruction& instruction) const {
  if (instruction.opcode != "copy" || instruction.types.size() != 1 || instruction.operands.size() != 1)
    return vector_cycles_per_element;
  const ir::Operand& operand = instruction.operands.front();
  if (!valid(operand.instruction) || static_cast<std::size_t>(operand.result) >= at(operand.instruction).types.size())
    return vector_cycles_per_element;
  const ArrayType& to = instruction.types.front();
  const ArrayType& from = at(operand.instruction).types[operand.result];
  const bool turns = minor_dimension(from) != minor_dimension(to);
  if (!turns || to.memory_space != 0) return vector_cycles_per_element;
  return to.layout.find("T(1,") == std::string_view::npos ? turning_cycles_per_element : one_row_cycles_per_element;
}

/// Whether an array of 2-byte elements has another than its last dimension minor.
bool is_turned(const ArrayType& type) {
  std::int64_t last = static_cast<std::int64_t>(type.dims.size()) - 1;
  while (last >= 0 && type.dims[last] == 1) --last;
  const std::int64_t minor = minor_dimension(type);
  return bits(type.dtype) == 16 && minor >= 0 && minor != last;
}

/// Whether what a fusion computes is turned: a tuple also carries buffers on their way through a collective.
bool Extractor::writes_turned(const Instruction& fusion) const {
  const InstructionId root = program_.computations[fusion.called.front()].root;
  if (!valid(root)) return false;
  if (at(root).opcode != "tuple") return fusion.types.size() == 1 && is_turned(fusion.types.front());
  for (std::size_t k = 0; k < fusion.types.size() && k < at(root).operands.size(); ++k) {
    const InstructionId value = at(root).operands[k].instruction;
    if (valid(value) && is_turned(fusion.types[k]) && bytes_written(value, 0) > 0) return true;
  }
  return false;
}

Cost Extractor::cost(InstructionId id) {
  const Instruction& instruction = at(id);
  Cost cost;
  if (instruction.opcode == "custom-call") {
    const std::string_view target = custom_call_target(instruction);
    if (target == "ConcatBitcast" || target == "AllocateBuffer" || target.starts_with("AsyncCollective") ||
        target == "Sharding")
      return {};
    bool recognised = false;
    cost = attention_cost(instruction, recognised);
    if (recognised) return cost;
    cost.seconds = traffic(instruction, id).seconds;
    cost.work = Work::other;
    return cost;
  }
  const double work = flops(id, 0);
  const bool fused = instruction.opcode == "fusion" && !instruction.called.empty();
  cost.work = work > 0 ? Work::matmul : Work::other;
  if (work <= 0 && (moves_only(instruction.opcode) || (fused && only_moves(instruction.called.front(), 0))))
    cost.work = Work::relayout;
  // A fusion that only starts or ends a collective is no work of the core's.
  if (fused && work <= 0 && (!starts_[id].empty() || !dones_[id].empty()) && only_moves(instruction.called.front(), 0))
    return {};
  const auto cycles = result_.rung == Rung::code ? ir::estimated_cycles(instruction) : std::nullopt;
  if (cycles) {
    cost.seconds = static_cast<double>(*cycles) / hardware_.clock_hz.value;
    return cost;
  }
  const Traffic moved = traffic(instruction, id);
  double matmul = work / (hardware_.peak_flops_per_second.value * hardware_.matmul_efficiency.value);
  if (work > 0 && fused && writes_turned(instruction)) matmul *= turned_matmul;
  const double vector =
      work > 0 && !fused ? 0 : moved.largest_elements * vector_cycles(instruction) / hardware_.clock_hz.value;
  cost.seconds = std::max({matmul, moved.seconds, vector});
  return cost;
}

/// A DMA between memory spaces: HBM is crossed by each side that lives there.
double Extractor::copy_seconds(const Instruction& instruction) const {
  double seconds = 0;
  double moved = 0;
  int sides = 0;
  for (const ArrayType& type : instruction.types) {
    if (type.memory_space > 1 || type.dims.empty()) continue;
    const double bytes = stored_bytes(type);
    moved = moved == 0 ? bytes : std::min(moved, bytes);  // a slice-start also names the whole it slices
    sides += type.memory_space == 0 ? 1 : 0;
  }
  seconds = moved * std::max(1, std::min(sides, 2)) / hardware_.hbm_bytes_per_second.value;
  return seconds;
}

ComputationId Extractor::body_of(const Instruction& loop) const {
  std::string_view name = ir::attribute(loop, "body");
  if (name.starts_with("%")) name.remove_prefix(1);
  for (const ComputationId called : loop.called) {
    if (program_.computations[called].name == name) return called;
  }
  return loop.called.empty() ? ir::none : loop.called.back();
}

void Extractor::add_compute(Cost cost, InstructionId id, Sequence& sequence) {
  if (!(cost.seconds > 0)) return;
  cost.seconds /= hardware_.core_efficiency.value;
  cost.padding_seconds /= hardware_.core_efficiency.value;
  Step step;
  step.seconds = cost.seconds;
  step.instruction = id;
  step.work = cost.work;
  sequence.steps.push_back(std::move(step));
  ComputeSplit& split = sequence.compute;
  switch (cost.work) {
    case Work::matmul:
      split.matmul_seconds += cost.seconds;
      break;
    case Work::attention:
      split.attention_seconds += cost.seconds;
      break;
    case Work::relayout:
      split.relayout_seconds += cost.seconds;
      break;
    default:
      split.other_seconds += cost.seconds;
  }
  split.padding_seconds += cost.padding_seconds;
}

void Extractor::add_loop(InstructionId id, ComputationId body, std::int64_t trips, Sequence& sequence, int depth) {
  const std::int32_t index = sequence_of(body, depth + 1);
  if (trips <= 0 || result_.sequences[index].steps.empty()) return;
  Step step;
  step.kind = Step::Kind::loop;
  step.body = index;
  step.trips = trips;
  step.instruction = id;
  sequence.steps.push_back(std::move(step));
  const double times = static_cast<double>(trips);
  const ComputeSplit& inner = result_.sequences[index].compute;
  sequence.compute.matmul_seconds += times * inner.matmul_seconds;
  sequence.compute.attention_seconds += times * inner.attention_seconds;
  sequence.compute.padding_seconds += times * inner.padding_seconds;
  sequence.compute.relayout_seconds += times * inner.relayout_seconds;
  sequence.compute.other_seconds += times * inner.other_seconds;
}

void Extractor::add_steps(InstructionId id, Sequence& sequence, std::vector<std::int32_t>& step_of, int depth) {
  const Instruction& instruction = at(id);
  const auto add = [&](Step::Kind kind, std::int32_t collective) {
    Step step;
    step.kind = kind;
    step.collective = collective;
    step.instruction = id;
    sequence.steps.push_back(std::move(step));
  };
  bool is_collective = false;
  for (const std::int32_t c : dones_[id]) add(Step::Kind::done, c), is_collective = true;
  for (const std::int32_t c : starts_[id]) {
    add(result_.collectives[c].is_async() ? Step::Kind::start : Step::Kind::synchronous, c);
    is_collective = true;
  }
  if (costs_nothing(instruction.opcode) || is_collective_opcode(instruction.opcode)) {
    // nothing but the collective itself
  } else if (instruction.opcode == "while") {
    const ComputationId body = body_of(instruction);
    if (body != ir::none) add_loop(id, body, ir::trip_count(program_, id).value_or(1), sequence, depth);
  } else if (instruction.opcode == "call" || instruction.opcode == "conditional") {
    ComputationId longest = ir::none;
    double most = -1;
    for (const ComputationId called : instruction.called) {
      const double seconds = result_.sequences[sequence_of(called, depth + 1)].compute.total();
      if (seconds > most) {
        most = seconds;
        longest = called;
      }
    }
    if (longest != ir::none) add_loop(id, longest, 1, sequence, depth);
  } else if (is_collective && instruction.opcode != "fusion") {
    // async wrappers of a collective
  } else if (ends_with_start(instruction)) {
    copy_of_[id] = result_.copies++;
    Step step;
    step.kind = Step::Kind::copy_start;
    step.seconds = copy_seconds(instruction);
    step.copy = copy_of_[id];
    step.instruction = id;
    sequence.steps.push_back(std::move(step));
  } else if (ends_with_done(instruction) || instruction.opcode.ends_with("-update")) {
    InstructionId source = instruction.operands.empty() ? ir::none : instruction.operands[0].instruction;
    for (int hop = 0; hop < 8 && valid(source) && copy_of_[source] < 0 && !at(source).operands.empty(); ++hop) {
      source = at(source).operands[0].instruction;
    }
    if (ends_with_done(instruction) && valid(source) && copy_of_[source] >= 0) {
      add(Step::Kind::copy_done, -1);
      sequence.steps.back().copy = copy_of_[source];
    }
  } else {
    add_compute(cost(id), id, sequence);
  }
  if (!sequence.steps.empty() && sequence.steps.back().instruction == id) {
    step_of[id - program_.computations[instruction.computation].first] =
        static_cast<std::int32_t>(sequence.steps.size()) - 1;
  }
}

/// Fills ready, after and needed: the dependencies of collectives within the sequence, seen through instructions that
/// cost nothing.
void Extractor::link_dependencies(ComputationId computation, Sequence& sequence,
                                  const std::vector<std::int32_t>& step_of) {
  const ir::Computation& body = program_.computations[computation];
  const auto inside = [&](InstructionId id) { return id >= body.first && id < body.first + body.count; };
  std::vector<std::int32_t> seen(body.count, -1);
  std::vector<InstructionId> stack;
  std::vector<std::int32_t> ready_of(result_.collectives.size(), -1);
  for (std::int32_t index = 0; index < static_cast<std::int32_t>(sequence.steps.size()); ++index) {
    Step& step = sequence.steps[index];
    const bool begins = step.kind == Step::Kind::start || step.kind == Step::Kind::synchronous;
    const bool ends = step.kind == Step::Kind::done || step.kind == Step::Kind::synchronous;
    if (begins) {
      stack.assign(1, step.instruction);
      while (!stack.empty()) {
        const InstructionId id = stack.back();
        stack.pop_back();
        for (const ir::Operand& operand : at(id).operands) {
          const InstructionId source = operand.instruction;
          if (!inside(source) || seen[source - body.first] == 2 * index) continue;
          seen[source - body.first] = 2 * index;
          const std::int32_t from = step_of[source - body.first];
          if (from < 0 || from >= index) {
            stack.push_back(source);
            continue;
          }
          const Step& producer = sequence.steps[from];
          if (producer.kind == Step::Kind::done || producer.kind == Step::Kind::synchronous) {
            step.after.push_back(producer.collective);
            step.ready = std::max(step.ready, ready_of[producer.collective]);
          } else if (producer.kind != Step::Kind::start) {
            step.ready = std::max(step.ready, from);
          }
        }
      }
      std::sort(step.after.begin(), step.after.end());
      ready_of[step.collective] = step.ready;
    }
    if (ends) {
      std::int32_t needed = static_cast<std::int32_t>(sequence.steps.size());
      stack.assign(1, step.instruction);
      while (!stack.empty()) {
        const InstructionId id = stack.back();
        stack.pop_back();
        for (const InstructionId user : users(id)) {
          if (!inside(user) || seen[user - body.first] == 2 * index + 1) continue;
          seen[user - body.first] = 2 * index + 1;
          const std::int32_t to = step_of[user - body.first];
          if (to < 0) {
            stack.push_back(user);
          } else if (const auto kind = sequence.steps[to].kind;
                     kind == Step::Kind::compute || kind == Step::Kind::loop) {
            needed = std::min(needed, to);
          } else if (kind == Step::Kind::copy_start || kind == Step::Kind::copy_done) {
            stack.push_back(user);
          }
        }
      }
      step.needed = std::max(needed, index + 1);
    }
  }
}

std::int32_t Extractor::sequence_of(ComputationId computation, int depth) {
  if (sequence_of_[computation] >= 0) return sequence_of_[computation];
  if (sequence_of_[computation] == -2 || depth > depth_limit) {
    throw ParseError("computation " + std::string(program_.computations[computation].name) +
                         " calls itself or calls nest deeper than " + std::to_string(depth_limit),
                     1, 1);
  }
  sequence_of_[computation] = -2;
  Sequence sequence;
  sequence.name = program_.computations[computation].name;
  const ir::Computation& body = program_.computations[computation];
  std::vector<std::int32_t> step_of(body.count, -1);
  for (InstructionId id = body.first; id < body.first + body.count; ++id) add_steps(id, sequence, step_of, depth);
  link_dependencies(computation, sequence, step_of);
  constexpr double step_limit = 5e6;
  double expanded = 0;
  for (const Step& step : sequence.steps) expanded += step.kind == Step::Kind::loop ? 3 * expanded_[step.body] + 1 : 1;
  if (expanded > step_limit) {
    throw ParseError(
        "computation " + sequence.name + " nests so many loops and calls that its schedule has over 5 million steps", 1,
        1);
  }
  expanded_.push_back(expanded);
  result_.sequences.push_back(std::move(sequence));
  return sequence_of_[computation] = static_cast<std::int32_t>(result_.sequences.size()) - 1;
}

/// The repeated block: of the loops the entry runs, the one with the attention kernels, else the one with most of the
/// compute.
void Extractor::find_block() {
  std::int32_t current = result_.entry;
  for (int depth = 0; depth < depth_limit; ++depth) {
    const Step* best = nullptr;
    const auto weight = [&](const Step& step) {
      const ComputeSplit& split = result_.sequences[step.body].compute;
      return std::pair(split.attention_seconds * static_cast<double>(step.trips),
                       split.total() * static_cast<double>(step.trips));
    };
    for (const Step& step : result_.sequences[current].steps) {
      if (step.kind == Step::Kind::loop && (!best || weight(step) > weight(*best))) best = &step;
    }
    if (!best) return;
    const auto [attention, total] = weight(*best);
    if (attention <= 0 && total < 0.5 * result_.sequences[current].compute.total()) return;
    if (best->trips > 1) {
      result_.block = best->body;
      result_.proxy_layers = best->trips;
      return;
    }
    current = best->body;
  }
}

/// Entry parameters, and those of them that are stacked over the block's trips: leading dimension the trips, carried
/// into the loop through nothing but moves.
void Extractor::count_arguments() {
  const ir::Computation& entry = program_.computations[program_.entry];
  const auto total = [](const Instruction& instruction) {
    double bytes = 0;
    for (const ArrayType& type : instruction.types) bytes += static_cast<double>(type.bytes());
    return bytes;
  };
  const auto saturated = [](double bytes) { return static_cast<std::int64_t>(std::min(bytes, 9e18)); };
  double all = 0, stacked = 0;
  for (const InstructionId parameter : entry.parameters) all += total(at(parameter));
  if (result_.block >= 0) {
    std::vector<bool> seen(program_.instructions.size(), false);
    std::vector<InstructionId> stack;
    for (const Sequence& sequence : result_.sequences) {
      for (const Step& step : sequence.steps) {
        if (step.kind == Step::Kind::loop && step.body == result_.block) stack.push_back(step.instruction);
      }
    }
    while (!stack.empty()) {
      const InstructionId id = stack.back();
      stack.pop_back();
      for (const ir::Operand& operand : at(id).operands) {
        const InstructionId source = operand.instruction;
        if (!valid(source) || seen[source]) continue;
        seen[source] = true;
        const Instruction& instruction = at(source);
        if (instruction.opcode == "parameter") {
          if (instruction.computation == program_.entry && !instruction.types.empty() &&
              !instruction.types[0].dims.empty() && instruction.types[0].dims[0] == result_.proxy_layers) {
            stacked += total(instruction);
          }
        } else if (instruction.opcode == "tuple" || instruction.opcode == "get-tuple-element" ||
                   instruction.opcode == "bitcast" || instruction.opcode == "copy" || instruction.opcode == "reshape" ||
                   instruction.opcode == "transpose" || instruction.opcode.starts_with("copy-") ||
                   instruction.opcode == "opt-barrier") {
          stack.push_back(source);
        }
      }
    }
  }
  result_.argument_bytes = saturated(all);
  result_.stacked_argument_bytes = saturated(stacked);
}

CompiledProgram Extractor::run() {
  if (program_.dialect != ir::Dialect::hlo || program_.entry == ir::none) {
    throw ParseError(
        "ranking reads compiled HLO with an entry computation; this text is not (give the compiler's optimized HLO)", 1,
        1);
  }
  index_users();
  index_collectives();
  copy_of_.assign(program_.instructions.size(), -1);
  sequence_of_.assign(program_.computations.size(), -1);
  flops_.assign(program_.computations.size(), -1.0);
  moves_.assign(program_.computations.size(), -1);
  result_.entry = sequence_of(program_.entry, 0);
  find_block();
  count_arguments();
  return std::move(result_);
}

}  // namespace

CompiledProgram extract(const ir::Program& program, const workload::Workload& workload,
                        const candidates::Candidate& candidate, const topology::Hardware& hardware, Rung rung) {
  return Extractor(program, hardware, rung, &workload, &candidate).run();
}

CompiledProgram extract(const ir::Program& program, const topology::Hardware& hardware) {
  const bool has_cycles = program.text().find(ir::estimated_cycles_key) != std::string_view::npos;
  return Extractor(program, hardware, has_cycles ? Rung::code : Rung::passes, nullptr, nullptr).run();
}

}  // namespace aoizora::ranking
