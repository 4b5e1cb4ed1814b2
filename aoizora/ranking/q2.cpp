#include "aoizora/ranking/q2.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "aoizora/errors.h"
#include "aoizora/prediction/prediction.h"
#include "aoizora/ranking/flights.h"

namespace aoizora::ranking {
namespace {

struct PatternHash {
  std::size_t operator()(const PlacedPattern& pattern) const {
    SequenceHash hash;
    std::size_t result = static_cast<std::size_t>(pattern.kind);
    const auto add = [&](std::size_t value) { result = (result ^ value) * 1099511628211ULL; };
    for (const auto& group : pattern.groups) add(hash(group));
    for (const auto& [from, to] : pattern.pairs)
      add((static_cast<std::size_t>(from) << 20) ^ static_cast<std::size_t>(to));
    return result ^ (result >> 29);
  }
};

/// What one run of a part of the program took.
struct Measure {
  double seconds = 0;
  double exposed = 0;
};

/// Writes down one block while it is run; collectives by their number in the program.
class Recorder {
 public:
  struct Mark {
    std::size_t core = 0;
    std::size_t flown = 0;
  };

  bool on() const { return on_; }
  void begin(double now, Flights& flights) {
    core_.clear();
    flown_.clear();
    merge_from_ = 0;
    begin_ = now;
    on_ = true;
    flights.record(&flown_);
  }
  void end(double now, Flights& flights) {
    flights.append_flying(now, flown_);
    flights.record(nullptr);
    end_ = now;
    on_ = false;
  }
  void core(CoreSlot::Kind kind, double seconds, std::int32_t collective = -1) {
    if (!on_ || !(seconds > 0)) return;
    if (collective < 0 && core_.size() > merge_from_ && core_.back().kind == kind) {
      core_.back().seconds += seconds;
    } else {
      core_.push_back({kind, seconds, collective});
    }
  }
  /// What comes from here on may be repeated.
  Mark mark() {
    merge_from_ = core_.size();
    return {core_.size(), flown_.size()};
  }
  /// Appends copies of what came since `from`, which took `seconds`.
  void repeat(const Mark& from, std::int64_t times, double seconds) {
    constexpr std::size_t most_slots = 4096;
    const std::size_t core = core_.size(), flown = flown_.size();
    const std::size_t more = core - from.core + flown - from.flown;
    if (static_cast<double>(times) * static_cast<double>(more) > static_cast<double>(most_slots)) {
      this->core(CoreSlot::Kind::trips, static_cast<double>(times) * seconds);
      return;
    }
    for (std::int64_t trip = 1; trip <= times; ++trip) {
      const double shift = static_cast<double>(trip) * seconds;
      for (std::size_t i = from.core; i < core; ++i) core_.push_back(CoreSlot(core_[i]));
      for (std::size_t i = from.flown; i < flown; ++i) {
        flown_.push_back({flown_[i].collective, flown_[i].begin + shift, flown_[i].end + shift});
      }
    }
    merge_from_ = core_.size();
  }
  /// `shown[c]`: where the breakdown lists collective c, -1 where it does not.
  BlockTimeline timeline(std::span<const std::int32_t> shown) const {
    BlockTimeline result;
    for (const CoreSlot& slot : core_) {
      result.core.push_back({slot.kind, slot.seconds, slot.collective < 0 ? -1 : shown[slot.collective]});
    }
    for (const Flown& one : flown_) {
      const double from = std::max(0.0, one.begin - begin_), to = std::min(one.end, end_) - begin_;
      if (shown[one.collective] >= 0 && to > from) result.flights.push_back({shown[one.collective], from, to});
    }
    std::stable_sort(result.flights.begin(), result.flights.end(),
                     [](const FlightSlot& a, const FlightSlot& b) { return a.begin_seconds < b.begin_seconds; });
    return result;
  }

 private:
  std::vector<CoreSlot> core_;
  std::vector<Flown> flown_;
  std::size_t merge_from_ = 0;
  double begin_ = 0, end_ = 0;
  bool on_ = false;
};

CoreSlot::Kind slot_kind(Work work) {
  switch (work) {
    case Work::matmul:
      return CoreSlot::Kind::matmul;
    case Work::attention:
      return CoreSlot::Kind::attention;
    case Work::relayout:
      return CoreSlot::Kind::relayout;
    default:
      return CoreSlot::Kind::other;
  }
}

/// The core walks the steps in order; collectives run beside it.
class Timeline {
 public:
  /// Without `shares` no collective feels another.
  Timeline(const CompiledProgram& program, std::span<const Priced> priced, Shares* shares, std::int64_t layers,
           const Q2Options& options, Recorder* recorder = nullptr)
      : program_(program),
        layers_(layers),
        options_(options),
        recorder_(recorder),
        flights_(priced, shares),
        copy_end_(program.copies, 0.0),
        waited_(program.collectives.size(), 0.0),
        runs_(program.collectives.size(), 0) {}

