// Densities: src/circuit/distribution, in double precision.
#pragma once
#include "common.cuh"

// Standard deviation of the logistic distribution of scale 1: π/√3.
#define LOGISTIC_STD 1.81379936423421785059
#define LN_TAU 1.83787706640934548356

// log(1/(1 + e^−z)) without overflow.
__device__ __forceinline__ double log_sigmoid(double z) {
    return fmin(z, 0.0) - log1p(exp(-fabs(z)));
}

// log p(value) of a unit with parameters (a, b).
__device__ __forceinline__ double density_log_prob(const ParamDesc& d, double a, double b, u32 cell) {
    if (d.kind == GAUSSIAN) {
        double z = ((double)__uint_as_float(cell) - a) / b;
        return -0.5 * (z * z + LN_TAU) - log(b);
    }
    // σ(hi) − σ(lo) = σ(hi)·σ(−lo)·(1 − e^(lo−hi)): nothing cancels. The outer bins are open.
    double value = (double)cell, result = 0.0;
    bool first = cell == 0, last = cell == (u32)(d.cats - 1) && !first;
    if (!last) result += log_sigmoid((d.origin + (value + 1.0) * d.width - a) / b);
    if (!first) result += log_sigmoid(-(d.origin + value * d.width - a) / b);
    if (!first && !last) result += log(-expm1(-d.width / b));
    return fmax(result, -1000.0);
}

// The first two moments of what was seen: value (Gaussian, about the origin) or centre of the bin.
__device__ __forceinline__ double density_seen(const ParamDesc& d, u32 cell) {
    return d.kind == GAUSSIAN ? (double)__uint_as_float(cell) - d.origin : d.origin + ((double)cell + 0.5) * d.width;
}

// Mean and standard deviation that a unit itself expects, in the terms of its statistics.
__device__ __forceinline__ void density_expected(const ParamDesc& d, double a, double b, double& mean, double& std) {
    mean = d.kind == GAUSSIAN ? a - d.origin : a;
    std = d.kind == GAUSSIAN ? b : b * LOGISTIC_STD;
}

// The M-step of a unit, `ld` numbers apart. Without mass, or beyond what a number can be, it keeps its parameters.
__device__ __forceinline__ void density_maximize(const ParamDesc& d, double first, double second, double mass,
                                                 float* theta) {
    if (!(mass > 0.0 && mass < INF && fabs(first) < INF && fabs(second) < INF)) return;
    double mean = first / mass, variance = second / mass - mean * mean;
    // Not a maximum of variances alone: rounding can leave one negative, and NaN must not pass.
    double std = variance > d.min_std * d.min_std ? sqrt(variance) : d.min_std;
    bool gaussian = d.kind == GAUSSIAN;
    theta[0] = (float)(gaussian ? mean + d.origin : mean);
    theta[d.ld] = (float)(gaussian ? std : std / LOGISTIC_STD);
}
