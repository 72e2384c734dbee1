// The warp of a block that receives: lane p brings the packets of pipeline p into shared memory, in the order in which its workers
// take them up, and gives up on a peer that sends nothing for too long.
#pragma once

#include "room.cuh"

namespace taco {

template <class K, Collective C>
class Receiver {
  using R = Room<K, C>;

 public:
  // shared: of the lane's pipeline; failed: its two words (kFailed, kCall) in generic addresses.
  __device__ Receiver(const Mesh& mesh, const Course& course, uint32_t shared, uint32_t* failed)
      : mesh_(mesh), course_(course), inbox_(mesh, mesh.rank, 0, course.id), shared_(shared), failed_(failed),
        origins_(R::origins(failed)) {
    if (R::kSums) skip();
  }

  __device__ void run(bool mine) {
    bool left = mine && at_ < end();
    while (__any_sync(0xffffffffu, left)) {
      const bool done = left && receive();
      if (done) left = advance();
      // workers need the issue slots, and a look into the host's memory crosses PCIe
      if (!__any_sync(0xffffffffu, done)) __nanosleep(mesh_.pause);
    }
    if (mine && course_.id == 0) ++mesh_.state[kCalls];
  }

 private:
  __device__ int end() const { return course_.count + (R::kSums ? 2 * kLag : 0); }
  // Of the pipeline's, whose packet comes next.
  __device__ int chunk() const { return R::kSums ? at_ - (phase_ + 1) * kLag : at_; }
  __device__ Barrier barrier(int number) const { return {shared_ + R::kBarriers + 8 * number}; }
  __device__ bool free() const { return barrier(R::kConsumed + ring_.slot).test(ring_.parity ^ 1); }

  // The next packet, if it is there and there is room for it.
  __device__ bool receive() {
    const uint32_t turn = course_.turn + uint32_t(chunk());
    Slot slot = inbox_.slot(turn, source_);
    const int64_t offset = phase_ ? int64_t(mesh_.pipelines) * kSlots * inbox_.sources * mesh_.slot : 0;
    slot.packet += offset, slot.trailer += offset;
    if (!seen_ && !look(slot, turn)) return false;
    if (!free()) return false;
    bring(slot, *failed_ == 0);
    return true;
  }

  // Whether the packet's trailer is there, or its time is over.
  __device__ bool look(const Slot& slot, uint32_t turn) {
    const uint32_t high = load_relaxed(reinterpret_cast<const uint32_t*>(slot.trailer) + 1);
    if ((high & 0xff000000u) == Digest::tag(turn)) return seen_ = true;
    if (late()) *failed_ = 1;
    return *failed_;
  }

  // A packet, or the word that it has not come.
  __device__ void bring(const Slot& slot, bool ok) {
    const Barrier arrived = barrier(R::kArrived + ring_.slot);
    if (ok) {
      const int buffer = R::kIncomingAt + ring_.slot;
      origins_[ring_.slot] = {slot, source_, phase_, {}};
      publish_global();
      arrived.arrive_and_expect(R::kPacket);
      load_packet<K>(shared_ + R::kBuffers + buffer * R::kStride, shared_ + R::kDigests + buffer * kTrailer, slot, arrived);
    } else {
      arrived.arrive();
    }
    ring_.advance();
    polls_ = 0;
    seen_ = false;
  }

  __device__ bool advance() {
    if (++source_ == inbox_.sources) {
      source_ = 0;
      if (R::kSums) {
        next();
        skip();
      } else {
        ++at_;
      }
    }
    return at_ < end();
  }
  __device__ void next() {
    at_ += phase_;
    phase_ ^= 1;
  }
  // Over turns in which nothing of a phase is due.
  __device__ void skip() {
    while (at_ < end() && (chunk() < 0 || chunk() >= course_.count)) next();
  }

  // Whether the peer has had more than its time, or another wait has failed before.
  __device__ bool late() {
    if (*failed_) return true;
    if (++polls_ % 64) return false;
    if (polls_ == 64) since_ = nanoseconds();
    if (*static_cast<volatile uint32_t*>(mesh_.state + kBroken)) return true;
    if (int64_t(nanoseconds() - since_) < mesh_.timeout) return false;
    give_up(mesh_, int(C), source_, phase_, failed_[1]);
    return true;
  }

  const Mesh& mesh_;
  const Course& course_;
  const Inbox inbox_;
  const uint32_t shared_;
  volatile uint32_t* const failed_;
  Origin* const origins_;
  Ring<kIncoming> ring_;
  int at_ = 0, phase_ = 0, source_ = 0;
  uint32_t polls_ = 0;
  bool seen_ = false;  // the next packet's trailer
  uint64_t since_ = 0;
};

}  // namespace taco
