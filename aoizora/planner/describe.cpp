#include "aoizora/planner/describe.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "aoizora/candidates/memory.h"
#include "aoizora/candidates/sharding.h"

namespace aoizora::planner {
namespace {

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f ms", seconds * 1e3);
  return text;
}

std::string percent(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", fraction * 100);
  return text;
}

std::string parts(const ranking::Q2& q2) {
  return milliseconds(q2.compute.total()) + " compute, " + milliseconds(q2.exposed_communication_seconds) +
         " exposed communication";
}

/// The part in which `other` loses most against `best`.
std::string main_difference(const ranking::Q2& best, const ranking::Q2& other) {
  const std::pair<const char*, double> differences[] = {
      {"communication that compute does not hide",
       other.exposed_communication_seconds - best.exposed_communication_seconds},
      {"matrix products", other.compute.matmul_seconds - best.compute.matmul_seconds},
      {"the attention kernel", other.compute.attention_seconds - best.compute.attention_seconds},
      {"relayout copies", other.compute.relayout_seconds - best.compute.relayout_seconds},
      {"other elementwise work", other.compute.other_seconds - best.compute.other_seconds},
  };
  const auto* most = std::max_element(std::begin(differences), std::end(differences),
                                      [](const auto& a, const auto& b) { return a.second < b.second; });
  return std::string("mostly ") + most->first + " (+" + milliseconds(most->second) + ")";
}

}  // namespace

std::string describe(const candidates::Candidate& candidate, const workload::Workload& workload) {
  std::string text;
  for (const auto& axis : candidate.mesh) {
    if (axis.size > 1) text += (text.empty() ? "" : " x ") + axis.name + " " + std::to_string(axis.size);
  }
  if (text.empty()) text = "one device";
  for (const auto& [axis, mesh_axes] : candidate.rules) {
    if (mesh_axes.empty()) continue;
    text += "; " + axis + " on ";
    for (std::size_t i = 0; i < mesh_axes.size(); ++i) text += (i > 0 ? "," : "") + mesh_axes[i];
  }
  if (!workload.attentions.empty()) text += "; " + std::string(candidates::name(candidate.attention));
  for (const auto& [option, value] : candidate.compiler_options) text += "; " + option + "=" + value;
  return text;
}

candidates::Candidate stock_candidate(const workload::Workload& workload, std::int64_t data, std::int64_t context) {
  candidates::Candidate candidate;
  candidate.mesh = {{"data", data}, {"fsdp", 1}, {"context", context}, {"tensor", 1}};
  const auto present = [&](const std::vector<std::string>& mesh_axes) {
    std::vector<std::string> kept;
    for (const auto& axis : mesh_axes) {
      if (candidate.axis_size(axis) > 1) kept.push_back(axis);
    }
    return kept;
  };
  for (const auto& axis : workload.axes) {
    if (axis.kind == workload::AxisKind::whole) continue;
    const auto stock = workload.stock_rules.find(axis.name);
    candidate.rules[axis.name] =
        stock == workload.stock_rules.end() ? std::vector<std::string>{} : present(stock->second);
  }
  return candidate;
}

std::vector<Deployment> deployments(const workload::Workload& workload, std::int64_t devices) {
  std::vector<Deployment> result;
  if (!workload.whole_program) {
    const auto context = [&](std::int64_t data) { return std::to_string(devices / data); };
    result.push_back({"stock, context " + context(1), stock_candidate(workload, 1, devices)});
    const bool even = std::all_of(workload.axes.begin(), workload.axes.end(), [](const workload::Axis& axis) {
      return axis.kind != workload::AxisKind::batch || axis.size % 2 == 0;
    });
    if (even && devices % 2 == 0 && devices > 2)
      result.push_back({"data 2 x context " + context(2), stock_candidate(workload, 2, devices / 2)});
    return result;
  }
  candidates::Candidate parallel;
  parallel.mesh = {{"data", devices}, {"fsdp", 1}, {"context", 1}, {"tensor", 1}};
  bool batched = false;
  for (const auto& axis : workload.axes) {
    batched = batched || axis.kind == workload::AxisKind::batch;
    if (axis.kind != workload::AxisKind::whole)
      parallel.rules[axis.name] =
          axis.kind == workload::AxisKind::batch ? std::vector<std::string>{"data"} : std::vector<std::string>{};
  }
  if (devices < 2 || !batched || !candidates::illegal_because(workload, parallel).empty()) return result;
  const std::string over = " over " + std::to_string(devices) + " devices";
  result.push_back({"batch" + over, parallel});
  std::optional<Deployment> sharded;
  double least_bytes = candidates::weights_bytes(workload, parallel);
  for (const auto& axis : workload.axes) {
    if (axis.kind != workload::AxisKind::weight) continue;
    candidates::Candidate candidate = parallel;
    candidate.rules[axis.name] = {"data"};
    const double bytes = candidates::weights_bytes(workload, candidate);
    if (bytes >= least_bytes || !candidates::illegal_because(workload, candidate).empty()) continue;
    least_bytes = bytes;
    sharded = Deployment{"batch and the weights' " + axis.name + over, std::move(candidate)};
  }
  if (sharded) result.push_back(std::move(*sharded));
  return result;
}

