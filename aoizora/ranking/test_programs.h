#pragma once
// Recorded compiler output and hand-made schedules for this room's tests.
#include <fstream>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "aoizora/ir/readers.h"
#include "aoizora/placement/placement.h"
#include "aoizora/ranking/schedule.h"

namespace aoizora::ranking {

inline std::string recorded_text(const std::string& file) {
  std::ifstream in(std::string(AOIZORA_TEST_DATA) + "/hlo/" + file, std::ios::binary);
  if (!in) throw std::runtime_error("no test data " + file);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

/// A recorded program and the slice it was compiled for.
struct Recorded {
  const char* file;
  const char* slice;
};
inline const std::vector<Recorded> recorded_programs{{"flash_c8.hlo.txt", "v5e:2x4"},
                                                     {"flash_c8_nowin.hlo.txt", "v5e:2x4"},
                                                     {"flash_d2c2t2.hlo-passes-only.txt", "v5e:2x4"},
                                                     {"flash_d2c2t2.hlo.txt", "v5e:2x4"},
                                                     {"flash_d2c4.hlo.txt", "v5e:2x4"},
                                                     {"flash_d2c8_4x4.hlo-passes-only.txt", "v5e:4x4"},
                                                     {"flash_d2c8_4x4.hlo.txt", "v5e:4x4"},
                                                     {"flash_f2c4.hlo.txt", "v5e:2x4"},
                                                     {"ring_d2c4.hlo.txt", "v5e:2x4"},
                                                     {"ulysses_c8.hlo.txt", "v5e:2x4"}};

inline placement::Placement identity(const topology::Slice& slice) {
  placement::Placement placement;
  placement.devices.resize(slice.devices.size());
  std::iota(placement.devices.begin(), placement.devices.end(), 0);
  return placement;
}

}  // namespace aoizora::ranking
