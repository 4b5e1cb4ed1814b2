// A slice descriptor is refused, or gives a slice that its own text gives again and whose routes arrive.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "aoizora/errors.h"
#include "aoizora/topology/slice.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto slice = aoizora::topology::read_descriptor(std::string(reinterpret_cast<const char*>(data), size));
    if (slice.devices.size() > 64) return 0;
    if (aoizora::topology::read_descriptor(aoizora::topology::to_json(slice)) != slice) std::abort();
    const auto last = static_cast<aoizora::topology::DeviceId>(slice.devices.size() - 1);
    const auto route = slice.route(0, last);
    if (slice.chip_of(last) != 0 && (route.empty() || slice.links[route.front()].from_chip != 0)) std::abort();
  } catch (const aoizora::Error&) {
  }
  return 0;
}
