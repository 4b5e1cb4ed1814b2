#include <algorithm>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <string>

#include "aoizora/baseline/alpa.h"
#include "aoizora/baseline/expert.h"
#include "aoizora/candidates/sharding.h"
#include "aoizora/errors.h"
#include "aoizora/ir/readers.h"

namespace aoizora::baseline {
namespace {

namespace data = boost::unit_test::data;

// One request's step (480x832, 21 frames), lowered under candidates that share no mesh.
const char* const programs[] = {"wan_d2c4_ed_mc",
                                "wan_c2t4_ec_ht_mt",
                                "wan_c4t2_ht_mct_ulysses",
                                "wan_d2c2t2_ec_mt_ulysses",
                                "wan_d2c2t2_ed_ht_mct_ulysses",
                                "wan_f2c2t4_efc_ht_mt",
                                "wan_d2f2t2_edf_ht",
                                "wan_d2f2c2_ed_mfc_ulysses"};

std::string recorded(const std::string& name) {
  std::ifstream in(std::string(AOIZORA_TEST_DATA) + "/stablehlo/" + name + ".mlir", std::ios::binary);
  if (!in) throw std::runtime_error("no test data " + name);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

const workload::Workload& table() {
  static const workload::Workload workload = workload::make_workload({});
  return workload;
}

OperatorGraph graph_of(const std::string& name) { return read_operators(ir::read_stablehlo(recorded(name)), table()); }

BOOST_AUTO_TEST_SUITE(operators)

BOOST_DATA_TEST_CASE(do_not_depend_on_the_candidate_the_program_was_propagated_under, data::make(programs), name) {
  BOOST_TEST(to_json(graph_of(name), table()) == to_json(graph_of(programs[0]), table()));
}

BOOST_AUTO_TEST_CASE(count_the_flops_the_workload_declares) {
  double block = 0, total = 0;
  for (const Operator& op : graph_of(programs[0]).operators) {
    total += op.flops * static_cast<double>(op.trips);
    if (op.in_block) block += op.flops;
  }
  BOOST_TEST(block == table().block_flops, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(total == table().total_flops, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(multiply_by_every_matrix_of_the_table_once) {
  const OperatorGraph graph = graph_of(programs[0]);
  std::set<int> read;
  std::size_t contractions = 0;
  for (const Operator& op : graph.operators) {
    if (op.kind != OperatorKind::contraction) continue;
    ++contractions;
    read.insert(op.weight);
    const auto& weight = table().weights[op.weight];
    BOOST_TEST(weight.dims.size() == 2U);
    BOOST_TEST((op.in_label < 0 ? "" : table().axes[op.in_label].name) == weight.dims[0].axis);
    BOOST_TEST((op.out_label < 0 ? "" : table().axes[op.out_label].name) == weight.dims[1].axis);
    BOOST_TEST(op.trips == weight.repeat);
  }
  BOOST_TEST(read.size() == contractions);
  for (std::size_t w = 0; w < table().weights.size(); ++w) {
    const auto& weight = table().weights[w];
    const bool matrix = weight.name.ends_with(".weight") && weight.dims.size() == 2;
    BOOST_TEST((read.count(static_cast<int>(w)) != 0) == matrix, weight.name);
  }
}

BOOST_AUTO_TEST_CASE(pass_the_residual_stream_round_the_loop) {
  const OperatorGraph graph = graph_of(programs[0]);
  const auto carry = std::find_if(graph.operators.begin(), graph.operators.end(),
                                  [](const Operator& op) { return op.kind == OperatorKind::carry; });
  BOOST_REQUIRE(carry != graph.operators.end());
  const auto index = static_cast<int>(carry - graph.operators.begin());
  std::vector<std::string> from;
  std::int64_t trips = 0;
  for (const Read& read : graph.reads) {
    if (read.consumer != index) continue;
    from.push_back(graph.operators[graph.tensors[read.tensor].producer].name);
    trips += read.trips;
  }
  std::sort(from.begin(), from.end());
  BOOST_TEST(from == (std::vector<std::string>{"blocks.ffn.net.2.weight", "patch_embedding.weight"}),
             boost::test_tools::per_element());
  BOOST_TEST(trips == table().layers);
}

BOOST_AUTO_TEST_CASE(of_another_workload_are_refused) {
  workload::Request other;
  other.model = "wan2.1-1.3b";
  BOOST_CHECK_THROW(read_operators(ir::read_stablehlo(recorded(programs[0])), workload::make_workload(other)),
                    ParseError);
  BOOST_CHECK_THROW(read_operators(ir::read_stablehlo("module { }"), table()), ParseError);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(problem)

const std::vector<candidates::MeshAxis> mesh{{"data", 2}, {"fsdp", 1}, {"context", 2}, {"tensor", 2}};

AlpaProblem problem_on(const std::vector<candidates::MeshAxis>& axes, const AlpaOptions& options) {
  static const topology::Slice slice = topology::make_slice("v5e:2x4");
  return make_problem(graph_of(programs[0]), table(), slice.hardware, axes, options);
}

/// Operators' cheapest choices once the rules are given: with them fixed, any order of relaxing edges is as good.
std::vector<int> by_rules(const AlpaProblem& alpa, const std::vector<int>& rules) {
  const std::size_t operators = alpa.choices.size();
  std::vector<int> choices(operators, -1);
  choices.insert(choices.end(), rules.begin(), rules.end());
  std::vector<std::vector<int>> allowed(operators);
  for (std::size_t v = 0; v < operators; ++v) {
    for (std::size_t s = 0; s < alpa.choices[v].size(); ++s) {
      const bool fits = std::all_of(alpa.problem.edges.begin(), alpa.problem.edges.end(), [&](const ChoiceEdge& e) {
        if (e.from != static_cast<int>(v) || e.to < static_cast<int>(operators)) return true;
        const int p = e.from_class[s], q = e.to_class[choices[e.to]];
        return e.cost_seconds[p * e.to_classes + q] < std::numeric_limits<double>::infinity();
      });
      if (fits) allowed[v].push_back(static_cast<int>(s));
    }
    if (allowed[v].empty()) return {};
    choices[v] = allowed[v].front();
  }
  return choices;
}

BOOST_AUTO_TEST_CASE(has_a_plan_for_exactly_the_legal_rules) {
  const AlpaProblem alpa = problem_on(mesh, {});
  std::vector<int> rules(alpa.rules.size(), 0);
  std::size_t legal = 0, all = 0;
  while (true) {
    candidates::Candidate candidate;
    candidate.mesh = mesh;
    for (std::size_t r = 0; r < rules.size(); ++r) {
      if (alpa.rules[r].axis.empty()) {
        candidate.attention = rules[r] == 1 ? candidates::AttentionKind::ulysses : candidates::AttentionKind::gathered;
      } else {
        candidate.rules[alpa.rules[r].axis] = alpa.rules[r].options[rules[r]];
      }
    }
    ++all;
    const bool is_legal = candidates::illegal_because(table(), candidate).empty();
    legal += is_legal ? 1 : 0;
    const std::vector<int> choices = by_rules(alpa, rules);
    BOOST_TEST(!choices.empty() == is_legal, candidates::to_json(candidate));
    if (!choices.empty()) BOOST_TEST((read_plan(alpa, table(), choices).candidate == candidate));
    std::size_t r = 0;
    while (r < rules.size() &&
           ++rules[r] == static_cast<int>(alpa.problem.nodes[alpa.choices.size() + r].choices.size()))
      rules[r++] = 0;
    if (r == rules.size()) break;
  }
  BOOST_TEST(legal > 0U);
  BOOST_TEST(legal < all);
}

BOOST_AUTO_TEST_CASE(holds_the_weights_the_candidates_room_counts) {
  const AlpaProblem alpa = problem_on(mesh, {});
  std::vector<int> rules(alpa.rules.size(), 0);
  for (std::size_t r = 0; r < rules.size(); ++r) {
    const RuleNode& rule = alpa.rules[r];
    std::vector<std::string> wanted = rule.options.front();
    if (rule.axis == "embed") wanted = {"data", "context"};
    if (rule.axis == "heads" || rule.axis == "mlp") wanted = {"tensor"};
    rules[r] = static_cast<int>(std::find(rule.options.begin(), rule.options.end(), wanted) - rule.options.begin());
  }
  const std::vector<int> choices = by_rules(alpa, rules);
  BOOST_REQUIRE(!choices.empty());
  double resident = alpa.problem.resident_bytes;
  for (std::size_t v = 0; v < choices.size(); ++v) resident += alpa.problem.nodes[v].choices[choices[v]].resident_bytes;
  const double counted =
      candidates::memory_estimate(table(), read_plan(alpa, table(), choices).candidate).weights_bytes;
  BOOST_TEST(resident == counted, boost::test_tools::tolerance(0.01));  // biases are held whole here
}

BOOST_AUTO_TEST_CASE(of_one_device_costs_compute_alone) {
  const AlpaProblem alpa = problem_on({{"data", 1}, {"fsdp", 1}, {"context", 1}, {"tensor", 1}}, {});
  const AlpaPlan plan = read_plan(alpa, table(), by_rules(alpa, std::vector<int>(alpa.rules.size(), 0)));
  BOOST_TEST(plan.communication_seconds == 0);
  BOOST_TEST(plan.reshard_seconds == 0);
  BOOST_TEST(plan.compute_seconds > 0);
}

BOOST_AUTO_TEST_CASE(of_more_than_four_axes_is_refused) {
  AlpaOptions options;
  options.rules = false;
  BOOST_CHECK_THROW(problem_on({{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}, {"e", 2}}, options), InvalidRequest);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(model)

ChoiceProblem two_nodes() {
  ChoiceProblem problem;
  problem.nodes = {{"a", {{1, 10}, {2, 0}}}, {"b", {{0, 0}, {5, 0}, {1, 0}}}};
  const double no = std::numeric_limits<double>::infinity();
  problem.edges = {{0, 1, {0, 1}, {0, 1, 1}, {0, 3, no, 4}, 2, 2}};
  problem.memory_bytes = 100;
  return problem;
}

BOOST_AUTO_TEST_CASE(rows_are_what_the_header_says) {
  const SparseModel model = build_model(two_nodes());
  BOOST_TEST(model.objective.size() == 2U + 3U + 3U + 1U);  // x of a, x of b, z but for the forbidden pair, w
  BOOST_TEST(model.row_lower.size() == 2U + 4U + 2U);       // one-hot, two marginals of two classes, w, the limit
  BOOST_TEST(model.row_starts.size() == model.row_lower.size() + 1);
  BOOST_TEST(model.row_starts.back() == static_cast<std::int32_t>(model.values.size()));
  BOOST_TEST(model.objective[0] == 1e3);
  BOOST_TEST(std::count(model.integrality.begin(), model.integrality.end(), 1) == 5);
}

BOOST_AUTO_TEST_CASE(evaluation_adds_nodes_edges_and_the_fullest_moment) {
  ChoiceProblem problem = two_nodes();
  problem.moments = {{{{0, {7, 1}}}, {}}, {{{1, {0, 2, 30}}}, {{0, {0, 1, 0, 5}}}}};
  const std::vector<int> choices{0, 2};
  const Evaluation got = evaluate(problem, choices);
  BOOST_TEST(got.cost_seconds == 1 + 1 + 3);
  BOOST_TEST(got.memory_bytes == 10 + 31);
  const std::vector<int> forbidden{1, 0};
  BOOST_TEST(std::isinf(evaluate(problem, forbidden).cost_seconds));
}

BOOST_AUTO_TEST_CASE(problems_that_do_not_fit_together_are_refused) {
  ChoiceProblem problem = two_nodes();
  problem.edges[0].to_class = {0, 1};
  BOOST_CHECK_THROW(build_model(problem), InvalidRequest);
  BOOST_CHECK_THROW(read_problem("{\"nodes\": 1}"), InvalidRequest);
  BOOST_CHECK_THROW(read_problem("{"), ParseError);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(expert)

std::vector<std::int64_t> sizes(const ExpertMember& member) {
  std::vector<std::int64_t> result;
  for (const auto& axis : member.candidate.mesh) result.push_back(axis.size);
  return result;
}

BOOST_AUTO_TEST_CASE(rule_takes_the_recipes_that_are_published) {
  // MaxDiffusion's README and its 8-chip recipes.
  const auto four = expert_family(table(), topology::make_slice("v5e:2x2"), {});
  BOOST_TEST(sizes(four.front()) == (std::vector<std::int64_t>{2, 1, 2, 1}), boost::test_tools::per_element());
  const auto eight = expert_family(table(), topology::make_slice("v5e:2x4"), {});
  BOOST_TEST(sizes(eight.front()) == (std::vector<std::int64_t>{2, 1, 4, 1}), boost::test_tools::per_element());
}

BOOST_DATA_TEST_CASE(family_is_every_legal_mesh_under_the_stock_rules, data::make({"v5e:2x2", "v5e:2x4", "v5e:4x4"}),
                     name) {
  const topology::Slice slice = topology::make_slice(name);
  const auto devices = static_cast<std::int64_t>(slice.devices.size());
  std::size_t expected = 0;
  for (std::int64_t batch : {1, 2}) {                          // data x fsdp divides the batch of 2
    for (std::int64_t tensor : {1, 2, 4, 8}) {                 // and 40 heads
      if (devices % (batch * tensor) == 0) expected += batch;  // data or fsdp carries it
    }
  }
  const auto family = expert_family(table(), slice, {});
  BOOST_TEST(family.size() == expected);
  std::set<std::vector<std::int64_t>> seen;
  int rank = 0;
  for (const ExpertMember& member : family) {
    BOOST_TEST(candidates::illegal_because(table(), member.candidate).empty());
    BOOST_TEST(seen.insert(sizes(member)).second);
    if (member.rank >= 0) BOOST_TEST(member.rank == rank++);
    if (!member.placement) continue;
    auto devices_used = member.placement->devices;
    std::sort(devices_used.begin(), devices_used.end());
    for (std::size_t d = 0; d < devices_used.size(); ++d) BOOST_TEST(devices_used[d] == static_cast<int>(d));
  }
  BOOST_TEST(rank > 0);
}

BOOST_AUTO_TEST_CASE(says_where_jax_raises_without_split_axes) {
  const auto family = expert_family(table(), topology::make_slice("v5e:4x4"), {});
  for (const ExpertMember& member : family) {
    const bool split = sizes(member) == std::vector<std::int64_t>{2, 1, 8, 1} ||
                       sizes(member) == std::vector<std::int64_t>{1, 1, 8, 2};
    if (split) BOOST_TEST(member.split_physical_axes);
    if (sizes(member) == std::vector<std::int64_t>{1, 1, 16, 1}) BOOST_TEST(!member.split_physical_axes);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace aoizora::baseline
