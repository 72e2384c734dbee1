// The packets of a sum, read ahead: while a warp adds one, the next kAhead are on their way.
#pragma once

#include "launch.cuh"

namespace taco {

// Two cover the latency of memory where a packet is added in 150 instructions (H200).
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

  __device__ __forceinline__ PartReader(const Spec& spec, const uint8_t* packets, int64_t stride, int count, uint32_t planes,
                                        uint32_t words, const Lane<S>& lane, const Steps& steps)
      : spec_(spec), packets_(packets), stride_(stride), count_(count), lane_(lane), steps_(steps),
        stage_(planes + lane.warp * Stage::kBytes, lane), words_(keep(words + lane.warp * kWords + 4 * lane.team)),
        step_(steps.first) {
    const Form& form = spec.form;
    const int scale_bytes = bytes_of(S::scale(form));
    const int64_t group = lane.group(step_);
    low_ = stage_.low.unit(lane, packets + form.low, step_);
    if constexpr (Stage::kPairs) high_ = stage_.high.unit(lane, packets + form.high, step_);
    scale_ = packets + form.scales + (group * scale_bytes & ~int64_t(3));
    if (S::adaptive(form)) alpha_ = packets + form.alphas + 4 * group;
    // from the last packet of a step to the first of the next
    const int64_t back = (count - 1) * stride, vectors = int64_t(steps.stride) * kThreads * V;
    const int64_t groups = int64_t(steps.stride) * kWarps * lane.groups();
    next_low_ = vectors * P::kLow - back;
    next_high_ = vectors * P::kHigh - back;
    next_scale_ = groups * scale_bytes - back;
    next_alpha_ = groups * 4 - back;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      request();
      slot_ ^= 1;
    }
  }

  // The next item; group: the lane's. A lane whose group does not exist gets numbers of no meaning.
  __device__ __forceinline__ Coded<V> next(int64_t group) {
    wait_copies<kAhead - 1>();
    __syncwarp();
    Coded<V> coded;
    stage_.at(slot_ * kSlot).get(lane_, coded);
    coded.scale = scale_in_word(Word<4>::load(words_ + slot_ * (kWords / 2)).x, group, S::scale(spec_.form));
    coded.alpha = S::adaptive(spec_.form) ? float_of(Word<4>::load(words_ + slot_ * (kWords / 2) + 128).x) : 1.0f;
    __syncwarp();
    request();
    slot_ ^= 1;
    return coded;
  }

 private:
  static_assert(kAhead == 2, "slots are 0 and 1");
  static constexpr int kSlot = kWarps * Stage::kBytes;

  __device__ __forceinline__ void request() {
    if (step_ < steps_.end) {
      const Stage stage = stage_.at(slot_ * kSlot);
      const uint32_t words = words_ + slot_ * (kWords / 2);
      if (step_ < steps_.whole_groups) {
        stage.low.buffer.request(low_);
        if constexpr (Stage::kPairs) stage.high.buffer.request(high_);
      } else {
        stage.request_some(lane_, spec_, packets_ + part_ * stride_, step_);
      }
      if (lane_.place.lane == 0 && (step_ < steps_.whole_groups || lane_.group(step_) < spec_.groups)) {
        copy_async_4(words, scale_);
        if (S::adaptive(spec_.form)) copy_async_4(words + 128, alpha_);
      }
      const bool last = ++part_ == count_;
      low_ += last ? next_low_ : stride_;
      if constexpr (Stage::kPairs) high_ += last ? next_high_ : stride_;
      scale_ += last ? next_scale_ : stride_;
      if (S::adaptive(spec_.form)) alpha_ += last ? next_alpha_ : stride_;
      part_ = last ? 0 : part_;
      step_ += last ? steps_.stride : 0;
    }
    commit_copies();
  }

  const Spec& spec_;
  const uint8_t* packets_;
  int64_t stride_;  // of packets, bytes
  int count_;
  const Lane<S>& lane_;
  const Steps& steps_;
  const Stage stage_;
  const uint32_t words_;
  // of the next item to request
  int slot_ = 0, part_ = 0, step_;
  const uint8_t *low_, *high_, *scale_, *alpha_;  // of the lane
  int64_t next_low_, next_high_, next_scale_, next_alpha_;
};

}  // namespace taco
