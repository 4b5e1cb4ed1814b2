#include "aoizora/planner/pricing.h"

#include <boost/json.hpp>
#include <set>
#include <utility>

#include "aoizora/errors.h"
#include "aoizora/ir/memory_report.h"
#include "aoizora/ir/readers.h"

namespace aoizora::planner {

placement::PlacementOptions axes_in_use(const std::vector<candidates::MeshAxis>& mesh,
                                        const ranking::CompiledProgram& program) {
  std::set<std::string> active;
  std::set<std::string> ordered;
  const auto note = [&](std::int32_t a, std::int32_t b, std::set<std::string>& into) {
    for (std::size_t i = mesh.size(); i-- > 0;) {
      const auto size = static_cast<std::int32_t>(mesh[i].size);
      if (a % size != b % size) into.insert(mesh[i].name);
      a /= size;
      b /= size;
    }
  };
  for (const ir::Collective& collective : program.collectives) {
    for (const auto& group : collective.groups) {
      for (const std::int32_t member : group) note(group.front(), member, active);
    }
    for (const auto& [source, target] : collective.pairs) {
      note(source, target, active);
      note(source, target, ordered);
    }
  }
  placement::PlacementOptions options;
  options.active_axes.assign(active.begin(), active.end());
  options.ordered_axes.assign(ordered.begin(), ordered.end());
  return options;
}

bool is_windowed(const ranking::CompiledProgram& program) {
  for (std::size_t i = 0; i < program.sequences.size(); ++i) {
    if (static_cast<std::int32_t>(i) == program.entry || static_cast<std::int32_t>(i) == program.block) continue;
    for (const ranking::Step& step : program.sequences[i].steps) {
      if (step.collective >= 0 &&
          program.collectives[static_cast<std::size_t>(step.collective)].kind == topology::CollectiveKind::permute) {
        return true;
      }
    }
  }
  return false;
}

ranking::CompiledProgram compiled_program(const ir::Program& program, const workload::Workload& workload,
                                          const candidates::Candidate& candidate, const topology::Hardware& hardware,
                                          ranking::Rung rung) {
  auto compiled = ranking::extract(program, workload, candidate, hardware, rung);
  if (workload.whole_program) {
    compiled.block = -1;
    compiled.proxy_layers = 1;
    compiled.stacked_argument_bytes = 0;
  }
  return compiled;
}

ranking::Q2 as_block(ranking::Q2 q2, const ranking::CompiledProgram& program) {
  if (program.block >= 0) return q2;
  q2.block_seconds = q2.step_seconds;
  q2.outside_seconds = 0;
  return q2;
}

PricedPlacements price_placements(const ranking::CompiledProgram& program, std::span<const candidates::MeshAxis> mesh,
                                  const topology::Slice& slice, std::int64_t layers,
                                  const ranking::Q2Options& options) {
  PricedPlacements priced;
  priced.placements =
      placement::distinct_axis_orders(mesh, slice, axes_in_use({mesh.begin(), mesh.end()}, program)).placements;
  priced.q2.reserve(priced.placements.size());
  ranking::Scorer scorer(program, slice, layers, options);
  for (const auto& p : priced.placements) priced.q2.push_back(as_block(scorer.score(p), program));
  return priced;
}

std::string price_json(std::string text, const std::string& memory_report, const std::string& workload_json,
                       const std::string& candidate_json, const std::string& slice_name, std::int64_t layers,
                       const std::string& rung, double rate_scale) {
  namespace json = boost::json;
  if (rung != "passes" && rung != "code") throw InvalidRequest("rung is \"" + rung + "\"; allowed: passes, code");
  const auto workload = workload::read_workload(workload_json);
  const auto candidate = candidates::read_candidate(candidate_json);
  const auto slice = topology::make_slice(slice_name);
  const auto program = compiled_program(ir::read_hlo(std::move(text)), workload, candidate, slice.hardware,
                                        rung == "code" ? ranking::Rung::code : ranking::Rung::passes);
  ranking::Q2Options options;
  options.rate_scale = rate_scale;
  const auto priced = price_placements(program, candidate.mesh, slice, layers, options);
  json::object out;
  out["rung"] = rung;
  out["windowed"] = is_windowed(program);
  out["hbm_bytes"] = memory_report.empty() ? json::value(nullptr)
                                           : json::value(ranking::hbm_bytes_at_depth(
                                                 program, ir::read_memory_report(memory_report).total_bytes, layers));
  json::array placements;
  for (std::size_t i = 0; i < priced.placements.size(); ++i) {
    const auto& q2 = priced.q2[i];
    json::object one;
    one["order"] = priced.placements[i].order;
    one["devices"] = json::array(priced.placements[i].devices.begin(), priced.placements[i].devices.end());
    one["block_seconds"] = q2.block_seconds;
    one["step_seconds"] = q2.step_seconds;
    one["contention_seconds"] = q2.contention_seconds;
    placements.emplace_back(std::move(one));
  }
  out["placements"] = std::move(placements);
  return json::serialize(out);
}

}  // namespace aoizora::planner
