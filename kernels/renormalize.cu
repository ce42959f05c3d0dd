// Global renormalisation: docs/MATH.md, src/backend/cpu/renormalize.rs. After `log_*` kernels have taken the row with
// everything missing up and down, with input masses for values:
//
//   renormalize_weights   θ[u,·] ∝ Σ over uses of F∅(u)·θ[u,c]·Z(c)/Z(u); by their own sum where nothing flows
//                         a warp owns a param row
//   renormalize_tables    θ[x][u] /= mass[u]
//                         a thread owns a unit in 32 categories
//   fill_f64              x[i] = value
#include "log_space.cuh"

extern "C" __global__ void __launch_bounds__(256, 4)
    renormalize_weights(LogPass pass, const ParamDesc* __restrict__ weights, const UseDesc* __restrict__ uses,
                        float* theta) {
    i32 lane = threadIdx.x % WARP, unit = blockIdx.x * 8 + threadIdx.x / WARP;
    const ParamDesc d = weights[blockIdx.y];
    if (unit >= d.units) return;
    float* row = theta + d.theta_at + (i64)unit * d.ld;
    double reached = 0.0, own = 0.0;
    LANES(c, d.slots) {
        reached += weight_flow(pass, d, uses, unit, c, row[c]);
        own += (double)row[c];
    }
    reached = warp_sum(reached);
    own = warp_sum(own);
    // A lane overwrites only what it alone reads: flows of a weight need no other weight.
    if (reached > 0.0 && reached < INF) {
        LANES(c, d.slots) row[c] = (float)(weight_flow(pass, d, uses, unit, c, row[c]) / reached);
    } else if (own > 0.0 && own < INF) {
        LANES(c, d.slots) row[c] = (float)((double)row[c] / own);
    }
}

extern "C" __global__ void __launch_bounds__(128)
    renormalize_tables(const ParamDesc* __restrict__ tables, const double* __restrict__ masses, float* theta) {
    const ParamDesc d = tables[blockIdx.z];
    i32 unit = blockIdx.y * 128 + threadIdx.x;
    i32 first = blockIdx.x * 32, end = min(first + 32, d.slots);
    if (unit >= d.units || first >= d.slots) return;
    double mass = masses[d.row_at + unit];
    if (!(mass > 0.0)) return;
    for (i32 cat = first; cat < end; cat++) {
        float* p = theta + d.theta_at + (i64)cat * d.ld + unit;
        *p = (float)((double)*p / mass);
    }
}

extern "C" __global__ void __launch_bounds__(256) fill_f64(double* x, double value, i64 n) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) x[i] = value;
}
