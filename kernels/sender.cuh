// The warp of a pipeline that sends: packet after packet into the peers' workspaces, lane by lane one of them.
#pragma once

#include "room.cuh"

namespace taco {

template <class K, Collective C>
class Sender {
  using R = Room<K, C>;

 public:
  // failed: the pipeline's word.
  __device__ Sender(const Mesh& mesh, const Course& course, uint32_t shared, const uint32_t* failed)
      : mesh_(mesh), course_(course), shared_(shared), failed_(failed), lane_(int(threadIdx.x & 31)) {}

  __device__ void run() {
    for (Cursor c; c.left(course_); c.advance(mesh_, course_)) {
      barrier(c.full()).wait(c.parity());
      send(c);
      commit_bulk_stores();
      wait_bulk_reads();
      __syncwarp();
      if (lane_ == 0) barrier(c.free()).arrive();
    }
    if (lane_ == 0) mesh_.state[kHeader + course_.id] = course_.turn + uint32_t(course_.count);
  }

 private:
  // A place in the sequence of packets, which is that of the workers.
  struct Cursor {
    int at = 0, phase = 0, to = 1;  // to: of the peers, counted from this rank
    Ring<R::kSent> sent;
    Ring<R::kTotals ? R::kTotals : 1> totals;

    __device__ bool left(const Course& course) const { return at < course.count + (R::kSums ? kLag : 0); }
    __device__ int chunk() const { return at - phase * kLag; }
    __device__ void advance(const Mesh& mesh, const Course& course) {
      if (phase == 0) {
        sent.advance();
        if (R::kScatters && ++to < mesh.world) return;
        to = 1;
      } else {
        totals.advance();
      }
      do {
        at += R::kSums ? phase : 1;
        phase ^= R::kSums ? 1 : 0;
      } while (left(course) && (chunk() < 0 || chunk() >= course.count));
    }
    __device__ int slot() const { return phase ? totals.slot : sent.slot; }
    __device__ uint32_t parity() const { return phase ? totals.parity : sent.parity; }
    __device__ int buffer() const { return (phase ? R::kTotalsAt : R::kSentAt) + slot(); }
    __device__ int full() const { return (phase ? R::kTotalFull : R::kFull) + slot(); }
    __device__ int free() const { return (phase ? R::kTotalFree : R::kFree) + slot(); }
  };

  __device__ Barrier barrier(int number) const { return {shared_ + R::kBarriers + 8 * number}; }

  // To each peer that gets the packet, a lane each. After a wait that failed, here or before, to none: peers may not have used up
  // what it would overwrite.
  __device__ void send(const Cursor& c) const {
    if (*static_cast<const volatile uint32_t*>(failed_)) return;
    const uint32_t packet = shared_ + R::kBuffers + c.buffer() * R::kStride, digests = shared_ + R::kDigests + c.buffer() * kTrailer;
    const bool all = !R::kScatters || c.phase == 1;
    for (int k = lane_; k < (all ? mesh_.world - 1 : 1); k += 32) {
      const int owner = all ? k + (k >= mesh_.rank) : (mesh_.rank + c.to) % mesh_.world;
      const Inbox inbox(mesh_, owner, c.phase, course_.id);
      store_packet<K>(inbox.slot(course_.turn + uint32_t(c.chunk()), mesh_.rank - (mesh_.rank > owner)), packet, digests);
    }
  }

  const Mesh& mesh_;
  const Course& course_;
  const uint32_t shared_;
  const uint32_t* const failed_;
  const int lane_;
};

}  // namespace taco
