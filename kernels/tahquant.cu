// TAH-Quant's encoder: one cooperative launch, since the choice of the INT3 tiles needs all tiles of a message.
//
// Work is cut into items, each a segment (a range of tiles) of one row; a block takes the items
// blockIdx.x + k * gridDim.x in every phase, and its warps neighbouring parts of the range. Between phases the whole
// grid waits:
//
//   keys        entropy of each tile -> a key in the packet's lo and step sections, which are written last
//   histograms  three times: the next digit of the wanted key, and a histogram of the digit after it
//   classes     each tile below, equal to or above the wanted key -> its head byte, and how many in each segment
//   tiles       tiles before this one of its width -> its position; rotate, quantise, write
#include <cooperative_groups.h>

#include <algorithm>
#include <vector>

#include "tahquant.cuh"
#include "tahquant_select.cuh"

namespace taco {
namespace {

constexpr int kWarps = kSelectThreads / 32;
// At least 3 blocks an SM, so at most 80 registers: the compiler spills at 4. Not tuned.
constexpr int kBlocks = 3;

struct EncodePlan {
  TahQuant spec;
  const void* x;
  int64_t rows;
  uint8_t* packets;
  int64_t segments;  // of a row
  int64_t per_warp;  // tiles of an item's warp, a multiple of the tiles that a warp holds
  int64_t blocks;
  SelectState* states;  // [rows]
  Classes* classes;     // [rows, segments]

  TACO_HD int64_t items() const { return rows * segments; }
  TACO_HD bool selects() const { return spec.narrow > 0 && spec.narrow < spec.tiles; }
};

// One item as one thread sees it.
struct Item {
  int64_t row, segment;
  int64_t begin, end;  // tiles of this warp
  uint8_t* packet;
  const void* x;

  __device__ Item(const EncodePlan& plan, int64_t item) {
    row = item / plan.segments;
    segment = item % plan.segments;
    begin = (segment * kWarps + threadIdx.x / 32) * plan.per_warp;
    end = begin + plan.per_warp < plan.spec.tiles ? begin + plan.per_warp : plan.spec.tiles;
    packet = plan.packets + row * plan.spec.nbytes;
    x = static_cast<const uint8_t*>(plan.x) + row * plan.spec.numel * bytes_of(plan.spec.dtype);
  }

