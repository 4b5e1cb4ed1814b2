#include "aoizora/topology/collective_kind.h"

namespace aoizora::topology {

std::string_view name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather:
      return "all-gather";
    case CollectiveKind::reduce_scatter:
      return "reduce-scatter";
    case CollectiveKind::all_reduce:
      return "all-reduce";
    case CollectiveKind::all_to_all:
      return "all-to-all";
    case CollectiveKind::ragged_all_to_all:
      return "ragged-all-to-all";
    case CollectiveKind::permute:
      return "collective-permute";
    case CollectiveKind::broadcast:
      return "collective-broadcast";
  }
  return "unknown";
}

}  // namespace aoizora::topology
