#include "aoizora/simulation/simulation.h"

#include <boost/json.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "aoizora/errors.h"
#include "aoizora/ranking/q2.h"
#include "aoizora/simulation/test_programs.h"
#include "aoizora/topology/test_slices.h"

namespace {

using namespace aoizora;
using ranking::Step;
using simulation::identity;
using simulation::Options;
using simulation::Recorded;
using simulation::Schedule;
using simulation::simulate;
using simulation::Timing;
using topology::CollectiveKind;
namespace data = boost::unit_test::data;

constexpr std::int64_t megabyte = 1'000'000;
const auto exactly = boost::test_tools::tolerance(1e-9);
const ir::ReplicaGroups rows{{0, 1}, {2, 3}}, columns{{0, 2}, {1, 3}};

double alone(const ir::ReplicaGroups& groups, std::int64_t bytes, const topology::Slice& slice) {
  return simulation::collective_seconds(CollectiveKind::all_gather, groups, static_cast<double>(bytes), identity(slice),
                                        slice);
}

void check_equal(const Timing& a, const Timing& b, double tolerance) {
  const auto close = boost::test_tools::tolerance(tolerance);
  BOOST_TEST(a.step_seconds == b.step_seconds, close);
  BOOST_TEST(a.block_seconds == b.block_seconds, close);
  BOOST_TEST(std::abs(a.exposed_communication_seconds - b.exposed_communication_seconds) <=
             tolerance * (b.block_seconds + b.step_seconds));
  BOOST_REQUIRE_EQUAL(a.collectives.size(), b.collectives.size());
  for (std::size_t k = 0; k < a.collectives.size(); ++k) {
    BOOST_TEST(a.collectives[k].collective == b.collectives[k].collective);
    BOOST_TEST(std::abs(a.collectives[k].start_seconds - b.collectives[k].start_seconds) <= tolerance * b.step_seconds);
    BOOST_TEST(std::abs(a.collectives[k].end_seconds - b.collectives[k].end_seconds) <= tolerance * b.step_seconds);
  }
}

/// A schedule of loops in loops, copies and collectives that start and end anywhere, inside loops and across them.
Schedule random_schedule(std::mt19937& random, const topology::Slice& slice) {
  Schedule schedule;
  const auto n = static_cast<std::int32_t>(slice.devices.size());
  const auto number = [&](int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); };
  std::vector<std::int32_t> all;
  for (int c = 0; c < 6; ++c) {
    const std::int64_t bytes = (1 + number(40)) * megabyte / 4;
    const auto kind = topology::all_collective_kinds[number(7)];
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
    ir::ReplicaGroups groups;
    if (kind == CollectiveKind::permute) {
      for (std::int32_t r = 0; r < n; ++r) pairs.emplace_back(r, (r + 1) % n);
    } else {
      const int size = number(2) == 0 ? 2 : n / 2;
      groups.resize(n / size);
      for (std::int32_t r = 0; r < n; ++r) groups[number(2) == 0 ? r / size : r / size].push_back(r);
    }
    all.push_back(schedule.collective(kind, groups, bytes, pairs));
  }
  const auto fill = [&](std::int32_t sequence, std::vector<std::int32_t> mine, std::int32_t copy) {
    std::vector<std::int32_t> open;
    schedule.copy(Step::Kind::copy_start, copy, 1e-4 * number(10), sequence);
    for (const std::int32_t c : mine) {
      schedule.compute(1e-5 * number(60), sequence);
      if (number(3) == 0) {
        schedule.step(Step::Kind::synchronous, c, sequence);
      } else {
        schedule.step(Step::Kind::start, c, sequence);
        open.push_back(c);
      }
    }
    schedule.compute(1e-5 * number(60), sequence);
    if (number(4) > 0) schedule.copy(Step::Kind::copy_done, copy, 0, sequence);
    for (const std::int32_t c : open) {
      if (number(6) > 0) schedule.step(Step::Kind::done, c, sequence);
    }
  };
  const std::int32_t block = schedule.sequence(), inner = schedule.sequence();
  schedule.step(Step::Kind::start, all[0]);
  fill(inner, {all[3]}, 0);
  fill(block, {all[1], all[2]}, 1);
  schedule.loop(inner, 2 + number(9), block);
  fill(block, {all[4]}, 2);
  schedule.loop(block, 7);
  schedule.step(Step::Kind::done, all[0]);
  schedule.step(Step::Kind::synchronous, all[5]);
  schedule.program.block = block;
  return schedule;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(programs)

// A synchronous collective stops the core; an asynchronous one only where its done comes too soon.
BOOST_AUTO_TEST_CASE(SynchronousStops_AsynchronousHides) {
  const auto slice = topology::make_slice("v5e:2x2");
  const double cost = alone(rows, 100 * megabyte, slice);
  Schedule synchronous;
  const auto a = synchronous.collective(CollectiveKind::all_gather, rows, 100 * megabyte);
  synchronous.compute(1e-3).step(Step::Kind::synchronous, a).compute(1e-3);
  BOOST_TEST(simulate(synchronous.program, identity(slice), slice, 1).step_seconds == 2e-3 + cost, exactly);
  for (const double between : {2 * cost, cost / 2}) {
    Schedule schedule;
    const auto b = schedule.collective(CollectiveKind::all_gather, rows, 100 * megabyte);
    schedule.compute(1e-3).step(Step::Kind::start, b).compute(between).step(Step::Kind::done, b).compute(1e-3);
    const Timing timing = simulate(schedule.program, identity(slice), slice, 1);
    BOOST_TEST(timing.step_seconds == 2e-3 + std::max(between, cost), exactly);
    BOOST_TEST(timing.exposed_communication_seconds == std::max(0.0, cost - between), exactly);
    BOOST_REQUIRE_EQUAL(timing.collectives.size(), 1u);
    BOOST_TEST(timing.collectives[0].start_seconds == 1e-3, exactly);
    BOOST_TEST(timing.collectives[0].end_seconds == 1e-3 + cost, exactly);
  }
}

// Two in flight share the links they have in common and nothing else; a later one slows the first only from then on.
BOOST_AUTO_TEST_CASE(CollectivesInFlight_ShareLinks) {
  auto slice = topology::make_slice("v5e:2x2");
  slice.hardware.hop_seconds.value = 0;
  for (auto& [kind, rate] : slice.hardware.collectives) rate.alpha_seconds.value = 0;
  const double cost = alone(rows, 100 * megabyte, slice);
  const auto seconds = [&](const ir::ReplicaGroups& first, const ir::ReplicaGroups& second, double between) {
    Schedule schedule;
    const auto a = schedule.collective(CollectiveKind::all_gather, first, 100 * megabyte);
    const auto b = schedule.collective(CollectiveKind::all_gather, second, 100 * megabyte);
    schedule.step(Step::Kind::start, a).compute(between).step(Step::Kind::start, b);
    schedule.step(Step::Kind::done, a).step(Step::Kind::done, b);
    return simulate(schedule.program, identity(slice), slice, 1);
  };
  BOOST_TEST(seconds(rows, columns, 0).step_seconds == cost, exactly);
  BOOST_TEST(seconds(rows, rows, 0).step_seconds == 2 * cost, exactly);
  const Timing late = seconds(rows, rows, cost / 2);
  BOOST_TEST(late.collectives[0].end_seconds == 1.5 * cost, exactly);
  BOOST_TEST(late.collectives[1].end_seconds == 2 * cost, exactly);
  BOOST_TEST(seconds(rows, rows, 3 * cost).step_seconds == 4 * cost, exactly);
}

// DMAs run one after the other beside the core.
BOOST_AUTO_TEST_CASE(Copies_QueueBesideTheCore) {
  const auto slice = topology::make_slice("v5e:2x2");
  Schedule schedule;
  schedule.copy(Step::Kind::copy_start, 0, 3e-3).copy(Step::Kind::copy_start, 1, 4e-3).compute(1e-3);
  schedule.copy(Step::Kind::copy_done, 0, 0).compute(2e-3).copy(Step::Kind::copy_done, 1, 0);
  BOOST_TEST(simulate(schedule.program, identity(slice), slice, 1).step_seconds == 7e-3, exactly);
}

// The short cuts are exact: collectives alone in flight timed once, loops left when they repeat. Schedules with copies
// and collectives across trips, on every kind of slice, give the same as every trip run event by event.
BOOST_DATA_TEST_CASE(ShortCuts_ChangeNothing, data::xrange(120), seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const std::vector<topology::Slice> slices{
      topology::make_slice("v5e:2x4"), simulation::with_directions(topology::make_slice("v5e:2x4"), 0),
      topology::make_slice("v5e:4x4"), topology::slice_of({8}, {true}), topology::slice_of({2, 2}, {true, true}, 2)};
  const topology::Slice& slice = slices[seed % slices.size()];
  const Schedule schedule = random_schedule(random, slice);
  const auto placement = simulation::shuffled(slice, random);
  check_equal(simulate(schedule.program, placement, slice, 7),
              simulate(schedule.program, placement, slice, 7, {1.0, true}), 1e-9);
}

BOOST_DATA_TEST_CASE(ShortCuts_ChangeNothingOfRecordedPrograms, data::xrange(simulation::recorded_programs.size()),
                     index) {
  const Recorded& recorded = simulation::recorded_programs[index];
  const auto slice = topology::make_slice(recorded.slice);
  const auto program = simulation::compiled(recorded.file, slice);
  for (const auto& placement : simulation::some_placements(recorded, slice, 2))
    check_equal(simulate(program, placement, slice, 5), simulate(program, placement, slice, 5, {1.0, true}), 1e-9);
}

// One simulator for many placements gives what a new one gives for each.
BOOST_AUTO_TEST_CASE(Simulator_RemembersNothingWrong) {
  const Recorded& recorded = simulation::recorded_programs[3];
  const auto slice = topology::make_slice(recorded.slice);
  const auto program = simulation::compiled(recorded.file, slice);
  simulation::Simulator simulator(program, slice, 40);
  for (int round = 0; round < 2; ++round) {
    for (const auto& placement : simulation::some_placements(recorded, slice, 6)) {
      const Timing again = simulator.simulate(placement), fresh = simulate(program, placement, slice, 40);
      BOOST_TEST(again.step_seconds == fresh.step_seconds);
      BOOST_TEST(again.block_seconds == fresh.block_seconds);
    }
  }
}

// What every timing of a recorded program obeys: the core is never faster than its compute, a step is its parts, depth
// adds blocks of one length, links at half the rate never help and cost at most twice.
BOOST_DATA_TEST_CASE(RecordedPrograms_ObeyTheirLaws, data::xrange(simulation::recorded_programs.size()), index) {
  const Recorded& recorded = simulation::recorded_programs[index];
  const auto slice = topology::make_slice(recorded.slice);
  const auto program = simulation::compiled(recorded.file, slice);
  BOOST_REQUIRE(program.block >= 0);
  const double compute = program.sequences[program.block].compute.total();
  for (const auto& placement : simulation::some_placements(recorded, slice, 3)) {
    const Timing timing = simulate(program, placement, slice, 40);
    BOOST_TEST(timing.block_seconds >= compute * (1 - 1e-9));
    BOOST_TEST(timing.block_seconds >= compute + timing.exposed_communication_seconds - 1e-9);
    BOOST_TEST(timing.step_seconds == timing.outside_seconds + 40 * timing.block_seconds, exactly);
    const Timing deeper = simulate(program, placement, slice, 48);
    BOOST_TEST(deeper.step_seconds - timing.step_seconds == 8 * timing.block_seconds,
               boost::test_tools::tolerance(1e-6));
    const Timing slow = simulate(program, placement, slice, 40, {0.5});
    BOOST_TEST(slow.step_seconds >= timing.step_seconds * (1 - 1e-9));
    BOOST_TEST(slow.step_seconds <= 2 * timing.step_seconds);
    const auto& steps = program.sequences[program.block].steps;
    if (std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.trips > 1; })) continue;
    double exposed = 0;  // without inner loops the list holds every run
    for (const auto& one : timing.collectives) exposed += one.exposed_seconds;
    BOOST_TEST(exposed == timing.exposed_communication_seconds, exactly);
  }
}

