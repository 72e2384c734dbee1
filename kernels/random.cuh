// The fixed signs of the signed rotation and the uniform numbers of stochastic rounding, both from one 32-bit hash.
#pragma once

#include "portable.cuh"

namespace taco {

// Bijective mixer of 32 bits (xor-shift-multiply, constants of C. Wellons' hash prospector).
TACO_HD constexpr uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

// Bit r of byte k: whether coefficient 8k + r of a rotation block is negated, the highest bit of mix(8k + r).
struct SignTable {
  uint8_t bytes[256];

  constexpr SignTable() : bytes() {
    for (int k = 0; k < 256; ++k) {
      for (int r = 0; r < 8; ++r) bytes[k] = uint8_t(bytes[k] | mix(uint32_t(8 * k + r)) >> 31 << r);
    }
  }
};

#if defined(__CUDACC__)
static __device__ const SignTable kDeviceSigns{};
#endif
static constexpr SignTable kHostSigns{};

// Signs of the 8 coefficients of vector `vector` of a group whose rotation blocks have `size` coefficients.
TACO_HD uint32_t sign_byte(int vector, int size) {
  int byte = vector & (size / 8 - 1);
#if defined(__CUDA_ARCH__)
  return kDeviceSigns.bytes[byte];
#else
  return kHostSigns.bytes[byte];
#endif
}

// Multiple of 2^-24 in [0, 1) for element `index` of a message: the high 24 bits of mix(mix(low32(index) ^ seed) +
// high32(index)).
TACO_HD float uniform(uint32_t seed, uint64_t index) {
  uint32_t h = mix(mix(uint32_t(index) ^ seed) + uint32_t(index >> 32));
  return mul(float(h >> 8), 0x1p-24f);
}

}  // namespace taco
