#include "aoizora/planner/bound.h"

#include <algorithm>
#include <boost/dynamic_bitset.hpp>
#include <cstdint>
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

/// The nodes of one block and which of its other nodes each needs.
struct Block {
  std::vector<const prediction::Node*> nodes;
  std::vector<std::vector<std::size_t>> needs;
  std::vector<ranking::Pattern> patterns;
  std::vector<std::ptrdiff_t> pattern_of;  ///< by node; -1 for compute, and for what is not known well enough to count
  double layers = 1;

  double runs(std::size_t node) const { return static_cast<double>(nodes[node]->trips) / layers; }
  /// Only of nodes that run once can one say that they are over before another begins.
  bool once(std::size_t node) const { return runs(node) == 1; }
  bool is_compute(std::size_t node) const { return nodes[node]->kind == prediction::NodeKind::compute; }
  bool waits_for(std::size_t node) const { return pattern_of[node] >= 0 && never_hidden(nodes[node]->collective); }
};

Block block_of(const prediction::PredictionGraph& graph, std::span<const candidates::MeshAxis> mesh) {
  const auto is_axis = [&](const std::string& name) {
    return std::any_of(mesh.begin(), mesh.end(), [&](const auto& axis) { return axis.name == name; });
  };
  Block block;
  block.layers = static_cast<double>(graph.proxy_layers);
  std::vector<std::ptrdiff_t> place(graph.nodes.size(), -1);
  std::map<std::pair<CollectiveKind, std::vector<std::string>>, std::size_t> known;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const prediction::Node& node = graph.nodes[n];
    if (!node.in_block) continue;
    place[n] = static_cast<std::ptrdiff_t>(block.nodes.size());
    block.nodes.push_back(&node);
    block.needs.emplace_back();
    for (const std::int32_t needed : node.needs) {
      if (needed >= 0 && static_cast<std::size_t>(needed) < n && place[needed] >= 0)
        block.needs.back().push_back(static_cast<std::size_t>(place[needed]));
    }
    // Between which devices a permute goes, and what a part of an axis groups, is for the compiler to choose.
    const bool counts = node.kind != prediction::NodeKind::compute && node.collective != CollectiveKind::permute &&
                        std::all_of(node.mesh_axes.begin(), node.mesh_axes.end(), is_axis);
    block.pattern_of.push_back(-1);
    if (!counts) continue;
    const auto [at, fresh] = known.try_emplace({node.collective, node.mesh_axes}, block.patterns.size());
    if (fresh) block.patterns.push_back({node.collective, placement::groups_along(mesh, node.mesh_axes), {}});
    block.pattern_of.back() = static_cast<std::ptrdiff_t>(at->second);
  }
  return block;
}

using NodeSet = boost::dynamic_bitset<>;

/// Collectives that may run beside compute, and what cannot: it is over before any of them starts, or starts after the
/// last is over.
struct Passage {
  std::vector<std::size_t> collectives;
  std::vector<std::size_t> waited_for;  ///< of what cannot, the collectives
  double compute_seconds = 0;
};

/// All passages of a block, of collectives that need what the iteration before made: others, gathers of weights, may
/// start while that one still runs.
std::vector<Passage> passages(const Block& block, const topology::Hardware& hardware) {
  constexpr std::size_t most_nodes = 1024, most_collectives = 64;  // of a crafted program; without, the bound is lower
  const std::size_t count = block.nodes.size();
  if (count > most_nodes) return {};
  std::vector<NodeSet> before(count, NodeSet(count)), after(count, NodeSet(count));
  for (std::size_t n = 0; n < count; ++n) {
    for (const std::size_t needed : block.needs[n]) {
      before[n] |= before[needed];
      before[n].set(needed);
    }
  }
  for (std::size_t n = count; n-- > 0;) {
    for (const std::size_t needed : block.needs[n]) {
      after[needed] |= after[n];
      after[needed].set(n);
    }
  }
  std::vector<std::size_t> hidden;
  for (std::size_t n = 0; n < count; ++n) {
    if (block.pattern_of[n] >= 0 && !block.waits_for(n) && block.nodes[n]->needs_carry && block.once(n))
      hidden.push_back(n);
  }
  if (hidden.size() > most_collectives) return {};
  std::vector<Passage> found;
  std::set<std::pair<NodeSet, NodeSet>> seen;
  for (std::size_t a = 0; a < hidden.size(); ++a) {
    for (std::size_t b = a; b < hidden.size(); ++b) {
      const NodeSet first = before[hidden[a]] & before[hidden[b]], last = after[hidden[a]] & after[hidden[b]];
      if (!seen.emplace(first, last).second) continue;
      Passage passage;
      for (const std::size_t n : hidden) {
        if (first.is_subset_of(before[n]) && last.is_subset_of(after[n])) passage.collectives.push_back(n);
      }
      for (std::size_t n = 0; n < count; ++n) {
        if (!block.once(n) || (!first.test(n) && !last.test(n))) continue;
        if (block.is_compute(n)) passage.compute_seconds += prediction::compute_seconds(*block.nodes[n], hardware);
        if (block.waits_for(n)) passage.waited_for.push_back(n);
      }
      found.push_back(std::move(passage));
    }
  }
  return found;
}

