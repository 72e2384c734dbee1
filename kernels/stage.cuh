// A warp's tile on its way between global memory, where a warp-wide access covers 512 consecutive bytes, and registers,
// where a lane holds vectors that lie apart (team.cuh). It passes through shared memory; loads are asynchronous.
#pragma once

#include <type_traits>

#include "planes.cuh"
#include "shared.cuh"

namespace taco {

// Small blocks: they fill an SM to within a few warps whatever a kernel's registers are (H200; README.md).
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// What a buffer of BYTES bytes is aligned to, so that addresses in it can be combined by exclusive or. Where lanes are known,
// a lane's vectors lie within 1024 bytes.
template <class S>
constexpr int alignment_of(int bytes) {
  return S::LANES == 0 && bytes > 1024 ? bytes : 1024;
}

// Byte `at` of a tile lies at this offset of its buffer: 16-byte units are permuted among 8, so that the accesses of teams
// of 1 and 4 lanes spread over the banks. swizzled(a ^ b) = swizzled(a) ^ swizzled(b).
TACO_HD constexpr int swizzled(int at) { return at ^ (at >> 3 & 0x30) ^ (at >> 2 & 0x40); }

// Where a lane works. step: kWarps tiles, one a warp; a tile: 32 * V vectors, 32 / lanes groups.
template <class S>
struct Lane {
  int lane, warp, team, lane_bits;
  typename S::Lanes place;
  int vector;  // vector 0 of the lane in its tile

  __device__ explicit Lane(int lane_bits_) : Lane(lane_bits_, int(threadIdx.x >> 5)) {}
  __device__ Lane(int lane_bits_, int warp_)
      : lane(int(keep(threadIdx.x & 31))), warp(int(keep(uint32_t(warp_)))),
        lane_bits(S::LANES ? __builtin_ctz(S::LANES | 64) : lane_bits_), place(0, 1) {
    team = lane >> lane_bits;
    place = typename S::Lanes(lane & ((1 << lane_bits) - 1), 1 << lane_bits);
    vector = team * (S::V << lane_bits) + place.lane;
  }

  __device__ int groups() const { return 32 >> lane_bits; }  // of a tile
  __device__ int64_t tile(int step) const { return int64_t(step) * kWarps + warp; }
  __device__ int64_t group(int step) const { return tile(step) * groups() + team; }
  __device__ Place<S> at(int step, bool whole) const {
    return {place, group(step), tile(step) * (32 * S::V) + vector, whole};
  }
};

// 32 * V vectors of B bytes in message order.
template <int V, int B>
struct Buffer {
  static constexpr int kBytes = 32 * V * B;
  static constexpr int kUnit = B < 16 ? B : 16;  // of a lane's accesses

  uint32_t base, copied, mine;  // addresses of the buffer, of the lane's first 16-byte unit, of its vector 0

  template <class S>
  __device__ Buffer(uint32_t base_, const Lane<S>& lane)
      : base(base_), copied(keep(base_ + swizzled(16 * lane.lane))), mine(keep(base_ + swizzled(B * lane.vector))) {}

  __device__ void move(int bytes) { base += bytes, copied += bytes, mine += bytes; }

  // All of the tile at `from`, which is the lane's first unit.
  __device__ void request(const uint8_t* from) const {
#pragma unroll
    for (int u = 0; u < kBytes; u += 512) {
      if (kBytes >= 512 || copied - base < kBytes) copy_async_16(copied + u, from + u);
    }
  }
  __device__ void write(uint8_t* to) const {
#pragma unroll
    for (int u = 0; u < kBytes; u += 512) {
      if (kBytes >= 512 || copied - base < kBytes) {
        Word<16> v = Word<16>::load(copied + u);
        *reinterpret_cast<uint4*>(to + u) = make_uint4(v.x, v.y, v.z, v.w);
      }
    }
  }

  // Its first `used` bytes, UNIT at a time, and zeroes after them. from: the tile.
  template <int UNIT>
  __device__ void read_some(const uint8_t* from, int64_t used) const {
#pragma unroll 1
    for (int at = (threadIdx.x & 31) * UNIT; at < kBytes; at += 32 * UNIT) {
      Word<UNIT> v{};
      if (at < used) v = *reinterpret_cast<const Word<UNIT>*>(from + at);
      v.store(base + swizzled(at));
    }
  }
  template <int UNIT>
  __device__ void write_some(uint8_t* to, int64_t used) const {
#pragma unroll 1
    for (int at = (threadIdx.x & 31) * UNIT; at < kBytes && at < used; at += 32 * UNIT) {
      *reinterpret_cast<Word<UNIT>*>(to + at) = Word<UNIT>::load(base + swizzled(at));
    }
  }

