// Tensor-core instructions, ldmatrix and cp.async as the real kernels use them. One warp a block unless it says
// otherwise.

// D[16×8] = A[16×8]·B[8×8] + C in tf32; row-major.
extern "C" __global__ void mma_tf32(float* d, const float* a, const float* b, const float* c) {
    int g = threadIdx.x / 4, q = threadIdx.x % 4;
    unsigned ra[4], rb[2];
    float rc[4];
    for (int i = 0; i < 4; i++) ra[i] = __float_as_uint(a[(g + 8 * (i & 1)) * 8 + q + 4 * (i >> 1)]);
    for (int i = 0; i < 2; i++) rb[i] = __float_as_uint(b[(q + 4 * i) * 8 + g]);
    for (int i = 0; i < 4; i++) rc[i] = c[(g + 8 * (i >> 1)) * 8 + 2 * q + (i & 1)];
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(rc[0]), "+f"(rc[1]), "+f"(rc[2]), "+f"(rc[3])
                 : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    for (int i = 0; i < 4; i++) d[(g + 8 * (i >> 1)) * 8 + 2 * q + (i & 1)] = rc[i];
}

// D[16×8] = A[16×16]·B[16×8] in bf16, fragments by ldmatrix from shared memory; B is [16×8] row-major, hence .trans.
extern "C" __global__ void mma_bf16(float* d, const unsigned short* a, const unsigned short* b) {
    __shared__ __align__(16) unsigned short sa[16 * 16], sb[16 * 8];
    int lane = threadIdx.x, g = lane / 4, q = lane % 4;
    for (int i = lane; i < 256; i += 32) sa[i] = a[i];
    for (int i = lane; i < 128; i += 32) sb[i] = b[i];
    __syncthreads();
    unsigned ra[4], rb[2];
    unsigned pa = (unsigned)__cvta_generic_to_shared(sa + (lane % 16) * 16 + (lane / 16) * 8);
    unsigned pb = (unsigned)__cvta_generic_to_shared(sb + (lane % 16) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3]) : "r"(pa));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(rb[0]), "=r"(rb[1]) : "r"(pb));
    float rc[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(rc[0]), "+f"(rc[1]), "+f"(rc[2]), "+f"(rc[3])
                 : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
    for (int i = 0; i < 4; i++) d[(g + 8 * (i >> 1)) * 8 + 2 * q + (i & 1)] = rc[i];
}

template <bool WAIT>
__device__ void staged(float* out, const float* x, int rounds) {
    extern __shared__ __align__(16) float buffer[];
    int t = threadIdx.x, n = blockDim.x * 4;
    unsigned base = (unsigned)__cvta_generic_to_shared(buffer);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(base + t * 16), "l"(x + t * 4));
    asm volatile("cp.async.commit_group;");
    float sum = 0;
    for (int r = 0; r < rounds; r++) {
        if (r + 1 < rounds)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(base + ((r + 1) % 2 * n + t * 4) * 4),
                         "l"(x + (r + 1) * n + t * 4));
        asm volatile("cp.async.commit_group;");
        if (WAIT) asm volatile("cp.async.wait_group 1;");
        __syncthreads();
        for (int k = 0; k < 4; k++) sum += buffer[r % 2 * n + k * blockDim.x + t];
        __syncthreads();
    }
    asm volatile("cp.async.wait_all;");
    out[t] = sum;
}
// Two buffers filled by cp.async in turns; out[t] = Σ over rounds of the four values of thread t.
extern "C" __global__ void staged_sum(float* out, const float* x, int rounds) { staged<true>(out, x, rounds); }
// The same without the wait: must be reported.
extern "C" __global__ void staged_sum_no_wait(float* out, const float* x, int rounds) { staged<false>(out, x, rounds); }
