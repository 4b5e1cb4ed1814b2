#include "aoizora/simulation/simulation.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "aoizora/errors.h"
#include "aoizora/ir/readers.h"

namespace nb = nanobind;

namespace {

using namespace aoizora;
using Devices = std::vector<topology::DeviceId>;

/// A compiled proxy as the bindings take it: texts in, schedule out.
struct Request {
  std::string text;
  const std::string& workload;
  const std::string& candidate;
  const std::string& rung;
};

/// Without a workload the program is one nobody knows the model of.
ranking::CompiledProgram extract(Request request, const topology::Hardware& hardware) {
  if (request.rung != "passes" && request.rung != "code")
    throw InvalidRequest("rung is \"" + request.rung + "\"; allowed: passes, code");
  const ir::Program program = ir::read_hlo(std::move(request.text));
  if (request.workload.empty()) return ranking::extract(program, hardware);
  return ranking::extract(program, workload::read_workload(request.workload),
                          candidates::read_candidate(request.candidate), hardware,
                          request.rung == "code" ? ranking::Rung::code : ranking::Rung::passes);
}

std::string simulate(std::string text, const std::string& workload, const std::string& candidate,
                     const std::string& slice_name, Devices devices, std::int64_t layers, const std::string& rung,
                     double rate_scale) {
  const auto slice = topology::make_slice(slice_name);
  const auto program = extract({std::move(text), workload, candidate, rung}, slice.hardware);
  return to_json(simulation::simulate(program, {std::move(devices), "given"}, slice, layers, {rate_scale}), program);
}

std::vector<std::pair<double, double>> simulate_many(std::string text, const std::string& workload,
                                                     const std::string& candidate, const std::string& slice_name,
                                                     std::vector<Devices> placements, std::int64_t layers,
                                                     const std::string& rung, double rate_scale) {
  const auto slice = topology::make_slice(slice_name);
  const auto program = extract({std::move(text), workload, candidate, rung}, slice.hardware);
  simulation::Simulator simulator(program, slice, layers, {rate_scale});
  std::vector<std::pair<double, double>> result;
  for (Devices& devices : placements) {
    const simulation::Timing timing = simulator.simulate({std::move(devices), "given"});
    result.emplace_back(timing.step_seconds, timing.block_seconds);
  }
  return result;
}

double collective(const std::string& kind, const std::string& groups, double bytes, Devices devices,
                  const std::string& slice) {
  return simulation::collective_seconds(kind, groups, bytes, {std::move(devices), "given"},
                                        topology::make_slice(slice));
}

std::string schedule(std::string text, const std::string& workload, const std::string& candidate,
                     const std::string& slice_name, Devices devices, std::int64_t layers, const std::string& rung) {
  const auto slice = topology::make_slice(slice_name);
  const auto program = extract({std::move(text), workload, candidate, rung}, slice.hardware);
  return simulation::schedule_json(program, {std::move(devices), "given"}, slice, layers);
}

}  // namespace

void bind_simulation(nb::module_& m) {
  using nb::arg;
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  m.def(
      "simulate", &simulate, arg("text"), arg("workload"), arg("candidate"), arg("slice"), arg("devices"),
      arg("layers"), arg("rung"), arg("rate_scale") = 1.0, released,
      "Times a compiled proxy under one placement (device of each logical rank) link by link: JSON. An empty workload: "
      "a program nobody knows the model of. Raises InvalidRequest, ParseError.");
  m.def("simulate_many", &simulate_many, arg("text"), arg("workload"), arg("candidate"), arg("slice"),
        arg("placements"), arg("layers"), arg("rung"), arg("rate_scale") = 1.0, released,
        "step_seconds and block_seconds under each placement. Raises InvalidRequest, ParseError.");
  m.def("collective", &collective, arg("kind"), arg("groups"), arg("bytes"), arg("devices"), arg("slice"), released,
        "Seconds of one collective with nothing else in flight. `kind` is HLO's opcode; `groups` is JSON: lists of "
        "ranks, "
        "for a permute pairs; [] is one group of all. Raises InvalidRequest.");
  m.def("schedule", &schedule, arg("text"), arg("workload"), arg("candidate"), arg("slice"), arg("devices"),
        arg("layers"), arg("rung"), released,
        "The schedule as neutral JSON for another simulator (docs/simulation.md). Raises InvalidRequest, ParseError.");
}
