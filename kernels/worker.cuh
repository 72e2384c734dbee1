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
        meta_(generic + R::kBuffers + kWarps * K::kTile + lane.warp * K::kMeta), barriers_(shared + R::kBarriers),
        failed_(reinterpret_cast<uint32_t*>(generic + R::kFailed)), own_numel_(part_numel(R::kScatters ? mesh.rank : 0)) {
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
  __device__ Barrier barrier(int number) const { return {barriers_ + 8 * number}; }

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
        hand_over(item, R::kSentAt, sent_, R::kFull, R::kFree);
      }
    }
  }

  // Into a buffer that the sender empties.
  template <int SIZE>
  __device__ void hand_over(const typename K::Item& item, int buffers, Ring<SIZE>& ring, int full, int free) {
    barrier(free + ring.slot).wait(ring.parity ^ 1);
    put(buffers + ring.slot, item);
    publish_shared();
    __syncwarp();
    if (lane_.lane == 0) barrier(full + ring.slot).arrive();
    ring.advance();
  }

  __device__ void put(int buffer, const typename K::Item& item) const {
    K::put(spec_, codes_.at(buffer * R::kStride), meta_ + buffer * R::kStride, lane_, item);
    __syncwarp();
  }

  // The packet of `source`, sources in order; ok: whether it has come. own: the buffer of this rank's.
  __device__ typename K::Item take(int source, int own, bool& ok) {
    const bool comes = source != mesh_.rank;
    const int slot = incoming_.slot;
    ok = true;
    if (comes) {
      barrier(R::kArrived + slot).wait(incoming_.parity);
      ok = *failed_ == 0;
    }
    const int buffer = comes ? R::kIncomingAt + slot : own;
    const auto item = K::get(spec_, codes_.at(buffer * R::kStride), meta_ + buffer * R::kStride, lane_);
    __syncwarp();
    if (comes) {
      if (lane_.lane == 0) barrier(R::kConsumed + slot).arrive();
      incoming_.advance();
    }
    return item;
  }

  __device__ void reduce(int i) {
    const int own = R::kOwnAt + kept_.slot, chunk = course_.chunk(i);
    Values sum;
#pragma unroll
    for (int e = 0; e < 8 * V; ++e) sum[e] = -0.0f;  // plus x is x, whatever x is
#pragma unroll 1
    for (int r = 0; r < mesh_.world; ++r) {
      bool ok;
      const auto item = take(r, own, ok);
      K::add(spec_, item, ok, sum);
    }
    kept_.advance();
    const Place<S> at = lane_.at(chunk, chunk < whole_chunks(own_numel_));
    if constexpr (R::kSums) {
      Spec spec = spec_;
      spec.numel = own_numel_;
      hand_over(K::encode_sum(spec, sum, at, seed_of(mesh_.world)), R::kTotalsAt, totals_, R::kTotalFull, R::kTotalFree);
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
      const auto item = take(r, own, ok);
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
  const uint32_t barriers_;
  const volatile uint32_t* const failed_;
  const int64_t own_numel_;  // elements of the part that this rank sums, or gives
  uint32_t signs_[V];
  Ring<R::kSent> sent_;
  Ring<R::kOwn> own_, kept_;
  Ring<R::kTotals ? R::kTotals : R::kOwn> gathered_;
  Ring<R::kTotals ? R::kTotals : 1> totals_;
  Ring<kIncoming> incoming_;
};

}  // namespace taco
