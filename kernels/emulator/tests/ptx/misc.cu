// What the other files leave out: rarer instructions, narrow types, generic pointers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

// Barriers that count and vote; 96 threads.
extern "C" __global__ void counting(int* out, const int* x) {
    int t = threadIdx.x, v = x[t];
    out[t * 3] = __syncthreads_count(v > 10);
    out[t * 3 + 1] = __syncthreads_and(v > -1000);
    out[t * 3 + 2] = __syncthreads_or(v == 7);
}

extern "C" __global__ void matching(unsigned* out, const int* x) {
    int lane = threadIdx.x, all;
    out[lane * 3] = __match_any_sync(~0u, x[lane]);
    out[lane * 3 + 1] = __match_all_sync(~0u, x[lane] / 1000, &all);
    out[lane * 3 + 2] = all;
}

// Arithmetic on halves.
extern "C" __global__ void halves(float* out, const float* x, const float* y, int n) {
    int i = threadIdx.x;
    if (i >= n) return;
    __nv_bfloat162 a = __floats2bfloat162_rn(x[i], y[i]), b = __floats2bfloat162_rn(y[i], x[i]);
    __nv_bfloat162 c = __hfma2(a, b, a);
    __half2 h = __floats2half2_rn(x[i], y[i]), g = __floats2half2_rn(y[i], x[i]);
    __half2 s = __hadd2(h, g), p = __hmul2(h, g);
    out[i * 6] = __low2float(c); out[i * 6 + 1] = __high2float(c);
    out[i * 6 + 2] = __low2float(s); out[i * 6 + 3] = __high2float(s);
    out[i * 6 + 4] = __low2float(p); out[i * 6 + 5] = __half2float(__hmax(__low2half(h), __high2half(h)));
}

// Narrow loads and stores, signed and not.
extern "C" __global__ void bytes(int* out, signed char* s, unsigned char* u, short* h) {
    int t = threadIdx.x;
    out[t] = s[t] * 1000 + u[t] + h[t];
    s[t] = (signed char)(t - 5); u[t] = (unsigned char)(t * 9); h[t] = (short)(t * -300);
}

// A pointer that is known only when it runs: to shared memory for some lanes, to global memory for others.
extern "C" __global__ void generic(float* out, float* x) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = t;
    __syncthreads();
    float* p = x[t] > 0 ? &tile[t] : &x[t];
    asm volatile("" : "+l"(p));
    *p += 0.5f;
    out[t] = *p;
}

extern "C" __global__ void more_atomics(unsigned* a, double* d, unsigned long long* b) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    atomicInc(&a[0], 9); atomicDec(&a[1], 9);
    atomicOr(&a[2], 1u << (t % 32)); atomicAnd(&a[3], ~(1u << (t % 32)));
    if (t == 40) atomicExch(&a[4], 77);
    atomicSub(&a[5], 2);
    atomicAdd(d, 0.25);
    atomicMax(b, (unsigned long long)t * 10000000000ull);
}

// Indices in three dimensions, all of them.
extern "C" __global__ void indices(int* out) {
    int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned lt; asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lt));
    out[b * blockDim.x * blockDim.y * blockDim.z + t] = b * 1000 + t + (__popc(lt) == t % 32 ? 0 : 1000000);
}

// A switch of predicates and a loop that some lanes leave in the middle.
extern "C" __global__ void mixed(int* out, const int* x, int n) {
    int i = threadIdx.x, sum = 0;
    for (int k = 0; k < n; k++) {
        int v = x[k];
        if (v < 0 || (v > 50 && i % 3 == 0)) continue;
        if (v == i) break;
        bool odd = (v & 1) != (i & 1), big = v > i;
        sum += odd ^ big ? v : -1;
        sum += __popc(__ballot_sync(__activemask(), odd && !big)) * 0;
    }
    out[i] = sum;
}

extern "C" __global__ void asserts(const int* x) { assert(x[threadIdx.x] < 100); }

extern "C" __global__ void dots(int* out, const int* x, const int* y) {
    int t = threadIdx.x;
    out[t * 4] = __dp4a(x[t], y[t], 5);
    out[t * 4 + 1] = (int)__sad(x[t], y[t], 3u);
    out[t * 4 + 2] = (int)__dp4a((unsigned)x[t], (unsigned)y[t], 1u);
    out[t * 4 + 3] = (int)__vadd2(x[t], y[t]);
}
