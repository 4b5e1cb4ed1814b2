#include "aoizora/ir/annotate.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "aoizora/errors.h"
#include "aoizora/ir/scan_impl.h"

namespace aoizora::ir {
namespace {

using Axes = std::vector<std::string_view>;

constexpr std::string_view list_begin = "<@mesh, [";
constexpr std::string_view argument_begin = "#sdy.sharding<@mesh, [";
constexpr std::string_view mesh_begin = "sdy.mesh @mesh = ";
constexpr std::string_view manual_axes_begin = "manual_axes={";
constexpr std::string_view manual_begin = "sdy.manual_computation(";
constexpr std::string_view constant_begin = "dense<\"0x";
constexpr std::string_view groups_begin = "replica_groups = dense<";
// The kernel's lengths are whole lanes.
constexpr std::int64_t lanes = 128;
constexpr std::int64_t longest_dimension = std::int64_t{1} << 40;
constexpr std::int64_t most_devices = std::int64_t{1} << 20;
constexpr std::size_t sequence_dimension = 2;
constexpr std::size_t heads_dimension = 1;

/// One dimension of a sharding in the trace: the logical axis that a stand-in names, or text to keep.
struct Entry {
  std::string_view text;
  std::string_view logical;
};

struct Shape {
  std::vector<std::int64_t> dims;
  std::string_view dtype;
};

std::string to_text(const Shape& shape) {
  std::string out = "tensor<";
  for (const std::int64_t dim : shape.dims) out += std::to_string(dim) + 'x';
  return out.append(shape.dtype) + '>';
}

template <class Items, class Print>
std::string joined(const Items& items, Print print) {
  std::string out;
  for (const auto& item : items) {
    if (!out.empty()) out += ", ";
    out += print(item);
  }
  return out;
}

std::string to_text(const Axes& axes) {
  return joined(axes, [](std::string_view axis) { return '"' + std::string(axis) + '"'; });
}

/// Stands behind `[`: goes behind `]`.
std::vector<Entry> read_entries(Cursor& cursor) {
  std::vector<Entry> entries;
  while (!cursor.take(']')) {
    if (!entries.empty() && !cursor.take(", ")) cursor.fail("expected ', ' or ']' in a sharding");
    const char* start = cursor.at;
    cursor.expect('{', "in a sharding");
    cursor.at = start;
    cursor.skip_balanced(false);
    Entry entry{{start, static_cast<std::size_t>(cursor.at - start)}, {}};
    std::string_view name = entry.text.substr(1, entry.text.size() - 2);
    if (name.size() > 2 && name.front() == '"' && name.find('"', 1) == name.size() - 1) {
      name = name.substr(1, name.size() - 2);
      if (name.starts_with(stand_in_prefix)) entry.logical = name.substr(stand_in_prefix.size());
    }
    entries.push_back(entry);
  }
  return entries;
}

/// Stands on "tensor<2x40xbf16>": goes behind it.
Shape read_shape(Cursor& cursor) {
  if (!cursor.take("tensor<")) cursor.fail("expected tensor<");
  Shape shape;
  while (is_digit(cursor.peek())) {
    const std::optional<std::int64_t> dim = cursor.number();
    if (!dim) cursor.fail("expected a dimension");
    cursor.expect('x', "in a tensor's type");
    if (*dim > longest_dimension) cursor.fail("a dimension is longer than " + std::to_string(longest_dimension));
    shape.dims.push_back(*dim);
  }
  shape.dtype = cursor.name();
  cursor.expect('>', "behind a tensor's type");
  return shape;
}

std::int64_t padding(std::int64_t length, std::int64_t block) {
  const std::int64_t whole_lanes = (length / lanes + (length % lanes != 0 ? 1 : 0)) * lanes;
  const std::int64_t unit = std::max<std::int64_t>(1, std::min(block, whole_lanes));
  return (unit - length % unit) % unit;
}

class Annotator {
 public:
  Annotator(std::string_view trace, const candidates::Candidate& candidate, const AnnotateOptions& options)
      : cursor_(trace), candidate_(candidate), options_(options) {
    std::int64_t devices = 1;
    for (const candidates::MeshAxis& axis : candidate.mesh) devices = saturating_multiply(devices, axis.size);
    if (devices > most_devices) {
      throw InvalidRequest("a mesh of " + std::to_string(devices) + " devices; at most " +
                           std::to_string(most_devices) + " are allowed");
    }
    out_.reserve(options.elide_constants ? trace.size() / 2 : trace.size() + trace.size() / 4);
  }

