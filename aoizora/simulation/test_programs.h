#pragma once
// Recorded compiler output, hand-made schedules and random collectives for this room's tests.
#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "aoizora/ir/readers.h"
#include "aoizora/placement/placement.h"
#include "aoizora/ranking/schedule.h"

namespace aoizora::simulation {

/// A recorded program and the slice it was compiled for.
struct Recorded {
  std::string file;
  std::string slice;
  std::vector<candidates::MeshAxis> mesh;
};

inline const std::vector<Recorded> recorded_programs{
    {"flash_c8.hlo.txt", "v5e:2x4", {{"context", 8}}},
    {"flash_c8_nowin.hlo.txt", "v5e:2x4", {{"context", 8}}},
    {"flash_d2c2t2.hlo-passes-only.txt", "v5e:2x4", {{"data", 2}, {"context", 2}, {"tensor", 2}}},
    {"flash_d2c2t2.hlo.txt", "v5e:2x4", {{"data", 2}, {"context", 2}, {"tensor", 2}}},
    {"flash_d2c4.hlo.txt", "v5e:2x4", {{"data", 2}, {"context", 4}}},
    {"flash_d2c8_4x4.hlo-passes-only.txt", "v5e:4x4", {{"data", 2}, {"context", 8}}},
    {"flash_d2c8_4x4.hlo.txt", "v5e:4x4", {{"data", 2}, {"context", 8}}},
    {"flash_f2c4.hlo.txt", "v5e:2x4", {{"fsdp", 2}, {"context", 4}}},
    {"ring_d2c4.hlo.txt", "v5e:2x4", {{"data", 2}, {"context", 4}}},
    {"ulysses_c8.hlo.txt", "v5e:2x4", {{"context", 8}}}};

inline ranking::CompiledProgram compiled(const std::string& file, const topology::Slice& slice) {
  std::ifstream in(std::string(AOIZORA_TEST_DATA) + "/hlo/" + file, std::ios::binary);
  if (!in) throw std::runtime_error("no test data " + file);
  std::ostringstream out;
  out << in.rdbuf();
  return ranking::extract(ir::read_hlo(out.str()), slice.hardware);
}

/// Up to `count` of the distinct axis orders, the first and last among them.
inline std::vector<placement::Placement> some_placements(const Recorded& recorded, const topology::Slice& slice,
                                                         std::size_t count) {
  placement::PlacementOptions options;
  for (const auto& axis : recorded.mesh) options.ordered_axes.push_back(axis.name);
  const auto all = placement::distinct_axis_orders(recorded.mesh, slice, options).placements;
  std::vector<placement::Placement> result;
  const std::size_t wanted = std::min(count, all.size());
  for (std::size_t k = 0; k < wanted; ++k) result.push_back(all[wanted < 2 ? 0 : k * (all.size() - 1) / (wanted - 1)]);
  return result;
}

inline placement::Placement identity(const topology::Slice& slice) {
  placement::Placement placement;
  placement.devices.resize(slice.devices.size());
  std::iota(placement.devices.begin(), placement.devices.end(), 0);
  return placement;
}

inline placement::Placement shuffled(const topology::Slice& slice, std::mt19937& random) {
  placement::Placement placement = identity(slice);
  std::shuffle(placement.devices.begin(), placement.devices.end(), random);
  return placement;
}

/// The slice with `ring_directions` of every kind set.
inline topology::Slice with_directions(topology::Slice slice, double directions) {
  for (auto& [kind, rate] : slice.hardware.collectives) rate.ring_directions = {directions, "test"};
  return slice;
}

/// A schedule written by hand: sequence 0 is the entry.
struct Schedule {
  ranking::CompiledProgram program;

  Schedule() { program.sequences.emplace_back(); }
  std::int32_t collective(topology::CollectiveKind kind, ir::ReplicaGroups groups, std::int64_t bytes,
                          std::vector<std::pair<std::int32_t, std::int32_t>> pairs = {}) {
    ir::Collective one;
    one.kind = kind;
    one.groups = groups;
    one.pairs = pairs;
    one.result_bytes = one.operand_bytes = bytes;
    program.patterns.push_back({kind, std::move(groups), std::move(pairs)});
    program.pattern_of.push_back(static_cast<std::int32_t>(program.patterns.size()) - 1);
    program.collectives.push_back(std::move(one));
    program.collective_names.emplace_back("c");
    return static_cast<std::int32_t>(program.collectives.size()) - 1;
  }
  std::int32_t sequence() {
    program.sequences.emplace_back();
    return static_cast<std::int32_t>(program.sequences.size()) - 1;
  }
  Schedule& add(ranking::Step step, std::int32_t sequence = 0) {
    program.sequences[sequence].steps.push_back(std::move(step));
    return *this;
  }
  Schedule& compute(double seconds, std::int32_t sequence = 0) {
    ranking::Step step;
    step.seconds = seconds;
    return add(step, sequence);
  }
  Schedule& step(ranking::Step::Kind kind, std::int32_t collective, std::int32_t sequence = 0) {
    ranking::Step added;
    added.kind = kind;
    added.collective = collective;
    return add(added, sequence);
  }
  Schedule& loop(std::int32_t body, std::int64_t trips, std::int32_t sequence = 0) {
    ranking::Step added;
    added.kind = ranking::Step::Kind::loop;
    added.body = body;
    added.trips = trips;
    return add(added, sequence);
  }
  Schedule& copy(ranking::Step::Kind kind, std::int32_t copy, double seconds, std::int32_t sequence = 0) {
    ranking::Step added;
    added.kind = kind;
    added.copy = copy;
    added.seconds = seconds;
    program.copies = std::max(program.copies, copy + 1);
    return add(added, sequence);
  }
};

}  // namespace aoizora::simulation
