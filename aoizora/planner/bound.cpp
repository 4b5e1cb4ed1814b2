#include "aoizora/planner/bound.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aoizora/placement/placement.h"
#include "aoizora/ranking/psi.h"

namespace aoizora::planner {
namespace {

using topology::CollectiveKind;

/// What the compiler puts on the core's own time: it has no asynchronous form of these in any recorded program.
bool never_hidden(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_to_all ||
         kind == CollectiveKind::reduce_scatter;
}

/// Collectives of one block of one kind over the same mesh axes: how many, and their bytes together.
struct Demand {
  ranking::Pattern pattern;
  double runs = 0;
  double bytes = 0;
};
using Demands = std::map<std::pair<CollectiveKind, std::vector<std::string>>, Demand>;

Demands demands(const prediction::PredictionGraph& graph, std::span<const candidates::MeshAxis> mesh) {
  const auto is_axis = [&](const std::string& name) {
    return std::any_of(mesh.begin(), mesh.end(), [&](const auto& axis) { return axis.name == name; });
  };
  Demands found;
  for (const prediction::Node& node : graph.nodes) {
    if (!node.in_block || node.kind == prediction::NodeKind::compute) continue;
    // Between which devices a permute goes, and what a part of an axis groups, is for the compiler to choose.
    if (node.collective == CollectiveKind::permute) continue;
    if (!std::all_of(node.mesh_axes.begin(), node.mesh_axes.end(), is_axis)) continue;
    Demand& demand = found[{node.collective, node.mesh_axes}];
    const double runs = static_cast<double>(node.trips) / static_cast<double>(graph.proxy_layers);
    demand.runs += runs;
    demand.bytes += runs * node.payload_bytes;
  }
  for (auto& [key, demand] : found) {
    demand.pattern.kind = key.first;
    demand.pattern.groups = placement::groups_along(mesh, key.second);
  }
  return found;
}

/// synchronous and busiest of one placement.
BlockBound under(const Demands& wanted, const placement::Placement& placement, const ranking::Network& network) {
  BlockBound bound;
  std::vector<double> busy(network.slice->links.size(), 0.0);
  for (const auto& [key, demand] : wanted) {
    const auto unit = ranking::unit_cost(demand.pattern, placement.devices, network);
    if (never_hidden(key.first))
      bound.synchronous_seconds += demand.runs * unit.fixed_seconds + demand.bytes * unit.seconds_per_byte;
    for (const ranking::LinkUse& use : unit.links)
      busy[static_cast<std::size_t>(use.link)] += demand.bytes * unit.seconds_per_byte * use.share;
  }
  if (!busy.empty()) bound.busiest_seconds = *std::max_element(busy.begin(), busy.end());
  return bound;
}

}  // namespace

BlockBound block_bound(const prediction::PredictionGraph& graph, std::span<const candidates::MeshAxis> mesh,
                       const topology::Slice& slice) {
  BlockBound best;
  if (graph.proxy_layers < 1) return best;
  for (const prediction::Node& node : graph.nodes) {
    if (node.in_block && node.kind == prediction::NodeKind::compute) {
      best.compute_seconds += prediction::compute_seconds(node, slice.hardware) * static_cast<double>(node.trips) /
                              static_cast<double>(graph.proxy_layers);
    }
  }
  best.seconds = best.compute_seconds;
  const Demands wanted = demands(graph, mesh);
  placement::PlacementOptions options;
  std::set<std::string> active;
  for (const auto& [key, demand] : wanted) active.insert(key.second.begin(), key.second.end());
  if (active.empty()) return best;
  options.active_axes.assign(active.begin(), active.end());
  const ranking::Network network(slice);
  bool first = true;
  for (const auto& placement : placement::distinct_axis_orders(mesh, slice, options).placements) {
    BlockBound bound = under(wanted, placement, network);
    bound.compute_seconds = best.compute_seconds;
    bound.seconds = std::max(bound.compute_seconds + bound.synchronous_seconds, bound.busiest_seconds);
    if (first || bound.seconds < best.seconds) best = bound;
    first = false;
  }
  return best;
}

}  // namespace aoizora::planner