  std::string run() {
    const char* copied = cursor_.at;
    while (!cursor_.done()) {
      skip_to_interest();
      const char* here = cursor_.at;
      const auto copy = [&] { out_.append(copied, here); };
      if (cursor_.starts_with(argument_begin)) {
        copy();
        argument();
      } else if (cursor_.starts_with(list_begin)) {
        copy();
        cursor_.at += list_begin.size();
        write(activation(read_entries(cursor_)));
      } else if (cursor_.starts_with(mesh_begin)) {
        copy();
        mesh();
      } else if (cursor_.starts_with(manual_axes_begin)) {
        copy();
        manual_axes();
      } else if (cursor_.starts_with(manual_begin)) {
        if (!at_site()) {
          cursor_.at += manual_begin.size();
          continue;
        }
        copy();
        site();
      } else if (cursor_.starts_with(groups_begin)) {
        copy();
        exchange();
      } else if (options_.elide_constants && cursor_.starts_with(constant_begin)) {
        copy();
        constant();
      } else {
        if (!cursor_.done()) ++cursor_.at;
        continue;
      }
      copied = cursor_.at;
    }
    out_.append(copied, cursor_.end);
    return std::move(out_);
  }

 private:
  /// To the next character one of our words starts with; most of a text is skipped by one look at each character.
  void skip_to_interest() {
    while (!cursor_.done()) {
      const char c = *cursor_.at;
      const char next = cursor_.peek(1);
      if ((c == '<' && next == '@') || (c == '#' && next == 's') || (c == 's' && next == 'd') ||
          (c == 'm' && next == 'a') || (c == 'd' && next == 'e') || (c == 'r' && next == 'e')) {
        return;
      }
      ++cursor_.at;
    }
  }

  const std::vector<std::string>& rule(std::string_view logical) const {
    static const std::vector<std::string> none_at_all;
    const auto found = candidate_.rules.find(std::string(logical));
    return found == candidate_.rules.end() ? none_at_all : found->second;
  }

  /// The candidate's mesh axes of a logical axis, those of size 1 left out, major first.
  Axes axes_of(std::string_view logical) const {
    Axes axes;
    for (const std::string& name : rule(logical)) {
      if (candidate_.axis_size(name) > 1) axes.push_back(name);
    }
    return axes;
  }

  std::vector<std::string> weight(const std::vector<Entry>& entries) const {
    std::vector<std::string> dims;
    Axes used;
    for (const Entry& entry : entries) {
      if (entry.logical.empty()) {
        dims.emplace_back(entry.text);
        continue;
      }
      const Axes axes = axes_of(entry.logical);
      for (const std::string_view axis : axes) {
        if (std::find(used.begin(), used.end(), axis) != used.end()) {
          throw InvalidRequest("a tensor would use the mesh axis '" + std::string(axis) +
                               "' twice: give its logical axes rules that share none");
        }
        used.push_back(axis);
      }
      dims.push_back('{' + to_text(axes) + '}');
    }
    return dims;
  }

  /// For each stand-in the mesh axes that are left for it; empty for what is no stand-in.
  std::vector<Axes> shared_out(const std::vector<Entry>& entries) const {
    Axes used;
    for (const Entry& entry : entries) {
      if (!entry.logical.empty()) continue;
      for (const candidates::MeshAxis& axis : candidate_.mesh) {
        if (entry.text.find('"' + axis.name + '"') != std::string_view::npos) used.push_back(axis.name);
      }
    }
    std::vector<Axes> dims(entries.size());
    const auto is_first = [&](std::string_view logical) {
      return std::find(options_.first.begin(), options_.first.end(), logical) != options_.first.end();
    };
    const auto give = [&](bool first) {
      for (std::size_t d = 0; d < entries.size(); ++d) {
        const std::string_view logical = entries[d].logical;
        if (logical.empty() || is_first(logical) != first) continue;
        for (const std::string_view axis : axes_of(logical)) {
          if (std::find(used.begin(), used.end(), axis) != used.end()) continue;
          used.push_back(axis);
          dims[d].push_back(axis);
        }
      }
    };
    give(true);
    give(false);
    return dims;
  }

