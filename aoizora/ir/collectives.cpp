#include "aoizora/ir/collectives.h"

#include <map>
#include <string>

#include "aoizora/ir/scan_impl.h"
#include "aoizora/ir/storage_impl.h"

namespace aoizora::ir {
namespace {

using topology::CollectiveKind;

/// Seven times the devices of the largest slice (tpu7x: 9,216 chips of two); keeps what a text can ask for in bounds.
constexpr std::int64_t max_devices = 1 << 17;
/// Bytes that all groups and pairs of a program may take together: so many, and so many for each byte of its text. A
/// pod's 9,216 chips in a thousand collectives take 37 MB, and their text has more than one.
constexpr std::size_t most_bytes = 8 << 20;
constexpr std::size_t most_bytes_a_byte = 40;
/// Calls looked through: each fusion's computation is looked at once for each that calls it.
constexpr std::size_t most_looks = 1 << 23;

const Instruction& at(const Program& program, InstructionId id) {
  return program.instructions[static_cast<std::size_t>(id)];
}

std::int64_t bytes_of(std::span<const ArrayType> types) {
  std::int64_t sum = 0;
  for (const ArrayType& type : types) sum = saturating_add(sum, type.bytes());
  return sum;
}

std::optional<CollectiveKind> kind_of(std::string_view opcode) {
  if (opcode == "all-gather") return CollectiveKind::all_gather;
  if (opcode == "all-reduce") return CollectiveKind::all_reduce;
  if (opcode == "reduce-scatter") return CollectiveKind::reduce_scatter;
  if (opcode == "all-to-all") return CollectiveKind::all_to_all;
  if (opcode == "ragged-all-to-all") return CollectiveKind::ragged_all_to_all;
  if (opcode == "collective-permute") return CollectiveKind::permute;
  if (opcode == "collective-broadcast") return CollectiveKind::broadcast;
  for (const std::string_view dialect : {"stablehlo.", "sdy."}) {
    if (!opcode.starts_with(dialect)) continue;
    std::string spelled(opcode.substr(dialect.size()));
    std::replace(spelled.begin(), spelled.end(), '_', '-');
    if (spelled.starts_with("all-") || spelled.starts_with("collective-") || spelled == "reduce-scatter")
      return kind_of(spelled);
  }
  return std::nullopt;
}

/// "all-gather-start" is {"all-gather", start}.
struct Split {
  enum class Part : std::uint8_t { whole, start, update, done } part = Part::whole;
  std::string_view base;
};
Split split(std::string_view opcode) {
  for (const auto& [ending, part] : {std::pair<std::string_view, Split::Part>{"-start", Split::Part::start},
                                     {"-update", Split::Part::update},
                                     {"-done", Split::Part::done}}) {
    if (opcode.ends_with(ending)) return {part, opcode.substr(0, opcode.size() - ending.size())};
  }
  return {Split::Part::whole, opcode};
}

std::string_view unquoted(std::string_view text) {
  return text.size() >= 2 && text.front() == '"' ? text.substr(1, text.size() - 2) : text;
}

/// Value of a key inside a "{key=value ...}" attribute.
std::string_view nested(const Instruction& i, std::string_view outer, std::string_view key) {
  const std::string_view group = attribute(i, outer);
  if (group.size() < 2) return {};
  std::size_t from = 0;
  while ((from = group.find(key, from)) != std::string_view::npos) {
    const bool whole_word = from > 0 && !is_name(group[from - 1]) && group.substr(from + key.size(), 2) == "=\"";
    if (whole_word) {
      Cursor c(group.substr(from + key.size() + 1));
      const char* start = c.at;
      c.skip_string();
      return unquoted({start, static_cast<std::size_t>(c.at - start)});
    }
    from += key.size();
  }
  return {};
}

/// Async fusions of one collective share its chain; what has none is known by its channel.
std::string chain_of(const Instruction& i) {
  const std::string_view chain = nested(i, "frontend_attributes", "chain_id");
  if (!chain.empty()) return "chain " + std::string(chain);
  return "channel " + std::string(attribute(i, "channel_id"));
}

/// What a fused collective is to the instruction whose computation holds it.
enum class Role : std::uint8_t { whole, start, carrier, done };
struct Fused {
  InstructionId instruction = none;
  Role role = Role::whole;
  ComputationId computation = none;
};

class Finder {
 public:
  explicit Finder(const Program& program) : program_(program), devices_(device_count(program)) {}

