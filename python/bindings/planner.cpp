#include "aoizora/planner/planner.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "aoizora/errors.h"
#include "aoizora/ir/readers.h"
#include "aoizora/planner/bound.h"
#include "aoizora/planner/cycles.h"
#include "aoizora/planner/pricing.h"
#include "aoizora/planner/replay.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using aoizora::planner::Answer;
using aoizora::planner::Job;

/// A Compiler implemented in Python: submit(job_json), next() -> dict, cancel(id), versions() -> list. Called without
/// the GIL.
class PythonCompiler final : public aoizora::planner::Compiler {
 public:
  explicit PythonCompiler(nb::object queue) : queue_(std::move(queue)) {}
  ~PythonCompiler() override {
    nb::gil_scoped_acquire gil;
    queue_.reset();
  }

  void submit(const Job& job) override {
    nb::gil_scoped_acquire gil;
    queue_.attr("submit")(aoizora::planner::to_json(job));
  }

  Answer next() override {
    nb::gil_scoped_acquire gil;
    const nb::dict answer = nb::cast<nb::dict>(queue_.attr("next")());
    Answer result;
    result.id = nb::cast<std::int64_t>(answer["id"]);
    result.text = nb::cast<std::string>(answer["text"]);
    result.memory_report = nb::cast<std::string>(answer["memory_report"]);
    result.failure = nb::cast<std::string>(answer["failure"]);
    result.outcome = aoizora::planner::read_outcome(nb::cast<std::string>(answer["outcome"]));
    result.seconds = nb::cast<double>(answer["seconds"]);
    return result;
  }

  void cancel(std::int64_t id) override {
    nb::gil_scoped_acquire gil;
    queue_.attr("cancel")(id);
  }

  std::vector<std::string> versions() const override {
    nb::gil_scoped_acquire gil;
    return nb::cast<std::vector<std::string>>(queue_.attr("versions")());
  }

 private:
  nb::object queue_;
};

/// A CycleMemory implemented in Python: lookup(list of str) -> dict, remember(dict). Called without the GIL.
class PythonMemory final : public aoizora::planner::CycleMemory {
 public:
  explicit PythonMemory(nb::handle memory) : memory_(memory) {}  // the caller's, longer alive than the call

  aoizora::planner::Cycles lookup(std::span<const aoizora::planner::Fingerprint> fingerprints) override {
    nb::gil_scoped_acquire gil;
    std::set<std::string> wanted(fingerprints.begin(), fingerprints.end());
    wanted.erase("");
    nb::list names;
    for (const auto& name : wanted) names.append(name);
    return nb::cast<aoizora::planner::Cycles>(memory_.attr("lookup")(names));
  }
  void remember(const aoizora::planner::Cycles& cycles) override {
    nb::gil_scoped_acquire gil;
    memory_.attr("remember")(nb::cast(cycles));
  }

 private:
  nb::handle memory_;
};

std::function<bool(const aoizora::planner::Progress&)> progress_of(const nb::object& callback) {
  if (callback.is_none()) return {};
  // The callback outlives this call: `plan` holds a reference to it for as long as it runs.
  return [handle = nb::handle(callback)](const aoizora::planner::Progress& p) {
    nb::gil_scoped_acquire gil;
    const nb::object result = handle(p.stage, p.done, p.total, p.elapsed_seconds, p.remaining_seconds, p.best);
    return result.is_none() || nb::cast<bool>(result);
  };
}

template <typename Plan>
std::string released(const nb::object& progress, const nb::object& memory, Plan plan) {
  const auto callback = progress_of(progress);
  std::optional<PythonMemory> remembered;
  if (!memory.is_none()) remembered.emplace(memory);
  nb::gil_scoped_release release;
  return aoizora::planner::to_json(plan(callback, remembered ? &*remembered : nullptr));
}

std::string run(aoizora::planner::Compiler& compiler, const std::string& request_json, const std::string& slice,
                const std::string& settings_json, const nb::object& progress, const nb::object& memory) {
  return released(progress, memory, [&](const auto& callback, auto* remembered) {
    return aoizora::planner::plan(aoizora::workload::read_request(request_json), aoizora::topology::make_slice(slice),
                                  aoizora::planner::read_settings(settings_json), compiler, callback, remembered);
  });
}

}  // namespace

