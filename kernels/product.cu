// Products.
//
//   product_forward    value[r,k] = Π over factors of source[r, map[k]], rescaled                 a warp owns a row
//   product_backward   flow[r,u] (+)= Σ over product parents of their flow[r,k] with map[k] = u   a warp owns a row
//
// Sources are value buffers `[rows × units]` or table rows θ[x_r] `[units]`. A factor with a map is copied to shared
// memory first, so that global memory is read in order; `skew` spreads what a transpose reads over the banks.
#include "common.cuh"

extern __shared__ float staged_rows[];

// Where unit i of a staged row lies: blocks of 32 stay where they are, their words change places. So copying a row
// meets no bank twice, and `skew` (README.md) sees to it that reading a transposed one does not either.
__device__ __forceinline__ i32 skewed(i32 i, i32 skew) {
    return i ^ ((i >> (5 + (skew & 0xff)) << (skew >> 8)) & 31);
}

// Whether a row fits this warp's shared memory.
__device__ __forceinline__ bool fits(i32 units, i32 stage_len) {
    return ((units + 31) & ~31) <= stage_len;
}

// Copies a row to this warp's shared memory; whoever read the last one is done with it.
__device__ __forceinline__ void stage_row(float* stage, const float* row, i32 units, i32 skew, i32 lane) {
    __syncwarp();
    LANES(k, units) stage[skewed(k, skew)] = row[k];
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(256, 3)
    product_forward(Pass pass, const ProductDesc* __restrict__ products, const FactorDesc* __restrict__ factors,
                    const ParamDesc* __restrict__ params, const u32* __restrict__ maps, i32 stage_len) {
    i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    i32 row = blockIdx.x * (blockDim.x / WARP) + warp;
    if (row >= pass.rows) return;
    const ProductDesc product = products[blockIdx.y];
    const i32 units = product.units;
    float* out = pass.values + row_at(product.value, pass.capacity, row);
    float* stage = staged_rows + warp * stage_len;

    Scale scale = unit_scale();
    const float* first = nullptr;  // a factor that nothing has been multiplied with yet
    bool written = false;          // whether `out` holds the product so far, and `seen` its extremes
    Extremes seen = nothing_seen();
    for (i32 f = 0; f < product.num_factors; f++) {
        const FactorDesc factor = factors[product.first_factor + f];
        const float* source;
        Scale factor_scale = unit_scale();
        if (factor.kind == 1) {
            u32 cell = pass.cells[(i64)factor.cells * pass.capacity + row];
            if (cell == MISSING) continue;  // a factor of one
            source = pass.theta + params[factor.param].theta_at + (i64)cell * params[factor.param].ld;
        } else {
            source = pass.values + row_at(factor.source, pass.capacity, row);
            factor_scale = pass.scales[scale_at(factor.source, pass.capacity, row)];
        }
        // A running product that has become small is rescaled before the next factor, to keep its range.
        if (written && seen.max < LOW_WATER) scale = settle_row(out, units, {seen.max, 0}, scale, lane);
        scale = times(scale, factor_scale);
        const u32* map = factor.map_at < 0 ? nullptr : maps + factor.map_at;
        if (map == nullptr && first == nullptr && !written) {
            first = source;
            continue;
        }
        bool staged = map != nullptr && fits(factor.units, stage_len);
        if (staged) stage_row(stage, source, factor.units, factor.skew, lane);
        seen = nothing_seen();
        bool lost = false;
        LANES(k, units) {
            float value = map == nullptr ? source[k] : staged ? stage[skewed(map[k], factor.skew)] : source[map[k]];
            float before = first != nullptr ? first[k] : written ? out[k] : 1.0f;
            float result = before * value;
            out[k] = result;
            seen.see(result);
            lost |= __float_as_uint(result) < SMALLEST_NORMAL && before > 0.0f && value > 0.0f &&
                    (first != nullptr || written);
        }
        seen = seen.of_warp();
        if (__any_sync(ALL, lost)) scale.loss = max(scale.loss, underflow_loss(scale.exponent));
        first = nullptr;
        written = true;
    }
    if (!written) {
        LANES(k, units) {
            float value = first != nullptr ? first[k] : 1.0f;
            out[k] = value;
            seen.see(value);
        }
        seen = seen.of_warp();
    }
    scale = settle_row(out, units, seen, scale, lane);
    if (lane == 0) pass.scales[scale_at(product.value, pass.capacity, row)] = scale;
}

extern "C" __global__ void __launch_bounds__(256, 4)
    product_backward(Pass pass, const PullDesc* __restrict__ pulls, const PullSource* __restrict__ sources,
                     const u32* __restrict__ maps, i32 stage_len) {
    i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    i32 row = blockIdx.x * (blockDim.x / WARP) + warp;
    if (row >= pass.rows) return;
    const PullDesc pull = pulls[blockIdx.y];
    float* out = pass.flows + row_at(pull.target, pass.capacity, row);
    float* stage = staged_rows + warp * stage_len;
    for (i32 s = 0; s < pull.num_sources; s++) {
        const PullSource source = sources[pull.first_source + s];
        const float* flow = pass.flows + row_at(source.flow, pass.capacity, row);
        const u32* items = source.items_at < 0 ? nullptr : maps + source.items_at;
        const u32* starts = source.starts_at < 0 ? nullptr : maps + source.starts_at;
        bool staged = items != nullptr && fits(source.units, stage_len);
        if (staged) stage_row(stage, flow, source.units, source.skew, lane);
        bool adds = s > 0 || pull.add != 0;
        LANES(u, pull.units) {
            float sum = adds ? out[u] : 0.0f;
            if (items == nullptr) {
                sum += flow[u];
            } else {
                u32 i = starts == nullptr ? u : starts[u], end = starts == nullptr ? u + 1 : starts[u + 1];
                for (; i < end; i++) sum += staged ? stage[skewed(items[i], source.skew)] : flow[items[i]];
            }
            out[u] = sum;
        }
    }
}
