#pragma once
#include <nlohmann/json.hpp>

#include "expansion/expand.h"
#include "expansion/mesh.h"

namespace judge {

/// The `slice` of a schedule (docs/simulation.md).
Mesh read_mesh(const nlohmann::json& slice);

/// {"kind", "bytes", "groups", "pairs", "rings", "directions"}; the last two only where the order of a ring is
/// prescribed.
Collective read_collective(const nlohmann::json& from);

}  // namespace judge