void bind_planner(nb::module_& m) {
  m.def(
      "plan",
      [](const std::string& request_json, const std::string& slice, const std::string& settings_json, nb::object queue,
         nb::object progress, const std::string& record_folder, nb::object memory) {
        PythonCompiler compiler{std::move(queue)};
        if (record_folder.empty()) return run(compiler, request_json, slice, settings_json, progress, memory);
        const auto recorder = aoizora::planner::record(compiler, record_folder);
        return run(*recorder, request_json, slice, settings_json, progress, memory);
      },
      "request_json"_a, "slice"_a, "settings_json"_a, "compiler"_a, "progress"_a = nb::none(), "record_folder"_a = "",
      "memory"_a = nb::none(),
      "Algorithm 1 over a compiler queue (an object with submit(job_json), next() -> dict, cancel(id), versions() -> "
      "list).\n\n"
      "progress(stage, done, total, elapsed_seconds, remaining_seconds, best) is called from this thread; False "
      "stops.\n"
      "record_folder keeps every answer for replay_plan. memory: an object with lookup(fingerprints) -> dict and\n"
      "remember(dict), cycles of fusions known from other plans. Returns plan.json's text.\n"
      "Raises InvalidRequest, Infeasible, CompilerFailed, Interrupted.");
  m.def(
      "plan_workload",
      [](const std::string& workload_json, std::int64_t reserved_hbm_bytes, const std::string& slice,
         const std::string& settings_json, nb::object queue, const nb::object& progress, const nb::object& memory) {
        PythonCompiler compiler{std::move(queue)};
        return released(progress, memory, [&](const auto& callback, auto* remembered) {
          return aoizora::planner::plan(aoizora::workload::read_workload(workload_json), reserved_hbm_bytes,
                                        aoizora::topology::make_slice(slice),
                                        aoizora::planner::read_settings(settings_json), compiler, callback, remembered);
        });
      },
      "workload_json"_a, "reserved_hbm_bytes"_a, "slice"_a, "settings_json"_a, "compiler"_a, "progress"_a = nb::none(),
      "memory"_a = nb::none(),
      "The same for any table, a program's for one. Raises InvalidRequest, ParseError, Infeasible, CompilerFailed,\n"
      "Interrupted.");
  m.def(
      "cycles_of", [](std::string text) { return aoizora::planner::cycles_of(aoizora::ir::read_hlo(std::move(text))); },
      "text"_a, "Cycles by fingerprint of a code-generated program. Raises ParseError.");
  m.def(
      "lend_cycles",
      [](std::string text, const aoizora::planner::Cycles& known) {
        auto lent = aoizora::planner::lend(aoizora::ir::read_hlo(std::move(text)), known);
        return std::tuple(std::move(lent.text), lent.fusions, lent.lent);
      },
      "text"_a, "known"_a,
      "The text with the known cycles written into it, the fusions that had none, and how many of them got some.\n"
      "Raises ParseError.");
  m.def(
      "replay_plan",
      [](const std::string& folder, const std::string& request_json, const std::string& slice,
         const std::string& settings_json, std::uint64_t seed, std::vector<std::string> versions) {
        const auto compiler =
            aoizora::planner::make_replay(aoizora::planner::read_recording(folder), std::move(versions), seed);
        return run(*compiler, request_json, slice, settings_json, nb::none(), nb::none());
      },
      "folder"_a, "request_json"_a, "slice"_a, "settings_json"_a, "seed"_a = 0,
      "versions"_a = std::vector<std::string>{},
      "The same from recorded answers, without JAX; `seed` changes only the order in which they come.");
  m.def("price", &aoizora::planner::price_json, "text"_a, "memory_report"_a, "workload_json"_a, "candidate_json"_a,
        "slice"_a, "layers"_a, "rung"_a, "rate_scale"_a = 1.0, nb::call_guard<nb::gil_scoped_release>(),
        "Q2 of every distinct placement of one compiled sharding, and its HBM at full depth: JSON. Raises "
        "InvalidRequest, ParseError.");
  m.def(
      "block_bound",
      [](std::string propagated_text, const std::string& workload_json, const std::string& candidate_json,
         const std::string& slice_name) {
        const auto table = aoizora::workload::read_workload(workload_json);
        const auto candidate = aoizora::candidates::read_candidate(candidate_json);
        const auto slice = aoizora::topology::make_slice(slice_name);
        const auto graph = aoizora::prediction::build_prediction_graph(
            aoizora::ir::read_stablehlo(std::move(propagated_text)), table, candidate, slice.hardware);
        const auto bound = aoizora::planner::block_bound(graph, candidate.mesh, slice);
        return std::array{bound.seconds, bound.compute_seconds, bound.synchronous_seconds, bound.busiest_seconds,
                          bound.passage_seconds};
      },
      "propagated_text"_a, "workload_json"_a, "candidate_json"_a, "slice"_a,
      "What one block's Q2 cannot be below under any placement, from the propagated program: seconds, then at that "
      "placement compute, collectives never hidden, the busiest link, the longest passage. Raises InvalidRequest, "
      "ParseError.");
  m.def(
      "settings_json",
      [](const std::string& text) { return aoizora::planner::to_json(aoizora::planner::read_settings(text)); },
      "settings_json"_a, "Planner settings with every default filled in. Raises InvalidRequest, ParseError.");
}
