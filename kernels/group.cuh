// One group of the group codec between values and codes, in the registers of a team. The specification is
// taco/codec/reference.py; every function here gives its bits.
//
// Packet: uint8 [nbytes] = [low plane][high plane, 6-bit payloads only][scales][alphas, adaptive only], each section
// 16-byte aligned and zero padded. Planes hold groups * G codes: a tail stores all coefficients of its group.
#pragma once

#include "integer.cuh"
#include "random.cuh"
#include "reduce.cuh"
#include "rotate.cuh"
#include "scale.cuh"
#include "tensor_io.cuh"

namespace taco {

// Byte offsets of a packet's sections (wire.py), and what they hold.
struct Form {
  int64_t low, high, scales, alphas, nbytes;
  Payload payload;
  Scale scale;
  bool adaptive;
};

// A message of numel elements in groups of `group`; rotation_size 1: not rotated.
struct Spec {
  int64_t numel, groups;
  int group, rotation_size;
  float inv_sqrt_size;
  bool signs, stochastic;
  bool aligned;  // every row of the tensor starts at a multiple of 16 bytes
  Dtype dtype;   // of the tensor
  Form form;
};

// The low 32 bits of the seed of each message of a launch.
constexpr int kMaxSeeds = 32;
struct Seeds {
  uint32_t of[kMaxSeeds];
};

constexpr int kAtRunTime = -1;

// How a kernel is compiled. V: vectors a lane. LANES: of a team, 0: at run time. SIZE: of rotation blocks, 0: no rotation.
// SIGNED, ADAPTIVE, SCALE, DTYPE: as in Spec and Form. What is kAtRunTime is read from those; stochastic rounding
// is compiled where SIZE is.
template <int V_, int LANES_, int SIZE_, int SIGNED_, int ADAPTIVE_, int SCALE_, int DTYPE_>
struct Shape {
  static constexpr int V = V_, LANES = LANES_, SIZE = SIZE_;
  static constexpr bool kGeneral = SIZE_ == kAtRunTime;
  using Lanes = Team<LANES_>;
  using Values = float[8 * V_];

  TACO_HD static int rotation_size(const Spec& spec) {
    return kGeneral ? spec.rotation_size : (SIZE ? SIZE : 1);
  }
  TACO_HD static float factor(const Spec& spec) { return SIZE == 0 ? 1.0f : spec.inv_sqrt_size; }
  TACO_HD static bool is_signed(const Spec& spec) { return SIGNED_ == kAtRunTime ? spec.signs : SIGNED_ != 0; }
  TACO_HD static bool adaptive(const Form& form) { return ADAPTIVE_ == kAtRunTime ? form.adaptive : ADAPTIVE_ != 0; }
  TACO_HD static Scale scale(const Form& form) { return SCALE_ == kAtRunTime ? form.scale : Scale(SCALE_); }
  TACO_HD static Dtype dtype(const Spec& spec) { return DTYPE_ == kAtRunTime ? spec.dtype : Dtype(DTYPE_); }
  static constexpr int kScaleBytes = SCALE_ == kAtRunTime ? 4 : bytes_of(Scale(SCALE_));  // at most
  static constexpr bool kMayAdapt = ADAPTIVE_ != 0;
  static constexpr bool kPowerScale = SCALE_ == int(Scale::kE8m0) && ADAPTIVE_ == 0;
  static constexpr bool kNarrowScale = kPowerScale || (SCALE_ == int(Scale::kBf16) && ADAPTIVE_ == 0);
  // Squares of bf16 numbers have 16 significant bits: exact, except where they are far below alpha's 1e-6.
  static constexpr bool kExactSquares = DTYPE_ == int(Dtype::kBf16);
};

template <int V, int LANES>
using General = Shape<V, LANES, kAtRunTime, kAtRunTime, kAtRunTime, kAtRunTime, kAtRunTime>;

// Which group a team works on, and where: vector 0 of this lane, counted over the message. whole: all its elements exist;
// may be false for such a group too, but is the same for all teams of a warp.
template <class S>
struct Place {
  typename S::Lanes team;
  int64_t group;
  int64_t first;
  bool whole;

