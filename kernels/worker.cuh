// A warp of a pipeline that computes: tile `warp` of every chunk.
#pragma once

#include "room.cuh"

namespace taco {

template <class K, Collective C>
class Worker {
  using R = Room<K, C>;
  using S = typename K::S;
  static constexpr int V = K::V;
  using Values = typename S::Values;

 public:
  // shared, generic: the pipeline's shared memory in both kinds of addresses.
  __device__ Worker(const Mesh& mesh, const Message& message, const Course& course, uint32_t shared, uint8_t* generic,
                    const Lane<S>& lane)
      : mesh_(mesh), message_(message), course_(course), lane_(lane), spec_(message.spec),
        in_(shared + R::kIn + lane.warp * K::Tensor::kBytes, lane), out_(shared + R::kOut + lane.warp * K::Tensor::kBytes, lane),
        codes_(shared + R::kBuffers + lane.warp * K::kTile, lane),
        meta_(generic + R::kBuffers + kWarps * K::kTile + lane.warp * K::kMeta), shared_(shared), failed_(reinterpret_cast<uint32_t*>(generic + R::kFailed)),
        own_numel_(part_numel(R::kScatters ? mesh.rank : 0)), factor_(Digester::lane_factor(lane.lane)) {
#pragma unroll
    for (int w = 0; w < V; ++w) signs_[w] = S::is_signed(spec_) ? sign_byte(lane.place.vector(w), spec_.rotation_size) : 0;
  }

  __device__ void run() {
    request_part(0, 0);
    for (int i = 0; i < course_.count + (R::kSums ? 2 * kLag : kLag); ++i) {
      if (i < course_.count) encode(i);
      if constexpr (C == Collective::kAllGather) {
        if (i >= kLag) gather(i - kLag, R::kOwnAt);
      } else {
        if (i >= kLag && i - kLag < course_.count) reduce(i - kLag);
        if constexpr (R::kSums) {
          if (i >= 2 * kLag) gather(i - 2 * kLag, R::kTotalsAt);
        }
      }
    }
  }

 private:
  __device__ int parts() const { return R::kScatters ? mesh_.world : 1; }
  // The k-th part to be encoded in a turn: those of the others first, the own last.
  __device__ int part_of(int k) const { return R::kScatters ? (mesh_.rank + 1 + k) % mesh_.world : 0; }
  __device__ int64_t part_numel(int part) const {
    const int64_t left = message_.total - part * message_.part;
    return left < 0 ? 0 : (left < message_.part ? left : message_.part);
  }
  // Chunks whose elements all exist; 0 where 16-byte accesses do not work.
  __device__ static int whole_chunks(int64_t numel, bool aligned = true) {
    return aligned ? int(uint64_t(numel) / (kWarps * 256 * V)) : 0;
  }
  __device__ uint32_t seed_of(int packet) const { return message_.seeds.of[packet & (kMaxSeeds - 1)]; }
  __device__ uint32_t turn(int i) const { return course_.turn + uint32_t(i); }
  __device__ Barrier barrier(int number) const { return {shared_ + R::kBarriers + 8 * number}; }

  // The elements of part k of turn i, or of what comes after it.
  __device__ void request_part(int i, int k) {
    if (k == parts()) k = 0, ++i;
    if (i < course_.count) {
      const int part = part_of(k), chunk = course_.chunk(i);
      const int64_t numel = R::kScatters ? part_numel(part) : own_numel_;
      const uint8_t* first = message_.x + part * message_.part * K::kElement;
      in_.request(lane_, first, numel, chunk, chunk < whole_chunks(numel, message_.in_aligned));
    }
    commit_copies();
  }

  __device__ void encode(int i) {
#pragma unroll 1
    for (int k = 0; k < parts(); ++k) {
      wait_copies<0>();
      __syncwarp();
      typename K::Loaded v;
      K::load(spec_, in_, lane_, signs_, v);
      __syncwarp();
      request_part(i, k + 1);
      const int part = part_of(k), chunk = course_.chunk(i);
      Spec spec = spec_;
      spec.numel = R::kScatters ? part_numel(part) : own_numel_;
      const auto item = K::encode(spec, v, lane_.at(chunk, chunk < whole_chunks(spec.numel)), seed_of(part));
      if (R::kScatters && k == parts() - 1) {
        put(R::kOwnAt + own_.slot, item);
        own_.advance();
      } else {
        hand_over(item, turn(i), R::kSentAt, sent_, R::kFull, R::kFree);
      }
    }
  }

  // Into a buffer that the sender empties.
  template <int SIZE>
  __device__ void hand_over(const typename K::Item& item, uint32_t turn, int buffers, Ring<SIZE>& ring, int full, int free) {
    const int buffer = buffers + ring.slot;
    barrier(free + ring.slot).wait(ring.parity ^ 1);
    put(buffer, item);
    const Digest digest = digest_of(item, buffer, turn);
    if (lane_.lane == 0) digest.store(digest_at(buffer));
    publish_shared();
    __syncwarp();
    if (lane_.lane == 0) barrier(full + ring.slot).arrive();
    ring.advance();
  }

  __device__ void put(int buffer, const typename K::Item& item) const {
    K::put(spec_, codes_.at(buffer * R::kStride), meta_ + buffer * R::kStride, lane_, item);
    __syncwarp();
  }

  __device__ typename K::Item get(int buffer) const {
    return K::get(spec_, codes_.at(buffer * R::kStride), meta_ + buffer * R::kStride, lane_);
  }
  __device__ uint32_t digest_at(int buffer) const {
    return shared_ + R::kDigests + buffer * kTrailer + lane_.warp * Digest::kBytes;
  }
  __device__ Digest digest_of(const typename K::Item& item, int buffer, uint32_t turn) const {
    return K::digest(item, meta_ + buffer * R::kStride, lane_.lane, factor_, turn);
  }

