#include "aoizora/ir/inspect.h"

#include <boost/json.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "aoizora/ir/readers.h"
#include "aoizora/ir/test_texts.h"

namespace aoizora::ir {
namespace {

namespace data = boost::unit_test::data;
namespace json = boost::json;

BOOST_AUTO_TEST_SUITE(inspect)

// Totals are the sums of what is listed, runs multiplied; opcodes sum to the instructions.
BOOST_DATA_TEST_CASE(sums_agree, data::make(recorded_hlo), file) {
  const json::value found = json::parse(inspect_json(read_program(recorded(file))));
  std::int64_t payload = 0;
  std::int64_t count = 0;
  for (const json::value& c : found.at("collectives").as_array()) {
    count += c.at("runs").as_int64();
    payload += c.at("runs").as_int64() * c.at("payload_bytes").as_int64();
  }
  for (const auto& [kind, total] : found.at("totals").as_object()) {
    count -= total.at("count").as_int64();
    payload -= total.at("payload_bytes").as_int64();
  }
  BOOST_TEST(count == 0);
  BOOST_TEST(payload == 0);
  std::int64_t instructions = 0;
  for (const auto& [opcode, n] : found.at("opcodes").as_object()) instructions += n.as_int64();
  BOOST_TEST(instructions == found.at("instructions").as_int64());
  BOOST_TEST(found.at("parameter_bytes").as_int64() > 100'000'000);
}

BOOST_AUTO_TEST_CASE(text_that_is_no_utf8_still_gives_json) {
  const std::string text =
      "HloModule m\nENTRY %e {\n  ROOT %c = f32[] all-reduce(), replica_groups={}, "
      "metadata={op_name=\"a\xff\xc3\xa4\xe2\x82\"}\n}\n";
  const std::string out = inspect_json(read_hlo(text));
  BOOST_TEST(out.find("a?\xc3\xa4??") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::ir
