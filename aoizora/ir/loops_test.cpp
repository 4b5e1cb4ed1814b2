#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <map>
#include <ostream>
#include <string>

#include "aoizora/ir/collectives.h"
#include "aoizora/ir/readers.h"
#include "aoizora/ir/test_texts.h"

namespace aoizora::ir {
namespace {

namespace data = boost::unit_test::data;

/// Trips of all loops, and how many have them.
std::map<std::int64_t, int> trips_of(const Program& program) {
  std::map<std::int64_t, int> out;
  for (std::size_t id = 0; id < program.instructions.size(); ++id) {
    const Instruction& i = program.instructions[id];
    if (i.opcode == "while" || i.opcode == "stablehlo.while")
      ++out[trip_count(program, static_cast<InstructionId>(id)).value_or(-1)];
  }
  return out;
}

struct Row {
  const char* file;
  std::map<std::int64_t, int> trips;
  friend std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.file; }
};
// Two layers; windowed einsums step their counter by 2 up to 4; relayout loops of 22 trips; the ring has 4.
const Row rows[] = {
    {"flash_d2c4.hlo.txt", {{2, 1}}},        {"flash_c8.hlo.txt", {{2, 11}}},
    {"ulysses_c8.hlo.txt", {{2, 11}}},       {"flash_f2c4.hlo.txt", {{2, 1}, {22, 6}}},
    {"ring_d2c4.hlo.txt", {{2, 1}, {4, 1}}}, {"flash_d2c4.mlir", {{2, 1}}},
    {"ring_d2c4.mlir", {{2, 1}, {4, 1}}},
};

/// A loop over (counter, bound) from `first`; `compare` and `next` are lines of condition and body.
std::string loop(const std::string& first, const std::string& condition, const std::string& body,
                 const std::string& before = "", const std::string& attributes = "") {
  return "HloModule m\n\n" + before +
         "%condition {\n  %p = (s32[], s32[]) parameter(0)\n  %i = s32[] get-tuple-element(%p), index=0\n  %n = s32[] "
         "get-tuple-element(%p), index=1\n" +
         condition +
         "}\n\n%body {\n  %p = (s32[], s32[]) parameter(0)\n  %i = s32[] get-tuple-element(%p), index=0\n  %n = s32[] "
         "get-tuple-element(%p), index=1\n" +
         body + "  ROOT %t = (s32[], s32[]) tuple(%j, %n)\n}\n\nENTRY %main {\n  %first = s32[] constant(" + first +
         ")\n  %bound = s32[] constant(12)\n  %s = (s32[], s32[]) tuple(%first, %bound)\n  ROOT %w = (s32[], s32[]) "
         "while(%s), condition=%condition, body=%body" +
         attributes + "\n}\n";
}

struct Case {
  const char* name;
  std::string text;
  std::optional<std::int64_t> trips;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }
};
const std::string by_one = "  %one = s32[] constant(1)\n  %j = s32[] add(%i, %one)\n";
const std::string by_five = "  %five = s32[] constant(5)\n  %j = s32[] add(%five, %i)\n";
const std::string down = "  %one = s32[] constant(3)\n  %j = s32[] subtract(%i, %one)\n";
const std::string below_ten = "  %ten = s32[] constant(10)\n  ROOT %c = pred[] compare(%i, %ten), direction=LT\n";
const std::string compare_fused =
    "%fused {\n  %a = s32[] parameter(0)\n  %ten = s32[] constant(10)\n  ROOT %c = pred[] compare(%a, %ten), "
    "direction=LT\n}\n\n";
const std::string add_fused =
    "%plus {\n  %a = s32[] parameter(0)\n  %b = s32[] parameter(1)\n  ROOT %c = s32[] add(%a, %b)\n}\n\n";