  // The lane's vector w, which starts at (mine of the tile) + w * lanes * B; `part`: its second unit.
  template <class S>
  __device__ Word<kUnit> get(const Lane<S>& lane, int w, int part = 0) const {
    return Word<kUnit>::load(address(lane, w, part));
  }
  template <class S>
  __device__ void put(const Lane<S>& lane, int w, Word<kUnit> v, int part = 0) const {
    v.store(address(lane, w, part));
  }

 private:
  template <class S>
  __device__ uint32_t address(const Lane<S>& lane, int w, int part) const {
    return mine ^ uint32_t(swizzled((w << lane.lane_bits) * B + 16 * part));
  }
};

// The tensor side of a warp. BYTES: of an element.
template <int V, int BYTES>
struct TensorStage {
  static constexpr int kBytes = 256 * V * BYTES;
  Buffer<V, 8 * BYTES> buffer;

  template <class S>
  __device__ TensorStage(uint32_t base, const Lane<S>& lane) : buffer(base, lane) {}

  // The same so many bytes further.
  __device__ TensorStage at(int bytes) const {
    TensorStage s = *this;
    s.buffer.move(bytes);
    return s;
  }

  template <class S>
  __device__ Vector<BYTES> get(const Lane<S>& lane, int w) const {
    Vector<BYTES> raw;
#pragma unroll
    for (int i = 0; i < BYTES / 2; ++i) {
      Word<16> v = buffer.get(lane, w, i);
      raw.words[4 * i] = v.x, raw.words[4 * i + 1] = v.y, raw.words[4 * i + 2] = v.z, raw.words[4 * i + 3] = v.w;
    }
    return raw;
  }
  template <class S>
  __device__ void put(const Lane<S>& lane, int w, const Vector<BYTES>& raw) const {
#pragma unroll
    for (int i = 0; i < BYTES / 2; ++i) {
      buffer.put(lane, w, Word<16>{raw.words[4 * i], raw.words[4 * i + 1], raw.words[4 * i + 2], raw.words[4 * i + 3]}, i);
    }
  }
  template <class S>
  __device__ void request(const Lane<S>& lane, const uint8_t* x, int64_t numel, int step, bool whole) const {
    const uint8_t* first = x + lane.warp * kBytes;
    if (whole) return buffer.request(first + 16 * lane.lane + int64_t(step) * (kWarps * kBytes));
    first += int64_t(step) * (kWarps * kBytes);
    buffer.template read_some<BYTES>(first, numel * BYTES - (first - x));
  }
  template <class S>
  __device__ void write(const Lane<S>& lane, uint8_t* x, int64_t numel, int step, bool whole) const {
    uint8_t* first = x + lane.warp * kBytes;
    if (whole) return buffer.write(first + 16 * lane.lane + int64_t(step) * (kWarps * kBytes));
    first += int64_t(step) * (kWarps * kBytes);
    buffer.template write_some<BYTES>(first, numel * BYTES - (first - x));
  }
};

// One plane of a packet; BITS of a code are in it.
template <int V, int BITS>
struct PlaneStage {
  static constexpr int kBytes = 32 * V * BITS;
  Buffer<V, BITS> buffer;

  // The lane's 16-byte unit of its tile in `plane`.
  template <class S>
  __device__ const uint8_t* unit(const Lane<S>& lane, const uint8_t* plane, int step) const {
    return plane + lane.warp * kBytes + 16 * lane.lane + int64_t(step) * (kWarps * kBytes);
  }
  template <class S>
  __device__ void request_some(const Lane<S>& lane, const uint8_t* plane, int64_t used, int step) const {
    const int64_t first = lane.warp * kBytes + int64_t(step) * (kWarps * kBytes);
    buffer.template read_some<8>(plane + first, used - first);
  }
  template <class S>
  __device__ void write(const Lane<S>& lane, uint8_t* plane, int64_t used, int step, bool whole) const {
    uint8_t* first = plane + lane.warp * kBytes;
    if (whole) return buffer.write(first + 16 * lane.lane + int64_t(step) * (kWarps * kBytes));
    first += int64_t(step) * (kWarps * kBytes);
    buffer.template write_some<8>(first, used - (first - plane));
  }
};

// The packet side.
template <class P, int V>
struct CodesStage {
  static constexpr bool kPairs = P::kHigh > 0;
  static constexpr int kBytes = 32 * V * (kPairs ? 8 : P::kLow);  // planes of 6 bits lie aligned in the room of 8
  PlaneStage<V, P::kLow> low;
  PlaneStage<V, kPairs ? P::kHigh : 2> high;

