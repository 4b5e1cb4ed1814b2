#include "expansion/read.h"

#include <stdexcept>

namespace judge {

Mesh read_mesh(const nlohmann::json& slice) {
  Mesh mesh;
  slice.at("dims").get_to(mesh.dims);
  slice.at("wraps").get_to(mesh.wraps);
  slice.at("cores_per_chip").get_to(mesh.cores);
  slice.at("hop_seconds").get_to(mesh.hop_seconds);
  slice.at("devices").get_to(mesh.coordinates);
  if (mesh.wraps.size() != mesh.dims.size() || mesh.cores < 1)
    throw std::runtime_error("dims, wraps and cores do not fit");
  for (const std::vector<int>& at : mesh.coordinates)
    if (at.size() != mesh.dims.size() + 1)
      throw std::runtime_error("a device has a coordinate a dimension and its core");
  for (const nlohmann::json& link : slice.at("links")) {
    const int wire = static_cast<int>(mesh.wires.size());
    mesh.wires.push_back({link.at("bytes_per_second").get<double>()});
    const int from = link.at("from_chip").get<int>();
    if (link.at("kind") == "core")
      mesh.wire_between_cores[{from, link.at("from_core").get<int>(), link.at("to_core").get<int>()}] = wire;
    else
      mesh.wire_between[{from, link.at("to_chip").get<int>()}] = wire;
  }
  for (const auto& [kind, rate] : slice.at("collectives").items())
    mesh.rates[kind] = {rate.at("alpha_seconds").get<double>(), rate.at("rate_fraction").get<double>(),
                        rate.at("flow_bytes_per_second").get<double>(), rate.value("ring_directions", 0)};
  return mesh;
}

Collective read_collective(const nlohmann::json& from) {
  Collective result;
  from.at("kind").get_to(result.kind);
  from.at("bytes").get_to(result.bytes);
  if (from.contains("groups")) from["groups"].get_to(result.groups);
  if (from.contains("rings")) from["rings"].get_to(result.rings);
  result.directions = from.value("directions", 2);
  if (from.contains("pairs")) from["pairs"].get_to(result.pairs);
  return result;
}

}  // namespace judge
