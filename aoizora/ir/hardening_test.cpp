// Texts from outside, damaged: each either reads or is refused with ParseError, and what reads can be looked through.
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <random>
#include <string>

#include "aoizora/errors.h"
#include "aoizora/ir/inspect.h"
#include "aoizora/ir/readers.h"
#include "aoizora/ir/test_texts.h"

namespace aoizora::ir {
namespace {

namespace data = boost::unit_test::data;

/// True if it reads. Any error but ParseError fails the test.
bool looked_through(std::string text) {
  try {
    const Program program = read_program(std::move(text));
    const std::string json = inspect_json(program);
    BOOST_TEST_REQUIRE(!json.empty());
    return true;
  } catch (const ParseError& e) {
    BOOST_TEST_REQUIRE(e.line >= 1);
    BOOST_TEST_REQUIRE(e.column >= 1);
    return false;
  }
}

const std::string structure = "(){}[]<>\"\\,=%:@#'\n -0123456789x";

void damage(std::string& text, std::mt19937& random) {
  if (text.empty()) return;
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::size_t at = below(text.size());
  // Cuts are rare: they end in the same refusal.
  switch (below(20)) {
    case 0:
      text.resize(at);
      break;
    case 1:
      text[at] = static_cast<char>(random() % 256);
      break;
    case 2:
    case 3:
      text.insert(below(text.size()), text.substr(at, below(200)));
      break;
    case 4:
    case 5:
    case 6:
    case 7:
      text.insert(at, 1, structure[below(structure.size())]);
      break;
    case 8:
    case 9:
    case 10:
    case 11:
      text[at] = structure[below(structure.size())];
      break;
    default:
      text.erase(at, 1 + below(8));
      break;
  }
}

BOOST_AUTO_TEST_SUITE(hardening)

BOOST_DATA_TEST_CASE(damaged_hlo_reads_or_is_refused, data::make(recorded_hlo), file) {
  const std::string whole = recorded(file);
  std::mt19937 random(20260101);
  int read = 0;
  for (int k = 0; k < 40; ++k) {
    std::string text = whole;
    for (int hit = 0; hit <= k % 3; ++hit) damage(text, random);
    read += looked_through(std::move(text)) ? 1 : 0;
  }
  BOOST_TEST(read < 40);
}

BOOST_DATA_TEST_CASE(damaged_stablehlo_reads_or_is_refused, data::make(recorded_mlir), file) {
  const std::string whole = recorded(file);
  std::mt19937 random(20260102);
  int read = 0;
  for (int k = 0; k < 100; ++k) {
    std::string text = whole;
    for (int hit = 0; hit <= k % 3; ++hit) damage(text, random);
    read += looked_through(std::move(text)) ? 1 : 0;
  }
  BOOST_TEST(read < 100);
}

// Small texts with every form this room knows, hit thousands of times.
const std::string small_hlo = R"(HloModule m, is_scheduled=true, num_partitions=8, replica_count=1

FileNames
1 "a.py"

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %z = f32[] add(f32[] %x, f32[] %y)
}

%condition (p: (s32[], f32[8,4])) -> pred[] {
  %p = (s32[], f32[8,4]{1,0:T(8,128)S(1)}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(4)
  ROOT %c = pred[] compare(%i, %n), direction=LT
}

%start (a: f32[8,4]) -> (f32[8,4], f32[32,4]) {
  %a = f32[8,4] parameter(0)
  %g = f32[32,4] all-gather(%a), channel_id=7, replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="3"}
  ROOT %s = (f32[8,4], f32[32,4]) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%done (a: f32[8,4]) -> f32[32,4] {
  %a = f32[8,4] parameter(0)
  %g = f32[32,4] all-gather(%a), channel_id=7, replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="3"}
  ROOT %s = f32[32,4] custom-call(%a, %g), custom_call_target="AsyncCollectiveDone"
}

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], f32[8,4]{1,0:T(8,128)S(1)}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %v = f32[8,4] get-tuple-element(%p), index=1
  %two = s32[] constant(2)
  %j = s32[] add(%i, %two)
  %as = (f32[8,4], f32[32,4]) fusion(%v), kind=kCustom, calls=%start
  %w = f32[8,4] get-tuple-element(%as), index=0
  %ad = f32[32,4] fusion(%w), kind=kCustom, calls=%done
  %r = (f32[8,4], f32[8,4]) all-reduce(%w, %v), replica_groups=[2,4]<=[2,2,2]T(0,2,1), channel_id=1, use_global_device_ids=true, to_apply=%add
  %q = f32[8,4] get-tuple-element(%r), index=1
  %s = (f32[8,4], f32[8,4], u32[], u32[]) collective-permute-start(%q), source_target_pairs={{0,1},{1,0}}, metadata={op_name="jit(f)/x" stack_frame_id=1}
  %d = f32[8,4] collective-permute-done(%s), frontend_attributes={kernel_metadata={
"k":"v"
}}
  ROOT %t = (s32[], f32[8,4]) tuple(%j, %d)
}

