#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "aoizora/candidates/candidate.h"
#include "aoizora/ir/annotate.h"
#include "aoizora/ir/inspect.h"
#include "aoizora/ir/readers.h"
#include "aoizora/ranking/schedule.h"
#include "aoizora/topology/slice.h"

namespace nb = nanobind;
namespace ir = aoizora::ir;

void bind_ir(nb::module_& m) {
  const nb::call_guard<nb::gil_scoped_release> no_gil;
  nb::class_<ir::Program>(m, "Program", "A module that was read: its text and its graph.")
      .def_prop_ro("instruction_count", [](const ir::Program& program) { return program.instructions.size(); })
      .def("graph", &ir::graph_json, no_gil, "JSON of computations, instructions, types, operands and calls.");
  m.def("read_hlo", &ir::read_hlo, nb::arg("text"), no_gil, "Reads HLO text as the planner does. Raises ParseError.");
  m.def("read_stablehlo", &ir::read_stablehlo, nb::arg("text"), no_gil,
        "Reads StableHLO text as the planner does. Raises ParseError.");
  m.def(
      "extract_steps",
      [](const ir::Program& program, const std::string& slice) {
        std::size_t steps = 0;
        const auto hardware = aoizora::topology::make_slice(slice).hardware;
        for (const auto& sequence : aoizora::ranking::extract(program, hardware).sequences)
          steps += sequence.steps.size();
        return steps;
      },
      nb::arg("program"), nb::arg("slice"), no_gil, "Steps of the schedule that ranking reads off a program.");
  m.def(
      "annotate",
      [](const std::string& trace, const std::string& candidate_json, bool elide_constants,
         std::vector<std::string> first) {
        return ir::annotate(trace, aoizora::candidates::read_candidate(candidate_json),
                            {elide_constants, std::move(first)});
      },
      nb::arg("trace"), nb::arg("candidate_json"), nb::arg("elide_constants") = false,
      nb::arg("first") = ir::AnnotateOptions{}.first, nb::call_guard<nb::gil_scoped_release>(),
      "The lowered program of a candidate from a trace on stand-in mesh axes. Raises ParseError, InvalidRequest.");
  m.def(
      "inspect", [](std::string text) { return ir::inspect_json(ir::read_program(std::move(text))); }, nb::arg("text"),
      nb::call_guard<nb::gil_scoped_release>(),
      "JSON of what an HLO or StableHLO text holds: collectives, loops, memory. Raises ParseError.");
}
