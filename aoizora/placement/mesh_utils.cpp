#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>

#include "aoizora/errors.h"
#include "aoizora/placement/placement.h"

// What jax 0.10's create_device_mesh answers, told from its behaviour; python/tests/test_mesh_utils.py compares the
// two.

namespace aoizora::placement {
namespace {

using Shape = std::vector<int>;

std::string text(const Shape& shape) {
  std::string result;
  for (const int size : shape) result += (result.empty() ? "" : "x") + std::to_string(size);
  return result;
}

// Physical axes as jax counts them: x, y, z, and cores where the kind has them.
struct Physical {
  Shape shape;
  const topology::Slice& slice;

  topology::DeviceId device(const Shape& at) const {
    std::vector<int> coordinates(at.begin(), at.begin() + static_cast<std::ptrdiff_t>(slice.dims.size()));
    return slice.device_at(coordinates, at.size() > 3 ? at[3] : 0);
  }
};

Physical physical_mesh(const topology::Slice& slice) {
  if (slice.dims.size() > 3)
    throw InvalidRequest("jax's mesh_utils knows slices of up to three dimensions; " + slice.name + " has more");
  Physical result{slice.dims, slice};
  result.shape.resize(3, 1);
  if (slice.hardware.device_kind == "tpu7x") {
    result.shape.push_back(slice.cores_per_chip);
  } else if (slice.cores_per_chip > 1) {
    throw Infeasible("jax's mesh_utils refuses " + slice.name + ": it wants one device a chip");
  }
  return result;
}

// A closed walk over w x h chips, h even: along the first row, then to and fro over the rest leaving the first column
// free, and back down that column. Chips are numbered x first.
std::vector<int> ring(int w, int h) {
  std::vector<int> result(static_cast<std::size_t>(w));
  std::iota(result.begin(), result.end(), 0);
  for (int y = 1; y < h; ++y) {
    for (int i = 1; i < w; ++i) result.push_back(y * w + (y % 2 == 1 ? w - i : i));
  }
  for (int y = h - 1; y > 0; --y) result.push_back(y * w);
  return result;
}

// v5e and v6e: slices of 4 and 8 chips are walked as the ring of 2x2 and 4x2 whatever their own shape is (2x4 too,
// where it is no ring), 4x4 as a ring only if one axis has all 16; the axes share the walk in row-major order.
std::optional<std::vector<int>> flat_ring(const Shape& mesh, const Shape& physical) {
  const int chips = physical[0] * physical[1] * physical[2];
  if (physical == Shape{2, 2, 2}) return std::vector<int>{0, 4, 2, 6, 1, 5, 3, 7};
  if (chips == 8) return ring(4, 2);
  if (physical == Shape{2, 2, 1}) return ring(2, 2);
  if (physical == Shape{4, 4, 1} && !mesh.empty() && *std::ranges::max_element(mesh) == chips) return ring(4, 4);
  return std::nullopt;
}

Placement walk(const std::vector<int>& order, const Physical& physical) {
  const int cores = physical.shape.size() > 3 ? physical.shape[3] : 1;
  Placement result;
  for (const int i : order) {
    const int chip = i / cores;
    Shape at{chip % physical.shape[0], chip / physical.shape[0] % physical.shape[1],
             chip / physical.shape[0] / physical.shape[1]};
    if (cores > 1) at.push_back(i % cores);
    result.devices.push_back(physical.device(at));
  }
  return result;
}

// tpu7x up to 32 devices in a plane of 2x2 chips or less: rings of 8 devices, one after the other.
std::optional<std::vector<int>> tpu7x_rings(const Shape& physical) {
  const int devices = std::accumulate(physical.begin(), physical.end(), 1, std::multiplies<>());
  if (devices % 8 != 0 || devices > 32 || physical[0] > 2 || physical[1] > 2) return std::nullopt;
  std::vector<int> result;
  for (int first = 0; first < devices; first += 8) {
    for (const int i : {0, 1, 2, 3, 6, 7, 4, 5}) result.push_back(first + i);
  }
  return result;
}

// assignment[p][l]: how much of physical axis p logical axis l takes.
using Assignment = std::vector<Shape>;

// Whole physical axes, the last logical axis first; it takes as many as multiply to its size, the first such set in
// lexical order.
std::optional<Assignment> assign_whole(const Shape& physical, const Shape& mesh) {
  const unsigned axes = static_cast<unsigned>(physical.size());
  Assignment result(axes, Shape(mesh.size(), 1));
  unsigned taken = 0;
  for (std::size_t l = mesh.size(); l-- > 0;) {
    std::optional<unsigned> best;
    const auto lexical = [&](unsigned set) {  // sets of one size: that with the lower axes comes first
      unsigned key = 0;
      for (unsigned p = 0; p < axes; ++p) key |= (set >> p & 1U) << (axes - 1 - p);
      return key;
    };
    for (unsigned set = 1; set < 1U << axes; ++set) {
      std::int64_t product = 1;
      for (unsigned p = 0; p < axes; ++p)
        product *= (set >> p & 1U) == 0 ? 1 : (taken >> p & 1U) != 0 ? 0 : physical[p];
      if (product != mesh[l]) continue;
      const auto rank = [&](unsigned s) { return std::pair(__builtin_popcount(s), lexical(s)); };
      if (!best || rank(set) > rank(*best)) best = set;
    }
    if (!best && mesh[l] > 1) return std::nullopt;
    if (!best) continue;
    taken |= *best;
    for (unsigned p = 0; p < axes; ++p) {
      if ((*best >> p & 1U) != 0) result[p][l] = physical[p];
    }
  }
  return result;
}

// jax's factors of n: it tries divisors up to sqrt(n) + 1 and, if a larger prime is left then, returns that prime
// alone.
std::vector<int> jax_factors(int n) {
  std::vector<int> result;
  int root = 0;
  while ((root + 1) * (root + 1) <= n) ++root;
  for (int p = 2; p < root + 2; ++p) {
    for (; n % p == 0; n /= p) result.push_back(p);
    if (n == 1) return result;
  }
  return {n};
}

// What jax prefers in one logical axis' share of the physical axes, most important first.
struct Preference {
  std::int64_t whole_size = 1;  ///< product over axes taken whole
  int whole_axes = 0;
  std::int64_t on_taken_axes = 1;  ///< product over axes that later logical axes already use
  Shape share;
  auto operator<=>(const Preference&) const = default;
};

Preference preference(const Shape& share, const Shape& physical, const Shape& taken) {
  Preference result;
  result.share = share;
  for (std::size_t p = 0; p < share.size(); ++p) {
    if (share[p] == physical[p]) result.whole_size *= share[p];
    if (share[p] == physical[p] && share[p] > 1) ++result.whole_axes;
    if (taken[p] > 1) result.on_taken_axes *= share[p];
  }
  return result;
}

// Parts of physical axes, prime by prime, the last logical axis first, each the share most preferred.
std::optional<Assignment> assign_split(const Shape& physical, const Shape& mesh) {
  const std::size_t axes = physical.size();
  Assignment result(axes, Shape(mesh.size(), 1));
  Shape taken(axes, 1);
  for (std::size_t l = mesh.size(); l-- > 0;) {
    std::map<int, int> wanted;
    for (const int factor : jax_factors(mesh[l])) ++wanted[factor];
    std::vector<Shape> shares{Shape(axes, 1)};
    for (const auto& [factor, count] : wanted) {
      // Each share so far times every way to take `count` factors from the axes that still have them.
      std::vector<std::pair<Shape, int>> partial;
      partial.reserve(shares.size());
      for (const Shape& share : shares) partial.emplace_back(share, count);
      for (std::size_t p = 0; p < axes; ++p) {
        const std::vector<int> factors = jax_factors(physical[p] / taken[p]);
        const auto available = static_cast<int>(std::ranges::count(factors, factor));
        std::vector<std::pair<Shape, int>> longer;
        for (auto [share, left] : partial) {
          for (int used = 0; used <= std::min(available, left); ++used) {
            longer.emplace_back(share, left - used);
            share[p] *= factor;
          }
        }
        partial = std::move(longer);
      }
      shares.clear();
      for (auto& [share, left] : partial) {
        if (left == 0) shares.push_back(std::move(share));
      }
    }
    if (shares.empty()) return std::nullopt;
    const Shape best =
        *std::ranges::max_element(shares, {}, [&](const Shape& share) { return preference(share, physical, taken); });
    for (std::size_t p = 0; p < axes; ++p) {
      result[p][l] = best[p];
      taken[p] *= best[p];
    }
  }
  if (taken != physical) return std::nullopt;  // jax lost a factor and fails at the reshape
  return result;
}

// Rank to device: a logical index splits over its physical axes, x the slowest; a coordinate is put together from the
// logical axes' parts, the last the fastest.
Placement from_assignment(const Assignment& assignment, const Shape& mesh, const Physical& physical) {
  const int ranks = std::accumulate(mesh.begin(), mesh.end(), 1, std::multiplies<>());
  const std::size_t axes = physical.shape.size();
  Placement result;
  for (int rank = 0; rank < ranks; ++rank) {
    Shape at(axes, 0), weight(axes, 1);
    int rest = rank;
    for (std::size_t l = mesh.size(); l-- > 0;) {
      for (std::size_t p = axes; p-- > 0;) {
        const int part = assignment[p][l];
        at[p] += rest % part * weight[p];
        weight[p] *= part;
        rest /= part;
      }
    }
    result.devices.push_back(physical.device(at));
  }
  return result;
}

Placement order_of(const Shape& mesh, const Physical& physical, bool allow_split) {
  const std::string& kind = physical.slice.hardware.device_kind;
  std::optional<std::vector<int>> order;
  if (kind == "v5e" || kind == "v6e") order = flat_ring(mesh, physical.shape);
  if (kind == "tpu7x") order = tpu7x_rings(physical.shape);
  if (order) return walk(*order, physical);
  if (const auto whole = assign_whole(physical.shape, mesh)) return from_assignment(*whole, mesh, physical);
  const std::string what = "jax's mesh_utils cannot lay the mesh " + text(mesh) + " over " + physical.slice.name;
  if (!allow_split) throw Infeasible(what + " with whole dimensions; set allow_split_physical_axes");
  if (const auto split = assign_split(physical.shape, mesh)) return from_assignment(*split, mesh, physical);
  throw Infeasible(what + ": it cannot factor the sizes");
}

}  // namespace

Placement mesh_utils_order(std::span<const candidates::MeshAxis> mesh, const topology::Slice& slice,
                           bool allow_split_physical_axes) {
  check_fits(mesh, slice);
  Shape sizes;
  for (const candidates::MeshAxis& axis : mesh) sizes.push_back(static_cast<int>(axis.size));
  Placement result = order_of(sizes, physical_mesh(slice), allow_split_physical_axes);
  result.order = "mesh_utils";
  return result;
}

}  // namespace aoizora::placement
