#include <algorithm>
#include <boost/json.hpp>
#include <iterator>
#include <string_view>
#include <utility>

#include "aoizora/candidates/candidate.h"
#include "aoizora/candidates/memory.h"
#include "aoizora/json_checks_impl.h"

namespace aoizora::candidates {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr std::int64_t kMaxDevices = std::int64_t{1} << 31;
constexpr std::int64_t kMaxBlock = std::int64_t{1} << 31;
constexpr const char* mesh_names[] = {"data", "fsdp", "context", "tensor"};

using namespace json_checks;

json::value parse(std::string_view text) { return json_checks::parse(text, kMaxBytes); }

std::vector<MeshAxis> read_mesh(const json::value& value) {
  constexpr std::size_t count = std::size(mesh_names);
  if (!value.is_array() || value.get_array().size() != count) {
    invalid("mesh", "expected a list of four axes: data, fsdp, context, tensor");
  }
  std::vector<MeshAxis> result;
  std::int64_t devices = 1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string where = "mesh[" + std::to_string(i) + "]";
    Fields axis(value.get_array()[i], where);
    const std::string given = text(axis.get("name"), axis.path("name"));
    if (given != mesh_names[i]) invalid(where, "is \"" + given + "\"; it must be \"" + mesh_names[i] + "\"");
    result.push_back({given, integer(axis.get("size"), axis.path("size"), 1, kMaxDevices / devices)});
    axis.done();
    devices *= result.back().size;
  }
  return result;
}

std::vector<std::string> read_rule(const json::value& value, const std::string& where) {
  if (!value.is_array()) invalid(where, "expected a list of mesh axes");
  std::vector<std::string> result;
  for (const json::value& entry : value.get_array()) {
    std::string axis = text(entry, where);
    if (std::find(std::begin(mesh_names), std::end(mesh_names), axis) == std::end(mesh_names)) {
      invalid(where, "unknown mesh axis \"" + axis + "\"; allowed: data, fsdp, context, tensor");
    }
    if (std::find(result.begin(), result.end(), axis) != result.end())
      invalid(where, "mesh axis \"" + axis + "\" twice");
    result.push_back(std::move(axis));
  }
  return result;
}

/// Names and values of an object.
std::vector<std::pair<std::string, const json::value*>> members(const json::value& value, const std::string& where) {
  if (!value.is_object()) invalid(where, "expected an object");
  std::vector<std::pair<std::string, const json::value*>> result;
  for (const auto& member : value.get_object()) result.emplace_back(std::string(member.key()), &member.value());
  return result;
}

AttentionKind read_attention(const json::value& value) {
  const std::string given = text(value, "attention");
  for (const AttentionKind kind : {AttentionKind::gathered, AttentionKind::ulysses}) {
    if (given == name(kind)) return kind;
  }
  invalid("attention", "unknown kind \"" + given + "\"; allowed: gathered, ulysses");
}

json::object value_of(const Candidate& candidate) {
  json::array mesh;
  json::object rules, options;
  for (const MeshAxis& axis : candidate.mesh) mesh.push_back({{"name", axis.name}, {"size", axis.size}});
  for (const auto& [axis, mesh_axes] : candidate.rules) rules[axis] = json::array(mesh_axes.begin(), mesh_axes.end());
  for (const auto& [option, value] : candidate.compiler_options) options[option] = value;
  const std::string_view attention = name(candidate.attention);
  return {{"mesh", std::move(mesh)},
          {"rules", std::move(rules)},
          {"attention", json::string(attention.data(), attention.size())},
          {"blocks", {{"queries", candidate.blocks.queries}, {"keys", candidate.blocks.keys}}},
          {"compiler_options", std::move(options)}};
}

json::object value_of(const MemoryEstimate& estimate) {
  return {{"weights_bytes", estimate.weights_bytes},
          {"activations_bytes", estimate.activations_bytes},
          {"attention_bytes", estimate.attention_bytes},
          {"temporaries_bytes", estimate.temporaries_bytes},
          {"total_bytes", estimate.total_bytes()}};
}

std::string print(const json::value& value) {
  const auto result = json::serialize(value);
  return {result.data(), result.size()};
}

}  // namespace

std::string to_json(const Candidate& candidate) { return print(value_of(candidate)); }

std::string to_json(const MemoryEstimate& estimate) { return print(value_of(estimate)); }

std::string to_json(const workload::Workload& workload, const Enumeration& enumeration) {
  json::array list;
  for (const Candidate& candidate : enumeration.candidates) {
    list.push_back(json::object{{"candidate", value_of(candidate)},
                                {"signature", canonical_signature(workload, candidate)},
                                {"memory", value_of(memory_estimate(workload, candidate))}});
  }
  return print(json::object{{"assignments", enumeration.assignments},
                            {"legal", enumeration.legal},
                            {"distinct", enumeration.distinct},
                            {"sharded_enough", enumeration.sharded_enough},
                            {"fitting", enumeration.fitting},
                            {"with_attention", enumeration.with_attention},
                            {"smallest_estimate_bytes", enumeration.smallest_estimate_bytes},
                            {"weight_sharding", enumeration.weight_sharding},
                            {"candidates", std::move(list)}});
}

Candidate read_candidate(const std::string& json_text) {
  const json::value whole = parse(json_text);
  Fields top(whole, "candidate");
  Candidate result;
  result.mesh = read_mesh(top.get("mesh"));
  for (const auto& [axis, rule] : members(top.get("rules"), "rules"))
    result.rules[axis] = read_rule(*rule, "rules." + axis);
  result.attention = read_attention(top.get("attention"));
  Fields blocks(top.get("blocks"), "blocks");
  result.blocks.queries = integer(blocks.get("queries"), blocks.path("queries"), 1, kMaxBlock);
  result.blocks.keys = integer(blocks.get("keys"), blocks.path("keys"), 1, kMaxBlock);
  blocks.done();
  for (const auto& [option, value] : members(top.get("compiler_options"), "compiler_options")) {
    result.compiler_options[option] = text(*value, "compiler_options." + option);
  }
  top.done();
  return result;
}

EnumerationOptions read_enumeration_options(const std::string& json_text) {
  const json::value whole = parse(json_text);
  Fields top(whole, "options");
  constexpr std::int64_t most = std::int64_t{1} << 60;
  EnumerationOptions result;
  for (const auto& [key, field] : {std::pair{"hbm_budget_bytes", &result.hbm_budget_bytes},
                                   std::pair{"minimum_weight_sharding", &result.minimum_weight_sharding}}) {
    if (const json::value* value = top.find(key)) *field = integer(*value, key, 0, most);
  }
  for (const auto& [key, field] : {std::pair{"ulysses", &result.ulysses}, std::pair{"idle_axes", &result.idle_axes}}) {
    if (const json::value* value = top.find(key)) *field = boolean(*value, key);
  }
  top.done();
  return result;
}

}  // namespace aoizora::candidates
