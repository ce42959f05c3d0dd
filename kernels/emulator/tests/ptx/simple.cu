// Small kernels a reader can check by eye: what the first tests of the emulator run.

// y[i] = a·x[i] + y[i]
extern "C" __global__ void saxpy(float* y, const float* x, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

// out[b] = Σ of block b's part of x, by shuffles and one barrier.
extern "C" __global__ void block_sum(float* out, const float* __restrict__ x, int n) {
    __shared__ float parts[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = i < n ? x[i] : 0.0f;
    for (int s = 16; s > 0; s >>= 1) v += __shfl_down_sync(0xffffffffu, v, s);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = threadIdx.x < blockDim.x / 32 ? parts[threadIdx.x] : 0.0f;
        for (int s = 16; s > 0; s >>= 1) v += __shfl_xor_sync(0xffffffffu, v, s);
        if (threadIdx.x == 0) out[blockIdx.x] = v;
    }
}

// Lanes leave the loop at different times and divide again inside: out[i] = Collatz steps of i + 1.
extern "C" __global__ void collatz(int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned v = i + 1;
    int steps = 0;
    while (v != 1) {
        if (v % 2 == 0) v /= 2;
        else v = 3 * v + 1;
        steps++;
    }
    out[i] = steps;
}

// A switch dense enough for a jump table.
extern "C" __global__ void table(int* out, const int* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int r;
    switch (x[i]) {
        case 0: r = n * 3; break;
        case 1: r = n / 7; break;
        case 2: r = n % 11; break;
        case 3: r = n ^ 0x55; break;
        case 4: r = n << 3; break;
        case 5: r = n >> 2; break;
        case 6: r = -n; break;
        case 7: r = n & 12; break;
        default: r = 1234;
    }
    out[i] = r;
}
