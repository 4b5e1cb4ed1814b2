#include "aoizora/simulation/expansion.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "aoizora/errors.h"

namespace aoizora::simulation {
namespace {

using topology::CollectiveKind;
using topology::DeviceId;
using topology::LinkId;

constexpr std::int64_t kMostTransfers = std::int64_t{1} << 22;

void check_count(std::int64_t transfers) {
  if (transfers <= kMostTransfers) return;
  throw InvalidRequest("one collective would take " + std::to_string(transfers) + " transfers; at most " +
                       std::to_string(kMostTransfers) + " are simulated: use smaller groups or a smaller slice");
}

/// One block on one edge.
struct Transfer {
  DeviceId from = 0;
  DeviceId to = 0;
  double bytes = 0;  ///< for one byte of payload
  int phase = 0;
  int edge = 0;
};

/// A transfer that waits for no other of its phase.
struct Opening {
  std::int32_t transfer = 0;
  int part = 0;
  DeviceId from = 0;
};

/// The all-gather of one group.
struct Gather {
  std::vector<Transfer> transfers;
  std::vector<Wait> waits;
  std::vector<Opening> openings;  ///< of the first phase
  int edges = 0;
  int parts = 0;
};

/// Which way, how much of the payload.
struct Round {
  std::size_t steps = 0;
  bool last_is_half = false;
};

/// Writes one part of a gather (docs/simulation.md, "Transfers of an all-gather"): its phases one after the other.
class Part {
 public:
  Part(Gather& gather, std::size_t devices)
      : gather_(gather), part_(gather.parts++), arrived_(devices), arriving_(devices) {}

  void next_phase() {
    std::swap(arrived_, arriving_);
    for (auto& list : arriving_) list.clear();
    ++phase_;
  }

  void line(std::span<const DeviceId> members, double block) {
    const std::vector<DeviceId> back(members.rbegin(), members.rend());
    one_way_line(members, block);
    one_way_line(back, block);
  }

  void ring(std::span<const DeviceId> cycle, double block, int directions) {
    const std::size_t m = cycle.size();
    if (m < 3) return line(cycle, block);
    const Round round = directions == 1 ? Round{m - 1, false} : Round{m / 2, m % 2 == 0};
    one_way_ring(cycle, block, round);
    if (directions == 1) return;
    const std::vector<DeviceId> back(cycle.rbegin(), cycle.rend());
    one_way_ring(back, block, round);
  }

 private:
  std::int32_t add(DeviceId from, DeviceId to, double bytes, int edge) {
    gather_.transfers.push_back({from, to, bytes, phase_, edge});
    check_count(static_cast<std::int64_t>(gather_.transfers.size()));
    return static_cast<std::int32_t>(gather_.transfers.size()) - 1;
  }
  void wait(std::int32_t a, std::int32_t b) { gather_.waits.push_back({a, b}); }
  void open(std::int32_t transfer, DeviceId from) {
    if (phase_ == 0) gather_.openings.push_back({transfer, part_, from});
    for (const std::int32_t before : arrived_[from]) wait(transfer, before);
  }
  void close(std::int32_t transfer, DeviceId to) { arriving_[to].push_back(transfer); }

  /// The edge k -> k+1 carries the blocks of k, k-1, ..., 0.
  void one_way_line(std::span<const DeviceId> members, double block) {
    std::int32_t edge_before = 0;  // first transfer of the edge k-1 -> k
    for (std::size_t k = 0; k + 1 < members.size(); ++k) {
      const int edge = gather_.edges++;
      const auto first = static_cast<std::int32_t>(gather_.transfers.size());
      for (std::size_t j = 0; j <= k; ++j) {
        const std::int32_t id = add(members[k], members[k + 1], block, edge);
        if (j == 0) {
          open(id, members[k]);
        } else {
          wait(id, id - 1);
          wait(id, edge_before + static_cast<std::int32_t>(j) - 1);
        }
      }
      close(static_cast<std::int32_t>(gather_.transfers.size()) - 1, members[k + 1]);
      edge_before = first;
    }
  }

