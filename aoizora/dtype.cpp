#include "aoizora/dtype.h"

#include <array>
#include <cstddef>

namespace aoizora {
namespace {

struct Row {
  std::string_view hlo;
  std::string_view mlir;  ///< where MLIR's name differs
  int bits;
};

// In the order of the enumeration.
constexpr std::array rows{
    Row{"pred", "i1", 8},
    Row{"s2", "i2", 2},
    Row{"s4", "i4", 4},
    Row{"s8", "i8", 8},
    Row{"s16", "i16", 16},
    Row{"s32", "i32", 32},
    Row{"s64", "i64", 64},
    Row{"u2", "ui2", 2},
    Row{"u4", "ui4", 4},
    Row{"u8", "ui8", 8},
    Row{"u16", "ui16", 16},
    Row{"u32", "ui32", 32},
    Row{"u64", "ui64", 64},
    Row{"f4e2m1fn", "f4E2M1FN", 4},
    Row{"f8e3m4", "f8E3M4", 8},
    Row{"f8e4m3", "f8E4M3", 8},
    Row{"f8e4m3fn", "f8E4M3FN", 8},
    Row{"f8e4m3b11fnuz", "f8E4M3B11FNUZ", 8},
    Row{"f8e4m3fnuz", "f8E4M3FNUZ", 8},
    Row{"f8e5m2", "f8E5M2", 8},
    Row{"f8e5m2fnuz", "f8E5M2FNUZ", 8},
    Row{"f8e8m0fnu", "f8E8M0FNU", 8},
    Row{"bf16", "bf16", 16},
    Row{"f16", "f16", 16},
    Row{"f32", "f32", 32},
    Row{"f64", "f64", 64},
    Row{"c64", "complex<f32>", 64},
    Row{"c128", "complex<f64>", 128},
    Row{"token", "token", 0},
    Row{"opaque", "opaque", 0},
    Row{"unknown", "", 0},
};
static_assert(rows.size() == static_cast<std::size_t>(DType::unknown) + 1);

}  // namespace

int bits(DType dtype) { return rows[static_cast<std::size_t>(dtype)].bits; }

DType dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
    if (rows[i].hlo == name || rows[i].mlir == name) return static_cast<DType>(i);
  }
  return DType::unknown;
}

std::string_view name(DType dtype) { return rows[static_cast<std::size_t>(dtype)].hlo; }

}  // namespace aoizora
