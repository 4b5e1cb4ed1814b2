#include "aoizora/prediction/sharding.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <string>

#include "aoizora/errors.h"
#include "aoizora/prediction/layout.h"

namespace aoizora::prediction {
namespace {

namespace data = boost::unit_test::data;
using topology::CollectiveKind;

BOOST_AUTO_TEST_SUITE(sharding)

BOOST_AUTO_TEST_CASE(ReadSharding_EveryFormShardyPrints) {
  const TensorSharding sharding = read_sharding(
      R"(#sdy.sharding<@mesh, [{"data"}, {"x":(1)2, "y", ?}p3, {?}, {}], replicated={"z"}, unreduced={"u"}>)");
  BOOST_TEST(sharding.mesh == "mesh");
  BOOST_TEST_REQUIRE(sharding.dims.size() == 4U);
  BOOST_TEST((sharding.dims[0] == DimSharding{{{"data", 1, 0}}, false, std::nullopt}));
  BOOST_TEST((sharding.dims[1] == DimSharding{{{"x", 1, 2}, {"y", 1, 0}}, true, 3}));
  BOOST_TEST((sharding.dims[2] == DimSharding{{}, true, std::nullopt}));
  BOOST_TEST((sharding.replicated == std::vector<AxisRef>{{"z", 1, 0}}));
  BOOST_TEST((sharding.unreduced == std::vector<AxisRef>{{"u", 1, 0}}));
}

BOOST_AUTO_TEST_CASE(ReadSharding_InlinedMeshAndScalars) {
  const TensorSharding sharding = read_sharding(R"(<mesh<["a"=2, "b"=4]>, []>)");
  BOOST_TEST(sharding.inlined_mesh);
  BOOST_TEST(sharding.dims.empty());
  BOOST_TEST((read_mesh("<[\"a\"=2, \"b\"=4]>") == std::vector<NamedAxis>{{"a", 2}, {"b", 4}}));
  BOOST_TEST(read_mesh("#sdy.mesh<[], device_ids=[3]>").empty());
}

BOOST_AUTO_TEST_CASE(ReadShardingPerValue_OneAResult) {
  const auto shardings = read_sharding_per_value(R"(#sdy.sharding_per_value<[<@mesh, [{"a"}]>, <@mesh, [{}, {}]>]>)");
  BOOST_TEST_REQUIRE(shardings.size() == 2U);
  BOOST_TEST(shardings[1].dims.size() == 2U);
  BOOST_TEST((read_manual_axes(R"(#sdy<manual_axes{"data", "context"}>)") ==
              std::vector<std::string_view>{"data", "context"}));
}

BOOST_DATA_TEST_CASE(ReadSharding_ACutOrWrongTextIsRefused,
                     data::make({"", "#sdy.sharding<", "#sdy.sharding<@mesh", "#sdy.sharding<@mesh, [{\"a}]>",
                                 "#sdy.sharding<@mesh, [{\"a\"]>", "#sdy.sharding<@mesh, [{}]> x",
                                 "#sdy.sharding<@mesh, [{\"a\":(0)2}]>", "#sdy.sharding<@mesh, [{}], other={}>",
                                 "#sdy.sharding<@mesh, [{\"a\":(99999999999999999999)2}]>"}),
                     text) {
  BOOST_CHECK_THROW(read_sharding(text), ParseError);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(layouts)

const std::vector<NamedAxis> mesh{{"a", 2}, {"b", 4}, {"one", 1}};

Layout layout_of(const AxisTable& table, const std::string& dims, std::size_t rank) {
  return table.layout(read_sharding("<@mesh, [" + dims + "]>"), rank);
}

BOOST_AUTO_TEST_CASE(AxisTable_SubAxesCutAnAxis) {
  const AxisTable table(mesh, R"({"b":(1)2})");
  BOOST_TEST(table.size(table.set("b")) == 4);
  const Layout whole = layout_of(table, R"({"b"})", 1);
  const Layout parts = layout_of(table, R"({"b":(1)2, "b":(2)2})", 1);
  BOOST_TEST((whole == parts));
  BOOST_TEST(table.size(layout_of(table, R"({"b":(2)2})", 1)[0]) == 2);
  BOOST_TEST(layout_of(table, R"({"one"})", 1)[0].empty());
}

BOOST_AUTO_TEST_CASE(AxisTable_UnknownAxesRanksAndUnevenCutsAreRefused) {
  const AxisTable table(mesh, "");
  BOOST_CHECK_THROW(layout_of(table, R"({"c"})", 1), ParseError);
  BOOST_CHECK_THROW(layout_of(table, R"({"a"})", 2), ParseError);
  BOOST_CHECK_THROW(layout_of(table, R"({"a"}, {"a"})", 2), ParseError);
  BOOST_CHECK_THROW(AxisTable(std::vector<NamedAxis>{{"c", 6}}, R"({"c":(1)2}, {"c":(1)3})"), ParseError);
  BOOST_CHECK_THROW(AxisTable(std::vector<NamedAxis>{{"c", 6}, {"c", 2}}, ""), ParseError);
}

struct Move {
  const char* from;
  const char* to;
  std::vector<CollectiveKind> steps;
};

std::ostream& operator<<(std::ostream& out, const Move& move) { return out << move.from << " to " << move.to; }

const Move moves[] = {
    {R"({"a"}, {})", R"({"a"}, {})", {}},
    {R"({}, {})", R"({"a"}, {"b"})", {}},
    {R"({"a"}, {})", R"({"a"}, {"b"})", {}},
    {R"({"a"}, {})", R"({}, {})", {CollectiveKind::all_gather}},
    {R"({"a"}, {"b"})", R"({}, {})", {CollectiveKind::all_gather}},
    {R"({"a"}, {})", R"({}, {"a"})", {CollectiveKind::all_to_all}},
    {R"({"a", "b"}, {})", R"({"b", "a"}, {})", {CollectiveKind::permute}},
    {R"({"a", "b"}, {})", R"({"b"}, {})", {CollectiveKind::permute, CollectiveKind::all_gather}},
};

BOOST_DATA_TEST_CASE(ReshardSteps_CutsAreFreeTheRestIsTheFewestCollectives, data::make(moves), move) {
  const AxisTable table(mesh, "");
  const Layout to = layout_of(table, move.to, 2);
  const auto steps = reshard_steps(table, layout_of(table, move.from, 2), to);
  BOOST_TEST_REQUIRE(steps.size() == move.steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) BOOST_TEST((steps[i].kind == move.steps[i]));
  // What is left to do after the last step is cutting only.
  if (!steps.empty()) BOOST_TEST(reshard_steps(table, steps.back().after, to).empty());
}

BOOST_AUTO_TEST_CASE(ThroughReshape_AxesFollowTheMajorDimension) {
  const AxisTable table(mesh, "");
  const std::vector<std::int64_t> flat{2, 5120};
  const std::vector<std::int64_t> heads{2, 40, 128};
  const Layout layout = layout_of(table, R"({"a"}, {"b"})", 2);
  const ReshapeLayout split = through_reshape(table, flat, layout, heads);
  BOOST_TEST((split.kept == layout));
  BOOST_TEST((split.result == layout_of(table, R"({"a"}, {"b"}, {})", 3)));
  const ReshapeLayout merged = through_reshape(table, heads, split.result, flat);
  BOOST_TEST((merged.result == layout));
  // An axis on the minor of two merged dimensions has no place in the result.
  const ReshapeLayout minor = through_reshape(table, heads, layout_of(table, R"({}, {}, {"b"})", 3), flat);
  BOOST_TEST(is_replicated(minor.kept));
  // Four pieces of 6 rows are no whole rows.
  const ReshapeLayout uneven = through_reshape(table, std::vector<std::int64_t>{12}, layout_of(table, R"({"b"})", 1),
                                               std::vector<std::int64_t>{6, 2});
  BOOST_TEST(is_replicated(uneven.kept));
}

BOOST_AUTO_TEST_CASE(LocalLength_RoundsUp) {
  const AxisTable table(mesh, "");
  BOOST_TEST(local_length(table, 10, layout_of(table, R"({"b"})", 1)[0]) == 3);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::prediction
