#include "aoizora/placement/placement.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string_view>

namespace nb = nanobind;

namespace {

using aoizora::topology::Slice;

std::vector<std::vector<int>> coordinates(const aoizora::placement::Placement& placement, const Slice& slice) {
  std::vector<std::vector<int>> result;
  result.reserve(placement.devices.size());
  for (const aoizora::topology::DeviceId device : placement.devices) {
    result.push_back(slice.devices[device].coordinates);
    if (slice.cores_per_chip > 1) result.back().push_back(slice.devices[device].core);
  }
  return result;
}

std::string text_of(const aoizora::placement::DistinctPlacements& found, const Slice& slice) {
  const auto list = [](const auto& items, const auto& print) {
    std::string result;
    for (const auto& item : items) result += (result.empty() ? "[" : ", ") + print(item);
    return (result.empty() ? "[" : result) + "]";
  };
  const auto number = [](int value) { return std::to_string(value); };
  const auto place = [&](const aoizora::placement::Placement& placement) {
    // An order holds mesh axis names: quotes and controls in them must not break the JSON.
    std::string order;
    for (const char c : placement.order)
      order += std::string_view("\"\\").find(c) == std::string_view::npos ? std::string(1, c) : std::string{'\\', c};
    return "{\"order\": \"" + order + "\", \"coordinates\": " +
           list(coordinates(placement, slice), [&](const std::vector<int>& at) { return list(at, number); }) + "}";
  };
  return "{\"axis_orders\": " + std::to_string(found.axis_orders) +
         ", \"truncated\": " + (found.truncated ? "true" : "false") +
         ", \"placements\": " + list(found.placements, place) + "}";
}

}  // namespace

void bind_placement(nb::module_& m) {
  using namespace aoizora;
  m.def(
      "mesh_utils_order",
      [](const std::string& mesh_json, const std::string& slice_name, bool allow_split_physical_axes) {
        const Slice slice = topology::make_slice(slice_name);
        return coordinates(
            placement::mesh_utils_order(placement::read_mesh(mesh_json), slice, allow_split_physical_axes), slice);
      },
      nb::arg("mesh_json"), nb::arg("slice_name"), nb::arg("allow_split_physical_axes") = false,
      "Coordinates by rank (and the core where a chip has several) in the order of jax's create_device_mesh.");
  m.def(
      "distinct_axis_orders",
      [](const std::string& mesh_json, const std::string& slice_name, const std::vector<std::string>& active,
         const std::vector<std::string>& ordered) {
        const Slice slice = topology::make_slice(slice_name);
        const auto mesh = placement::read_mesh(mesh_json);
        return text_of(placement::distinct_axis_orders(mesh, slice, {active, ordered}), slice);
      },
      nb::arg("mesh_json"), nb::arg("slice_name"), nb::arg("active") = std::vector<std::string>{},
      nb::arg("ordered") = std::vector<std::string>{},
      "Axis orders without mirror images and equal contention signatures, as JSON.");
}
