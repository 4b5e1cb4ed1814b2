#include "aoizora/simulation/network.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>

namespace aoizora::simulation {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Shares closer than this are one: rounding must not part what is equal.
constexpr double kSameShare = 1 + 1e-12;
/// Of a transfer's bytes: what rounding leaves when it has ended.
constexpr double kRest = 1e-11;
/// Beginnings closer than this are one.
constexpr double kSameSeconds = 1e-14;

}  // namespace

LaneId Lanes::along(std::span<const topology::LinkId> route, double limit) {
  const LaneId id = static_cast<LaneId>(limits_.size());
  links_.insert(links_.end(), route.begin(), route.end());
  begin_.push_back(static_cast<std::int64_t>(links_.size()));
  limits_.push_back(limit);
  return id;
}

LaneId Lanes::between(topology::DeviceId from, topology::DeviceId to, double limit) {
  const Key key{static_cast<std::int64_t>(from) * static_cast<std::int64_t>(slice_->devices.size()) + to, limit};
  if (const auto found = ids_.find(key); found != ids_.end()) return found->second;
  return ids_[key] = along(slice_->route(from, to), limit);
}

LaneId Lanes::over(topology::LinkId link, double limit) {
  const Key key{-1 - static_cast<std::int64_t>(link), limit};
  if (const auto found = ids_.find(key); found != ids_.end()) return found->second;
  return ids_[key] = along(std::array{link}, limit);
}

void link(Graph& graph, std::span<const Wait> waits) {
  const std::size_t count = graph.size();
  graph.waits.assign(count, 0);
  graph.next_begin.assign(count + 1, 0);
  graph.next.resize(waits.size());
  for (const Wait& wait : waits) {
    ++graph.waits[wait.a];
    ++graph.next_begin[wait.b + 1];
  }
  for (std::size_t i = 0; i < count; ++i) graph.next_begin[i + 1] += graph.next_begin[i];
  std::vector<std::int32_t> at(graph.next_begin.begin(), graph.next_begin.end() - 1);
  for (const Wait& wait : waits) graph.next[at[wait.b]++] = wait.a;
}

Filling::Filling(std::vector<double> capacities)
    : capacities_(std::move(capacities)),
      free_(capacities_.size(), 0.0),
      users_(capacities_.size(), 0.0),
      share_(capacities_.size(), 0.0) {}

void Filling::fill(const Lanes& lanes, std::span<const LaneId> ids, std::span<const double> counts, double limit_scale,
                   std::vector<double>& rates) {
  rates.assign(ids.size(), kNever);
  growing_.clear();
  touched_.clear();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    growing_.push_back(static_cast<std::int32_t>(i));
    for (const topology::LinkId l : lanes.links(ids[i])) {
      if (users_[l] == 0) {
        touched_.push_back(l);
        free_[l] = capacities_[l];
      }
      users_[l] += counts[i];
    }
  }
  const auto limit_of = [&](std::int32_t i) {
    const double limit = lanes.limit(ids[i]);
    return limit > 0 ? limit * limit_scale : kNever;
  };
  while (!growing_.empty()) {
    double least = kNever;
    for (const topology::LinkId l : touched_) {
      share_[l] = users_[l] > 0.5 ? std::max(0.0, free_[l]) / users_[l] : kNever;
      least = std::min(least, share_[l]);
    }
    for (const std::int32_t i : growing_) least = std::min(least, limit_of(i));
    if (least == kNever) break;
    const double up_to = least * kSameShare;
    // Who is stopped is told by the shares of this round, so links are debited afterwards.
    const auto stopped = [&](std::int32_t i) {
      if (limit_of(i) <= up_to) return true;
      const auto route = lanes.links(ids[i]);
      return std::any_of(route.begin(), route.end(), [&](topology::LinkId l) { return share_[l] <= up_to; });
    };
    std::erase_if(growing_, [&](std::int32_t i) {
      if (!stopped(i)) return false;
      rates[i] = least;
      for (const topology::LinkId l : lanes.links(ids[i])) {
        free_[l] -= least * counts[i];
        users_[l] -= counts[i];
      }
      return true;
    });
  }
  for (const topology::LinkId l : touched_) users_[l] = 0;
}

namespace {

std::vector<double> scaled_capacities(const topology::Slice& slice, double rate_scale) {
  std::vector<double> capacities;
  for (const topology::Link& one : slice.links) capacities.push_back(one.bandwidth_bytes_per_second * rate_scale);
  return capacities;
}

}  // namespace

Network::Network(const Lanes& lanes, double rate_scale)
    : lanes_(&lanes), rate_scale_(rate_scale), filling_(scaled_capacities(lanes.slice(), rate_scale)) {}

void Network::launch(std::int32_t index, const Graph& graph, double payload_bytes, double time) {
  if (idle()) {
    origin_ = time;
    local_ = 0;
  } else {
    advance(time);
  }
  if (static_cast<std::size_t>(index) >= runs_.size()) runs_.resize(index + 1);
  Run& run = runs_[index];
  run.graph = &graph;
  run.payload = payload_bytes;
  run.left = static_cast<std::int32_t>(graph.size());
  run.end = time;
  run.waits = graph.waits;
  if (records_) run.ends.assign(graph.size(), 0.0);
  if (run.left == 0) return;
  ++in_flight_;
  const double at = local_ + graph.alpha_seconds;
  for (std::int32_t t = 0; t < run.left; ++t) {
    if (run.waits[t] == 0) begin(index, t, at);
  }
}

