#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "aoizora/baseline/alpa.h"
#include "aoizora/baseline/expert.h"
#include "aoizora/ir/readers.h"
#include "aoizora/placement/placement.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace baseline = aoizora::baseline;
using aoizora::workload::read_workload;

baseline::AlpaProblem problem_of(std::string program, const aoizora::workload::Workload& workload,
                                 const std::string& slice, const std::string& mesh, const std::string& options) {
  const auto graph = baseline::read_operators(aoizora::ir::read_stablehlo(std::move(program)), workload);
  return baseline::make_problem(graph, workload, aoizora::topology::make_slice(slice).hardware,
                                aoizora::placement::read_mesh(mesh), baseline::read_alpa_options(options));
}

}  // namespace

void bind_baseline(nb::module_& m) {
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  m.def(
      "expert_family",
      [](const std::string& workload_json, const std::string& slice_name, const std::string& options_json) {
        const auto slice = aoizora::topology::make_slice(slice_name);
        const auto options = baseline::read_expert_options(options_json);
        return baseline::to_json(baseline::expert_family(read_workload(workload_json), slice, options), slice);
      },
      "workload_json"_a, "slice_name"_a, "options_json"_a = "{}", released,
      "JSON of the stock deployments a user may set by hand: candidate, rank in the written rule, M̂, placement.");
  m.def(
      "alpa_operators",
      [](std::string program, const std::string& workload_json) {
        const auto workload = read_workload(workload_json);
        return baseline::to_json(baseline::read_operators(aoizora::ir::read_stablehlo(std::move(program)), workload),
                                 workload);
      },
      "program"_a, "workload_json"_a, released, "JSON of the operator graph of a StableHLO program.");
  m.def(
      "alpa_meshes",
      [](const std::string& workload_json, const std::string& slice_name, const std::string& options_json) {
        std::vector<std::string> result;
        for (const auto& mesh :
             baseline::logical_meshes(read_workload(workload_json), aoizora::topology::make_slice(slice_name),
                                      baseline::read_alpa_options(options_json))) {
          std::string text;
          for (const auto& axis : mesh)
            text += (text.empty() ? "{\"" : ", \"") + axis.name + "\": " + std::to_string(axis.size);
          result.push_back(text + "}");
        }
        return result;
      },
      "workload_json"_a, "slice_name"_a, "options_json"_a = "{}", released,
      "The logical meshes of the Alpa-style search, each as JSON.");
  m.def(
      "alpa_model",
      [](std::string program, const std::string& workload_json, const std::string& slice_name,
         const std::string& mesh_json, const std::string& options_json) {
        const auto problem =
            problem_of(std::move(program), read_workload(workload_json), slice_name, mesh_json, options_json);
        return baseline::to_json(baseline::build_model(problem.problem));
      },
      "program"_a, "workload_json"_a, "slice_name"_a, "mesh_json"_a, "options_json"_a = "{}", released,
      "JSON of the ILP on one logical mesh as sparse rows.");
  m.def(
      "alpa_plan",
      [](std::string program, const std::string& workload_json, const std::string& slice_name,
         const std::string& mesh_json, const std::string& options_json, const std::vector<double>& columns) {
        const auto workload = read_workload(workload_json);
        const auto problem = problem_of(std::move(program), workload, slice_name, mesh_json, options_json);
        const auto choices = baseline::read_solution(problem.problem, baseline::build_model(problem.problem), columns);
        return baseline::to_json(baseline::read_plan(problem, workload, choices));
      },
      "program"_a, "workload_json"_a, "slice_name"_a, "mesh_json"_a, "options_json"_a, "columns"_a, released,
      "JSON of the plan a solution of that ILP means: candidate, objective by parts, memory, each operator's choice.");
  m.def(
      "choice_model",
      [](const std::string& problem_json) {
        return baseline::to_json(baseline::build_model(baseline::read_problem(problem_json)));
      },
      "problem_json"_a, released, "JSON of the ILP of any choice problem.");
  m.def(
      "choice_solution",
      [](const std::string& problem_json, const std::vector<double>& columns) {
        const auto problem = baseline::read_problem(problem_json);
        return baseline::read_solution(problem, baseline::build_model(problem), columns);
      },
      "problem_json"_a, "columns"_a, released, "The choice of each node that a solution of that ILP means.");
}
