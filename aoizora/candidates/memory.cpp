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

double local_bytes(const Candidate& candidate, const Tensor& tensor, const TensorSharding& sharding) {
  double elements = static_cast<double>(tensor.repeat);
  for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
    elements *= static_cast<double>(local_size(candidate, tensor.dims[i].size, sharding[i]));
  }
  return elements * element_bytes(tensor.dtype);
}

double activation_bytes(const Workload& workload, const Candidate& candidate, const Tensor& tensor) {
  Tensor one = tensor;  // one layer's, whatever the repeat says
  one.repeat = 1;
  return local_bytes(candidate, one, activation_sharding(workload, candidate, one));
}

std::int64_t divided(std::int64_t size, std::int64_t parts) { return size / parts + (size % parts != 0 ? 1 : 0); }

// A length below the block takes one block of whole lanes.
double padded(std::int64_t length, std::int64_t block) {
  constexpr std::int64_t lanes = 128;
  const std::int64_t used = std::max<std::int64_t>(1, std::min(block, divided(length, lanes) * lanes));
  return static_cast<double>(divided(length, used)) * static_cast<double>(used);
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
    total += local_bytes(candidate, weight, weight_sharding(candidate, weight));
  return total;
}

double total_weights_bytes(const Workload& workload) { return weights_bytes(workload, Candidate{}); }

double resident_bytes(const Workload& workload, const Candidate& candidate) {
  double largest = 0;
  for (const Tensor& tensor : workload.activations) {
    if (weight_axis_count(workload, tensor) == 0)
      largest = std::max(largest, activation_bytes(workload, candidate, tensor));
  }
  return largest;
}

// 2 (L_q + L_k) B H D elements: queries, result, keys, values. Gathered: L_q = a device's queries, L_k = all keys.
// Ulysses: all queries and keys of a device's share of the heads.
double attention_bytes(const Workload& workload, const Candidate& candidate, const Attention& attention) {
  const std::int64_t context = candidate.factor(attention.query_axis);
  const bool exchanged =
      candidate.attention == AttentionKind::ulysses && context > 1 && context == candidate.factor(attention.key_axis);
  const std::int64_t queries = exchanged ? attention.queries : divided(attention.queries, context);
  std::int64_t heads = divided(attention.heads, candidate.factor(head_axis(workload, attention)));
  if (exchanged) heads = divided(heads, context);
  const std::int64_t batch = divided(attention.batch, candidate.factor(batch_axis(workload, attention)));
  const double length = padded(queries, candidate.blocks.queries) + padded(attention.keys, candidate.blocks.keys);
  return 2 * length * static_cast<double>(batch) * static_cast<double>(heads) *
         static_cast<double>(attention.head_dim) * element_bytes(attention_dtype(workload, attention));
}

double largest_transient_bytes(const Workload& workload, const Candidate& candidate) {
  double largest = 0;
  for (const Tensor& tensor : workload.activations) {
    if (weight_axis_count(workload, tensor) > 0)
      largest = std::max(largest, activation_bytes(workload, candidate, tensor));
  }
  return largest;
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

// M̂ = M_w + max over moments of what is live in one block, less what may sit in vector memory: the residual stream and
// an attention kernel's operands, or the residual stream and one wide activation. M_tmp is by how much the second
// exceeds the first.
MemoryEstimate memory_estimate(const Workload& workload, const Candidate& candidate) {
  MemoryEstimate result;
  result.weights_bytes = weights_bytes(workload, candidate);
  double vmem = vmem_bytes;
  const auto beyond_vmem = [&](double bytes) {
    const double held = std::min(bytes, vmem);
    vmem -= held;
    return bytes - held;
  };
  double attention = 0;
  for (const Attention& site : workload.attentions)
    attention = std::max(attention, attention_bytes(workload, candidate, site));
  const double wide = std::max(0.0, largest_transient_bytes(workload, candidate) - attention);
  result.activations_bytes = beyond_vmem(resident_bytes(workload, candidate));
  result.attention_bytes = beyond_vmem(attention);
  result.temporaries_bytes = beyond_vmem(wide);
  return result;
}

}  // namespace aoizora::candidates
