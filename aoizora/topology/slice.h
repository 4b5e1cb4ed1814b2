#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "aoizora/topology/collective_kind.h"

namespace aoizora::topology {

/// Index into Slice::devices.
using DeviceId = std::int32_t;
/// Index into Slice::links.
using LinkId = std::int32_t;

/// What a rank sits on: a core of a chip. Coordinates are the slice's own, one a dimension, x first.
struct Device {
  std::vector<int> coordinates;
  int core = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

enum class LinkKind : std::uint8_t {
  ici,   ///< between neighbouring chips
  core,  ///< between cores of one chip
  dcn,   ///< between slices
};

/// One direction of one wire.
struct Link {
  LinkKind kind = LinkKind::ici;
  std::int32_t from_chip = 0;
  std::int32_t to_chip = 0;
  int dimension = 0;   ///< physical dimension of an ICI link; -1 for the others
  int direction = +1;  ///< +1 or -1 along the dimension; of a core link: towards the higher or the lower core
  double bandwidth_bytes_per_second = 0;
  int from_core = 0;  ///< core links only: an ICI link serves every core of its chip
  int to_core = 0;
  friend bool operator==(const Link&, const Link&) = default;
};

/// A number from outside with where it comes from.
struct Number {
  double value = 0;
  std::string source;
  friend bool operator==(const Number&, const Number&) = default;
};

/// Calibration of one kind of collective. All are inputs of the model, none is fitted here.
struct CollectiveRate {
  Number alpha_seconds;          ///< α_τ: start-up of one collective
  Number rate_fraction;          ///< fraction of the link's nominal bandwidth this kind reaches
  Number flow_bytes_per_second;  ///< limit of one flow, 0 for none
  /// How gathers and reductions cross a group that spans several dimensions: 0, an exchange a dimension with several
  /// ports at work; 1 or 2, one ring over the whole group, sent round one way or both.
  Number ring_directions;
  friend bool operator==(const CollectiveRate&, const CollectiveRate&) = default;
};

/// What one device does, and what its links do. Per *device* (tpu7x: half a chip).
struct Hardware {
  std::string device_kind;  ///< "v5e"
  Number peak_flops_per_second;
  Number hbm_bytes;  ///< usable by a program
  Number hbm_bytes_per_second;
  Number ici_bytes_per_second;  ///< per link and direction
  Number hop_seconds;
  Number clock_hz;
  Number dcn_bytes_per_second;
  Number matmul_efficiency;         ///< fraction of peak of a large matmul
  Number core_efficiency;           ///< of all compute: what the core sustains of the speed that the other numbers give
  Number attention_product_cycles;  ///< splash attention: the two products of 512 queries, 512 keys, head_dim 128
  Number attention_step_cycles;     ///< splash attention: what each block of keys costs beside them, a query
  Number attention_row_cycles;      ///< splash attention: the first and the last block of keys, a query
  std::map<CollectiveKind, CollectiveRate> collectives;  ///< every kind is present
  Number core_bytes_per_second;  ///< between two cores of a chip, per direction; 0 where a chip has one core
  friend bool operator==(const Hardware&, const Hardware&) = default;
};

/// Cycles of splash attention of one device; lengths of queries and keys padded to the kernel's blocks:
///   lanes x heads x queries x (keys / 512^2 x product + keys / key_block x step + row),  lanes = ceil(head_dim / 128).
/// The compiler's instruction schedule has this form for every block (docs/topology.md). `key_block` is at least 1.
double attention_kernel_cycles(const Hardware& hardware, double heads, double queries, double keys, double key_block,
                               double head_dim);

/// A slice: devices by coordinate, directed links, wrap a dimension.
struct Slice {
  std::string name;             ///< "v5e:2x4"
  std::vector<int> dims;        ///< chips along x, y, ...: "v5e:2x4" is {2, 4}
  std::vector<bool> wraps;      ///< one a dimension
  int cores_per_chip = 1;       ///< devices a chip
  std::vector<Device> devices;  ///< ordered by coordinates (x slowest), then core
  std::vector<Link> links;      ///< a wrapped dimension of 2 has no second pair of links
  Hardware hardware;
  /// outgoing[2 * (chip * dims.size() + dimension) + (direction < 0)] is the ICI link that leaves there, -1 for none.
  /// Derived from dims and wraps; route() reads it.
  std::vector<LinkId> outgoing;
  friend bool operator==(const Slice&, const Slice&) = default;

  std::int32_t chip_count() const;
  std::int32_t chip_of(DeviceId device) const { return device / cores_per_chip; }
  /// Throws InvalidRequest where there is no such device.
  DeviceId device_at(const std::vector<int>& coordinates, int core) const;

  /// Directed links from one device to another: dimension-ordered (x first), the shorter way round where a dimension
  /// wraps (ties go up), one hop a link, the link between the destination's cores last. Empty for a device to itself.
  std::vector<LinkId> route(DeviceId from, DeviceId to) const;

  /// True where a message can go round the dimension: it wraps and has more than two chips.
  bool is_ring(int dimension) const { return wraps[dimension] && dims[dimension] > 2; }
};

/// The only way a slice is made: devices and links follow from the shape. Throws InvalidRequest where the shape is none
/// (a dimension below 1, wraps of another length, more than 65,536 devices) or a number of `hardware` is not usable.
Slice build_slice(std::string name, std::vector<int> dims, std::vector<bool> wraps, int cores_per_chip,
                  Hardware hardware);

/// "v5e:4x4" or the path of a descriptor file (JSON: a whole slice, or "base" and the numbers it overrides; docs/ has
/// the format). Throws InvalidRequest naming what is known and allowed, ParseError for a bad file.
Slice make_slice(const std::string& name_or_path);

/// Device kinds that make_slice knows, for example "v5e".
std::vector<std::string> device_kinds();

/// A slice from the text of a descriptor. Throws as make_slice.
Slice read_descriptor(const std::string& json);

/// The slice as descriptor text; read_descriptor(to_json(s)) == s in every number.
std::string to_json(const Slice& slice);

/// Every permutation of devices that maps links to links: mirrors, exchanges of equal dimensions, rotations of wrapped
/// dimensions, and every renumbering of cores that is the same on all chips. result[k][d] is where automorphism k takes
/// device d; the identity is first, none comes twice. Throws InvalidRequest where the list would not fit in memory
/// (more than 2^26 entries).
std::vector<std::vector<DeviceId>> automorphisms(const Slice& slice);

}  // namespace aoizora::topology
