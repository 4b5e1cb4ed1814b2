#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>

#include "aoizora/errors.h"
#include "aoizora/placement/placement.h"

// Why a signature can be read off the digits, without a list of automorphisms.
//
// A digit is (dimension, weight, radix): coordinate / weight mod radix. The group of an axis through the origin is the
// box of its digits. An automorphism is an exchange of like dimensions followed by a mirror or rotation of each
// dimension.
// 1. A box is its own mirror image up to a shift, so a mirror or rotation that takes one family of boxes to another
// shifts, in each
//    dimension, one box to another. Both boxes hold 0. On a line they are then equal. On a ring: a box whose top digit
//    reaches round is periodic, and the claim follows from the shorter ring; any other lies within half the ring, so
//    its widest gap is unique and fixes its least element, which is 0 in both. So mirrors and rotations never identify
//    two different families: only exchanges do.
// 2. For sequences the same: the first step of each run is a digit's weight, at most half the dimension, and a mirror
// or rotation
//    keeps it up to sign.
// 3. A family fixes its digits once neighbours in it are joined, (w, r) and (w r, s) to (w, r s): its least element is
// the first
//    weight, the run up to the first gap the radix, and so on.
// Cores of a chip are all linked with each other: only how many fall to an axis counts.
//
// An exchange makes routes go y first, and still loads the links alike: a y-first route is the x-first route of the way
// back, walked backwards, and the mirror of all dimensions turns every ring of an axis order into its way back.
// axis_orders_test.cpp compares all this with every automorphism applied to every order.

namespace aoizora::placement {
namespace {

constexpr std::int64_t kMostWork = 20'000'000;
constexpr std::int64_t kMostEntries = std::int64_t{1} << 26;

struct Digit {
  int dimension = 0;  ///< dims.size() for cores
  int weight = 1;
  int radix = 1;
};
using Digits = std::vector<Digit>;  ///< of one axis, major first

struct Axis {
  std::size_t position = 0;  ///< in the mesh
  int size = 1;
  bool active = false;
  bool ordered = false;
};

using Signature = std::vector<int>;

std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  return b != 0 && a > std::numeric_limits<std::int64_t>::max() / b ? std::numeric_limits<std::int64_t>::max() : a * b;
}

std::int64_t factorial(std::int64_t n) {
  std::int64_t result = 1;
  for (std::int64_t i = 2; i <= n; ++i) result = saturating_product(result, i);
  return result;
}

// Primes of n, ascending.
std::vector<int> primes(int n) {
  std::vector<int> result;
  for (int p = 2; p <= n / p; ++p) {
    for (; n % p == 0; n /= p) result.push_back(p);
  }
  if (n > 1) result.push_back(n);
  return result;
}

// n! / (n_1! n_2! ...) for a sorted list of n with runs of n_i equal elements: its distinct permutations. Multiplied up
// one element at a time, which stays whole: C(i, run) grows by i / run.
std::int64_t distinct_permutations(const std::vector<int>& sorted) {
  std::int64_t result = 1;
  std::int64_t run = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    run = i > 0 && sorted[i] == sorted[i - 1] ? run + 1 : 1;
    const std::int64_t common = std::gcd(result, run);
    result = saturating_product(result / common, static_cast<std::int64_t>(i + 1) / (run / common));
  }
  return result;
}

// The digits of a dimension whose radices are given major first.
void append_digits(Digits& digits, int dimension, const std::vector<int>& radices) {
  int weight = std::accumulate(radices.begin(), radices.end(), 1, std::multiplies<>());
  for (const int radix : radices) {
    weight /= radix;
    digits.push_back({dimension, weight, radix});
  }
}

std::vector<Axis> axes_of(std::span<const candidates::MeshAxis> mesh, const PlacementOptions& options) {
  const auto listed = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const std::string& name : options.active_axes) axis_position(mesh, name);
  for (const std::string& name : options.ordered_axes) axis_position(mesh, name);
  std::vector<Axis> result;
  for (std::size_t i = 0; i < mesh.size(); ++i) {
    if (mesh[i].size == 1) continue;
    const bool ordered = listed(options.ordered_axes, mesh[i].name);
    const bool active = options.active_axes.empty() || ordered || listed(options.active_axes, mesh[i].name);
    result.push_back({i, static_cast<int>(mesh[i].size), active, ordered});
  }
  return result;
}

// Which dimension each one becomes, for every exchange of like dimensions; the identity first.
std::vector<std::vector<int>> exchanges(const topology::Slice& slice) {
  std::vector<int> p(slice.dims.size() + 1);
  std::iota(p.begin(), p.end(), 0);
  std::vector<std::vector<int>> result{p};
  while (std::next_permutation(p.begin(), p.end() - 1)) {
    bool fits = true;
    for (int d = 0; d + 1 < static_cast<int>(p.size()); ++d) {
      fits = fits && slice.dims[p[d]] == slice.dims[d] && slice.is_ring(p[d]) == slice.is_ring(d) &&
             (slice.dims[d] > 1 || p[d] == d);
    }
    if (fits) result.push_back(p);
  }
  return result;
}

