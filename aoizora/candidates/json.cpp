#include <algorithm>
#include <boost/json.hpp>
#include <initializer_list>
#include <iterator>
#include <string_view>
#include <utility>

#include "aoizora/candidates/candidate.h"
#include "aoizora/candidates/memory.h"
#include "aoizora/errors.h"

namespace aoizora::candidates {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr std::int64_t kMaxDevices = std::int64_t{1} << 31;
constexpr std::int64_t kMaxBlock = std::int64_t{1} << 31;
constexpr const char* mesh_names[] = {"data", "fsdp", "context", "tensor"};

[[noreturn]] void invalid(const std::string& where, const std::string& what) {
  throw InvalidRequest(where + ": " + what);
}

json::value parse(std::string_view text) {
  if (text.size() > kMaxBytes) throw InvalidRequest("the JSON text has more than 1 MiB");
  json::stream_parser parser;
  boost::system::error_code error;
  const std::size_t read = parser.write_some(text.data(), text.size(), error);
  if (!error && read < text.size()) error = json::error::extra_data;
  if (!error) parser.finish(error);
  if (error) {
    std::int64_t line = 1, column = 1;
    for (const char c : text.substr(0, read)) {
      column = c == '\n' ? 1 : column + 1;
      line += c == '\n' ? 1 : 0;
    }
    throw ParseError("not JSON: " + error.message(), line, column);
  }
  return parser.release();
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
    if (std::find(allowed.begin(), allowed.end(), key) == allowed.end()) {
      invalid(where, "unknown key \"" + std::string(key) + "\"; allowed: " + list);
    }
  }
}

const json::value& get(const json::object& object, const std::string& where, const char* key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr) invalid(where, "\"" + std::string(key) + "\" is missing");
  return *value;
}

std::string text(const json::value& value, const std::string& where) {
  if (!value.is_string()) invalid(where, "expected a string");
  return {value.get_string().data(), value.get_string().size()};
}

std::int64_t integer(const json::value& value, const std::string& where, std::int64_t least, std::int64_t most) {
  if (!value.is_int64()) invalid(where, "expected an integer");
  if (value.get_int64() < least || value.get_int64() > most) {
    invalid(where, std::to_string(value.get_int64()) + " is not within " + std::to_string(least) + " to " +
                       std::to_string(most));
  }
  return value.get_int64();
}

std::vector<MeshAxis> read_mesh(const json::value& value) {
  constexpr std::size_t count = std::size(mesh_names);
  if (!value.is_array() || value.get_array().size() != count) {
    invalid("mesh", "expected a list of four axes: data, fsdp, context, tensor");
  }
  std::vector<MeshAxis> result;
  std::int64_t devices = 1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string where = "mesh[" + std::to_string(i) + "]";
    const json::object& axis = object(value.get_array()[i], where);
    only(axis, where, {"name", "size"});
    const std::string given = text(get(axis, where, "name"), where + ".name");
    if (given != mesh_names[i]) invalid(where, "is \"" + given + "\"; it must be \"" + mesh_names[i] + "\"");
    result.push_back({given, integer(get(axis, where, "size"), where + ".size", 1, kMaxDevices / devices)});
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
  const json::object& top = object(whole, "candidate");
  only(top, "candidate", {"mesh", "rules", "attention", "blocks", "compiler_options"});
  Candidate result;
  result.mesh = read_mesh(get(top, "candidate", "mesh"));
  for (const auto& member : object(get(top, "candidate", "rules"), "rules")) {
    const std::string axis(member.key().data(), member.key().size());
    result.rules[axis] = read_rule(member.value(), "rules." + axis);
  }
  result.attention = read_attention(get(top, "candidate", "attention"));
  const json::object& blocks = object(get(top, "candidate", "blocks"), "blocks");
  only(blocks, "blocks", {"queries", "keys"});
  result.blocks.queries = integer(get(blocks, "blocks", "queries"), "blocks.queries", 1, kMaxBlock);
  result.blocks.keys = integer(get(blocks, "blocks", "keys"), "blocks.keys", 1, kMaxBlock);
  for (const auto& member : object(get(top, "candidate", "compiler_options"), "compiler_options")) {
    const std::string option(member.key().data(), member.key().size());
    result.compiler_options[option] = text(member.value(), "compiler_options." + option);
  }
  return result;
}

EnumerationOptions read_enumeration_options(const std::string& json_text) {
  const json::value whole = parse(json_text);
  const json::object& top = object(whole, "options");
  only(top, "options", {"hbm_budget_bytes", "minimum_weight_sharding", "ulysses", "idle_axes"});
  constexpr std::int64_t most = std::int64_t{1} << 60;
  EnumerationOptions result;
  if (const auto* value = top.if_contains("hbm_budget_bytes"))
    result.hbm_budget_bytes = integer(*value, "hbm_budget_bytes", 0, most);
  if (const auto* value = top.if_contains("minimum_weight_sharding")) {
    result.minimum_weight_sharding = integer(*value, "minimum_weight_sharding", 0, most);
  }
  for (const auto& [key, field] : {std::pair{"ulysses", &result.ulysses}, std::pair{"idle_axes", &result.idle_axes}}) {
    const json::value* value = top.if_contains(key);
    if (value == nullptr) continue;
    if (!value->is_bool()) invalid(key, "expected true or false");
    *field = value->get_bool();
  }
  return result;
}

}  // namespace aoizora::candidates