  void run() {
    if (recorder_ != nullptr && program_.block < 0) recorder_->begin(now_, flights_);
    sequence(program_.entry);
    const double end = std::max(now_, flights_.finish_all());
    note(CoreSlot::Kind::wait, end - now_);
    now_ = end;
    if (recorder_ != nullptr && program_.block < 0) recorder_->end(now_, flights_);
  }

  double seconds() const { return now_; }
  double exposed() const { return exposed_; }
  /// Whether some collective was slowed by another.
  bool slowed() const { return flights_.slowed(); }
  const Measure& block() const { return block_; }
  double waited(std::int32_t collective) const {
    return runs_[collective] > 0 ? waited_[collective] / static_cast<double>(runs_[collective]) : 0.0;
  }

 private:
  void note(CoreSlot::Kind kind, double seconds, std::int32_t collective = -1) {
    if (recorder_ != nullptr) recorder_->core(kind, seconds, collective);
  }

  void sequence(std::int32_t index) {
    if (options_.dependency_order) {
      run_by_dependencies(program_.sequences[index]);
      return;
    }
    for (const Step& step : program_.sequences[index].steps) {
      switch (step.kind) {
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
        default:
          core(step);
      }
    }
  }

  void core(const Step& step) {
    switch (step.kind) {
      case Step::Kind::compute:
        note(slot_kind(step.work), step.seconds);
        now_ += step.seconds;
        break;
      case Step::Kind::loop:
        loop(step);
        break;
      case Step::Kind::copy_start:
        copy_free_ = copy_end_[step.copy] = std::max(now_, copy_free_) + step.seconds;
        break;
      case Step::Kind::copy_done:
        note(CoreSlot::Kind::copy_wait, copy_end_[step.copy] - now_);
        now_ = std::max(now_, copy_end_[step.copy]);
        break;
      default:
        break;
    }
  }

  /// What still runs from a trip before ends first.
  void launch(std::int32_t collective, std::span<const std::int32_t> after = {}) {
    if (flights_.in_flight(collective)) {
      const double ended = flights_.finish(collective);
      note(CoreSlot::Kind::wait, ended - now_, collective);
      now_ = std::max(now_, ended);
    }
    flights_.launch(collective, now_, after);
  }

  void wait(std::int32_t collective) {
    const double waited = std::max(0.0, flights_.finish(collective) - now_);
    waited_[collective] += waited;
    ++runs_[collective];
    exposed_ += waited;
    note(CoreSlot::Kind::wait, waited, collective);
    now_ += waited;
  }

