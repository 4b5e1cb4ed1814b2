#include "aoizora/ir/annotate.h"

#include <boost/test/unit_test.hpp>
#include <random>
#include <string>

#include "aoizora/errors.h"
#include "aoizora/ir/readers.h"

namespace aoizora::ir {
namespace {

candidates::Candidate two_by_two(candidates::AttentionKind attention = candidates::AttentionKind::gathered) {
  candidates::Candidate candidate;
  candidate.mesh = {{"data", 2}, {"fsdp", 1}, {"context", 2}, {"tensor", 2}};
  candidate.rules = {{"batch", {"data"}},
                     {"sequence", {"context"}},
                     {"heads", {"fsdp", "tensor"}},
                     {"embed", {}},
                     {"mlp", {"context", "tensor"}}};
  candidate.attention = attention;
  return candidate;
}

std::string annotated(const std::string& text) { return annotate(text, two_by_two()); }

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string site = R"(module @step {
  sdy.mesh @mesh = <["stand_in_batch"=1, "rest"=8]> {stablehlo.mesh = {axes = [{name = "rest", size = 8 : i64}]}}
  func.func public @main(%arg0: tensor<2x4x600x128xbf16>, %arg1: tensor<2x4x600x128xbf16>) -> tensor<2x4x600x128xbf16> {
    %0 = sdy.manual_computation(%arg0, %arg1, %arg1) in_shardings=[<@mesh, [{"stand_in_batch"}, {"stand_in_heads"}, {"stand_in_sequence"}, {}]>, <@mesh, [{"stand_in_batch"}, {"stand_in_heads"}, {"stand_in_sequence"}, {}]>, <@mesh, [{"stand_in_batch"}, {"stand_in_heads"}, {"stand_in_sequence"}, {}]>] out_shardings=[<@mesh, [{"stand_in_batch"}, {"stand_in_heads"}, {"stand_in_sequence"}, {}]>] manual_axes={"stand_in_batch", "rest"} (%arg2: tensor<2x4x600x128xbf16>, %arg3: tensor<2x4x600x128xbf16>, %arg4: tensor<2x4x600x128xbf16>) {
      %1 = stablehlo.custom_call @aoizora.attention.site(%arg2, %arg3, %arg4) {backend_config = ""} : (tensor<2x4x600x128xbf16>, tensor<2x4x600x128xbf16>, tensor<2x4x600x128xbf16>) -> tensor<2x4x600x128xbf16>
      sdy.return %1 : tensor<2x4x600x128xbf16>
    } : (tensor<2x4x600x128xbf16>, tensor<2x4x600x128xbf16>, tensor<2x4x600x128xbf16>) -> tensor<2x4x600x128xbf16>
    return %0 : tensor<2x4x600x128xbf16>
  }
}
)";

BOOST_AUTO_TEST_SUITE(annotate_suite)

BOOST_AUTO_TEST_CASE(stand_ins_become_the_candidates_axes_and_the_rest_stays) {
  BOOST_TEST(annotated(R"(%1 = sdy.sharding_constraint %0 <@mesh, [{"stand_in_batch"}, {}, {"other"}]> : x loc(#l))") ==
             R"(%1 = sdy.sharding_constraint %0 <@mesh, [{"data"}, {}, {"other"}]> : x loc(#l))");
  // fsdp is of size 1 and divides nothing; text has no rule.
  BOOST_TEST(annotated(R"(<@mesh, [{"stand_in_heads"}, {"stand_in_text"}]>)") == R"(<@mesh, [{"tensor"}, {}]>)");
  BOOST_TEST(annotated("no annotation at all\n") == "no annotation at all\n");
  BOOST_TEST(annotated("").empty());
}

BOOST_AUTO_TEST_CASE(the_mesh_is_the_candidates_and_its_place_stays) {
  BOOST_TEST(
      annotated("  sdy.mesh @mesh = <[\"rest\"=8]> {stablehlo.mesh = {axes = []}} loc(#loc)\n") ==
      "  sdy.mesh @mesh = <[\"data\"=2, \"fsdp\"=1, \"context\"=2, \"tensor\"=2]> {stablehlo.mesh = {axes = [{name = "
      "\"data\", size = 2 : i64}, {name = \"fsdp\", size = 1 : i64}, {name = \"context\", size = 2 : i64}, {name = "
      "\"tensor\", size = 2 : i64}]}} loc(#loc)\n");
  BOOST_TEST(annotated("manual_axes={\"stand_in_mlp\", \"rest\"} (") ==
             "manual_axes={\"data\", \"fsdp\", \"context\", \"tensor\"} (");
}

BOOST_AUTO_TEST_CASE(an_activation_that_names_an_axis_twice_leaves_it_to_the_sequence_then_the_leftmost) {
  BOOST_TEST(annotated(R"(<@mesh, [{"stand_in_mlp"}, {"stand_in_sequence"}]>)") ==
             R"(<@mesh, [{"tensor"}, {"context"}]>)");
  BOOST_TEST(annotated(R"(<@mesh, [{"stand_in_mlp"}, {"stand_in_heads"}]>)") ==
             R"(<@mesh, [{"context", "tensor"}, {}]>)");
  // An axis that the trace names itself is taken.
  BOOST_TEST(annotated(R"(<@mesh, [{"stand_in_mlp"}, {"tensor"}]>)") == R"(<@mesh, [{"context"}, {"tensor"}]>)");
}

