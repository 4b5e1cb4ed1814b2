#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "aoizora/candidates/candidate.h"
#include "aoizora/candidates/memory.h"
#include "aoizora/candidates/sharding.h"
#include "aoizora/candidates/signature.h"
#include "aoizora/errors.h"

namespace aoizora::candidates {
namespace {

using workload::Axis;
using workload::AxisKind;
using workload::Dim;
using workload::Tensor;
using workload::Workload;

/// A set of mesh axes, bit i for mesh_names[i].
using Mask = unsigned;
constexpr std::size_t kMeshAxes = 4;
constexpr std::array<const char*, kMeshAxes> mesh_names{"data", "fsdp", "context", "tensor"};
constexpr Mask kData = 1, kFsdp = 2, kContext = 4;
constexpr std::size_t kMaxLegal = 200'000;
constexpr std::int64_t kMaxSteps = 20'000'000;

using Sizes = std::array<std::int64_t, kMeshAxes>;

std::int64_t product(const Sizes& sizes, Mask mask) {
  std::int64_t result = 1;
  for (std::size_t i = 0; i < kMeshAxes; ++i) {
    if (mask & (1U << i)) result *= sizes[i];
  }
  return result;
}

Mask present(const Sizes& sizes) {
  Mask result = 0;
  for (std::size_t i = 0; i < kMeshAxes; ++i) {
    if (sizes[i] > 1) result |= 1U << i;
  }
  return result;
}

std::vector<Sizes> meshes(std::int64_t devices) {
  std::vector<Sizes> result;
  for (std::int64_t d = 1; d <= devices; ++d) {
    if (devices % d != 0) continue;
    for (std::int64_t f = 1; f <= devices / d; ++f) {
      if (devices / d % f != 0) continue;
      for (std::int64_t c = 1; c <= devices / d / f; ++c) {
        if (devices / d / f % c == 0) result.push_back({d, f, c, devices / d / f / c});
      }
    }
  }
  return result;
}

/// What the search needs to know of one logical axis.
struct AxisTable {
  const Axis* axis = nullptr;
  std::vector<std::int64_t> sizes;     ///< all that its parts must divide
  std::vector<std::size_t> exclusive;  ///< earlier axes (itself included) that share a tensor with it
  bool on_tensor = false;
  bool on_weight = false;  ///< what is an argument must divide evenly, a sequence too
};

bool fixed_on_activations(const Workload& workload, const Axis& axis) {
  if (axis.kind != AxisKind::weight) return true;
  return std::any_of(workload.attentions.begin(), workload.attentions.end(),
                     [&](const workload::Attention& attention) { return head_axis(workload, attention) == axis.name; });
}

// Axes in the order of the search: those with one choice first.
std::vector<AxisTable> axis_tables(const Workload& workload) {
  std::vector<AxisTable> tables;
  for (const bool weights : {false, true}) {
    for (const Axis& axis : workload.axes) {
      if (axis.kind != AxisKind::whole && (axis.kind == AxisKind::weight) == weights)
        tables.push_back({&axis, {axis.size}, {}, false, false});
    }
  }
  const auto index = [&](const std::string& name) {
    const auto found =
        std::find_if(tables.begin(), tables.end(), [&](const AxisTable& table) { return table.axis->name == name; });
    return static_cast<std::size_t>(found - tables.begin());
  };
  const auto visit = [&](const Tensor& tensor, bool activation) {
    std::vector<std::size_t> on;
    for (const Dim& dim : tensor.dims) {
      const std::size_t i = index(dim.axis);
      if (i == tables.size()) continue;
      tables[i].on_tensor = true;
      if (!activation) {
        tables[i].sizes.push_back(dim.size);
        tables[i].on_weight = true;
      }
      if (activation && !fixed_on_activations(workload, *tables[i].axis)) continue;
      on.push_back(i);
    }
    for (std::size_t a = 0; a < on.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) tables[std::max(on[a], on[b])].exclusive.push_back(std::min(on[a], on[b]));
    }
  };
  for (const Tensor& weight : workload.weights) visit(weight, false);
  for (const Tensor& activation : workload.activations) visit(activation, true);
  const auto unique = [](auto& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  };
  for (AxisTable& table : tables) {
    unique(table.sizes);
    unique(table.exclusive);
  }
  return tables;
}

/// One legal sharding: mesh sizes and a mask for each table.
struct Assignment {
  Sizes sizes{};
  std::vector<Mask> masks;
};

class Search {
 public:
  Search(const Workload& workload, std::int64_t devices, bool idle_axes)
      : tables_(axis_tables(workload)), idle_axes_(idle_axes) {
    for (const Sizes& sizes : meshes(devices)) {
      const double per_axis = std::pow(2.0, static_cast<double>(std::popcount(present(sizes))));
      const auto weights = std::count_if(tables_.begin(), tables_.end(),
                                         [](const AxisTable& t) { return t.axis->kind == AxisKind::weight; });
      for (const Mask batch : batch_choices(sizes)) {
        assignments += std::pow(per_axis, static_cast<double>(weights));
        current_ = {sizes, {}};
        batch_ = batch;
        descend(0);
      }
    }
  }

