#include "aoizora/prediction/layout.h"

#include <algorithm>

#include "aoizora/errors.h"

namespace aoizora::prediction {
namespace {

struct SubAxis {
  std::string_view name;
  std::int64_t pre = 1;
  std::int64_t size = 1;
};

/// Every "name":(pre)size of the text. Strings that only look like one are harmless: an unknown name is skipped.
std::vector<SubAxis> sub_axes(std::string_view text) {
  constexpr std::string_view mark = "\":(";
  std::vector<SubAxis> found;
  for (std::size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + 1)) {
    const std::size_t quote = at == 0 ? std::string_view::npos : text.rfind('"', at - 1);
    const std::size_t close = text.find(')', at);
    if (quote == std::string_view::npos || close == std::string_view::npos || close - at > 24) continue;
    std::size_t end = close + 1;
    while (end < text.size() && end - close < 20 && text[end] >= '0' && text[end] <= '9') ++end;
    const auto read = [](std::string_view digits) {
      std::int64_t value = 0;
      for (const char c : digits) {
        if (c < '0' || c > '9' || value > (std::int64_t{1} << 40)) return std::int64_t{0};
        value = value * 10 + (c - '0');
      }
      return value;
    };
    const SubAxis axis{text.substr(quote + 1, at - quote - 1), read(text.substr(at + 3, close - at - 3)),
                       read(text.substr(close + 1, end - close - 1))};
    if (axis.pre > 0 && axis.size > 0) found.push_back(axis);
  }
  return found;
}

}  // namespace

AtomSet atoms_of(const DimAxes& axes) {
  AtomSet set = 0;
  for (const Atom atom : axes) set |= bit(atom);
  return set;
}

AtomSet atoms_of(const Layout& layout) {
  AtomSet set = 0;
  for (const DimAxes& axes : layout) set |= atoms_of(axes);
  return set;
}

