#include "aoizora/planner/planner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "aoizora/ir/memory_report.h"
#include "aoizora/ir/readers.h"
#include "aoizora/planner/bound.h"
#include "aoizora/planner/cycles.h"
#include "aoizora/planner/describe.h"
#include "aoizora/planner/pricing.h"
#include "aoizora/prediction/bound.h"

namespace aoizora::planner {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// XLA:TPU keeps an einsum whole when its operand is smaller than this threshold, so a huge one turns windowed einsum
/// off.
const std::pair<const std::string, std::string> windowed_einsum_off{"xla_jf_spmd_threshold_for_windowed_einsum_mib",
                                                                    "1000000"};

/// Jobs that wait or run at once beyond those that are needed in any case. An answer decides what is asked after so
/// many more, whatever number of workers there is: more workers than this may stay idle, a larger window asks more than
/// it needs.
constexpr std::size_t window = 8;

/// So many crashes and time-outs before the first answer of a rung, and the compiler is taken to be broken: it has no
/// fault with a sharding, and asking it for hundreds more takes hours.
constexpr int hopeless = 8;

/// A bound and what it bounds are sums of the same numbers in another order.
constexpr double rounding = 1 + 1e-9;

/// A sharding that the HLO passes compiled, with the price of every placement.
struct Compiled {
  candidates::Candidate candidate;
  std::string signature;
  prediction::Q1 q1;
  ranking::CompiledProgram program;
  std::string text;  ///< of the program; kept for the few that may be compared by the compiler's cycles
  double hbm_bytes = 0;
  std::vector<placement::Placement> placements;
  std::vector<double> block_seconds;  ///< by placement
  std::size_t best = 0;               ///< placement of the least block time; the first of equals
  bool settled = false;               ///< compiled with code generation, or shown not to need it
};

std::size_t least(const std::vector<double>& values) {
  return static_cast<std::size_t>(std::min_element(values.begin(), values.end()) - values.begin());
}

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f ms", seconds * 1e3);
  return text;
}

std::string gibibytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", bytes / (1024.0 * 1024.0 * 1024.0));
  return text;
}

/// What is planned.
struct Subject {
  std::optional<workload::Request> request;
  workload::Workload workload;
  std::int64_t reserved_hbm_bytes = 0;
};

/// The whole of Algorithm 1 for one subject; each stage a member, in order.
class Search {
 public:
  Search(const Subject& subject, const topology::Slice& slice, const Settings& settings, Compiler& compiler,
         const std::function<bool(const Progress&)>& progress, CycleMemory* memory)
      : slice_(slice), settings_(settings), compiler_(compiler), progress_(progress), memory_(memory) {
    plan_.request = subject.request;
    plan_.workload = subject.workload;
    plan_.reserved_hbm_bytes = subject.reserved_hbm_bytes;
    plan_.slice = slice;
    plan_.settings = settings;
    budget_bytes_ = slice.hardware.hbm_bytes.value - static_cast<double>(plan_.reserved_hbm_bytes);
    if (budget_bytes_ < 1) {
      throw Infeasible("nothing is left to plan with: " + gibibytes(static_cast<double>(plan_.reserved_hbm_bytes)) +
                       " of HBM are reserved and a device of " + slice.name + " has " +
                       gibibytes(slice.hardware.hbm_bytes.value) + "; reserve less");
    }
  }

  Plan run() {
    std::size_t waiting = 0, scored = 0;
    for (auto& shardings : contests(enumerate())) {
      Frontier frontier = make_frontier(std::move(shardings));
      compile_survivors(frontier);
      waiting += frontier.waiting.size();
      scored += frontier.scored.size();
    }
    if (scored == 0) {
      throw CompilerFailed("the compiler lowered none of the " + std::to_string(waiting) +
                           " shardings; the first failure: " + first_failure_);
    }
    widen();
    decide();
    compile_winners();
    compile_rest();
    compare_with_today();
    choose();
    plan_.versions = compiler_.versions();
    return std::move(plan_);
  }

 private:
  struct Scored {
    candidates::Candidate candidate;
    std::string signature;
    double q1_bound_seconds = 0;     ///< known before the compiler is asked
    double block_bound_seconds = 0;  ///< of Q2, known after stage 1
    prediction::Q1 q1;
    double unhidden_seconds = 0;  ///< Q1, or the bound on Q2 at full depth where that is more
    double score_seconds = 0;     ///< what stage 1 ranks by: one of the two
    bool deployed = false;        ///< what people deploy today: a survivor in any case, so no plan is slower than it
    bool survived = false;        ///< handed on to stage 2
  };

  /// The candidates of one enumeration on their way through stage 1.
  struct Frontier {
    std::vector<Scored> waiting;  ///< what is deployed, then least bound first
    std::size_t asked = 0;        ///< of these
    std::vector<Scored> scored;   ///< least score first
  };

  const workload::Workload& workload() const { return plan_.workload; }
  /// What is priced as a block, to people: a whole program is one.
  std::string unit() const { return workload().whole_program ? "step" : "block"; }

  candidates::EnumerationOptions enumeration_options() const {
    candidates::EnumerationOptions options;
    options.hbm_budget_bytes = static_cast<std::int64_t>(budget_bytes_);
    options.minimum_weight_sharding = settings_.minimum_weight_sharding;
    options.ulysses = settings_.ulysses;
    return options;
  }

  /// Nothing where no sharding fits in HBM.
  std::optional<candidates::Enumeration> fitting(const candidates::EnumerationOptions& options) const {
    try {
      return candidates::enumerate(workload(), slice_, options);
    } catch (const candidates::NothingFits&) {
      return std::nullopt;
    }
  }

  /// Without idle mesh axes; with them where no sharding fits otherwise.
  candidates::Enumeration enumerate_fitting() {
    auto options = enumeration_options();
    auto found = fitting(options);
    if (!found) {
      options.idle_axes = true;
      found = fitting(options);
      plan_.idle_axes_searched = found.has_value();
    }
    // Again for the error, which says what is missing without idle axes.
    return found ? std::move(*found) : candidates::enumerate(workload(), slice_, enumeration_options());
  }

