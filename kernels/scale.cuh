// The two scales of a group: alpha from the RMS before the rotation, s from the absmax after it.
#pragma once

#include "portable.cuh"

namespace taco {

enum class Scale : int { kFp32 = 0, kBf16 = 1, kE8m0 = 2 };

TACO_HD constexpr int bytes_of(Scale scale) { return scale == Scale::kFp32 ? 4 : (scale == Scale::kBf16 ? 2 : 1); }

// alpha = clamp(target / sqrt(mean + 1e-6), 1e-3, 1e3); a mean that is not finite gives a group of NaN anyway.
TACO_HD float adaptive_alpha(float mean, float target) {
  float alpha = div(target, square_root(add(mean, 1e-6f)));
  return alpha < 1e-3f ? 1e-3f : (alpha > 1e3f ? 1e3f : alpha);
}

// s = absmax / top with floor 2^-126, so that 1 / s is finite; bf16 and e8m0 are rounded up, so that no
// coefficient exceeds the payload's range. absmax 0 gives 0.
TACO_HD float scale_value(float absmax, float top, Scale scale) {
  if (absmax == 0.0f) return 0.0f;
  float s = div(absmax, top);
  s = s < 0x1p-126f ? 0x1p-126f : s;
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

TACO_HD float load_scale(int64_t group, const uint8_t* section, Scale scale) {
  if (scale == Scale::kFp32) return reinterpret_cast<const float*>(section)[group];
  if (scale == Scale::kBf16) return float_of(uint32_t(reinterpret_cast<const uint16_t*>(section)[group]) << 16);
  uint32_t code = section[group];
  return float_of(code == 255 ? kNanBits : code << 23);  // code 0: a group of zeros
}

}  // namespace taco
