#include <boost/json.hpp>
#include <cmath>
#include <utility>

#include "aoizora/errors.h"
#include "aoizora/json_checks_impl.h"

namespace aoizora::json_checks {

namespace json = boost::json;

void invalid(const std::string& where, const std::string& what) { throw InvalidRequest(where + ": " + what); }

json::value parse(std::string_view text, std::size_t most_bytes) {
  if (text.size() > most_bytes) {
    throw InvalidRequest("the JSON text has " + std::to_string(text.size()) + " bytes; at most " +
                         std::to_string(most_bytes) + " are read");
  }
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

Fields::Fields(const json::value& value, std::string where) : where_(std::move(where)) {
  if (!value.is_object()) invalid(where_, "expected an object");
  object_ = &value.get_object();
}

const json::value* Fields::find(std::string_view key) {
  asked_.insert(std::string(key));
  return object_->if_contains(key);
}

const json::value& Fields::get(std::string_view key) {
  const json::value* value = find(key);
  if (value == nullptr) invalid(where_, "\"" + std::string(key) + "\" is missing");
  return *value;
}

void Fields::done() const {
  for (const auto& member : *object_) {
    const std::string key(member.key());
    if (asked_.contains(key)) continue;
    std::string allowed;
    for (const std::string& known : asked_) allowed += (allowed.empty() ? "" : ", ") + known;
    invalid(where_, "unknown key \"" + key.substr(0, 64) + "\"; allowed: " + allowed);
  }
}

std::int64_t integer(const json::value& value, const std::string& where, std::int64_t least, std::int64_t most) {
  if (!value.is_int64()) invalid(where, "expected an integer below 2^63");
  const std::int64_t given = value.get_int64();
  if (given < least) invalid(where, std::to_string(given) + " is below " + std::to_string(least));
  if (given > most) invalid(where, std::to_string(given) + " is above " + std::to_string(most));
  return given;
}

double number(const json::value& value, const std::string& where) {
  if (!value.is_number()) invalid(where, "expected a number");
  const double result = value.to_number<double>();
  if (!std::isfinite(result) || result < 0) invalid(where, "expected a finite number, 0 or more");
  return result;
}

std::string text(const json::value& value, const std::string& where) {
  if (!value.is_string()) invalid(where, "expected a string");
  return std::string(value.get_string());
}

bool boolean(const json::value& value, const std::string& where) {
  if (!value.is_bool()) invalid(where, "expected true or false");
  return value.get_bool();
}

}  // namespace aoizora::json_checks