  /// In step j each edge k -> k+1 carries the block that came to k in the step before.
  void one_way_ring(std::span<const DeviceId> cycle, double block, const Round& round) {
    const std::size_t m = cycle.size();
    const int edge = gather_.edges;
    gather_.edges += static_cast<int>(m);
    for (std::size_t step = 0; step < round.steps; ++step) {
      const bool last = step + 1 == round.steps;
      const double bytes = last && round.last_is_half ? block / 2 : block;
      const auto before = static_cast<std::int32_t>(gather_.transfers.size() - m);
      for (std::size_t k = 0; k < m; ++k) {
        const std::int32_t id = add(cycle[k], cycle[(k + 1) % m], bytes, edge + static_cast<int>(k));
        if (step == 0) {
          open(id, cycle[k]);
        } else {
          wait(id, before + static_cast<std::int32_t>(k));
          wait(id, before + static_cast<std::int32_t>((k + m - 1) % m));
        }
        if (last) close(id, cycle[(k + 1) % m]);
      }
    }
  }

  Gather& gather_;
  int part_ = 0;
  int phase_ = 0;
  std::vector<std::vector<std::int32_t>> arrived_,
      arriving_;  ///< last transfers into each device: phase before, this one
};

/// One dimension along which a group stretches: its coordinates in line order.
struct Extent {
  std::size_t dimension = 0;
  std::vector<int> at;
  bool ring = false;
};

/// Coordinates of a device, the core last.
int coordinate(const topology::Slice& slice, DeviceId device, std::size_t dimension) {
  const topology::Device& one = slice.devices[device];
  return dimension < slice.dims.size() ? one.coordinates[dimension] : one.core;
}

Extent line_order(const topology::Slice& slice, std::size_t dimension, std::vector<int> ascending) {
  Extent extent{dimension, std::move(ascending), false};
  if (dimension >= slice.dims.size() || !slice.is_ring(static_cast<int>(dimension))) return extent;
  std::vector<int>& at = extent.at;
  const int size = slice.dims[dimension];
  const std::size_t n = at.size();
  int largest = 0;
  std::size_t start = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const int gap = k + 1 == n ? at[0] + size - at[k] : at[k + 1] - at[k];
    if (gap > largest) {
      largest = gap;
      start = (k + 1) % n;
    }
  }
  extent.ring = n > 2 && 2 * largest <= size;
  std::rotate(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(start), at.end());
  return extent;
}

/// A group as a grid of devices: grid[i0][i1]... in line order, flattened with the last extent fastest.
struct Grid {
  std::vector<Extent> extents;
  std::vector<DeviceId> devices;
  bool is_product = false;

