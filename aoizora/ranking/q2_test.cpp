#include "aoizora/ranking/q2.h"

#include <algorithm>
#include <boost/json.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <string>

#include "aoizora/errors.h"
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
  std::int32_t add(ir::ReplicaGroups groups, std::int64_t bytes) {
    ir::Collective collective;
    collective.kind = CollectiveKind::all_gather;
    collective.groups = std::move(groups);
    collective.result_bytes = collective.operand_bytes = bytes;
    program.patterns.push_back({collective.kind, collective.groups, {}});
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

// One engine a physical dimension: rows and columns overlap, two on the rows follow each other.
BOOST_AUTO_TEST_CASE(SameDimensionSerialises_DifferentOverlap) {
  const auto slice = topology::make_slice("v5e:2x2");
  const auto both = [&](const ir::ReplicaGroups& first, const ir::ReplicaGroups& second) {
    Schedule schedule;
    const auto a = schedule.add(first, 100 * megabyte), b = schedule.add(second, 100 * megabyte);
    schedule.step(Step::Kind::start, a).step(Step::Kind::start, b).step(Step::Kind::done, a).step(Step::Kind::done, b);
    const double once = seconds_of(schedule, a, slice);
    return schedule.seconds(slice) / once;
  };
  BOOST_TEST(both(rows, columns) == 1.0, boost::test_tools::tolerance(1e-3));
  BOOST_TEST(both(rows, rows) == 2.0, boost::test_tools::tolerance(0.02));
}

// R_cont: none for one collective alone, none where collectives share no link; where one spreads its traffic over a
// longer run than its engine was charged for and another comes in, the shared link is charged. Never negative.
BOOST_AUTO_TEST_CASE(Contention_OnlyBetweenCollectivesThatShareALink) {
  const auto slice = topology::make_slice("v5e:2x4");
  const auto contention = [&](const ir::ReplicaGroups& first, const ir::ReplicaGroups& second,
                              std::int64_t second_bytes) {
    Schedule schedule;
    const auto a = schedule.add(first, 400 * megabyte);
    schedule.step(Step::Kind::start, a);
    if (second_bytes > 0) {
      const auto b = schedule.add(second, second_bytes);
      schedule.step(Step::Kind::start, b).step(Step::Kind::done, b);
    }
    schedule.step(Step::Kind::done, a);
    return score(schedule.program, ranking::identity(slice), slice, 1).contention_seconds;
  };
  const ir::ReplicaGroups all{{0, 1, 2, 3, 4, 5, 6, 7}}, across{{0, 4}, {1, 5}, {2, 6}, {3, 7}},
      along{{0, 1, 2, 3}, {4, 5, 6, 7}};
  BOOST_TEST(contention(all, {}, 0) == 0.0);
  BOOST_TEST(contention(along, across, 400 * megabyte) == 0.0);
  BOOST_TEST(contention(all, across, 400 * megabyte) >= 0.0);

  // All-to-all keeps the lines of four busy longer than the pairs across them; pairs that come in early share those
  // wires.
  Schedule schedule;
  const auto a = schedule.add(all, 800 * megabyte);
  schedule.program.collectives[a].kind = schedule.program.patterns[a].kind = CollectiveKind::all_to_all;
  const auto cost = ranking::physical_cost(schedule.program.collectives[a], ranking::identity(slice), slice);
  BOOST_REQUIRE(cost.dimension_seconds[0] < cost.dimension_seconds[1]);
  const auto b = schedule.add(across, 800 * megabyte);
  schedule.step(Step::Kind::start, a).step(Step::Kind::start, b).step(Step::Kind::done, a).step(Step::Kind::done, b);
  BOOST_TEST(score(schedule.program, ranking::identity(slice), slice, 1).contention_seconds > 0);
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
