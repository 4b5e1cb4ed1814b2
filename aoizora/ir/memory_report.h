#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace aoizora::ir {

/// HBM of one device by the compiler's own buffer assignment.
struct MemoryReport {
  std::int64_t total_bytes = 0;     ///< everything in the default memory space
  std::int64_t argument_bytes = 0;  ///< entry parameters
  std::int64_t temporary_bytes() const { return total_bytes - argument_bytes; }
};

/// From *-memory-usage-report.txt ("Total bytes: ..." of memory space default). Throws ParseError.
MemoryReport read_memory_report(const std::string& text);

/// Sizes in the compiler's own out-of-memory message ("... (30.66G) exceeds available HBM (15.75G)"), if it is one.
struct OutOfMemory {
  double needed_bytes = 0;
  double available_bytes = 0;
};
std::optional<OutOfMemory> read_out_of_memory(const std::string& message);

}  // namespace aoizora::ir
