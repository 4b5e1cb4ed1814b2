#include "aoizora/ir/memory_report.h"

#include <boost/test/unit_test.hpp>

#include "aoizora/errors.h"
#include "aoizora/ir/test_texts.h"

namespace aoizora::ir {
namespace {

BOOST_AUTO_TEST_SUITE(memory_report)

BOOST_AUTO_TEST_CASE(takes_the_default_memory_space_only) {
  BOOST_TEST(read_memory_report(recorded("flash_d2c2t2.memory-usage-report.txt")).total_bytes == 953071616);
  BOOST_TEST(read_memory_report(recorded("flash_d2c8_4x4.memory-usage-report.txt")).total_bytes == 656150528);
}

BOOST_AUTO_TEST_CASE(refuses_what_is_no_report) {
  BOOST_CHECK_THROW(read_memory_report(""), ParseError);
  BOOST_CHECK_THROW(read_memory_report("Memory Space: default (color=0)\n"), ParseError);
  BOOST_CHECK_THROW(read_memory_report("Memory Space: default (color=0)\nTotal bytes: 99999999999999999999\n"),
                    ParseError);
  BOOST_CHECK_THROW(read_memory_report("Memory Space: vmem (color=1)\nTotal bytes: 12\n"), ParseError);
}

// The message of libtpu 0.0.52 as JAX raises it.
BOOST_AUTO_TEST_CASE(reads_the_compilers_out_of_memory) {
  const auto found = read_out_of_memory(
      "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
      "temporaries "
      "(30.66G) exceeds available HBM (15.75G). HLO module: jit_vdit_step.");
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST(found->needed_bytes == 30.66 * 1024 * 1024 * 1024, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(found->available_bytes == 15.75 * 1024 * 1024 * 1024, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(!read_out_of_memory("INTERNAL: something else (30.66G)").has_value());
  BOOST_TEST(!read_out_of_memory("Ran out of memory on HBM").has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::ir
