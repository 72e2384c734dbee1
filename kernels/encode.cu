// Encode: one pass over the tensor, no shared memory, no second kernel for scales or padding.
#include "launch.cuh"

namespace taco {
namespace {

template <int E, int LANES>
struct EncodeJob {
  Spec spec;
  const void* x;
  uint8_t* packet;

  TACO_HD void operator()(int64_t group, int lane, bool live) const {
    float v[E];
    load_values(spec, v, x, group * (E * LANES) + lane * E);
    encode_group<E, LANES>(spec, v, group, lane, live, packet);
    if (group == 0 && lane == 0) pad_sections(spec, packet);
  }
};

}  // namespace

cudaError_t encode(const Spec& spec, const Target& target, const void* x, uint8_t* packet) {
  return run<EncodeJob>(spec, target, x, packet);
}

}  // namespace taco
