// What the launchers offer to the binding. Every pointer is on the target's device and stays owned by the caller.
#pragma once

#include <cuda_runtime.h>

#include "group.cuh"

namespace taco {

// Where to run: a CUDA stream of the current device, or this thread of the host.
struct Target {
  bool cuda;
  void* stream;
};

// x: spec.dtype [numel] -> packet: uint8 [nbytes].
cudaError_t encode(const Spec& spec, const Target& target, const void* x, uint8_t* packet);

// packets: uint8 [count, nbytes] -> out: spec.dtype [numel], the sum of the decoded packets in index order (fp32).
cudaError_t decode_sum(const Spec& spec, const Target& target, const uint8_t* packets, int count,
                       void* out);

// packets: uint8 [count, nbytes] -> packet: uint8 [nbytes], the sum encoded again without leaving the rotated domain.
cudaError_t decode_sum_encode(const Spec& spec, const Target& target, const uint8_t* packets,
                              int count, uint8_t* packet);

}  // namespace taco
