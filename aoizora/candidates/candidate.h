#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aoizora/errors.h"
#include "aoizora/topology/slice.h"
#include "aoizora/workload/workload.h"

namespace aoizora::candidates {

/// One axis of the logical mesh.
struct MeshAxis {
  std::string name;
  std::int64_t size = 1;
  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

enum class AttentionKind : std::uint8_t {
  gathered,  ///< flash attention, keys and values gathered over the sequence's mesh axes
  ulysses,   ///< flash attention, heads exchanged for sequence by all-to-all
};
std::string_view name(AttentionKind kind);

/// Block sizes of the attention kernel. The local lengths are padded to them.
struct KernelBlocks {
  std::int64_t queries = 512;
  std::int64_t keys = 512;
  friend bool operator==(const KernelBlocks&, const KernelBlocks&) = default;
};

/// One way to run the workload: a logical mesh, axis rules, an attention kind, compiler options. s in the paper.
struct Candidate {
  std::vector<MeshAxis>
      mesh;  ///< data, fsdp, context, tensor, always in this order, sizes multiply to the device count
  std::map<std::string, std::vector<std::string>> rules;  ///< logical axis -> mesh axes that divide it, major first
  AttentionKind attention = AttentionKind::gathered;
  KernelBlocks blocks;
  std::map<std::string, std::string> compiler_options;  ///< XLA option -> value, given to every compile of it
  friend bool operator==(const Candidate&, const Candidate&) = default;

  std::int64_t axis_size(const std::string& mesh_axis) const;
  /// Product of the sizes of the mesh axes that divide a logical axis; 1 for none.
  std::int64_t factor(const std::string& logical_axis) const;
};

/// M̂ = M_w + M_act + M_attn + M_tmp (paper 4.2), bytes a device; each part a lower bound of what the compiler will
/// need.
struct MemoryEstimate {
  double weights_bytes = 0;
  double activations_bytes = 0;
  double attention_bytes = 0;
  double temporaries_bytes = 0;
  double total_bytes() const { return weights_bytes + activations_bytes + attention_bytes + temporaries_bytes; }
};
MemoryEstimate memory_estimate(const workload::Workload& workload, const Candidate& candidate);

struct EnumerationOptions {
  std::int64_t hbm_budget_bytes = 0;  ///< 0: the slice's HBM
  /// 0: from HBM, the smallest factor with which the weights alone fit, or 1 where nothing fits so.
  std::int64_t minimum_weight_sharding = 0;
  bool ulysses = true;  ///< offer Ulysses beside gathered keys
  /// Let in meshes with an axis of size > 1 that divides nothing: another axis of the model could always be divided by
  /// it, so they only help where the compiler refused all others.
  bool idle_axes = false;
};

/// What the generator did, in order; every count is of candidates left after the step.
struct Enumeration {
  std::vector<Candidate> candidates;   ///< ordered by canonical signature
  std::int64_t assignments = 0;        ///< mesh x rules, before any rule
  std::int64_t legal = 0;              ///< divisible, no mesh axis twice on a tensor, none idle unless asked for
  std::int64_t distinct = 0;           ///< after equal ones are merged
  std::int64_t sharded_enough = 0;     ///< after the minimum weight-sharding factor
  std::int64_t fitting = 0;            ///< after M̂ <= budget
  std::int64_t with_attention = 0;     ///< after attention kinds are added: candidates.size()
  double smallest_estimate_bytes = 0;  ///< least M̂ over the distinct ones, for "how much is missing"
  std::int64_t weight_sharding = 1;    ///< the minimum weight-sharding factor that was applied
};

/// Legal shardings exist, but none within the memory budget.
class NothingFits : public Infeasible {
 public:
  using Infeasible::Infeasible;
};

/// Legal, canonical, de-duplicated shardings (paper 4.2). Batch axes are on data (and on fsdp too where both are larger
/// than 1 and divide it), sequence axes on context, every weight axis on each subset of the present mesh axes. Of equal
/// ones the one kept has the fewest mesh axes of size > 1, then the rules nearest to the workload's stock rules. Throws
/// Infeasible, naming what is missing and what would help, where no legal mesh exists, NothingFits where none fits.
Enumeration enumerate(const workload::Workload& workload, const topology::Slice& slice,
                      const EnumerationOptions& options);

/// Equal for two candidates exactly if renaming, splitting or merging mesh axes maps every tensor's sharding,
/// activations included, of one to the other's, and attention kind, blocks and options are the same.
std::string canonical_signature(const workload::Workload& workload, const Candidate& candidate);

/// {"mesh": [{"name": "data", "size": 2}, ...], "rules": {"embed": ["context"], ...}, "attention": "gathered",
/// "blocks": {"queries": 512, "keys": 512}, "compiler_options": {}}. The reader takes nothing else, the mesh axes in
/// the order data, fsdp, context, tensor: throws ParseError or InvalidRequest.
std::string to_json(const Candidate& candidate);
Candidate read_candidate(const std::string& json);

std::string to_json(const MemoryEstimate& estimate);

/// Counts, and for each candidate its signature and memory.
std::string to_json(const workload::Workload& workload, const Enumeration& enumeration);

/// The options as JSON; missing keys take the defaults, unknown keys are refused.
EnumerationOptions read_enumeration_options(const std::string& json);

}  // namespace aoizora::candidates
