#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <boost/version.hpp>
#include <limits>
#include <string_view>

#include "aoizora/errors.h"
#include "aoizora/nearest.h"
#include "aoizora/topology/device_kinds.h"
#include "aoizora/topology/slice.h"

namespace aoizora::topology {
namespace {

namespace json = boost::json;

struct Field {
  std::string_view key;
  Number Hardware::* number;
};
constexpr std::array kFields{
    Field{"peak_flops_per_second", &Hardware::peak_flops_per_second},
    Field{"hbm_bytes", &Hardware::hbm_bytes},
    Field{"hbm_bytes_per_second", &Hardware::hbm_bytes_per_second},
    Field{"ici_bytes_per_second", &Hardware::ici_bytes_per_second},
    Field{"core_bytes_per_second", &Hardware::core_bytes_per_second},
    Field{"hop_seconds", &Hardware::hop_seconds},
    Field{"clock_hz", &Hardware::clock_hz},
    Field{"dcn_bytes_per_second", &Hardware::dcn_bytes_per_second},
    Field{"matmul_efficiency", &Hardware::matmul_efficiency},
    Field{"core_efficiency", &Hardware::core_efficiency},
    Field{"attention_product_cycles", &Hardware::attention_product_cycles},
    Field{"attention_step_cycles", &Hardware::attention_step_cycles},
    Field{"attention_row_cycles", &Hardware::attention_row_cycles},
};

struct RateField {
  std::string_view key;
  Number CollectiveRate::* number;
};
constexpr std::array kRateFields{
    RateField{"alpha_seconds", &CollectiveRate::alpha_seconds},
    RateField{"rate_fraction", &CollectiveRate::rate_fraction},
    RateField{"flow_bytes_per_second", &CollectiveRate::flow_bytes_per_second},
    RateField{"ring_directions", &CollectiveRate::ring_directions},
};

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw InvalidRequest("slice descriptor, " + where + ": " + what);
}

json::value parse(std::string_view text) {
  json::parse_options options;
#if BOOST_VERSION >= 108300
  options.numbers = json::number_precision::precise;
#endif
  json::parser parser({}, options);
  boost::system::error_code error;
  const std::size_t read = parser.write_some(text.data(), text.size(), error);
  if (!error && read < text.size()) error = json::error::extra_data;
  if (!error) return parser.release();
  std::int64_t line = 1, column = 1;
  for (const char c : text.substr(0, read)) {
    column = c == '\n' ? 1 : column + 1;
    line += c == '\n' ? 1 : 0;
  }
  throw ParseError("the slice descriptor is not JSON: " + error.message(), line, column);
}

const json::object& as_object(const json::value& value, const std::string& where) {
  if (!value.is_object()) refuse(where, "expected an object");
  return value.get_object();
}

void check_keys(const json::object& object, const std::vector<std::string>& known, const std::string& where) {
  for (const auto& member : object) {
    const std::string key(member.key());
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    refuse(where, "unknown key \"" + key.substr(0, 64) + "\"; did you mean \"" + nearest(key, known) +
                      "\"? known: " + joined(known));
  }
}

int as_int(const json::value& value, const std::string& where) {
  if (!value.is_int64() || value.get_int64() < std::numeric_limits<int>::min() ||
      value.get_int64() > std::numeric_limits<int>::max()) {
    refuse(where, "expected a whole number");
  }
  return static_cast<int>(value.get_int64());
}

std::string as_text(const json::value& value, const std::string& where) {
  if (!value.is_string() || value.get_string().empty()) refuse(where, "expected a text that is not empty");
  return std::string(value.get_string());
}

// 45e9, or {"value": 45e9, "source": "where it comes from"}.
Number as_number(const json::value& value, const std::string& where) {
  if (value.is_number()) return {value.to_number<double>(), "descriptor"};
  if (!value.is_object()) refuse(where, "expected a number, or an object of \"value\" and \"source\"");
  const json::object& object = value.get_object();
  check_keys(object, {"value", "source"}, where);
  const json::value* number = object.if_contains("value");
  if (number == nullptr || !number->is_number()) refuse(where, "\"value\" must be a number");
  const json::value* source = object.if_contains("source");
  return {number->to_number<double>(), source == nullptr ? "descriptor" : as_text(*source, where + ".source")};
}

void read_rates(const json::value& value, std::map<CollectiveKind, CollectiveRate>& rates, const std::string& where) {
  const json::object& object = as_object(value, where);
  std::vector<std::string> kinds, keys;
  for (const CollectiveKind kind : all_collective_kinds) kinds.emplace_back(name(kind));
  for (const RateField& field : kRateFields) keys.emplace_back(field.key);
  check_keys(object, kinds, where);
  for (const CollectiveKind kind : all_collective_kinds) {
    const json::value* rate = object.if_contains(name(kind));
    if (rate == nullptr) continue;
    const std::string here = where + "." + std::string(name(kind));
    check_keys(as_object(*rate, here), keys, here);
    for (const RateField& field : kRateFields) {
      const json::value* number = rate->get_object().if_contains(field.key);
      if (number != nullptr) rates[kind].*field.number = as_number(*number, here + "." + std::string(field.key));
    }
  }
}

// Lays the descriptor's numbers over those of `base`; with no base every number must be there.
Hardware read_hardware(const json::value* value, const Hardware* base, int cores_per_chip) {
  Hardware result = base != nullptr ? *base : Hardware{};
  static const json::object nothing;
  const json::object& object = value != nullptr ? as_object(*value, "hardware") : nothing;
  std::vector<std::string> keys{"device_kind", "collectives"};
  for (const Field& field : kFields) keys.emplace_back(field.key);
  check_keys(object, keys, "hardware");
  for (const Field& field : kFields) {
    if (const json::value* number = object.if_contains(field.key)) {
      result.*field.number = as_number(*number, "hardware." + std::string(field.key));
    } else if (base == nullptr && (field.number != &Hardware::core_bytes_per_second || cores_per_chip > 1)) {
      refuse("hardware", "\"" + std::string(field.key) + "\" is missing; without \"base\" every number is needed");
    }
  }
  if (const json::value* kind = object.if_contains("device_kind")) {
    result.device_kind = as_text(*kind, "hardware.device_kind");
  } else if (base == nullptr) {
    refuse("hardware", "\"device_kind\" is missing");
  }
  if (base == nullptr) {
    for (const CollectiveKind kind : all_collective_kinds) {
      result.collectives[kind] = {{1e-6, "assumption"},
                                  {1, "assumption: nominal"},
                                  {0, "no limit of one flow given"},
                                  {0, "assumption: several ports"}};
    }
  }
  if (const json::value* rates = object.if_contains("collectives"))
    read_rates(*rates, result.collectives, "hardware.collectives");
  return result;
}

std::vector<int> read_dims(const json::value& value) {
  if (!value.is_array()) refuse("dims", "expected an array of chips along x, y, ...");
  std::vector<int> result;
  for (const json::value& size : value.get_array()) result.push_back(as_int(size, "dims"));
  return result;
}

std::vector<bool> read_wraps(const json::value& value) {
  if (!value.is_array()) refuse("wraps", "expected an array of true or false, one a dimension");
  std::vector<bool> result;
  for (const json::value& wrap : value.get_array()) {
    if (!wrap.is_bool()) refuse("wraps", "expected true or false");
    result.push_back(wrap.get_bool());
  }
  return result;
}

std::string printed(const Number& number) {
  return json::serialize(json::object{{"value", number.value}, {"source", number.source}});
}

}  // namespace

