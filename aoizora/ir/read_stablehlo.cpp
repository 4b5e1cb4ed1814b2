#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "aoizora/ir/readers.h"
#include "aoizora/ir/scan_impl.h"
#include "aoizora/ir/storage_impl.h"

namespace aoizora::ir {
namespace {

/// Regions inside regions: programs have a dozen.
constexpr int max_nesting = 256;

/// What of one operation is known while it is read.
struct Operation {
  InstructionId id = none;
  ComputationId first_region = none;
  std::int32_t regions = 0;          ///< of a loop in the custom form
  std::int32_t results = 0;          ///< how many the left side names
  std::span<const ArrayType> types;  ///< of the results; empty if too few are given
  bool is_function = false;
  bool args_for_all_regions = false;  ///< stablehlo.while's custom form: one list of names for both regions
  const char* attributes = nullptr;   ///< first byte behind the opcode or the operands
  const char* attributes_end = nullptr;
};

/// A block argument that waits for its region.
struct Argument {
  std::string_view name;
  std::size_t first_type = 0;  ///< in arg_types_
  std::size_t types = 0;
  std::string_view attributes;
  std::int32_t like = -1;  ///< stablehlo.while's custom form: has the type of this result
};

/// Reads the generic form by its grammar; the custom forms by what they have in common: operands are names with '%', a
/// '{' that ends its line opens a region, the last ':' outside brackets precedes the types.
class MlirReader {
 public:
  explicit MlirReader(Program& program)
      : program_(program),
        store_(*program.storage),
        c_(program.storage->text),
        expected_(expected_instructions(store_.text, 4)),  // "a.b\n"
        names_(expected_) {
    store_.instructions.reserve(expected_);
    defs_.reserve(expected_);
  }

  void read() {
    if (store_.text.size() > std::numeric_limits<std::uint32_t>::max()) c_.fail("the text has more than 4 GiB");
    const ComputationId module = open_computation("", none);
    skip_between();
    if (c_.starts_with("\"builtin.module\"") || (c_.starts_with("module") && !is_name(c_.peek(6)))) {
      operation(module, 0);
      skip_between();
      if (!c_.done()) c_.fail("text behind the module");
    } else {
      block(module, 0, true);
    }
    if (functions_.size() == 0) c_.fail("the module has no function");
    resolve();
    lay_out();
  }

 private:
  struct Left {
    std::string_view name;
    std::int32_t count;
  };
  struct KnownTypes {
    std::string_view text;
    std::int32_t results = 0;
    std::span<const ArrayType> types;
  };
  struct Called {
    InstructionId by;
    ComputationId computation;
  };
  struct Def {
    InstructionId instruction;
    std::int32_t first;
    std::int32_t count;
  };

  // Between operations: spaces, comments, aliases ("#map = ...", "!t = ...") and resource blocks.
  void skip_between() {
    while (true) {
      c_.skip_space();
      if (c_.peek() == '%') return;
      if (c_.starts_with("{-#")) {
        const std::size_t close = c_.rest().find("#-}");
        if (close == std::string_view::npos) c_.fail("resources are not closed: expected #-}");
        c_.at += close + 3;
      } else if (c_.peek() == '#' || c_.peek() == '!') {
        while (!c_.done() && *c_.at != '\n') {
          if (*c_.at == '"') {
            c_.skip_string();
          } else if (is_open(*c_.at)) {
            c_.skip_balanced(true);
          } else {
            ++c_.at;
          }
        }
      } else {
        return;
      }
    }
  }

  static bool is_open(char c) { return c == '(' || c == '[' || c == '{' || c == '<'; }

  ComputationId open_computation(std::string_view name, InstructionId caller) {
    Computation made;
    made.name = name;
    made.caller = caller;
    push(store_.computations, made);
    if (store_.computations.size() >= static_cast<std::size_t>(std::numeric_limits<ComputationId>::max()))
      c_.fail("too many regions");
    return static_cast<ComputationId>(store_.computations.size() - 1);
  }

