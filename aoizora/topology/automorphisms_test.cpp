#include <algorithm>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <numeric>
#include <set>
#include <tuple>

#include "aoizora/errors.h"
#include "aoizora/topology/test_slices.h"

namespace aoizora::topology {
namespace {

namespace data = boost::unit_test::data;

using Permutation = std::vector<DeviceId>;

// Ends of a link as devices: an ICI link serves every core of its chips.
std::set<std::tuple<int, DeviceId, DeviceId>> edges(const Slice& slice, const Permutation& image) {
  std::set<std::tuple<int, DeviceId, DeviceId>> result;
  for (const Link& link : slice.links) {
    const auto device = [&](std::int32_t chip, int core) { return image[chip * slice.cores_per_chip + core]; };
    if (link.kind == LinkKind::core) {
      result.insert({1, device(link.from_chip, link.from_core), device(link.to_chip, link.to_core)});
      continue;
    }
    for (int i = 0; i < slice.cores_per_chip; ++i) {
      for (int j = 0; j < slice.cores_per_chip; ++j)
        result.insert({0, device(link.from_chip, i), device(link.to_chip, j)});
    }
  }
  return result;
}

BOOST_AUTO_TEST_SUITE(automorphism)

BOOST_DATA_TEST_CASE(Automorphisms_MapLinksToLinks, data::xrange(assorted_slices().size())) {
  const Slice s = assorted_slices()[sample];
  const std::vector<Permutation> all = automorphisms(s);
  Permutation identity(s.devices.size());
  std::iota(identity.begin(), identity.end(), 0);
  BOOST_TEST((all.front() == identity));
  BOOST_TEST(std::set(all.begin(), all.end()).size() == all.size());
  const auto links = edges(s, identity);
  for (std::size_t k = 0; k < all.size(); k += 1 + all.size() / 97) BOOST_TEST((edges(s, all[k]) == links));
}

BOOST_DATA_TEST_CASE(Automorphisms_AreAGroup, data::xrange(assorted_slices().size())) {
  const Slice s = assorted_slices()[sample];
  const std::vector<Permutation> all = automorphisms(s);
  const std::set<Permutation> set(all.begin(), all.end());
  const std::size_t stride =
      1 + all.size() / 61;  // all pairs on small slices, a sample of a thousand pairs on large ones
  for (std::size_t i = 0; i < all.size(); i += stride) {
    for (std::size_t j = 0; j < all.size(); j += stride) {
      Permutation product(s.devices.size());
      for (std::size_t d = 0; d < product.size(); ++d) product[d] = all[i][all[j][d]];
      BOOST_TEST(set.contains(product));
    }
  }
}

// Every permutation of chips that keeps links, by trying all of them: nothing is missing where the listed kinds are all
// there are.
BOOST_AUTO_TEST_CASE(Automorphisms_AreAllThereAreOnSmallSlices) {
  for (const Slice& s : {make_slice("v5e:1x4"), make_slice("v5e:2x2"), make_slice("v5e:2x4"), slice_of({5}, {true}),
                         slice_of({3, 2}, {true, false})}) {
    Permutation p(s.devices.size());
    std::iota(p.begin(), p.end(), 0);
    const auto links = edges(s, p);
    std::size_t count = 0;
    do count += edges(s, p) == links ? 1 : 0;
    while (std::next_permutation(p.begin(), p.end()));
    BOOST_TEST(automorphisms(s).size() == count);
  }
}

BOOST_AUTO_TEST_CASE(Automorphisms_Counts) {
  BOOST_TEST(automorphisms(make_slice("v5e:2x4")).size() == 4U);
  BOOST_TEST(automorphisms(make_slice("v5e:4x4")).size() == 8U);
  BOOST_TEST(automorphisms(make_slice("v5e:8x16")).size() == 2U * 32);
  BOOST_TEST(automorphisms(make_slice("v5e:16x16")).size() == 32U * 32 * 2);
  BOOST_TEST(automorphisms(slice_of({4, 4, 4}, {true, true, true})).size() == 8U * 8 * 8 * 6);
  BOOST_TEST(automorphisms(slice_of({2, 2, 1}, {false, false, false}, 2)).size() == 8U * 2);
}

BOOST_AUTO_TEST_CASE(Automorphisms_RefuseAListThatDoesNotFit) {
  BOOST_CHECK_THROW(automorphisms(slice_of({16, 16, 16}, {true, true, true})), InvalidRequest);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::topology
