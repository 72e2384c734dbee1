// Elements of a flat tensor of fp32, bf16 or fp16 <-> the registers of a lane. Casts round to nearest even.
#pragma once

#include <cuda_fp16.h>

#include "group.cuh"

namespace taco {

TACO_HD float load_value(const void* x, int64_t i, Dtype dtype) {
  if (dtype == Dtype::kFp32) return static_cast<const float*>(x)[i];
  if (dtype == Dtype::kBf16) return float_of(uint32_t(static_cast<const uint16_t*>(x)[i]) << 16);
  return __half2float(static_cast<const __half*>(x)[i]);
}

TACO_HD void store_value(void* x, int64_t i, float v, Dtype dtype) {
  if (dtype == Dtype::kFp32) static_cast<float*>(x)[i] = v;
  if (dtype == Dtype::kBf16) {
    uint32_t u = bits_of(v);
    bool nan = (u & 0x7fffffffu) > kInfBits;
    static_cast<uint16_t*>(x)[i] = nan ? uint16_t(kNanBits >> 16) : uint16_t((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
  if (dtype == Dtype::kFp16) static_cast<__half*>(x)[i] = __float2half_rn(v);
}

// x: flat [numel]; v: values first .. first + E - 1, zero from numel on.
template <int E>
TACO_HD void load_values(const Spec& spec, float (&v)[E], const void* x, int64_t first) {
#pragma unroll
  for (int i = 0; i < E; ++i) v[i] = first + i < spec.numel ? load_value(x, first + i, spec.dtype) : 0.0f;
}

template <int E>
TACO_HD void store_values(const Spec& spec, const float (&v)[E], void* x, int64_t first) {
#pragma unroll
  for (int i = 0; i < E; ++i) {
    if (first + i < spec.numel) store_value(x, first + i, v[i], spec.dtype);
  }
}

// Zeroes after `used` bytes from `offset` up to the next multiple of 16.
TACO_HD void pad_section(uint8_t* packet, int64_t offset, int64_t used) {
  for (int64_t i = used; i % 16; ++i) packet[offset + i] = 0;
}

TACO_HD void pad_sections(const Spec& spec, uint8_t* packet) {
  int64_t codes = spec.groups * spec.group;
  with_payload(spec.payload, [&](auto p) {
    using P = decltype(p);
    pad_section(packet, spec.low, codes * P::kLow / 8);
    if (P::kHigh) pad_section(packet, spec.high, codes * P::kHigh / 8);
  });
  pad_section(packet, spec.scales, spec.groups * bytes_of(spec.scale));
  if (spec.adaptive) pad_section(packet, spec.alphas, spec.groups * 4);
}

}  // namespace taco
