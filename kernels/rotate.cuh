// The Sylvester-Hadamard transform of blocks of `size` coefficients (natural order), in registers and by lane exchange,
// with butterflies in the order of stride 1, 2, 4, ... as the reference does them.
#pragma once

#include "team.cuh"

namespace taco {

// One stride between the registers of a lane, the same for all lanes.
template <int E>
TACO_HD void butterflies_in_lane(float (&v)[E], int stride) {
#pragma unroll
  for (int i = 0; i < E; ++i) {
    if (i & stride) continue;
    float a = v[i], b = v[i | stride];
    v[i] = add(a, b);
    v[i | stride] = sub(a, b);
  }
}

// The strides between lanes whose numbers differ in the bits below `limit`.
template <int E>
TACO_HD void butterflies_across(float (&v)[E], int lane, int limit) {
  for_masks(limit, [&](int mask) {
    // the lower lane takes mine + other, the upper one other - mine: one instruction for both, with exact products
    float sign = lane & mask ? -1.0f : 1.0f;
#pragma unroll
    for (int i = 0; i < E; ++i) v[i] = exact_product_add(v[i], sign, exchange(v[i], mask));
  });
}

// Unscaled. size: a power of two, 16 to the group's.
template <int V, class Team>
TACO_HD void butterflies(float (&v)[8 * V], Team team, int size) {
#pragma unroll
  for (int stride = 1; stride < 8; stride *= 2) butterflies_in_lane(v, stride);
  butterflies_across(v, team.lane, team.lanes < size / 8 ? team.lanes : size / 8);
#pragma unroll
  for (int stride = 8; stride < 8 * V; stride *= 2) {
    if (size > stride * team.lanes) butterflies_in_lane(v, stride);
  }
}

// The orthonormal transform of E * LANES coefficients, E consecutive ones a lane.
template <int E, int LANES>
TACO_HD void hadamard(float (&v)[E], int lane, float inv_sqrt_size) {
#pragma unroll
  for (int stride = 1; stride < E; stride *= 2) butterflies_in_lane(v, stride);
  butterflies_across(v, lane, LANES);
#pragma unroll
  for (int i = 0; i < E; ++i) v[i] = mul(v[i], inv_sqrt_size);
}

}  // namespace taco