  // Instructions stand in order of print until lay_out().
  InstructionId add(ComputationId computation) {
    if (store_.instructions.size() >= static_cast<std::size_t>(std::numeric_limits<InstructionId>::max()))
      c_.fail("too many operations");
    push(store_.instructions).computation = computation;
    ++store_.computations[static_cast<std::size_t>(computation)].count;
    return static_cast<InstructionId>(store_.instructions.size() - 1);
  }

  Instruction& at(InstructionId id) { return store_.instructions[static_cast<std::size_t>(id)]; }

  void define(std::string_view name, InstructionId instruction, std::int32_t first, std::int32_t count) {
    if (!names_.insert(name, static_cast<std::int32_t>(defs_.size()))) {
      c_.fail_at(name.data(), "value %" + shown(name) + " is defined twice");
    }
    push(defs_, Def{instruction, first, count});
  }

  // "%name" or "%name#k"
  Operand use() {
    const char* start = c_.at;
    c_.expect('%', "before a value");
    return use(start, c_.name());
  }

  // The same behind "%name".
  Operand use(const char* start, std::string_view name) {
    const std::int32_t found = names_.find(name);
    if (found < 0) c_.fail_at(start, "value %" + shown(name) + " is not defined before its use");
    const Def& def = defs_[static_cast<std::size_t>(found)];
    std::int64_t result = 0;
    if (c_.take('#')) {
      const auto number = c_.number();
      if (!number || *number < 0 || *number >= def.count)
        c_.fail_at(start, "value %" + shown(name) + " has no such result");
      result = *number;
    }
    return {def.instruction, def.first + static_cast<std::int32_t>(result)};
  }

  // Operations up to the brace that closes the region. Labels "^bb0(%a: type):" begin a further block each.
  void block(ComputationId computation, int depth, bool to_the_end) {
    bool first_label = true;
    while (true) {
      skip_between();
      if (c_.done()) {
        if (to_the_end) return;
        c_.fail("a region is not closed: the text is cut");
      }
      if (c_.peek() == '}' && !to_the_end) {
        ++c_.at;
        return;
      }
      if (c_.peek() == '^') {
        ++c_.at;
        c_.name();
        const Computation& around = store_.computations[static_cast<std::size_t>(computation)];
        if (!first_label || around.count > 0) {
          computation = open_computation(around.name, around.caller);
          if (region_owner_ != none) push(called_, Called{region_owner_, computation});
        }
        first_label = false;
        if (c_.take('(')) block_arguments(computation);
        c_.skip_blanks();
        c_.expect(':', "behind a block's label");
        continue;
      }
      operation(computation, depth);
    }
  }

  // "%a: type, %b: type)" behind the parenthesis.
  void block_arguments(ComputationId computation) {
    while (true) {
      c_.skip_space();
      if (c_.take(')')) break;
      push(waiting_, argument());
      c_.skip_space();
      if (!c_.take(',') && c_.peek() != ')') c_.fail("expected ',' or ')' behind a block's argument");
    }
    give_arguments(computation, waiting_);
    waiting_.clear();
  }

  // "%name: type {attributes} loc(...)"
  Argument argument() {
    Argument made;
    c_.expect('%', "before an argument");
    made.name = c_.name();
    c_.skip_space();
    c_.expect(':', "behind an argument's name");
    c_.skip_space();
    made.first_type = arg_types_.size();
    const std::size_t around = types_.size();
    type();
    made.types = types_.size() - around;
    arg_types_.insert(arg_types_.end(), types_.end() - static_cast<std::ptrdiff_t>(made.types), types_.end());
    types_.resize(around);
    c_.skip_space();
    if (c_.peek() == '{') {
      const char* start = c_.at;
      c_.skip_balanced(true);
      made.attributes = {start, static_cast<std::size_t>(c_.at - start)};
      c_.skip_space();
    }
    location();
    return made;
  }

  void location() {
    if (c_.starts_with("loc(")) {
      c_.at += 3;
      c_.skip_balanced(true);
    }
  }

