#include "aoizora/workload/workload.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "aoizora/errors.h"
#include "aoizora/workload/wan.h"

namespace nb = nanobind;

void bind_workload(nb::module_& m) {
  using namespace aoizora;
  m.def("model_names", &workload::model_names, "Known model names.");
  m.def(
      "request_json", [](const std::string& json) { return workload::to_json(workload::read_request(json)); },
      nb::arg("json"), "The request with every default filled in, as JSON.");
  m.def(
      "make_workload",
      [](const std::string& json) { return workload::to_json(workload::make_workload(workload::read_request(json))); },
      nb::arg("request_json"), "The workload table of a request, as JSON.");
  m.def(
      "latent_shape",
      [](const std::string& json) {
        const auto shape = workload::latent_shape(workload::read_request(json));
        return std::vector<std::int64_t>(shape.begin(), shape.end());
      },
      nb::arg("request_json"), "The latents of a request: [batch, channels, frames, height, width].");
  m.def(
      "wan_config", [](const std::string& model) { return workload::to_json(workload::wan_config(model)); },
      nb::arg("model"), "The published sizes of a model, as JSON.");
  m.def(
      "wan_workload",
      [](const std::string& config_json, std::int64_t batch, std::int64_t latent_frames, std::int64_t latent_height,
         std::int64_t latent_width, const std::string& dtype) {
        const DType type = dtype_from_name(dtype);
        if (type == DType::unknown) throw InvalidRequest("unknown dtype \"" + dtype + "\"; allowed: bf16, f16, f32");
        return workload::to_json(workload::wan_workload(workload::read_wan_config(config_json), batch, latent_frames,
                                                        latent_height, latent_width, type));
      },
      nb::arg("config_json"), nb::arg("batch"), nb::arg("latent_frames"), nb::arg("latent_height"),
      nb::arg("latent_width"), nb::arg("dtype"), "The workload table of a Wan transformer of any size, as JSON.");
}
