// The fixed signs of the signed rotation and the uniform numbers of stochastic rounding, both from one 32-bit hash.
#pragma once

#include "portable.cuh"

namespace taco {

// Bijective mixer of 32 bits (xor-shift-multiply, constants of C. Wellons' hash prospector).
TACO_HD uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

// +1 or -1 of coefficient `i` of its rotation block: -1 where the highest bit of mix(i) is set.
TACO_HD float sign_of(int i) { return mix(uint32_t(i)) & 0x80000000u ? -1.0f : 1.0f; }

// Multiple of 2^-24 in [0, 1) for element `index` of a message: the high 24 bits of mix(mix(low32(index) ^ seed) +
// high32(index)).
TACO_HD float uniform(uint32_t seed, uint64_t index) {
  uint32_t h = mix(mix(uint32_t(index) ^ seed) + uint32_t(index >> 32));
  return mul(float(h >> 8), 0x1p-24f);
}

}  // namespace taco