  void give_arguments(ComputationId computation, const std::vector<Argument>& arguments) {
    parameters_.clear();
    for (const Argument& argument : arguments) {
      const InstructionId id = add(computation);
      Instruction& made = at(id);
      made.name = argument.name;
      made.opcode = "parameter";
      made.types =
          store_.pool.copy(std::span<const ArrayType>(arg_types_).subspan(argument.first_type, argument.types));
      made.attributes = argument.attributes;
      define(argument.name, id, 0, 1);
      push(parameters_, id);
    }
    arg_types_.clear();
    if (!parameters_.empty())
      store_.computations[static_cast<std::size_t>(computation)].parameters =
          store_.pool.copy(std::span<const InstructionId>(parameters_));
  }

  // Stands behind the brace that opens a region of `op`.
  void region(Operation& op, int depth) {
    if (depth >= max_nesting) c_.fail("regions are nested deeper than " + std::to_string(max_nesting));
    const ComputationId made =
        open_computation(op.is_function ? at(op.id).name : std::string_view(), op.is_function ? none : op.id);
    push(called_, Called{op.id, made});
    if (op.first_region == none) op.first_region = made;
    if (op.is_function) {
      if (!functions_.insert(at(op.id).name, made)) c_.fail("function @" + shown(at(op.id).name) + " is defined twice");
      if (first_function_ == none) first_function_ = made;
    }
    const std::size_t names = names_.size();
    const std::size_t defs = defs_.size();
    const InstructionId owner = std::exchange(region_owner_, op.id);
    std::vector<Argument> own = op.args_for_all_regions ? waiting_ : std::exchange(waiting_, {});
    std::vector<Argument> kept = std::exchange(waiting_, {});
    give_arguments(made, own);
    block(made, depth + 1, false);
    waiting_ = op.args_for_all_regions ? std::move(kept) : std::vector<Argument>{};
    region_owner_ = owner;
    names_.truncate(names);
    defs_.resize(defs);
  }

  // [%results =] "opcode"(...) or [%results =] opcode ...
  void operation(ComputationId computation, int depth) {
    const char* start = c_.at;
    const std::size_t around = left_.size();
    std::int64_t count = 0;
    while (c_.peek() == '%') {
      ++c_.at;
      Left one{c_.name(), 1};
      if (c_.take(':')) {
        const auto number = c_.number();
        if (!number || *number < 1 || *number > 1'000'000) c_.fail("expected how many results the operation has");
        one.count = static_cast<std::int32_t>(*number);
      }
      count += one.count;
      if (count > 1'000'000) c_.fail("too many results");
      push(left_, one);
      c_.skip_space();
      if (c_.take(',')) {
        c_.skip_space();
        continue;
      }
      c_.expect('=', "behind an operation's results");
      c_.skip_space();
      break;
    }
    Operation op;
    op.id = add(computation);
    op.results = static_cast<std::int32_t>(count);
    if (count > 0) at(op.id).name = left_[around].name;
    types_.clear();
    if (c_.peek() == '"') {
      generic(op, depth);
    } else if (is_letter(c_.peek())) {
      custom(op, depth);
    } else {
      c_.fail(c_.done() ? "expected an operation, the text ends here: it is cut" : "expected an operation");
    }
    c_.skip_blanks();
    location();
    Instruction& made = at(op.id);
    if (op.results > 0 && op.types.empty()) {
      c_.fail_at(start, "operation " + shown(made.opcode) + " has fewer types than results");
    }
    made.types = op.types;
    std::int32_t first = 0;
    for (std::size_t k = around; k < left_.size(); ++k) {
      define(left_[k].name, op.id, first, left_[k].count);
      first += left_[k].count;
    }
    left_.resize(around);
    if (made.opcode == "func.call") note_call(op.id, start);
    if (made.opcode == "builtin.module") {
      program_.name = made.name;
      program_.attributes = made.attributes;
    }
  }

  void note_call(InstructionId id, const char* start) {
    std::string_view callee = attribute(at(id), "callee");
    if (callee.empty()) {
      const std::size_t found = at(id).attributes.find('@');
      if (found != std::string_view::npos) callee = at(id).attributes.substr(found);
    }
    if (callee.empty() || callee.front() != '@') c_.fail_at(start, "a call without @callee");
    Cursor symbol(callee);
    push(calls_, Call{id, take_symbol(symbol)});
  }

