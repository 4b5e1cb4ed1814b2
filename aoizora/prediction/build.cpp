#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "aoizora/errors.h"
#include "aoizora/prediction/layout.h"
#include "aoizora/prediction/prediction.h"
#include "aoizora/prediction/sharding.h"

// The propagated program is walked once, calls inlined, as XLA's partitioner would meet it: every operation asks for
// its operands in the layout its own dimensions need, and what they come in decides which row of Table 1 applies.

namespace aoizora::prediction {
namespace {

using ir::ComputationId;
using ir::Instruction;
using ir::InstructionId;
using topology::CollectiveKind;

// Bounds on what an untrusted program may make us do.
constexpr int kMaximumDepth = 100;
constexpr std::int64_t kMaximumOperations = 500'000;

using ValueId = std::int32_t;

/// What must have run before a value is there. One that is left out makes a bound looser, never wrong.
struct Origin {
  std::vector<std::int32_t> nodes;  ///< the last ones, ascending
  bool carry = false;               ///< and what the iteration before made

  void join(const Origin& other) {
    constexpr std::size_t most = 32;  // a crafted program could have every value need every node
    std::vector<std::int32_t> both;
    std::set_union(nodes.begin(), nodes.end(), other.nodes.begin(), other.nodes.end(), std::back_inserter(both));
    if (both.size() > most) both.erase(both.begin(), both.end() - most);
    nodes = std::move(both);
    carry = carry || other.carry;
  }
};

/// A value as one device holds it. Inside a manual computation `dims` are already local for the manual axes.
struct Value {
  std::vector<std::int64_t> dims;
  DType dtype = DType::unknown;
  Layout layout;
  bool is_constant = false;      ///< made without moving data: constants, iota, and their broadcasts
  bool is_parameter = false;     ///< an argument of the program, or a slice or relayout of one: weights
  std::int32_t reduced_by = -1;  ///< node of the all-reduce that made it
  std::vector<ValueId> carried;  ///< operands whose elements pass into this one through elementwise operations
  Origin origin;
};

struct Context {
  std::int64_t trips = 1;
  std::int32_t loop = -1;  ///< outermost loop around: index into loops_
  int depth = 0;
  bool manual = false;  ///< inside a manual computation: shapes are one device's
};

struct Loop {
  std::int64_t trips = 1;
  double flops = 0;
};

std::string_view strip(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

/// Integers of "array<i64: 0, 2>", "[0, 1]", "dense<[0, 1]>" and "2 : i64": every run of digits that is not part of a
/// word.
std::vector<std::int64_t> integers(std::string_view text) {
  std::vector<std::int64_t> out;
  if (text.starts_with("array<"))
    text.remove_prefix(std::min(text.find(':') == std::string_view::npos ? text.size() : text.find(':'), text.size()));
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] < '0' || text[i] > '9') continue;
    const char before = i == 0 ? ' ' : text[i - 1];
    std::int64_t value = 0;
    std::size_t j = i;
    for (; j < text.size() && text[j] >= '0' && text[j] <= '9'; ++j) {
      if (value < std::int64_t{1} << 56) value = value * 10 + (text[j] - '0');
    }
    if (!((before >= 'a' && before <= 'z') || (before >= 'A' && before <= 'Z')))
      out.push_back(before == '-' ? -value : value);
    i = j;
  }
  return out;
}

