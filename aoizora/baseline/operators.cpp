#include "aoizora/baseline/operators.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "aoizora/errors.h"

// The program is walked once, calls inlined, a loop's body once. A value knows the logical axis of each dimension
// (from the weights' table, through the operations), the operator it belongs to, and the value it is a mere relayout
// of.

namespace aoizora::baseline {
namespace {

using ir::ComputationId;
using ir::Instruction;
using workload::AxisKind;

constexpr int kMaximumDepth = 100;
constexpr std::int64_t kMaximumOperations = 500'000;
constexpr std::size_t kMaximumOperators = 4096;
/// Operands this many times smaller than the result cost too little to hold an edge.
constexpr double kNegligible = 64;

using ValueId = std::int32_t;

struct Value {
  std::vector<std::int64_t> dims;
  std::vector<Label> labels;  ///< one a dimension
  int bits = 0;
  int wire_bits = 0;   ///< narrowest element on the way from `root`: what would be moved
  int owner = -1;      ///< operator; -1 for weights, constants, the program's inputs and what is made of them alone
  int weight = -1;     ///< a weight, or a relayout of one
  ValueId root = -1;   ///< what it is a relayout of
  double content = 0;  ///< elements before it was broadcast
  bool is_constant = false;
};

[[noreturn]] void refuse(const std::string& what) { throw ParseError(what, 1, 1); }

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string label(const Instruction& op) { return std::string(op.opcode) + " %" + std::string(op.name); }

/// Integers of "array<i64: 0, 2>" or of the list behind `key` in "#stablehlo.dot<key = [2], ...>".
std::vector<std::int64_t> integers(std::string_view text, std::string_view key = {}) {
  std::size_t begin = 0, end = text.size();
  if (!key.empty()) {
    const std::size_t at = text.find(key);
    if (at == std::string_view::npos) return {};
    begin = text.find('[', at);
    end = text.find(']', at);
  } else if (text.starts_with("array<")) {
    begin = text.find(':');
  }
  if (begin == std::string_view::npos || end == std::string_view::npos) return {};
  std::vector<std::int64_t> out;
  for (std::size_t i = begin; i < end; ++i) {
    if (text[i] < '0' || text[i] > '9') continue;
    std::int64_t value = 0;
    for (; i < end && text[i] >= '0' && text[i] <= '9'; ++i) {
      if (value < std::int64_t{1} << 56) value = value * 10 + (text[i] - '0');
    }
    out.push_back(value);
  }
  return out;
}

class Reader {
 public:
  Reader(const ir::Program& program, const workload::Workload& workload) : program_(program), workload_(workload) {}

  OperatorGraph read() {
    if (program_.entry < 0 || program_.entry >= static_cast<ComputationId>(program_.computations.size()))
      refuse("the program has no entry function; give the whole module");
    for (std::size_t c = 0; c < program_.computations.size(); ++c) {
      const auto& computation = program_.computations[c];
      if (computation.caller == ir::none || program_.instructions[computation.caller].opcode == "func.func")
        functions_.emplace(computation.name, static_cast<ComputationId>(c));
    }
    env_.assign(program_.instructions.size(), {});
    run(program_.entry, arguments(), 0, false);
    if (graph_.operators.empty()) refuse("the program multiplies by none of the workload's weights");
    for (std::size_t w = 0; w < workload_.weights.size(); ++w) {
      if (read_weights_.count(static_cast<int>(w)) == 0) graph_.unread_weights.push_back(static_cast<int>(w));
    }
    return std::move(graph_);
  }

 private:
  // -- arguments

  Label axis_index(const std::string& axis) const {
    for (std::size_t a = 0; a < workload_.axes.size(); ++a) {
      if (!axis.empty() && workload_.axes[a].name == axis) return static_cast<Label>(a);
    }
    return -1;
  }

