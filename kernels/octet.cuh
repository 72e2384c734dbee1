// Octets: eight consecutive elements in the registers of a lane, between a tensor and the planes of a packet.
//
// Codes are unsigned, at most eight bits, held as two words of four bytes: byte k of word j is code 4j + k. Planes as
// in taco/codec/wire.py: 8 and 4 bits have one plane, 6 bits one of the low four and one of the high two bits, 3 bits
// one of the low two and one of the high bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "group.cuh"

namespace taco {

// 2^23: an fp32 sum with it has the nearest integer (ties to even) of 0 <= y < 2^22 in its low bits, and the other way
// round an integer below 2^22 in its low bits is an fp32 number. Conversion instructions run at a quarter of the rate.
constexpr float kIntegers = 0x1p23f;
constexpr uint32_t kIntegersBits = 0x4b000000u;

TACO_HD int64_t align16(int64_t bytes) { return (bytes + 15) / 16 * 16; }

TACO_HD bool aligned16(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

TACO_HD float load_element(const void* x, int64_t i, Dtype dtype) {
  if (dtype == Dtype::kFp32) return static_cast<const float*>(x)[i];
  if (dtype == Dtype::kFp16) return __half2float(static_cast<const __half*>(x)[i]);
  return float_of(uint32_t(static_cast<const uint16_t*>(x)[i]) << 16);
}

TACO_HD void store_element(void* x, int64_t i, float v, Dtype dtype) {
  if (dtype == Dtype::kFp32) static_cast<float*>(x)[i] = v;
  if (dtype == Dtype::kFp16) static_cast<__half*>(x)[i] = __float2half_rn(v);
  if (dtype == Dtype::kBf16) static_cast<__nv_bfloat16*>(x)[i] = __float2bfloat16_rn(v);
}

// v: elements first .. first + 7 of x, where element `first` is 16-byte aligned and all eight exist.
TACO_HD void load_octet(float (&v)[8], const void* x, int64_t first, Dtype dtype) {
  if (dtype == Dtype::kFp32) {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(x) + first);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float4 word = from[i];
      v[4 * i] = word.x, v[4 * i + 1] = word.y, v[4 * i + 2] = word.z, v[4 * i + 3] = word.w;
    }
    return;
  }
  uint4 words = *reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(x) + first);
  uint32_t pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (dtype == Dtype::kBf16) {
      v[2 * i] = float_of(pairs[i] << 16);
      v[2 * i + 1] = float_of(pairs[i] & 0xffff0000u);
    } else {
      v[2 * i] = __half2float(__ushort_as_half(uint16_t(pairs[i])));
      v[2 * i + 1] = __half2float(__ushort_as_half(uint16_t(pairs[i] >> 16)));
    }
  }
}

TACO_HD uint32_t pair_bits(float low, float high, Dtype dtype) {
  if (dtype == Dtype::kBf16) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return uint32_t(__bfloat16_as_ushort(pair.x)) | uint32_t(__bfloat16_as_ushort(pair.y)) << 16;
  }
  __half2 pair = __floats2half2_rn(low, high);
  return uint32_t(__half_as_ushort(__low2half(pair))) | uint32_t(__half_as_ushort(__high2half(pair))) << 16;
}

// The inverse of load_octet, under the same conditions.
TACO_HD void store_octet(void* x, int64_t first, const float (&v)[8], Dtype dtype) {
  if (dtype == Dtype::kFp32) {
    float4* to = reinterpret_cast<float4*>(static_cast<float*>(x) + first);
#pragma unroll
    for (int i = 0; i < 2; ++i) to[i] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    return;
  }
  *reinterpret_cast<uint4*>(static_cast<uint16_t*>(x) + first) =
      make_uint4(pair_bits(v[0], v[1], dtype), pair_bits(v[2], v[3], dtype), pair_bits(v[4], v[5], dtype),
                 pair_bits(v[6], v[7], dtype));
}

// Elements first .. first + 7 of the `numel` in x; those from numel on are not written.
TACO_HD void store_octet_within(void* x, int64_t first, int64_t numel, bool aligned, const float (&v)[8], Dtype dtype) {
  if (aligned && first + 8 <= numel) return store_octet(x, first, v, dtype);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (first + i < numel) store_element(x, first + i, v[i], dtype);
  }
}

// The integer nearest to 0 <= y[i] < 2^Bits - 1/2 of each of eight, as bytes, or zeros where `mask` is 0.
TACO_HD void round_octet(uint32_t (&bytes)[2], const float (&y)[8], uint32_t mask) {
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    uint32_t t[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) t[i] = bits_of(add(y[4 * j + i], kIntegers));
    bytes[j] = pick_bytes(pick_bytes(t[0], t[1], 0x0040), pick_bytes(t[2], t[3], 0x0040), 0x5410) & mask;
  }
}

