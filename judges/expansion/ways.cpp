#include "expansion/ways.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace judge {
namespace {

/// A group as a set of coordinates.
struct Shape {
  std::vector<int> members;              ///< ascending
  std::vector<std::vector<int>> values;  ///< distinct coordinates by dimension, ascending
  std::vector<int> extents;              ///< dimensions with at least two of them
  std::map<std::vector<int>, int> device_at;
  bool product = false;
  bool planar = false;
};

Shape shape_of(std::vector<int> group, const Mesh& mesh) {
  Shape shape;
  std::ranges::sort(group);
  shape.members = std::move(group);
  const std::size_t dimensions = mesh.dims.size() + 1;
  std::size_t cells = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    std::set<int> distinct;
    for (const int device : shape.members) distinct.insert(mesh.coordinates.at(device)[d]);
    shape.values.emplace_back(distinct.begin(), distinct.end());
    if (distinct.size() > 1) shape.extents.push_back(static_cast<int>(d));
    cells *= distinct.size();
  }
  for (const int device : shape.members) shape.device_at[mesh.coordinates[device]] = device;
  shape.product = cells == shape.members.size();
  shape.planar =
      shape.product && shape.extents.size() == 2 && shape.extents.back() < static_cast<int>(mesh.dims.size());
  return shape;
}

/// An extent's coordinates in the order of its line, and whether they close to a ring.
struct Extent {
  std::vector<int> order;
  bool ring = false;
};

Extent extent_of(const Shape& shape, int dimension, const Mesh& mesh) {
  Extent result{shape.values[dimension], false};
  if (dimension == static_cast<int>(mesh.dims.size()) || !mesh.circular(dimension)) return result;
  const int size = mesh.dims[dimension];
  const std::size_t count = result.order.size();
  int largest = 0;
  std::size_t behind = 0;
  for (std::size_t k = 0; k < count; ++k) {
    const bool round = k + 1 == count;
    const int gap = result.order[round ? 0 : k + 1] + (round ? size : 0) - result.order[k];
    if (gap > largest) {
      largest = gap;
      behind = (k + 1) % count;
    }
  }
  std::ranges::rotate(result.order, result.order.begin() + static_cast<std::ptrdiff_t>(behind));
  result.ring = count > 2 && 2 * largest <= size;
  return result;
}

std::vector<int> comb(const Shape& shape, int row_dimension, int column_dimension, bool mirrored, const Mesh& mesh) {
  const std::vector<int> rows = extent_of(shape, row_dimension, mesh).order;
  std::vector<int> columns = extent_of(shape, column_dimension, mesh).order;
  if (mirrored) std::ranges::reverse(columns);
  std::vector<int> cycle;
  const auto visit = [&](std::size_t row, std::size_t column) {
    std::vector<int> at = mesh.coordinates[shape.members.front()];
    at[row_dimension] = rows[row];
    at[column_dimension] = columns[column];
    cycle.push_back(shape.device_at.at(at));
  };
  for (std::size_t row = 0; row < rows.size(); ++row)
    for (std::size_t step = 1; step < columns.size(); ++step) visit(row, row % 2 == 0 ? step : columns.size() - step);
  for (std::size_t row = rows.size(); row-- > 0;) visit(row, 0);
  return cycle;
}

std::vector<std::vector<int>> combs(const Shape& shape, const Mesh& mesh) {
  std::vector<std::vector<int>> result;
  if (!shape.planar) return result;
  const int a = shape.extents[0];
  const int b = shape.extents[1];
  if (shape.values[a].size() % 2 == 0)
    for (const bool mirrored : {false, true}) result.push_back(comb(shape, a, b, mirrored, mesh));
  if (shape.values[b].size() % 2 == 0)
    for (const bool mirrored : {false, true}) result.push_back(comb(shape, b, a, mirrored, mesh));
  if (!result.empty() && (shape.values[a].size() == 2 || shape.values[b].size() == 2)) result.resize(1);
  return result;
}

