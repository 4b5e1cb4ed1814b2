#pragma once
// Collectives as transfers with dependencies (docs/simulation.md). Inside this room.
#include <span>

#include "aoizora/ranking/psi.h"
#include "aoizora/simulation/network.h"

namespace aoizora::simulation {

/// The transfers of a collective, all groups, for one byte of payload. Bytes and limits are counted ones: divided by
/// the kind's rate_fraction. Throws InvalidRequest where a rank has no device, a group names a device twice, or the
/// transfers are too many.
Graph expand(const ranking::Pattern& pattern, std::span<const topology::DeviceId> devices, Lanes& lanes);

/// The device sets and pairs that `expand` reads, in an order of their own: two collectives with one key have the same
/// transfers, whatever the ranks.
std::vector<std::int32_t> physical_key(const ranking::Pattern& pattern, std::span<const topology::DeviceId> devices);

}  // namespace aoizora::simulation