  // "@name" or "@\"name\""
  static std::string_view take_symbol(Cursor& c) {
    ++c.at;
    if (c.peek() != '"') return c.name();
    const char* start = c.at + 1;
    c.skip_string();
    return {start, static_cast<std::size_t>(c.at - 1 - start)};
  }

  // "opcode"(%operands) [^successors] <{properties}> ({regions}) {attributes} : (types) -> types
  void generic(Operation& op, int depth) {
    const char* start = c_.at;
    c_.skip_string();
    const std::string_view opcode{start + 1, static_cast<std::size_t>(c_.at - start - 2)};
    at(op.id).opcode = opcode;
    op.is_function = opcode == "func.func";
    c_.skip_space();
    c_.expect('(', "that opens the operands");
    const std::size_t around = operands_.size();
    while (true) {
      c_.skip_space();
      if (c_.take(')')) break;
      push(operands_, use());
      c_.skip_space();
      if (!c_.take(',') && c_.peek() != ')') c_.fail("expected ',' or ')' behind an operand");
    }
    take_operands(op, around);
    c_.skip_space();
    if (c_.peek() == '[') c_.skip_balanced(true);
    c_.skip_space();
    std::string_view properties;
    if (c_.starts_with("<{")) properties = balanced();
    at(op.id).attributes = properties;
    std::vector<std::string_view> argument_attributes;
    if (op.is_function || opcode == "builtin.module" || opcode == "sdy.mesh") {
      argument_attributes = symbol_from_attributes(op);
    }
    c_.skip_space();
    if (c_.take('(')) {
      do {
        c_.skip_space();
        c_.expect('{', "that opens a region");
        region(op, depth);
        c_.skip_space();
      } while (c_.take(','));
      c_.expect(')', "that closes the regions");
      if (!argument_attributes.empty()) give_attributes(op.first_region, argument_attributes);
    }
    c_.skip_space();
    if (c_.peek() == '{') {
      const std::string_view dictionary = balanced();
      const char* behind = properties.data() + properties.size();
      if (properties.empty()) {
        at(op.id).attributes = dictionary;
      } else if (dictionary.data() - behind <= 1) {  // side by side
        at(op.id).attributes = {
            properties.data(),
            properties.size() + static_cast<std::size_t>(dictionary.data() - behind) + dictionary.size()};
      } else {
        at(op.id).attributes = store_.pool.copy(std::string(properties) + " " + std::string(dictionary));
      }
      c_.skip_space();
    }
    c_.expect(':', "before the operation's types");
    c_.skip_space();
    result_types(op, true);
  }

  // Those behind the first `around`, which are of operations around this one.
  void take_operands(const Operation& op, std::size_t around) {
    at(op.id).operands = store_.pool.copy(std::span<const Operand>(operands_).subspan(around));
    operands_.resize(around);
  }

  std::string_view balanced() {
    const char* start = c_.at;
    c_.skip_balanced(true);
    return {start, static_cast<std::size_t>(c_.at - start)};
  }

  // Gives an operation its name, and returns the attributes of a function's arguments. Those are long, and stand first:
  // MLIR sorts keys.
  std::vector<std::string_view> symbol_from_attributes(Operation& op) {
    std::vector<std::string_view> arguments;
    Instruction rest = at(op.id);
    Cursor c(rest.attributes);
    if (op.is_function && c.take("<{arg_attrs = ") && list(c, arguments)) {
      rest.attributes = c.rest();
    } else if (op.is_function) {
      arguments.clear();
      Cursor elsewhere(attribute(rest, "arg_attrs"));
      list(elsewhere, arguments);
    }
    const std::string_view quoted = attribute(rest, "sym_name");
    if (quoted.size() >= 2 && quoted.front() == '"') at(op.id).name = quoted.substr(1, quoted.size() - 2);
    return arguments;
  }

