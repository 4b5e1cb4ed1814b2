#include "aoizora/planner/planner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "aoizora/ir/memory_report.h"
#include "aoizora/ir/readers.h"
#include "aoizora/planner/describe.h"
#include "aoizora/planner/pricing.h"

namespace aoizora::planner {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// XLA:TPU keeps an einsum whole when its operand is smaller than this threshold, so a huge one turns windowed einsum
/// off.
const std::pair<const std::string, std::string> windowed_einsum_off{"xla_jf_spmd_threshold_for_windowed_einsum_mib",
                                                                    "1000000"};

/// A sharding that the HLO passes compiled, with the price of every placement.
struct Compiled {
  candidates::Candidate candidate;
  std::string signature;
  prediction::Q1 q1;
  ranking::CompiledProgram program;
  double hbm_bytes = 0;
  std::vector<placement::Placement> placements;
  std::vector<double> block_seconds;  ///< by placement
  std::size_t best = 0;               ///< placement of the least block time; the first of equals
};

std::size_t least(const std::vector<double>& values) {
  return static_cast<std::size_t>(std::min_element(values.begin(), values.end()) - values.begin());
}

std::string gibibytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GiB", bytes / (1024.0 * 1024.0 * 1024.0));
  return text;
}

/// The whole of Algorithm 1 for one request; each stage a member, in order.
class Search {
 public:
  Search(const workload::Request& request, const topology::Slice& slice, const Settings& settings, Compiler& compiler,
         const std::function<bool(const Progress&)>& progress)
      : slice_(slice), settings_(settings), compiler_(compiler), progress_(progress) {
    plan_.request = request;
    plan_.slice = slice;
    plan_.settings = settings;
    plan_.workload = workload::make_workload(request);
    budget_bytes_ = slice.hardware.hbm_bytes.value - static_cast<double>(request.reserved_hbm_bytes);
    if (budget_bytes_ < 1) {
      throw Infeasible("nothing is left to plan with: " + gibibytes(static_cast<double>(request.reserved_hbm_bytes)) +
                       " of HBM are reserved and a device of " + slice.name + " has " +
                       gibibytes(slice.hardware.hbm_bytes.value) + "; reserve less");
    }
  }

  Plan run() {
    const auto shardings = enumerate();
    const auto order = stage_1(shardings);
    if (order.empty()) {
      throw CompilerFailed("the compiler lowered none of the " + std::to_string(shardings.size()) +
                           " shardings; the first failure: " + first_failure_);
    }
    const auto start = Clock::now();
    compile_survivors(order);
    widen();
    finish_stage_2(start);
    compile_finalists();
    choose();
    plan_.versions = compiler_.versions();
    return std::move(plan_);
  }

 private:
  struct Scored {
    candidates::Candidate candidate;
    std::string signature;
    prediction::Q1 q1;
    bool alive = false;
  };

  const workload::Workload& workload() const { return plan_.workload; }

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

