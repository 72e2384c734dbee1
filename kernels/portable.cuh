// Arithmetic and lane exchange that mean the same on the host and on every GPU.
//
// A group of G coefficients is spread over LANES neighbouring lanes of a warp, E = G / LANES consecutive
// coefficients in the registers of each: coefficient i of the group is v[i % E] of lane i / E. On the host
// LANES is 1 and E is G, so the same source computes the same bits without a GPU.
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

// Lanes a group is spread over on a GPU: at least four coefficients a lane, so that every lane owns whole
// bytes of each payload plane.
constexpr int lanes_of(int group) { return group >= 128 ? 32 : group / 4; }

}  // namespace taco
