// The Sylvester-Hadamard transform of blocks of `size` coefficients (natural order), in registers and by lane exchange,
// with butterflies in the order of stride 1, 2, 4, ... as the reference does them.
#pragma once

#include "team.cuh"

namespace taco {

template <int E, int STRIDE>
TACO_HD void butterflies_in_lane(float (&v)[E]) {
#pragma unroll
  for (int i = 0; i < E; ++i) {
    if (i & STRIDE) continue;
    float a = v[i], b = v[i | STRIDE];
    v[i] = add(a, b);
    v[i | STRIDE] = sub(a, b);
  }
}

// Unscaled. size: a power of two, 16 to the group's.
template <int V, class Team>
TACO_HD void butterflies(float (&v)[8 * V], Team team, int size) {
  butterflies_in_lane<8 * V, 1>(v);
  butterflies_in_lane<8 * V, 2>(v);
  butterflies_in_lane<8 * V, 4>(v);
  for_masks(team.lanes < size / 8 ? team.lanes : size / 8, [&](int mask) {
    // the lower lane takes mine + other, the upper one other - mine: one instruction for both, with exact products
    float sign = team.lane & mask ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < 8 * V; ++i) v[i] = exact_product_add(v[i], sign, exchange(v[i], mask));
  });
  if constexpr (V >= 2) {
    if (size > 8 * team.lanes) butterflies_in_lane<8 * V, 8>(v);
  }
  if constexpr (V >= 4) {
    if (size > 16 * team.lanes) butterflies_in_lane<8 * V, 16>(v);
  }
  if constexpr (V >= 8) {
    if (size > 32 * team.lanes) butterflies_in_lane<8 * V, 32>(v);
  }
  if constexpr (V > 8) {  // the host's single lane
    for (int stride = 64; stride < size; stride *= 2) {
      for (int i = 0; i < 8 * V; ++i) {
        if (i & stride) continue;
        float a = v[i], b = v[i | stride];
        v[i] = add(a, b);
        v[i | stride] = sub(a, b);
      }
    }
  }
}

// The orthonormal transform of E * LANES coefficients, E consecutive ones a lane.
template <int E, int LANES>
TACO_HD void hadamard(float (&v)[E], int lane, float inv_sqrt_size) {
#pragma unroll
  for (int stride = 1; stride < E; stride *= 2) {
#pragma unroll
    for (int i = 0; i < E; ++i) {
      if (i & stride) continue;
      float a = v[i], b = v[i | stride];
      v[i] = add(a, b);
      v[i | stride] = sub(a, b);
    }
  }
  for_masks(LANES, [&](int mask) {
    float sign = lane & mask ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < E; ++i) v[i] = exact_product_add(v[i], sign, exchange(v[i], mask));
  });
#pragma unroll
  for (int i = 0; i < E; ++i) v[i] = mul(v[i], inv_sqrt_size);
}

}  // namespace taco
