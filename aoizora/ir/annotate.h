#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "aoizora/candidates/candidate.h"

namespace aoizora::ir {

/// How the name of a mesh axis starts that stands for a logical axis in a trace: "stand_in_embed" for "embed".
inline constexpr std::string_view stand_in_prefix = "stand_in_";
/// The call in a trace that stands for a site of attention: queries, keys and values [batch, heads, length, head_dim]
/// whole, alone in a sdy.manual_computation.
inline constexpr std::string_view attention_site = "aoizora.attention.site";
/// What a site becomes: the same call over what one device holds, its lengths padded to the kernel's blocks.
inline constexpr std::string_view attention_kernel = "aoizora.attention";

struct AnnotateOptions {
  bool elide_constants = false;  ///< leave out the values of large constants, equal ones staying equal
  /// Logical axes that keep a mesh axis which an activation would name twice.
  std::vector<std::string> first{"batch", "sequence"};
};

/// The program (StableHLO as jax prints it) that a trace of this candidate gives, from a trace on mesh axes that stand
/// for the logical ones: mesh, shardings of arguments and of activations, manual computations. Where an activation
/// would name a mesh axis twice, `first` keep it, then the dimension furthest left. Throws ParseError, and
/// InvalidRequest where an argument would be divided twice by one mesh axis or a site of attention unevenly.
std::string annotate(std::string_view trace, const candidates::Candidate& candidate,
                     const AnnotateOptions& options = {});

}  // namespace aoizora::ir
