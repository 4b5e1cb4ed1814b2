#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <string>

#include "aoizora/errors.h"
#include "aoizora/ir/collectives.h"
#include "aoizora/ir/inspect.h"
#include "aoizora/ir/readers.h"
#include "aoizora/ir/test_texts.h"

namespace aoizora::ir {
namespace {

namespace data = boost::unit_test::data;

// One program in both forms, as MLIR prints them.
const std::string generic = R"("builtin.module"() <{sym_name = "jit_f"}> ({
  "sdy.mesh"() <{mesh = #sdy.mesh<["a"=2, "b"=4]>, sym_name = "mesh"}> : () -> ()
  "func.func"() <{arg_attrs = [{sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}, {}], function_type = (tensor<8x4xf32>, tensor<i32>) -> tensor<8x4xf32>, sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%arg0: tensor<8x4xf32>, %arg1: tensor<i32>):
    %0 = "stablehlo.constant"() <{value = dense<0> : tensor<i32>}> : () -> tensor<i32>
    %1:2 = "stablehlo.while"(%0, %arg0) ({
    ^bb0(%arg4: tensor<i32>, %arg5: tensor<8x4xf32>):
      %8 = "stablehlo.constant"() <{value = dense<7> : tensor<i32>}> : () -> tensor<i32>
      %9 = "stablehlo.compare"(%arg4, %8) <{compare_type = #stablehlo<comparison_type SIGNED>, comparison_direction = #stablehlo<comparison_direction LT>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
      "stablehlo.return"(%9) : (tensor<i1>) -> ()
    }, {
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<8x4xf32>):
      %4 = "stablehlo.constant"() <{value = dense<2> : tensor<i32>}> : () -> tensor<i32>
      %5 = "stablehlo.add"(%arg2, %4) : (tensor<i32>, tensor<i32>) -> tensor<i32>
      %6 = "func.call"(%arg3) <{callee = @f}> {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %7 = "sdy.all_gather"(%6) <{gathering_axes = #sdy<list_of_axis_ref_lists[{"a", "b":(1)2}, {}]>, out_sharding = #sdy.sharding<@mesh, [{}, {}]>}> : (tensor<8x4xf32>) -> tensor<8x4xf32>
      "stablehlo.return"(%5, %7) : (tensor<i32>, tensor<8x4xf32>) -> ()
    }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"a"}, {}]>]>} : (tensor<i32>, tensor<8x4xf32>) -> (tensor<i32>, tensor<8x4xf32>)
    %2 = "sdy.manual_computation"(%1#1) <{in_shardings = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>, manual_axes = #sdy<manual_axes{"a", "b"}>, out_shardings = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>}> ({
    ^bb0(%arg6: tensor<4x4xf32>):
      %3 = "stablehlo.all_reduce"(%arg6) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg7: tensor<f32>, %arg8: tensor<f32>):
        %10 = "stablehlo.add"(%arg7, %arg8) : (tensor<f32>, tensor<f32>) -> tensor<f32>
        "stablehlo.return"(%10) : (tensor<f32>) -> ()
      }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
      "sdy.return"(%3) : (tensor<4x4xf32>) -> ()
    }) : (tensor<8x4xf32>) -> tensor<8x4xf32>
    "func.return"(%2) : (tensor<8x4xf32>) -> ()
  }) : () -> ()
  "func.func"() <{function_type = (tensor<8x4xf32>) -> tensor<8x4xf32>, sym_name = "f", sym_visibility = "private"}> ({
  ^bb0(%arg0: tensor<8x4xf32>):
    "func.return"(%arg0) : (tensor<8x4xf32>) -> ()
  }) : () -> ()
}) {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} : () -> ()
)";

const std::string custom = R"(module @jit_f attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["a"=2, "b"=4]>
  func.func public @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}, %arg1: tensor<i32>) -> tensor<8x4xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%iterArg = %c, %iterArg_0 = %arg0) : tensor<i32>, tensor<8x4xf32> attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"a"}, {}]>]>}
    cond {
      %c_1 = stablehlo.constant dense<7> : tensor<i32>
      %2 = stablehlo.compare LT, %iterArg, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %c_1 = stablehlo.constant dense<2> : tensor<i32>
      %2 = stablehlo.add %iterArg, %c_1 : tensor<i32>
      %3 = func.call @f(%iterArg_0) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %4 = sdy.all_gather [{"a", "b":(1)2}, {}] %3 out_sharding=<@mesh, [{}, {}]> : tensor<8x4xf32>
      stablehlo.return %2, %4 : tensor<i32>, tensor<8x4xf32>
    }
    %1 = sdy.manual_computation(%0#1) in_shardings=[<@mesh, [{"a"}, {}]>] out_shardings=[<@mesh, [{"a"}, {}]>] manual_axes={"a", "b"} (%arg2: tensor<4x4xf32>) {
      %2 = "stablehlo.all_reduce"(%arg2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
        %3 = stablehlo.add %arg3, %arg4 : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
      sdy.return %2 : tensor<4x4xf32>
    } : (tensor<8x4xf32>) -> tensor<8x4xf32>
    return %1 : tensor<8x4xf32>
  }
  func.func private @f(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
    return %arg0 : tensor<8x4xf32>
  }
}
)";

