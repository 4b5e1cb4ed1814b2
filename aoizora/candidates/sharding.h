#pragma once
#include <string>
#include <vector>

#include "aoizora/candidates/candidate.h"

namespace aoizora::candidates {

/// How one tensor is divided: for each dimension the mesh axes of size > 1 that divide it, major first.
using TensorSharding = std::vector<std::vector<std::string>>;

/// A weight's dimensions follow the rules of their logical axes.
TensorSharding weight_sharding(const Candidate& candidate, const workload::Tensor& weight);

/// An activation's batch and sequence dimensions follow their rules, and so do the heads that enter an attention
/// kernel: the kernel's shard_map fixes them. Every other weight axis (an MLP's hidden one) is divided by what its rule
/// leaves: the rule without the mesh axes that the tensor's other dimensions already hold. There the weight is
/// gathered, or the compiler trades one for the other.
TensorSharding activation_sharding(const workload::Workload& workload, const Candidate& candidate,
                                   const workload::Tensor& activation);

/// The logical axis of an attention's heads: the weight axis that divides heads x head_dim elements (or heads) of an
/// activation which also has the attention's query axis. Empty where there is none.
std::string head_axis(const workload::Workload& workload, const workload::Attention& attention);

/// The batch-kind axis of an attention's batch; empty where there is none.
std::string batch_axis(const workload::Workload& workload, const workload::Attention& attention);

/// Length of one device's part of a dimension; the last device may hold less.
std::int64_t local_size(const Candidate& candidate, std::int64_t size, const std::vector<std::string>& mesh_axes);

/// Why the candidate may not run the workload, empty where it may: an axis its mesh axes do not divide, a mesh axis
/// twice on one tensor, a device without a token, Ulysses with heads that do not divide. An idle mesh axis is legal
/// here.
std::string illegal_because(const workload::Workload& workload, const Candidate& candidate);

/// Mesh axes of size > 1 that divide no tensor.
std::vector<std::string> idle_axes(const workload::Workload& workload, const Candidate& candidate);

/// Whether Ulysses differs from gathered keys and its all-to-all divides the heads: some attention has its queries and
/// keys divided alike, and the heads a device holds divide by the devices that share its sequence.
bool ulysses_possible(const workload::Workload& workload, const Candidate& candidate);

}  // namespace aoizora::candidates