  std::vector<Collective> find() {
    const std::vector<std::int64_t> runs = execution_counts(program_);
    mark_holders();
    note_chains();
    for (std::size_t id = 0; id < runs.size(); ++id) {
      if (runs[id] > 0) schedule(static_cast<ComputationId>(id));
    }
    return std::move(found_);
  }

 private:
  // Computations that hold a collective, in themselves or in what they call; which of their instructions matter for
  // that.
  void mark_holders() {
    holds_.assign(program_.computations.size(), false);
    entered_.assign(program_.computations.size(), 0);
    of_interest_.resize(program_.computations.size());
    const std::vector<ComputationId> order = callers_first(program_);
    for (auto id = order.rbegin(); id != order.rend(); ++id) {
      const Computation& computation = program_.computations[static_cast<std::size_t>(*id)];
      for (InstructionId k = computation.first; k < computation.first + computation.count; ++k) {
        if (!kind_of(split(at(program_, k).opcode).base) && !calls_holder(at(program_, k))) continue;
        holds_[static_cast<std::size_t>(*id)] = true;
        of_interest_[static_cast<std::size_t>(*id)].push_back(k);
      }
    }
  }

  bool calls_holder(const Instruction& i) const {
    return std::any_of(i.called.begin(), i.called.end(),
                       [&](ComputationId id) { return holds_[static_cast<std::size_t>(id)]; });
  }

  // AsyncCollectiveStart and -Done take the collective as an operand.
  void note_chains() {
    for (const Instruction& i : program_.instructions) {
      if (i.opcode == "sdy.mesh") meshes_.emplace(i.name, i.attributes);
      if (i.opcode != "custom-call") continue;
      const std::string_view target = unquoted(attribute(i, "custom_call_target"));
      const bool start = target == "AsyncCollectiveStart";
      if (!start && target != "AsyncCollectiveDone") continue;
      for (const Operand& o : i.operands) {
        const Instruction& collective = at(program_, o.instruction);
        if (!kind_of(collective.opcode)) continue;
        role_[o.instruction] = start ? Role::start : Role::done;
        if (start) started_.emplace(chain_of(collective), 0);
      }
    }
  }

  // The collectives in what `i` calls, each once, in order of print.
  std::vector<Fused> inside(const Instruction& i) {
    ++round_;
    std::vector<ComputationId> open;
    const auto enter = [&](const Instruction& caller) {
      for (const ComputationId id : caller.called) {
        if (!holds_[static_cast<std::size_t>(id)] || entered_[static_cast<std::size_t>(id)] == round_) continue;
        entered_[static_cast<std::size_t>(id)] = round_;
        open.push_back(id);
      }
    };
    enter(i);
    std::vector<Fused> out;
    for (std::size_t next = 0; next < open.size(); ++next) {
      for (const InstructionId id : of_interest_[static_cast<std::size_t>(open[next])]) {
        const Instruction& inner = at(program_, id);
        ++looked_at_;
        if (looked_at_ > most_looks) give_up(i, "looks through more than " + std::to_string(most_looks) + " calls");
        if (kind_of(inner.opcode)) {
          const auto role = role_.find(id);
          const bool carried = role == role_.end() && started_.contains(chain_of(inner));
          out.push_back({id, role != role_.end() ? role->second : carried ? Role::carrier : Role::whole, open[next]});
        } else {
          enter(inner);
        }
      }
    }
    return out;
  }

  [[noreturn]] void give_up(const Instruction& i, const std::string& why) const {
    Cursor c(program_.text());
    c.fail_at(i.opcode.data(), "to find the program's collectives " + why);
  }

  void spend(const Instruction& i, std::size_t bytes) {
    spent_ += bytes;
    const std::size_t most = most_bytes + most_bytes_a_byte * program_.text().size();
    if (spent_ > most) give_up(i, "takes more than " + std::to_string(most) + " bytes: their groups name too many ids");
  }

  static bool runs_by_itself(std::string_view opcode) {
    return opcode == "while" || opcode == "conditional" || opcode == "call" ||
           opcode.find('.') != std::string_view::npos;
  }

