#include <boost/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "aoizora/json_checks_impl.h"
#include "aoizora/workload/wan.h"
#include "aoizora/workload/workload.h"

namespace aoizora::workload {
namespace {

namespace json = boost::json;

using namespace json_checks;

constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

json::value parse(std::string_view text) { return json_checks::parse(text, kMaxBytes); }

DType dtype(const json::value& value, const std::string& where) {
  const DType result = dtype_from_name(text(value, where));
  if (bits(result) == 0) invalid(where, "unknown element type \"" + text(value, where) + "\"; for example bf16");
  return result;
}

// Every element of an array through read(element, path).
template <typename T, typename Read>
std::vector<T> list(const json::value& value, const std::string& where, Read read) {
  if (!value.is_array()) invalid(where, "expected a list");
  std::vector<T> result;
  result.reserve(value.get_array().size());
  for (const json::value& element : value.get_array()) {
    result.push_back(read(element, where + "[" + std::to_string(result.size()) + "]"));
  }
  return result;
}

constexpr std::string_view kind_names[] = {"weight", "batch", "sequence", "whole"};

AxisKind axis_kind(const json::value& value, const std::string& where) {
  const std::string given = text(value, where);
  for (std::size_t i = 0; i < std::size(kind_names); ++i) {
    if (given == kind_names[i]) return static_cast<AxisKind>(i);
  }
  invalid(where, "unknown kind \"" + given + "\"; allowed: weight, batch, sequence, whole");
}

Axis read_axis(const json::value& value, const std::string& where) {
  Fields fields(value, where);
  Axis axis{text(fields.get("name"), fields.path("name")), integer(fields.get("size"), fields.path("size"), 1),
            axis_kind(fields.get("kind"), fields.path("kind"))};
  fields.done();
  if (axis.name.empty()) invalid(where, "an axis needs a name");
  return axis;
}

Dim read_dim(const json::value& value, const std::string& where) {
  Fields fields(value, where);
  Dim dim{integer(fields.get("size"), fields.path("size"), 1), text(fields.get("axis"), fields.path("axis"))};
  fields.done();
  return dim;
}

Tensor read_tensor(const json::value& value, const std::string& where) {
  Fields fields(value, where);
  Tensor tensor;
  tensor.name = text(fields.get("name"), fields.path("name"));
  tensor.dtype = dtype(fields.get("dtype"), fields.path("dtype"));
  tensor.dims = list<Dim>(fields.get("dims"), fields.path("dims"), read_dim);
  tensor.repeat = integer(fields.get("repeat"), fields.path("repeat"), 1);
  fields.done();
  return tensor;
}

Attention read_attention(const json::value& value, const std::string& where) {
  Fields fields(value, where);
  const auto size = [&](const char* key) { return integer(fields.get(key), fields.path(key), 1); };
  Attention attention;
  attention.name = text(fields.get("name"), fields.path("name"));
  attention.batch = size("batch");
  attention.heads = size("heads");
  attention.head_dim = size("head_dim");
  attention.queries = size("queries");
  attention.keys = size("keys");
  attention.query_axis = text(fields.get("query_axis"), fields.path("query_axis"));
  attention.key_axis = text(fields.get("key_axis"), fields.path("key_axis"));
  fields.done();
  return attention;
}

Contraction read_contraction(const json::value& value, const std::string& where) {
  Fields fields(value, where);
  Contraction contraction;
  contraction.weight = text(fields.get("weight"), fields.path("weight"));
  contraction.reads = text(fields.get("reads"), fields.path("reads"));
  contraction.writes = text(fields.get("writes"), fields.path("writes"));
  contraction.feeds_carry = boolean(fields.get("feeds_carry"), fields.path("feeds_carry"));
  fields.done();
  return contraction;
}

void check_axis(const Workload& workload, const std::string& axis, const std::string& where) {
  if (!axis.empty() && workload.find_axis(axis) == nullptr)
    invalid(where, "names the axis \"" + axis + "\", which is not in axes");
}

void check_tensors(const Workload& workload, const std::vector<Tensor>& tensors, const std::string& where) {
  std::set<std::string> names;
  for (const Tensor& tensor : tensors) {
    const std::string path = where + " \"" + tensor.name + "\"";
    if (!names.insert(tensor.name).second) invalid(path, "is there twice");
    std::int64_t bytes = 8;  // no element is wider
    bool fits = !__builtin_mul_overflow(bytes, tensor.repeat, &bytes);
    for (const Dim& dim : tensor.dims) {
      fits = fits && !__builtin_mul_overflow(bytes, dim.size, &bytes);
      check_axis(workload, dim.axis, path);
      const Axis* axis = workload.find_axis(dim.axis);
      if (axis != nullptr && dim.size % axis->size != 0) {
        invalid(path, "a dimension of " + std::to_string(dim.size) + " is no multiple of its axis \"" + dim.axis +
                          "\" of " + std::to_string(axis->size));
      }
    }
    if (!fits) invalid(path, "is larger than 2^63 bytes");
  }
}

const Tensor& named(const std::vector<Tensor>& tensors, const std::string& name, const std::string& where) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
  if (found == tensors.end()) invalid(where, "names the tensor \"" + name + "\", which is not there");
  return *found;
}

void check_contractions(const Workload& workload) {
  for (const Contraction& c : workload.contractions) {
    const std::string where = "contraction of \"" + c.weight + "\"";
    const Tensor& weight = named(workload.weights, c.weight, where);
    const Tensor& reads = named(workload.activations, c.reads, where);
    const Tensor& writes = named(workload.activations, c.writes, where);
    const bool fits = weight.dims.size() == 2 && !reads.dims.empty() && !writes.dims.empty() &&
                      reads.dims.back().size == weight.dims[0].size && writes.dims.back().size == weight.dims[1].size;
    if (!fits) invalid(where, "\"" + c.reads + "\" times the weight is not \"" + c.writes + "\"");
  }
}

void check(const Workload& workload) {
  std::set<std::string> names;
  for (const Axis& axis : workload.axes) {
    if (!names.insert(axis.name).second) invalid("workload.axes", "\"" + axis.name + "\" is there twice");
  }
  check_tensors(workload, workload.weights, "weight");
  check_tensors(workload, workload.activations, "activation");
  for (const Attention& attention : workload.attentions) {
    check_axis(workload, attention.query_axis, "attention \"" + attention.name + "\"");
    check_axis(workload, attention.key_axis, "attention \"" + attention.name + "\"");
  }
  check_contractions(workload);
  for (const auto& [axis, mesh_axes] : workload.stock_rules) check_axis(workload, axis, "stock_rules");
  if (workload.whole_program && workload.layers != 1)
    invalid("workload.layers", "is " + std::to_string(workload.layers) + "; a whole program has 1");
}

template <typename T, typename Write>
json::array array_of(const std::vector<T>& items, Write write) {
  json::array result;
  for (const T& item : items) result.emplace_back(write(item));
  return result;
}

json::value write_tensor(const Tensor& tensor) {
  return json::object{
      {"name", tensor.name},
      {"dtype", name(tensor.dtype)},
      {"dims", array_of(tensor.dims, [](const Dim& d) { return json::object{{"size", d.size}, {"axis", d.axis}}; })},
      {"repeat", tensor.repeat}};
}

constexpr std::pair<const char*, std::int64_t WanConfig::*> kConfigKeys[] = {
    {"num_attention_heads", &WanConfig::num_attention_heads},
    {"attention_head_dim", &WanConfig::attention_head_dim},
    {"ffn_dim", &WanConfig::ffn_dim},
    {"num_layers", &WanConfig::num_layers},
    {"text_dim", &WanConfig::text_dim},
    {"text_length", &WanConfig::text_length},
    {"freq_dim", &WanConfig::freq_dim},
    {"patch_t", &WanConfig::patch_t},
    {"patch_h", &WanConfig::patch_h},
    {"patch_w", &WanConfig::patch_w},
    {"in_channels", &WanConfig::in_channels},
    {"out_channels", &WanConfig::out_channels}};

}  // namespace

