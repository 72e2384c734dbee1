// What the launchers of the min/max codecs offer to their binding. Every pointer is on the target's device and stays
// owned by the caller.
#pragma once

#include <cuda_runtime.h>

#include "ops.h"
#include "range.cuh"

namespace taco {

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

// TAH-Quant. Offsets are in bytes from the start of a packet; the planes of INT3 are two bits and one.
struct TahQuant {
  int64_t numel, tiles;
  int64_t narrow;  // tiles that get INT3
  int64_t int3_low, int3_high, int4, head, lo, step, nbytes;
  int tile;
  float pivot_ratio, inv_sqrt_tile;
  Dtype dtype;  // of the tensor side
};

// Bytes of device memory, 16-byte aligned, that tahquant_encode needs for `rows` messages on the current device.
int64_t tahquant_scratch_bytes(const TahQuant& spec, const Target& target, int64_t rows);

// x: spec.dtype [rows, numel], aligned to its elements -> packets: uint8 [rows, nbytes]. scratch: not initialised.
cudaError_t tahquant_encode(const TahQuant& spec, const Target& target, const void* x, int64_t rows, uint8_t* packets,
                            uint8_t* scratch);

// The most packets that one sum takes: each warp counts tiles for each of them in shared memory.
constexpr int64_t kTahQuantMaxPackets = 512;

// out: spec.dtype [packets.rows, numel], sums over each row's packets in index order (fp32).
cudaError_t tahquant_decode_sum(const TahQuant& spec, const Target& target, const PacketRows& packets, void* out);

}  // namespace taco
