#include "aoizora/simulation/simulation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "aoizora/errors.h"
#include "aoizora/simulation/expansion.h"
#include "aoizora/simulation/network.h"

namespace aoizora::simulation {
namespace {

using ranking::CompiledProgram;
using ranking::Step;

/// Steps after which a loop that still changes is taken to repeat its last trip. Only a program made to be endless
/// reaches it.
constexpr std::int64_t kMostSteps = 5'000'000;
/// Transfers kept from placement to placement; about 60 bytes each.
constexpr std::size_t kMostKept = std::size_t{1} << 22;

/// A pattern under one placement.
struct Physical {
  Graph graph;
  std::map<double, double> lone_seconds;  ///< by payload: how long it takes with nothing else in flight
};

/// What all placements of a program share.
struct Shared {
  Shared(const CompiledProgram& given_program, const topology::Slice& given_slice, const Options& given_options)
      : program(given_program), slice(given_slice), options(given_options), lanes(given_slice) {}

  const CompiledProgram& program;
  const topology::Slice& slice;
  Options options;
  Lanes lanes;
  std::map<std::vector<std::int32_t>, Physical> physical;  ///< by physical_key
  std::size_t transfers = 0;                               ///< in all of them
};

/// The core walks the steps; the network runs beside it.
class Timeline {
 public:
  Timeline(Shared& shared, std::vector<Physical*> patterns, std::int64_t layers)
      : shared_(shared),
        program_(shared.program),
        patterns_(std::move(patterns)),
        layers_(layers),
        network_(shared.lanes, shared.options.rate_scale),
        start_(program_.collectives.size(), 0.0),
        end_(program_.collectives.size(), 0.0),
        on_network_(program_.collectives.size(), false),
        copy_end_(program_.copies, 0.0) {}

  Timing run() {
    sequence(program_.entry);
    const bool has_block = program_.block >= 0;
    Timing timing;
    timing.exposed_communication_seconds = has_block ? block_exposed_ : exposed_;
    timing.block_seconds = block_seconds_;
    timing.collectives = has_block ? std::move(block_timings_) : std::move(timings_);
    timing.step_seconds = std::max(now_, network_end());
    timing.outside_seconds = timing.step_seconds - static_cast<double>(layers_) * timing.block_seconds;
    return timing;
  }

 private:
  /// A collective that runs alone so far, its end known without the network.
  struct Lone {
    std::int32_t collective = -1;
    double start = 0;
    double end = 0;
  };

  void sequence(std::int32_t index) {
    for (const Step& step : program_.sequences[index].steps) {
      ++steps_;
      switch (step.kind) {
        case Step::Kind::compute:
          now_ += step.seconds;
          break;
        case Step::Kind::start:
          launch(step.collective);
          break;
        case Step::Kind::done:
          wait(step.collective);
          break;
        case Step::Kind::synchronous:
          launch(step.collective);
          wait(step.collective);
          break;
        case Step::Kind::copy_start:
          copy_free_ = copy_end_[step.copy] = std::max(now_, copy_free_) + step.seconds;
          break;
        case Step::Kind::copy_done:
          now_ = std::max(now_, copy_end_[step.copy]);
          break;
        case Step::Kind::loop:
          loop(step);
          break;
      }
    }
  }

  double payload(std::int32_t collective) const {
    return static_cast<double>(program_.collectives[collective].payload_bytes());
  }
  Physical& physical(std::int32_t collective) { return *patterns_[program_.pattern_of[collective]]; }

  /// How long a collective takes alone; timed once a payload.
  double lone_seconds(std::int32_t collective) {
    Physical& pattern = physical(collective);
    const auto [found, is_new] = pattern.lone_seconds.try_emplace(payload(collective), 0.0);
    if (is_new) {
      Network alone(shared_.lanes, shared_.options.rate_scale);
      alone.launch(0, pattern.graph, payload(collective), 0.0);
      found->second = alone.finish_all();
    }
    return found->second;
  }

  void launch(std::int32_t collective) {
    if (end_known(collective))
      now_ = std::max(now_, end_[collective]);
    else
      now_ = std::max(now_, finish(collective));
    start_[collective] = end_[collective] = now_;
    const Graph& graph = physical(collective).graph;
    if (graph.size() == 0) return;
    if (lone_ && lone_->end <= now_) lone_.reset();
    network_.advance(now_);
    if (!shared_.options.exhaustive && !lone_ && network_.idle()) {
      end_[collective] = now_ + lone_seconds(collective);
      lone_ = Lone{collective, now_, end_[collective]};
      return;
    }
    if (lone_) {  // no longer alone: the network runs it from its start
      place(lone_->collective, lone_->start);
      lone_.reset();
    }
    place(collective, now_);
  }