  const std::vector<AxisTable>& tables() const { return tables_; }
  double assignments = 0;
  std::vector<Assignment> legal;

 private:
  // Batch alone on fsdp, or on an fsdp beside a data of 1, would be data by another name.
  static std::vector<Mask> batch_choices(const Sizes& sizes) {
    const Mask there = present(sizes);
    if ((there & kData) && (there & kFsdp)) return {kData, kData | kFsdp};
    return {kData & there};
  }

  bool divides(const AxisTable& table, Mask mask) const {
    const std::int64_t parts = product(current_.sizes, mask);
    if (table.axis->kind == AxisKind::sequence && parts > 1) {
      const std::int64_t local = (table.axis->size - 1) / parts + 1;
      if ((parts - 1) * local >= table.axis->size) return false;
    }
    return std::all_of(table.sizes.begin(), table.sizes.end(), [&](std::int64_t size) {
      return size % parts == 0 ||
             (table.axis->kind == AxisKind::sequence && !table.on_weight && size == table.axis->size);
    });
  }

  bool has_idle_axis() const {
    Mask used = 0;
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      if (tables_[i].on_tensor) used |= current_.masks[i];
    }
    return used != present(current_.sizes);
  }

  void choose(std::size_t depth, Mask mask) {
    if (++steps_ > kMaxSteps)
      throw InvalidRequest("the workload has too many weight axes to enumerate; declare fewer, or mark some whole");
    const AxisTable& table = tables_[depth];
    if (!divides(table, mask)) return;
    current_.masks.push_back(mask);
    const bool free = std::none_of(table.exclusive.begin(), table.exclusive.end(),
                                   [&](std::size_t other) { return (current_.masks[other] & mask) != 0; });
    if (free) descend(depth + 1);
    current_.masks.pop_back();
  }

  void descend(std::size_t depth) {
    const Mask there = present(current_.sizes);
    if (depth == tables_.size()) {
      if (!idle_axes_ && has_idle_axis()) return;
      if (legal.size() == kMaxLegal)
        throw InvalidRequest("more than 200,000 legal shardings; declare fewer weight axes");
      legal.push_back(current_);
      return;
    }
    switch (tables_[depth].axis->kind) {
      case AxisKind::batch:
        return choose(depth, batch_ & there);
      case AxisKind::sequence:
        return choose(depth, kContext & there);
      case AxisKind::whole:
        return choose(depth, 0);
      case AxisKind::weight:
        for (Mask mask = 0; mask <= there; ++mask) {
          if ((mask & ~there) == 0) choose(depth, mask);
        }
    }
  }

  std::vector<AxisTable> tables_;
  bool idle_axes_;
  Assignment current_;
  Mask batch_ = 0;
  std::int64_t steps_ = 0;
};

Candidate make_candidate(const std::vector<AxisTable>& tables, const Assignment& assignment) {
  Candidate result;
  for (std::size_t i = 0; i < kMeshAxes; ++i) result.mesh.push_back({mesh_names[i], assignment.sizes[i]});
  for (std::size_t t = 0; t < tables.size(); ++t) {
    auto& rule = result.rules[tables[t].axis->name];
    for (std::size_t i = 0; i < kMeshAxes; ++i) {
      if (assignment.masks[t] & (1U << i)) rule.push_back(mesh_names[i]);
    }
  }
  return result;
}

// In how many places the rules differ from the deployed ones on the same mesh.
std::int64_t distance_from_stock(const Workload& workload, const Candidate& candidate) {
  std::int64_t result = 0;
  for (const auto& [axis, stock] : workload.stock_rules) {
    std::set<std::string> deployed;
    for (const std::string& name : stock) {
      if (candidate.axis_size(name) > 1) deployed.insert(name);
    }
    const auto rule = candidate.rules.find(axis);
    const std::set<std::string> own = rule == candidate.rules.end()
                                          ? std::set<std::string>{}
                                          : std::set<std::string>(rule->second.begin(), rule->second.end());
    for (const std::string& name : own) result += deployed.count(name) == 0 ? 1 : 0;
    for (const std::string& name : deployed) result += own.count(name) == 0 ? 1 : 0;
  }
  return result;
}