/// The bound under one placement, but for compute.
BlockBound under(const Block& block, const std::vector<Passage>& passages, const placement::Placement& placement,
                 const ranking::Network& network) {
  std::vector<ranking::UnitCost> units;
  for (const ranking::Pattern& pattern : block.patterns)
    units.push_back(ranking::unit_cost(pattern, placement.devices, network));
  const auto unit = [&](std::size_t n) -> const ranking::UnitCost& { return units[block.pattern_of[n]]; };
  const auto price = [&](std::size_t n) {
    return unit(n).fixed_seconds + block.nodes[n]->payload_bytes * unit(n).seconds_per_byte;
  };
  std::vector<double> busy(network.slice->links.size());
  const auto occupy = [&](std::size_t n) {
    for (const ranking::LinkUse& use : unit(n).links)
      busy[static_cast<std::size_t>(use.link)] +=
          block.runs(n) * block.nodes[n]->payload_bytes * unit(n).seconds_per_byte * use.share;
  };
  const auto busiest = [&] { return busy.empty() ? 0.0 : *std::max_element(busy.begin(), busy.end()); };
  BlockBound bound;
  for (std::size_t n = 0; n < block.nodes.size(); ++n) {
    if (block.pattern_of[n] < 0) continue;
    occupy(n);
    if (block.waits_for(n)) bound.synchronous_seconds += block.runs(n) * price(n);
  }
  bound.busiest_seconds = busiest();
  for (const Passage& passage : passages) {
    double outside = passage.compute_seconds, inside = 0;
    for (const std::size_t n : passage.waited_for) outside += price(n);
    std::fill(busy.begin(), busy.end(), 0.0);
    for (const std::size_t n : passage.collectives) {
      occupy(n);
      inside = std::max(inside, price(n));
    }
    bound.passage_seconds = std::max(bound.passage_seconds, outside + std::max(inside, busiest()));
  }
  return bound;
}

}  // namespace

BlockBound block_bound(const prediction::PredictionGraph& graph, std::span<const candidates::MeshAxis> mesh,
                       const topology::Slice& slice) {
  BlockBound best;
  if (graph.proxy_layers < 1) return best;
  const Block block = block_of(graph, mesh);
  for (std::size_t n = 0; n < block.nodes.size(); ++n) {
    if (block.is_compute(n))
      best.compute_seconds += block.runs(n) * prediction::compute_seconds(*block.nodes[n], slice.hardware);
  }
  best.seconds = best.compute_seconds;
  placement::PlacementOptions options;
  std::set<std::string> active;
  for (std::size_t n = 0; n < block.nodes.size(); ++n) {
    if (block.pattern_of[n] >= 0) active.insert(block.nodes[n]->mesh_axes.begin(), block.nodes[n]->mesh_axes.end());
  }
  if (active.empty()) return best;
  options.active_axes.assign(active.begin(), active.end());
  const std::vector<Passage> through = passages(block, slice.hardware);
  const ranking::Network network(slice);
  bool first = true;
  for (const auto& placement : placement::distinct_axis_orders(mesh, slice, options).placements) {
    BlockBound bound = under(block, through, placement, network);
    bound.compute_seconds = best.compute_seconds;
    bound.seconds =
        std::max({bound.compute_seconds + bound.synchronous_seconds, bound.busiest_seconds, bound.passage_seconds});
    if (first || bound.seconds < best.seconds) best = bound;
    first = false;
  }
  return best;
}

}  // namespace aoizora::planner
