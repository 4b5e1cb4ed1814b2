#pragma once
#include <string>

#include "aoizora/ir/program.h"

namespace aoizora::ir {

/// Reads HLO text (any module XLA prints: optimized, scheduled, or not). Throws ParseError.
Program read_hlo(std::string text);

/// Reads MLIR text in the generic form (print_generic_op_form) or the pretty form jax prints, as far as operations,
/// operands, results, types, regions and attributes go. Throws ParseError.
Program read_stablehlo(std::string text);

/// Tells HLO ("HloModule") from MLIR ("module", "\"builtin.module\"", "#loc", "sdy.mesh") and reads it. Throws
/// ParseError.
Program read_program(std::string text);

}  // namespace aoizora::ir
