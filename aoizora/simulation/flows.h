#pragma once
#include <span>
#include <vector>

#include "aoizora/topology/slice.h"

namespace aoizora::simulation {

/// One transfer between two devices over its dimension-ordered route.
struct Flow {
  topology::DeviceId from = 0;
  topology::DeviceId to = 0;
  double bytes = 0;
  std::vector<int> after;             ///< flows that must have ended before this one begins
  double delay_seconds = 0;           ///< from its beginning to its first byte; takes no bandwidth
  double limit_bytes_per_second = 0;  ///< of this flow alone; 0 for none
};

/// When each flow ends, all that wait for nothing beginning at 0. Links are shared max-min fairly. Throws
/// InvalidRequest for a device the slice has not, a negative or infinite number, a flow that waits for itself or for
/// one that is not there.
std::vector<double> finish_times(std::span<const Flow> flows, const topology::Slice& slice, double rate_scale = 1.0);

/// Max-min fair rates by progressive filling: all rates grow alike until a link is full or a flow at its limit; those
/// that this stops keep their rate, the others grow on. `routes[f]` are the links of flow f; `limits[f]` is 0 for none.
/// A flow without links and limit gets an infinite rate.
std::vector<double> fair_rates(std::span<const std::vector<topology::LinkId>> routes, std::span<const double> limits,
                               std::span<const double> capacities);

}  // namespace aoizora::simulation