  std::vector<ValueId> arguments() {
    const auto& entry = program_.computations[program_.entry];
    std::vector<std::size_t> order(workload_.weights.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return workload_.weights[a].name < workload_.weights[b].name; });
    if (entry.parameters.size() < order.size())
      refuse("the program has " + std::to_string(entry.parameters.size()) + " arguments, the workload " +
             std::to_string(order.size()) + " weights");
    std::vector<ValueId> out;
    for (std::size_t p = 0; p < entry.parameters.size(); ++p) {
      const Instruction& parameter = program_.instructions[entry.parameters[p]];
      const ValueId value = make(parameter, 0);
      if (p < order.size()) {
        bind_weight(values_[value], static_cast<int>(order[p]));
      } else {
        label_input(values_[value]);
      }
      out.push_back(value);
    }
    return out;
  }

  void bind_weight(Value& value, int index) const {
    const workload::Tensor& weight = workload_.weights[index];
    const std::size_t stacked = weight.repeat > 1 ? 1 : 0;
    bool fits = value.dims.size() == weight.dims.size() + stacked;
    for (std::size_t d = 0; fits && d < weight.dims.size(); ++d) fits = value.dims[d + stacked] == weight.dims[d].size;
    if (!fits) refuse("the argument for the weight " + weight.name + " has another shape; give the workload's program");
    value.weight = index;
    for (std::size_t d = 0; d < weight.dims.size(); ++d) value.labels[d + stacked] = axis_index(weight.dims[d].axis);
  }

  /// Inputs: the batch comes first; lengths that are never divided are known by their size.
  void label_input(Value& value) const {
    for (std::size_t d = 0; d < value.dims.size(); ++d) {
      for (std::size_t a = 0; a < workload_.axes.size() && value.labels[d] < 0; ++a) {
        const auto& axis = workload_.axes[a];
        const bool kind = d == 0 ? axis.kind == AxisKind::batch : axis.kind == AxisKind::whole;
        if (kind && axis.size == value.dims[d]) value.labels[d] = static_cast<Label>(a);
      }
    }
  }

  // -- values

  ValueId add(Value value) {
    values_.push_back(std::move(value));
    const auto id = static_cast<ValueId>(values_.size() - 1);
    if (values_.back().root < 0) values_.back().root = id;
    return id;
  }

  ValueId make(const Instruction& op, std::size_t result) {
    if (result >= op.types.size()) refuse(label(op) + " has too few results");
    Value value;
    value.dims.assign(op.types[result].dims.begin(), op.types[result].dims.end());
    value.labels.assign(value.dims.size(), -1);
    value.bits = value.wire_bits = bits(op.types[result].dtype);
    return add(std::move(value));
  }

  ValueId operand(const Instruction& op, std::size_t index) const {
    if (index >= op.operands.size()) refuse(label(op) + " has too few operands");
    const ir::Operand& operand = op.operands[index];
    if (operand.instruction < 0 || operand.instruction >= static_cast<std::int64_t>(env_.size()) ||
        operand.result < 0 || operand.result >= static_cast<std::int64_t>(env_[operand.instruction].size()))
      refuse(label(op) + " reads a value that nothing before it makes");
    return env_[operand.instruction][operand.result];
  }

  /// Elements, a labelled sequence unpadded.
  double elements(const Value& value) const {
    double result = 1;
    for (std::size_t d = 0; d < value.dims.size(); ++d) result *= length(value, d);
    return result;
  }
  double length(const Value& value, std::size_t d) const {
    const Label at = value.labels[d];
    if (at >= 0 && workload_.axes[at].kind == AxisKind::sequence) return static_cast<double>(workload_.axes[at].size);
    return static_cast<double>(value.dims[d]);
  }
  double bytes(const Value& value) const { return elements(value) * value.bits / 8; }

  std::vector<Label> labels_of(const Value& value) const {
    std::vector<Label> result;
    for (const Label at : value.labels) {
      if (at >= 0) result.push_back(at);
    }
    std::sort(result.begin(), result.end());
    result.erase(std::unique(result.begin(), result.end()), result.end());
    return result;
  }

