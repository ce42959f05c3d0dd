// Inputs: values of units that need a buffer, and the flows that inputs give to their parameters.
//
//   input_forward   value[r,u] = θ[x_r][u] (table), f_u(x_r) (density), 1 (missing)   a warp owns a row
//   rows_sum        out[u] = Σ over items of flow[item][u]                            a thread owns a unit of a piece
//   table_flows     F[x][u] = kept(F[x][u]) + Σ over rows with x of flow[r][u] + θ[x][u]·Σ over missing of flow[r][u]
//                   F `[categories × units]`, unit fastest                            a thread owns a unit in 32
//                   categories
//   density_flows   (Σf·x, Σf·x², Σf)[u] over rows and uses, split over rows          a thread owns a unit of a split
//   density_apply   F = keep·F + the splits, in their order
#include "distribution.cuh"

// 2^30: densities beyond 2^±FAR are not kept in linear space.
#define FAR 1073741824.0

// A row from logarithms, which are computed twice: once for the largest, once for the values. One loop over the passes
// keeps one copy of the logarithms' long code.
__device__ __forceinline__ Scale density_row(const Pass& pass, const ParamDesc& d, float* out, u32 cell, i32 lane) {
    const float* theta = pass.theta + d.theta_at;
    double top = -INF, exponent = 0.0;
    bool lost = false;
    for (i32 round = 0; round < 2; round++) {
        LANES(k, d.units) {
            double log_prob = density_log_prob(d, theta[k], theta[d.ld + k], cell);
            if (round == 0) {
                top = fmax(top, log_prob);
            } else {
                double value = exp(log_prob - exponent * LN_2);
                bool keep = value > 7.9e-31;  // 2^−100 of the largest, as everywhere
                lost |= !keep && log_prob > -INF;
                out[k] = keep ? (float)value : 0.0f;
            }
        }
        if (round == 1) break;
        top = warp_max(top);
        exponent = floor(top * LOG2_E) + 1.0;
        if (top == -INF || !(fabs(exponent) < FAR)) {
            // Impossible; or so far out that products of such rows would leave the range of exponents.
            fill_row(out, d.units, 0.0f, lane);
            if (top == -INF) return {ZERO, NO_LOSS};
            double loss = exponent < (double)ZERO ? (double)ZERO : exponent;
            return {ZERO, loss < -FAR ? (i64)loss : (i64)-FAR};
        }
    }
    bool any = __any_sync(ALL, lost);
    return {(i64)exponent, any ? (i64)exponent - 100 : NO_LOSS};
}

extern "C" __global__ void __launch_bounds__(256)
    input_forward(Pass pass, const InputDesc* __restrict__ inputs, const ParamDesc* __restrict__ params) {
    i32 lane = threadIdx.x % WARP, row = blockIdx.x * 8 + threadIdx.x / WARP;
    if (row >= pass.rows) return;
    const InputDesc input = inputs[blockIdx.y];
    const ParamDesc d = params[input.param];
    float* out = pass.values + row_at(input.value, pass.capacity, row);
    u32 cell = pass.cells[(i64)input.cells * pass.capacity + row];
    Scale scale = unit_scale();
    if (cell == MISSING) {
        fill_row(out, d.units, 1.0f, lane);
    } else if (d.kind == TABLE) {
        const float* theta = pass.theta + d.theta_at + (i64)cell * d.ld;
        Extremes seen = nothing_seen();
        LANES(k, d.units) {
            float value = theta[k];
            out[k] = value;
            seen.see(value);
        }
        scale = settle_row(out, d.units, seen.of_warp(), scale, lane);
    } else {
        scale = density_row(pass, d, out, cell, lane);
    }
    if (lane == 0) pass.scales[scale_at(input.value, pass.capacity, row)] = scale;
}

// The flow row that an item names.
__device__ __forceinline__ const float* item_row(const Pass& pass, u32 item) {
    return pass.flows + (i64)item * 8;
}

extern "C" __global__ void __launch_bounds__(128)
    rows_sum(Pass pass, const Piece* __restrict__ pieces, const u32* __restrict__ items) {
    const Piece piece = pieces[blockIdx.x];
    u32 unit = blockIdx.y * 128 + threadIdx.x;
    if (unit >= piece.units) return;
    // Items and result lie in one slab but are different rows.
    double sum = 0.0;
#pragma unroll 4
    for (u32 i = 0; i < piece.count; i++) sum += (double)item_row(pass, items[piece.first + i])[unit];
    pass.flows[(i64)piece.out * 8 + unit] = (float)sum;
}

enum : i32 { CAT_TILE = 32 };

