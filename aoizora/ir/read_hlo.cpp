#include <limits>
#include <utility>

#include "aoizora/ir/readers.h"
#include "aoizora/ir/scan_impl.h"
#include "aoizora/ir/storage_impl.h"

namespace aoizora::ir {
namespace {

/// Keys whose values name computations.
bool names_computations(std::string_view key) {
  switch (key.size()) {
    case 4:
      return key == "body";
    case 5:
      return key == "calls";
    case 6:
      return key == "select";
    case 7:
      return key == "scatter";
    case 8:
      return key == "to_apply";
    case 9:
      return key == "condition";
    case 16:
      return key == "true_computation";
    case 17:
      return key == "false_computation";
    case 19:
      return key == "branch_computations" || key == "called_computations";
    default:
      return false;
  }
}

class HloReader {
 public:
  explicit HloReader(Program& program) : program_(program), store_(*program.storage), c_(program.storage->text) {
    store_.instructions.reserve(expected_instructions(store_.text, 10));  // "a=s4[]a()\n"
  }

  void read() {
    if (store_.text.size() > std::numeric_limits<std::uint32_t>::max()) c_.fail("the text has more than 4 GiB");
    header();
    while (c_.skip_space(), !c_.done()) {
      if (!table()) computation();
    }
    if (program_.entry == none) c_.fail("the text ends without an ENTRY computation: it is cut, or no whole module");
    resolve_calls();
    program_.instructions = store_.instructions;
    program_.computations = store_.computations;
  }

 private:
  /// Name of a computation that comes later in the text.
  struct Late {
    std::uint32_t at;
    std::uint32_t size;
  };
  struct Parameter {
    std::int32_t number;
    InstructionId id;
  };

  // "HloModule name, key=value, ..." up to the end of the line on which all brackets are closed.
  void header() {
    c_.skip_space();
    if (!c_.take("HloModule")) c_.fail("expected HloModule at the start of the text");
    c_.skip_blanks();
    program_.name = name("the module");
    const char* start = c_.at;
    scan_attributes(start, nullptr);
    program_.attributes = {start, static_cast<std::size_t>(c_.at - start)};
    Instruction as_instruction;
    as_instruction.attributes = program_.attributes;
    program_.is_scheduled = attribute(as_instruction, "is_scheduled") == "true";
  }

  // Tables of source locations: a heading, then lines that start with a number.
  bool table() {
    for (const std::string_view heading : {"FileNames", "FunctionNames", "FileLocations", "StackFrames"}) {
      if (!c_.starts_with(heading)) continue;
      Cursor ahead = c_;
      ahead.at += heading.size();
      ahead.skip_blanks();
      if (ahead.peek() != '\n' && ahead.peek() != '\r' && !ahead.done()) continue;
      c_ = ahead;
      while (c_.skip_line(), !c_.done()) {
        ++c_.at;
        if (!is_digit(c_.peek())) break;
      }
      return true;
    }
    return false;
  }

  std::string_view name(const char* of) {
    c_.take('%');
    const std::string_view found = c_.name();
    if (found.empty())
      c_.fail(std::string("expected the name of ") + of + (c_.done() ? ", the text ends here: it is cut" : ""));
    return found;
  }

  // "%name (parameters) -> type {" instructions "}", or "%name {" ... "}".
  void computation() {
    const char* start = c_.at;
    const bool entry = c_.starts_with("ENTRY") && is_space(c_.peek(5));
    if (entry) {
      c_.at += 5;
      c_.skip_space();
    }
    Computation made;
    made.name = name("a computation");
    c_.skip_space();
    if (c_.peek() == '(') c_.skip_balanced(false);
    c_.skip_space();
    if (c_.take("->")) {
      c_.skip_space();
      type(nullptr);
      c_.skip_space();
    }
    c_.expect('{', "that opens the computation");
    made.first = static_cast<InstructionId>(store_.instructions.size());
    const auto id = static_cast<ComputationId>(store_.computations.size());
    names_.clear();
    parameters_.clear();
    while (true) {
      c_.skip_space();
      if (c_.done()) {
        c_.fail_at(start, "computation " + shown(made.name) + " is not closed: the text is cut");
      }
      if (c_.take('}')) break;
      instruction(id, made);
    }
    made.count = static_cast<std::int32_t>(store_.instructions.size()) - made.first;
    if (made.count == 0) c_.fail_at(start, "computation " + shown(made.name) + " has no instruction");
    if (made.root == none) {
      made.root = made.first + made.count - 1;
      store_.instructions.back().is_root = true;
    }
    made.parameters = numbered_parameters(made);
    if (c_.peek() == ',') scan_attributes(c_.at, nullptr);  // }, execution_thread="sparsecore"
    if (!computation_names_.insert(made.name, id)) {
      c_.fail_at(start, "computation " + shown(made.name) + " is defined twice");
    }
    if (entry) {
      if (program_.entry != none) c_.fail_at(start, "a second ENTRY computation");
      program_.entry = id;
    }
    push(store_.computations, made);
  }

