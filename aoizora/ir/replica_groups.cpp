#include "aoizora/ir/replica_groups.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "aoizora/ir/scan_impl.h"

namespace aoizora::ir {
namespace {

/// Which ids were named already; every id at most once, and below the device count.
class Seen {
 public:
  explicit Seen(std::int32_t device_count) : seen_(static_cast<std::size_t>(std::max(device_count, 0)), false) {}
  std::int32_t take(const Cursor& c, std::int64_t id) {
    check(c, id);
    if (seen_[static_cast<std::size_t>(id)]) c.fail("device " + std::to_string(id) + " is named twice");
    seen_[static_cast<std::size_t>(id)] = true;
    return static_cast<std::int32_t>(id);
  }
  void check(const Cursor& c, std::int64_t id) const {
    if (id < 0 || id >= static_cast<std::int64_t>(seen_.size())) {
      c.fail("device " + std::to_string(id) + " is named, the program has devices 0 to " +
             std::to_string(static_cast<std::int64_t>(seen_.size()) - 1));
    }
  }

 private:
  std::vector<bool> seen_;
};

void skip(Cursor& c) {
  while (is_space(c.peek())) ++c.at;
}

std::int64_t number(Cursor& c, const char* what) {
  skip(c);
  const auto found = c.number();
  if (!found) c.fail(std::string("expected ") + what);
  skip(c);
  return *found;
}

/// "[4,2]"; the product may not pass `limit`.
std::vector<std::int64_t> sizes(Cursor& c, std::int64_t limit) {
  c.expect('[', "that opens sizes");
  std::vector<std::int64_t> out;
  std::int64_t product = 1;
  do {
    const std::int64_t size = number(c, "a size");
    if (size < 1) c.fail("a size must be positive");
    product = saturating_multiply(product, size);
    if (product > limit) c.fail("more ids than the program's " + std::to_string(limit) + " devices");
    if (out.size() >= 64) c.fail("more than 64 dimensions");
    out.push_back(size);
  } while (c.take(','));
  c.expect(']', "behind the sizes");
  return out;
}

/// "T(1,0)" where present; the identity otherwise.
std::vector<std::size_t> transposition(Cursor& c, std::size_t rank) {
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  if (!c.take("T(")) return order;
  std::vector<bool> used(rank, false);
  for (std::size_t i = 0; i < rank; ++i) {
    if (i > 0) c.expect(',', "in the transposition");
    const std::int64_t dim = number(c, "a dimension");
    if (dim < 0 || dim >= static_cast<std::int64_t>(rank) || used[static_cast<std::size_t>(dim)])
      c.fail("a transposition must name each dimension once");
    used[static_cast<std::size_t>(dim)] = true;
    order[i] = static_cast<std::size_t>(dim);
  }
  c.expect(')', "behind the transposition");
  return order;
}

std::int64_t product(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{1}, saturating_multiply);
}

/// iota reshaped to `dims` and transposed: element i of the result, row-major.
std::vector<std::int64_t> transposed_iota(const std::vector<std::int64_t>& dims,
                                          const std::vector<std::size_t>& order) {
  std::vector<std::int64_t> stride(dims.size(), 1);
  for (std::size_t d = dims.size(); d-- > 1;) stride[d - 1] = stride[d] * dims[d];
  std::vector<std::int64_t> out{0};
  for (const std::size_t dim : order) {
    std::vector<std::int64_t> next;
    next.reserve(out.size() * static_cast<std::size_t>(dims[dim]));
    for (const std::int64_t base : out) {
      for (std::int64_t k = 0; k < dims[dim]; ++k) next.push_back(base + k * stride[dim]);
    }
    out = std::move(next);
  }
  return out;
}

/// "{{0,1},{2,3}}": numbers in braces in braces.
std::vector<std::vector<std::int64_t>> lists(Cursor& c) {
  std::vector<std::vector<std::int64_t>> out;
  c.expect('{', "that opens the groups");
  skip(c);
  while (!c.take('}')) {
    c.expect('{', "that opens a group");
    out.emplace_back();
    skip(c);
    while (!c.take('}')) {
      out.back().push_back(number(c, "an id"));
      if (!c.take(',') && c.peek() != '}') c.fail("expected ',' or '}' behind an id");
    }
    skip(c);
    if (!c.take(',') && c.peek() != '}') c.fail("expected ',' or '}' behind a group");
    skip(c);
  }
  return out;
}

/// "[groups,size]<=[dims]T(order)"
ReplicaGroups iota_groups(Cursor& c, std::int32_t device_count, Seen& seen) {
  const std::vector<std::int64_t> shape = sizes(c, device_count);
  if (shape.size() != 2) c.fail("expected [number of groups, ids a group]");
  if (!c.take("<=")) c.fail("expected <= behind the shape of the groups");
  const std::vector<std::int64_t> dims = sizes(c, device_count);
  const std::vector<std::size_t> order = transposition(c, dims.size());
  if (product(shape) != product(dims)) c.fail("the shape of the groups has another number of ids than the iota");
  const std::vector<std::int64_t> ids = transposed_iota(dims, order);
  ReplicaGroups out(static_cast<std::size_t>(shape[0]));
  std::size_t next = 0;
  for (auto& group : out) {
    for (std::int64_t k = 0; k < shape[1]; ++k) group.push_back(seen.take(c, ids[next++]));
  }
  return out;
}

struct Axis {
  std::string_view name;
  std::int64_t size = 1;
};

std::string_view quoted(Cursor& c) {
  skip(c);
  c.expect('\'', "before an axis name");
  const char* start = c.at;
  while (!c.done() && *c.at != '\'') ++c.at;
  const std::string_view name{start, static_cast<std::size_t>(c.at - start)};
  c.expect('\'', "behind an axis name");
  return name;
}

/// ", device_ids=([4,16]T(1,0))" or ", device_ids=(0,2,1,3)": which device stands where in the mesh.
std::vector<std::int64_t> mesh_devices(Cursor& c, std::int64_t size, std::int32_t device_count) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(size));
  std::iota(out.begin(), out.end(), 0);
  Cursor ahead = c;
  ahead.take(',');
  skip(ahead);
  if (!ahead.take("device_ids=(")) return out;
  c = ahead;
  if (c.peek() == '[') {
    const std::vector<std::int64_t> dims = sizes(c, device_count);
    out = transposed_iota(dims, transposition(c, dims.size()));
  } else {
    out.clear();
    do {
      out.push_back(number(c, "a device"));
      if (static_cast<std::int64_t>(out.size()) > size) c.fail("more devices than the mesh has");
    } while (c.take(','));
  }
  c.expect(')', "behind the mesh's devices");
  if (static_cast<std::int64_t>(out.size()) != size) c.fail("device_ids and the mesh differ in size");
  return out;
}

