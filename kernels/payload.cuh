// The payloads of the group codec: how a scaled coefficient becomes a code of at most eight bits and back.
//
// A payload has kMax (the magnitude its scale maps the absmax to), nearest, stochastic, value, and kLow/kHigh:
// the bits of a code that go to the first and to the second plane (planes.cuh).
#pragma once

#include "fp8.cuh"

namespace taco {

TACO_HD float round_even(float y) {
#if defined(__CUDA_ARCH__)
  return rintf(y);
#else
  return __builtin_rintf(y);
#endif
}

TACO_HD float round_down(float y) {
#if defined(__CUDA_ARCH__)
  return floorf(y);
#else
  return __builtin_floorf(y);
#endif
}

TACO_HD float clamp(float y, float low, float high) { return y < low ? low : (y > high ? high : y); }

// Two's complement integers of `Bits` bits, symmetric: -kMax..kMax.
template <int Bits>
struct Integer {
  static constexpr float kMax = float((1 << (Bits - 1)) - 1);
  static constexpr int kLow = Bits == 8 ? 8 : 4;
  static constexpr int kHigh = Bits - kLow;

  TACO_HD static uint8_t code(float q) { return uint8_t(int(clamp(q, -kMax, kMax)) & ((1 << Bits) - 1)); }
  TACO_HD static uint8_t nearest(float y) { return code(round_even(y)); }
  // u in [0, 1): rounds up with the probability of the fraction.
  TACO_HD static uint8_t stochastic(float y, float u) { return code(round_down(add(y, u))); }
  TACO_HD static float value(uint8_t c) { return float(int(int8_t(uint8_t(c << (8 - Bits)))) >> (8 - Bits)); }
};

template <int M, int B>
struct Float8 {
  using Format = Fp8<M, B>;
  static constexpr float kMax = Format::kMax;
  static constexpr int kLow = 8;
  static constexpr int kHigh = 0;

  TACO_HD static uint8_t nearest(float y) { return Format::to_code(y); }
  TACO_HD static uint8_t stochastic(float y, float u) {
    float step = Format::quantum(float_of(bits_of(y) & 0x7fffffffu));
    return Format::to_code(mul(round_down(add(div(y, step), u)), step));
  }
  TACO_HD static float value(uint8_t c) { return Format::from_code(c); }
};

enum class Payload : int { kE4M3 = 0, kE5M2 = 1, kInt8 = 2, kInt6 = 3, kInt4 = 4 };

// body(P{}) for the payload P called `payload`. Chosen at run time, the same for all threads: a template argument of
// the kernels would make five times the code to compile.
template <class Body>
TACO_HD void with_payload(Payload payload, Body body) {
  if (payload == Payload::kE4M3) body(Float8<3, 7>{});
  if (payload == Payload::kE5M2) body(Float8<2, 15>{});
  if (payload == Payload::kInt8) body(Integer<8>{});
  if (payload == Payload::kInt6) body(Integer<6>{});
  if (payload == Payload::kInt4) body(Integer<4>{});
}

// T: the payload value that the absmax of a group is scaled to.
TACO_HD float target_of(Payload payload) {
  float target = 0.0f;
  with_payload(payload, [&](auto p) { target = decltype(p)::kMax; });
  return target;
}

}  // namespace taco