AxisTable::AxisTable(std::span<const NamedAxis> axes, std::string_view text) {
  const std::vector<SubAxis> subs = sub_axes(text);
  double devices = 1;
  for (const NamedAxis& axis : axes) {
    const auto same = std::find_if(axes_.begin(), axes_.end(), [&](const Axis& a) { return a.name == axis.name; });
    if (same != axes_.end()) {
      if (same->size == axis.size) continue;
      throw ParseError("mesh axis '" + std::string(axis.name) + "' has size " + std::to_string(same->size) +
                           " in one mesh and " + std::to_string(axis.size) + " in another; give them different names",
                       1, 1);
    }
    std::vector<std::int64_t> cuts{1, axis.size};
    for (const SubAxis& sub : subs) {
      if (sub.name != axis.name) continue;
      if (sub.pre > axis.size || sub.size > axis.size / sub.pre) {
        throw ParseError("sub-axis (" + std::to_string(sub.pre) + ")" + std::to_string(sub.size) +
                             " is larger than mesh axis '" + std::string(axis.name) + "' of size " +
                             std::to_string(axis.size),
                         1, 1);
      }
      cuts.push_back(sub.pre);
      cuts.push_back(sub.pre * sub.size);
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    Axis entry{axis.name, axis.size, {}};
    for (std::size_t i = 1; i < cuts.size(); ++i) {
      if (cuts[i] % cuts[i - 1] != 0) {
        throw ParseError("sub-axes of mesh axis '" + std::string(axis.name) + "' overlap without dividing each other",
                         1, 1);
      }
      if (sizes_.size() == 64) throw ParseError("the meshes have more than 64 axes and sub-axes", 1, 1);
      entry.atoms.push_back(static_cast<Atom>(sizes_.size()));
      sizes_.push_back(cuts[i] / cuts[i - 1]);
      labels_.push_back(cuts.size() == 2 ? std::string(axis.name)
                                         : std::string(axis.name) + ":(" + std::to_string(cuts[i - 1]) + ")" +
                                               std::to_string(cuts[i] / cuts[i - 1]));
    }
    devices *= static_cast<double>(axis.size);
    if (devices > 1e12) throw ParseError("the meshes have more than 1e12 devices", 1, 1);
    axes_.push_back(std::move(entry));
  }
}

void AxisTable::append(const AxisRef& ref, DimAxes& out) const {
  const auto axis = std::find_if(axes_.begin(), axes_.end(), [&](const Axis& a) { return a.name == ref.name; });
  if (axis == axes_.end())
    throw ParseError("sharding names '" + std::string(ref.name) + "', which is no axis of the mesh", 1, 1);
  const std::int64_t begin = ref.pre;
  const std::int64_t end = ref.size == 0 ? axis->size : ref.pre * ref.size;
  std::int64_t at = 1;
  for (const Atom atom : axis->atoms) {
    if (at >= begin && at < end) out.push_back(atom);
    at *= sizes_[atom];
  }
}

Layout AxisTable::layout(const TensorSharding& sharding, std::size_t rank) const {
  if (sharding.dims.size() != rank) {
    throw ParseError(
        "sharding of " + std::to_string(sharding.dims.size()) + " dimensions on a tensor of " + std::to_string(rank), 1,
        1);
  }
  Layout layout(rank);
  for (std::size_t d = 0; d < rank; ++d) {
    for (const AxisRef& ref : sharding.dims[d].axes) append(ref, layout[d]);
  }
  AtomSet seen = 0;
  for (const DimAxes& axes : layout) {
    for (const Atom atom : axes) {
      if (seen & bit(atom)) throw ParseError("sharding uses mesh axis '" + labels_[atom] + "' twice", 1, 1);
      seen |= bit(atom);
    }
  }
  return layout;
}

AtomSet AxisTable::set(std::string_view axis) const {
  DimAxes atoms;
  append(AxisRef{.name = axis}, atoms);
  return atoms_of(atoms);
}

std::int64_t AxisTable::size(const DimAxes& axes) const {
  std::int64_t n = 1;
  for (const Atom atom : axes) n *= sizes_[atom];
  return n;
}

std::int64_t AxisTable::size(AtomSet atoms) const {
  std::int64_t n = 1;
  for (std::size_t a = 0; a < sizes_.size(); ++a) {
    if (atoms >> a & 1) n *= sizes_[a];
  }
  return n;
}

std::vector<AtomSet> AxisTable::by_axis(AtomSet atoms) const {
  std::vector<AtomSet> parts;
  for (const Axis& axis : axes_) {
    AtomSet part = 0;
    for (const Atom atom : axis.atoms) part |= bit(atom) & atoms;
    if (part != 0) parts.push_back(part);
  }
  return parts;
}

std::vector<std::string> AxisTable::names(AtomSet atoms) const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_) {
    const AtomSet whole = atoms_of(axis.atoms);
    if (whole != 0 && (atoms & whole) == whole) {
      names.emplace_back(axis.name);
      continue;
    }
    for (const Atom atom : axis.atoms) {
      if (atoms & bit(atom)) names.push_back(labels_[atom]);
    }
  }
  return names;
}

AtomSet AxisTable::varying(std::span<const std::int64_t> ids) const {
  AtomSet set = 0;
  std::int64_t stride = 1;
  for (std::size_t a = sizes_.size(); a-- > 0;) {
    for (const std::int64_t id : ids) {
      if (id / stride % sizes_[a] != ids[0] / stride % sizes_[a]) set |= bit(static_cast<Atom>(a));
    }
    stride *= sizes_[a];
  }
  return set;
}

std::int64_t local_length(const AxisTable& table, std::int64_t length, const DimAxes& axes) {
  const std::int64_t n = table.size(axes);
  return length / n + (length % n != 0 ? 1 : 0);
}

std::vector<std::int64_t> local_dims(const AxisTable& table, std::span<const std::int64_t> dims, const Layout& layout) {
  std::vector<std::int64_t> local(dims.begin(), dims.end());
  for (std::size_t d = 0; d < local.size() && d < layout.size(); ++d)
    local[d] = local_length(table, local[d], layout[d]);
  return local;
}

double product(std::span<const std::int64_t> dims) {
  double n = 1;
  for (const std::int64_t d : dims) n *= static_cast<double>(d);
  return n;
}