/// "mesh['a'=2,'b'=4] {'b':(2)2,'a'}": groups along the axes named, the first one outermost; (pre)size is a part of an
/// axis that has `pre` outside of it.
ReplicaGroups mesh_groups(Cursor& c, std::int32_t device_count, Seen& seen) {
  c.expect('[', "behind mesh");
  std::vector<Axis> axes;
  std::int64_t total = 1;
  skip(c);
  while (!c.take(']')) {
    Axis axis;
    axis.name = quoted(c);
    skip(c);
    c.expect('=', "behind an axis name");
    axis.size = number(c, "an axis size");
    total = axis.size < 1 ? -1 : saturating_multiply(total, axis.size);
    if (total < 1 || total > device_count) c.fail("a mesh must have 1 to " + std::to_string(device_count) + " devices");
    if (axes.size() >= 64) c.fail("more than 64 axes");
    for (const Axis& other : axes) {
      if (other.name == axis.name) c.fail("axis " + std::string(axis.name) + " is named twice");
    }
    axes.push_back(axis);
    if (!c.take(',') && c.peek() != ']') c.fail("expected ',' or ']' behind an axis");
    skip(c);
  }
  const std::vector<std::int64_t> devices = mesh_devices(c, total, device_count);
  skip(c);

  // Each mesh axis as runs of [stride, size), outermost first; what the groups take is marked.
  struct Part {
    std::int64_t stride = 1;
    std::int64_t size = 1;
  };
  std::vector<std::int64_t> stride(axes.size(), 1);
  for (std::size_t a = axes.size(); a-- > 1;) stride[a - 1] = stride[a] * axes[a].size;
  std::vector<Part> inside;
  std::vector<std::vector<Part>> taken(axes.size());
  c.expect('{', "that opens the axes of the groups");
  skip(c);
  while (!c.take('}')) {
    const std::string_view name = quoted(c);
    const auto found = std::find_if(axes.begin(), axes.end(), [&](const Axis& axis) { return axis.name == name; });
    if (found == axes.end()) c.fail("axis " + std::string(name) + " is not in the mesh");
    const auto at = static_cast<std::size_t>(found - axes.begin());
    std::int64_t before = 1;
    std::int64_t size = found->size;
    if (c.take(":(")) {
      before = number(c, "the size outside a sub-axis");
      c.expect(')', "in a sub-axis");
      size = number(c, "the size of a sub-axis");
      if (before < 1 || size < 1 || saturating_multiply(before, size) > found->size ||
          found->size % (before * size) != 0) {
        c.fail("a sub-axis must divide its axis");
      }
    }
    const Part part{stride[at] * (found->size / (before * size)), size};
    for (const Part& other : taken[at]) {
      if (part.stride < other.stride * other.size && other.stride < part.stride * part.size)
        c.fail("axis " + std::string(name) + " is taken twice");
    }
    taken[at].push_back(part);
    inside.push_back(part);
    skip(c);
    if (!c.take(',') && c.peek() != '}') c.fail("expected ',' or '}' behind an axis");
    skip(c);
  }

  std::vector<Part> outside;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    std::sort(taken[a].begin(), taken[a].end(), [](const Part& x, const Part& y) { return x.stride > y.stride; });
    std::int64_t above = stride[a] * axes[a].size;
    for (const Part& part : taken[a]) {
      const std::int64_t end = part.stride * part.size;
      if (above > end) outside.push_back({end, above / end});
      above = part.stride;
    }
    if (above > stride[a]) outside.push_back({stride[a], above / stride[a]});
  }

  const auto spread = [](const std::vector<Part>& parts) {
    std::vector<std::int64_t> out{0};
    for (const Part& part : parts) {
      std::vector<std::int64_t> next;
      next.reserve(out.size() * static_cast<std::size_t>(part.size));
      for (const std::int64_t base : out) {
        for (std::int64_t k = 0; k < part.size; ++k) next.push_back(base + k * part.stride);
      }
      out = std::move(next);
    }
    return out;
  };
  const std::vector<std::int64_t> members = spread(inside);
  ReplicaGroups out;
  for (const std::int64_t base : spread(outside)) {
    out.emplace_back();
    for (const std::int64_t member : members)
      out.back().push_back(seen.take(c, devices[static_cast<std::size_t>(base + member)]));
  }
  return out;
}

}  // namespace

