#include "aoizora/ranking/psi.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <string>

#include "aoizora/errors.h"

namespace aoizora::ranking {
namespace {

using topology::CollectiveKind;
using topology::DeviceId;
using topology::LinkId;
using topology::LinkKind;

/// What one step of an embedding puts on links, for one byte of payload. A link may appear more than once.
struct Phase {
  std::vector<LinkLoad> loads;
  double largest_flow = 0;  ///< bytes of the largest transfer between two neighbours of the embedding
};

/// How one group runs its collective.
struct Embedding {
  std::vector<Phase> phases;  ///< one after the other
  double latency_hops = 0;    ///< hops on the longest chain of dependent transfers
  double stride = 1;          ///< the paper's span: coordinates crossed from one member to the next
};

/// Sums loads a link and remembers which links were touched.
class Accumulator {
 public:
  explicit Accumulator(std::size_t links) : bytes_(links, 0.0) {}
  void add(LinkId link, double bytes) {
    if (bytes_[link] == 0.0) touched_.push_back(link);
    bytes_[link] += bytes;
  }
  double bytes(LinkId link) const { return bytes_[link]; }
  std::vector<LinkId>& touched() { return touched_; }
  void clear() {
    for (const LinkId link : touched_) bytes_[link] = 0.0;
    touched_.clear();
  }

 private:
  std::vector<double> bytes_;
  std::vector<LinkId> touched_;
};

/// Rates of one kind of collective on a network.
struct Rates {
  const Network& network;
  const topology::CollectiveRate& calibration;

  double seconds(LinkId link, double bytes) const {
    return bytes / (network.slice->links[link].bandwidth_bytes_per_second * calibration.rate_fraction.value);
  }
  double flow_seconds(double bytes) const {
    const double limit = calibration.flow_bytes_per_second.value;
    return limit > 0 ? bytes / limit : 0.0;
  }
};

const topology::CollectiveRate& calibration_of(const topology::Slice& slice, CollectiveKind kind) {
  const auto found = slice.hardware.collectives.find(kind);
  if (found == slice.hardware.collectives.end()) {
    throw InvalidRequest("slice " + slice.name + " has no calibration for " + std::string(topology::name(kind)) +
                         "; its descriptor must name every kind of collective");
  }
  return found->second;
}

/// Puts transfers on links.
struct Router {
  const Network& network;
  std::vector<LinkId> scratch;

