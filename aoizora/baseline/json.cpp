#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <utility>

#include "aoizora/baseline/alpa.h"
#include "aoizora/baseline/expert.h"
#include "aoizora/baseline/ilp.h"
#include "aoizora/baseline/operators.h"
#include "aoizora/errors.h"

namespace aoizora::baseline {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxBytes = std::size_t{1} << 26;

[[noreturn]] void invalid(const std::string& where, const std::string& what) {
  throw InvalidRequest(where + ": " + what);
}

json::value parse(std::string_view text) {
  if (text.size() > kMaxBytes) throw InvalidRequest("the JSON text has more than 64 MiB");
  boost::system::error_code error;
  json::value value = json::parse(json::string_view(text.data(), text.size()), error);
  if (error) throw ParseError("not JSON: " + error.message(), 1, 1);
  return value;
}

const json::object& object(const json::value& value, const std::string& where) {
  if (!value.is_object()) invalid(where, "expected an object");
  return value.get_object();
}

void only(const json::object& object, const std::string& where, std::initializer_list<std::string_view> allowed) {
  std::string list;
  for (const std::string_view key : allowed) list += (list.empty() ? "" : ", ") + std::string(key);
  for (const auto& member : object) {
    const std::string_view key(member.key().data(), member.key().size());
    if (std::find(allowed.begin(), allowed.end(), key) == allowed.end())
      invalid(where, "unknown key \"" + std::string(key) + "\"; allowed: " + list);
  }
}

void read_flag(const json::object& object, const char* key, bool& field) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr) return;
  if (!value->is_bool()) invalid(key, "expected true or false");
  field = value->get_bool();
}

double number(const json::value& value, const std::string& where) {
  if (value.is_null()) return std::numeric_limits<double>::infinity();
  if (!value.is_number()) invalid(where, "expected a number");
  return value.to_number<double>();
}

int small(const json::value& value, const std::string& where) {
  if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() > 1 << 24)
    invalid(where, "expected an integer of 0 to 2^24");
  return static_cast<int>(value.get_int64());
}

const json::array& list(const json::object& object, const char* key, const std::string& where) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr || !value->is_array()) invalid(where, "expected a list \"" + std::string(key) + "\"");
  return value->get_array();
}

std::vector<double> numbers(const json::object& object, const char* key, const std::string& where) {
  std::vector<double> result;
  for (const json::value& entry : list(object, key, where)) result.push_back(number(entry, where));
  return result;
}

std::vector<int> integers(const json::object& object, const char* key, const std::string& where) {
  std::vector<int> result;
  for (const json::value& entry : list(object, key, where)) result.push_back(small(entry, where));
  return result;
}

int integer(const json::object& object, const char* key, const std::string& where) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr) invalid(where, "\"" + std::string(key) + "\" is missing");
  return small(*value, where);
}

std::string print(const json::value& value) { return json::serialize(value); }

json::value text(std::string_view given) { return json::string(given.data(), given.size()); }

template <typename T>
json::array array(const std::vector<T>& items) {
  json::array result;
  result.reserve(items.size());
  for (const T& item : items) result.emplace_back(item);
  return result;
}

json::array names(const std::vector<Label>& labels, const workload::Workload& workload) {
  json::array result;
  for (const Label at : labels) result.push_back(text(workload.axes[at].name));
  return result;
}

}  // namespace

// -- the operator graph

std::string to_json(const OperatorGraph& graph, const workload::Workload& workload) {
  const auto axis = [&](Label at) { return at < 0 ? json::value(nullptr) : text(workload.axes[at].name); };
  json::array operators, tensors, reads;
  for (const Operator& op : graph.operators) {
    json::array reductions;
    for (const Reduction& r : op.reductions) reductions.push_back({{"axis", axis(r.label)}, {"bytes", r.bytes}});
    const char* kind = op.kind == OperatorKind::contraction ? "contraction"
                       : op.kind == OperatorKind::attention ? "attention"
                                                            : "carry";
    operators.push_back({{"kind", kind},
                         {"name", text(op.name)},
                         {"trips", op.trips},
                         {"axes", names(op.labels, workload)},
                         {"contracted", axis(op.in_label)},
                         {"flops", op.flops},
                         {"output_bytes", op.output_bytes},
                         {"reductions", std::move(reductions)}});
  }
  for (const FlowTensor& t : graph.tensors)
    tensors.push_back({{"producer", t.producer}, {"axes", names(t.labels, workload)}, {"bytes", t.bytes}});
  constexpr const char* roles[] = {"contracted", "queries", "keys", "elementwise", "carried"};
  for (const Read& r : graph.reads)
    reads.push_back({{"tensor", r.tensor},
                     {"consumer", r.consumer},
                     {"role", roles[static_cast<std::size_t>(r.role)]},
                     {"trips", r.trips}});
  return print(
      json::object{{"operators", std::move(operators)}, {"tensors", std::move(tensors)}, {"reads", std::move(reads)}});
}

// -- the choice problem and its model

