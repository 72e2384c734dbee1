// What the launchers of the group codec offer to the binding. Every pointer is on the target's device and stays owned by
// the caller.
#pragma once

#include <cuda_runtime.h>

#include "group.cuh"

namespace taco {

// Where to run: a CUDA stream of the current device, or this thread of the host.
struct Target {
  bool cuda;
  void* stream;
};

// uint8 [rows, count, nbytes]; rows and packets lie so many bytes apart, multiples of 16 as `data` is.
struct PacketRows {
  const uint8_t* data;
  int64_t rows, row_stride;
  int64_t count, stride;
};

// x: spec.dtype [rows, numel] -> packets: uint8 [rows, nbytes]; rows <= kMaxSeeds when stochastic.
cudaError_t encode(const Spec& spec, const Target& target, int rows, const void* x, uint8_t* packets, const Seeds& seeds);

// out: spec.dtype [rows, numel], for each row the sum of its decoded packets in index order (fp32, rounded once).
cudaError_t decode_sum(const Spec& spec, const Target& target, const PacketRows& packets, void* out);

// out: uint8 [rows, form.nbytes], the sums encoded in `form` without leaving the rotated domain; rows <= kMaxSeeds when
// stochastic.
cudaError_t decode_sum_encode(const Spec& spec, const Form& form, const Target& target, const PacketRows& packets,
                              uint8_t* out, const Seeds& seeds);

}  // namespace taco