  // -- the graph

  int add_operator(Operator op) {
    if (graph_.operators.size() >= kMaximumOperators)
      refuse("the program has more than " + std::to_string(kMaximumOperators) + " operators");
    graph_.operators.push_back(std::move(op));
    return static_cast<int>(graph_.operators.size() - 1);
  }

  void read_by(ValueId value, int consumer, ReadRole role, std::int64_t trips) {
    const Value& what = values_[value];
    if (what.owner < 0 || (what.owner == consumer && role != ReadRole::carried)) return;
    const auto [entry, fresh] = tensors_.try_emplace(what.root, static_cast<int>(graph_.tensors.size()));
    const double moved = what.content * what.wire_bits / 8;
    if (fresh) graph_.tensors.push_back({what.owner, labels_of(values_[what.root]), moved});
    graph_.tensors[entry->second].bytes = std::min(graph_.tensors[entry->second].bytes, moved);
    if (reads_.insert({entry->second, consumer, role}).second)
      graph_.reads.push_back({entry->second, consumer, role, trips});
  }

  // -- operations

  std::vector<ValueId> run(ComputationId computation, const std::vector<ValueId>& arguments, int depth, bool in_block) {
    if (depth > kMaximumDepth) refuse("calls are nested more than " + std::to_string(kMaximumDepth) + " deep");
    const auto& body = program_.computations[computation];
    for (std::size_t p = 0; p < body.parameters.size() && p < arguments.size(); ++p)
      env_[body.parameters[p]] = {arguments[p]};
    std::vector<ValueId> returned;
    for (ir::InstructionId i = body.first; i < body.first + body.count; ++i) {
      const Instruction& op = program_.instructions[i];
      if (op.computation != computation || op.opcode == "parameter") continue;
      if (++operations_ > kMaximumOperations)
        refuse("the program runs more than " + std::to_string(kMaximumOperations) + " operations");
      if (is_one_of(op.opcode, {"func.return", "stablehlo.return", "sdy.return"})) {
        returned.clear();
        for (std::size_t o = 0; o < op.operands.size(); ++o) returned.push_back(operand(op, o));
        continue;
      }
      env_[i] = evaluate(op, depth, in_block);
    }
    return returned;
  }

  std::vector<ValueId> evaluate(const Instruction& op, int depth, bool in_block) {
    if (op.types.empty()) return {};
    if (is_one_of(op.opcode, {"stablehlo.dot_general", "stablehlo.dot"})) return {dot(op, in_block)};
    if (is_one_of(op.opcode, {"func.call", "stablehlo.composite"})) return call(op, depth, in_block);
    if (op.opcode == "stablehlo.while") return loop(op, depth);
    if (op.opcode == "sdy.manual_computation") return {attention(op, in_block)};
    if (op.opcode == "stablehlo.custom_call" && attention_operands(op).size() >= 3) return {attention(op, in_block)};
    if (is_one_of(op.opcode, {"stablehlo.constant", "sdy.constant", "stablehlo.iota"})) {
      const ValueId value = make(op, 0);
      values_[value].is_constant = true;
      return {value};
    }
    std::vector<ValueId> out;
    for (std::size_t r = 0; r < op.types.size(); ++r) {
      const ValueId value = make(op, r);
      label_result(op, value);
      merge(op, value);
      out.push_back(value);
    }
    return out;
  }

  std::vector<ValueId> call(const Instruction& op, int depth, bool in_block) {
    std::string_view callee = ir::attribute(op, "callee");
    if (callee.empty()) callee = ir::attribute(op, "decomposition");
    if (callee.starts_with('@')) callee.remove_prefix(1);
    const auto found = functions_.find(callee);
    if (found == functions_.end()) refuse(label(op) + " calls a function that the module has not");
    std::vector<ValueId> arguments;
    for (std::size_t o = 0; o < op.operands.size(); ++o) arguments.push_back(operand(op, o));
    return run(found->second, arguments, depth + 1, in_block);
  }