  void schedule(ComputationId id) {
    open_chain_.clear();
    open_start_.clear();
    const std::size_t first_found = found_.size();
    const Computation& computation = program_.computations[static_cast<std::size_t>(id)];
    for (InstructionId next = computation.first; next < computation.first + computation.count; ++next) {
      const Instruction& i = at(program_, next);
      const Split part = split(i.opcode);
      if (const auto kind = kind_of(part.base)) {
        if (part.part == Split::Part::whole) {
          add(*kind, id, next, next).done = next;
        } else if (part.part == Split::Part::start) {
          Collective& made = add(*kind, id, next, next);
          made.result_bytes = started_result_bytes(*kind, made, i);
          open_start_[next] = {found_.size() - 1};
        } else if (part.part == Split::Part::done) {
          finish(next);
        }
      } else if (part.part == Split::Part::done) {
        finish(next);
      } else if (!i.called.empty() && calls_holder(i)) {
        if (part.part == Split::Part::start) {
          start_wrapped(id, next);
        } else if (runs_by_itself(i.opcode)) {
          carry_through(next);
        } else {
          fused(id, next);
        }
      }
    }
    // What no instruction here waits for ends with the computation at the latest.
    for (std::size_t k = first_found; k < found_.size(); ++k) {
      if (found_[k].done == none) found_[k].done = std::max(computation.root, found_[k].start);
    }
    std::stable_sort(found_.begin() + static_cast<std::ptrdiff_t>(first_found), found_.end(),
                     [](const Collective& a, const Collective& b) { return a.start < b.start; });
  }

  Collective& add(CollectiveKind kind, ComputationId computation, InstructionId start, InstructionId collective) {
    const Instruction& i = at(program_, collective);
    Collective made;
    made.kind = kind;
    made.computation = computation;
    made.start = start;
    made.result_bytes = bytes_of(i.types);
    for (const Operand& o : i.operands) {
      if (program_.dialect == Dialect::hlo) {
        made.operand_bytes = saturating_add(made.operand_bytes, bytes_of(at(program_, o.instruction).types));
      } else {
        const auto types = at(program_, o.instruction).types;
        if (static_cast<std::size_t>(o.result) < types.size())
          made.operand_bytes = saturating_add(made.operand_bytes, types[static_cast<std::size_t>(o.result)].bytes());
      }
      // The others of a ragged exchange are its output buffer and its offsets.
      if (kind == CollectiveKind::ragged_all_to_all) break;
    }
    made.op_name = nested(i, "metadata", "op_name");
    who_talks(made, i);
    found_.push_back(std::move(made));
    return found_.back();
  }

  // Types of a start hold operands, results and flags; the done's types replace this where there is one.
  std::int64_t started_result_bytes(CollectiveKind kind, const Collective& made, const Instruction& i) const {
    if (kind == CollectiveKind::permute) return made.operand_bytes;
    if (kind == CollectiveKind::all_reduce) return bytes_of(i.types);
    return std::max<std::int64_t>(0, bytes_of(i.types) - made.operand_bytes);
  }

  // An async-start (or its short form "reduce-scatter-start" with a computation): the collective is in what it calls.
  void start_wrapped(ComputationId id, InstructionId start) {
    for (const Fused& inner : inside(at(program_, start))) {
      Collective& made = add(*kind_of(at(program_, inner.instruction).opcode), id, start, inner.instruction);
      if (made.op_name.empty()) made.op_name = nested(at(program_, start), "metadata", "op_name");
      open_start_[start].push_back(found_.size() - 1);
    }
  }

  // A done: back through updates and what only hands the state on, to its start.
  void finish(InstructionId done) {
    InstructionId from = done;
    InstructionId fed = none;
    for (int hops = 0; hops < 64; ++hops) {
      const Instruction& i = at(program_, from);
      if (i.operands.empty()) return;
      from = i.operands[0].instruction;
      const auto open = open_start_.find(from);
      if (open != open_start_.end()) {
        const std::int64_t bytes = bytes_of(at(program_, done).types);
        if (open->second.size() == 1 && bytes > 0) found_[open->second.front()].result_bytes = bytes;
        for (const std::size_t k : open->second) {
          found_[k].done = done;
          // tpu7x: the start only makes ready, the update hands over the operands.
          if (fed != none && at(program_, from).operands.empty()) found_[k].start = fed;
        }
        open_start_.erase(open);
        return;
      }
      const Instruction& source = at(program_, from);
      const bool update = split(source.opcode).part == Split::Part::update;
      if (update && source.operands.size() > 1) fed = from;
      const bool hands_on = update || source.opcode == "get-tuple-element" || source.opcode == "bitcast" ||
                            source.opcode == "copy" || source.opcode == "opt-barrier";
      if (!hands_on) return;
    }
  }

