// The slow, sure way: rows that scaled linear space cannot hold, in log space and double precision. `renormalize.cu`
// uses it for the partition functions of all units.
//
//   values `[rows × units]` are log p; flows are linear. In the order of the plan:
//   log_input             log θ[x][u], log f_u(x), 0 (missing); or log mass[u] of every input
//                         a thread owns a unit of a row
//   log_product           Σ over factors
//                         a thread owns a unit of a row
//   log_panel             slices side by side
//                         a thread owns a column of a row
//   log_sum               log Σ_c w·exp(v_c), around the largest term
//                         a warp owns a unit of a row
//   log_gain              gain[u] = F[u]/Σ_c w·exp(v_c − v_u): shares are made to add up to one
//                         a warp owns a unit of a row
//   log_sum_backward      flow[c] (+)= Σ_u gain[u]·w·exp(v_c − v_u)
//                         a thread owns a column of a row
//   log_product_backward  flow[u] (+)= Σ over product parents
//                         a thread owns a unit of a row
//   log_weight_flows, log_table_flows, log_density_flows   F += Σ over uses and rows
//                                                          a thread owns a weight; a unit
#include "log_space.cuh"

__device__ __forceinline__ u32 batch_cell(const LogPass& pass, i32 column, i32 row) {
    return pass.cells[(i64)column * pass.cells_capacity + pass.row_ids[row]];
}

// log of a unit of an input.
__device__ __forceinline__ double log_of_input(const LogPass& pass, const ParamDesc& d, i32 column, i32 row, i32 unit) {
    if (pass.masses != nullptr) return log(pass.masses[d.row_at + unit]);
    u32 cell = batch_cell(pass, column, row);
    if (cell == MISSING) return 0.0;
    const float* theta = pass.theta + d.theta_at + unit;
    if (d.kind == TABLE) return log((double)theta[(i64)cell * d.ld]);
    return density_log_prob(d, theta[0], theta[d.ld], cell);
}

extern "C" __global__ void __launch_bounds__(128)
    log_input(LogPass pass, const InputDesc* __restrict__ inputs, const ParamDesc* __restrict__ params) {
    const InputDesc input = inputs[blockIdx.z];
    const ParamDesc d = params[input.param];
    i32 unit = blockIdx.x * 128 + threadIdx.x, row = blockIdx.y;
    if (unit >= d.units) return;
    pass.values[row_at(input.value, pass.capacity, row) + unit] = log_of_input(pass, d, input.cells, row, unit);
}

extern "C" __global__ void __launch_bounds__(128)
    log_product(LogPass pass, const ProductDesc* __restrict__ products, const FactorDesc* __restrict__ factors,
                const ParamDesc* __restrict__ params, const u32* __restrict__ maps) {
    const ProductDesc product = products[blockIdx.z];
    i32 unit = blockIdx.x * 128 + threadIdx.x, row = blockIdx.y;
    if (unit >= product.units) return;
    double sum = 0.0;
    for (i32 f = 0; f < product.num_factors; f++) {
        const FactorDesc& factor = factors[product.first_factor + f];
        i32 from = factor.map_at < 0 ? unit : (i32)maps[factor.map_at + unit];
        sum += factor.kind == 1 ? log_of_input(pass, params[factor.param], factor.cells, row, from)
                                : pass.values[row_at(factor.source, pass.capacity, row) + from];
    }
    pass.values[row_at(product.value, pass.capacity, row) + unit] = sum;
}

extern "C" __global__ void __launch_bounds__(128)
    log_panel(LogPass pass, const PanelDesc* __restrict__ panels, const SliceDesc* __restrict__ slices) {
    const PanelDesc panel = panels[blockIdx.z];
    i32 col = blockIdx.x * 128 + threadIdx.x, row = blockIdx.y;
    if (col >= panel.units) return;
    i32 inside = col;
    for (i32 s = 0; s < panel.num_slices; s++) {
        const SliceDesc& slice = slices[panel.first_slice + s];
        if (inside < slice.units) {
            pass.values[row_at(panel.panel, pass.capacity, row) + col] =
                pass.values[row_at(slice.source, pass.capacity, row) + slice.start + inside];
            return;
        }
        inside -= slice.units;
    }
}

