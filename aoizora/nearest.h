#pragma once
#include <span>
#include <string>
#include <string_view>

namespace aoizora {

/// The known word that takes the fewest edits to reach from `given`; the first of equals. Empty where nothing is known.
std::string nearest(std::string_view given, std::span<const std::string> known);

/// "a, b, c".
std::string joined(std::span<const std::string> words);

}  // namespace aoizora
