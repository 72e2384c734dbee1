// Reductions over a group; every lane of the group ends with the result.
#pragma once

#include "portable.cuh"

namespace taco {

// Sum of squares as a tree of adjacent pairs: sums of 2, 4, 8, ... neighbours.
template <int E, int LANES>
TACO_HD float sum_of_squares(const float (&v)[E]) {
  float t[E];
#pragma unroll
  for (int i = 0; i < E; ++i) t[i] = mul(v[i], v[i]);
#pragma unroll
  for (int stride = 1; stride < E; stride *= 2) {
#pragma unroll
    for (int i = 0; i < E; i += 2 * stride) t[i] = add(t[i], t[i + stride]);
  }
  float sum = t[0];
#pragma unroll
  for (int mask = 1; mask < LANES; mask *= 2) sum = add(sum, exchange(sum, mask));
  return sum;
}

// Bits of the largest magnitude. Compared as integers, so that Inf and NaN are larger than all numbers and
// survive: the result is >= kInfBits exactly when the group holds a value that is not finite.
template <int E, int LANES>
TACO_HD uint32_t absmax_bits(const float (&v)[E]) {
  uint32_t m = 0;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    uint32_t a = bits_of(v[i]) & 0x7fffffffu;
    m = a > m ? a : m;
  }
#pragma unroll
  for (int mask = 1; mask < LANES; mask *= 2) {
    uint32_t other = exchange(m, mask);
    m = other > m ? other : m;
  }
  return m;
}

}  // namespace taco