template <class T>
__device__ __forceinline__ void table_flows(const Pass& pass, const ParamDesc* tables, const u32* starts,
                                            const u32* items, const u32* missing, T* flows, float keep, double* sums) {
    const ParamDesc d = tables[blockIdx.z];
    i32 unit = blockIdx.y * 128 + threadIdx.x;
    i32 first = blockIdx.x * CAT_TILE, end = min(first + CAT_TILE, d.slots);
    if (unit >= d.units || first >= d.slots) return;
    const u32* starts_of = starts + d.starts_at;
    const float* theta = pass.theta + d.theta_at + unit;
    flows += d.stat_at + unit;
    u32 missing_item = missing[blockIdx.z];
    bool has_missing = missing_item != MISSING;
    float missing_flow = has_missing ? item_row(pass, missing_item)[unit] : 0.0f;
    bool only_touched = !has_missing && sums == nullptr && (sizeof(T) == 8 || keep == 1.0f);
    double theta_sum = 0.0, flow_sum = 0.0;
    u32 at = starts_of[first];
    for (i32 cat = first; cat < end; cat++) {
        u32 stop = starts_of[cat + 1];
        if (at == stop && only_touched) continue;
        float segment = 0.0f;
#pragma unroll 4
        for (; at < stop; at++) segment += item_row(pass, items[at])[unit];
        T* flow = flows + (i64)cat * d.ld;
        float p = has_missing || sums != nullptr ? theta[(i64)cat * d.ld] : 0.0f;
        T sum;
        if (sizeof(T) == 8) {
            sum = *flow + (T)segment + (T)p * (T)missing_flow;
        } else {
            sum = kept(keep, (float)*flow) + segment;
            if (has_missing) sum += (T)(p * missing_flow);
        }
        *flow = sum;
        theta_sum += (double)p;
        flow_sum += (double)sum;
    }
    if (sums != nullptr) {
        double* out = sums + d.partial_at + (i64)(2 * blockIdx.x) * d.ld + unit;
        out[0] = theta_sum;
        out[d.ld] = flow_sum;
    }
}

extern "C" __global__ void __launch_bounds__(128)
    table_flows_f32(Pass pass, const ParamDesc* __restrict__ tables, const u32* __restrict__ starts,
                    const u32* __restrict__ items, const u32* __restrict__ missing, float* flows, float keep,
                    double* sums) {
    table_flows<float>(pass, tables, starts, items, missing, flows, keep, sums);
}

extern "C" __global__ void __launch_bounds__(128)
    table_flows_f64(Pass pass, const ParamDesc* __restrict__ tables, const u32* __restrict__ starts,
                    const u32* __restrict__ items, const u32* __restrict__ missing, double* flows, float keep,
                    double* sums) {
    table_flows<double>(pass, tables, starts, items, missing, flows, keep, sums);
}

extern "C" __global__ void __launch_bounds__(64)
    density_flows(Pass pass, const ParamDesc* __restrict__ densities, const UseDesc* __restrict__ uses,
                  double* partials, i32 rows_per_split) {
    const ParamDesc d = densities[blockIdx.z];
    i32 unit = blockIdx.x * 64 + threadIdx.x, split = blockIdx.y;
    i32 splits_per_use = tiles(pass.data_rows, rows_per_split);
    if (unit >= d.units || split >= d.num_uses * splits_per_use) return;
    const UseDesc use = uses[d.first_use + split / splits_per_use];
    i32 row = split % splits_per_use * rows_per_split, end = min(row + rows_per_split, pass.data_rows);
    const float* theta = pass.theta + d.theta_at + unit;
    const u32* cells = pass.cells + (i64)use.cells * pass.capacity;
    double mean, std, first = 0.0, second = 0.0, mass = 0.0;
    density_expected(d, theta[0], theta[d.ld], mean, std);
    for (; row < end; row++) {
        double flow = (double)pass.flows[row_at(use.flow, pass.capacity, row) + unit];
        if (!(flow > 0.0)) continue;
        u32 cell = cells[row];
        double x = cell == MISSING ? mean : density_seen(d, cell);
        first += flow * x;
        second += flow * (cell == MISSING ? mean * mean + std * std : x * x);
        mass += flow;
    }
    double* out = partials + d.partial_at + (i64)split * 3 * d.ld + unit;
    out[0] = first;
    out[d.ld] = second;
    out[2 * d.ld] = mass;
}

template <class T>
__device__ __forceinline__ void density_apply(const Pass& pass, const ParamDesc* densities, const double* partials,
                                              T* flows, float keep, i32 rows_per_split) {
    const ParamDesc d = densities[blockIdx.y];
    i32 unit = blockIdx.x * 64 + threadIdx.x;
    if (unit >= d.units) return;
    i32 splits = d.num_uses * tiles(pass.data_rows, rows_per_split);
    for (i32 stat = 0; stat < 3; stat++) {
        double sum = 0.0;
        for (i32 split = 0; split < splits; split++)
            sum += partials[d.partial_at + ((i64)split * 3 + stat) * d.ld + unit];
        T* flow = flows + d.stat_at + (i64)stat * d.ld + unit;
        // Statistics may be negative: nothing is dropped, but a keep of 0 clears.
        double before = sizeof(T) == 8 ? (double)*flow : keep == 0.0f ? 0.0 : (double)(keep * (float)*flow);
        *flow = (T)(before + sum);
    }
}

extern "C" __global__ void __launch_bounds__(64)
    density_apply_f32(Pass pass, const ParamDesc* __restrict__ densities, const double* __restrict__ partials,
                      float* flows, float keep, i32 rows_per_split) {
    density_apply<float>(pass, densities, partials, flows, keep, rows_per_split);
}

extern "C" __global__ void __launch_bounds__(64)
    density_apply_f64(Pass pass, const ParamDesc* __restrict__ densities, const double* __restrict__ partials,
                      double* flows, float keep, i32 rows_per_split) {
    density_apply<double>(pass, densities, partials, flows, keep, rows_per_split);
}
