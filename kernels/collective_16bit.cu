// Fused collectives of every group codec on bf16 and fp16.
#include "collective.cuh"

namespace taco {

cudaError_t collective_16bit(Collective collective, const Mesh& mesh, const Message& message, int sms, cudaStream_t stream) {
  return launch_general<2>(collective, mesh, message, sms, stream);
}

}  // namespace taco
