#include "aoizora/candidates/candidate.h"

#include <algorithm>
#include <limits>

#include "aoizora/candidates/sharding.h"

namespace aoizora::candidates {
namespace {

using workload::Attention;
using workload::Axis;
using workload::AxisKind;
using workload::Dim;
using workload::Tensor;
using workload::Workload;

std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  return __builtin_mul_overflow(a, b, &result) ? std::numeric_limits<std::int64_t>::max() : result;
}

std::int64_t product(const Candidate& candidate, const std::vector<std::string>& mesh_axes) {
  std::int64_t result = 1;
  for (const std::string& axis : mesh_axes) result = saturating_product(result, candidate.axis_size(axis));
  return result;
}

std::vector<std::string> active_rule(const Candidate& candidate, const std::string& logical_axis) {
  std::vector<std::string> result;
  const auto rule = candidate.rules.find(logical_axis);
  if (logical_axis.empty() || rule == candidate.rules.end()) return result;
  std::copy_if(rule->second.begin(), rule->second.end(), std::back_inserter(result),
               [&](const std::string& axis) { return candidate.axis_size(axis) > 1; });
  return result;
}

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

bool has_axis(const Tensor& tensor, const std::string& axis) {
  return std::any_of(tensor.dims.begin(), tensor.dims.end(), [&](const Dim& dim) { return dim.axis == axis; });
}

bool enters_attention(const Workload& workload, const std::string& axis) {
  return std::any_of(workload.attentions.begin(), workload.attentions.end(),
                     [&](const Attention& attention) { return head_axis(workload, attention) == axis; });
}

// Whether a dimension on an activation takes what its rule leaves instead of the whole rule.
bool yields(const Workload& workload, const std::string& axis) {
  const Axis* known = workload.find_axis(axis);
  return known != nullptr && known->kind == AxisKind::weight && !enters_attention(workload, axis);
}

std::string twice(const TensorSharding& sharding) {
  std::vector<std::string> seen;
  for (const auto& dim : sharding) {
    for (const std::string& axis : dim) {
      if (contains(seen, axis)) return axis;
      seen.push_back(axis);
    }
  }
  return {};
}

std::string number(std::int64_t value) { return std::to_string(value); }

// Ulysses acts where queries and keys are divided, and alike.
bool exchanges(const Candidate& candidate, const Attention& attention) {
  const auto queries = active_rule(candidate, attention.query_axis);
  return !queries.empty() && queries == active_rule(candidate, attention.key_axis);
}

bool exchange_divides(const Workload& workload, const Candidate& candidate, const Attention& attention) {
  const std::int64_t groups =
      saturating_product(candidate.factor(head_axis(workload, attention)), candidate.factor(attention.query_axis));
  return attention.heads % groups == 0;
}

}  // namespace

std::string_view name(AttentionKind kind) { return kind == AttentionKind::ulysses ? "ulysses" : "gathered"; }

std::int64_t Candidate::axis_size(const std::string& mesh_axis) const {
  const auto found =
      std::find_if(mesh.begin(), mesh.end(), [&](const MeshAxis& axis) { return axis.name == mesh_axis; });
  return found == mesh.end() ? 1 : std::max<std::int64_t>(1, found->size);
}

std::int64_t Candidate::factor(const std::string& logical_axis) const {
  const auto rule = rules.find(logical_axis);
  return rule == rules.end() ? 1 : product(*this, rule->second);
}

TensorSharding weight_sharding(const Candidate& candidate, const Tensor& weight) {
  TensorSharding result;
  for (const Dim& dim : weight.dims) result.push_back(active_rule(candidate, dim.axis));
  return result;
}

TensorSharding activation_sharding(const Workload& workload, const Candidate& candidate, const Tensor& activation) {
  TensorSharding result(activation.dims.size());
  std::vector<std::string> taken;
  const auto take = [&](std::size_t dim, const std::vector<std::string>& axes) {
    result[dim] = axes;
    taken.insert(taken.end(), axes.begin(), axes.end());
  };
  for (std::size_t i = 0; i < activation.dims.size(); ++i) {
    if (!yields(workload, activation.dims[i].axis)) take(i, active_rule(candidate, activation.dims[i].axis));
  }
  for (std::size_t i = 0; i < activation.dims.size(); ++i) {
    if (!yields(workload, activation.dims[i].axis)) continue;
    std::vector<std::string> left = active_rule(candidate, activation.dims[i].axis);
    std::erase_if(left, [&](const std::string& axis) { return contains(taken, axis); });
    take(i, left);
  }
  return result;
}