const Case cases[] = {
    {"by one", loop("0", below_ten, by_one), 10},
    {"from four", loop("4", below_ten, by_one), 6},
    {"by five, rounded up", loop("0", below_ten, by_five), 2},
    {"never", loop("10", below_ten, by_one), 0},
    {"bound on the left",
     loop("0", "  %ten = s32[] constant(10)\n  ROOT %c = pred[] compare(%ten, %i), direction=GT\n", by_one), 10},
    {"at most", loop("0", "  %ten = s32[] constant(10)\n  ROOT %c = pred[] compare(%i, %ten), direction=LE\n", by_one),
     11},
    {"downwards", loop("9", "  %z = s32[] constant(0)\n  ROOT %c = pred[] compare(%i, %z), direction=GT\n", down), 3},
    {"downwards, at least",
     loop("9", "  %z = s32[] constant(0)\n  ROOT %c = pred[] compare(%i, %z), direction=GE\n", down), 4},
    {"until equal",
     loop("0", "  %ten = s32[] constant(10)\n  ROOT %c = pred[] compare(%i, %ten), direction=NE\n", by_five), 2},
    {"while equal",
     loop("10", "  %ten = s32[] constant(10)\n  ROOT %c = pred[] compare(%i, %ten), direction=EQ\n", by_five), 1},
    {"steps over what it waits for",
     loop("1", "  %ten = s32[] constant(10)\n  ROOT %c = pred[] compare(%i, %ten), direction=NE\n", by_five),
     std::nullopt},
    {"bound carried by the loop", loop("0", "  ROOT %c = pred[] compare(%i, %n), direction=LT\n", by_one), 12},
    {"compare inside a fusion",
     loop("0", "  ROOT %f = pred[] fusion(%i), kind=kLoop, calls=%fused\n", by_one, compare_fused), 10},
    {"step inside a fusion",
     loop("0", below_ten,
          "  %two = s32[] constant(2)\n  %k = s32[] copy(%two)\n  %j = s32[] fusion(%i, %k), kind=kLoop, calls=%plus\n",
          add_fused),
     5},
    {"printed by the compiler",
     loop("0", "  ROOT %c = pred[] constant(true)\n", by_one, "",
          ", backend_config={\"known_trip_count\":{\"n\":\"7\"}}"),
     7},
    {"downwards to above", loop("0", below_ten, down), std::nullopt},
    {"never the same", loop("0", below_ten, "  %j = s32[] multiply(%i, %i)\n"), std::nullopt},
    {"no comparison", loop("0", "  ROOT %c = pred[] constant(true)\n", by_one), std::nullopt},
    {"almost overflows",
     loop("-9223372036854775807",
          "  %z = s64[] constant(9223372036854775807)\n  ROOT %c = pred[] compare(%i, %z), direction=LT\n", by_one),
     std::nullopt},
};

BOOST_AUTO_TEST_SUITE(loops)

BOOST_DATA_TEST_CASE(trips_of_recorded_programs, data::make(rows), row) {
  BOOST_TEST((trips_of(read_program(recorded(row.file))) == row.trips));
}

BOOST_DATA_TEST_CASE(trips_from_bound_start_and_step, data::make(cases), one) {
  const Program program = read_hlo(one.text);
  const InstructionId loop_id = program.computations[static_cast<std::size_t>(program.entry)].root;
  BOOST_TEST((trip_count(program, loop_id) == one.trips));
}

BOOST_AUTO_TEST_CASE(runs_multiply_along_the_way) {
  const Program program = read_hlo(recorded("ring_d2c4.hlo.txt"));
  const auto runs = execution_counts(program);
  std::map<std::int64_t, int> bodies;
  for (const Instruction& i : program.instructions) {
    if (i.opcode == "while") ++bodies[runs[static_cast<std::size_t>(called(program, i, "body"))]];
    // Bodies of fusions and reducers never run by themselves.
    if (i.opcode == "fusion" || i.opcode == "reduce") BOOST_TEST(runs[static_cast<std::size_t>(i.called[0])] == 0);
  }
  BOOST_TEST((bodies == std::map<std::int64_t, int>{{2, 1}, {8, 1}}));
  BOOST_TEST(runs[static_cast<std::size_t>(program.entry)] == 1);
}

// 2^60 calls of a hundred lines: counted, not walked.
BOOST_AUTO_TEST_CASE(doubling_calls_saturate_and_end) {
  std::string text = "HloModule m\n\n%f0 {\n  ROOT %c = s32[] constant(1)\n}\n\n";
  for (int k = 1; k <= 100; ++k) {
    const std::string callee = "%f" + std::to_string(k - 1);
    text += "%f" + std::to_string(k) + " {\n  %a = s32[] call(), to_apply=" + callee +
            "\n  %b = s32[] call(), to_apply=" + callee + "\n  ROOT %c = s32[] add(%a, %b)\n}\n\n";
  }
  const Program program = read_hlo(text + "ENTRY %main {\n  ROOT %r = s32[] call(), to_apply=%f100\n}\n");
  BOOST_TEST(execution_counts(program)[0] == std::numeric_limits<std::int64_t>::max());
  BOOST_TEST(collectives(program).empty());
}

// A counter that is the sum of itself a hundred times over: given up, not expanded.
BOOST_AUTO_TEST_CASE(long_chains_are_given_up) {
  std::string body = "  %k0 = s32[] copy(%i)\n";
  for (int k = 1; k <= 60; ++k) {
    const std::string before = "%k" + std::to_string(k - 1);
    body += "  %k" + std::to_string(k) + " = s32[] add(" + before + ", " + before + ")\n";
  }
  const Program program = read_hlo(loop("0", below_ten, body + "  %j = s32[] copy(%k60)\n"));
  BOOST_TEST(!trip_count(program, program.computations[static_cast<std::size_t>(program.entry)].root).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::ir
