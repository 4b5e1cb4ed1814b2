#include "aoizora/ranking/rank_program.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <optional>

#include "aoizora/errors.h"
#include "aoizora/placement/placement.h"

namespace aoizora::ranking {
namespace {

namespace json = boost::json;

std::vector<std::int64_t> prime_factors(std::int64_t n) {
  std::vector<std::int64_t> factors;
  for (std::int64_t p = 2; p * p <= n; ++p) {
    for (; n % p == 0; n /= p) factors.push_back(p);
  }
  if (n > 1) factors.push_back(n);
  return factors;
}

/// Which digits of its members vary within a pattern's groups; nullopt where a group is no product of whole digits.
std::optional<std::vector<bool>> varying_digits(const Pattern& pattern, std::span<const std::int64_t> digits) {
  std::vector<bool> varies(digits.size(), false);
  const auto compare = [&](std::int64_t a, std::int64_t b) {
    for (std::size_t d = digits.size(); d-- > 0; a /= digits[d], b /= digits[d]) {
      if (a % digits[d] != b % digits[d]) varies[d] = true;
    }
  };
  for (const auto& [source, target] : pattern.pairs) compare(source, target);
  if (pattern.kind == topology::CollectiveKind::permute) return varies;
  if (pattern.groups.empty()) return std::vector<bool>(digits.size(), true);
  std::size_t largest = 1;
  for (const auto& group : pattern.groups) {
    largest = std::max(largest, group.size());
    for (const std::int32_t rank : group) compare(group.front(), rank);
  }
  std::size_t product = 1;
  for (std::size_t d = 0; d < digits.size(); ++d) product *= varies[d] ? static_cast<std::size_t>(digits[d]) : 1;
  if (product != largest) return std::nullopt;
  return varies;
}

void check_devices(std::int64_t program_devices, const topology::Slice& slice,
                   std::span<const candidates::MeshAxis> mesh) {
  const auto available = static_cast<std::int64_t>(slice.devices.size());
  if (program_devices != available) {
    throw InvalidRequest("the program was compiled for " + std::to_string(program_devices) + " devices, slice " +
                         slice.name + " has " + std::to_string(available) + "; name a slice of " +
                         std::to_string(program_devices));
  }
  if (mesh.empty()) return;
  std::int64_t product = 1;
  for (const candidates::MeshAxis& axis : mesh) {
    if (axis.size < 1 || axis.size > available) {
      throw InvalidRequest("mesh axis " + axis.name + " has size " + std::to_string(axis.size) + "; allowed: 1 to " +
                           std::to_string(available));
    }
    product = std::min(product * axis.size, available * 2);
  }
  if (product != available) {
    std::string given;
    for (const candidates::MeshAxis& axis : mesh) given += " " + axis.name + "=" + std::to_string(axis.size);
    throw InvalidRequest("the sizes of the mesh" + given.substr(0, 200) + " do not multiply to the " +
                         std::to_string(available) + " devices of slice " + slice.name);
  }
}

placement::DistinctPlacements placements_of(const InferredMesh& mesh, const topology::Slice& slice,
                                            const RankOptions& options, bool given) {
  placement::PlacementOptions wanted;
  wanted.active_axes = mesh.active_axes;
  wanted.ordered_axes = mesh.ordered_axes;
  wanted.limit = options.placement_limit;
  try {
    return placement::distinct_axis_orders(mesh.axes, slice, wanted);
  } catch (const Infeasible&) {
    if (given) throw;
    placement::DistinctPlacements only;  // a mesh nobody asked for that the slice cannot be dealt to
    only.placements = {placement::row_major(slice)};
    return only;
  }
}

json::object describe(const placement::Placement& placement, const Q2& q2) {
  json::object object;
  object["order"] = placement.order;
  object["devices"] = json::value_from(placement.devices);
  object["step_seconds"] = q2.step_seconds;
  object["block_seconds"] = q2.block_seconds;
  object["outside_seconds"] = q2.outside_seconds;
  object["contention_seconds"] = q2.contention_seconds;
  object["exposed_communication_seconds"] = q2.exposed_communication_seconds;
  return object;
}

json::array describe_mesh(std::span<const candidates::MeshAxis> axes) {
  json::array array;
  for (const candidates::MeshAxis& axis : axes) array.push_back(json::object{{"name", axis.name}, {"size", axis.size}});
  return array;
}

}  // namespace

InferredMesh infer_mesh(std::span<const Pattern> patterns, std::int32_t devices) {
  std::vector<std::int64_t> digits = prime_factors(devices);
  std::vector<std::vector<bool>> best_sets;
  std::vector<std::int64_t> best_digits = digits;
  std::int64_t best_explained = -1;
  constexpr int orders_tried = 5000;  // of unlike primes; a power of two has one
  int tried = 0;
  do {
    std::vector<std::vector<bool>> sets;
    for (const Pattern& pattern : patterns) {
      if (auto set = varying_digits(pattern, digits)) sets.push_back(std::move(*set));
    }
    if (static_cast<std::int64_t>(sets.size()) > best_explained) {
      best_explained = static_cast<std::int64_t>(sets.size());
      best_sets = std::move(sets);
      best_digits = digits;
    }
  } while (best_explained < static_cast<std::int64_t>(patterns.size()) && ++tried < orders_tried &&
           std::next_permutation(digits.begin(), digits.end()));

  InferredMesh mesh;
  mesh.explains_all = best_explained == static_cast<std::int64_t>(patterns.size());
  for (std::size_t d = 0; d < best_digits.size(); ++d) {
    const bool joined =
        d > 0 && std::all_of(best_sets.begin(), best_sets.end(), [&](const auto& set) { return set[d] == set[d - 1]; });
    if (joined) {
      mesh.axes.back().size *= best_digits[d];
    } else {
      mesh.axes.push_back({"axis_" + std::to_string(mesh.axes.size()), best_digits[d]});
    }
  }
  if (mesh.axes.empty()) mesh.axes.push_back({"axis_0", 1});
  return mesh;
}

std::vector<candidates::MeshAxis> read_mesh(const std::string& text) {
  return text.empty() ? std::vector<candidates::MeshAxis>{} : placement::read_mesh(text);
}

std::string rank_json(const ir::Program& program, const topology::Slice& slice,
                      std::span<const candidates::MeshAxis> mesh, const RankOptions& options) {
  check_devices(ir::device_count(program), slice, mesh);
  const CompiledProgram compiled = extract(program, slice.hardware);
  InferredMesh logical = infer_mesh(compiled.patterns, static_cast<std::int32_t>(slice.devices.size()));
  if (!mesh.empty()) logical.axes.assign(mesh.begin(), mesh.end());
  std::vector<std::int64_t> sizes;
  for (const candidates::MeshAxis& axis : logical.axes) sizes.push_back(axis.size);
  for (const Pattern& pattern : compiled.patterns) {
    const auto varies = varying_digits(pattern, sizes);
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      const auto add = [&](std::vector<std::string>& names) {
        if (std::find(names.begin(), names.end(), logical.axes[d].name) == names.end())
          names.push_back(logical.axes[d].name);
      };
      if (sizes[d] < 2 || (varies && !(*varies)[d])) continue;
      add(logical.active_axes);
      if (pattern.kind == topology::CollectiveKind::permute) add(logical.ordered_axes);
    }
  }

