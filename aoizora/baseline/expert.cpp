#include "aoizora/baseline/expert.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "aoizora/candidates/sharding.h"
#include "aoizora/errors.h"

namespace aoizora::baseline {
namespace {

using candidates::Candidate;
using Sizes = std::array<std::int64_t, 4>;  // data, fsdp, context, tensor

Candidate member(const workload::Workload& workload, const Sizes& sizes) {
  Candidate candidate;
  candidate.mesh = {{"data", sizes[0]}, {"fsdp", sizes[1]}, {"context", sizes[2]}, {"tensor", sizes[3]}};
  for (const auto& axis : workload.axes) {
    if (axis.kind == workload::AxisKind::whole) continue;
    auto& rule = candidate.rules[axis.name];
    const auto stock = workload.stock_rules.find(axis.name);
    if (stock == workload.stock_rules.end()) continue;
    std::copy_if(stock->second.begin(), stock->second.end(), std::back_inserter(rule),
                 [&](const std::string& name) { return candidate.axis_size(name) > 1; });
  }
  return candidate;
}

/// Meshes in the order of the rule.
std::vector<Sizes> rule_order(const workload::Workload& workload, std::int64_t devices) {
  std::int64_t batch = devices;
  for (const auto& axis : workload.axes) {
    if (axis.kind == workload::AxisKind::batch) batch = std::gcd(batch, axis.size);
  }
  std::vector<Sizes> order{{batch, 1, devices / batch, 1}, {1, batch, devices / batch, 1}, {1, 1, devices, 1}};
  for (std::int64_t tensor = 2; tensor <= devices; ++tensor) {
    if (devices % tensor == 0) order.push_back({1, 1, devices / tensor, tensor});
  }
  return order;
}

/// Nothing where jax raises.
std::optional<placement::Placement> order(const ExpertMember& expert, const topology::Slice& slice, bool split) {
  try {
    return placement::mesh_utils_order(expert.candidate.mesh, slice, split);
  } catch (const Infeasible&) {
    return std::nullopt;
  }
}

void place(ExpertMember& expert, const topology::Slice& slice) {
  for (const bool split : {false, true}) {
    if (auto placed = order(expert, slice, split)) {
      expert.placement = std::move(placed);
      expert.split_physical_axes = split;
      return;
    }
  }
}

}  // namespace

std::vector<ExpertMember> expert_family(const workload::Workload& workload, const topology::Slice& slice,
                                        const ExpertOptions& options) {
  const auto devices = static_cast<std::int64_t>(slice.devices.size());
  const std::vector<Sizes> order = rule_order(workload, devices);
  std::vector<ExpertMember> family;
  const auto add = [&](const Sizes& sizes, candidates::AttentionKind kind) {
    ExpertMember expert;
    expert.candidate = member(workload, sizes);
    expert.candidate.attention = kind;
    if (!candidates::illegal_because(workload, expert.candidate).empty()) return;
    if (kind == candidates::AttentionKind::gathered)
      expert.rank = static_cast<int>(std::find(order.begin(), order.end(), sizes) - order.begin());
    expert.memory_estimate_bytes = candidates::memory_estimate(workload, expert.candidate).total_bytes();
    place(expert, slice);
    family.push_back(std::move(expert));
  };
  for (std::int64_t d = 1; d <= devices; ++d) {
    for (std::int64_t f = 1; f <= devices / d; ++f) {
      for (std::int64_t c = 1; c <= devices / d / f; ++c) {
        if (devices % d != 0 || devices / d % f != 0 || devices / d / f % c != 0) continue;
        const Sizes sizes{d, f, c, devices / d / f / c};
        add(sizes, candidates::AttentionKind::gathered);
        if (options.ulysses) add(sizes, candidates::AttentionKind::ulysses);
      }
    }
  }
  if (family.empty())
    throw Infeasible("no mesh of " + std::to_string(devices) + " devices is legal under the stock rules of " +
                     workload.name + ": data x fsdp must divide the batch, tensor the heads");
  const auto unranked = static_cast<int>(order.size());
  for (ExpertMember& expert : family) {
    if (expert.rank < 0) expert.rank = unranked;
  }
  std::stable_sort(family.begin(), family.end(),
                   [](const ExpertMember& a, const ExpertMember& b) { return a.rank < b.rank; });
  // Ranks that no legal member has are closed up, so that 0 is the rule's first choice.
  int next = 0;
  for (ExpertMember& expert : family) expert.rank = expert.rank == unranked ? -1 : next++;
  return family;
}

}  // namespace aoizora::baseline