std::vector<int> short_tour(const Shape& shape, const Mesh& mesh) {
  std::vector<int> tour{shape.members.front()};
  std::vector<int> left(shape.members.begin() + 1, shape.members.end());
  while (!left.empty()) {
    const auto nearest = std::ranges::min_element(left, {}, [&](int d) { return mesh.hops(tour.back(), d); });
    tour.push_back(*nearest);
    left.erase(nearest);
  }
  const std::size_t n = tour.size();
  const auto hops = [&](std::size_t i, std::size_t j) { return mesh.hops(tour[i % n], tour[j % n]); };
  for (int pass = 0; n > 3 && pass < 8; ++pass) {
    bool changed = false;
    for (std::size_t i = 0; i + 2 < n; ++i)
      for (std::size_t j = i + 2; j < n; ++j) {
        if ((j + 1) % n == i) continue;
        if (hops(i, j) + hops(i + 1, j + 1) >= hops(i, i + 1) + hops(j, j + 1)) continue;
        std::reverse(tour.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                     tour.begin() + static_cast<std::ptrdiff_t>(j) + 1);
        changed = true;
      }
    if (!changed) break;
  }
  return tour;
}

std::vector<int> cut_at_longest(std::vector<int> tour, const Mesh& mesh) {
  int longest = -1;
  std::size_t start = 0;
  for (std::size_t k = 0; k < tour.size(); ++k) {
    const std::size_t next = (k + 1) % tour.size();
    const int hops = mesh.hops(tour[k], tour[next]);
    if (hops > longest) {
      longest = hops;
      start = next;
    }
  }
  std::ranges::rotate(tour, tour.begin() + static_cast<std::ptrdiff_t>(start));
  return tour;
}

Way one_track(std::vector<int> members, int directions, double share) {
  const double block = share / static_cast<double>(members.size());
  return {Part{{{Track{std::move(members), directions, block}}}}};
}

Way all_combs(const std::vector<std::vector<int>>& cycles) {
  Way way;
  for (const std::vector<int>& cycle : cycles)
    way.push_back(one_track(cycle, 2, 1.0 / static_cast<double>(cycles.size())).front());
  return way;
}

/// One track for every combination of the coordinates that are not along the extent.
std::vector<Track> tracks_along(const Shape& shape, int dimension, int directions, double block, const Mesh& mesh) {
  const Extent extent = extent_of(shape, dimension, mesh);
  std::vector<Track> result;
  for (const int device : shape.members) {
    std::vector<int> at = mesh.coordinates[device];
    if (at[dimension] != extent.order.front()) continue;
    Track track{{}, extent.ring ? directions : 0, block};
    for (const int value : extent.order) {
      at[dimension] = value;
      track.members.push_back(shape.device_at.at(at));
    }
    result.push_back(std::move(track));
  }
  return result;
}

std::vector<std::vector<int>> orders_of(std::vector<int> extents) {
  std::vector<std::vector<int>> result;
  if (extents.size() <= 4) {
    do result.push_back(extents);
    while (std::ranges::next_permutation(extents).found);
    return result;
  }
  for (std::size_t k = 0; k < extents.size(); ++k) {
    result.push_back(extents);
    std::ranges::rotate(extents, extents.begin() + 1);
  }
  return result;
}

Way by_dimension(const Shape& shape, int directions, const Mesh& mesh) {
  Way way;
  const std::vector<std::vector<int>> orders = orders_of(shape.extents);
  for (const std::vector<int>& order : orders) {
    double block = 1.0 / static_cast<double>(shape.members.size() * orders.size());
    Part part;
    for (const int dimension : order) {
      part.phases.push_back(tracks_along(shape, dimension, directions, block, mesh));
      block *= static_cast<double>(shape.values[dimension].size());
    }
    way.push_back(std::move(part));
  }
  return way;
}

