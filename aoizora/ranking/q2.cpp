#include "aoizora/ranking/q2.h"

#include <algorithm>
#include <limits>

#include "aoizora/errors.h"
#include "aoizora/prediction/prediction.h"

namespace aoizora::ranking {
namespace {

/// One collective under the placement.
struct Priced {
  const UnitCost* unit = nullptr;
  double bytes = 0;
  double seconds = 0;
  std::vector<double> dimension_seconds;
};

/// A collective on the wire.
struct Flight {
  double begin = 0;
  double end = 0;
  std::int32_t collective = -1;
};

/// What one run of a part of the program took.
struct Measure {
  double seconds = 0;
  double contention = 0;
  double exposed = 0;
};

/// RS_phys and R_cont (paper 4.4): the core walks the steps in order; a collective waits for the engines of the
/// physical dimensions it uses and holds each for its busy time.
class Timeline {
 public:
  Timeline(const CompiledProgram& program, const std::vector<Priced>& priced, const topology::Slice& slice,
           std::int64_t layers, const Q2Options& options)
      : program_(program),
        priced_(priced),
        layers_(layers),
        options_(options),
        end_(program.collectives.size(), 0.0),
        copy_end_(program.copies, 0.0),
        utilisation_(slice.links.size(), 0.0),
        waited_(program.collectives.size(), 0.0),
        runs_(program.collectives.size(), 0) {
    std::size_t engines = 0;
    for (const Priced& one : priced) engines = std::max(engines, one.dimension_seconds.size());
    engine_free_.assign(engines, 0.0);
  }

  void run(std::int32_t sequence) {
    if (options_.dependency_order) {
      run_by_dependencies(program_.sequences[sequence]);
      return;
    }
    for (const Step& step : program_.sequences[sequence].steps) {
      switch (step.kind) {
        case Step::Kind::start:
          launch(step.collective, now_);
          break;
        case Step::Kind::done:
          wait(step.collective);
          break;
        case Step::Kind::synchronous:
          launch(step.collective, now_);
          wait(step.collective);
          break;
        default:
          core(step);
      }
    }
  }

  /// Counts the contention of what is still in flight.
  void finish() {
    for (const Flight& flight : flights_) now_ = std::max(now_, flight.end);
    settle(now_);
  }

  double now() const { return now_; }
  double contention() const { return contention_; }
  double exposed() const { return exposed_; }
  const Measure& block() const { return block_; }
  double waited(std::int32_t collective) const {
    return runs_[collective] > 0 ? waited_[collective] / static_cast<double>(runs_[collective]) : 0.0;
  }

 private:
  void core(const Step& step) {
    switch (step.kind) {
      case Step::Kind::compute:
        now_ += step.seconds;
        break;
      case Step::Kind::loop:
        loop(step);
        break;
      case Step::Kind::copy_start:
        copy_free_ = copy_end_[step.copy] = std::max(now_, copy_free_) + step.seconds;
        break;
      case Step::Kind::copy_done:
        now_ = std::max(now_, copy_end_[step.copy]);
        break;
      default:
        break;
    }
  }

  void launch(std::int32_t collective, double earliest) {
    const Priced& cost = priced_[collective];
    double begin = earliest;
    for (std::size_t d = 0; d < cost.dimension_seconds.size(); ++d) {
      if (cost.dimension_seconds[d] > 0) begin = std::max(begin, engine_free_[d]);
    }
    for (std::size_t d = 0; d < cost.dimension_seconds.size(); ++d) {
      if (cost.dimension_seconds[d] > 0) engine_free_[d] = begin + cost.dimension_seconds[d];
    }
    end_[collective] = begin + cost.seconds;
    if (cost.seconds > 0) flights_.push_back({begin, end_[collective], collective});
  }

  void wait(std::int32_t collective) {
    const double waited = std::max(0.0, end_[collective] - now_);
    waited_[collective] += waited;
    ++runs_[collective];
    exposed_ += waited;
    now_ += waited;
  }