  std::size_t stride(std::size_t extent) const {
    std::size_t result = 1;
    for (std::size_t e = extent + 1; e < extents.size(); ++e) result *= extents[e].at.size();
    return result;
  }
};

Grid grid_of(const topology::Slice& slice, std::span<const DeviceId> group) {
  Grid grid;
  std::size_t volume = 1;
  for (std::size_t d = 0; d <= slice.dims.size(); ++d) {
    std::vector<int> values;
    for (const DeviceId device : group) values.push_back(coordinate(slice, device, d));
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    if (values.size() < 2) continue;
    volume *= values.size();
    grid.extents.push_back(line_order(slice, d, std::move(values)));
  }
  grid.is_product = volume == group.size();
  if (!grid.is_product) return grid;
  grid.devices.resize(volume);
  for (const DeviceId device : group) {
    std::size_t index = 0;
    for (const Extent& extent : grid.extents) {
      const auto found = std::find(extent.at.begin(), extent.at.end(), coordinate(slice, device, extent.dimension));
      index = index * extent.at.size() + static_cast<std::size_t>(found - extent.at.begin());
    }
    grid.devices[index] = device;
  }
  return grid;
}

using Cycles = std::vector<std::vector<DeviceId>>;

/// Hamiltonian cycles of a planar grid.
Cycles combs(const Grid& grid) {
  Cycles cycles;
  for (std::size_t rows = 0; rows < 2; ++rows) {
    const std::size_t columns = 1 - rows;
    const std::size_t height = grid.extents[rows].at.size(), width = grid.extents[columns].at.size();
    if (height % 2 == 1) continue;
    const std::size_t down = grid.stride(rows), across = grid.stride(columns);
    for (int mirrored = 0; mirrored < 2; ++mirrored) {
      const auto device = [&](std::size_t r, std::size_t c) {
        return grid.devices[r * down + (mirrored ? width - 1 - c : c) * across];
      };
      std::vector<DeviceId> cycle;
      for (std::size_t r = 0; r < height; ++r) {
        for (std::size_t c = 1; c < width; ++c) cycle.push_back(device(r, r % 2 == 0 ? c : width - c));
      }
      for (std::size_t r = 0; r < height; ++r) cycle.push_back(device(height - 1 - r, 0));
      cycles.push_back(std::move(cycle));
      if (height == 2 || width == 2) return cycles;
    }
  }
  return cycles;
}

/// Orders of the extents.
std::vector<std::vector<std::size_t>> orders_of(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::vector<std::size_t>> result;
  if (count <= 4) {
    do result.push_back(order);
    while (std::next_permutation(order.begin(), order.end()));
    return result;
  }
  for (std::size_t k = 0; k < count; ++k) {
    result.push_back(order);
    std::rotate(order.begin(), order.begin() + 1, order.end());
  }
  return result;
}

/// A closed tour over devices in no pattern.
class Tour {
 public:
  Tour(std::span<const DeviceId> sorted_group, Lanes& lanes) : lanes_(lanes) {
    const auto n = static_cast<std::int64_t>(sorted_group.size());
    check_count(n * (n - 1));
    std::vector<DeviceId> left(sorted_group.begin() + 1, sorted_group.end());
    tour_.push_back(sorted_group.front());
    while (!left.empty()) {
      const auto nearest = std::min_element(left.begin(), left.end(), [&](DeviceId a, DeviceId b) {
        return hops(tour_.back(), a) < hops(tour_.back(), b);
      });
      tour_.push_back(*nearest);
      left.erase(nearest);
    }
    for (int pass = 0; pass < 8 && tour_.size() > 3; ++pass) {
      if (!two_opt()) break;
    }
  }
  const std::vector<DeviceId>& closed() const { return tour_; }
  std::vector<DeviceId> cut() const {
    const std::size_t n = tour_.size();
    std::size_t start = 0, longest = 0;
    for (std::size_t k = 0; k < n; ++k) {
      const std::size_t length = hops(tour_[k], tour_[(k + 1) % n]);
      if (k > 0 && length <= longest) continue;
      longest = length;
      start = (k + 1) % n;
    }
    std::vector<DeviceId> line = tour_;
    std::rotate(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(start), line.end());
    return line;
  }

 private:
  std::size_t hops(DeviceId from, DeviceId to) const { return lanes_.links(lanes_.between(from, to, 0)).size(); }
  bool two_opt() {
    bool changed = false;
    const std::size_t n = tour_.size();
    for (std::size_t i = 0; i + 2 < n; ++i) {
      for (std::size_t j = i + 2; j < n; ++j) {
        if ((j + 1) % n == i) continue;
        const DeviceId a = tour_[i], b = tour_[i + 1], c = tour_[j], d = tour_[(j + 1) % n];
        if (hops(a, c) + hops(b, d) >= hops(a, b) + hops(c, d)) continue;
        std::reverse(tour_.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                     tour_.begin() + static_cast<std::ptrdiff_t>(j) + 1);
        changed = true;
      }
    }
    return changed;
  }

  Lanes& lanes_;
  std::vector<DeviceId> tour_;
};

/// Expands groups of one kind of collective.
class Expander {
 public:
  Expander(CollectiveKind kind, Lanes& lanes)
      : lanes_(lanes), slice_(lanes.slice()), rate_(slice_.hardware.collectives.at(kind)) {
    limit_ = rate_.flow_bytes_per_second.value / rate_.rate_fraction.value;
    graph_.alpha_seconds = rate_.alpha_seconds.value;
  }

