#include <nanobind/nanobind.h>
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

std::string score(std::string text, const std::string& workload, const std::string& candidate,
                  const std::string& slice_name, std::vector<std::int32_t> devices, std::int64_t layers,
                  const std::string& rung, double rate_scale) {
  if (rung != "passes" && rung != "code")
    throw aoizora::InvalidRequest("rung is \"" + rung + "\"; allowed: passes, code");
  const auto program = aoizora::ir::read_hlo(std::move(text));
  const auto slice = aoizora::topology::make_slice(slice_name);
  const auto read_as = rung == "code" ? aoizora::ranking::Rung::code : aoizora::ranking::Rung::passes;
  const auto compiled = workload.empty() ? aoizora::ranking::extract(program, slice.hardware)
                                         : aoizora::ranking::extract(
                                               program, aoizora::workload::read_workload(workload),
                                               aoizora::candidates::read_candidate(candidate), slice.hardware, read_as);
  aoizora::ranking::Q2Options options;
  options.rate_scale = rate_scale;
  return aoizora::ranking::to_json(
      aoizora::ranking::explain(compiled, {std::move(devices), "given"}, slice, layers, options));
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
}