  TACO_HD int64_t vector(int w) const { return first + w * team.lanes; }
};

// Codes and scales of a group, as a lane holds them.
template <int V>
struct Coded {
  Codes codes[V];
  float scale, alpha;
};

// alpha of a group of values or of its coefficients (Parseval).
template <class S, bool EXACT_SQUARES>
TACO_HD float alpha_of(const Spec& spec, const typename S::Values& v, float target, const Place<S>& at) {
  float sum = sum_of_squares<S::V, EXACT_SQUARES>(v, at.team);
  // a power of two: the product with its reciprocal has the quotient's bits
  float mean = mul(sum, 1.0f / float(8 * S::V * at.team.lanes));
  if (!at.whole) {
    int64_t left = spec.numel - at.group * spec.group;
    if (left < spec.group) mean = div(sum, float(left < 1 ? 1 : left));
  }
  return adaptive_alpha(mean, target);
}

// Numbers v -> codes and scale of the coefficients v * factor. factor includes alpha, which the result only keeps.
template <class P, class S>
TACO_HD Coded<S::V> quantise(const Spec& spec, const Form& form, const typename S::Values& v, float factor, float alpha,
                             const Place<S>& at, uint32_t seed) {
  float top = mul(absmax<S::V>(v, at.team), factor);
  bool finite = bits_of(top) < kInfBits, usable = finite && top != 0.0f;
  float s = scale_value(usable ? top : 1.0f, P::kMax, S::scale(form), S::adaptive(form));
  float g = mul(factor, reciprocal(s));
  Coded<S::V> out;
  out.scale = usable ? s : (finite ? 0.0f : float_of(kNanBits));
  out.alpha = finite ? alpha : 1.0f;
#pragma unroll
  for (int w = 0; w < S::V; ++w) {
    if (S::kGeneral && spec.stochastic) {
      float u[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) u[i] = uniform(seed, uint64_t(8 * at.vector(w) + i));
      out.codes[w] = P::stochastic(v + 8 * w, g, u);
    } else {
      out.codes[w] = P::nearest(v + 8 * w, g);
    }
  }
  if (any_lane(!usable)) {
    uint32_t kept = usable ? 0xffffffffu : 0;
#pragma unroll
    for (int w = 0; w < S::V; ++w) {
      out.codes[w].low &= kept;
      out.codes[w].high &= kept;
    }
  }
  return out;
}

// Values -> codes and scales.
template <class P, class S>
TACO_HD Coded<S::V> encode_group(const Spec& spec, typename S::Values& v, const Place<S>& at, uint32_t seed) {
  float factor = S::factor(spec), alpha = 1.0f;
  if (S::adaptive(spec.form)) {
    alpha = alpha_of<S, S::kExactSquares>(spec, v, P::kMax, at);
    factor = mul(alpha, factor);
  }
  int size = S::rotation_size(spec);
  if (size > 1) butterflies<S::V>(v, at.team, size);
  return quantise<P, S>(spec, spec.form, v, factor, alpha, at, seed);
}

// Sums of coefficients -> codes and scales in another or the same form.
template <class P, class S>
TACO_HD Coded<S::V> encode_sum(const Spec& spec, const Form& form, const typename S::Values& v, const Place<S>& at,
                               uint32_t seed) {
  float alpha = S::adaptive(form) ? alpha_of<S, false>(spec, v, P::kMax, at) : 1.0f;
  return quantise<P, S>(spec, form, v, alpha, alpha, at, seed);
}

// The value of a code of 1: s * (1 / alpha) * factor.
template <class S>
TACO_HD float unit_of(const Form& form, const Coded<S::V>& part, float factor) {
  return mul(S::adaptive(form) ? mul(part.scale, reciprocal(part.alpha)) : part.scale, factor);
}

template <class P, int V>
TACO_HD void values_of(const Coded<V>& part, float (&q)[8 * V]) {
#pragma unroll
  for (int w = 0; w < V; ++w) P::values(part.codes[w], q + 8 * w);
}

// Whether the product of a code and its unit is exact: of 8 bits and a scale of 8 bits or a power of two. Then one fused
// multiply-add has the bits of a product and a sum. FP8 codes times tiny bf16 scales may be subnormal, and are not exact.
template <class P, class S>
constexpr bool kExactUnits = S::kNarrowScale && (P::kMax < 128.0f || S::kPowerScale);

// sum = coefficients of a part, or sum += those. A unit of 2^119 or more, with which products could overflow, is NaN.
template <class P, class S>
TACO_HD void add_part(const Form& form, const Coded<S::V>& part, bool first, typename S::Values& sum) {
  typename S::Values q;
  float unit = unit_of<S>(form, part, 1.0f);
  unit = unit < 0x1p119f ? unit : float_of(kNanBits);
  values_of<P, S::V>(part, q);
#pragma unroll
  for (int i = 0; i < 8 * S::V; ++i) {
    if (first) {
      sum[i] = mul(q[i], unit);
    } else {
      sum[i] = kExactUnits<P, S> ? exact_product_add(q[i], unit, sum[i]) : add(sum[i], mul(q[i], unit));
    }
  }
}

// One packet -> values. Its codes are transformed before they are scaled: sums of small integers are exact.
template <class P, class S>
TACO_HD void decode_group(const Spec& spec, const Coded<S::V>& part, typename S::Values& v, const Place<S>& at) {
  if constexpr (IntegerTransform<P, S>::kFits) {
    IntegerTransform<P, S>::run(part.codes, at.team, v);
  } else {
    values_of<P, S::V>(part, v);
    int size = S::rotation_size(spec);
    if (size > 1) butterflies<S::V>(v, at.team, size);
  }
  float unit = unit_of<S>(spec.form, part, S::factor(spec));
#pragma unroll
  for (int i = 0; i < 8 * S::V; ++i) v[i] = mul(v[i], unit);
}

}  // namespace taco