  __device__ uint32_t* keys(const TahQuant& spec) const { return reinterpret_cast<uint32_t*>(packet + spec.lo); }
};

template <int LANES>
__device__ void write_keys(const EncodePlan& plan) {
  uint32_t* words = reinterpret_cast<uint32_t*>(plan.states);
  int64_t count = plan.rows * int64_t(sizeof(SelectState) / 4), threads = int64_t(gridDim.x) * kSelectThreads;
  for (int64_t i = blockIdx.x * kSelectThreads + threadIdx.x; i < count; i += threads) words[i] = 0;
  int lane = threadIdx.x % LANES, sub = threadIdx.x % 32 / LANES;
  for (int64_t i = blockIdx.x; i < plan.items(); i += gridDim.x) {
    Item item(plan, i);
    for (int64_t tile = item.begin; tile < item.end; tile += 32 / LANES) {
      float v[8];
      load_tile<8>(plan.spec, v, item.x, tile + sub, lane);
      uint32_t key = entropy_key<8, LANES>(v);
      if (lane == 0 && tile + sub < item.end) item.keys(plan.spec)[tile + sub] = key;
    }
  }
}

// What the passes before `pass` have found.
__device__ Selected selected_before(const EncodePlan& plan, const Item& item, int pass) {
  SelectState& state = plan.states[item.row];
  if (pass == 0) return {0, uint32_t(plan.spec.narrow)};
  Selected before = pass == 1 ? Selected{0, uint32_t(plan.spec.narrow)} : state.selected[pass - 2];
  Selected now = select_digit(before, state.histograms[pass - 1], pass - 1);
  if (item.segment == 0 && threadIdx.x == 0) state.selected[pass - 1] = now;
  return now;
}

__device__ void count_digits(const EncodePlan& plan, int pass) {
  __shared__ uint32_t bins[kBins];
  for (int64_t i = blockIdx.x; i < plan.items(); i += gridDim.x) {
    Item item(plan, i);
    Selected wanted = selected_before(plan, item, pass);
    for (int bin = threadIdx.x; bin < kBins; bin += kSelectThreads) bins[bin] = 0;
    __syncthreads();
    int shift = digit_shift(pass), digits = pass == 0 ? kDigitBits : kDigitBits - 1;
    for (int64_t tile = item.begin + threadIdx.x % 32; tile < item.end; tile += 32) {
      uint32_t key = item.keys(plan.spec)[tile];
      if (pass == 0 || key >> (shift + digits) == wanted.prefix) {
        atomicAdd(&bins[key >> shift & ((1u << digits) - 1)], 1u);
      }
    }
    __syncthreads();
    uint32_t* histogram = plan.states[item.row].histograms[pass];
    for (int bin = threadIdx.x; bin < kBins; bin += kSelectThreads) {
      if (bins[bin]) atomicAdd(&histogram[bin], bins[bin]);
    }
    __syncthreads();
  }
}

__device__ void write_classes(const EncodePlan& plan) {
  __shared__ uint32_t room[kWarps];
  for (int64_t i = blockIdx.x; i < plan.items(); i += gridDim.x) {
    Item item(plan, i);
    uint32_t wanted = selected_before(plan, item, kPasses).prefix, below = 0, equal = 0;
    for (int64_t tile = item.begin + threadIdx.x % 32; tile < item.end; tile += 32) {
      uint32_t key = item.keys(plan.spec)[tile];
      below += key < wanted;
      equal += key == wanted;
      item.packet[plan.spec.head + tile] = key < wanted ? kClassBelow : (key == wanted ? kClassEqual : 0);
    }
    below = block_sum(below, room);
    equal = block_sum(equal, room);
    if (threadIdx.x == 0) plan.classes[i] = {below, equal};
  }
}

// Tiles of each class in front of this warp's.
__device__ Classes classes_before(const EncodePlan& plan, const Item& item) {
  __shared__ uint32_t room[kWarps];
  __shared__ Classes in_warp[kWarps];
  Classes sum = {0, 0};
  const Classes* row = plan.classes + item.row * plan.segments;
  for (int64_t i = threadIdx.x; i < item.segment; i += kSelectThreads) {
    sum.below += row[i].below;
    sum.equal += row[i].equal;
  }
  Classes own = {0, 0};
  for (int64_t tile = item.begin + threadIdx.x % 32; tile < item.end; tile += 32) {
    uint8_t found = item.packet[plan.spec.head + tile];
    own.below += found == kClassBelow;
    own.equal += found == kClassEqual;
  }
  own = {warp_sum(own.below), warp_sum(own.equal)};
  sum = {block_sum(sum.below, room), block_sum(sum.equal, room)};
  if (threadIdx.x % 32 == 0) in_warp[threadIdx.x / 32] = own;
  __syncthreads();
  for (unsigned i = 0; i < threadIdx.x / 32; ++i) {
    sum.below += in_warp[i].below;
    sum.equal += in_warp[i].equal;
  }
  __syncthreads();
  return sum;
}

template <int LANES>
__device__ void write_tiles(const EncodePlan& plan) {
  // a bit for each tile of a warp, in the ballot of its first lane
  constexpr uint32_t kFirstLanes = LANES == 8 ? 0x01010101u : 0x11111111u;
  int lane = threadIdx.x % LANES, sub = threadIdx.x % 32 / LANES;
  uint32_t earlier = kFirstLanes & ((1u << (sub * LANES)) - 1);
  const TahQuant& spec = plan.spec;
  for (int64_t i = blockIdx.x; i < plan.items(); i += gridDim.x) {
    Item item(plan, i);
    Classes before = {0, 0};
    uint32_t ties = 0;
    if (plan.selects()) {
      before = classes_before(plan, item);
      ties = plan.states[item.row].selected[kPasses - 1].count;
    }
    for (int64_t first = item.begin; first < item.end; first += 32 / LANES) {
      int64_t tile = first + sub;
      bool live = tile < item.end;
      float v[8];
      load_tile<8>(spec, v, item.x, tile, lane);
      bool narrow = spec.narrow > 0;
      int64_t position = tile;
      if (plan.selects()) {
        uint8_t found = live ? item.packet[spec.head + tile] : 0;
        uint32_t below = __ballot_sync(0xffffffffu, found == kClassBelow) & kFirstLanes;
        uint32_t equal = __ballot_sync(0xffffffffu, found == kClassEqual) & kFirstLanes;
        uint32_t equal_before = before.equal + __popc(equal & earlier);
        int64_t narrow_before = before.below + __popc(below & earlier) + min(equal_before, ties);
        narrow = found == kClassBelow || (found == kClassEqual && equal_before < ties);
        position = narrow ? narrow_before : tile - narrow_before;
        before.below += __popc(below);
        before.equal += __popc(equal);
      }
      encode_tile<8, LANES>(spec, v, tile, position, narrow, lane, live, item.packet);
    }
    if (item.segment == 0 && threadIdx.x < 16) pad_tahquant(spec, item.packet, int(threadIdx.x), 16);
  }
}

template <int LANES>
__global__ void __launch_bounds__(kSelectThreads, kBlocks) encode_tahquant(EncodePlan plan) {
  auto grid = cooperative_groups::this_grid();
  if (plan.selects()) {
    write_keys<LANES>(plan);
    grid.sync();
    for (int pass = 0; pass < kPasses; ++pass) {
      count_digits(plan, pass);
      grid.sync();
    }
    write_classes(plan);
    grid.sync();
  }
  write_tiles<LANES>(plan);
}

template <int E>
void encode_on_host(const TahQuant& spec, const uint8_t* x, uint8_t* packet) {
  std::vector<uint32_t> keys(spec.tiles);
  float v[E];
  for (int64_t tile = 0; tile < spec.tiles; ++tile) {
    load_tile<E>(spec, v, x, tile, 0);
    keys[tile] = entropy_key<E, 1>(v);
  }
  std::vector<uint32_t> sorted(keys);
  std::sort(sorted.begin(), sorted.end());
  uint32_t wanted = spec.narrow ? sorted[spec.narrow - 1] : 0;
  int64_t ties = spec.narrow - (std::lower_bound(sorted.begin(), sorted.end(), wanted) - sorted.begin());
  for (int64_t tile = 0, before = 0, equal = 0; tile < spec.tiles; ++tile) {
    bool narrow = keys[tile] < wanted || (keys[tile] == wanted && equal++ < ties);
    load_tile<E>(spec, v, x, tile, 0);
    encode_tile<E, 1>(spec, v, tile, narrow ? before : tile - before, narrow, 0, true, packet);
    before += narrow;
  }
  pad_tahquant(spec, packet, 0, 1);
}

const void* kernel_of(const TahQuant& spec) {
  return spec.tile == 64 ? reinterpret_cast<const void*>(encode_tahquant<8>)
                         : reinterpret_cast<const void*>(encode_tahquant<4>);
}

// The largest grid that is resident as a whole, and what its blocks and warps take. The same for the same device.
cudaError_t plan_grid(EncodePlan& plan) {
  int device = 0, processors = 0, blocks = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (status == cudaSuccess) {
    status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel_of(plan.spec), kSelectThreads, 0);
  }
  int64_t tiles = plan.spec.tiles, step = 32 * 8 / plan.spec.tile, warp_steps = (tiles + step - 1) / step;
  int64_t resident = std::max<int64_t>(1, int64_t(processors) * blocks);
  plan.segments = std::max<int64_t>(1, std::min(resident / plan.rows, (warp_steps + kWarps - 1) / kWarps));
  plan.per_warp = (warp_steps + plan.segments * kWarps - 1) / (plan.segments * kWarps) * step;
  plan.blocks = std::min(resident, plan.items());
  return status;
}

}  // namespace

