// Decode and decode-sum. Packets that are added are scaled first and transformed once, because the transform is linear.
#include "host.cuh"
#include "parts.cuh"
#include "presets.cuh"

namespace taco {
namespace {

// SINGLE: one packet, the sum of which is itself.
template <class P, int BYTES, class S, bool SINGLE>
struct DecodeSumJob {
  static constexpr int V = S::V;
  // as measured on an H200 (README.md)
  static constexpr int kSteps = 2;
  using In = PartReader<P, S>;
  using Out = TensorStage<V, BYTES>;
  static constexpr int kAlign = alignment_of<S>(Out::kBytes), kShared = kWarps * Out::kBytes + In::kShared;

  Spec spec;
  int rows;
  const uint8_t* packets;
  int64_t row_stride, stride;
  int count;
  uint8_t* out;

  TACO_HD DecodeSumJob at_row(int row) const {
    DecodeSumJob job = *this;
    job.packets += row * row_stride;
    job.out += row * spec.numel * BYTES;
    return job;
  }

  // next(): the codes of packet after packet.
  template <class Next>
  TACO_HD void sum(typename S::Values& v, const Place<S>& at, Next next) const {
    if constexpr (SINGLE) {
      decode_group<P, S>(spec, next(), v, at);
    } else {
      add_part<P, S>(spec.form, next(), true, v);
      for (int r = 1; r < count; ++r) add_part<P, S>(spec.form, next(), false, v);
      int size = S::rotation_size(spec);
      if (size > 1) {
        butterflies<V>(v, at.team, size);
#pragma unroll
        for (int i = 0; i < 8 * V; ++i) v[i] = mul(v[i], S::factor(spec));
      }
    }
  }

  __device__ __forceinline__ void run(uint32_t shared, const Lane<S>& lane, const Steps& steps) const {
    const uint8_t* const packets = keep(this->packets);
    uint8_t* const out = keep(this->out);
    const Out stage(shared + lane.warp * Out::kBytes, lane);
    uint32_t signs[V];
#pragma unroll
    for (int w = 0; w < V; ++w) signs[w] = S::is_signed(spec) ? sign_byte(lane.place.vector(w), spec.rotation_size) : 0;
    In in(spec, packets, stride, SINGLE ? 1 : count, shared + kWarps * Out::kBytes,
          shared + kWarps * Out::kBytes + In::kPlanes, lane, steps);
    for (int step = steps.first; step < steps.end; step += steps.stride) {
      typename S::Values v;
      const Place<S> at = lane.at(step, false);
      sum(v, at, [&] { return in.next(at.group); });
#pragma unroll
      for (int w = 0; w < V; ++w) {
        Vector<BYTES> raw = pack<BYTES>(v + 8 * w, S::dtype(spec));
        if (S::is_signed(spec)) negate(raw, signs[w]);
        stage.put(lane, w, raw);
      }
      __syncwarp();
      stage.write(lane, out, spec.numel, step, step < steps.whole_elements);
    }
  }

  void run_group(const Place<S>& at) const {
    typename S::Values v;
    int r = 0;
    sum(v, at, [&] { return get_codes<P, S>(spec.form, at, packets + r++ * stride); });
    for (int w = 0; w < V; ++w) {
      Vector<BYTES> raw = pack<BYTES>(v + 8 * w, spec.dtype);
      if (spec.signs) negate(raw, sign_byte(at.team.vector(w), spec.rotation_size));
      store_elements(raw, out, 8 * at.vector(w), spec.numel);
    }
  }

  TACO_HD void finish() const {}
};

template <bool SINGLE>
cudaError_t decode_packets(const Spec& spec, const Target& target, const PacketRows& packets, void* out) {
  cudaError_t status = cudaErrorInvalidValue;
  auto job = [&](auto p, auto bytes, auto s) {
    using Job = DecodeSumJob<decltype(p), decltype(bytes)::value, decltype(s), SINGLE>;
    return Job{spec, int(packets.rows), packets.data, packets.row_stride, packets.stride, int(packets.count),
               static_cast<uint8_t*>(out)};
  };
  auto launch = [&](auto p, auto s) { status = run_on_gpu<decltype(s)>(job(p, Bytes<2>{}, s), target.stream); };
  if (target.cuda && spec.groups > 0 && packets.rows > 0 && with_preset<SINGLE ? 8 : 4>(spec, launch)) return status;
  with_payload(spec.form.payload, [&](auto p) {
    with_element_size(spec.dtype, [&](auto bytes) {
      status = run(spec, int(packets.rows), target, [&](auto s) { return job(p, bytes, s); });
    });
  });
  return status;
}

}  // namespace

cudaError_t decode_sum(const Spec& spec, const Target& target, const PacketRows& packets, void* out) {
  return packets.count == 1 ? decode_packets<true>(spec, target, packets, out)
                            : decode_packets<false>(spec, target, packets, out);
}

}  // namespace taco
