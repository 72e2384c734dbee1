// Vectors of 8 elements of fp32, bf16 or fp16 <-> fp32 numbers. Casts round to nearest even.
#pragma once

#include <cuda_fp16.h>

#include "portable.cuh"

namespace taco {

enum class Dtype : int { kFp32 = 0, kBf16 = 1, kFp16 = 2 };

TACO_HD constexpr int bytes_of(Dtype dtype) { return dtype == Dtype::kFp32 ? 4 : 2; }

template <int N>
struct Bytes {
  static constexpr int value = N;
};

// body(Bytes<2>{}) or body(Bytes<4>{}), chosen at run time.
template <class Body>
inline void with_element_size(Dtype dtype, Body body) {
  if (dtype == Dtype::kFp32) {
    body(Bytes<4>{});
  } else {
    body(Bytes<2>{});
  }
}

// Raw elements, two of a 16-bit dtype a word. BYTES: of an element.
template <int BYTES>
struct alignas(16) Vector {
  uint32_t words[2 * BYTES];
};

TACO_HD float value_of(uint32_t bits, Dtype dtype) {
  if (dtype == Dtype::kBf16) return float_of(bits << 16);
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(uint16_t(bits)));
#else
  __half_raw raw;
  raw.x = uint16_t(bits);
  return __half2float(__half(raw));
#endif
}

// bf16 by integer arithmetic, for the host.
TACO_HD uint32_t bf16_of(float v) {
  uint32_t u = bits_of(v);
  bool nan = (u & 0x7fffffffu) > kInfBits;
  return nan ? kNanBits >> 16 : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

TACO_HD uint32_t pair_of(float a, float b, Dtype dtype) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  if (dtype == Dtype::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(b), "f"(a));
  }
  return pair;
#else
  if (dtype == Dtype::kBf16) return bf16_of(a) | bf16_of(b) << 16;
  return uint32_t(__half_raw(__float2half_rn(a)).x) | uint32_t(__half_raw(__float2half_rn(b)).x) << 16;
#endif
}

template <int BYTES>
TACO_HD void unpack(const Vector<BYTES>& raw, Dtype dtype, float* v) {
  if constexpr (BYTES == 4) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = float_of(raw.words[i]);
  } else if (dtype == Dtype::kBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = float_of(raw.words[i] << 16);
      v[2 * i + 1] = float_of(raw.words[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = value_of(raw.words[i] & 0xffffu, dtype);
      v[2 * i + 1] = value_of(raw.words[i] >> 16, dtype);
    }
  }
}

template <int BYTES>
TACO_HD Vector<BYTES> pack(const float* v, Dtype dtype) {
  Vector<BYTES> raw;
  if constexpr (BYTES == 4) {
#pragma unroll
    for (int i = 0; i < 8; ++i) raw.words[i] = bits_of(v[i]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) raw.words[i] = pair_of(v[2 * i], v[2 * i + 1], dtype);
  }
  return raw;
}

// Negates element r where bit r of `signs` (8 bits) is set.
template <int BYTES>
TACO_HD void negate(Vector<BYTES>& raw, uint32_t signs) {
  uint32_t pairs = signs | signs << 15;  // shifted left by 15 - 2i, bits 15 and 31 are those of elements 2i and 2i + 1
#pragma unroll
  for (int i = 0; i < 2 * BYTES; ++i) {
    raw.words[i] ^= BYTES == 4 ? signs << (31 - i) & 0x80000000u : pairs << (15 - 2 * i) & 0x80008000u;
  }
}

}  // namespace taco
