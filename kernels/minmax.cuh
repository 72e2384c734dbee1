// Groups of the asymmetric codec, from values to their part of a packet and back. The specification is
// taco/codec/asymmetric.py; every function here gives its bits.
//
// Packet: uint8 [nbytes] = [low plane][high plane, 6 bits only][lo][step], each section 16-byte aligned and zero
// padded. A group is spread over `lanes` neighbouring lanes of a warp, V octets a lane: element
// (octet * lanes + lane) * 8 + i is v[octet][i], so that the lanes read and write neighbouring octets. On the host
// `lanes` is 1.
#pragma once

#include "minmax_ops.h"
#include "octet.cuh"

namespace taco {

// Two octets a lane: sixteen elements share the two divisions of a group, and groups up to 512 fit a warp.
constexpr int kMinMaxOctets = 2;

TACO_HD int64_t octet_start(const MinMax& spec, int64_t group, int octet, int lane, int lanes) {
  return group * spec.group + int64_t(octet * lanes + lane) * 8;
}

// Values of group `group` of x [numel]; beyond its end the last element again, which keeps the range of the group.
template <int V>
TACO_HD void load_group(const MinMax& spec, float (&v)[V][8], const void* x, int64_t group, int lane, int lanes) {
  bool aligned = aligned16(x);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    int64_t first = octet_start(spec, group, j, lane, lanes);
    if (aligned && first + 8 <= spec.numel) {
      load_octet(v[j], x, first, spec.dtype);
      continue;
    }
    int64_t last = spec.numel - 1;
    int left = last - first > 7 ? 7 : (last > first ? int(last - first) : 0);
    first = first < last ? first : last;
#pragma unroll
    for (int i = 0; i < 8; ++i) v[j][i] = load_element(x, first + (i < left ? i : left), spec.dtype);
  }
}

// All 32 lanes of the warp must call it; those that are not `live` write nothing.
template <int Bits, int V>
TACO_HD void encode_minmax(const MinMax& spec, const float (&v)[V][8], int64_t group, int lane, int lanes, bool live,
                           uint8_t* packet) {
  float low = v[0][0], high = v[0][0];
#pragma unroll
  for (int i = 1; i < V * 8; ++i) {
    low = min_nan(low, v[i / 8][i % 8]);
    high = max_nan(high, v[i / 8][i % 8]);
  }
  for (int mask = 1; mask < lanes; mask *= 2) {
    low = min_nan(low, exchange(low, mask));
    high = max_nan(high, exchange(high, mask));
  }
  if (!live) return;
  Range range = range_of(low, high, float((1 << Bits) - 1), spec.metadata);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = mul(sub(v[j][i], range.lo), range.inv);
    uint32_t bytes[2];
    round_octet(bytes, y, range.mask);
    store_planes<Bits>(bytes, octet_start(spec, group, j, lane, lanes), packet + spec.low, packet + spec.high);
  }
  if (lane == 0) {
    store_metadata(packet + spec.lo, group, range.lo_bits, spec.metadata);
    store_metadata(packet + spec.step, group, range.step_bits, spec.metadata);
  }
}

// The sum of `count` decoded packets, `stride` bytes apart, in index order.
template <int Bits, int V>
TACO_HD void sum_minmax(const MinMax& spec, float (&sum)[V][8], const uint8_t* packet, int64_t count, int64_t stride,
                        int64_t group, int lane, int lanes) {
  // -0 is the neutral element: -0 + x is x for both zeros too
#pragma unroll
  for (int i = 0; i < V * 8; ++i) sum[i / 8][i % 8] = -0.0f;
#pragma unroll 2  // the loads of two packets at a time
  for (int64_t n = 0; n < count; ++n, packet += stride) {
    float lo = load_metadata(packet + spec.lo, group, spec.metadata);
    float step = load_metadata(packet + spec.step, group, spec.metadata);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      uint32_t bytes[2];
      load_planes<Bits>(bytes, octet_start(spec, group, j, lane, lanes), packet + spec.low, packet + spec.high);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[j][i] = add(sum[j][i], add(lo, mul(code_value(bytes, i), step)));
    }
  }
}

TACO_HD void pad_minmax(const MinMax& spec, uint8_t* packet, int worker, int workers) {
  int64_t codes = spec.groups * spec.group, metadata = spec.groups * bytes_of(spec.metadata);
  zero_padding(packet + spec.low, codes * (spec.bits == 8 ? 8 : 4) / 8, worker, workers);
  if (spec.bits == 6) zero_padding(packet + spec.high, codes / 4, worker, workers);
  zero_padding(packet + spec.lo, metadata, worker, workers);
  zero_padding(packet + spec.step, metadata, worker, workers);
}

}  // namespace taco
