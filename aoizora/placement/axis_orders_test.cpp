#include <algorithm>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ctime>
#include <functional>
#include <map>
#include <numeric>
#include <ostream>
#include <set>

#include "aoizora/errors.h"
#include "aoizora/placement/placement.h"

namespace aoizora::placement {
namespace {

namespace data = boost::unit_test::data;

using candidates::MeshAxis;
using topology::DeviceId;
using topology::Slice;
using Devices = std::vector<DeviceId>;
using Mesh = std::vector<MeshAxis>;
// Families of the active axes, in order; each a sorted list of groups, a group sorted unless its axis is ordered.
using Families = std::vector<std::vector<Devices>>;

Slice slice_of(const std::vector<int>& dims, const std::vector<bool>& wraps, int cores_per_chip = 1) {
  topology::Hardware hardware = topology::make_slice("v5e:1x1").hardware;
  hardware.core_bytes_per_second = {600e9, "test"};
  std::string name = "test:";
  for (std::size_t d = 0; d < dims.size(); ++d)
    name += (d == 0 ? "" : "x") + std::to_string(dims[d]) + (wraps[d] ? "o" : "");
  return topology::build_slice(name + "." + std::to_string(cores_per_chip), dims, wraps, cores_per_chip, hardware);
}

// Slices small enough to try everything on, of every make: lines, rings, squares, cubes, unlike primes, cores.
const std::vector<Slice>& small_slices() {
  static const std::vector<Slice> slices{topology::make_slice("v5e:2x2"),
                                         topology::make_slice("v5e:2x4"),
                                         topology::make_slice("v5e:4x4"),
                                         topology::make_slice("v5e:1x8"),
                                         slice_of({8}, {true}),
                                         slice_of({12}, {true}),
                                         slice_of({12}, {false}),
                                         slice_of({4, 4}, {true, true}),
                                         slice_of({4, 4}, {true, false}),
                                         slice_of({3, 4}, {false, true}),
                                         slice_of({6, 2}, {true, false}),
                                         slice_of({2, 2, 2}, {false, false, false}),
                                         slice_of({2, 2, 4}, {false, true, true}),
                                         slice_of({2, 2}, {false, false}, 2),
                                         slice_of({2, 3}, {false, true}, 2),
                                         slice_of({2}, {false}, 4),
                                         slice_of({1}, {false}, 6)};
  return slices;
}

std::vector<int> primes(int n) {
  std::vector<int> result;
  for (int p = 2; n > 1; ++p) {
    for (; n % p == 0; n /= p) result.push_back(p);
  }
  return result;
}

// Every axis order there is, straight from the definition: each dimension (cores last) cut into primes in each order,
// each axis dealt a sequence of these digits in each order. Duplicates stay.
std::vector<Devices> all_axis_orders(const std::vector<int>& sizes, const Slice& slice) {
  struct Digit {
    int step, radix;
  };
  std::vector<int> dims = slice.dims;
  dims.push_back(slice.cores_per_chip);
  std::vector<Devices> result;
  std::vector<Digit> digits, dealt;
  std::vector<bool> used;
  const std::function<void(std::size_t, int)> deal = [&](std::size_t axis, int wanted) {
    if (axis == sizes.size()) {
      Devices devices{0};
      for (const Digit& digit : dealt) {
        Devices longer;
        for (const DeviceId device : devices) {
          for (int v = 0; v < digit.radix; ++v) longer.push_back(device + v * digit.step);
        }
        devices = longer;
      }
      result.push_back(devices);
      return;
    }
    if (wanted == 1) return deal(axis + 1, axis + 1 < sizes.size() ? sizes[axis + 1] : 1);
    for (std::size_t i = 0; i < digits.size(); ++i) {
      if (used[i] || wanted % digits[i].radix != 0) continue;
      used[i] = true;
      dealt.push_back(digits[i]);
      deal(axis, wanted / digits[i].radix);
      dealt.pop_back();
      used[i] = false;
    }
  };
  const std::function<void(std::size_t, int)> cut = [&](std::size_t d, int stride) {
    if (d == 0) {
      used.assign(digits.size(), false);
      return deal(0, sizes.empty() ? 1 : sizes[0]);
    }
    std::vector<int> radices = primes(dims[d - 1]);
    do {
      const std::size_t before = digits.size();
      int step = stride;
      for (const int radix : radices) {
        digits.push_back({step, radix});
        step *= radix;
      }
      cut(d - 1, step);
      digits.resize(before);
    } while (std::next_permutation(radices.begin(), radices.end()));
  };
  cut(dims.size(), 1);
  return result;
}

Families families(const Mesh& mesh, const PlacementOptions& options, const Devices& devices) {
  Families result;
  for (const MeshAxis& axis : mesh) {
    const auto listed = [&](const auto& names) { return std::ranges::find(names, axis.name) != names.end(); };
    if (axis.size == 1 || !(options.active_axes.empty() || listed(options.active_axes) || listed(options.ordered_axes)))
      continue;
    std::vector<Devices>& family = result.emplace_back();
    for (const auto& group : groups_along(mesh, std::vector{axis.name})) {
      Devices& members = family.emplace_back();
      for (const std::int32_t rank : group) members.push_back(devices[rank]);
      if (!listed(options.ordered_axes)) std::ranges::sort(members);
    }
    std::ranges::sort(family);
  }
  return result;
}

Devices moved(const Devices& devices, const Devices& image) {
  Devices result;
  for (const DeviceId device : devices) result.push_back(image[device]);
  return result;
}

Families least_image(const Mesh& mesh, const PlacementOptions& options, const Devices& devices,
                     const std::vector<Devices>& images) {
  Families least;
  for (const Devices& image : images) {
    Families here = families(mesh, options, moved(devices, image));
    if (least.empty() || here < least) least = std::move(here);
  }
  return least;
}

struct Case {
  Mesh mesh;
  PlacementOptions options;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  for (const MeshAxis& axis : c.mesh) out << axis.name << "=" << axis.size << " ";
  out << "active";
  for (const auto& name : c.options.active_axes) out << " " << name;
  out << " ordered";
  for (const auto& name : c.options.ordered_axes) out << " " << name;
  return out;
}

// Every mesh of up to three axes over the slice, with each choice of active and ordered axes; on slices of many
// symmetries, where that takes long, with some.
std::vector<Case> cases(const Slice& slice) {
  const int n = static_cast<int>(slice.devices.size());
  const std::vector<std::string> names{"data", "context", "tensor"};
  const bool many = topology::automorphisms(slice).size() > 24;
  const std::set<int> some{1, 2, 5, 13, 14, 26};
  std::vector<Case> result;
  for (int a = 1; a <= n; ++a) {
    for (int b = 1; a * b <= n; ++b) {
      if (n % a != 0 || n / a % b != 0) continue;
      const Mesh mesh{{names[0], a}, {names[1], b}, {names[2], n / a / b}};
      for (int choice = 0; choice < 27; ++choice) {
        if (many && !some.contains(choice)) continue;
        PlacementOptions options;
        bool used = true;
        int rest = choice;
        for (std::size_t i = 0; i < 3; ++i, rest /= 3) {
          if (rest % 3 >= 1) options.active_axes.push_back(names[i]);
          if (rest % 3 == 2) options.ordered_axes.push_back(names[i]);
          used = used && (rest % 3 == 0 || mesh[i].size > 1);
        }
        if (used && choice > 0) result.push_back({mesh, options});
      }
    }
  }
  return result;
}

std::vector<int> sizes_of(const Mesh& mesh) {
  std::vector<int> result;
  for (const MeshAxis& axis : mesh) result.push_back(static_cast<int>(axis.size));
  return result;
}

// How many messages each link carries, one entry an active axis: all pairs of a group exchange, or each member of an
// ordered group sends to the next round the ring. Sorted over links, so that it does not depend on their numbers.
std::vector<std::vector<int>> load_profile(const Mesh& mesh, const PlacementOptions& options, const Slice& slice,
                                           const Devices& devices) {
  const Families all = families(mesh, options, devices);
  std::vector<std::string> active;
  for (const MeshAxis& axis : mesh) {
    const auto listed = [&](const auto& names) { return std::ranges::find(names, axis.name) != names.end(); };
    if (axis.size > 1 && (options.active_axes.empty() || listed(options.active_axes) || listed(options.ordered_axes)))
      active.push_back(axis.name);
  }
  std::vector<std::vector<int>> loads(slice.links.size(), std::vector<int>(active.size() + 1, 0));
  const auto send = [&](DeviceId from, DeviceId to, std::size_t axis) {
    for (const auto link : slice.route(from, to)) ++loads[link][axis];
  };
  for (std::size_t axis = 0; axis < active.size(); ++axis) {
    const bool ordered = std::ranges::find(options.ordered_axes, active[axis]) != options.ordered_axes.end();
    for (const Devices& group : all[axis]) {
      for (std::size_t i = 0; i < group.size(); ++i) {
        if (ordered) send(group[i], group[(i + 1) % group.size()], axis);
        for (std::size_t j = 0; j < group.size() && !ordered; ++j) send(group[i], group[j], axis);
      }
    }
  }
  // The ring over all ordered axes together, which no single family shows.
  for (const auto& group : groups_along(mesh, options.ordered_axes)) {
    for (std::size_t i = 0; i < group.size(); ++i)
      send(devices[group[i]], devices[group[(i + 1) % group.size()]], active.size());
  }
  std::ranges::sort(loads);
  return loads;
}

BOOST_AUTO_TEST_SUITE(axis_orders)

// Paper, section 3: 2x2x2 on 2x4 has six placements up to symmetry.
BOOST_AUTO_TEST_CASE(Paper_SixPlacementsOf2x2x2On2x4) {
  const Slice slice = topology::make_slice("v5e:2x4");
  const Mesh mesh{{"data", 2}, {"context", 2}, {"tensor", 2}};
  const DistinctPlacements found = distinct_axis_orders(mesh, slice, {});
  std::vector<std::string> orders;
  for (const Placement& p : found.placements) orders.push_back(p.order);
  const std::vector<std::string> expected{"data=x0 context=y1 tensor=y0", "data=x0 context=y0 tensor=y1",
                                          "data=y1 context=x0 tensor=y0", "data=y1 context=y0 tensor=x0",
                                          "data=y0 context=x0 tensor=y1", "data=y0 context=y1 tensor=x0"};
  BOOST_TEST(orders == expected, boost::test_tools::per_element());
  BOOST_TEST(found.axis_orders == 6);
  BOOST_TEST(!found.truncated);
}

BOOST_AUTO_TEST_CASE(Order_SaysWhichDigitEachAxisHas) {
  const Slice slice = topology::make_slice("v5e:4x4");
  for (const Placement& p :
       distinct_axis_orders(Mesh{{"data", 2}, {"fsdp", 1}, {"context", 8}}, slice, {}).placements) {
    if (p.order != "data=x0 context=x1y1y0") continue;
    for (std::int32_t rank = 0; rank < 16; ++rank) {
      const auto& at = slice.devices[p.devices[rank]].coordinates;
      BOOST_TEST(at[0] == (rank / 4 % 2) * 2 + rank / 8);
      BOOST_TEST(at[1] == rank % 4);
    }
    return;
  }
  BOOST_TEST(false, "data=x0 context=x1y1y0 is missing");
}

// The heart: signatures read off digits, against every automorphism applied to the devices of every order.
BOOST_DATA_TEST_CASE(BruteForce_SameClasses, data::xrange(small_slices().size())) {
  const Slice& slice = small_slices()[sample];
  const std::vector<Devices> images = topology::automorphisms(slice);
  for (const Case& c : cases(slice)) {
    BOOST_TEST_CONTEXT(slice.name << " " << c) {
      const std::vector<Devices> orders = all_axis_orders(sizes_of(c.mesh), slice);
      std::set<Families> classes;
      for (const Devices& devices : std::set(orders.begin(), orders.end()))
        classes.insert(least_image(c.mesh, c.options, devices, images));

      const DistinctPlacements found = distinct_axis_orders(c.mesh, slice, c.options);
      std::set<Families> kept;
      for (const Placement& p : found.placements) {
        BOOST_TEST(kept.insert(least_image(c.mesh, c.options, p.devices, images)).second,
                   "two placements with one signature: " << p.order);
      }
      BOOST_TEST((kept == classes), kept.size() << " kept of " << classes.size());
      // Cores are alike in any order of their primes: the reference cuts 6 as 2 x 3 and as 3 x 2.
      if (slice.cores_per_chip != 6) BOOST_TEST(found.axis_orders == static_cast<std::int64_t>(orders.size()));
    }
  }
}

// What a signature is for: orders that share one put the same loads on the links, for exchanges of all pairs and for
// rings, over one axis and over the ordered axes together; also where one is the other turned about the diagonal,
// though routes go x first in both.
BOOST_DATA_TEST_CASE(Signature_EqualMeansEqualLoads, data::xrange(small_slices().size())) {
  const Slice& slice = small_slices()[sample];
  const std::vector<Devices> images = topology::automorphisms(slice);
  for (const Case& c : cases(slice)) {
    std::map<Families, std::vector<std::vector<int>>> profile;
    for (const Devices& devices : all_axis_orders(sizes_of(c.mesh), slice)) {
      const auto here = load_profile(c.mesh, c.options, slice, devices);
      const auto [first, is_new] = profile.emplace(least_image(c.mesh, c.options, devices, images), here);
      BOOST_TEST((is_new || first->second == here), slice.name << " " << c);
    }
  }
}

BOOST_DATA_TEST_CASE(Laws, data::xrange(small_slices().size())) {
  const Slice& slice = small_slices()[sample];
  const std::vector<Devices> images = topology::automorphisms(slice);
  for (const Case& c : cases(slice)) {
    BOOST_TEST_CONTEXT(slice.name << " " << c) {
      const DistinctPlacements found = distinct_axis_orders(c.mesh, slice, c.options);
      BOOST_TEST(!found.truncated);
      BOOST_TEST(!found.placements.empty());
      BOOST_TEST(found.axis_orders >= static_cast<std::int64_t>(found.placements.size()));

      // Every placement is a bijection.
      for (const Placement& p : found.placements)
        BOOST_TEST((std::set(p.devices.begin(), p.devices.end()).size() == slice.devices.size()));

      // Row-major is first wherever it is an axis order.
      const std::vector<Devices> orders = all_axis_orders(sizes_of(c.mesh), slice);
      const Devices first = row_major(slice).devices;
      if (std::ranges::find(orders, first) != orders.end())
        BOOST_TEST((found.placements.front().devices == first), found.placements.front().order);

      // The set is closed: no automorphism leads out of it.
      std::set<Families> kept;
      for (const Placement& p : found.placements) kept.insert(least_image(c.mesh, c.options, p.devices, images));
      for (std::size_t k = 0; k < images.size(); k += 1 + images.size() / 7) {
        const Placement& p = found.placements[k % found.placements.size()];
        BOOST_TEST(kept.contains(least_image(c.mesh, c.options, moved(p.devices, images[k]), images)));
      }

      // A limit keeps the first ones and says so.
      PlacementOptions limited = c.options;
      limited.limit = found.placements.size() - 1;
      const DistinctPlacements fewer = distinct_axis_orders(c.mesh, slice, limited);
      BOOST_TEST(fewer.truncated);
      BOOST_TEST((std::equal(fewer.placements.begin(), fewer.placements.end(), found.placements.begin(),
                             found.placements.end() - 1)));
      limited.limit = found.placements.size();
      BOOST_TEST(!distinct_axis_orders(c.mesh, slice, limited).truncated);
    }
  }
}

BOOST_AUTO_TEST_CASE(Count_DoesNotDependOnWhichDimensionIsFirst) {
  const std::vector<std::pair<Slice, Slice>> pairs{
      {topology::make_slice("v5e:2x4"), topology::make_slice("v5e:4x2")},
      {topology::make_slice("v5e:2x8"), topology::make_slice("v5e:8x2")},
      {slice_of({4, 4}, {true, false}), slice_of({4, 4}, {false, true})},
      {slice_of({2, 3, 4}, {false, true, true}), slice_of({4, 2, 3}, {true, false, true})}};
  for (const auto& [a, b] : pairs) {
    for (const Case& c : cases(a)) {
      const DistinctPlacements of_a = distinct_axis_orders(c.mesh, a, c.options),
                               of_b = distinct_axis_orders(c.mesh, b, c.options);
      BOOST_TEST(of_a.placements.size() == of_b.placements.size(), a.name << " " << c);
      BOOST_TEST(of_a.axis_orders == of_b.axis_orders);
    }
  }
}

// Fewer active axes tell fewer orders apart; an ordered axis tells more apart than one that is not.
BOOST_AUTO_TEST_CASE(Count_GrowsWithWhatIsSeen) {
  const Slice slice = topology::make_slice("v5e:4x8");
  const Mesh mesh{{"data", 2}, {"context", 4}, {"tensor", 4}};
  const auto count = [&](std::vector<std::string> active, std::vector<std::string> ordered) {
    return distinct_axis_orders(mesh, slice, {std::move(active), std::move(ordered)}).placements.size();
  };
  // data takes one of five digits, context two of four: 5 x 6. With data alone: 5. Ordered, context's two come in both
  // orders.
  BOOST_TEST(count({}, {}) == 30U);
  BOOST_TEST(count({"data"}, {}) == 5U);
  BOOST_TEST(count({"context"}, {}) == 10U);
  BOOST_TEST(count({"data", "context", "tensor"}, {"context"}) == 60U);
  BOOST_TEST(count({}, {"context", "tensor"}) == 120U);
  BOOST_TEST(count({"data"}, {"context"}) == 60U);
}

BOOST_AUTO_TEST_CASE(Large_ThreeAxesOn16x16) {
  const Slice slice = topology::make_slice("v5e:16x16");
  const Mesh mesh{{"data", 4}, {"context", 8}, {"tensor", 8}};
  const std::clock_t start = std::clock();
  // 8!/(2! 3! 3!) ways to share eight digits out, each with its mirror image about the diagonal: none is its own.
  BOOST_TEST(distinct_axis_orders(mesh, slice, {}).placements.size() == 280U);
  const DistinctPlacements ordered = distinct_axis_orders(mesh, slice, {{}, {"data", "context", "tensor"}});
  BOOST_TEST(ordered.placements.size() == 20160U);
  BOOST_TEST(ordered.axis_orders == 40320);
  BOOST_TEST(std::clock() - start < 10 * CLOCKS_PER_SEC);
}

BOOST_AUTO_TEST_CASE(Large_CubeAndLongSearches) {
  const Slice cube = slice_of({4, 4, 4}, {true, true, true});
  // 6!/(2! 2! 2!) = 90 over the six exchanges of a cube's dimensions: by Burnside (90 + 3 * 6 + 2 * 0) / 6.
  const auto found = distinct_axis_orders(Mesh{{"data", 4}, {"context", 4}, {"tensor", 4}}, cube, {});
  BOOST_TEST(found.placements.size() == 18U);

  const Slice large = slice_of({16, 16, 16}, {true, true, true});
  const Mesh mesh{{"data", 16}, {"context", 16}, {"tensor", 16}};
  const DistinctPlacements many = distinct_axis_orders(mesh, large, {{}, {"data", "context", "tensor"}, 1000});
  BOOST_TEST(many.truncated);
  BOOST_TEST(many.placements.size() == 1000U);
  BOOST_TEST(many.axis_orders == 479001600);
}

BOOST_AUTO_TEST_CASE(Refusals) {
  const Slice slice = topology::make_slice("v5e:2x4");
  const auto message = [&](const Mesh& mesh, const PlacementOptions& options) {
    try {
      distinct_axis_orders(mesh, slice, options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  BOOST_CHECK_THROW(distinct_axis_orders(Mesh{{"data", 2}, {"context", 2}}, slice, {}), Infeasible);
  BOOST_TEST(message({{"data", 2}, {"context", 3}}, {}).find("data 2 x context 3 has 6 ranks and v5e:2x4 8 devices") !=
             std::string::npos);
  BOOST_CHECK_THROW(distinct_axis_orders(Mesh{{"data", 8}}, slice, {{"contxt"}, {}}), InvalidRequest);
  BOOST_CHECK_THROW(distinct_axis_orders(Mesh{{"data", 8}}, slice, {{}, {"contxt"}}), InvalidRequest);
  BOOST_CHECK_THROW(distinct_axis_orders(Mesh{{"data", 4}, {"data", 2}}, slice, {}), InvalidRequest);
  BOOST_CHECK_THROW(distinct_axis_orders(Mesh{{"data", -4}, {"tensor", -2}}, slice, {}), InvalidRequest);
  BOOST_CHECK_THROW(distinct_axis_orders(Mesh{{"a", std::int64_t{1} << 62}, {"b", 4}}, slice, {}), InvalidRequest);
}

BOOST_AUTO_TEST_CASE(OneDevice) {
  const DistinctPlacements found = distinct_axis_orders(Mesh{{"data", 1}}, topology::make_slice("v5e:1x1"), {});
  BOOST_TEST(found.placements.size() == 1U);
  BOOST_TEST((found.placements.front().devices == Devices{0}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::placement
