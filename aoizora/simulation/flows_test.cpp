#include "aoizora/simulation/flows.h"

#include <algorithm>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "aoizora/errors.h"
#include "aoizora/simulation/network.h"
#include "aoizora/topology/test_slices.h"

namespace {

using namespace aoizora;
using simulation::Flow;
using Routes = std::vector<std::vector<topology::LinkId>>;
namespace data = boost::unit_test::data;

int pick(std::mt19937& random, int below) { return std::uniform_int_distribution<int>(0, below - 1)(random); }
double between(std::mt19937& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

/// Flows one by one, no lanes, no shared work: the definition, slowly.
std::vector<double> plain_rates(const Routes& routes, const std::vector<double>& limits,
                                const std::vector<double>& capacities) {
  std::vector<double> rates(routes.size(), 0.0);
  std::vector<bool> stopped(routes.size(), false);
  while (std::find(stopped.begin(), stopped.end(), false) != stopped.end()) {
    double grow = std::numeric_limits<double>::infinity();
    std::vector<double> used(capacities.size(), 0.0), growing(capacities.size(), 0.0);
    for (std::size_t f = 0; f < routes.size(); ++f) {
      for (const auto l : routes[f]) used[l] += rates[f], growing[l] += stopped[f] ? 0 : 1;
      if (!stopped[f] && limits[f] > 0) grow = std::min(grow, limits[f] - rates[f]);
    }
    for (std::size_t l = 0; l < capacities.size(); ++l) {
      if (growing[l] > 0) grow = std::min(grow, (capacities[l] - used[l]) / growing[l]);
    }
    const auto at_end = [&](std::size_t f) {
      if (limits[f] > 0 && rates[f] >= limits[f] * (1 - 1e-12)) return true;
      return std::any_of(routes[f].begin(), routes[f].end(),
                         [&](auto l) { return used[l] + grow * growing[l] >= capacities[l] * (1 - 1e-12); });
    };
    for (std::size_t f = 0; f < routes.size(); ++f) rates[f] += stopped[f] ? 0 : grow;
    std::vector<bool> next = stopped;
    for (std::size_t f = 0; f < routes.size(); ++f) next[f] = stopped[f] || at_end(f);
    stopped = next;
  }
  return rates;
}

/// Event by event with plain_rates.
std::vector<double> plain_finish_times(const std::vector<Flow>& flows, const topology::Slice& slice) {
  const double never = std::numeric_limits<double>::infinity();
  const std::size_t n = flows.size();
  std::vector<double> capacities, left(n), first_byte(n, never), end(n, never);
  for (const auto& link : slice.links) capacities.push_back(link.bandwidth_bytes_per_second);
  for (std::size_t f = 0; f < n; ++f) left[f] = flows[f].bytes;
  double now = 0;
  while (std::find(end.begin(), end.end(), never) != end.end()) {
    for (std::size_t f = 0; f < n; ++f) {
      const bool free = std::all_of(flows[f].after.begin(), flows[f].after.end(), [&](int b) { return end[b] <= now; });
      if (first_byte[f] == never && free) first_byte[f] = now + flows[f].delay_seconds;
    }
    Routes routes;
    std::vector<double> limits;
    std::vector<std::size_t> flowing;
    double next = never;
    for (std::size_t f = 0; f < n; ++f) {
      if (end[f] != never || first_byte[f] == never) continue;
      if (first_byte[f] > now) {
        next = std::min(next, first_byte[f]);
        continue;
      }
      flowing.push_back(f);
      routes.push_back(slice.route(flows[f].from, flows[f].to));
      limits.push_back(flows[f].limit_bytes_per_second);
    }
    const std::vector<double> rates = plain_rates(routes, limits, capacities);
    for (std::size_t k = 0; k < flowing.size(); ++k) next = std::min(next, now + left[flowing[k]] / rates[k]);
    for (std::size_t k = 0; k < flowing.size(); ++k) {
      left[flowing[k]] -= rates[k] * (next - now);
      if (left[flowing[k]] <= 1e-9 * flows[flowing[k]].bytes) end[flowing[k]] = next;
    }
    now = next;
  }
  return end;
}

std::vector<Flow> random_flows(std::mt19937& random, const topology::Slice& slice, int count) {
  std::vector<Flow> flows;
  const int devices = static_cast<int>(slice.devices.size());
  for (int f = 0; f < count; ++f) {
    Flow flow;
    flow.from = pick(random, devices);
    do flow.to = pick(random, devices);
    while (flow.to == flow.from);
    flow.bytes = pick(random, 2) == 0 ? 1e6 : between(random, 1e4, 1e7);
    flow.delay_seconds = pick(random, 3) == 0 ? 0 : 1e-6 * pick(random, 5);
    flow.limit_bytes_per_second = pick(random, 3) == 0 ? between(random, 1e9, 6e10) : 0;
    for (int k = pick(random, 3); f > 0 && k > 0; --k) flow.after.push_back(pick(random, f));
    flows.push_back(flow);
  }
  return flows;
}

std::vector<topology::Slice> slices_with_links() {
  auto slices = topology::assorted_slices();
  std::erase_if(slices, [](const auto& slice) { return slice.devices.size() < 2 || slice.devices.size() > 64; });
  return slices;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(flows)

// Max-min fairness by its definition: no link beyond its capacity, no flow beyond its limit, and each flow is at its
// limit or crosses a full link on which nobody has more.
BOOST_DATA_TEST_CASE(FairRates_MeetTheDefinition, data::xrange(300), seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const int links = 1 + pick(random, 12), count = 1 + pick(random, 25);
  std::vector<double> capacities, limits;
  for (int l = 0; l < links; ++l) capacities.push_back(pick(random, 2) == 0 ? 10.0 : between(random, 1, 20));
  Routes routes;
  for (int f = 0; f < count; ++f) {
    std::vector<topology::LinkId> all(links);
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(1 + pick(random, std::min(links, 4)));
    routes.push_back(all);
    limits.push_back(pick(random, 3) == 0 ? between(random, 0.1, 10) : 0.0);
  }
  const std::vector<double> rates = simulation::fair_rates(routes, limits, capacities);
  std::vector<double> used(links, 0.0), most(links, 0.0);
  for (int f = 0; f < count; ++f) {
    for (const auto l : routes[f]) used[l] += rates[f], most[l] = std::max(most[l], rates[f]);
  }
  for (int l = 0; l < links; ++l) BOOST_TEST(used[l] <= capacities[l] * (1 + 1e-9));
  for (int f = 0; f < count; ++f) {
    const bool at_limit = limits[f] > 0 && rates[f] >= limits[f] * (1 - 1e-9);
    const bool has_bottleneck = std::any_of(routes[f].begin(), routes[f].end(), [&](auto l) {
      return used[l] >= capacities[l] * (1 - 1e-9) && rates[f] >= most[l] * (1 - 1e-9);
    });
    BOOST_TEST((at_limit || has_bottleneck), "flow " << f << " could have more than " << rates[f]);
    if (limits[f] > 0) BOOST_TEST(rates[f] <= limits[f] * (1 + 1e-9));
  }
}

// Flows of one lane filled together get what they get one by one.
BOOST_DATA_TEST_CASE(Lanes_EqualSingleFlows, data::xrange(100), seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto slice = topology::make_slice("v5e:4x4");
  std::vector<double> capacities;
  for (const auto& link : slice.links) capacities.push_back(link.bandwidth_bytes_per_second);
  simulation::Lanes lanes(slice);
  std::vector<simulation::LaneId> ids;
  std::vector<double> counts, limits;
  Routes routes;
  for (int k = 1 + pick(random, 30); k > 0; --k) {
    const double limit = pick(random, 3) == 0 ? between(random, 1e9, 4e10) : 0;
    const int from = pick(random, 16), to = (from + 1 + pick(random, 15)) % 16;
    const auto id = lanes.between(from, to, limit);
    if (std::find(ids.begin(), ids.end(), id) != ids.end()) continue;
    ids.push_back(id);
    counts.push_back(1 + pick(random, 4));
    for (int copy = 0; copy < counts.back(); ++copy) {
      routes.push_back(slice.route(from, to));
      limits.push_back(limit);
    }
  }
  std::vector<double> rates;
  simulation::Filling(capacities).fill(lanes, ids, counts, 1.0, rates);
  const std::vector<double> single = plain_rates(routes, limits, capacities);
  std::size_t flow = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (int copy = 0; copy < counts[i]; ++copy)
      BOOST_TEST(rates[i] == single[flow++], boost::test_tools::tolerance(1e-9));
  }
}

// Random flows that wait for each other, on every shape: the engine against one flow at a time, written anew above.
BOOST_DATA_TEST_CASE(FinishTimes_EqualThePlainSimulation, data::xrange(120), seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto slices = slices_with_links();
  const topology::Slice& slice = slices[seed % slices.size()];
  const std::vector<Flow> flows = random_flows(random, slice, 1 + pick(random, 40));
  const auto fast = simulation::finish_times(flows, slice);
  const auto plain = plain_finish_times(flows, slice);
  for (std::size_t f = 0; f < flows.size(); ++f) BOOST_TEST(fast[f] == plain[f], boost::test_tools::tolerance(1e-8));
}

// Bytes are conserved: what links carried is what flows sent over their hops, link by link; and no link carried more
// than its rate allows in that time.
BOOST_DATA_TEST_CASE(Links_CarryEveryByteOnce, data::xrange(60), seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto slices = slices_with_links();
  const topology::Slice& slice = slices[seed % slices.size()];
  const std::vector<Flow> flows = random_flows(random, slice, 1 + pick(random, 60));
  simulation::Lanes lanes(slice);
  simulation::Graph graph;
  std::vector<simulation::Wait> waits;
  std::vector<double> expected(slice.links.size(), 0.0);
  for (std::size_t f = 0; f < flows.size(); ++f) {
    graph.lane.push_back(lanes.between(flows[f].from, flows[f].to, flows[f].limit_bytes_per_second));
    graph.bytes.push_back(flows[f].bytes);
    graph.latency_seconds.push_back(flows[f].delay_seconds);
    for (const int b : flows[f].after) waits.push_back({static_cast<std::int32_t>(f), b});
    for (const auto l : slice.route(flows[f].from, flows[f].to)) expected[l] += flows[f].bytes;
  }
  simulation::link(graph, waits);
  simulation::Network network(lanes, 1.0);
  network.record(true);
  network.launch(0, graph, 1.0, 0.0);
  const double end = network.finish_all();
  for (std::size_t l = 0; l < slice.links.size(); ++l) {
    BOOST_TEST(std::abs(network.carried()[l] - expected[l]) <= 1e-8 * expected[l]);
    BOOST_TEST(network.carried()[l] <= end * slice.links[l].bandwidth_bytes_per_second * (1 + 1e-9));
  }
}

// Twice the rate and half the latency: half the time.
BOOST_DATA_TEST_CASE(FinishTimes_ScaleWithTheUnits, data::xrange(20), seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto slice = topology::make_slice("v5e:4x4");
  std::vector<Flow> flows = random_flows(random, slice, 30);
  const auto once = simulation::finish_times(flows, slice);
  for (Flow& flow : flows) flow.delay_seconds /= 2;
  const auto twice = simulation::finish_times(flows, slice, 2.0);
  for (std::size_t f = 0; f < flows.size(); ++f)
    BOOST_TEST(twice[f] * 2 == once[f], boost::test_tools::tolerance(1e-9));
}

// What cannot be is refused, not waited for.
BOOST_AUTO_TEST_CASE(FinishTimes_RefusesWhatCannotBe) {
  const auto slice = topology::make_slice("v5e:2x2");
  const auto refused = [&](std::vector<Flow> flows) {
    BOOST_CHECK_THROW(simulation::finish_times(flows, slice), InvalidRequest);
  };
  refused({{0, 4, 1, {}, 0, 0}});
  refused({{-1, 1, 1, {}, 0, 0}});
  refused({{0, 1, -1, {}, 0, 0}});
  refused({{0, 1, std::numeric_limits<double>::infinity(), {}, 0, 0}});
  refused({{0, 1, 1, {0}, 0, 0}});
  refused({{0, 1, 1, {1}, 0, 0}, {0, 1, 1, {0}, 0, 0}});
  refused({{0, 1, 1, {7}, 0, 0}});
  BOOST_CHECK_THROW(simulation::finish_times({}, slice, 0.0), InvalidRequest);
  BOOST_TEST(simulation::finish_times({}, slice).empty());
  BOOST_TEST(simulation::finish_times(std::vector<Flow>{{1, 1, 5, {}, 1e-6, 0}}, slice)[0] == 1e-6);
}

BOOST_AUTO_TEST_SUITE_END()
