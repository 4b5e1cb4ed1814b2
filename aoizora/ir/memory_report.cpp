#include "aoizora/ir/memory_report.h"

#include <string_view>

#include "aoizora/ir/scan_impl.h"

namespace aoizora::ir {
namespace {

/// "30.66G", "908.92MiB", "512B": a size with its unit, powers of 1024.
std::optional<double> size_of(Cursor& c) {
  const char* start = c.at;
  while (is_digit(c.peek()) || c.peek() == '.') ++c.at;
  if (c.at == start || c.at - start > 32) return std::nullopt;
  double value = 0;
  double scale = 0;
  for (const char* p = start; p < c.at; ++p) {
    if (*p == '.') {
      if (scale != 0) return std::nullopt;
      scale = 1;
    } else {
      value = value * 10 + (*p - '0');
      scale *= 10;
    }
  }
  if (scale > 1) value /= scale;
  const std::string_view units = "BKMGTP";
  const std::size_t unit = units.find(c.peek());
  if (c.done() || unit == std::string_view::npos) return std::nullopt;
  ++c.at;
  for (std::size_t k = 0; k < unit; ++k) value *= 1024;
  return value;
}

/// The size in parentheses behind `words`.
std::optional<double> size_behind(std::string_view message, std::string_view words) {
  const std::size_t found = message.find(words);
  if (found == std::string_view::npos) return std::nullopt;
  Cursor c(message.substr(found + words.size()));
  c.skip_blanks();
  if (!c.take('(')) return std::nullopt;
  return size_of(c);
}

}  // namespace

MemoryReport read_memory_report(const std::string& text) {
  MemoryReport out;
  bool found = false;
  Cursor c(text);
  while (!c.done()) {
    if (c.take("Memory Space: default")) {
      if (found) c.fail("a second default memory space");
      c.skip_line();
      c.skip_space();
      if (!c.take("Total bytes:")) c.fail("expected 'Total bytes:' behind the default memory space");
      c.skip_blanks();
      const auto total = c.number();
      if (!total || *total < 0) c.fail("expected the total of the default memory space in bytes");
      out.total_bytes = *total;
      found = true;
    }
    c.skip_line();
    if (!c.done()) ++c.at;
  }
  if (!found) {
    c.fail("no 'Memory Space: default' with its 'Total bytes:': give the compiler's *-memory-usage-report.txt, whole");
  }
  return out;
}

std::optional<OutOfMemory> read_out_of_memory(const std::string& message) {
  // "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries (30.66G) exceeds
  // available HBM (15.75G)." (libtpu 0.0.52)
  const std::size_t start = message.find("Ran out of memory");
  if (start == std::string::npos) return std::nullopt;
  const std::string_view rest = std::string_view(message).substr(start);
  const auto available = size_behind(rest, "available HBM");
  auto needed = size_behind(rest, "HLO temporaries");
  if (!needed) {
    const std::size_t exceeds = rest.find(" exceeds");
    const std::size_t open = exceeds == std::string_view::npos ? exceeds : rest.rfind('(', exceeds);
    if (open != std::string_view::npos) {
      Cursor c(rest.substr(open + 1));
      needed = size_of(c);
    }
  }
  if (!needed || !available) return std::nullopt;
  return OutOfMemory{*needed, *available};
}

}  // namespace aoizora::ir
