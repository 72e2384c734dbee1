// TAH-Quant's decoder: one launch. Where a tile's codes are follows from the number of INT3 tiles before it, which each
// block counts itself from the head bytes: a byte a tile, against the 36 or so that a tile's codes and range take.
#include <algorithm>
#include <vector>

#include "tahquant.cuh"

namespace taco {
namespace {

// 16 warps a block and at most 64 registers, so 2 blocks an SM: fewer blocks count fewer heads twice. Not tuned.
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = 2;
constexpr int64_t kMaxGridY = 65535;

struct DecodePlan {
  TahQuant spec;
  PacketRows packets;
  void* out;
  int64_t per_warp;  // tiles of a warp, a multiple of the tiles that it holds at once
};

__device__ __forceinline__ uint32_t count_narrow(uint4 heads) {
  constexpr uint32_t kNarrow = kHeadNarrow * 0x01010101u;
  return __popc(heads.x & kNarrow) + __popc(heads.y & kNarrow) + __popc(heads.z & kNarrow) + __popc(heads.w & kNarrow);
}

// before[warp * count + n]: INT3 tiles of packet n in front of the warp's first tile.
__device__ void count_before(const DecodePlan& plan, const uint8_t* row, uint32_t* before) {
  int64_t count = plan.packets.count, start = int64_t(blockIdx.x) * kWarps * plan.per_warp;
  int64_t begin = start + threadIdx.x / 32 * plan.per_warp, end = min(begin + plan.per_warp, plan.spec.tiles);
  for (int64_t i = threadIdx.x; i < kWarps * count; i += kThreads) before[i] = 0;
  __syncthreads();
  for (int64_t n = 0; n < count; ++n) {
    const uint8_t* heads = row + n * plan.packets.stride + plan.spec.head;
    uint32_t earlier = 0, own = 0;
    // whole words: a block starts at a multiple of 16 tiles
    for (int64_t i = threadIdx.x; i < min(start, plan.spec.tiles) / 16; i += kThreads) {
      earlier += count_narrow(reinterpret_cast<const uint4*>(heads)[i]);
    }
    for (int64_t tile = begin + threadIdx.x % 32; tile < end; tile += 32) own += heads[tile] / kHeadNarrow & 1u;
    // the first warp stands behind what precedes the block, each other one behind the warps before it
    for (int mask = 1; mask < 32; mask *= 2) {
      earlier += __shfl_xor_sync(0xffffffffu, earlier, mask);
      own += __shfl_xor_sync(0xffffffffu, own, mask);
    }
    if (threadIdx.x % 32 == 0) {
      atomicAdd(&before[n], earlier);
      if (threadIdx.x / 32 + 1 < kWarps) atomicAdd(&before[(threadIdx.x / 32 + 1) * count + n], own);
    }
  }
  __syncthreads();
  for (int64_t n = threadIdx.x; n < count; n += kThreads) {
    for (int warp = 1; warp < kWarps; ++warp) before[warp * count + n] += before[(warp - 1) * count + n];
  }
  __syncthreads();
}

template <int LANES>
__global__ void __launch_bounds__(kThreads, kBlocks) decode_sum_tahquant(DecodePlan plan) {
  extern __shared__ uint32_t before[];
  constexpr uint32_t kFirstLanes = LANES == 8 ? 0x01010101u : 0x11111111u;
  const TahQuant& spec = plan.spec;
  int lane = threadIdx.x % LANES, sub = threadIdx.x % 32 / LANES;
  uint32_t earlier = kFirstLanes & ((1u << (sub * LANES)) - 1);
  uint32_t* base = before + threadIdx.x / 32 * plan.packets.count;
  int64_t begin = (int64_t(blockIdx.x) * kWarps + threadIdx.x / 32) * plan.per_warp;
  int64_t end = min(begin + plan.per_warp, spec.tiles);
  for (int64_t row = blockIdx.y; row < plan.packets.rows; row += gridDim.y) {
    const uint8_t* first_packet = plan.packets.data + row * plan.packets.row_stride;
    uint8_t* out = static_cast<uint8_t*>(plan.out) + row * spec.numel * bytes_of(spec.dtype);
    count_before(plan, first_packet, before);
    for (int64_t first = begin; first < end; first += 32 / LANES) {
      int64_t tile = min(first + sub, end - 1);
      bool live = first + sub < end;
      float sum[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] = -0.0f;  // -0 + x is x for both zeros too
      const uint8_t* packet = first_packet;
      for (int64_t n = 0; n < plan.packets.count; ++n, packet += plan.packets.stride) {
        uint32_t head = packet[spec.head + tile];
        uint32_t narrow = __ballot_sync(0xffffffffu, live && (head & kHeadNarrow)) & kFirstLanes;
        int64_t narrow_before = base[n] + __popc(narrow & earlier);
        int64_t position = head & kHeadNarrow ? narrow_before : tile - narrow_before;
        add_tile<8, LANES>(spec, sum, packet, head, tile, live ? position : 0, lane);
        __syncwarp();
        if (threadIdx.x % 32 == 0) base[n] += __popc(narrow);
        __syncwarp();
      }
      if (live) store_octet_within(out, tile * spec.tile + lane * 8, spec.numel, aligned16(out), sum, spec.dtype);
    }
    __syncthreads();
  }
}

template <int E>
void decode_on_host(const TahQuant& spec, const PacketRows& packets, int64_t row, uint8_t* out) {
  const uint8_t* first_packet = packets.data + row * packets.row_stride;
  std::vector<int64_t> before(packets.count, 0);
  for (int64_t tile = 0; tile < spec.tiles; ++tile) {
    float sum[E];
    for (int i = 0; i < E; ++i) sum[i] = -0.0f;
    const uint8_t* packet = first_packet;
    for (int64_t n = 0; n < packets.count; ++n, packet += packets.stride) {
      uint32_t head = packet[spec.head + tile];
      bool narrow = (head & kHeadNarrow) != 0;
      add_tile<E, 1>(spec, sum, packet, head, tile, narrow ? before[n] : tile - before[n], 0);
      before[n] += narrow;
    }
    for (int64_t i = 0; i < E && tile * E + i < spec.numel; ++i) store_element(out, tile * E + i, sum[i], spec.dtype);
  }
}

}  // namespace

cudaError_t tahquant_decode_sum(const TahQuant& spec, const Target& target, const PacketRows& packets, void* out) {
  if (spec.tiles == 0 || packets.rows == 0) return cudaSuccess;
  if (!target.cuda) {
    for (int64_t row = 0; row < packets.rows; ++row) {
      uint8_t* to = static_cast<uint8_t*>(out) + row * spec.numel * bytes_of(spec.dtype);
      spec.tile == 64 ? decode_on_host<64>(spec, packets, row, to) : decode_on_host<32>(spec, packets, row, to);
    }
    return cudaSuccess;
  }
  int device = 0, processors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  int64_t step = 32 * 8 / spec.tile, warp_steps = (spec.tiles + step - 1) / step;
  int64_t blocks = std::max<int64_t>(1, int64_t(processors) * kBlocks / packets.rows);
  blocks = std::min(blocks, (warp_steps + kWarps - 1) / kWarps);
  DecodePlan plan{spec, packets, out, (warp_steps + blocks * kWarps - 1) / (blocks * kWarps) * step};
  dim3 grid(unsigned(blocks), unsigned(std::min(packets.rows, kMaxGridY)));
  size_t shared = size_t(packets.count) * kWarps * sizeof(uint32_t);
  auto stream = static_cast<cudaStream_t>(target.stream);
  if (spec.tile == 64) {
    decode_sum_tahquant<8><<<grid, kThreads, shared, stream>>>(plan);
  } else {
    decode_sum_tahquant<4><<<grid, kThreads, shared, stream>>>(plan);
  }
  return cudaGetLastError();
}

}  // namespace taco
