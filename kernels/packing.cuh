// How a tile travels between GPUs: as codes of a group codec, or as its elements.
//
// The packet of a chunk, kWarps tiles: kCodes bytes of every tile, then kMeta bytes of every tile; and, apart, a digest of every tile.
// Codes lie as in the shared memory that they were written to (stage.cuh), so a packet means something only to the kernel that made it.
//
// A packing has Loaded (a lane's elements), Item (what a lane holds of a packet) and
//   load, encode              elements -> item           add, finish               items -> their sum, in fp32
//   encode_sum                sum -> item                 decode                    one item -> values
//   put, get                  item <-> shared memory      `ok` false: an item that never came: NaN
//   digest                    of an item in shared memory; factor: of the lane
#pragma once

#include "mesh.cuh"
#include "planes.cuh"
#include "stage.cuh"

namespace taco {

TACO_HD constexpr int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

// A tile's digest as it travels: of all words of its codes and meta by their places, and of the packet's turn. A tile of which any
// part is still that of an earlier turn has another but for a chance of 2^-56.
struct Digest {
  static constexpr int kBytes = 8;
  uint32_t low, high;  // high: the turn + 1 in the upper byte

  __device__ static uint32_t tag(uint32_t turn) { return turn + 1 << 24; }
  __device__ static Digest load(uint32_t at) {
    const Word<8> w = Word<8>::load(at);
    return {w.x, w.y};
  }
  __device__ void store(uint32_t at) const { Word<8>{low, high}.store(at); }
  __device__ bool operator==(const Digest& other) const { return low == other.low && high == other.high; }
};

// Odd numbers without a pattern (the finaliser of MurmurHash3).
TACO_HD constexpr uint32_t multiplier(uint32_t i) {
  uint32_t h = (i + 1) * 0x9e3779b1u;
  h = (h ^ h >> 16) * 0x85ebca6bu;
  h = (h ^ h >> 13) * 0xc2b2ae35u;
  return (h ^ h >> 16) | 1;
}

// The sum of words times numbers of their places, in 64 bits: of the place in a lane, and of the lane. Any regular numbers would not
// do: the transform of a single element is a pattern of signs, over which 1, 3, 5, .. add up to nothing.
struct Digester {
  uint64_t sum = 0;

  __device__ static uint32_t lane_factor(int lane) { return multiplier(92 + lane); }

  __device__ void add(uint32_t word, int place) { sum += uint64_t(word) * multiplier(place); }
  // Of the lanes' words and BYTES bytes of shared memory that all of them see. factor: of the lane. places: that have been added.
  template <int BYTES>
  __device__ Digest finish(const uint8_t* meta, int lane, uint32_t factor, uint32_t turn, int places) {
#pragma unroll
    for (int at = 0; at < BYTES; at += 128) {
      if (at + 128 <= BYTES || at + 4 * lane < BYTES) add(*reinterpret_cast<const uint32_t*>(meta + at + 4 * lane), places + at / 128);
    }
    const uint32_t low = __reduce_add_sync(0xffffffffu, uint32_t(sum) * factor);
    const uint32_t high = __reduce_add_sync(0xffffffffu, uint32_t(sum >> 32) * factor);
    return {low + turn * 0x85ebca6bu, (high & 0xffffffu) | Digest::tag(turn)};
  }
};

static_assert(kTrailer == kWarps * Digest::kBytes, "a digest a tile");

template <class K>
TACO_HD constexpr int packet_bytes() {
  return kWarps * (K::kCodes + K::kMeta) + kTrailer;
}

template <class P, class S_, int BYTES>
struct Coding {
  using S = S_;
  static constexpr int V = S::V, kElement = BYTES;
  using Stage = CodesStage<P, V>;
  using Tensor = TensorStage<V, BYTES>;
  using Loaded = typename S::Values;
  using Item = Coded<V>;
  static constexpr int kCodes = 32 * V * (P::kLow + P::kHigh);
  // where teams may have 32 lanes, addresses are combined over a whole tile
  static constexpr int kTile = S::LANES ? kCodes : Stage::kBytes;
  static constexpr int kGroups = S::LANES ? 32 / (S::LANES ? S::LANES : 1) : 32;
  static constexpr int kScales = round_up(kGroups * S::kScaleBytes, 16), kAlphas = S::kMayAdapt ? round_up(kGroups * 4, 16) : 0;
  static constexpr int kMeta = kScales + kAlphas;
  static constexpr int kAlign = S::LANES ? 128 : (Stage::kBytes > 1024 ? Stage::kBytes : 1024);

