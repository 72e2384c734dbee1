// Fused collectives of every group codec on fp32.
#include "collective.cuh"

namespace taco {

cudaError_t collective_32bit(Collective collective, const Mesh& mesh, const Message& message, int sms, cudaStream_t stream) {
  return launch_general<4>(collective, mesh, message, sms, stream);
}

}  // namespace taco