  std::int32_t transfer(DeviceId from, DeviceId to, double bytes) {
    const LaneId lane = lanes_.between(from, to, limit_);
    return push(lane, bytes, static_cast<double>(lanes_.links(lane).size()));
  }

  void add_pairs(std::span<const std::pair<DeviceId, DeviceId>> pairs) {
    for (const auto& [from, to] : pairs) {
      if (from != to) transfer(from, to, 1.0);
    }
  }

  void add_exchange(std::span<const DeviceId> group) {
    const auto n = static_cast<std::int64_t>(group.size());
    check_count(static_cast<std::int64_t>(graph_.size()) + n * (n - 1));
    for (const DeviceId from : group) {
      for (const DeviceId to : group) {
        if (from != to) transfer(from, to, 1.0 / static_cast<double>(n));
      }
    }
  }

  void add_broadcast(std::span<const DeviceId> group) {
    std::vector<std::pair<LinkId, std::size_t>> tree;  // link, depth
    for (const DeviceId to : group) {
      std::size_t depth = 0;
      for (const LinkId link : lanes_.links(lanes_.between(group.front(), to, limit_)))
        tree.emplace_back(link, ++depth);
      check_count(static_cast<std::int64_t>(graph_.size() + tree.size()));
    }
    std::sort(tree.begin(), tree.end());
    tree.erase(std::unique(tree.begin(), tree.end()), tree.end());
    for (const auto& [link, depth] : tree) push(lanes_.over(link, limit_), 1.0, static_cast<double>(depth));
  }

  void add_gather(const Gather& gather) {
    const std::int32_t first = append(gather, false);
    for (const Wait& wait : gather.waits) waits_.push_back({first + wait.a, first + wait.b});
  }

  void add_scatter(const Gather& gather) {
    const std::int32_t first = append(gather, true);
    for (const Wait& wait : gather.waits) waits_.push_back({first + wait.b, first + wait.a});
  }

  void add_reduce(const Gather& gather) {
    const auto scatter = static_cast<std::int32_t>(graph_.size());
    add_scatter(gather);
    const auto second = static_cast<std::int32_t>(graph_.size());
    add_gather(gather);
    // What comes last into a device on each edge of the scatter is the reverse of what it sends first in the gather.
    std::vector<Opening> openings = gather.openings;
    std::stable_sort(openings.begin(), openings.end(), [](const Opening& a, const Opening& b) {
      return std::pair(a.part, a.from) < std::pair(b.part, b.from);
    });
    for (std::size_t i = 0, end = 0; i < openings.size(); i = end) {
      while (end < openings.size() && openings[end].part == openings[i].part && openings[end].from == openings[i].from)
        ++end;
      for (std::size_t a = i; a < end; ++a) {
        for (std::size_t b = i; b < end; ++b)
          waits_.push_back({second + openings[a].transfer, scatter + openings[b].transfer});
      }
    }
  }

  /// The way the group runs its all-gather (docs/simulation.md).
  Gather gather(std::span<const DeviceId> sorted_group) {
    const Grid grid = grid_of(slice_, sorted_group);
    const int directions = static_cast<int>(rate_.ring_directions.value);
    const bool planar = grid.is_product && grid.extents.size() == 2 && grid.extents[1].dimension < slice_.dims.size();
    const Cycles cycles = planar ? combs(grid) : Cycles{};
    if (grid.is_product && grid.extents.size() == 1) return by_dimension(grid, directions == 1 ? 1 : 2);
    if (directions == 0 && grid.is_product) {
      return cycles.empty() ? by_dimension(grid, 2) : sooner(by_cycles(cycles, 2), by_dimension(grid, 2));
    }
    if (!cycles.empty()) {
      Gather best = by_cycles(std::span(cycles).first(1), directions);
      for (std::size_t k = 1; k < cycles.size(); ++k)
        best = sooner(std::move(best), by_cycles(std::span(cycles).subspan(k, 1), directions));
      return best;
    }
    const Tour tour(sorted_group, lanes_);
    if (sorted_group.size() < 3) return by_line(tour.cut());
    const Cycles closed{tour.closed()};
    if (directions > 0) return by_cycles(closed, directions);
    return sooner(by_cycles(closed, 2), by_line(tour.cut()));
  }