  // A fusion (or another call of the core) that holds collectives.
  void fused(ComputationId id, InstructionId at_id) {
    for (const Fused& inner : inside(at(program_, at_id))) {
      const Instruction& i = at(program_, inner.instruction);
      const CollectiveKind kind = *kind_of(i.opcode);
      const std::string chain = inner.role == Role::whole ? std::string() : chain_of(i);
      auto open = open_chain_.find(chain);
      switch (inner.role) {
        case Role::whole:
          whole(kind, id, at_id, inner);
          break;
        case Role::start:
          add(kind, id, at_id, inner.instruction);
          open_chain_[chain].push_back(found_.size() - 1);
          break;
        case Role::carrier:
          if (open != open_chain_.end()) carry(open->second.back(), at_id);
          break;
        case Role::done:
          if (open != open_chain_.end()) {
            found_[open->second.back()].done = at_id;
            open->second.pop_back();
            if (open->second.empty()) open_chain_.erase(open);
          } else if (!started_.contains(chain)) {
            whole(kind, id, at_id, inner);
          }
          break;
      }
    }
  }

  void whole(CollectiveKind kind, ComputationId id, InstructionId at_id, const Fused& inner) {
    Collective& made = add(kind, id, at_id, inner.instruction);
    made.done = at_id;
    if (kind == CollectiveKind::all_reduce && scatters(inner)) {
      made.kind = CollectiveKind::reduce_scatter;
      made.result_bytes =
          bytes_of(at(program_, program_.computations[static_cast<std::size_t>(inner.computation)].root).types);
    }
  }

  // The TPU compiler prints a reduce-scatter as a fusion whose root slices this device's part out of an all-reduce.
  bool scatters(const Fused& inner) const {
    InstructionId id = program_.computations[static_cast<std::size_t>(inner.computation)].root;
    bool sliced = false;
    for (int hops = 0; hops < 16 && id != none; ++hops) {
      if (id == inner.instruction) return sliced;
      const Instruction& i = at(program_, id);
      if (i.opcode == "dynamic-slice")
        sliced = true;
      else if (i.opcode != "bitcast" && i.opcode != "copy" && i.opcode != "reshape" && i.opcode != "convert" &&
               i.opcode != "transpose" && i.opcode != "get-tuple-element")
        return false;
      id = i.operands.empty() ? none : i.operands[0].instruction;
    }
    return false;
  }

  void carry(std::size_t collective, InstructionId carrier) {
    std::vector<InstructionId>& carriers = found_[collective].carriers;
    if (carriers.empty() || carriers.back() != carrier) carriers.push_back(carrier);
  }

  // A loop between start and done may hold fusions that carry the collective.
  void carry_through(InstructionId loop) {
    if (open_chain_.empty()) return;
    for (const Fused& inner : inside(at(program_, loop))) {
      if (inner.role != Role::carrier) continue;
      const auto open = open_chain_.find(chain_of(at(program_, inner.instruction)));
      if (open != open_chain_.end()) carry(open->second.back(), loop);
    }
  }