const Instruction& only(const Program& program, std::string_view opcode) {
  for (const Instruction& i : program.instructions) {
    if (i.opcode == opcode) return i;
  }
  throw std::runtime_error("no " + std::string(opcode));
}

BOOST_AUTO_TEST_SUITE(read_stablehlo_text)

BOOST_DATA_TEST_CASE(reads_recorded_programs_whole, data::make(recorded_mlir), file) {
  const Program program = read_program(recorded(file));
  BOOST_TEST((program.dialect == Dialect::stablehlo));
  BOOST_TEST(program.name == "jit_vdit_step");
  BOOST_TEST(device_count(program) == (std::string_view(file).find("4x4") != std::string_view::npos ? 16 : 8));
  const Computation& entry = program.computations[static_cast<std::size_t>(program.entry)];
  BOOST_TEST(entry.name == "main");
  BOOST_TEST(entry.parameters.size() == 46U);
  std::size_t held = 0;
  for (std::size_t id = 0; id < program.computations.size(); ++id) {
    BOOST_TEST(program.computations[id].first == static_cast<InstructionId>(held));
    for (const Instruction& i : program.of(static_cast<ComputationId>(id))) {
      ++held;
      BOOST_REQUIRE(i.computation == static_cast<ComputationId>(id));
      for (const Operand& o : i.operands) {
        const Instruction& source = program.instructions[static_cast<std::size_t>(o.instruction)];
        BOOST_REQUIRE(static_cast<std::size_t>(o.result) < source.types.size());
      }
      for (const ArrayType& type : i.types) BOOST_REQUIRE((type.dtype != DType::unknown));
      for (const ComputationId region : i.called) {
        const InstructionId caller = program.computations[static_cast<std::size_t>(region)].caller;
        BOOST_TEST((caller == none || &program.instructions[static_cast<std::size_t>(caller)] == &i));
      }
    }
  }
  BOOST_TEST(held == program.instructions.size());
}

// Element-wise operations have the types of their operands: operands were not mixed up.
BOOST_DATA_TEST_CASE(elementwise_types_agree, data::make(recorded_mlir), file) {
  const Program program = read_program(recorded(file));
  int checked = 0;
  for (const Instruction& i : program.instructions) {
    if (i.opcode != "stablehlo.add" && i.opcode != "stablehlo.multiply" && i.opcode != "stablehlo.subtract") continue;
    BOOST_REQUIRE(i.operands.size() == 2U);
    for (const Operand& o : i.operands) {
      const ArrayType& type =
          program.instructions[static_cast<std::size_t>(o.instruction)].types[static_cast<std::size_t>(o.result)];
      BOOST_REQUIRE(std::equal(type.dims.begin(), type.dims.end(), i.types[0].dims.begin(), i.types[0].dims.end()));
      BOOST_REQUIRE((type.dtype == i.types[0].dtype));
      ++checked;
    }
  }
  BOOST_TEST(checked > 100);
}

BOOST_AUTO_TEST_CASE(both_forms_read_alike) {
  const Program a = read_program(generic);
  const Program b = read_program(custom);
  BOOST_TEST((opcode_counts(a) == opcode_counts(b)));
  BOOST_TEST(a.name == b.name);
  BOOST_TEST(device_count(a) == 8);
  BOOST_TEST(device_count(b) == 8);
  BOOST_REQUIRE(a.computations.size() == b.computations.size());
  BOOST_REQUIRE(a.instructions.size() == b.instructions.size());
  for (std::size_t id = 0; id < a.instructions.size(); ++id) {
    const Instruction& x = a.instructions[id];
    const Instruction& y = b.instructions[id];
    BOOST_TEST_CONTEXT(x.opcode << " " << x.name) {
      BOOST_TEST(x.opcode == y.opcode);
      BOOST_TEST(x.computation == y.computation);
      BOOST_TEST(x.is_root == y.is_root);
      BOOST_REQUIRE(x.types.size() == y.types.size());
      for (std::size_t k = 0; k < x.types.size(); ++k) BOOST_TEST(x.types[k].bytes() == y.types[k].bytes());
      BOOST_REQUIRE(x.operands.size() == y.operands.size());
      for (std::size_t k = 0; k < x.operands.size(); ++k) {
        BOOST_TEST(x.operands[k].instruction == y.operands[k].instruction);
        BOOST_TEST(x.operands[k].result == y.operands[k].result);
      }
      BOOST_TEST((std::vector<ComputationId>(x.called.begin(), x.called.end()) ==
                  std::vector<ComputationId>(y.called.begin(), y.called.end())));
    }
  }
}