  // "[ROOT] %name = type opcode(operands), key=value, ..."
  void instruction(ComputationId computation, Computation& made) {
    const char* start = c_.at;
    Instruction out;
    out.computation = computation;
    if (c_.starts_with("ROOT") && is_space(c_.peek(4))) {
      c_.at += 4;
      c_.skip_space();
      out.is_root = true;
    }
    out.name = name("an instruction");
    c_.skip_space();
    c_.expect('=', "behind the instruction's name");
    c_.skip_space();
    types_.clear();
    type(&types_);
    c_.skip_space();
    const char* opcode = c_.at;
    while (is_letter(c_.peek()) || is_digit(c_.peek()) || c_.peek() == '-') ++c_.at;
    out.opcode = {opcode, static_cast<std::size_t>(c_.at - opcode)};
    if (out.opcode.empty()) c_.fail("expected an opcode");
    if (c_.peek() != '(') c_.fail("expected '(' behind opcode " + shown(out.opcode));
    const auto id = static_cast<InstructionId>(store_.instructions.size());
    if (out.opcode == "parameter") {
      parameter(id);
    } else if (out.opcode == "constant") {
      c_.skip_balanced(false);
    } else {
      operands();
      out.operands = store_.pool.copy(std::span<const Operand>(operands_));
      operands_.clear();
    }
    out.types = store_.pool.copy(std::span<const ArrayType>(types_));
    const char* attributes = c_.at;
    scan_attributes(start, &out);
    const char* stop = c_.at;
    while (stop > attributes && is_space(stop[-1])) --stop;
    out.attributes = {attributes, static_cast<std::size_t>(stop - attributes)};
    if (!names_.insert(out.name, id)) {
      c_.fail_at(start, "instruction " + shown(out.name) + " is defined twice in computation " + shown(made.name));
    }
    if (out.is_root) {
      if (made.root != none) c_.fail_at(start, "a second ROOT in computation " + shown(made.name));
      made.root = id;
    }
    if (id == std::numeric_limits<InstructionId>::max()) c_.fail("too many instructions");
    push(store_.instructions, out);
  }

  void parameter(InstructionId id) {
    ++c_.at;
    c_.skip_space();
    const char* start = c_.at;
    const auto number = c_.number();
    if (!number || *number < 0 || *number >= std::numeric_limits<std::int32_t>::max()) {
      c_.fail_at(start, "expected a parameter's number");
    }
    c_.skip_space();
    c_.expect(')', "behind the parameter's number");
    push(parameters_, Parameter{static_cast<std::int32_t>(*number), id});
  }

  // Parameters print in any order.
  std::span<const InstructionId> numbered_parameters(const Computation& made) {
    const auto by_number = [](const Parameter& a, const Parameter& b) {
      return std::pair(a.number, a.id) < std::pair(b.number, b.id);
    };
    if (!std::is_sorted(parameters_.begin(), parameters_.end(), by_number)) {
      std::sort(parameters_.begin(), parameters_.end(), by_number);
    }
    ids_.clear();
    for (const Parameter& parameter : parameters_) {
      if (parameter.number != static_cast<std::int32_t>(ids_.size())) {
        c_.fail_at(store_.instructions[static_cast<std::size_t>(parameter.id)].opcode.data(),
                   "the parameters of computation " + shown(made.name) + " must be numbered 0, 1, 2, ... once each");
      }
      push(ids_, parameter.id);
    }
    return store_.pool.copy(std::span<const InstructionId>(ids_));
  }