  __device__ static void load(const Spec& spec, const Tensor& in, const Lane<S>& lane, const uint32_t (&signs)[V], Loaded& v) {
#pragma unroll
    for (int w = 0; w < V; ++w) {
      Vector<BYTES> raw = in.get(lane, w);
      if (S::is_signed(spec)) negate(raw, signs[w]);
      unpack(raw, S::dtype(spec), v + 8 * w);
    }
  }
  __device__ static Item encode(const Spec& spec, Loaded& v, const Place<S>& at, uint32_t seed) {
    return encode_group<P, S>(spec, v, at, seed);
  }
  __device__ static void add(const Spec& spec, Item item, bool ok, typename S::Values& sum) {
    if (!ok) item.scale = float_of(kNanBits);
    add_part<P, S>(spec.form, item, false, sum);
  }
  __device__ static void finish(const Spec& spec, typename S::Values& sum, const Place<S>& at) {
    const int size = S::rotation_size(spec);
    if (size > 1) {
      butterflies<V>(sum, at.team, size);
#pragma unroll
      for (int i = 0; i < 8 * V; ++i) sum[i] = mul(sum[i], S::factor(spec));
    }
  }
  __device__ static Item encode_sum(const Spec& spec, const typename S::Values& sum, const Place<S>& at, uint32_t seed) {
    return taco::encode_sum<P, S>(spec, spec.form, sum, at, seed);
  }
  __device__ static void decode(const Spec& spec, Item item, bool ok, typename S::Values& v, const Place<S>& at) {
    if (!ok) item.scale = float_of(kNanBits);
    decode_group<P, S>(spec, item, v, at);
  }
  __device__ static void store(const Spec& spec, const Tensor& out, const Lane<S>& lane, const uint32_t (&signs)[V],
                               const typename S::Values& v) {
#pragma unroll
    for (int w = 0; w < V; ++w) {
      Vector<BYTES> raw = pack<BYTES>(v + 8 * w, S::dtype(spec));
      if (S::is_signed(spec)) negate(raw, signs[w]);
      out.put(lane, w, raw);
    }
  }
  // codes: the tile's in shared memory; meta: its scales, then its alphas.
  __device__ static void put(const Spec& spec, const Stage& codes, uint8_t* meta, const Lane<S>& lane, const Item& item) {
    codes.put(lane, item);
    if (lane.place.lane == 0) {
      store_scale(item.scale, lane.team, meta, S::scale(spec.form));
      if (S::adaptive(spec.form)) reinterpret_cast<float*>(meta + kScales)[lane.team] = item.alpha;
    }
  }
  __device__ static Item get(const Spec& spec, const Stage& codes, const uint8_t* meta, const Lane<S>& lane) {
    Item item;
    codes.get(lane, item);
    item.scale = load_scale(lane.team, meta, S::scale(spec.form));
    item.alpha = S::adaptive(spec.form) ? reinterpret_cast<const float*>(meta + kScales)[lane.team] : 1.0f;
    return item;
  }
  __device__ static Digest digest(const Item& item, const uint8_t* meta, int lane, uint32_t factor, uint32_t turn) {
    Digester d;
    constexpr bool two = P::kLow == 8 || P::kHigh > 0;
#pragma unroll
    for (int w = 0; w < V; ++w) {
      d.add(item.codes[w].low, 2 * w);
      if constexpr (two) d.add(P::kLow == 8 ? item.codes[w].high : uint16_t(item.codes[w].high), 2 * w + 1);
    }
    return d.template finish<kMeta>(meta, lane, factor, turn, 2 * V);
  }
};

// No codec: sums are still formed in fp32 and in the order of ranks.
template <int BYTES>
struct Plain {
  using S = Shape<8 / BYTES, 4, 0, 0, 0, int(Scale::kFp32), kAtRunTime>;
  static constexpr int V = S::V, kElement = BYTES;
  using Stage = TensorStage<V, BYTES>;
  using Tensor = TensorStage<V, BYTES>;
  struct Item {
    Vector<BYTES> raw[V];
  };
  using Loaded = Item;
  static constexpr int kCodes = Stage::kBytes, kTile = kCodes, kMeta = 0, kAlign = 1024;

  __device__ static void load(const Spec&, const Tensor& in, const Lane<S>& lane, const uint32_t (&)[V], Loaded& v) {
#pragma unroll
    for (int w = 0; w < V; ++w) v.raw[w] = in.get(lane, w);
  }
  __device__ static Item encode(const Spec&, Loaded& v, const Place<S>&, uint32_t) { return v; }
  __device__ static void add(const Spec& spec, const Item& item, bool ok, typename S::Values& sum) {
    typename S::Values v;
    decode(spec, item, ok, v, Place<S>{typename S::Lanes(0, 1), 0, 0, true});
#pragma unroll
    for (int i = 0; i < 8 * V; ++i) sum[i] = taco::add(sum[i], v[i]);
  }
  __device__ static void finish(const Spec&, typename S::Values&, const Place<S>&) {}
  __device__ static Item encode_sum(const Spec& spec, const typename S::Values& sum, const Place<S>&, uint32_t) {
    Item item;
#pragma unroll
    for (int w = 0; w < V; ++w) item.raw[w] = pack<BYTES>(sum + 8 * w, spec.dtype);
    return item;
  }
  __device__ static void decode(const Spec& spec, const Item& item, bool ok, typename S::Values& v, const Place<S>&) {
#pragma unroll
    for (int w = 0; w < V; ++w) unpack(item.raw[w], spec.dtype, v + 8 * w);
    if (!ok) {
#pragma unroll
      for (int i = 0; i < 8 * V; ++i) v[i] = float_of(kNanBits);
    }
  }
  __device__ static void store(const Spec& spec, const Tensor& out, const Lane<S>& lane, const uint32_t (&)[V], const typename S::Values& v) {
#pragma unroll
    for (int w = 0; w < V; ++w) out.put(lane, w, pack<BYTES>(v + 8 * w, spec.dtype));
  }
  __device__ static void put(const Spec&, const Stage& codes, uint8_t*, const Lane<S>& lane, const Item& item) {
#pragma unroll
    for (int w = 0; w < V; ++w) codes.put(lane, w, item.raw[w]);
  }
  __device__ static Item get(const Spec&, const Stage& codes, const uint8_t*, const Lane<S>& lane) {
    Item item;
#pragma unroll
    for (int w = 0; w < V; ++w) item.raw[w] = codes.get(lane, w);
    return item;
  }
  __device__ static Digest digest(const Item& item, const uint8_t* meta, int lane, uint32_t factor, uint32_t turn) {
    Digester d;
#pragma unroll
    for (int w = 0; w < V; ++w) {
#pragma unroll
      for (int i = 0; i < 2 * BYTES; ++i) d.add(item.raw[w].words[i], 2 * BYTES * w + i);
    }
    return d.template finish<kMeta>(meta, lane, factor, turn, 0);
  }
};

}  // namespace taco
