#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "aoizora/topology/slice.h"

namespace nb = nanobind;

void bind_topology(nb::module_& m) {
  using namespace aoizora;
  m.def("device_kinds", &topology::device_kinds, "Device kinds whose slices have names.");
  m.def(
      "slice_json",
      [](const std::string& name_or_path) { return topology::to_json(topology::make_slice(name_or_path)); },
      nb::arg("name_or_path"), "The descriptor of a slice, every number with its source, as JSON.");
  m.def(
      "slice_devices",
      [](const std::string& name_or_path) {
        nb::list result;
        for (const topology::Device& device : topology::make_slice(name_or_path).devices) {
          result.append(nb::make_tuple(device.coordinates, device.core));
        }
        return result;
      },
      nb::arg("name_or_path"), nb::sig("def slice_devices(name_or_path: str) -> list[tuple[list[int], int]]"),
      "Coordinates and core of every device, by device id.");
  m.def(
      "slice_links",
      [](const std::string& name_or_path) {
        nb::list result;
        for (const topology::Link& link : topology::make_slice(name_or_path).links) {
          result.append(nb::make_tuple(link.from_chip, link.to_chip, link.dimension, link.from_core, link.to_core,
                                       link.bandwidth_bytes_per_second));
        }
        return result;
      },
      nb::arg("name_or_path"),
      nb::sig("def slice_links(name_or_path: str) -> list[tuple[int, int, int, int, int, float]]"),
      "Every directed link, by link id: chips it joins, dimension (-1 between cores of a chip), cores, bytes a "
      "second.");
  m.def(
      "slice_route",
      [](const std::string& name_or_path, topology::DeviceId from, topology::DeviceId to) {
        return topology::make_slice(name_or_path).route(from, to);
      },
      nb::arg("name_or_path"), nb::arg("start"), nb::arg("end"),
      "Ids of the directed links from one device to another.");
}
