// Arithmetic families, one kernel each; every result is compared with Rust's own.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void floats(float* out, const float* x, const float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i], b = y[i];
    float* o = out + (size_t)i * 24;
    o[0] = a + b; o[1] = a - b; o[2] = a * b; o[3] = a / b;
    o[4] = fmaf(a, b, 1.5f); o[5] = sqrtf(fabsf(a)); o[6] = fminf(a, b); o[7] = fmaxf(a, b);
    o[8] = expf(a); o[9] = logf(fabsf(a)); o[10] = exp2f(a); o[11] = log2f(fabsf(b));
    o[12] = rsqrtf(fabsf(a)); o[13] = floorf(a); o[14] = ceilf(a); o[15] = truncf(a);
    o[16] = rintf(a); o[17] = __expf(a); o[18] = __logf(fabsf(b)); o[19] = __fdividef(a, b);
    o[20] = tanhf(a); o[21] = log1pf(fabsf(a)); o[22] = expm1f(a); o[23] = copysignf(a, b);
}

extern "C" __global__ void doubles(double* out, const double* x, const double* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double a = x[i], b = y[i];
    double* o = out + (size_t)i * 12;
    o[0] = a + b; o[1] = a - b; o[2] = a * b; o[3] = a / b;
    o[4] = fma(a, b, 1.5); o[5] = sqrt(fabs(a)); o[6] = fmin(a, b); o[7] = fmax(a, b);
    o[8] = exp(a); o[9] = log(fabs(a)); o[10] = (double)(float)a; o[11] = floor(b);
}

extern "C" __global__ void ints(int* out, const int* x, const int* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int a = x[i], b = y[i];
    unsigned ua = a, ub = b;
    int* o = out + (size_t)i * 32;
    o[0] = a + b; o[1] = a - b; o[2] = a * b; o[3] = b ? a / b : 0; o[4] = b ? a % b : 0;
    o[5] = ub ? ua / ub : 0; o[6] = ub ? ua % ub : 0; o[7] = a & b; o[8] = a | b; o[9] = a ^ b;
    o[10] = a << (b & 31); o[11] = a >> (b & 31); o[12] = ua >> (b & 31); o[13] = min(a, b); o[14] = max(a, b);
    o[15] = min(ua, ub); o[16] = max(ua, ub); o[17] = __popc(a); o[18] = __clz(a); o[19] = __brev(a);
    o[20] = __mulhi(a, b); o[21] = __umulhi(ua, ub); o[22] = abs(a); o[23] = __ffs(a);
    o[24] = __funnelshift_l(ua, ub, a & 31); o[25] = __funnelshift_r(ua, ub, b & 31); o[26] = __byte_perm(a, b, 0x5140);
    o[27] = (a & b) ^ (~a | 7); o[28] = (ua >> 5) & 0x7f; o[29] = (a << 20) >> 25; o[30] = (short)a;
    o[31] = (signed char)b;
}

extern "C" __global__ void longs(long long* out, const long long* x, const long long* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    long long a = x[i], b = y[i];
    unsigned long long ua = a, ub = b;
    long long* o = out + (size_t)i * 20;
    o[0] = a + b; o[1] = a - b; o[2] = a * b; o[3] = b ? a / b : 0; o[4] = b ? a % b : 0;
    o[5] = ub ? ua / ub : 0; o[6] = a & b; o[7] = a | ~b; o[8] = a << (b & 63); o[9] = a >> (b & 63);
    o[10] = ua >> (b & 63); o[11] = min(a, b); o[12] = max(ua, ub); o[13] = __popcll(a); o[14] = __clzll(a);
    o[15] = (long long)(int)a * (int)b; o[16] = (unsigned long long)(unsigned)a * (unsigned)b; o[17] = __mul64hi(a, b);
    o[18] = a < b ? a : -b; o[19] = (long long)__brevll(ua);
}

extern "C" __global__ void conversions(double* out, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i];
    double* o = out + (size_t)i * 16;
    o[0] = (int)a; o[1] = (unsigned)fabsf(a); o[2] = (double)(long long)a; o[3] = (float)(int)a;
    o[4] = __float2int_rn(a); o[5] = __float2int_rd(a); o[6] = __float2int_ru(a); o[7] = (unsigned char)(int)fabsf(a);
    o[8] = __bfloat162float(__float2bfloat16(a)); o[9] = __half2float(__float2half(a));
    __nv_bfloat162 p = __floats2bfloat162_rn(a, -a);
    o[10] = __bfloat162float(p.x); o[11] = __bfloat162float(p.y);
    unsigned t; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(t) : "f"(a));
    o[12] = __uint_as_float(t); o[13] = (double)__float2ll_rn(a * 1e6f); o[14] = (float)(unsigned)(i * 2654435761u);
    o[15] = (short)(int)a;
}

// Whole-warp operations; one warp a block.
extern "C" __global__ void warps(int* out, const int* x) {
    int lane = threadIdx.x, v = x[blockIdx.x * 32 + lane];
    int* o = out + (blockIdx.x * 32 + lane) * 12;
    o[0] = __shfl_sync(~0u, v, (lane * 7) & 31);
    o[1] = __shfl_up_sync(~0u, v, 3);
    o[2] = __shfl_down_sync(~0u, v, 5, 16);
    o[3] = __shfl_xor_sync(~0u, v, 9);
    o[4] = __ballot_sync(~0u, v > 0);
    o[5] = __any_sync(~0u, v == 17);
    o[6] = __all_sync(~0u, v < 1000000);
    o[7] = __reduce_add_sync(~0u, v);
    o[8] = __reduce_min_sync(~0u, v);
    o[9] = (int)__reduce_max_sync(~0u, (unsigned)v);
    o[10] = (int)__reduce_xor_sync(~0u, (unsigned)v);
    if (lane & 1) o[11] = (int)__activemask();
    else o[11] = -1;
}

// Atomics on counters; totals do not depend on order.
extern "C" __global__ void atomics(int* sums, unsigned long long* big, float* f, const int* x, int n) {
    __shared__ int local_sum;
    if (threadIdx.x == 0) local_sum = 0;
    __syncthreads();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        int v = x[i];
        atomicAdd(&local_sum, v);
        atomicMin(&sums[1], v); atomicMax(&sums[2], v); atomicXor(&sums[3], v);
        atomicAdd(big, (unsigned long long)v * v);
        atomicAdd(f, 1.0f);
        int old = sums[4 + 0 * i], seen;
        (void)old;
        do { seen = atomicCAS(&sums[5], 0, 0); } while (atomicCAS(&sums[5], seen, seen + 1) != seen);
    }
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&sums[0], local_sum);
}

// A local array indexed at run time lives in local memory.
extern "C" __global__ void locals(float* out, const int* index, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a[16];
    for (int k = 0; k < 16; k++) a[k] = i * 100 + index[(i + k) % n];
    out[i] = a[index[i] & 15];
}
