#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <limits>
#include <map>
#include <string>

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
  int compared = 0;
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
    ++compared;
  }
  BOOST_TEST(compared >= 8);
}

}  // namespace
}  // namespace aoizora::planner
