#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "aoizora/ir/program.h"
#include "aoizora/workload/workload.h"

namespace aoizora::baseline {

/// Index into Workload::axes of the logical axis a dimension lies on; -1 for none.
using Label = int;

enum class OperatorKind : std::uint8_t {
  contraction,  ///< an activation times a weight
  attention,    ///< an opaque attention kernel
  carry,        ///< what the repeated block takes from the one before
};

/// Partial sums inside an operator if the reduced dimension is divided: norms.
struct Reduction {
  Label label = -1;           ///< the reduced dimension's
  std::vector<Label> labels;  ///< of the result
  double bytes = 0;           ///< of the result, undivided
};

/// A node of the operator graph: a contraction, an attention kernel or a loop's carry, with every lighter operation
/// (elementwise, norms, relayouts) merged into the producer of its largest operand, as Alpa does (Zheng et al. 2022,
/// 4.2).
struct Operator {
  OperatorKind kind = OperatorKind::contraction;
  std::string name;        ///< the weight's, the attention's, or "carry"
  std::int64_t trips = 1;  ///< times a denoising step at the deployed depth
  bool in_block = false;
  std::vector<Label> labels;  ///< of the result, sorted
  double flops = 0;           ///< once, whole batch, nothing padded
  double input_bytes = 0;     ///< contraction: its activation, undivided; 0 where the program's input is read
  double output_bytes = 0;
  int weight = -1;                    ///< contraction: index into Workload::weights
  Label in_label = -1;                ///< contraction: the contracted dimension's
  Label out_label = -1;               ///< contraction: the weight's other dimension's
  std::vector<Label> input_labels;    ///< contraction: of its activation, sorted
  int attention = -1;                 ///< attention: index into Workload::attentions
  std::vector<Reduction> reductions;  ///< of what is merged into it
};

enum class ReadRole : std::uint8_t {
  contracted,   ///< the activation of a contraction
  queries,      ///< of an attention kernel
  keys,         ///< keys or values of an attention kernel
  elementwise,  ///< beside the operator's own result: a residual
  carried,      ///< into a carry
};

/// A value that crosses from its operator to others. Held in the layout of its operator.
struct FlowTensor {
  int producer = -1;
  std::vector<Label> labels;  ///< sorted
  double bytes = 0;           ///< undivided
};

struct Read {
  int tensor = -1;
  int consumer = -1;
  ReadRole role = ReadRole::contracted;
  std::int64_t trips = 1;
};

/// The program as operators, in order of execution. It does not depend on the candidate the program was propagated
/// under: layouts, collectives and the padding of sequences are left out.
struct OperatorGraph {
  std::vector<Operator> operators;
  std::vector<FlowTensor> tensors;
  std::vector<Read> reads;
  std::vector<int> unread_weights;  ///< Workload::weights no contraction reads: biases, norms, tables
};

/// Reads the graph off a propagated (or merely lowered) StableHLO program whose first arguments are the table's weights
/// in the order of their names, as JAX flattens a dict, those of the block stacked along the layers. Reads of less than
/// 1/64 of their consumer's result are left out. Throws ParseError where the program is another's, InvalidRequest for a
/// table it cannot use.
OperatorGraph read_operators(const ir::Program& program, const workload::Workload& workload);

/// The graph as JSON text, axes by name.
std::string to_json(const OperatorGraph& graph, const workload::Workload& workload);

}  // namespace aoizora::baseline
