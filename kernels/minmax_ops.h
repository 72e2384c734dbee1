// What the launchers of the min/max codecs offer to their binding. Every pointer is on the target's device and stays
// owned by the caller.
#pragma once

#include <cuda_runtime.h>

#include "ops.h"
#include "range.cuh"

namespace taco {

// Packets of `rows` sums of `count` packets each. Byte distances are multiples of 16, and so is the address.
struct PacketRows {
  const uint8_t* data;
  int64_t rows, row_stride;
  int64_t count, stride;
};

// The asymmetric codec. Offsets are in bytes from the start of a packet; without a high plane `high` is `lo`.
struct MinMax {
  int64_t numel, groups;
  int64_t low, high, lo, step, nbytes;
  int bits, group;
  Metadata metadata;
  Dtype dtype;  // of the tensor side
};

// x: spec.dtype [rows, numel], aligned to its elements -> packets: uint8 [rows, nbytes].
cudaError_t minmax_encode(const MinMax& spec, const Target& target, const void* x, int64_t rows, uint8_t* packets);

// out: spec.dtype [packets.rows, numel], sums over each row's packets in index order (fp32).
cudaError_t minmax_decode_sum(const MinMax& spec, const Target& target, const PacketRows& packets, void* out);

// out: uint8 [packets.rows, nbytes], those sums encoded again.
cudaError_t minmax_decode_sum_encode(const MinMax& spec, const Target& target, const PacketRows& packets, uint8_t* out);

}  // namespace taco
