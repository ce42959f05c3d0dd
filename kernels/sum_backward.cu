// Flows of what sums mix.
//
//   sum_gain       G[r,u] = F[r,u]/value[r,u], at the scale of the panel, in the place of the value
//                  a warp owns a row
//   sum_backward   flow[r,c] (+)= panel[r,c]·Σ_u G[r,u]·W[u,c]
//                  a block owns 64 (tall: 128) rows × 64 columns
//
// G `[rows × units]` lies along k = u, W `[units × cols]` across it.
#include "gemm.cuh"

// 2^n for any n: beyond the range of f32 the result is 0 or infinite, as it should be.
__device__ __forceinline__ float power_of_two(i32 n) {
    return n < -149   ? 0.0f
           : n < -126 ? __uint_as_float(1u << (n + 149))
           : n > 127  ? __uint_as_float(INFINITE)
                      : __uint_as_float((u32)(n + 127) << 23);
}

extern "C" __global__ void __launch_bounds__(256) sum_gain(Pass pass, const GroupDesc* __restrict__ groups) {
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

template <class Math, i32 M>
__device__ __forceinline__ void sum_backward(const Pass& pass, const GroupDesc* groups, const TargetDesc* targets) {
    enum : i32 { ROWS = Shape<M>::ROWS, STEPS = Shape<M>::STEPS };
    __shared__ __align__(16) Tiles<M> shared;
    const GroupDesc group = groups[blockIdx.z];
    const i32 first_col = blockIdx.x * TILE, first_row = blockIdx.y * ROWS;
    if (first_col >= group.cols) return;

    const float* gains = pass.values + row_at(group.value, pass.capacity, first_row) + group.start;
    const float* weights = pass.theta + group.theta_at + first_col;
    const i32 rows = min(pass.rows - first_row, (i32)ROWS), cols = min(group.cols - first_col, (i32)TILE);
    Results<M> results;
    multiply_tile<Math, true, false>(results, shared, tiles(group.units, STEPS),
                                     [&](i32 number, Operand& a, Operand& b) {
                                         i32 k = number * STEPS;
                                         a = {gains + k, group.value.ld, rows, group.units - k};
                                         b = {weights + (i64)k * group.theta_ld, group.theta_ld, cols, group.units - k};
                                     });

    // Through shared memory, so that a warp reads and writes rows, whatever slices they are cut into. 72 words a row: 8
    // from the next, mod 32.
    enum : i32 { LD = TILE + 8 };
    static_assert(sizeof(shared) >= ROWS * LD * sizeof(float), "the product takes the place of the operands");
    float* product = reinterpret_cast<float*>(&shared);
    __syncthreads();
#pragma unroll
    for (i32 i = 0; i < 2 * M; i++) {
#pragma unroll
        for (i32 n = 0; n < 4; n++) {
            float2 pair = make_float2(results.of[i / 2][n][i % 2 * 2], results.of[i / 2][n][i % 2 * 2 + 1]);
            *reinterpret_cast<float2*>(product + results.row(i / 2, i % 2 * 2) * LD + results.col(n, 0)) = pair;
        }
    }
    __syncthreads();

    const i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const float* panel = pass.values + row_at(group.panel, pass.capacity, first_row) + group.panel_start + first_col;
    for (i32 t = 0; t < group.num_targets; t++) {
        const TargetDesc target = targets[group.first_target + t];
        // The part of this tile that flows there.
        const i32 begin = max(target.col - first_col, 0), end = min(target.col + target.units - first_col, cols);
        if (begin >= end) continue;
        float* out =
            pass.flows + row_at(target.target, pass.capacity, first_row) + target.start + (first_col - target.col);
#pragma unroll 2
        for (i32 row = warp; row < rows; row += THREADS / WARP) {
            LANES(c, end - begin) {
                const i32 col = begin + c;
                float* into = out + (i64)row * target.target.ld + col;
                const float flow = panel[(i64)row * group.panel.ld + col] * product[row * LD + col];
                *into = target.add ? *into + flow : flow;
            }
        }
    }
}

// BLOCKS that a multiprocessor is to have room for: two where three would make threads spill.
#define SUM_BACKWARD(name, Math, M, BLOCKS)                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                       \
        name(Pass pass, const GroupDesc* __restrict__ groups, const TargetDesc* __restrict__ targets) { \
        sum_backward<Math, M>(pass, groups, targets);                                                   \
    }
SUM_BACKWARD(sum_backward_f32, F32, 2, 3)
SUM_BACKWARD(sum_backward_tf32, Tf32, 2, 3)
SUM_BACKWARD(sum_backward_bf16, Bf16, 2, 3)
SUM_BACKWARD(sum_backward_bf16x3, Bf16x3, 2, 2)
SUM_BACKWARD(sum_backward_tf32_tall, Tf32, 4, 3)
SUM_BACKWARD(sum_backward_bf16_tall, Bf16, 4, 3)
SUM_BACKWARD(sum_backward_bf16x3_tall, Bf16x3, 4, 3)