BOOST_AUTO_TEST_CASE(which_axes_come_first_can_be_said) {
  const std::string activation = R"(<@mesh, [{"stand_in_heads"}, {"stand_in_mlp"}]>)";
  BOOST_TEST(annotated(activation) == R"(<@mesh, [{"tensor"}, {"context"}]>)");
  BOOST_TEST(annotate(activation, two_by_two(), {false, {"mlp"}}) == R"(<@mesh, [{}, {"context", "tensor"}]>)");
}

BOOST_AUTO_TEST_CASE(an_argument_that_names_an_axis_twice_is_refused) {
  const std::string argument = "{sdy.sharding = #sdy.sharding<@mesh, [{\"stand_in_mlp\"}, {\"stand_in_heads\"}]>}";
  BOOST_CHECK_THROW(annotated(argument), InvalidRequest);
  BOOST_TEST(annotated("#sdy.sharding<@mesh, [{}, {\"stand_in_mlp\"}]>") ==
             "#sdy.sharding<@mesh, [{}, {\"context\", \"tensor\"}]>");
}

BOOST_AUTO_TEST_CASE(gathered_attention_holds_a_part_of_the_queries_and_all_keys_padded_to_the_blocks) {
  const std::string text = annotated(site);
  BOOST_TEST(holds(text,
                   "in_shardings=[<@mesh, [{\"data\"}, {\"tensor\"}, {\"context\"}, {}]>, <@mesh, [{\"data\"}, "
                   "{\"tensor\"}, {}, {}]>, <@mesh, [{\"data\"}, {\"tensor\"}, {}, {}]>]"));
  BOOST_TEST(holds(text, "%arg2: tensor<1x2x300x128xbf16>, %arg3: tensor<1x2x600x128xbf16>"));
  // 300 queries are one block of whole lanes; 600 keys two blocks of 512.
  BOOST_TEST(holds(text, "high = [0, 0, 84, 0]"));
  BOOST_TEST(holds(text, "high = [0, 0, 424, 0]"));
  BOOST_TEST(holds(text, "@aoizora.attention("));
  BOOST_TEST(!holds(text, std::string(attention_site)));
  BOOST_TEST(holds(text, "[0:1, 0:2, 0:300, 0:128]"));
  BOOST_TEST(!holds(text, "all_to_all"));
  BOOST_TEST(read_program(text).computations.size() >= 2U);
}

BOOST_AUTO_TEST_CASE(ulysses_exchanges_heads_for_sequence_between_the_devices_of_the_sequence) {
  const std::string text = annotate(site, two_by_two(candidates::AttentionKind::ulysses));
  BOOST_TEST(holds(text, "(tensor<1x2x300x128xbf16>) -> tensor<1x1x600x128xbf16>"));
  BOOST_TEST(holds(text, "(tensor<1x1x600x128xbf16>) -> tensor<1x2x300x128xbf16>"));
  // Ranks count data, context, tensor: those of one sequence are 2 apart.
  BOOST_TEST(holds(text, "replica_groups = dense<[[0, 2], [1, 3], [4, 6], [5, 7]]> : tensor<4x2xi64>"));
  candidates::Candidate three = two_by_two(candidates::AttentionKind::ulysses);
  three.mesh[2].size = 3;
  BOOST_CHECK_THROW(annotate(site, three), InvalidRequest);
}

BOOST_AUTO_TEST_CASE(values_of_large_constants_are_left_out_and_equal_ones_stay_equal) {
  const std::string text = R"(dense<"0xAB"> : t, dense<"0xCD"> : t, dense<"0xAB"> : t, dense<1.0> : t)";
  BOOST_TEST(annotated(text) == text);
  BOOST_TEST(annotate(text, two_by_two(), {.elide_constants = true}) ==
             "dense_resource<constant_0> : t, dense_resource<constant_1> : t, dense_resource<constant_0> : t, "
             "dense<1.0> : t");
}

BOOST_AUTO_TEST_CASE(a_damaged_trace_is_annotated_or_refused) {
  std::mt19937 random(20260101);
  const std::string structure = "(){}[]<>\"=,:@%x09 \n";
  for (int k = 0; k < 3000; ++k) {
    std::string text = site;
    for (int hit = 0; hit <= k % 4; ++hit) {
      const std::size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 40);
      } else {
        text[at] = structure[random() % structure.size()];
      }
    }
    const auto kind = k % 2 == 0 ? candidates::AttentionKind::gathered : candidates::AttentionKind::ulysses;
    try {
      BOOST_TEST_REQUIRE(annotate(text, two_by_two(kind), {.elide_constants = true}).size() < 10 * site.size());
    } catch (const ParseError& e) {
      BOOST_TEST_REQUIRE(e.line >= 1);
    } catch (const InvalidRequest&) {
    }
  }
}

BOOST_AUTO_TEST_CASE(a_mesh_beyond_all_slices_is_refused) {
  candidates::Candidate candidate = two_by_two();
  candidate.mesh[0].size = std::int64_t{1} << 40;
  BOOST_CHECK_THROW(annotate(site, candidate), InvalidRequest);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::ir
