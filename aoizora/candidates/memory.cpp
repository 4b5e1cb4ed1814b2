#include "aoizora/candidates/memory.h"

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

bool is_weight_axis(const Workload& workload, const std::string& name) {
  const Axis* axis = workload.find_axis(name);
  return axis != nullptr && axis->kind == AxisKind::weight;
}

std::ptrdiff_t weight_axis_count(const Workload& workload, const Tensor& tensor) {
  return std::count_if(tensor.dims.begin(), tensor.dims.end(),
                       [&](const Dim& dim) { return is_weight_axis(workload, dim.axis); });
}

double element_bytes(DType dtype) { return bits(dtype) / 8.0; }

double local_bytes(const Candidate& candidate, const Tensor& tensor, const TensorSharding& sharding,
                   double repeat = 1) {
  double elements = repeat;
  for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
    elements *= static_cast<double>(local_size(candidate, tensor.dims[i].size, sharding[i]));
  }
  return elements * element_bytes(tensor.dtype);
}

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::int64_t divided(std::int64_t size, std::int64_t parts) { return size / parts + (size % parts != 0 ? 1 : 0); }

// A length below the block takes one block of whole lanes.
double padded(std::int64_t length, std::int64_t block) {
  constexpr std::int64_t lanes = 128;
  const std::int64_t used = std::max<std::int64_t>(1, std::min(block, divided(length, lanes) * lanes));
  return static_cast<double>(divided(length, used)) * static_cast<double>(used);
}

// An activation's sharding with its undivided dimensions divided as far as a weight axis of their size would.
TensorSharding finest_sharding(const Workload& workload, const Candidate& candidate, const Tensor& tensor) {
  TensorSharding result = activation_sharding(workload, candidate, tensor);
  std::vector<std::string> taken;
  for (const auto& dim : result) taken.insert(taken.end(), dim.begin(), dim.end());
  for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
    if (!tensor.dims[i].axis.empty()) continue;
    for (const Axis& axis : workload.axes) {
      const auto rule = candidate.rules.find(axis.name);
      if (axis.kind != AxisKind::weight || axis.size != tensor.dims[i].size || rule == candidate.rules.end()) continue;
      for (const std::string& name : rule->second) {
        if (contains(taken, name)) continue;
        result[i].push_back(name);
        taken.push_back(name);
      }
    }
  }
  return result;
}

DType attention_dtype(const Workload& workload, const Attention& attention) {
  const std::string heads = head_axis(workload, attention);
  for (const Tensor& tensor : workload.activations) {
    if (std::any_of(tensor.dims.begin(), tensor.dims.end(),
                    [&](const Dim& dim) { return !heads.empty() && dim.axis == heads; })) {
      return tensor.dtype;
    }
  }
  return DType::bf16;
}

}  // namespace

double weights_bytes(const Workload& workload, const Candidate& candidate) {
  double total = 0;
  for (const Tensor& weight : workload.weights)
    total += local_bytes(candidate, weight, weight_sharding(candidate, weight), static_cast<double>(weight.repeat));
  return total;
}

double total_weights_bytes(const Workload& workload) { return weights_bytes(workload, Candidate{}); }

double resident_bytes(const Workload& workload, const Candidate& candidate) {
  double largest = 0;
  for (const Tensor& tensor : workload.activations) {
    if (weight_axis_count(workload, tensor) > 0) continue;
    largest = std::max(largest, local_bytes(candidate, tensor, finest_sharding(workload, candidate, tensor)));
  }
  return largest;
}

std::vector<double> attention_operands(const Workload& workload, const Candidate& candidate,
                                       const Attention& attention) {
  const std::int64_t context = candidate.factor(attention.query_axis);
  const bool exchanged =
      candidate.attention == AttentionKind::ulysses && context > 1 && context == candidate.factor(attention.key_axis);
  const std::int64_t queries = exchanged ? attention.queries : divided(attention.queries, context);
  std::int64_t heads = divided(attention.heads, candidate.factor(head_axis(workload, attention)));
  if (exchanged) heads = divided(heads, context);
  const std::int64_t batch = divided(attention.batch, candidate.factor(batch_axis(workload, attention)));
  const double row = static_cast<double>(batch) * static_cast<double>(heads) * static_cast<double>(attention.head_dim) *
                     element_bytes(attention_dtype(workload, attention));
  const double query_bytes = row * padded(queries, candidate.blocks.queries);
  const double key_bytes = row * padded(attention.keys, candidate.blocks.keys);
  return {query_bytes, key_bytes, key_bytes, query_bytes};
}

std::vector<double> contraction_operands(const Workload& workload, const Candidate& candidate,
                                         const Tensor& activation) {
  const TensorSharding sharding = activation_sharding(workload, candidate, activation);
  const double resident = resident_bytes(workload, candidate);
  std::vector<double> result{resident, local_bytes(candidate, activation, sharding)};
  for (std::size_t i = 0; i < sharding.size(); ++i) {
    if (!sharding[i].empty() && is_weight_axis(workload, activation.dims[i].axis))
      return {resident, result[1], resident};
  }
  return result;
}

double hbm_bytes(const std::vector<double>& buffers) {
  double total = 0, movable = 0;
  for (const double bytes : buffers) {
    total += bytes;
    movable += bytes <= vmem_bytes ? bytes : 0;
  }
  return total - std::min(movable, vmem_bytes);
}

std::int64_t weight_sharding_factor(const Workload& workload, const Candidate& candidate) {
  for (const std::ptrdiff_t axes : {2, 1}) {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const Tensor& weight : workload.weights) {
      if (weight_axis_count(workload, weight) < axes) continue;
      std::int64_t parts = 1;
      for (const auto& dim : weight_sharding(candidate, weight)) {
        for (const std::string& axis : dim) {
          if (__builtin_mul_overflow(parts, candidate.axis_size(axis), &parts))
            parts = std::numeric_limits<std::int64_t>::max();
        }
      }
      least = std::min(least, parts);
    }
    if (least != std::numeric_limits<std::int64_t>::max()) return least;
  }
  return 1;
}

// M̂ = M_w + the most that must be live at one moment of a block. The moments: an attention kernel, or a matrix that
// reads a wide activation. M_act is the residual stream, M_attn what attention adds, M_tmp by how much the other moment
// exceeds it. Of a whole program only its arguments are certain to be in memory at once.
MemoryEstimate memory_estimate(const Workload& workload, const Candidate& candidate) {
  MemoryEstimate result;
  result.weights_bytes = weights_bytes(workload, candidate);
  if (workload.whole_program) return result;
  const double resident = resident_bytes(workload, candidate);
  result.activations_bytes = hbm_bytes({resident});
  double attention = result.activations_bytes;
  for (const Attention& site : workload.attentions) {
    std::vector<double> live = attention_operands(workload, candidate, site);
    live.push_back(resident);
    attention = std::max(attention, hbm_bytes(live));
  }
  double most = attention;
  for (const Tensor& activation : workload.activations) {
    if (weight_axis_count(workload, activation) == 0) continue;
    most = std::max(most, hbm_bytes(contraction_operands(workload, candidate, activation)));
  }
  result.attention_bytes = attention - result.activations_bytes;
  result.temporaries_bytes = most - attention;
  return result;
}

}  // namespace aoizora::candidates
