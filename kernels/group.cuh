// One group of the group codec, from values to its part of the packet and back. The specification is
// taco/codec/reference.py; every function here gives its bits.
//
// Packet: uint8 [nbytes] = [low plane][high plane, 6-bit payloads only][scales][alphas, adaptive only], each section
// 16-byte aligned and zero padded. Planes hold groups * G codes: a tail stores all coefficients of its group.
#pragma once

#include "payload.cuh"
#include "planes.cuh"
#include "random.cuh"
#include "reduce.cuh"
#include "rotate.cuh"
#include "scale.cuh"

namespace taco {

enum class Dtype : int { kFp32 = 0, kBf16 = 1, kFp16 = 2 };

// What a message needs beside its pointers. Offsets are in bytes from the start of a packet; -1: no such section.
struct Spec {
  int64_t numel;
  int64_t groups;
  int64_t low, high, scales, alphas, nbytes;
  int group;
  int rotation_size;  // 1: not rotated
  float inv_sqrt_size;
  uint32_t seed;  // low 32 bits
  Payload payload;
  Scale scale;
  Dtype dtype;  // of the tensor side
  bool signs, adaptive, stochastic;
};

TACO_HD int64_t count_of(const Spec& spec, int64_t group) {
  int64_t left = spec.numel - group * spec.group;
  return left < spec.group ? left : spec.group;
}

// v (orthonormal coefficients, alpha applied) -> codes and scales of group `index` in `packet`.
template <int E, int LANES>
TACO_HD void quantise_group(const Spec& spec, const float (&v)[E], float alpha, int64_t index, int lane, bool live,
                            uint8_t* packet) {
  uint32_t top = absmax_bits<E, LANES>(v);
  if (!live) return;
  bool finite = top < kInfBits, usable = finite && top != 0;
  float s = finite ? scale_value(float_of(top), target_of(spec.payload), spec.scale) : float_of(kNanBits);
  float inv = usable ? div(1.0f, s) : 0.0f;
  int64_t first = index * (E * LANES) + lane * E;
  with_payload(spec.payload, [&](auto p) {
    using P = decltype(p);
    uint8_t q[E];
#pragma unroll
    for (int i = 0; i < E; ++i) {
      float y = usable ? mul(v[i], inv) : 0.0f;
      q[i] = spec.stochastic ? P::stochastic(y, uniform(spec.seed, uint64_t(first + i))) : P::nearest(y);
    }
    store_codes<P, E>(q, first, packet + spec.low, packet + spec.high);
  });
  if (lane == 0) {
    store_scale(s, index, packet + spec.scales, spec.scale);
    if (spec.adaptive) reinterpret_cast<float*>(packet + spec.alphas)[index] = finite ? alpha : 1.0f;
  }
}

// alpha of a group of values or of its coefficients (Parseval), multiplied into them; 1 when the codec sends none.
template <int E, int LANES>
TACO_HD float apply_alpha(const Spec& spec, float (&v)[E], int64_t index) {
  if (!spec.adaptive) return 1.0f;
  int64_t count = count_of(spec, index);
  float mean = div(sum_of_squares<E, LANES>(v), float(count < 1 ? 1 : count));
  float alpha = adaptive_alpha(mean, target_of(spec.payload));
#pragma unroll
  for (int i = 0; i < E; ++i) v[i] = mul(v[i], alpha);
  return alpha;
}

// v: values of the group, zero beyond the tail.
template <int E, int LANES>
TACO_HD void encode_group(const Spec& spec, float (&v)[E], int64_t index, int lane, bool live, uint8_t* packet) {
  float alpha = apply_alpha<E, LANES>(spec, v, index);
  if (spec.signs) {
#pragma unroll
    for (int i = 0; i < E; ++i) v[i] = mul(v[i], sign_of((lane * E + i) & (spec.rotation_size - 1)));
  }
  hadamard<E, LANES>(v, lane, spec.rotation_size, spec.inv_sqrt_size);
  quantise_group<E, LANES>(spec, v, alpha, index, lane, live, packet);
}

// Coefficients of group `index`: c = q * (s * (1 / alpha)).
template <int E, int LANES>
TACO_HD void coefficients(const Spec& spec, float (&c)[E], int64_t index, int lane, const uint8_t* packet) {
  float s = load_scale(index, packet + spec.scales, spec.scale);
  if (spec.adaptive) s = mul(s, div(1.0f, reinterpret_cast<const float*>(packet + spec.alphas)[index]));
  with_payload(spec.payload, [&](auto p) {
    using P = decltype(p);
    uint8_t q[E];
    load_codes<P, E>(q, index * (E * LANES) + lane * E, packet + spec.low, packet + spec.high);
#pragma unroll
    for (int i = 0; i < E; ++i) c[i] = mul(P::value(q[i]), s);
  });
}

// Sum over `packets` packets, `spec.nbytes` apart, in index order.
template <int E, int LANES>
TACO_HD void sum_coefficients(const Spec& spec, float (&acc)[E], int64_t index, int lane, const uint8_t* packets,
                              int count) {
  coefficients<E, LANES>(spec, acc, index, lane, packets);
  for (int r = 1; r < count; ++r) {
    float c[E];
    coefficients<E, LANES>(spec, c, index, lane, packets + r * spec.nbytes);
#pragma unroll
    for (int i = 0; i < E; ++i) acc[i] = add(acc[i], c[i]);
  }
}

// Coefficients -> values.
template <int E, int LANES>
TACO_HD void unrotate(const Spec& spec, float (&v)[E], int lane) {
  hadamard<E, LANES>(v, lane, spec.rotation_size, spec.inv_sqrt_size);
  if (!spec.signs) return;
#pragma unroll
  for (int i = 0; i < E; ++i) v[i] = mul(v[i], sign_of((lane * E + i) & (spec.rotation_size - 1)));
}

}  // namespace taco
