// The two scales of a group: alpha from the RMS before the rotation, s from the absmax after it.
#pragma once

#include "portable.cuh"

namespace taco {

enum class Scale : int { kFp32 = 0, kBf16 = 1, kE8m0 = 2 };

TACO_HD constexpr int bytes_of(Scale scale) { return scale == Scale::kFp32 ? 4 : (scale == Scale::kBf16 ? 2 : 1); }

// a / divisor for a payload's kMax, correctly rounded. The residual of the product with the rounded reciprocal is exact
// and corrects it; tried on all 2^23 mantissas of a for 7, 31 and 127 (448 and 57344 are 7 * 2^k).
TACO_HD float divide_by_max(float a, float divisor) {
  float inverse = 1.0f / divisor;  // a constant
  if (a < 0x1p-90f) return div(a, divisor);  // where the residual could be subnormal
  float quotient = mul(a, inverse);
  return fused_multiply_add(fused_multiply_add(-quotient, divisor, a), inverse, quotient);
}

// alpha = clamp(target / sqrt(mean + 1e-6), 1e-3, 1e3): 1e-3 for an infinite mean. NaN gives a group of NaN anyway.
TACO_HD float adaptive_alpha(float mean, float target) {
  float alpha = div(target, square_root(add(mean, 1e-6f)));
  return alpha < 1e-3f ? 1e-3f : (alpha > 1e3f ? 1e3f : alpha);
}

// s = absmax / top with a floor, so that 1 / s is finite, and its product with alpha <= 1000 too; bf16 and e8m0 are rounded
// up, so that no coefficient exceeds the payload's range.
TACO_HD float scale_value(float absmax, float top, Scale scale, bool adaptive) {
  float s = divide_by_max(absmax, top), floor = adaptive ? 0x1p-116f : 0x1p-126f;
  s = s < floor ? floor : s;
  if (scale == Scale::kBf16) return float_of((bits_of(s) + 0xffffu) & 0xffff0000u);
  if (scale == Scale::kE8m0) return float_of((bits_of(s) + 0x7fffffu) & kInfBits);
  return s;
}

// `s` is a value of the stored format, 0, or NaN.
TACO_HD void store_scale(float s, int64_t group, uint8_t* section, Scale scale) {
  uint32_t u = bits_of(s);
  if (scale == Scale::kFp32) reinterpret_cast<uint32_t*>(section)[group] = u;
  if (scale == Scale::kBf16) reinterpret_cast<uint16_t*>(section)[group] = uint16_t(u >> 16);
  if (scale == Scale::kE8m0) section[group] = uint8_t(u >> 23);
}

// word: the aligned 4 bytes that hold the scale of `group`.
TACO_HD float scale_in_word(uint32_t word, int64_t group, Scale scale) {
  if (scale == Scale::kFp32) return float_of(word);
  if (scale == Scale::kBf16) return float_of(group & 1 ? word & 0xffff0000u : word << 16);
  uint32_t code = word >> (8 * (group & 3)) & 255u;
  return float_of(code == 255 ? kNanBits : code << 23);  // code 0: a group of zeros
}

TACO_HD float load_scale(int64_t group, const uint8_t* section, Scale scale) {
  int64_t at = group * bytes_of(scale) / 4;
  return scale_in_word(reinterpret_cast<const uint32_t*>(section)[at], group, scale);
}

}  // namespace taco