ENTRY %main (p0: f32[8,4]) -> f32[8,4] {
  %p0 = f32[8,4] parameter(0)
  %zero = s32[] constant(0)
  %init = (s32[], f32[8,4]) tuple(%zero, /*index=1*/%p0)
  %loop = (s32[], f32[8,4]) while(%init), condition=%condition, body=%body
  ROOT %out = f32[8,4] get-tuple-element(%loop), index=1
}
)";

const std::string small_mlir = R"(module @m attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["a"=2, "b"=4]>
  func.func public @main(%arg0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> (tensor<8x4xf32> {jax.result_info = "r"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%iterArg = %c, %iterArg_0 = %arg0) : tensor<i32>, tensor<8x4xf32>
    cond {
      %c_1 = stablehlo.constant dense<4> : tensor<i32>
      %2 = stablehlo.compare LT, %iterArg, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %c_1 = stablehlo.constant dense<1> : tensor<i32>
      %2 = stablehlo.add %iterArg, %c_1 : tensor<i32>
      %3 = func.call @f(%iterArg_0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %4 = sdy.all_gather [{"a", "b":(1)2}, {}] %3 out_sharding=<@mesh, [{}, {}]> : tensor<8x4xf32>
      stablehlo.return %2, %4 : tensor<i32>, tensor<8x4xf32>
    }
    %1 = sdy.manual_computation(%0#1) in_shardings=[<@mesh, [{"a"}, {}]>] out_shardings=[<@mesh, [{"a"}, {}]>] manual_axes={"a", "b"} (%arg1: tensor<4x4xf32>) {
      %2 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %3 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %3 : tensor<f32>
      }) : (tensor<4x4xf32>) -> tensor<4x4xf32>
      sdy.return %2 : tensor<4x4xf32>
    } : (tensor<8x4xf32>) -> tensor<8x4xf32>
    return %1 : tensor<8x4xf32>
  }
  func.func private @f(%arg0: tensor<8x4xf32>) -> tensor<8x4xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<8x4xf32>, tensor<f32>) -> tensor<8xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<8xf32>) -> tensor<8x4xf32>
    return %1 : tensor<8x4xf32>
  }
}
)";

BOOST_DATA_TEST_CASE(small_texts_hit_often, data::make({"hlo", "mlir"}), dialect) {
  const std::string& whole = std::string_view(dialect) == "hlo" ? small_hlo : small_mlir;
  BOOST_TEST_REQUIRE(looked_through(whole));
  std::mt19937 random(7);
  int read = 0;
  for (int k = 0; k < 6000; ++k) {
    std::string text = whole;
    for (int hit = 0; hit <= k % 4; ++hit) damage(text, random);
    read += looked_through(std::move(text)) ? 1 : 0;
  }
  BOOST_TEST(read > 0);
  BOOST_TEST(read < 6000);
}

// Every prefix is cut, and every prefix is refused but those that close the entry.
BOOST_AUTO_TEST_CASE(every_prefix_of_a_small_text) {
  const std::size_t close = small_hlo.rfind('}');
  for (std::size_t k = 0; k < small_hlo.size(); ++k) {
    BOOST_TEST_REQUIRE(looked_through(small_hlo.substr(0, k)) == (k > close));
  }
  const std::size_t module_close = small_mlir.rfind('}');
  for (std::size_t k = 0; k < small_mlir.size(); ++k) {
    BOOST_TEST_REQUIRE(looked_through(small_mlir.substr(0, k)) == (k > module_close));
  }
}

// A cut of the recorded programs, at many places: refused.
BOOST_DATA_TEST_CASE(cut_recordings, data::make(recorded_mlir), file) {
  const std::string whole = recorded(file);
  const std::size_t close = whole.rfind('}');
  for (std::size_t k = 1; k <= 100; ++k) BOOST_TEST_REQUIRE(!looked_through(whole.substr(0, close * k / 101)));
  BOOST_TEST(looked_through(whole));
}

BOOST_AUTO_TEST_CASE(deep_nests_of_regions_are_refused) {
  std::string deep;
  for (int k = 0; k < 100'000; ++k) deep += "\"x.y\"() ({\n";
  BOOST_CHECK_THROW(read_stablehlo("module {\n" + deep), ParseError);
  std::string types(100'000, '<');
  BOOST_CHECK_THROW(read_stablehlo("module {\n%0 = \"x.y\"() : () -> tensor<2x" + types), ParseError);
  std::string tuples;
  for (int k = 0; k < 100'000; ++k) tuples += "tuple<";
  BOOST_CHECK_THROW(read_stablehlo("module {\n%0 = \"x.y\"() : () -> " + tuples), ParseError);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::ir