// Appends one axis' digits, joined where they are neighbours; minor first where the order counts, by dimension and
// weight where not.
void append_signature(Signature& signature, Digits digits, bool ordered, std::span<const int> exchange) {
  const int cores = static_cast<int>(exchange.size()) - 1;
  for (Digit& digit : digits) {
    digit.dimension = exchange[digit.dimension];
    if (digit.dimension == cores) digit.weight = 0;
  }
  if (ordered) {
    std::reverse(digits.begin(), digits.end());
  } else {
    std::ranges::sort(digits, {}, [](const Digit& digit) { return std::pair(digit.dimension, digit.weight); });
  }
  signature.push_back(-1);
  for (std::size_t i = 0; i < digits.size();) {
    Digit joined = digits[i];
    for (++i; i < digits.size() && digits[i].dimension == joined.dimension; ++i) {
      if (digits[i].weight != joined.weight * joined.radix) break;
      joined.radix *= digits[i].radix;
    }
    signature.insert(signature.end(), {joined.dimension, joined.weight, joined.radix});
  }
}

class Search {
 public:
  Search(std::span<const candidates::MeshAxis> mesh, const topology::Slice& slice, const PlacementOptions& options)
      : mesh_(mesh), slice_(slice), axes_(axes_of(mesh, options)) {
    exchanges_ = exchanges(slice);
    limit_ = std::min(options.limit,
                      static_cast<std::size_t>(kMostEntries / static_cast<std::int64_t>(slice.devices.size())));
    dealt_.resize(axes_.size());
    // Active axes are dealt first, each in the mesh's order; the others share what is left.
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      if (axes_[i].active) sequence_.push_back(i);
    }
  }

  DistinctPlacements run() {
    const std::size_t dimensions = slice_.dims.size();
    std::vector<std::vector<int>> radices;
    for (std::size_t d = 0; d <= dimensions; ++d)
      radices.push_back(primes(d < dimensions ? slice_.dims[d] : slice_.cores_per_chip));
    result_.axis_orders = count_orders(radices);

    if (deal_row_major()) found();
    // Every order of each dimension's primes (12: 2 2 3, 2 3 2, 3 2 2), like an odometer; cores are alike in any order.
    while (!result_.truncated) {
      digits_.clear();
      for (std::size_t d = 0; d <= dimensions; ++d) append_digits(digits_, static_cast<int>(d), radices[d]);
      used_.assign(digits_.size(), false);
      for (Digits& digits : dealt_) digits.clear();
      deal(0);
      std::size_t d = dimensions;
      while (d > 0 && !std::next_permutation(radices[d - 1].begin(), radices[d - 1].end())) --d;
      if (d == 0) break;
    }
    return std::move(result_);
  }

 private:
  // Orders of primes in the dimensions x ways to hand the k_p digits of prime p to the axes' slots for it x orders of
  // unlike primes inside each axis.
  std::int64_t count_orders(const std::vector<std::vector<int>>& radices) const {
    std::int64_t result = 1;
    std::vector<int> all;
    for (std::size_t d = 0; d < radices.size(); ++d) {
      if (d < slice_.dims.size()) result = saturating_product(result, distinct_permutations(radices[d]));
      all.insert(all.end(), radices[d].begin(), radices[d].end());
    }
    for (const int p : std::set(all.begin(), all.end()))
      result = saturating_product(result, factorial(std::ranges::count(all, p)));
    for (const Axis& axis : axes_) result = saturating_product(result, distinct_permutations(primes(axis.size)));
    return result;
  }

  // The row-major order, where it is an axis order: walks mesh axes and dimensions side by side, major first, each time
  // splitting off what the shorter of the two has left. False where neither divides the other (a mesh of 2 x 3 on 3 x 2
  // chips).
  bool deal_row_major() {
    std::size_t d = 0;
    const auto size_of = [&] { return d < slice_.dims.size() ? slice_.dims[d] : slice_.cores_per_chip; };
    int left = size_of();
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      for (int wanted = axes_[i].size; wanted > 1;) {
        while (left == 1) {
          ++d;
          left = size_of();
        }
        const int radix = std::min(left, wanted);
        if (left % radix != 0 || wanted % radix != 0) return false;
        std::vector<int> factors = primes(radix);
        Digits digits;
        append_digits(digits, static_cast<int>(d), factors);
        for (Digit& digit : digits) digit.weight *= left / radix;
        dealt_[i].insert(dealt_[i].end(), digits.begin(), digits.end());
        left /= radix;
        wanted /= radix;
      }
    }
    return true;
  }

  // Deals digits to the active axes from the `at`-th on, in every way. False where the search is to stop.
  bool deal(std::size_t at) {
    if (at == sequence_.size()) {
      deal_rest();
      return found();
    }
    return take(at, axes_[sequence_[at]].size, 0);
  }

  // Gives axis `at` digits until `wanted` is 1: in every order where order counts, else ascending from digit `from`.
  bool take(std::size_t at, int wanted, std::size_t from) {
    if (wanted == 1) return deal(at + 1);
    const std::size_t axis = sequence_[at];
    for (std::size_t i = axes_[axis].ordered ? 0 : from; i < digits_.size(); ++i) {
      if (used_[i] || wanted % digits_[i].radix != 0) continue;
      used_[i] = true;
      dealt_[axis].push_back(digits_[i]);
      const bool go_on = take(at, wanted / digits_[i].radix, i + 1);
      dealt_[axis].pop_back();
      used_[i] = false;
      if (!go_on) return false;
    }
    return true;
  }

  // The inactive axes take what is left, first come first served: their primes are exactly those left.
  void deal_rest() {
    std::vector<bool> used = used_;
    for (std::size_t axis = 0; axis < axes_.size(); ++axis) {
      if (axes_[axis].active) continue;
      dealt_[axis].clear();
      int wanted = axes_[axis].size;
      for (std::size_t i = 0; i < digits_.size(); ++i) {
        if (used[i] || wanted % digits_[i].radix != 0) continue;
        used[i] = true;
        dealt_[axis].push_back(digits_[i]);
        wanted /= digits_[i].radix;
      }
    }
  }

  Signature signature() const {
    Signature least;
    for (const std::vector<int>& exchange : exchanges_) {
      Signature candidate;
      for (const std::size_t axis : sequence_) append_signature(candidate, dealt_[axis], axes_[axis].ordered, exchange);
      if (least.empty() || candidate < least) least = std::move(candidate);
    }
    return least;
  }

  // Keeps the order dealt unless its signature is known. False where the search is to stop.
  bool found() {
    work_ += static_cast<std::int64_t>(exchanges_.size());
    Signature here = signature();
    if (work_ <= kMostWork && signatures_.contains(here)) return true;
    if (work_ > kMostWork || result_.placements.size() >= limit_) {
      result_.truncated = true;
      return false;
    }
    signatures_.insert(std::move(here));
    result_.placements.push_back(placement());
    return true;
  }

  Placement placement() const {
    Placement result;
    result.devices.reserve(slice_.devices.size());
    result.devices.push_back(0);
    for (const Digits& digits : dealt_) {
      for (const Digit& digit : digits) {
        // One step of the digit, in devices.
        int step = digit.weight;
        if (digit.dimension < static_cast<int>(slice_.dims.size())) {
          step *= slice_.cores_per_chip;
          for (std::size_t d = digit.dimension + 1; d < slice_.dims.size(); ++d) step *= slice_.dims[d];
        }
        std::vector<topology::DeviceId> longer;
        longer.reserve(result.devices.size() * digit.radix);
        for (const topology::DeviceId device : result.devices) {
          for (int value = 0; value < digit.radix; ++value) longer.push_back(device + value * step);
        }
        result.devices = std::move(longer);
      }
    }
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      result.order += (i == 0 ? "" : " ") + mesh_[axes_[i].position].name + "=";
      for (const Digit& digit : dealt_[i]) result.order += digit_name(digit);
    }
    if (axes_.empty()) result.order = "one device";
    return result;
  }

  // "y0" is the least digit of y; where a dimension has unlike primes, "y[2:3]" is y / 2 mod 3.
  std::string digit_name(const Digit& digit) const {
    constexpr std::array<std::string_view, 4> letters{"x", "y", "z", "w"};
    const bool is_core = digit.dimension == static_cast<int>(slice_.dims.size());
    const std::string letter = is_core ? "core"
                               : digit.dimension < static_cast<int>(letters.size())
                                   ? std::string(letters[digit.dimension])
                                   : "d" + std::to_string(digit.dimension) + ".";
    const std::vector<int> factors = primes(is_core ? slice_.cores_per_chip : slice_.dims[digit.dimension]);
    if (factors.front() != factors.back())
      return letter + "[" + std::to_string(digit.weight) + ":" + std::to_string(digit.radix) + "]";
    int index = 0;
    for (int weight = digit.weight; weight > 1; weight /= digit.radix) ++index;
    return letter + std::to_string(index);
  }

  std::span<const candidates::MeshAxis> mesh_;
  const topology::Slice& slice_;
  std::vector<Axis> axes_;             ///< of size above 1, in the mesh's order
  std::vector<std::size_t> sequence_;  ///< indices of the active ones
  std::vector<std::vector<int>> exchanges_;
  std::size_t limit_ = 0;

  Digits digits_;              ///< all digits of the slice, x first, major first
  std::vector<bool> used_;     ///< one a digit: an active axis has it
  std::vector<Digits> dealt_;  ///< one an axis
  std::set<Signature> signatures_;
  std::int64_t work_ = 0;
  DistinctPlacements result_;
};

}  // namespace

DistinctPlacements distinct_axis_orders(std::span<const candidates::MeshAxis> mesh, const topology::Slice& slice,
                                        const PlacementOptions& options) {
  check_fits(mesh, slice);
  return Search(mesh, slice, options).run();
}

}  // namespace aoizora::placement