  void who_talks(Collective& made, const Instruction& i) {
    const std::string_view dialect = i.opcode.substr(0, i.opcode.find('.'));
    try {
      if (dialect == "sdy" && dialect.size() != i.opcode.size()) {
        made.groups = sdy_groups(i);
      } else if (made.kind == CollectiveKind::permute) {
        made.pairs = read_source_target_pairs(braces(attribute(i, "source_target_pairs")), devices_);
      } else {
        made.groups = read_replica_groups(braces(attribute(i, "replica_groups")), devices_);
        if (program_.dialect == Dialect::hlo) globalize(made, i);
      }
    } catch (const ParseError& e) {
      Cursor c(program_.text());
      c.fail_at(i.opcode.data(), std::string(i.opcode) + " " + std::string(i.name) + ": " + e.what());
    }
    std::size_t bytes = sizeof(Collective) + made.pairs.size() * sizeof(made.pairs[0]);
    for (const auto& group : made.groups) {
      // A vector, and what malloc makes of a small one.
      bytes +=
          sizeof(decltype(made.groups)::value_type) + std::max<std::size_t>(32, 16 + group.size() * sizeof(group[0]));
    }
    spend(i, bytes);
  }

  // "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>" as "{{0, 1}, {2, 3}}"; HLO's own forms as they are.
  static std::string braces(std::string_view text) {
    if (!text.starts_with("dense<")) return text.empty() ? "{}" : std::string(text);
    std::string out(text.substr(6, text.find('>') - 6));
    if (out.find('"') != std::string::npos) throw ParseError("groups in hexadecimal do not read", 1, 1);
    for (char& c : out) c = c == '[' ? '{' : c == ']' ? '}' : c;
    if (!out.starts_with('{'))
      out = text.find("tensor<0x") != std::string_view::npos || out.empty() ? "{}" : "{{" + out + "}}";
    return out;
  }

  // Without use_global_device_ids a reduction names replicas; with a channel, all partitions of those take part.
  void globalize(Collective& made, const Instruction& i) const {
    const bool global = attribute(i, "use_global_device_ids") == "true";
    const bool gathers = made.kind == CollectiveKind::all_gather || made.kind == CollectiveKind::all_reduce ||
                         made.kind == CollectiveKind::reduce_scatter;
    Instruction header;
    header.attributes = program_.attributes;
    const std::string_view printed = attribute(header, "num_partitions");
    Cursor number(printed);
    const std::int64_t partitions = number.number().value_or(1);
    const std::int64_t replicas = partitions > 0 ? devices_ / partitions : 0;
    if (global || !gathers || partitions <= 1 || attribute(i, "channel_id").empty() ||
        attribute(i, "replica_groups") == "{}")
      return;
    for (auto& group : made.groups) {
      if (std::any_of(group.begin(), group.end(), [&](std::int32_t id) { return id >= replicas; })) return;
      std::vector<std::int32_t> all;
      for (const std::int32_t replica : group) {
        for (std::int64_t p = 0; p < partitions; ++p)
          all.push_back(static_cast<std::int32_t>(replica * partitions + p));
      }
      group = std::move(all);
    }
  }

  // The attributes of the mesh that "...<@mesh, [...]>" names.
  std::string_view mesh_named(std::string_view sharding) const {
    const std::size_t sign = sharding.find('@');
    if (sign == std::string_view::npos) return {};
    Cursor c(sharding.substr(sign + 1));
    const auto mesh = meshes_.find(c.name());
    return mesh == meshes_.end() ? std::string_view() : mesh->second;
  }

  // Axes named by an sdy collective, over the program's mesh.
  ReplicaGroups sdy_groups(const Instruction& i) const {
    std::string_view axes;
    for (const char* key : {"gathering_axes", "reduction_axes", "reduce_scatter_axes", "params"}) {
      if (axes.empty()) axes = attribute(i, key);
    }
    const std::size_t sharding = i.attributes.find("out_sharding");
    if (axes.empty() && !i.attributes.starts_with("<{")) axes = i.attributes.substr(0, sharding);
    const std::string_view named =
        sharding == std::string_view::npos ? std::string_view() : i.attributes.substr(sharding);
    const std::string_view printed = mesh_named(named);
    const std::size_t open = printed.find("<[");
    const std::size_t close = printed.find(']', open == std::string_view::npos ? 0 : open);
    if (axes.empty() || open == std::string_view::npos || close == std::string_view::npos) return {};
    std::string text = "mesh[" + std::string(printed.substr(open + 2, close - open - 2)) + "]";
    // , device_ids=[1, 0]
    const std::string_view behind = printed.substr(close + 1);
    if (const std::string_view ids = ", device_ids=["; behind.starts_with(ids)) {
      text += ", device_ids=(" + std::string(behind.substr(ids.size(), behind.find(']') - ids.size())) + ")";
    }
    text += " {";
    Cursor c(axes);
    bool first = true;
    while (!c.done()) {
      if (c.peek() != '"') {
        ++c.at;
        continue;
      }
      const char* start = c.at;
      c.skip_string();
      if (c.starts_with(":(")) {
        c.at += 2;
        while (!c.done() && (is_digit(c.peek()) || c.peek() == ')')) ++c.at;
      }
      text += (first ? "" : ",") + std::string(start, c.at);
      first = false;
    }
    std::replace(text.begin(), text.end(), '"', '\'');
    return read_replica_groups(text + "}", devices_);
  }

