#include "aoizora/ir/replica_groups.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <numeric>
#include <ostream>
#include <set>

#include "aoizora/errors.h"

namespace aoizora::ir {
namespace {

namespace data = boost::unit_test::data;

struct Case {
  const char* text;
  std::int32_t devices;
  ReplicaGroups groups;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.text; }
};

// The same groups in every notation; expected values by hand from the definition of each.
const Case cases[] = {
    {"{{0,1},{2,3}}", 4, {{0, 1}, {2, 3}}},
    {"{{0, 2}, {1, 3}}", 4, {{0, 2}, {1, 3}}},
    {"{}", 3, {{0, 1, 2}}},
    {"{{}}", 2, {{0, 1}}},
    {"{{0,1,2},{3}}", 4, {{0, 1, 2}, {3}}},
    {"[1,8]<=[8]", 8, {{0, 1, 2, 3, 4, 5, 6, 7}}},
    {"[4,2]<=[8]", 8, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
    {"[4,2]<=[4,2]T(1,0)", 8, {{0, 2}, {4, 6}, {1, 3}, {5, 7}}},
    {"[2,4]<=[2,2,2]T(0,2,1)", 8, {{0, 2, 1, 3}, {4, 6, 5, 7}}},
    {"[4,2]<=[2,2,2]T(1,0,2)", 8, {{0, 1}, {4, 5}, {2, 3}, {6, 7}}},
    {"mesh['a'=2,'b'=4] {'b'}", 8, {{0, 1, 2, 3}, {4, 5, 6, 7}}},
    {"mesh['a'=2,'b'=4] {'a'}", 8, {{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
    {"mesh['a'=2,'b'=4] {'b','a'}", 8, {{0, 4, 1, 5, 2, 6, 3, 7}}},
    {"mesh['a'=2,'b'=4] {'b':(1)2}", 8, {{0, 2}, {1, 3}, {4, 6}, {5, 7}}},
    {"mesh['a'=2,'b'=4] {'b':(2)2}", 8, {{0, 1}, {2, 3}, {4, 5}, {6, 7}}},
    {"mesh['a'=2,'b'=4] {'b':(2)2,'a'}", 8, {{0, 4, 1, 5}, {2, 6, 3, 7}}},
    {"mesh['a'=8] {'a':(2)2}", 8, {{0, 2}, {1, 3}, {4, 6}, {5, 7}}},
    {"mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", 4, {{0, 2}, {1, 3}}},
    {"mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}", 8, {{0, 2, 4, 6}, {1, 3, 5, 7}}},
    {"mesh['a'=2,'b'=2] {}", 4, {{0}, {1}, {2}, {3}}},
};

BOOST_AUTO_TEST_SUITE(replica_groups)

BOOST_DATA_TEST_CASE(reads_every_notation, data::make(cases), one) {
  BOOST_TEST((read_replica_groups(one.text, one.devices) == one.groups));
}

// Iota groups partition the devices, whatever the factorisation and the order.
BOOST_DATA_TEST_CASE(iota_groups_partition_the_devices,
                     data::make({"[8,3]<=[24]", "[3,8]<=[2,3,4]T(2,0,1)", "[6,4]<=[4,6]T(1,0)",
                                 "mesh['x'=2,'y'=12] {'y':(3)2}",
                                 "mesh['x'=2,'y'=12], device_ids=([3,8]T(1,0)) {'x','y':(1)3}"}),
                     text) {
  std::set<std::int32_t> seen;
  std::size_t size = 0;
  for (const auto& group : read_replica_groups(text, 24)) {
    if (size == 0) size = group.size();
    BOOST_TEST(group.size() == size);
    seen.insert(group.begin(), group.end());
  }
  BOOST_TEST(seen.size() == 24U);
}

// What cannot be is refused, and what is huge is refused before anything is built.
BOOST_DATA_TEST_CASE(refuses,
                     data::make({"{{0,8}}",
                                 "{{0,0}}",
                                 "{{0,1},{1,2}}",
                                 "{{0,1}",
                                 "{{0;1}}",
                                 "{{-1}}",
                                 "",
                                 "[2,4]",
                                 "[2,4]<=[9]",
                                 "[1000000,1000000]<=[1000000000000]",
                                 "[9223372036854775807,9223372036854775807]<=[8]",
                                 "[0,8]<=[0]",
                                 "[2,4]<=[2,4]T(0,0)",
                                 "[2,4]<=[2,4]T(0)",
                                 "[2,4]<=[8] x",
                                 "mesh['a'=2,'a'=4] {'a'}",
                                 "mesh['a'=2,'b'=4] {'c'}",
                                 "mesh['a'=2,'b'=4] {'b','b'}",
                                 "mesh['a'=2,'b'=4] {'b','b':(2)2}",
                                 "mesh['a'=2,'b'=4] {'b':(3)2}",
                                 "mesh['a'=0] {'a'}",
                                 "mesh['a'=99999999] {'a'}",
                                 "mesh['a'=2], device_ids=(0,0) {'a'}",
                                 "mesh['a'=2], device_ids=(0,9) {'a'}",
                                 "mesh['a'=2] {'a'",
                                 "{{99999999999999999999}}"}),
                     text) {
  BOOST_CHECK_THROW(read_replica_groups(text, 8), ParseError);
}

BOOST_AUTO_TEST_CASE(pairs_may_be_partial_but_not_double) {
  const auto pairs = read_source_target_pairs("{{4,0},{5,1}}", 8);
  BOOST_TEST((pairs == std::vector<std::pair<std::int32_t, std::int32_t>>{{4, 0}, {5, 1}}));
  BOOST_TEST(read_source_target_pairs("{}", 8).empty());
  for (const char* bad : {"{{0,1},{0,2}}", "{{0,1},{2,1}}", "{{0}}", "{{0,1,2}}", "{{0,8}}", "{{0,1}"}) {
    BOOST_CHECK_THROW(read_source_target_pairs(bad, 8), ParseError);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::ir