  // "(%a, f32[2]{0} %b, /*index=5*/c)": names with or without their type and '%'.
  void operands() {
    ++c_.at;
    while (true) {
      c_.skip_space();
      if (c_.take(')')) return;
      if (c_.done()) c_.fail("operands are not closed: the text is cut");
      std::string_view found;
      const char* start = c_.at;
      if (c_.peek() != '%') {
        if (c_.peek() != '(') found = c_.name();
        if (found.empty() || c_.peek() == '[' || c_.peek() == '(') {
          c_.at = start;
          type(nullptr);
          c_.skip_space();
          start = c_.at;
          found = {};
        }
      }
      if (found.empty()) found = name("an operand");
      const std::int32_t id = names_.find(found);
      if (id < 0) c_.fail_at(start, "operand " + shown(found) + " is not defined before its use");
      push(operands_, Operand{id, 0});
      c_.skip_space();
      if (!c_.take(',') && c_.peek() != ')') c_.fail("expected ',' or ')' behind an operand");
    }
  }

  // "bf16[2,5120]{1,0:T(8,128)(2,1)S(1)}", "(f32[], /*index=5*/(u32[], token[]))"; leaves go to `out`.
  void type(std::vector<ArrayType>* out) {
    std::int64_t depth = 0;
    while (true) {
      if (c_.take('(') || c_.take("b(")) {  // a tuple, or a buffer of one array
        ++depth;
        skip_space_fast();
        if (c_.peek() != ')') continue;
      } else {
        array_type(out);
      }
      while (true) {
        if (depth == 0) return;
        skip_space_fast();
        if (c_.take(')')) {
          if (--depth == 0) return;
          continue;
        }
        if (!c_.take(','))
          c_.fail(c_.done() ? "type is not closed: the text is cut" : "expected ',' or ')' in a tuple type");
        skip_space_fast();
        break;
      }
    }
  }

  void skip_space_fast() {
    if (c_.at < c_.end && (is_space(*c_.at) || *c_.at == '/')) c_.skip_space();
  }

  DType dtype_of(std::string_view spelled) {
    if (spelled == last_spelled_) return last_dtype_;
    const DType found = dtype_from_name(spelled);
    last_spelled_ = spelled;
    last_dtype_ = found;
    return found;
  }

  void array_type(std::vector<ArrayType>* out) {
    const char* start = c_.at;
    while (c_.at < c_.end && (is_letter(*c_.at) || is_digit(*c_.at))) ++c_.at;
    const std::string_view spelled{start, static_cast<std::size_t>(c_.at - start)};
    ArrayType made;
    made.dtype = dtype_of(spelled);
    if (spelled.empty() || made.dtype == DType::unknown) {
      c_.fail_at(start, c_.done() ? "expected a type, the text ends here: it is cut"
                                  : "expected a type, found '" + std::string(spelled.substr(0, 40)) + "'");
    }
    c_.expect('[', "of the type");
    dims_.clear();
    while (!c_.take(']')) {
      skip_space_fast();
      if (c_.take("<=")) {
      }  // dynamic, with a bound
      if (c_.take('?')) {
        push(dims_, std::int64_t{1});  // without one
      } else {
        const auto dim = c_.number();
        if (!dim || *dim < 0) c_.fail(c_.done() ? "type is not closed: the text is cut" : "expected a dimension");
        push(dims_, *dim);
      }
      skip_space_fast();
      if (!c_.take(',') && c_.peek() != ']') c_.fail("expected ',' or ']' in a type");
    }
    if (c_.peek() == '{') layout(made);
    if (!out) return;
    made.dims = store_.pool.copy(std::span<const std::int64_t>(dims_));
    push(*out, made);
  }

  void layout(ArrayType& made) {
    const char* start = c_.at + 1;
    c_.skip_balanced(false);
    made.layout = {start, static_cast<std::size_t>(c_.at - 1 - start)};
    // S(n) stands last, behind the tiles; SC(...) is another thing.
    const std::size_t space = made.layout.rfind("S(");
    if (space == std::string_view::npos) return;
    Cursor digits(made.layout.substr(space + 2));
    const auto number = digits.number();
    if (number && *number >= 0 && *number < 1'000'000 && digits.peek() == ')')
      made.memory_space = static_cast<int>(*number);
  }

