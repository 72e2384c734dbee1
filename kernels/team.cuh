// How a group lies in registers: V vectors of 8 consecutive coefficients in each lane of a team of neighbouring lanes.
//
// Coefficient r of vector w of lane l is number (w * lanes + l) * 8 + r of its group, G = 8 * V * lanes of them: the team's
// accesses to a vector are contiguous, 16 bytes a lane of a 16-bit tensor and 8 of an 8-bit plane. On the host a team is
// one lane, V = G / 8, and the same source computes the same bits.
#pragma once

#include "portable.cuh"

namespace taco {

// LANES: a power of two up to 32, or 0: known at run time only, so that one kernel serves several group sizes.
template <int LANES>
struct Team {
  static constexpr int lanes = LANES;
  int lane;

  TACO_HD Team(int lane_, int) : lane(lane_) {}
  TACO_HD int vector(int w) const { return w * lanes + lane; }
};

template <>
struct Team<0> {
  int lane, lanes;

  TACO_HD Team(int lane_, int lanes_) : lane(lane_), lanes(lanes_) {}
  TACO_HD int vector(int w) const { return w * lanes + lane; }
};

// body(mask) for mask = 1, 2, 4, ... below limit, unrolled; limit is the same for all lanes.
template <class Body>
TACO_HD void for_masks(int limit, Body body) {
#pragma unroll
  for (int level = 0; level < 5; ++level) {
    if ((1 << level) >= limit) break;
    body(1 << level);
  }
}

}  // namespace taco
