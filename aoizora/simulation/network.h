#pragma once
// The links as shared resources, and what flows over them. Inside this room.
#include <cstdint>
#include <queue>
#include <span>
#include <unordered_map>
#include <vector>

#include "aoizora/topology/slice.h"

namespace aoizora::simulation {

/// A route with the limit of one flow on it. Flows of one lane always have equal rates.
using LaneId = std::int32_t;

/// All lanes asked for so far, by number.
class Lanes {
 public:
  Lanes() = default;
  explicit Lanes(const topology::Slice& slice) : slice_(&slice) {}
  /// The dimension-ordered route between two devices; a limit of 0 is none.
  LaneId between(topology::DeviceId from, topology::DeviceId to, double limit);
  /// One link alone.
  LaneId over(topology::LinkId link, double limit);
  /// Any links; a new lane at each call.
  LaneId along(std::span<const topology::LinkId> route, double limit);
  std::span<const topology::LinkId> links(LaneId lane) const {
    return {links_.data() + begin_[lane], static_cast<std::size_t>(begin_[lane + 1] - begin_[lane])};
  }
  double limit(LaneId lane) const { return limits_[lane]; }
  std::size_t size() const { return limits_.size(); }
  const topology::Slice& slice() const { return *slice_; }

 private:
  struct Key {
    std::int64_t route;
    double limit;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return std::hash<std::int64_t>()(key.route) * 31 + std::hash<double>()(key.limit);
    }
  };

  const topology::Slice* slice_ = nullptr;
  std::vector<std::int64_t> begin_{0};
  std::vector<topology::LinkId> links_;
  std::vector<double> limits_;
  std::unordered_map<Key, LaneId, Hash> ids_;
};

/// Transfers with what waits for what; bytes are for one byte of payload.
struct Graph {
  std::vector<LaneId> lane;
  std::vector<double> bytes;
  std::vector<double> latency_seconds;
  std::vector<std::int32_t> waits;       ///< for how many others
  std::vector<std::int32_t> next_begin;  ///< next[next_begin[i] .. next_begin[i + 1]) wait for i
  std::vector<std::int32_t> next;
  double alpha_seconds = 0;
  std::size_t size() const { return lane.size(); }
};

/// "a waits for b".
struct Wait {
  std::int32_t a = 0;
  std::int32_t b = 0;
};

/// Fills waits, next_begin and next of a graph whose transfers are in place.
void link(Graph& graph, std::span<const Wait> waits);

/// Max-min fair rates of lanes with so many flows on each. Keeps its working memory.
class Filling {
 public:
  explicit Filling(std::vector<double> capacities);
  /// rates[i] is that of one flow of lanes[i], of which there are counts[i]. `limit_scale` multiplies the lanes'
  /// limits.
  void fill(const Lanes& lanes, std::span<const LaneId> ids, std::span<const double> counts, double limit_scale,
            std::vector<double>& rates);

 private:
  std::vector<double> capacities_;
  std::vector<double> free_;   ///< of a link, not yet given away
  std::vector<double> users_;  ///< flows over a link whose rate is not yet settled
  std::vector<double> share_;
  std::vector<topology::LinkId> touched_;
  std::vector<std::int32_t> growing_;
};

/// Runs graphs on the links, from event to event: a transfer begins to flow, or ends. Time is counted from the moment
/// the network was last idle, so that what runs alone takes exactly the same time whenever it starts.
class Network {
 public:
  Network(const Lanes& lanes, double rate_scale);

  bool idle() const { return in_flight_ == 0; }
  /// Starts a graph with a payload as run number `run`, which must not be in flight. `time` must not lie before the
  /// network's own. A graph without transfers ends at once.
  void launch(std::int32_t run, const Graph& graph, double payload_bytes, double time);
  void advance(double time);
  /// Goes on until the run has ended; returns when. Throws std::logic_error if it never does.
  double finish(std::int32_t run);
  /// Goes on until nothing is in flight; returns when.
  double finish_all();
  bool in_flight(std::int32_t run) const {
    return run < static_cast<std::int32_t>(runs_.size()) && runs_[run].left > 0;
  }
  double end_of(std::int32_t run) const { return runs_[run].end; }
  /// When each transfer of a run ended.
  std::span<const double> transfer_ends(std::int32_t run) const { return runs_[run].ends; }
  /// Bytes each link has carried while recording.
  std::span<const double> carried() const { return carried_; }
  /// Keeps the two above.
  void record(bool record) {
    records_ = record;
    carried_.assign(lanes_->slice().links.size(), 0.0);
  }
  /// Moves everything in flight to a later time.
  void shift(double seconds) { origin_ += seconds; }
  /// What is in flight, as numbers that are equal in two moments from which all goes on alike.
  std::vector<double> state(double time) const;
  std::int64_t events() const { return events_; }

 private:
  struct Run {
    const Graph* graph = nullptr;
    double payload = 0;
    std::int32_t left = 0;
    double end = 0;
    std::vector<std::int32_t> waits;
    std::vector<double> ends;
  };
  struct Active {
    std::int32_t run, transfer;
    LaneId lane;
    double bytes, left;
  };
  struct Pending {
    double time;
    std::int64_t order;
    std::int32_t run, transfer;
    bool operator>(const Pending& other) const { return time != other.time ? time > other.time : order > other.order; }
  };

  bool step(double until);
  void begin(std::int32_t run, std::int32_t transfer, double at);
  void activate_due();
  void end(std::int32_t run, std::int32_t transfer);
  void drain(double seconds);
  void fill();

  const Lanes* lanes_;
  double rate_scale_;
  Filling filling_;
  double origin_ = 0, local_ = 0;
  std::vector<Run> runs_;
  std::int32_t in_flight_ = 0;
  std::vector<Active> active_;
  std::priority_queue<Pending, std::vector<Pending>, std::greater<>> pending_;
  std::int64_t order_ = 0, events_ = 0;
  bool stale_ = true, records_ = false;
  std::vector<double> carried_, count_of_lane_, rate_of_lane_, counts_, rates_;
  std::vector<LaneId> busy_lanes_;
};

}  // namespace aoizora::simulation