StockOrder stock_order(std::span<const candidates::MeshAxis> mesh, const topology::Slice& slice) {
  try {
    return {placement::mesh_utils_order(mesh, slice), false};
  } catch (const Infeasible&) {
    return {placement::mesh_utils_order(mesh, slice, true), true};
  }
}

std::vector<std::string> searched(const Plan& plan) {
  const Settings& settings = plan.settings;
  std::vector<std::string> lines;
  const bool attends = !plan.workload.attentions.empty();
  if (attends) {
    lines.emplace_back("attention: flash with gathered keys and values");
    if (settings.ulysses) lines.back() += ", and Ulysses";
  } else {
    lines.emplace_back("activations: where the program constrains none, as the compiler propagates the arguments'");
  }
  lines.push_back(
      settings.windowed_einsum
          ? "windowed einsum: the compiler's default, and off where the default uses it under row-major order"
          : "windowed einsum: the compiler's default");
  if (attends) lines.emplace_back("kernel blocks: 512 x 512 only");
  lines.push_back("order of mesh axes on one dimension: data, fsdp, context, tensor only, major first");
  lines.push_back(std::string("mesh axes that divide no tensor: ") +
                  (plan.idle_axes_searched ? "searched too, for nothing else fits in HBM" : "not searched"));
  lines.push_back("placements: all axis orders, less mirror images and equal contention signatures");
  return lines;
}

std::string why(const Plan& plan) {
  const ranking::Q2& best = plan.best.q2;
  const std::string unit = plan.workload.whole_program ? "step" : "block";
  std::string text = "A " + unit + " takes " + milliseconds(best.block_seconds) + ": " + parts(best) + ".";
  if (plan.placements > 1 && best.block_seconds > 0) {
    text += " Its worst of " + std::to_string(plan.placements) + " placements would take " +
            percent(plan.worst_placement_block_seconds / best.block_seconds - 1) + " more.";
  }
  for (const Comparison& comparison : plan.comparisons) {
    if (!comparison.ranked) {
      text += " " + comparison.name + ": " + comparison.reason + ".";
    } else if (comparison.ranked->passes_block_seconds > plan.best.passes_block_seconds) {
      text += " " + comparison.name + " takes " +
              percent(comparison.ranked->passes_block_seconds / plan.best.passes_block_seconds - 1) + " more a " +
              unit + ", " + main_difference(best, comparison.ranked->q2) + ".";
    }
  }
  const auto same_rung = std::find_if(plan.runners_up.begin(), plan.runners_up.end(),
                                      [&](const Ranked& r) { return r.rung == plan.best.rung; });
  if (same_rung != plan.runners_up.end()) {
    text += " The runner-up (" + describe(same_rung->candidate, plan.workload) + ") takes " +
            milliseconds(same_rung->q2.block_seconds);
    text += same_rung->q2.block_seconds > best.block_seconds ? ", " + main_difference(best, same_rung->q2) + "." : ".";
  } else if (!plan.runners_up.empty()) {
    const Ranked& next = plan.runners_up.front();
    text += " The runner-up (" + describe(next.candidate, plan.workload) + ") takes " +
            milliseconds(next.passes_block_seconds) + " by the HLO passes alone, which give this plan " +
            milliseconds(plan.best.passes_block_seconds);
    if (next.passes_block_seconds < plan.best.passes_block_seconds) {
      text += ": even";
      if (next.hbm_bytes > plan.best.hbm_bytes) text += ", and it needs more memory";
    }
    text += ".";
  }
  return text;
}

std::string first_line(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \n\r\t");
  if (begin == std::string_view::npos) return "no message";
  text.remove_prefix(begin);
  return std::string(text.substr(0, std::min<std::size_t>(text.find('\n'), 300)));
}

}  // namespace aoizora::planner