  /// Lower, propagate, Q1 (paper 4.3). Returns the candidates in order of Q1, ties by signature.
  std::vector<Scored> stage_1(const std::vector<candidates::Candidate>& shardings) {
    const auto start = Clock::now();
    std::vector<Scored> scored;
    std::vector<Job> jobs;
    for (const auto& candidate : shardings) {
      scored.push_back({candidate, candidates::canonical_signature(workload(), candidate), {}, false});
      tried_.insert(scored.back().signature);
      Job job;
      job.candidate = candidate;
      job.rung = CompilerRung::propagate;
      job.layers = settings_.proxy_layers;
      job.priority = static_cast<double>(jobs.size());
      jobs.push_back(std::move(job));
    }
    double best = std::numeric_limits<double>::infinity();
    ask("stage 1: propagate", jobs, [&](std::size_t i, Answer& answer) {
      if (!usable(scored[i].candidate, answer)) return;
      scored[i].alive = readable(scored[i].candidate, [&] {
        const ir::Program program = ir::read_stablehlo(std::move(answer.text));
        const auto graph =
            prediction::build_prediction_graph(program, workload(), scored[i].candidate, slice_.hardware);
        scored[i].q1 = prediction::score(graph, slice_.hardware, workload().layers);
      });
      if (!scored[i].alive) return;
      if (scored[i].q1.seconds < best) {
        best = scored[i].q1.seconds;
        best_line_ = describe(scored[i].candidate);
      }
    });
    std::erase_if(scored, [](const Scored& s) { return !s.alive; });
    std::sort(scored.begin(), scored.end(), [](const Scored& a, const Scored& b) {
      return std::tie(a.q1.seconds, a.signature) < std::tie(b.q1.seconds, b.signature);
    });
    count("scored before compile", static_cast<std::int64_t>(scored.size()), seconds_since(start));
    return scored;
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
      compile_survivors(stage_1(more));
    }
  }

  /// HLO passes for the survivors, all placements priced (paper 4.4). Survivors that do not fit are replaced by the
  /// next in line.
  void compile_survivors(const std::vector<Scored>& order) {
    // The paper's K counts logical shardings; a sharding with another attention kind is not another one.
    const auto share =
        static_cast<std::int64_t>(std::ceil(settings_.survivor_fraction * static_cast<double>(shardings_)));
    const auto wanted = std::min(static_cast<std::size_t>(std::max(share, settings_.survivor_floor)), order.size());
    std::size_t taken = 0;
    std::int64_t survivors = 0;
    while (taken < order.size() && (taken == 0 || compiled_.empty())) {
      const std::size_t end = std::min(order.size(), taken + wanted);
      std::vector<Scored> batch(order.begin() + static_cast<std::ptrdiff_t>(taken),
                                order.begin() + static_cast<std::ptrdiff_t>(end));
      survivors += static_cast<std::int64_t>(batch.size());
      compile_passes(batch);
      taken = end;
    }
    count("survivors", survivors, 0);
  }

  void finish_stage_2(Clock::time_point start) {
    require_one_that_fits();
    compile_stock();
    std::sort(compiled_.begin(), compiled_.end(), [](const Compiled& a, const Compiled& b) {
      return std::tie(a.block_seconds[a.best], a.signature) < std::tie(b.block_seconds[b.best], b.signature);
    });
    std::int64_t pairs = 0;
    for (const Compiled& c : compiled_) pairs += static_cast<std::int64_t>(c.placements.size());
    count("compiled and fitting", static_cast<std::int64_t>(compiled_.size()), 0);
    count("sharding-placement pairs priced", pairs, seconds_since(start));
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
                       (plan_.request.reserved_hbm_bytes > 0 ? ", or reserving less HBM" : "") + ".");
    }
  }

  void compile_passes(const std::vector<Scored>& batch) {
    std::vector<Scored> variants;
    compile_passes_once("stage 2: HLO passes", batch, settings_.windowed_einsum ? &variants : nullptr);
    std::sort(variants.begin(), variants.end(), [](const Scored& a, const Scored& b) {
      return std::tie(a.q1.seconds, a.signature) < std::tie(b.q1.seconds, b.signature);
    });
    if (!variants.empty()) compile_passes_once("stage 2: windowed einsum off", variants, nullptr);
  }

  /// `windowed_off` receives the candidates whose program is windowed: only those change with windowed einsum off.
  void compile_passes_once(const std::string& stage, const std::vector<Scored>& batch,
                           std::vector<Scored>* windowed_off) {
    std::vector<Job> jobs;
    for (const Scored& scored : batch) {
      Job job;
      job.candidate = scored.candidate;
      job.rung = CompilerRung::passes;
      job.layers = settings_.proxy_layers;
      job.priority = static_cast<double>(jobs.size());
      jobs.push_back(std::move(job));
    }
    double best = std::numeric_limits<double>::infinity();
    for (const Compiled& c : compiled_) best = std::min(best, c.block_seconds[c.best]);
    ask(stage, jobs, [&](std::size_t i, Answer& answer) {
      const Scored& scored = batch[i];
      if (!usable(scored.candidate, answer)) return;
      Compiled compiled{scored.candidate, scored.signature, scored.q1, {}, 0, {}, {}, 0};
      std::int64_t report_bytes = 0;
      if (!readable(scored.candidate, [&] {
            report_bytes = ir::read_memory_report(answer.memory_report).total_bytes;
            compiled.program = ranking::extract(ir::read_hlo(std::move(answer.text)), workload(), scored.candidate,
                                                slice_.hardware, ranking::Rung::passes);
          })) {
        return;
      }
      if (windowed_off != nullptr && is_windowed(compiled.program)) {
        Scored off = scored;
        off.candidate.compiler_options.insert(windowed_einsum_off);
        off.signature = candidates::canonical_signature(workload(), off.candidate);
        windowed_off->push_back(std::move(off));
      }
      compiled.hbm_bytes = ranking::hbm_bytes_at_depth(compiled.program, report_bytes, workload().layers);
      if (compiled.hbm_bytes > budget_bytes_) {
        least_needed_bytes_ = std::min(least_needed_bytes_, compiled.hbm_bytes);
        return;
      }
      price(compiled);
      if (compiled.block_seconds[compiled.best] < best) {
        best = compiled.block_seconds[compiled.best];
        best_line_ = describe(compiled.candidate);
      }
      compiled_.push_back(std::move(compiled));
    });
  }

  /// Q2 of every distinct placement.
  void price(Compiled& compiled) const {
    auto priced = price_placements(compiled.program, compiled.candidate.mesh, slice_, workload().layers);
    compiled.placements = std::move(priced.placements);
    compiled.block_seconds.clear();
    for (const auto& q2 : priced.q2) compiled.block_seconds.push_back(q2.block_seconds);
    compiled.best = least(compiled.block_seconds);
  }

  /// What people deploy today (all chips on context; data 2 and context the rest) in jax mesh_utils' order, compiled
  /// under that order.
  void compile_stock() {
    const auto devices = static_cast<std::int64_t>(slice_.devices.size());
    std::vector<std::int64_t> data_sizes{1};
    if (plan_.request.batch() % 2 == 0 && devices % 2 == 0 && devices > 2) data_sizes.push_back(2);
    std::vector<Job> jobs;
    std::vector<std::size_t> sources;
    for (const std::int64_t data : data_sizes) {
      Comparison comparison;
      Ranked ranked;
      ranked.candidate = stock_candidate(workload(), data, devices / data);
      comparison.name = (data == 1 ? "stock, context " : "data 2 x context ") + std::to_string(devices / data);
      comparison.name += ", jax mesh_utils order";
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
    ask("stage 2: deployments of today", jobs, [&](std::size_t i, Answer& answer) {
      Comparison& comparison = plan_.comparisons[sources[i]];
      if (!readable(comparison.ranked->candidate, [&] { price_stock(comparison, answer); }))
        comparison.reason = "its program does not read";
    });
    for (Comparison& comparison : plan_.comparisons) {
      if (!comparison.reason.empty()) comparison.ranked.reset();
    }
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
    const auto program = ranking::extract(ir::read_hlo(std::move(answer.text)), workload(), ranked.candidate,
                                          slice_.hardware, ranking::Rung::passes);
    ranked.hbm_bytes = ranking::hbm_bytes_at_depth(program, report.total_bytes, workload().layers);
    if (ranked.hbm_bytes > budget_bytes_) {
      comparison.reason = does_not_fit(ranked.hbm_bytes, budget_bytes_);
      return;
    }
    ranked.q2 = ranking::explain(program, ranked.placement, slice_, workload().layers);
    ranked.passes_block_seconds = ranked.q2.block_seconds;
    ranked.passes_step_seconds = ranked.q2.step_seconds;
  }

  /// Code generation at full depth, each under its best placement by the passes, in a process of its own: gives cycles,
  /// the compiler's own word on HBM, and proof that the placement compiles.
  void compile_finalists() {
    const auto start = Clock::now();
    std::size_t next = 0;
    while (static_cast<std::int64_t>(finalists_.size()) < settings_.finalists && next < compiled_.size()) {
      std::vector<Job> jobs;
      std::vector<std::size_t> sources;
      const auto missing = settings_.finalists - static_cast<std::int64_t>(finalists_.size());
      for (std::int64_t k = 0; k < missing && next < compiled_.size(); ++k, ++next) {
        jobs.push_back(
            code_job(compiled_[next].candidate, compiled_[next].placements[compiled_[next].best], jobs.size()));
        sources.push_back(next);
      }
      ask("code generation", jobs, [&](std::size_t i, Answer& answer) {
        const Compiled& source = compiled_[sources[i]];
        if (answer.outcome != Answer::Outcome::ok) {
          refuse(source.candidate, source.placements[source.best], answer);
          return;
        }
        readable(source.candidate, [&] { finalists_.push_back(finalist(source, answer)); });
      });
    }
    if (finalists_.empty()) {
      throw CompilerFailed("the compiler finished none of the plans; the first failure: " + first_failure_);
    }
    std::sort(finalists_.begin(), finalists_.end(), [](const Finalist& a, const Finalist& b) {
      return std::tie(a.compiled.block_seconds[a.compiled.best], a.compiled.signature) <
             std::tie(b.compiled.block_seconds[b.compiled.best], b.compiled.signature);
    });
    count("compiled with code generation", static_cast<std::int64_t>(finalists_.size()), seconds_since(start));
  }

  struct Finalist {
    Compiled compiled;              ///< priced at the code rung
    placement::Placement verified;  ///< the placement it was compiled under last
    std::optional<ranking::CompiledProgram>
        own;  ///< the program compiled under `verified`, where that is not compiled.program
    double passes_block_seconds = 0;
    double passes_step_seconds = 0;

    const ranking::CompiledProgram& program(const placement::Placement& p) const {
      return own && p == verified ? *own : compiled.program;
    }
  };

  Finalist finalist(const Compiled& source, Answer& answer) const {
    Finalist result;
    result.verified = source.placements[source.best];
    const auto by_passes = ranking::score(source.program, result.verified, slice_, workload().layers);
    result.passes_block_seconds = by_passes.block_seconds;
    result.passes_step_seconds = by_passes.step_seconds;
    result.compiled = Compiled{source.candidate, source.signature, source.q1, {}, 0, source.placements, {}, 0};
    result.compiled.hbm_bytes = static_cast<double>(ir::read_memory_report(answer.memory_report).total_bytes);
    result.compiled.program = ranking::extract(ir::read_hlo(std::move(answer.text)), workload(), source.candidate,
                                               slice_.hardware, ranking::Rung::code);
    for (const auto& p : source.placements) {
      result.compiled.block_seconds.push_back(
          ranking::score(result.compiled.program, p, slice_, workload().layers).block_seconds);
    }
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

  /// The best pair that the compiler finishes under its own placement, priced by the text of that very compile: XLA may
  /// decide windowed einsum by the device order, so a pair whose own text costs more than it promised gives way to the
  /// next.
  void choose() {
    const auto start = Clock::now();
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
    if (order.empty())
      throw CompilerFailed("the compiler finished no plan under its own placement; the first failure: " +
                           first_failure_);
    count("verified under their own placement", static_cast<std::int64_t>(order.size()), seconds_since(start));
    report(order.front());
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
        c.block_seconds[at] = std::numeric_limits<double>::infinity();
        c.best = least(c.block_seconds);
        return;
      }
      auto program = ranking::extract(ir::read_hlo(std::move(answer.text)), workload(), c.candidate, slice_.hardware,
                                      ranking::Rung::code);
      if (is_windowed(program) && !is_windowed(c.program) &&
          !c.candidate.compiler_options.contains(windowed_einsum_off.first)) {
        c.candidate.compiler_options.insert(windowed_einsum_off);
        c.signature = candidates::canonical_signature(workload(), c.candidate);
        return;
      }
      f.verified = c.placements[at];
      c.hbm_bytes = static_cast<double>(ir::read_memory_report(answer.memory_report).total_bytes);
      c.block_seconds[at] = ranking::score(program, c.placements[at], slice_, workload().layers).block_seconds;
      f.own = std::move(program);
      c.best = least(c.block_seconds);
    });
  }

  Ranked ranked(const Finalist& f) const {
    const Compiled& c = f.compiled;
    Ranked result;
    result.candidate = c.candidate;
    result.placement = c.placements[c.best];
    result.rung = ranking::Rung::code;
    result.q1 = c.q1;
    result.q2 = ranking::explain(f.program(result.placement), result.placement, slice_, workload().layers);
    result.passes_block_seconds = f.passes_block_seconds;
    result.passes_step_seconds = f.passes_step_seconds;
    result.hbm_bytes = c.hbm_bytes;
    result.verified = f.verified == result.placement;
    return result;
  }

  void report(std::size_t winner) {
    const Finalist& best = finalists_[winner];
    plan_.best = ranked(best);
    for (const double seconds : best.compiled.block_seconds) {
      if (std::isfinite(seconds))
        plan_.worst_placement_block_seconds = std::max(plan_.worst_placement_block_seconds, seconds);
    }
    plan_.placements = static_cast<std::int64_t>(best.compiled.placements.size());

    std::set<std::string> listed{best.compiled.signature};
    for (const Finalist& f : finalists_) {
      if (!listed.insert(f.compiled.signature).second) continue;
      plan_.runners_up.push_back(ranked(f));
    }
    for (const Compiled& c : compiled_) {
      if (static_cast<std::int64_t>(plan_.runners_up.size()) >= settings_.runners_up) break;
      if (!listed.insert(c.signature).second) continue;
      Ranked result;
      result.candidate = c.candidate;
      result.placement = c.placements[c.best];
      result.rung = ranking::Rung::passes;
      result.q1 = c.q1;
      result.q2 = ranking::explain(c.program, result.placement, slice_, workload().layers);
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

  /// The finalists priced again with every link at half its rate (design.md: say where the order flips).
  std::string half_rate_winner(std::size_t winner) const {
    ranking::Q2Options half;
    half.rate_scale = 0.5;
    double best = std::numeric_limits<double>::infinity();
    std::size_t best_finalist = winner;
    std::size_t best_placement = finalists_[winner].compiled.best;
    for (std::size_t f = 0; f < finalists_.size(); ++f) {
      const Compiled& c = finalists_[f].compiled;
      for (std::size_t p = 0; p < c.placements.size(); ++p) {
        const double seconds =
            ranking::score(c.program, c.placements[p], slice_, workload().layers, half).block_seconds;
        const bool is_winner = f == winner && p == c.best;
        if (seconds < best || (is_winner && seconds <= best)) {
          best = seconds;
          best_finalist = f;
          best_placement = p;
        }
      }
    }
    const Compiled& c = finalists_[best_finalist].compiled;
    if (best_finalist == winner && best_placement == c.best) return "";
    return describe(c.candidate) + "; " + c.placements[best_placement].order;
  }

  /// Whether an answer can be used; notes why not.
  bool usable(const candidates::Candidate& candidate, const Answer& answer) {
    if (answer.outcome == Answer::Outcome::ok) return true;
    if (answer.outcome == Answer::Outcome::out_of_memory) {
      const auto memory = ir::read_out_of_memory(answer.failure);
      if (memory) least_needed_bytes_ = std::min(least_needed_bytes_, memory->needed_bytes);
      return false;
    }
    lose(candidate, std::string(name(answer.outcome)) + ": " + first_line(answer.failure));
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
    plan_.lost.push_back(describe(candidate) + ": " + reason);
    std::sort(plan_.lost.begin(), plan_.lost.end());
  }

  void refuse(const candidates::Candidate& candidate, const placement::Placement& p, const Answer& answer) {
    note_failure(first_line(answer.failure));
    plan_.refused.push_back(describe(candidate) + "; " + p.order + ": " + std::string(name(answer.outcome)) + ": " +
                            first_line(answer.failure));
    std::sort(plan_.refused.begin(), plan_.refused.end());
  }

  /// The failure named in an error is the first in the alphabet, whatever order the compiler answers in.
  void note_failure(const std::string& failure) {
    if (first_failure_.empty() || failure < first_failure_) first_failure_ = failure;
  }

  void count(const std::string& what, std::int64_t number, double seconds) {
    plan_.counts.push_back({what, number, seconds});
  }

  /// Submits the jobs, hands each answer to `take` as it comes, tells progress. Jobs left behind by an exception are
  /// cancelled.
  template <typename Take>
  void ask(const std::string& stage, std::vector<Job>& jobs, Take take) {
    if (jobs.empty()) return;
    const auto start = Clock::now();
    const std::int64_t first_id = next_id_;
    next_id_ += static_cast<std::int64_t>(jobs.size());
    std::vector<bool> answered(jobs.size(), false);
    tell(stage, 0, jobs.size(), start);
    try {
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        jobs[i].id = first_id + static_cast<std::int64_t>(i);
        compiler_.submit(jobs[i]);
      }
      for (std::size_t done = 1; done <= jobs.size(); ++done) {
        Answer answer = compiler_.next();
        const auto i = static_cast<std::size_t>(answer.id - first_id);
        if (i >= jobs.size() || answered[i]) {
          throw CompilerFailed("the compiler answered job " + std::to_string(answer.id) + ", which was not waiting");
        }
        answered[i] = true;
        take(i, answer);
        tell(stage, done, jobs.size(), start);
      }
    } catch (...) {
      for (std::size_t i = 0; i < jobs.size(); ++i) {
        if (!answered[i]) compiler_.cancel(first_id + static_cast<std::int64_t>(i));
      }
      throw;
    }
  }

  void tell(const std::string& stage, std::size_t done, std::size_t total, Clock::time_point start) {
    if (!progress_) return;
    const double elapsed = seconds_since(start);
    const double left = done == 0 ? 0 : elapsed / static_cast<double>(done) * static_cast<double>(total - done);
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
  Plan plan_;
  double budget_bytes_ = 0;
  std::int64_t shardings_ = 0;
  std::int64_t next_id_ = 1;
  std::string best_line_;
  std::string first_failure_;
  std::set<std::string> tried_;  ///< signatures of all candidates that were lowered
  double least_needed_bytes_ = std::numeric_limits<double>::infinity();
  std::vector<Compiled> compiled_;
  std::vector<Finalist> finalists_;
};

}  // namespace

Plan plan(const workload::Request& request, const topology::Slice& slice, const Settings& settings, Compiler& compiler,
          const std::function<bool(const Progress&)>& progress) {
  return Search(request, slice, settings, compiler, progress).run();
}

}  // namespace aoizora::planner
