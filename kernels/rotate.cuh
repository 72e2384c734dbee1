// The Sylvester-Hadamard transform of blocks of `size` coefficients (natural order), in registers and by
// lane exchange, with butterflies in the order of stride 1, 2, 4, ... as the reference does them.
#pragma once

#include "portable.cuh"

namespace taco {

// v[i] of lane `lane` is coefficient lane * E + i of the group. size: a power of two, at most E * LANES; 1 is
// the identity. Not scaled.
template <int E, int LANES>
TACO_HD void butterflies(float (&v)[E], int lane, int size) {
#pragma unroll
  for (int stride = 1; stride < E; stride *= 2) {
    if (stride >= size) return;
#pragma unroll
    for (int i = 0; i < E; ++i) {
      if (i & stride) continue;
      float a = v[i], b = v[i | stride];
      v[i] = add(a, b);
      v[i | stride] = sub(a, b);
    }
  }
#pragma unroll
  for (int mask = 1; mask < LANES; mask *= 2) {
    if (mask * E >= size) return;
    bool upper = (lane & mask) != 0;
#pragma unroll
    for (int i = 0; i < E; ++i) {
      float other = exchange(v[i], mask);
      v[i] = upper ? sub(other, v[i]) : add(v[i], other);
    }
  }
}

// Orthonormal: one multiplication by fp32 1/sqrt(size) after the butterflies.
template <int E, int LANES>
TACO_HD void hadamard(float (&v)[E], int lane, int size, float inv_sqrt_size) {
  if (size == 1) return;
  butterflies<E, LANES>(v, lane, size);
#pragma unroll
  for (int i = 0; i < E; ++i) v[i] = mul(v[i], inv_sqrt_size);
}

}  // namespace taco
