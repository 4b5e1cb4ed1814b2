#pragma once
#include <string>
#include <vector>

#include "aoizora/candidates/candidate.h"
#include "aoizora/candidates/sharding.h"

namespace aoizora::candidates {

/// The tensors whose shardings can differ: of those with the same logical axes in the same role, the first.
struct DistinctTensors {
  std::vector<workload::Tensor> weights;
  std::vector<workload::Tensor> activations;
};
DistinctTensors distinct_tensors(const workload::Workload& workload);

/// The shardings of a list of tensors in one text, the same for two lists exactly if renaming, splitting or merging
/// mesh axes maps one to the other. `candidate` gives the sizes.
std::string canonical_shardings(const Candidate& candidate, const std::vector<TensorSharding>& shardings);

/// canonical_signature for a caller who kept distinct_tensors(workload).
std::string canonical_signature(const workload::Workload& workload, const DistinctTensors& tensors,
                                const Candidate& candidate);

}  // namespace aoizora::candidates