BOOST_DATA_TEST_CASE(attributes_by_key, data::make({"generic", "custom"}), form) {
  const Program program = read_program(std::string_view(form) == "generic" ? generic : custom);
  BOOST_TEST(attribute(program.instructions[static_cast<std::size_t>(
                           program.computations[static_cast<std::size_t>(program.entry)].parameters[0])],
                       "sdy.sharding") == "#sdy.sharding<@mesh, [{\"a\"}, {}]>");
  BOOST_TEST(attribute(program.instructions[static_cast<std::size_t>(
                           program.computations[static_cast<std::size_t>(program.entry)].parameters[1])],
                       "sdy.sharding")
                 .empty());
  BOOST_TEST(attribute(only(program, "func.call"), "sdy.sharding") ==
             "#sdy.sharding_per_value<[<@mesh, [{\"a\"}, {}]>]>");
  BOOST_TEST(attribute(only(program, "stablehlo.all_reduce"), "replica_groups").starts_with("dense<[[0, 1], [2, 3]"));
  BOOST_TEST(attribute(only(program, "sdy.manual_computation"), "manual_axes").find("{\"a\", \"b\"}") !=
             std::string_view::npos);
  BOOST_TEST(attribute(only(program, "sdy.manual_computation"), "in_shardings").find("[<@mesh, [{\"a\"}, {}]>]") !=
             std::string_view::npos);
  BOOST_TEST(only(program, "sdy.mesh").name == "mesh");
  BOOST_TEST(only(program, "sdy.mesh").attributes.find("[\"a\"=2, \"b\"=4]") != std::string_view::npos);
}