  /// The second model: a collective begins as soon as its operands are there, and the core waits where its result is
  /// first needed. Look-ahead ends with the sequence: without a bound the weight gathers of every block would flood the
  /// network at once.
  void run_by_dependencies(const Sequence& sequence) {
    const auto release = [&](std::int32_t finished) {
      for (const Step& step : sequence.steps) {
        const bool begins = step.kind == Step::Kind::start || step.kind == Step::Kind::synchronous;
        if (!begins || step.ready != finished) continue;
        double earliest = now_;
        for (const std::int32_t before : step.after) earliest = std::max(earliest, end_[before]);
        launch(step.collective, earliest);
      }
    };
    const auto need = [&](std::int32_t at) {
      for (const Step& step : sequence.steps) {
        const bool ends = step.kind == Step::Kind::done || step.kind == Step::Kind::synchronous;
        if (ends && step.needed == at) wait(step.collective);
      }
    };
    const std::int32_t count = static_cast<std::int32_t>(sequence.steps.size());
    release(-1);
    for (std::int32_t index = 0; index < count; ++index) {
      need(index);
      core(sequence.steps[index]);
      release(index);
    }
    need(count);
  }

  /// Runs the body until it repeats, then adds the remaining trips as copies of the last one.
  void loop(const Step& step) {
    const bool is_block = step.body == program_.block;
    const std::int64_t trips = is_block ? layers_ : step.trips;
    const std::int64_t simulated = std::min<std::int64_t>(trips, is_block ? 3 : 2);
    Measure last;
    double begin = now_;
    settle(now_);
    std::vector<double> engines, ends, copies;
    for (std::int64_t trip = 0; trip < simulated; ++trip) {
      if (trip + 1 == simulated && trips > simulated) {
        engines = engine_free_;
        ends = end_;
        copies = copy_end_;
      }
      if (is_block) {
        std::fill(waited_.begin(), waited_.end(), 0.0);
        std::fill(runs_.begin(), runs_.end(), 0);
      }
      begin = now_;
      const double contention = contention_, exposed = exposed_;
      run(step.body);
      settle(now_);
      last = {now_ - begin, contention_ - contention, exposed_ - exposed};
    }
    if (is_block && simulated > 0) block_ = last;
    const double rest = static_cast<double>(trips - simulated);
    if (!(rest > 0)) return;
    const double shift = rest * last.seconds;
    for (std::size_t i = 0; i < engines.size(); ++i) engine_free_[i] += engine_free_[i] != engines[i] ? shift : 0.0;
    for (std::size_t i = 0; i < ends.size(); ++i) end_[i] += end_[i] != ends[i] ? shift : 0.0;
    for (std::size_t i = 0; i < copies.size(); ++i) copy_end_[i] += copy_end_[i] != copies[i] ? shift : 0.0;
    for (Flight& flight : flights_) {
      if (flight.begin < begin) continue;
      flight.begin += shift;
      flight.end += shift;
    }
    now_ += shift;
    settled_ += shift;
    copy_free_ += copy_free_ > begin ? shift : 0.0;
    contention_ += rest * last.contention;
    exposed_ += rest * last.exposed;
  }

  /// R_cont over [settled, until]: in each interval the fullest link's time over the collectives in flight, each spread
  /// evenly over its own run, less the interval, which the engines have charged. One alone never fills a link beyond
  /// its own run.
  void settle(double until) {
    if (flights_.size() > 1) {
      edges_.clear();
      edges_.push_back(settled_);
      edges_.push_back(until);
      for (const Flight& flight : flights_) {
        if (flight.begin > settled_ && flight.begin < until) edges_.push_back(flight.begin);
        if (flight.end > settled_ && flight.end < until) edges_.push_back(flight.end);
      }
      std::sort(edges_.begin(), edges_.end());
      for (std::size_t i = 0; i + 1 < edges_.size(); ++i) contention_ += excess(edges_[i], edges_[i + 1]);
    }
    settled_ = std::max(settled_, until);
    std::erase_if(flights_, [&](const Flight& flight) { return flight.end <= settled_; });
  }

