#include "aoizora/ir/readers.h"

#include "aoizora/ir/scan_impl.h"

namespace aoizora::ir {

Program read_program(std::string text) {
  Cursor c(text);
  c.skip_space();
  if (c.starts_with("HloModule")) return read_hlo(std::move(text));
  for (const std::string_view start :
       {"module", "\"builtin.module\"", "#", "!", "sdy.mesh", "func.func", "\"func.func\"", "\"sdy.mesh\""}) {
    if (c.starts_with(start)) return read_stablehlo(std::move(text));
  }
  c.fail("neither HLO (starts with HloModule) nor MLIR (starts with module, \"builtin.module\", #loc or sdy.mesh)");
}

}  // namespace aoizora::ir