/// Seconds for a payload of one byte if nobody else sent anything: in each phase the fullest link or the fullest edge.
double lone_seconds(const Way& way, const Rate& rate, const Mesh& mesh) {
  std::size_t phases = 0;
  for (const Part& part : way) phases = std::max(phases, part.phases.size());
  double seconds = 0;
  for (std::size_t phase = 0; phase < phases; ++phase) {
    std::map<int, double> on_wire;
    double worst = 0;
    for (const Part& part : way) {
      if (phase >= part.phases.size()) continue;
      for (const Track& track : part.phases[phase])
        for (const std::vector<Pass>& edge : passes(track)) {
          double bytes = 0;
          for (const Pass& pass : edge) bytes += pass.fraction * track.block;
          if (edge.empty()) continue;
          if (rate.flow_bytes_per_second > 0) worst = std::max(worst, bytes / rate.flow_bytes_per_second);
          for (const int wire : mesh.route(edge.front().from, edge.front().to)) on_wire[wire] += bytes;
        }
    }
    for (const auto& [wire, bytes] : on_wire)
      worst = std::max(worst, bytes / rate.link_fraction / mesh.wires[wire].bytes_per_second);
    seconds += worst;
  }
  return seconds;
}

Way sooner(Way first, Way second, const Rate& rate, const Mesh& mesh) {
  const double a = lone_seconds(first, rate, mesh);
  const double b = lone_seconds(second, rate, mesh);
  return b < a * (1 - 1e-9) ? second : first;
}

}  // namespace

std::vector<std::vector<Pass>> passes(const Track& track) {
  const int m = static_cast<int>(track.members.size());
  const auto member = [&](int k) { return track.members[((k % m) + m) % m]; };
  const auto wrapped = [&](int k) { return ((k % m) + m) % m; };
  std::vector<std::vector<Pass>> edges;
  if (track.directions == 0) {
    for (int k = 0; k + 1 < m; ++k) {
      std::vector<Pass>& up = edges.emplace_back();
      for (int block = k; block >= 0; --block) up.push_back({member(k), member(k + 1), block});
      std::vector<Pass>& down = edges.emplace_back();
      for (int block = k + 1; block < m; ++block) down.push_back({member(k + 1), member(k), block});
    }
    return edges;
  }
  const int steps = track.directions == 1 ? m - 1 : m / 2;
  for (int k = 0; k < m; ++k)
    for (int direction = 1; direction >= (track.directions == 1 ? 1 : -1); direction -= 2) {
      std::vector<Pass>& edge = edges.emplace_back();
      for (int step = 1; step <= steps; ++step) {
        const bool half = track.directions == 2 && m % 2 == 0 && step == steps;
        edge.push_back({member(k), member(k + direction), wrapped(k - direction * (step - 1)), half ? 0.5 : 1.0});
      }
    }
  return edges;
}

Way choose_way(std::vector<int> group, const Rate& rate, const Mesh& mesh) {
  const Shape shape = shape_of(std::move(group), mesh);
  if (shape.members.size() < 2) return {};
  const std::vector<std::vector<int>> cycles = combs(shape, mesh);
  if (rate.ring_directions == 0) {
    if (!cycles.empty()) return sooner(all_combs(cycles), by_dimension(shape, 2, mesh), rate, mesh);
    if (shape.product) return by_dimension(shape, 2, mesh);
    const std::vector<int> tour = short_tour(shape, mesh);
    const Way line = one_track(cut_at_longest(tour, mesh), 0, 1);
    return tour.size() == 2 ? line : sooner(one_track(tour, 2, 1), line, rate, mesh);
  }
  if (shape.product && shape.extents.size() == 1) return by_dimension(shape, rate.ring_directions, mesh);
  if (!cycles.empty()) {
    Way best = one_track(cycles.front(), rate.ring_directions, 1);
    for (std::size_t k = 1; k < cycles.size(); ++k)
      best = sooner(std::move(best), one_track(cycles[k], rate.ring_directions, 1), rate, mesh);
    return best;
  }
  std::vector<int> tour = short_tour(shape, mesh);
  if (tour.size() == 2) return one_track(cut_at_longest(std::move(tour), mesh), 0, 1);
  return one_track(std::move(tour), rate.ring_directions, 1);
}

}  // namespace judge