  std::vector<candidates::Candidate> enumerate() {
    const auto start = Clock::now();
    auto found = enumerate_fitting();
    count("assignments of weight axes to mesh axes", found.assignments, 0);
    count("legal shardings", found.legal, 0);
    count("distinct shardings", found.distinct, 0);
    count("sharded enough", found.sharded_enough, 0);
    count("fitting in HBM by the estimate", found.fitting, 0);
    count("with attention kinds", found.with_attention, seconds_since(start));
    shardings_ = found.fitting;
    return std::move(found.candidates);
  }

  /// The candidates that compete in stage 1: all, or those of each attention kind apart.
  std::vector<std::vector<candidates::Candidate>> contests(std::vector<candidates::Candidate> shardings) const {
    std::vector<std::vector<candidates::Candidate>> result;
    if (!settings_.survivors_of_each_kind) {
      result.push_back(std::move(shardings));
      return result;
    }
    std::map<candidates::AttentionKind, std::vector<candidates::Candidate>> by_kind;
    for (auto& candidate : shardings) by_kind[candidate.attention].push_back(std::move(candidate));
    for (auto& [kind, group] : by_kind) result.push_back(std::move(group));
    return result;
  }

  Frontier make_frontier(std::vector<candidates::Candidate> shardings) {
    Frontier frontier;
    std::set<std::string> deployed;
    for (const Deployment& deployment : deployments(workload(), static_cast<std::int64_t>(slice_.devices.size())))
      deployed.insert(candidates::canonical_signature(workload(), deployment.candidate));
    for (auto& candidate : shardings) {
      Scored scored;
      scored.signature = candidates::canonical_signature(workload(), candidate);
      scored.q1_bound_seconds = prediction::lower_bound(workload(), candidate, slice_.hardware).seconds;
      scored.candidate = std::move(candidate);
      scored.deployed = deployed.contains(scored.signature);
      tried_.insert(scored.signature);
      frontier.waiting.push_back(std::move(scored));
    }
    std::sort(frontier.waiting.begin(), frontier.waiting.end(), [](const Scored& a, const Scored& b) {
      return std::tuple(!a.deployed, a.q1_bound_seconds, std::string_view(a.signature)) <
             std::tuple(!b.deployed, b.q1_bound_seconds, std::string_view(b.signature));
    });
    return frontier;
  }

  /// Lower, propagate, Q1 (paper 4.3), in that order, until the `wanted` best by their score are known: the bound of
  /// the next is above the last of them. Ties go by signature. One Q1 below its bound, and all are asked.
  void settle(Frontier& frontier, std::size_t wanted) {
    const auto start = Clock::now();
    auto& scored = frontier.scored;
    const auto may_survive = [&](const Scored& next) {
      return !q1_bound_holds_ || scored.size() < wanted ||
             next.q1_bound_seconds <= scored[wanted - 1].score_seconds * rounding;
    };
    const std::size_t first = frontier.asked;
    const auto supply = [&]() -> std::optional<Job> {
      if (frontier.asked == frontier.waiting.size() || !may_survive(frontier.waiting[frontier.asked])) return {};
      Job job;
      job.candidate = frontier.waiting[frontier.asked].candidate;
      job.rung = CompilerRung::propagate;
      job.layers = settings_.proxy_layers;
      job.priority = static_cast<double>(frontier.asked++);
      return job;
    };
    const auto left = [&] {
      const auto next = frontier.waiting.begin() + static_cast<std::ptrdiff_t>(frontier.asked);
      return static_cast<std::size_t>(std::count_if(next, frontier.waiting.end(), may_survive));
    };
    ask("stage 1: propagate", wanted, supply, left, [&](std::size_t i, Answer& answer) {
      Scored one = frontier.waiting[first + i];
      if (!usable(CompilerRung::propagate, one.candidate, answer) ||
          !readable(one.candidate, [&] { predict(one, std::move(answer.text)); })) {
        return;
      }
      if (one.q1.seconds * rounding < one.q1_bound_seconds) q1_bound_holds_ = false;
      const auto less = [](const Scored& a, const Scored& b) {
        return std::tie(a.score_seconds, a.signature) < std::tie(b.score_seconds, b.signature);
      };
      const auto at = scored.insert(std::upper_bound(scored.begin(), scored.end(), one, less), one);
      if (at == scored.begin() && compiled_.empty())
        best_line_ = describe(one.candidate, workload()) + " (Q1 " + milliseconds(one.q1.seconds) + ")";
    });
    stage_1_seconds_ += seconds_since(start);
  }

  void predict(Scored& scored, std::string text) const {
    const ir::Program program = ir::read_stablehlo(std::move(text));
    const auto graph = prediction::build_prediction_graph(program, workload(), scored.candidate, slice_.hardware);
    scored.q1 = prediction::score(graph, slice_.hardware, workload().layers);
    scored.block_bound_seconds = block_bound(graph, scored.candidate.mesh, slice_).seconds;
    // Q1 hides all communication under compute but for the sums that the loop carries. The bound on Q2 knows what else
    // the compiler never hides: Ulysses' exchanges, a training step's sums over devices (docs/programs.md).
    scored.unhidden_seconds =
        std::max(scored.q1.seconds, static_cast<double>(workload().layers) * scored.block_bound_seconds);
    scored.score_seconds = workload().whole_program ? scored.unhidden_seconds : scored.q1.seconds;
  }

  /// Where the compiler fits none of the candidates: those that the weight-sharding factor taken from HBM left out, for
  /// it is a rule of thumb, then those with an idle mesh axis.
  void widen() {
    auto options = enumeration_options();
    const bool asked = options.minimum_weight_sharding > 0;
    if (!asked) options.minimum_weight_sharding = 1;
    for (const bool idle : {false, true}) {
      const bool memory_is_short = std::isfinite(least_needed_bytes_);
      if (!compiled_.empty() || !memory_is_short || (asked && !idle) || (idle && plan_.idle_axes_searched)) continue;
      options.idle_axes = idle;
      auto more = candidates::enumerate(workload(), slice_, options).candidates;
      std::erase_if(more, [&](const auto& candidate) {
        return tried_.contains(candidates::canonical_signature(workload(), candidate));
      });
      plan_.idle_axes_searched = plan_.idle_axes_searched || idle;
      if (more.empty()) continue;
      count(idle ? "more with an idle mesh axis, as nothing else fits" : "more with less divided weights", more.size(),
            0);
      Frontier frontier = make_frontier(std::move(more));
      compile_survivors(frontier);
    }
  }

