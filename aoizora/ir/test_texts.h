#pragma once
// Recorded compiler output for this room's tests.
#include <array>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace aoizora::ir {

inline std::string recorded(const std::string& file) {
  std::ifstream in(std::string(AOIZORA_TEST_DATA) + "/hlo/" + file, std::ios::binary);
  if (!in) throw std::runtime_error("no test data " + file);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline constexpr std::array recorded_hlo{
    "flash_c8.hlo.txt",   "flash_c8_nowin.hlo.txt", "flash_d2c2t2.hlo-passes-only.txt",   "flash_d2c2t2.hlo.txt",
    "flash_d2c4.hlo.txt", "flash_f2c4.hlo.txt",     "flash_d2c8_4x4.hlo-passes-only.txt", "flash_d2c8_4x4.hlo.txt",
    "ring_d2c4.hlo.txt",  "ulysses_c8.hlo.txt"};

inline constexpr std::array recorded_mlir{"flash_c8.mlir",   "flash_c8_nowin.mlir", "flash_d2c2t2.mlir",
                                          "flash_d2c4.mlir", "flash_d2c8_4x4.mlir", "flash_f2c4.mlir",
                                          "ring_d2c4.mlir",  "ulysses_c8.mlir"};

}  // namespace aoizora::ir
