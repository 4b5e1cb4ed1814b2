#pragma once
#include "aoizora/candidates/candidate.h"

namespace aoizora::candidates {

// The terms of M̂ (paper 4.2), bytes a device. Each is a lower bound of what must be in memory at one moment, whatever
// order and fusion the compiler picks; docs/candidates.md says why, and what is left out because the compiler may avoid
// it.

/// M_w: every parameter's local part, exactly (tiling padding left out).
double weights_bytes(const workload::Workload& workload, const Candidate& candidate);

/// Parameters of the whole model, undivided.
double total_weights_bytes(const workload::Workload& workload);

/// The activation that lives through the whole block: the largest that carries no weight axis (the residual stream). 0
/// for none.
double resident_bytes(const workload::Workload& workload, const Candidate& candidate);

/// What one attention kernel reads and writes at once: its queries and its result, and keys and values as the attention
/// kind brings them together, all padded to the kernel's blocks.
double attention_bytes(const workload::Workload& workload, const Candidate& candidate,
                       const workload::Attention& attention);

/// The largest single activation that carries a weight axis (an MLP's hidden one), while the residual stream waits.
double largest_transient_bytes(const workload::Workload& workload, const Candidate& candidate);

/// How often the least divided of the large weights is divided. Large: weights with two or more weight axes (attention
/// and MLP matrices); where there are none, weights with one.
std::int64_t weight_sharding_factor(const workload::Workload& workload, const Candidate& candidate);

/// On-chip vector memory the compiler may use in place of HBM. v5e and v6e 128 MiB a core, the most of any TPU so far
/// (JAX's Pallas TPU documentation).
inline constexpr double vmem_bytes = 128.0 * 1024 * 1024;

}  // namespace aoizora::candidates
