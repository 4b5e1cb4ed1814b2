#include "aoizora/simulation/flows.h"

#include <cmath>
#include <string>

#include "aoizora/errors.h"
#include "aoizora/simulation/network.h"

namespace aoizora::simulation {
namespace {

void check(const Flow& flow, std::size_t index, std::size_t count, const topology::Slice& slice) {
  const std::string which = "flow " + std::to_string(index);
  const auto devices = static_cast<topology::DeviceId>(slice.devices.size());
  for (const topology::DeviceId device : {flow.from, flow.to}) {
    if (device < 0 || device >= devices) {
      throw InvalidRequest(which + " names device " + std::to_string(device) + "; slice " + slice.name + " has 0 to " +
                           std::to_string(devices - 1));
    }
  }
  for (const double number : {flow.bytes, flow.delay_seconds, flow.limit_bytes_per_second}) {
    if (!(number >= 0) || !std::isfinite(number))
      throw InvalidRequest(which +
                           " has a number that is negative or not finite; bytes, delay and limit are 0 or more");
  }
  for (const int before : flow.after) {
    if (before < 0 || static_cast<std::size_t>(before) >= count)
      throw InvalidRequest(which + " waits for flow " + std::to_string(before) + "; there are " +
                           std::to_string(count));
  }
}

/// Takes away what waits for nothing, again and again: a rest waits in a circle.
void check_order(const Graph& graph) {
  std::vector<std::int32_t> waits = graph.waits, free;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (waits[i] == 0) free.push_back(static_cast<std::int32_t>(i));
  }
  for (std::size_t k = 0; k < free.size(); ++k) {
    for (std::int32_t n = graph.next_begin[free[k]]; n < graph.next_begin[free[k] + 1]; ++n) {
      if (--waits[graph.next[n]] == 0) free.push_back(graph.next[n]);
    }
  }
  if (free.size() < graph.size()) throw InvalidRequest("some flows wait for each other in a circle and never begin");
}

}  // namespace

std::vector<double> finish_times(std::span<const Flow> flows, const topology::Slice& slice, double rate_scale) {
  if (!(rate_scale > 0) || !std::isfinite(rate_scale)) throw InvalidRequest("rate_scale must be above 0 and finite");
  Lanes lanes(slice);
  Graph graph;
  std::vector<Wait> waits;
  for (std::size_t i = 0; i < flows.size(); ++i) {
    const Flow& flow = flows[i];
    check(flow, i, flows.size(), slice);
    graph.lane.push_back(lanes.between(flow.from, flow.to, flow.limit_bytes_per_second));
    graph.bytes.push_back(flow.bytes);
    graph.latency_seconds.push_back(flow.delay_seconds);
    for (const int before : flow.after) waits.push_back({static_cast<std::int32_t>(i), before});
  }
  link(graph, waits);
  check_order(graph);
  Network network(lanes, rate_scale);
  network.record(true);
  network.launch(0, graph, 1.0, 0.0);
  network.finish_all();
  const auto ends = network.transfer_ends(0);
  return {ends.begin(), ends.end()};
}

std::vector<double> fair_rates(std::span<const std::vector<topology::LinkId>> routes, std::span<const double> limits,
                               std::span<const double> capacities) {
  if (routes.size() != limits.size()) throw InvalidRequest("fair_rates needs one limit a route");
  Lanes lanes;
  std::vector<LaneId> ids;
  for (std::size_t f = 0; f < routes.size(); ++f) {
    for (const topology::LinkId l : routes[f]) {
      if (l < 0 || static_cast<std::size_t>(l) >= capacities.size())
        throw InvalidRequest("a route names link " + std::to_string(l) + "; there are " +
                             std::to_string(capacities.size()));
    }
    ids.push_back(lanes.along(routes[f], limits[f]));
  }
  Filling filling({capacities.begin(), capacities.end()});
  std::vector<double> rates;
  filling.fill(lanes, ids, std::vector<double>(ids.size(), 1.0), 1.0, rates);
  return rates;
}

}  // namespace aoizora::simulation