  std::vector<std::string> activation(const std::vector<Entry>& entries) const {
    const std::vector<Axes> given = shared_out(entries);
    std::vector<std::string> dims;
    for (std::size_t d = 0; d < entries.size(); ++d) {
      dims.push_back(entries[d].logical.empty() ? std::string(entries[d].text) : '{' + to_text(given[d]) + '}');
    }
    return dims;
  }

  void write(const std::vector<std::string>& dims) {
    out_.append(list_begin);
    out_ += joined(dims, [](const std::string& dim) { return dim; });
    out_ += ']';
  }

  void argument() {
    cursor_.at += argument_begin.size();
    out_ += "#sdy.sharding";
    write(weight(read_entries(cursor_)));
  }

  void mesh() {
    cursor_.at += mesh_begin.size();
    if (cursor_.peek() != '<') cursor_.fail("expected the axes of a mesh");
    cursor_.skip_balanced(true);
    if (cursor_.starts_with(" {")) {
      cursor_.take(' ');
      cursor_.skip_balanced(false);
    }
    out_.append(mesh_begin);
    out_ += "<[" + joined(candidate_.mesh, [](const candidates::MeshAxis& axis) {
              return '"' + axis.name + "\"=" + std::to_string(axis.size);
            });
    out_ += "]> {stablehlo.mesh = {axes = [" + joined(candidate_.mesh, [](const candidates::MeshAxis& axis) {
              return "{name = \"" + axis.name + "\", size = " + std::to_string(axis.size) + " : i64}";
            });
    out_ += "]}}";
  }

  void manual_axes() {
    cursor_.at += manual_axes_begin.size() - 1;
    cursor_.skip_balanced(false);
    out_.append(manual_axes_begin);
    out_ += joined(candidate_.mesh, [](const candidates::MeshAxis& axis) { return '"' + axis.name + '"'; });
    out_ += '}';
  }

  /// The one collective a trace has is the exchange of heads for sequence.
  void exchange() {
    go_behind("tensor<");
    cursor_.at -= std::string_view("tensor<").size();
    read_shape(cursor_);
    out_ += "replica_groups = " + replica_groups(axes_of("sequence"));
  }

  /// Values of a large constant are dropped; a resource without its bytes reads and is never folded.
  void constant() {
    const char* start = cursor_.at;
    cursor_.at += constant_begin.size() - 3;
    cursor_.skip_string();
    cursor_.expect('>', "behind a constant's values");
    const std::string_view values{start, static_cast<std::size_t>(cursor_.at - start)};
    const std::size_t index = constants_.try_emplace(values, constants_.size()).first->second;
    out_ += "dense_resource<constant_" + std::to_string(index) + '>';
  }

  // -- sites of attention

  /// On "sdy.manual_computation(": whether the first operation of its region is a site of attention.
  bool at_site() const {
    Cursor look = cursor_;
    look.skip_line();
    const std::string_view rest = look.rest();
    const std::string_view line = rest.substr(0, rest.find('\n', 1));
    return line.find(std::string("@") + std::string(attention_site) + '(') != std::string_view::npos;
  }

  /// Behind `key`, which must come on this line.
  void go_behind(std::string_view key) {
    const std::string_view rest = cursor_.rest();
    const std::size_t found = rest.substr(0, rest.find('\n')).find(key);
    if (found == std::string_view::npos) cursor_.fail("expected '" + std::string(key) + "' at a site of attention");
    cursor_.at += found + key.size();
  }

  Shape local(Shape shape, const std::vector<Axes>& dims) const {
    if (shape.dims.size() != dims.size()) cursor_.fail("a sharding has another rank than its value");
    for (std::size_t d = 0; d < dims.size(); ++d) {
      for (const std::string_view axis : dims[d]) {
        const std::int64_t size = candidate_.axis_size(std::string(axis));
        if (shape.dims[d] % size != 0) {
          throw InvalidRequest("the mesh axis '" + std::string(axis) + "' of size " + std::to_string(size) +
                               " does not divide a dimension of " + std::to_string(shape.dims[d]) +
                               " at an attention: give that dimension other mesh axes");
        }
        shape.dims[d] /= size;
      }
    }
    return shape;
  }

  std::string sharding(const std::vector<Axes>& dims) const {
    return std::string(list_begin) + joined(dims, [](const Axes& axes) { return '{' + to_text(axes) + '}'; }) + "]>";
  }