// Mirror images of a placement take the same time (several ports: with one ring the tour need not be symmetric).
BOOST_DATA_TEST_CASE(RecordedPrograms_AreSymmetric, data::make({0, 3, 4, 9}), index) {
  const Recorded& recorded = simulation::recorded_programs[index];
  const auto slice = simulation::with_directions(topology::make_slice(recorded.slice), 0);
  const auto program = simulation::compiled(recorded.file, slice);
  for (const auto& placement : simulation::some_placements(recorded, slice, 3)) {
    const double seconds = simulate(program, placement, slice, 40).block_seconds;
    for (const auto& automorphism : topology::automorphisms(slice)) {
      auto mirrored = placement;
      for (auto& device : mirrored.devices) device = automorphism[device];
      BOOST_TEST(simulate(program, mirrored, slice, 40).block_seconds == seconds, exactly);
    }
  }
}

// Endless loops, deep loops, loops of nothing: an answer at once.
BOOST_AUTO_TEST_CASE(EndlessLoops_AreAnswered) {
  const auto slice = topology::make_slice("v5e:2x2");
  Schedule schedule;
  const auto c = schedule.collective(CollectiveKind::all_reduce, {}, 10 * megabyte);
  const std::int32_t body = schedule.sequence(), empty = schedule.sequence();
  schedule.compute(1e-3, body).step(Step::Kind::start, c, body);
  schedule.loop(body, std::numeric_limits<std::int64_t>::max()).loop(empty, std::numeric_limits<std::int64_t>::max());
  const double seconds = simulate(schedule.program, identity(slice), slice, 1).step_seconds;
  BOOST_TEST(seconds > 9e15);
  BOOST_TEST(std::isfinite(seconds));
}