  std::vector<ValueId> loop(const Instruction& op, int depth) {
    if (op.called.size() < 2) refuse(label(op) + " has no condition and body");
    const auto& body = program_.computations[op.called[1]];
    std::vector<ValueId> arguments;
    std::vector<int> carries(op.operands.size(), -1);
    for (std::size_t o = 0; o < op.operands.size(); ++o) {
      ValueId value = operand(op, o);
      if (values_[value].owner >= 0 && !is_invariant(op, body, o)) {
        Operator carry;
        carry.kind = OperatorKind::carry;
        carry.name = "carry";
        carry.trips = workload_.layers;
        carry.in_block = true;
        carry.labels = labels_of(values_[value]);
        carry.output_bytes = bytes(values_[value]);
        carries[o] = add_operator(std::move(carry));
        read_by(value, carries[o], ReadRole::carried, 1);
        Value held = values_[value];
        held.owner = carries[o];
        held.root = -1;
        value = add(std::move(held));
      }
      arguments.push_back(value);
    }
    std::vector<ValueId> returned = run(op.called[1], arguments, depth + 1, true);
    for (std::size_t r = 0; r < returned.size() && r < carries.size(); ++r) {
      if (carries[r] >= 0)
        read_by(returned[r], carries[r], ReadRole::carried, std::max<std::int64_t>(0, workload_.layers - 1));
    }
    return returned;
  }

  bool is_invariant(const Instruction& op, const ir::Computation& body, std::size_t index) const {
    for (const Instruction& root : program_.of(op.called[1])) {
      if (root.opcode == "stablehlo.return" && root.computation == op.called[1] && index < root.operands.size() &&
          index < body.parameters.size())
        return root.operands[index].instruction == body.parameters[index];
    }
    return false;
  }

  /// The result's dimensions on the axes of the operands'.
  void label_result(const Instruction& op, ValueId result) {
    const std::string_view name = op.opcode;
    if (op.operands.empty()) return;
    const ValueId first = operand(op, 0);
    if (name == "stablehlo.broadcast_in_dim") {
      const auto to = integers(ir::attribute(op, "broadcast_dimensions"));
      for (std::size_t d = 0; d < to.size() && d < values_[first].labels.size(); ++d) {
        if (to[d] < static_cast<std::int64_t>(values_[result].labels.size()) && values_[first].dims[d] > 1)
          values_[result].labels[to[d]] = values_[first].labels[d];
      }
    } else if (name == "stablehlo.transpose") {
      const auto from = integers(ir::attribute(op, "permutation"));
      for (std::size_t d = 0; d < from.size() && d < values_[result].labels.size(); ++d) {
        if (from[d] < static_cast<std::int64_t>(values_[first].labels.size()))
          values_[result].labels[d] = values_[first].labels[from[d]];
      }
    } else if (name == "stablehlo.reshape") {
      label_reshape(values_[first], values_[result]);
    } else if (name == "stablehlo.reduce") {
      const auto gone = integers(ir::attribute(op, "dimensions"));
      std::size_t next = 0;
      for (std::size_t d = 0; d < values_[first].labels.size(); ++d) {
        if (std::find(gone.begin(), gone.end(), static_cast<std::int64_t>(d)) != gone.end()) continue;
        if (next < values_[result].labels.size()) values_[result].labels[next++] = values_[first].labels[d];
      }
      for (const std::int64_t d : gone) {
        const int owner = values_[first].owner;
        if (d >= static_cast<std::int64_t>(values_[first].labels.size()) || owner < 0) continue;
        if (const Label at = values_[first].labels[d]; at >= 0)
          graph_.operators[owner].reductions.push_back({at, labels_of(values_[result]), bytes(values_[result])});
      }
    } else {
      for (std::size_t o = 0; o < op.operands.size(); ++o) {
        const Value& from = values_[operand(op, o)];
        if (from.dims.size() != values_[result].dims.size()) continue;
        for (std::size_t d = 0; d < from.dims.size(); ++d) {
          Label& at = values_[result].labels[d];
          if (at < 0 && (from.dims[d] > 1 || values_[result].dims[d] == 1)) at = from.labels[d];
        }
      }
    }
  }