  int hops(DeviceId from, DeviceId to) {
    scratch.clear();
    network.route(from, to, scratch);
    return static_cast<int>(scratch.size());
  }
  /// Returns the hops of the route.
  int transfer(DeviceId from, DeviceId to, double bytes, Phase& phase) {
    scratch.clear();
    network.route(from, to, scratch);
    for (const LinkId link : scratch) phase.loads.push_back({link, bytes});
    phase.largest_flow = std::max(phase.largest_flow, bytes);
    return static_cast<int>(scratch.size());
  }
};

/// All-gather along a line: link k -> k+1 carries the shards of the k+1 members behind it, the other direction the
/// rest. Each member holds `shard` bytes. Returns the largest number of hops between neighbours.
int gather_line(std::span<const DeviceId> line, double shard, Router& router, Phase& phase) {
  int hops = 0;
  const std::size_t n = line.size();
  for (std::size_t k = 0; k + 1 < n; ++k) {
    hops = std::max(hops, router.transfer(line[k], line[k + 1], static_cast<double>(k + 1) * shard, phase));
    hops = std::max(hops, router.transfer(line[k + 1], line[k], static_cast<double>(n - 1 - k) * shard, phase));
  }
  return hops;
}

/// All-gather around a ring: every directed edge carries (n-1)/2 shards where it is sent round both ways, (n-1) where
/// one way.
int gather_ring(std::span<const DeviceId> ring, double shard, int directions, Router& router, Phase& phase) {
  int hops = 0;
  const std::size_t n = ring.size();
  const double bytes = static_cast<double>(n - 1) * shard / directions;
  for (std::size_t k = 0; k < n; ++k) {
    const DeviceId next = ring[(k + 1) % n];
    hops = std::max(hops, router.transfer(ring[k], next, bytes, phase));
    if (directions == 2) hops = std::max(hops, router.transfer(next, ring[k], bytes, phase));
  }
  return hops;
}

double line_steps(std::size_t n) { return static_cast<double>(n - 1); }
double ring_steps(std::size_t n, int directions) {
  return directions == 2 ? static_cast<double>(n / 2) : static_cast<double>(n - 1);
}

/// One dimension of a product set: its coordinates in the order of the line, and whether they close a ring.
struct Extent {
  int dimension = 0;
  std::vector<int> coordinates;
  bool ring = false;
  double stride = 1;
};

/// A wrapped dimension is cut at its largest gap; it stays a ring where no gap is longer than half the way round, so
/// that every edge takes its own arc.
Extent order_extent(int dimension, std::vector<int> coordinates, int size, bool wraps) {
  Extent extent{dimension, std::move(coordinates), false, 1};
  std::vector<int>& c = extent.coordinates;
  const std::size_t n = c.size();
  int span = c.back() - c.front();
  if (wraps && n > 1) {
    std::size_t cut = 0;
    int largest = 0;
    for (std::size_t k = 0; k < n; ++k) {
      const int gap = k + 1 < n ? c[k + 1] - c[k] : c.front() + size - c.back();
      if (gap > largest) {
        largest = gap;
        cut = (k + 1) % n;
      }
    }
    extent.ring = n > 2 && 2 * largest <= size;
    span = size - largest;
    std::rotate(c.begin(), c.begin() + static_cast<std::ptrdiff_t>(cut), c.end());
  }
  if (n > 1) extent.stride = static_cast<double>(span) / static_cast<double>(n - 1);
  return extent;
}

/// The group's devices as a product of coordinate sets, if they are one. Dimensions with one coordinate are left out.
struct ProductSet {
  bool is_product = false;
  std::vector<Extent> extents;
  std::vector<int> fixed;  ///< coordinates of one member
};

ProductSet product_set(std::span<const DeviceId> group, const Network& network) {
  const int all = network.dimensions + 1;
  ProductSet set;
  set.fixed.assign(network.coordinates.begin() + group.front() * all,
                   network.coordinates.begin() + (group.front() + 1) * all);
  std::size_t volume = 1;
  for (int d = 0; d < all; ++d) {
    std::vector<int> values;
    for (const DeviceId device : group) values.push_back(network.coordinates[device * all + d]);
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    volume *= values.size();
    if (values.size() < 2) continue;
    const bool wraps = d < network.dimensions && network.slice->is_ring(d);
    set.extents.push_back(order_extent(d, std::move(values), network.extents[d], wraps));
  }
  set.is_product = volume == group.size();
  return set;
}

DeviceId device_at(std::span<const int> coordinates, const Network& network) {
  DeviceId id = 0;
  for (std::size_t d = 0; d < network.extents.size(); ++d) id = id * network.extents[d] + coordinates[d];
  return id;
}

/// Calls `visit` with the devices of every line of the set along extent `along`.
template <typename Visit>
void for_each_line(const ProductSet& set, std::size_t along, const Network& network, Visit visit) {
  std::vector<std::size_t> index(set.extents.size(), 0);
  std::vector<int> coordinates = set.fixed;
  std::vector<DeviceId> line(set.extents[along].coordinates.size());
  while (true) {
    for (std::size_t e = 0; e < set.extents.size(); ++e) {
      coordinates[set.extents[e].dimension] = set.extents[e].coordinates[index[e]];
    }
    for (std::size_t k = 0; k < line.size(); ++k) {
      coordinates[set.extents[along].dimension] = set.extents[along].coordinates[k];
      line[k] = device_at(coordinates, network);
    }
    visit(std::span<const DeviceId>(line));
    std::size_t e = 0;
    for (; e < index.size(); ++e) {
      if (e == along) continue;
      if (++index[e] < set.extents[e].coordinates.size()) break;
      index[e] = 0;
    }
    if (e == index.size()) return;
  }
}

/// Every order of up to four dimensions; the rotations of one order for more, whose factorial nobody waits for.
std::vector<std::vector<std::size_t>> dimension_orders(std::size_t count) {
  constexpr std::size_t all_orders_up_to = 4;
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::vector<std::size_t>> orders;
  if (count <= all_orders_up_to) {
    do orders.push_back(order);
    while (std::next_permutation(order.begin(), order.end()));
    return orders;
  }
  for (std::size_t k = 0; k < count; ++k, std::rotate(order.begin(), order.begin() + 1, order.end()))
    orders.push_back(order);
  return orders;
}

/// All-gather dimension by dimension. The payload is split over every order of the dimensions, so that each step keeps
/// the ports of all dimensions busy.
Embedding gather_by_dimension(const ProductSet& set, std::size_t members, int directions, Router& router) {
  const std::size_t count = set.extents.size();
  Embedding embedding;
  embedding.phases.resize(count);
  const std::vector<std::vector<std::size_t>> orders = dimension_orders(count);
  std::vector<int> hops(count, 0);
  for (const std::vector<std::size_t>& order : orders) {
    double shard = 1.0 / static_cast<double>(orders.size()) / static_cast<double>(members);
    for (std::size_t step = 0; step < count; ++step) {
      const Extent& extent = set.extents[order[step]];
      for_each_line(set, order[step], router.network, [&](std::span<const DeviceId> line) {
        const int longest = extent.ring ? gather_ring(line, shard, directions, router, embedding.phases[step])
                                        : gather_line(line, shard, router, embedding.phases[step]);
        hops[order[step]] = std::max(hops[order[step]], longest);
      });
      shard *= static_cast<double>(extent.coordinates.size());
    }
  }
  for (std::size_t e = 0; e < count; ++e) {
    const std::size_t n = set.extents[e].coordinates.size();
    embedding.latency_hops += hops[e] * (set.extents[e].ring ? ring_steps(n, directions) : line_steps(n));
  }
  return embedding;
}

/// Hamiltonian cycles of a grid: a spine along one edge, teeth over the rows (there must be an even number of them). Up
/// to four, one a side; the payload is split over them, so that no side of the grid is special.
std::vector<std::vector<DeviceId>> combs(const ProductSet& set, const Network& network) {
  std::vector<std::vector<DeviceId>> cycles;
  std::vector<int> coordinates = set.fixed;
  for (const std::size_t rows : {std::size_t{0}, std::size_t{1}}) {
    const Extent& row = set.extents[rows];
    const Extent& column = set.extents[1 - rows];
    const std::size_t height = row.coordinates.size();
    const std::size_t width = column.coordinates.size();
    if (height % 2 != 0) continue;
    for (const bool mirrored : {false, true}) {
      std::vector<DeviceId> cycle;
      const auto visit = [&](std::size_t r, std::size_t c) {
        coordinates[row.dimension] = row.coordinates[r];
        coordinates[column.dimension] = column.coordinates[mirrored ? width - 1 - c : c];
        cycle.push_back(device_at(coordinates, network));
      };
      for (std::size_t r = 0; r < height; ++r) {
        for (std::size_t k = 1; k < width; ++k) visit(r, r % 2 == 0 ? k : width - k);
      }
      for (std::size_t r = height; r-- > 0;) visit(r, 0);
      cycles.push_back(std::move(cycle));
      if (width == 2 || height == 2) return cycles;  // the rim is the only one
    }
  }
  return cycles;
}

/// One ring over the whole group, or several with a share of the payload each.
Embedding gather_by_cycles(std::span<const std::vector<DeviceId>> cycles, int directions, Router& router) {
  Embedding embedding;
  embedding.phases.resize(1);
  const double n = static_cast<double>(cycles.front().size());
  int hops = 0;
  for (const auto& cycle : cycles) {
    hops = std::max(hops, gather_ring(cycle, 1.0 / n / static_cast<double>(cycles.size()), directions, router,
                                      embedding.phases[0]));
  }
  embedding.latency_hops = hops * ring_steps(cycles.front().size(), directions);
  return embedding;
}

/// A short closed tour of any set of devices: nearest neighbour from the lowest id, then 2-opt. Not symmetric under
/// mirrors.
std::vector<DeviceId> short_tour(std::span<const DeviceId> sorted_group, Router& router) {
  std::vector<DeviceId> rest(sorted_group.begin(), sorted_group.end());
  std::vector<DeviceId> tour{rest.front()};
  rest.erase(rest.begin());
  while (!rest.empty()) {
    auto nearest = rest.begin();
    int least = std::numeric_limits<int>::max();
    for (auto it = rest.begin(); it != rest.end(); ++it) {
      const int hops = router.hops(tour.back(), *it);
      if (hops < least) {
        least = hops;
        nearest = it;
      }
    }
    tour.push_back(*nearest);
    rest.erase(nearest);
  }
  constexpr int passes = 8;
  const std::size_t n = tour.size();
  bool better = n > 3;
  for (int pass = 0; pass < passes && better; ++pass) {
    better = false;
    for (std::size_t i = 0; i + 2 < n; ++i) {
      for (std::size_t j = i + 2; j < n; ++j) {
        const DeviceId a = tour[i], b = tour[i + 1], c = tour[j], d = tour[(j + 1) % n];
        if (d == a) continue;
        if (router.hops(a, c) + router.hops(b, d) < router.hops(a, b) + router.hops(c, d)) {
          std::reverse(tour.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                       tour.begin() + static_cast<std::ptrdiff_t>(j) + 1);
          better = true;
        }
      }
    }
  }
  return tour;
}

Embedding gather_by_line(std::vector<DeviceId> tour, Router& router) {
  std::size_t cut = 0;
  int longest = -1;
  for (std::size_t k = 0; k < tour.size(); ++k) {
    const int hops = router.hops(tour[k], tour[(k + 1) % tour.size()]);
    if (hops > longest) {
      longest = hops;
      cut = (k + 1) % tour.size();
    }
  }
  std::rotate(tour.begin(), tour.begin() + static_cast<std::ptrdiff_t>(cut), tour.end());
  Embedding embedding;
  embedding.phases.resize(1);
  const int hops = gather_line(tour, 1.0 / static_cast<double>(tour.size()), router, embedding.phases[0]);
  embedding.latency_hops = hops * line_steps(tour.size());
  return embedding;
}

double phase_seconds(const Phase& phase, const Rates& rates, Accumulator& accumulator) {
  for (const LinkLoad& load : phase.loads) accumulator.add(load.link, load.bytes);
  double seconds = rates.flow_seconds(phase.largest_flow);
  for (const LinkId link : accumulator.touched())
    seconds = std::max(seconds, rates.seconds(link, accumulator.bytes(link)));
  accumulator.clear();
  return seconds;
}

double lone_seconds(const Embedding& embedding, const Rates& rates, Accumulator& accumulator) {
  double seconds = 0;
  for (const Phase& phase : embedding.phases) seconds += phase_seconds(phase, rates, accumulator);
  return seconds;
}

/// Of two embeddings the one that moves bytes sooner when the group is alone; a tie keeps the first.
Embedding faster(Embedding first, Embedding second, const Rates& rates, Accumulator& accumulator) {
  const double a = lone_seconds(first, rates, accumulator);
  const double b = lone_seconds(second, rates, accumulator);
  return b < a * (1 - 1e-9) ? std::move(second) : std::move(first);
}

double span_stride(const ProductSet& set) {
  double stride = 1;
  for (const Extent& extent : set.extents) stride = std::max(stride, extent.stride);
  return stride;
}

/// A group that spans several dimensions, by one ring: of the grid's cycles the one that is sooner when the group is
/// alone, so that no side of the grid is special; a closed tour where the set is no even grid.
Embedding gather_by_one_ring(const std::vector<std::vector<DeviceId>>& cycles, std::span<const DeviceId> sorted_group,
                             int directions, Router& router, const Rates& rates, Accumulator& accumulator) {
  if (cycles.empty()) {
    const std::vector<std::vector<DeviceId>> tour{short_tour(sorted_group, router)};
    return tour[0].size() > 2 ? gather_by_cycles(tour, directions, router) : gather_by_line(tour[0], router);
  }
  const std::span<const std::vector<DeviceId>> all(cycles);
  Embedding best = gather_by_cycles(all.first(1), directions, router);
  for (std::size_t k = 1; k < all.size(); ++k)
    best = faster(std::move(best), gather_by_cycles(all.subspan(k, 1), directions, router), rates, accumulator);
  return best;
}

/// The all-gather of one group. Only the set of devices counts: XLA embeds its own ring on it.
Embedding gather(std::span<const DeviceId> sorted_group, Router& router, const Rates& rates, Accumulator& accumulator) {
  const ProductSet set = product_set(sorted_group, router.network);
  const bool planar = set.is_product && set.extents.size() == 2 && set.extents[1].dimension < router.network.dimensions;
  const auto directions = static_cast<int>(rates.calibration.ring_directions.value);
  const auto cycles = planar ? combs(set, router.network) : std::vector<std::vector<DeviceId>>{};
  const bool line = set.is_product && set.extents.size() == 1 && !set.extents[0].ring;
  Embedding embedding;
  if (directions > 0 && !line) {
    const bool ring = set.is_product && set.extents.size() == 1;
    embedding = ring ? gather_by_dimension(set, sorted_group.size(), directions, router)
                     : gather_by_one_ring(cycles, sorted_group, directions, router, rates, accumulator);
  } else if (set.is_product) {
    embedding = gather_by_dimension(set, sorted_group.size(), 2, router);
    if (!cycles.empty())
      embedding = faster(gather_by_cycles(cycles, 2, router), std::move(embedding), rates, accumulator);
  } else {
    const std::vector<std::vector<DeviceId>> tour{short_tour(sorted_group, router)};
    embedding = gather_by_line(tour[0], router);
    if (tour[0].size() > 2)
      embedding = faster(gather_by_cycles(tour, 2, router), std::move(embedding), rates, accumulator);
  }
  embedding.stride = span_stride(set);
  return embedding;
}

/// RS is AG run backwards: the same transfers against the arrows, last phase first.
std::vector<Phase> backwards(const std::vector<Phase>& phases, const Network& network) {
  std::vector<Phase> result(phases.rbegin(), phases.rend());
  for (Phase& phase : result) {
    for (LinkLoad& load : phase.loads) load.link = network.reverse[load.link];
  }
  return result;
}

/// Every ordered pair over its route, 1/n of a device's operand each.
Embedding exchange_all(std::span<const DeviceId> group, Router& router) {
  Embedding embedding;
  embedding.phases.resize(1);
  int hops = 0;
  for (const DeviceId from : group) {
    for (const DeviceId to : group) {
      if (from == to) continue;
      hops = std::max(hops, router.transfer(from, to, 1.0 / static_cast<double>(group.size()), embedding.phases[0]));
    }
  }
  embedding.latency_hops = hops;
  embedding.stride = span_stride(product_set(group, router.network));
  return embedding;
}

/// From the group's first member over the union of its routes: a link carries the payload once.
Embedding spread(std::span<const DeviceId> group, Router& router) {
  Embedding embedding;
  Phase routes;
  int hops = 0;
  for (const DeviceId to : group) hops = std::max(hops, router.transfer(group.front(), to, 1.0, routes));
  std::sort(routes.loads.begin(), routes.loads.end(),
            [](const LinkLoad& a, const LinkLoad& b) { return a.link < b.link; });
  const auto same = [](const LinkLoad& a, const LinkLoad& b) { return a.link == b.link; };
  routes.loads.erase(std::unique(routes.loads.begin(), routes.loads.end(), same), routes.loads.end());
  embedding.phases.push_back(std::move(routes));
  embedding.latency_hops = hops;
  embedding.stride = std::max(1, hops);
  return embedding;
}

DeviceId device_of(std::int32_t rank, std::span<const DeviceId> devices) {
  if (rank < 0 || rank >= static_cast<std::int32_t>(devices.size())) {
    throw InvalidRequest("a collective names logical id " + std::to_string(rank) + ", but the placement has " +
                         std::to_string(devices.size()) +
                         " devices; compile for the same number of devices or name a larger slice");
  }
  return devices[rank];
}

std::vector<Embedding> embeddings(const PlacedPattern& pattern, const Network& network, const Rates& rates,
                                  Accumulator& accumulator) {
  Router router{network, {}};
  std::vector<Embedding> result;
  for (const auto& [from, to] : pattern.pairs) {
    Embedding flow;
    flow.phases.resize(1);
    flow.latency_hops = router.transfer(from, to, 1.0, flow.phases[0]);
    flow.stride = std::max(1.0, flow.latency_hops);
    result.push_back(std::move(flow));
  }
  for (const std::vector<DeviceId>& group : pattern.groups) {
    switch (pattern.kind) {
      case CollectiveKind::broadcast:
        result.push_back(spread(group, router));
        break;
      case CollectiveKind::all_to_all:
      case CollectiveKind::ragged_all_to_all:
        result.push_back(exchange_all(group, router));
        break;
      case CollectiveKind::reduce_scatter: {
        Embedding embedding = gather(group, router, rates, accumulator);
        embedding.phases = backwards(embedding.phases, network);
        result.push_back(std::move(embedding));
        break;
      }
      case CollectiveKind::all_reduce: {
        Embedding embedding = gather(group, router, rates, accumulator);
        std::vector<Phase> phases = backwards(embedding.phases, network);
        phases.insert(phases.end(), embedding.phases.begin(), embedding.phases.end());
        embedding.phases = std::move(phases);
        embedding.latency_hops *= 2;
        result.push_back(std::move(embedding));
        break;
      }
      default:
        result.push_back(gather(group, router, rates, accumulator));
    }
  }
  return result;
}

/// Links that are not ICI, by the cores they join.
using OtherLinks = std::map<std::array<int, 4>, LinkId>;

LinkId reversed_link(const topology::Slice& slice, const topology::Link& link, LinkId self, const OtherLinks& others) {
  const int dimensions = static_cast<int>(slice.dims.size());
  if (link.kind == LinkKind::ici) {
    return slice.outgoing[2 * (link.to_chip * dimensions + link.dimension) + (link.direction > 0)];
  }
  const auto back = others.find({link.to_chip, link.to_core, link.from_chip, link.from_core});
  return back == others.end() ? self : back->second;
}

}  // namespace

Network::Network(const topology::Slice& given)
    : slice(&given), dimensions(static_cast<int>(given.dims.size())), ici_only(given.cores_per_chip == 1) {
  for (const topology::Device& device : given.devices) {
    coordinates.insert(coordinates.end(), device.coordinates.begin(), device.coordinates.end());
    coordinates.push_back(device.core);
  }
  extents.assign(given.dims.begin(), given.dims.end());
  extents.push_back(given.cores_per_chip);
  OtherLinks others;
  for (LinkId id = 0; id < static_cast<LinkId>(given.links.size()); ++id) {
    const topology::Link& link = given.links[id];
    if (link.kind == LinkKind::ici) continue;
    ici_only = false;
    others[{link.from_chip, link.from_core, link.to_chip, link.to_core}] = id;
  }
  reverse.resize(given.links.size());
  for (LinkId id = 0; id < static_cast<LinkId>(given.links.size()); ++id)
    reverse[id] = reversed_link(given, given.links[id], id, others);
}

void Network::route(DeviceId from, DeviceId to, std::vector<LinkId>& links) const {
  if (!ici_only) {
    const std::vector<LinkId> path = slice->route(from, to);
    links.insert(links.end(), path.begin(), path.end());
    return;
  }
  std::int32_t chip = from;
  for (int d = 0; d < dimensions; ++d) {
    const int size = extents[d];
    int offset = coordinates[to * (dimensions + 1) + d] - coordinates[from * (dimensions + 1) + d];
    if (slice->is_ring(d)) {
      offset = (offset + size) % size;
      if (2 * offset > size) offset -= size;  // a tie goes up
    }
    for (int step = std::abs(offset); step > 0; --step) {
      const LinkId link = slice->outgoing[2 * (chip * dimensions + d) + (offset < 0)];
      links.push_back(link);
      chip = slice->links[link].to_chip;
    }
  }
}

PlacedPattern place(const Pattern& pattern, std::span<const DeviceId> devices) {
  PlacedPattern placed;
  placed.kind = pattern.kind;
  if (pattern.kind == CollectiveKind::permute) {
    for (const auto& [source, target] : pattern.pairs) {
      const DeviceId from = device_of(source, devices), to = device_of(target, devices);
      if (from != to) placed.pairs.emplace_back(from, to);
    }
    std::sort(placed.pairs.begin(), placed.pairs.end());
    return placed;
  }
  const auto add = [&](std::vector<DeviceId> group) {
    if (group.size() < 2) return;
    std::sort(group.begin() + (pattern.kind == CollectiveKind::broadcast ? 1 : 0), group.end());
    if (std::adjacent_find(group.begin(), group.end()) != group.end()) {
      throw InvalidRequest(
          "a replica group names one device twice; every member of a group must sit on a device of its own");
    }
    placed.groups.push_back(std::move(group));
  };
  if (pattern.groups.empty()) add({devices.begin(), devices.end()});
  for (const auto& ranks : pattern.groups) {
    std::vector<DeviceId> group;
    group.reserve(ranks.size());
    for (const std::int32_t rank : ranks) group.push_back(device_of(rank, devices));
    add(std::move(group));
  }
  std::sort(placed.groups.begin(), placed.groups.end());
  return placed;
}

UnitCost unit_cost(const PlacedPattern& pattern, const Network& network) {
  const topology::Slice& slice = *network.slice;
  const Rates rates{network, calibration_of(slice, pattern.kind)};
  Accumulator now(slice.links.size()), total(slice.links.size());
  const std::vector<Embedding> groups = embeddings(pattern, network, rates, now);

  UnitCost cost;
  if (groups.empty()) return cost;

  const double hop = slice.hardware.hop_seconds.value;
  const double alpha = rates.calibration.alpha_seconds.value;
  std::size_t phases = 0;
  double hops = 0;
  for (const Embedding& group : groups) {
    const double lone = lone_seconds(group, rates, now);
    phases = std::max(phases, group.phases.size());
    hops = std::max(hops, group.latency_hops);
    cost.lone_seconds_per_byte = std::max(cost.lone_seconds_per_byte, lone);
    cost.paper_seconds_per_byte = std::max(cost.paper_seconds_per_byte, lone * group.stride);
  }
  cost.fixed_seconds = cost.lone_fixed_seconds = alpha + hops * hop;
  cost.paper_fixed_seconds = alpha;

  // Ψ / b: phase by phase, the fullest link of all groups together.
  std::vector<double> flows(slice.links.size(), 0.0), most_flows(slice.links.size(), 0.0);
  for (std::size_t phase = 0; phase < phases; ++phase) {
    double seconds = 0;
    for (const Embedding& group : groups) {
      if (phase >= group.phases.size()) continue;
      for (const LinkLoad& load : group.phases[phase].loads) {
        now.add(load.link, load.bytes);
        flows[load.link] += 1;
      }
      seconds = std::max(seconds, rates.flow_seconds(group.phases[phase].largest_flow));
    }
    for (const LinkId link : now.touched()) {
      seconds = std::max(seconds, rates.seconds(link, now.bytes(link)));
      total.add(link, now.bytes(link));
      most_flows[link] = std::max(most_flows[link], flows[link]);
      flows[link] = 0;
    }
    now.clear();
    cost.seconds_per_byte += seconds;
  }
  std::sort(total.touched().begin(), total.touched().end());
  for (const LinkId link : total.touched()) {
    const double bytes = total.bytes(link);
    cost.links.push_back({link, bytes, rates.seconds(link, bytes) / cost.seconds_per_byte, most_flows[link]});
  }
  return cost;
}

UnitCost unit_cost(const Pattern& pattern, std::span<const DeviceId> devices, const Network& network) {
  return unit_cost(place(pattern, devices), network);
}

PhysicalCost physical_cost(const ir::Collective& collective, const placement::Placement& placement,
                           const topology::Slice& slice) {
  const Network network(slice);
  const UnitCost unit = unit_cost({collective.kind, collective.groups, collective.pairs}, placement.devices, network);
  const double bytes = static_cast<double>(collective.payload_bytes());
  PhysicalCost cost;
  cost.seconds = unit.fixed_seconds + bytes * unit.seconds_per_byte;
  cost.lone_group_seconds = unit.lone_fixed_seconds + bytes * unit.lone_seconds_per_byte;
  cost.paper_seconds = unit.paper_fixed_seconds + bytes * unit.paper_seconds_per_byte;
  for (const LinkUse& use : unit.links) cost.loads.push_back({use.link, bytes * use.bytes});
  return cost;
}

}  // namespace aoizora::ranking
