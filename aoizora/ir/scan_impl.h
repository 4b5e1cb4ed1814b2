#pragma once
// Walking over HLO and MLIR text without building anything. Included by this room's .cpp files only.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aoizora/errors.h"

namespace aoizora::ir {

/// What a byte may be part of: bits.
struct Kind {
  static constexpr std::uint8_t digit = 1, letter = 2, sign = 4, space = 8, comment = 16;
};

constexpr std::array<std::uint8_t, 256> make_kinds() {
  std::array<std::uint8_t, 256> kinds{};
  for (int c = 0; c < 256; ++c) {
    if (c >= '0' && c <= '9') kinds[static_cast<std::size_t>(c)] = Kind::digit;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_') kinds[static_cast<std::size_t>(c)] = Kind::letter;
    if (c == '.' || c == '-' || c == '$') kinds[static_cast<std::size_t>(c)] = Kind::sign;
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r') kinds[static_cast<std::size_t>(c)] = Kind::space;
    if (c == '/') kinds[static_cast<std::size_t>(c)] = Kind::comment;
  }
  return kinds;
}
inline constexpr std::array<std::uint8_t, 256> kinds = make_kinds();
inline bool is(char c, unsigned kind) { return (kinds[static_cast<unsigned char>(c)] & kind) != 0; }

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_letter(char c) { return is(c, Kind::letter); }
/// Characters of names and keys: HLO's identifiers and MLIR's, with the dashes of opcodes.
inline bool is_name(char c) { return is(c, Kind::letter | Kind::digit | Kind::sign); }
inline bool is_space(char c) { return is(c, Kind::space); }

/// What a byte means while text is skipped; everything plain is passed over.
enum class Mark : std::uint8_t { plain, open, close, quote, line, comma };

constexpr std::array<Mark, 256> make_marks() {
  std::array<Mark, 256> marks{};
  for (const char c : {'(', '[', '{'}) marks[static_cast<unsigned char>(c)] = Mark::open;
  for (const char c : {')', ']', '}'}) marks[static_cast<unsigned char>(c)] = Mark::close;
  marks['"'] = Mark::quote;
  marks['\n'] = Mark::line;
  marks[','] = Mark::comma;
  return marks;
}
inline constexpr std::array<Mark, 256> marks = make_marks();
inline Mark mark(char c) { return marks[static_cast<unsigned char>(c)]; }

/// What a byte adds to the depth of brackets. `look_closer` makes any depth negative.
inline constexpr std::int64_t look_closer = std::numeric_limits<std::int64_t>::min() / 2;

constexpr std::array<std::int64_t, 256> make_steps(bool angles) {
  std::array<std::int64_t, 256> steps{};
  for (const char c : {'(', '[', '{'}) steps[static_cast<unsigned char>(c)] = 1;
  for (const char c : {')', ']', '}'}) steps[static_cast<unsigned char>(c)] = -1;
  steps['"'] = look_closer;
  if (angles) {
    steps['<'] = 1;
    steps['>'] = -1;
    steps['-'] = look_closer;  // of an arrow?
  }
  return steps;
}
inline constexpr std::array<std::int64_t, 256> steps = make_steps(false);
inline constexpr std::array<std::int64_t, 256> steps_with_angles = make_steps(true);

inline std::int64_t saturating_multiply(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<std::int64_t>::max() : out;
}
inline std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  return __builtin_add_overflow(a, b, &out) ? std::numeric_limits<std::int64_t>::max() : out;
}

/// A piece of the text as an error shows it.
inline std::string shown(std::string_view text) {
  constexpr std::size_t most = 80;
  return text.size() <= most ? std::string(text) : std::string(text.substr(0, most)) + "...";
}

/// Adds to the end. Grows by half, not to the double: while it grows old and new live side by side, and what a text may
/// ask for is bounded.
template <class T, class... Of>
[[gnu::always_inline]] inline T& push(std::vector<T>& values, Of&&... of) {
  if (values.size() == values.capacity()) values.reserve(values.size() + values.size() / 2 + 8);
  return values.emplace_back(std::forward<Of>(of)...);
}

/// A place in a text and what may follow it. Every read past the end gives '\0'.
struct Cursor {
  const char* begin = nullptr;
  const char* at = nullptr;
  const char* end = nullptr;

  explicit Cursor(std::string_view text) : begin(text.data()), at(text.data()), end(text.data() + text.size()) {}