  // The packet of `source` of turn i, sources in order; ok: whether it has come. own: the buffer of this rank's.
  __device__ typename K::Item take(int source, int i, int own, bool& ok) {
    ok = true;
    if (source == mesh_.rank) {
      const auto item = get(own);
      __syncwarp();
      return item;
    }
    const int slot = incoming_.slot, buffer = R::kIncomingAt + slot;
    barrier(R::kArrived + slot).wait(incoming_.parity);
    ok = __all_sync(0xffffffffu, *static_cast<const volatile uint32_t*>(failed_) == 0);
    typename K::Item item;
#pragma unroll 1
    for (;;) {
      item = get(buffer);
      if (__builtin_expect(digest_of(item, buffer, turn(i)) == Digest::load(digest_at(buffer)) || !ok, 1)) break;
      ok = fetch_again(buffer, slot);
    }
    barrier(R::kConsumed + slot).arrive();
    incoming_.advance();
    return item;
  }

  // Where a trailer was faster than the rest: the warp's tile once more. False when the peer has had its time. What it needs lies in
  // shared memory, and `keep` computes here what would take registers elsewhere.
  __device__ bool fetch_again(int buffer, int slot) {
    const int lane = int(keep(threadIdx.x & 31)), warp = int(keep(threadIdx.x >> 5)) % kWarps;
    const uint32_t base = keep(shared_) + R::kBuffers + buffer * R::kStride;
    Origin* const origin = R::origins(keep(failed_)) + slot;
    const uint8_t *const codes = origin->slot.packet + warp * K::kCodes,
                  *const meta = origin->slot.packet + kWarps * K::kCodes + warp * K::kMeta;
    __syncwarp();
    copy_now<K::kCodes>(base + warp * K::kTile, codes, lane);
    copy_now<K::kMeta>(base + kWarps * K::kTile + warp * K::kMeta, meta, lane);
    copy_now<Digest::kBytes>(keep(digest_at(buffer)), origin->slot.trailer + warp * Digest::kBytes, lane);
    publish_shared();  // the copy engine will write there again
    bool late = false;
    if (lane == 0) {
      atomicAdd(mesh_.state + kRepeats, 1u);
      uint64_t& since = origin->since[warp];
      if (since == 0) since = nanoseconds();
      late = int64_t(nanoseconds() - since) > mesh_.timeout || *static_cast<volatile uint32_t*>(mesh_.state + kBroken);
      if (late) {
        give_up(mesh_, int(C), origin->source, origin->phase, failed_[1]);
        *static_cast<volatile uint32_t*>(failed_) = 1;
      }
    }
    late = __any_sync(0xffffffffu, late);
    __syncwarp();
    return !late;
  }

  __device__ void reduce(int i) {
    const int own = R::kOwnAt + kept_.slot, chunk = course_.chunk(i);
    Values sum;
#pragma unroll
    for (int e = 0; e < 8 * V; ++e) sum[e] = -0.0f;  // plus x is x, whatever x is
#pragma unroll 1
    for (int r = 0; r < mesh_.world; ++r) {
      bool ok;
      const auto item = take(r, i, own, ok);
      K::add(spec_, item, ok, sum);
    }
    kept_.advance();
    const Place<S> at = lane_.at(chunk, chunk < whole_chunks(own_numel_));
    if constexpr (R::kSums) {
      Spec spec = spec_;
      spec.numel = own_numel_;
      hand_over(K::encode_sum(spec, sum, at, seed_of(mesh_.world)), turn(i), R::kTotalsAt, totals_, R::kTotalFull, R::kTotalFree);
    } else {
      K::finish(spec_, sum, at);
      write(sum, 0, own_numel_, chunk);
    }
  }

  // first: the ring of the own packets.
  __device__ void gather(int i, int first) {
    const int own = first + gathered_.slot, chunk = course_.chunk(i);
#pragma unroll 1
    for (int r = 0; r < mesh_.world; ++r) {
      Values v;
      bool ok;
      const auto item = take(r, i, own, ok);
      K::decode(spec_, item, ok, v, lane_.at(chunk, false));
      write(v, r * message_.part, part_numel(r), chunk);
    }
    gathered_.advance();
  }

  // first: element of the result where the part of `numel` elements begins.
  __device__ void write(const Values& v, int64_t first, int64_t numel, int chunk) {
    K::store(spec_, out_, lane_, signs_, v);
    __syncwarp();
    out_.write(lane_, message_.out + first * K::kElement, numel, chunk, chunk < whole_chunks(numel, message_.out_aligned));
    __syncwarp();
  }

  const Mesh& mesh_;
  const Message& message_;
  const Course& course_;
  const Lane<S>& lane_;
  const Spec& spec_;
  const typename K::Tensor in_, out_;
  const typename K::Stage codes_;  // the warp's tile in buffer 0
  uint8_t* const meta_;
  const uint32_t shared_;
  uint32_t* const failed_;
  const int64_t own_numel_;  // elements of the part that this rank sums, or gives
  const uint32_t factor_;
  uint32_t signs_[V];
  Ring<R::kSent> sent_;
  Ring<R::kOwn> own_, kept_;
  Ring<R::kTotals ? R::kTotals : R::kOwn> gathered_;
  Ring<R::kTotals ? R::kTotals : 1> totals_;
  Ring<kIncoming> incoming_;
};

}  // namespace taco