ReplicaGroups read_replica_groups(std::string_view text, std::int32_t device_count) {
  Cursor c(text);
  Seen seen(device_count);
  ReplicaGroups out;
  skip(c);
  if (c.take("mesh")) {
    out = mesh_groups(c, device_count, seen);
  } else if (c.peek() == '[') {
    out = iota_groups(c, device_count, seen);
  } else {
    for (const auto& list : lists(c)) {
      if (list.empty()) continue;
      out.emplace_back();
      for (const std::int64_t id : list) out.back().push_back(seen.take(c, id));
    }
    if (out.empty() && device_count > 0) {
      out.emplace_back(static_cast<std::size_t>(device_count));
      std::iota(out.back().begin(), out.back().end(), 0);
    }
  }
  skip(c);
  if (!c.done()) c.fail("text behind the replica groups");
  return out;
}

std::vector<std::pair<std::int32_t, std::int32_t>> read_source_target_pairs(std::string_view text,
                                                                            std::int32_t device_count) {
  Cursor c(text);
  skip(c);
  Seen sources(device_count);
  Seen targets(device_count);
  std::vector<std::pair<std::int32_t, std::int32_t>> out;
  for (const auto& pair : lists(c)) {
    if (pair.size() != 2) c.fail("expected {source,target}");
    out.emplace_back(sources.take(c, pair[0]), targets.take(c, pair[1]));
  }
  skip(c);
  if (!c.done()) c.fail("text behind the pairs");
  return out;
}

}  // namespace aoizora::ir