  bool done() const { return at >= end; }
  char peek(std::ptrdiff_t ahead = 0) const { return ahead < end - at ? at[ahead] : '\0'; }
  std::string_view rest() const { return {at, static_cast<std::size_t>(end - at)}; }
  bool starts_with(std::string_view s) const {
    return s.size() <= static_cast<std::size_t>(end - at) && std::memcmp(at, s.data(), s.size()) == 0;
  }

  [[noreturn]] void fail(const std::string& what) const { fail_at(at, what); }
  [[noreturn]] void fail_at(const char* where, const std::string& what) const {
    where = std::min(where, end);
    const std::int64_t line = 1 + std::count(begin, where, '\n');
    const char* start = where;
    while (start > begin && start[-1] != '\n') --start;
    throw ParseError(what, line, 1 + (where - start));
  }

  /// Spaces, new lines, "/* */" and "//" comments.
  [[gnu::always_inline]] void skip_space() {
    if (at < end && *at == ' ') ++at;  // mostly that is all
    if (at < end && is(*at, Kind::space | Kind::comment)) skip_on();
  }
  void skip_on() {
    while (at < end) {
      if (is_space(*at)) {
        ++at;
      } else if (*at != '/') {
        return;
      } else if (peek(1) == '*') {
        const std::size_t close = rest().find("*/", 2);
        if (close == std::string_view::npos) fail("comment is not closed: expected */");
        at += close + 2;
      } else if (peek(1) == '/') {
        skip_line();
      } else {
        return;
      }
    }
  }
  void skip_blanks() {
    while (at < end && (*at == ' ' || *at == '\t')) ++at;
  }
  void skip_line() {
    const void* found = std::memchr(at, '\n', static_cast<std::size_t>(end - at));
    at = found ? static_cast<const char*>(found) : end;
  }
  bool take(char c) {
    if (at >= end || *at != c) return false;
    ++at;
    return true;
  }
  bool take(std::string_view s) {
    if (!starts_with(s)) return false;
    at += s.size();
    return true;
  }
  void expect(char c, const char* where) {
    if (!take(c)) fail_expected(c, where);
  }
  [[noreturn]] void fail_expected(char c, const char* where) const {
    fail(std::string("expected '") + c + "' " + where + (done() ? ", the text ends here" : ""));
  }
  /// Longest run of name characters; may be empty.
  std::string_view name() {
    const char* start = at;
    const char* p = at;
    while (p < end && is_name(*p)) ++p;
    at = p;
    return {start, static_cast<std::size_t>(p - start)};
  }
  /// A whole number; nullopt if there is none or it does not fit.
  std::optional<std::int64_t> number() {
    const char* start = at;
    const bool negative = take('-');
    if (!is_digit(peek())) {
      at = start;
      return std::nullopt;
    }
    std::int64_t value = 0;
    while (at < end && is_digit(*at)) {
      if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *at - '0', &value)) {
        fail_at(start, "number does not fit in 64 bits");
      }
      ++at;
    }
    return negative ? -value : value;
  }

  /// Stands on '"': goes behind the closing one.
  void skip_string() {
    const char* start = at++;
    while (true) {
      const void* found = at < end ? std::memchr(at, '"', static_cast<std::size_t>(end - at)) : nullptr;
      if (!found) fail_at(start, "string is not closed");
      const char* quote = static_cast<const char*>(found);
      const char* slash = quote;
      while (slash > at && slash[-1] == '\\') --slash;
      at = quote + 1;
      if ((quote - slash) % 2 == 0) return;
    }
  }
  /// Stands on an opening bracket: goes behind its closing one. `angles` makes '<' and '>' brackets, arrows excepted
  /// (MLIR).
  void skip_balanced(bool angles) {
    const char* start = at;
    const char* p = at + 1;  // in a register, unlike `at`
    const auto& step = angles ? steps_with_angles : steps;
    std::int64_t depth = 1;
    const auto go_on = [&] {
      depth += step[static_cast<unsigned char>(*p++)];
      return depth > 0;
    };
    while (true) {
      while (end - p >= 4 && go_on() && go_on() && go_on() && go_on()) {
      }
      while (depth > 0 && p < end) go_on();
      if (depth > 0) break;
      if (depth == 0) {
        at = p;
        return;
      }
      depth -= look_closer;
      if (p[-1] == '"') {
        at = p - 1;
        skip_string();
        p = at;
      } else if (p < end && *p == '>') {
        ++p;
      }
    }
    at = end;
    fail_at(start, std::string("'") + *start + "' is not closed: the text is cut");
  }
};

}  // namespace aoizora::ir