  template <class S>
  __device__ CodesStage(uint32_t base, const Lane<S>& lane) : low{{base, lane}}, high{{base + 32 * V * P::kLow, lane}} {}

  // The same so many bytes further.
  __device__ CodesStage at(int bytes) const {
    CodesStage s = *this;
    s.low.buffer.move(bytes);
    s.high.buffer.move(bytes);
    return s;
  }
  template <class S>
  __device__ void request_some(const Lane<S>& lane, const Spec& spec, const uint8_t* packet, int step) const {
    int64_t codes = spec.groups * spec.group / 8;
    low.request_some(lane, packet + spec.form.low, codes * P::kLow, step);
    if constexpr (kPairs) high.request_some(lane, packet + spec.form.high, codes * P::kHigh, step);
  }
  template <class S>
  __device__ void write(const Lane<S>& lane, const Spec& spec, const Form& form, uint8_t* packet, int step, bool whole) const {
    int64_t codes = spec.groups * spec.group / 8;
    low.write(lane, packet + form.low, codes * P::kLow, step, whole);
    if constexpr (kPairs) high.write(lane, packet + form.high, codes * P::kHigh, step, whole);
  }
  // A lane that is a team of its own has its vectors in a row: 16 bytes an access.
  template <class S>
  TACO_HD static constexpr bool in_a_row() { return S::LANES == 1 && !kPairs && V * P::kLow % 16 == 0; }

  template <class S>
  __device__ void put(const Lane<S>& lane, const Coded<V>& coded) const {
    if constexpr (in_a_row<S>()) {
      uint32_t words[V * P::kLow / 4];
#pragma unroll
      for (int w = 0; w < V; ++w) {
        words[P::kLow == 8 ? 2 * w : w] = coded.codes[w].low;
        if (P::kLow == 8) words[2 * w + 1] = coded.codes[w].high;
      }
#pragma unroll
      for (int i = 0; i < V * P::kLow / 16; ++i) {
        Word<16>{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]}.store(low.buffer.mine ^ swizzled(16 * i));
      }
      return;
    }
#pragma unroll
    for (int w = 0; w < V; ++w) {
      Codes c = coded.codes[w];
      if constexpr (P::kLow == 8) low.buffer.put(lane, w, Word<8>{c.low, c.high});
      if constexpr (P::kLow == 4) low.buffer.put(lane, w, Word<4>{c.low});
      if constexpr (kPairs) high.buffer.put(lane, w, Word<2>{uint16_t(c.high)});
    }
  }
  template <class S>
  __device__ void get(const Lane<S>& lane, Coded<V>& coded) const {
    if constexpr (in_a_row<S>()) {
      uint32_t words[V * P::kLow / 4];
#pragma unroll
      for (int i = 0; i < V * P::kLow / 16; ++i) {
        Word<16> v = Word<16>::load(low.buffer.mine ^ swizzled(16 * i));
        words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
      }
#pragma unroll
      for (int w = 0; w < V; ++w) {
        coded.codes[w] = P::kLow == 8 ? Codes{words[2 * w % (V * P::kLow / 4)], words[(2 * w + 1) % (V * P::kLow / 4)]} : Codes{words[w], 0};
      }
      return;
    }
#pragma unroll
    for (int w = 0; w < V; ++w) {
      auto word = low.buffer.get(lane, w);
      coded.codes[w] = {word.x, 0};
      if constexpr (P::kLow == 8) coded.codes[w].high = word.y;
      if constexpr (kPairs) coded.codes[w].high = high.buffer.get(lane, w).x;
    }
  }
};

}  // namespace taco