BOOST_AUTO_TEST_CASE(RefusesWhatCannotBe) {
  const auto slice = topology::make_slice("v5e:2x2");
  Schedule schedule;
  schedule.step(Step::Kind::synchronous, schedule.collective(CollectiveKind::all_gather, {{0, 7}}, 1));
  BOOST_CHECK_THROW(simulate(schedule.program, identity(slice), slice, 1), InvalidRequest);
  Schedule fine;
  fine.compute(1);
  BOOST_CHECK_THROW(simulate(fine.program, identity(slice), slice, 0), InvalidRequest);
  BOOST_CHECK_THROW(simulate(fine.program, identity(slice), slice, 1, {0.0}), InvalidRequest);
  BOOST_CHECK_THROW(simulate(fine.program, identity(slice), slice, 1, {std::nan("")}), InvalidRequest);
  BOOST_CHECK_THROW(simulate(fine.program, {{0, 0}, ""}, slice, 1), InvalidRequest);
  BOOST_CHECK_THROW(simulate(ranking::CompiledProgram{}, identity(slice), slice, 1), InvalidRequest);
}

// The schedule for other judges holds everything: its compute, its collectives on their devices, its loops at full
// depth.
BOOST_AUTO_TEST_CASE(ScheduleJson_HoldsTheProgram) {
  const Recorded& recorded = simulation::recorded_programs[3];
  const auto slice = topology::make_slice(recorded.slice);
  const auto program = simulation::compiled(recorded.file, slice);
  placement::Placement placement = identity(slice);
  std::reverse(placement.devices.begin(), placement.devices.end());
  const auto value = boost::json::parse(simulation::schedule_json(program, placement, slice, 40));
  const auto& sequences = value.at("sequences").as_array();
  BOOST_REQUIRE_EQUAL(sequences.size(), program.sequences.size());
  bool has_block = false;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    double compute = 0;
    for (const auto& step : sequences[s].at("steps").as_array()) {
      const auto kind = std::string(step.at(0).as_string());
      if (kind == "compute") compute += step.at(1).to_number<double>();
      if (kind != "loop") continue;
      const auto body = step.at(1).to_number<std::int32_t>();
      const auto trips = step.at(2).to_number<std::int64_t>();
      compute += program.sequences[body].compute.total() *
                 static_cast<double>(body == program.block ? program.proxy_layers : trips);
      if (body != program.block) continue;
      has_block = true;
      BOOST_TEST(trips == 40);
    }
    BOOST_TEST(compute == program.sequences[s].compute.total(), exactly);
  }
  BOOST_TEST(has_block);
  const auto& collectives = value.at("collectives").as_array();
  BOOST_REQUIRE_EQUAL(collectives.size(), program.collectives.size());
  for (std::size_t c = 0; c < collectives.size(); ++c) {
    BOOST_TEST(collectives[c].at("bytes").to_number<std::int64_t>() == program.collectives[c].payload_bytes());
    if (program.collectives[c].groups.empty()) continue;
    BOOST_TEST(collectives[c].at("groups").at(0).at(0).to_number<std::int32_t>() ==
               7 - program.collectives[c].groups[0][0]);
  }
  BOOST_TEST(value.at("slice").at("links").as_array().size() == slice.links.size());
}