extern "C" __global__ void __launch_bounds__(256, 4) log_sum(LogPass pass, const GroupDesc* __restrict__ groups) {
    const GroupDesc group = groups[blockIdx.z];
    i32 lane = threadIdx.x % WARP, unit = blockIdx.x * 8 + threadIdx.x / WARP, row = blockIdx.y;
    if (unit >= group.units) return;
    const double* panel = pass.values + row_at(group.panel, pass.capacity, row) + group.panel_start;
    const float* weights = pass.theta + group.theta_at + (i64)unit * group.theta_ld;
    // Around the largest child that has a weight; the weights themselves are no smaller than 1e-45 and keep the sum in
    // range.
    double top = -INF;
    LANES(c, group.cols) {
        if (weights[c] > 0.0f) top = fmax(top, panel[c]);
    }
    top = warp_max(top);
    double sum = 0.0;
    if (top > -INF) {
        LANES(c, group.cols) sum += share(weights[c], panel[c], top);
        sum = warp_sum(sum);
    }
    if (lane == 0)
        pass.values[row_at(group.value, pass.capacity, row) + group.start + unit] = top > -INF ? top + log(sum) : -INF;
}

extern "C" __global__ void __launch_bounds__(128)
    log_root(LogPass pass, Buffer value, Buffer flow, double* log_likelihoods) {
    i32 row = blockIdx.x * 128 + threadIdx.x;
    if (row >= pass.rows) return;
    double log_likelihood = pass.values[row_at(value, pass.capacity, row)];
    log_likelihoods[row] = log_likelihood;
    if (flow.at >= 0) pass.flows[row_at(flow, pass.capacity, row)] = log_likelihood > -INF ? pass.root_flow[row] : 0.0;
}

extern "C" __global__ void __launch_bounds__(256, 4) log_gain(LogPass pass, const GroupDesc* __restrict__ groups) {
    const GroupDesc group = groups[blockIdx.z];
    i32 lane = threadIdx.x % WARP, unit = blockIdx.x * 8 + threadIdx.x / WARP, row = blockIdx.y;
    if (unit >= group.units) return;
    const double* panel = pass.values + row_at(group.panel, pass.capacity, row) + group.panel_start;
    const float* weights = pass.theta + group.theta_at + (i64)unit * group.theta_ld;
    i64 at = row_at(group.value, pass.capacity, row) + group.start + unit;
    double value = pass.values[at], flow = pass.flows[row_at(group.flow, pass.capacity, row) + group.start + unit];
    double total = 0.0;
    if (is_followed(flow, value, pass.negligible * pass.root_flow[row])) {
        LANES(c, group.cols) total += share(weights[c], panel[c], value);
        total = warp_sum(total);
    }
    if (lane == 0) pass.gains[at] = total > 0.0 ? flow / total : 0.0;
}

extern "C" __global__ void __launch_bounds__(128)
    log_sum_backward(LogPass pass, const GroupDesc* __restrict__ groups, const TargetDesc* __restrict__ targets) {
    const GroupDesc group = groups[blockIdx.z];
    i32 col = blockIdx.x * 128 + threadIdx.x, row = blockIdx.y;
    if (col >= group.cols) return;
    const float* weights = pass.theta + group.theta_at + col;
    i64 first = row_at(group.value, pass.capacity, row) + group.start;
    double child = pass.values[row_at(group.panel, pass.capacity, row) + group.panel_start + col], sum = 0.0;
    for (i32 unit = 0; unit < group.units; unit++) {
        double gain = pass.gains[first + unit];
        if (gain > 0.0) sum += gain * share(weights[(i64)unit * group.theta_ld], child, pass.values[first + unit]);
    }
    for (i32 t = 0; t < group.num_targets; t++) {
        const TargetDesc& target = targets[group.first_target + t];
        i32 inside = col - target.col;
        if (inside < 0 || inside >= target.units) continue;
        double* out = pass.flows + row_at(target.target, pass.capacity, row) + target.start + inside;
        *out = (target.add ? *out : 0.0) + sum;
    }
}

extern "C" __global__ void __launch_bounds__(128)
    log_product_backward(LogPass pass, const PullDesc* __restrict__ pulls, const PullSource* __restrict__ sources,
                         const u32* __restrict__ maps) {
    const PullDesc pull = pulls[blockIdx.z];
    i32 unit = blockIdx.x * 128 + threadIdx.x, row = blockIdx.y;
    if (unit >= pull.units) return;
    double* out = pass.flows + row_at(pull.target, pass.capacity, row) + unit;
    double sum = pull.add ? *out : 0.0;
    for (i32 s = 0; s < pull.num_sources; s++) {
        const PullSource& source = sources[pull.first_source + s];
        const double* flow = pass.flows + row_at(source.flow, pass.capacity, row);
        if (source.items_at < 0) {
            sum += flow[unit];
            continue;
        }
        const u32* items = maps + source.items_at;
        u32 i = source.starts_at < 0 ? unit : maps[source.starts_at + unit];
        u32 end = source.starts_at < 0 ? unit + 1 : maps[source.starts_at + unit + 1];
        for (; i < end; i++) sum += flow[items[i]];
    }
    *out = sum;
}

// Flows of parameters.

