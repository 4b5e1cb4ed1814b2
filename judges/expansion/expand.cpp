#include "expansion/expand.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "expansion/ways.h"

namespace judge {

void append(Plan& plan, Plan other) {
  const int base = static_cast<int>(plan.messages.size());
  for (Message& message : other.messages) {
    for (int& before : message.waits) before += base;
    plan.messages.push_back(std::move(message));
  }
  for (std::vector<int>& lane : other.lanes) {
    for (int& index : lane) index += base;
    plan.lanes.push_back(std::move(lane));
  }
}

namespace {

/// Where an all-gather's messages stand: needed to join phases, and a reduce-scatter to an all-gather.
struct Gather {
  Plan plan;
  std::vector<std::pair<int, int>> part_and_phase;  ///< of each message
  std::vector<bool> first_of_lane;
};

void append_track(Gather& gather, const Track& track, int part, int phase, double bytes) {
  Plan& plan = gather.plan;
  std::map<std::pair<int, int>, std::vector<int>> arrivals;  // {device, block}: messages that bring it there
  const std::size_t begin = plan.messages.size();
  std::vector<int> block_of;
  for (const std::vector<Pass>& edge : passes(track)) {
    if (edge.empty()) continue;
    std::vector<int>& lane = plan.lanes.emplace_back();
    for (const Pass& pass : edge) {
      const int index = static_cast<int>(plan.messages.size());
      gather.first_of_lane.push_back(lane.empty());
      gather.part_and_phase.emplace_back(part, phase);
      lane.push_back(index);
      plan.messages.push_back({pass.from, pass.to, bytes * track.block * pass.fraction, 0, {}});
      arrivals[{pass.to, pass.block}].push_back(index);
      block_of.push_back(pass.block);
    }
  }
  // A block is passed on by who has it: its owner, or who got it from the other side. The last step of a ring of an
  // even number brings two halves of a block, which nobody passes on.
  for (std::size_t k = begin; k < plan.messages.size(); ++k) {
    const auto brought = arrivals.find({plan.messages[k].from, block_of[k - begin]});
    if (brought != arrivals.end()) plan.messages[k].waits = brought->second;
  }
}

Gather all_gather(const Way& way, double bytes) {
  Gather gather;
  for (std::size_t part = 0; part < way.size(); ++part)
    for (std::size_t phase = 0; phase < way[part].phases.size(); ++phase)
      for (const Track& track : way[part].phases[phase])
        append_track(gather, track, static_cast<int>(part), static_cast<int>(phase), bytes);
  std::map<std::vector<int>, std::vector<int>> into;  // {part, phase, device}: messages
  for (std::size_t k = 0; k < gather.plan.messages.size(); ++k)
    into[{gather.part_and_phase[k].first, gather.part_and_phase[k].second, gather.plan.messages[k].to}].push_back(
        static_cast<int>(k));
  for (std::size_t k = 0; k < gather.plan.messages.size(); ++k) {
    const auto [part, phase] = gather.part_and_phase[k];
    if (!gather.first_of_lane[k] || phase == 0) continue;
    Message& message = gather.plan.messages[k];
    const std::vector<int>& before = into[{part, phase - 1, message.from}];
    message.waits.insert(message.waits.end(), before.begin(), before.end());
  }
  return gather;
}

/// The same messages the other way round, and in the other order.
Plan backwards(const Plan& plan) {
  Plan result;
  for (const Message& message : plan.messages)
    result.messages.push_back({message.to, message.from, message.bytes, 0, {}});
  for (std::size_t k = 0; k < plan.messages.size(); ++k)
    for (const int before : plan.messages[k].waits) result.messages[before].waits.push_back(static_cast<int>(k));
  for (std::vector<int> lane : plan.lanes) {
    std::ranges::reverse(lane);
    result.lanes.push_back(std::move(lane));
  }
  return result;
}

Plan all_reduce(const Gather& gather) {
  Plan plan = backwards(gather.plan);
  const int base = static_cast<int>(plan.messages.size());
  append(plan, gather.plan);
  for (int k = 0; k < base; ++k) {
    if (!gather.first_of_lane[k] || gather.part_and_phase[k].second != 0) continue;
    for (int reduced = 0; reduced < base; ++reduced)
      if (gather.part_and_phase[reduced] == gather.part_and_phase[k] &&
          plan.messages[reduced].to == plan.messages[base + k].from)
        plan.messages[base + k].waits.push_back(reduced);
  }
  return plan;
}

void append_lone(Plan& plan, int from, int to, double bytes) {
  if (from == to) return;
  plan.lanes.push_back({static_cast<int>(plan.messages.size())});
  plan.messages.push_back({from, to, bytes, 0, {}});
}

/// Every link of the tree of routes is a message of its own, as late as the link is deep.
Plan broadcast(const std::vector<int>& group, double bytes, const Mesh& mesh) {
  std::map<int, std::vector<int>> ends;  // wire: the devices it joins
  std::map<int, int> depth;
  for (const int device : group) {
    const std::vector<int> wires = mesh.route(group.front(), device);
    for (std::size_t k = 0; k < wires.size(); ++k) depth[wires[k]] = static_cast<int>(k) + 1;
  }
  for (const auto& [chips, wire] : mesh.wire_between)
    ends[wire] = {chips.first * mesh.cores, chips.second * mesh.cores};
  for (const auto& [place, wire] : mesh.wire_between_cores)
    ends[wire] = {place[0] * mesh.cores + place[1], place[0] * mesh.cores + place[2]};
  Plan plan;
  for (const auto& [wire, hops] : depth) {
    append_lone(plan, ends[wire][0], ends[wire][1], bytes);
    plan.messages.back().latency_hops = hops;
  }
  return plan;
}

Plan of_gather(const std::string& kind, const Gather& gather) {
  if (kind == "all-gather") return gather.plan;
  if (kind == "reduce-scatter") return backwards(gather.plan);
  if (kind == "all-reduce") return all_reduce(gather);
  throw std::runtime_error("no rings in a collective of kind " + kind);
}

Plan all_to_all(const std::vector<int>& group, double bytes) {
  Plan plan;
  for (const int from : group)
    for (const int to : group) append_lone(plan, from, to, bytes / static_cast<double>(group.size()));
  return plan;
}

Plan of_group(const Collective& collective, const std::vector<int>& group, const Rate& rate, const Mesh& mesh) {
  const std::string& kind = collective.kind;
  if (kind == "collective-broadcast") return broadcast(group, collective.bytes, mesh);
  if (kind == "all-to-all" || kind == "ragged-all-to-all") return all_to_all(group, collective.bytes);
  return of_gather(kind, all_gather(choose_way(group, rate, mesh), collective.bytes));
}

Plan of_ring(const Collective& collective, const std::vector<int>& ring) {
  const double block = 1.0 / static_cast<double>(ring.size());
  return of_gather(collective.kind,
                   all_gather({Part{{{Track{ring, collective.directions, block}}}}}, collective.bytes));
}

}  // namespace

Plan expand(const Collective& collective, const Mesh& mesh) {
  Plan plan;
  const Rate& rate = mesh.rates.at(collective.kind);
  if (collective.kind == "collective-permute")
    for (const auto& [from, to] : collective.pairs) append_lone(plan, from, to, collective.bytes);
  else if (!collective.rings.empty())
    for (const std::vector<int>& ring : collective.rings) append(plan, of_ring(collective, ring));
  else
    for (const std::vector<int>& group : collective.groups) append(plan, of_group(collective, group, rate, mesh));
  for (Message& message : plan.messages)
    if (message.latency_hops == 0) message.latency_hops = mesh.hops(message.from, message.to);
  return plan;
}

}  // namespace judge
