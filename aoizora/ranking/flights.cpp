#include "aoizora/ranking/flights.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace aoizora::ranking {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
/// Rates closer than this are one: rounding must not part what is equal.
constexpr double same_rate = 1 + 1e-12;
constexpr std::size_t most_known = 1 << 16;
/// Of a link: what rounding may take from the last ones to share it.
constexpr double least_free = 1e-9;

}  // namespace

Shares::Shares(const std::vector<UnitCost>& units, std::size_t links)
    : units_(&units), free_(links, 0.0), flows_(links, 0.0) {}

std::span<const double> Shares::rates(std::span<const std::int32_t> units) {
  key_.assign(units.begin(), units.end());
  if (const auto found = known_.find(key_); found != known_.end()) return found->second;
  if (known_.size() >= most_known) known_.clear();
  return known_[key_] = fill(units);
}

/// Max-min fair, transfer by transfer: a link that is wanted too much is parted evenly among the transfers on it, and a
/// collective goes at the pace of its slowest. With shares u, flows f and rates p: on every link the sum of u p is at
/// most 1, and p u <= f x what a transfer gets there. The least pace is settled first, those who can go as fast as
/// alone before all; what they leave is parted anew.
std::vector<double> Shares::fill(std::span<const std::int32_t> units) {
  std::vector<double> rates(units.size(), 0.0), pace(units.size());
  std::vector<std::size_t> open(units.size());
  std::iota(open.begin(), open.end(), std::size_t{0});
  const auto links_of = [&](std::size_t i) -> std::span<const LinkUse> { return (*units_)[units[i]].links; };
  for (const std::size_t i : open) {
    for (const LinkUse& use : links_of(i)) free_[use.link] = 1;
  }
  while (!open.empty()) {
    for (const std::size_t i : open) {
      for (const LinkUse& use : links_of(i)) flows_[use.link] += use.flows;
    }
    double least = 1;
    bool free = false;
    for (const std::size_t i : open) {
      pace[i] = 1;
      for (const LinkUse& use : links_of(i)) {
        const double part = std::max(least_free, free_[use.link]) * use.flows / flows_[use.link];
        if (part * same_rate < use.share * pace[i]) pace[i] = part / use.share;
      }
      least = std::min(least, pace[i]);
      free = free || pace[i] == 1;
    }
    for (const std::size_t i : open) {
      for (const LinkUse& use : links_of(i)) flows_[use.link] = 0;
    }
    const auto settles = [&](std::size_t i) { return free ? pace[i] == 1 : pace[i] <= least * same_rate; };
    for (const std::size_t i : open) {
      if (!settles(i)) continue;
      rates[i] = pace[i];
      for (const LinkUse& use : links_of(i)) free_[use.link] -= pace[i] * use.share;
    }
    std::erase_if(open, settles);
  }
  return rates;
}

Flights::Flights(std::span<const Priced> priced, Shares* shares)
    : priced_(priced), shares_(shares), running_(priced.size(), false), end_(priced.size(), 0.0) {}

void Flights::launch(std::int32_t collective, double time, std::span<const std::int32_t> after) {
  advance(time);
  end_[collective] = now_;
  if (!(priced_[collective].seconds() > 0)) return;
  running_[collective] = true;
  std::vector<std::int32_t> others;
  for (const std::int32_t other : after) {
    if (other != collective && running_[other]) others.push_back(other);
  }
  if (others.empty()) {
    take_off(collective);
  } else {
    waiting_.push_back({collective, std::move(others)});
  }
}

void Flights::take_off(std::int32_t collective) {
  const Priced& cost = priced_[collective];
  flights_.push_back({collective, now_, now_ + cost.latency_seconds, now_, cost.flow_seconds, 0});
}

/// One event, if there is one up to `until`.
bool Flights::step(double until) {
  double next = never;
  for (const Flight& flight : flights_) next = std::min(next, flight.event());
  if (next > until || next == never) return false;
  now_ = std::max(now_, next);
  for (std::size_t i = 0; i < flights_.size();) {
    Flight& flight = flights_[i];
    const bool due = flight.event() <= now_;
    if (due && flight.rate == 0 && flight.left > 0) {
      flight.since = flight.flows_from;
      flight.rate = 1;
    } else if (due) {
      const std::int32_t ended = flight.collective;
      running_[ended] = false;
      end_[ended] = now_;
      if (log_ != nullptr) log_->push_back({ended, flight.begin, now_});
      flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    ++i;
  }
  for (std::size_t i = 0; i < waiting_.size();) {
    std::erase_if(waiting_[i].after, [&](std::int32_t other) { return !running_[other]; });
    if (!waiting_[i].after.empty()) {
      ++i;
      continue;
    }
    take_off(waiting_[i].collective);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  share();
  return true;
}

void Flights::share() {
  if (!shares_) return;
  flowing_.clear();
  for (const Flight& flight : flights_) {
    if (flight.rate > 0) flowing_.push_back(priced_[flight.collective].unit);
  }
  if (flowing_.empty()) return;
  const std::span<const double> rates = flowing_.size() > 1 ? shares_->rates(flowing_) : std::span<const double>();
  std::size_t k = 0;
  for (Flight& flight : flights_) {
    if (flight.rate == 0) continue;
    const double rate = rates.empty() ? 1.0 : rates[k++];
    slowed_ = slowed_ || rate < 1;
    if (rate == flight.rate) continue;
    flight.left = std::max(0.0, flight.left - (now_ - flight.since) * flight.rate);
    flight.since = now_;
    flight.rate = rate;
  }
}

void Flights::advance(double time) {
  while (step(time)) {
  }
  now_ = std::max(now_, time);
}

double Flights::finish(std::int32_t collective) {
  while (running_[collective] && step(never)) {
  }
  return end_[collective];
}

double Flights::finish_all() {
  while (step(never)) {
  }
  return now_;
}

void Flights::append_flying(double time, std::vector<Flown>& log) {
  advance(time);
  for (const Flight& flight : flights_) log.push_back({flight.collective, flight.begin, time});
}

void Flights::append_state(double time, std::vector<double>& state) {
  advance(time);
  for (const Flight& flight : flights_) {
    const double gone = flight.rate > 0 ? (time - flight.since) * flight.rate : 0.0;
    state.insert(state.end(), {static_cast<double>(flight.collective), std::max(0.0, flight.flows_from - time),
                               std::max(0.0, flight.left - gone)});
  }
  for (const Waiting& one : waiting_) state.push_back(-1.0 - static_cast<double>(one.collective));
}

void Flights::shift(double begin, double seconds) {
  for (Flight& flight : flights_) {
    if (flight.begin < begin) continue;
    flight.begin += seconds;
    flight.flows_from += seconds;
    flight.since += seconds;
  }
  now_ += seconds;
}

}  // namespace aoizora::ranking
