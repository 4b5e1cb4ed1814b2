#include "aoizora/topology/device_kinds.h"

#include <algorithm>

namespace aoizora::topology {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// A host holds 2x2 chips, or a part of them along a dimension of one; a slice is whole hosts (checked against libtpu by
// python/tests/test_topology.py). The documentation ends at 16x16.
bool v5e_takes(std::span<const int> dims) {
  return std::ranges::all_of(dims, [](int size) { return size == 1 || (size >= 2 && size <= 16 && size % 2 == 0); });
}

// Only a dimension that spans the whole pod, 16 chips, has its wraparound links (Cloud TPU documentation).
std::vector<bool> v5e_wraps(std::span<const int> dims) {
  std::vector<bool> result;
  for (const int size : dims) result.push_back(size == 16);
  return result;
}

Hardware v5e_hardware() {
  Hardware h;
  h.device_kind = "v5e";
  h.peak_flops_per_second = {197e12, "Cloud TPU documentation, TPU v5e: 197 TFLOP/s bf16 a chip"};
  h.hbm_bytes = {15.75 * kGiB, "compiler's out-of-memory message: 15.75G available of 16 GB"};
  h.hbm_bytes_per_second = {819e9, "Cloud TPU documentation, TPU v5e: 819 GB/s a chip"};
  h.ici_bytes_per_second = {45e9, "How to Scale Your Model, TPU chapter: 4.5e10 B/s a link and direction"};
  h.hop_seconds = {1e-6, "How to Scale Your Model, sharding chapter: about 1 us a hop"};
  h.clock_hz = {1.5e9, "How to Scale Your Model, TPU chapter: 197 TFLOP/s over four 128x128 matrix units"};
  h.dcn_bytes_per_second = {3.1e9, "How to Scale Your Model, TPU chapter: 3.1e9 B/s a chip"};
  h.matmul_efficiency = {0.98, "compiler's estimated_cycles: 831,857 cycles for a matmul of 1.07e11 FLOP"};
  h.core_efficiency = {0.84, "fitted on the 720p rows of the paper's Table 4; the 480p rows are the test of it"};
  // Bundles a grid step of the kernel issues, by block of queries x keys: 512 x 512 1,397, 512 x 1024 2,429; and what
  // only the first and the last block of keys issue: 612. The products are 1,032 of them, the matrix units' floor
  // 1,024.
  const char* const schedule = "compiler's instruction schedule of splash attention (docs/topology.md)";
  h.attention_product_cycles = {1032, schedule};
  h.attention_step_cycles = {365.0 / 512.0, schedule};
  h.attention_row_cycles = {612.0 / 512.0, schedule};

  const Number alpha{1e-6, "assumption: the start of a collective costs about a hop"};
  const Number large{0.95, "How to Scale Your Model, sharding chapter: large all-gathers on v5e reach 95 % of 45 GB/s"};
  // The compiler's all-to-all sends messages of 32 kB (max_rdma_size_bytes in its collective_algorithm_config).
  const Number small{3.0 / 8.0,
                     "How to Scale Your Model: on v5e a shard of 32 kB takes about 8 us where theory says 3"};
  const Number no_limit{0, "no limit of one flow seen"};
  const Number one_way{1, "compiler's collective_algorithm_config on v5e: 1DAllGather over one ring of the group"};
  const Number both_ways{2, "compiler's collective_algorithm_config on v5e: UniDirection1DRingStrategy, two colors"};
  for (const CollectiveKind kind : all_collective_kinds) h.collectives[kind] = {alpha, large, no_limit, one_way};
  // Nobody has published how fast reductions are; the spread of the paper's Figure 2 (16.6 %) is one of all-reduces.
  const Number reducing{30.4 / 45.0, "paper, Figure 3: a shared link carries 30.4 GB/s; Figure 2's spread agrees"};
  for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter})
    h.collectives[kind].rate_fraction = reducing;
  h.collectives[CollectiveKind::all_reduce].ring_directions = both_ways;
  h.collectives[CollectiveKind::all_to_all].rate_fraction = small;
  h.collectives[CollectiveKind::ragged_all_to_all].rate_fraction = small;
  // Two flows at 15.2 GB/s fill a shared link of 30.4; a lone one reaches 23. A link of 45 with any limit a flow gives
  // one or the other figure, not both.
  h.collectives[CollectiveKind::permute] = {
      alpha,
      {30.4 / 45.0, "paper, Figure 3: 15.2 GB/s each for two permutes that share a link"},
      {23e9, "paper, Figure 3: about 23 GB/s for a permute alone, over any number of hops"},
      one_way};
  return h;
}

}  // namespace

std::span<const DeviceKind> device_kind_table() {
  static const std::vector<DeviceKind> table{
      {.name = "v5e",
       .dimensions = 2,
       .largest_dimension = 16,
       .shapes = "each of A and B is 1 or even, and at most 16",
       .takes = v5e_takes,
       .wraps = v5e_wraps,
       .cores_per_chip = 1,
       .hardware = v5e_hardware()},
  };
  return table;
}

}  // namespace aoizora::topology
