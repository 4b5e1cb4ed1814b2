#include "aoizora/prediction/prediction.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <array>

#include "aoizora/ir/readers.h"
#include "aoizora/prediction/bound.h"

namespace nb = nanobind;

void bind_prediction(nb::module_& m) {
  using namespace aoizora;
  m.def(
      "predict",
      [](std::string propagated_text, const std::string& workload_json, const std::string& candidate_json,
         const std::string& slice_name, std::int64_t layers) {
        const workload::Workload table = workload::read_workload(workload_json);
        const candidates::Candidate candidate = candidates::read_candidate(candidate_json);
        const topology::Slice slice = topology::make_slice(slice_name);
        nb::gil_scoped_release released;
        const ir::Program program = ir::read_stablehlo(std::move(propagated_text));
        const auto graph = prediction::build_prediction_graph(program, table, candidate, slice.hardware);
        return prediction::to_json(graph, prediction::score(graph, slice.hardware, layers));
      },
      nb::arg("propagated_text"), nb::arg("workload_json"), nb::arg("candidate_json"), nb::arg("slice_name"),
      nb::arg("layers"), "The prediction graph of a propagated program and its Q1 at the given depth, as JSON.");
  m.def(
      "q1_bound",
      [](const std::string& workload_json, const std::string& candidate_json, const std::string& slice_name) {
        const auto bound =
            prediction::lower_bound(workload::read_workload(workload_json), candidates::read_candidate(candidate_json),
                                    topology::make_slice(slice_name).hardware);
        return std::array{bound.seconds, bound.compute_seconds, bound.communication_seconds,
                          bound.carried_all_reduce_seconds};
      },
      nb::arg("workload_json"), nb::arg("candidate_json"), nb::arg("slice_name"),
      "What Q1 cannot be below, from the tables alone: seconds, C_comp, C_comm, C_ar.");
}