  /// Of the `places` best of those scored by what cannot be hidden, the last.
  static double unhidden_seconds_of(const Frontier& frontier, std::size_t places) {
    std::vector<double> seconds;
    for (const Scored& scored : frontier.scored) seconds.push_back(scored.unhidden_seconds);
    std::sort(seconds.begin(), seconds.end());
    return seconds.empty() || places == 0 ? 0 : seconds[std::min(places, seconds.size()) - 1];
  }

  /// HLO passes for the survivors, all placements priced (paper 4.4), until the best is known. Where none fits, the
  /// next in line follow.
  void compile_survivors(Frontier& frontier) {
    const auto start = Clock::now();
    const double stage_1_before = stage_1_seconds_;
    // The paper's K counts logical shardings; a sharding with another attention kind is not another one.
    const auto share =
        static_cast<std::int64_t>(std::ceil(settings_.survivor_fraction * static_cast<double>(shardings_)));
    const auto wanted =
        std::min(static_cast<std::size_t>(std::max(share, settings_.survivor_floor)), frontier.waiting.size());
    std::size_t taken = 0;
    std::int64_t survivors = 0;
    while (taken == 0 || compiled_.empty()) {
      settle(frontier, taken + wanted);
      const std::size_t end = std::min(frontier.scored.size(), taken + wanted);
      const double enough = unhidden_seconds_of(frontier, static_cast<std::size_t>(settings_.survivor_floor));
      for (std::size_t i = 0; i < frontier.scored.size(); ++i) {
        Scored& next = frontier.scored[i];
        if (next.survived || (i >= end && !next.deployed && next.unhidden_seconds > enough)) continue;
        next.survived = true;
        waiting_.push_back(next);
        ++survivors;
      }
      if (waiting_.empty()) break;
      std::sort(waiting_.begin(), waiting_.end(), [](const Scored& a, const Scored& b) {
        return std::tie(a.block_bound_seconds, a.signature) < std::tie(b.block_bound_seconds, b.signature);
      });
      compile_passes([this](const Scored& scored) { return may_win(scored); });
      taken = end;
    }
    stage_2_seconds_ += seconds_since(start) - (stage_1_seconds_ - stage_1_before);
    const auto left_out = static_cast<std::int64_t>(frontier.waiting.size() - frontier.asked);
    count("left out before Shardy by the bound on Q1", left_out, 0);
    count("scored before compile", static_cast<std::int64_t>(frontier.scored.size()),
          stage_1_seconds_ - stage_1_before);
    count("survivors", survivors, 0);
  }

  /// From here on only a compile that refuses or disappoints changes the answer.
  void decide() {
    require_one_that_fits();
    sort_compiled();
    const Compiled& first = compiled_.front();
    best_line_ = milliseconds(first.block_seconds[first.best]) + " a " + unit() + ", " +
                 describe(first.candidate, workload()) + "; " + first.placements[first.best].order;
    plan_.decision_seconds = seconds_since(started_);
    tell("decision", 0, 1, 1, started_);
  }

  /// Least block time first, but for the leader: of those that are even with the least, one that needs little memory.
  void sort_compiled() {
    std::sort(compiled_.begin(), compiled_.end(), [](const Compiled& a, const Compiled& b) {
      return std::tie(a.block_seconds[a.best], a.signature) < std::tie(b.block_seconds[b.best], b.signature);
    });
    const auto seconds = [](const Compiled& c) { return c.block_seconds[c.best]; };
    const auto end = std::find_if(compiled_.begin(), compiled_.end(), [&](const Compiled& c) {
      return seconds(c) > seconds(compiled_.front()) * (1 + even_gap);
    });
    double least_bytes = std::numeric_limits<double>::infinity();
    for (auto c = compiled_.begin(); c != end; ++c) least_bytes = std::min(least_bytes, c->hbm_bytes);
    const auto leader = std::find_if(compiled_.begin(), end,
                                     [&](const Compiled& c) { return c.hbm_bytes <= least_bytes * (1 + less_memory); });
    if (leader != end) std::rotate(compiled_.begin(), leader, leader + 1);
  }

  /// The HLO passes for what the decision could do without but the plan shows.
  void compile_rest() {
    const auto start = Clock::now();
    compile_passes([this](const Scored& scored) { return may_be_near(scored); });
    passes_left_out_ += static_cast<std::int64_t>(waiting_.size());
    waiting_.clear();
    sort_compiled();
    stage_2_seconds_ += seconds_since(start);
    std::int64_t pairs = 0;
    for (const Compiled& c : compiled_) pairs += static_cast<std::int64_t>(c.placements.size());
    count("left out before the HLO passes by the bound on Q2", passes_left_out_, 0);
    count("compiled and fitting", static_cast<std::int64_t>(compiled_.size()), 0);
    count("sharding-placement pairs priced", pairs, stage_2_seconds_);
  }

  void require_one_that_fits() const {
    if (compiled_.empty()) {
      std::string message = "no sharding of " + workload().name + " fits in the HBM of " + slice_.name + " (" +
                            gibibytes(budget_bytes_) + " a device), with an idle mesh axis neither";
      if (std::isfinite(least_needed_bytes_)) {
        message += "; the compiler needs at least " + gibibytes(least_needed_bytes_) + ", " +
                   gibibytes(least_needed_bytes_ - budget_bytes_) + " too much";
      } else if (!first_failure_.empty()) {
        throw CompilerFailed("the compiler refused every survivor; the first failure: " + first_failure_);
      }
      throw Infeasible(message + ". A larger slice, fewer frames or a smaller size would help" +
                       (plan_.reserved_hbm_bytes > 0 ? ", or reserving less HBM" : "") + ".");
    }
  }

