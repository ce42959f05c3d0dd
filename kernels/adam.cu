// Gradient steps on φ = log θ. src/backend/cpu/update.rs, docs/MATH.md, Gradient.
//
//   gradient   F = gain·F − TD[row]·θ                                                   a warp owns a line of a block
//   adam       m = β1·m + (1−β1)·g, v = β2·v + (1−β2)·g², θ *= exp(rate·m̂/(√v̂ + ε))   a thread owns a number
//   ascend     θ *= exp(rate·g)                                                         a thread owns a number
//
// θ is left unnormalised. No exponent leaves ±20. Padding is zero and stays so.
#include "common.cuh"

// A line is contiguous: a param row of weights, or a category of a table with one number of every param row.
template <class T>
__device__ __forceinline__ void gradient(const Pass& pass, const ParamDesc* params, T* flows, double gain,
                                         const double* top_down) {
    const ParamDesc d = params[blockIdx.y];
    i32 lane = threadIdx.x % WARP;
    const bool is_weights = d.kind == WEIGHTS;
    const i32 lines = is_weights ? d.units : d.slots, width = is_weights ? d.slots : d.units;
    for (i32 line = blockIdx.x * 8 + threadIdx.x / WARP; line < lines; line += gridDim.x * 8) {
        const float* theta = pass.theta + d.theta_at + (i64)line * d.ld;
        T* flow = flows + d.stat_at + (i64)line * d.ld;
        LANES(i, width) {
            double td = top_down[d.row_at + (is_weights ? line : i)];
            flow[i] = (T)(gain * (double)flow[i] - td * (double)theta[i]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 4)
    gradient_f32(Pass pass, const ParamDesc* __restrict__ params, float* flows, double gain,
                 const double* __restrict__ top_down) {
    gradient(pass, params, flows, gain, top_down);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    gradient_f64(Pass pass, const ParamDesc* __restrict__ params, double* flows, double gain,
                 const double* __restrict__ top_down) {
    gradient(pass, params, flows, gain, top_down);
}

// No log-weight moves further in one step: e^20 is far beyond any useful step and far inside f32.
__device__ __forceinline__ float bounded(float move) {
    return fminf(fmaxf(move, -20.0f), 20.0f);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    adam(float* theta, const float* __restrict__ gradients, float* first, float* second, i64 n, float rate, float beta1,
         float beta2, float correct1, float correct2, float epsilon) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) {
        float g = gradients[i];
        float m = beta1 * first[i] + (1.0f - beta1) * g;
        float v = beta2 * second[i] + (1.0f - beta2) * g * g;
        first[i] = m;
        second[i] = v;
        theta[i] *= expf(bounded(rate * (m * correct1) / (sqrtf(v * correct2) + epsilon)));
    }
}

extern "C" __global__ void __launch_bounds__(256, 4)
    ascend(float* theta, const float* __restrict__ gradients, i64 n, float rate) {
    for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256)
        theta[i] *= expf(bounded(rate * gradients[i]));
}
