// Fused collectives without a codec.
#include "collective.cuh"

namespace taco {

cudaError_t collective_plain(Collective collective, const Mesh& mesh, const Message& message, int sms, cudaStream_t stream) {
  cudaError_t status = cudaErrorInvalidValue;
  with_element_size(message.spec.dtype, [&](auto bytes) {
    status = launch<Plain<decltype(bytes)::value>>(collective, mesh, message, sms, stream);
  });
  return status;
}

static_assert(Plain<2>::kTile == Plain<4>::kTile, "one slot for both");

// Kernels learn a codec at run time and keep room for the scales of groups of 32 in fp32, and as many alphas.
int64_t collective_slot(const Spec& spec, bool plain) {
  if (plain) return kWarps * Plain<2>::kTile + kTrailer;
  const int vectors = spec.group > 1024 ? 8 : 4;
  int64_t bytes = 0;
  with_payload(spec.form.payload, [&](auto p) { bytes = 32 * vectors * (decltype(p)::kLow + decltype(p)::kHigh); });
  return kWarps * (bytes + 256) + kTrailer;
}

int64_t collective_packet(const Spec& spec, bool plain) {
  int64_t bytes = plain ? 0 : collective_packet_of_preset(spec);
  if (plain) {
    with_element_size(spec.dtype, [&](auto size) { bytes = packet_bytes<Plain<decltype(size)::value>>(); });
  } else if (bytes == 0) {
    // kernels of other dtypes differ only in how elements are read
    with_payload(spec.form.payload, [&](auto p) {
      using P = decltype(p);
      bytes = spec.group <= 1024 ? packet_bytes<Coding<P, General<4, 0>, 2>>() : packet_bytes<Coding<P, General<8, 0>, 2>>();
    });
  }
  return bytes;
}

}  // namespace taco
