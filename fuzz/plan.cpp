// The parts of plans that the library reads back: the first byte says which. Each is refused, or its own text gives the
// same again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "aoizora/candidates/candidate.h"
#include "aoizora/errors.h"
#include "aoizora/planner/planner.h"
#include "aoizora/workload/workload.h"

namespace {

template <typename Read>
void expect_same_again(const std::string& text, Read read) {
  const std::string once = to_json(read(text));
  if (to_json(read(once)) != once) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 4) {
      case 0:
        expect_same_again(text, aoizora::workload::read_request);
        break;
      case 1:
        expect_same_again(text, aoizora::workload::read_workload);
        break;
      case 2:
        expect_same_again(text, aoizora::candidates::read_candidate);
        break;
      default:
        expect_same_again(text, aoizora::planner::read_settings);
    }
  } catch (const aoizora::Error&) {
  }
  return 0;
}