  const placement::DistinctPlacements distinct = placements_of(logical, slice, options, !mesh.empty());
  const Q2Options q2_options{options.rate_scale, false};
  const std::int64_t layers = compiled.proxy_layers;
  const placement::Placement row_major = placement::row_major(slice);
  Scorer scorer(compiled, slice, layers, q2_options);
  const Q2 base = scorer.explain(row_major);
  const placement::Placement* best = &row_major;
  double least = base.step_seconds, most = base.step_seconds;
  for (const placement::Placement& candidate : distinct.placements) {
    const double seconds = scorer.score(candidate).step_seconds;
    most = std::max(most, seconds);
    if (seconds < least * (1 - 1e-9)) {
      least = seconds;
      best = &candidate;
    }
  }
  const Q2 winner = scorer.explain(*best);

  json::array collectives;
  for (std::size_t k = 0; k < base.collectives.size() && k < winner.collectives.size(); ++k) {
    const CollectiveCost& before = base.collectives[k];
    const CollectiveCost& after = winner.collectives[k];
    const ir::Collective& collective = compiled.collectives[before.collective];
    json::object object;
    object["name"] = before.name;
    object["kind"] = topology::name(before.kind);
    object["groups"] = collective.groups.empty() ? collective.pairs.size() : collective.groups.size();
    object["group_size"] = collective.groups.empty() ? std::size_t{2} : collective.groups.front().size();
    object["runs"] = before.runs;
    object["bytes"] = before.bytes;
    object["default_seconds"] = before.seconds;
    object["best_seconds"] = after.seconds;
    object["default_exposed_seconds"] = before.exposed_seconds;
    object["best_exposed_seconds"] = after.exposed_seconds;
    object["default_contention_seconds"] = before.contention_seconds;
    object["best_contention_seconds"] = after.contention_seconds;
    collectives.push_back(std::move(object));
  }
  json::object result;
  result["slice"] = slice.name;
  result["mesh"] = describe_mesh(logical.axes);
  result["mesh_inferred"] = mesh.empty();
  result["mesh_explains_all"] = logical.explains_all || !mesh.empty();
  result["axis_orders"] = distinct.axis_orders;
  result["placements"] = distinct.placements.size();
  result["truncated"] = distinct.truncated;
  result["rung"] = compiled.rung == Rung::code ? "code" : "passes";
  result["layers"] = layers;
  result["default"] = describe(row_major, base);
  result["best"] = describe(*best, winner);
  result["worst_step_seconds"] = most;
  result["gain"] = base.step_seconds > 0 ? 1 - winner.step_seconds / base.step_seconds : 0.0;
  result["spread"] = least > 0 ? most / least - 1 : 0.0;
  result["collectives"] = std::move(collectives);
  return json::serialize(result);
}

}  // namespace aoizora::ranking
