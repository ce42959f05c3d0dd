// What all kernels share: descriptors as README.md defines them, and the arithmetic of a warp that owns a row.
#pragma once

typedef unsigned int u32;
typedef int i32;
typedef long long i64;

// Constants are enumerators and macros: NVRTC would put a `constexpr` variable into every module.

// A cell without a value, an absent item. As f32 bits it is a NaN, which no column may hold.
enum : u32 { MISSING = 0xffffffffu };

// Descriptors: repr(C) on the host.

struct Buffer {
    i64 at;
    i32 ld;
    i32 scale;
};

// One access of 16 bytes: two of 8 would each touch every sector.
struct __align__(16) Scale {
    i64 exponent;
    i64 loss;
};

enum Kind { WEIGHTS = 0, TABLE = 1, GAUSSIAN = 2, DISCRETE_LOGISTIC = 3 };

struct ParamDesc {
    i64 theta_at, stat_at, row_at, partial_at, starts_at;
    i32 kind, units, slots, ld, first_use, num_uses;
    double origin, width, min_std;
    i32 cats, pad;
};

struct UseDesc {
    Buffer gain, panel, flow;
    i32 gain_start, panel_start, cells, pad;
};

struct InputDesc {
    Buffer value;
    i32 param, cells;
};

struct ProductDesc {
    Buffer value;
    i32 first_factor, num_factors, units, pad;
};

struct FactorDesc {
    Buffer source;
    i64 map_at;
    i32 kind, param, cells, units, skew, pad;
};

struct PullDesc {
    Buffer target;
    i32 first_source, num_sources, units, add;
};

struct PullSource {
    Buffer flow;
    i64 starts_at, items_at;
    i32 units, skew;
};

struct PanelDesc {
    Buffer panel;
    i32 first_slice, num_slices, units, pad;
};

struct SliceDesc {
    Buffer source;
    i32 start, units;
};

struct GroupDesc {
    Buffer value, flow, panel;
    i64 theta_at, extremes_at;
    i32 theta_ld, start, units, panel_start, cols, first_target, num_targets, pad;
};

struct TargetDesc {
    Buffer target;
    i32 start, col, units, add;
};

struct SumDesc {
    Buffer value;
    i32 first_group, num_groups, units, one_panel;
};

struct Piece {
    u32 first, count, out, units;
};

struct Pass {
    float* values;
    float* flows;
    Scale* scales;
    float* theta;
    const u32* cells;
    u32* degenerate;
    i32 rows, data_rows, capacity, flow_bits;
};

struct Update {
    double scale, offset, gain, epsilon;
    const double* retain;
    double* masses;
    i32 absolute, source;
    float keep;
    i32 pad;
};

struct LogPass {
    double* values;
    double* gains;
    double* flows;
    const float* theta;
    const u32* cells;
    const double* masses;
    const u32* row_ids;
    const double* root_flow;
    double negligible;
    i32 rows, capacity, cells_capacity, pad;
    i64 pad2;
};

static_assert(sizeof(Buffer) == 16 && sizeof(Scale) == 16, "as in README.md");
static_assert(sizeof(ParamDesc) == 96 && sizeof(UseDesc) == 64 && sizeof(InputDesc) == 24, "as in README.md");
static_assert(sizeof(ProductDesc) == 32 && sizeof(FactorDesc) == 48, "as in README.md");
static_assert(sizeof(PullDesc) == 32 && sizeof(PullSource) == 40, "as in README.md");
static_assert(sizeof(PanelDesc) == 32 && sizeof(SliceDesc) == 24, "as in README.md");
static_assert(sizeof(GroupDesc) == 96 && sizeof(TargetDesc) == 32 && sizeof(SumDesc) == 32, "as in README.md");
static_assert(sizeof(Piece) == 16 && sizeof(Pass) == 64 && sizeof(Update) == 64 && sizeof(LogPass) == 96,
              "as in README.md");

