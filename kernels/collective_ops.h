// What the launchers of the fused collectives offer to the binding.
#pragma once

#include "mesh.cuh"

namespace taco {

enum class Collective : int { kOneShot = 0, kTwoShot = 1, kReduceScatter = 2, kAllGather = 3 };

constexpr int kPlainGroup = 128;  // elements that lie together where there is no codec

// A tensor of `total` elements in parts of `part`, the last shorter or empty: one part for a one-shot all-reduce, else one
// a rank. spec: of the codec and dtype; of no codec: the dtype and kPlainGroup. aligned: every part starts at a multiple of 16
// bytes. seeds: of the packets for each part; behind them, that of a packet of sums.
struct Message {
  Spec spec;
  int64_t total, part;
  int chunks;      // of a part; the launcher sets it
  bool whole_gpu;  // no SM is left for others: the next kernel's blocks take none from them by starting early; the launcher sets it
  const uint8_t* x;
  uint8_t* out;
  bool in_aligned, out_aligned;
  Seeds seeds;
};

// One launch on `stream`, on at most `sms` SMs of the current device. Every rank must make the same calls of a workspace in the
// same order. *_preset: false in *found where the codec has no kernel of its own.
cudaError_t collective_preset(Collective collective, const Mesh& mesh, const Message& message, int sms, cudaStream_t stream,
                              bool* found);
cudaError_t collective_16bit(Collective collective, const Mesh& mesh, const Message& message, int sms, cudaStream_t stream);
cudaError_t collective_32bit(Collective collective, const Mesh& mesh, const Message& message, int sms, cudaStream_t stream);
cudaError_t collective_plain(Collective collective, const Mesh& mesh, const Message& message, int sms, cudaStream_t stream);

// Bytes that a slot needs, whatever the dtype; and those of a chunk's packet, trailer included, as it travels.
int64_t collective_slot(const Spec& spec, bool plain);
int64_t collective_packet(const Spec& spec, bool plain);
int64_t collective_packet_of_preset(const Spec& spec);  // 0: it has no kernel of its own

}  // namespace taco