std::string head_axis(const Workload& workload, const Attention& attention) {
  for (const Tensor& activation : workload.activations) {
    if (attention.query_axis.empty() || !has_axis(activation, attention.query_axis)) continue;
    for (const Dim& dim : activation.dims) {
      const Axis* axis = workload.find_axis(dim.axis);
      if (axis == nullptr || axis->kind != AxisKind::weight || axis->size != attention.heads) continue;
      if (dim.size == attention.heads || dim.size == saturating_product(attention.heads, attention.head_dim))
        return dim.axis;
    }
  }
  return {};
}

std::string batch_axis(const Workload& workload, const Attention& attention) {
  for (const Axis& axis : workload.axes) {
    if (axis.kind == AxisKind::batch && axis.size == attention.batch) return axis.name;
  }
  return {};
}

std::int64_t local_size(const Candidate& candidate, std::int64_t size, const std::vector<std::string>& mesh_axes) {
  const std::int64_t parts = product(candidate, mesh_axes);
  return size / parts + (size % parts != 0 ? 1 : 0);
}

std::string illegal_because(const Workload& workload, const Candidate& candidate) {
  for (const Axis& axis : workload.axes) {
    const std::int64_t parts = candidate.factor(axis.name);
    if (parts == 1) continue;
    if (axis.kind == AxisKind::whole) return "axis \"" + axis.name + "\" is never divided";
    if (axis.kind == AxisKind::sequence) {  // uneven is fine, an empty device is not
      const std::int64_t local = axis.size / parts + (axis.size % parts != 0 ? 1 : 0);
      if (saturating_product(parts - 1, local) >= axis.size) {
        return "axis \"" + axis.name + "\" of " + number(axis.size) + " leaves some of " + number(parts) +
               " devices with nothing";
      }
    } else if (axis.size % parts != 0) {
      return "axis \"" + axis.name + "\" of " + number(axis.size) + " does not divide by " + number(parts);
    }
  }
  for (const Tensor& weight : workload.weights) {
    const TensorSharding sharding = weight_sharding(candidate, weight);
    if (const std::string axis = twice(sharding); !axis.empty()) {
      return "mesh axis \"" + axis + "\" is on two dimensions of " + weight.name;
    }
    for (std::size_t i = 0; i < sharding.size(); ++i) {
      if (weight.dims[i].size % product(candidate, sharding[i]) != 0) {
        return "dimension " + number(static_cast<std::int64_t>(i)) + " of " + weight.name + ", " +
               number(weight.dims[i].size) + ", does not divide by " + number(product(candidate, sharding[i]));
      }
    }
  }
  for (const Tensor& activation : workload.activations) {
    if (const std::string axis = twice(activation_sharding(workload, candidate, activation)); !axis.empty()) {
      return "mesh axis \"" + axis + "\" is on two dimensions of activation " + activation.name;
    }
  }
  if (candidate.attention == AttentionKind::ulysses && !ulysses_possible(workload, candidate)) {
    return "Ulysses needs a divided sequence and heads that divide by its devices";
  }
  return {};
}

std::vector<std::string> idle_axes(const Workload& workload, const Candidate& candidate) {
  std::vector<std::string> used;
  const auto use = [&](const TensorSharding& sharding) {
    for (const auto& dim : sharding) used.insert(used.end(), dim.begin(), dim.end());
  };
  for (const Tensor& weight : workload.weights) use(weight_sharding(candidate, weight));
  for (const Tensor& activation : workload.activations) use(activation_sharding(workload, candidate, activation));
  std::vector<std::string> result;
  for (const MeshAxis& axis : candidate.mesh) {
    if (axis.size > 1 && !contains(used, axis.name)) result.push_back(axis.name);
  }
  return result;
}

bool ulysses_possible(const Workload& workload, const Candidate& candidate) {
  bool any = false;
  for (const Attention& attention : workload.attentions) {
    if (!exchanges(candidate, attention)) continue;
    if (!exchange_divides(workload, candidate, attention)) return false;
    any = true;
  }
  return any;
}

}  // namespace aoizora::candidates
