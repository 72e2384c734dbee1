// Which tiles get INT3: those with the `narrow` smallest keys of a message, the earlier tile first when keys are equal.
//
// A radix select over all blocks for the `narrow`-th smallest key: 31-bit keys in digits of 11, 10 and 10 bits, the
// highest first, because a histogram of 2048 bins fits shared memory and three waits of the grid are few. Each pass
// counts one digit of the keys that share the wanted key's higher digits.
#pragma once

#include "portable.cuh"

namespace taco {

constexpr int kPasses = 3;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kSelectThreads = 256;

TACO_HD int digit_shift(int pass) { return pass == 0 ? 20 : (pass == 1 ? 10 : 0); }

// After some passes: the wanted key's digits so far, and how many keys that have them are among the smallest.
struct Selected {
  uint32_t prefix;
  uint32_t count;
};

// What the encode kernel keeps in device memory for each message.
struct SelectState {
  uint32_t histograms[kPasses][kBins];
  Selected selected[kPasses];
};

// Tiles of a range by their key: below the wanted one, and equal to it.
struct Classes {
  uint32_t below, equal;
};

constexpr uint8_t kClassBelow = 1, kClassEqual = 2;

#if defined(__CUDACC__)

__device__ __forceinline__ uint32_t warp_sum(uint32_t value) {
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  return value;
}

// Sum over the block's threads, in all of them. room: a word a warp in shared memory.
__device__ __forceinline__ uint32_t block_sum(uint32_t value, uint32_t* room) {
  value = warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();
  uint32_t sum = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) sum += room[i];
  return sum;
}

// The next digit of the wanted key, from the histogram of its pass. All threads of a block of kSelectThreads call it.
__device__ __forceinline__ Selected select_digit(Selected before, const uint32_t* histogram, int pass) {
  constexpr int kEach = kBins / kSelectThreads, kWarps = kSelectThreads / 32;
  __shared__ uint32_t room[kWarps];
  __shared__ Selected found;
  uint32_t bins[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum += bins[i] = histogram[threadIdx.x * kEach + i];
  uint32_t upto = sum;
#pragma unroll
  for (int delta = 1; delta < 32; delta *= 2) {
    uint32_t left = __shfl_up_sync(0xffffffffu, upto, delta);
    if (int(threadIdx.x % 32) >= delta) upto += left;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 31) room[threadIdx.x / 32] = upto;
  __syncthreads();
  for (unsigned i = 0; i < threadIdx.x / 32; ++i) upto += room[i];
  uint32_t smaller = upto - sum;
  if (smaller < before.count && before.count <= upto) {
    int digit = 0;
    while (digit < kEach - 1 && smaller + bins[digit] < before.count) smaller += bins[digit++];
    found.prefix = before.prefix << (pass == 0 ? kDigitBits : kDigitBits - 1) | (threadIdx.x * kEach + digit);
    found.count = before.count - smaller;
  }
  __syncthreads();
  return found;
}

#endif

}  // namespace taco