// Among equal candidates the least is kept.
auto preference(const Workload& workload, const Candidate& candidate) {
  std::int64_t axes = 0;
  std::vector<std::int64_t> sizes;
  for (const MeshAxis& axis : candidate.mesh) {
    axes += axis.size > 1 ? 1 : 0;
    sizes.push_back(axis.size);
  }
  return std::tuple(axes, distance_from_stock(workload, candidate), std::move(sizes), candidate.rules);
}

struct Distinct {
  Candidate candidate;
  std::int64_t weight_sharding = 1;
  std::vector<std::pair<AttentionKind, double>> kinds;  ///< attention kind and its M̂
  double least_bytes() const {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [kind, bytes] : kinds) least = std::min(least, bytes);
    return least;
  }
};

std::vector<Distinct> merge_equal(const Workload& workload, const Search& search, bool ulysses) {
  const DistinctTensors tensors = distinct_tensors(workload);
  std::map<std::string, Candidate> kept;
  for (const Assignment& assignment : search.legal) {
    Candidate candidate = make_candidate(search.tables(), assignment);
    std::string signature = canonical_signature(workload, tensors, candidate);
    const auto found = kept.find(signature);
    if (found == kept.end()) {
      kept.emplace(std::move(signature), std::move(candidate));
    } else if (preference(workload, candidate) < preference(workload, found->second)) {
      found->second = std::move(candidate);
    }
  }
  std::vector<Distinct> result;
  for (auto& [signature, candidate] : kept) {
    Distinct distinct{std::move(candidate), 1, {}};
    distinct.weight_sharding = weight_sharding_factor(workload, distinct.candidate);
    for (const AttentionKind kind : {AttentionKind::gathered, AttentionKind::ulysses}) {
      if (kind == AttentionKind::ulysses && (!ulysses || !ulysses_possible(workload, distinct.candidate))) continue;
      distinct.candidate.attention = kind;
      distinct.kinds.emplace_back(kind, memory_estimate(workload, distinct.candidate).total_bytes());
    }
    result.push_back(std::move(distinct));
  }
  return result;
}

Enumeration select(const Workload& workload, const Search& search, const std::vector<Distinct>& all,
                   std::int64_t factor, double budget) {
  Enumeration result;
  result.assignments = search.assignments < 9e18 ? static_cast<std::int64_t>(search.assignments)
                                                 : std::numeric_limits<std::int64_t>::max();
  result.legal = static_cast<std::int64_t>(search.legal.size());
  result.distinct = static_cast<std::int64_t>(all.size());
  result.weight_sharding = factor;
  result.smallest_estimate_bytes = all.empty() ? 0 : std::numeric_limits<double>::infinity();
  const DistinctTensors tensors = distinct_tensors(workload);
  std::map<std::string, Candidate> ordered;
  for (const Distinct& one : all) {
    result.smallest_estimate_bytes = std::min(result.smallest_estimate_bytes, one.least_bytes());
    if (one.weight_sharding < factor) continue;
    ++result.sharded_enough;
    if (one.least_bytes() > budget) continue;
    ++result.fitting;
    for (const auto& [kind, bytes] : one.kinds) {
      if (bytes > budget) continue;
      Candidate candidate = one.candidate;
      candidate.attention = kind;
      ordered.emplace(canonical_signature(workload, tensors, candidate), std::move(candidate));
    }
  }
  for (auto& [signature, candidate] : ordered) result.candidates.push_back(std::move(candidate));
  result.with_attention = static_cast<std::int64_t>(result.candidates.size());
  return result;
}

std::string gib(double bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f GiB", bytes / (1024.0 * 1024 * 1024));
  return text;
}

std::string sizes_text(const Workload& workload) {
  std::string result;
  for (const Axis& axis : workload.axes) {
    if (axis.kind == AxisKind::whole) continue;
    result += (result.empty() ? "" : ", ") + axis.name + " " + std::to_string(axis.size) +
              (axis.kind == AxisKind::sequence ? " (may be uneven)" : "");
  }
  return result;
}