void Network::begin(std::int32_t run, std::int32_t transfer, double at) {
  pending_.push({at + runs_[run].graph->latency_seconds[transfer], order_++, run, transfer});
}

void Network::end(std::int32_t run_index, std::int32_t transfer) {
  Run& run = runs_[run_index];
  ++events_;
  if (records_) run.ends[transfer] = origin_ + local_;
  const Graph& graph = *run.graph;
  for (std::int32_t k = graph.next_begin[transfer]; k < graph.next_begin[transfer + 1]; ++k) {
    const std::int32_t next = graph.next[k];
    if (--run.waits[next] == 0) begin(run_index, next, local_);
  }
  if (--run.left == 0) {
    run.end = origin_ + local_;
    --in_flight_;
  }
}

/// Transfers whose latency has passed begin to flow; those of no bytes end at once.
void Network::activate_due() {
  while (!pending_.empty() && pending_.top().time <= local_ + kSameSeconds) {
    const Pending due = pending_.top();
    pending_.pop();
    const Run& run = runs_[due.run];
    const double bytes = run.graph->bytes[due.transfer] * run.payload;
    const LaneId lane = run.graph->lane[due.transfer];
    if (!(bytes > 0) || (lanes_->links(lane).empty() && !(lanes_->limit(lane) > 0))) {
      end(due.run, due.transfer);
      continue;
    }
    active_.push_back({due.run, due.transfer, lane, bytes, bytes});
    stale_ = true;
  }
}

void Network::fill() {
  if (!stale_) return;
  stale_ = false;
  count_of_lane_.resize(lanes_->size(), 0.0);
  rate_of_lane_.resize(lanes_->size(), 0.0);
  busy_lanes_.clear();
  for (const Active& one : active_) {
    if (count_of_lane_[one.lane] == 0) busy_lanes_.push_back(one.lane);
    count_of_lane_[one.lane] += 1;
  }
  counts_.clear();
  for (const LaneId lane : busy_lanes_) {
    counts_.push_back(count_of_lane_[lane]);
    count_of_lane_[lane] = 0;
  }
  filling_.fill(*lanes_, busy_lanes_, counts_, rate_scale_, rates_);
  for (std::size_t i = 0; i < busy_lanes_.size(); ++i) rate_of_lane_[busy_lanes_[i]] = rates_[i];
}

void Network::drain(double seconds) {
  if (!(seconds > 0)) return;
  for (Active& one : active_) one.left -= rate_of_lane_[one.lane] * seconds;
  if (!records_) return;
  for (const Active& one : active_) {
    for (const topology::LinkId l : lanes_->links(one.lane)) carried_[l] += rate_of_lane_[one.lane] * seconds;
  }
}

/// One event, if there is one up to `until` (local time). Otherwise goes to `until` and returns false.
bool Network::step(double until) {
  fill();
  double next = pending_.empty() ? kNever : pending_.top().time;
  for (const Active& one : active_) next = std::min(next, local_ + std::max(0.0, one.left) / rate_of_lane_[one.lane]);
  if (next > until || next == kNever) {
    if (until != kNever && until > local_) {
      drain(until - local_);
      local_ = until;
    }
    return false;
  }
  drain(next - local_);
  local_ = std::max(local_, next);
  const double at = local_;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < active_.size(); ++i) {
    const Active one = active_[i];
    const double rate = rate_of_lane_[one.lane];
    if (one.left <= kRest * one.bytes || at + one.left / rate <= at) {
      stale_ = true;
      end(one.run, one.transfer);
    } else {
      active_[kept++] = one;
    }
  }
  active_.resize(kept);
  activate_due();
  return true;
}

void Network::advance(double time) {
  if (idle()) return;
  const double until = time - origin_;
  while (!idle() && step(until)) {
  }
}

double Network::finish(std::int32_t run) {
  while (runs_[run].left > 0) {
    if (!step(kNever)) throw std::logic_error("transfers wait for each other in a circle");
  }
  return runs_[run].end;
}

double Network::finish_all() {
  while (!idle()) {
    if (!step(kNever)) throw std::logic_error("transfers wait for each other in a circle");
  }
  return origin_ + local_;
}

std::vector<double> Network::state(double time) const {
  std::vector<double> result;
  if (idle()) return result;
  for (std::size_t run = 0; run < runs_.size(); ++run) {
    if (runs_[run].left == 0) continue;
    result.push_back(static_cast<double>(run));
    result.insert(result.end(), runs_[run].waits.begin(), runs_[run].waits.end());
  }
  std::vector<std::array<double, 3>> flowing;
  for (const Active& one : active_)
    flowing.push_back({static_cast<double>(one.run), static_cast<double>(one.transfer), one.left});
  std::sort(flowing.begin(), flowing.end());
  for (const auto& one : flowing) result.insert(result.end(), one.begin(), one.end());
  auto pending = pending_;
  for (; !pending.empty(); pending.pop()) {
    const Pending& one = pending.top();
    result.push_back(one.run);
    result.push_back(one.transfer);
    result.push_back(origin_ + one.time - time);
  }
  return result;
}

}  // namespace aoizora::simulation
