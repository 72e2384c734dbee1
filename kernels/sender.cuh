// The warp of a pipeline that sends: packet after packet into the peers' workspaces, lane by lane one of them.
#pragma once

#include "room.cuh"

namespace taco {

// Packets under way at once. A flag is raised when its packet is written and a fence has passed, which takes as long again, because
// it waits for what the whole SM has under way; the link must wait for neither. So flags share fences.
constexpr int kUnderWay = 4;

template <class K, Collective C>
class Sender {
  using R = Room<K, C>;

 public:
  // failed: the pipeline's word.
  __device__ Sender(const Mesh& mesh, const Course& course, uint32_t shared, const uint32_t* failed)
      : mesh_(mesh), course_(course), shared_(shared), failed_(failed), lane_(int(threadIdx.x & 31)) {}

  __device__ void run() {
    Cursor first, last;  // of the packets under way: the next to be flagged, the next to set out
    int ahead = 0;
    while (first.left(course_)) {
      while (last.left(course_) && ahead < kUnderWay && (ahead == 0 ? wait(last) : here(last))) {
        copy(last);
        last.advance(mesh_, course_);
        ++ahead;
      }
      // for all, or for all but the newest where more are to come
      const bool some = ahead > 1 && last.left(course_);
      if (some) {
        wait_bulk_stores<1>();
      } else {
        wait_bulk_stores<0>();
      }
      fence_system();
      for (; ahead > int(some); --ahead) {
        raise(first);
        first.advance(mesh_, course_);
      }
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
  __device__ bool wait(const Cursor& c) const {
    barrier(c.full()).wait(c.parity());
    return true;
  }
  __device__ bool here(const Cursor& c) const { return __all_sync(0xffffffffu, barrier(c.full()).test(c.parity())) != 0; }

  // body(inbox, place) for each peer of the lane that gets the packet. After a wait that failed, here or before, for none: peers may
  // not have used up what it would overwrite.
  template <class Body>
  __device__ void each(const Cursor& c, Body body) const {
    if (*static_cast<const volatile uint32_t*>(failed_)) return;
    const bool all = !R::kScatters || c.phase == 1;
    for (int k = lane_; k < (all ? mesh_.world - 1 : 1); k += 32) {
      const int owner = all ? k + (k >= mesh_.rank) : (mesh_.rank + c.to) % mesh_.world;
      const Inbox inbox(mesh_, owner, c.phase, course_.id);
      body(inbox, inbox.place(turn(c), mesh_.rank - (mesh_.rank > owner)));
    }
  }
  __device__ uint32_t turn(const Cursor& c) const { return course_.turn + uint32_t(c.chunk()); }

  __device__ void copy(const Cursor& c) const {
    const uint32_t packet = shared_ + R::kBuffers + c.buffer() * R::kStride;
    each(c, [&](const Inbox& inbox, int place) { store_packet<K>(inbox.packet(place), packet); });
    commit_bulk_stores();
  }
  __device__ void raise(const Cursor& c) const {
    each(c, [&](const Inbox& inbox, int place) { store_relaxed(inbox.flag(place), turn(c) + 1); });
    __syncwarp();
    if (lane_ == 0) barrier(c.free()).arrive();
  }

  const Mesh& mesh_;
  const Course& course_;
  const uint32_t shared_;
  const uint32_t* const failed_;
  const int lane_;
};

}  // namespace taco
