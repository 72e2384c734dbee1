// Payload planes: E consecutive codes (E a multiple of 4) <-> whole bytes of each plane.
//
// 8-bit payloads: one byte a code. 4-bit: byte k = code 2k | code 2k+1 << 4. 6-bit: the low four bits as a
// 4-bit plane, then the high two: byte k = codes 4k..4k+3, lowest bits first.
// `first` is the index of the first code in the whole message, a multiple of 4; planes start 16-byte aligned.
#pragma once

#include "payload.cuh"

namespace taco {

template <class P, int E>
TACO_HD void store_codes(const uint8_t (&q)[E], int64_t first, uint8_t* low, uint8_t* high) {
  if constexpr (P::kLow == 8) {
#pragma unroll
    for (int i = 0; i < E; i += 4) {
      uint32_t word = uint32_t(q[i]) | uint32_t(q[i + 1]) << 8 | uint32_t(q[i + 2]) << 16 | uint32_t(q[i + 3]) << 24;
      *reinterpret_cast<uint32_t*>(low + first + i) = word;
    }
  } else {
#pragma unroll
    for (int i = 0; i < E; i += 4) {
      uint32_t word = 0, pairs = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        word |= uint32_t(q[i + j] & 15) << (4 * j);
        pairs |= uint32_t(q[i + j] >> 4) << (2 * j);
      }
      *reinterpret_cast<uint16_t*>(low + (first + i) / 2) = uint16_t(word);
      if constexpr (P::kHigh == 2) high[(first + i) / 4] = uint8_t(pairs);
    }
  }
}

template <class P, int E>
TACO_HD void load_codes(uint8_t (&q)[E], int64_t first, const uint8_t* low, const uint8_t* high) {
  if constexpr (P::kLow == 8) {
#pragma unroll
    for (int i = 0; i < E; i += 4) {
      uint32_t word = *reinterpret_cast<const uint32_t*>(low + first + i);
#pragma unroll
      for (int j = 0; j < 4; ++j) q[i + j] = uint8_t(word >> (8 * j));
    }
  } else {
#pragma unroll
    for (int i = 0; i < E; i += 4) {
      uint32_t word = *reinterpret_cast<const uint16_t*>(low + (first + i) / 2);
      uint32_t pairs = P::kHigh == 2 ? high[(first + i) / 4] : 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) q[i + j] = uint8_t((word >> (4 * j) & 15) | (pairs >> (2 * j) & 3) << 4);
    }
  }
}

}  // namespace taco
