// Between GPUs of one host: flags, copies from shared memory into a peer's memory, and barriers in shared memory (sm_90).
#pragma once

#include "shared.cuh"

namespace taco {

__device__ __forceinline__ uint32_t load_acquire(const uint32_t* flag) {
  uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
  return v;
}
// To poll with: an acquire empties the L1 cache of its SM each time.
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* flag) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(flag) : "memory");
  return v;
}
// After `fence_system`, a release: whoever acquires the number sees what this thread has written or seen before the fence.
__device__ __forceinline__ void store_relaxed(uint32_t* flag, uint32_t v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(v) : "memory");
}
__device__ __forceinline__ void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Whether a flag is `turn` + 1; if so, what was written before it was raised is seen.
__device__ __forceinline__ bool raised(const uint32_t* flag, uint32_t turn) {
  return load_relaxed(flag) == turn + 1 && load_acquire(flag) == turn + 1;
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
// All but the newest N commits of this thread are written.
template <int N>
__device__ __forceinline__ void wait_bulk_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}
// Counts towards the bytes that `arrived` expects.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, Barrier arrived) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(arrived.at)
               : "memory");
}

}  // namespace taco
