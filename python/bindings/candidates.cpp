#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "aoizora/candidates/candidate.h"

namespace nb = nanobind;
namespace candidates = aoizora::candidates;
using aoizora::topology::make_slice;
using aoizora::workload::read_workload;

void bind_candidates(nb::module_& m) {
  m.def(
      "enumerate",
      [](const std::string& workload_json, const std::string& slice_name, const std::string& options_json) {
        const auto workload = read_workload(workload_json);
        const auto options = candidates::read_enumeration_options(options_json);
        return candidates::to_json(workload, candidates::enumerate(workload, make_slice(slice_name), options));
      },
      nb::arg("workload_json"), nb::arg("slice_name"), nb::arg("options_json") = "{}",
      nb::call_guard<nb::gil_scoped_release>(),
      "JSON of the legal, distinct shardings that may fit: the count after each step, and each candidate with its "
      "signature and "
      "memory estimate. Raises Infeasible where there is none.");
  m.def(
      "canonical_signature",
      [](const std::string& workload_json, const std::string& candidate_json) {
        return candidates::canonical_signature(read_workload(workload_json),
                                               candidates::read_candidate(candidate_json));
      },
      nb::arg("workload_json"), nb::arg("candidate_json"), nb::call_guard<nb::gil_scoped_release>(),
      "The text that two candidates share exactly if they are one sharding.");
  m.def(
      "memory_estimate",
      [](const std::string& workload_json, const std::string& candidate_json) {
        return candidates::to_json(
            candidates::memory_estimate(read_workload(workload_json), candidates::read_candidate(candidate_json)));
      },
      nb::arg("workload_json"), nb::arg("candidate_json"), nb::call_guard<nb::gil_scoped_release>(),
      "JSON of the lower bound of HBM bytes a device: weights, activations, attention, temporaries, total.");
}