ChoiceProblem read_problem(const std::string& json_text) {
  const json::value whole = parse(json_text);
  const json::object& top = object(whole, "problem");
  only(top, "problem", {"nodes", "edges", "moments", "resident_bytes", "memory_bytes"});
  ChoiceProblem problem;
  for (const json::value& entry : list(top, "nodes", "problem")) {
    const json::object& node = object(entry, "node");
    only(node, "node", {"name", "cost_seconds", "resident_bytes"});
    ChoiceNode made;
    if (const json::value* name = node.if_contains("name"); name != nullptr && name->is_string())
      made.name = std::string_view(name->get_string());
    const std::vector<double> costs = numbers(node, "cost_seconds", "node");
    const std::vector<double> resident = numbers(node, "resident_bytes", "node");
    if (costs.size() != resident.size()) invalid("node", "one resident_bytes for each cost is needed");
    for (std::size_t s = 0; s < costs.size(); ++s) made.choices.push_back({costs[s], resident[s]});
    problem.nodes.push_back(std::move(made));
  }
  for (const json::value& entry : list(top, "edges", "problem")) {
    const json::object& edge = object(entry, "edge");
    only(edge, "edge", {"from", "to", "from_class", "to_class", "from_classes", "to_classes", "cost_seconds"});
    problem.edges.push_back({integer(edge, "from", "edge"), integer(edge, "to", "edge"),
                             integers(edge, "from_class", "edge"), integers(edge, "to_class", "edge"),
                             numbers(edge, "cost_seconds", "edge"), integer(edge, "from_classes", "edge"),
                             integer(edge, "to_classes", "edge")});
  }
  for (const json::value& entry : list(top, "moments", "problem")) {
    const json::object& moment = object(entry, "moment");
    only(moment, "moment", {"nodes", "edges"});
    MemoryMoment made;
    for (const json::value& term : list(moment, "nodes", "moment")) {
      const json::object& at = object(term, "moment");
      made.nodes.push_back({integer(at, "node", "moment"), numbers(at, "bytes", "moment")});
    }
    for (const json::value& term : list(moment, "edges", "moment")) {
      const json::object& at = object(term, "moment");
      made.edges.push_back({integer(at, "edge", "moment"), numbers(at, "bytes", "moment")});
    }
    problem.moments.push_back(std::move(made));
  }
  for (const auto& [key, field] :
       {std::pair{"resident_bytes", &problem.resident_bytes}, std::pair{"memory_bytes", &problem.memory_bytes}}) {
    if (const json::value* value = top.if_contains(key)) *field = number(*value, key);
  }
  return problem;
}

std::string to_json(const SparseModel& model) {
  json::array integrality;
  integrality.reserve(model.integrality.size());
  for (const std::uint8_t flag : model.integrality) integrality.emplace_back(static_cast<std::int64_t>(flag));
  return print(json::object{{"objective", array(model.objective)},
                            {"column_lower", array(model.column_lower)},
                            {"column_upper", array(model.column_upper)},
                            {"integrality", std::move(integrality)},
                            {"row_starts", array(model.row_starts)},
                            {"column_indices", array(model.column_indices)},
                            {"values", array(model.values)},
                            {"row_lower", array(model.row_lower)},
                            {"row_upper", array(model.row_upper)},
                            {"first_column", array(model.first_column)}});
}

// -- plans

AlpaOptions read_alpa_options(const std::string& json_text) {
  const json::value whole = parse(json_text);
  const json::object& top = object(whole, "options");
  only(top, "options", {"hbm_budget_bytes", "memory", "ulysses", "rules"});
  AlpaOptions options;
  if (const json::value* value = top.if_contains("hbm_budget_bytes")) {
    if (!value->is_int64() || value->get_int64() < 0)
      invalid("hbm_budget_bytes", "expected an integer of 0 or more; 0 takes the slice's HBM");
    options.hbm_budget_bytes = value->get_int64();
  }
  read_flag(top, "memory", options.memory);
  read_flag(top, "ulysses", options.ulysses);
  read_flag(top, "rules", options.rules);
  return options;
}

std::string to_json(const AlpaPlan& plan) {
  json::array operators;
  for (const auto& [name, choice] : plan.operators)
    operators.push_back({{"operator", text(name)}, {"choice", text(choice)}});
  json::object result{{"total_seconds", plan.total_seconds},
                      {"compute_seconds", plan.compute_seconds},
                      {"communication_seconds", plan.communication_seconds},
                      {"reshard_seconds", plan.reshard_seconds},
                      {"memory_bytes", plan.memory_bytes},
                      {"operators", std::move(operators)}};
  result["candidate"] = plan.candidate.mesh.empty() ? json::value(nullptr) : parse(candidates::to_json(plan.candidate));
  return print(result);
}

ExpertOptions read_expert_options(const std::string& json_text) {
  const json::value whole = parse(json_text);
  const json::object& top = object(whole, "options");
  only(top, "options", {"ulysses"});
  ExpertOptions options;
  read_flag(top, "ulysses", options.ulysses);
  return options;
}

std::string to_json(const std::vector<ExpertMember>& family, const topology::Slice& slice) {
  json::array result;
  for (const ExpertMember& member : family) {
    json::value placement = nullptr;
    if (member.placement) {
      json::array devices, coordinates;
      for (const topology::DeviceId device : member.placement->devices) {
        devices.emplace_back(device);
        json::array at;
        for (const int c : slice.devices[device].coordinates) at.emplace_back(c);
        if (slice.cores_per_chip > 1) at.emplace_back(slice.devices[device].core);
        coordinates.push_back(std::move(at));
      }
      placement = json::object{{"devices", std::move(devices)},
                               {"coordinates", std::move(coordinates)},
                               {"split_physical_axes", member.split_physical_axes}};
    }
    result.push_back(json::object{{"candidate", parse(candidates::to_json(member.candidate))},
                                  {"rank", member.rank < 0 ? json::value(nullptr) : json::value(member.rank)},
                                  {"memory_estimate_bytes", member.memory_estimate_bytes},
                                  {"placement", std::move(placement)}});
  }
  return print(result);
}

}  // namespace aoizora::baseline