  const Program& program_;
  std::int32_t devices_;
  std::size_t spent_ = 0;
  std::size_t looked_at_ = 0;
  std::vector<bool> holds_;
  std::vector<std::vector<InstructionId>> of_interest_;  ///< of each computation: collectives and calls of holders
  std::vector<std::uint64_t> entered_;                   ///< round in which `inside` last saw a computation
  std::uint64_t round_ = 0;
  std::map<std::string_view, std::string_view> meshes_;         ///< sdy.mesh by name
  std::map<InstructionId, Role> role_;                          ///< of fused collectives that start or end here
  std::map<std::string, int> started_;                          ///< chains that start anywhere
  std::map<std::string, std::vector<std::size_t>> open_chain_;  ///< of the computation at hand
  std::map<InstructionId, std::vector<std::size_t>> open_start_;
  std::vector<Collective> found_;
};

std::int64_t header_number(const Program& program, std::string_view key) {
  Cursor c(program.attributes);
  const std::size_t found = program.attributes.find(key);
  if (found == std::string_view::npos) return 0;
  c.at += found + key.size();
  while (c.peek() == ' ' || c.peek() == '=') ++c.at;
  return c.number().value_or(0);
}

/// One more than the largest id an attribute can name.
std::int64_t ids_named(const Instruction& i) {
  std::int64_t most = 0;
  const std::string_view pairs = attribute(i, "source_target_pairs");
  const std::string_view groups = attribute(i, "replica_groups");
  const bool product = groups.starts_with("[") || groups.starts_with("mesh");
  for (const std::string_view text : {pairs, groups}) {
    Cursor c(
        text.substr(0, std::min(text.find("<="), text.find(']') == std::string_view::npos || !text.starts_with("mesh")
                                                     ? text.size()
                                                     : text.find(']'))));
    std::int64_t all = 1;
    while (!c.done()) {
      if (!is_digit(c.peek())) {
        if (c.peek() == '\'') {  // an axis's name may hold digits
          ++c.at;
          while (!c.done() && c.peek() != '\'') ++c.at;
        }
        if (c.starts_with("tensor<")) break;
        if (!c.done()) ++c.at;
        continue;
      }
      const std::int64_t number = c.number().value_or(0);
      all = saturating_multiply(all, number);
      most = std::max(most, saturating_add(number, 1));
    }
    if (product && text.data() == groups.data()) most = std::max(all, std::int64_t{0});
  }
  return most;
}

}  // namespace

std::int64_t Collective::payload_bytes() const {
  return kind == CollectiveKind::all_gather ? result_bytes : operand_bytes;
}

std::int32_t device_count(const Program& program) {
  const std::string_view prefix = program.dialect == Dialect::stablehlo ? "mhlo." : "";
  const std::string partitions = std::string(prefix) + "num_partitions";
  const std::string replicas = program.dialect == Dialect::stablehlo ? "mhlo.num_replicas" : "replica_count";
  std::int64_t count = saturating_multiply(std::max<std::int64_t>(1, header_number(program, partitions)),
                                           std::max<std::int64_t>(1, header_number(program, replicas)));
  if (count == 1) {
    for (const Instruction& i : program.instructions) {
      if (kind_of(split(i.opcode).base)) count = std::max(count, ids_named(i));
    }
  }
  if (count > max_devices) {
    throw ParseError(
        "the program names " + std::to_string(count) + " devices, at most " + std::to_string(max_devices) + " are read",
        1, 1);
  }
  return static_cast<std::int32_t>(count);
}

std::vector<Collective> collectives(const Program& program) { return Finder(program).find(); }

}  // namespace aoizora::ir
