#include "aoizora/simulation/expansion.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <set>

#include "aoizora/errors.h"
#include "aoizora/ranking/q2.h"
#include "aoizora/simulation/simulation.h"
#include "aoizora/simulation/test_programs.h"
#include "aoizora/topology/test_slices.h"

namespace {

using namespace aoizora;
using simulation::collective_seconds;
using simulation::identity;
using simulation::permute_seconds;
using topology::CollectiveKind;
using topology::DeviceId;
namespace data = boost::unit_test::data;

constexpr double megabyte = 1e6;

const std::vector<CollectiveKind> ring_kinds{CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
                                             CollectiveKind::all_reduce};
const std::vector<CollectiveKind> group_kinds{CollectiveKind::all_gather,        CollectiveKind::reduce_scatter,
                                              CollectiveKind::all_reduce,        CollectiveKind::all_to_all,
                                              CollectiveKind::ragged_all_to_all, CollectiveKind::broadcast};

/// Some slices with some of their devices on one core, rings, lines and several cores; every way of ring_directions.
std::vector<topology::Slice> slices() {
  std::vector<topology::Slice> result;
  for (const topology::Slice& slice : topology::assorted_slices()) {
    if (slice.devices.size() < 2 || slice.devices.size() > 40) continue;
    for (const double directions : {0.0, 1.0, 2.0}) result.push_back(simulation::with_directions(slice, directions));
  }
  return result;
}

/// Groups along a random cut of the devices in a random or the natural order; all of one size, which divides.
ir::ReplicaGroups random_groups(std::mt19937& random, const topology::Slice& slice) {
  const int n = static_cast<int>(slice.devices.size());
  std::vector<int> sizes;
  for (int size = 2; size <= n; ++size) {
    if (n % size == 0) sizes.push_back(size);
  }
  const int size = sizes[random() % sizes.size()];
  std::vector<DeviceId> order = simulation::identity(slice).devices;
  if (random() % 3 == 0) std::shuffle(order.begin(), order.end(), random);
  const bool strided = random() % 2 == 0;
  ir::ReplicaGroups groups(n / size);
  for (int i = 0; i < n; ++i) groups[strided ? i % (n / size) : i / size].push_back(order[i]);
  return groups;
}

/// The slice without α and latency: only bytes count.
topology::Slice bytes_only(topology::Slice slice) {
  slice.hardware.hop_seconds.value = 0;
  for (auto& [kind, rate] : slice.hardware.collectives) rate.alpha_seconds.value = 0;
  return slice;
}

/// The slice with every kind at full rate and without a limit.
topology::Slice nominal(topology::Slice slice) {
  for (auto& [kind, rate] : slice.hardware.collectives)
    rate.rate_fraction.value = 1, rate.flow_bytes_per_second.value = 0;
  return slice;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(expansion)

// Nothing is sent twice and nothing is missing: into each device come the n-1 shards it lacks (gather), out of each go
// n-1 partial sums (scatter), both (reduce), and n-1 n-ths each way in an exchange. On links of routes of one hop the
// ends of a link are the ends of the transfer, so bytes are counted at the devices' own links where there is one core a
// chip.
BOOST_DATA_TEST_CASE(EachDevice_SendsAndReceivesWhatItMust, data::xrange(150), seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto all = slices();
  const topology::Slice slice = nominal(all[random() % all.size()]);
  if (slice.cores_per_chip > 1) return;
  const ir::ReplicaGroups groups = random_groups(random, slice);
  const double n = static_cast<double>(groups.front().size());
  for (const CollectiveKind kind : group_kinds) {
    if (kind == CollectiveKind::broadcast) continue;
    simulation::Lanes lanes(slice);
    const auto graph = simulation::expand({kind, groups, {}}, identity(slice).devices, lanes);
    std::vector<double> in(slice.devices.size(), 0.0), out(slice.devices.size(), 0.0);
    for (std::size_t t = 0; t < graph.size(); ++t) {
      const auto route = lanes.links(graph.lane[t]);
      BOOST_REQUIRE(!route.empty());
      out[slice.links[route.front()].from_chip] += graph.bytes[t];
      in[slice.links[route.back()].to_chip] += graph.bytes[t];
    }
    const bool exchange = kind == CollectiveKind::all_to_all || kind == CollectiveKind::ragged_all_to_all;
    const double share = (n - 1) / n;
    for (std::size_t d = 0; d < in.size(); ++d) {
      const auto exactly = boost::test_tools::tolerance(1e-9);
      if (kind != CollectiveKind::reduce_scatter)
        BOOST_TEST(in[d] == (kind == CollectiveKind::all_reduce ? in[d] : share), exactly);
      if (kind == CollectiveKind::reduce_scatter || exchange) BOOST_TEST(out[d] == share, exactly);
    }
    const double total = std::accumulate(in.begin(), in.end(), 0.0);
    const double expected = share * (kind == CollectiveKind::all_reduce ? 2 : 1) * static_cast<double>(in.size());
    BOOST_TEST(total == expected, boost::test_tools::tolerance(1e-9));
  }
}

// A gather is causal and complete: played in the order of its dependencies, a device forwards only blocks it holds, and
// all shards arrive. Blocks are not named in a graph, so amounts are followed: what a device has sent on any edge never
// exceeds what it held before. The reverse holds for a scatter, so its gather decides.
BOOST_DATA_TEST_CASE(Gather_ForwardsOnlyWhatHasArrived, data::xrange(60), seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto all = slices();
  const topology::Slice slice = nominal(all[random() % all.size()]);
  if (slice.cores_per_chip > 1) return;
  const ir::ReplicaGroups groups = random_groups(random, slice);
  simulation::Lanes lanes(slice);
  const auto graph = simulation::expand({CollectiveKind::all_gather, groups, {}}, identity(slice).devices, lanes);
  std::vector<double> held(slice.devices.size(), 1.0 / static_cast<double>(groups.front().size()));
  std::map<std::pair<int, int>, double> sent;
  std::vector<std::int32_t> waits = graph.waits, ready, next;
  for (std::size_t t = 0; t < graph.size(); ++t) {
    if (waits[t] == 0) ready.push_back(static_cast<std::int32_t>(t));
  }
  std::size_t done = 0;
  while (!ready.empty()) {
    next.clear();
    const auto before = held;
    for (const std::int32_t t : ready) {
      const auto route = lanes.links(graph.lane[t]);
      const int from = slice.links[route.front()].from_chip, to = slice.links[route.back()].to_chip;
      double& on_edge = sent[{from, to}];
      on_edge += graph.bytes[t];
      BOOST_TEST(on_edge <= before[from] * (1 + 1e-9));
      held[to] += graph.bytes[t];
      for (auto k = graph.next_begin[t]; k < graph.next_begin[t + 1]; ++k) {
        if (--waits[graph.next[k]] == 0) next.push_back(graph.next[k]);
      }
      ++done;
    }
    std::swap(ready, next);
  }
  BOOST_TEST(done == graph.size());
  for (const double all_of_it : held) BOOST_TEST(all_of_it == 1.0, boost::test_tools::tolerance(1e-9));
}

// Closed forms of one collective alone: a line takes n-1 steps of a hop and a shard; a ring both ways floor(n/2), the
// last of an even one half as long; a ring one way n-1. AR is RS and AG with one α.
BOOST_DATA_TEST_CASE(LoneCollectives_TakeTheClosedForm, data::xrange(ring_kinds.size()), which) {
  const CollectiveKind kind = ring_kinds[which];
  const double b = 45e9, hop = 1e-6, alpha = 1e-6, bytes = 80 * megabyte;
  const auto exactly = boost::test_tools::tolerance(1e-9);
  const double passes = kind == CollectiveKind::all_reduce ? 2 : 1;
  for (int n = 2; n <= 9; ++n) {
    const double shard = bytes / n;
    const auto line = nominal(simulation::with_directions(topology::slice_of({1, n}, {false, false}), 0));
    BOOST_TEST(
        collective_seconds(kind, {}, bytes, identity(line), line) == alpha + passes * (n - 1) * (hop + shard / b),
        exactly);
    if (n < 3) continue;
    const auto ring = topology::slice_of({n}, {true});
    const auto seconds = [&](double directions) {
      const auto slice = nominal(simulation::with_directions(ring, directions));
      return collective_seconds(kind, {}, bytes, identity(slice), slice);
    };
    const double half = n % 2 == 0 ? 0.5 : 0;
    BOOST_TEST(seconds(0) == alpha + passes * (n / 2 * hop + (n / 2 - half) * shard / b), exactly);
    BOOST_TEST(seconds(2) == seconds(0), exactly);
    BOOST_TEST(seconds(1) == alpha + passes * (n - 1) * (hop + shard / b), exactly);
  }
}

// No all-gather beats its chips' ports: (n-1) shards must come in over the links of a chip. A grid that is as wide as
// high comes to that bound at its corners.
BOOST_DATA_TEST_CASE(Gather_ReachesThePortBound, data::make({2, 4, 6}), size) {
  const auto slice =
      bytes_only(nominal(simulation::with_directions(topology::slice_of({size, size}, {false, false}), 0)));
  const double n = size * size;
  const double seconds = collective_seconds(CollectiveKind::all_gather, {}, megabyte, identity(slice), slice);
  BOOST_TEST(seconds == (n - 1) / n * megabyte / (2 * 45e9), boost::test_tools::tolerance(1e-6));
}

// Two groups of four on 2x4: interleaved they take twice as long as side by side, and one alone as long as side by
// side (paper, Figure 6; measured with sockets in validation runs of the same groups).
BOOST_DATA_TEST_CASE(CompactToStrided_OneToTwo, data::xrange(ring_kinds.size()) * data::make({0.0, 1.0, 2.0}), which,
                     directions) {
  const CollectiveKind kind = ring_kinds[which];
  const auto slice = simulation::with_directions(topology::make_slice("v5e:2x4"), directions);
  const auto seconds = [&](const ir::ReplicaGroups& groups) {
    return collective_seconds(kind, groups, 1e9, identity(slice), slice);
  };
  const double compact = seconds({{0, 1, 4, 5}, {2, 3, 6, 7}});
  BOOST_TEST(seconds({{0, 2, 4, 6}, {1, 3, 5, 7}}) / compact == 2.0, boost::test_tools::tolerance(0.001));
  BOOST_TEST(seconds({{0, 2, 4, 6}}) / compact == 1.0, boost::test_tools::tolerance(0.001));
}

// Paper, Figure 3: about 23 GB/s for a permute alone, 15.2 each for two that share a link.
BOOST_AUTO_TEST_CASE(Permutes_ShareALink) {
  const auto slice = topology::make_slice("v5e:1x8");
  const double bytes = 1e9;
  const std::vector<std::pair<std::int32_t, std::int32_t>> one{{0, 2}}, two{{0, 2}, {1, 3}};
  const double alone = permute_seconds(one, bytes, identity(slice), slice);
  const double shared = permute_seconds(two, bytes, identity(slice), slice);
  BOOST_TEST(alone == 1e-6 + 2e-6 + bytes / 23e9, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(shared == 1e-6 + 2e-6 + bytes / 15.2e9, boost::test_tools::tolerance(1e-9));
}

// A broadcast carries the payload once over each link of its tree: as long as one link, whatever its size.
BOOST_AUTO_TEST_CASE(Broadcast_CarriesThePayloadOnceALink) {
  const auto slice = nominal(topology::make_slice("v5e:4x4"));
  const double once = 1e-6 + 1e9 / 45e9;
  BOOST_TEST(collective_seconds(CollectiveKind::broadcast, {}, 1e9, identity(slice), slice) == once + 6e-6,
             boost::test_tools::tolerance(1e-9));
  BOOST_TEST(collective_seconds(CollectiveKind::broadcast, {{5, 6}}, 1e9, identity(slice), slice) == once + 1e-6,
             boost::test_tools::tolerance(1e-9));
}

// Mirror images take the same time: every kind under every automorphism of slices without a circular dimension (there a
// tie goes up, which a mirror turns down). Pairs with off-axis routes are left out: x first is not y first.
BOOST_DATA_TEST_CASE(MirrorImages_TakeTheSameTime,
                     data::make({"v5e:2x4", "v5e:4x4", "v5e:2x2", "v5e:4x8"}) * data::xrange(12), name, seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto slice = simulation::with_directions(topology::make_slice(name), 0);
  const auto n = static_cast<std::int32_t>(slice.devices.size());
  // Axis orders: product sets.
  std::vector<candidates::MeshAxis> mesh{{"a", 2}, {"b", n / 2}};
  if (seed % 3 == 1) mesh = {{"a", n / 2}, {"b", 2}};
  if (seed % 3 == 2) mesh = {{"a", 2}, {"b", n / 4}, {"c", 2}};
  placement::PlacementOptions options;
  options.active_axes = {"a", "b"};
  const auto placements = placement::distinct_axis_orders(mesh, slice, options).placements;
  const auto& placed = placements[random() % placements.size()];
  const std::vector<std::string> along{seed % 2 == 0 ? "a" : "b"};
  const ir::ReplicaGroups groups = placement::groups_along(mesh, along);
  const auto automorphisms = topology::automorphisms(slice);
  for (const CollectiveKind kind : group_kinds) {
    if (kind == CollectiveKind::broadcast) continue;
    const double seconds = collective_seconds(kind, groups, 32 * megabyte, placed, slice);
    for (const auto& automorphism : automorphisms) {
      placement::Placement mirrored = placed;
      for (auto& device : mirrored.devices) device = automorphism[device];
      BOOST_TEST(collective_seconds(kind, groups, 32 * megabyte, mirrored, slice) == seconds,
                 boost::test_tools::tolerance(1e-9));
    }
  }
}

// More bandwidth never takes longer, and k times of it never less than a k-th of the time.
BOOST_DATA_TEST_CASE(Seconds_FallWithBandwidth, data::xrange(60), seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto all = slices();
  const topology::Slice& slice = all[random() % all.size()];
  const ir::ReplicaGroups groups = random_groups(random, slice);
  for (const CollectiveKind kind : group_kinds) {
    double before = 0;
    for (const double scale : {0.5, 0.8, 1.0, 1.7, 4.0}) {
      const double seconds = collective_seconds(kind, groups, 3 * megabyte, identity(slice), slice, {scale});
      if (before > 0) BOOST_TEST(seconds <= before * (1 + 1e-9));
      before = seconds;
    }
    const double once = collective_seconds(kind, groups, 3 * megabyte, identity(slice), slice);
    const double twice = collective_seconds(kind, groups, 3 * megabyte, identity(slice), slice, {2.0});
    BOOST_TEST(twice * 2 >= once * (1 - 1e-9));
  }
}

// More groups at once hardly end sooner. (Not never: transfers that wait for others have the anomalies of any list
// schedule: who is held up may then miss a collision.)
BOOST_DATA_TEST_CASE(MoreGroups_HardlyEndSooner, data::xrange(40), seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto all = slices();
  const topology::Slice& slice = all[random() % all.size()];
  const ir::ReplicaGroups groups = random_groups(random, slice);
  for (const CollectiveKind kind : group_kinds) {
    const double together = collective_seconds(kind, groups, 8 * megabyte, identity(slice), slice);
    for (const auto& group : groups)
      BOOST_TEST(collective_seconds(kind, {group}, 8 * megabyte, identity(slice), slice) <= together * 1.02);
  }
}

// The order of ranks in a group and of groups in a list says nothing; neither does which rank sits where in a group.
BOOST_AUTO_TEST_CASE(Order_SaysNothing) {
  const auto slice = topology::make_slice("v5e:4x4");
  const ir::ReplicaGroups one{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11, 12, 13, 14, 15}};
  const ir::ReplicaGroups other{{15, 9, 10, 8, 14, 13, 12, 11}, {7, 1, 2, 3, 4, 5, 6, 0}};
  for (const CollectiveKind kind : group_kinds) {
    if (kind == CollectiveKind::broadcast) continue;
    BOOST_TEST(collective_seconds(kind, one, megabyte, identity(slice), slice) ==
               collective_seconds(kind, other, megabyte, identity(slice), slice));
    BOOST_TEST(simulation::physical_key({kind, one, {}}, identity(slice).devices) ==
                   simulation::physical_key({kind, other, {}}, identity(slice).devices),
               boost::test_tools::per_element());
  }
}

// Groups of one and permutes to oneself move nothing and take nothing.
BOOST_AUTO_TEST_CASE(Nothing_TakesNoTime) {
  const auto slice = topology::make_slice("v5e:2x2");
  for (const CollectiveKind kind : group_kinds)
    BOOST_TEST(collective_seconds(kind, {{0}, {1}, {2}, {3}}, megabyte, identity(slice), slice) == 0.0);
  const std::vector<std::pair<std::int32_t, std::int32_t>> stays{{0, 0}, {3, 3}};
  BOOST_TEST(permute_seconds(stays, megabyte, identity(slice), slice) == 0.0);
}

// What a plan says a collective puts on the links is the bytes of each of its transfers times the links it crosses.
BOOST_AUTO_TEST_CASE(Loads_AreBytesTimesHops) {
  for (const simulation::Recorded& recorded : simulation::recorded_programs) {
    const auto slice = topology::make_slice(recorded.slice);
    const auto program = simulation::compiled(recorded.file, slice);
    for (const auto& placement : simulation::some_placements(recorded, slice, 4)) {
      for (const auto& cost : ranking::explain(program, placement, slice, 40).collectives) {
        simulation::Lanes lanes(slice);
        const auto& pattern = program.patterns[program.pattern_of[cost.collective]];
        const auto graph = simulation::expand(pattern, placement.devices, lanes);
        double moved = 0;
        for (std::size_t i = 0; i < graph.size(); ++i)
          moved += graph.bytes[i] * static_cast<double>(lanes.links(graph.lane[i]).size());
        moved *= slice.hardware.collectives.at(cost.kind).rate_fraction.value;  // the graph's bytes are counted ones
        double loads = 0;
        for (const double load : cost.link_bytes_per_byte) loads += load;
        BOOST_TEST(loads == moved, boost::test_tools::tolerance(1e-9));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(RefusesWhatCannotBe) {
  const auto slice = topology::make_slice("v5e:2x2");
  const auto kind = CollectiveKind::all_gather;
  BOOST_CHECK_THROW(collective_seconds(kind, {{0, 4}}, 1, identity(slice), slice), InvalidRequest);
  BOOST_CHECK_THROW(collective_seconds(kind, {{0, -1}}, 1, identity(slice), slice), InvalidRequest);
  BOOST_CHECK_THROW(collective_seconds(kind, {{0, 0}}, 1, identity(slice), slice), InvalidRequest);
  BOOST_CHECK_THROW(collective_seconds(kind, {}, -1, identity(slice), slice), InvalidRequest);
  BOOST_CHECK_THROW(collective_seconds(kind, {}, 1, {{0, 0, 1, 2}, ""}, slice), InvalidRequest);
  BOOST_CHECK_THROW(collective_seconds(kind, {}, 1, {{0, 9}, ""}, slice), InvalidRequest);
  BOOST_CHECK_THROW(collective_seconds(CollectiveKind::permute, {}, 1, identity(slice), slice), InvalidRequest);
  BOOST_CHECK_THROW(collective_seconds("all-reduce", "[[0, 1.5]]", 1, identity(slice), slice), InvalidRequest);
  BOOST_CHECK_THROW(collective_seconds("all-reduce", "{", 1, identity(slice), slice), InvalidRequest);
  BOOST_CHECK_THROW(collective_seconds("gather", "[]", 1, identity(slice), slice), InvalidRequest);
  BOOST_CHECK_THROW(collective_seconds("collective-permute", "[[0, 1, 2]]", 1, identity(slice), slice), InvalidRequest);
  const auto large = topology::slice_of({64, 64}, {true, true});
  BOOST_CHECK_THROW(collective_seconds(CollectiveKind::all_to_all, {}, 1, identity(large), large), InvalidRequest);
  BOOST_CHECK_THROW(collective_seconds(kind, {}, 1, identity(large), large), InvalidRequest);
}

BOOST_AUTO_TEST_SUITE_END()
