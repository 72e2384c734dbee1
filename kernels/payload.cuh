// The payloads of the group codec: how 8 scaled coefficients become codes and back.
//
// A payload has kMax (the magnitude its scale maps the absmax to), kLow and kHigh (bits of a code in the first and in the
// second plane), nearest(z, g) and stochastic(z, g, u) (8 numbers z whose products with g are at most kMax, up to rounding,
// -> Codes) and values.
//
// Integers are rounded by adding 1.5 * 2^23 to the product: the sum's unit is 1, so it is the product rounded to nearest
// even, and its low bits are the integer: one instruction. Conversions run at a fraction of its rate.
#pragma once

#include "fp8.cuh"

namespace taco {

// 8 codes as they lie in the planes: 8 bits: low = codes 0-3, high = codes 4-7, a byte each. 4 bits: low = all 8. 6 bits:
// low = the low four bits of all 8, high = their upper two bits (16 bits).
struct Codes {
  uint32_t low, high;
};

constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
constexpr uint32_t kMagicBits = 0x4b400000u;

TACO_HD float round_down(float y) {
#if defined(__CUDA_ARCH__)
  return floorf(y);
#else
  return __builtin_floorf(y);
#endif
}

TACO_HD float clamp(float y, float low, float high) { return y < low ? low : (y > high ? high : y); }

// Two's complement integers of `Bits` bits, symmetric: -kMax..kMax. What comes out of round_all is q + kBias, kBias chosen so
// that narrow codes are not negative; the sign bit is flipped back after packing.
template <int Bits>
struct Integer {
  static constexpr float kMax = float((1 << (Bits - 1)) - 1);
  static constexpr int kLow = Bits == 8 ? 8 : 4;
  static constexpr int kHigh = Bits - kLow;
  static constexpr int kBias = Bits == 8 ? 0 : 1 << (Bits - 1);

  TACO_HD static Codes nearest(const float* z, float g) {
    uint32_t t[8];
    // |z g| <= kMax (1 + 2^-20) rounds to kMax at most: no clamp
#pragma unroll
    for (int i = 0; i < 8; ++i) t[i] = bits_of(fused_multiply_add(z[i], g, kMagic + float(kBias)));
    return pack(t);
  }

  // u in [0, 1): rounds up with the probability of the fraction.
  TACO_HD static Codes stochastic(const float* z, float g, const float* u) {
    uint32_t t[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float q = clamp(round_down(add(mul(z[i], g), u[i])), -kMax, kMax);
      t[i] = bits_of(add(q, kMagic + float(kBias)));
    }
    return pack(t);
  }

  TACO_HD static void values(Codes codes, float* v) {
    if constexpr (Bits == 4) {
      nibbles(codes.low ^ 0x88888888u, v);
    } else {
      uint32_t a, b;
      offset_bytes(codes, a, b);
      bytes(a, b, v);
    }
  }

  // The codes as q + 2^(Bits - 1), a byte each. 8 bits: a = codes 0-3, b = codes 4-7. 6 bits: a = the even, b = the odd ones.
  TACO_HD static void offset_bytes(Codes codes, uint32_t& a, uint32_t& b) {
    if constexpr (Bits == 8) {
      a = codes.low ^ 0x80808080u;
      b = codes.high ^ 0x80808080u;
    } else {
      uint32_t pairs = codes.high ^ 0xaaaau;
      pairs = (pairs | pairs << 8) & 0x00ff00ffu;
      pairs = (pairs | pairs << 4) & 0x0f0f0f0fu;
      a = (codes.low & 0x0f0f0f0fu) | (pairs << 4 & 0x30303030u);
      b = (codes.low >> 4 & 0x0f0f0f0fu) | (pairs << 2 & 0x30303030u);
    }
  }

