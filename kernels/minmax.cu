// The kernels of the asymmetric codec: one launch for all rows, one pass over the data, no shared memory.
#include <algorithm>

#include "minmax.cuh"

namespace taco {
namespace {

// 8 warps a block: small messages still spread over many SMs. Not tuned.
constexpr int kMinMaxThreads = 256;
// At least 4 blocks an SM, so at most 64 registers: 32 KiB of bf16 values are then on their way to an SM at a time,
// about what an H200's bandwidth and latency need. Not tuned.
constexpr int kMinMaxBlocks = 4;
constexpr int64_t kMaxGridY = 65535;

// A job is called for every group of every row by its `lanes` lanes; `live` is false for lanes beyond the last group.
template <int Bits, int V>
struct MinMaxEncode {
  MinMax spec;
  int64_t rows;
  const void* x;
  uint8_t* packets;

  TACO_HD void operator()(int64_t row, int64_t group, int lane, int lanes, bool live) const {
    float v[V][8];
    const uint8_t* from = static_cast<const uint8_t*>(x) + row * spec.numel * bytes_of(spec.dtype);
    load_group(spec, v, from, group, lane, lanes);
    encode_minmax<Bits>(spec, v, group, lane, lanes, live, packets + row * spec.nbytes);
  }

  TACO_HD void pad(int64_t row, int worker, int workers) const {
    pad_minmax(spec, packets + row * spec.nbytes, worker, workers);
  }
};

template <int Bits, int V>
struct MinMaxDecodeSum {
  MinMax spec;
  int64_t rows;
  PacketRows packets;
  void* out;

  TACO_HD void operator()(int64_t row, int64_t group, int lane, int lanes, bool live) const {
    if (!live) return;
    float sum[V][8];
    const uint8_t* from = packets.data + row * packets.row_stride;
    sum_minmax<Bits>(spec, sum, from, packets.count, packets.stride, group, lane, lanes);
    uint8_t* to = static_cast<uint8_t*>(out) + row * spec.numel * bytes_of(spec.dtype);
    bool aligned = aligned16(to);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      store_octet_within(to, octet_start(spec, group, j, lane, lanes), spec.numel, aligned, sum[j], spec.dtype);
    }
  }

  TACO_HD void pad(int64_t, int, int) const {}
};

// What fills the tail of a packet has the code of its last element, so the sum's tail is filled with its last element.
template <int Bits, int V>
struct MinMaxDecodeSumEncode {
  MinMax spec;
  int64_t rows;
  PacketRows packets;
  uint8_t* out;

  TACO_HD void operator()(int64_t row, int64_t group, int lane, int lanes, bool live) const {
    float sum[V][8];
    const uint8_t* from = packets.data + row * packets.row_stride;
    sum_minmax<Bits>(spec, sum, from, live ? packets.count : 0, packets.stride, group, lane, lanes);
    encode_minmax<Bits>(spec, sum, group, lane, lanes, live, out + row * spec.nbytes);
  }

  TACO_HD void pad(int64_t row, int worker, int workers) const {
    pad_minmax(spec, out + row * spec.nbytes, worker, workers);
  }
};

template <class Job>
__global__ void __launch_bounds__(kMinMaxThreads, kMinMaxBlocks) run_minmax(Job job, int lane_bits) {
  int64_t thread = int64_t(blockIdx.x) * kMinMaxThreads + threadIdx.x;
  int64_t group = thread >> lane_bits;
  int lanes = 1 << lane_bits, lane = int(threadIdx.x) & (lanes - 1);
  for (int64_t row = blockIdx.y; row < job.rows; row += gridDim.y) {
    job(row, group, lane, lanes, group < job.spec.groups);
    if (blockIdx.x == 0 && threadIdx.x < 16) job.pad(row, int(threadIdx.x), 16);
  }
}

template <class Job>
cudaError_t loop_on_host(const Job& job) {
  for (int64_t row = 0; row < job.rows; ++row) {
    for (int64_t group = 0; group < job.spec.groups; ++group) job(row, group, 0, 1, true);
    job.pad(row, 0, 1);
  }
  return cudaSuccess;
}

template <template <int, int> class Job, int Bits, class... Args>
cudaError_t run_bits(const MinMax& spec, const Target& target, Args... args) {
  if (target.cuda) {
    int lane_bits = 0;
    while ((kMinMaxOctets * 8) << lane_bits < spec.group) ++lane_bits;
    Job<Bits, kMinMaxOctets> job{spec, args...};
    int64_t threads = spec.groups << lane_bits;
    dim3 grid(unsigned((threads + kMinMaxThreads - 1) / kMinMaxThreads), unsigned(std::min(job.rows, kMaxGridY)));
    run_minmax<<<grid, kMinMaxThreads, 0, static_cast<cudaStream_t>(target.stream)>>>(job, lane_bits);
    return cudaGetLastError();
  }
  switch (spec.group) {
    case 16: return loop_on_host(Job<Bits, 2>{spec, args...});
    case 32: return loop_on_host(Job<Bits, 4>{spec, args...});
    case 64: return loop_on_host(Job<Bits, 8>{spec, args...});
    case 128: return loop_on_host(Job<Bits, 16>{spec, args...});
    case 256: return loop_on_host(Job<Bits, 32>{spec, args...});
    case 512: return loop_on_host(Job<Bits, 64>{spec, args...});
  }
  return cudaErrorInvalidValue;
}

template <template <int, int> class Job, class... Args>
cudaError_t run(const MinMax& spec, const Target& target, int64_t rows, Args... args) {
  if (spec.groups == 0 || rows == 0) return cudaSuccess;
  if (spec.bits == 8) return run_bits<Job, 8>(spec, target, rows, args...);
  if (spec.bits == 6) return run_bits<Job, 6>(spec, target, rows, args...);
  return run_bits<Job, 4>(spec, target, rows, args...);
}

}  // namespace

cudaError_t minmax_encode(const MinMax& spec, const Target& target, const void* x, int64_t rows, uint8_t* packets) {
  return run<MinMaxEncode>(spec, target, rows, x, packets);
}

cudaError_t minmax_decode_sum(const MinMax& spec, const Target& target, const PacketRows& packets, void* out) {
  return run<MinMaxDecodeSum>(spec, target, packets.rows, packets, out);
}

cudaError_t minmax_decode_sum_encode(const MinMax& spec, const Target& target, const PacketRows& packets,
                                     uint8_t* out) {
  return run<MinMaxDecodeSumEncode>(spec, target, packets.rows, packets, out);
}

}  // namespace taco