  // The elements of "[{...}, {...}]"; false if something else stands here.
  static bool list(Cursor& c, std::vector<std::string_view>& out) {
    if (!c.take('[')) return false;
    while (true) {
      while (is_space(c.peek()) || c.peek() == ',') ++c.at;
      if (c.peek() != '{') return c.take(']');
      const char* start = c.at;
      c.skip_balanced(true);
      out.emplace_back(start, static_cast<std::size_t>(c.at - start));
    }
  }

  void give_attributes(ComputationId body, const std::vector<std::string_view>& attributes) {
    const auto parameters = store_.computations[static_cast<std::size_t>(body)].parameters;
    for (std::size_t i = 0; i < std::min(parameters.size(), attributes.size()); ++i) {
      if (attributes[i] != "{}") at(parameters[i]).attributes = attributes[i];
    }
  }

  // Reads on the custom form up to the end of its last line.
  void custom(Operation& op, int depth) {
    std::string_view opcode = c_.name();
    if (opcode == "call") opcode = "func.call";
    if (opcode == "return") opcode = "func.return";
    if (opcode == "module") opcode = "builtin.module";
    if (opcode.find('.') == std::string_view::npos)
      c_.fail_at(opcode.data(), "operation " + shown(opcode) + " is of no dialect");
    at(op.id).opcode = opcode;
    op.is_function = opcode == "func.func";
    op.attributes = c_.at;
    const bool symbol = op.is_function || opcode == "builtin.module" || opcode == "sdy.mesh";
    const bool loop = opcode == "stablehlo.while";
    const bool region_lines = opcode == "stablehlo.while" || opcode == "stablehlo.reduce" || opcode == "stablehlo.scan";
    bool symbol_wanted = symbol;
    const std::size_t around = operands_.size();
    std::int64_t brackets = 0;
    const auto end_attributes = [&] {
      if (!op.attributes_end) op.attributes_end = c_.at;
    };
    for (bool more = true; more && !c_.done();) {
      const char* start = c_.at;
      switch (*start) {
        case '"':
          c_.skip_string();
          break;
        case '%': {
          ++c_.at;
          const std::string_view name = c_.name();
          if (c_.peek() == ':' && c_.peek(1) == ' ') {
            c_.at = start;
            push(waiting_, argument());
          } else if (loop && brackets > 0 && c_.take(" = %")) {
            Argument& made = push(waiting_);
            made.name = name;
            made.like = static_cast<std::int32_t>(operands_.size() - around);
            op.args_for_all_regions = true;
            --c_.at;
            push(operands_, use());
          } else {
            push(operands_, use(start, name));
          }
          break;
        }
        case '@': {
          const std::string_view name = take_symbol(c_);
          if (symbol_wanted) at(op.id).name = name;
          symbol_wanted = false;
          break;
        }
        case '{':
          if (brackets == 0 && (symbol && opcode != "sdy.mesh" ? !behind("attributes") : opens_region())) {
            end_attributes();
            ++c_.at;
            at(op.id).attributes = {op.attributes, static_cast<std::size_t>(op.attributes_end - op.attributes)};
            if (op.args_for_all_regions) {
              if (++op.regions > 2) c_.fail("a loop has a condition and a body, no third region");
              type_loop_arguments();
            }
            std::vector<ArrayType> saved = std::exchange(types_, {});
            region(op, depth);
            types_ = std::move(saved);
            break;
          }
          [[fallthrough]];
        case '[':
        case '<':
          c_.skip_balanced(true);
          break;
        case '(':
          ++brackets;
          ++c_.at;
          break;
        case ')':
          if (--brackets < 0) c_.fail("')' without '('");
          ++c_.at;
          break;
        case ':':
          if (brackets == 0 && !symbol) {
            end_attributes();
            ++c_.at;
            c_.skip_blanks();
            result_types(op, !loop);
          } else {
            ++c_.at;
          }
          break;
        case '\n':
          more = brackets != 0 || (region_lines && goes_on());
          if (more) ++c_.at;
          break;
        case '}':  // of the region around, on the same line
          more = false;
          break;
        case 'l':
          if (c_.starts_with("loc(")) {
            end_attributes();
            location();
            break;
          }
          [[fallthrough]];
        default:
          if (is_letter(*start)) {
            c_.name();
          } else {
            ++c_.at;
          }
      }
    }
    if (brackets != 0) c_.fail("'(' is not closed: the text is cut");
    end_attributes();
    const char* stop = op.attributes_end;
    while (stop > op.attributes && is_space(stop[-1])) --stop;
    at(op.id).attributes = {op.attributes, static_cast<std::size_t>(stop - op.attributes)};
    take_operands(op, around);
    waiting_.clear();
  }

