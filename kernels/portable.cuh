// Arithmetic, byte permutation and lane exchange that mean the same on the host and on every GPU.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define TACO_HD __host__ __device__ __forceinline__
#else
#define TACO_HD inline
#endif

namespace taco {

// Round-to-nearest operations that no compiler may contract into a fused multiply-add: a contracted
// product has other bits than the reference. The host is compiled with -ffp-contract=off.
TACO_HD float add(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}

TACO_HD float sub(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}

TACO_HD float mul(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

TACO_HD float div(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

// 1 / a, correctly rounded: the bits of div(1, a) in a third of its instructions.
TACO_HD float reciprocal(float a) {
#if defined(__CUDA_ARCH__)
  return __frcp_rn(a);
#else
  return 1.0f / a;
#endif
}

// a * b + c where a * b is exact, so that fused and separate rounding give the same bits.
TACO_HD float exact_product_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

// a * b + c, rounded once.
TACO_HD float fused_multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

TACO_HD float square_root(float a) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

TACO_HD uint32_t bits_of(float a) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(a);
#else
  uint32_t u;
  std::memcpy(&u, &a, sizeof u);
  return u;
#endif
}

TACO_HD float float_of(uint32_t u) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(u);
#else
  float a;
  std::memcpy(&a, &u, sizeof a);
  return a;
#endif
}

constexpr uint32_t kInfBits = 0x7f800000u;
constexpr uint32_t kNanBits = 0x7fc00000u;

// max(|a|, |b|), NaN if either is NaN.
TACO_HD float max_magnitude(float a, float b) {
#if defined(__CUDA_ARCH__)
  float m;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(fabsf(a)), "f"(fabsf(b)));
  return m;
#else
  uint32_t x = bits_of(a) & 0x7fffffffu, y = bits_of(b) & 0x7fffffffu;
  return float_of(x > y ? x : y);  // as integers, NaN is larger than Inf and Inf than every number
#endif
}

// x & mask | bits in one instruction: the compiler splits it where both are constants.
TACO_HD uint32_t masked_or(uint32_t x, uint32_t mask, uint32_t bits) {
#if defined(__CUDA_ARCH__)
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(x), "r"(mask), "r"(bits));
  return out;
#else
  return (x & mask) | bits;
#endif
}

// Bytes of a (0-3) and b (4-7), chosen by the four hexadecimal digits of `selector`, lowest byte first.
TACO_HD uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, selector);
#else
  uint64_t both = uint64_t(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= uint32_t(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return out;
#endif
}

// The value of the lane whose number differs in the bits of `mask`. All 32 lanes of the warp must call it.
template <class T>
TACO_HD T exchange(T value, int mask) {
#if defined(__CUDA_ARCH__)
  return __shfl_xor_sync(0xffffffffu, value, mask);
#else
  (void)mask;  // one lane holds the whole group
  return value;
#endif
}

// Whether any lane of the warp has it. All 32 must call it.
TACO_HD bool any_lane(bool value) {
#if defined(__CUDA_ARCH__)
  return __any_sync(0xffffffffu, value) != 0;
#else
  return value;
#endif
}

}  // namespace taco