/// The integers of one list of a structured attribute: field("#stablehlo.dot<lhs_contracting_dimensions = [2], ...>",
/// "lhs_contracting_dimensions").
std::vector<std::int64_t> field(std::string_view text, std::string_view key) {
  const std::size_t at = text.find(key);
  if (at == std::string_view::npos) return {};
  const std::size_t open = text.find('[', at);
  const std::size_t close = text.find(']', at);
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return {};
  return integers(text.substr(open, close - open));
}

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Builder {
 public:
  Builder(const ir::Program& program, const workload::Workload& workload, const candidates::Candidate& candidate,
          const topology::Hardware& hardware)
      : program_(program), workload_(workload), candidate_(candidate), hardware_(hardware) {}

  PredictionGraph build() {
    read_meshes();
    for (std::size_t c = 0; c < program_.computations.size(); ++c) {
      if (program_.computations[c].caller == ir::none || is_function(program_.computations[c])) {
        functions_.emplace(program_.computations[c].name, static_cast<ComputationId>(c));
      }
    }
    env_.assign(program_.instructions.size(), {});
    if (program_.entry < 0 || program_.entry >= static_cast<ComputationId>(program_.computations.size())) {
      throw ParseError("the program has no entry function; give the whole module", 1, 1);
    }
    const auto& entry = program_.computations[program_.entry];
    std::vector<ValueId> arguments;
    for (std::size_t p = 0; p < entry.parameters.size(); ++p) {
      const Instruction& parameter = program_.instructions[entry.parameters[p]];
      const ValueId value = make(parameter, 0, argument_layout(program_.entry, p));
      values_[value].is_parameter = true;
      arguments.push_back(value);
    }
    run(program_.entry, arguments, Context{});
    choose_block();
    return std::move(graph_);
  }

 private:
  // -- reading
  // ---------------------------------------------------------------------------------------------------------

  bool is_function(const ir::Computation& computation) const {
    return computation.caller != ir::none && program_.instructions[computation.caller].opcode == "func.func";
  }

  void read_meshes() {
    std::vector<NamedAxis> axes;
    const std::string_view text = program_.text();
    for (std::size_t at = text.find("sdy.mesh<"); at != std::string_view::npos; at = text.find("sdy.mesh<", at + 1)) {
      const std::size_t begin = at + std::string_view("sdy.mesh").size();
      const std::size_t end = text.find('>', begin);
      if (end == std::string_view::npos) break;
      const auto mesh = read_mesh(text.substr(begin, end + 1 - begin));
      axes.insert(axes.end(), mesh.begin(), mesh.end());
    }
    std::vector<NamedAxis> inlined;
    for (std::size_t at = text.find("<mesh<"); at != std::string_view::npos; at = text.find("<mesh<", at + 1)) {
      const std::size_t end = text.find('>', at);
      if (end == std::string_view::npos) break;
      const auto mesh = read_mesh(text.substr(at + 5, end + 1 - at - 5));
      axes.insert(axes.end(), mesh.begin(), mesh.end());
    }
    table_ = AxisTable(axes, text);
  }

  Layout layout_of(std::string_view text, std::size_t rank) {
    if (text.empty()) return Layout(rank);
    const auto known = single_.find(text);
    if (known == single_.end()) return single_.emplace(text, table_.layout(read_sharding(text), rank)).first->second;
    if (known->second.size() != rank) return table_.layout(read_sharding(text), rank);
    return known->second;
  }

  const std::vector<TensorSharding>& per_value(std::string_view text) {
    const auto known = per_value_.find(text);
    if (known != per_value_.end()) return known->second;
    return per_value_.emplace(text, read_sharding_per_value(text)).first->second;
  }

  Layout result_layout(const Instruction& instruction, std::size_t result) {
    const std::size_t rank = instruction.types[result].dims.size();
    const std::string_view text = ir::attribute(instruction, "sdy.sharding");
    if (text.empty()) return Layout(rank);
    if (!strip(text, "#sdy.sharding").starts_with("_per_value")) return layout_of(text, rank);
    const auto& shardings = per_value(text);
    if (result >= shardings.size()) return Layout(rank);
    return table_.layout(shardings[result], rank);
  }

  /// A function's argument: its own attribute, or the entry of arg_attrs.
  Layout argument_layout(ComputationId computation, std::size_t index) {
    const auto& c = program_.computations[computation];
    const Instruction& parameter = program_.instructions[c.parameters[index]];
    const std::size_t rank = parameter.types.empty() ? 0 : parameter.types[0].dims.size();
    std::string_view text = ir::attribute(parameter, "sdy.sharding");
    if (text.empty() && c.caller != ir::none) {
      const auto& attributes = argument_attributes(computation);
      if (index < attributes.size()) text = attributes[index];
    }
    return layout_of(text, rank);
  }

  const std::vector<std::string_view>& argument_attributes(ComputationId computation) {
    auto [entry, fresh] = argument_attributes_.try_emplace(computation);
    if (!fresh) return entry->second;
    const std::string_view text =
        ir::attribute(program_.instructions[program_.computations[computation].caller], "arg_attrs");
    // "[{sdy.sharding = ...}, {}, ...]": one dictionary an argument.
    int depth = 0;
    std::size_t begin = 0;
    for (std::size_t i = 1; i < text.size(); ++i) {
      if (text[i] == '"') i = std::min(text.find('"', i + 1), text.size());
      if (i >= text.size()) break;
      if (text[i] == '{' && depth++ == 0) begin = i;
      if (text[i] == '}' && --depth == 0) {
        const std::string_view one = text.substr(begin, i - begin);
        const std::size_t at = one.find("#sdy.sharding<");
        std::string_view sharding;
        if (at != std::string_view::npos) {
          int angle = 0;
          std::size_t end = at;
          for (; end < one.size(); ++end) {
            if (one[end] == '<') ++angle;
            if (one[end] == '>' && --angle == 0) break;
          }
          sharding = one.substr(at, end + 1 - at);
        }
        entry->second.push_back(sharding);
      }
    }
    return entry->second;
  }

  // -- values and nodes
  // ------------------------------------------------------------------------------------------------

  ValueId add(Value value) {
    values_.push_back(std::move(value));
    return static_cast<ValueId>(values_.size() - 1);
  }

  ValueId make(const Instruction& instruction, std::size_t result, Layout layout) {
    if (result >= instruction.types.size()) throw ParseError(label(instruction) + " has too few results", 1, 1);
    const ir::ArrayType& type = instruction.types[result];
    Value value;
    value.dims.assign(type.dims.begin(), type.dims.end());
    value.dtype = type.dtype;
    value.layout = std::move(layout);
    return add(std::move(value));
  }

  double local_elements(const std::vector<std::int64_t>& dims, const Layout& layout) const {
    return product(local_dims(table_, dims, layout));
  }
  double local_bytes(const Value& value, const Layout& layout) const {
    return local_elements(value.dims, layout) * bits(value.dtype) / 8;
  }
  double local_elements(ValueId value) const { return local_elements(values_[value].dims, values_[value].layout); }
  double local_bytes(ValueId value) const { return local_bytes(values_[value], values_[value].layout); }

  /// A collective of what comes from `origin`, which it then is the last of; -1 where nothing moves.
  std::int32_t communicate(const Context& context, NodeKind kind, CollectiveKind collective, AtomSet group,
                           double payload, std::string what, Origin& origin) {
    Node node;
    node.kind = kind;
    node.what = std::move(what);
    node.trips = context.trips;
    node.collective = collective;
    node.mesh_axes = table_.names(group);
    node.group_size = table_.size(group);
    node.payload_bytes = payload;
    if (node.group_size <= 1 || payload <= 0) return -1;
    return push(context, std::move(node), origin);
  }

  std::int32_t push(const Context& context, Node node, Origin& origin) {
    const auto id = static_cast<std::int32_t>(graph_.nodes.size());
    node.needs = std::exchange(origin.nodes, {id});
    node.needs_carry = origin.carry;
    graph_.nodes.push_back(std::move(node));
    loop_of_.push_back(context.loop);
    return id;
  }

  void compute(const Context& context, std::string what, double flops, double hbm_bytes, Origin& origin,
               double kernel_seconds = 0) {
    Node node;
    node.what = std::move(what);
    node.trips = context.trips;
    node.flops = flops;
    node.hbm_bytes = hbm_bytes;
    node.kernel_seconds = kernel_seconds;
    if (context.loop >= 0) loops_[context.loop].flops += flops * static_cast<double>(context.trips);
    push(context, std::move(node), origin);
  }

  Origin origin_of(const std::vector<ValueId>& values) const {
    Origin origin;
    for (const ValueId value : values) origin.join(values_[value].origin);
    return origin;
  }
  Origin origin_of(const Instruction& op) const {
    std::vector<ValueId> values;
    for (std::size_t o = 0; o < op.operands.size(); ++o) values.push_back(operand(op, o));
    return origin_of(values);
  }

  std::string label(const Instruction& instruction) const {
    return std::string(instruction.opcode) + " %" + std::string(instruction.name);
  }

  /// The value in another layout. The same change of the same value costs once, as XLA's common subexpressions make it.
  /// Values made without data (constants, iota) are made again where they are needed.
  ValueId reshard(const Context& context, ValueId from, const Layout& to, NodeKind kind, const std::string& what) {
    if (values_[from].layout == to) return from;
    if (to.size() != values_[from].layout.size()) return from;
    const auto key = std::make_pair(from, to);
    if (const auto known = resharded_.find(key); known != resharded_.end()) return known->second;
    Value moved = values_[from];
    moved.carried = {from};
    moved.reduced_by = -1;
    if (!moved.is_constant) {
      if (kind == NodeKind::producer_consumer && moved.is_parameter) kind = NodeKind::weight_gather;
      for (const ReshardStep& step : reshard_steps(table_, moved.layout, to)) {
        communicate(context, kind, step.kind, step.group, local_bytes(moved, step.after), what, moved.origin);
      }
    }
    moved.layout = to;
    const ValueId result = add(std::move(moved));
    resharded_.emplace(key, result);
    return result;
  }

  ValueId operand(const Instruction& instruction, std::size_t index) const {
    if (index >= instruction.operands.size()) {
      throw ParseError(
          label(instruction) + " has " + std::to_string(instruction.operands.size()) + " operands, expected more", 1,
          1);
    }
    const ir::Operand& op = instruction.operands[index];
    if (op.instruction < 0 || op.instruction >= static_cast<InstructionId>(env_.size()) ||
        op.result >= static_cast<std::int32_t>(env_[op.instruction].size())) {
      throw ParseError(label(instruction) + " reads a value that is not defined before it", 1, 1);
    }
    return env_[op.instruction][op.result];
  }

  // -- walking
  // ---------------------------------------------------------------------------------------------------------

  /// Runs a computation on values in the layouts its parameters have; gives what its root returns.
  std::vector<ValueId> run(ComputationId id, const std::vector<ValueId>& arguments, const Context& context) {
    if (context.depth > kMaximumDepth)
      throw ParseError("calls and regions nest deeper than " + std::to_string(kMaximumDepth), 1, 1);
    const ir::Computation& computation = program_.computations[id];
    for (std::size_t p = 0; p < computation.parameters.size() && p < arguments.size(); ++p) {
      env_[computation.parameters[p]] = {arguments[p]};
    }
    std::vector<ValueId> returned;
    for (std::int32_t i = 0; i < computation.count; ++i) {
      const InstructionId instruction = computation.first + i;
      if (program_.instructions[instruction].computation != id) continue;
      const Instruction& op = program_.instructions[instruction];
      if (op.opcode == "parameter") continue;
      if (++operations_ > kMaximumOperations) {
        throw ParseError(
            "the program runs more than " + std::to_string(kMaximumOperations) + " operations with calls inlined", 1,
            1);
      }
      if (is_one_of(op.opcode, {"stablehlo.return", "func.return", "sdy.return"})) {
        for (std::size_t o = 0; o < op.operands.size(); ++o) returned.push_back(operand(op, o));
        break;
      }
      env_[instruction] = evaluate(op, context);
    }
    return returned;
  }

  std::vector<ValueId> evaluate(const Instruction& op, const Context& context) {
    const std::string_view name = strip(op.opcode, "stablehlo.");
    if (op.types.empty()) return {};
    if (name == "dot_general" || name == "dot") return {dot(op, context)};
    if (name == "while") return loop(op, context);
    if (is_one_of(op.opcode, {"func.call", "stablehlo.composite"})) return call(op, context);
    if (name == "case" || name == "if") return branches(op, context);
    if (op.opcode == "sdy.manual_computation") return manual_computation(op, context);
    if (is_one_of(op.opcode, {"sdy.reshard", "sdy.sharding_constraint"})) return {constrain(op, context)};
    if (op.opcode.starts_with("sdy.") && op.opcode != "sdy.constant" && !op.operands.empty())
      return {sdy_collective(op, context)};
    if (name == "constant" || op.opcode == "sdy.constant" || name == "iota") return constants(op);
    if (is_one_of(name, {"all_to_all", "all_gather", "all_reduce", "reduce_scatter", "collective_permute",
                         "collective_broadcast", "ragged_all_to_all"})) {
      return visible_collective(op, name, context);
    }
    if (name == "broadcast_in_dim") return {broadcast(op, context)};
    if (name == "transpose") return {transpose(op, context)};
    if (name == "reshape") return {reshape(op, context)};
    if (name == "reduce") return reduce(op, context);
    if (is_one_of(name, {"dynamic_slice", "slice", "pad", "concatenate", "dynamic_update_slice", "reverse", "sort",
                         "gather"})) {
      return windows(op, name, context);
    }
    if (name == "convolution") return {convolution(op, context)};
    if (name == "custom_call") return custom_call(op, context);
    return elementwise(op, context);
  }

  std::vector<ValueId> constants(const Instruction& op) {
    std::vector<ValueId> out;
    for (std::size_t r = 0; r < op.types.size(); ++r) {
      out.push_back(make(op, r, result_layout(op, r)));
      values_[out.back()].is_constant = true;
    }
    return out;
  }

  /// Every operand of the result's shape comes in the result's layout. Operations of dialects Shardy has no rule for
  /// (chlo) carry no propagated sharding of their own; XLA expands them before it partitions, so they keep their
  /// operand's.
  std::vector<ValueId> elementwise(const Instruction& op, const Context& context) {
    std::vector<ValueId> out;
    const bool without_rule = op.opcode.starts_with("chlo.");
    for (std::size_t r = 0; r < op.types.size(); ++r) {
      Layout layout = result_layout(op, r);
      const auto& dims = op.types[r].dims;
      std::vector<ValueId> carried;
      bool constant = !op.operands.empty();
      bool parameter = op.operands.size() == 1;
      for (std::size_t o = 0; o < op.operands.size(); ++o) {
        const ValueId value = operand(op, o);
        const bool same_shape =
            std::equal(dims.begin(), dims.end(), values_[value].dims.begin(), values_[value].dims.end());
        if (!same_shape) continue;
        if (without_rule) layout = values_[value].layout;
        // A narrowing convert goes before the move: XLA gathers the narrower of the two.
        if (op.opcode == "stablehlo.convert" && bits(op.types[r].dtype) < bits(values_[value].dtype)) {
          const ValueId narrow = make(op, r, values_[value].layout);
          inherit(narrow, value);
          out.push_back(reshard(context, narrow, layout, NodeKind::producer_consumer, label(op)));
          return out;
        }
        const ValueId in = reshard(context, value, layout, NodeKind::producer_consumer, label(op));
        constant = constant && values_[in].is_constant;
        parameter = parameter && values_[in].is_parameter;
        carried.push_back(in);
      }
      const ValueId result = make(op, r, std::move(layout));
      values_[result].is_constant = constant && !carried.empty();
      values_[result].is_parameter = parameter && !carried.empty();
      values_[result].origin = origin_of(carried);
      values_[result].carried = std::move(carried);
      out.push_back(result);
    }
    return out;
  }

  ValueId constrain(const Instruction& op, const Context& context) {
    const std::string_view text = ir::attribute(op, "sharding");
    const ValueId value = operand(op, 0);
    return reshard(context, value, layout_of(text, values_[value].dims.size()), NodeKind::visible_collective,
                   label(op));
  }

  /// Row 1: sdy.all_gather, sdy.all_to_all, sdy.all_slice, ... say the layout they end in; sdy.all_reduce the axes it
  /// sums over.
  ValueId sdy_collective(const Instruction& op, const Context& context) {
    const ValueId value = operand(op, 0);
    const std::string_view text = ir::attribute(op, "out_sharding");
    const Layout to = text.empty() ? values_[value].layout : layout_of(text, values_[value].dims.size());
    if (op.opcode == "sdy.all_reduce") {
      AtomSet axes = 0;
      const std::string_view list = ir::attribute(op, "reduction_axes");
      for (std::size_t at = list.find('"'); at != std::string_view::npos;) {
        const std::size_t end = list.find('"', at + 1);
        if (end == std::string_view::npos) break;
        axes |= table_.set(list.substr(at + 1, end - at - 1));
        at = list.find('"', end + 1);
      }
      Value sum = values_[value];
      sum.carried = {value};
      sum.reduced_by = communicate(context, NodeKind::visible_collective, CollectiveKind::all_reduce, axes,
                                   local_bytes(value), label(op), sum.origin);
      return add(std::move(sum));
    }
    return reshard(context, value, to, NodeKind::visible_collective, label(op));
  }

  // Row 1: collectives the program itself has, inside manual computations. B_g as collectives.h defines the payload.
  std::vector<ValueId> visible_collective(const Instruction& op, std::string_view name, const Context& context) {
    std::vector<ValueId> out;
    AtomSet group = 0;
    const std::string_view groups =
        ir::attribute(op, name == "collective_permute" ? "source_target_pairs" : "replica_groups");
    if (const std::size_t open = groups.find("[["); open != std::string_view::npos) {
      const std::size_t close = groups.find(']', open);
      group = table_.varying(integers(groups.substr(open, close == std::string_view::npos ? close : close - open)));
    } else if (groups.starts_with("dense<")) {
      group = AtomSet{0};
    }
    double payload = 0;
    for (std::size_t o = 0; o < op.operands.size(); ++o) payload += local_bytes(operand(op, o));
    for (std::size_t r = 0; r < op.types.size(); ++r) out.push_back(make(op, r, result_layout(op, r)));
    CollectiveKind kind = CollectiveKind::all_to_all;
    if (name == "all_gather") {
      kind = CollectiveKind::all_gather;
      payload = 0;
      for (const ValueId value : out) payload += local_bytes(value);
    } else if (name == "all_reduce") {
      kind = CollectiveKind::all_reduce;
    } else if (name == "reduce_scatter") {
      kind = CollectiveKind::reduce_scatter;
    } else if (name == "collective_permute") {
      kind = CollectiveKind::permute;
    } else if (name == "collective_broadcast") {
      kind = CollectiveKind::broadcast;
    } else if (name == "ragged_all_to_all") {
      kind = CollectiveKind::ragged_all_to_all;
    }
    Origin origin = origin_of(op);
    const std::int32_t node =
        communicate(context, NodeKind::visible_collective, kind, group, payload, label(op), origin);
    for (std::size_t r = 0; r < out.size(); ++r) {
      values_[out[r]].origin = origin;
      if (kind == CollectiveKind::all_reduce) values_[out[r]].reduced_by = node;
      if (r < op.operands.size()) values_[out[r]].carried = {operand(op, r)};
    }
    return out;
  }

  ValueId broadcast(const Instruction& op, const Context& context) {
    const ValueId value = operand(op, 0);
    const auto map = integers(ir::attribute(op, "broadcast_dimensions"));
    const Layout layout = result_layout(op, 0);
    Layout wanted(values_[value].dims.size());
    for (std::size_t d = 0; d < map.size() && d < wanted.size(); ++d) {
      const auto to = static_cast<std::size_t>(map[d]);
      if (to < layout.size() && values_[value].dims[d] == op.types[0].dims[to]) wanted[d] = layout[to];
    }
    const ValueId in = reshard(context, value, wanted, NodeKind::producer_consumer, label(op));
    const ValueId result = make(op, 0, layout);
    values_[result].is_constant = values_[in].is_constant;
    values_[result].is_parameter = values_[in].is_parameter;
    values_[result].origin = values_[in].origin;
    return result;
  }

  ValueId transpose(const Instruction& op, const Context& context) {
    const ValueId value = operand(op, 0);
    const auto permutation = integers(ir::attribute(op, "permutation"));
    const Layout layout = result_layout(op, 0);
    Layout wanted(values_[value].dims.size());
    for (std::size_t d = 0; d < permutation.size() && d < layout.size(); ++d) {
      const auto from = static_cast<std::size_t>(permutation[d]);
      if (from < wanted.size()) wanted[from] = layout[d];
    }
    const ValueId in = reshard(context, value, wanted, NodeKind::producer_consumer, label(op));
    const ValueId result = make(op, 0, layout);
    inherit(result, in);
    return result;
  }

  void inherit(ValueId result, ValueId from) {
    values_[result].is_constant = values_[from].is_constant;
    values_[result].is_parameter = values_[from].is_parameter;
    values_[result].carried = {from};
    values_[result].origin = values_[from].origin;
  }

  /// The part of the layout that the reshape carries over stays; the rest is gathered first. Then the result is moved
  /// to its own layout.
  ValueId reshape(const Instruction& op, const Context& context) {
    const ValueId value = operand(op, 0);
    const Layout wanted = result_layout(op, 0);
    const auto& to = op.types[0].dims;
    // Backwards first: what the result wants, seen from the operand. Cuts that the reshape carries are free.
    const std::vector<std::int64_t> from_dims = values_[value].dims;
    const ReshapeLayout back = through_reshape(table_, to, wanted, from_dims);
    ValueId in = value;
    if (back.kept == wanted) {
      in = reshard(context, value, back.result, NodeKind::producer_consumer, label(op));
    }
    const ReshapeLayout forth = through_reshape(table_, from_dims, values_[in].layout, to);
    in = reshard(context, in, forth.kept, NodeKind::producer_consumer, label(op));
    const ValueId shaped = make(op, 0, forth.result);
    inherit(shaped, in);
    return reshard(context, shaped, wanted, NodeKind::producer_consumer, label(op));
  }

  /// Row 5: each device reduces what it holds; the partial results are summed over the axes that divided the reduced
  /// dimensions.
  std::vector<ValueId> reduce(const Instruction& op, const Context& context) {
    const auto reduced = integers(ir::attribute(op, "dimensions"));
    std::vector<ValueId> out;
    const std::size_t inputs = op.operands.size() / 2;
    double payload = 0;
    AtomSet group = 0;
    std::vector<Layout> natural;
    for (std::size_t r = 0; r < op.types.size() && r < inputs; ++r) {
      const Value& in = values_[operand(op, r)];
      Layout kept;
      for (std::size_t d = 0; d < in.layout.size(); ++d) {
        if (std::find(reduced.begin(), reduced.end(), static_cast<std::int64_t>(d)) == reduced.end()) {
          kept.push_back(in.layout[d]);
        } else if (!in.is_constant) {
          group |= atoms_of(in.layout[d]);
        }
      }
      if (kept.size() != op.types[r].dims.size())
        throw ParseError(label(op) + ": its dimensions do not fit its result", 1, 1);
      const ValueId result = make(op, r, kept);
      payload += local_bytes(result);
      out.push_back(result);
    }
    Origin origin = origin_of(op);
    if (!out.empty() && !values_[operand(op, 0)].is_constant) {
      const double bytes = local_bytes(operand(op, 0));
      compute(context, label(op), 0, bytes, origin, vector_seconds(local_elements(operand(op, 0))));
    }
    const std::int32_t node = communicate(context, NodeKind::sharded_reduction, CollectiveKind::all_reduce, group,
                                          payload, label(op), origin);
    for (std::size_t r = 0; r < out.size(); ++r) {
      values_[out[r]].reduced_by = node;
      values_[out[r]].origin = origin;
      out[r] = reshard(context, out[r], result_layout(op, r), NodeKind::producer_consumer, label(op));
    }
    return out;
  }

  /// What the vector unit takes for the fusion that a reduction ends: of a program that writes its attention out, most
  /// of the time. Of Wan, whose attention is a kernel, a reduction costs what it reads.
  double vector_seconds(double elements) const {
    if (!workload_.whole_program || hardware_.clock_hz.value <= 0) return 0;
    return elements * vector_cycles_per_element / hardware_.clock_hz.value;
  }

  /// Slices, pads, concatenations: dimensions that keep their length keep the result's axes, the others must be whole.
  std::vector<ValueId> windows(const Instruction& op, std::string_view name, const Context& context) {
    std::vector<ValueId> out;
    for (std::size_t r = 0; r < op.types.size(); ++r) {
      const Layout layout = result_layout(op, r);
      Layout natural = layout;
      const std::size_t data =
          name == "concatenate" || name == "sort" ? op.operands.size() : (name == "dynamic_update_slice" ? 2 : 1);
      ValueId first = -1;
      bool constant = true;
      double bytes = 0;
      Origin origin;
      for (std::size_t o = 0; o < data && o < op.operands.size(); ++o) {
        const ValueId value = operand(op, o);
        if (values_[value].dims.size() != layout.size()) continue;
        Layout wanted = layout;
        for (std::size_t d = 0; d < layout.size(); ++d) {
          if (values_[value].dims[d] != op.types[r].dims[d]) wanted[d].clear();
          if (wanted[d].empty()) natural[d].clear();
        }
        const ValueId in = reshard(context, value, wanted, NodeKind::producer_consumer, label(op));
        constant = constant && values_[in].is_constant;
        bytes += local_bytes(in);
        origin.join(values_[in].origin);
        if (first < 0) first = in;
      }
      const ValueId result = make(op, r, natural);
      if (first >= 0 && op.operands.size() >= 1) {
        values_[result].is_parameter = values_[first].is_parameter && (name == "slice" || name == "dynamic_slice");
        values_[result].is_constant = constant;
        values_[result].carried = {first};
      }
      if ((name == "pad" || name == "concatenate") && !constant)
        compute(context, label(op), 0, bytes + local_bytes(result), origin);
      values_[result].origin = std::move(origin);
      out.push_back(reshard(context, result, layout, NodeKind::producer_consumer, label(op)));
    }
    return out;
  }

  std::vector<ValueId> call(const Instruction& op, const Context& context) {
    std::string_view callee = ir::attribute(op, op.opcode == "func.call" ? "callee" : "decomposition");
    callee = strip(callee, "@");
    if (callee.starts_with('"') && callee.ends_with('"') && callee.size() >= 2)
      callee = callee.substr(1, callee.size() - 2);
    ComputationId function = op.called.empty() ? ir::none : op.called[0];
    if (const auto known = functions_.find(callee); known != functions_.end()) function = known->second;
    if (function == ir::none)
      throw ParseError(label(op) + " calls @" + std::string(callee) + ", which the module does not have", 1, 1);
    std::vector<ValueId> arguments;
    const auto& parameters = program_.computations[function].parameters;
    for (std::size_t o = 0; o < op.operands.size() && o < parameters.size(); ++o) {
      const ValueId value = operand(op, o);
      arguments.push_back(context.manual ? value
                                         : reshard(context, value, argument_layout(function, o),
                                                   NodeKind::producer_consumer, label(op)));
    }
    Context inner = context;
    ++inner.depth;
    std::vector<ValueId> out = run(function, arguments, inner);
    for (std::size_t r = 0; r < out.size() && r < op.types.size(); ++r) {
      if (!context.manual)
        out[r] = reshard(context, out[r], result_layout(op, r), NodeKind::producer_consumer, label(op));
    }
    return out;
  }

  std::vector<ValueId> branches(const Instruction& op, const Context& context) {
    Context inner = context;
    ++inner.depth;
    for (const ComputationId region : op.called) run(region, {}, inner);
    std::vector<ValueId> out;
    for (std::size_t r = 0; r < op.types.size(); ++r) out.push_back(make(op, r, result_layout(op, r)));
    return out;
  }

  /// Row 6: operands and results of a manual computation cross its boundary in the layouts it declares.
  std::vector<ValueId> manual_computation(const Instruction& op, const Context& context) {
    if (op.called.empty()) throw ParseError(label(op) + " has no body", 1, 1);
    const auto& in = per_value(ir::attribute(op, "in_shardings"));
    const auto& out = per_value(ir::attribute(op, "out_shardings"));
    AtomSet manual = 0;
    for (const std::string_view axis : read_manual_axes(ir::attribute(op, "manual_axes"))) manual |= table_.set(axis);
    const auto& body = program_.computations[op.called[0]];
    std::vector<ValueId> arguments;
    for (std::size_t o = 0; o < op.operands.size() && o < body.parameters.size(); ++o) {
      const ValueId value = operand(op, o);
      if (o >= in.size()) throw ParseError(label(op) + " has fewer in_shardings than operands", 1, 1);
      const Layout wanted = table_.layout(in[o], values_[value].dims.size());
      const ValueId moved =
          reshard(context, value, wanted, NodeKind::opaque_boundary, label(op) + " operand " + std::to_string(o));
      Layout free = wanted;
      for (DimAxes& axes : free) std::erase_if(axes, [&](Atom atom) { return (manual & bit(atom)) != 0; });
      const ValueId local = make(program_.instructions[body.parameters[o]], 0, std::move(free));
      values_[local].is_constant = values_[moved].is_constant;
      values_[local].origin = values_[moved].origin;
      arguments.push_back(local);
    }
    Context inner = context;
    ++inner.depth;
    inner.manual = true;
    const std::vector<ValueId> returned = run(op.called[0], arguments, inner);
    std::vector<ValueId> results;
    for (std::size_t r = 0; r < op.types.size(); ++r) {
      if (r >= out.size()) throw ParseError(label(op) + " has fewer out_shardings than results", 1, 1);
      const ValueId made = make(op, r, table_.layout(out[r], op.types[r].dims.size()));
      if (r < returned.size()) values_[made].origin = values_[returned[r]].origin;
      results.push_back(made);
    }
    return results;
  }

  // -- loops
  // -----------------------------------------------------------------------------------------------------------

  std::optional<std::int64_t> integer_constant(const ir::Operand& operand) const {
    if (operand.instruction < 0) return std::nullopt;
    const Instruction& op = program_.instructions[operand.instruction];
    if (op.opcode != "stablehlo.constant" && op.opcode != "sdy.constant") return std::nullopt;
    std::string_view value = ir::attribute(op, "value");
    if (!value.starts_with("dense<")) return std::nullopt;
    value = value.substr(0, value.find('>'));
    const auto numbers = integers(value.substr(6));
    if (numbers.size() != 1) return std::nullopt;
    return numbers[0];
  }

  /// Trips of "while (i < bound) { i += step }" with constant start, bound and step; 1 where they cannot be told.
  std::int64_t trip_count(const Instruction& op) const {
    if (op.called.size() < 2) return 1;
    const auto& condition = program_.computations[op.called[0]];
    const auto& body = program_.computations[op.called[1]];
    for (const Instruction& compare : program_.of(op.called[0])) {
      if (compare.opcode != "stablehlo.compare" || compare.operands.size() != 2) continue;
      const auto bound = integer_constant(compare.operands[1]);
      const auto counter =
          std::find(condition.parameters.begin(), condition.parameters.end(), compare.operands[0].instruction);
      if (!bound || counter == condition.parameters.end()) continue;
      const auto index = static_cast<std::size_t>(counter - condition.parameters.begin());
      if (index >= op.operands.size() || index >= body.parameters.size()) return 1;
      const auto start = integer_constant(op.operands[index]);
      std::int64_t step = 0;
      for (const Instruction& root : program_.of(op.called[1])) {
        if (root.opcode != "stablehlo.return" || root.computation != op.called[1] || index >= root.operands.size())
          continue;
        const Instruction& next = program_.instructions[root.operands[index].instruction];
        if (next.opcode != "stablehlo.add" || next.operands.size() != 2) continue;
        for (int side = 0; side < 2; ++side) {
          if (next.operands[side].instruction == body.parameters[index])
            step = integer_constant(next.operands[1 - side]).value_or(0);
        }
      }
      if (!start || step <= 0) return 1;
      const bool inclusive = ir::attribute(compare, "comparison_direction").find("LE") != std::string_view::npos;
      const std::int64_t span = *bound - *start + (inclusive ? 1 : 0);
      return std::max<std::int64_t>(0, (span + step - 1) / step);
    }
    return 1;
  }

  std::vector<ValueId> loop(const Instruction& op, const Context& context) {
    if (op.called.size() < 2) throw ParseError(label(op) + " has no condition and body", 1, 1);
    const auto& body = program_.computations[op.called[1]];
    const std::size_t count = std::min(op.operands.size(), op.types.size());
    std::vector<ValueId> arguments;
    for (std::size_t o = 0; o < count; ++o) {
      const ValueId value = operand(op, o);
      const ValueId in = reshard(context, value, context.manual ? values_[value].layout : result_layout(op, o),
                                 NodeKind::producer_consumer, label(op) + " operand " + std::to_string(o));
      Value argument = values_[in];
      argument.carried.clear();
      argument.reduced_by = -1;
      argument.is_parameter = argument.is_parameter && is_invariant(op, o);
      argument.is_constant = argument.is_constant && is_invariant(op, o);
      // A counter is known before the loop runs, and so is what is sliced by it.
      argument.origin = {{}, argument.origin.carry || (!argument.dims.empty() && !is_invariant(op, o))};
      arguments.push_back(add(std::move(argument)));
    }
    Context inner = context;
    ++inner.depth;
    const std::int64_t trips = trip_count(op);
    inner.trips = saturating_product(context.trips, trips);
    if (context.loop < 0) {
      inner.loop = static_cast<std::int32_t>(loops_.size());
      loops_.push_back({trips, 0});
    }
    const std::vector<ValueId> returned = run(op.called[1], arguments, inner);
    std::vector<ValueId> results;
    std::vector<ValueId> roots;
    for (std::size_t r = 0; r < count; ++r) {
      if (r < returned.size() && r < body.parameters.size()) {
        const ValueId back = reshard(inner, returned[r], values_[arguments[r]].layout, NodeKind::producer_consumer,
                                     label(op) + " back edge");
        if (!is_invariant(op, r)) roots.push_back(back);
      }
      Value result = values_[arguments[r]];
      result.origin = {{}, values_[operand(op, r)].origin.carry};
      results.push_back(add(std::move(result)));
    }
    mark_carried(roots);
    return results;
  }

  static std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
    constexpr std::int64_t kMaximum = std::int64_t{1} << 50;
    return b != 0 && a > kMaximum / b ? kMaximum : a * b;
  }

  bool is_invariant(const Instruction& op, std::size_t index) const {
    const auto& body = program_.computations[op.called[1]];
    for (const Instruction& root : program_.of(op.called[1])) {
      if (root.opcode == "stablehlo.return" && root.computation == op.called[1] && index < root.operands.size() &&
          index < body.parameters.size()) {
        return root.operands[index].instruction == body.parameters[index];
      }
    }
    return false;
  }

  /// C_ar: all-reduces from which the next iteration's value is made by elementwise operations alone.
  void mark_carried(std::vector<ValueId> pending) {
    std::vector<bool> seen(values_.size(), false);
    while (!pending.empty()) {
      const ValueId value = pending.back();
      pending.pop_back();
      if (seen[value]) continue;
      seen[value] = true;
      const std::int32_t node = values_[value].reduced_by;
      if (node >= 0) {
        graph_.nodes[node].feeds_carry = true;
        continue;
      }
      pending.insert(pending.end(), values_[value].carried.begin(), values_[value].carried.end());
    }
  }

  /// The loop that holds the block is the outermost one with the most FLOPs; a whole program is one block.
  void choose_block() {
    if (workload_.whole_program) {
      graph_.proxy_layers = 1;
      for (Node& node : graph_.nodes) node.in_block = node.needs_carry = true;
      return;
    }
    std::int32_t block = -1;
    for (std::size_t l = 0; l < loops_.size(); ++l) {
      if (loops_[l].trips > 1 && (block < 0 || loops_[l].flops > loops_[block].flops))
        block = static_cast<std::int32_t>(l);
    }
    if (block < 0) return;
    graph_.proxy_layers = loops_[block].trips;
    for (std::size_t n = 0; n < graph_.nodes.size(); ++n) graph_.nodes[n].in_block = loop_of_[n] == block;
  }

  // -- contractions
  // ----------------------------------------------------------------------------------------------------

  /// The axes by which both operands of a contraction are divided over one contracted dimension; empty where that takes
  /// a gather.
  DimAxes shared_axes(ValueId lhs, std::int64_t lhs_dim, ValueId rhs, std::int64_t rhs_dim, AtomSet used) const {
    const DimAxes& a = values_[lhs].layout[lhs_dim];
    const DimAxes& b = values_[rhs].layout[rhs_dim];
    if (a == b) return a;
    if (a.empty() || b.empty()) return {};
    const AtomSet both = atoms_of(a) & atoms_of(b);
    // The same axes but for some that the result uses: those are gathered, the rest stays, unless the devices that
    // share the result's piece could take all of the pieces: then XLA gathers both operands.
    const std::int64_t devices = table_.size(table_.all() & ~used);
    const auto keeps = [&](const DimAxes& fewer, const DimAxes& more) {
      return both == atoms_of(fewer) && (atoms_of(more) & ~both & ~used) == 0 && !(both & used) &&
             devices % table_.size(more) != 0;
    };
    if (keeps(a, b)) return a;
    if (keeps(b, a)) return b;
    // Other axes of the same size: the smaller operand is permuted.
    if (both == 0 && table_.size(a) == table_.size(b) && !((atoms_of(a) | atoms_of(b)) & used)) {
      return local_elements(values_[lhs].dims, values_[lhs].layout) <
                     local_elements(values_[rhs].dims, values_[rhs].layout)
                 ? b
                 : a;
    }
    return {};
  }

  /// True if an operand has to give up an axis that the contraction uses otherwise.
  bool clashes(ValueId value, const Layout& target, AtomSet used) const {
    AtomSet dropped = 0;
    for (std::size_t d = 0; d < target.size(); ++d)
      dropped |= atoms_of(values_[value].layout[d]) & ~atoms_of(target[d]);
    return (dropped & used) != 0;
  }

  /// XLA partitions inside the groups that the result's axes make. Where the devices of such a group are a multiple of
  /// an operand's pieces, it first permutes the pieces onto the axes that nothing else uses. For partial sums the
  /// pieces are cut as far as there are devices; that needs all of the operand's axes to clash, and a piece count's
  /// share of |W| above |Y|. Returns the contracted dimension that is then divided by all idle axes.
  std::optional<std::size_t> move_to_idle(const Context& context, ValueId& value, const Layout& target, AtomSet idle,
                                          AtomSet used, const std::vector<std::int64_t>& contract,
                                          double result_elements, const std::string& what) {
    const Layout& layout = values_[value].layout;
    std::vector<std::size_t> dropping;
    AtomSet dropped = 0;
    for (std::size_t d = 0; d < layout.size(); ++d) {
      if (layout[d] == target[d]) continue;
      if (!target[d].empty()) return std::nullopt;
      dropping.push_back(d);
      dropped |= atoms_of(layout[d]);
    }
    const std::int64_t pieces = table_.size(dropped);
    const std::int64_t devices = table_.size(idle);
    if (pieces == 1 || devices % pieces != 0) return std::nullopt;
    const bool contracts = dropping.size() == 1 && std::find(contract.begin(), contract.end(),
                                                             static_cast<std::int64_t>(dropping[0])) != contract.end();
    const double share =
        local_elements(values_[value].dims, target) * static_cast<double>(pieces) / static_cast<double>(devices);
    const bool partial_sums = contracts && (dropped & ~used) == 0 && share > result_elements;
    // The axes the pieces go to: all idle ones for partial sums, otherwise as many, minor first, as there are pieces.
    DimAxes axes;
    std::int64_t left = partial_sums ? devices : pieces;
    for (std::size_t a = 64; a-- > 0 && left > 1;) {
      const Atom atom = static_cast<Atom>(a);
      if (!(idle >> a & 1) || left % table_.size(atom) != 0) continue;
      axes.insert(axes.begin(), atom);
      left /= table_.size(atom);
    }
    Layout moved = layout;
    for (const std::size_t d : dropping) moved[d].clear();
    if (left == 1) {
      moved[dropping[0]] = axes;
    } else {
      moved = layout;  // no whole axes of that size: the gather stays on the operand's own
    }
    const NodeKind kind = values_[value].is_parameter ? NodeKind::weight_gather : NodeKind::producer_consumer;
    Value copy = values_[value];
    copy.carried = {value};
    communicate(context, kind, CollectiveKind::permute, idle, local_bytes(values_[value], moved),
                what + " to idle axes", copy.origin);
    copy.layout = std::move(moved);
    value = add(std::move(copy));
    if (dropping.size() == 1) idle_gathers_.insert(value);
    return partial_sums && left == 1 ? std::optional(dropping[0]) : std::nullopt;
  }

  /// Gathers go in one step, but axis by axis where the operand was permuted before.
  ValueId gather_operand(const Context& context, ValueId value, const Layout& target, const std::string& what) {
    if (idle_gathers_.count(value) != 0) {
      Layout step = values_[value].layout;
      const auto parts = table_.by_axis(atoms_of(step) & ~atoms_of(target));
      for (std::size_t p = parts.size(); p-- > 1;) {
        for (DimAxes& axes : step) std::erase_if(axes, [&](Atom atom) { return (parts[p] & bit(atom)) != 0; });
        value = reshard(context, value, step, NodeKind::producer_consumer, what);
      }
    }
    return reshard(context, value, target, NodeKind::producer_consumer, what);
  }

  /// Rows 3 and 4. XLA's choice, seen over sizes: where both operands are divided alike over the contracted
  /// dimension, partial sums; where only one is, by axes the result does not use, partial sums if that operand has more
  /// elements than the result and a gather of it otherwise; where an axis is already used by the result, or the two are
  /// divided differently, the operand is gathered whatever the sizes, in the way of move_to_idle.
  ValueId dot(const Instruction& op, const Context& context) {
    const std::string_view numbers = ir::attribute(op, "dot_dimension_numbers");
    auto lhs_batch = field(numbers, "lhs_batching_dimensions");
    auto rhs_batch = field(numbers, "rhs_batching_dimensions");
    auto lhs_contract = field(numbers, "lhs_contracting_dimensions");
    auto rhs_contract = field(numbers, "rhs_contracting_dimensions");
    ValueId lhs = operand(op, 0);
    ValueId rhs = operand(op, 1);
    const std::size_t lhs_rank = values_[lhs].dims.size();
    const std::size_t rhs_rank = values_[rhs].dims.size();
    if (op.opcode == "stablehlo.dot") {
      lhs_contract = {static_cast<std::int64_t>(lhs_rank) - 1};
      rhs_contract = {0};
    }
    const auto in_range = [](const std::vector<std::int64_t>& dims, std::size_t rank) {
      return std::all_of(dims.begin(), dims.end(),
                         [&](std::int64_t d) { return d >= 0 && d < static_cast<std::int64_t>(rank); });
    };
    const Layout wanted = result_layout(op, 0);
    if (lhs_batch.size() != rhs_batch.size() || lhs_contract.size() != rhs_contract.size() ||
        !in_range(lhs_batch, lhs_rank) || !in_range(lhs_contract, lhs_rank) || !in_range(rhs_batch, rhs_rank) ||
        !in_range(rhs_contract, rhs_rank) ||
        wanted.size() + lhs_batch.size() + 2 * lhs_contract.size() != lhs_rank + rhs_rank) {
      throw ParseError(label(op) + ": its dimension numbers do not fit its operands", 1, 1);
    }
    // Result dimensions: batch, free of the left, free of the right.
    Layout left(lhs_rank);
    Layout right(rhs_rank);
    std::size_t next = 0;
    const auto next_axes = [&]() -> const DimAxes& {
      if (next >= wanted.size()) throw ParseError(label(op) + ": its dimension numbers name a dimension twice", 1, 1);
      return wanted[next++];
    };
    for (std::size_t b = 0; b < lhs_batch.size(); ++b) left[lhs_batch[b]] = right[rhs_batch[b]] = next_axes();
    const auto is_free = [](const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b, std::size_t d) {
      const auto dim = static_cast<std::int64_t>(d);
      return std::find(a.begin(), a.end(), dim) == a.end() && std::find(b.begin(), b.end(), dim) == b.end();
    };
    for (std::size_t d = 0; d < lhs_rank; ++d) {
      if (is_free(lhs_batch, lhs_contract, d)) left[d] = next_axes();
    }
    for (std::size_t d = 0; d < rhs_rank; ++d) {
      if (is_free(rhs_batch, rhs_contract, d)) right[d] = next_axes();
    }
    const AtomSet used = atoms_of(wanted);
    const double result_elements = local_elements({op.types[0].dims.begin(), op.types[0].dims.end()}, wanted);
    AtomSet partial = 0;
    for (std::size_t k = 0; k < lhs_contract.size(); ++k) {
      DimAxes& a = left[lhs_contract[k]];
      DimAxes& b = right[rhs_contract[k]];
      a = b = shared_axes(lhs, lhs_contract[k], rhs, rhs_contract[k], used);
      partial |= atoms_of(a);
    }
    const bool left_clash = clashes(lhs, left, used | partial);
    const bool right_clash = clashes(rhs, right, used | partial);
    for (std::size_t k = 0; k < lhs_contract.size(); ++k) {
      const DimAxes& a = values_[lhs].layout[lhs_contract[k]];
      const DimAxes& b = values_[rhs].layout[rhs_contract[k]];
      const bool from_left = b.empty();
      if (!left[lhs_contract[k]].empty() || a.empty() == b.empty() || (from_left ? left_clash : right_clash)) continue;
      const DimAxes& axes = from_left ? a : b;
      const double gathered =
          from_left ? local_elements(values_[lhs].dims, left) : local_elements(values_[rhs].dims, right);
      if ((atoms_of(axes) & (used | partial)) != 0 || gathered <= result_elements) continue;
      left[lhs_contract[k]] = right[rhs_contract[k]] = axes;
      partial |= atoms_of(axes);
    }
    for (const bool from_left : {true, false}) {
      if (!(from_left ? left_clash : right_clash)) continue;
      const AtomSet idle = table_.all() & ~(used | partial);
      ValueId& moved = from_left ? lhs : rhs;
      Layout& target = from_left ? left : right;
      const auto& contract = from_left ? lhs_contract : rhs_contract;
      const ValueId other = from_left ? rhs : lhs;
      const auto& other_contract = from_left ? rhs_contract : lhs_contract;
      const bool alone = std::all_of(other_contract.begin(), other_contract.end(),
                                     [&](std::int64_t d) { return values_[other].layout[d].empty(); });
      const std::optional<std::size_t> dim =
          move_to_idle(context, moved, target, idle, used | partial, contract, result_elements, label(op));
      if (!alone) idle_gathers_.erase(moved);
      if (!dim) continue;
      const auto k = std::find(contract.begin(), contract.end(), static_cast<std::int64_t>(*dim)) - contract.begin();
      left[lhs_contract[k]] = right[rhs_contract[k]] = values_[moved].layout[*dim];
      partial |= idle;
    }
    lhs = gather_operand(context, lhs, left, label(op) + " left");
    rhs = gather_operand(context, rhs, right, label(op) + " right");
    double contracted = 1;
    for (const std::int64_t k : lhs_contract) {
      contracted *= static_cast<double>(local_length(table_, values_[lhs].dims[k], values_[lhs].layout[k]));
    }
    const ValueId result = make(op, 0, wanted);
    Origin origin = origin_of({lhs, rhs});
    compute(context, label(op), 2 * result_elements * contracted,
            local_bytes(lhs) + local_bytes(rhs) + local_bytes(result), origin);
    if (const AtomSet scattered = partial & used; scattered != 0) {
      Layout before = wanted;
      for (DimAxes& axes : before) std::erase_if(axes, [&](Atom atom) { return (scattered & bit(atom)) != 0; });
      communicate(context, NodeKind::sharded_contraction, CollectiveKind::reduce_scatter, scattered,
                  local_bytes(values_[result], before), label(op), origin);
    }
    values_[result].reduced_by = communicate(context, NodeKind::sharded_contraction, CollectiveKind::all_reduce,
                                             partial & ~used, local_bytes(result), label(op), origin);
    values_[result].origin = std::move(origin);
    return result;
  }

  /// Contracted over input features and window; features divided on both sides give partial sums, otherwise they are
  /// gathered.
  ValueId convolution(const Instruction& op, const Context& context) {
    const std::string_view numbers = ir::attribute(op, "dimension_numbers");
    const auto position = [&](int bracket, char letter) -> std::size_t {
      std::size_t at = std::string_view::npos;
      for (int i = 0; i <= bracket; ++i) at = numbers.find('[', at == std::string_view::npos ? 0 : at + 1);
      std::size_t index = 0;
      for (; at != std::string_view::npos && at < numbers.size() && numbers[at] != ']'; ++at) {
        if (numbers[at] == ',') ++index;
        if (numbers[at] == letter) return index;
      }
      throw ParseError(label(op) + ": its dimension numbers do not read", 1, 1);
    };
    ValueId lhs = operand(op, 0);
    ValueId rhs = operand(op, 1);
    const Layout wanted = result_layout(op, 0);
    Layout left(values_[lhs].dims.size());
    Layout right(values_[rhs].dims.size());
    const std::size_t in_feature = position(0, 'f');
    const std::size_t kernel_in = position(1, 'i');
    const std::size_t kernel_out = position(1, 'o');
    const std::size_t out_feature = position(2, 'f');
    const std::size_t in_batch = position(0, 'b');
    const std::size_t out_batch = position(2, 'b');
    if (in_feature >= left.size() || in_batch >= left.size() || kernel_in >= right.size() ||
        kernel_out >= right.size() || out_feature >= wanted.size() || out_batch >= wanted.size()) {
      throw ParseError(label(op) + ": its dimension numbers do not fit its operands", 1, 1);
    }
    left[in_batch] = wanted[out_batch];
    right[kernel_out] = wanted[out_feature];
    AtomSet partial = 0;
    if (values_[lhs].layout[in_feature] == values_[rhs].layout[kernel_in]) {
      left[in_feature] = right[kernel_in] = values_[lhs].layout[in_feature];
      partial = atoms_of(left[in_feature]) & ~atoms_of(wanted);
    }
    lhs = reshard(context, lhs, left, NodeKind::producer_consumer, label(op) + " left");
    rhs = reshard(context, rhs, right, NodeKind::producer_consumer, label(op) + " right");
    const ValueId result = make(op, 0, wanted);
    Layout window = right;
    window[kernel_out].clear();
    const double kernel = local_elements(values_[rhs].dims, window) /
                          static_cast<double>(std::max<std::int64_t>(1, values_[rhs].dims[kernel_out]));
    Origin origin = origin_of({lhs, rhs});
    compute(context, label(op), 2 * local_elements(values_[result].dims, wanted) * kernel,
            local_bytes(lhs) + local_bytes(rhs) + local_bytes(result), origin);
    values_[result].reduced_by = communicate(context, NodeKind::sharded_contraction, CollectiveKind::all_reduce,
                                             partial, local_bytes(result), label(op), origin);
    values_[result].origin = std::move(origin);
    return result;
  }

  // -- opaque kernels
  // --------------------------------------------------------------------------------------------------

  /// An attention kernel is known by its operands: queries [.., heads, q, d], keys and values [.., heads, k, d] of a
  /// head_dim the workload declares. Its time is grid steps x cycles a step, the lengths padded to the blocks.
  std::vector<ValueId> custom_call(const Instruction& op, const Context& context) {
    std::vector<const Value*> tensors;
    double bytes = 0;
    std::vector<ValueId> out;
    for (std::size_t r = 0; r < op.types.size(); ++r) {
      out.push_back(make(op, r, result_layout(op, r)));
      bytes += local_bytes(out.back());
    }
    for (std::size_t o = 0; o < op.operands.size(); ++o) {
      const Value& value = values_[operand(op, o)];
      bytes += local_bytes(value, value.layout);
      if (value.dims.size() < 3 || bits(value.dtype) < 8 || !is_head_dim(value.dims.back())) continue;
      if (value.dtype == DType::bf16 || value.dtype == DType::f32 || value.dtype == DType::f16)
        tensors.push_back(&value);
    }
    Origin origin = origin_of(op);
    const auto called = [&](double flops, double kernel_seconds) {
      compute(context, label(op), flops, bytes, origin, kernel_seconds);
      for (const ValueId value : out) values_[value].origin = origin;
      return out;
    };
    if (tensors.size() < 3) return called(0, 0);
    const auto q = local_dims(table_, tensors[0]->dims, tensors[0]->layout);
    const auto k = local_dims(table_, tensors[1]->dims, tensors[1]->layout);
    const double head_dim = static_cast<double>(q.back());
    const auto blocks_of = [](std::int64_t length, std::int64_t block) {
      return static_cast<double>(length / block + (length % block != 0 ? 1 : 0));
    };
    const std::int64_t block_q = std::max<std::int64_t>(1, candidate_.blocks.queries);
    const std::int64_t block_k = std::max<std::int64_t>(1, candidate_.blocks.keys);
    const double heads = product({q.data(), q.size() - 2});
    const double rows = blocks_of(q[q.size() - 2], block_q), columns = blocks_of(k[k.size() - 2], block_k);
    const double block_area = static_cast<double>(block_q) * static_cast<double>(block_k);
    // QK^T and PV: 2 x 2 x q x k x d.
    const double flops = 4 * heads * rows * columns * block_area * head_dim;
    const double cycles = topology::attention_kernel_cycles(hardware_, heads, rows * static_cast<double>(block_q),
                                                            columns * static_cast<double>(block_k),
                                                            static_cast<double>(block_k), head_dim);
    return called(flops, hardware_.clock_hz.value > 0 ? cycles / hardware_.clock_hz.value : 0);
  }

  bool is_head_dim(std::int64_t size) const {
    return std::any_of(workload_.attentions.begin(), workload_.attentions.end(),
                       [&](const workload::Attention& a) { return a.head_dim == size; });
  }

  const ir::Program& program_;
  const workload::Workload& workload_;
  const candidates::Candidate& candidate_;
  const topology::Hardware& hardware_;
  AxisTable table_;
  PredictionGraph graph_;
  std::vector<std::int32_t> loop_of_;  ///< outermost loop of each node
  std::vector<Loop> loops_;
  std::vector<Value> values_;
  std::vector<std::vector<ValueId>> env_;
  std::map<std::string_view, ComputationId> functions_;
  std::map<std::pair<ValueId, Layout>, ValueId> resharded_;
  std::set<ValueId> idle_gathers_;  ///< operands permuted onto idle axes
  std::unordered_map<std::string_view, Layout> single_;
  std::unordered_map<std::string_view, std::vector<TensorSharding>> per_value_;
  std::map<ComputationId, std::vector<std::string_view>> argument_attributes_;
  std::int64_t operations_ = 0;
};

}  // namespace

PredictionGraph build_prediction_graph(const ir::Program& propagated, const workload::Workload& workload,
                                       const candidates::Candidate& candidate, const topology::Hardware& hardware) {
  return Builder(propagated, workload, candidate, hardware).build();
}

}  // namespace aoizora::prediction