  // Nothing but blanks since this word.
  bool behind(std::string_view word) const {
    const char* stop = c_.at;
    while (stop > c_.begin && (stop[-1] == ' ' || stop[-1] == '\t')) --stop;
    const std::string_view before{c_.begin, static_cast<std::size_t>(stop - c_.begin)};
    return before.ends_with(word) && !(before.size() > word.size() && is_name(before[before.size() - word.size() - 1]));
  }

  // The custom form of stablehlo.while lists the types once, before its regions.
  void type_loop_arguments() {
    for (Argument& argument : waiting_) {
      const auto like = static_cast<std::size_t>(argument.like);
      if (argument.like < 0 || like >= types_.size()) c_.fail("a loop with fewer types than values");
      argument.first_type = arg_types_.size();
      argument.types = 1;
      arg_types_.push_back(types_[like]);
    }
  }

  // MLIR prints dictionaries on one line and regions on several.
  bool opens_region() const {
    Cursor ahead = c_;
    ++ahead.at;
    ahead.skip_blanks();
    if (ahead.starts_with("loc(") || ahead.starts_with("//")) return true;
    return ahead.peek() == '\n' || ahead.peek() == '\r' || ahead.done();
  }

  // Lines that continue an operation: the regions of while and reduce.
  bool goes_on() const {
    Cursor ahead = c_;
    while (is_space(ahead.peek())) ++ahead.at;
    return ahead.starts_with("cond {") || ahead.starts_with("do {") || ahead.starts_with("reducer(") ||
           ahead.starts_with("attributes {");
  }

  // The types behind an operation's ':'. Programs write few such texts, and write them often: the last ones are kept
  // (`may_know`; types_ then stays empty).
  void result_types(Operation& op, bool may_know) {
    constexpr std::size_t longest = 256;  // many operations on one line must not each go over the whole of it
    const char* start = c_.at;
    const auto* line_end = static_cast<const char*>(std::memchr(start, '\n', std::min(longest, c_.rest().size())));
    const std::string_view text{start, line_end ? static_cast<std::size_t>(line_end - start) : 0};
    KnownTypes& known = known_types_[NameTable::hash(text) % known_types_.size()];
    types_.clear();
    if (may_know && !text.empty() && known.text == text && known.results == op.results) {
      op.types = known.types;
      c_.at = line_end;
      return;
    }
    const bool arrow = result_types();
    // An operation with a list of types and no arrow has its results' types last.
    const auto all = std::span<const ArrayType>(types_);
    const auto results = static_cast<std::size_t>(op.results);
    op.types = results == 0 || all.size() < results ? std::span<const ArrayType>()
                                                    : store_.pool.copy(arrow ? all : all.last(results));
    if (c_.at == line_end && (results == 0 || !op.types.empty())) known = {text, op.results, op.types};
  }

  // "(types) -> types", "(types) -> (types)" or "type, type": what remains in types_ are the results', or the whole
  // list; returns whether there was an arrow.
  bool result_types() {
    if (c_.peek() == '(') {
      // Types before an arrow are the operands': they are known.
      const char* start = c_.at;
      c_.skip_balanced(true);
      c_.skip_space();
      if (!c_.take("->")) {
        c_.at = start + 1;
        type_list();
        return false;
      }
      c_.skip_space();
      types_behind_arrow();
      return true;
    }
    while (true) {
      type();
      c_.skip_blanks();
      if (!c_.take(',')) break;
      c_.skip_space();
    }
    if (!c_.take("->")) return false;
    c_.skip_blanks();
    types_behind_arrow();
    return true;
  }