// Where a row of a buffer starts in a slab for `capacity` rows.
__device__ __forceinline__ i64 row_at(const Buffer& buffer, i32 capacity, i32 row) {
    return buffer.at * capacity + (i64)row * buffer.ld;
}

__device__ __forceinline__ i64 scale_at(const Buffer& buffer, i32 capacity, i32 row) {
    return (i64)buffer.scale * capacity + row;
}

__device__ __forceinline__ i32 tiles(i32 count, i32 size) {
    return (count + size - 1) / size;
}

// A warp together.

enum : u32 { ALL = 0xffffffffu };
enum : i32 { WARP = 32 };
#define LN_2 0.693147180559945309417
#define LOG2_E 1.44269504088896340736
#define INF (__longlong_as_double(0x7ff0000000000000ll))

// `LANES(k, count) …`: a lane owns every 32nd of `count` elements. All lanes go around equally often: were the
// condition the loop's, unrolling would peel rounds off some lanes only, and what a warp reads would no longer lie side
// by side.
#define LANES(k, count)                                                                  \
    for (i32 k##_round = 0, k = lane; k##_round < (count); k##_round += WARP, k += WARP) \
        if (k < (count))

__device__ __forceinline__ u32 warp_max(u32 x) {
    for (i32 step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(ALL, x, step));
    return x;
}

__device__ __forceinline__ u32 warp_min(u32 x) {
    for (i32 step = 16; step > 0; step /= 2) x = min(x, __shfl_xor_sync(ALL, x, step));
    return x;
}

// A butterfly: the same tree of additions in every lane, so the result is the same bits in all.
__device__ __forceinline__ double warp_sum(double x) {
    for (i32 step = 16; step > 0; step /= 2) x += __shfl_xor_sync(ALL, x, step);
    return x;
}

__device__ __forceinline__ double warp_max(double x) {
    for (i32 step = 16; step > 0; step /= 2) x = fmax(x, __shfl_xor_sync(ALL, x, step));
    return x;
}

// Rows in scaled linear space: src/backend/cpu/scaled.rs, number by number.

enum : i64 {
    ZERO = -(1ll << 40),
    NO_LOSS = -(1ll << 50),
    SOME_LOSS = -(1ll << 49),
    TOTAL_LOSS = 1ll << 50,
    TINY_BITS = 100,
    SAFE_BITS = 30,
    LARGEST_GAIN_BITS = 101,
};
enum : u32 {
    TINY_AS_BITS = (127 - 100) << 23,
    COMFORTABLE = (127 - 30) << 23,
    LOW_WATER = (127 - 40) << 23,
    ONE = 0x3f800000u,
    SMALLEST_NORMAL = 0x00800000u,
    INFINITE = 0x7f800000u,
};

// Largest and smallest entry of a row of non-negative numbers, as bits: integers order them, and NaN comes out on top.
struct Extremes {
    u32 max, min;

    __device__ __forceinline__ void see(float x) {
        u32 bits = __float_as_uint(x);
        max = ::max(max, bits);
        min = ::min(min, bits);
    }

    __device__ __forceinline__ void merge(Extremes other) {
        max = ::max(max, other.max);
        min = ::min(min, other.min);
    }

    // Of all lanes together.
    __device__ __forceinline__ Extremes of_warp() const { return {warp_max(max), warp_min(min)}; }
};

__device__ __forceinline__ Extremes nothing_seen() {
    return {0, 0xffffffffu};
}

__device__ __forceinline__ Scale unit_scale() {
    return {0, NO_LOSS};
}

// The scale of a ⊙ b before rescaling.
__device__ __forceinline__ Scale times(Scale a, Scale b) {
    i64 exponent = a.exponent + b.exponent;
    i64 loss = max(max(a.loss + b.exponent, b.loss + a.exponent), a.loss + b.loss);
    bool vanished = exponent <= ZERO && a.exponent > ZERO && b.exponent > ZERO;
    bool lossy = vanished || a.loss > SOME_LOSS || b.loss > SOME_LOSS;
    return {max(exponent, ZERO), lossy ? min(max(loss, ZERO), TOTAL_LOSS) : NO_LOSS};
}

// The e with x·2^−e in [½, 1), for a normal x.
__device__ __forceinline__ i64 exponent_of(u32 bits) {
    return (i64)(bits >> 23) - 126;
}

// 2^−shift, for shifts from −127 to 126.
__device__ __forceinline__ float power(i64 shift) {
    return __uint_as_float((u32)(127 - shift) << 23);
}

__device__ __forceinline__ bool is_comfortable(Extremes seen) {
    return seen.max <= ONE && seen.max >= COMFORTABLE && seen.min >= TINY_AS_BITS;
}

__device__ __forceinline__ i64 underflow_loss(i64 exponent) {
    return exponent - 126;
}

__device__ __forceinline__ i64 standard_exponent(u32 max, i64 exponent) {
    return max == 0 || exponent <= ZERO ? ZERO : exponent + exponent_of(max);
}

__device__ __forceinline__ bool is_above_loss(u32 min, i64 before, Scale scale) {
    i64 smallest = before + exponent_of(min);
    return min >= SMALLEST_NORMAL && smallest > scale.loss + SAFE_BITS && smallest > scale.exponent - TINY_BITS;
}

// A bound on log2(F/v·2^shift) for a flow below 1 and the smallest positive v.
__device__ __forceinline__ i64 gain_bits(u32 smallest, i64 shift) {
    return shift - exponent_of(smallest) + 1;
}

__device__ __forceinline__ void fill_row(float* row, i32 units, float value, i32 lane) {
    LANES(k, units) row[k] = value;
}

// Brings a row, of which a lane owns every 32nd entry, to a given exponent not below its own; `max` is its largest
// entry. `smallest` becomes the smallest positive entry afterwards, if there is one.
__device__ __forceinline__ Scale align_row(float* row, i32 units, u32 max_bits, Scale scale, i64 exponent,
                                           u32& smallest, i32 lane) {
    smallest = 0xffffffffu;
    if (max_bits >= INFINITE) {
        fill_row(row, units, 0.0f, lane);
        return {ZERO, TOTAL_LOSS};
    }
    if (max_bits == 0 || scale.exponent <= ZERO) {
        fill_row(row, units, 0.0f, lane);
        return {ZERO, scale.loss};
    }
    i64 own = scale.exponent + exponent_of(max_bits);
    if (max_bits < SMALLEST_NORMAL || exponent - own > TINY_BITS || exponent - scale.exponent > 126) {
        // The row has lost its digits already, or everything in it would be dropped.
        fill_row(row, units, 0.0f, lane);
        return {ZERO, max(scale.loss, own)};
    }
    float factor = power(exponent - scale.exponent);
    float tiny = __uint_as_float(TINY_AS_BITS);
    bool lost = false;
    LANES(k, units) {
        float before = row[k], scaled = before * factor;
        bool keep = scaled >= tiny;
        lost |= !keep && before > 0.0f;
        row[k] = keep ? scaled : 0.0f;
        if (keep) smallest = min(smallest, __float_as_uint(scaled));
    }
    smallest = warp_min(smallest);
    bool any = __any_sync(ALL, lost);
    return {exponent, any ? max(scale.loss, exponent - TINY_BITS) : scale.loss};
}

// Brings a row to standard form, if it is not in it already.
__device__ __forceinline__ Scale settle_row(float* row, i32 units, Extremes seen, Scale scale, i32 lane) {
    if (is_comfortable(seen) && scale.exponent > ZERO) return scale;
    u32 smallest;
    return align_row(row, units, seen.max, scale, scale.exponent + exponent_of(seen.max), smallest, lane);
}

// Momentum.

// What momentum keeps of a flow: 1 changes nothing, 0 clears even what is not a number, and what has become negligible
// goes.
__device__ __forceinline__ float kept(float keep, float flow) {
    if (keep == 1.0f) return flow;
    if (keep == 0.0f) return 0.0f;
    float decayed = keep * flow;
    return decayed < 1e-30f ? 0.0f : decayed;
}
