// Any bytes read as HLO either give a program that everything after it can walk, or an error of errors.h.
#include <cstddef>
#include <cstdint>
#include <string>

#include "aoizora/errors.h"
#include "aoizora/ir/inspect.h"
#include "aoizora/ir/readers.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto program = aoizora::ir::read_hlo(std::string(reinterpret_cast<const char*>(data), size));
    aoizora::ir::inspect_json(program);
  } catch (const aoizora::Error&) {
  }
  return 0;
}