  Graph finish() {
    link(graph_, waits_);
    return std::move(graph_);
  }

 private:
  std::int32_t push(LaneId lane, double bytes, double hops) {
    check_count(static_cast<std::int64_t>(graph_.size()) + 1);
    graph_.lane.push_back(lane);
    graph_.bytes.push_back(bytes / rate_.rate_fraction.value);
    graph_.latency_seconds.push_back(hops * slice_.hardware.hop_seconds.value);
    return static_cast<std::int32_t>(graph_.size()) - 1;
  }

  std::int32_t append(const Gather& gather, bool exchanged) {
    const auto first = static_cast<std::int32_t>(graph_.size());
    for (const Transfer& one : gather.transfers)
      exchanged ? transfer(one.to, one.from, one.bytes) : transfer(one.from, one.to, one.bytes);
    return first;
  }

  Gather by_cycles(std::span<const std::vector<DeviceId>> cycles, int directions) const {
    Gather result;
    const double block = 1.0 / static_cast<double>(cycles.front().size() * cycles.size());
    for (const auto& cycle : cycles) Part(result, slice_.devices.size()).ring(cycle, block, directions);
    return result;
  }

  Gather by_line(std::span<const DeviceId> line) const {
    Gather result;
    Part(result, slice_.devices.size()).line(line, 1.0 / static_cast<double>(line.size()));
    return result;
  }

  Gather by_dimension(const Grid& grid, int directions) const {
    Gather result;
    const auto orders = orders_of(grid.extents.size());
    for (const auto& order : orders) {
      Part part(result, slice_.devices.size());
      double block = 1.0 / static_cast<double>(orders.size() * grid.devices.size());
      for (std::size_t phase = 0; phase < order.size(); ++phase) {
        if (phase > 0) part.next_phase();
        const Extent& extent = grid.extents[order[phase]];
        const std::size_t size = extent.at.size(), stride = grid.stride(order[phase]);
        std::vector<DeviceId> line(size);
        for (std::size_t start = 0; start < grid.devices.size(); ++start) {
          if (start / stride % size != 0) continue;
          for (std::size_t k = 0; k < size; ++k) line[k] = grid.devices[start + k * stride];
          extent.ring ? part.ring(line, block, directions) : part.line(line, block);
        }
        block *= static_cast<double>(size);
      }
    }
    return result;
  }

  /// What a way takes alone, without latency: phase by phase the fullest link, or the fullest edge at the flow limit.
  double lone_seconds(const Gather& gather) {
    int phases = 0;
    for (const Transfer& one : gather.transfers) phases = std::max(phases, one.phase + 1);
    std::vector<double> on_edge(gather.edges, 0.0), on_link(slice_.links.size());
    double seconds = 0;
    for (int phase = 0; phase < phases; ++phase) {
      std::fill(on_link.begin(), on_link.end(), 0.0);
      double longest = 0;
      for (const Transfer& one : gather.transfers) {
        if (one.phase != phase) continue;
        on_edge[one.edge] += one.bytes;
        if (limit_ > 0) longest = std::max(longest, on_edge[one.edge] / rate_.flow_bytes_per_second.value);
        for (const LinkId link : lanes_.links(lanes_.between(one.from, one.to, limit_))) {
          on_link[link] += one.bytes / rate_.rate_fraction.value / slice_.links[link].bandwidth_bytes_per_second;
          longest = std::max(longest, on_link[link]);
        }
      }
      seconds += longest;
    }
    return seconds;
  }

