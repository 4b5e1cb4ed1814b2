#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "aoizora/errors.h"
#include "aoizora/ir/inspect.h"
#include "aoizora/ir/readers.h"
#include "aoizora/ir/test_texts.h"

namespace aoizora::ir {
namespace {

namespace data = boost::unit_test::data;

/// A module of one entry computation with these lines.
std::string module_of(const std::string& lines, const std::string& before = "") {
  return "HloModule m, num_partitions=8\n\n" + before + "ENTRY %main () -> f32[] {\n" + lines + "}\n";
}

BOOST_AUTO_TEST_SUITE(read_hlo_text)

BOOST_DATA_TEST_CASE(reads_recorded_programs_whole, data::make(recorded_hlo), file) {
  const Program program = read_program(recorded(file));
  BOOST_TEST((program.dialect == Dialect::hlo));
  BOOST_TEST(program.name == "jit_vdit_step");
  BOOST_TEST(program.is_scheduled);
  BOOST_REQUIRE(program.entry != none);

  // Each instruction belongs to the computation that holds it, reads what stands before it there, and exactly one is
  // the root.
  std::size_t held = 0;
  for (std::size_t id = 0; id < program.computations.size(); ++id) {
    const Computation& computation = program.computations[id];
    BOOST_TEST(computation.first == static_cast<InstructionId>(held));
    int roots = 0;
    for (const Instruction& i : program.of(static_cast<ComputationId>(id))) {
      const auto self = static_cast<InstructionId>(held++);
      BOOST_REQUIRE(i.computation == static_cast<ComputationId>(id));
      roots += i.is_root ? 1 : 0;
      BOOST_TEST((i.is_root == (computation.root == self)));
      for (const Operand& o : i.operands) BOOST_REQUIRE((o.instruction >= computation.first && o.instruction < self));
      for (const ArrayType& type : i.types) BOOST_REQUIRE((type.dtype != DType::unknown));
    }
    BOOST_TEST(roots == 1);
  }
  BOOST_TEST(held == program.instructions.size());
}

// The same program before and after code generation has the same instructions but for how async ones are printed.
BOOST_AUTO_TEST_CASE(short_and_long_async_forms_count_alike) {
  for (const std::string name : {"flash_d2c2t2", "flash_d2c8_4x4"}) {
    const auto passes = opcode_counts(read_hlo(recorded(name + ".hlo-passes-only.txt")));
    const auto code = opcode_counts(read_hlo(recorded(name + ".hlo.txt")));
    BOOST_TEST((passes == code));
  }
}

BOOST_AUTO_TEST_CASE(views_outlive_a_move) {
  Program first = read_hlo(module_of("  ROOT %a = f32[2,3]{1,0} constant({...})\n"));
  const Program moved = std::move(first);
  BOOST_TEST(moved.instructions[0].name == "a");
  BOOST_TEST(moved.instructions[0].types[0].elements() == 6);
}

BOOST_AUTO_TEST_CASE(types_are_flattened_with_layout_and_memory_space) {
  const Program program =
      read_hlo(module_of("  %a = (bf16[2,5120]{1,0:T(8,128)(2,1)S(1)}, /*index=1*/(u32[]{:S(2)}, token[]), "
                         "f32[<=5,3]{1,0}, s4[3]{0:T(8)E(4)}, ()) custom-call()\n"
                         "  ROOT %b = f8e4m3fn[0,7]{1,0:T(8,128)SC(1:2)} constant({})\n"));
  const auto types = program.instructions[0].types;
  BOOST_REQUIRE(types.size() == 5U);
  BOOST_TEST(types[0].bytes() == 2 * 5120 * 2);
  BOOST_TEST(types[0].layout == "1,0:T(8,128)(2,1)S(1)");
  BOOST_TEST(types[0].memory_space == 1);
  BOOST_TEST(types[1].memory_space == 2);
  BOOST_TEST(types[1].bytes() == 4);
  BOOST_TEST(types[2].bytes() == 0);
  BOOST_TEST(types[3].elements() == 15);
  BOOST_TEST(types[4].bytes() == 2);  // 12 bits
  BOOST_TEST(program.instructions[1].types[0].bytes() == 0);
  BOOST_TEST(program.instructions[1].types[0].memory_space == 0);
}

BOOST_AUTO_TEST_CASE(sizes_saturate) {
  const Program program =
      read_hlo(module_of("  ROOT %a = f32[9223372036854775807,9223372036854775807]{1,0} constant({...})\n"));
  BOOST_TEST(program.instructions[0].types[0].elements() == std::numeric_limits<std::int64_t>::max());
  BOOST_TEST(program.instructions[0].types[0].bytes() > 1'000'000'000'000'000'000);
}

BOOST_AUTO_TEST_CASE(operands_with_and_without_type_and_percent) {
  const Program program =
      read_hlo(module_of("  a.1 = f32[] constant(1)\n"
                         "  %b = (f32[], f32[2]{0}) custom-call(f32[] a.1, /*index=1*/%a.1, f32[]{:T(128)} %a.1), "
                         "custom_call_target=\"x\"\n"
                         "  ROOT %c = f32[] get-tuple-element((f32[], f32[2]{0}) %b), index=0\n"));
  BOOST_TEST(program.instructions[1].operands.size() == 3U);
  BOOST_TEST(program.instructions[2].operands[0].instruction == 1);
  BOOST_TEST(attribute(program.instructions[2], "index") == "0");
  BOOST_TEST(operand_text(program.instructions[0]) == "1");
}

// Pallas puts its metadata on several lines, one of which starts with "}}".
BOOST_AUTO_TEST_CASE(attributes_span_lines) {
  const Program program = read_hlo(module_of(
      "  %k = f32[] custom-call(), custom_call_target=\"tpu_custom_call\", frontend_attributes={kernel_metadata={\n"
      "\"xprof_metadata\":\"{\\\"block_q\\\": 512}\"\n"
      "}}, metadata={op_name=\"a } b = \\\" ENTRY {\" stack_frame_id=3}, "
      "backend_config={\"x\":[{\"calls\":\"%none\"}]}\n"
      "  ROOT %r = f32[] copy(%k)\n"));
  BOOST_REQUIRE(program.instructions.size() == 2U);
  const Instruction& kernel = program.instructions[0];
  BOOST_TEST(attribute(kernel, "custom_call_target") == "\"tpu_custom_call\"");
  BOOST_TEST(attribute(kernel, "metadata").starts_with("{op_name="));
  BOOST_TEST(attribute(kernel, "backend_config") == "{\"x\":[{\"calls\":\"%none\"}]}");
  BOOST_TEST(attribute(kernel, "xprof_metadata").empty());  // nested keys are not the instruction's
  BOOST_TEST(attribute(kernel, "calls").empty());
}

BOOST_AUTO_TEST_CASE(tables_threads_and_calls) {
  const Program program = read_hlo(
      "HloModule m, is_scheduled=true, entry_computation_layout={()->f32[]}\n\n"
      "FileNames\n1 \"a.py\"\n2 \"}\"\n\nFunctionNames\n1 \"<module>\"\n\nFileLocations\n1 {file_name_id=1 "
      "line=2}\n\nStackFrames\n1 "
      "{file_location_id=1 parent_frame_id=1}\n\n\n"
      "%late {\n  ROOT %x = f32[] constant(1)\n}, execution_thread=\"sparsecore\"\n\n"
      "ENTRY %main {\n"
      "  %p = s32[] constant(0)\n"
      "  %c = f32[] conditional(%p), branch_computations={%late, %after}, metadata={op_name=\"calls=%no\"}\n"
      "  ROOT %r = f32[] call(), to_apply=late\n}\n\n"
      "%after () -> f32[] { ROOT %x = f32[] constant(2) }\n");
  BOOST_TEST(program.is_scheduled);
  BOOST_TEST(program.computations.size() == 3U);
  BOOST_TEST(program.computations[static_cast<std::size_t>(program.entry)].name == "main");
  const auto called_by = program.instructions[2].called;
  BOOST_REQUIRE(called_by.size() == 2U);
  BOOST_TEST(called_by[0] == 0);
  BOOST_TEST(called_by[1] == 2);
  BOOST_TEST(called(program, program.instructions[3], "to_apply") == 0);
  BOOST_TEST(called(program, program.instructions[3], "body") == none);
}

BOOST_AUTO_TEST_CASE(parameters_in_order_of_their_numbers) {
  const Program program =
      read_hlo(module_of("  %b = f32[] parameter(1)\n  %a = f32[] parameter(0)\n  ROOT %r = f32[] add(%a, %b)\n"));
  BOOST_REQUIRE(program.computations[0].parameters.size() == 2U);
  BOOST_TEST(program.computations[0].parameters[0] == 1);
  BOOST_TEST(program.computations[0].parameters[1] == 0);
}

// A root may stand anywhere; without one the last instruction is it.
BOOST_AUTO_TEST_CASE(root_is_where_it_says) {
  BOOST_TEST(read_hlo(module_of("  ROOT %a = f32[] constant(1)\n  %b = f32[] copy(%a)\n")).computations[0].root == 0);
  BOOST_TEST(read_hlo(module_of("  %a = f32[] constant(1)\n  %b = f32[] copy(%a)\n")).computations[0].root == 1);
}

BOOST_AUTO_TEST_CASE(every_sharding_notation_is_an_attribute) {
  const std::string v1 = "{devices=[2,1,4]<=[8] last_tile_dim_replicate metadata={op_name=\"x\"}}";
  const std::string v3 = "{mesh['a'=2,'b'=4], [{'a'}, {'b':(2)2, ?}]}";
  const Program program =
      read_hlo(module_of("  %a = f32[8,8] constant({...}), sharding=" + v1 + ", frontend_attributes={_xla_x=\"1\"}\n" +
                         "  ROOT %b = f32[8,8] copy(%a), sharding=" + v3 + ", metadata={op_name=\"y\"}\n"));
  BOOST_TEST(attribute(program.instructions[0], "sharding") == v1);
  BOOST_TEST(attribute(program.instructions[1], "sharding") == v3);
  const std::string mesh = "mesh['a'=4,'b'=2], device_ids=([4,2]T(1,0)) {'a'}";
  const Program groups =
      read_hlo(module_of("  ROOT %a = f32[8] collective-broadcast(), replica_groups=" + mesh + ", channel_id=3\n"));
  BOOST_TEST(attribute(groups.instructions[0], "replica_groups") == mesh);
  BOOST_TEST(attribute(groups.instructions[0], "channel_id") == "3");
}

struct Bad {
  const char* lines;
  std::int64_t line;
  friend std::ostream& operator<<(std::ostream& out, const Bad& b) { return out << b.lines; }
};
const Bad bad[] = {
    {"  %a = f32[] constant(1)\n  %a = f32[] constant(2)\n", 5},
    {"  %a = f32[] copy(%b)\n", 4},
    {"  %a = f33[] constant(1)\n", 4},
    {"  %a = f32[-1] constant(1)\n", 4},
    {"  %a = f32[99999999999999999999] constant(1)\n", 4},
    {"  %a = (f32[], f32[] constant(1)\n", 4},
    {"  %a = f32[] call(), to_apply=%missing\n", 4},
    {"  %a = f32[] call(), to_apply=%main\n", 3},
    {"  %a = f32[] parameter(1)\n", 4},
    {"  %a = f32[] parameter(-1)\n", 4},
    {"  %a = f32[] parameter(999999999)\n", 4},
    {"  %a = f32[] parameter(0)\n  %b = f32[] parameter(0)\n", 5},
    {"  ROOT %a = f32[] constant(1)\n  ROOT %b = f32[] constant(1)\n", 5},
    {"", 3},
    {"  %a f32[] constant(1)\n", 4},
    {"  %a = f32[] constant 1\n", 4},
    {"  %a = f32[] copy(%a\n", 4},
    {"  %a = f32[] constant(1), metadata={op_name=\"x}\n", 4},
    {"  /* %a = f32[] constant(1)\n", 4},
};
BOOST_DATA_TEST_CASE(bad_text_is_refused_with_its_line, data::make(bad), one) {
  BOOST_CHECK_EXCEPTION(read_hlo(module_of(one.lines)), ParseError, [&](const ParseError& e) {
    BOOST_TEST(e.line == one.line, e.what());
    return e.column >= 1;
  });
}

BOOST_AUTO_TEST_CASE(a_module_needs_one_entry) {
  const std::string computation = " %c {\n  ROOT %a = f32[] constant(1)\n}\n";
  BOOST_CHECK_THROW(read_hlo("HloModule m\n\n" + computation), ParseError);
  BOOST_CHECK_THROW(read_hlo("HloModule m\n\nENTRY" + computation + "ENTRY %d {\n  ROOT %a = f32[] constant(1)\n}\n"),
                    ParseError);
  BOOST_CHECK_THROW(read_hlo("HloModule m\n\nENTRY" + computation + computation), ParseError);  // defined twice
  BOOST_CHECK_THROW(read_hlo(""), ParseError);
  BOOST_CHECK_THROW(read_program("hello"), ParseError);
  BOOST_CHECK_THROW(read_program(std::string("\0\0\0", 3)), ParseError);
}

BOOST_AUTO_TEST_CASE(computations_that_call_in_a_circle_are_refused) {
  BOOST_CHECK_THROW(
      read_hlo(module_of(
          "  ROOT %r = f32[] call(), to_apply=%a\n",
          "%a {\n  ROOT %r = f32[] call(), to_apply=%b\n}\n\n%b {\n  ROOT %r = f32[] call(), to_apply=%a\n}\n\n")),
      ParseError);
}

// A text that does not close its entry is cut: nothing shorter than the whole reads.
BOOST_AUTO_TEST_CASE(a_cut_text_is_never_accepted) {
  const std::string whole = recorded("flash_d2c4.hlo.txt");
  const std::size_t close = whole.rfind('}');
  for (std::size_t k = 0; k < 300; ++k) {
    const std::size_t cut = k < 100 ? close - k : close * (k - 99) / 202;
    BOOST_CHECK_THROW(read_hlo(whole.substr(0, cut)), ParseError);
  }
  BOOST_CHECK_NO_THROW(read_hlo(whole.substr(0, close + 1)));
}

// Depth costs a counter and not the stack, length costs one pass.
BOOST_AUTO_TEST_CASE(deep_and_long_texts_are_no_danger) {
  const std::string deep(1'000'000, '(');
  BOOST_CHECK_THROW(read_hlo(module_of("  %a = " + deep + "f32[] constant(1)\n")), ParseError);
  BOOST_CHECK_THROW(read_hlo(module_of("  %a = f32[] constant(1), x=" + deep + "\n")), ParseError);
  const std::string closed = std::string(1'000'000, '{') + std::string(1'000'000, '}');
  BOOST_TEST(read_hlo(module_of("  %a = f32[] constant(1), x=" + closed + "\n")).instructions.size() == 1U);
  const std::string text = "\"" + std::string(20'000'000, 'x') + "\"";
  const Program program = read_hlo(module_of("  %a = f32[] constant(1), x=" + text + ", y=2\n"));
  BOOST_TEST(attribute(program.instructions[0], "y") == "2");
  std::string slashes = module_of("  %a = f32[] constant(1), x=\"" + std::string(2'000'000, '\\') + "\"\n");
  BOOST_CHECK_NO_THROW(read_hlo(std::move(slashes)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::ir