  void types_behind_arrow() {
    types_.clear();
    if (c_.take('(')) {
      type_list();
    } else {
      type();
    }
  }

  void type_list() {
    while (true) {
      c_.skip_space();
      if (c_.take(')')) return;
      type();
      c_.skip_space();
      if (c_.peek() == '{') c_.skip_balanced(true);  // a result's attributes
      c_.skip_space();
      if (!c_.take(',') && c_.peek() != ')')
        c_.fail(c_.done() ? "types are not closed: the text is cut" : "expected ',' or ')' behind a type");
    }
  }

  // One type; a tuple gives its leaves, what is no array one of no size.
  void type() {
    const char* start = c_.at;
    int tuples = 0;
    while (true) {
      while (c_.take("tuple<")) {
        if (++tuples > max_nesting) c_.fail("tuples are nested deeper than " + std::to_string(max_nesting));
        c_.skip_space();
      }
      if (!(tuples > 0 && c_.peek() == '>')) leaf(start);
      while (tuples > 0) {
        c_.skip_space();
        if (c_.take('>')) {
          --tuples;
          continue;
        }
        if (!c_.take(',')) c_.fail("expected ',' or '>' in a tuple type");
        c_.skip_space();
        break;
      }
      if (tuples == 0) return;
    }
  }

  void leaf(const char* start) {
    ArrayType made;
    if (c_.take("tensor<")) {
      tensor(made);
    } else if (c_.peek() == '(') {  // a function's type
      c_.skip_balanced(true);
      c_.skip_space();
      if (c_.take("->")) {
        c_.skip_space();
        if (c_.peek() == '(') {
          c_.skip_balanced(true);
        } else {
          skip_plain_type(start);
        }
      }
    } else {
      const char* from = c_.at;
      skip_plain_type(start);
      const std::string_view spelled{from, static_cast<std::size_t>(c_.at - from)};
      made.dtype = spelled == "!stablehlo.token" || spelled == "!mhlo.token" ? DType::token : dtypes_.of(spelled);
    }
    push(types_, made);
  }

  void skip_plain_type(const char* start) {
    const bool dialect = c_.take('!');
    if (c_.name().size() < (dialect ? 1 : 2))
      c_.fail_at(start, c_.done() ? "expected a type, the text ends here: it is cut" : "expected a type");
    if (c_.peek() == '<') c_.skip_balanced(true);
  }

  // "2x?x5120xbf16, #encoding>"
  void tensor(ArrayType& made) {
    dims_.clear();
    dynamic_.clear();
    while (true) {
      if (c_.peek() == '?' && c_.peek(1) == 'x') {
        dynamic_.push_back(dims_.size());
        dims_.push_back(1);
        c_.at += 2;
        continue;
      }
      if (!is_digit(c_.peek())) break;
      const char* start = c_.at;
      const auto dim = c_.number();
      if (!dim || c_.peek() != 'x') c_.fail_at(start, "expected 'x' behind a dimension");
      ++c_.at;
      push(dims_, *dim);
    }
    const char* element = c_.at;
    c_.take('!');
    c_.name();
    if (c_.peek() == '<') c_.skip_balanced(true);
    made.dtype = dtypes_.of({element, static_cast<std::size_t>(c_.at - element)});
    if (c_.at == element) c_.fail("expected the type of the elements");
    c_.skip_space();
    if (c_.take(',')) {
      c_.skip_space();
      const char* encoding = c_.at;
      while (!c_.done() && *c_.at != '>') {
        if (is_open(*c_.at)) {
          c_.skip_balanced(true);
        } else {
          ++c_.at;
        }
      }
      bounds({encoding, static_cast<std::size_t>(c_.at - encoding)});
    }
    c_.expect('>', "behind a tensor's type");
    made.dims = store_.pool.copy(std::span<const std::int64_t>(dims_));
  }

