// Decode and decode-sum: a single packet is a sum of one.
#include "launch.cuh"

namespace taco {
namespace {

template <int E, int LANES>
struct DecodeSumJob {
  Spec spec;
  const uint8_t* packets;
  int count;
  void* out;

  TACO_HD void operator()(int64_t group, int lane, bool live) const {
    float v[E] = {};
    if (live) sum_coefficients<E, LANES>(spec, v, group, lane, packets, count);
    unrotate<E, LANES>(spec, v, lane);
    if (live) store_values(spec, v, out, group * (E * LANES) + lane * E);
  }
};

}  // namespace

cudaError_t decode_sum(const Spec& spec, const Target& target, const uint8_t* packets, int count,
                       void* out) {
  return run<DecodeSumJob>(spec, target, packets, count, out);
}

}  // namespace taco
