// From a run-time group size to a template instance, and from a job to a kernel or a host loop.
//
// A job is a struct template over a Shape with members spec and rows, and
//   kSteps                          wanted steps a block
//   kShared, kAlign                 bytes of shared memory of a block, and their alignment, at least 1024
//   Job at_row(row)                 the job with its pointers at a row
//   void run(shared, lane, steps)   on a GPU: all tiles of a warp
//   void run_group(at)              on the host: one group, by a team of one lane
//   void finish()                   what is left to do once a row, by one thread
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "ops.h"
#include "stage.cuh"

namespace taco {

// The steps of a block, a grid apart. All its warps take the same (their last tiles may lie beyond the message), so that the
// compiler sees lane exchanges in uniform control flow. Before `whole_elements` all elements of a step exist and lie
// aligned, before `whole_groups` all groups exist.
struct Steps {
  int first, stride, end, whole_elements, whole_groups;
};

// Programmatic dependent launch (sm_90): a kernel of this library behind another may be set up while the last blocks of the
// other still run. It touches memory only after the wait, which lasts until everything before it in the stream is done.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class S, class Job>
__global__ void __launch_bounds__(kThreads) run_steps(const __grid_constant__ Job jobs, int end, int whole_elements,
                                                      int whole_groups, int lane_bits) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const Job job = jobs.at_row(blockIdx.y);
  wait_for_previous();
  let_next_start();  // not before: a chain of small kernels would pile up, waiting, where the present one works
  const uint32_t base = (shared_address(shared) + Job::kAlign - 1) & ~uint32_t(Job::kAlign - 1);
  job.run(base, Lane<S>(lane_bits), Steps{int(blockIdx.x), int(gridDim.x), end, whole_elements, whole_groups});
  if (blockIdx.x == 0 && threadIdx.x == 0) job.finish();
}

// Shared memory begins at a multiple of 1024.
template <class Job>
constexpr int shared_bytes() {
  return Job::kShared + (Job::kAlign > 1024 ? Job::kAlign - 1024 : 0);
}

// What a launch needs to know of the current device. dependent: whether it has programmatic dependent launch.
struct Device {
  int resident;  // blocks of the kernel that it holds at once, 0: not asked yet
  bool dependent;
};

template <class S, class Job>
cudaError_t ask_device(Device* found) {
  static Device cached[64];  // by number; a race writes the same twice
  int device = 0, per_sm = 0, sms = 0, major = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  Device& known = cached[device & 63];
  if (known.resident == 0) {
    const auto kernel = run_steps<S, Job>;
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<Job>());
    if (status != cudaSuccess) return status;
    status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, kThreads, shared_bytes<Job>());
    if (status != cudaSuccess) return status;
    status = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (status != cudaSuccess) return status;
    status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (status != cudaSuccess) return status;
    known.dependent = major >= 9;
    known.resident = per_sm * sms;
  }
  *found = known;
  return cudaSuccess;
}

// The grid is as many times what fits at once as leaves about Job::kSteps steps a block: with more of them the last round
// leaves more of the GPU idle, with fewer the first load of a block, which nothing hides, counts for more.
template <class S, class Job>
cudaError_t run_on_gpu(const Job& job, void* stream) {
  const Spec& spec = job.spec;
  int lanes = spec.group / (8 * S::V), lane_bits = __builtin_ctz(lanes);
  int64_t groups_a_step = kThreads / lanes, elements_a_step = groups_a_step * spec.group;
  int64_t steps = (spec.groups + groups_a_step - 1) / groups_a_step;
  if (steps > INT32_MAX / 2 || job.rows > 65535) return cudaErrorInvalidValue;
  Device device{};
  cudaError_t status = ask_device<S, Job>(&device);
  if (status != cudaSuccess) return status;
  int64_t at_once = (device.resident + job.rows - 1) / job.rows, waves = (2 * steps / Job::kSteps / at_once + 1) / 2;
  int64_t blocks = at_once * std::max<int64_t>(1, waves);
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(std::min(steps, blocks)), unsigned(job.rows));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes<Job>();
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &dependent;
  config.numAttrs = device.dependent ? 1 : 0;
  int whole_elements = spec.aligned ? int(spec.numel / elements_a_step) : 0, whole_groups = int(spec.groups / groups_a_step);
  return cudaLaunchKernelEx(&config, run_steps<S, Job>, job, int(steps), whole_elements, whole_groups, lane_bits);
}

template <class S, class Job>
cudaError_t run_on_host(const Job& jobs) {
  for (int row = 0; row < jobs.rows; ++row) {
    Job job = jobs.at_row(row);
    for (int64_t group = 0; group < job.spec.groups; ++group) {
      job.run_group(Place<S>{typename S::Lanes(0, 1), group, group * S::V, false});
    }
    job.finish();
  }
  return cudaSuccess;
}

// make(S{}) gives the job of a shape for groups of any size.
template <class Make>
cudaError_t run(const Spec& spec, int rows, const Target& target, Make make) {
  if (spec.groups == 0 || rows == 0) return cudaSuccess;
  if (target.cuda) {
    if (spec.group <= 1024) return run_on_gpu<General<4, 0>>(make(General<4, 0>{}), target.stream);
    return run_on_gpu<General<8, 0>>(make(General<8, 0>{}), target.stream);
  }
  auto on_host = [&](auto s) { return run_on_host<decltype(s)>(make(s)); };
  switch (spec.group) {
    case 32: return on_host(General<4, 1>{});
    case 64: return on_host(General<8, 1>{});
    case 128: return on_host(General<16, 1>{});
    case 256: return on_host(General<32, 1>{});
    case 512: return on_host(General<64, 1>{});
    case 1024: return on_host(General<128, 1>{});
    case 2048: return on_host(General<256, 1>{});
  }
  return cudaErrorInvalidValue;
}

}  // namespace taco
