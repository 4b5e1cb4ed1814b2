#pragma once
#include <array>
#include <cstdint>
#include <string_view>

namespace aoizora::topology {

/// The families of collective communication; τ in the paper.
enum class CollectiveKind : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  ragged_all_to_all,
  permute,
  broadcast,
};
inline constexpr std::array all_collective_kinds{CollectiveKind::all_gather,        CollectiveKind::reduce_scatter,
                                                 CollectiveKind::all_reduce,        CollectiveKind::all_to_all,
                                                 CollectiveKind::ragged_all_to_all, CollectiveKind::permute,
                                                 CollectiveKind::broadcast};

/// HLO's opcode: "all-gather", "collective-permute", "collective-broadcast", ...
std::string_view name(CollectiveKind kind);

}  // namespace aoizora::topology