  // "#stablehlo.bounds<4, ?>": a dynamic dimension counts as its bound.
  void bounds(std::string_view encoding) {
    const std::size_t found = encoding.find("bounds<");
    if (found == std::string_view::npos) return;
    Cursor c(encoding.substr(found + 7));
    for (std::size_t dim = 0; dim < dims_.size(); ++dim) {
      while (is_space(c.peek()) || c.peek() == ',') ++c.at;
      if (c.take('?')) continue;
      const auto bound = c.number();
      if (!bound) return;
      if (std::find(dynamic_.begin(), dynamic_.end(), dim) != dynamic_.end()) dims_[dim] = *bound;
    }
  }

  // Functions by name; a call's callee.
  void resolve() {
    for (const auto& [id, callee] : calls_) {
      const std::int32_t found = functions_.find(callee);
      if (found < 0) c_.fail_at(callee.data(), "function @" + shown(callee) + " does not exist");
      push(called_, Called{id, found});
    }
    const std::int32_t main = functions_.find("main");
    program_.entry = main >= 0 ? main : first_function_;
  }

  // Instructions of a computation side by side, computations in order of print.
  void lay_out() {
    std::vector<InstructionId> placed(store_.instructions.size(), none);
    InstructionId next = 0;
    for (Computation& computation : store_.computations) {
      computation.first = next;
      next += computation.count;
      if (computation.count > 0) computation.root = next - 1;
      computation.count = 0;
    }
    for (std::size_t id = 0; id < placed.size(); ++id) {
      Computation& computation = store_.computations[static_cast<std::size_t>(store_.instructions[id].computation)];
      placed[id] = computation.first + computation.count++;
    }
    // The pool's memory is this reader's own.
    const auto move = [&](const InstructionId& id) {
      if (id != none) const_cast<InstructionId&>(id) = placed[static_cast<std::size_t>(id)];
    };
    for (const Instruction& instruction : store_.instructions) {
      for (const Operand& operand : instruction.operands) move(operand.instruction);
    }
    for (Computation& computation : store_.computations) {
      move(computation.caller);
      for (const InstructionId& parameter : computation.parameters) move(parameter);
    }
    give_called();
    for (std::size_t id = 0; id < placed.size(); ++id) {
      while (placed[id] != static_cast<InstructionId>(id)) {
        const auto to = static_cast<std::size_t>(placed[id]);
        std::swap(store_.instructions[id], store_.instructions[to]);
        std::swap(placed[id], placed[to]);
      }
    }
    for (const Computation& computation : store_.computations) {
      if (computation.root != none) at(computation.root).is_root = true;
    }
    program_.instructions = store_.instructions;
    program_.computations = store_.computations;
  }

  void give_called() {
    std::stable_sort(called_.begin(), called_.end(), [](const Called& a, const Called& b) { return a.by < b.by; });
    std::vector<ComputationId> of_one;
    for (std::size_t k = 0; k < called_.size(); ++k) {
      of_one.push_back(called_[k].computation);
      if (k + 1 < called_.size() && called_[k + 1].by == called_[k].by) continue;
      at(called_[k].by).called = store_.pool.copy(std::span<const ComputationId>(of_one));
      of_one.clear();
    }
  }

  Program& program_;
  Program::Storage& store_;
  Cursor c_;
  const std::size_t expected_;
  std::vector<Called> called_;  ///< regions and functions, in order of print
  std::vector<InstructionId> parameters_;
  std::vector<Operand> operands_;
  std::vector<Left> left_;
  NameTable names_;
  std::vector<Def> defs_;
  NameTable functions_;
  ComputationId first_function_ = none;
  struct Call {
    InstructionId call;
    std::string_view callee;
  };
  std::vector<Call> calls_;
  std::vector<Argument> waiting_;
  std::vector<ArrayType> arg_types_;
  InstructionId region_owner_ = none;
  std::vector<ArrayType> types_;
  std::vector<std::int64_t> dims_;
  std::vector<std::size_t> dynamic_;
  std::array<KnownTypes, 256> known_types_{};
  KnownDTypes dtypes_;
};

}  // namespace

Program read_stablehlo(std::string text) {
  Program program;
  program.storage->text = std::move(text);
  program.dialect = Dialect::stablehlo;
  MlirReader(program).read();
  check_acyclic(program);
  return program;
}

}  // namespace aoizora::ir