  /// HLO passes for the survivors that wait, in order of their bound on Q2, until none left is `wanted`. A program that
  /// uses windowed einsum is compiled again with that off, right after.
  template <typename Wanted>
  void compile_passes(Wanted wanted) {
    std::deque<Scored> asked;
    const auto supply = [&]() -> std::optional<Job> {
      if (waiting_.empty() || !wanted(waiting_.front())) return {};
      Job job;
      job.candidate = waiting_.front().candidate;
      job.rung = CompilerRung::passes;
      job.layers = settings_.proxy_layers;
      job.priority = static_cast<double>(asked.size());
      asked.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
      return job;
    };
    const auto left = [&] { return static_cast<std::size_t>(std::count_if(waiting_.begin(), waiting_.end(), wanted)); };
    ask("stage 2: HLO passes", 1, supply, left, [&](std::size_t i, Answer& answer) {
      const Scored& scored = asked[i];
      if (!usable(CompilerRung::passes, scored.candidate, answer)) return;
      Compiled compiled{scored.candidate, scored.signature, scored.q1, {}, {}, 0, {}, {}, 0};
      if (!readable(scored.candidate, [&] { extract(compiled, answer); })) return;
      if (settings_.windowed_einsum && is_windowed(compiled.program) &&
          !scored.candidate.compiler_options.contains(windowed_einsum_off.first)) {
        Scored off = scored;
        off.candidate.compiler_options.insert(windowed_einsum_off);
        off.signature = candidates::canonical_signature(workload(), off.candidate);
        waiting_.push_front(std::move(off));
      }
      if (compiled.hbm_bytes > budget_bytes_) {
        least_needed_bytes_ = std::min(least_needed_bytes_, compiled.hbm_bytes);
        return;
      }
      price(compiled);
      const double seconds = compiled.block_seconds[compiled.best];
      if (seconds * rounding < scored.block_bound_seconds) block_bound_holds_ = false;
      const auto at =
          priced_seconds_.insert(std::upper_bound(priced_seconds_.begin(), priced_seconds_.end(), seconds), seconds);
      if (at == priced_seconds_.begin())
        best_line_ = milliseconds(seconds) + " a " + unit() + ", " + describe(compiled.candidate, workload());
      compiled_.push_back(std::move(compiled));
      drop_texts();
    });
  }

  /// Keeps the texts of those with the least block time only.
  void drop_texts() {
    const auto kept = static_cast<std::size_t>(settings_.finalists);
    if (priced_seconds_.size() <= kept) return;
    for (Compiled& c : compiled_) {
      if (c.block_seconds[c.best] > priced_seconds_[kept - 1]) std::string().swap(c.text);
    }
  }

  /// Whether a sharding may still be one of the first `places` by the passes, or slower than the last of them by the
  /// factor. One Q2 below its bound, and all may.
  bool may_be_among(std::int64_t places, const Scored& scored, double factor = 1) const {
    const auto last = static_cast<std::size_t>(places - 1);
    return !block_bound_holds_ || priced_seconds_.size() <= last ||
           scored.block_bound_seconds <= priced_seconds_[last] * factor * rounding;
  }

  bool may_win(const Scored& scored) const { return may_be_among(settings_.verify, scored, 1 + even_gap); }

  /// Whether it may be a finalist, or a runner-up within listed_gap of the best.
  bool may_be_near(const Scored& scored) const {
    return may_be_among(std::max(settings_.verify, settings_.finalists), scored) ||
           (may_be_among(1 + settings_.runners_up, scored) &&
            scored.block_bound_seconds <= priced_seconds_.front() * (1 + listed_gap) * rounding);
  }

  void extract(Compiled& compiled, Answer& answer) const {
    const auto report_bytes = ir::read_memory_report(answer.memory_report).total_bytes;
    compiled.text = answer.text;
    compiled.program = compiled_program(ir::read_hlo(std::move(answer.text)), workload(), compiled.candidate,
                                        slice_.hardware, ranking::Rung::passes);
    compiled.hbm_bytes = ranking::hbm_bytes_at_depth(compiled.program, report_bytes, workload().layers);
  }

  /// Q2 of every distinct placement.
  void price(Compiled& compiled) const {
    auto priced = price_placements(compiled.program, compiled.candidate.mesh, slice_, workload().layers);
    compiled.placements = std::move(priced.placements);
    compiled.block_seconds.clear();
    for (const auto& q2 : priced.q2) compiled.block_seconds.push_back(q2.block_seconds);
    compiled.best = least(compiled.block_seconds);
  }

  /// What people deploy today in jax mesh_utils' order, compiled under that order. `sources` receives the comparison of
  /// each job.
  std::vector<Job> stock_jobs(std::vector<std::size_t>& sources) {
    std::vector<Job> jobs;
    for (Deployment& deployment : deployments(workload(), static_cast<std::int64_t>(slice_.devices.size()))) {
      Comparison comparison;
      Ranked ranked;
      ranked.candidate = std::move(deployment.candidate);
      comparison.name = deployment.name + ", jax mesh_utils order";
      try {
        auto order = stock_order(ranked.candidate.mesh, slice_);
        ranked.placement = std::move(order.placement);
        comparison.split_physical_axes = order.split_physical_axes;
        Job job;
        job.candidate = ranked.candidate;
        job.rung = CompilerRung::passes;
        job.layers = settings_.proxy_layers;
        job.placement = ranked.placement;
        jobs.push_back(std::move(job));
        sources.push_back(plan_.comparisons.size());
      } catch (const Error& error) {
        comparison.reason = error.what();
      }
      comparison.ranked = std::move(ranked);
      plan_.comparisons.push_back(std::move(comparison));
    }
    return jobs;
  }

  void take_stock(Comparison& comparison, Answer& answer) {
    if (!readable(comparison.ranked->candidate, [&] { price_stock(comparison, answer); }))
      comparison.reason = "its program does not read";
  }

  void price_stock(Comparison& comparison, Answer& answer) const {
    Ranked& ranked = *comparison.ranked;
    const auto does_not_fit = [](double needed, double available) {
      return "does not fit: needs " + gibibytes(needed) + " of " + gibibytes(available) + " a device";
    };
    if (answer.outcome != Answer::Outcome::ok) {
      const auto memory = ir::read_out_of_memory(answer.failure);
      comparison.reason = memory ? does_not_fit(memory->needed_bytes, memory->available_bytes)
                                 : "the compiler refuses it: " + first_line(answer.failure);
      return;
    }
    const auto report = ir::read_memory_report(answer.memory_report);
    const auto program = compiled_program(ir::read_hlo(std::move(answer.text)), workload(), ranked.candidate,
                                          slice_.hardware, ranking::Rung::passes);
    ranked.hbm_bytes = ranking::hbm_bytes_at_depth(program, report.total_bytes, workload().layers);
    if (ranked.hbm_bytes > budget_bytes_) {
      comparison.reason = does_not_fit(ranked.hbm_bytes, budget_bytes_);
      return;
    }
    ranked.q2 = explained(program, ranked.placement);
    ranked.passes_block_seconds = ranked.q2.block_seconds;
    ranked.passes_step_seconds = ranked.q2.step_seconds;
  }

