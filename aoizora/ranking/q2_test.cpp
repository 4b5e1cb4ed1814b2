#include "aoizora/ranking/q2.h"

#include <algorithm>
#include <boost/json.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>
#include <string>
#include <thread>

#include "aoizora/errors.h"
#include "aoizora/ranking/flights.h"
#include "aoizora/ranking/rank_program.h"
#include "aoizora/ranking/test_programs.h"

namespace {

using namespace aoizora;
using ranking::CompiledProgram;
using ranking::Q2;
using ranking::Q2Options;
using ranking::score;
using ranking::Step;
using topology::CollectiveKind;

/// One sequence of steps, written by hand; no loop.
struct Schedule {
  CompiledProgram program;

  Schedule() { program.sequences.emplace_back(); }
  std::int32_t add(ir::ReplicaGroups groups, std::int64_t bytes, CollectiveKind kind = CollectiveKind::all_gather) {
    ir::Collective collective;
    collective.kind = kind;
    collective.groups = std::move(groups);
    collective.result_bytes = collective.operand_bytes = bytes;
    return add(std::move(collective));
  }
  std::int32_t permute(std::vector<std::pair<std::int32_t, std::int32_t>> pairs, std::int64_t bytes) {
    ir::Collective collective;
    collective.kind = CollectiveKind::permute;
    collective.pairs = std::move(pairs);
    collective.result_bytes = collective.operand_bytes = bytes;
    return add(std::move(collective));
  }
  std::int32_t add(ir::Collective collective) {
    program.patterns.push_back({collective.kind, collective.groups, collective.pairs});
    program.pattern_of.push_back(static_cast<std::int32_t>(program.patterns.size()) - 1);
    program.collectives.push_back(std::move(collective));
    program.collective_names.emplace_back("c");
    return static_cast<std::int32_t>(program.collectives.size()) - 1;
  }
  Schedule& compute(double seconds) {
    Step step;
    step.seconds = seconds;
    program.sequences[0].steps.push_back(step);
    return *this;
  }
  Schedule& step(Step::Kind kind, std::int32_t collective) {
    Step added;
    added.kind = kind;
    added.collective = collective;
    program.sequences[0].steps.push_back(added);
    return *this;
  }
  double seconds(const topology::Slice& slice) const {
    return score(program, ranking::identity(slice), slice, 1).step_seconds;
  }
};

const ir::ReplicaGroups rows{{0, 1}, {2, 3}}, columns{{0, 2}, {1, 3}};
constexpr std::int64_t megabyte = 1'000'000;

CompiledProgram recorded(const std::string& file, const topology::Slice& slice) {
  return ranking::extract(ir::read_hlo(ranking::recorded_text(file)), slice.hardware);
}

double seconds_of(const Schedule& schedule, std::int32_t collective, const topology::Slice& slice) {
  return ranking::physical_cost(schedule.program.collectives[collective], ranking::identity(slice), slice).seconds;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(q2)

// A synchronous collective stops the core; an asynchronous one only where its done comes too soon.
BOOST_AUTO_TEST_CASE(SynchronousStops_AsynchronousHides) {
  const auto slice = topology::make_slice("v5e:2x2");
  Schedule synchronous;
  const auto a = synchronous.add(rows, 100 * megabyte);
  const double cost = seconds_of(synchronous, a, slice);
  synchronous.compute(1e-3).step(Step::Kind::synchronous, a).compute(1e-3);
  BOOST_TEST(synchronous.seconds(slice) == 2e-3 + cost, boost::test_tools::tolerance(1e-9));
  for (const double between : {2 * cost, cost / 2}) {
    Schedule asynchronous;
    const auto b = asynchronous.add(rows, 100 * megabyte);
    asynchronous.compute(1e-3).step(Step::Kind::start, b).compute(between).step(Step::Kind::done, b).compute(1e-3);
    BOOST_TEST(asynchronous.seconds(slice) == 2e-3 + std::max(between, cost), boost::test_tools::tolerance(1e-9));
    const Q2 q2 = ranking::explain(asynchronous.program, ranking::identity(slice), slice, 1);
    BOOST_REQUIRE_EQUAL(q2.collectives.size(), 1u);
    BOOST_TEST(q2.collectives[0].exposed_seconds == std::max(0.0, cost - between), boost::test_tools::tolerance(1e-9));
  }
}

/// v5e without what does not depend on bytes.
topology::Slice without_latency(const std::string& name) {
  const auto slice = topology::make_slice(name);
  auto hardware = slice.hardware;
  hardware.hop_seconds.value = 0;
  for (auto& [kind, rate] : hardware.collectives) rate.alpha_seconds.value = 0;
  return topology::build_slice(slice.name, slice.dims, slice.wraps, slice.cores_per_chip, hardware);
}

// Collectives contend where they share directed links and nowhere else: rows and columns do not, two permutes in
// opposite directions do not, two on the same rows take turns.
BOOST_AUTO_TEST_CASE(SharedLinksAreShared_NothingElseIs) {
  const auto slice = without_latency("v5e:2x4");
  const auto both = [&](const auto& first, const auto& second) {
    Schedule schedule;
    const auto a = first(schedule), b = second(schedule);
    schedule.step(Step::Kind::start, a).step(Step::Kind::start, b).step(Step::Kind::done, a).step(Step::Kind::done, b);
    const Q2 q2 = score(schedule.program, ranking::identity(slice), slice, 1);
    const double once = std::max(seconds_of(schedule, a, slice), seconds_of(schedule, b, slice));
    BOOST_TEST(q2.contention_seconds == q2.step_seconds - once, boost::test_tools::tolerance(1e-9));
    return q2.step_seconds / once;
  };
  const ir::ReplicaGroups along{{0, 1, 2, 3}, {4, 5, 6, 7}}, across{{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  const auto gather = [](const ir::ReplicaGroups& groups) {
    return [groups](Schedule& schedule) { return schedule.add(groups, 100 * megabyte); };
  };
  const auto permute = [](std::vector<std::pair<std::int32_t, std::int32_t>> pairs) {
    return [pairs](Schedule& schedule) { return schedule.permute(pairs, 100 * megabyte); };
  };
  const auto exactly = boost::test_tools::tolerance(1e-9);
  BOOST_TEST(both(gather(along), gather(across)) == 1.0, exactly);
  BOOST_TEST(both(gather(along), gather(along)) == 2.0, exactly);
  BOOST_TEST(both(permute({{0, 1}, {1, 2}, {2, 3}}), permute({{3, 2}, {2, 1}, {1, 0}})) == 1.0, exactly);
  BOOST_TEST(both(permute({{0, 1}}), permute({{4, 5}})) == 1.0, exactly);
  // Paper, Figure 3: alone 23 GB/s, 15.2 where two share a link, in one collective or in two.
  BOOST_TEST(both(permute({{0, 2}}), permute({{1, 3}})) == 23 / 15.2, boost::test_tools::tolerance(0.005));
}

// A later one slows the first only from then on; a link is parted among the transfers on it, not among collectives.
BOOST_AUTO_TEST_CASE(Sharing_IsFromWhenTheyMeetAndTransferByTransfer) {
  const auto slice = without_latency("v5e:2x4");
  const auto waits = [&](const Schedule& schedule) {
    std::vector<double> result;
    for (const auto& cost : ranking::explain(schedule.program, ranking::identity(slice), slice, 1).collectives)
      result.push_back(cost.exposed_seconds);
    return result;
  };
  Schedule late;
  const ir::ReplicaGroups along{{0, 1, 2, 3}, {4, 5, 6, 7}};
  const auto a = late.add(along, 100 * megabyte), b = late.add(along, 100 * megabyte);
  const double once = seconds_of(late, a, slice);
  late.step(Step::Kind::start, a).compute(once / 2).step(Step::Kind::start, b);
  late.step(Step::Kind::done, a).step(Step::Kind::done, b);
  const std::vector<double> ends{once, once / 2};  // 1.5 and 2 of it, seen from where the core waits
  BOOST_TEST(waits(late) == ends, boost::test_tools::tolerance(1e-9) << boost::test_tools::per_element());

  Schedule uneven;  // one transfer over the middle link beside two of another collective
  const auto one = uneven.permute({{1, 2}}, 100 * megabyte), two = uneven.permute({{0, 2}, {1, 3}}, 100 * megabyte);
  uneven.step(Step::Kind::start, one).step(Step::Kind::start, two);
  uneven.step(Step::Kind::done, one).step(Step::Kind::done, two);
  BOOST_TEST(waits(uneven)[0] == 3 * 100e6 / 30.4e9, boost::test_tools::tolerance(0.005));
  BOOST_TEST(waits(uneven)[1] == 0, boost::test_tools::tolerance(1e-12));
}

// R_cont: none for one alone; what hides under compute costs nothing, however much it shares.
BOOST_AUTO_TEST_CASE(Contention_IsWhatTheCoreFeels) {
  const auto slice = without_latency("v5e:2x4");
  const ir::ReplicaGroups along{{0, 1, 2, 3}, {4, 5, 6, 7}};
  for (const int others : {0, 1, 2}) {
    for (const double compute : {0.0, 1.0}) {
      Schedule schedule;
      std::vector<std::int32_t> all;
      for (int k = 0; k <= others; ++k) all.push_back(schedule.add(along, 100 * megabyte));
      for (const auto c : all) schedule.step(Step::Kind::start, c);
      schedule.compute(compute);
      for (const auto c : all) schedule.step(Step::Kind::done, c);
      const double once = seconds_of(schedule, all[0], slice);
      const double contention = score(schedule.program, ranking::identity(slice), slice, 1).contention_seconds;
      BOOST_TEST(contention == (compute > 0 ? 0.0 : others * once), boost::test_tools::tolerance(1e-9));
    }
  }
}

// Of random collectives in flight together: no link is over-full, and nobody gets less than if every transfer got an
// even part of every link it crosses.
BOOST_DATA_TEST_CASE(Sharing_FillsNoLinkTwiceAndStarvesNobody, boost::unit_test::data::xrange(60), seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto slice = topology::make_slice(seed % 2 ? "v5e:4x4" : "v5e:2x4");
  const ranking::Network network(slice);
  const auto n = static_cast<std::int32_t>(slice.devices.size());
  std::vector<ranking::UnitCost> units;
  std::vector<std::int32_t> together;
  for (std::int32_t k = 0; k < 2 + seed % 4; ++k) {
    placement::Placement placement = ranking::identity(slice);
    std::shuffle(placement.devices.begin(), placement.devices.end(), random);
    ranking::Pattern pattern;
    pattern.kind = topology::all_collective_kinds[random() % topology::all_collective_kinds.size()];
    const std::int32_t size = 2 << (random() % 2);
    for (std::int32_t rank = 0; rank < n; ++rank) {
      if (rank % size == 0) pattern.groups.emplace_back();
      pattern.groups.back().push_back(rank);
      if (rank > 0) pattern.pairs.emplace_back(rank - 1, rank);
    }
    units.push_back(ranking::unit_cost(ranking::place(pattern, placement.devices), network));
    together.push_back(k);
  }
  ranking::Shares shares(units, slice.links.size());
  const auto given = shares.rates(together);
  const std::vector<double> rates(given.begin(), given.end());
  std::vector<double> used(slice.links.size(), 0.0), transfers(slice.links.size(), 0.0);
  for (std::size_t i = 0; i < units.size(); ++i) {
    for (const auto& use : units[i].links) {
      used[use.link] += rates[i] * use.share;
      transfers[use.link] += use.flows;
    }
  }
  for (const double part : used) BOOST_TEST(part <= 1 + 1e-9);
  for (std::size_t i = 0; i < units.size(); ++i) {
    double even = 1;
    for (const auto& use : units[i].links) even = std::min(even, use.flows / transfers[use.link] / use.share);
    BOOST_TEST(rates[i] >= even * (1 - 1e-9));
    BOOST_TEST(rates[i] <= 1);
  }
}

// The dependency model lets a collective begin when its operands are ready and waits where the result is needed.
BOOST_AUTO_TEST_CASE(DependencyOrder_StartsEarly) {
  const auto slice = topology::make_slice("v5e:2x2");
  Schedule schedule;
  const auto a = schedule.add(rows, 100 * megabyte);
  const double cost = seconds_of(schedule, a, slice);
  schedule.compute(cost).compute(2 * cost).step(Step::Kind::synchronous, a).compute(cost);
  Step& step = schedule.program.sequences[0].steps[2];
  step.ready = 0;
  step.needed = 3;
  Q2Options by_dependency;
  by_dependency.dependency_order = true;
  BOOST_TEST(schedule.seconds(slice) == 5 * cost, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(score(schedule.program, ranking::identity(slice), slice, 1, by_dependency).step_seconds == 4 * cost,
             boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(Recorded_Laws) {
  for (const auto& [file, name] : ranking::recorded_programs) {
    BOOST_TEST_CONTEXT(file) {
      const auto slice = topology::make_slice(name);
      const CompiledProgram program = recorded(file, slice);
      const auto placement = ranking::identity(slice);
      const Q2 q2 = score(program, placement, slice, 40);
      const Q2 breakdown = ranking::explain(program, placement, slice, 40);
      BOOST_TEST(q2.step_seconds == q2.outside_seconds + 40 * q2.block_seconds, boost::test_tools::tolerance(1e-9));
      BOOST_TEST(q2.step_seconds == breakdown.step_seconds);
      BOOST_TEST(q2.contention_seconds >= 0);
      BOOST_TEST(q2.outside_seconds > 0);
      BOOST_TEST(q2.block_seconds >= q2.compute.total() * (1 - 1e-9));
      BOOST_TEST(q2.block_seconds >= q2.compute.total() + q2.exposed_communication_seconds - 1e-9);

      double exposed = 0;
      for (const auto& cost : breakdown.collectives) {
        exposed += cost.runs * cost.exposed_seconds;
        BOOST_TEST(cost.exposed_seconds <= q2.block_seconds);
        BOOST_TEST(cost.contention_seconds >= 0);
      }
      BOOST_TEST(exposed == q2.exposed_communication_seconds, boost::test_tools::tolerance(0.02));

      // Slower links never help; half the rate of every link and flow is what rate_scale says.
      Q2Options half;
      half.rate_scale = 0.5;
      const double slower = score(program, placement, slice, 40, half).block_seconds;
      BOOST_TEST(slower >= q2.block_seconds * (1 - 1e-9));
      auto hardware = slice.hardware;
      hardware.ici_bytes_per_second.value /= 2;
      for (auto& [kind, rate] : hardware.collectives) rate.flow_bytes_per_second.value /= 2;
      const auto slow = topology::build_slice(slice.name, slice.dims, slice.wraps, slice.cores_per_chip, hardware);
      BOOST_TEST(score(program, placement, slow, 40).block_seconds == slower, boost::test_tools::tolerance(1e-6));

      // The two scheduling models differ by the look-ahead inside a block, not by what a block costs.
      Q2Options by_dependency;
      by_dependency.dependency_order = true;
      BOOST_TEST(score(program, placement, slice, 40, by_dependency).block_seconds == q2.block_seconds,
                 boost::test_tools::tolerance(0.15));
    }
  }
}

// The core's slots fill the block, each kind with its part of the breakdown; a collective flies as often as it runs,
// never twice at once, and never faster than alone.
BOOST_AUTO_TEST_CASE(Recorded_TimelineIsTheBlock) {
  using Kind = ranking::CoreSlot::Kind;
  const auto tolerance = boost::test_tools::tolerance(1e-6);
  for (const auto& [file, name] : ranking::recorded_programs) {
    BOOST_TEST_CONTEXT(file) {
      const auto slice = topology::make_slice(name);
      const CompiledProgram program = recorded(file, slice);
      const Q2 q2 = ranking::explain(program, ranking::identity(slice), slice, 40);
      std::map<Kind, double> spent;
      double core = 0;
      for (const auto& slot : q2.timeline.core) {
        BOOST_TEST(slot.seconds > 0);
        spent[slot.kind] += slot.seconds;
        core += slot.seconds;
      }
      BOOST_TEST(core == q2.block_seconds, tolerance);
      BOOST_TEST(spent[Kind::matmul] == q2.compute.matmul_seconds, tolerance);
      BOOST_TEST(spent[Kind::attention] == q2.compute.attention_seconds, tolerance);
      BOOST_TEST(spent[Kind::relayout] == q2.compute.relayout_seconds, tolerance);
      BOOST_TEST(spent[Kind::other] == q2.compute.other_seconds, tolerance);
      BOOST_TEST(spent[Kind::wait] >= q2.exposed_communication_seconds * (1 - 1e-6));

      std::vector<double> flown(q2.collectives.size(), 0.0), last(q2.collectives.size(), 0.0);
      std::vector<int> times(q2.collectives.size(), 0);
      for (const auto& flight : q2.timeline.flights) {
        const auto c = static_cast<std::size_t>(flight.collective);
        BOOST_TEST(flight.begin_seconds >= last.at(c) * (1 - 1e-9));
        BOOST_TEST(flight.end_seconds > flight.begin_seconds);
        BOOST_TEST(flight.end_seconds <= q2.block_seconds * (1 + 1e-9));
        last[c] = flight.end_seconds;
        flown[c] += flight.end_seconds - flight.begin_seconds;
        ++times[c];
      }
      for (std::size_t c = 0; c < q2.collectives.size(); ++c) {
        const auto& cost = q2.collectives[c];
        BOOST_TEST(flown[c] >= cost.runs * cost.seconds * (1 - 1e-6));
        BOOST_TEST(times[c] >= cost.runs);
        BOOST_TEST(times[c] <= cost.runs + 1);  // one over the block's edge comes in two parts
        BOOST_TEST(cost.links.size() == cost.link_bytes_per_byte.size());
      }
    }
  }
}

// An inner loop of many trips is written out, one of very many is not; either way the slots fill the time.
BOOST_AUTO_TEST_CASE(Timeline_WritesOutTripsUpToALimit) {
  const auto slice = topology::make_slice("v5e:2x2");
  for (const std::int64_t trips : {1, 2, 3, 4, 50, 1000000}) {
    Schedule schedule;
    const auto gather = schedule.add({{0, 1}, {2, 3}}, 1 << 20);
    schedule.compute(1e-5).step(Step::Kind::synchronous, gather);
    schedule.program.sequences.emplace_back();
    Step loop;
    loop.kind = Step::Kind::loop;
    loop.body = 0;
    loop.trips = trips;
    schedule.program.sequences[1].steps.push_back(loop);
    schedule.program.entry = 1;
    const Q2 q2 = ranking::explain(schedule.program, ranking::identity(slice), slice, 1);
    double core = 0;
    for (const auto& slot : q2.timeline.core) core += slot.seconds;
    BOOST_TEST(core == q2.step_seconds, boost::test_tools::tolerance(1e-9));
    BOOST_TEST((q2.timeline.core.back().kind == ranking::CoreSlot::Kind::trips) == (trips > 4096));
    if (trips <= 4096) BOOST_TEST(q2.timeline.flights.size() == static_cast<std::size_t>(trips));
    BOOST_TEST(q2.timeline.core.size() <= 8200U);
  }
}

// A scorer remembers nothing wrong, and many may work at once: the same bits as a new one for each placement.
BOOST_AUTO_TEST_CASE(Recorded_AnswersDoNotDependOnWhatCameBefore) {
  for (const auto& [file, name] : ranking::recorded_programs) {
    const auto slice = topology::make_slice(name);
    const CompiledProgram program = recorded(file, slice);
    std::mt19937 random(7);
    std::vector<placement::Placement> placements;
    for (int k = 0; k < 12; ++k) {
      placements.push_back(ranking::identity(slice));
      std::shuffle(placements.back().devices.begin(), placements.back().devices.end(), random);
    }
    std::vector<double> fresh;
    for (const auto& placement : placements) fresh.push_back(score(program, placement, slice, 40).step_seconds);
    std::vector<std::vector<double>> remembered(3, std::vector<double>(placements.size()));
    std::vector<std::thread> threads;
    for (auto& seconds : remembered) {
      threads.emplace_back([&] {
        ranking::Scorer scorer(program, slice, 40);
        for (int round = 0; round < 2; ++round) {
          for (std::size_t k = placements.size(); k-- > 0;) seconds[k] = scorer.score(placements[k]).step_seconds;
        }
      });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& seconds : remembered) BOOST_TEST(seconds == fresh, boost::test_tools::per_element());
  }
}

// A mirrored or turned slice is the same slice.
BOOST_AUTO_TEST_CASE(Recorded_AutomorphismsChangeNothing) {
  const auto slice = topology::make_slice("v5e:4x4");
  const CompiledProgram program = recorded("flash_d2c8_4x4.hlo.txt", slice);
  const double seconds = score(program, ranking::identity(slice), slice, 40).step_seconds;
  for (const auto& map : topology::automorphisms(slice)) {
    placement::Placement moved = ranking::identity(slice);
    for (auto& device : moved.devices) device = map[device];
    BOOST_TEST(score(program, moved, slice, 40).step_seconds == seconds, boost::test_tools::tolerance(1e-6));
  }
}

// The paper's case: 2x2x2 on 2x4 has six placements; tensor, whose all-reduces nothing hides, wants to be near and data
// can be far.
BOOST_AUTO_TEST_CASE(SixPlacements_TensorNearDataFarWins) {
  const auto slice = topology::make_slice("v5e:2x4");
  const CompiledProgram program = recorded("flash_d2c2t2.hlo.txt", slice);
  const std::vector<candidates::MeshAxis> mesh{{"data", 2}, {"context", 2}, {"tensor", 2}};
  const auto distinct = placement::distinct_axis_orders(mesh, slice, {});
  BOOST_REQUIRE_EQUAL(distinct.placements.size(), 6u);
  const auto far = [&](const placement::Placement& placement, std::size_t stride) {
    const auto& a = slice.devices[placement.devices[0]].coordinates;
    const auto& b = slice.devices[placement.devices[stride]].coordinates;
    return std::abs(a[0] - b[0]) + std::abs(a[1] - b[1]) > 1;
  };
  double data_far = 0, context_far = 1e9, context_far_most = 0, tensor_far = 1e9;
  for (const auto& placement : distinct.placements) {
    const double seconds = score(program, placement, slice, 40).block_seconds;
    if (far(placement, 4)) data_far = std::max(data_far, seconds);
    if (far(placement, 2))
      context_far = std::min(context_far, seconds), context_far_most = std::max(context_far_most, seconds);
    if (far(placement, 1)) tensor_far = std::min(tensor_far, seconds);
  }
  BOOST_TEST(data_far < context_far);
  BOOST_TEST(context_far_most < tensor_far);
}

BOOST_AUTO_TEST_CASE(BadRequests_AreNamed) {
  const auto slice = topology::make_slice("v5e:2x2");
  Schedule schedule;
  schedule.compute(1e-3);
  placement::Placement twice = ranking::identity(slice);
  twice.devices[1] = 0;
  BOOST_CHECK_THROW(score(schedule.program, twice, slice, 1), InvalidRequest);
  BOOST_CHECK_THROW(score(schedule.program, ranking::identity(slice), slice, 0), InvalidRequest);
  BOOST_CHECK_THROW(score(CompiledProgram{}, ranking::identity(slice), slice, 1), InvalidRequest);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(rank)

BOOST_AUTO_TEST_CASE(InfersTheMesh) {
  const auto sizes = [](std::vector<ranking::Pattern> patterns, std::int32_t devices) {
    std::vector<std::int64_t> result;
    for (const auto& axis : ranking::infer_mesh(patterns, devices).axes) result.push_back(axis.size);
    return result;
  };
  const ranking::Pattern halves{CollectiveKind::all_gather, {{0, 1, 2, 3}, {4, 5, 6, 7}}, {}};
  const ranking::Pattern pairs{CollectiveKind::all_reduce, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}, {}};
  const ranking::Pattern thirds{CollectiveKind::all_reduce, {{0, 4, 8}, {1, 5, 9}, {2, 6, 10}, {3, 7, 11}}, {}};
  BOOST_TEST(sizes({}, 8) == std::vector<std::int64_t>{8});
  BOOST_TEST(sizes({halves}, 8) == (std::vector<std::int64_t>{2, 4}));
  BOOST_TEST(sizes({halves, pairs}, 8) == (std::vector<std::int64_t>{2, 2, 2}));
  BOOST_TEST(sizes({thirds}, 12) == (std::vector<std::int64_t>{3, 4}));
}

BOOST_AUTO_TEST_CASE(ReadsAMesh) {
  const std::vector<candidates::MeshAxis> wanted{{"data", 2}, {"context", 4}};
  BOOST_TEST((ranking::read_mesh(R"([{"name": "data", "size": 2}, {"name": "context", "size": 4}])") == wanted));
  BOOST_TEST((ranking::read_mesh(R"([["data", 2], ["context", 4]])") == wanted));
  BOOST_TEST(ranking::read_mesh("").empty());
  BOOST_CHECK_THROW(ranking::read_mesh("[{"), ParseError);
  for (const char* text : {"{}", "[2, 4]", R"([["data"]])", R"([{"name": "data", "size": "2"}])"}) {
    BOOST_CHECK_THROW(ranking::read_mesh(text), InvalidRequest);
  }
}

BOOST_AUTO_TEST_CASE(RanksAnyProgram) {
  const auto slice = topology::make_slice("v5e:2x4");
  const ir::Program program = ir::read_hlo(ranking::recorded_text("flash_d2c2t2.hlo.txt"));
  const auto inferred = boost::json::parse(ranking::rank_json(program, slice)).as_object();
  BOOST_TEST(inferred.at("placements").to_number<int>() == 6);
  BOOST_TEST(inferred.at("gain").to_number<double>() > 0);
  BOOST_TEST(inferred.at("best").at("step_seconds").to_number<double>() <=
             inferred.at("default").at("step_seconds").to_number<double>());
  BOOST_TEST(inferred.at("collectives").as_array().size() == 16u);
  const std::vector<candidates::MeshAxis> mesh{{"data", 2}, {"context", 2}, {"tensor", 2}};
  const auto given = boost::json::parse(ranking::rank_json(program, slice, mesh)).as_object();
  BOOST_TEST(given.at("best").at("step_seconds").to_number<double>() ==
             inferred.at("best").at("step_seconds").to_number<double>());
  BOOST_CHECK_THROW(ranking::rank_json(program, topology::make_slice("v5e:4x4")), InvalidRequest);
  BOOST_CHECK_THROW(ranking::rank_json(program, slice, std::vector<candidates::MeshAxis>{{"a", 4}}), InvalidRequest);
}

BOOST_AUTO_TEST_SUITE_END()
