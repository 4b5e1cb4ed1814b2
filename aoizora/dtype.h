#pragma once
#include <cstdint>
#include <string_view>

namespace aoizora {

/// Element types of StableHLO and HLO. `token`, `opaque` and `unknown` have no size.
enum class DType : std::uint8_t {
  pred,
  s2,
  s4,
  s8,
  s16,
  s32,
  s64,
  u2,
  u4,
  u8,
  u16,
  u32,
  u64,
  f4e2m1fn,
  f8e3m4,
  f8e4m3,
  f8e4m3fn,
  f8e4m3b11fnuz,
  f8e4m3fnuz,
  f8e5m2,
  f8e5m2fnuz,
  f8e8m0fnu,
  bf16,
  f16,
  f32,
  f64,
  c64,
  c128,
  token,
  opaque,
  unknown,
};

/// Bits of one element; 0 for token, opaque and unknown.
int bits(DType dtype);

/// Reads HLO's and MLIR's names ("bf16", "s32", "i32", "ui8", "i1", "f8E4M3FN", "complex<f32>"); `unknown` for any
/// other.
DType dtype_from_name(std::string_view name);

/// HLO's name of the type, for example "bf16".
std::string_view name(DType dtype);

}  // namespace aoizora