  /// The second model: a collective begins as soon as its operands are there, and the core waits where its result is
  /// first needed. Look-ahead ends with the sequence: without a bound the weight gathers of every block would flood the
  /// network at once.
  void run_by_dependencies(const Sequence& sequence) {
    const auto release = [&](std::int32_t finished) {
      for (const Step& step : sequence.steps) {
        const bool begins = step.kind == Step::Kind::start || step.kind == Step::Kind::synchronous;
        if (begins && step.ready == finished) launch(step.collective, step.after);
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

  /// Everything of the past that a trip can feel, relative to now.
  std::vector<double> state() {
    std::vector<double> state{std::max(0.0, copy_free_ - now_)};
    for (const double end : copy_end_) state.push_back(std::max(0.0, end - now_));
    flights_.append_state(now_, state);
    return state;
  }

  static bool alike(std::span<const double> a, std::span<const double> b, double seconds) {
    constexpr double rounding = 1e-12;
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (std::abs(a[i] - b[i]) > rounding * std::max({std::abs(a[i]), std::abs(b[i]), seconds})) return false;
    }
    return true;
  }

  /// Runs trips until one ends as it began, or the third; the remaining ones are copies of it.
  void loop(const Step& step) {
    constexpr std::int64_t most_trips = 3;  // extract() counts on it
    const bool is_block = step.body == program_.block;
    const std::int64_t trips = is_block ? layers_ : step.trips;
    std::vector<double> before = state();
    for (std::int64_t trip = 0; trip < trips; ++trip) {
      if (is_block) {
        std::fill(waited_.begin(), waited_.end(), 0.0);
        std::fill(runs_.begin(), runs_.end(), 0);
        if (recorder_ != nullptr) recorder_->begin(now_, flights_);
      }
      const Recorder::Mark mark = recorder_ != nullptr ? recorder_->mark() : Recorder::Mark{};
      const double begin = now_, exposed = exposed_;
      sequence(step.body);
      const Measure last{now_ - begin, exposed_ - exposed};
      if (is_block) block_ = last;
      if (is_block && recorder_ != nullptr) recorder_->end(now_, flights_);
      std::vector<double> after = state();
      if (trip + 1 < most_trips && !alike(before, after, last.seconds)) {
        before = std::move(after);
        continue;
      }
      if (recorder_ != nullptr && recorder_->on()) recorder_->repeat(mark, trips - trip - 1, last.seconds);
      skip(static_cast<double>(trips - trip - 1), begin, last);
      return;
    }
  }

  /// Adds copies of the last trip, which began at `begin`; what began in it goes on after the last copy.
  void skip(double times, double begin, const Measure& last) {
    const double shift = times * last.seconds;
    flights_.shift(begin, shift);
    for (double& end : copy_end_) end += end > now_ ? shift : 0.0;
    copy_free_ += copy_free_ > now_ ? shift : 0.0;
    now_ += shift;
    exposed_ += times * last.exposed;
  }

  const CompiledProgram& program_;
  const std::int64_t layers_;
  const Q2Options& options_;
  Recorder* const recorder_;
  double now_ = 0, exposed_ = 0, copy_free_ = 0;
  Flights flights_;
  std::vector<double> copy_end_, waited_;
  std::vector<std::int64_t> runs_;
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

}  // namespace

struct Scorer::State {
  State(const CompiledProgram& given, const topology::Slice& on, std::int64_t depth, const Q2Options& wanted)
      : program(given), slice(on), layers(depth), options(wanted), network(on), shares(units, on.links.size()) {
    for (const ir::Collective& collective : program.collectives)
      bytes.push_back(static_cast<double>(collective.payload_bytes()));
  }

  void price(const placement::Placement& placement);
  std::int32_t unit_of(const PlacedPattern& pattern);
  Q2 evaluate(const placement::Placement& placement, bool breakdown);
  void explain(const Timeline& timeline, const Recorder& recorder, std::size_t ranks, std::int32_t sequence,
               Q2& q2) const;

  const CompiledProgram& program;
  const topology::Slice& slice;
  const std::int64_t layers;
  const Q2Options options;
  const Network network;
  std::vector<double> bytes;  ///< of each collective
  std::vector<UnitCost> units;
  std::size_t links_kept = 0;  ///< in all units
  std::unordered_map<PlacedPattern, std::int32_t, PatternHash> known;
  Shares shares;
  std::vector<std::int32_t> unit_of_pattern;
  std::vector<Priced> priced;
};

std::int32_t Scorer::State::unit_of(const PlacedPattern& pattern) {
  const auto [found, is_new] = known.try_emplace(pattern, static_cast<std::int32_t>(units.size()));
  if (is_new) {
    units.push_back(unit_cost(pattern, network));
    links_kept += units.back().links.size();
  }
  return found->second;
}

void Scorer::State::price(const placement::Placement& placement) {
  constexpr std::size_t most_links_kept = std::size_t{1} << 21;
  if (links_kept > most_links_kept) {
    known.clear();
    units.clear();
    shares.forget();
    links_kept = 0;
  }
  unit_of_pattern.clear();
  for (const Pattern& pattern : program.patterns) unit_of_pattern.push_back(unit_of(place(pattern, placement.devices)));
  priced.resize(program.collectives.size());
  for (std::size_t c = 0; c < priced.size(); ++c) {
    Priced& one = priced[c];
    one.unit = unit_of_pattern[program.pattern_of[c]];
    const UnitCost& unit = units[one.unit];
    one.latency_seconds = unit.fixed_seconds;
    one.flow_seconds = bytes[c] * unit.seconds_per_byte / options.rate_scale;
  }
}

Q2 Scorer::State::evaluate(const placement::Placement& placement, bool breakdown) {
  check(program, placement, slice, layers, options);
  price(placement);
  Recorder recorder;
  Timeline timeline(program, priced, &shares, layers, options, breakdown ? &recorder : nullptr);
  timeline.run();
  const bool has_block = program.block >= 0;
  const Measure block = has_block ? timeline.block() : Measure{timeline.seconds(), timeline.exposed()};
  Q2 q2;
  q2.exposed_communication_seconds = block.exposed;
  if (timeline.slowed()) {  // RS_phys: the same schedule, each collective as fast as alone
    Timeline alone(program, priced, nullptr, layers, options);
    alone.run();
    q2.contention_seconds = std::max(0.0, block.seconds - (has_block ? alone.block().seconds : alone.seconds()));
  }
  q2.block_seconds = has_block ? block.seconds : 0.0;
  const double repeated = static_cast<double>(layers) * q2.block_seconds;
  q2.outside_seconds = std::max(0.0, timeline.seconds() - repeated);
  q2.step_seconds = q2.outside_seconds + repeated;
  const std::int32_t shown = has_block ? program.block : program.entry;
  q2.compute = program.sequences[shown].compute;
  if (breakdown) explain(timeline, recorder, placement.devices.size(), shown, q2);
  return q2;
}

void Scorer::State::explain(const Timeline& timeline, const Recorder& recorder, std::size_t ranks,
                            std::int32_t sequence, Q2& q2) const {
  std::vector<std::int64_t> runs(program.collectives.size(), 0);
  std::vector<std::int32_t> order;
  std::vector<std::int32_t> shown(program.collectives.size(), -1);
  count_runs(program, sequence, 1, runs, order);
  for (const std::int32_t c : order) {
    const UnitCost& unit = units[priced[c].unit];
    const ir::Collective& collective = program.collectives[c];
    CollectiveCost cost;
    cost.collective = c;
    cost.kind = collective.kind;
    cost.name = program.collective_names[c];
    cost.runs = static_cast<double>(runs[c]);
    cost.bytes = bytes[c];
    cost.seconds = priced[c].seconds();
    cost.exposed_seconds = timeline.waited(c);
    const double lone = unit.lone_fixed_seconds + bytes[c] * unit.lone_seconds_per_byte / options.rate_scale;
    cost.contention_seconds = std::max(0.0, cost.seconds - lone);
    const std::size_t members = collective.groups.empty() ? ranks : collective.groups.front().size();
    const double volume = bytes[c] * prediction::volume_factor(collective.kind, static_cast<std::int64_t>(members));
    cost.effective_bytes_per_second = cost.seconds > 0 ? volume / cost.seconds : 0.0;
    for (const LinkUse& use : unit.links) {
      cost.links.push_back(use.link);
      cost.link_bytes_per_byte.push_back(use.bytes);
    }
    shown[c] = static_cast<std::int32_t>(q2.collectives.size());
    q2.collectives.push_back(std::move(cost));
  }
  q2.timeline = recorder.timeline(shown);
}

Scorer::Scorer(const CompiledProgram& program, const topology::Slice& slice, std::int64_t layers,
               const Q2Options& options)
    : state_(std::make_unique<State>(program, slice, layers, options)) {}
Scorer::~Scorer() = default;
Scorer::Scorer(Scorer&&) noexcept = default;
Scorer& Scorer::operator=(Scorer&&) noexcept = default;

Q2 Scorer::score(const placement::Placement& placement) { return state_->evaluate(placement, false); }
Q2 Scorer::explain(const placement::Placement& placement) { return state_->evaluate(placement, true); }

Q2 score(const CompiledProgram& program, const placement::Placement& placement, const topology::Slice& slice,
         std::int64_t layers, const Q2Options& options) {
  return Scorer(program, slice, layers, options).score(placement);
}

Q2 explain(const CompiledProgram& program, const placement::Placement& placement, const topology::Slice& slice,
           std::int64_t layers, const Q2Options& options) {
  return Scorer(program, slice, layers, options).explain(placement);
}

double hbm_bytes_at_depth(const CompiledProgram& program, std::int64_t proxy_total_bytes, std::int64_t layers) {
  const double stacked = static_cast<double>(program.stacked_argument_bytes);
  const double growth =
      static_cast<double>(layers) / static_cast<double>(std::max<std::int64_t>(1, program.proxy_layers)) - 1;
  return static_cast<double>(proxy_total_bytes) + stacked * growth;
}

}  // namespace aoizora::ranking
