// Fused collectives of the presets on bf16.
#include "collective.cuh"
#include "presets.cuh"

namespace taco {

cudaError_t collective_preset(Collective collective, const Mesh& mesh, const Message& message, int sms, cudaStream_t stream,
                              bool* found) {
  cudaError_t status = cudaErrorInvalidValue;
  *found = with_preset<4>(message.spec, [&](auto p, auto s) {
    status = launch<Coding<decltype(p), decltype(s), 2>>(collective, mesh, message, sms, stream);
  });
  return status;
}

int64_t collective_packet_of_preset(const Spec& spec) {
  int64_t bytes = 0;
  with_preset<4>(spec, [&](auto p, auto s) { bytes = packet_bytes<Coding<decltype(p), decltype(s), 2>>(); });
  return bytes;
}

}  // namespace taco
