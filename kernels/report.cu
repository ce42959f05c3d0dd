// What a pass found at the root.
//
//   root_finish    log p[r] = ln v + e·ln 2; which rows are degenerate; the root's flow   a thread owns a row
//   batch_report   weighted sums over the rows, one block, fixed order                    a thread owns every 256th row
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(256)
    root_finish(Pass pass, Buffer value, Buffer flow, const float* __restrict__ weights, double gain,
                double* log_likelihoods) {
    i32 row = blockIdx.x * 256 + threadIdx.x;
    if (row >= pass.rows) return;
    float root = pass.values[row_at(value, pass.capacity, row)];
    Scale scale = pass.scales[scale_at(value, pass.capacity, row)];
    bool impossible = root == 0.0f || scale.exponent <= ZERO;
    log_likelihoods[row] = impossible ? -INF : log((double)root) + (double)scale.exponent * LN_2;
    // An impossible row is believed only if nothing was lost on the way.
    bool degenerate = scale.loss > SOME_LOSS && (impossible || scale.loss > scale.exponent - SAFE_BITS);
    degenerate |= pass.degenerate[row] != 0;
    pass.degenerate[row] = degenerate;
    if (flow.at < 0) return;
    float root_flow = row < pass.data_rows ? (float)(gain * (double)weights[row]) : 1.0f;
    pass.flows[row_at(flow, pass.capacity, row)] = impossible || degenerate ? 0.0f : root_flow;
}

extern "C" __global__ void __launch_bounds__(256)
    batch_report(Pass pass, const float* __restrict__ weights, const double* __restrict__ log_likelihoods,
                 double* report) {
    __shared__ double sums[4][256];
    i32 thread = threadIdx.x;
    double sum[4] = {0.0, 0.0, 0.0, 0.0};
    for (i32 row = thread; row < pass.data_rows; row += 256) {
        double weight = (double)weights[row], log_likelihood = log_likelihoods[row];
        if (pass.degenerate[row] != 0) {
            sum[3] += 1.0;
        } else if (log_likelihood == -INF) {
            sum[2] += 1.0;
        } else {
            sum[0] += weight * log_likelihood;
            sum[1] += weight;
        }
    }
    for (i32 i = 0; i < 4; i++) sums[i][thread] = sum[i];
    for (i32 half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (thread < half) {
            for (i32 i = 0; i < 4; i++) sums[i][thread] += sums[i][thread + half];
        }
    }
    if (thread == 0) {
        for (i32 i = 0; i < 4; i++) report[i] = sums[i][0];
    }
}
