// The middle stage of a two-shot all-reduce: dequantise, add, scale, quantise. The transform is linear and the same on all
// ranks, so none is needed here.
#include "host.cuh"
#include "parts.cuh"
#include "presets.cuh"

namespace taco {
namespace {

// P: payload of the packets; Q: of the result.
template <class P, class Q, class S>
struct DecodeSumEncodeJob {
  static constexpr int V = S::V;
  // as measured on an H200 (README.md)
  static constexpr int kSteps = 4;
  using In = PartReader<P, S>;
  using Out = CodesStage<Q, V>;
  static constexpr int kAlign = alignment_of<S>(256 * V), kShared = In::kShared + kWarps * Out::kBytes;

  Spec spec;
  int rows;
  Form form;  // of the result
  const uint8_t* packets;
  int64_t row_stride, stride;
  int count;
  uint8_t* packet;
  Seeds seeds;
  uint32_t seed;

  TACO_HD DecodeSumEncodeJob at_row(int row) const {
    DecodeSumEncodeJob job = *this;
    job.packets += row * row_stride;
    job.packet += row * form.nbytes;
    job.seed = S::kGeneral && spec.stochastic ? seeds.of[row & (kMaxSeeds - 1)] : 0;
    return job;
  }

  // next(): the codes of packet after packet.
  template <class Next>
  TACO_HD Coded<V> sum(const Place<S>& at, Next next) const {
    typename S::Values v;
    add_part<P, S>(spec.form, next(), true, v);
    for (int r = 1; r < count; ++r) add_part<P, S>(spec.form, next(), false, v);
    return encode_sum<Q, S>(spec, form, v, at, seed);
  }

  __device__ __forceinline__ void run(uint32_t shared, const Lane<S>& lane, const Steps& steps) const {
    const uint8_t* const packets = keep(this->packets);
    uint8_t* const packet = keep(this->packet);
    const Out out(shared + In::kPlanes + lane.warp * Out::kBytes, lane);
    In in(spec, packets, stride, count, shared, shared + In::kPlanes + kWarps * Out::kBytes, lane, steps);
    for (int step = steps.first; step < steps.end; step += steps.stride) {
      const bool whole = step < steps.whole_groups;
      const Place<S> at = lane.at(step, whole && step < steps.whole_elements);
      const Coded<V> coded = sum(at, [&] { return in.next(at.group); });
      out.put(lane, coded);
      __syncwarp();
      out.write(lane, spec, form, packet, step, whole);
      if (lane.place.lane == 0 && (whole || at.group < spec.groups)) store_scales<S>(form, coded, at.group, packet);
    }
  }

  void run_group(const Place<S>& at) const {
    int r = 0;
    put_codes<Q, S>(form, sum(at, [&] { return get_codes<P, S>(spec.form, at, packets + r++ * stride); }), at, packet);
  }

  TACO_HD void finish() const { pad_sections<Q>(spec, form, packet); }
};

// body(Q{}) for a result of the packets' payload P, or for one of the pairs that two-level collectives use: INT8 within a
// node and fewer bits between nodes. Other pairs have no kernel: cudaErrorInvalidValue.
template <class P, class Body>
void with_target(P p, Payload target, Body body) {
  if constexpr (P::kLow == 8 && P::kMax == 127.0f) {
    if (target == Payload::kInt8) return body(p);
    if (target == Payload::kInt6) return body(Integer<6>{});
    if (target == Payload::kInt4) return body(Integer<4>{});
  } else {
    with_payload(target, [&](auto q) {
      if constexpr (std::is_same_v<decltype(q), P>) body(q);
    });
  }
}

}  // namespace

cudaError_t decode_sum_encode(const Spec& spec, const Form& form, const Target& target, const PacketRows& packets,
                              uint8_t* out, const Seeds& seeds) {
  cudaError_t status = cudaErrorInvalidValue;
  const int rows = int(packets.rows), count = int(packets.count);
  auto job = [&](auto p, auto q, auto s) {
    using Job = DecodeSumEncodeJob<decltype(p), decltype(q), decltype(s)>;
    return Job{spec, rows, form, packets.data, packets.row_stride, packets.stride, count, out, seeds, 0};
  };
  const bool same = form.payload == spec.form.payload && form.scale == spec.form.scale && form.adaptive == spec.form.adaptive;
  auto launch = [&](auto p, auto s) { status = run_on_gpu<decltype(s)>(job(p, p, s), target.stream); };
  if (same && target.cuda && spec.groups > 0 && rows > 0 && with_preset<4>(spec, launch)) return status;
  with_payload(spec.form.payload, [&](auto p) {
    with_target(p, form.payload, [&](auto q) { status = run(spec, rows, target, [&](auto s) { return job(p, q, s); }); });
  });
  return status;
}

}  // namespace taco
