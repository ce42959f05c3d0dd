// The M-step and its relatives: what happens to parameters, by param row.
// src/backend/cpu/{update,weights,tables,statistics}.rs.
//
//   θ' = keep·θ + take·F + add, with coefficients of the param row: normalise(retain·θ + gain·F), smoothed.
//   A row without mass keeps its θ.
//
//   weights_flows    F = kept(F) + θ·Σ_s partial[s]                              a warp owns a param row `[cols]`
//   weights_step     the same, then ΣF and Σθ of the row, then θ'                a warp owns a param row
//   weights_update   θ' alone; weights_masses: ΣF                                a warp owns a param row
//   table_sums       Σθ and ΣF over 32 categories                                a thread owns a unit in 32 categories
//   table_coefficients, table_masses   over the sums of a unit, in order         a thread owns a unit
//   table_move       θ' of a table `[categories × units]`                        a thread owns a unit in 32 categories
//   density_update   statistics retained and added, then their M-step            a thread owns a unit
//   top_down_rows    Σ over uses of the flow of the row with everything missing  a thread owns a param row
//   scale, add_scaled, blend_rows                                               element by element
#include "distribution.cuh"

enum : i32 { CAT_TILE = 32 };

struct Coefficients {
    double keep, take, add;
    bool moves;
};

// How a param row of `len` numbers moves. `retain` is in the scale of θ, `mass` that of retain·θ + gain·F.
__device__ __forceinline__ Coefficients coefficients(double mass, i32 len, double retain, const Update& update) {
    if (!(mass > 0.0 && mass < INF)) return {1.0, 0.0, 0.0, false};
    double add = update.absolute ? update.epsilon / len : update.epsilon * mass / len;
    double scale = 1.0 / (update.absolute ? mass + update.epsilon : mass * (1.0 + update.epsilon));
    return {retain * scale, update.gain * scale, add * scale, true};
}

// What is retained of a row whose flows sum to `flow_sum`.
__device__ __forceinline__ double retained(const Update& update, i64 row, double flow_sum, double offset) {
    if (update.source == 0) return 0.0;
    double mass = update.source == 2 ? flow_sum * update.gain : update.retain[row];
    if (update.source == 3) mass = fmax(mass, flow_sum * update.gain);
    return update.scale * (mass + offset);
}

// In single precision unless a mass below its range asks for more.
__device__ __forceinline__ float moved(const Coefficients& c, float theta, float flow) {
    if (c.take < 1e37) return (float)c.keep * theta + ((float)c.take * flow + (float)c.add);
    return (float)(c.keep * (double)theta + c.take * (double)flow + c.add);
}

__device__ __forceinline__ float moved(const Coefficients& c, float theta, double flow) {
    return (float)(c.keep * (double)theta + c.take * flow + c.add);
}

// Weights.

// Σ over the splits of one weight, in their order.
__device__ __forceinline__ float split_sum(const ParamDesc& d, const float* partials, i32 splits, i32 unit, i32 col) {
    const float* at = partials + d.partial_at + (i64)unit * d.ld + col;
    if (splits == 1) return *at;
    double sum = 0.0;
    for (i32 split = 0; split < splits; split++) sum += (double)at[(i64)split * d.units * d.ld];
    return (float)sum;
}

__device__ __forceinline__ i32 num_splits(const Pass& pass, const ParamDesc& d, i32 chunks_per_split) {
    return tiles(d.num_uses * tiles(pass.data_rows, 32), chunks_per_split);
}

template <class T>
__device__ __forceinline__ void weights_flows(const Pass& pass, const ParamDesc* weights, const float* partials,
                                              T* flows, float keep, i32 chunks_per_split) {
    i32 lane = threadIdx.x % WARP, unit = blockIdx.x * 8 + threadIdx.x / WARP;
    const ParamDesc d = weights[blockIdx.y];
    if (unit >= d.units) return;
    const float* theta = pass.theta + d.theta_at + (i64)unit * d.ld;
    flows += d.stat_at + (i64)unit * d.ld;
    i32 splits = num_splits(pass, d, chunks_per_split);
    LANES(c, d.slots) {
        float sum = split_sum(d, partials, splits, unit, c), p = theta[c];
        flows[c] = sizeof(T) == 8 ? (T)(flows[c] + (T)p * (T)sum) : (T)(kept(keep, (float)flows[c]) + p * sum);
    }
}

