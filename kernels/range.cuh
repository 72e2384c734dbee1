// lo and step of a min/max group, as ranges() and quantise() of taco/codec/asymmetric.py compute them.
#pragma once

#include <cuda_fp16.h>

#include "portable.cuh"

namespace taco {

// The stored dtype of lo and step; the numbers are those of METADATA in taco/codec/minmax_cuda.py.
enum class Metadata : int { kFp16 = 0, kBf16 = 1, kFp32 = 2 };

TACO_HD int bytes_of(Metadata metadata) { return metadata == Metadata::kFp32 ? 4 : 2; }

// The smaller and the larger of two numbers; NaN if one is NaN.
TACO_HD float min_nan(float a, float b) {
#if defined(__CUDA_ARCH__)
  float least;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
  return least;
#else
  return a < b || a != a ? a : b;
#endif
}

TACO_HD float max_nan(float a, float b) {
#if defined(__CUDA_ARCH__)
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
  return most;
#else
  return a > b || a != a ? a : b;
#endif
}

// What a group stores and what its elements need: q = round((x - lo) * inv), and 0 where mask is 0.
struct Range {
  uint32_t lo_bits, step_bits;
  float lo, inv;
  uint32_t mask;
};

TACO_HD float metadata_value(uint32_t bits, Metadata metadata) {
  if (metadata == Metadata::kFp16) return __half2float(__ushort_as_half(uint16_t(bits)));
  return float_of(metadata == Metadata::kBf16 ? bits << 16 : bits);
}

TACO_HD uint32_t nan_bits(Metadata metadata) {
  if (metadata == Metadata::kFp16) return 0x7e00u;
  return metadata == Metadata::kBf16 ? kNanBits >> 16 : kNanBits;
}

// x -> the nearest value of the format not above x; what overflows becomes -Inf.
TACO_HD uint32_t bits_below(float x, Metadata metadata) {
  if (metadata == Metadata::kFp16) return __half_as_ushort(__float2half_rd(x));
  uint32_t u = bits_of(x);
  if (metadata == Metadata::kFp32) return u;
  return (u >> 31 ? u + 0xffffu : u) >> 16;
}

// x >= 0 -> the nearest value of the format not below x; what overflows becomes Inf.
TACO_HD uint32_t bits_above(float x, Metadata metadata) {
  if (metadata == Metadata::kFp16) return __half_as_ushort(__float2half_ru(x));
  uint32_t u = bits_of(x);
  return metadata == Metadata::kFp32 ? u : (u + 0xffffu) >> 16;
}

TACO_HD bool is_finite(float x) { return (bits_of(x) & 0x7fffffffu) < kInfBits; }

// low, high: minimum and maximum of a group, NaN if it holds one; levels = 2^bits - 1. lo and step are NaN and all
// codes 0 where the group is not finite or its range does not fit the format.
TACO_HD Range range_of(float low, float high, float levels, Metadata metadata) {
  Range range;
  // a sum with +0 is +0 for both zeros, of which a minimum may be either
  range.lo_bits = bits_below(add(low, 0.0f), metadata);
  range.lo = metadata_value(range.lo_bits, metadata);
  float span = sub(high, range.lo);
  float step = div(span, levels);
  step = span == 0.0f ? 0.0f : (step < 0x1p-126f ? 0x1p-126f : step);  // so that 1 / step is finite
  range.step_bits = bits_above(step, metadata);
  step = metadata_value(range.step_bits, metadata);
  bool good = is_finite(range.lo) && is_finite(step) && is_finite(span);
  range.mask = good && step > 0.0f ? 0xffffffffu : 0u;
  range.inv = range.mask ? div(1.0f, step) : 0.0f;
  if (!good) range.lo_bits = range.step_bits = nan_bits(metadata);
  return range;
}

TACO_HD void store_metadata(uint8_t* section, int64_t group, uint32_t bits, Metadata metadata) {
  if (metadata == Metadata::kFp32) {
    reinterpret_cast<uint32_t*>(section)[group] = bits;
  } else {
    reinterpret_cast<uint16_t*>(section)[group] = uint16_t(bits);
  }
}

TACO_HD float load_metadata(const uint8_t* section, int64_t group, Metadata metadata) {
  if (metadata == Metadata::kFp32) return reinterpret_cast<const float*>(section)[group];
  return metadata_value(reinterpret_cast<const uint16_t*>(section)[group], metadata);
}

}  // namespace taco
