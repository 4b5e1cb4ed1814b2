#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <map>
#include <utility>

#include "aoizora/candidates/memory.h"
#include "aoizora/candidates/sharding.h"
#include "aoizora/errors.h"
#include "aoizora/planner/describe.h"
#include "aoizora/planner/planner.h"

namespace aoizora::planner {
namespace {

namespace json = boost::json;

/// Reads one member of a settings object into its field and forgets it; what is left over is unknown.
template <typename T>
void take(json::object& object, const char* key, T& field) {
  const auto* value = object.if_contains(key);
  if (value == nullptr) return;
  try {
    if constexpr (std::is_same_v<T, bool>) {
      field = value->as_bool();
    } else if constexpr (std::is_integral_v<T>) {
      field = value->to_number<T>();
    } else {
      field = value->to_number<T>();
    }
  } catch (const std::exception&) {
    throw InvalidRequest("planner setting \"" + std::string(key) + "\" cannot be " + json::serialize(*value));
  }
  object.erase(key);
}

json::object compute_json(const ranking::ComputeSplit& c) {
  return {{"matmul_seconds", c.matmul_seconds},   {"attention_seconds", c.attention_seconds},
          {"padding_seconds", c.padding_seconds}, {"relayout_seconds", c.relayout_seconds},
          {"other_seconds", c.other_seconds},     {"total_seconds", c.total()}};
}

/// The slice's links by id: [from chip, to chip, dimension], between cores of a chip [chip, chip, -1, core, core].
json::array links_json(const topology::Slice& slice) {
  json::array array;
  for (const topology::Link& link : slice.links) {
    json::array one{link.from_chip, link.to_chip, link.dimension};
    if (link.kind == topology::LinkKind::core) {
      one.push_back(link.from_core);
      one.push_back(link.to_core);
    }
    array.push_back(std::move(one));
  }
  return array;
}

/// What the collectives of a block put on the links, for a byte of payload; programs repeat few patterns, and a pattern
/// few loads.
class Patterns {
 public:
  std::size_t number(const ranking::CollectiveCost& cost) {
    const auto [at, is_new] = known_.try_emplace({cost.links, cost.link_bytes_per_byte}, known_.size());
    if (is_new) patterns_.push_back(loads(cost));
    return at->second;
  }
  json::array take() { return std::move(patterns_); }

 private:
  /// [[bytes, [links that carry so many]], ...], the most first; loads that differ by rounding are one.
  static json::array loads(const ranking::CollectiveCost& cost) {
    constexpr double rounding = 1e-9;
    std::vector<std::pair<double, topology::LinkId>> sorted;
    for (std::size_t i = 0; i < cost.links.size(); ++i)
      sorted.emplace_back(-cost.link_bytes_per_byte[i], cost.links[i]);
    std::sort(sorted.begin(), sorted.end());
    json::array result;
    double last = 0;
    for (const auto& [negative, link] : sorted) {
      if (result.empty() || -negative < last * (1 - rounding)) {
        last = -negative;
        result.push_back(json::array{last, json::array{}});
      }
      result.back().as_array()[1].as_array().push_back(link);
    }
    return result;
  }

