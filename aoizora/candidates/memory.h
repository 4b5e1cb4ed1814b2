#pragma once
#include <vector>

#include "aoizora/candidates/candidate.h"

namespace aoizora::candidates {

// The terms of M̂ (paper 4.2), bytes a device. Each is a lower bound of what must be in memory at one moment, whatever
// order and fusion the compiler picks; docs/candidates.md says why, and what is left out because the compiler may avoid
// it.

/// M_w: every parameter's local part, exactly (tiling padding left out).
double weights_bytes(const workload::Workload& workload, const Candidate& candidate);

/// Parameters of the whole model, undivided.
double total_weights_bytes(const workload::Workload& workload);

/// The activation that lives through the whole block: the largest that carries no weight axis (the residual stream). A
/// dimension that has no rule but the size of a weight axis is taken as divided like it: the compiler may keep what the
/// weights wrote divided, and gather where it is read. 0 for none.
double resident_bytes(const workload::Workload& workload, const Candidate& candidate);

/// What one attention kernel reads and writes at once: queries, keys, values, result, padded to the kernel's blocks.
/// Gathered: a device's queries, all keys. Ulysses: all queries and keys of a device's share of the heads.
std::vector<double> attention_operands(const workload::Workload& workload, const Candidate& candidate,
                                       const workload::Attention& attention);

/// What must be there while a matrix reads an activation that carries a weight axis and writes to the residual stream:
/// both of these, and where the matrix' contraction is divided its result too, which is summed over devices before it
/// is added.
std::vector<double> contraction_operands(const workload::Workload& workload, const Candidate& candidate,
                                         const workload::Tensor& activation);

/// Bytes of these buffers that cannot leave HBM: what is larger than vector memory stays, of the rest one vector
/// memory's worth may go.
double hbm_bytes(const std::vector<double>& buffers);

/// How often the least divided of the large weights is divided. Large: weights with two or more weight axes (attention
/// and MLP matrices); where there are none, weights with one.
std::int64_t weight_sharding_factor(const workload::Workload& workload, const Candidate& candidate);

/// On-chip vector memory the compiler may use in place of HBM. v5e and v6e 128 MiB a core, the most of any TPU so far
/// (JAX's Pallas TPU documentation).
inline constexpr double vmem_bytes = 128.0 * 1024 * 1024;

}  // namespace aoizora::candidates
