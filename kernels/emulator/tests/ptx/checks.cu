// Pairs of kernels: one as it should be, and one with a mistake that the emulator must report.

// out[i] = the value of the neighbour, through shared memory.
template <bool BARRIER>
__device__ void neighbours(float* out, const float* x) {
    __shared__ float tile[256];
    int t = threadIdx.x;
    tile[t] = x[blockIdx.x * 256 + t];
    if (BARRIER) __syncthreads();
    out[blockIdx.x * 256 + t] = tile[(t + 32) % 256];
}
extern "C" __global__ void neighbours_ok(float* out, const float* x) { neighbours<true>(out, x); }
extern "C" __global__ void neighbours_no_barrier(float* out, const float* x) { neighbours<false>(out, x); }

// A tile used twice: what was read must not be overwritten before all have read.
template <bool BARRIER>
__device__ void reused(float* out, const float* x) {
    __shared__ float tile[256];
    int t = threadIdx.x;
    float sum = 0;
    for (int r = 0; r < 2; r++) {
        tile[t] = x[r * 256 + t];
        __syncthreads();
        sum += tile[255 - t];
        if (BARRIER) __syncthreads();
    }
    out[t] = sum;
}
extern "C" __global__ void reused_ok(float* out, const float* x) { reused<true>(out, x); }
extern "C" __global__ void reused_no_barrier(float* out, const float* x) { reused<false>(out, x); }

// The first half of the block makes, the second takes; they meet at barriers 1 (full) and 2 (empty). The mistake: the
// slot is given back before it is read.
template <bool EARLY>
__device__ void producer(float* out, const float* x, int rounds) {
    __shared__ float slot[64];
    int t = threadIdx.x % 64;
    if (threadIdx.x < 64) {
        for (int r = 0; r < rounds; r++) {
            if (r > 0) asm volatile("bar.sync 2, 128;" ::: "memory");
            slot[t] = x[r * 64 + t];
            asm volatile("bar.arrive 1, 128;" ::: "memory");
        }
    } else {
        float sum = 0;
        for (int r = 0; r < rounds; r++) {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            if (EARLY && r + 1 < rounds) asm volatile("bar.arrive 2, 128;" ::: "memory");
            sum += slot[63 - t];
            if (!EARLY && r + 1 < rounds) asm volatile("bar.arrive 2, 128;" ::: "memory");
        }
        out[t] = sum;
    }
}
extern "C" __global__ void producer_ok(float* out, const float* x, int rounds) { producer<false>(out, x, rounds); }
extern "C" __global__ void producer_too_early(float* out, const float* x, int rounds) {
    producer<true>(out, x, rounds);
}

// Lanes of a warp exchange values through shared memory.
template <bool SYNC>
__device__ void lanes(float* out, const float* x) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    volatile float* v = tile;
    v[t] = x[t];
    if (SYNC) __syncwarp();
    float y = v[t ^ 1];
    if (SYNC) __syncwarp();
    v[t] = y + 1;
    out[t] = v[t];
}
extern "C" __global__ void lanes_ok(float* out, const float* x) { lanes<true>(out, x); }
extern "C" __global__ void lanes_no_sync(float* out, const float* x) { lanes<false>(out, x); }

// Reads one element past what it should if `n` is one too large.
extern "C" __global__ void copy(float* out, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i];
}

// A pair of floats at an address that may be odd.
extern "C" __global__ void pairs(float2* out, const char* x, int shift) {
    out[threadIdx.x] = ((const float2*)(x + shift))[threadIdx.x];
}

// Shared memory that only the lower half of the block writes.
extern "C" __global__ void half_written(float* out, int readers) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    if (t < 32) tile[t] = t;
    __syncthreads();
    if (t < readers) out[t] = tile[t];
}

// A barrier that only some lanes of a warp come to.
extern "C" __global__ void half_barrier(float* out, int n) {
    if ((int)threadIdx.x < n) asm volatile("bar.sync 0;");
    out[threadIdx.x] = 1;
}

// Lanes above n leave before the others shuffle.
extern "C" __global__ void lonely_shuffle(float* out, int n) {
    float v = threadIdx.x;
    if ((int)threadIdx.x >= n) return;
    out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, v, 1);
}

// Each block writes its part; with `overlap`, one element of the next one's too.
extern "C" __global__ void block_write(float* out, int overlap) {
    int i = blockIdx.x * 32 + threadIdx.x;
    out[i] = 1;
    if (threadIdx.x < overlap) out[i + 32] = 2;
}

// Each block reads what the block before it wrote.
extern "C" __global__ void block_chain(float* x) {
    int i = blockIdx.x * 32 + threadIdx.x;
    x[i + 32] = x[i] + 1;
}

// Warps of a block exchange values through global memory.
template <bool BARRIER>
__device__ void exchange(float* out, float* scratch) {
    int t = threadIdx.x;
    scratch[t] = t;
    if (BARRIER) __syncthreads();
    out[t] = ((volatile float*)scratch)[(t + 32) % 64];
}
extern "C" __global__ void exchange_ok(float* out, float* scratch) { exchange<true>(out, scratch); }
extern "C" __global__ void exchange_no_barrier(float* out, float* scratch) { exchange<false>(out, scratch); }

// A loop without an end.
extern "C" __global__ void forever(volatile int* flag) {
    while (*flag == 0) {}
}

// Dynamic shared memory, all of it.
extern "C" __global__ void big_shared(float* out, int n) {
    extern __shared__ float room[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) room[i] = i;
    __syncthreads();
    out[threadIdx.x] = room[n - 1 - threadIdx.x];
}

// A table in constant memory and a counter in global memory.
__constant__ float table[4] = {1.5f, 2.5f, -3.5f, 4.5f};
__device__ int total = 7;
extern "C" __global__ void variables(float* out) {
    out[threadIdx.x] = table[threadIdx.x % 4];
    atomicAdd(&total, 1);
}
