// The middle stage of a two-shot all-reduce: dequantise, add, scale, quantise. The transform is linear and the same
// on all ranks, so none is needed here.
#include "launch.cuh"

namespace taco {
namespace {

template <int E, int LANES>
struct DecodeSumEncodeJob {
  Spec spec;
  const uint8_t* packets;
  int count;
  uint8_t* packet;

  TACO_HD void operator()(int64_t group, int lane, bool live) const {
    float v[E] = {};
    if (live) sum_coefficients<E, LANES>(spec, v, group, lane, packets, count);
    float alpha = apply_alpha<E, LANES>(spec, v, group);
    quantise_group<E, LANES>(spec, v, alpha, group, lane, live, packet);
    if (group == 0 && lane == 0) pad_sections(spec, packet);
  }
};

}  // namespace

cudaError_t decode_sum_encode(const Spec& spec, const Target& target, const uint8_t* packets,
                              int count, uint8_t* packet) {
  return run<DecodeSumEncodeJob>(spec, target, packets, count, packet);
}

}  // namespace taco
