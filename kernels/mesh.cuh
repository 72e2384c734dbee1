// The ranks of a collective and their workspaces, which lie in memory that every GPU of the group addresses.
//
// A workspace: uint8 [phases][pipelines][kSlots][world - 1][slot], written by the peers: the last index but one is the source, without
// the owner. A slot has a packet at its begin and the packet's trailer (packing.cuh) at its end. A rank's state, on its GPU: uint32
// [kHeader], then uint32 turns [pipelines]. A pipeline is the part of a kernel that takes every `pipelines`-th chunk of a message;
// its turns count the chunks it has ever taken, and are the same on all ranks. Turn t uses slot t % kSlots.
#pragma once

#include "ops.h"

namespace taco {

// A packet is decoded so many turns after its chunk's own was sent: the time for it to travel (README.md).
constexpr int kLag = 1;
// Whoever sends turn t has packets of turn t - 1 - kLag from every peer, which then had decoded turn t - 2 - 2 kLag.
constexpr int kSlots = 4;
static_assert(kSlots >= 2 * kLag + 2 && (kSlots & (kSlots - 1)) == 0, "see above; turns wrap around at 2^32");

constexpr int kMaxPipes = 4;  // pipelines of a block: the 16 warps that compute leave each of their threads 80 registers

// Words of the state. All calls after one that timed out give NaN; tiles that were read again (worker.cuh).
constexpr int kBroken = 0, kCalls = 1, kRepeats = 2, kHeader = 32;
constexpr int kTrailer = 32;                          // bytes of a packet's digests
constexpr int kPhases = 2;                           // packets of the tensors, packets of their sums

struct Mesh {
  uint8_t* const* workspaces;  // [world], of every rank, as this GPU addresses them
  uint32_t* state;             // of this rank
  int64_t* report;             // [kReport] in memory of the host
  int rank, world;
  int pipelines;    // that a workspace has room for
  int slot;         // bytes
  int pause;        // ns between looks at a trailer
  int64_t timeout;  // ns

  int64_t nbytes() const { return int64_t(kPhases) * pipelines * kSlots * (world - 1) * slot; }  // of a workspace
};

struct Slot {
  uint8_t *packet, *trailer;
};

// The slots that a pipeline of `owner` has in its workspace.
struct Inbox {
  uint8_t* slots;
  int sources, size;

  TACO_HD Inbox(const Mesh& mesh, int owner, int phase, int pipeline)
      : slots(mesh.workspaces[owner] + (int64_t(phase) * mesh.pipelines + pipeline) * kSlots * (mesh.world - 1) * mesh.slot),
        sources(mesh.world - 1), size(mesh.slot) {}
  // Of a source among the others of the owner.
  TACO_HD Slot slot(uint32_t turn, int source) const {
    uint8_t* const at = slots + int64_t(int(turn & (kSlots - 1)) * sources + source) * size;
    return {at, at + size - kTrailer};
  }
};

// What a rank that has waited too long tells the host, [0] last.
constexpr int kTold = 0, kPeer = 1, kPhase = 2, kCall = 3, kKind = 4, kReport = 5;

}  // namespace taco