std::string to_json(const Workload& workload) {
  json::object rules;
  for (const auto& [axis, mesh_axes] : workload.stock_rules) rules[axis] = json::value_from(mesh_axes);
  json::object document{
      {"name", workload.name},
      {"axes", array_of(workload.axes,
                        [](const Axis& a) {
                          return json::object{{"name", a.name},
                                              {"size", a.size},
                                              {"kind", kind_names[static_cast<std::size_t>(a.kind)]}};
                        })},
      {"weights", array_of(workload.weights, write_tensor)},
      {"activations", array_of(workload.activations, write_tensor)},
      {"attentions",
       array_of(
           workload.attentions,
           [](const Attention& a) {
             return json::object{
                 {"name", a.name},       {"batch", a.batch}, {"heads", a.heads},           {"head_dim", a.head_dim},
                 {"queries", a.queries}, {"keys", a.keys},   {"query_axis", a.query_axis}, {"key_axis", a.key_axis}};
           })},
      {"contractions",
       array_of(workload.contractions,
                [](const Contraction& c) {
                  return json::object{
                      {"weight", c.weight}, {"reads", c.reads}, {"writes", c.writes}, {"feeds_carry", c.feeds_carry}};
                })},
      {"layers", workload.layers},
      {"tokens", workload.tokens},
      {"stock_rules", std::move(rules)},
      {"block_flops", workload.block_flops},
      {"total_flops", workload.total_flops},
  };
  if (workload.whole_program) document["whole_program"] = true;
  return json::serialize(document);
}

