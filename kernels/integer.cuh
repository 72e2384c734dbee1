// The transform of integer codes in half precision: integers up to 2048 are exact there, so the first levels of butterflies
// work on two numbers an instruction and give the bits of the fp32 butterflies, which are exact too, in any order.
#pragma once

#include "payload.cuh"
#include "rotate.cuh"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

namespace taco {

// Only for a rotation of the whole group by a team whose lanes the compiler knows.
template <class P, class S>
struct IntegerTransform {
  static constexpr bool kFits = false;
};

#if defined(__CUDACC__)

template <int Bits, class S>
struct IntegerTransform<Integer<Bits>, S> {
  static constexpr int V = S::V, LANES = S::LANES;
  static constexpr bool kFits = LANES > 0 && S::SIZE == 8 * V * LANES;

  // On a GPU only: the host's shapes do not fit. Codes -> transformed integers, fp32. Halves 4w + j: a pair of vector w that is kPair apart.
  TACO_HD static void run(const Codes (&codes)[V], typename S::Lanes team, float (&v)[8 * V]) {
#if defined(__CUDA_ARCH__)
    static_assert((128 >> (8 - Bits)) * kHalfLevels <= 2048, "exact");
    __half2 h[4 * V];
#pragma unroll
    for (int w = 0; w < V; ++w) unpack(codes[w], h + 4 * w);
    for_masks(LANES, [&](int mask) {
      __half2 sign = __float2half2_rn(team.lane & mask ? -1.0f : 1.0f);
#pragma unroll
      for (int i = 0; i < 4 * V; ++i) h[i] = __hfma2(h[i], sign, exchange(h[i], mask));
    });
#pragma unroll
    for (int stride = 4; stride < 4 * V; stride *= 2) level(h, stride);
    if constexpr (kInVector) {
      level(h, 1);
      level(h, 2);
    }
#pragma unroll
    for (int i = 0; i < 4 * V; ++i) {
      float2 pair = __half22float2(h[i]);
      int first = 8 * (i / 4) + first_of(i % 4);
      v[first] = pair.x;
      v[first + kPair] = pair.y;
    }
    if constexpr (!kInVector) {
      butterflies_in_lane(v, 1);
      butterflies_in_lane(v, 2);
      butterflies_in_lane(v, 4);
    } else {
      butterflies_in_lane(v, kPair);
    }
#endif
  }

 private:
  // 8 bits leave room for 4 levels, those of lanes and of vectors; 6 bits for 6 and 4 bits for 8: two within a vector too.
  static constexpr bool kInVector = Bits < 8;
  static constexpr int kHalfLevels = LANES * V * (kInVector ? 4 : 1);
  static constexpr int kPair = Bits == 8 ? 1 : (Bits == 6 ? 2 : 4);

  // Element of the lower half of half j; level(h, 1) and level(h, 2) are the other two strides within a vector.
  TACO_HD static constexpr int first_of(int j) {
    return Bits == 8 ? 2 * j : (Bits == 6 ? (j & 1) + 4 * (j >> 1) : j);
  }

#if defined(__CUDACC__)
  __device__ static __half2 half2_of(uint32_t bits) {
    __half2 h;
    std::memcpy(&h, &bits, sizeof h);
    return h;
  }

  __device__ static void level(__half2 (&h)[4 * V], int stride) {
#pragma unroll
    for (int i = 0; i < 4 * V; ++i) {
      if (i & stride) continue;
      __half2 a = h[i], b = h[i + stride];
      h[i] = __hadd2(a, b);
      h[i + stride] = __hsub2(a, b);
    }
  }

  // 1024 + n, made of bits, less 1024 + 2^(Bits - 1).
  __device__ static void unpack(Codes codes, __half2* h) {
    const __half2 offset = half2_of(Bits == 8 ? 0x64806480u : (Bits == 6 ? 0x64206420u : 0x64086408u));
    if constexpr (Bits == 4) {
      uint32_t word = codes.low ^ 0x88888888u;
#pragma unroll
      for (int j = 0; j < 4; ++j) h[j] = __hsub2(half2_of(masked_or(word >> 4 * j, 0x000f000fu, 0x64006400u)), offset);
    } else {
      uint32_t a, b;
      Integer<Bits>::offset_bytes(codes, a, b);
      // 8 bits: codes (0, 1), (2, 3), (4, 5), (6, 7); 6 bits: (0, 2), (1, 3), (4, 6), (5, 7)
      uint32_t second = Bits == 8 ? a : b, third = Bits == 8 ? b : a;
      h[0] = __hsub2(half2_of(pick_bytes(a, 0x64646464u, 0x4140)), offset);
      h[1] = __hsub2(half2_of(pick_bytes(second, 0x64646464u, Bits == 8 ? 0x4342 : 0x4140)), offset);
      h[2] = __hsub2(half2_of(pick_bytes(third, 0x64646464u, Bits == 8 ? 0x4140 : 0x4342)), offset);
      h[3] = __hsub2(half2_of(pick_bytes(b, 0x64646464u, 0x4342)), offset);
    }
  }
#endif
};

#endif

}  // namespace taco
