#include "aoizora/placement/placement.h"

#include <algorithm>
#include <boost/json.hpp>
#include <numeric>

#include "aoizora/errors.h"
#include "aoizora/json_checks_impl.h"

namespace aoizora::placement {
namespace {

constexpr std::int64_t kMostRanks = std::int64_t{1} << 20;

}  // namespace

std::int64_t rank_count(std::span<const candidates::MeshAxis> mesh) {
  std::int64_t result = 1;
  for (std::size_t i = 0; i < mesh.size(); ++i) {
    const candidates::MeshAxis& axis = mesh[i];
    if (axis.name.empty()) throw InvalidRequest("a mesh axis has no name");
    if (axis.size < 1)
      throw InvalidRequest("mesh axis \"" + axis.name + "\" has size " + std::to_string(axis.size) +
                           "; it must be 1 or more");
    for (std::size_t j = 0; j < i; ++j) {
      if (mesh[j].name == axis.name) throw InvalidRequest("mesh axis \"" + axis.name + "\" comes twice");
    }
    if (axis.size > kMostRanks / result)
      throw InvalidRequest("the mesh has more than " + std::to_string(kMostRanks) + " ranks");
    result *= axis.size;
  }
  return result;
}

std::size_t axis_position(std::span<const candidates::MeshAxis> mesh, const std::string& name) {
  std::string known;
  for (std::size_t i = 0; i < mesh.size(); ++i) {
    if (mesh[i].name == name) return i;
    known += (i == 0 ? "" : ", ") + mesh[i].name;
  }
  throw InvalidRequest("the mesh has no axis \"" + name + "\"; it has " + known);
}

void check_fits(std::span<const candidates::MeshAxis> mesh, const topology::Slice& slice) {
  const std::int64_t ranks = rank_count(mesh);
  if (ranks == static_cast<std::int64_t>(slice.devices.size())) return;
  std::string shape;
  for (const candidates::MeshAxis& axis : mesh)
    shape += (shape.empty() ? "" : " x ") + axis.name + " " + std::to_string(axis.size);
  throw Infeasible("the mesh " + shape + " has " + std::to_string(ranks) + " ranks and " + slice.name + " " +
                   std::to_string(slice.devices.size()) + " devices; the sizes must multiply to the device count");
}

Placement row_major(const topology::Slice& slice) {
  Placement result;
  result.devices.resize(slice.devices.size());
  std::iota(result.devices.begin(), result.devices.end(), 0);
  result.order = "row-major";
  return result;
}

std::vector<std::vector<std::int32_t>> groups_along(std::span<const candidates::MeshAxis> mesh,
                                                    std::span<const std::string> axes) {
  const std::int64_t ranks = rank_count(mesh);
  std::vector<std::int64_t> stride(mesh.size(), 1);
  for (std::size_t i = mesh.size(); i-- > 1;) stride[i - 1] = stride[i] * mesh[i].size;

  // Offsets of a group's members from its least rank: an odometer over the given axes, the first the slowest.
  std::vector<std::int64_t> offsets{0};
  std::vector<bool> taken(mesh.size(), false);
  for (const std::string& name : axes) {
    const std::size_t at = axis_position(mesh, name);
    const std::int64_t size = mesh[at].size;
    if (taken[at]) throw InvalidRequest("mesh axis \"" + name + "\" comes twice");
    taken[at] = true;
    std::vector<std::int64_t> longer;
    longer.reserve(offsets.size() * static_cast<std::size_t>(size));
    for (const std::int64_t offset : offsets) {
      for (std::int64_t i = 0; i < size; ++i) longer.push_back(offset + i * stride[at]);
    }
    offsets = std::move(longer);
  }

  std::vector<std::vector<std::int32_t>> result;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    bool is_least = true;
    for (std::size_t i = 0; i < mesh.size(); ++i)
      is_least = is_least && (!taken[i] || rank / stride[i] % mesh[i].size == 0);
    if (!is_least) continue;
    std::vector<std::int32_t>& group = result.emplace_back();
    for (const std::int64_t offset : offsets) group.push_back(static_cast<std::int32_t>(rank + offset));
  }
  return result;
}

std::vector<candidates::MeshAxis> read_mesh(const std::string& text) {
  namespace json = boost::json;
  const json::value value = json_checks::parse(text, std::size_t{1} << 20);
  std::vector<candidates::MeshAxis> result;
  const auto add = [&](const json::value* name, const json::value* size) {
    if (!name || !size || !name->is_string() || !size->is_int64())
      throw InvalidRequest(
          "a mesh axis has a name and a whole size, for example {\"data\": 2} or {\"name\": \"data\", \"size\": 2}");
    result.push_back({std::string(name->get_string()), size->get_int64()});
  };
  if (value.is_object()) {
    for (const auto& member : value.get_object()) {
      const json::value name(member.key());
      add(&name, &member.value());
    }
  } else if (value.is_array()) {
    for (const json::value& axis : value.get_array()) {
      const json::object* object = axis.if_object();
      const json::array* pair = axis.if_array();
      if (object != nullptr) {
        add(object->if_contains("name"), object->if_contains("size"));
      } else {
        add(pair && pair->size() == 2 ? &(*pair)[0] : nullptr, pair && pair->size() == 2 ? &(*pair)[1] : nullptr);
      }
    }
  } else {
    throw InvalidRequest(
        "a mesh is an object of axis sizes, for example {\"data\": 2, \"context\": 4}, or a list of axes");
  }
  if (result.empty()) throw InvalidRequest("the mesh has no axis");
  rank_count(result);
  return result;
}

}  // namespace aoizora::placement
