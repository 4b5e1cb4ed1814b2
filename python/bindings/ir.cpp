#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "aoizora/ir/inspect.h"
#include "aoizora/ir/readers.h"

namespace nb = nanobind;
namespace ir = aoizora::ir;

void bind_ir(nb::module_& m) {
  m.def(
      "inspect", [](std::string text) { return ir::inspect_json(ir::read_program(std::move(text))); }, nb::arg("text"),
      nb::call_guard<nb::gil_scoped_release>(),
      "JSON of what an HLO or StableHLO text holds: collectives, loops, memory. Raises ParseError.");
}
