// From a run-time group size to a template instance, and from a job to a kernel or a host loop.
//
// A job is a functor Job<E, LANES>: job(group, lane, live), called for every group by its LANES lanes. `live` is false for
// the lanes of a warp that hold no group; they take part in lane exchanges and write nothing.
#pragma once

#include <cuda_runtime.h>

#include "ops.h"
#include "tensor_io.cuh"

namespace taco {

// 8 warps a block: small tensors still spread over many SMs. Not tuned.
constexpr int kThreads = 256;

template <int LANES, class Job>
__global__ void __launch_bounds__(kThreads) run_groups(Job job) {
  int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  int64_t group = thread / LANES;
  job(group, int(thread % LANES), group < job.spec.groups);
}

template <template <int, int> class Job, int G, class... Args>
cudaError_t run_instance(const Spec& spec, const Target& target, Args... args) {
  if (!target.cuda) {
    Job<G, 1> job{spec, args...};
    for (int64_t group = 0; group < spec.groups; ++group) job(group, 0, true);
    return cudaSuccess;
  }
  constexpr int kLanes = lanes_of(G);
  int64_t blocks = (spec.groups * kLanes + kThreads - 1) / kThreads;
  Job<G / kLanes, kLanes> job{spec, args...};
  run_groups<kLanes><<<dim3(unsigned(blocks)), kThreads, 0, static_cast<cudaStream_t>(target.stream)>>>(job);
  return cudaGetLastError();
}

template <template <int, int> class Job, class... Args>
cudaError_t run(const Spec& spec, const Target& target, Args... args) {
  if (spec.groups == 0) return cudaSuccess;
  switch (spec.group) {
    case 16: return run_instance<Job, 16>(spec, target, args...);
    case 32: return run_instance<Job, 32>(spec, target, args...);
    case 64: return run_instance<Job, 64>(spec, target, args...);
    case 128: return run_instance<Job, 128>(spec, target, args...);
    case 256: return run_instance<Job, 256>(spec, target, args...);
    case 512: return run_instance<Job, 512>(spec, target, args...);
    case 1024: return run_instance<Job, 1024>(spec, target, args...);
    case 2048: return run_instance<Job, 2048>(spec, target, args...);
  }
  return cudaErrorInvalidValue;
}

}  // namespace taco
