#include "aoizora/topology/slice.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "aoizora/errors.h"

namespace aoizora::topology {
namespace {

constexpr std::int64_t kMostDevices = 65536;
constexpr std::size_t kMostDimensions = 8;
constexpr int kMostCores = 16;

void check_number(const Number& number, const char* what, double least, double most, bool may_equal_least) {
  const bool above = may_equal_least ? number.value >= least : number.value > least;
  if (std::isfinite(number.value) && above && number.value <= most) return;
  throw InvalidRequest(std::string("hardware number ") + what + " is " + std::to_string(number.value) +
                       "; allowed: " + (may_equal_least ? "from " : "above ") + std::to_string(least) +
                       (most < 1e30 ? " up to " + std::to_string(most) : ""));
}

void check_hardware(const Hardware& h, int cores_per_chip) {
  constexpr double any = 1e30;
  check_number(h.peak_flops_per_second, "peak_flops_per_second", 0, any, false);
  check_number(h.hbm_bytes, "hbm_bytes", 0, any, false);
  check_number(h.hbm_bytes_per_second, "hbm_bytes_per_second", 0, any, false);
  check_number(h.ici_bytes_per_second, "ici_bytes_per_second", 0, any, false);
  check_number(h.hop_seconds, "hop_seconds", 0, any, true);
  check_number(h.clock_hz, "clock_hz", 0, any, false);
  check_number(h.dcn_bytes_per_second, "dcn_bytes_per_second", 0, any, true);
  check_number(h.matmul_efficiency, "matmul_efficiency", 0, 1, false);
  check_number(h.core_efficiency, "core_efficiency", 0, 1, false);
  check_number(h.attention_product_cycles, "attention_product_cycles", 0, any, false);
  check_number(h.attention_step_cycles, "attention_step_cycles", 0, any, true);
  check_number(h.attention_row_cycles, "attention_row_cycles", 0, any, true);
  check_number(h.core_bytes_per_second, "core_bytes_per_second", 0, any, cores_per_chip == 1);
  for (const CollectiveKind kind : all_collective_kinds) {
    const auto rate = h.collectives.find(kind);
    if (rate == h.collectives.end())
      throw InvalidRequest("hardware has no rates of \"" + std::string(name(kind)) + "\"");
    check_number(rate->second.alpha_seconds, "alpha_seconds", 0, any, true);
    check_number(rate->second.rate_fraction, "rate_fraction", 0, 1, false);
    check_number(rate->second.flow_bytes_per_second, "flow_bytes_per_second", 0, any, true);
    check_number(rate->second.ring_directions, "ring_directions", 0, 2, true);
    if (rate->second.ring_directions.value != std::floor(rate->second.ring_directions.value))
      throw InvalidRequest("hardware number ring_directions is " + std::to_string(rate->second.ring_directions.value) +
                           "; allowed: 0, 1, 2");
  }
}

void check_shape(const std::vector<int>& dims, const std::vector<bool>& wraps, int cores_per_chip) {
  if (dims.empty() || dims.size() > kMostDimensions) {
    throw InvalidRequest("a slice has 1 to " + std::to_string(kMostDimensions) + " dimensions, not " +
                         std::to_string(dims.size()));
  }
  if (wraps.size() != dims.size()) {
    throw InvalidRequest("\"wraps\" has " + std::to_string(wraps.size()) + " entries for " +
                         std::to_string(dims.size()) + " dimensions");
  }
  if (cores_per_chip < 1 || cores_per_chip > kMostCores) {
    throw InvalidRequest("cores_per_chip is " + std::to_string(cores_per_chip) + "; allowed: 1 to " +
                         std::to_string(kMostCores));
  }
  std::int64_t devices = cores_per_chip;
  for (const int size : dims) {
    if (size < 1) throw InvalidRequest("a dimension of " + std::to_string(size) + " chips; it must be 1 or more");
    devices = devices > kMostDevices ? devices : devices * size;
  }
  if (devices > kMostDevices)
    throw InvalidRequest("the slice has more than " + std::to_string(kMostDevices) + " devices");
}

// Devices, ordered by coordinates (x slowest), then core: counts up like an odometer.
void add_devices(Slice& slice) {
  const std::int32_t chips = slice.chip_count();
  std::vector<int> at(slice.dims.size(), 0);
  slice.devices.reserve(static_cast<std::size_t>(chips) * slice.cores_per_chip);
  for (std::int32_t chip = 0; chip < chips; ++chip) {
    for (int core = 0; core < slice.cores_per_chip; ++core) slice.devices.push_back({at, core});
    for (std::size_t d = at.size(); d-- > 0;) {
      if (++at[d] < slice.dims[d]) break;
      at[d] = 0;
    }
  }
}

void add_ici_links(Slice& slice) {
  const std::int32_t chips = slice.chip_count();
  slice.outgoing.assign(static_cast<std::size_t>(2) * chips * slice.dims.size(), -1);
  for (std::int32_t chip = 0; chip < chips; ++chip) {
    const DeviceId first_core = chip * slice.cores_per_chip;
    const std::vector<int>& at = slice.devices[first_core].coordinates;
    std::int32_t stride = chips;
    for (std::size_t d = 0; d < slice.dims.size(); ++d) {
      const int size = slice.dims[d];
      const bool ring = slice.is_ring(static_cast<int>(d));
      stride /= size;
      for (const int direction : {+1, -1}) {
        const int next = at[d] + direction;
        if (!ring && (next < 0 || next >= size)) continue;
        slice.outgoing[2 * (chip * slice.dims.size() + d) + (direction < 0)] = static_cast<LinkId>(slice.links.size());
        slice.links.push_back({LinkKind::ici, chip, chip + ((next + size) % size - at[d]) * stride, static_cast<int>(d),
                               direction, slice.hardware.ici_bytes_per_second.value, 0, 0});
      }
    }
  }
}

// Every ordered pair of cores of a chip; core_link() counts on this order.
void add_core_links(Slice& slice) {
  for (std::int32_t chip = 0; chip < slice.chip_count(); ++chip) {
    for (int from = 0; from < slice.cores_per_chip; ++from) {
      for (int to = 0; to < slice.cores_per_chip; ++to) {
        if (from == to) continue;
        slice.links.push_back({LinkKind::core, chip, chip, -1, to > from ? +1 : -1,
                               slice.hardware.core_bytes_per_second.value, from, to});
      }
    }
  }
}

LinkId core_link(const Slice& slice, std::int32_t chip, int from, int to) {
  const std::int64_t pairs = static_cast<std::int64_t>(slice.cores_per_chip) * (slice.cores_per_chip - 1);
  const std::int64_t first = static_cast<std::int64_t>(slice.links.size()) - pairs * slice.chip_count();
  return static_cast<LinkId>(first + pairs * chip + static_cast<std::int64_t>(from) * (slice.cores_per_chip - 1) + to -
                             (to > from));
}

void check_device(const Slice& slice, DeviceId device) {
  if (device >= 0 && static_cast<std::size_t>(device) < slice.devices.size()) return;
  throw InvalidRequest("no device " + std::to_string(device) + " in " + slice.name + ", which has " +
                       std::to_string(slice.devices.size()));
}

}  // namespace

std::int32_t Slice::chip_count() const {
  std::int32_t result = 1;
  for (const int size : dims) result *= size;
  return result;
}

DeviceId Slice::device_at(const std::vector<int>& coordinates, int core) const {
  bool inside = coordinates.size() == dims.size() && core >= 0 && core < cores_per_chip;
  DeviceId result = 0;
  for (std::size_t d = 0; inside && d < dims.size(); ++d) {
    inside = coordinates[d] >= 0 && coordinates[d] < dims[d];
    result = result * dims[d] + coordinates[d];
  }
  if (inside) return result * cores_per_chip + core;
  std::string given;
  for (const int c : coordinates) given += std::to_string(c) + ", ";
  throw InvalidRequest("no device at (" + given + "core " + std::to_string(core) + ") in " + name);
}

std::vector<LinkId> Slice::route(DeviceId from, DeviceId to) const {
  check_device(*this, from);
  check_device(*this, to);
  std::vector<LinkId> result;
  std::int32_t chip = chip_of(from);
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const int size = dims[d];
    const int here = devices[from].coordinates[d], there = devices[to].coordinates[d];
    const int up = (there - here + size) % size;
    const bool goes_up = is_ring(static_cast<int>(d)) ? 2 * up <= size : there > here;
    for (int left = goes_up ? up : (size - up) % size; left > 0; --left) {
      const LinkId link = outgoing[2 * (chip * dims.size() + d) + !goes_up];
      result.push_back(link);
      chip = links[link].to_chip;
    }
  }
  if (devices[from].core != devices[to].core)
    result.push_back(core_link(*this, chip, devices[from].core, devices[to].core));
  return result;
}

Slice build_slice(std::string name, std::vector<int> dims, std::vector<bool> wraps, int cores_per_chip,
                  Hardware hardware) {
  check_shape(dims, wraps, cores_per_chip);
  check_hardware(hardware, cores_per_chip);
  Slice slice;
  slice.name = std::move(name);
  slice.dims = std::move(dims);
  slice.wraps = std::move(wraps);
  slice.cores_per_chip = cores_per_chip;
  slice.hardware = std::move(hardware);
  add_devices(slice);
  add_ici_links(slice);
  add_core_links(slice);
  return slice;
}

double attention_kernel_cycles(const Hardware& hardware, double heads, double queries, double keys, double key_block,
                               double head_dim) {
  const double products = keys / (512.0 * 512.0) * hardware.attention_product_cycles.value;
  const double steps = keys / key_block * hardware.attention_step_cycles.value;
  return std::ceil(head_dim / 128) * heads * queries * (products + steps + hardware.attention_row_cycles.value);
}

}  // namespace aoizora::topology