extern "C" __global__ void __launch_bounds__(256, 4)
    weights_flows_f32(Pass pass, const ParamDesc* __restrict__ weights, const float* __restrict__ partials,
                      float* flows, float keep, i32 chunks_per_split) {
    weights_flows<float>(pass, weights, partials, flows, keep, chunks_per_split);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    weights_flows_f64(Pass pass, const ParamDesc* __restrict__ weights, const float* __restrict__ partials,
                      double* flows, float keep, i32 chunks_per_split) {
    weights_flows<double>(pass, weights, partials, flows, keep, chunks_per_split);
}

// Moves a param row of weights whose sums over the warp's lanes are given.
template <class T>
__device__ __forceinline__ void move_weights(const ParamDesc& d, float* theta, const T* flows, i32 unit,
                                             double theta_sum, double flow_sum, const Update& update, i32 lane) {
    theta_sum = warp_sum(theta_sum);
    flow_sum = warp_sum(flow_sum);
    i64 row = d.row_at + unit;
    double retain = retained(update, row, flow_sum, update.offset);
    Coefficients c = coefficients(retain * theta_sum + update.gain * flow_sum, d.slots, retain, update);
    if (lane == 0 && update.masses != nullptr) update.masses[row] = flow_sum;
    if (!c.moves) return;
    LANES(col, d.slots) theta[col] = moved(c, theta[col], flows[col]);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    weights_step(Pass pass, const ParamDesc* __restrict__ weights, const float* __restrict__ partials, float* flows,
                 i32 chunks_per_split, Update update) {
    i32 lane = threadIdx.x % WARP, unit = blockIdx.x * 8 + threadIdx.x / WARP;
    const ParamDesc d = weights[blockIdx.y];
    if (unit >= d.units) return;
    float* theta = pass.theta + d.theta_at + (i64)unit * d.ld;
    flows += d.stat_at + (i64)unit * d.ld;
    i32 splits = num_splits(pass, d, chunks_per_split);
    double theta_sum = 0.0, flow_sum = 0.0;
    LANES(c, d.slots) {
        float p = theta[c], flow = kept(update.keep, flows[c]) + p * split_sum(d, partials, splits, unit, c);
        flows[c] = flow;
        theta_sum += (double)p;
        flow_sum += (double)flow;
    }
    move_weights(d, theta, flows, unit, theta_sum, flow_sum, update, lane);
}

template <class T>
__device__ __forceinline__ void weights_update(const Pass& pass, const ParamDesc* weights, const T* flows,
                                               const Update& update) {
    i32 lane = threadIdx.x % WARP, unit = blockIdx.x * 8 + threadIdx.x / WARP;
    const ParamDesc d = weights[blockIdx.y];
    if (unit >= d.units) return;
    float* theta = pass.theta + d.theta_at + (i64)unit * d.ld;
    flows += d.stat_at + (i64)unit * d.ld;
    double theta_sum = 0.0, flow_sum = 0.0;
    LANES(c, d.slots) {
        theta_sum += (double)theta[c];
        flow_sum += (double)flows[c];
    }
    move_weights(d, theta, flows, unit, theta_sum, flow_sum, update, lane);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    weights_update_f32(Pass pass, const ParamDesc* __restrict__ weights, const float* __restrict__ flows,
                       Update update) {
    weights_update(pass, weights, flows, update);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    weights_update_f64(Pass pass, const ParamDesc* __restrict__ weights, const double* __restrict__ flows,
                       Update update) {
    weights_update(pass, weights, flows, update);
}

template <class T>
__device__ __forceinline__ void weights_masses(const ParamDesc* weights, const T* flows, double gain, double* rows) {
    i32 lane = threadIdx.x % WARP, unit = blockIdx.x * 8 + threadIdx.x / WARP;
    const ParamDesc d = weights[blockIdx.y];
    if (unit >= d.units) return;
    flows += d.stat_at + (i64)unit * d.ld;
    double sum = 0.0;
    LANES(c, d.slots) sum += (double)flows[c];
    sum = warp_sum(sum);
    if (lane == 0) rows[d.row_at + unit] = gain * sum;
}

extern "C" __global__ void __launch_bounds__(256, 4)
    weights_masses_f32(const ParamDesc* __restrict__ weights, const float* __restrict__ flows, double gain,
                       double* rows) {
    weights_masses(weights, flows, gain, rows);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    weights_masses_f64(const ParamDesc* __restrict__ weights, const double* __restrict__ flows, double gain,
                       double* rows) {
    weights_masses(weights, flows, gain, rows);
}

// Tables.

// Without flows, both sums are of θ.
template <class T>
__device__ __forceinline__ void table_sums(const Pass& pass, const ParamDesc* tables, const T* flows, double* sums) {
    const ParamDesc d = tables[blockIdx.z];
    i32 unit = blockIdx.y * 128 + threadIdx.x;
    i32 first = blockIdx.x * CAT_TILE, end = min(first + CAT_TILE, d.slots);
    if (unit >= d.units || first >= d.slots) return;
    double theta_sum = 0.0, flow_sum = 0.0;
    for (i32 cat = first; cat < end; cat++) {
        float p = pass.theta[d.theta_at + (i64)cat * d.ld + unit];
        theta_sum += (double)p;
        flow_sum += flows == nullptr ? (double)p : (double)flows[d.stat_at + (i64)cat * d.ld + unit];
    }
    double* out = sums + d.partial_at + (i64)(2 * blockIdx.x) * d.ld + unit;
    out[0] = theta_sum;
    out[d.ld] = flow_sum;
}

extern "C" __global__ void __launch_bounds__(128)
    table_sums_f32(Pass pass, const ParamDesc* __restrict__ tables, const float* __restrict__ flows, double* sums) {
    table_sums(pass, tables, flows, sums);
}

extern "C" __global__ void __launch_bounds__(128)
    table_sums_f64(Pass pass, const ParamDesc* __restrict__ tables, const double* __restrict__ flows, double* sums) {
    table_sums(pass, tables, flows, sums);
}

// Adds up what `table_sums` or `table_flows` left, tile by tile.
__device__ __forceinline__ void add_tiles(const ParamDesc& d, const double* sums, i32 unit, double& theta_sum,
                                          double& flow_sum) {
    theta_sum = flow_sum = 0.0;
    const double* at = sums + d.partial_at + unit;
#pragma unroll 4
    for (i32 tile = 0; tile < tiles(d.slots, CAT_TILE); tile++, at += 2 * (i64)d.ld) {
        theta_sum += at[0];
        flow_sum += at[d.ld];
    }
}

extern "C" __global__ void __launch_bounds__(128)
    table_coefficients(const ParamDesc* __restrict__ tables, const double* __restrict__ sums, double* coefs,
                       i64 num_rows, Update update) {
    const ParamDesc d = tables[blockIdx.y];
    i32 unit = blockIdx.x * 128 + threadIdx.x;
    if (unit >= d.units) return;
    double theta_sum, flow_sum;
    add_tiles(d, sums, unit, theta_sum, flow_sum);
    i64 row = d.row_at + unit;
    double retain = retained(update, row, flow_sum, update.offset);
    Coefficients c = coefficients(retain * theta_sum + update.gain * flow_sum, d.slots, retain, update);
    coefs[row] = c.moves ? c.keep : -1.0;
    coefs[num_rows + row] = c.take;
    coefs[2 * num_rows + row] = c.add;
    if (update.masses != nullptr) update.masses[row] = flow_sum;
}

extern "C" __global__ void __launch_bounds__(128)
    table_masses(const ParamDesc* __restrict__ tables, const double* __restrict__ sums, double gain, double* rows) {
    const ParamDesc d = tables[blockIdx.y];
    i32 unit = blockIdx.x * 128 + threadIdx.x;
    if (unit >= d.units) return;
    double theta_sum, flow_sum;
    add_tiles(d, sums, unit, theta_sum, flow_sum);
    rows[d.row_at + unit] = gain * flow_sum;
}

template <class T>
__device__ __forceinline__ void table_move(const Pass& pass, const ParamDesc* tables, const T* flows,
                                           const double* coefs, i64 num_rows) {
    const ParamDesc d = tables[blockIdx.z];
    i32 unit = blockIdx.y * 128 + threadIdx.x;
    i32 first = blockIdx.x * CAT_TILE, end = min(first + CAT_TILE, d.slots);
    if (unit >= d.units || first >= d.slots) return;
    i64 row = d.row_at + unit;
    Coefficients c = {coefs[row], coefs[num_rows + row], coefs[2 * num_rows + row], true};
    if (c.keep < 0.0) return;  // no mass
#pragma unroll 4
    for (i32 cat = first; cat < end; cat++) {
        float* p = pass.theta + d.theta_at + (i64)cat * d.ld + unit;
        *p = moved(c, *p, flows[d.stat_at + (i64)cat * d.ld + unit]);
    }
}

extern "C" __global__ void __launch_bounds__(128)
    table_move_f32(Pass pass, const ParamDesc* __restrict__ tables, const float* __restrict__ flows,
                   const double* __restrict__ coefs, i64 num_rows) {
    table_move(pass, tables, flows, coefs, num_rows);
}

extern "C" __global__ void __launch_bounds__(128)
    table_move_f64(Pass pass, const ParamDesc* __restrict__ tables, const double* __restrict__ flows,
                   const double* __restrict__ coefs, i64 num_rows) {
    table_move(pass, tables, flows, coefs, num_rows);
}

// Densities.

template <class T>
__device__ __forceinline__ void density_update(const Pass& pass, const ParamDesc* densities, const T* flows,
                                               const Update& update) {
    const ParamDesc d = densities[blockIdx.y];
    i32 unit = blockIdx.x * 64 + threadIdx.x;
    if (unit >= d.units) return;
    float* theta = pass.theta + d.theta_at + unit;
    const T* stats = flows + d.stat_at + unit;
    double first = (double)stats[0], second = (double)stats[d.ld], mass = (double)stats[2 * d.ld];
    i64 row = d.row_at + unit;
    if (update.masses != nullptr) update.masses[row] = mass;
    double retain = retained(update, row, mass, 0.0);  // no offset: densities are not smoothed
    double own_mean, own_std;
    density_expected(d, theta[0], theta[d.ld], own_mean, own_std);
    first = first * update.gain + retain * own_mean;
    second = second * update.gain + retain * (own_mean * own_mean + own_std * own_std);
    mass = mass * update.gain + retain;
    density_maximize(d, first, second, mass, theta);
}

extern "C" __global__ void __launch_bounds__(64) density_update_f32(Pass pass, const ParamDesc* __restrict__ densities,
                                                                    const float* __restrict__ flows, Update update) {
    density_update(pass, densities, flows, update);
}

extern "C" __global__ void __launch_bounds__(64) density_update_f64(Pass pass, const ParamDesc* __restrict__ densities,
                                                                    const double* __restrict__ flows, Update update) {
    density_update(pass, densities, flows, update);
}

template <class T>
__device__ __forceinline__ void density_masses(const ParamDesc* densities, const T* flows, double gain, double* rows) {
    const ParamDesc d = densities[blockIdx.y];
    i32 unit = blockIdx.x * 64 + threadIdx.x;
    if (unit < d.units) rows[d.row_at + unit] = gain * (double)flows[d.stat_at + 2 * (i64)d.ld + unit];
}

extern "C" __global__ void __launch_bounds__(64)
    density_masses_f32(const ParamDesc* __restrict__ densities, const float* __restrict__ flows, double gain,
                       double* rows) {
    density_masses(densities, flows, gain, rows);
}

extern "C" __global__ void __launch_bounds__(64)
    density_masses_f64(const ParamDesc* __restrict__ densities, const double* __restrict__ flows, double gain,
                       double* rows) {
    density_masses(densities, flows, gain, rows);
}

// Rows and elements.

extern "C" __global__ void __launch_bounds__(128)
    top_down_rows(Pass pass, const ParamDesc* __restrict__ params, const UseDesc* __restrict__ uses, double* rows) {
    const ParamDesc d = params[blockIdx.y];
    i32 unit = blockIdx.x * 128 + threadIdx.x;
    if (unit >= d.units) return;
    double sum = 0.0;
    for (i32 u = 0; u < d.num_uses; u++) {
        const UseDesc& use = uses[d.first_use + u];
        sum += (double)pass.flows[row_at(use.flow, pass.capacity, pass.data_rows) + use.gain_start + unit];
    }
    rows[d.row_at + unit] = sum;
}

template <class T>
__device__ __forceinline__ void scale(T* x, double factor, i64 n) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) {
        x[i] = factor == 0.0 ? (T)0 : x[i] * (T)factor;
    }
}

extern "C" __global__ void __launch_bounds__(256) scale_f32(float* x, double factor, i64 n) {
    scale(x, factor, n);
}

extern "C" __global__ void __launch_bounds__(256) scale_f64(double* x, double factor, i64 n) {
    scale(x, factor, n);
}

// As the CPU does: the term in double precision, the sum in the target's.
template <class S, class T>
__device__ __forceinline__ void add_scaled(const S* from, double gain, T* into, i64 n) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256)
        into[i] += (T)(gain * (double)from[i]);
}

#define ADD_SCALED(name, S, T)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) name(const S* __restrict__ from, double gain, T* into, i64 n) { \
        add_scaled<S, T>(from, gain, into, n);                                                                        \
    }
ADD_SCALED(add_scaled_ff, float, float)
ADD_SCALED(add_scaled_fd, float, double)
ADD_SCALED(add_scaled_df, double, float)
ADD_SCALED(add_scaled_dd, double, double)

extern "C" __global__ void __launch_bounds__(256)
    blend_rows(double* into, double keep, const double* rows, double gain, i64 n) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256)
        into[i] = keep * into[i] + gain * rows[i];
}