BOOST_DATA_TEST_CASE(collectives_loops_and_runs, data::make({"generic", "custom"}), form) {
  const Program program = read_program(std::string_view(form) == "generic" ? generic : custom);
  const auto all = collectives(program);
  BOOST_REQUIRE(all.size() == 2U);
  const auto runs = execution_counts(program);
  for (const Collective& c : all) {
    if (c.kind == topology::CollectiveKind::all_reduce) {
      BOOST_TEST((c.groups == ReplicaGroups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
      BOOST_TEST(c.operand_bytes == 64);
      BOOST_TEST(runs[static_cast<std::size_t>(c.computation)] == 1);
    } else {
      BOOST_TEST((c.kind == topology::CollectiveKind::all_gather));
      // Axis a and the outer half of b.
      BOOST_TEST((c.groups == ReplicaGroups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
      BOOST_TEST(runs[static_cast<std::size_t>(c.computation)] == 4);  // 0, 2, 4, 6
    }
  }
}

// The mesh an operation names counts, and where its devices stand in it.
BOOST_AUTO_TEST_CASE(meshes_by_name_and_with_devices_in_any_order) {
  const Program program = read_stablehlo(
      "module attributes {mhlo.num_partitions = 4 : i32} {\n"
      "  sdy.mesh @other = <[\"x\"=4]>\n"
      "  sdy.mesh @mesh = <[\"x\"=2, \"y\"=2], device_ids=[0, 2, 1, 3]>\n"
      "  func.func @main(%arg0: tensor<8xf32>) -> tensor<8xf32> {\n"
      "    %0 = sdy.all_gather [{\"y\"}] %arg0 out_sharding=<@mesh, [{}]> : tensor<8xf32>\n"
      "    %1 = sdy.all_gather [{\"x\"}] %0 out_sharding=<@other, [{}]> : tensor<8xf32>\n"
      "    return %1 : tensor<8xf32>\n  }\n}\n");
  const auto all = collectives(program);
  BOOST_REQUIRE(all.size() == 2U);
  BOOST_TEST((all[0].groups == ReplicaGroups{{0, 2}, {1, 3}}));
  BOOST_TEST((all[1].groups == ReplicaGroups{{0, 1, 2, 3}}));
}

BOOST_AUTO_TEST_CASE(types_of_all_sorts) {
  const Program program = read_stablehlo(
      "module {\n  func.func @main() {\n"
      "    %0:3 = \"x.y\"() : () -> (tuple<tensor<2xi1>, tuple<tensor<3xcomplex<f32>>>>, !stablehlo.token)\n"
      "    %1 = \"x.y\"() : () -> tensor<?x4xbf16, #stablehlo.bounds<8, ?>>\n"
      "    %2 = \"x.y\"() : () -> tensor<2x!quant.uniform<i8:f32, 1.0>>\n"
      "    %3 = \"x.y\"(%0#1) : (tensor<3xcomplex<f32>>) -> tensor<f8E4M3FN> loc(\"a)\")\n"
      "    return loc(#loc1)\n  }\n}\n#loc1 = loc(\"x\"(\"y.py\":1:2))\n");
  const auto at = [&](std::string_view name) -> const Instruction& {
    for (const Instruction& i : program.instructions) {
      if (i.name == name) return i;
    }
    throw std::runtime_error("missing");
  };
  BOOST_REQUIRE(at("0").types.size() == 3U);
  BOOST_TEST(at("0").types[0].bytes() == 2);
  BOOST_TEST(at("0").types[1].bytes() == 24);
  BOOST_TEST((at("0").types[2].dtype == DType::token));
  BOOST_TEST(at("1").types[0].bytes() == 64);
  BOOST_TEST((at("2").types[0].dtype == DType::unknown));
  BOOST_TEST(at("3").operands[0].result == 1);
  BOOST_TEST(at("3").types[0].bytes() == 1);
}

// Sibling regions may use one name again; nothing sees into a region that is closed.
BOOST_AUTO_TEST_CASE(names_end_with_their_region) {
  const std::string head = "module {\n  func.func @main(%arg0: tensor<i32>) -> tensor<i32> {\n";
  const std::string two =
      "    \"x.y\"() ({\n      %1 = stablehlo.add %arg0, %arg0 : tensor<i32>\n    }, {\n      %1 = stablehlo.add "
      "%arg0, %arg0 : tensor<i32>\n    }) : () -> ()\n";
  BOOST_CHECK_NO_THROW(read_stablehlo(head + two + "    return %arg0 : tensor<i32>\n  }\n}\n"));
  BOOST_CHECK_THROW(read_stablehlo(head + two + "    return %1 : tensor<i32>\n  }\n}\n"), ParseError);
}

BOOST_DATA_TEST_CASE(
    bad_text_is_refused,
    data::make({"%0 = stablehlo.add %1, %1 : tensor<i32>", "%0:0 = stablehlo.constant dense<1> : tensor<i32>",
                "%0 = stablehlo.constant dense<1> : tensor<2y3xi32>", "%0 = stablehlo.constant dense<1> : tensor<i32",
                "%0 = stablehlo.constant dense<1>", "%0 = func.call @missing() : () -> tensor<i32>",
                "%0 = func.call @main() : () -> tensor<i32>", "%0:2 = stablehlo.constant dense<1> : tensor<i32>",
                "%0 = stablehlo.constant dense<1> : tensor<i32>\n%0 = stablehlo.constant dense<1> : tensor<i32>",
                "%0 = stablehlo.constant dense<1> : tensor<i32>\n%1 = stablehlo.negate %0#1 : tensor<i32>",
                "%0 = \"x.y\"( : () -> tensor<i32>", "%0 = \"x.y\"() ({ : () -> tensor<i32>",
                "%0 = \"x.y : () -> tensor<i32>"}),
    line) {
  BOOST_CHECK_THROW(
      read_stablehlo("module {\n  func.func @main() {\n    " + std::string(line) + "\n    return\n  }\n}\n"),
      ParseError);
}

BOOST_AUTO_TEST_CASE(a_module_needs_functions) {
  BOOST_CHECK_THROW(read_stablehlo("module {\n}\n"), ParseError);
  BOOST_CHECK_THROW(read_stablehlo(""), ParseError);
  BOOST_CHECK_THROW(
      read_stablehlo("module {\n  func.func @f() {\n    return\n  }\n  func.func @f() {\n    return\n  }\n}\n"),
      ParseError);
  BOOST_CHECK_THROW(read_stablehlo("module {\n  func.func @f() {\n    return\n  }\n}\nx\n"), ParseError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::ir
