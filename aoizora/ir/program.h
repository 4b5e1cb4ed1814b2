#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aoizora/dtype.h"

namespace aoizora::ir {

using InstructionId = std::int32_t;
using ComputationId = std::int32_t;
inline constexpr std::int32_t none = -1;

/// One array (a tuple is flattened into its leaves). `dims` point into the program's pool.
struct ArrayType {
  DType dtype = DType::unknown;
  int memory_space = 0;  ///< HLO's S(n): 0 is HBM
  std::span<const std::int64_t> dims;
  std::string_view layout;        ///< HLO: the text in braces, "1,0:T(8,128)(2,1)S(1)"; empty elsewhere
  std::int64_t elements() const;  ///< saturates, never overflows; a dynamic dimension counts as its bound
  std::int64_t bytes() const;     ///< of the elements, without padding of the layout; saturates
};

/// A value an instruction reads: result `result` of instruction `instruction`.
struct Operand {
  InstructionId instruction = none;
  std::int32_t result = 0;
};

/// One instruction of HLO or operation of StableHLO. All views live as long as the Program.
struct Instruction {
  std::string_view name;    ///< without '%'; StableHLO: "12" or "arg0"
  std::string_view opcode;  ///< "all-gather"; StableHLO: "stablehlo.dot_general"; block arguments are "parameter"
  std::span<const ArrayType> types;  ///< leaves of the result
  std::span<const Operand> operands;
  std::span<const ComputationId> called;  ///< called computations, or regions, in order of print
  std::string_view attributes;            ///< raw text after the operands: everything not held above
  ComputationId computation = none;
  bool is_root = false;
};

/// A computation of HLO; a function or region block of StableHLO. Instructions [first, first + count) in order of
/// print.
struct Computation {
  std::string_view name;
  std::span<const InstructionId> parameters;
  InstructionId first = 0;
  std::int32_t count = 0;
  InstructionId root = none;
  InstructionId caller = none;  ///< StableHLO regions: the operation they belong to
};

enum class Dialect : std::uint8_t { hlo, stablehlo };

/// A whole module in one owned buffer; movable, not copyable; views stay valid when it moves.
class Program {
 public:
  Program();
  ~Program();
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;

  Dialect dialect = Dialect::hlo;
  std::string_view name;        ///< module name
  std::string_view attributes;  ///< raw text of the module's header
  bool is_scheduled = false;
  std::span<const Instruction> instructions;
  std::span<const Computation> computations;
  ComputationId entry = none;

  std::span<const Instruction> of(ComputationId computation) const;
  std::string_view text() const;

  struct Storage;  ///< owns the text and the pools
  std::unique_ptr<Storage> storage;
};

/// Value of an attribute of `instruction`: attribute(i, "replica_groups") gives "[4,2]<=[4,2]T(1,0)"; empty where
/// absent. Brackets, quotes and nested keys are respected: only top-level keys are found.
std::string_view attribute(const Instruction& instruction, std::string_view key);

/// HLO after code generation: "estimated_cycles":"831857" of a fusion; nothing where there is none or it is 2^63 - 1
/// (tpu7x).
std::optional<std::int64_t> estimated_cycles(const Instruction& instruction);
inline constexpr std::string_view estimated_cycles_key = "\"estimated_cycles\":\"";  ///< what stands before it

/// HLO: the text between the parentheses behind the opcode: a constant's literal, a parameter's number. Empty for
/// StableHLO.
std::string_view operand_text(const Instruction& instruction);

/// HLO: the computation an attribute names, called(p, while, "body"); `none` where absent. (Instruction::called is in
/// order of print.)
ComputationId called(const Program& program, const Instruction& instruction, std::string_view key);

}  // namespace aoizora::ir