  void place(std::int32_t collective, double at) {
    network_.launch(collective, physical(collective).graph, payload(collective), at);
    on_network_[collective] = true;
  }

  bool end_known(std::int32_t collective) const { return !on_network_[collective]; }

  double finish(std::int32_t collective) {
    end_[collective] = network_.finish(collective);
    on_network_[collective] = false;
    return end_[collective];
  }

  void wait(std::int32_t collective) {
    const double end = end_known(collective) ? end_[collective] : finish(collective);
    const double exposed = std::max(0.0, end - now_);
    now_ += exposed;
    now_ = std::max(now_, end);
    exposed_ += exposed;
    timings_.push_back({collective, start_[collective] - block_begin_, end - block_begin_, exposed});
  }

  double network_end() {
    double end = network_.idle() ? 0.0 : network_.finish_all();
    if (lone_) end = std::max(end, lone_->end);
    return end;
  }

  /// Everything of the past that a trip can feel, relative to now.
  std::vector<double> state() {
    if (lone_ && lone_->end <= now_) lone_.reset();
    network_.advance(now_);
    std::vector<double> result{std::max(0.0, copy_free_ - now_)};
    for (const double end : copy_end_) result.push_back(std::max(0.0, end - now_));
    if (lone_) result.insert(result.end(), {-1.0, static_cast<double>(lone_->collective), lone_->start - now_});
    const std::vector<double> flowing = network_.state(now_);
    result.insert(result.end(), flowing.begin(), flowing.end());
    return result;
  }

  static bool alike(const std::vector<double>& a, const std::vector<double>& b, double seconds) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::abs(a[i] - b[i]) > 1e-12 * std::max({std::abs(a[i]), std::abs(b[i]), seconds})) return false;
    }
    return true;
  }

  /// Runs trips until one begins as the one before began; the rest then are copies of that one.
  void loop(const Step& step) {
    const bool is_block = step.body == program_.block;
    const std::int64_t trips = is_block ? layers_ : step.trips;
    std::vector<double> before;
    if (!shared_.options.exhaustive) before = state();
    for (std::int64_t trip = 0; trip < trips; ++trip) {
      const double begin = now_, exposed = exposed_;
      const double outer_begin = block_begin_;
      std::vector<CollectiveTiming> outer;
      if (is_block) {
        block_begin_ = now_;
        outer.swap(timings_);
      }
      const std::size_t recorded = timings_.size();
      sequence(step.body);
      const double seconds = now_ - begin, waited = exposed_ - exposed;
      if (is_block) {
        block_seconds_ = seconds;
        block_exposed_ = waited;
        block_timings_ = std::move(timings_);
        timings_ = std::move(outer);
        block_begin_ = outer_begin;
      }
      if (trip + 1 == trips) return;
      std::vector<double> after;
      if (!shared_.options.exhaustive) after = state();
      if (!shared_.options.exhaustive && (alike(before, after, seconds) || steps_ >= kMostSteps)) {
        const double times = static_cast<double>(trips - trip - 1);
        for (std::size_t k = recorded; k < timings_.size(); ++k) {
          timings_[k].start_seconds += times * seconds;
          timings_[k].end_seconds += times * seconds;
        }
        return skip(times, seconds, waited);
      }
      if (!is_block) timings_.resize(recorded);  // the last trip speaks for all
      before = std::move(after);
    }
  }

  /// Adds copies of the last trip; what is in flight stays where it is relative to now.
  void skip(double times, double seconds, double waited) {
    const double shift = times * seconds;
    for (double& end : copy_end_) end += end > now_ ? shift : 0.0;
    if (copy_free_ > now_) copy_free_ += shift;
    if (lone_) {
      lone_->start += shift;
      lone_->end += shift;
      start_[lone_->collective] += shift;
      end_[lone_->collective] += shift;
    }
    for (std::size_t c = 0; c < on_network_.size(); ++c) {
      if (network_.in_flight(static_cast<std::int32_t>(c))) start_[c] += shift;
    }
    network_.shift(shift);
    now_ += shift;
    exposed_ += times * waited;
  }

  Shared& shared_;
  const CompiledProgram& program_;
  std::vector<Physical*> patterns_;
  const std::int64_t layers_;
  Network network_;
  double now_ = 0, exposed_ = 0, copy_free_ = 0;
  double block_begin_ = 0, block_seconds_ = 0, block_exposed_ = 0;
  std::int64_t steps_ = 0;
  std::vector<double> start_, end_;
  std::vector<bool> on_network_;  ///< its end is for the network to tell
  std::vector<double> copy_end_;
  std::optional<Lone> lone_;
  std::vector<CollectiveTiming> timings_, block_timings_;
};

