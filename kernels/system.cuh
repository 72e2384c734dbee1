// Between GPUs of one host: copies from shared memory into a peer's memory, and barriers in shared memory (sm_90).
#pragma once

#include "shared.cuh"

namespace taco {

__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* flag) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
  return v;
}

// A warp copies BYTES bytes, a multiple of 16 or 8, whatever others write there meanwhile, into shared memory.
template <int BYTES>
__device__ __forceinline__ void copy_now(uint32_t to, const uint8_t* from, int lane) {
  constexpr int kUnit = BYTES % 16 ? 8 : 16;
#pragma unroll 2
  for (int at = kUnit * lane; at < BYTES; at += 32 * kUnit) {
    if constexpr (kUnit == 16) {
      Word<16> v;
      asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from + at) : "memory");
      v.store(to + at);
    } else {
      Word<8> v;
      asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from + at) : "memory");
      v.store(to + at);
    }
  }
}

// Registers a thread that the compiler may use from here on, where the GPU lets warp groups divide them unequally.
template <int COUNT>
__device__ __forceinline__ void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}
template <int COUNT>
__device__ __forceinline__ void leave_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// An mbarrier. Its phases alternate in parity, the first is 0; the phase before the first counts as complete.
struct Barrier {
  uint32_t at;

  __device__ void init(uint32_t arrivals) const {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
  }
  __device__ void arrive() const { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory"); }
  // Arrives; the phase completes when `bytes` bytes of bulk copies have arrived too.
  __device__ void arrive_and_expect(uint32_t bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
  }
  // Whether the phase of this parity is complete.
  __device__ bool test(uint32_t parity) const {
    uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}\n"
        : "=r"(done)
        : "r"(at), "r"(parity)
        : "memory");
    return done != 0;
  }
  __device__ void wait(uint32_t parity) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@done bra finished;\n"
        "bra again;\n"
        "finished:\n"
        "}\n" ::"r"(at),
        "r"(parity)
        : "memory");
  }
};

// Bulk copies of multiples of 16 bytes by the copy engine of an SM, which is another proxy of memory than loads and stores:
// what those wrote to shared memory needs `publish_shared` by the writer before a barrier, what they have seen in global
// memory needs `publish_global`, before the engine may read it.
__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void publish_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

__device__ __forceinline__ void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_bulk_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All commits of this thread have been read from shared memory.
__device__ __forceinline__ void wait_bulk_reads() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// Counts towards the bytes that `arrived` expects.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, Barrier arrived) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(arrived.at)
               : "memory");
}

}  // namespace taco
