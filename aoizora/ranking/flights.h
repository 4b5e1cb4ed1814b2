#pragma once
// Collectives in flight and how they share the links. Inside this room.
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "aoizora/ranking/psi.h"

namespace aoizora::ranking {

struct SequenceHash {
  std::size_t operator()(std::span<const std::int32_t> values) const {
    std::uint64_t hash = 14695981039346656037ULL;  // FNV-1a, a word at a time
    for (const std::int32_t value : values) hash = (hash ^ static_cast<std::uint32_t>(value)) * 1099511628211ULL;
    return static_cast<std::size_t>(hash ^ (hash >> 29));
  }
};

/// How fast collectives run that are in flight together, 1 being as fast as alone. Remembers what it has worked out:
/// programs meet the same few combinations again and again.
class Shares {
 public:
  /// `units` may grow while this lives; what a number stands for must not change.
  Shares(const std::vector<UnitCost>& units, std::size_t links);
  /// Rate of each, by position. The result is valid until the next call.
  std::span<const double> rates(std::span<const std::int32_t> units);
  void forget() { known_.clear(); }

 private:
  std::vector<double> fill(std::span<const std::int32_t> units);

  const std::vector<UnitCost>* units_;
  std::vector<double> free_, flows_;  ///< of a link: what is left, transfers on it
  std::unordered_map<std::vector<std::int32_t>, std::vector<double>, SequenceHash> known_;
  std::vector<std::int32_t> key_;
};

/// One collective under a placement.
struct Priced {
  std::int32_t unit = 0;
  double latency_seconds = 0;  ///< before its bytes flow: α and hops
  double flow_seconds = 0;     ///< of its bytes, when nothing else is in flight
  double seconds() const { return latency_seconds + flow_seconds; }
};

/// One run of a collective, from its start-up to its last byte.
struct Flown {
  std::int32_t collective = -1;
  double begin = 0;
  double end = 0;
};

/// Runs collectives side by side: each passes its latency, then flows at the rate `shares` gives it, which changes only
/// when another one begins or ends.
class Flights {
 public:
  /// Without `shares` each runs as if alone.
  Flights(std::span<const Priced> priced, Shares* shares);

  /// Starts a collective that is not in flight, at `time` or when the last of `after` that is in flight has ended. Time
  /// never goes back.
  void launch(std::int32_t collective, double time, std::span<const std::int32_t> after = {});
  bool in_flight(std::int32_t collective) const { return running_[collective]; }
  /// Goes on until it has ended; returns when.
  double finish(std::int32_t collective);
  /// Goes on until all have ended; returns when the last one did.
  double finish_all();
  void advance(double time);
  /// Appends every run that ends from now on to `log`; nullptr for none. What is in flight is not moved by it.
  void record(std::vector<Flown>* log) { log_ = log; }
  /// Appends what is in flight, its end `time`.
  void append_flying(double time, std::vector<Flown>& log);
  /// Whether some collective was ever slowed by another.
  bool slowed() const { return slowed_; }
  /// Appends what is in flight at `time`, as numbers that are equal in two moments from which all goes on alike.
  void append_state(double time, std::vector<double>& state);
  /// Moves what began at `begin` or later to a later time.
  void shift(double begin, double seconds);

 private:
  struct Flight {
    std::int32_t collective = -1;
    double begin = 0;
    double flows_from = 0;
    double since = 0;  ///< when `left` and `rate` were set
    double left = 0;   ///< seconds of flowing alone
    double rate = 0;   ///< 0: in its latency
    double event() const { return rate > 0 ? since + left / rate : flows_from; }
  };
  struct Waiting {
    std::int32_t collective = -1;
    std::vector<std::int32_t> after;
  };

  void take_off(std::int32_t collective);
  bool step(double until);
  void share();

  std::span<const Priced> priced_;
  Shares* shares_;
  std::vector<Flown>* log_ = nullptr;
  double now_ = 0;
  bool slowed_ = false;
  std::vector<Flight> flights_;
  std::vector<Waiting> waiting_;
  std::vector<bool> running_;  ///< in flight or waiting
  std::vector<double> end_;
  std::vector<std::int32_t> flowing_;
};

}  // namespace aoizora::ranking
