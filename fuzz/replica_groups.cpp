// The first two bytes are a device count; the rest read as replica groups or as pairs names only devices below it, or
// is refused.
#include "aoizora/ir/replica_groups.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "aoizora/errors.h"

namespace {

void expect_device(std::int32_t id, std::int32_t device_count) {
  if (id < 0 || id >= device_count) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::int32_t device_count = data[0] + 256 * data[1];
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  try {
    for (const auto& group : aoizora::ir::read_replica_groups(text, device_count)) {
      for (const auto id : group) expect_device(id, device_count);
    }
  } catch (const aoizora::Error&) {
  }
  try {
    for (const auto& [from, to] : aoizora::ir::read_source_target_pairs(text, device_count)) {
      expect_device(from, device_count);
      expect_device(to, device_count);
    }
  } catch (const aoizora::Error&) {
  }
  return 0;
}