  /// Dimensions split or merged: the axis stays with the most major part, which must hold whole units of it. What is
  /// merged to the length of a sequence is one.
  void label_reshape(const Value& from, Value& to) const {
    std::size_t i = 0, j = 0;
    while (i < from.dims.size() || j < to.dims.size()) {
      const std::size_t i0 = i, j0 = j;
      double a = 1, b = 1;
      bool any = false;
      while (!any || a != b) {
        if ((a <= b || j >= to.dims.size()) && i < from.dims.size()) {
          a *= static_cast<double>(from.dims[i++]);
        } else if (j < to.dims.size()) {
          b *= static_cast<double>(to.dims[j++]);
        } else {
          return;  // sizes of no elements, or no reshape
        }
        any = i > i0 && j > j0;
        if (i == from.dims.size() && j == to.dims.size()) break;
        if ((i == from.dims.size() || j == to.dims.size()) && a == b) break;
      }
      const auto major = [](const std::vector<std::int64_t>& dims, std::size_t begin, std::size_t end) {
        while (begin + 1 < end && dims[begin] == 1) ++begin;
        return begin;
      };
      if (i == i0 || j == j0) continue;
      const std::size_t source = major(from.dims, i0, i), target = major(to.dims, j0, j);
      const Label at = from.labels[source];
      if (at >= 0) {
        const auto& axis = workload_.axes[at];
        const bool whole_units = axis.size > 0 && to.dims[target] % axis.size == 0;
        if (axis.kind == AxisKind::sequence || whole_units) to.labels[target] = at;
      } else if (from.weight < 0 && j - j0 == 1 && i - i0 > 1) {
        for (std::size_t s = 0; s < workload_.axes.size(); ++s) {
          if (workload_.axes[s].kind == AxisKind::sequence && workload_.axes[s].size == to.dims[target])
            to.labels[target] = static_cast<Label>(s);
        }
      }
    }
  }

  /// Lighter operations belong to the operator of their largest operand, of the last one among equals; the others of
  /// some size are read.
  void merge(const Instruction& op, ValueId result) {
    ValueId largest = -1;
    const bool broadcast = op.opcode == "stablehlo.broadcast_in_dim";
    bool constant = !op.operands.empty();
    for (std::size_t o = 0; o < op.operands.size(); ++o) {
      const ValueId id = operand(op, o);
      const Value& value = values_[id];
      constant = constant && value.is_constant;
      if (value.owner < 0) continue;
      if (largest < 0 || value.content > values_[largest].content ||
          (value.content == values_[largest].content && value.owner > values_[largest].owner))
        largest = id;
    }
    values_[result].is_constant = constant;
    const bool relayout =
        is_one_of(op.opcode, {"stablehlo.convert", "stablehlo.reshape", "stablehlo.transpose", "sdy.reshard",
                              "sdy.sharding_constraint", "stablehlo.optimization_barrier", "stablehlo.dynamic_slice",
                              "stablehlo.slice", "stablehlo.pad"});
    if (relayout) {
      const Value& from = values_[operand(op, 0)];
      values_[result].weight = from.weight;
      if (is_same_data(op, from, values_[result])) {
        values_[result].root = from.root;
        values_[result].wire_bits = std::min(from.wire_bits, values_[result].bits);
      }
    }
    if (largest < 0) return;
    const int owner = values_[largest].owner;
    values_[result].owner = owner;
    values_[result].content =
        broadcast ? values_[largest].content : std::min(elements(values_[result]), values_[largest].content);
    for (std::size_t o = 0; o < op.operands.size(); ++o) {
      const ValueId id = operand(op, o);
      if (values_[id].owner >= 0 && values_[id].owner != owner &&
          values_[id].content * kNegligible >= values_[result].content)
        read_by(id, owner, ReadRole::elementwise, graph_.operators[owner].trips);
    }
  }

