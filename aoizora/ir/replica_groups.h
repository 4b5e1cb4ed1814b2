#pragma once
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace aoizora::ir {

/// Logical ids (positions in the mesh) of each group, in the order of print.
using ReplicaGroups = std::vector<std::vector<std::int32_t>>;

/// Reads every form XLA prints: "{{0,1},{2,3}}", "{}" (one group of all), iota "[4,2]<=[2,2,2]T(0,2,1)", and
/// "mesh['a'=2,'b'=4] {'b'}" with sub-axes 'b':(2)2 and device_ids=(...). `device_count` is used for "{}" and bounds
/// every id. Throws ParseError (line 1).
ReplicaGroups read_replica_groups(std::string_view text, std::int32_t device_count);

/// "{{0,1},{1,0}}" of source_target_pairs.
std::vector<std::pair<std::int32_t, std::int32_t>> read_source_target_pairs(std::string_view text,
                                                                            std::int32_t device_count);

}  // namespace aoizora::ir
