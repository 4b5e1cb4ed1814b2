#include "aoizora/ranking/psi.h"

#include <algorithm>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <string>

#include "aoizora/errors.h"
#include "aoizora/ir/readers.h"

namespace {

using namespace aoizora;
using ranking::physical_cost;
using ranking::PhysicalCost;
using topology::CollectiveKind;
namespace data = boost::unit_test::data;

constexpr std::int64_t payload = 1'000'000'000;

placement::Placement identity(const topology::Slice& slice) {
  placement::Placement placement;
  placement.devices.resize(slice.devices.size());
  std::iota(placement.devices.begin(), placement.devices.end(), 0);
  return placement;
}

ir::Collective collective(CollectiveKind kind, ir::ReplicaGroups groups, std::int64_t bytes = payload) {
  ir::Collective result;
  result.kind = kind;
  result.result_bytes = result.operand_bytes = bytes;
  result.groups = std::move(groups);
  return result;
}

ir::Collective permute(std::vector<std::pair<std::int32_t, std::int32_t>> pairs, std::int64_t bytes = payload) {
  ir::Collective result = collective(CollectiveKind::permute, {}, bytes);
  result.pairs = std::move(pairs);
  return result;
}

/// How gathers and reductions of all kinds go round (topology::CollectiveRate::ring_directions).
topology::Hardware with_directions(topology::Hardware hardware, int directions) {
  for (auto& [kind, rate] : hardware.collectives) rate.ring_directions = {static_cast<double>(directions), "test"};
  return hardware;
}
topology::Slice with_directions(topology::Slice slice, int directions) {
  slice.hardware = with_directions(std::move(slice.hardware), directions);
  return slice;
}

double total_bytes(const PhysicalCost& cost) {
  return std::accumulate(cost.loads.begin(), cost.loads.end(), 0.0,
                         [](double sum, const auto& load) { return sum + load.bytes; });
}

/// α and hops taken off: what bytes alone cost.
double byte_seconds(const ir::Collective& one, const placement::Placement& placement, const topology::Slice& slice) {
  ir::Collective twice = one;
  twice.result_bytes *= 2;
  twice.operand_bytes *= 2;
  return physical_cost(twice, placement, slice).seconds - physical_cost(one, placement, slice).seconds;
}

/// An all-reduce as the compiler prints it, read by the reader.
ir::Program all_reduce_text(int devices, const std::string& groups) {
  return ir::read_hlo("HloModule m, is_scheduled=true, num_partitions=" + std::to_string(devices) + R"(

%add (a: bf16[], b: bf16[]) -> bf16[] {
  %a = bf16[] parameter(0)
  %b = bf16[] parameter(1)
  ROOT %sum = bf16[] add(%a, %b)
}

ENTRY %main (p: bf16[2340,13824]) -> bf16[2340,13824] {
  %p = bf16[2340,13824]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %all-reduce = bf16[2340,13824]{1,0:T(8,128)(2,1)} all-reduce(%p), channel_id=1, replica_groups=)" +
                      groups + R"(, use_global_device_ids=true, to_apply=%add
}
)");
}

PhysicalCost text_cost(const topology::Slice& slice, const std::string& groups) {
  const ir::Program program = all_reduce_text(static_cast<int>(slice.devices.size()), groups);
  const auto found = ir::collectives(program);
  BOOST_REQUIRE_EQUAL(found.size(), 1u);
  return physical_cost(found.front(), identity(slice), slice);
}

const std::vector<std::string> slice_names{"v5e:2x4", "v5e:4x4", "v5e:4x2", "v5e:1x8", "v5e:4x8"};

const std::vector<CollectiveKind> group_kinds{CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
                                              CollectiveKind::all_reduce, CollectiveKind::all_to_all,
                                              CollectiveKind::broadcast};