  bool is_same_data(const Instruction& op, const Value& from, const Value& to) const {
    return from.owner >= 0 && op.opcode != "stablehlo.slice" && op.opcode != "stablehlo.dynamic_slice" &&
           elements(from) == elements(to);
  }

  ValueId dot(const Instruction& op, bool in_block) {
    const std::string_view numbers = ir::attribute(op, "dot_dimension_numbers");
    auto batch = std::pair{integers(numbers, "lhs_batching_dimensions"), integers(numbers, "rhs_batching_dimensions")};
    auto contract =
        std::pair{integers(numbers, "lhs_contracting_dimensions"), integers(numbers, "rhs_contracting_dimensions")};
    const ValueId lhs = operand(op, 0), rhs = operand(op, 1);
    if (op.opcode == "stablehlo.dot") contract = {{static_cast<std::int64_t>(values_[lhs].dims.size()) - 1}, {0}};
    const ValueId result = make(op, 0);
    std::vector<Label> labels;
    const auto take = [&](ValueId side, const std::vector<std::int64_t>& dims) {
      for (const std::int64_t d : dims) {
        if (d < 0 || d >= static_cast<std::int64_t>(values_[side].dims.size()))
          refuse(label(op) + ": its dimension numbers do not fit its operands");
        labels.push_back(values_[side].labels[d]);
      }
    };
    const auto free_dims = [&](ValueId side, const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
      std::vector<std::int64_t> dims;
      for (std::int64_t d = 0; d < static_cast<std::int64_t>(values_[side].dims.size()); ++d) {
        if (std::find(a.begin(), a.end(), d) == a.end() && std::find(b.begin(), b.end(), d) == b.end())
          dims.push_back(d);
      }
      return dims;
    };
    take(lhs, batch.first);
    take(lhs, free_dims(lhs, batch.first, contract.first));
    take(rhs, free_dims(rhs, batch.second, contract.second));
    if (labels.size() != values_[result].dims.size())
      refuse(label(op) + ": its dimension numbers do not fit its operands");
    values_[result].labels = labels;
    values_[result].content = elements(values_[result]);
    std::vector<Label> contracted;
    labels.clear();
    take(lhs, contract.first);
    take(rhs, contract.second);
    std::swap(contracted, labels);
    const bool right_weight = values_[rhs].weight >= 0, left_weight = values_[lhs].weight >= 0;
    if (right_weight == left_weight) {
      if (values_[lhs].owner >= 0 && values_[rhs].owner >= 0)
        refuse(label(op) + " multiplies two activations; only attention kernels may, give the program with its kernel");
      merge(op, result);
      return result;
    }
    const ValueId activation = right_weight ? lhs : rhs, weight = right_weight ? rhs : lhs;
    Operator node;
    node.weight = values_[weight].weight;
    read_weights_.insert(node.weight);
    const auto& tensor = workload_.weights[node.weight];
    node.name = tensor.name;
    node.in_block = in_block;
    node.trips = tensor.repeat;
    for (const Label at : contracted) {
      if (at >= 0 && node.in_label < 0) node.in_label = at;
    }
    const auto& weight_contract = right_weight ? contract.second : contract.first;
    const auto& weight_batch = right_weight ? batch.second : batch.first;
    for (const std::int64_t d : free_dims(weight, weight_batch, weight_contract)) {
      if (node.out_label < 0) node.out_label = values_[weight].labels[d];
    }
    double depth = 1;
    for (const std::int64_t d : right_weight ? contract.first : contract.second)
      depth *= length(values_[activation], d);
    node.labels = labels_of(values_[result]);
    node.input_labels = labels_of(values_[activation]);
    node.flops = 2 * elements(values_[result]) * depth;
    node.input_bytes = bytes(values_[activation]);
    node.output_bytes = bytes(values_[result]);
    const int index = add_operator(std::move(node));
    values_[result].owner = index;
    read_by(activation, index, ReadRole::contracted, tensor.repeat);
    return result;
  }

