// Two plain matrix products, to time the interpreter by: c[n×n] = a[n×k]·b[k×n], row-major, sizes multiples of 64.

// fp32. One block of 256 threads owns 32×32 of c, a thread four of them.
extern "C" __global__ void product_fp32(float* c, const float* a, const float* b, int n, int k) {
    __shared__ float sa[32][33], sb[32][33];
    int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
    int row = blockIdx.x / (n / 32) * 32, col = blockIdx.x % (n / 32) * 32;
    float s[4] = {0, 0, 0, 0};
    for (int kk = 0; kk < k; kk += 32) {
        for (int i = 0; i < 4; i++) {
            sa[ty + 8 * i][tx] = a[(row + ty + 8 * i) * k + kk + tx];
            sb[ty + 8 * i][tx] = b[(kk + ty + 8 * i) * n + col + tx];
        }
        __syncthreads();
        for (int q = 0; q < 32; q++)
            for (int i = 0; i < 4; i++) s[i] += sa[ty + 8 * i][q] * sb[q][tx];
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) c[(row + ty + 8 * i) * n + col + tx] = s[i];
}

// tf32 tensor cores. One block of 128 threads owns 64×64 of c, a warp 32×32.
extern "C" __global__ void product_tf32(float* c, const float* a, const float* b, int n, int k) {
    __shared__ float sa[64][36], sb[32][72];
    int t = threadIdx.x, lane = t % 32, w = t / 32, g = lane / 4, q = lane % 4;
    int row = blockIdx.x / (n / 64) * 64, col = blockIdx.x % (n / 64) * 64, wr = (w / 2) * 32, wc = (w % 2) * 32;
    float acc[2][4][4] = {};
    for (int kk = 0; kk < k; kk += 32) {
        for (int i = t; i < 64 * 32; i += 128) sa[i / 32][i % 32] = a[(row + i / 32) * k + kk + i % 32];
        for (int i = t; i < 32 * 64; i += 128) sb[i / 64][i % 64] = b[(kk + i / 64) * n + col + i % 64];
        __syncthreads();
        for (int k8 = 0; k8 < 32; k8 += 8) {
            unsigned ra[2][4], rb[4][2];
            for (int m = 0; m < 2; m++)
                for (int i = 0; i < 4; i++)
                    ra[m][i] = __float_as_uint(sa[wr + m * 16 + g + 8 * (i & 1)][k8 + q + 4 * (i >> 1)]);
            for (int j = 0; j < 4; j++)
                for (int i = 0; i < 2; i++) rb[j][i] = __float_as_uint(sb[k8 + q + 4 * i][wc + j * 8 + g]);
            for (int m = 0; m < 2; m++)
                for (int j = 0; j < 4; j++)
                    asm volatile(
                        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
                        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                        : "+f"(acc[m][j][0]), "+f"(acc[m][j][1]), "+f"(acc[m][j][2]), "+f"(acc[m][j][3])
                        : "r"(ra[m][0]), "r"(ra[m][1]), "r"(ra[m][2]), "r"(ra[m][3]), "r"(rb[j][0]), "r"(rb[j][1]));
        }
        __syncthreads();
    }
    for (int m = 0; m < 2; m++)
        for (int j = 0; j < 4; j++)
            for (int i = 0; i < 4; i++)
                c[(row + wr + m * 16 + g + 8 * (i >> 1)) * n + col + wc + j * 8 + 2 * q + (i & 1)] = acc[m][j][i];
}
