// The packets of a sum, read ahead: while a warp adds one, the next kAhead are on their way.
#pragma once

#include "launch.cuh"

namespace taco {

constexpr int kAhead = 2;

// The items of a warp: packets 0 .. count - 1 of step after step. Scales and alphas come in the aligned words that hold
// them, one a team.
template <class P, class S>
class PartReader {
 public:
  static constexpr int V = S::V;
  using Stage = CodesStage<P, V>;
  static constexpr int kWords = 512;  // bytes of a warp's scales and alphas, of all its slots
  static constexpr int kPlanes = kWarps * kAhead * Stage::kBytes;  // bytes of a block's codes
  static constexpr int kShared = kPlanes + kWarps * kWords;

  __device__ __forceinline__ PartReader(const Spec& spec, const uint8_t* packets, int64_t stride, int count, uint32_t planes, uint32_t words,
                                        const Lane<S>& lane, const Steps& steps)
      : spec_(spec), packets_(packets), stride_(stride), count_(count), lane_(lane), steps_(steps),
        stages_{Stage(planes + lane.warp * Stage::kBytes, lane)},
        words_(keep(words + lane.warp * kWords + 4 * lane.team)), step_(steps.first), packet_(packets) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      request(slot_);
      slot_ ^= 1;
    }
  }

  // The next item; group: the lane's, or the message's last one where there is none.
  __device__ __forceinline__ Coded<V> next(int64_t group) {
    wait_copies<kAhead - 1>();
    __syncwarp();
    Coded<V> coded;
    stage(slot_).get(lane_, coded);
    coded.scale = scale_in_word(Word<4>::load(words_ + slot_ * (kWords / 2)).x, group, S::scale(spec_.form));
    coded.alpha = S::adaptive(spec_.form) ? float_of(Word<4>::load(words_ + slot_ * (kWords / 2) + 128).x) : 1.0f;
    __syncwarp();
    request(slot_);
    slot_ ^= 1;
    return coded;
  }

 private:
  static_assert(kAhead == 2, "slots are 0 and 1");

  __device__ __forceinline__ Stage stage(int slot) const {
    Stage s = stages_;
    int by = slot * (kWarps * Stage::kBytes);
    s.low.buffer.base += by, s.low.buffer.copied += by, s.low.buffer.mine += by;
    s.high.buffer.base += by, s.high.buffer.copied += by, s.high.buffer.mine += by;
    return s;
  }

  __device__ __forceinline__ void request(int slot) {
    if (step_ < steps_.end) {
      stage(slot).request(lane_, spec_, packet_, step_, step_ < steps_.whole_groups);
      const int64_t group = lane_.group(step_);
      if (lane_.place.lane == 0 && (step_ < steps_.whole_groups || group < spec_.groups)) {
        const uint32_t words = words_ + slot * (kWords / 2);
        const int64_t at = group * bytes_of(S::scale(spec_.form));
        copy_async_4(words, packet_ + spec_.form.scales + (at & ~int64_t(3)));
        if (S::adaptive(spec_.form)) copy_async_4(words + 128, packet_ + spec_.form.alphas + 4 * group);
      }
      packet_ += stride_;
      if (++part_ == count_) {
        part_ = 0;
        packet_ = packets_;
        step_ += steps_.stride;
      }
    }
    commit_copies();
  }

  const Spec& spec_;
  const uint8_t* packets_;
  int64_t stride_;  // of packets, bytes
  int count_;
  const Lane<S>& lane_;
  const Steps& steps_;
  Stage stages_;
  uint32_t words_;
  int slot_ = 0, part_ = 0, step_;  // of the next item to request
  const uint8_t* packet_;
};

}  // namespace taco