template <class T>
__device__ __forceinline__ void log_weight_flows(const LogPass& pass, const ParamDesc* weights, const UseDesc* uses,
                                                 T* flows) {
    const ParamDesc d = weights[blockIdx.z];
    i32 col = blockIdx.x * 128 + threadIdx.x, unit = blockIdx.y;
    if (col >= d.slots || unit >= d.units) return;
    T* flow = flows + d.stat_at + (i64)unit * d.ld + col;
    double sum = weight_flow(pass, d, uses, unit, col, pass.theta[d.theta_at + (i64)unit * d.ld + col]);
    *flow = (T)((double)*flow + sum);
}

extern "C" __global__ void __launch_bounds__(128, 8)
    log_weight_flows_f32(LogPass pass, const ParamDesc* __restrict__ weights, const UseDesc* __restrict__ uses,
                         float* flows) {
    log_weight_flows(pass, weights, uses, flows);
}

extern "C" __global__ void __launch_bounds__(128, 8)
    log_weight_flows_f64(LogPass pass, const ParamDesc* __restrict__ weights, const UseDesc* __restrict__ uses,
                         double* flows) {
    log_weight_flows(pass, weights, uses, flows);
}

template <class T>
__device__ __forceinline__ void log_table_flows(const LogPass& pass, const ParamDesc* tables, const UseDesc* uses,
                                                T* flows) {
    const ParamDesc d = tables[blockIdx.y];
    i32 unit = blockIdx.x * 128 + threadIdx.x;
    if (unit >= d.units) return;
    T* column = flows + d.stat_at + unit;
    double missing = 0.0;
    for (i32 u = 0; u < d.num_uses; u++) {
        const UseDesc& use = uses[d.first_use + u];
        for (i32 row = 0; row < pass.rows; row++) {
            double flow = pass.flows[row_at(use.flow, pass.capacity, row) + unit];
            u32 cell = batch_cell(pass, use.cells, row);
            if (!(flow > 0.0)) continue;
            if (cell == MISSING) {
                missing += flow;
            } else {
                T* at = column + (i64)cell * d.ld;
                *at = (T)((double)*at + flow);
            }
        }
    }
    if (!(missing > 0.0)) return;
    const float* theta = pass.theta + d.theta_at + unit;
    for (i32 cat = 0; cat < d.slots; cat++) {
        T* at = column + (i64)cat * d.ld;
        *at = (T)((double)*at + missing * (double)theta[(i64)cat * d.ld]);
    }
}

extern "C" __global__ void __launch_bounds__(128)
    log_table_flows_f32(LogPass pass, const ParamDesc* __restrict__ tables, const UseDesc* __restrict__ uses,
                        float* flows) {
    log_table_flows(pass, tables, uses, flows);
}

extern "C" __global__ void __launch_bounds__(128)
    log_table_flows_f64(LogPass pass, const ParamDesc* __restrict__ tables, const UseDesc* __restrict__ uses,
                        double* flows) {
    log_table_flows(pass, tables, uses, flows);
}

template <class T>
__device__ __forceinline__ void log_density_flows(const LogPass& pass, const ParamDesc* densities, const UseDesc* uses,
                                                  T* flows) {
    const ParamDesc d = densities[blockIdx.y];
    i32 unit = blockIdx.x * 128 + threadIdx.x;
    if (unit >= d.units) return;
    const float* theta = pass.theta + d.theta_at + unit;
    double mean, std, first = 0.0, second = 0.0, mass = 0.0;
    density_expected(d, theta[0], theta[d.ld], mean, std);
    for (i32 u = 0; u < d.num_uses; u++) {
        const UseDesc& use = uses[d.first_use + u];
        for (i32 row = 0; row < pass.rows; row++) {
            double flow = pass.flows[row_at(use.flow, pass.capacity, row) + unit];
            u32 cell = batch_cell(pass, use.cells, row);
            if (!(flow > 0.0)) continue;
            double x = cell == MISSING ? mean : density_seen(d, cell);
            first += flow * x;
            second += flow * (cell == MISSING ? mean * mean + std * std : x * x);
            mass += flow;
        }
    }
    T* stats = flows + d.stat_at + unit;
    stats[0] = (T)((double)stats[0] + first);
    stats[d.ld] = (T)((double)stats[d.ld] + second);
    stats[2 * d.ld] = (T)((double)stats[2 * d.ld] + mass);
}

extern "C" __global__ void __launch_bounds__(128)
    log_density_flows_f32(LogPass pass, const ParamDesc* __restrict__ densities, const UseDesc* __restrict__ uses,
                          float* flows) {
    log_density_flows(pass, densities, uses, flows);
}

extern "C" __global__ void __launch_bounds__(128)
    log_density_flows_f64(LogPass pass, const ParamDesc* __restrict__ densities, const UseDesc* __restrict__ uses,
                          double* flows) {
    log_density_flows(pass, densities, uses, flows);
}
