// Flows of weights, before they meet the weights.
//
//   sum_flows   partial[s][u,c] = Σ over the rows and uses of split s of G[r,u]·panel[r,c]      a block owns 64 units × 64 columns of a split
//
// The flow of a weight is W[u,c]·Σ_s partial[s][u,c] (`weights_flows`, `weights_step`). A chunk is 32 rows of one use, rows of the batch only; chunks are
// numbered use by use, and a split takes `chunks_per_split` of them in order. G and panel `[rows × ·]` both lie across k = r.
#include "gemm.cuh"

template <class Math>
__device__ __forceinline__ void sum_flows(const Pass& pass, const ParamDesc* weights, const UseDesc* uses, float* partials, i32 chunks_per_split) {
    __shared__ __align__(16) Tiles shared;
    const ParamDesc d = weights[blockIdx.z];
    const i32 col_tiles = tiles(d.slots, TILE);
    const i32 first_unit = (i32)blockIdx.x / col_tiles * TILE, first_col = (i32)blockIdx.x % col_tiles * TILE;
    const i32 chunks_per_use = tiles(pass.data_rows, TILE_K);
    const i32 first_chunk = blockIdx.y * chunks_per_split;
    const i32 chunks = min(d.num_uses * chunks_per_use - first_chunk, chunks_per_split);
    if (first_unit >= d.units || chunks <= 0) return;

    const i32 units = min(d.units - first_unit, TILE), cols = min(d.slots - first_col, TILE);
    Results results = {};
    multiply_tile<Math, false, false>(results, shared, chunks, [&](i32 chunk, Operand& a, Operand& b) {
        const i32 number = first_chunk + chunk, row = number % chunks_per_use * TILE_K;
        const UseDesc& use = uses[d.first_use + number / chunks_per_use];
        const i32 depth = pass.data_rows - row;
        a = {pass.values + row_at(use.gain, pass.capacity, row) + use.gain_start + first_unit, use.gain.ld, units, depth};
        b = {pass.values + row_at(use.panel, pass.capacity, row) + use.panel_start + first_col, use.panel.ld, cols, depth};
    });

    float* out = partials + d.partial_at + ((i64)blockIdx.y * d.units + first_unit) * d.ld + first_col;
    const bool pairs = ((unsigned long long)out & 7) == 0 && d.ld % 2 == 0;
#pragma unroll
    for (i32 i = 0; i < 4; i++) {
        const i32 row = result_row(i / 2, i % 2 * 2);
        if (row >= units) continue;
#pragma unroll
        for (i32 n = 0; n < 4; n++) {
            const i32 col = result_col(n, 0);
            const float left = results[i / 2][n][i % 2 * 2], right = results[i / 2][n][i % 2 * 2 + 1];
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

#define SUM_FLOWS(name, Math)                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                           \
    name(Pass pass, const ParamDesc* __restrict__ weights, const UseDesc* __restrict__ uses, float* partials,       \
         i32 chunks_per_split) {                                                                                    \
        sum_flows<Math>(pass, weights, uses, partials, chunks_per_split);                                           \
    }
SUM_FLOWS(sum_flows_tf32, Tf32)
SUM_FLOWS(sum_flows_bf16, Bf16)
SUM_FLOWS(sum_flows_bf16x3, Bf16x3)
SUM_FLOWS(sum_flows_f32, F32)
