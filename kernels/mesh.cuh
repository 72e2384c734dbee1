// The ranks of a collective and their workspaces, which lie in memory that every GPU of the group addresses.
//
// A workspace: uint32 flags [phases][pipelines][kSlots][world - 1] | slots uint8 [phases][pipelines][kSlots][world - 1][slot], all
// written by the peers: the last index is the source, without the owner. A rank's state, on its GPU: uint32 [kHeader], then
// uint32 turns [pipelines]. A pipeline is the part of a kernel that takes every `pipelines`-th chunk of a message; its turns
// count the chunks it has ever taken, and are the same on all ranks. Turn t uses slot t % kSlots and raises its flag to t + 1.
#pragma once

#include "ops.h"

namespace taco {

// A packet is decoded so many turns after its chunk's own was sent: the time for it to travel (README.md).
constexpr int kLag = 3;
// Whoever sends turn t has packets of turn t - 1 - kLag from every peer, which then had decoded turn t - 2 - 2 kLag.
constexpr int kSlots = 8;
static_assert(kSlots >= 2 * kLag + 2 && (kSlots & (kSlots - 1)) == 0, "see above; turns wrap around at 2^32");

constexpr int kMaxPipes = 4;  // pipelines of a block: the 16 warps that compute leave each of their threads 80 registers

constexpr int kBroken = 0, kCalls = 1, kHeader = 32;  // words of the state; all calls after one that timed out give NaN
constexpr int kPhases = 2;                           // packets of the tensors, packets of their sums

struct Mesh {
  uint8_t* const* workspaces;  // [world], of every rank, as this GPU addresses them
  uint32_t* state;             // of this rank
  int64_t* report;             // [kReport] in memory of the host
  int rank, world;
  int pipelines;    // that a workspace has room for
  int slot;         // bytes
  int pause;        // ns between looks at a flag
  int64_t timeout;  // ns
  int64_t slots_at, nbytes;  // where slots begin in a workspace, and its size

  // Of the sizes and world, which are set.
  void lay_out() {
    const int64_t places = int64_t(kPhases) * pipelines * kSlots * (world - 1);
    slots_at = (4 * places + 127) / 128 * 128;
    nbytes = slots_at + places * slot;
  }
};

// The places for packets that a pipeline of `owner` has in its workspace.
struct Inbox {
  uint32_t* flags;
  uint8_t* packets;
  int sources, slot;

  TACO_HD Inbox(const Mesh& mesh, int owner, int phase, int pipeline) : sources(mesh.world - 1), slot(mesh.slot) {
    const int64_t first = (int64_t(phase) * mesh.pipelines + pipeline) * kSlots * sources;
    uint8_t* const workspace = mesh.workspaces[owner];
    flags = reinterpret_cast<uint32_t*>(workspace) + first;
    packets = workspace + mesh.slots_at + first * slot;
  }
  // Of a source among the others of the owner.
  TACO_HD int place(uint32_t turn, int source) const { return int(turn & (kSlots - 1)) * sources + source; }
  TACO_HD uint32_t* flag(int place) const { return flags + place; }
  TACO_HD uint8_t* packet(int place) const { return packets + int64_t(place) * slot; }
};

// What a rank that has waited too long tells the host, [0] last.
constexpr int kTold = 0, kPeer = 1, kPhase = 2, kCall = 3, kKind = 4, kReport = 5;

}  // namespace taco