[[noreturn]] void throw_no_mesh(const Workload& workload, std::int64_t devices) {
  throw Infeasible("no legal mesh of " + std::to_string(devices) + " devices for " + workload.name +
                   ": mesh axes must divide what they shard (" + sizes_text(workload) +
                   "); take a slice whose device count is made of factors of these");
}

[[noreturn]] void throw_nothing_fits(const Workload& workload, const Enumeration& counts, std::int64_t devices,
                                     double budget, bool asked) {
  std::string text = "nothing fits: " + std::to_string(counts.legal) + " legal shardings on " +
                     std::to_string(devices) + " devices, " + std::to_string(counts.distinct) + " distinct, " +
                     std::to_string(counts.sharded_enough) + " with weights divided at least " +
                     std::to_string(counts.weight_sharding) + " times, " + std::to_string(counts.fitting) +
                     " within the memory budget of " + gib(budget) + " a device. ";
  if (counts.smallest_estimate_bytes > budget) {
    text += "The smallest needs at least " + gib(counts.smallest_estimate_bytes) + ", " +
            gib(counts.smallest_estimate_bytes - budget) +
            " too much (all weights: " + gib(total_weights_bytes(workload)) +
            "). More devices, fewer frames, a smaller size, a smaller batch or less reserved memory would help";
  } else if (asked) {
    text += "One with " + gib(counts.smallest_estimate_bytes) +
            " exists, but not with this weight-sharding factor: lower minimum_weight_sharding";
  }
  throw NothingFits(text);
}

void require_sound(const Workload& workload, std::int64_t devices, const EnumerationOptions& options) {
  if (devices < 1 || devices > 65536)
    throw InvalidRequest("the slice has " + std::to_string(devices) + " devices; allowed: 1 to 65536");
  if (options.hbm_budget_bytes < 0)
    throw InvalidRequest("hbm_budget_bytes is negative: more memory is reserved than a device has");
  if (options.minimum_weight_sharding < 0)
    throw InvalidRequest("minimum_weight_sharding is negative; 0 takes it from HBM");
  if (workload.axes.size() > 64 || workload.attentions.size() > 64 || workload.activations.size() > 1024 ||
      workload.weights.size() > 65536) {
    throw InvalidRequest(
        "the workload table is too large: at most 64 axes, 64 attentions, 1024 activations and 65536 weights");
  }
  std::set<std::string> names;
  for (const Axis& axis : workload.axes) {
    if (axis.size < 1)
      throw InvalidRequest("axis \"" + axis.name + "\" has size " + std::to_string(axis.size) +
                           "; it must be 1 or more");
    if (!names.insert(axis.name).second) throw InvalidRequest("axis \"" + axis.name + "\" is declared twice");
  }
  for (const auto* tensors : {&workload.weights, &workload.activations}) {
    for (const Tensor& tensor : *tensors) {
      for (const Dim& dim : tensor.dims) {
        if (dim.size < 1)
          throw InvalidRequest("tensor \"" + tensor.name + "\" has a dimension of " + std::to_string(dim.size));
      }
    }
  }
}

}  // namespace

Enumeration enumerate(const Workload& workload, const topology::Slice& slice, const EnumerationOptions& options) {
  const auto devices = static_cast<std::int64_t>(slice.devices.size());
  require_sound(workload, devices, options);
  const double budget =
      options.hbm_budget_bytes > 0 ? static_cast<double>(options.hbm_budget_bytes) : slice.hardware.hbm_bytes.value;
  if (!(budget > 0)) throw InvalidRequest("the slice has no HBM size; give hbm_budget_bytes");
  const bool asked = options.minimum_weight_sharding > 0;
  const double from_hbm = std::max(1.0, std::ceil(total_weights_bytes(workload) / budget));
  const std::int64_t factor =
      asked ? options.minimum_weight_sharding : static_cast<std::int64_t>(std::min(from_hbm, 9e15));

  const Search search(workload, devices, options.idle_axes);
  if (search.legal.empty()) throw_no_mesh(workload, devices);
  const std::vector<Distinct> all = merge_equal(workload, search, options.ulysses);
  Enumeration counts = select(workload, search, all, factor, budget);
  if (!counts.candidates.empty()) return counts;
  if (!asked && factor > 1) {  // the factor is a rule of thumb: better a lopsided sharding than none
    Enumeration relaxed = select(workload, search, all, 1, budget);
    if (!relaxed.candidates.empty()) return relaxed;
  }
  throw_nothing_fits(workload, counts, devices, budget, asked);
}

}  // namespace aoizora::candidates
