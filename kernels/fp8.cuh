// FP8 codes <-> fp32. `to_code` rounds to nearest even and saturates (satfinite); its argument is finite.
//
// Format<M, B>: 1 sign bit, 7 - M exponent bits with bias B, M mantissa bits (OCP 8-bit floating point, rev. 1.0).
#pragma once

#include "portable.cuh"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace taco {

template <int M, int B>
struct Fp8 {
  static_assert((M == 3 && B == 7) || (M == 2 && B == 15), "E4M3 and E5M2 are the two formats");
  static constexpr bool kE4M3 = M == 3;
  static constexpr float kMax = kE4M3 ? 448.0f : 57344.0f;
  static constexpr int kShift = 23 - M;
  // 2^(1-B): the smallest normal; 2^(24-B-M): adding it rounds an fp32 below it to multiples of 2^(1-B-M).
  static constexpr uint32_t kMinNormalBits = uint32_t(128 - B) << 23;
  static constexpr uint32_t kMagicBits = uint32_t(127 + 24 - B - M) << 23;

  TACO_HD static uint8_t to_code_software(float y) {
    uint32_t u = bits_of(y);
    uint32_t sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    uint32_t top = bits_of(kMax);
    a = a > top ? top : a;
    if (a < kMinNormalBits) {
      return uint8_t(sign | (bits_of(add(float_of(a), float_of(kMagicBits))) - kMagicBits));
    }
    uint32_t even = (a >> kShift) & 1u;
    a += (1u << (kShift - 1)) - 1u + even;
    return uint8_t(sign | ((a >> kShift) - (uint32_t(127 - B) << M)));
  }

  TACO_HD static float from_code(uint8_t code) {
    uint32_t sign = uint32_t(code & 0x80) << 24, a = code & 0x7f;
    if (kE4M3 ? a == 0x7f : a > 0x7c) return float_of(sign | kNanBits);
    if (!kE4M3 && a == 0x7c) return float_of(sign | kInfBits);
    if ((a >> M) == 0) return float_of(sign | bits_of(mul(float(a), float_of(uint32_t(128 - B - M) << 23))));
    return float_of(sign | ((a << kShift) + (uint32_t(127 - B) << 23)));
  }

  // Codes of a (low byte) and b: one instruction from sm_89 on.
  TACO_HD static uint32_t to_codes(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kE4M3 ? __NV_E4M3 : __NV_E5M2);
#else
    return to_code_software(a) | uint32_t(to_code_software(b)) << 8;
#endif
  }

  // Values of the low two bytes of `codes`.
  TACO_HD static void from_codes(uint32_t codes, float& a, float& b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t(codes), kE4M3 ? __NV_E4M3 : __NV_E5M2);
    float2 values = __half22float2(halves);
    a = values.x;
    b = values.y;
#else
    a = from_code(uint8_t(codes));
    b = from_code(uint8_t(codes >> 8));
#endif
  }

  // The distance between neighbouring values at magnitude `a` >= 0.
  TACO_HD static float quantum(float a) {
    uint32_t e = bits_of(a) & kInfBits;
    e = e < kMinNormalBits ? kMinNormalBits : e;
    return float_of(e - (uint32_t(M) << 23));
  }
};

}  // namespace taco
