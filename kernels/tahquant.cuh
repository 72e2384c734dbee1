// Tiles of TAH-Quant, from values to their part of a packet and back. The specification is taco/codec/tahquant.py;
// every function here gives its bits.
//
// Packet: uint8 [nbytes] = [INT3 plane of 2 bits][INT3 plane of 1 bit][INT4 plane][head: a byte a tile][lo][step],
// each section 16-byte aligned and zero padded, lo and step in fp16. The planes hold the tiles of their width in tile
// order. A tile is spread over LANES neighbouring lanes of a warp: element lane * E + i is v[i], E a multiple of 8. On
// the host LANES is 1. Functions with LANES in their template exchange values: all 32 lanes of the warp must call them.
#pragma once

#include "minmax_ops.h"
#include "octet.cuh"
#include "rotate.cuh"

namespace taco {

constexpr uint32_t kHeadNarrow = 64, kHeadRotated = 128, kHeadIndex = 63;

// The value of lane `source` of the tile.
template <int LANES, class T>
TACO_HD T from_lane(T value, int source) {
#if defined(__CUDA_ARCH__)
  return __shfl_sync(0xffffffffu, value, source, LANES);
#else
  (void)source;
  return value;
#endif
}

// v: values of tile `tile` of x [numel], zero beyond its end.
template <int E>
TACO_HD void load_tile(const TahQuant& spec, float (&v)[E], const void* x, int64_t tile, int lane) {
  bool aligned = aligned16(x);
#pragma unroll
  for (int j = 0; j < E; j += 8) {
    int64_t first = tile * spec.tile + lane * E + j;
    float part[8] = {};
    if (aligned && first + 8 <= spec.numel) {
      load_octet(part, x, first, spec.dtype);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (first + i < spec.numel) part[i] = load_element(x, first + i, spec.dtype);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[j + i] = part[i];
  }
}

// Sums of adjacent pairs, then of pairs of those, and so on; t is used up.
template <int E, int LANES>
TACO_HD float tree_sum(float (&t)[E]) {
#pragma unroll
  for (int stride = 1; stride < E; stride *= 2) {
#pragma unroll
    for (int i = 0; i < E; i += 2 * stride) t[i] = add(t[i], t[i + stride]);
  }
  float sum = t[0];
#pragma unroll
  for (int mask = 1; mask < LANES; mask *= 2) sum = add(sum, exchange(sum, mask));
  return sum;
}

// log x of a positive normal x, by the series of tahquant.logarithm.
TACO_HD float logarithm(float x) {
  uint32_t u = bits_of(x);
  int32_t k = int32_t(u - 0x3f3504f3u) >> 23;
  float m = float_of(u - (uint32_t(k) << 23));
  float t = div(sub(m, 1.0f), add(m, 1.0f));
  float z = mul(t, t);
  float series = add(mul(z, float(1.0 / 7)), float(1.0 / 5));
  series = add(mul(series, z), float(1.0 / 3));
  series = add(mul(series, z), 1.0f);
  // 1.5 * 2^23 holds negative integers in its low bits as well
  float exponent = sub(float_of(0x4b400000u + uint32_t(k)), 0x1.8p23f);
  return add(mul(exponent, float(0.69314718055994530942)), mul(add(t, t), series));
}

// A number below 2^31 that orders tiles by entropy: 0 for one that is not finite, else the bits of E >= 0 plus one.
template <int E, int LANES>
TACO_HD uint32_t entropy_key(const float (&v)[E]) {
  float t[E];
#pragma unroll
  for (int i = 0; i < E; ++i) t[i] = float_of(bits_of(v[i]) & 0x7fffffffu);
  float total = tree_sum<E, LANES>(t);
  float inverse = div(1.0f, total < 0x1p-126f ? 0x1p-126f : total);
#pragma unroll
  for (int i = 0; i < E; ++i) {
    float p = mul(float_of(bits_of(v[i]) & 0x7fffffffu), inverse);
    t[i] = mul(p, logarithm(p < 0x1p-126f ? 0x1p-126f : p));
  }
  float entropy = -tree_sum<E, LANES>(t);
  if (entropy != entropy) return 0;
  return entropy > 0.0f ? bits_of(entropy) + 1 : 1;
}

struct Pivot {
  bool rotated;
  int index;  // 0 where not rotated
};

// The first of the largest magnitudes, if the tile is to be rotated for it. Magnitudes are compared as integers: NaN is
// then the largest, and a tile that holds one is not rotated.
template <int E, int LANES>
TACO_HD Pivot find_pivot(const float (&v)[E], int lane, float ratio) {
  uint32_t first = 0, second = 0;
  int index = 0;
#pragma unroll
  for (int i = 0; i < E; ++i) {
    uint32_t a = bits_of(v[i]) & 0x7fffffffu;
    bool larger = i == 0 || a > first;
    uint32_t least = i == 0 ? 0 : (larger ? first : a);
    second = least > second ? least : second;
    first = larger ? a : first;
    index = larger ? lane * E + i : index;
  }
#pragma unroll
  for (int mask = 1; mask < LANES; mask *= 2) {
    uint32_t other_first = exchange(first, mask), other_second = exchange(second, mask);
    int other_index = exchange(index, mask);
    bool theirs = other_first > first || (other_first == first && other_index < index);
    uint32_t loser = theirs ? first : other_first;
    second = other_second > second ? other_second : second;
    second = loser > second ? loser : second;
    first = theirs ? other_first : first;
    index = theirs ? other_index : index;
  }
  bool rotated = first > 0 && first <= kInfBits && float_of(first) >= mul(ratio, float_of(second));
  return {rotated, rotated ? index : 0};
}

// Exchanges element `index` of the tile and element 0; index 0 changes nothing.
template <int E, int LANES>
TACO_HD void swap_first(float (&v)[E], int lane, int index) {
  int place = index % E;
  float there = v[0];
#pragma unroll
  for (int i = 1; i < E; ++i) there = i == place ? v[i] : there;
  there = from_lane<LANES>(there, index / E);
  float first = from_lane<LANES>(v[0], 0);
#pragma unroll
  for (int i = 0; i < E; ++i) v[i] = lane == index / E && i == place ? first : v[i];
  if (lane == 0) v[0] = there;
}

// The orthonormal Hadamard matrix times v in tiles that are `rotated`.
template <int E, int LANES>
TACO_HD void rotate_tile(const TahQuant& spec, float (&v)[E], int lane, bool rotated) {
  if (!any_lane(rotated)) return;
  float c[E];
#pragma unroll
  for (int i = 0; i < E; ++i) c[i] = v[i];
  hadamard<E, LANES>(c, lane, spec.inv_sqrt_tile);
#pragma unroll
  for (int i = 0; i < E; ++i) v[i] = rotated ? c[i] : v[i];
}

// v: values of tile `tile`, the `position`-th of its width. Lanes that are not `live` write nothing.
template <int E, int LANES>
TACO_HD void encode_tile(const TahQuant& spec, float (&v)[E], int64_t tile, int64_t position, bool narrow, int lane,
                         bool live, uint8_t* packet) {
  Pivot pivot = find_pivot<E, LANES>(v, lane, spec.pivot_ratio);
  swap_first<E, LANES>(v, lane, pivot.index);
  rotate_tile<E, LANES>(spec, v, lane, pivot.rotated);
  float low = v[0], high = v[0];
#pragma unroll
  for (int i = 1; i < E; ++i) low = min_nan(low, v[i]), high = max_nan(high, v[i]);
#pragma unroll
  for (int mask = 1; mask < LANES; mask *= 2) {
    low = min_nan(low, exchange(low, mask));
    high = max_nan(high, exchange(high, mask));
  }
  if (!live) return;
  Range range = range_of(low, high, narrow ? 7.0f : 15.0f, Metadata::kFp16);
#pragma unroll
  for (int j = 0; j < E; j += 8) {
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = mul(sub(v[j + i], range.lo), range.inv);
    uint32_t bytes[2];
    round_octet(bytes, y, range.mask);
    int64_t first = position * spec.tile + lane * E + j;
    if (narrow) {
      store_planes<3>(bytes, first, packet + spec.int3_low, packet + spec.int3_high);
    } else {
      store_planes<4>(bytes, first, packet + spec.int4, nullptr);
    }
  }
  if (lane == 0) {
    uint32_t flags = (narrow ? kHeadNarrow : 0) | (pivot.rotated ? kHeadRotated : 0);
    packet[spec.head + tile] = uint8_t(flags | uint32_t(pivot.index));
    store_metadata(packet + spec.lo, tile, range.lo_bits, Metadata::kFp16);
    store_metadata(packet + spec.step, tile, range.step_bits, Metadata::kFp16);
  }
}

// sum += the values of tile `tile`, whose head byte is `head`, the `position`-th of its width. Positions beyond the
// section, which only the heads of a damaged packet give, are moved into it, so that all reads stay in the packet.
template <int E, int LANES>
TACO_HD void add_tile(const TahQuant& spec, float (&sum)[E], const uint8_t* packet, uint32_t head, int64_t tile,
                      int64_t position, int lane) {
  float lo = load_metadata(packet + spec.lo, tile, Metadata::kFp16);
  float step = load_metadata(packet + spec.step, tile, Metadata::kFp16);
  int64_t last = (head & kHeadNarrow ? spec.narrow : spec.tiles - spec.narrow) - 1;
  position = position < last ? position : (last > 0 ? last : 0);
  float v[E];
#pragma unroll
  for (int j = 0; j < E; j += 8) {
    uint32_t bytes[2];
    int64_t first = position * spec.tile + lane * E + j;
    if (head & kHeadNarrow) {
      load_planes<3>(bytes, first, packet + spec.int3_low, packet + spec.int3_high);
    } else {
      load_planes<4>(bytes, first, packet + spec.int4, nullptr);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[j + i] = add(lo, mul(code_value(bytes, i), step));
  }
  bool rotated = (head & kHeadRotated) != 0;
  rotate_tile<E, LANES>(spec, v, lane, rotated);
  swap_first<E, LANES>(v, lane, rotated ? int(head & kHeadIndex) : 0);
#pragma unroll
  for (int i = 0; i < E; ++i) sum[i] = add(sum[i], v[i]);
}

TACO_HD void pad_tahquant(const TahQuant& spec, uint8_t* packet, int worker, int workers) {
  int64_t int3 = spec.narrow * spec.tile, int4 = (spec.tiles - spec.narrow) * spec.tile;
  zero_padding(packet + spec.int3_low, int3 / 4, worker, workers);
  zero_padding(packet + spec.int3_high, int3 / 8, worker, workers);
  zero_padding(packet + spec.int4, int4 / 2, worker, workers);
  zero_padding(packet + spec.head, spec.tiles, worker, workers);
  zero_padding(packet + spec.lo, 2 * spec.tiles, worker, workers);
  zero_padding(packet + spec.step, 2 * spec.tiles, worker, workers);
}

}  // namespace taco
