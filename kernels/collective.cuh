// One kernel a collective: encode, send, sum and decode, chunk by chunk, on all ranks at once (README.md: protocol and order of
// memory accesses).
#pragma once

#include "launch.cuh"
#include "receiver.cuh"
#include "sender.cuh"
#include "worker.cuh"

namespace taco {

template <class K, Collective C>
__global__ void __launch_bounds__(Room<K, C>::kThreads, 1)
    run_collective(const __grid_constant__ Mesh mesh, const __grid_constant__ Message message, int lane_bits) {
#if __CUDA_ARCH__ >= 900
  using R = Room<K, C>;
  extern __shared__ __align__(1024) uint8_t shared[];
  uint32_t first = shared_address(shared);
  const uint32_t skipped = ((first + R::kAlign - 1) & ~uint32_t(R::kAlign - 1)) - first;
  constexpr int kSenders = R::kPipes * kWarps, kReceiver = kSenders + R::kPipes;
  const int warp = __shfl_sync(0xffffffffu, int(threadIdx.x >> 5), 0), lane = int(threadIdx.x & 31);  // warps in step
  const int pipe = warp < kSenders ? warp / kWarps : (warp < kReceiver ? warp - kSenders : (lane < R::kPipes ? lane : 0));
  const uint32_t base = first + skipped + pipe * R::kBytes;
  uint8_t* const generic = shared + skipped + pipe * R::kBytes;
  uint32_t* const failed = reinterpret_cast<uint32_t*>(generic + R::kFailed);
  if (warp == kReceiver && lane < R::kPipes) {
    for (int i = 0; i < R::kCount; ++i) {
      const bool full = i < R::kFree || (i >= R::kTotalFull && i < R::kTotalFree);
      Barrier{base + R::kBarriers + 8 * i}.init(i >= R::kConsumed ? 32 * kWarps : (full ? kWarps : 1));
    }
    publish_shared();
  }
  wait_for_previous();
  if (message.whole_gpu) let_next_start();
  if (warp == kReceiver && lane < R::kPipes) failed[0] = mesh.state[kBroken], failed[1] = mesh.state[kCalls];
  const Course course(mesh, pipe * int(gridDim.x) + int(blockIdx.x), R::kPipes * int(gridDim.x), message.chunks);
  __syncthreads();
  if (warp < kSenders) {
    if constexpr (R::kDivides) take_registers<R::kWorkerRegisters>();
    if (course.count > 0) Worker<K, C>(mesh, message, course, base, generic, Lane<typename K::S>(lane_bits, warp % kWarps)).run();
    return;
  }
  if constexpr (R::kDivides) leave_registers<R::kHelperRegisters>();
  if (warp == kReceiver) {
    Receiver<K, C>(mesh, course, base, failed).run(lane < R::kPipes);
  } else if (warp < kReceiver && course.count > 0) {
    Sender<K, C>(mesh, course, base, failed).run();
  }
#endif
}

// Blocks: one an SM, on at most `sms` of them. All ranks must launch alike.
template <class K, Collective C>
cudaError_t launch_collective(const Mesh& mesh, Message message, int sms, cudaStream_t stream) {
  using R = Room<K, C>;
  constexpr int kChunk = kWarps * 256 * K::V;
  const int64_t chunks = (message.part + kChunk - 1) / kChunk;
  if (chunks > INT32_MAX / 2) return cudaErrorInvalidValue;
  message.chunks = int(chunks);
  const auto kernel = run_collective<K, C>;
  static int sms_of[64] = {};  // by device, 0: not asked yet; a race sets the same twice
  int device = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  int& found = sms_of[device & 63];
  if (found == 0) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, R::kShared);
    if (status != cudaSuccess) return status;
    cudaFuncAttributes compiled;
    status = cudaFuncGetAttributes(&compiled, kernel);
    if (status != cudaSuccess) return status;
    // a warp that asks for more than the block has would wait for ever
    constexpr int kWorkers = R::kPipes * kWarps * 32;
    const int wanted = R::kWorkerRegisters * kWorkers + R::kHelperRegisters * (R::kThreads - kWorkers);
    if (R::kDivides && compiled.numRegs * R::kThreads < wanted) return cudaErrorLaunchOutOfResources;
    int count = 0;
    status = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (status != cudaSuccess) return status;
    found = count;
  }
  message.whole_gpu = sms >= found;
  const int lanes = message.spec.group / (8 * K::V);
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(chunks < sms ? chunks : sms));
  config.blockDim = dim3(R::kThreads);
  config.dynamicSmemBytes = R::kShared;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, mesh, message, __builtin_ctz(unsigned(lanes)));
}

template <class K>
cudaError_t launch(Collective collective, const Mesh& mesh, const Message& message, int sms, cudaStream_t stream) {
  switch (collective) {
    case Collective::kOneShot: return launch_collective<K, Collective::kOneShot>(mesh, message, sms, stream);
    case Collective::kReduceScatter: return launch_collective<K, Collective::kReduceScatter>(mesh, message, sms, stream);
    case Collective::kAllGather: return launch_collective<K, Collective::kAllGather>(mesh, message, sms, stream);
    case Collective::kTwoShot: return launch_collective<K, Collective::kTwoShot>(mesh, message, sms, stream);
  }
  return cudaErrorInvalidValue;
}

// Kernels that learn the codec at run time. BYTES: of an element.
template <int BYTES>
cudaError_t launch_general(Collective collective, const Mesh& mesh, const Message& message, int sms, cudaStream_t stream) {
  cudaError_t status = cudaErrorInvalidValue;
  with_payload(message.spec.form.payload, [&](auto p) {
    using P = decltype(p);
    status = message.spec.group <= 1024 ? launch<Coding<P, General<4, 0>, BYTES>>(collective, mesh, message, sms, stream)
                                        : launch<Coding<P, General<8, 0>, BYTES>>(collective, mesh, message, sms, stream);
  });
  return status;
}

}  // namespace taco
