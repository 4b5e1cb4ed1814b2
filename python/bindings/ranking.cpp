#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "aoizora/errors.h"
#include "aoizora/ir/readers.h"
#include "aoizora/ranking/rank_program.h"

namespace nb = nanobind;

namespace {

std::string rank(std::string text, const std::string& slice, const std::string& mesh, double rate_scale) {
  aoizora::ranking::RankOptions options;
  options.rate_scale = rate_scale;
  return aoizora::ranking::rank_json(aoizora::ir::read_hlo(std::move(text)), aoizora::topology::make_slice(slice),
                                     aoizora::ranking::read_mesh(mesh), options);
}

aoizora::ranking::CompiledProgram compiled_program(std::string text, const std::string& workload,
                                                   const std::string& candidate, const aoizora::topology::Slice& slice,
                                                   const std::string& rung) {
  if (rung != "passes" && rung != "code")
    throw aoizora::InvalidRequest("rung is \"" + rung + "\"; allowed: passes, code");
  const auto program = aoizora::ir::read_hlo(std::move(text));
  if (workload.empty()) return aoizora::ranking::extract(program, slice.hardware);
  const auto read_as = rung == "code" ? aoizora::ranking::Rung::code : aoizora::ranking::Rung::passes;
  return aoizora::ranking::extract(program, aoizora::workload::read_workload(workload),
                                   aoizora::candidates::read_candidate(candidate), slice.hardware, read_as);
}

std::string score(std::string text, const std::string& workload, const std::string& candidate,
                  const std::string& slice_name, std::vector<std::int32_t> devices, std::int64_t layers,
                  const std::string& rung, double rate_scale) {
  const auto slice = aoizora::topology::make_slice(slice_name);
  const auto compiled = compiled_program(std::move(text), workload, candidate, slice, rung);
  aoizora::ranking::Q2Options options;
  options.rate_scale = rate_scale;
  return aoizora::ranking::to_json(
      aoizora::ranking::explain(compiled, {std::move(devices), "given"}, slice, layers, options));
}

std::vector<std::pair<double, double>> score_many(std::string text, const std::string& workload,
                                                  const std::string& candidate, const std::string& slice_name,
                                                  std::vector<std::vector<std::int32_t>> placements,
                                                  std::int64_t layers, const std::string& rung, double rate_scale) {
  const auto slice = aoizora::topology::make_slice(slice_name);
  const auto compiled = compiled_program(std::move(text), workload, candidate, slice, rung);
  aoizora::ranking::Q2Options options;
  options.rate_scale = rate_scale;
  aoizora::ranking::Scorer scorer(compiled, slice, layers, options);
  std::vector<std::pair<double, double>> result;
  for (auto& devices : placements) {
    const auto q2 = scorer.score({std::move(devices), "given"});
    result.emplace_back(q2.step_seconds, q2.block_seconds);
  }
  return result;
}

}  // namespace

void bind_ranking(nb::module_& m) {
  m.def("rank", &rank, nb::arg("text"), nb::arg("slice"), nb::arg("mesh") = "", nb::arg("rate_scale") = 1.0,
        nb::call_guard<nb::gil_scoped_release>(),
        "Ranks the device orders of compiled HLO as it is: JSON. `mesh` is JSON, a list of named sizes; empty: "
        "inferred from the "
        "program. Raises InvalidRequest, ParseError.");
  m.def("score", &score, nb::arg("text"), nb::arg("workload"), nb::arg("candidate"), nb::arg("slice"),
        nb::arg("devices"), nb::arg("layers"), nb::arg("rung"), nb::arg("rate_scale") = 1.0,
        nb::call_guard<nb::gil_scoped_release>(),
        "Q2 of a compiled proxy under one placement (device of each logical rank), with its breakdown: JSON. An empty "
        "workload: "
        "a program nobody knows the model of. Raises InvalidRequest, ParseError.");
  m.def("score_many", &score_many, nb::arg("text"), nb::arg("workload"), nb::arg("candidate"), nb::arg("slice"),
        nb::arg("placements"), nb::arg("layers"), nb::arg("rung"), nb::arg("rate_scale") = 1.0,
        nb::call_guard<nb::gil_scoped_release>(),
        "step_seconds and block_seconds by Q2 under each placement. Raises InvalidRequest, ParseError.");
}
