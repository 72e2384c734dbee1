// How a fused collective divides a block, its shared memory and a message among pipelines.
//
// A block has kPipes pipelines, each of kWarps warps that compute (worker.cuh) and one that sends (sender.cuh), and one warp that
// receives for all of them (receiver.cuh). A pipeline takes chunk after chunk of the message. In turn i it encodes its i-th chunk
// and hands it over, and then takes up what the peers have sent in turn i - kLag.
#pragma once

#include "collective_ops.h"
#include "packing.cuh"
#include "system.cuh"

namespace taco {

constexpr int kSharedMemory = 232448;  // bytes that a block can have on sm_90 and sm_100
constexpr int kIncoming = 2;           // packets of peers in shared memory: one in use, one on its way

// Of a packet that has come in: where it lies, and since when a warp finds its tile incomplete (ns, or 0).
struct Origin {
  Slot slot;
  int source, phase;
  uint64_t since[kWarps];
};

// The shared memory of a pipeline, in bytes: tiles on their way in and out | buffers of a chunk's packet | their digests | origins |
// barriers.
template <class K, Collective C>
struct Room {
  static constexpr bool kScatters = C == Collective::kReduceScatter || C == Collective::kTwoShot;
  static constexpr bool kSums = C == Collective::kTwoShot;
  // own packets, until they are added or decoded, kLag turns later; packets for others; packets of sums; what comes in
  static constexpr int kOwn = kScatters ? kLag + 1 : kLag + 2, kOthers = kScatters ? 3 : 0, kTotals = kSums ? kLag + 2 : 0;
  static constexpr int kSent = kScatters ? kOthers : kOwn;  // the ring that the sender takes packets of tensors from
  static constexpr int kOwnAt = 0, kOthersAt = kOwn, kTotalsAt = kOthersAt + kOthers, kIncomingAt = kTotalsAt + kTotals;
  static constexpr int kSentAt = kScatters ? kOthersAt : kOwnAt;

  static constexpr int kPacket = packet_bytes<K>();  // of a chunk, as it travels
  static constexpr int kStride = round_up(kWarps * (K::kTile + K::kMeta), K::kAlign);
  static constexpr int kAlign = alignment_of<typename K::S>(K::Tensor::kBytes);
  static constexpr int kIn = 0, kOut = kWarps * K::Tensor::kBytes, kBuffers = 2 * kWarps * K::Tensor::kBytes;
  static constexpr int kDigests = kBuffers + (kIncomingAt + kIncoming) * kStride;  // Digest [buffers][kWarps]
  static constexpr int kOrigins = kDigests + (kIncomingAt + kIncoming) * kTrailer;  // Origin [kIncoming]
  static constexpr int kBarriers = kOrigins + kIncoming * int(sizeof(Origin));
  // numbers of barriers: full ones complete with a thread of every worker warp, arrived ones with the bytes of a packet, consumed
  // ones with every thread that works
  static constexpr int kFull = 0, kFree = kSent, kTotalFull = 2 * kSent, kTotalFree = kTotalFull + kTotals;
  static constexpr int kArrived = kTotalFree + kTotals, kConsumed = kArrived + kIncoming, kCount = kConsumed + kIncoming;
  static constexpr int kFailed = kBarriers + 8 * kCount;  // uint32: a packet has not come in time
  static constexpr int kCall = kFailed + 4;               // uint32: calls before this one
  static constexpr int kBytes = round_up(kCall + 4, kAlign);

  // failed: the pipeline's word.
  __device__ static Origin* origins(uint32_t* failed) {
    return reinterpret_cast<Origin*>(reinterpret_cast<uint8_t*>(failed) - kFailed + kOrigins);
  }

  static constexpr int kFit = (kSharedMemory - (kAlign - 1024)) / kBytes;
  // kernels that learn the codec at run time take more registers
  static constexpr int kMost = K::S::LANES ? kMaxPipes : kMaxPipes - 1;
  static constexpr int kPipes = kFit < kMost ? kFit : kMost;
  static_assert(kPipes >= 1, "a pipeline fits");
  // Registers a thread, once senders and receiver have left theirs to the workers; where fewer warps run, all have enough.
  static constexpr bool kDivides = kPipes == kMaxPipes;
  static constexpr int kWorkerRegisters = 96, kHelperRegisters = 40;
  // whole warp groups, of four warps: a pipeline's workers are one
  static constexpr int kThreads = (kPipes * kWarps + round_up(kPipes + 1, 4)) * 32, kShared = kPipes * kBytes + kAlign - 1024;
};

// Position in a ring of SIZE buffers. parity: of the pass.
template <int SIZE>
struct Ring {
  int slot = 0;
  uint32_t parity = 0;

  __device__ void advance() {
    if (++slot == SIZE) slot = 0, parity ^= 1;
  }
};

// A pipeline on its way through a message. Chunk i of its turns is chunk id + i * stride of every part.
struct Course {
  int id, stride, count;
  uint32_t turn;  // of its first chunk

  __device__ Course(const Mesh& mesh, int id_, int stride_, int chunks)
      : id(id_), stride(stride_), count(id_ < chunks ? (chunks - id_ + stride_ - 1) / stride_ : 0),
        turn(mesh.state[kHeader + id_]) {}
  __device__ int chunk(int i) const { return id + i * stride; }
};

// Tells the host whom this rank has waited for in vain, unless it has been told of another. source: among the others.
__device__ inline void give_up(const Mesh& mesh, int kind, int source, int phase, uint32_t calls) {
  if (atomicExch(mesh.state + kBroken, 1u) != 0) return;
  volatile int64_t* const report = mesh.report;
  report[kPeer] = source + (source >= mesh.rank);
  report[kPhase] = phase;
  report[kCall] = calls;
  report[kKind] = kind;
  __threadfence_system();
  report[kTold] = 1;
}

// One packet between shared memory, where tiles may lie apart, and a slot.
template <class K>
__device__ __forceinline__ void store_packet(const Slot& to, uint32_t from, uint32_t digests) {
  if constexpr (K::kTile == K::kCodes) {
    bulk_store(to.packet, from, kWarps * (K::kCodes + K::kMeta));
  } else {
    for (int t = 0; t < kWarps; ++t) bulk_store(to.packet + t * K::kCodes, from + t * K::kTile, K::kCodes);
    if constexpr (K::kMeta > 0) bulk_store(to.packet + kWarps * K::kCodes, from + kWarps * K::kTile, kWarps * K::kMeta);
  }
  bulk_store(to.trailer, digests, kTrailer);
}

template <class K>
__device__ __forceinline__ void load_packet(uint32_t to, uint32_t digests, const Slot& from, Barrier arrived) {
  if constexpr (K::kTile == K::kCodes) {
    bulk_load(to, from.packet, kWarps * (K::kCodes + K::kMeta), arrived);
  } else {
    for (int t = 0; t < kWarps; ++t) bulk_load(to + t * K::kTile, from.packet + t * K::kCodes, K::kCodes, arrived);
    if constexpr (K::kMeta > 0) bulk_load(to + kWarps * K::kTile, from.packet + kWarps * K::kCodes, kWarps * K::kMeta, arrived);
  }
  bulk_load(digests, from.trailer, kTrailer, arrived);
}

}  // namespace taco