  std::map<std::pair<std::vector<topology::LinkId>, std::vector<double>>, std::size_t> known_;
  json::array patterns_;
};

json::array collectives_json(const ranking::Q2& q2, Patterns& patterns) {
  json::array array;
  for (const auto& c : q2.collectives) {
    array.push_back(json::object{{"kind", topology::name(c.kind)},
                                 {"name", c.name},
                                 {"runs", c.runs},
                                 {"bytes", c.bytes},
                                 {"seconds", c.seconds},
                                 {"exposed_seconds", c.exposed_seconds},
                                 {"contention_seconds", c.contention_seconds},
                                 {"effective_bytes_per_second", c.effective_bytes_per_second},
                                 {"pattern", patterns.number(c)}});
  }
  return array;
}

const char* name(ranking::CoreSlot::Kind kind) {
  using Kind = ranking::CoreSlot::Kind;
  switch (kind) {
    case Kind::matmul:
      return "matmul";
    case Kind::attention:
      return "attention";
    case Kind::relayout:
      return "relayout";
    case Kind::wait:
      return "wait";
    case Kind::copy_wait:
      return "copy wait";
    case Kind::trips:
      return "trips";
    default:
      return "other";
  }
}

json::object timeline_json(const ranking::BlockTimeline& timeline) {
  json::array core;
  json::array flights;
  for (const auto& slot : timeline.core) {
    json::array one{name(slot.kind), slot.seconds};
    if (slot.collective >= 0) one.push_back(slot.collective);
    core.push_back(std::move(one));
  }
  for (const auto& flight : timeline.flights) {
    flights.push_back(json::array{flight.collective, flight.begin_seconds, flight.end_seconds});
  }
  return {{"core", std::move(core)}, {"flights", std::move(flights)}};
}

json::object predicted_json(const Ranked& ranked, const Plan& plan, bool whole) {
  const ranking::Q2& q2 = ranked.q2;
  json::object block{{"compute", compute_json(q2.compute)},
                     {"exposed_communication_seconds", q2.exposed_communication_seconds},
                     {"contention_seconds", q2.contention_seconds}};
  if (whole) {
    Patterns patterns;
    block["collectives"] = collectives_json(q2, patterns);
    block["patterns"] = patterns.take();
    block["timeline"] = timeline_json(q2.timeline);
  }
  json::object object{{"rung", ranked.rung == ranking::Rung::code ? "code" : "passes"},
                      {"block_seconds", q2.block_seconds},
                      {"outside_seconds", q2.outside_seconds},
                      {"step_seconds", q2.step_seconds},
                      {"block", std::move(block)}};
  if (plan.request) object["video_seconds"] = q2.step_seconds * static_cast<double>(plan.request->steps);
  return object;
}

json::object q1_json(const prediction::Q1& q1) {
  json::object bytes;
  for (const auto& [kind, value] : q1.block_bytes) bytes[topology::name(kind)] = value;
  return {{"seconds", q1.seconds},
          {"compute_seconds", q1.compute_seconds},
          {"communication_seconds", q1.communication_seconds},
          {"carried_all_reduce_seconds", q1.carried_all_reduce_seconds},
          {"all_reduce_seconds", q1.all_reduce_seconds},
          {"block_bytes", std::move(bytes)}};
}

/// JAX numbers the chips of a slice with x fastest, then y, ...; cores of a chip follow each other.
std::int64_t jax_device_id(const topology::Slice& slice, const topology::Device& device) {
  std::int64_t chip = 0;
  for (std::size_t d = slice.dims.size(); d-- > 0;) chip = chip * slice.dims[d] + device.coordinates[d];
  return chip * slice.cores_per_chip + device.core;
}

json::object placement_json(const placement::Placement& p, const topology::Slice& slice) {
  json::array coordinates;
  json::array cores;
  json::array ids;
  for (const auto id : p.devices) {
    const auto& device = slice.devices.at(static_cast<std::size_t>(id));
    coordinates.push_back(json::value_from(device.coordinates));
    cores.push_back(device.core);
    ids.push_back(jax_device_id(slice, device));
  }
  return {{"order", p.order},
          {"coordinates", std::move(coordinates)},
          {"cores", std::move(cores)},
          {"device_ids", std::move(ids)}};
}

/// A PartitionSpec for each parameter: one list of mesh axes a dimension, the stacked layer dimension first where the
/// block repeats.
json::object parameters_json(const workload::Workload& workload, const candidates::Candidate& candidate) {
  json::object parameters;
  for (const auto& tensor : workload.weights) {
    json::array spec;
    if (tensor.repeat > 1) spec.push_back(json::array{});
    for (const auto& dim : tensor.dims) {
      const auto rule = candidate.rules.find(dim.axis);
      spec.push_back(rule == candidate.rules.end() || dim.axis.empty() ? json::value(json::array{})
                                                                       : json::value_from(rule->second));
    }
    parameters[tensor.name] = std::move(spec);
  }
  return parameters;
}

/// What stands in a program's plan where a model's has its request.
json::object program_json(const workload::Workload& workload) {
  const json::value table = json::parse(workload::to_json(workload));
  return {{"name", workload.name}, {"axes", table.at("axes")}};
}

json::object ranked_json(const Ranked& ranked, const Plan& plan, bool whole) {
  json::object object{{"sharding", describe(ranked.candidate, plan.workload)},
                      {"candidate", json::parse(candidates::to_json(ranked.candidate))},
                      {"placement", placement_json(ranked.placement, plan.slice)},
                      {"predicted", predicted_json(ranked, plan, whole)},
                      {"passes_block_seconds", ranked.passes_block_seconds},
                      {"passes_step_seconds", ranked.passes_step_seconds},
                      {"stage_1", q1_json(ranked.q1)},
                      {"hbm_bytes", ranked.hbm_bytes},
                      {"idle_axes", json::value_from(candidates::idle_axes(plan.workload, ranked.candidate))},
                      {"verified", ranked.verified}};
  if (ranked.rung == ranking::Rung::code && ranked.passes_block_seconds > 0)
    object["rung_difference_percent"] = (ranked.q2.block_seconds / ranked.passes_block_seconds - 1) * 100;
  return object;
}

/// Bytes a device by part: the model's weights are exact, the rest the compiler's own.
json::object hbm_json(const Plan& plan) {
  return {{"bytes", plan.best.hbm_bytes},
          {"weights_bytes", candidates::weights_bytes(plan.workload, plan.best.candidate)},
          {"arguments_bytes", plan.best.argument_bytes},
          {"limit_bytes", plan.slice.hardware.hbm_bytes.value},
          {"reserved_bytes", plan.reserved_hbm_bytes},
          {"source", "the compiler's buffer assignment at full depth"}};
}

/// `priced`: [[seconds, how many placements, [axis orders of the first of them]], ...], best first; large slices have
/// ten thousand placements and a few dozen prices. Prices that differ by rounding are one.
json::object placements_json(const Plan& plan) {
  constexpr double rounding = 1e-9;
  constexpr std::size_t named = 4;
  json::array priced;
  double last = 0;
  for (const auto& [seconds, order] : plan.priced_placements) {
    if (priced.empty() || seconds > last * (1 + rounding)) {
      last = seconds;
      priced.push_back(json::array{seconds, 0, json::array{}});
    }
    json::array& group = priced.back().as_array();
    group[1] = group[1].as_int64() + 1;
    if (group[2].as_array().size() < named) group[2].as_array().push_back(json::value(order));
  }
  return {{"distinct", plan.placements},
          {"best_block_seconds", plan.best.q2.block_seconds},
          {"worst_block_seconds", plan.worst_placement_block_seconds},
          {"priced", std::move(priced)}};
}

json::array comparisons_json(const Plan& plan) {
  json::array array;
  for (const Comparison& c : plan.comparisons) {
    json::object object{{"name", c.name}, {"allow_split_physical_axes", c.split_physical_axes}};
    if (c.ranked) {
      object["passes_block_seconds"] = c.ranked->passes_block_seconds;
      object["passes_step_seconds"] = c.ranked->passes_step_seconds;
      object["hbm_bytes"] = c.ranked->hbm_bytes;
      object["gain_seconds_per_block"] = c.ranked->passes_block_seconds - plan.best.passes_block_seconds;
      object["gain_percent"] = (c.ranked->passes_step_seconds / plan.best.passes_step_seconds - 1) * 100;
    } else {
      object["reason"] = c.reason;
    }
    array.push_back(std::move(object));
  }
  return array;
}

}  // namespace

std::string to_json(const Settings& s) {
  return json::serialize(json::object{{"survivor_fraction", s.survivor_fraction},
                                      {"survivor_floor", s.survivor_floor},
                                      {"finalists", s.finalists},
                                      {"verify", s.verify},
                                      {"runners_up", s.runners_up},
                                      {"proxy_layers", s.proxy_layers},
                                      {"minimum_weight_sharding", s.minimum_weight_sharding},
                                      {"ulysses", s.ulysses},
                                      {"windowed_einsum", s.windowed_einsum},
                                      {"survivors_of_each_kind", s.survivors_of_each_kind}});
}

Settings read_settings(const std::string& text) {
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  if (error || !value.is_object()) throw ParseError("planner settings are not a JSON object", 1, 1);
  json::object& object = value.as_object();
  Settings s;
  take(object, "survivor_fraction", s.survivor_fraction);
  take(object, "survivor_floor", s.survivor_floor);
  take(object, "finalists", s.finalists);
  take(object, "verify", s.verify);
  take(object, "runners_up", s.runners_up);
  take(object, "proxy_layers", s.proxy_layers);
  take(object, "minimum_weight_sharding", s.minimum_weight_sharding);
  take(object, "ulysses", s.ulysses);
  take(object, "windowed_einsum", s.windowed_einsum);
  take(object, "survivors_of_each_kind", s.survivors_of_each_kind);
  if (!object.empty()) {
    throw InvalidRequest("unknown planner setting \"" + std::string(object.begin()->key()) + "\"; known are " +
                         to_json(Settings{}));
  }
  const auto at_least = [](const char* what, std::int64_t given, std::int64_t least) {
    if (given < least) {
      throw InvalidRequest(std::string(what) + " is " + std::to_string(given) + "; it must be at least " +
                           std::to_string(least));
    }
  };
  if (!(s.survivor_fraction > 0 && s.survivor_fraction <= 1)) {
    throw InvalidRequest("survivor_fraction is " + std::to_string(s.survivor_fraction) +
                         "; it must be above 0 and at most 1");
  }
  at_least("survivor_floor", s.survivor_floor, 1);
  at_least("finalists", s.finalists, 1);
  at_least("verify", s.verify, 1);
  at_least("runners_up", s.runners_up, 0);
  at_least("proxy_layers", s.proxy_layers, 3);
  at_least("minimum_weight_sharding", s.minimum_weight_sharding, 0);
  if (s.verify > s.finalists) s.finalists = s.verify;
  return s;
}

std::string to_json(const Plan& plan) {
  json::array axis_names;
  json::array axis_sizes;
  for (const auto& axis : plan.best.candidate.mesh) {
    axis_names.push_back(json::value(axis.name));
    axis_sizes.push_back(axis.size);
  }
  json::array rules;
  for (const auto& [axis, mesh_axes] : plan.best.candidate.rules) {
    rules.push_back(json::array{json::value(axis), json::value_from(mesh_axes)});
  }
  json::array counts;
  for (const StageCount& c : plan.counts)
    counts.push_back({{"name", c.name}, {"count", c.count}, {"seconds", c.seconds}});
  json::array runners_up;
  for (const Ranked& r : plan.runners_up) runners_up.push_back(ranked_json(r, plan, false));

  json::object object{
      {"format", "aoizora plan"},
      {"version", 2},
      {"slice", json::parse(topology::to_json(plan.slice))},
      {"links", links_json(plan.slice)},
      {"settings", json::parse(to_json(plan.settings))},
      {"layers", plan.workload.layers},
      {"tokens", plan.workload.tokens},
      {"mesh", json::object{{"axis_names", std::move(axis_names)}, {"axis_sizes", std::move(axis_sizes)}}},
      {"axis_rules", std::move(rules)},
      {"attention", candidates::name(plan.best.candidate.attention)},
      {"kernel_blocks",
       json::object{{"queries", plan.best.candidate.blocks.queries}, {"keys", plan.best.candidate.blocks.keys}}},
      {"compiler_options", json::value_from(plan.best.candidate.compiler_options)},
      {"parameters", parameters_json(plan.workload, plan.best.candidate)},
      {"best", ranked_json(plan.best, plan, true)},
      {"hbm", hbm_json(plan)},
      {"placements", placements_json(plan)},
      {"times", json::object{{"decision_seconds", plan.decision_seconds}, {"verified_seconds", plan.verified_seconds}}},
      {"comparisons", comparisons_json(plan)},
      {"why", plan.why},
      {"half_rate_winner", plan.half_rate_winner},
      {"searched", json::value_from(plan.searched)},
      {"counts", std::move(counts)},
      {"runners_up", std::move(runners_up)},
      {"versions", json::value_from(plan.versions)},
      {"lost", json::value_from(plan.lost)},
      {"refused", json::value_from(plan.refused)}};
  if (plan.request) {
    object["request"] = json::parse(workload::to_json(*plan.request));
  } else {
    object["program"] = program_json(plan.workload);
  }
  if (plan.workload.attentions.empty()) {
    object["attention"] = nullptr;
    object["kernel_blocks"] = nullptr;
  }
  return json::serialize(object);
}

}  // namespace aoizora::planner
