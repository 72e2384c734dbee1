// Reductions over a group; every lane of the team ends with the result.
#pragma once

#include "team.cuh"

namespace taco {

// Sum of squares as a tree of adjacent pairs: sums of 2, 4, 8, ... neighbours. EXACT: the squares are exact, so that a fused
// multiply-add has the bits of a product and a sum.
template <int V, bool EXACT, class Team>
TACO_HD float sum_of_squares(const float (&v)[8 * V], Team team) {
  float t[V];
#pragma unroll
  for (int w = 0; w < V; ++w) {
    float s[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float a = v[8 * w + 2 * i], b = v[8 * w + 2 * i + 1], square = mul(a, a);
      s[i] = EXACT ? exact_product_add(b, b, square) : add(square, mul(b, b));
    }
    t[w] = add(add(s[0], s[1]), add(s[2], s[3]));
  }
  for_masks(team.lanes, [&](int mask) {
#pragma unroll
    for (int w = 0; w < V; ++w) t[w] = add(t[w], exchange(t[w], mask));
  });
#pragma unroll
  for (int stride = 1; stride < V; stride *= 2) {
#pragma unroll
    for (int w = 0; w < V; w += 2 * stride) t[w] = add(t[w], t[w + stride]);
  }
  return t[0];
}

// The largest magnitude, or NaN if the group holds one.
template <int V, class Team>
TACO_HD float absmax(const float (&v)[8 * V], Team team) {
  float m[4] = {v[0], v[1], v[2], v[3]};  // four chains: the latency of one would be exposed
#pragma unroll
  for (int i = 4; i < 8 * V; ++i) m[i & 3] = max_magnitude(m[i & 3], v[i]);
  float top = max_magnitude(max_magnitude(m[0], m[1]), max_magnitude(m[2], m[3]));
  for_masks(team.lanes, [&](int mask) { top = max_magnitude(top, exchange(top, mask)); });
  return top;
}

}  // namespace taco