// Beside the planner's Q2, which takes a collective for one flow over all its links: how far they are apart is printed
// with --log_level=message; where no collective overlaps another they price the same transfers and must agree.
BOOST_DATA_TEST_CASE(BesideQ2, data::xrange(simulation::recorded_programs.size()), index) {
  const Recorded& recorded = simulation::recorded_programs[index];
  const auto slice = topology::make_slice(recorded.slice);
  const auto program = simulation::compiled(recorded.file, slice);
  for (const auto& placement : simulation::some_placements(recorded, slice, 6)) {
    const auto began = std::chrono::steady_clock::now();
    const Timing timing = simulate(program, placement, slice, 40);
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const auto q2 = ranking::score(program, placement, slice, 40);
    BOOST_TEST_MESSAGE(recorded.file << " [" << placement.order << "] block " << timing.block_seconds * 1e3
                                     << " ms, Q2 " << q2.block_seconds * 1e3 << " ms, "
                                     << (q2.block_seconds / timing.block_seconds - 1) * 100 << " %; exposed "
                                     << timing.exposed_communication_seconds * 1e3 << ", Q2 "
                                     << q2.exposed_communication_seconds * 1e3 << ", contention "
                                     << q2.contention_seconds * 1e3 << "; step " << timing.step_seconds << " s, Q2 "
                                     << q2.step_seconds << "; simulated in " << took * 1e3 << " ms");
    bool overlap = false;
    double end = 0;
    for (const auto& one : timing.collectives) {
      overlap = overlap || one.start_seconds < end;
      end = std::max(end, one.end_seconds);
    }
    const auto& steps = program.sequences[program.block].steps;
    for (const Step& step : steps) overlap = overlap || step.trips > 1;
    if (!overlap) BOOST_TEST(q2.block_seconds == timing.block_seconds, boost::test_tools::tolerance(1e-3));
  }
}

BOOST_AUTO_TEST_SUITE_END()
