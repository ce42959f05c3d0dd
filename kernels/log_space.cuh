// One row in log space and double precision: src/backend/cpu/log_space.rs.
#pragma once
#include "distribution.cuh"

// What child c has in a unit of that log-value: w·exp(v_c − value). A weight of zero has no share, however large its
// child.
__device__ __forceinline__ double share(float weight, double child, double value) {
    return weight > 0.0f ? (double)weight * exp(child - value) : 0.0;
}

// Whether a unit's flow is followed further.
__device__ __forceinline__ bool is_followed(double flow, double value, double negligible) {
    return flow > negligible && value > -INF;
}

// The flow of weight (unit, col) over the uses and rows, in their order. `gain` is flow over the sum of shares
// (`log_gain`).
__device__ __forceinline__ double weight_flow(const LogPass& pass, const ParamDesc& d, const UseDesc* uses, i32 unit,
                                              i32 col, float weight) {
    double sum = 0.0;
    if (!(weight > 0.0f)) return sum;
    for (i32 u = 0; u < d.num_uses; u++) {
        const UseDesc& use = uses[d.first_use + u];
        for (i32 row = 0; row < pass.rows; row++) {
            i64 at = row_at(use.gain, pass.capacity, row) + use.gain_start + unit;
            double gain = pass.gains[at];
            if (gain > 0.0) {
                sum += gain * share(weight, pass.values[row_at(use.panel, pass.capacity, row) + use.panel_start + col],
                                    pass.values[at]);
            }
        }
    }
    return sum;
}
