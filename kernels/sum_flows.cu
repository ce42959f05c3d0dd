// Flows of weights, before they meet the weights.
//
//   sum_flows   partial[s][u,c] = Σ over the rows and uses of split s of G[r,u]·panel[r,c]
//               a block owns 64 (tall: 128) units × 64 columns of a split
//
// The flow of a weight is W[u,c]·Σ_s partial[s][u,c] (`weights_flows`, `weights_step`). A chunk is 32 rows of one use,
// rows of the batch only; chunks are numbered use by use, and a split takes `chunks_per_split` of them in order. G and
// panel `[rows × ·]` both lie across k = r.
#include "gemm.cuh"

enum : i32 { CHUNK = 32 };

template <class Math, i32 M>
__device__ __forceinline__ void sum_flows(const Pass& pass, const ParamDesc* weights, const UseDesc* uses,
                                          float* partials, i32 chunks_per_split) {
    enum : i32 { ROWS = Shape<M>::ROWS, STEPS = Shape<M>::STEPS, STAGES = CHUNK / STEPS };
    __shared__ __align__(16) Tiles<M> shared;
    const ParamDesc d = weights[blockIdx.z];
    const i32 col_tiles = tiles(d.slots, TILE);
    const i32 first_unit = (i32)blockIdx.x / col_tiles * ROWS, first_col = (i32)blockIdx.x % col_tiles * TILE;
    const i32 chunks_per_use = tiles(pass.data_rows, CHUNK);
    const i32 first_chunk = blockIdx.y * chunks_per_split;
    const i32 chunks = min(d.num_uses * chunks_per_use - first_chunk, chunks_per_split);
    if (first_unit >= d.units || chunks <= 0) return;

    const i32 units = min(d.units - first_unit, (i32)ROWS), cols = min(d.slots - first_col, (i32)TILE);
    Results<M> results;
    multiply_tile<Math, false, false>(results, shared, chunks * STAGES, [&](i32 number, Operand& a, Operand& b) {
        const i32 chunk = first_chunk + number / STAGES, row = chunk % chunks_per_use * CHUNK + number % STAGES * STEPS;
        const UseDesc& use = uses[d.first_use + chunk / chunks_per_use];
        // The second half of a chunk may lie beyond the rows: nothing is read then, from an address that exists.
        const i32 depth = pass.data_rows - row, at = min(row, pass.data_rows - 1);
        a = {pass.values + row_at(use.gain, pass.capacity, at) + use.gain_start + first_unit, use.gain.ld, units,
             depth};
        b = {pass.values + row_at(use.panel, pass.capacity, at) + use.panel_start + first_col, use.panel.ld, cols,
             depth};
    });

    float* out = partials + d.partial_at + ((i64)blockIdx.y * d.units + first_unit) * d.ld + first_col;
    const bool pairs = ((unsigned long long)out & 7) == 0 && d.ld % 2 == 0;
#pragma unroll
    for (i32 i = 0; i < 2 * M; i++) {
        const i32 row = results.row(i / 2, i % 2 * 2);
        if (row >= units) continue;
#pragma unroll
        for (i32 n = 0; n < 4; n++) {
            const i32 col = results.col(n, 0);
            const float left = results.of[i / 2][n][i % 2 * 2], right = results.of[i / 2][n][i % 2 * 2 + 1];
            float* at = out + (i64)row * d.ld + col;
            if (pairs && col + 1 < cols) {
                *reinterpret_cast<float2*>(at) = make_float2(left, right);
            } else {
                if (col < cols) at[0] = left;
                if (col + 1 < cols) at[1] = right;
            }
        }
    }
}

#define SUM_FLOWS(name, Math, M)                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 3)                                                      \
        name(Pass pass, const ParamDesc* __restrict__ weights, const UseDesc* __restrict__ uses, float* partials, \
             i32 chunks_per_split) {                                                                              \
        sum_flows<Math, M>(pass, weights, uses, partials, chunks_per_split);                                      \
    }
SUM_FLOWS(sum_flows_f32, F32, 2)
SUM_FLOWS(sum_flows_tf32, Tf32, 2)
SUM_FLOWS(sum_flows_bf16, Bf16, 2)
SUM_FLOWS(sum_flows_bf16x3, Bf16x3, 2)
SUM_FLOWS(sum_flows_tf32_tall, Tf32, 4)
SUM_FLOWS(sum_flows_bf16_tall, Bf16, 4)
SUM_FLOWS(sum_flows_bf16x3_tall, Bf16x3, 4)