  Gather sooner(Gather first, Gather second) {
    const double a = lone_seconds(first), b = lone_seconds(second);
    return b < a * (1 - 1e-9) ? std::move(second) : std::move(first);
  }

  Lanes& lanes_;
  const topology::Slice& slice_;
  const topology::CollectiveRate& rate_;
  double limit_ = 0;
  Graph graph_;
  std::vector<Wait> waits_;
};

DeviceId device_of(std::int32_t rank, std::span<const DeviceId> devices) {
  if (rank >= 0 && static_cast<std::size_t>(rank) < devices.size()) return devices[rank];
  throw InvalidRequest("a collective names rank " + std::to_string(rank) + ", the placement has ranks 0 to " +
                       std::to_string(static_cast<std::int64_t>(devices.size()) - 1) +
                       "; the program and the placement must have the same number of devices");
}

/// Groups as devices; those of one member are left out. Sorted but for a broadcast, whose first member sends.
std::vector<std::vector<DeviceId>> device_groups(const ranking::Pattern& pattern, std::span<const DeviceId> devices) {
  std::vector<std::vector<DeviceId>> result;
  if (pattern.groups.empty()) result.emplace_back(devices.begin(), devices.end());
  for (const auto& ranks : pattern.groups) {
    result.emplace_back();
    for (const std::int32_t rank : ranks) result.back().push_back(device_of(rank, devices));
  }
  std::erase_if(result, [](const auto& group) { return group.size() < 2; });
  for (auto& group : result) {
    std::vector<DeviceId> sorted = group;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      throw InvalidRequest("a replica group names a device twice; its members must sit on different devices");
    if (pattern.kind != CollectiveKind::broadcast) group = std::move(sorted);
  }
  return result;
}

std::vector<std::pair<DeviceId, DeviceId>> device_pairs(const ranking::Pattern& pattern,
                                                        std::span<const DeviceId> devices) {
  std::vector<std::pair<DeviceId, DeviceId>> result;
  for (const auto& [source, target] : pattern.pairs)
    result.emplace_back(device_of(source, devices), device_of(target, devices));
  return result;
}

}  // namespace

Graph expand(const ranking::Pattern& pattern, std::span<const DeviceId> devices, Lanes& lanes) {
  Expander expander(pattern.kind, lanes);
  if (pattern.kind == CollectiveKind::permute) {
    auto pairs = device_pairs(pattern, devices);
    std::sort(pairs.begin(), pairs.end());
    expander.add_pairs(pairs);
    return expander.finish();
  }
  auto groups = device_groups(pattern, devices);
  std::sort(groups.begin(), groups.end());
  for (const auto& group : groups) {
    switch (pattern.kind) {
      case CollectiveKind::broadcast:
        expander.add_broadcast(group);
        break;
      case CollectiveKind::all_to_all:
      case CollectiveKind::ragged_all_to_all:
        expander.add_exchange(group);
        break;
      case CollectiveKind::reduce_scatter:
        expander.add_scatter(expander.gather(group));
        break;
      case CollectiveKind::all_reduce:
        expander.add_reduce(expander.gather(group));
        break;
      default:
        expander.add_gather(expander.gather(group));
    }
  }
  return expander.finish();
}

std::vector<std::int32_t> physical_key(const ranking::Pattern& pattern, std::span<const DeviceId> devices) {
  std::vector<std::int32_t> key{static_cast<std::int32_t>(pattern.kind)};
  if (pattern.kind == CollectiveKind::permute) {
    auto pairs = device_pairs(pattern, devices);
    std::sort(pairs.begin(), pairs.end());
    for (const auto& [from, to] : pairs) key.insert(key.end(), {from, to});
    return key;
  }
  auto groups = device_groups(pattern, devices);
  std::sort(groups.begin(), groups.end());
  for (const auto& group : groups) {
    key.push_back(-static_cast<std::int32_t>(group.size()));
    key.insert(key.end(), group.begin(), group.end());
  }
  return key;
}

}  // namespace aoizora::simulation