std::vector<ReshardStep> reshard_steps(const AxisTable& table, Layout from, const Layout& to) {
  using topology::CollectiveKind;
  std::vector<ReshardStep> steps;
  const std::size_t rank = from.size();
  const auto common = [&](std::size_t d) {
    std::size_t n = 0;
    while (n < from[d].size() && n < to[d].size() && from[d][n] == to[d][n]) ++n;
    return n;
  };
  // Cuts by axes nothing else uses: they make every later step smaller.
  for (std::size_t d = 0; d < rank; ++d) {
    while (common(d) == from[d].size() && from[d].size() < to[d].size() &&
           !(atoms_of(from) & bit(to[d][from[d].size()]))) {
      from[d].push_back(to[d][from[d].size()]);
    }
  }
  for (std::size_t d = 0; d < rank; ++d) {
    if (common(d) == from[d].size()) continue;
    // The same number of pieces by axes nothing else uses: each piece moves as a whole.
    if (table.size(from[d]) == table.size(to[d]) && !(atoms_of(to[d]) & atoms_of(from))) {
      steps.push_back({CollectiveKind::permute, atoms_of(from[d]) | atoms_of(to[d]), {}});
      from[d] = to[d];
      steps.back().after = from;
      continue;
    }
    // Axes that stay on this dimension must be its major ones before the others can be gathered.
    DimAxes staying;
    for (const Atom atom : from[d]) {
      if (atoms_of(to[d]) & bit(atom)) staying.push_back(atom);
    }
    if (staying.size() > common(d)) {
      DimAxes reordered;
      for (const Atom atom : to[d]) {
        if (atoms_of(staying) & bit(atom)) reordered.push_back(atom);
      }
      for (const Atom atom : from[d]) {
        if (!(atoms_of(staying) & bit(atom))) reordered.push_back(atom);
      }
      from[d] = std::move(reordered);
      steps.push_back({CollectiveKind::permute, atoms_of(from[d]), from});
    }
  }
  for (std::size_t d = 0; d < rank; ++d) {
    const std::size_t keep = common(d);
    if (keep == from[d].size()) continue;
    const DimAxes moved(from[d].begin() + static_cast<std::ptrdiff_t>(keep), from[d].end());
    std::size_t target = rank;
    for (std::size_t e = 0; e < rank; ++e) {
      if (e != d && common(e) == from[e].size() && to[e].size() >= from[e].size() + moved.size() &&
          std::equal(moved.begin(), moved.end(), to[e].begin() + static_cast<std::ptrdiff_t>(from[e].size()))) {
        target = e;
        break;
      }
    }
    from[d].resize(keep);
    if (target < rank) {
      from[target].insert(from[target].end(), moved.begin(), moved.end());
      steps.push_back({CollectiveKind::all_to_all, atoms_of(moved), from});
    } else if (!steps.empty() && steps.back().kind == CollectiveKind::all_gather) {
      // XLA gathers several dimensions at once.
      steps.back().group |= atoms_of(moved);
      steps.back().after = from;
    } else {
      steps.push_back({CollectiveKind::all_gather, atoms_of(moved), from});
    }
  }
  std::erase_if(steps, [&](const ReshardStep& step) { return table.size(step.group) == 1; });
  return steps;
}

ReshapeLayout through_reshape(const AxisTable& table, std::span<const std::int64_t> from, const Layout& layout,
                              std::span<const std::int64_t> to) {
  ReshapeLayout out{Layout(from.size()), Layout(to.size())};
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < from.size() && j < to.size()) {
    // A group: the fewest dimensions of both sides with equal products.
    std::size_t i_end = i + 1;
    std::size_t j_end = j + 1;
    double a = static_cast<double>(from[i]);
    double b = static_cast<double>(to[j]);
    while (a != b) {
      if (a < b && i_end < from.size()) {
        a *= static_cast<double>(from[i_end++]);
      } else if (b < a && j_end < to.size()) {
        b *= static_cast<double>(to[j_end++]);
      } else {
        return out;
      }
    }
    // Axes carry over major first while they divide what both sides have left of their major dimension; a minor
    // dimension may follow only once all before it are used up.
    std::size_t x = i;
    std::size_t y = j;
    std::int64_t from_left = from[x];
    std::int64_t to_left = to[y];
    std::size_t axis = 0;
    while (x < i_end && y < j_end) {
      while (x + 1 < i_end && from_left == 1) {
        from_left = from[++x];
        axis = 0;
      }
      while (y + 1 < j_end && to_left == 1) to_left = to[++y];
      if (axis >= layout[x].size()) break;
      const std::int64_t n = table.size(layout[x][axis]);
      const bool whole = i_end == i + 1 && j_end == j + 1;
      if (!whole && (from_left % n != 0 || to_left % n != 0)) break;
      out.kept[x].push_back(layout[x][axis]);
      out.result[y].push_back(layout[x][axis]);
      if (!whole) {
        from_left /= n;
        to_left /= n;
      }
      ++axis;
    }
    i = i_end;
    j = j_end;
  }
  return out;
}

}  // namespace aoizora::prediction