void check(const CompiledProgram& program, std::int64_t layers, const Options& options) {
  if (layers < 1) throw InvalidRequest("layers is " + std::to_string(layers) + ", must be at least 1");
  if (!(options.rate_scale > 0) || !std::isfinite(options.rate_scale))
    throw InvalidRequest("rate_scale must be above 0 and finite");
  if (program.sequences.empty()) throw InvalidRequest("the compiled program has no schedule; extract it first");
}

double alone(const ranking::Pattern& pattern, double bytes, const placement::Placement& placement,
             const topology::Slice& slice, const Options& options) {
  if (!(bytes >= 0) || !std::isfinite(bytes)) throw InvalidRequest("bytes must be 0 or more, and finite");
  if (!(options.rate_scale > 0) || !std::isfinite(options.rate_scale))
    throw InvalidRequest("rate_scale must be above 0 and finite");
  check_placement(placement, slice);
  Lanes lanes(slice);
  const Graph graph = expand(pattern, placement.devices, lanes);
  Network network(lanes, options.rate_scale);
  network.launch(0, graph, bytes, 0.0);
  return network.finish_all();
}

}  // namespace

void check_placement(const placement::Placement& placement, const topology::Slice& slice) {
  std::vector<bool> used(slice.devices.size(), false);
  for (const topology::DeviceId device : placement.devices) {
    if (device < 0 || static_cast<std::size_t>(device) >= used.size() || used[device]) {
      throw InvalidRequest(
          "device " + std::to_string(device) + " of the placement is out of range or named twice; slice " + slice.name +
          " has devices 0 to " + std::to_string(used.size() - 1) + ", each of them for one rank at most");
    }
    used[device] = true;
  }
}

struct Simulator::State {
  Shared shared;
  std::int64_t layers;
};

Simulator::Simulator(const CompiledProgram& program, const topology::Slice& slice, std::int64_t layers,
                     const Options& options) {
  check(program, layers, options);
  state_ = std::make_unique<State>(State{Shared(program, slice, options), layers});
}
Simulator::~Simulator() = default;
Simulator::Simulator(Simulator&&) noexcept = default;
Simulator& Simulator::operator=(Simulator&&) noexcept = default;

Timing Simulator::simulate(const placement::Placement& placement) {
  Shared& shared = state_->shared;
  check_placement(placement, shared.slice);
  if (shared.transfers > kMostKept) {
    shared.physical.clear();
    shared.transfers = 0;
  }
  std::vector<Physical*> patterns;
  for (const ranking::Pattern& pattern : shared.program.patterns) {
    const auto [found, is_new] = shared.physical.try_emplace(physical_key(pattern, placement.devices));
    if (is_new) {
      found->second.graph = expand(pattern, placement.devices, shared.lanes);
      shared.transfers += found->second.graph.size();
    }
    patterns.push_back(&found->second);
  }
  return Timeline(shared, std::move(patterns), state_->layers).run();
}

Timing simulate(const CompiledProgram& program, const placement::Placement& placement, const topology::Slice& slice,
                std::int64_t layers, const Options& options) {
  return Simulator(program, slice, layers, options).simulate(placement);
}

double collective_seconds(topology::CollectiveKind kind, const ir::ReplicaGroups& groups, double bytes,
                          const placement::Placement& placement, const topology::Slice& slice, const Options& options) {
  if (kind == topology::CollectiveKind::permute)
    throw InvalidRequest("a permute has pairs, not groups: use permute_seconds");
  return alone({kind, groups, {}}, bytes, placement, slice, options);
}

double permute_seconds(std::span<const std::pair<std::int32_t, std::int32_t>> pairs, double bytes,
                       const placement::Placement& placement, const topology::Slice& slice, const Options& options) {
  return alone({topology::CollectiveKind::permute, {}, {pairs.begin(), pairs.end()}}, bytes, placement, slice, options);
}

}  // namespace aoizora::simulation