/// Some ways to cut a slice into groups: pairs, halves, tiles, strided, everyone.
std::vector<ir::ReplicaGroups> some_groups(const topology::Slice& slice) {
  const int n = static_cast<int>(slice.devices.size());
  std::vector<ir::ReplicaGroups> result;
  for (int size = 2; size <= n; size *= 2) {
    ir::ReplicaGroups near(n / size), far(n / size);
    for (int i = 0; i < n; ++i) {
      near[i / size].push_back(i);
      far[i % (n / size)].push_back(i);
    }
    result.push_back(near);
    result.push_back(far);
  }
  return result;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(psi)

// Paper, Figure 6: the compact placement of two groups of four costs half of the strided one; a strided group alone
// costs what a compact one does, so the factor of two is sharing.
BOOST_AUTO_TEST_CASE(AllReduceCompactToStrided_2x4_FromText) {
  const auto slice = topology::make_slice("v5e:2x4");
  const PhysicalCost compact = text_cost(slice, "{{0,1,4,5},{2,3,6,7}}");
  const PhysicalCost strided = text_cost(slice, "{{0,2,4,6},{1,3,5,7}}");
  BOOST_TEST(strided.seconds / compact.seconds == 2.0, boost::test_tools::tolerance(0.02));
  BOOST_TEST(strided.lone_group_seconds / compact.lone_group_seconds == 1.0, boost::test_tools::tolerance(0.02));
  BOOST_TEST(strided.paper_seconds / compact.paper_seconds == 2.0, boost::test_tools::tolerance(0.02));
  // The same groups by their other notations.
  BOOST_TEST(text_cost(slice, "[2,4]<=[4,2]T(1,0)").seconds == strided.seconds);
  BOOST_TEST(text_cost(slice, "[2,4]<=[2,2,2]T(1,0,2)").seconds == compact.seconds);
}

BOOST_AUTO_TEST_CASE(StridedGroupAlone_CostsWhatCompactDoes) {
  const auto slice = topology::make_slice("v5e:2x4");
  const auto alone = collective(CollectiveKind::all_reduce, {{0, 2, 4, 6}});
  const auto compact = collective(CollectiveKind::all_reduce, {{0, 1, 4, 5}, {2, 3, 6, 7}});
  BOOST_TEST(byte_seconds(alone, identity(slice), slice) == byte_seconds(compact, identity(slice), slice),
             boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(AllReduceTilesToStrided_4x4_FromText) {
  const auto slice = topology::make_slice("v5e:4x4");
  const PhysicalCost tiles = text_cost(slice, "[4,4]<=[2,2,2,2]T(0,2,1,3)");
  const PhysicalCost strided = text_cost(slice, "[4,4]<=[2,2,2,2]T(1,3,0,2)");
  BOOST_TEST(strided.seconds / tiles.seconds == 2.0, boost::test_tools::tolerance(0.02));
  BOOST_TEST(strided.lone_group_seconds / tiles.lone_group_seconds == 1.0, boost::test_tools::tolerance(0.02));
}

// Paper, Figure 3: 23 GB/s alone whatever the axis and hop count, 15.2 GB/s each where two routes share a link.
BOOST_AUTO_TEST_CASE(Permutes_AloneAndContended) {
  const auto slice = topology::make_slice("v5e:2x4");
  const auto rate = [&](std::vector<std::pair<std::int32_t, std::int32_t>> pairs) {
    return static_cast<double>(payload) / byte_seconds(permute(std::move(pairs)), identity(slice), slice);
  };
  for (const auto& [from, to] : std::vector<std::pair<int, int>>{{0, 1}, {0, 4}, {0, 3}, {0, 7}}) {
    BOOST_TEST(rate({{from, to}}) == 23e9, boost::test_tools::tolerance(0.005));
  }
  BOOST_TEST(rate({{0, 2}, {1, 3}}) == 15.2e9, boost::test_tools::tolerance(0.005));
  BOOST_TEST(rate({{0, 1}, {4, 5}}) == 23e9,
             boost::test_tools::tolerance(0.005));  // disjoint routes do not slow each other
  BOOST_TEST(rate({{0, 1}, {1, 0}}) == 23e9,
             boost::test_tools::tolerance(0.005));  // nor do the two directions of a wire
}

// JAX scaling book: an all-gather over a line takes V/W (n-1)/n, over a ring half of that where it goes both ways.
BOOST_AUTO_TEST_CASE(AllGather_LineAndRingFormula) {
  const auto line = topology::make_slice("v5e:1x8");
  const double bytes = static_cast<double>(payload);
  const double width = line.hardware.ici_bytes_per_second.value *
                       line.hardware.collectives.at(CollectiveKind::all_gather).rate_fraction.value;
  const auto everyone = collective(CollectiveKind::all_gather, {{0, 1, 2, 3, 4, 5, 6, 7}});
  for (const int directions : {0, 1, 2}) {
    const auto hardware = with_directions(line.hardware, directions);
    const auto open = topology::build_slice("line", {8}, {false}, 1, hardware);
    const auto ring = topology::build_slice("ring", {8}, {true}, 1, hardware);
    BOOST_TEST(byte_seconds(everyone, identity(open), open) == bytes / width * 7 / 8,
               boost::test_tools::tolerance(1e-9));
    BOOST_TEST(byte_seconds(everyone, identity(ring), ring) == bytes / width * 7 / 8 / (directions == 1 ? 1 : 2),
               boost::test_tools::tolerance(1e-9));
  }
}

// Measured on v5e 8x4 (JAX scaling book): 34 MB gathered over the axis of 4 take 680 us.
BOOST_AUTO_TEST_CASE(AllGather_MeasuredOnALine) {
  const auto slice = topology::make_slice("v5e:8x4");
  ir::ReplicaGroups rows(8);
  for (std::int32_t chip = 0; chip < 32; ++chip) rows[static_cast<std::size_t>(chip / 4)].push_back(chip);
  const auto cost = physical_cost(collective(CollectiveKind::all_gather, rows, 34'000'000), identity(slice), slice);
  BOOST_TEST(cost.seconds == 680e-6, boost::test_tools::tolerance(0.15));
}

// Sent round one way, a group costs (n-1)/n V/W whatever its shape: on every link of the ring, and on a line at its
// ends.
BOOST_AUTO_TEST_CASE(AllGather_OneWayRoundCostsTheSameInEveryShape) {
  for (const char* name : {"v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:4x8", "v5e:1x4", "v5e:16x2"}) {
    const auto slice = with_directions(topology::make_slice(name), 1);
    std::vector<std::int32_t> all(slice.devices.size());
    std::iota(all.begin(), all.end(), 0);
    const double n = static_cast<double>(all.size());
    const double width = slice.hardware.ici_bytes_per_second.value *
                         slice.hardware.collectives.at(CollectiveKind::all_gather).rate_fraction.value;
    BOOST_TEST_CONTEXT(name) {
      BOOST_TEST(byte_seconds(collective(CollectiveKind::all_gather, {all}), identity(slice), slice) ==
                     static_cast<double>(payload) * (n - 1) / n / width,
                 boost::test_tools::tolerance(1e-9));
    }
  }
}

// A corner chip of a mesh has two links and must receive (n-1)/n of the result: no schedule is faster, and the ring
// attains it.
BOOST_AUTO_TEST_CASE(AllGather_MeshAttainsTheCornerBound) {
  for (const char* name : {"v5e:2x2", "v5e:2x4", "v5e:4x4", "v5e:4x8"}) {
    const auto slice = with_directions(topology::make_slice(name), 2);
    std::vector<std::int32_t> all(slice.devices.size());
    std::iota(all.begin(), all.end(), 0);
    const double n = static_cast<double>(all.size());
    const double width = slice.hardware.ici_bytes_per_second.value *
                         slice.hardware.collectives.at(CollectiveKind::all_gather).rate_fraction.value;
    const double bound = static_cast<double>(payload) * (n - 1) / n / (2 * width);
    BOOST_TEST_CONTEXT(name) {
      BOOST_TEST(byte_seconds(collective(CollectiveKind::all_gather, {all}), identity(slice), slice) == bound,
                 boost::test_tools::tolerance(1e-9));
    }
  }
}

// Law: every member receives what it lacks, so links carry at least (n-1) x B a group for AG and RS, twice that for AR;
// groups on neighbouring chips carry exactly that.
BOOST_DATA_TEST_CASE(BytesAreConserved, data::make(slice_names), name) {
  const auto slice = topology::make_slice(name);
  for (const auto& groups : some_groups(slice)) {
    for (const CollectiveKind kind : group_kinds) {
      const double n = static_cast<double>(groups[0].size());
      double least = (n - 1) * static_cast<double>(payload) * static_cast<double>(groups.size());
      if (kind == CollectiveKind::all_reduce) least *= 2;
      const PhysicalCost cost = physical_cost(collective(kind, groups), identity(slice), slice);
      BOOST_TEST(total_bytes(cost) >= least * (1 - 1e-9));
      const double fullest = std::max_element(cost.loads.begin(), cost.loads.end(), [](const auto& a, const auto& b) {
                               return a.bytes < b.bytes;
                             })->bytes;
      BOOST_TEST(cost.seconds >= fullest / slice.hardware.ici_bytes_per_second.value * (1 - 1e-9));
      BOOST_TEST(cost.seconds >= cost.lone_group_seconds * (1 - 1e-9));
    }
  }
}

BOOST_AUTO_TEST_CASE(NeighbouringGroups_MoveNoByteTwice) {
  const auto slice = topology::make_slice("v5e:4x4");
  const double bytes = static_cast<double>(payload);
  const auto rows =
      collective(CollectiveKind::all_gather, {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}});
  BOOST_TEST(total_bytes(physical_cost(rows, identity(slice), slice)) == 4 * 3 * bytes,
             boost::test_tools::tolerance(1e-9));
  const auto tile = collective(CollectiveKind::all_reduce, {{0, 1, 4, 5}});
  BOOST_TEST(total_bytes(physical_cost(tile, identity(slice), slice)) == 2 * 3 * bytes,
             boost::test_tools::tolerance(1e-9));
}

// Law: a mirrored or turned slice costs the same.
BOOST_DATA_TEST_CASE(AutomorphismsChangeNothing, data::make(slice_names), name) {
  const auto slice = topology::make_slice(name);
  const auto maps = topology::automorphisms(slice);
  for (const auto& groups : some_groups(slice)) {
    for (const CollectiveKind kind :
         {CollectiveKind::all_gather, CollectiveKind::all_reduce, CollectiveKind::all_to_all}) {
      const auto one = collective(kind, groups);
      const double seconds = physical_cost(one, identity(slice), slice).seconds;
      for (const auto& map : maps) {
        placement::Placement moved = identity(slice);
        for (auto& device : moved.devices) device = map[device];
        BOOST_TEST(physical_cost(one, moved, slice).seconds == seconds, boost::test_tools::tolerance(1e-9));
      }
    }
  }
}

// Law: XLA embeds its own ring on the set of chips, so the order inside a group and of the groups means nothing, except
// to permutes.
BOOST_AUTO_TEST_CASE(OrderInsideAGroupMeansNothing) {
  const auto slice = topology::make_slice("v5e:4x4");
  std::mt19937 random(7);
  for (const auto& groups : some_groups(slice)) {
    for (const CollectiveKind kind :
         {CollectiveKind::all_gather, CollectiveKind::reduce_scatter, CollectiveKind::all_reduce}) {
      auto shuffled = groups;
      for (auto& group : shuffled) std::shuffle(group.begin(), group.end(), random);
      std::shuffle(shuffled.begin(), shuffled.end(), random);
      const PhysicalCost a = physical_cost(collective(kind, groups), identity(slice), slice);
      const PhysicalCost b = physical_cost(collective(kind, shuffled), identity(slice), slice);
      BOOST_TEST(a.seconds == b.seconds, boost::test_tools::tolerance(1e-12));
    }
  }
  const auto around = permute({{0, 1}, {1, 5}, {5, 4}, {4, 0}}), across = permute({{0, 5}, {5, 1}, {1, 4}, {4, 0}});
  BOOST_TEST(physical_cost(across, identity(slice), slice).seconds >
             physical_cost(around, identity(slice), slice).seconds);
}

// Law: half the bandwidth, twice the time, α and hops apart; more bandwidth is never slower.
BOOST_AUTO_TEST_CASE(TimeIsInverseToBandwidthAndLinearInBytes) {
  const auto slice = topology::make_slice("v5e:2x4");
  auto hardware = slice.hardware;
  hardware.ici_bytes_per_second.value /= 2;
  const auto slow = topology::build_slice("slow", slice.dims, slice.wraps, 1, hardware);
  for (const auto& groups : some_groups(slice)) {
    for (const CollectiveKind kind : group_kinds) {
      const auto one = collective(kind, groups);
      BOOST_TEST(byte_seconds(one, identity(slow), slow) == 2 * byte_seconds(one, identity(slice), slice),
                 boost::test_tools::tolerance(1e-9));
      const double nothing = physical_cost(collective(kind, groups, 0), identity(slice), slice).seconds;
      const double once = physical_cost(one, identity(slice), slice).seconds;
      const double thrice = physical_cost(collective(kind, groups, 3 * payload), identity(slice), slice).seconds;
      BOOST_TEST(thrice - nothing == 3 * (once - nothing), boost::test_tools::tolerance(1e-9));
    }
  }
}

BOOST_AUTO_TEST_CASE(AllReduce_IsReduceScatterThenAllGather) {
  for (const int directions : {0, 1, 2}) {
    auto slice = with_directions(topology::make_slice("v5e:4x4"), directions);
    for (auto& [kind, rate] : slice.hardware.collectives) rate.rate_fraction.value = 1;
    for (const auto& groups : some_groups(slice)) {
      const auto seconds = [&](CollectiveKind kind) {
        return byte_seconds(collective(kind, groups), identity(slice), slice);
      };
      BOOST_TEST(seconds(CollectiveKind::all_reduce) ==
                     seconds(CollectiveKind::reduce_scatter) + seconds(CollectiveKind::all_gather),
                 boost::test_tools::tolerance(1e-9));
    }
  }
}

// All-to-all of n members over a line: the middle link carries n/2 x n/2 pairs of 1/n operand each.
BOOST_AUTO_TEST_CASE(AllToAll_MiddleOfALine) {
  const auto slice = topology::make_slice("v5e:1x8");
  const PhysicalCost cost =
      physical_cost(collective(CollectiveKind::all_to_all, {{0, 1, 2, 3, 4, 5, 6, 7}}), identity(slice), slice);
  double fullest = 0;
  for (const auto& load : cost.loads) fullest = std::max(fullest, load.bytes);
  BOOST_TEST(fullest == 4.0 * 4 / 8 * static_cast<double>(payload), boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(Broadcast_CrossesEachLinkOnce) {
  const auto slice = topology::make_slice("v5e:2x4");
  const PhysicalCost cost =
      physical_cost(collective(CollectiveKind::broadcast, {{0, 1, 2, 3}}), identity(slice), slice);
  BOOST_TEST(cost.loads.size() == 3u);
  for (const auto& load : cost.loads) BOOST_TEST(load.bytes == static_cast<double>(payload));
}

// A set of chips that is no grid still gets a ring or line over real routes: an L of four, an odd tour.
BOOST_AUTO_TEST_CASE(AnySetOfChips_IsPriced) {
  const auto slice = with_directions(topology::make_slice("v5e:4x4"), 2);
  const double bytes = static_cast<double>(payload);
  const double width = slice.hardware.ici_bytes_per_second.value *
                       slice.hardware.collectives.at(CollectiveKind::all_gather).rate_fraction.value;
  const auto corner = collective(CollectiveKind::all_gather, {{0, 1, 2, 6}});
  BOOST_TEST(byte_seconds(corner, identity(slice), slice) == bytes / width * 3 / 4, boost::test_tools::tolerance(1e-9));
  const auto rim = collective(CollectiveKind::all_gather, {{0, 1, 2, 3, 7, 11, 15, 14, 13, 12, 8, 4}});
  BOOST_TEST(byte_seconds(rim, identity(slice), slice) == bytes / width * 11 / 12 / 2,
             boost::test_tools::tolerance(1e-9));
}

// Two members exchange halves: one transfer each way, wherever they sit and however rings go round.
BOOST_AUTO_TEST_CASE(TwoMembers_AreNoRing) {
  for (const int directions : {0, 1, 2}) {
    auto slice = with_directions(topology::make_slice("v5e:4x4"), directions);
    constexpr double limit = 10e9;
    for (auto& [kind, rate] : slice.hardware.collectives) rate.flow_bytes_per_second = {limit, "test"};
    for (const std::int32_t other : {1, 4, 5, 15}) {
      const auto pair = collective(CollectiveKind::all_gather, {{0, other}});
      BOOST_TEST(byte_seconds(pair, identity(slice), slice) == static_cast<double>(payload) / 2 / limit,
                 boost::test_tools::tolerance(1e-9));
    }
  }
}

// Network walks flat tables; the slice's own route is the contract.
BOOST_AUTO_TEST_CASE(NetworkRoutes_AreTheSlices) {
  auto hardware = topology::make_slice("v5e:1x1").hardware;
  hardware.core_bytes_per_second = {600e9, "test"};
  const std::vector<topology::Slice> slices{topology::make_slice("v5e:4x4"),
                                            topology::build_slice("t", {3, 4}, {true, true}, 1, hardware),
                                            topology::build_slice("t", {2, 6, 2}, {true, true, false}, 1, hardware),
                                            topology::build_slice("t", {2, 4}, {false, true}, 2, hardware)};
  for (const auto& slice : slices) {
    const ranking::Network network(slice);
    const auto n = static_cast<topology::DeviceId>(slice.devices.size());
    for (topology::DeviceId from = 0; from < n; ++from) {
      for (topology::DeviceId to = 0; to < n; ++to) {
        std::vector<topology::LinkId> links;
        network.route(from, to, links);
        BOOST_TEST(links == slice.route(from, to), boost::test_tools::per_element());
      }
    }
    for (topology::LinkId id = 0; id < static_cast<topology::LinkId>(slice.links.size()); ++id) {
      const auto& link = slice.links[id];
      const auto& back = slice.links[network.reverse[id]];
      BOOST_TEST((back.from_chip == link.to_chip && back.to_chip == link.from_chip && back.from_core == link.to_core &&
                  back.to_core == link.from_core && back.kind == link.kind));
    }
  }
}

// Three dimensions, wraps and two cores a chip need no case of their own.
BOOST_AUTO_TEST_CASE(OtherShapes) {
  auto hardware = with_directions(topology::make_slice("v5e:1x1").hardware, 0);
  hardware.core_bytes_per_second = {1e15, "test: far faster than a link"};
  const double bytes = static_cast<double>(payload);
  const double width =
      hardware.ici_bytes_per_second.value * hardware.collectives.at(CollectiveKind::all_gather).rate_fraction.value;
  const auto gather_all = [&](const topology::Slice& slice) {
    std::vector<std::int32_t> all(slice.devices.size());
    std::iota(all.begin(), all.end(), 0);
    return byte_seconds(collective(CollectiveKind::all_gather, {all}), identity(slice), slice);
  };
  // A chip of a 2x2x2 cube has three ports, one of a 4x4 torus four: all are used.
  BOOST_TEST(gather_all(topology::build_slice("cube", {2, 2, 2}, {false, false, false}, 1, hardware)) ==
                 bytes / width * 7 / 8 / 3,
             boost::test_tools::tolerance(1e-9));
  BOOST_TEST(
      gather_all(topology::build_slice("torus", {4, 4}, {true, true}, 1, hardware)) == bytes / width * 15 / 16 / 4,
      boost::test_tools::tolerance(1e-9));
  // Cores joined by a fast link: the pair of chips exchanges half of the result, over one wire each way.
  BOOST_TEST(gather_all(topology::build_slice("cores", {2}, {false}, 2, hardware)) >= bytes / width / 2 * (1 - 1e-6));
}

BOOST_AUTO_TEST_CASE(BadIds_AreNamed) {
  const auto slice = topology::make_slice("v5e:2x2");
  BOOST_CHECK_THROW(physical_cost(collective(CollectiveKind::all_gather, {{0, 4}}), identity(slice), slice),
                    InvalidRequest);
  BOOST_CHECK_THROW(physical_cost(collective(CollectiveKind::all_reduce, {{0, 1, 1}}), identity(slice), slice),
                    InvalidRequest);
  BOOST_CHECK_THROW(physical_cost(permute({{0, -1}}), identity(slice), slice), InvalidRequest);
  BOOST_TEST(
      physical_cost(collective(CollectiveKind::all_reduce, {{0}, {1}, {2}, {3}}), identity(slice), slice).seconds == 0);
}

BOOST_AUTO_TEST_SUITE_END()
