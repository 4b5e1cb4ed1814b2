#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <fstream>
#include <random>

#include "aoizora/errors.h"
#include "aoizora/topology/test_slices.h"

namespace aoizora::topology {
namespace {

namespace data = boost::unit_test::data;

std::string message_of(const std::string& json) {
  try {
    read_descriptor(json);
  } catch (const InvalidRequest& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

BOOST_AUTO_TEST_SUITE(descriptor)

BOOST_DATA_TEST_CASE(RoundTrip_IsExact, data::xrange(assorted_slices().size())) {
  const Slice s = assorted_slices()[sample];
  BOOST_TEST((read_descriptor(to_json(s)) == s));
}

// Numbers of any digits come back bit by bit.
BOOST_AUTO_TEST_CASE(RoundTrip_AnyNumber) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-20, 20);
  Slice s = make_slice("v5e:2x2");
  for (int i = 0; i < 200; ++i) {
    s.hardware.clock_hz = {std::pow(10.0, exponent(random)), "test \"quoted\" \n µ"};
    BOOST_TEST((read_descriptor(to_json(s)) == s));
  }
}

BOOST_AUTO_TEST_CASE(Base_OverridesOnlyWhatIsGiven) {
  const Slice base = make_slice("v5e:4x4");
  const Slice s = read_descriptor(R"({"base": "v5e:4x4", "hardware": {
    "ici_bytes_per_second": {"value": 22.5e9, "source": "own measurement"}, "hbm_bytes": 8e9,
    "collectives": {"all-reduce": {"rate_fraction": 0.5}}}})");
  Slice expected = base;
  expected.hardware.ici_bytes_per_second = {22.5e9, "own measurement"};
  expected.hardware.hbm_bytes = {8e9, "descriptor"};
  expected.hardware.collectives[CollectiveKind::all_reduce].rate_fraction = {0.5, "descriptor"};
  for (Link& link : expected.links) link.bandwidth_bytes_per_second = 22.5e9;
  BOOST_TEST((s == expected));
  BOOST_TEST((read_descriptor(R"({"base": "v5e:4x4"})") == base));
}

BOOST_AUTO_TEST_CASE(Base_AnotherShapeNeedsAnotherName) {
  BOOST_TEST(has(message_of(R"({"base": "v5e:4x4", "wraps": [true, true]})"), "\"name\" is missing"));
  BOOST_TEST(has(message_of(R"({"base": "v5e:4x4", "dims": [4, 4, 4], "name": "cube"})"), "\"wraps\" is missing"));
  const Slice cube =
      read_descriptor(R"({"base": "v5e:4x4", "dims": [4, 4, 4], "wraps": [true, true, true], "name": "cube"})");
  BOOST_TEST(cube.devices.size() == 64U);
  BOOST_TEST(cube.links.size() == 64U * 6);
}

BOOST_AUTO_TEST_CASE(File_IsRead) {
  const std::string path = "descriptor_test.tmp.json";
  std::ofstream(path) << to_json(make_slice("v5e:2x4"));
  BOOST_TEST((make_slice(path) == make_slice("v5e:2x4")));
  std::remove(path.c_str());
  BOOST_CHECK_THROW(make_slice(path), InvalidRequest);
}

BOOST_AUTO_TEST_CASE(Refusals_NameTheKeyAndTheNearest) {
  BOOST_TEST(has(message_of(R"({"base": "v5e:4x4", "hardwear": {}})"), "did you mean \"hardware\""));
  BOOST_TEST(has(message_of(R"({"base": "v5e:4x4", "hardware": {"hbm_byte": 1}})"), "did you mean \"hbm_bytes\""));
  BOOST_TEST(has(message_of(R"({"base": "v5e:4x4", "hardware": {"collectives": {"allreduce": {}}}})"),
                 "did you mean \"all-reduce\""));
  BOOST_TEST(has(message_of(R"({"base": "v5e:4x4", "hardware": {"collectives": {"all-reduce": {"alpha": 1}}}})"),
                 "did you mean \"alpha_seconds\""));
  BOOST_TEST(has(message_of(R"({"base": "v5e:4x4", "hardware": {"hbm_bytes": {"value": 1, "src": "x"}}})"),
                 "did you mean \"source\""));
  BOOST_TEST(has(message_of(R"({"base": "v5e:3x4"})"), "v5e:2x4"));
  BOOST_TEST(has(message_of(R"({"base": "/etc/passwd"})"), "no slice name"));
  BOOST_TEST(has(message_of(R"({"name": "x"})"), "\"dims\" is missing"));
  BOOST_TEST(has(message_of(R"({"name": "x", "dims": [2], "wraps": [false], "hardware": {}})"), "is missing"));
  for (const char* odd :
       {"[]", "1", "null", R"({"base": 1})", R"({"base": "v5e:4x4", "name": ""})",
        R"({"base": "v5e:4x4", "hardware": []})", R"({"base": "v5e:4x4", "hardware": {"hbm_bytes": "8"}})",
        R"({"base": "v5e:4x4", "hardware": {"hbm_bytes": -1}})",
        R"({"base": "v5e:4x4", "hardware": {"hbm_bytes": {"source": "x"}}})",
        R"({"base": "v5e:4x4", "hardware": {"hbm_bytes": 1e999}})",
        R"({"base": "v5e:4x4", "hardware": {"matmul_efficiency": 1.5}})",
        R"({"base": "v5e:4x4", "name": "x", "cores_per_chip": 2})",
        R"({"base": "v5e:4x4", "name": "x", "dims": [1.5], "wraps": [false]})",
        R"({"base": "v5e:4x4", "name": "x", "dims": [4294967297], "wraps": [false]})",
        R"({"base": "v5e:4x4", "name": "x", "dims": [1000000, 1000000], "wraps": [false, false]})"}) {
    BOOST_CHECK_THROW(read_descriptor(odd), Error);
  }
}

BOOST_AUTO_TEST_CASE(BadJson_SaysWhere) {
  try {
    read_descriptor("{\n  \"base\": v5e\n}");
    BOOST_TEST(false);
  } catch (const ParseError& error) {
    BOOST_TEST(error.line == 2);
    BOOST_TEST(error.column == 11);
  }
  BOOST_CHECK_THROW(read_descriptor(""), ParseError);
  BOOST_CHECK_THROW(read_descriptor("{"), ParseError);
  BOOST_CHECK_THROW(read_descriptor("{} {}"), ParseError);
  BOOST_CHECK_THROW(read_descriptor(std::string(100000, '[')), ParseError);
}

// Whatever the text, an error of the library or a slice: nothing else.
BOOST_AUTO_TEST_CASE(Mutations_NeverDoAnythingElse) {
  const std::string text = to_json(make_slice("v5e:2x2"));
  std::mt19937 random(7);
  int read = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string mutated = text;
    for (int k = 0; k < 1 + i % 4; ++k) {
      const std::size_t at = random() % mutated.size();
      switch (random() % 4) {
        case 0:
          mutated[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          mutated.erase(at, 1 + random() % 9);
          break;
        case 2:
          mutated.insert(at, mutated.substr(random() % mutated.size(), random() % 20));
          break;
        default:
          mutated[at] = "0123456789-.e[]{},:\""[random() % 20];
          break;
      }
    }
    try {
      read_descriptor(mutated);
      ++read;
    } catch (const Error&) {
    }
  }
  BOOST_TEST(read > 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::topology
