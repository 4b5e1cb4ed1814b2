#include "aoizora/topology/slice.h"

#include <algorithm>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>

#include "aoizora/errors.h"
#include "aoizora/topology/device_kinds.h"
#include "aoizora/topology/test_slices.h"

namespace aoizora::topology {
namespace {

namespace data = boost::unit_test::data;

std::string message_of(const std::string& name) {
  try {
    make_slice(name);
  } catch (const InvalidRequest& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& message, std::initializer_list<std::string> words) {
  return std::ranges::all_of(words, [&](const std::string& word) { return message.find(word) != std::string::npos; });
}

int ring_distance(const Slice& slice, int dimension, int a, int b) {
  const int line = std::abs(a - b);
  return slice.wraps[dimension] ? std::min(line, slice.dims[dimension] - line) : line;
}

BOOST_AUTO_TEST_SUITE(slice)

BOOST_AUTO_TEST_CASE(Names_EveryAllowedRectangle) {
  for (int a = 1; a <= 16; ++a) {
    for (int b = 1; b <= 16; ++b) {
      const std::string name = "v5e:" + std::to_string(a) + "x" + std::to_string(b);
      const bool allowed = (a == 1 || a % 2 == 0) && (b == 1 || b % 2 == 0);
      BOOST_TEST_CONTEXT(name) {
        if (!allowed) {
          BOOST_CHECK_THROW(make_slice(name), InvalidRequest);
          continue;
        }
        const Slice s = make_slice(name);
        BOOST_TEST(s.name == name);
        BOOST_TEST(s.dims == (std::vector{a, b}));
        BOOST_TEST((s.wraps == std::vector{a == 16, b == 16}));
        BOOST_TEST(s.devices.size() == static_cast<std::size_t>(a * b));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(Names_RefusalSaysWhatIsAllowed) {
  BOOST_TEST(says(message_of("v5e:3x4"), {"v5e:3x4", "v5e:2x4, v5e:4x4", "1 or even", "at most 16"}),
             message_of("v5e:3x4"));
  BOOST_TEST(says(message_of("v5e:3x3"), {"v5e:2x2, v5e:2x4, v5e:4x2, v5e:4x4"}), message_of("v5e:3x3"));
  BOOST_TEST(says(message_of("v5e:32x4"), {"nearest: v5e:16x4"}), message_of("v5e:32x4"));
  BOOST_TEST(says(message_of("v5e:0x4"), {"nearest: v5e:1x4"}), message_of("v5e:0x4"));
  BOOST_TEST(says(message_of("v5:4x4"), {"unknown device kind", "v5e"}), message_of("v5:4x4"));
  BOOST_TEST(says(message_of("v5e-16"), {"v5e-16", "v5e:4x4", "descriptor"}), message_of("v5e-16"));
  BOOST_TEST(says(message_of("/no/such.json"), {"/no/such.json", "cannot read"}), message_of("/no/such.json"));
  for (const char* odd : {"v5e:", "v5e:4", "v5e:4x", "v5e:x4", "v5e:4x4x1", "v5e:04x4", "v5e:+4x4", "v5e:-4x4",
                          "v5e:4X4", "v5e:4x4 ", "v5e:99999999999x2", "v5e:4x4:4x4", "v5e: 4x4", "v5e:4x4_twisted"}) {
    BOOST_TEST(says(message_of(odd), {odd, "AxB"}), message_of(odd));
  }
  BOOST_TEST(says(message_of(""), {"neither"}));
}

// Each row's rule and wraps hold for its own dimension count, so a new row needs no other change.
BOOST_AUTO_TEST_CASE(Kinds_EveryRowMakesSlices) {
  for (const DeviceKind& kind : device_kind_table()) {
    const std::vector<int> ones(kind.dimensions, 1);
    BOOST_TEST(kind.takes(ones));
    BOOST_TEST(kind.wraps(ones).size() == ones.size());
    BOOST_TEST(kind.hardware.device_kind == kind.name);
    BOOST_CHECK_NO_THROW(build_slice("row", ones, kind.wraps(ones), kind.cores_per_chip, kind.hardware));
  }
}

BOOST_AUTO_TEST_CASE(Hardware_EveryNumberHasASource) {
  const Hardware h = make_slice("v5e:4x4").hardware;
  for (const Number& number :
       {h.peak_flops_per_second, h.hbm_bytes, h.hbm_bytes_per_second, h.ici_bytes_per_second, h.hop_seconds, h.clock_hz,
        h.dcn_bytes_per_second, h.matmul_efficiency, h.core_efficiency, h.attention_product_cycles,
        h.attention_step_cycles, h.attention_row_cycles}) {
    BOOST_TEST(!number.source.empty());
  }
  BOOST_TEST(h.collectives.size() == all_collective_kinds.size());
  for (const auto& [kind, rate] : h.collectives) {
    for (const Number& number :
         {rate.alpha_seconds, rate.rate_fraction, rate.flow_bytes_per_second, rate.ring_directions})
      BOOST_TEST(!number.source.empty());
  }
}

// Paper, Figure 3: one permute alone is held by its own limit, two on a link by the link's share.
BOOST_AUTO_TEST_CASE(Hardware_PermuteRatesGiveBothFiguresOfThePaper) {
  const Hardware h = make_slice("v5e:2x4").hardware;
  const CollectiveRate& rate = h.collectives.at(CollectiveKind::permute);
  const double link = h.ici_bytes_per_second.value * rate.rate_fraction.value;
  BOOST_TEST(std::min(link, rate.flow_bytes_per_second.value) == 23e9, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(link / 2 == 15.2e9, boost::test_tools::tolerance(1e-9));
}

BOOST_DATA_TEST_CASE(Devices_AreInOrderAndFound, data::xrange(assorted_slices().size())) {
  const Slice s = assorted_slices()[sample];
  BOOST_TEST(s.devices.size() == static_cast<std::size_t>(s.chip_count()) * s.cores_per_chip);
  for (std::size_t i = 0; i < s.devices.size(); ++i) {
    const Device& device = s.devices[i];
    BOOST_TEST(s.device_at(device.coordinates, device.core) == static_cast<DeviceId>(i));
    if (i == 0) continue;
    const Device& before = s.devices[i - 1];
    BOOST_TEST((std::tie(before.coordinates, before.core) < std::tie(device.coordinates, device.core)));
  }
  std::vector<int> outside(s.dims.size(), 0);
  BOOST_CHECK_THROW(s.device_at(outside, s.cores_per_chip), InvalidRequest);
  BOOST_CHECK_THROW(s.device_at(outside, -1), InvalidRequest);
  outside.back() = s.dims.back();
  BOOST_CHECK_THROW(s.device_at(outside, 0), InvalidRequest);
  BOOST_CHECK_THROW(s.device_at({}, 0), InvalidRequest);
}

// A line of n chips has n - 1 wires, a ring of n > 2 has n, a wrapped pair has one; each wire is two links.
BOOST_DATA_TEST_CASE(Links_CountAndPairs, data::xrange(assorted_slices().size())) {
  const Slice s = assorted_slices()[sample];
  std::int64_t expected = std::int64_t{s.chip_count()} * s.cores_per_chip * (s.cores_per_chip - 1);
  for (std::size_t d = 0; d < s.dims.size(); ++d) {
    const int wires = s.wraps[d] && s.dims[d] > 2 ? s.dims[d] : s.dims[d] - 1;
    expected += 2 * std::int64_t{s.chip_count()} / s.dims[d] * wires;
  }
  BOOST_TEST(static_cast<std::int64_t>(s.links.size()) == expected);

  std::set<std::tuple<int, int, int, int>> ends;
  for (const Link& link : s.links) {
    BOOST_TEST(ends.insert({link.from_chip, link.from_core, link.to_chip, link.to_core}).second);
    BOOST_TEST(link.bandwidth_bytes_per_second > 0);
    const Device& from = s.devices[link.from_chip * s.cores_per_chip];
    const Device& to = s.devices[link.to_chip * s.cores_per_chip];
    if (link.kind == LinkKind::core) {
      BOOST_TEST((link.from_chip == link.to_chip && link.from_core != link.to_core && link.dimension == -1));
      continue;
    }
    for (int d = 0; d < static_cast<int>(s.dims.size()); ++d) {
      const int step = d == link.dimension ? link.direction : 0;
      BOOST_TEST((from.coordinates[d] + step + s.dims[d]) % s.dims[d] == to.coordinates[d]);
    }
  }
  for (const auto& [from_chip, from_core, to_chip, to_core] : ends)
    BOOST_TEST(ends.contains({to_chip, to_core, from_chip, from_core}));
}

BOOST_DATA_TEST_CASE(Routes_ConnectAndAreShortest, data::xrange(assorted_slices().size())) {
  const Slice s = assorted_slices()[sample];
  const DeviceId count = static_cast<DeviceId>(s.devices.size());
  for (DeviceId from = 0; from < count; ++from) {
    for (DeviceId to = 0; to < count; ++to) {
      const Device& a = s.devices[from];
      const Device& b = s.devices[to];
      std::size_t hops = a.core != b.core ? 1 : 0;
      for (int d = 0; d < static_cast<int>(s.dims.size()); ++d) {
        hops += static_cast<std::size_t>(ring_distance(s, d, a.coordinates[d], b.coordinates[d]));
      }
      const std::vector<LinkId> route = s.route(from, to);
      BOOST_TEST(route.size() == hops);

      std::int32_t chip = s.chip_of(from);
      int core = a.core, dimension = 0;
      std::map<int, int> directions;
      for (const LinkId id : route) {
        const Link& link = s.links.at(static_cast<std::size_t>(id));
        BOOST_TEST(link.from_chip == chip);
        chip = link.to_chip;
        const bool is_core = link.kind == LinkKind::core;
        if (is_core) {
          BOOST_TEST(link.from_core == core);
          core = link.to_core;
        }
        const int here = is_core ? static_cast<int>(s.dims.size()) : link.dimension;
        BOOST_TEST(here >= dimension);  // x first, cores last
        dimension = here;
        BOOST_TEST(directions.emplace(here, link.direction).first->second == link.direction);
      }
      BOOST_TEST((chip == s.chip_of(to) && core == b.core));
    }
  }
  BOOST_CHECK_THROW(s.route(0, count), InvalidRequest);
  BOOST_CHECK_THROW(s.route(-1, 0), InvalidRequest);
}

BOOST_AUTO_TEST_CASE(Routes_TieGoesUp) {
  const Slice s = make_slice("v5e:1x16");
  for (DeviceId from = 0; from < 16; ++from) {
    for (const LinkId id : s.route(from, (from + 8) % 16)) BOOST_TEST(s.links[id].direction == +1);
  }
}

BOOST_AUTO_TEST_CASE(Build_RefusesWhatIsNoSlice) {
  const Hardware hardware = make_slice("v5e:1x1").hardware;
  BOOST_CHECK_THROW(build_slice("", {}, {}, 1, hardware), InvalidRequest);
  BOOST_CHECK_THROW(build_slice("", {0}, {false}, 1, hardware), InvalidRequest);
  BOOST_CHECK_THROW(build_slice("", {-2, -2}, {false, false}, 1, hardware), InvalidRequest);
  BOOST_CHECK_THROW(build_slice("", {2}, {false, true}, 1, hardware), InvalidRequest);
  BOOST_CHECK_THROW(build_slice("", {2}, {false}, 0, hardware), InvalidRequest);
  BOOST_CHECK_THROW(build_slice("", {1}, {false}, 1 << 30, hardware), InvalidRequest);
  BOOST_CHECK_THROW(build_slice("", {1 << 30, 1 << 30, 1 << 30}, {false, false, false}, 1, hardware), InvalidRequest);
  BOOST_CHECK_THROW(build_slice("", {2}, {false}, 2, hardware), InvalidRequest);  // two cores, no speed between them
  BOOST_CHECK_THROW(build_slice("", {2}, {false}, 1, Hardware{}), InvalidRequest);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::topology