  void site() {
    go_behind("sdy.manual_computation(");
    const char* operands = cursor_.at;
    go_behind(") in_shardings=[");
    out_.append(manual_begin);
    out_.append(operands, cursor_.at);
    std::vector<std::vector<Axes>> in;
    while (cursor_.take(list_begin)) {
      in.push_back(shared_out(read_entries(cursor_)));
      cursor_.expect('>', "behind a sharding");
      cursor_.take(", ");
    }
    if (in.size() != 3 || in[0].size() != 4 || in[1].size() != 4 || in[2].size() != 4) {
      cursor_.fail("a site of attention has queries, keys and values of four dimensions");
    }
    const Axes exchanged =
        candidate_.attention == candidates::AttentionKind::ulysses ? in[1][sequence_dimension] : Axes{};
    for (std::size_t o = 1; o < in.size(); ++o) in[o][sequence_dimension] = exchanged;
    go_behind("manual_axes={");
    cursor_.at -= 1;
    cursor_.skip_balanced(false);
    if (!cursor_.take(" (")) cursor_.fail("expected the arguments of a region");
    out_ += joined(in, [&](const std::vector<Axes>& dims) { return sharding(dims); });
    out_ += "] out_shardings=[" + sharding(in[0]) + "] ";
    out_.append(manual_axes_begin);
    out_ += joined(candidate_.mesh, [](const candidates::MeshAxis& axis) { return '"' + axis.name + '"'; });
    out_ += "} (";
    std::vector<Value> values;
    for (std::size_t o = 0; o < in.size(); ++o) {
      const char* name = cursor_.at;
      go_behind(": ");
      Value value{std::string(name, cursor_.at - 2), local(read_shape(cursor_), in[o])};
      out_ += (o == 0 ? "" : ", ") + value.name + ": " + to_text(value.shape);
      if (o + 1 < in.size() && !cursor_.take(", ")) cursor_.fail("expected three arguments of a region");
      values.push_back(std::move(value));
    }
    go_behind(") {");
    cursor_.skip_line();
    out_ += ") {\n";
    go_to_attributes();
    const char* attributes = cursor_.at;
    cursor_.skip_balanced(false);
    region(std::move(values), exchanged, {attributes, static_cast<std::size_t>(cursor_.at - attributes)});
    // Past the call and the region's return.
    cursor_.skip_line();
    cursor_.take('\n');
    cursor_.skip_blanks();
    if (!cursor_.starts_with("sdy.return ")) cursor_.fail("a site of attention stands alone in its region");
    cursor_.skip_line();
  }

  void go_to_attributes() {
    cursor_.skip_space();
    go_behind(std::string("@") + std::string(attention_site) + '(');
    go_behind(") ");
    if (cursor_.peek() != '{') cursor_.fail("a site of attention has attributes");
  }

  struct Value {
    std::string name;
    Shape shape;
  };

  Value named(Shape shape) { return {"%site_" + std::to_string(names_++), std::move(shape)}; }

  void statement(const Value& result, const std::string& operation) {
    out_ += "      " + result.name + " = " + operation + '\n';
  }

  /// jax.lax.all_to_all(x, axes, split, concat, tiled=True)
  Value all_to_all(const Value& x, const Axes& axes, std::size_t split, std::size_t concat) {
    std::int64_t count = 1;
    for (const std::string_view axis : axes)
      count = saturating_multiply(count, candidate_.axis_size(std::string(axis)));
    Value out = named(x.shape);
    if (out.shape.dims[split] % count != 0) {
      throw InvalidRequest("ulysses exchanges " + std::to_string(out.shape.dims[split]) + " heads of a device over " +
                           std::to_string(count) + " devices, which do not divide them");
    }
    out.shape.dims[split] /= count;
    out.shape.dims[concat] *= count;
    statement(out, "\"stablehlo.all_to_all\"(" + x.name +
                       ") <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, concat_dimension = " +
                       std::to_string(concat) + " : i64, replica_groups = " + replica_groups(axes) +
                       ", split_count = " + std::to_string(count) + " : i64, split_dimension = " +
                       std::to_string(split) + " : i64}> : (" + to_text(x.shape) + ") -> " + to_text(out.shape));
    return out;
  }