  /// Code generation at full depth, each under its best placement by the passes, in a process of its own: gives cycles,
  /// the compiler's own word on HBM, and proof that the placement compiles.
  void compile_winners() {
    add_finalists(settings_.verify);
    verify_winners();
  }

  /// What people deploy today, by the HLO passes.
  void compare_with_today() {
    const auto start = Clock::now();
    std::vector<std::size_t> sources;
    std::vector<Job> jobs = stock_jobs(sources);
    ask("deployments of today", jobs,
        [&](std::size_t i, Answer& answer) { take_stock(plan_.comparisons[sources[i]], answer); });
    for (Comparison& comparison : plan_.comparisons) {
      if (!comparison.reason.empty()) comparison.ranked.reset();
    }
    stage_2_seconds_ += seconds_since(start);
  }

  /// The next `more` shardings by the passes.
  void add_finalists(std::int64_t more) {
    const auto start = Clock::now();
    std::vector<Job> jobs;
    std::vector<std::size_t> sources;
    for (std::size_t i = 0; i < compiled_.size() && static_cast<std::int64_t>(jobs.size()) < more; ++i) {
      Compiled& next = compiled_[i];
      if (std::exchange(next.settled, true)) continue;
      jobs.push_back(code_job(next.candidate, next.placements[next.best], jobs.size()));
      sources.push_back(i);
    }
    ask("code generation", jobs, [&](std::size_t i, Answer& answer) {
      const Compiled& source = compiled_[sources[i]];
      if (answer.outcome != Answer::Outcome::ok) {
        refuse(source.candidate, source.placements[source.best], answer);
        return;
      }
      readable(source.candidate, [&] { finalists_.push_back(finalist(source, answer)); });
    });
    std::sort(finalists_.begin(), finalists_.end(), [](const Finalist& a, const Finalist& b) {
      return std::tie(a.compiled.block_seconds[a.compiled.best], a.compiled.signature) <
             std::tie(b.compiled.block_seconds[b.compiled.best], b.compiled.signature);
    });
    code_seconds_ += seconds_since(start);
  }

  struct Finalist {
    std::string source;             ///< signature of the one in compiled_
    Compiled compiled;              ///< priced at the code rung
    placement::Placement verified;  ///< the placement it was compiled under last
    std::optional<ranking::CompiledProgram>
        own;  ///< the program compiled under `verified`, where that is not compiled.program
    double passes_block_seconds = 0;
    double passes_step_seconds = 0;
    double verified_seconds = 0;  ///< from the start until the compiler had finished it under `verified`

    const ranking::CompiledProgram& program(const placement::Placement& p) const {
      return own && p == verified ? *own : compiled.program;
    }
  };

  ranking::Q2 scored(const ranking::CompiledProgram& program, const placement::Placement& p,
                     const ranking::Q2Options& options = {}) const {
    return as_block(ranking::score(program, p, slice_, workload().layers, options), program);
  }
  ranking::Q2 explained(const ranking::CompiledProgram& program, const placement::Placement& p) const {
    return as_block(ranking::explain(program, p, slice_, workload().layers), program);
  }

  /// Q2 of a block under each placement.
  std::vector<double> block_seconds(const ranking::CompiledProgram& program,
                                    const std::vector<placement::Placement>& placements) const {
    ranking::Scorer scorer(program, slice_, workload().layers);
    std::vector<double> seconds;
    for (const auto& p : placements) seconds.push_back(as_block(scorer.score(p), program).block_seconds);
    return seconds;
  }

  const Compiled& source_of(const Finalist& f) const {
    return *std::find_if(compiled_.begin(), compiled_.end(),
                         [&](const Compiled& c) { return c.signature == f.source; });
  }

  Finalist finalist(const Compiled& source, Answer& answer) {
    Finalist result;
    result.source = source.signature;
    result.verified_seconds = seconds_since(started_);
    result.verified = source.placements[source.best];
    const auto by_passes = scored(source.program, result.verified);
    result.passes_block_seconds = by_passes.block_seconds;
    result.passes_step_seconds = by_passes.step_seconds;
    result.compiled = Compiled{source.candidate, source.signature, source.q1, {}, {}, 0, source.placements, {}, 0};
    result.compiled.hbm_bytes = static_cast<double>(ir::read_memory_report(answer.memory_report).total_bytes);
    const ir::Program program = ir::read_hlo(std::move(answer.text));
    learn(program);
    result.compiled.program =
        compiled_program(program, workload(), source.candidate, slice_.hardware, ranking::Rung::code);
    result.compiled.block_seconds = block_seconds(result.compiled.program, source.placements);
    result.compiled.best = least(result.compiled.block_seconds);
    return result;
  }

  Job code_job(const candidates::Candidate& candidate, const placement::Placement& p, std::size_t position) const {
    Job job;
    job.candidate = candidate;
    job.rung = CompilerRung::code;
    job.layers = workload().layers;
    job.priority = static_cast<double>(position);
    job.placement = p;
    job.own_process = true;
    return job;
  }

  /// The best pairs that the compiler finishes under their own placement, priced by the text of that very compile: XLA
  /// may decide windowed einsum by the device order, so a pair whose own text costs more than it promised gives way to
  /// the next. Finalists follow as long as another may win.
  std::vector<std::size_t> verify_winners() {
    const auto start = Clock::now();
    const double code_before = code_seconds_;
    auto order = verified_order();
    while (another_may_win(order)) {
      add_finalists(1);
      order = verified_order();
    }
    verify_seconds_ += seconds_since(start) - (code_seconds_ - code_before);
    return order;
  }

  /// Once more, with what was compiled since, and the report.
  void choose() {
    const auto order = verify_winners();
    if (order.empty()) {
      throw CompilerFailed("the compiler finished " +
                           std::string(finalists_.empty() ? "none of the plans" : "no plan under its own placement") +
                           "; the first failure: " + first_failure_);
    }
    for (const std::size_t f : order)
      plan_.verified_seconds = std::max(plan_.verified_seconds, finalists_[f].verified_seconds);
    count("compiled with code generation", static_cast<std::int64_t>(finalists_.size()), code_seconds_);
    count("verified under their own placement", static_cast<std::int64_t>(order.size()), verify_seconds_);
    report(order);
  }

