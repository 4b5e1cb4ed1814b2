#include "aoizora/prediction/prediction.h"

#include <algorithm>
#include <boost/json.hpp>

namespace aoizora::prediction {

using topology::CollectiveKind;

std::string_view name(NodeKind kind) {
  switch (kind) {
    case NodeKind::compute:
      return "compute";
    case NodeKind::visible_collective:
      return "visible_collective";
    case NodeKind::producer_consumer:
      return "producer_consumer";
    case NodeKind::sharded_contraction:
      return "sharded_contraction";
    case NodeKind::weight_gather:
      return "weight_gather";
    case NodeKind::sharded_reduction:
      return "sharded_reduction";
    case NodeKind::opaque_boundary:
      return "opaque_boundary";
  }
  return "unknown";
}

double volume_factor(CollectiveKind kind, std::int64_t n) {
  if (n <= 1) return 0;
  const double share = static_cast<double>(n - 1) / static_cast<double>(n);
  switch (kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all:
    case CollectiveKind::ragged_all_to_all:
      return share;
    case CollectiveKind::all_reduce:
      return 2 * share;
    case CollectiveKind::permute:
    case CollectiveKind::broadcast:
      return 1;
  }
  return 1;
}

namespace {

/// How often a node runs in the deployed program.
double deployed_trips(const PredictionGraph& graph, const Node& node, std::int64_t layers) {
  const double trips = static_cast<double>(node.trips);
  if (!node.in_block || graph.proxy_layers <= 0) return trips;
  return trips * static_cast<double>(layers) / static_cast<double>(graph.proxy_layers);
}

}  // namespace

// C_comp(v) = FLOPs(v, s) / ρ_dev (paper 4.3), or the time its bytes take through HBM where that is longer; a kernel
// has its own time. The core sustains a part of that speed.
double compute_seconds(const Node& node, const topology::Hardware& hardware) {
  const double sustained = hardware.core_efficiency.value > 0 ? hardware.core_efficiency.value : 1;
  if (node.kernel_seconds > 0) return node.kernel_seconds / sustained;
  const double rho = hardware.peak_flops_per_second.value * hardware.matmul_efficiency.value;
  const double flops = rho > 0 ? node.flops / rho : 0;
  const double hbm = hardware.hbm_bytes_per_second.value > 0 ? node.hbm_bytes / hardware.hbm_bytes_per_second.value : 0;
  return std::max(flops, hbm) / sustained;
}

// C_comm(v) = α_τ + β_τ φ_τ(n) B (paper 4.3). 1/β is the bandwidth of the best placement a group of n can have: one
// link between two chips, both directions of a ring for more. Stage one must not lose a candidate that some placement
// makes good.
double collective_seconds(CollectiveKind kind, std::int64_t group_size, double payload_bytes,
                          const topology::Hardware& hardware) {
  const auto rate = hardware.collectives.find(kind);
  double alpha = 0;
  double fraction = 1;
  if (rate != hardware.collectives.end()) {
    alpha = rate->second.alpha_seconds.value;
    if (rate->second.rate_fraction.value > 0) fraction = rate->second.rate_fraction.value;
  }
  const double directions = group_size > 2 && kind != CollectiveKind::permute ? 2 : 1;
  const double bandwidth = hardware.ici_bytes_per_second.value * fraction * directions;
  const double volume = volume_factor(kind, group_size) * payload_bytes;
  return alpha + (bandwidth > 0 ? volume / bandwidth : 0);
}

Q1 score(const PredictionGraph& graph, const topology::Hardware& hardware, std::int64_t layers) {
  Q1 q1;
  for (const Node& node : graph.nodes) {
    const double trips = deployed_trips(graph, node, layers);
    if (node.kind == NodeKind::compute) {
      q1.compute_seconds += trips * compute_seconds(node, hardware);
      continue;
    }
    const double seconds = trips * collective_seconds(node.collective, node.group_size, node.payload_bytes, hardware);
    q1.communication_seconds += seconds;
    if (node.collective == CollectiveKind::all_reduce) {
      q1.all_reduce_seconds += seconds;
      if (node.feeds_carry) q1.carried_all_reduce_seconds += seconds;
    }
    if (node.in_block && graph.proxy_layers > 0) {
      q1.block_bytes[node.collective] +=
          node.payload_bytes * static_cast<double>(node.trips) / static_cast<double>(graph.proxy_layers);
    }
  }
  // Q1 = max(C_comp, C_comm - C_ar) + C_ar
  q1.seconds = std::max(q1.compute_seconds, q1.communication_seconds - q1.carried_all_reduce_seconds) +
               q1.carried_all_reduce_seconds;
  return q1;
}

std::string to_json(const PredictionGraph& graph, const Q1& q1) {
  boost::json::array nodes;
  for (const Node& node : graph.nodes) {
    boost::json::object out{{"kind", std::string(name(node.kind))},
                            {"what", node.what},
                            {"trips", node.trips},
                            {"in_block", node.in_block}};
    if (node.kind == NodeKind::compute) {
      out["flops"] = node.flops;
      out["hbm_bytes"] = node.hbm_bytes;
      if (node.kernel_seconds > 0) out["kernel_seconds"] = node.kernel_seconds;
    } else {
      out["collective"] = std::string(topology::name(node.collective));
      out["mesh_axes"] = boost::json::value_from(node.mesh_axes);
      out["group_size"] = node.group_size;
      out["payload_bytes"] = node.payload_bytes;
      out["feeds_carry"] = node.feeds_carry;
    }
    nodes.push_back(std::move(out));
  }
  boost::json::object bytes;
  for (const auto& [kind, value] : q1.block_bytes) bytes[topology::name(kind)] = value;
  const boost::json::object out{{"proxy_layers", graph.proxy_layers},
                                {"nodes", std::move(nodes)},
                                {"q1",
                                 {{"seconds", q1.seconds},
                                  {"compute_seconds", q1.compute_seconds},
                                  {"communication_seconds", q1.communication_seconds},
                                  {"carried_all_reduce_seconds", q1.carried_all_reduce_seconds},
                                  {"all_reduce_seconds", q1.all_reduce_seconds},
                                  {"block_bytes", std::move(bytes)}}}};
  return boost::json::serialize(out);
}

}  // namespace aoizora::prediction