 private:
  // t: magic numbers whose low bits are q + kBias.
  TACO_HD static Codes pack(const uint32_t* t) {
    if constexpr (Bits == 8) {
      return {four_bytes(t[0], t[1], t[2], t[3]), four_bytes(t[4], t[5], t[6], t[7])};
    } else if constexpr (Bits == 4) {
      uint32_t word = t[7];
#pragma unroll
      for (int i = 6; i >= 0; --i) word = (word << 4) + t[i];
      // without the magic exponents that the sum has collected
      constexpr uint32_t kCollected = kMagicBits + (kMagicBits << 4) + (kMagicBits << 8);
      return {(word - kCollected) ^ 0x88888888u, 0};
    } else {
      uint32_t even = four_bytes(t[0], t[2], t[4], t[6]), odd = four_bytes(t[1], t[3], t[5], t[7]);
      uint32_t low = (even & 0x0f0f0f0fu) | (odd << 4 & 0xf0f0f0f0u);
      uint32_t pairs = (even >> 4 & 0x03030303u) | (odd >> 2 & 0x0c0c0c0cu);
      return {low, pick_bytes(pairs | pairs >> 4, 0, 0x4420) ^ 0xaaaau};
    }
  }

  TACO_HD static uint32_t four_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return pick_bytes(pick_bytes(a, b, 0x40), pick_bytes(c, d, 0x40), 0x5410);
  }

  // What offset_bytes gives -> q, from 2^23 + n made of bytes.
  TACO_HD static void bytes(uint32_t a, uint32_t b, float* v) {
    constexpr float kOffset = 8388608.0f + float(1 << (Bits - 1));
    constexpr int kStep = Bits == 8 ? 1 : 2, kOther = Bits == 8 ? 4 : 1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[kStep * i] = sub(float_of(pick_bytes(a, 0x4b000000u, 0x7440u | i)), kOffset);
      v[kStep * i + kOther] = sub(float_of(pick_bytes(b, 0x4b000000u, 0x7440u | i)), kOffset);
    }
  }

  // Nibbles n of `word` -> n - 8. Bits 4i..4i+3 of a number with exponent 23 - 4i count as n.
  TACO_HD static void nibbles(uint32_t word, float* v) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t half = i < 4 ? word : word >> 16;
      uint32_t magic = uint32_t(127 + 23 - 4 * (i & 3)) << 23;
      v[i] = sub(float_of(masked_or(half, 15u << 4 * (i & 3), magic)), float_of(magic) + 8.0f);
    }
  }
};

template <int M, int B>
struct Float8 {
  using Format = Fp8<M, B>;
  static constexpr float kMax = Format::kMax;
  static constexpr int kLow = 8;
  static constexpr int kHigh = 0;

  TACO_HD static Codes nearest(const float* z, float g) {
    return {Format::to_codes(mul(z[0], g), mul(z[1], g)) | Format::to_codes(mul(z[2], g), mul(z[3], g)) << 16,
            Format::to_codes(mul(z[4], g), mul(z[5], g)) | Format::to_codes(mul(z[6], g), mul(z[7], g)) << 16};
  }

  TACO_HD static Codes stochastic(const float* z, float g, const float* u) {
    float rounded[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float y = mul(z[i], g), step = Format::quantum(float_of(bits_of(y) & 0x7fffffffu));
      rounded[i] = mul(round_down(add(div(y, step), u[i])), step);
    }
    return nearest(rounded, 1.0f);
  }

  TACO_HD static void values(Codes codes, float* v) {
    Format::from_codes(codes.low, v[0], v[1]);
    Format::from_codes(codes.low >> 16, v[2], v[3]);
    Format::from_codes(codes.high, v[4], v[5]);
    Format::from_codes(codes.high >> 16, v[6], v[7]);
  }
};

enum class Payload : int { kE4M3 = 0, kE5M2 = 1, kInt8 = 2, kInt6 = 3, kInt4 = 4 };

// body(P{}) for the payload P called `payload`, chosen at run time.
template <class Body>
inline void with_payload(Payload payload, Body body) {
  if (payload == Payload::kE4M3) body(Float8<3, 7>{});
  if (payload == Payload::kE5M2) body(Float8<2, 15>{});
  if (payload == Payload::kInt8) body(Integer<8>{});
  if (payload == Payload::kInt6) body(Integer<6>{});
  if (payload == Payload::kInt4) body(Integer<4>{});
}

}  // namespace taco