Slice read_descriptor(const std::string& text) {
  const json::value value = parse(text);
  const json::object& object = as_object(value, "top level");
  check_keys(object, {"base", "name", "dims", "wraps", "cores_per_chip", "hardware"}, "top level");

  Slice base;
  const json::value* base_name = object.if_contains("base");
  if (base_name != nullptr) {
    const std::string given = as_text(*base_name, "base");
    // A base is never a file: a descriptor reads nothing but itself.
    if (given.find('/') != std::string::npos || given.find(':') == std::string::npos || given.ends_with(".json")) {
      refuse("base", "\"" + given.substr(0, 64) + "\" is no slice name such as \"v5e:4x4\"");
    }
    base = make_slice(given);
  }
  const auto take = [&](std::string_view key, bool needed) {
    const json::value* found = object.if_contains(key);
    if (found == nullptr && needed) refuse("top level", "\"" + std::string(key) + "\" is missing");
    return found;
  };
  const bool alone = base_name == nullptr;
  const json::value* dims = take("dims", alone);
  const json::value* wraps = take("wraps", alone || dims != nullptr);
  const json::value* cores = take("cores_per_chip", false);
  // The name is what the compiler is asked for: another shape must not pass for the base.
  const json::value* name = take("name", alone || dims != nullptr || wraps != nullptr || cores != nullptr);
  const int cores_per_chip = cores != nullptr ? as_int(*cores, "cores_per_chip") : alone ? 1 : base.cores_per_chip;
  return build_slice(name != nullptr ? as_text(*name, "name") : base.name,
                     dims != nullptr ? read_dims(*dims) : base.dims, wraps != nullptr ? read_wraps(*wraps) : base.wraps,
                     cores_per_chip,
                     read_hardware(take("hardware", alone), alone ? nullptr : &base.hardware, cores_per_chip));
}

std::string to_json(const Slice& slice) {
  const auto text = [](std::string_view s) { return json::serialize(json::string(s)); };
  std::string dims, wraps, rates;
  for (const int size : slice.dims) dims += (dims.empty() ? "" : ", ") + std::to_string(size);
  for (const bool wrap : slice.wraps) wraps += std::string(wraps.empty() ? "" : ", ") + (wrap ? "true" : "false");
  for (const CollectiveKind kind : all_collective_kinds) {
    const CollectiveRate& rate = slice.hardware.collectives.at(kind);
    std::string fields;
    for (const RateField& field : kRateFields) {
      fields += (fields.empty() ? "\n        " : ",\n        ") + text(field.key) + ": " + printed(rate.*field.number);
    }
    rates += (rates.empty() ? "\n      " : ",\n      ") + text(name(kind)) + ": {" + fields + "\n      }";
  }
  std::string result = "{\n  \"name\": " + text(slice.name) + ",\n  \"dims\": [" + dims + "],\n  \"wraps\": [" + wraps +
                       "],\n  \"cores_per_chip\": " + std::to_string(slice.cores_per_chip) +
                       ",\n  \"hardware\": {\n    \"device_kind\": " + text(slice.hardware.device_kind);
  for (const Field& field : kFields) {
    const Number& number = slice.hardware.*field.number;
    if (number == Number{}) continue;
    result += ",\n    " + text(field.key) + ": " + printed(number);
  }
  return result + ",\n    \"collectives\": {" + rates + "\n    }\n  }\n}\n";
}

}  // namespace aoizora::topology
