// Accesses to shared memory by 32-bit address, and asynchronous copies into it.
#pragma once

#include "portable.cuh"

namespace taco {

__device__ __forceinline__ uint32_t shared_address(void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// The same number, but computed once: the compiler would rather compute it again in every step of a loop.
__device__ __forceinline__ uint32_t keep(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

template <class T>
__device__ __forceinline__ T* keep(T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

template <int BYTES>
struct Word;
template <>
struct Word<16> {
  uint32_t x, y, z, w;
  __device__ static Word load(uint32_t at) {
    Word v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
  }
  __device__ void store(uint32_t at) const {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
  }
};
template <>
struct Word<8> {
  uint32_t x, y;
  __device__ static Word load(uint32_t at) {
    Word v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
  }
  __device__ void store(uint32_t at) const { asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory"); }
};
template <>
struct Word<4> {
  uint32_t x;
  __device__ static Word load(uint32_t at) {
    Word v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v.x) : "r"(at) : "memory");
    return v;
  }
  __device__ void store(uint32_t at) const { asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory"); }
};
template <>
struct Word<2> {
  uint16_t x;
  __device__ static Word load(uint32_t at) {
    Word v;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v.x) : "r"(at) : "memory");
    return v;
  }
  __device__ void store(uint32_t at) const { asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(x) : "memory"); }
};

__device__ __forceinline__ void copy_async_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_async_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the newest N commits have arrived.
template <int N>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

}  // namespace taco
