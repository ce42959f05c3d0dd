// Flows of what sums mix.
//
//   sum_gain       G[r,u] = F[r,u]/value[r,u], at the scale of the panel, in the place of the value       a warp owns a row
//   sum_backward   flow[r,c] (+)= panel[r,c]·Σ_u G[r,u]·W[u,c]                                            a block owns 64 rows × 64 columns
//
// G `[rows × units]` lies along k = u, W `[units × cols]` across it.
#include "gemm.cuh"

// 2^n for any n: beyond the range of f32 the result is 0 or infinite, as it should be.
__device__ __forceinline__ float power_of_two(i32 n) {
    return n < -149 ? 0.0f : n < -126 ? __uint_as_float(1u << (n + 149)) : n > 127 ? __uint_as_float(INFINITE) : __uint_as_float((u32)(n + 127) << 23);
}

extern "C" __global__ void __launch_bounds__(256)
sum_gain(Pass pass, const GroupDesc* __restrict__ groups) {
    i32 lane = threadIdx.x % WARP, row = blockIdx.x * 8 + threadIdx.x / WARP;
    if (row >= pass.rows) return;
    const GroupDesc group = groups[blockIdx.y];
    float* values = pass.values + row_at(group.value, pass.capacity, row) + group.start;
    const float* flows = pass.flows + row_at(group.flow, pass.capacity, row) + group.start;
    i64 own = pass.scales[scale_at(group.value, pass.capacity, row)].exponent;
    i64 panel = pass.scales[scale_at(group.panel, pass.capacity, row)].exponent;
    if (pass.degenerate[row] != 0 || own <= ZERO || panel <= ZERO) {
        fill_row(values, group.units, 0.0f, lane);
        return;
    }
    // The forward pass has seen to it that the result stays in range.
    float factor = power_of_two((i32)min(max(panel - own, -150ll), 150ll));
    LANES(k, group.units) {
        float value = values[k], gain = flows[k] / value * factor;
        values[k] = value > 0.0f ? gain : 0.0f;
    }
}

template <class Math>
__device__ __forceinline__ void sum_backward(const Pass& pass, const GroupDesc* groups, const TargetDesc* targets) {
    __shared__ __align__(16) Tiles shared;
    const GroupDesc group = groups[blockIdx.z];
    const i32 first_col = blockIdx.x * TILE, first_row = blockIdx.y * TILE;
    if (first_col >= group.cols) return;

    const float* gains = pass.values + row_at(group.value, pass.capacity, first_row) + group.start;
    const float* weights = pass.theta + group.theta_at + first_col;
    const i32 rows = min(pass.rows - first_row, TILE), cols = min(group.cols - first_col, TILE);
    Results results = {};
    multiply_tile<Math, true, false>(results, shared, tiles(group.units, TILE_K), [&](i32 chunk, Operand& a, Operand& b) {
        i32 k = chunk * TILE_K;
        a = {gains + k, group.value.ld, rows, group.units - k};
        b = {weights + (i64)k * group.theta_ld, group.theta_ld, cols, group.units - k};
    });

    const float* panel = pass.values + row_at(group.panel, pass.capacity, first_row) + group.panel_start + first_col;
    for (i32 t = 0; t < group.num_targets; t++) {
        const TargetDesc target = targets[group.first_target + t];
        // The part of this tile that flows there.
        const i32 begin = max(target.col - first_col, 0), end = min(target.col + target.units - first_col, cols);
        if (begin >= end) continue;
        float* out = pass.flows + row_at(target.target, pass.capacity, first_row) + target.start + (first_col - target.col);
        const bool pairs = (((unsigned long long)out | (unsigned long long)panel) & 7) == 0 && target.target.ld % 2 == 0 && group.panel.ld % 2 == 0;
#pragma unroll
        for (i32 i = 0; i < 4; i++) {
            const i32 row = result_row(i / 2, i % 2 * 2);
            if (row >= rows) continue;
            const float* values = panel + (i64)row * group.panel.ld;
            float* into = out + (i64)row * target.target.ld;
#pragma unroll
            for (i32 n = 0; n < 4; n++) {
                const i32 col = result_col(n, 0);
                const float left = results[i / 2][n][i % 2 * 2], right = results[i / 2][n][i % 2 * 2 + 1];
                const bool has_left = col >= begin && col < end, has_right = col + 1 >= begin && col + 1 < end;
                if (pairs && has_left && has_right) {
                    float2 value = *reinterpret_cast<const float2*>(values + col);
                    float2* at = reinterpret_cast<float2*>(into + col);
                    float2 before = make_float2(0.0f, 0.0f);
                    if (target.add) before = *at;
                    *at = make_float2(before.x + value.x * left, before.y + value.y * right);
                } else {
                    if (has_left) into[col] = (target.add ? into[col] : 0.0f) + values[col] * left;
                    if (has_right) into[col + 1] = (target.add ? into[col + 1] : 0.0f) + values[col + 1] * right;
                }
            }
        }
    }
}

#define SUM_BACKWARD(name, Math)                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                       \
    name(Pass pass, const GroupDesc* __restrict__ groups, const TargetDesc* __restrict__ targets) {             \
        sum_backward<Math>(pass, groups, targets);                                                              \
    }
SUM_BACKWARD(sum_backward_tf32, Tf32)
SUM_BACKWARD(sum_backward_bf16, Bf16)
SUM_BACKWARD(sum_backward_bf16x3, Bf16x3)
SUM_BACKWARD(sum_backward_f32, F32)
