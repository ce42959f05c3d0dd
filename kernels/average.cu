// Averaged parameters, beside θ and in its layout. src/backend/cpu/average.rs, docs/MATH.md, "Averaged parameters".
//
//   average           θ̄ = θ̄ + w·(θ − θ̄) of weights and tables                  a thread owns a number
//   density_average   the moments that θ̄ and θ expect, 1−w and w of them,
//                     then the M-step: θ̄ expects the mixture                   a thread owns a unit
//
// Weights and tables come before densities, so `n` numbers from the start are theirs. Padding is zero and stays so.
#include "distribution.cuh"

extern "C" __global__ void __launch_bounds__(256, 4)
    average(float* averages, const float* __restrict__ theta, i64 n, float weight) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256)
        averages[i] += weight * (theta[i] - averages[i]);
}

extern "C" __global__ void __launch_bounds__(64)
    density_average(const ParamDesc* __restrict__ densities, float* averages, const float* __restrict__ theta,
                    double weight) {
    const ParamDesc d = densities[blockIdx.y];
    i32 unit = blockIdx.x * 64 + threadIdx.x;
    if (unit >= d.units) return;
    averages += d.theta_at + unit;
    theta += d.theta_at + unit;
    const double past = 1.0 - weight;
    double past_mean, past_std, mean, std;
    density_expected(d, averages[0], averages[d.ld], past_mean, past_std);
    density_expected(d, theta[0], theta[d.ld], mean, std);
    double first = past * past_mean + weight * mean;
    double second = past * (past_mean * past_mean + past_std * past_std) + weight * (mean * mean + std * std);
    density_maximize(d, first, second, past + weight, averages);
}
