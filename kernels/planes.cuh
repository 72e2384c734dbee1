// Bytes of a packet: the codes of a vector and the scales of a group.
//
// 8-bit payloads: one byte a code. 4-bit: byte k = code 2k | code 2k+1 << 4. 6-bit: the low four bits as a 4-bit plane, then
// the high two: byte k = codes 4k..4k+3, lowest bits first. Planes start 16-byte aligned.
#pragma once

#include "group.cuh"

namespace taco {

// low, high: where the vector's bytes are.
template <class P>
TACO_HD void store_codes(Codes codes, uint8_t* low, uint8_t* high) {
  if constexpr (P::kLow == 8) {
    *reinterpret_cast<uint64_t*>(low) = uint64_t(codes.high) << 32 | codes.low;
  } else {
    *reinterpret_cast<uint32_t*>(low) = codes.low;
    if constexpr (P::kHigh == 2) *reinterpret_cast<uint16_t*>(high) = uint16_t(codes.high);
  }
}

template <class P>
TACO_HD Codes load_codes(const uint8_t* low, const uint8_t* high) {
  if constexpr (P::kLow == 8) {
    uint64_t both = *reinterpret_cast<const uint64_t*>(low);
    return {uint32_t(both), uint32_t(both >> 32)};
  } else {
    uint32_t pairs = 0;
    if constexpr (P::kHigh == 2) pairs = *reinterpret_cast<const uint16_t*>(high);
    return {*reinterpret_cast<const uint32_t*>(low), pairs};
  }
}

template <class S>
TACO_HD void store_scales(const Form& form, const Coded<S::V>& coded, int64_t group, uint8_t* packet) {
  store_scale(coded.scale, group, packet + form.scales, S::scale(form));
  if (S::adaptive(form)) reinterpret_cast<float*>(packet + form.alphas)[group] = coded.alpha;
}

template <int V>
TACO_HD void load_scales(const Form& form, Coded<V>& coded, int64_t group, const uint8_t* packet) {
  coded.scale = load_scale(group, packet + form.scales, form.scale);
  coded.alpha = form.adaptive ? reinterpret_cast<const float*>(packet + form.alphas)[group] : 1.0f;
}

// Zeroes after `used` bytes from `offset` up to the next multiple of 16.
TACO_HD void pad_section(uint8_t* packet, int64_t offset, int64_t used) {
  for (int64_t i = used; i % 16; ++i) packet[offset + i] = 0;
}

template <class P>
TACO_HD void pad_sections(const Spec& spec, const Form& form, uint8_t* packet) {
  int64_t codes = spec.groups * spec.group;
  pad_section(packet, form.low, codes * P::kLow / 8);
  if (P::kHigh) pad_section(packet, form.high, codes * P::kHigh / 8);
  pad_section(packet, form.scales, spec.groups * bytes_of(form.scale));
  if (form.adaptive) pad_section(packet, form.alphas, spec.groups * 4);
}

}  // namespace taco
