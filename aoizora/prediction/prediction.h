#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "aoizora/candidates/candidate.h"
#include "aoizora/ir/program.h"
#include "aoizora/topology/slice.h"
#include "aoizora/workload/workload.h"

namespace aoizora::prediction {

/// What the vector unit takes for an element of the largest array of a fusion, in cycles: about 40 for 2048 elements,
/// read off estimated_cycles of libtpu 0.0.52 for v5e. The schedule of ranking goes by the same.
inline constexpr double vector_cycles_per_element = 40.0 / 2048;

/// The rows of the paper's Table 1, and compute.
enum class NodeKind : std::uint8_t {
  compute,
  visible_collective,   ///< row 1: compiler-visible collective or reshard
  producer_consumer,    ///< row 2: incompatible producer and consumer shardings
  sharded_contraction,  ///< row 3: partial sums of a contraction, |Y|
  weight_gather,        ///< row 4: the weight is gathered instead, |W|
  sharded_reduction,    ///< row 5: partial sums of a reduction, |Y|
  opaque_boundary,      ///< row 6: what an opaque kernel needs at its boundary
};
std::string_view name(NodeKind kind);

/// One node of G_s^pre. Compute nodes have flops, the others a collective.
struct Node {
  NodeKind kind = NodeKind::compute;
  std::string what;           ///< operation and operand, for people
  std::int64_t trips = 1;     ///< how often it runs a step: product of the loops around it
  bool in_block = false;      ///< inside the repeated block's loop
  double flops = 0;           ///< per device
  double hbm_bytes = 0;       ///< per device, reads and writes
  double kernel_seconds = 0;  ///< opaque kernels: grid steps x cycles a step / clock; 0 for what runs at FLOPs/ρ_dev
  topology::CollectiveKind collective{};
  std::vector<std::string> mesh_axes;  ///< axes of the group
  std::int64_t group_size = 1;         ///< n
  double payload_bytes = 0;            ///< B: as one group holds it
  bool feeds_carry = false;            ///< an all-reduce whose result feeds the loop carry
  std::vector<std::int32_t> needs;     ///< nodes, all before it, whose results it needs; not always all of them
  bool needs_carry = false;            ///< needs what the loop's iteration before it made; of a whole program, always
};

struct PredictionGraph {
  std::vector<Node> nodes;
  std::int64_t proxy_layers = 0;  ///< trips of the block's loop in the traced proxy
};

/// G_s^pre from a propagated StableHLO program (paper 4.3, Table 1). `layers` of the proxy are recognised as the loop
/// that holds the block. Throws ParseError where the program's shardings do not read.
PredictionGraph build_prediction_graph(const ir::Program& propagated, const workload::Workload& workload,
                                       const candidates::Candidate& candidate, const topology::Hardware& hardware);

/// Q1 = max(C_comp, C_comm - C_ar) + C_ar in seconds, for the deployed depth.
struct Q1 {
  double seconds = 0;
  double compute_seconds = 0;             ///< C_comp
  double communication_seconds = 0;       ///< C_comm
  double carried_all_reduce_seconds = 0;  ///< C_ar: all-reduces whose result feeds the loop carry
  double all_reduce_seconds = 0;          ///< every all-reduce, the paper's own C_ar
  std::map<topology::CollectiveKind, double>
      block_bytes;  ///< payload of one block by kind: predicted, sum of B x trips inside it
};
Q1 score(const PredictionGraph& graph, const topology::Hardware& hardware, std::int64_t layers);

/// φ_τ(n) of the paper: AG, RS and A2A (n-1)/n, AR twice that, permute and broadcast 1; 0 for n = 1.
double volume_factor(topology::CollectiveKind kind, std::int64_t n);

/// C_comp of one run of a compute node.
double compute_seconds(const Node& node, const topology::Hardware& hardware);

/// C_comm = α_τ + β_τ φ_τ(n) B in seconds, 1/β that of the best placement a group of n can have.
double collective_seconds(topology::CollectiveKind kind, std::int64_t group_size, double payload_bytes,
                          const topology::Hardware& hardware);

std::string to_json(const PredictionGraph& graph, const Q1& q1);

}  // namespace aoizora::prediction