  /// Logical ids of the devices that differ in `axes` only, one group a row; members in the order of `axes`, groups in
  /// the order of the mesh.
  std::string replica_groups(const Axes& axes) const {
    struct Stride {
      std::int64_t size;
      std::int64_t stride;
    };
    std::vector<Stride> others;
    std::vector<Stride> members(axes.size());
    std::int64_t stride = 1;
    for (auto axis = candidate_.mesh.rbegin(); axis != candidate_.mesh.rend(); ++axis) {
      const auto at = std::find(axes.begin(), axes.end(), axis->name);
      if (at == axes.end()) {
        others.insert(others.begin(), {axis->size, stride});
      } else {
        members[static_cast<std::size_t>(at - axes.begin())] = {axis->size, stride};
      }
      stride *= axis->size;
    }
    const auto ids = [](const std::vector<Stride>& dims) {
      std::vector<std::int64_t> out{0};
      for (const Stride& dim : dims) {
        std::vector<std::int64_t> next;
        for (const std::int64_t base : out) {
          for (std::int64_t i = 0; i < dim.size; ++i) next.push_back(base + i * dim.stride);
        }
        out = std::move(next);
      }
      return out;
    };
    const std::vector<std::int64_t> firsts = ids(others);
    const std::vector<std::int64_t> offsets = ids(members);
    const auto row = [&](std::int64_t first) {
      return '[' + joined(offsets, [&](std::int64_t offset) { return std::to_string(first + offset); }) + ']';
    };
    return "dense<[" + joined(firsts, row) + "]> : tensor<" + std::to_string(firsts.size()) + 'x' +
           std::to_string(offsets.size()) + "xi64>";
  }

  Value pad(const Value& x, std::int64_t block) {
    const std::int64_t high = padding(x.shape.dims[sequence_dimension], block);
    const Value zero = named({{}, x.shape.dtype});
    statement(zero, "stablehlo.constant dense<0.000000e+00> : " + to_text(zero.shape));
    Value out = named(x.shape);
    out.shape.dims[sequence_dimension] += high;
    statement(out, "stablehlo.pad " + x.name + ", " + zero.name + ", low = [0, 0, 0, 0], high = [0, 0, " +
                       std::to_string(high) + ", 0], interior = [0, 0, 0, 0] : (" + to_text(x.shape) + ", " +
                       to_text(zero.shape) + ") -> " + to_text(out.shape));
    return out;
  }

  /// What aoizora.models.attention computes on one device.
  void region(std::vector<Value> values, const Axes& exchanged, std::string_view attributes) {
    if (!exchanged.empty()) {
      for (Value& value : values) value = all_to_all(value, exchanged, heads_dimension, sequence_dimension);
    }
    const Shape unpadded = values[0].shape;
    for (std::size_t o = 0; o < values.size(); ++o) {
      values[o] = pad(values[o], o == 0 ? candidate_.blocks.queries : candidate_.blocks.keys);
    }
    Value out = named(values[0].shape);
    statement(out, "stablehlo.custom_call @" + std::string(attention_kernel) + '(' +
                       joined(values, [](const Value& value) { return value.name; }) + ") " + std::string(attributes) +
                       " : (" + joined(values, [](const Value& value) { return to_text(value.shape); }) + ") -> " +
                       to_text(out.shape));
    if (unpadded.dims != out.shape.dims) {
      Value cut = named(unpadded);
      statement(cut, "stablehlo.slice " + out.name + " [" +
                         joined(unpadded.dims, [](std::int64_t dim) { return "0:" + std::to_string(dim); }) + "] : (" +
                         to_text(out.shape) + ") -> " + to_text(unpadded));
      out = std::move(cut);
    }
    if (!exchanged.empty()) out = all_to_all(out, exchanged, sequence_dimension, heads_dimension);
    out_ += "      sdy.return " + out.name + " : " + to_text(out.shape);
  }

  Cursor cursor_;
  const candidates::Candidate& candidate_;
  const AnnotateOptions& options_;
  std::int64_t names_ = 0;
  std::unordered_map<std::string_view, std::size_t> constants_;
  std::string out_;
};

}  // namespace

std::string annotate(std::string_view trace, const candidates::Candidate& candidate, const AnnotateOptions& options) {
  return Annotator(trace, candidate, options).run();
}

}  // namespace aoizora::ir
