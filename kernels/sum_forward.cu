// Values of sums.
//
//   panel_gather   panel[r,·] = slices of children side by side, at the largest of their exponents
//                  a warp owns a row
//   sum_forward    value[r,u] = Σ_c W[u,c]·panel[r,c], at the panel's exponent
//                  a block owns 64 (tall: 128) rows × 64 units
//   sum_finish     one exponent and loss a row; values rescaled where they are not comfortable
//                  a warp owns 32 rows
//
// value `[rows × units]`, panel `[rows × cols]`, W `[units × cols]`, all contiguous in the last index: both operands
// lie along k. sum_forward leaves the extremes of its 64 units with every row, so that sum_finish reads values again
// only where something is to be done.
#include "gemm.cuh"

extern "C" __global__ void __launch_bounds__(256, 4)
    panel_gather(Pass pass, const PanelDesc* __restrict__ panels, const SliceDesc* __restrict__ slices) {
    i32 lane = threadIdx.x % WARP, row = blockIdx.x * 8 + threadIdx.x / WARP;
    if (row >= pass.rows) return;
    const PanelDesc panel = panels[blockIdx.y];
    float* out = pass.values + row_at(panel.panel, pass.capacity, row);
    i64 exponent = ZERO;
    for (i32 s = 0; s < panel.num_slices; s++) {
        exponent =
            max(exponent, pass.scales[scale_at(slices[panel.first_slice + s].source, pass.capacity, row)].exponent);
    }
    Scale merged = {exponent, NO_LOSS};
    for (i32 s = 0; s < panel.num_slices; s++) {
        const SliceDesc slice = slices[panel.first_slice + s];
        const float* source = pass.values + row_at(slice.source, pass.capacity, row) + slice.start;
        Scale scale = pass.scales[scale_at(slice.source, pass.capacity, row)];
        Extremes seen = nothing_seen();
        LANES(k, slice.units) {
            float value = source[k];
            out[k] = value;
            seen.see(value);
        }
        u32 smallest;
        merged.loss =
            max(merged.loss, align_row(out, slice.units, warp_max(seen.max), scale, exponent, smallest, lane).loss);
        out += slice.units;
    }
    if (lane == 0) pass.scales[scale_at(panel.panel, pass.capacity, row)] = merged;
}

template <class Math, i32 M>
__device__ __forceinline__ void sum_forward(const Pass& pass, const GroupDesc* groups, u32* extremes) {
    enum : i32 { ROWS = Shape<M>::ROWS, STEPS = Shape<M>::STEPS };
    __shared__ __align__(16) Tiles<M> shared;
    __shared__ Extremes halves[2][ROWS];
    const GroupDesc group = groups[blockIdx.z];
    const i32 first_unit = blockIdx.x * TILE, first_row = blockIdx.y * ROWS;
    if (first_unit >= group.units) return;

    const float* panel = pass.values + row_at(group.panel, pass.capacity, first_row) + group.panel_start;
    const float* weights = pass.theta + group.theta_at + (i64)first_unit * group.theta_ld;
    const i32 rows = min(pass.rows - first_row, (i32)ROWS), units = min(group.units - first_unit, (i32)TILE);
    Results<M> results;
    multiply_tile<Math, true, true>(results, shared, tiles(group.cols, STEPS), [&](i32 number, Operand& a, Operand& b) {
        i32 k = number * STEPS;
        a = {panel + k, group.panel.ld, rows, group.cols - k};
        b = {weights + k, group.theta_ld, units, group.cols - k};
    });

    float* out = pass.values + row_at(group.value, pass.capacity, first_row) + group.start + first_unit;
    const bool pairs = ((unsigned long long)out & 7) == 0 && group.value.ld % 2 == 0;
#pragma unroll
    for (i32 i = 0; i < 2 * M; i++) {
        const i32 row = results.row(i / 2, i % 2 * 2);
        Extremes seen = nothing_seen();
#pragma unroll
        for (i32 n = 0; n < 4; n++) {
            const i32 col = results.col(n, 0);
            const float left = results.of[i / 2][n][i % 2 * 2], right = results.of[i / 2][n][i % 2 * 2 + 1];
            if (col < units) seen.see(left);
            if (col + 1 < units) seen.see(right);
            if (row >= rows) continue;
            float* at = out + (i64)row * group.value.ld + col;
            if (pairs && col + 1 < units) {
                *reinterpret_cast<float2*>(at) = make_float2(left, right);
            } else {
                if (col < units) at[0] = left;
                if (col + 1 < units) at[1] = right;
            }
        }
        // Over the four threads that share a row.
        for (i32 step = 1; step <= 2; step *= 2) {
            seen.merge({__shfl_xor_sync(ALL, seen.max, step), __shfl_xor_sync(ALL, seen.min, step)});
        }
        if (threadIdx.x % 4 == 0) halves[threadIdx.x / WARP % 2][row] = seen;
    }
    __syncthreads();
    if (threadIdx.x < rows) {
        Extremes seen = halves[0][threadIdx.x];
        seen.merge(halves[1][threadIdx.x]);
        i64 at = (group.extremes_at + blockIdx.x) * pass.capacity + first_row + threadIdx.x;
        reinterpret_cast<uint2*>(extremes)[at] = make_uint2(seen.max, seen.min);
    }
}

#define SUM_FORWARD(name, Math, M)                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 3)                   \
        name(Pass pass, const GroupDesc* __restrict__ groups, u32* extremes) { \
        sum_forward<Math, M>(pass, groups, extremes);                          \
    }