  // Goes to the end of the line on which all brackets are closed, or to a bracket that closes what is around. Strings
  // are passed over whole. At the top level the computations named are noted in `of`.
  void scan_attributes(const char* start, Instruction* of) {
    const char* p = c_.at;
    const char* const end = c_.end;
    std::int64_t depth = 0;
    called_.clear();
    while (true) {
      while (p < end && mark(*p) == Mark::plain) ++p;
      if (p >= end) break;
      switch (mark(*p)) {
        case Mark::open:
          ++depth;
          ++p;
          continue;
        case Mark::close:
          if (depth == 0) break;
          --depth;
          ++p;
          continue;
        case Mark::quote:
          c_.at = p;
          c_.skip_string();
          p = c_.at;
          continue;
        case Mark::line:
          if (depth == 0) break;
          ++p;
          continue;
        case Mark::comma:
          ++p;
          if (depth == 0 && of) {
            c_.at = p;
            c_.skip_blanks();
            const std::string_view key = c_.name();
            if (c_.peek() == '=' && names_computations(key)) {
              ++c_.at;
              computations_named(key);
            }
            p = c_.at;
          }
          continue;
        case Mark::plain:
          ++p;
          continue;
      }
      break;
    }
    c_.at = p;
    if (depth != 0) c_.fail_at(start, "a bracket on this line is not closed: the text is cut");
    if (of && !called_.empty()) {
      of->called = store_.pool.copy(std::span<const ComputationId>(called_));
    }
  }

  // "%a" or "{%a, %b}"
  void computations_named(std::string_view key) {
    const bool list = c_.take('{');
    while (true) {
      if (list) c_.skip_space();
      if (list && c_.take('}')) return;
      const char* start = c_.at;
      c_.take('%');
      const std::string_view wanted = c_.name();
      if (wanted.empty()) {
        c_.fail_at(start, "expected the name of a computation behind " + shown(key) + "=");
      }
      std::int32_t id = computation_names_.find(wanted);
      if (id < 0) {  // until resolve_calls(), -2 - its place in late_
        id = -2 - static_cast<std::int32_t>(late_.size());
        push(late_,
             Late{static_cast<std::uint32_t>(wanted.data() - c_.begin), static_cast<std::uint32_t>(wanted.size())});
      }
      push(called_, id);
      if (!list) return;
      c_.skip_space();
      if (!c_.take(',') && c_.peek() != '}') c_.fail("expected ',' or '}' behind the name of a computation");
    }
  }

  void resolve_calls() {
    if (late_.empty()) return;
    for (const Instruction& instruction : store_.instructions) {
      for (const ComputationId& slot : instruction.called) {
        if (slot >= 0) continue;
        const Late& late = late_[static_cast<std::size_t>(-2 - slot)];
        const std::string_view wanted = std::string_view(store_.text).substr(late.at, late.size);
        const std::int32_t id = computation_names_.find(wanted);
        if (id < 0) c_.fail_at(wanted.data(), "computation " + shown(wanted) + " does not exist");
        const_cast<ComputationId&>(slot) = id;  // the pool's memory is this reader's own
      }
    }
  }

  Program& program_;
  Program::Storage& store_;
  Cursor c_;
  NameTable names_;  ///< of the computation being read
  NameTable computation_names_;
  std::vector<Late> late_;
  std::vector<Parameter> parameters_;
  std::vector<InstructionId> ids_;
  std::vector<ArrayType> types_;
  std::vector<Operand> operands_;
  std::vector<std::int64_t> dims_;
  std::vector<ComputationId> called_;
  std::string_view last_spelled_;
  DType last_dtype_ = DType::unknown;
};

}  // namespace

Program read_hlo(std::string text) {
  Program program;
  program.storage->text = std::move(text);
  program.dialect = Dialect::hlo;
  HloReader(program).read();
  check_acyclic(program);
  return program;
}

}  // namespace aoizora::ir