  std::vector<std::size_t> verified_order() {
    std::vector<std::size_t> order;
    while (order.size() < finalists_.size() && static_cast<std::int64_t>(order.size()) < settings_.verify) {
      const auto best = cheapest(order);
      if (!best) break;
      Finalist& f = finalists_[*best];
      if (f.verified == f.compiled.placements[f.compiled.best]) {
        order.push_back(*best);
      } else {
        verify(f);
      }
    }
    return order;
  }

  /// Whether the next sharding by the passes is worth a whole compile: likely to beat what is verified, by more than
  /// what is even. Those that are not are passed over; `finalists` are compiled at most, but for such as the compiler
  /// refuses.
  bool another_may_win(const std::vector<std::size_t>& order) {
    for (Compiled& next : compiled_) {
      if (next.settled) continue;
      if (static_cast<std::int64_t>(order.size()) < settings_.verify) return true;
      if (static_cast<std::int64_t>(finalists_.size()) >= settings_.finalists || next.text.empty()) return false;
      bool likely = false;
      readable(next.candidate, [&] { likely = likely_to_win(next, finalists_[order.front()]); });
      if (likely) return true;
      next.settled = true;
    }
    return false;
  }

  /// The compute of one block.
  static const ranking::ComputeSplit& block_compute(const ranking::CompiledProgram& program) {
    return program.sequences[program.block >= 0 ? program.block : program.entry].compute;
  }

  /// A program of the HLO passes with the cycles that are known of its fusions, and the others as the passes say or
  /// free.
  struct WithCycles {
    ranking::CompiledProgram whole, unknown_free;
  };
  WithCycles with_cycles(const ir::Program& program, const std::vector<Fingerprint>& prints, const Compiled& compiled,
                         const Cycles& known) const {
    const auto lent = [&](const Cycles& cycles) {
      return compiled_program(ir::read_hlo(lend(program, cycles).text), workload(), compiled.candidate, slice_.hardware,
                              ranking::Rung::code);
    };
    Cycles unknown_free = known;
    for (const Fingerprint& print : prints) unknown_free.try_emplace(print, 0);
    return {lent(known), lent(unknown_free)};
  }

  /// Whether a sharding is likely to beat a finalist by more than what is even, by the cycles of this plan's programs,
  /// and those remembered from other plans do not rule it out.
  bool likely_to_win(const Compiled& compiled, const Finalist& best) const {
    const ir::Program program = ir::read_hlo(compiled.text);
    const auto prints = fingerprints(program);
    Cycles cycles = learned_;
    if (likely_seconds(with_cycles(program, prints, compiled, cycles), compiled, best) * (1 + even_gap) >=
        best_seconds(best))
      return false;
    if (memory_ != nullptr) cycles.merge(memory_->lookup(prints));
    return least_seconds(with_cycles(program, prints, compiled, cycles), compiled) < best_seconds(best);
  }

  /// What the best placement is likely to take: fusions without cycles, of each kind of work, are off from what the
  /// passes say by as much as those of the best finalist.
  double likely_seconds(const WithCycles& program, const Compiled& compiled, const Finalist& best) const {
    const ranking::ComputeSplit &passes = block_compute(source_of(best).program),
                                &code = block_compute(best.compiled.program), &all = block_compute(program.whole),
                                &known = block_compute(program.unknown_free);
    double off = 0;
    for (const auto kind : {&ranking::ComputeSplit::matmul_seconds, &ranking::ComputeSplit::relayout_seconds,
                            &ranking::ComputeSplit::other_seconds}) {
      if (passes.*kind > 0) off += (all.*kind - known.*kind) * (code.*kind / passes.*kind - 1);
    }
    const auto seconds = block_seconds(program.whole, compiled.placements);
    return *std::min_element(seconds.begin(), seconds.end()) + off;
  }