// Code i of an octet as fp32.
TACO_HD float code_value(const uint32_t (&bytes)[2], int i) {
  return sub(float_of(pick_bytes(bytes[i / 4], kIntegersBits, 0x7440u | uint32_t(i % 4))), kIntegers);
}

// Four bytes, each below 2^Width -> the low 4 * Width bits of a word, and back.
template <int Width>
TACO_HD uint32_t squeeze(uint32_t bytes) {
  if constexpr (Width == 4) {
    uint32_t t = bytes | bytes >> 4;
    return (t & 0xffu) | (t >> 8 & 0xff00u);
  } else {
    // the products put byte k at bit 24 + k * Width, and nothing else there or above
    static_assert(Width == 2 || Width == 1, "planes have 8, 4, 2 or 1 bits");
    return Width == 2 ? (bytes * 0x01041040u) >> 24 : (bytes * 0x01020408u) >> 24;
  }
}

template <int Width>
TACO_HD uint32_t spread(uint32_t bits) {
  if constexpr (Width == 4) {
    uint32_t t = (bits | bits << 8) & 0x00ff00ffu;
    return (t | t << 4) & 0x0f0f0f0fu;
  } else if constexpr (Width == 2) {
    uint32_t t = (bits | bits << 12) & 0x000f000fu;
    return (t | t << 6) & 0x03030303u;
  } else {
    return (bits * 0x00204081u) & 0x01010101u;
  }
}

// Codes `first` .. first + 7 (first a multiple of 8) of a section whose planes begin at `low` and `high`.
template <int Bits>
TACO_HD void store_planes(const uint32_t (&bytes)[2], int64_t first, uint8_t* low, uint8_t* high) {
  if constexpr (Bits == 8) {
    *reinterpret_cast<uint2*>(low + first) = make_uint2(bytes[0], bytes[1]);
  } else if constexpr (Bits == 3) {
    uint32_t a = squeeze<2>(bytes[0] & 0x03030303u), b = squeeze<2>(bytes[1] & 0x03030303u);
    *reinterpret_cast<uint16_t*>(low + first / 4) = uint16_t(a | b << 8);
    high[first / 8] = uint8_t(squeeze<1>(bytes[0] >> 2 & 0x01010101u) | squeeze<1>(bytes[1] >> 2 & 0x01010101u) << 4);
  } else {
    uint32_t a = squeeze<4>(bytes[0] & 0x0f0f0f0fu), b = squeeze<4>(bytes[1] & 0x0f0f0f0fu);
    *reinterpret_cast<uint32_t*>(low + first / 2) = a | b << 16;
    if constexpr (Bits == 6) {
      uint32_t c = squeeze<2>(bytes[0] >> 4 & 0x03030303u), d = squeeze<2>(bytes[1] >> 4 & 0x03030303u);
      *reinterpret_cast<uint16_t*>(high + first / 4) = uint16_t(c | d << 8);
    }
  }
}

template <int Bits>
TACO_HD void load_planes(uint32_t (&bytes)[2], int64_t first, const uint8_t* low, const uint8_t* high) {
  if constexpr (Bits == 8) {
    uint2 words = *reinterpret_cast<const uint2*>(low + first);
    bytes[0] = words.x, bytes[1] = words.y;
  } else if constexpr (Bits == 3) {
    uint32_t pairs = *reinterpret_cast<const uint16_t*>(low + first / 4), ones = high[first / 8];
    bytes[0] = spread<2>(pairs & 0xffu) | spread<1>(ones & 15u) << 2;
    bytes[1] = spread<2>(pairs >> 8) | spread<1>(ones >> 4) << 2;
  } else {
    uint32_t word = *reinterpret_cast<const uint32_t*>(low + first / 2);
    bytes[0] = spread<4>(word & 0xffffu);
    bytes[1] = spread<4>(word >> 16);
    if constexpr (Bits == 6) {
      uint32_t pairs = *reinterpret_cast<const uint16_t*>(high + first / 4);
      bytes[0] |= spread<2>(pairs & 0xffu) << 4;
      bytes[1] |= spread<2>(pairs >> 8) << 4;
    }
  }
}

// Zeroes bytes `used` .. align16(used) of a section; worker i of at most 16 takes every workers-th byte.
TACO_HD void zero_padding(uint8_t* section, int64_t used, int worker, int workers) {
#pragma unroll 1
  for (int64_t i = used + worker; i < align16(used); i += workers) section[i] = 0;
}

}  // namespace taco