Workload read_workload(const std::string& source) {
  const json::value document = parse(source);
  Fields fields(document, "workload");
  Workload result;
  result.name = text(fields.get("name"), fields.path("name"));
  result.axes = list<Axis>(fields.get("axes"), fields.path("axes"), read_axis);
  result.weights = list<Tensor>(fields.get("weights"), fields.path("weights"), read_tensor);
  result.activations = list<Tensor>(fields.get("activations"), fields.path("activations"), read_tensor);
  result.attentions = list<Attention>(fields.get("attentions"), fields.path("attentions"), read_attention);
  if (const json::value* contractions = fields.find("contractions"))
    result.contractions = list<Contraction>(*contractions, fields.path("contractions"), read_contraction);
  result.layers = integer(fields.get("layers"), fields.path("layers"), 1);
  result.tokens = integer(fields.get("tokens"), fields.path("tokens"), 0);
  result.block_flops = number(fields.get("block_flops"), fields.path("block_flops"));
  result.total_flops = number(fields.get("total_flops"), fields.path("total_flops"));
  if (const json::value* rules = fields.find("stock_rules")) {
    if (!rules->is_object()) invalid(fields.path("stock_rules"), "expected an object");
    for (const auto& member : rules->get_object()) {
      result.stock_rules[std::string(member.key())] =
          list<std::string>(member.value(), fields.path("stock_rules"), text);
    }
  }
  if (const json::value* whole = fields.find("whole_program"))
    result.whole_program = boolean(*whole, fields.path("whole_program"));
  fields.done();
  check(result);
  return result;
}

std::string to_json(const Request& request) {
  const json::object document{
      {"model", request.model},   {"height", request.height},     {"width", request.width},
      {"frames", request.frames}, {"videos", request.videos},     {"cfg", request.cfg},
      {"steps", request.steps},   {"dtype", name(request.dtype)}, {"reserved_hbm_bytes", request.reserved_hbm_bytes},
  };
  return json::serialize(document);
}

Request read_request(const std::string& source) {
  const json::value document = parse(source);
  Fields fields(document, "request");
  Request result;
  const auto size = [&](const char* key, std::int64_t least, std::int64_t& into) {
    if (const json::value* value = fields.find(key)) into = integer(*value, fields.path(key), least);
  };
  if (const json::value* value = fields.find("model")) result.model = text(*value, fields.path("model"));
  size("height", 1, result.height);
  size("width", 1, result.width);
  size("frames", 1, result.frames);
  size("videos", 1, result.videos);
  if (const json::value* value = fields.find("cfg")) result.cfg = boolean(*value, fields.path("cfg"));
  size("steps", 1, result.steps);
  if (const json::value* value = fields.find("dtype")) result.dtype = dtype(*value, fields.path("dtype"));
  size("reserved_hbm_bytes", 0, result.reserved_hbm_bytes);
  fields.done();
  return result;
}

std::string to_json(const WanConfig& config) {
  json::object document;
  for (const auto& [key, member] : kConfigKeys) document[key] = config.*member;
  return json::serialize(document);
}

WanConfig read_wan_config(const std::string& source) {
  const json::value document = parse(source);
  Fields fields(document, "config");
  WanConfig result;
  for (const auto& [key, member] : kConfigKeys) {
    if (const json::value* value = fields.find(key)) result.*member = integer(*value, fields.path(key), 1);
  }
  fields.done();
  return result;
}

}  // namespace aoizora::workload