int64_t tahquant_scratch_bytes(const TahQuant& spec, const Target& target, int64_t rows) {
  if (!target.cuda || rows == 0) return 0;
  EncodePlan plan{spec, nullptr, rows};
  if (!plan.selects() || plan_grid(plan) != cudaSuccess) return 0;
  return rows * (int64_t(sizeof(SelectState)) + plan.segments * int64_t(sizeof(Classes)));
}

cudaError_t tahquant_encode(const TahQuant& spec, const Target& target, const void* x, int64_t rows, uint8_t* packets,
                            uint8_t* scratch) {
  if (spec.tiles == 0 || rows == 0) return cudaSuccess;
  if (!target.cuda) {
    for (int64_t row = 0; row < rows; ++row, packets += spec.nbytes) {
      const uint8_t* from = static_cast<const uint8_t*>(x) + row * spec.numel * bytes_of(spec.dtype);
      spec.tile == 64 ? encode_on_host<64>(spec, from, packets) : encode_on_host<32>(spec, from, packets);
    }
    return cudaSuccess;
  }
  EncodePlan plan{spec, x, rows, packets};
  cudaError_t status = plan_grid(plan);
  if (status != cudaSuccess) return status;
  plan.states = reinterpret_cast<SelectState*>(scratch);
  plan.classes = reinterpret_cast<Classes*>(scratch + rows * sizeof(SelectState));
  void* arguments[] = {&plan};
  return cudaLaunchCooperativeKernel(kernel_of(spec), dim3(unsigned(plan.blocks)), dim3(kSelectThreads), arguments, 0,
                                     static_cast<cudaStream_t>(target.stream));
}

}  // namespace taco
