// Encode: one pass over the tensor, no second kernel for scales or padding.
#include "host.cuh"
#include "presets.cuh"

namespace taco {
namespace {

template <class P, int BYTES, class S>
struct EncodeJob {
  static constexpr int V = S::V;
  // as measured on an H200 (README.md)
  static constexpr int kSteps = S::SIZE == 0 ? 1 : 8;
  using In = TensorStage<V, BYTES>;
  using Out = CodesStage<P, V>;
  static constexpr int kAlign = alignment_of<S>(In::kBytes), kShared = kWarps * (In::kBytes + Out::kBytes);

  Spec spec;
  int rows;
  const uint8_t* x;
  uint8_t* packet;
  Seeds seeds;
  uint32_t seed;

  TACO_HD EncodeJob at_row(int row) const {
    EncodeJob job = *this;
    job.x += row * spec.numel * BYTES;
    job.packet += row * spec.form.nbytes;
    job.seed = S::kGeneral && spec.stochastic ? seeds.of[row & (kMaxSeeds - 1)] : 0;
    return job;
  }

  __device__ __forceinline__ void run(uint32_t shared, const Lane<S>& lane, const Steps& steps) const {
    const uint8_t* const x = keep(this->x);
    uint8_t* const packet = keep(this->packet);
    const In in(shared + lane.warp * In::kBytes, lane);
    const Out out(shared + kWarps * In::kBytes + lane.warp * Out::kBytes, lane);
    uint32_t signs[V];
#pragma unroll
    for (int w = 0; w < V; ++w) signs[w] = S::is_signed(spec) ? sign_byte(lane.place.vector(w), spec.rotation_size) : 0;
    int step = steps.first;
    in.request(lane, x, spec.numel, step, step < steps.whole_elements);
    commit_copies();
    while (step < steps.end) {
      wait_copies<0>();
      __syncwarp();
      typename S::Values v;
#pragma unroll
      for (int w = 0; w < V; ++w) {
        Vector<BYTES> raw = in.get(lane, w);
        if (S::is_signed(spec)) negate(raw, signs[w]);
        unpack(raw, S::dtype(spec), v + 8 * w);
      }
      __syncwarp();
      const int next = step + steps.stride;
      if (next < steps.end) in.request(lane, x, spec.numel, next, next < steps.whole_elements);
      commit_copies();
      const Coded<V> coded = encode_group<P, S>(spec, v, lane.at(step, step < steps.whole_elements), seed);
      out.put(lane, coded);
      __syncwarp();
      out.write(lane, spec, spec.form, packet, step, step < steps.whole_groups);
      const int64_t group = lane.group(step);
      if (lane.place.lane == 0 && (step < steps.whole_groups || group < spec.groups)) {
        store_scales<S>(spec.form, coded, group, packet);
      }
      step = next;
    }
  }

  void run_group(const Place<S>& at) const {
    typename S::Values v;
    for (int w = 0; w < V; ++w) {
      Vector<BYTES> raw = load_elements<BYTES>(x, 8 * at.vector(w), spec.numel);
      if (spec.signs) negate(raw, sign_byte(at.team.vector(w), spec.rotation_size));
      unpack(raw, spec.dtype, v + 8 * w);
    }
    put_codes<P, S>(spec.form, encode_group<P, S>(spec, v, at, seed), at, packet);
  }

  TACO_HD void finish() const { pad_sections<P>(spec, spec.form, packet); }
};

}  // namespace

cudaError_t encode(const Spec& spec, const Target& target, int rows, const void* x, uint8_t* packets, const Seeds& seeds) {
  cudaError_t status = cudaErrorInvalidValue;
  auto job = [&](auto p, auto bytes, auto s) {
    using Job = EncodeJob<decltype(p), decltype(bytes)::value, decltype(s)>;
    return Job{spec, rows, static_cast<const uint8_t*>(x), packets, seeds, 0};
  };
  auto launch = [&](auto p, auto s) { status = run_on_gpu<decltype(s)>(job(p, Bytes<2>{}, s), target.stream); };
  if (target.cuda && spec.groups > 0 && rows > 0 && with_preset<8>(spec, launch)) return status;
  with_payload(spec.form.payload, [&](auto p) {
    with_element_size(spec.dtype, [&](auto bytes) {
      status = run(spec, rows, target, [&](auto s) { return job(p, bytes, s); });
    });
  });
  return status;
}

}  // namespace taco