  // -- attention

  /// Operands [.., heads, length, head_dim] of a head_dim the workload declares.
  std::vector<ValueId> attention_operands(const Instruction& op) const {
    std::vector<ValueId> out;
    for (std::size_t o = 0; o < op.operands.size(); ++o) {
      const ValueId id = operand(op, o);
      const Value& value = values_[id];
      if (value.dims.size() < 3 || value.bits < 8) continue;
      if (std::any_of(workload_.attentions.begin(), workload_.attentions.end(),
                      [&](const workload::Attention& a) { return a.head_dim == value.dims.back(); }))
        out.push_back(id);
    }
    return out;
  }

  /// Which of the workload's attentions: by its keys.
  int site_of(const Instruction& op, const Value& keys) const {
    const Label at = keys.labels[keys.labels.size() - 2];
    for (std::size_t a = 0; a < workload_.attentions.size(); ++a) {
      const workload::Attention& site = workload_.attentions[a];
      const Label declared = axis_index(site.key_axis);
      if (declared >= 0 ? declared == at : site.keys == keys.dims[keys.dims.size() - 2]) return static_cast<int>(a);
    }
    refuse(label(op) + " is an attention that the workload does not declare");
  }

  ValueId attention(const Instruction& op, bool in_block) {
    const std::vector<ValueId> operands = attention_operands(op);
    if (operands.size() < 3 || op.types.size() != 1)
      refuse(label(op) + " is no attention of the workload's head_dim: what it computes is not known");
    Operator node;
    node.kind = OperatorKind::attention;
    node.attention = site_of(op, values_[operands[1]]);
    const workload::Attention& site = workload_.attentions[node.attention];
    node.name = site.name;
    node.in_block = in_block;
    node.trips = in_block ? workload_.layers : 1;
    const ValueId result = make(op, 0);
    if (values_[result].dims.size() == values_[operands[0]].dims.size())
      values_[result].labels = values_[operands[0]].labels;
    values_[result].content = elements(values_[result]);
    node.labels = labels_of(values_[result]);
    node.output_bytes = bytes(values_[result]);
    const double pairs = static_cast<double>(site.batch) * static_cast<double>(site.heads) *
                         static_cast<double>(site.queries) * static_cast<double>(site.keys);
    node.flops = 4 * pairs * static_cast<double>(site.head_dim);  // QK^T and PV
    const std::int64_t trips = node.trips;
    const int index = add_operator(std::move(node));
    values_[result].owner = index;
    for (std::size_t o = 0; o < 3; ++o) read_by(operands[o], index, o == 0 ? ReadRole::queries : ReadRole::keys, trips);
    return result;
  }

  const ir::Program& program_;
  const workload::Workload& workload_;
  OperatorGraph graph_;
  std::vector<Value> values_;
  std::vector<std::vector<ValueId>> env_;
  std::map<std::string_view, ComputationId> functions_;
  std::map<ValueId, int> tensors_;
  std::set<std::tuple<int, int, ReadRole>> reads_;
  std::set<int> read_weights_;
  std::int64_t operations_ = 0;
};

}  // namespace

OperatorGraph read_operators(const ir::Program& program, const workload::Workload& workload) {
  if (program.dialect != ir::Dialect::stablehlo)
    throw InvalidRequest("the program is HLO; allowed: StableHLO as propagated");
  if (workload.layers < 1 || workload.axes.size() > 64)
    throw InvalidRequest("the workload table needs 1 layer or more and at most 64 axes");
  return Reader(program, workload).read();
}

}  // namespace aoizora::baseline