  /// What the best placement takes at least: of what fusions without cycles take by the passes, rung_gap may go.
  double least_seconds(const WithCycles& program, const Compiled& compiled) const {
    const auto likely = block_seconds(program.whole, compiled.placements);
    const auto certain = block_seconds(program.unknown_free, compiled.placements);
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t p = 0; p < likely.size(); ++p) {
      const double unknown = std::max(0.0, likely[p] - certain[p]);
      least = std::min(least, likely[p] - unknown * rung_gap);
    }
    return least;
  }

  /// Keeps the cycles of a code-generated program; what has none there never gets any.
  void learn(const ir::Program& program) {
    Cycles learned = cycles_of(program);
    for (Fingerprint& print : fingerprints(program)) {
      if (!print.empty()) learned.try_emplace(std::move(print), no_cycles);
    }
    if (memory_ != nullptr) memory_->remember(learned);
    learned_.merge(std::move(learned));
  }

  /// The finalist whose best pair is cheapest, of those not in `taken`; nothing where none has a placement left.
  std::optional<std::size_t> cheapest(const std::vector<std::size_t>& taken) const {
    std::optional<std::size_t> best;
    for (std::size_t f = 0; f < finalists_.size(); ++f) {
      if (std::find(taken.begin(), taken.end(), f) != taken.end() || !std::isfinite(best_seconds(finalists_[f])))
        continue;
      if (!best || std::pair(best_seconds(finalists_[f]), finalists_[f].compiled.signature) <
                       std::pair(best_seconds(finalists_[*best]), finalists_[*best].compiled.signature)) {
        best = f;
      }
    }
    return best;
  }

  static double best_seconds(const Finalist& f) { return f.compiled.block_seconds[f.compiled.best]; }

  /// Compiles a finalist's best pair to the end. Where the compiler refuses it the placement is out; where its text is
  /// windowed and the ranked one was not, the sharding is compiled with windowed einsum off, which is what was ranked.
  void verify(Finalist& f) {
    Compiled& c = f.compiled;
    const std::size_t at = c.best;
    std::vector<Job> jobs{code_job(c.candidate, c.placements[at], 0)};
    ask("verify", jobs, [&](std::size_t, Answer& answer) {
      if (answer.outcome != Answer::Outcome::ok) {
        refuse(c.candidate, c.placements[at], answer);
      } else if (readable(c.candidate, [&] { take_verified(f, answer); })) {
        return;
      }
      c.block_seconds[at] = std::numeric_limits<double>::infinity();
      c.best = least(c.block_seconds);
    });
  }

  /// What the compiler finished under a finalist's best placement; changes nothing where the text does not read.
  void take_verified(Finalist& f, Answer& answer) {
    Compiled& c = f.compiled;
    const auto hbm_bytes = static_cast<double>(ir::read_memory_report(answer.memory_report).total_bytes);
    auto program = compiled_program(ir::read_hlo(std::move(answer.text)), workload(), c.candidate, slice_.hardware,
                                    ranking::Rung::code);
    if (is_windowed(program) && !is_windowed(c.program) &&
        !c.candidate.compiler_options.contains(windowed_einsum_off.first)) {
      c.candidate.compiler_options.insert(windowed_einsum_off);
      c.signature = candidates::canonical_signature(workload(), c.candidate);
      return;
    }
    c.block_seconds[c.best] = scored(program, c.placements[c.best]).block_seconds;
    f.verified = c.placements[c.best];
    f.verified_seconds = seconds_since(started_);
    c.hbm_bytes = hbm_bytes;
    f.own = std::move(program);
    c.best = least(c.block_seconds);
  }

  Ranked ranked(const Finalist& f) const {
    const Compiled& c = f.compiled;
    Ranked result;
    result.candidate = c.candidate;
    result.placement = c.placements[c.best];
    result.rung = ranking::Rung::code;
    result.q1 = c.q1;
    result.q2 = explained(f.program(result.placement), result.placement);
    result.passes_block_seconds = f.passes_block_seconds;
    result.passes_step_seconds = f.passes_step_seconds;
    result.hbm_bytes = c.hbm_bytes;
    result.argument_bytes = static_cast<double>(f.program(result.placement).argument_bytes);
    result.verified = f.verified == result.placement;
    return result;
  }

  void report(const std::vector<std::size_t>& order) {
    const std::size_t winner = order.front();
    const Finalist& best = finalists_[winner];
    plan_.best = ranked(best);
    const Compiled& won = best.compiled;
    for (std::size_t p = 0; p < won.placements.size(); ++p) {
      if (std::isfinite(won.block_seconds[p]))
        plan_.priced_placements.emplace_back(won.block_seconds[p], won.placements[p].order);
    }
    std::stable_sort(plan_.priced_placements.begin(), plan_.priced_placements.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    plan_.worst_placement_block_seconds = plan_.priced_placements.back().first;
    plan_.placements = static_cast<std::int64_t>(best.compiled.placements.size());

    // What was compiled only to be compared is listed by the passes: whether it had to be depends on what is
    // remembered.
    std::set<std::string> listed{best.compiled.signature};
    for (std::size_t i = 1; i < order.size(); ++i) {
      const Finalist& f = finalists_[order[i]];
      if (listed.insert(f.compiled.signature).second) plan_.runners_up.push_back(ranked(f));
    }
    for (const Compiled& c : compiled_) {
      if (static_cast<std::int64_t>(plan_.runners_up.size()) >= settings_.runners_up) break;
      if (!listed.insert(c.signature).second) continue;
      Ranked result;
      result.candidate = c.candidate;
      result.placement = c.placements[c.best];
      result.rung = ranking::Rung::passes;
      result.q1 = c.q1;
      result.q2 = explained(c.program, result.placement);
      result.passes_block_seconds = result.q2.block_seconds;
      result.passes_step_seconds = result.q2.step_seconds;
      result.hbm_bytes = c.hbm_bytes;
      plan_.runners_up.push_back(std::move(result));
    }
    if (static_cast<std::int64_t>(plan_.runners_up.size()) > settings_.runners_up) {
      plan_.runners_up.resize(static_cast<std::size_t>(settings_.runners_up));
    }
    plan_.half_rate_winner = half_rate_winner(winner);
    plan_.searched = searched(plan_);
    plan_.why = why(plan_);
  }

  /// What overtakes the winner where every link has half its rate (design.md: say where the order flips), of the listed
  /// shardings, by the HLO passes.
  std::string half_rate_winner(std::size_t winner) const {
    ranking::Q2Options half;
    half.rate_scale = 0.5;
    const Finalist& f = finalists_[winner];
    const Compiled& won = source_of(f);
    const placement::Placement& place = f.compiled.placements[f.compiled.best];
    const double nominal = scored(won.program, place).block_seconds;
    double least_seconds = scored(won.program, place, half).block_seconds;
    std::string overtakes;
    const auto listed = std::min(compiled_.size(), static_cast<std::size_t>(1 + settings_.runners_up));
    for (std::size_t i = 0; i < listed; ++i) {
      const Compiled& c = compiled_[i];
      ranking::Scorer scorer(c.program, slice_, workload().layers, half);
      for (std::size_t p = 0; p < c.placements.size(); ++p) {
        if (c.block_seconds[p] < nominal) continue;
        const double seconds = as_block(scorer.score(c.placements[p]), c.program).block_seconds;
        if (seconds >= least_seconds) continue;
        least_seconds = seconds;
        overtakes = describe(c.candidate, workload()) + "; " + c.placements[p].order;
      }
    }
    return overtakes;
  }

  /// Whether an answer can be used; notes why not.
  bool usable(CompilerRung rung, const candidates::Candidate& candidate, const Answer& answer) {
    using Outcome = Answer::Outcome;
    const bool fell = answer.outcome == Outcome::crashed || answer.outcome == Outcome::timed_out;
    if (!fell) answered_.insert(rung);
    if (answer.outcome == Outcome::ok) return true;
    if (answer.outcome == Outcome::out_of_memory) {
      const auto memory = ir::read_out_of_memory(answer.failure);
      if (memory) least_needed_bytes_ = std::min(least_needed_bytes_, memory->needed_bytes);
      return false;
    }
    lose(candidate, std::string(name(answer.outcome)) + ": " + first_line(answer.failure));
    if (fell && !answered_.contains(rung) && ++falls_[rung] == hopeless) {
      throw CompilerFailed("the compiler did not survive any of the first " + std::to_string(hopeless) +
                           " shardings; the first failure: " + first_failure_);
    }
    return false;
  }

  /// Runs `read` over a text of the compiler. A text that does not read costs its candidate, named with line and
  /// column.
  template <typename Read>
  bool readable(const candidates::Candidate& candidate, Read read) {
    try {
      read();
      return true;
    } catch (const Error& error) {
      lose(candidate, std::string("unreadable: ") + error.what());
      return false;
    }
  }

  void lose(const candidates::Candidate& candidate, const std::string& reason) {
    note_failure(reason);
    plan_.lost.push_back(describe(candidate, workload()) + ": " + reason);
    std::sort(plan_.lost.begin(), plan_.lost.end());
  }

  void refuse(const candidates::Candidate& candidate, const placement::Placement& p, const Answer& answer) {
    note_failure(first_line(answer.failure));
    plan_.refused.push_back(describe(candidate, workload()) + "; " + p.order + ": " +
                            std::string(name(answer.outcome)) + ": " + first_line(answer.failure));
    std::sort(plan_.refused.begin(), plan_.refused.end());
  }

  /// The failure named in an error is the first in the alphabet, whatever order the compiler answers in.
  void note_failure(const std::string& failure) {
    if (first_failure_.empty() || failure < first_failure_) first_failure_ = failure;
  }

  void count(const std::string& what, std::int64_t number, double seconds) {
    plan_.counts.push_back({what, number, seconds});
  }

  /// Asks for a fixed list of jobs.
  template <typename Take>
  void ask(const std::string& stage, std::vector<Job>& jobs, Take take) {
    std::size_t next = 0;
    ask(
        stage, jobs.size(),
        [&]() -> std::optional<Job> { return next < jobs.size() ? std::optional(jobs[next++]) : std::nullopt; },
        [&] { return jobs.size() - next; }, take);
  }

  /// Keeps jobs of `supply` with the compiler: at first `needed`, later up to `window`. Answers are taken in the order
  /// of the jobs, and after each of them `supply` is asked for as many jobs as fit: what it knows then does not depend
  /// on which worker was faster. `left` says how many more there may be. Jobs left behind by an exception are
  /// cancelled.
  template <typename Supply, typename Left, typename Take>
  void ask(const std::string& stage, std::size_t needed, Supply supply, Left left, Take take) {
    const auto start = Clock::now();
    const std::int64_t first_id = next_id_;
    std::size_t submitted = 0, taken = 0;
    std::size_t& before = done_[stage];   // a stage may be asked again
    std::map<std::size_t, Answer> early;  // answers of jobs that others come before
    try {
      for (;;) {
        for (std::optional<Job> job; submitted < std::max(needed, taken + window) && (job = supply()); ++submitted) {
          job->id = next_id_++;
          compiler_.submit(*job);
        }
        if (submitted == 0) return;
        tell(stage, before, taken, submitted + left(), start);
        if (taken == submitted) break;
        while (!early.contains(taken)) {
          Answer answer = compiler_.next();
          const auto i = static_cast<std::size_t>(answer.id - first_id);
          if (answer.id < first_id || i >= submitted || i < taken || early.contains(i)) {
            throw CompilerFailed("the compiler answered job " + std::to_string(answer.id) + ", which was not waiting");
          }
          early.emplace(i, std::move(answer));
        }
        auto answer = early.extract(taken);
        take(taken++, answer.mapped());
      }
      before += taken;
    } catch (...) {
      for (std::size_t i = taken; i < submitted; ++i) {
        if (!early.contains(i)) compiler_.cancel(first_id + static_cast<std::int64_t>(i));
      }
      throw;
    }
  }

  /// `before` of the stage were done before `start`.
  void tell(const std::string& stage, std::size_t before, std::size_t done, std::size_t total,
            Clock::time_point start) {
    if (!progress_) return;
    const double elapsed = seconds_since(start);
    const double left = done == 0 ? 0 : elapsed / static_cast<double>(done) * static_cast<double>(total - done);
    done += before;
    total += before;
    if (!progress_(
            {stage, static_cast<std::int64_t>(done), static_cast<std::int64_t>(total), elapsed, left, best_line_})) {
      throw Interrupted("interrupted while planning (" + stage + ", " + std::to_string(done) + " of " +
                        std::to_string(total) + ")");
    }
  }

  const topology::Slice& slice_;
  const Settings& settings_;
  Compiler& compiler_;
  const std::function<bool(const Progress&)>& progress_;
  CycleMemory* memory_;
  Cycles learned_;  ///< from the programs this plan compiled
  Plan plan_;
  const Clock::time_point started_ = Clock::now();
  double stage_1_seconds_ = 0, stage_2_seconds_ = 0, code_seconds_ = 0, verify_seconds_ = 0;
  double budget_bytes_ = 0;
  std::int64_t shardings_ = 0;
  bool q1_bound_holds_ = true, block_bound_holds_ = true;
  std::int64_t passes_left_out_ = 0;
  std::deque<Scored> waiting_;          ///< survivors whose passes nobody has asked for, least bound first
  std::vector<double> priced_seconds_;  ///< best block time of each that compiled and fits, least first
  std::int64_t next_id_ = 1;
  std::map<std::string, std::size_t> done_;  ///< jobs of each stage
  std::string best_line_;
  std::string first_failure_;
  std::set<std::string> tried_;        ///< signatures of all candidates that were lowered
  std::set<CompilerRung> answered_;    ///< at least once without a crash or time-out
  std::map<CompilerRung, int> falls_;  ///< crashes and time-outs
  double least_needed_bytes_ = std::numeric_limits<double>::infinity();
  std::vector<Compiled> compiled_;
  std::vector<Finalist> finalists_;
};

}  // namespace

Plan plan(const workload::Request& request, const topology::Slice& slice, const Settings& settings, Compiler& compiler,
          const std::function<bool(const Progress&)>& progress, CycleMemory* memory) {
  const Subject subject{request, workload::make_workload(request), request.reserved_hbm_bytes};
  return Search(subject, slice, settings, compiler, progress, memory).run();
}

Plan plan(const workload::Workload& workload, std::int64_t reserved_hbm_bytes, const topology::Slice& slice,
          const Settings& settings, Compiler& compiler, const std::function<bool(const Progress&)>& progress,
          CycleMemory* memory) {
  if (reserved_hbm_bytes < 0) {
    throw InvalidRequest("reserved_hbm_bytes is " + std::to_string(reserved_hbm_bytes) + "; it must be 0 or more");
  }
  return Search({std::nullopt, workload, reserved_hbm_bytes}, slice, settings, compiler, progress, memory).run();
}

}  // namespace aoizora::planner
