#pragma once
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>

// Declared here, so that no header shows Boost.
namespace boost::json {
class object;
class value;
}  // namespace boost::json

/// Reading JSON from outside: every check that fails throws InvalidRequest and names the place, "where: what".
namespace aoizora::json_checks {

[[noreturn]] void invalid(const std::string& where, const std::string& what);

/// Throws InvalidRequest for a text that is too long, ParseError with line and column for one that is no JSON.
boost::json::value parse(std::string_view text, std::size_t most_bytes);

/// An object of which every key must be asked for: what nobody asked for is refused by done().
class Fields {
 public:
  Fields(const boost::json::value& value, std::string where);
  /// nullptr where the object has no such key.
  const boost::json::value* find(std::string_view key);
  const boost::json::value& get(std::string_view key);
  std::string path(std::string_view key) const { return where_ + "." + std::string(key); }
  void done() const;

 private:
  const boost::json::object* object_ = nullptr;
  std::string where_;
  std::set<std::string> asked_;
};

std::int64_t integer(const boost::json::value& value, const std::string& where, std::int64_t least,
                     std::int64_t most = std::numeric_limits<std::int64_t>::max());
/// Finite, 0 or more.
double number(const boost::json::value& value, const std::string& where);
std::string text(const boost::json::value& value, const std::string& where);
bool boolean(const boost::json::value& value, const std::string& where);

}  // namespace aoizora::json_checks