  double excess(double begin, double end) {
    if (!(end > begin)) return 0;
    int in_flight = 0;
    double fullest = 0;
    for (const Flight& flight : flights_) {
      if (flight.begin <= begin && flight.end >= end) ++in_flight;
    }
    if (in_flight < 2) return 0;
    for (const Flight& flight : flights_) {
      if (flight.begin > begin || flight.end < end) continue;
      const Priced& cost = priced_[flight.collective];
      const double scale = cost.bytes / options_.rate_scale / (flight.end - flight.begin);
      for (std::size_t l = 0; l < cost.unit->loads.size(); ++l) {
        double& link = utilisation_[cost.unit->loads[l].link];
        link += cost.unit->link_seconds_per_byte[l] * scale;
        fullest = std::max(fullest, link);
      }
    }
    for (const Flight& flight : flights_) {
      for (const LinkLoad& load : priced_[flight.collective].unit->loads) utilisation_[load.link] = 0;
    }
    constexpr double rounding = 1e-9;
    return fullest > 1 + rounding ? (end - begin) * (fullest - 1) : 0.0;
  }

  const CompiledProgram& program_;
  const std::vector<Priced>& priced_;
  const std::int64_t layers_;
  const Q2Options& options_;
  double now_ = 0, settled_ = 0, contention_ = 0, exposed_ = 0, copy_free_ = 0;
  std::vector<double> engine_free_, end_, copy_end_, utilisation_, waited_, edges_;
  std::vector<std::int64_t> runs_;
  std::vector<Flight> flights_;
  Measure block_;
};

void check(const CompiledProgram& program, const placement::Placement& placement, const topology::Slice& slice,
           std::int64_t layers, const Q2Options& options) {
  if (layers < 1) throw InvalidRequest("layers is " + std::to_string(layers) + ", must be at least 1");
  if (!(options.rate_scale > 0)) throw InvalidRequest("rate_scale must be above 0");
  if (program.sequences.empty()) throw InvalidRequest("the compiled program has no schedule; call extract() first");
  const std::size_t devices = slice.devices.size();
  if (placement.devices.size() > devices) {
    throw InvalidRequest("the placement has " + std::to_string(placement.devices.size()) + " devices, slice " +
                         slice.name + " has " + std::to_string(devices));
  }
  std::vector<bool> used(devices, false);
  for (const topology::DeviceId device : placement.devices) {
    if (device < 0 || device >= static_cast<topology::DeviceId>(devices) || used[device]) {
      throw InvalidRequest("the placement must name each device of slice " + slice.name + " at most once; device " +
                           std::to_string(device) + " is out of range or named twice");
    }
    used[device] = true;
  }
}

/// Runs of each collective in one run of a sequence.
void count_runs(const CompiledProgram& program, std::int32_t sequence, std::int64_t times,
                std::vector<std::int64_t>& runs, std::vector<std::int32_t>& order) {
  for (const Step& step : program.sequences[sequence].steps) {
    if (step.kind == Step::Kind::start || step.kind == Step::Kind::synchronous) {
      std::int64_t& count = runs[step.collective];
      if (count == 0) order.push_back(step.collective);
      count = count > std::numeric_limits<std::int64_t>::max() - times ? count : count + times;
    } else if (step.kind == Step::Kind::loop) {
      const std::int64_t inner =
          times > std::numeric_limits<std::int64_t>::max() / step.trips ? times : times * step.trips;
      count_runs(program, step.body, inner, runs, order);
    }
  }
}

Q2 evaluate(const CompiledProgram& program, const placement::Placement& placement, const topology::Slice& slice,
            std::int64_t layers, const Q2Options& options, bool breakdown) {
  check(program, placement, slice, layers, options);
  const Network network(slice);
  std::vector<UnitCost> units;
  units.reserve(program.patterns.size());
  for (const Pattern& pattern : program.patterns) units.push_back(unit_cost(pattern, placement.devices, network));

  std::vector<Priced> priced(program.collectives.size());
  for (std::size_t c = 0; c < priced.size(); ++c) {
    Priced& one = priced[c];
    one.unit = &units[program.pattern_of[c]];
    one.bytes = static_cast<double>(program.collectives[c].payload_bytes());
    one.seconds = one.unit->fixed_seconds + one.bytes * one.unit->seconds_per_byte / options.rate_scale;
    for (const double seconds : one.unit->dimension_seconds_per_byte) {
      one.dimension_seconds.push_back(one.bytes * seconds / options.rate_scale);
    }
  }

  Timeline timeline(program, priced, slice, layers, options);
  timeline.run(program.entry);
  timeline.finish();
  const bool has_block = program.block >= 0;
  const Measure block = timeline.block();
  Q2 q2;
  q2.contention_seconds = has_block ? block.contention : timeline.contention();
  q2.exposed_communication_seconds = has_block ? block.exposed : timeline.exposed();
  q2.block_seconds = has_block ? block.seconds + block.contention : 0.0;
  const double repeated = static_cast<double>(layers) * q2.block_seconds;
  q2.outside_seconds = std::max(0.0, timeline.now() + timeline.contention() - repeated);
  q2.step_seconds = q2.outside_seconds + repeated;
  const std::int32_t shown = has_block ? program.block : program.entry;
  q2.compute = program.sequences[shown].compute;
  if (!breakdown) return q2;

  std::vector<std::int64_t> runs(program.collectives.size(), 0);
  std::vector<std::int32_t> order;
  count_runs(program, shown, 1, runs, order);
  for (const std::int32_t c : order) {
    const Priced& one = priced[c];
    const ir::Collective& collective = program.collectives[c];
    CollectiveCost cost;
    cost.collective = c;
    cost.kind = collective.kind;
    cost.name = program.collective_names[c];
    cost.runs = static_cast<double>(runs[c]);
    cost.bytes = one.bytes;
    cost.seconds = one.seconds;
    cost.exposed_seconds = timeline.waited(c);
    const double lone = one.unit->lone_fixed_seconds + one.bytes * one.unit->lone_seconds_per_byte / options.rate_scale;
    cost.contention_seconds = std::max(0.0, one.seconds - lone);
    const std::size_t members = collective.groups.empty() ? placement.devices.size() : collective.groups.front().size();
    const double volume = one.bytes * prediction::volume_factor(collective.kind, static_cast<std::int64_t>(members));
    cost.effective_bytes_per_second = one.seconds > 0 ? volume / one.seconds : 0.0;
    for (const LinkLoad& load : one.unit->loads) cost.links.push_back(load.link);
    q2.collectives.push_back(std::move(cost));
  }
  return q2;
}

}  // namespace

Q2 score(const CompiledProgram& program, const placement::Placement& placement, const topology::Slice& slice,
         std::int64_t layers, const Q2Options& options) {
  return evaluate(program, placement, slice, layers, options, false);
}

Q2 explain(const CompiledProgram& program, const placement::Placement& placement, const topology::Slice& slice,
           std::int64_t layers, const Q2Options& options) {
  return evaluate(program, placement, slice, layers, options, true);
}

double hbm_bytes_at_depth(const CompiledProgram& program, std::int64_t proxy_total_bytes, std::int64_t layers) {
  const double stacked = static_cast<double>(program.stacked_argument_bytes);
  const double growth =
      static_cast<double>(layers) / static_cast<double>(std::max<std::int64_t>(1, program.proxy_layers)) - 1;
  return static_cast<double>(proxy_total_bytes) + stacked * growth;
}

}  // namespace aoizora::ranking
