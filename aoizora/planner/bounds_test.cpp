#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "aoizora/ir/readers.h"
#include "aoizora/planner/bound.h"
#include "aoizora/planner/pricing.h"
#include "aoizora/planner/replay.h"
#include "aoizora/prediction/bound.h"

// Bounds that leave work out, over every recorded answer of the real compiler: Wan 2.1 1.3B, 480x832, 21 frames,
// v5e:2x2. python/tests/test_bounds.py does the same with fresh answers for other slices.
namespace aoizora::planner {
namespace {

constexpr double rounding = 1 + 1e-9;

struct Recorded {
  candidates::Candidate candidate;
  std::map<std::string, const Answer*> rungs;  ///< of the proxy in row-major order
};

const std::map<std::string, Answer>& recording() {
  static const auto answers = read_recording(AOIZORA_TEST_DATA "/recording_wan13b_v5e_2x2");
  return answers;
}

/// "propagate layers=3 placement=row-major {candidate}": the answers of each candidate, by its text without options.
std::map<std::string, Recorded> by_candidate() {
  std::map<std::string, Recorded> found;
  for (const auto& [key, answer] : recording()) {
    if (key.find(" placement=row-major ") == std::string::npos || answer.outcome != Answer::Outcome::ok) continue;
    const std::string text = key.substr(key.find('{'));
    Recorded& recorded = found[text];
    recorded.candidate = candidates::read_candidate(text);
    recorded.rungs[key.substr(0, key.find(' '))] = &answer;
  }
  return found;
}

workload::Workload table() {
  workload::Request request;
  request.model = "wan2.1-1.3b";
  return workload::make_workload(request);
}

const topology::Slice& slice() {
  static const topology::Slice result = topology::make_slice("v5e:2x2");
  return result;
}

prediction::PredictionGraph graph_of(const Recorded& recorded, const workload::Workload& workload) {
  return prediction::build_prediction_graph(ir::read_stablehlo(recorded.rungs.at("propagate")->text), workload,
                                            recorded.candidate, slice().hardware);
}

BOOST_AUTO_TEST_CASE(Q1Bound_IsNoMoreThanQ1PartByPart) {
  const auto workload = table();
  int compared = 0;
  for (const auto& [text, recorded] : by_candidate()) {
    if (!recorded.rungs.contains("propagate")) continue;
    const auto q1 = prediction::score(graph_of(recorded, workload), slice().hardware, workload.layers);
    const auto bound = prediction::lower_bound(workload, recorded.candidate, slice().hardware);
    BOOST_TEST_CONTEXT(text) {
      BOOST_TEST(bound.seconds <= q1.seconds * rounding);
      BOOST_TEST(bound.compute_seconds <= q1.compute_seconds * rounding);
      BOOST_TEST(bound.communication_seconds <= q1.communication_seconds * rounding);
      BOOST_TEST(bound.carried_all_reduce_seconds <= q1.carried_all_reduce_seconds * rounding);
      BOOST_TEST(bound.seconds >= q1.seconds / 2);  // it would be of no use otherwise
    }
    ++compared;
  }
  BOOST_TEST(compared > 30);
}

// A user's table may say nothing of its contractions: every candidate is then asked for.
BOOST_AUTO_TEST_CASE(Q1Bound_WithoutContractionsOnlyAttentionCounts) {
  auto workload = table();
  const auto candidate = by_candidate().begin()->second.candidate;
  const auto whole = prediction::lower_bound(workload, candidate, slice().hardware);
  workload.contractions.clear();
  const auto attention = prediction::lower_bound(workload, candidate, slice().hardware);
  BOOST_TEST(attention.seconds > 0);
  BOOST_TEST(attention.seconds < whole.seconds);
  workload.attentions.clear();
  BOOST_TEST(prediction::lower_bound(workload, candidate, slice().hardware).seconds == 0);
}

BOOST_AUTO_TEST_CASE(BlockBound_IsNoMoreThanTheBestPlacementsQ2) {
  const auto workload = table();
  int compared = 0, passages = 0;
  for (const auto& [text, recorded] : by_candidate()) {
    if (!recorded.rungs.contains("propagate") || !recorded.rungs.contains("passes")) continue;
    const auto bound = block_bound(graph_of(recorded, workload), recorded.candidate.mesh, slice());
    const auto program = ranking::extract(ir::read_hlo(recorded.rungs.at("passes")->text), workload, recorded.candidate,
                                          slice().hardware, ranking::Rung::passes);
    double best = std::numeric_limits<double>::infinity();
    for (const auto& q2 : price_placements(program, recorded.candidate.mesh, slice(), workload.layers).q2)
      best = std::min(best, q2.block_seconds);
    BOOST_TEST(bound.seconds <= best * rounding, text);
    BOOST_TEST(bound.seconds >= bound.compute_seconds, text);
    BOOST_TEST(bound.compute_seconds > 0, text);
    passages += bound.passage_seconds > 0;
    ++compared;
  }
  BOOST_TEST(compared >= 8);
  BOOST_TEST(passages >= 4);
}

/// norm -> gather -> attention on four devices in a ring, and a projection that needs the norm only.
struct Passing {
  std::vector<candidates::MeshAxis> mesh{{"data", 1}, {"fsdp", 1}, {"context", 4}, {"tensor", 1}};
  prediction::PredictionGraph graph;
  enum { norm, projection, gather, attention };
  Passing() {
    graph.proxy_layers = 3;
    for (const double bytes : {1e8, 2e8, 0.0, 4e8}) {
      prediction::Node node;
      node.trips = 3;
      node.in_block = node.needs_carry = true;
      node.hbm_bytes = bytes;
      graph.nodes.push_back(node);
    }
    prediction::Node& moves = graph.nodes[gather];
    moves.kind = prediction::NodeKind::opaque_boundary;
    moves.collective = topology::CollectiveKind::all_gather;
    moves.mesh_axes = {"context"};
    moves.group_size = 4;
    moves.payload_bytes = 1e9;
    graph.nodes[projection].needs = graph.nodes[gather].needs = {norm};
    graph.nodes[attention].needs = {projection, gather};
  }
  double seconds(int node) const { return prediction::compute_seconds(graph.nodes[node], slice().hardware); }
  BlockBound bound() const { return block_bound(graph, mesh, slice()); }
};

// What must run before a gather and what needs it cannot hide it; what does neither can.
BOOST_AUTO_TEST_CASE(BlockBound_APassageIsWhatIsBeforeAGatherTheGatherAndWhatIsAfterIt) {
  const auto tolerance = boost::test_tools::tolerance(1e-9);
  Passing usual;
  const double gather =
      usual.bound().passage_seconds - usual.seconds(Passing::norm) - usual.seconds(Passing::attention);
  BOOST_TEST(gather > usual.seconds(Passing::projection));
  BOOST_TEST(usual.bound().seconds == usual.bound().passage_seconds);

  Passing twice;  // as many bytes again in a second gather beside the first: the links carry both
  twice.graph.nodes.insert(twice.graph.nodes.begin() + Passing::attention, twice.graph.nodes[Passing::gather]);
  twice.graph.nodes.back().needs = {Passing::projection, Passing::gather, Passing::attention};
  BOOST_TEST(twice.bound().passage_seconds > usual.bound().passage_seconds + 0.9 * gather);

  Passing needed;  // by the projection
  needed.graph.nodes[Passing::projection].needs = {};
  std::swap(needed.graph.nodes[Passing::projection], needed.graph.nodes[Passing::gather]);
  needed.graph.nodes[Passing::projection].needs = {Passing::norm};
  needed.graph.nodes[Passing::gather].needs = {Passing::projection};
  needed.graph.nodes[Passing::attention].needs = {Passing::projection, Passing::gather};
  BOOST_TEST(needed.bound().passage_seconds == usual.bound().passage_seconds + usual.seconds(Passing::projection),
             tolerance);

  Passing unknown;  // what it needs: the bound is lower
  unknown.graph.nodes[Passing::gather].needs = {};
  BOOST_TEST(unknown.bound().passage_seconds == gather + usual.seconds(Passing::attention), tolerance);

  Passing early;  // a weight's gather may start while the iteration before still runs
  early.graph.nodes[Passing::gather].needs_carry = false;
  BOOST_TEST(early.bound().passage_seconds == 0);

  Passing repeated;  // in a loop of its own: nothing is before all of its runs or after them
  repeated.graph.nodes[Passing::gather].trips = 6;
  BOOST_TEST(repeated.bound().passage_seconds == 0);
}

}  // namespace
}  // namespace aoizora::planner