SUM_FORWARD(sum_forward_f32, F32, 2)
SUM_FORWARD(sum_forward_tf32, Tf32, 2)
SUM_FORWARD(sum_forward_bf16, Bf16, 2)
SUM_FORWARD(sum_forward_bf16x3, Bf16x3, 2)
SUM_FORWARD(sum_forward_tf32_tall, Tf32, 4)
SUM_FORWARD(sum_forward_bf16_tall, Bf16, 4)
SUM_FORWARD(sum_forward_bf16x3_tall, Bf16x3, 4)

// The extremes of a group in a row, over its tiles.
__device__ __forceinline__ Extremes group_extremes(const GroupDesc& group, const u32* extremes, i32 capacity, i32 row) {
    Extremes seen = nothing_seen();
    for (i32 tile = 0; tile < tiles(group.units, TILE); tile++) {
        uint2 of_tile = reinterpret_cast<const uint2*>(extremes)[(group.extremes_at + tile) * capacity + row];
        seen.merge({of_tile.x, of_tile.y});
    }
    return seen;
}

// Whether an output has lost digits below the normal range: it is tiny, or zero though its terms are positive. For a
// warp.
__device__ __forceinline__ bool hides_underflow(const Pass& pass, const GroupDesc& group, const float* outputs, i32 row,
                                                i32 lane) {
    const float* panel = pass.values + row_at(group.panel, pass.capacity, row) + group.panel_start;
    const float* weights = pass.theta + group.theta_at;
    for (i32 first = 0; first < group.units; first += WARP) {
        float output = first + lane < group.units ? outputs[first + lane] : 1.0f;
        if (__any_sync(ALL, output > 0.0f && __float_as_uint(output) < TINY_AS_BITS)) return true;
        for (u32 zeros = __ballot_sync(ALL, output == 0.0f); zeros != 0; zeros &= zeros - 1) {
            const float* terms = weights + (i64)(first + __ffs(zeros) - 1) * group.theta_ld;
            bool positive = false;
            LANES(c, group.cols) positive |= panel[c] > 0.0f && terms[c] > 0.0f;
            if (__any_sync(ALL, positive)) return true;
        }
    }
    return false;
}

// A row that is not comfortable, or whose groups have different scales. For a warp.
__device__ __forceinline__ void finish_row(const Pass& pass, const SumDesc& sum, const GroupDesc* groups,
                                           const u32* extremes, i32 row, i32 lane) {
    // All groups of a row share one exponent: that of the largest output.
    i64 exponent = ZERO;
    for (i32 g = 0; g < sum.num_groups; g++) {
        const GroupDesc& group = groups[sum.first_group + g];
        i64 panel = pass.scales[scale_at(group.panel, pass.capacity, row)].exponent;
        exponent = max(exponent, standard_exponent(group_extremes(group, extremes, pass.capacity, row).max, panel));
    }
    Scale merged = {ZERO, NO_LOSS};
    bool degenerate = false;
    for (i32 g = 0; g < sum.num_groups; g++) {
        const GroupDesc group = groups[sum.first_group + g];
        float* part = pass.values + row_at(group.value, pass.capacity, row) + group.start;
        Extremes seen = group_extremes(group, extremes, pass.capacity, row);
        Scale panel = pass.scales[scale_at(group.panel, pass.capacity, row)];
        if (seen.min < TINY_AS_BITS && panel.exponent > ZERO && hides_underflow(pass, group, part, row, lane)) {
            // Every term may have lost what lies below the normal range; 2^20 terms are more than any sum has.
            panel.loss = max(panel.loss, underflow_loss(panel.exponent) + 20);
        }
        u32 smallest;
        Scale after = align_row(part, group.units, seen.max, panel, exponent, smallest, lane);
        if (is_above_loss(seen.min, panel.exponent, after)) after.loss = NO_LOSS;
        if (after.exponent > ZERO && smallest != 0xffffffffu) {
            degenerate |= gain_bits(smallest, panel.exponent - after.exponent) + pass.flow_bits > LARGEST_GAIN_BITS;
        }
        merged = {max(merged.exponent, after.exponent), max(merged.loss, after.loss)};
    }
    if (lane == 0) {
        pass.scales[scale_at(sum.value, pass.capacity, row)] = merged;
        if (degenerate)
            atomicOr(pass.degenerate + row, 1u);  // other sums may mark the same row: an integer, whoever comes first
    }
}

extern "C" __global__ void __launch_bounds__(128, 8)
    sum_finish(Pass pass, const SumDesc* __restrict__ sums, const GroupDesc* __restrict__ groups,
               const u32* __restrict__ extremes) {
    i32 lane = threadIdx.x % WARP, first_row = blockIdx.x * 128 + threadIdx.x / WARP * WARP, row = first_row + lane;
    if (first_row >= pass.rows) return;
    const SumDesc sum = sums[blockIdx.y];
    bool todo = row < pass.rows;
    if (todo && sum.one_panel) {
        // Outputs that are all in range: the common case, and nothing is to be done.
        Extremes seen = nothing_seen();
        for (i32 g = 0; g < sum.num_groups; g++) {
            seen.merge(group_extremes(groups[sum.first_group + g], extremes, pass.capacity, row));
        }
        Scale panel = pass.scales[scale_at(groups[sum.first_group].panel, pass.capacity, row)];
        if (is_comfortable(seen) && panel.exponent > ZERO) {
            bool forgets = is_above_loss(seen.min, panel.exponent, panel);
            pass.scales[scale_at(sum.value, pass.capacity, row)] = {panel.exponent, forgets ? NO_LOSS : panel.loss};
            if (gain_bits(seen.min, 0) + pass.flow_bits > LARGEST_GAIN_BITS) atomicOr(pass.degenerate + row, 1u);
            todo = false;
        }
    }
    for (u32 rows = __ballot_sync(ALL, todo); rows != 0; rows &= rows - 1) {
        finish_row(pass, sum, groups, extremes, first_row + __ffs(rows) - 1, lane);
    }
}
