#include <boost/json.hpp>
#include <numeric>

#include "aoizora/errors.h"
#include "aoizora/simulation/simulation.h"

namespace aoizora::simulation {
namespace {

namespace json = boost::json;
using ranking::Step;

json::object slice_object(const topology::Slice& slice) {
  json::array devices, links;
  for (const topology::Device& device : slice.devices) {
    json::array at(device.coordinates.begin(), device.coordinates.end());
    at.push_back(device.core);
    devices.push_back(std::move(at));
  }
  for (const topology::Link& link : slice.links) {
    links.push_back({{"kind", link.kind == topology::LinkKind::core ? "core" : "ici"},
                     {"from_chip", link.from_chip},
                     {"to_chip", link.to_chip},
                     {"from_core", link.from_core},
                     {"to_core", link.to_core},
                     {"bytes_per_second", link.bandwidth_bytes_per_second}});
  }
  json::object rates;
  for (const auto& [kind, rate] : slice.hardware.collectives) {
    rates[topology::name(kind)] = {{"alpha_seconds", rate.alpha_seconds.value},
                                   {"rate_fraction", rate.rate_fraction.value},
                                   {"flow_bytes_per_second", rate.flow_bytes_per_second.value},
                                   {"ring_directions", static_cast<int>(rate.ring_directions.value)}};
  }
  json::array wraps;
  for (const bool wrap : slice.wraps) wraps.push_back(json::value(wrap));
  return {{"name", slice.name},
          {"dims", json::array(slice.dims.begin(), slice.dims.end())},
          {"wraps", std::move(wraps)},
          {"cores_per_chip", slice.cores_per_chip},
          {"devices", std::move(devices)},
          {"hop_seconds", slice.hardware.hop_seconds.value},
          {"links", std::move(links)},
          {"collectives", std::move(rates)}};
}

json::array step_array(const Step& step, const ranking::CompiledProgram& program, std::int64_t layers) {
  switch (step.kind) {
    case Step::Kind::compute:
      return {"compute", step.seconds};
    case Step::Kind::synchronous:
      return {"sync", step.collective};
    case Step::Kind::start:
      return {"start", step.collective};
    case Step::Kind::done:
      return {"done", step.collective};
    case Step::Kind::loop:
      return {"loop", step.body, step.body == program.block ? layers : step.trips};
    case Step::Kind::copy_start:
      return {"copy_start", step.copy, step.seconds};
    case Step::Kind::copy_done:
      return {"copy_done", step.copy};
  }
  return {};
}

topology::DeviceId device_of(std::int32_t rank, const placement::Placement& placement) {
  if (rank >= 0 && static_cast<std::size_t>(rank) < placement.devices.size()) return placement.devices[rank];
  throw InvalidRequest("a collective names rank " + std::to_string(rank) + ", the placement has " +
                       std::to_string(placement.devices.size()) + " devices");
}

json::object collective_object(const ir::Collective& collective, const std::string& name,
                               const placement::Placement& placement) {
  json::array groups, pairs;
  for (const auto& [source, target] : collective.pairs)
    pairs.push_back(json::array{device_of(source, placement), device_of(target, placement)});
  for (const auto& ranks : collective.groups) {
    json::array group;
    for (const std::int32_t rank : ranks) group.push_back(device_of(rank, placement));
    groups.push_back(std::move(group));
  }
  if (groups.empty() && collective.kind != topology::CollectiveKind::permute)
    groups.push_back(json::array(placement.devices.begin(), placement.devices.end()));
  return {{"kind", topology::name(collective.kind)},
          {"name", name},
          {"bytes", collective.payload_bytes()},
          {"groups", std::move(groups)},
          {"pairs", std::move(pairs)}};
}

}  // namespace

std::string schedule_json(const ranking::CompiledProgram& program, const placement::Placement& placement,
                          const topology::Slice& slice, std::int64_t layers) {
  if (layers < 1) throw InvalidRequest("layers is " + std::to_string(layers) + ", must be at least 1");
  check_placement(placement, slice);
  json::array collectives, sequences;
  for (std::size_t c = 0; c < program.collectives.size(); ++c)
    collectives.push_back(collective_object(program.collectives[c], program.collective_names[c], placement));
  for (const ranking::Sequence& sequence : program.sequences) {
    json::array steps;
    for (const Step& step : sequence.steps) steps.push_back(step_array(step, program, layers));
    sequences.push_back({{"name", sequence.name}, {"steps", std::move(steps)}});
  }
  return json::serialize(json::object{{"format", "aoizora-schedule"},
                                      {"version", 1},
                                      {"slice", slice_object(slice)},
                                      {"placement", json::array(placement.devices.begin(), placement.devices.end())},
                                      {"collectives", std::move(collectives)},
                                      {"sequences", std::move(sequences)},
                                      {"entry", program.entry},
                                      {"block", program.block},
                                      {"layers", layers}});
}

namespace {

std::vector<std::vector<std::int32_t>> read_lists(std::string_view text) {
  const auto refuse = [] {
    throw InvalidRequest("groups must be JSON, a list of lists of ranks such as [[0, 1], [2, 3]]");
  };
  boost::system::error_code error;
  const json::value value = json::parse(text, error);
  if (error || !value.is_array()) refuse();
  std::vector<std::vector<std::int32_t>> result;
  for (const json::value& list : value.get_array()) {
    if (!list.is_array()) refuse();
    result.emplace_back();
    for (const json::value& rank : list.get_array()) {
      boost::system::error_code inexact;
      const auto number = rank.to_number<std::int32_t>(inexact);
      if (inexact) refuse();
      result.back().push_back(number);
    }
  }
  return result;
}

topology::CollectiveKind kind_of(std::string_view name) {
  std::string known;
  for (const topology::CollectiveKind kind : topology::all_collective_kinds) {
    if (topology::name(kind) == name) return kind;
    known += (known.empty() ? "" : ", ") + std::string(topology::name(kind));
  }
  throw InvalidRequest("no collective is called \"" + std::string(name) + "\"; known: " + known);
}

}  // namespace

double collective_seconds(std::string_view kind_name, std::string_view groups, double bytes,
                          const placement::Placement& placement, const topology::Slice& slice, const Options& options) {
  const topology::CollectiveKind kind = kind_of(kind_name);
  const ir::ReplicaGroups lists = read_lists(groups);
  if (kind != topology::CollectiveKind::permute)
    return collective_seconds(kind, lists, bytes, placement, slice, options);
  std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
  for (const auto& list : lists) {
    if (list.size() != 2) throw InvalidRequest("a permute takes pairs [source, target]");
    pairs.emplace_back(list[0], list[1]);
  }
  return permute_seconds(pairs, bytes, placement, slice, options);
}

std::string to_json(const Timing& timing, const ranking::CompiledProgram& program) {
  json::array collectives;
  for (const CollectiveTiming& one : timing.collectives) {
    collectives.push_back({{"collective", one.collective},
                           {"kind", topology::name(program.collectives.at(one.collective).kind)},
                           {"name", program.collective_names.at(one.collective)},
                           {"start_seconds", one.start_seconds},
                           {"end_seconds", one.end_seconds},
                           {"exposed_seconds", one.exposed_seconds}});
  }
  return json::serialize(json::object{{"step_seconds", timing.step_seconds},
                                      {"block_seconds", timing.block_seconds},
                                      {"outside_seconds", timing.outside_seconds},
                                      {"exposed_communication_seconds", timing.exposed_communication_seconds},
                                      {"collectives", std::move(collectives)}});
}

}  // namespace aoizora::simulation
