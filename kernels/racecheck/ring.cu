// A textbook ring of shared-memory buffers, to see what compute-sanitizer's racecheck says of it (kernels/README.md).
//
//   nvcc -arch=sm_90a ring.cu -o ring && compute-sanitizer --tool racecheck ./ring
//
// One lane a pipeline brings 4 KiB tiles with bulk copies, 128 threads a pipeline read them. `full` counts the bytes that
// arrive, `empty` the readers that are done. With one bringing lane racecheck reports nothing; with four lanes of one
// warp, each for a pipeline of its own, it reports hazards on the buffers. Each sum is right: 16 words of 0x01010101.
#include <cstdint>
#include <cstdio>

constexpr int TILE = 4096, TILES = 8, PIPES = 4, READERS = 128;

__device__ uint32_t shared(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ void init(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}

__device__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ bool passed(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{.reg .pred p;\n"
        "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done;
}

__device__ void bring(uint32_t to, const uint8_t* from, uint32_t full) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full), "n"(TILE) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
        "n"(TILE), "r"(full) : "memory");
}

template <int LANES>
__global__ void ring(const uint8_t* source, uint32_t* sums) {
    __shared__ __align__(128) uint8_t buffer[PIPES][2][TILE];
    __shared__ __align__(8) uint64_t full[PIPES][2], empty[PIPES][2];
    const bool reads = threadIdx.x < PIPES * READERS;
    const int pipe = reads ? threadIdx.x / READERS : threadIdx.x % 32;
    const bool brings = !reads && pipe < LANES;
    if (brings) {
        for (int slot = 0; slot < 2; ++slot) {
            init(shared(&full[pipe][slot]), 1);
            init(shared(&empty[pipe][slot]), READERS);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (!reads) {
        for (int tile = brings ? 0 : TILES; __any_sync(~0u, tile < TILES);) {
            const int slot = tile & 1;
            if (tile < TILES && passed(shared(&empty[pipe][slot]), ((tile >> 1) & 1) ^ 1)) {
                bring(shared(buffer[pipe][slot]), source + TILE * tile, shared(&full[pipe][slot]));
                ++tile;
            }
        }
        return;
    }
    if (pipe >= LANES) return;
    uint32_t sum = 0;
    for (int tile = 0; tile < TILES; ++tile) {
        const int slot = tile & 1;
        while (!passed(shared(&full[pipe][slot]), (tile >> 1) & 1)) {
        }
        const auto* words = reinterpret_cast<const volatile uint32_t*>(buffer[pipe][slot]);
        for (int i = 0; i < 2; ++i) sum += words[threadIdx.x % READERS + READERS * i];
        arrive(shared(&empty[pipe][slot]));
    }
    sums[threadIdx.x] = sum;
}

int main() {
    uint8_t* source;
    uint32_t *sums, found[PIPES * READERS];
    cudaMalloc(&source, TILE * TILES);
    cudaMemset(source, 1, TILE * TILES);
    cudaMalloc(&sums, sizeof found);
    ring<1><<<1, PIPES * READERS + 32>>>(source, sums);
    cudaDeviceSynchronize();
    ring<PIPES><<<1, PIPES * READERS + 32>>>(source, sums);
    cudaMemcpy(found, sums, sizeof found, cudaMemcpyDeviceToHost);
    for (uint32_t sum : found)
        if (sum != 16 * 0x01010101u) return printf("wrong sum %x\n", sum), 1;
    return printf("%s\n", cudaGetErrorString(cudaGetLastError())), 0;
}
