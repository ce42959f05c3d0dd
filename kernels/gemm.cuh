// A tile of a matrix product: 64 × 64 results by one block of 128 threads, operands through double-buffered shared memory.
//
//   result[m,n] = Σ_k A[m,k]·B[n,k]
//
// Operands are f32 in global memory, contiguous along k (`along_k`) or along m or n. cp.async brings 32 steps of k at a time; what lies outside
// a matrix is filled with zeros by the copy itself, so that no edge needs code of its own and nothing outside is read.
//
// Warp (i, j) of 2 × 2 owns 32 × 32 results. With g = lane/4, q = lane%4 a thread owns the rows g + 8·{0..3} and the columns 2q + {0,1} + 8·{0..3} of
// them: the layout of mma accumulators, which the plain version keeps.
//
// The order of k inside an mma is free as long as A and B agree. So a thread takes steps 2q and 2q+1, which lie side by side, for slots q and q+4 of a tf32
// mma; for bf16 these are its own steps. One way of reading serves both, 8 bytes at a time where tiles are contiguous along k.
// Free words between rows make these reads free of bank conflicts: 40 words (8 rows of 8 bytes × 4) and 68 words (8 words × 4 pairs of rows).
#pragma once
#include "common.cuh"

enum : i32 {
    TILE = 64,
    TILE_K = 32,
    THREADS = 128,
    LD_ALONG_K = 40,
    LD_ACROSS = 68,
    TILE_WORDS = TILE * LD_ALONG_K,  // the larger of both layouts: 64·40 and 32·68
};

// Two stages of two operands: 40 KiB.
struct Tiles {
    float a[2][TILE_WORDS];
    float b[2][TILE_WORDS];
};

// An operand's tile in global memory, from its first element on.
struct Operand {
    const float* at;
    i64 ld;
    i32 outer;  // rows or columns of the tile that exist
    i32 depth;  // steps of k that exist
};

// Copies.

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return (u32)__cvta_generic_to_shared(pointer);
}

// 16 bytes, of which `bytes` are read and the others zero.
__device__ __forceinline__ void copy_16(float* to, const float* from, i32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void copy_4(float* to, const float* from, i32 bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// Starts copying a tile. A line of the tile is contiguous in memory: 32 steps of k of one row, or 64 rows of one step.
template <bool ALONG_K>
__device__ __forceinline__ void copy_tile(float* tile, const Operand& x) {
    constexpr i32 WIDTH = ALONG_K ? TILE_K : TILE, LINES = ALONG_K ? TILE : TILE_K, LD = ALONG_K ? LD_ALONG_K : LD_ACROSS;
    const i32 lines = ALONG_K ? x.outer : x.depth, width = ALONG_K ? x.depth : x.outer;
    const bool aligned = (((unsigned long long)x.at | (unsigned long long)(x.ld * 4)) & 15) == 0;
    if (aligned) {
        constexpr i32 PER_LINE = WIDTH / 4;
#pragma unroll
        for (i32 i = 0; i < LINES * PER_LINE / THREADS; i++) {
            i32 chunk = i * THREADS + threadIdx.x, line = chunk / PER_LINE, at = chunk % PER_LINE * 4;
            i32 count = line < lines ? min(max(width - at, 0), 4) : 0;
            // A copy of nothing gets an address that exists.
            const float* from = count > 0 ? x.at + line * x.ld + at : x.at;
            copy_16(tile + line * LD + at, from, count * 4);
        }
    } else {
#pragma unroll 4
        for (i32 i = 0; i < LINES * WIDTH / THREADS; i++) {
            i32 word = i * THREADS + threadIdx.x, line = word / WIDTH, at = word % WIDTH;
            bool exists = line < lines && at < width;
            copy_4(tile + line * LD + at, exists ? x.at + line * x.ld + at : x.at, exists ? 4 : 0);
        }
    }
}

// Arithmetic.

struct Pair {
    float x, y;
};

// Steps k and k+1 of one row of a tile.
template <bool ALONG_K>
__device__ __forceinline__ Pair read_pair(const float* tile, i32 row, i32 k) {
    if (ALONG_K) {
        float2 both = *reinterpret_cast<const float2*>(tile + row * LD_ALONG_K + k);
        return {both.x, both.y};
    }
    return {tile[k * LD_ACROSS + row], tile[(k + 1) * LD_ACROSS + row]};
}

// A thread's results: [m16 tile][n8 tile][register].
typedef float Results[2][4][4];

// Row and column of a result in the block's tile.
__device__ __forceinline__ i32 result_row(i32 m, i32 reg) {
    i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    return warp / 2 * 32 + m * 16 + lane / 4 + reg / 2 * 8;
}

__device__ __forceinline__ i32 result_col(i32 n, i32 reg) {
    i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    return warp % 2 * 32 + n * 8 + lane % 4 * 2 + reg % 2;
}

// Rounds to nearest, ties away from zero: half a unit in the last place, then the rest is cut off. Not left to the tensor core, which only cuts:
// all terms are positive, and errors of one sign would add up.
__device__ __forceinline__ u32 to_tf32(float x) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

// The lower half holds x.
__device__ __forceinline__ u32 to_bf16(Pair p) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(p.y), "f"(p.x));
    return bits;
}

struct Tf32 {
    // Sixteen steps of k are two mma: fragments of each hold two registers a row.
    typedef u32 Fragment[2][2];

    static __device__ __forceinline__ void pack(Fragment& to, Pair low, Pair high) {
        to[0][0] = to_tf32(low.x), to[0][1] = to_tf32(low.y);
        to[1][0] = to_tf32(high.x), to[1][1] = to_tf32(high.y);
    }

    static __device__ __forceinline__ void multiply(float (&c)[4], const Fragment& upper, const Fragment& lower, const Fragment& b) {
#pragma unroll
        for (i32 i = 0; i < 2; i++) {
            asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                : "r"(upper[i][0]), "r"(lower[i][0]), "r"(upper[i][1]), "r"(lower[i][1]), "r"(b[i][0]), "r"(b[i][1]));
        }
    }
};

struct Bf16 {
    typedef u32 Fragment[2];

    static __device__ __forceinline__ void pack(Fragment& to, Pair low, Pair high) {
        to[0] = to_bf16(low), to[1] = to_bf16(high);
    }

    static __device__ __forceinline__ void multiply(float (&c)[4], const Fragment& upper, const Fragment& lower, const Fragment& b) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(upper[0]), "r"(lower[0]), "r"(upper[1]), "r"(lower[1]), "r"(b[0]), "r"(b[1]));
    }
};

// Three products: what bf16 leaves of an operand is another bf16, and only low·low is left out. `Precision::Bf16x3` of the CPU.
struct Bf16x3 {
    struct Fragment {
        Bf16::Fragment high, low;
    };

    static __device__ __forceinline__ Pair rest(Pair p, u32 high) {
        return {p.x - __uint_as_float(high << 16), p.y - __uint_as_float(high & 0xffff0000u)};
    }

    static __device__ __forceinline__ void pack(Fragment& to, Pair low, Pair high) {
        Bf16::pack(to.high, low, high);
        Bf16::pack(to.low, rest(low, to.high[0]), rest(high, to.high[1]));
    }

    static __device__ __forceinline__ void multiply(float (&c)[4], const Fragment& upper, const Fragment& lower, const Fragment& b) {
        Bf16::multiply(c, upper.low, lower.low, b.high);
        Bf16::multiply(c, upper.high, lower.high, b.low);
        Bf16::multiply(c, upper.high, lower.high, b.high);
    }
};

struct F32 {};

// Adds the products of one stage.
template <class Math, bool A_ALONG_K, bool B_ALONG_K>
struct Multiply {
    static __device__ __forceinline__ void stage(Results& results, const float* a, const float* b) {
        i32 row = result_row(0, 0), col = result_col(0, 0) - threadIdx.x % 4 * 2, lane = threadIdx.x % WARP;
        i32 g = lane / 4, q = lane % 4;
#pragma unroll
        for (i32 k = 0; k < TILE_K; k += 16) {
            typename Math::Fragment upper[2], lower[2], right[4];
#pragma unroll
            for (i32 m = 0; m < 2; m++) {
                i32 at = row + m * 16;
                Math::pack(upper[m], read_pair<A_ALONG_K>(a, at, k + 2 * q), read_pair<A_ALONG_K>(a, at, k + 8 + 2 * q));
                Math::pack(lower[m], read_pair<A_ALONG_K>(a, at + 8, k + 2 * q), read_pair<A_ALONG_K>(a, at + 8, k + 8 + 2 * q));
            }
#pragma unroll
            for (i32 n = 0; n < 4; n++) {
                i32 at = col + n * 8 + g;
                Math::pack(right[n], read_pair<B_ALONG_K>(b, at, k + 2 * q), read_pair<B_ALONG_K>(b, at, k + 8 + 2 * q));
            }
#pragma unroll
            for (i32 m = 0; m < 2; m++) {
#pragma unroll
                for (i32 n = 0; n < 4; n++) Math::multiply(results[m][n], upper[m], lower[m], right[n]);
            }
        }
    }
};

// The reference: one fused multiply-add a term. Threads begin at different steps, two apart: rows 2q of B are 80 words from each other, and would
// meet in a bank.
template <bool A_ALONG_K, bool B_ALONG_K>
struct Multiply<F32, A_ALONG_K, B_ALONG_K> {
    static __device__ __forceinline__ void stage(Results& results, const float* a, const float* b) {
        i32 row = result_row(0, 0), col = result_col(0, 0), begin = threadIdx.x % 4 / 2 * 2;
#pragma unroll 4
        for (i32 step = 0; step < TILE_K; step += 2) {
            i32 k = (begin + step) % TILE_K;
            Pair left[2][2], right[4][2];
#pragma unroll
            for (i32 i = 0; i < 4; i++) left[i / 2][i % 2] = read_pair<A_ALONG_K>(a, row + i * 8, k);
#pragma unroll
            for (i32 i = 0; i < 8; i++) right[i / 2][i % 2] = read_pair<B_ALONG_K>(b, col + i / 2 * 8 + i % 2, k);
#pragma unroll
            for (i32 m = 0; m < 2; m++) {
#pragma unroll
                for (i32 n = 0; n < 4; n++) {
#pragma unroll
                    for (i32 reg = 0; reg < 4; reg++) {
                        float sum = results[m][n][reg];
                        sum = fmaf(left[m][reg / 2].x, right[n][reg % 2].x, sum);
                        results[m][n][reg] = fmaf(left[m][reg / 2].y, right[n][reg % 2].y, sum);
                    }
                }
            }
        }
    }
};

// The whole product: `operands(chunk, a, b)` says where the operands of 32 steps lie. All threads of a block take part.
//
// One barrier a chunk: behind it the chunk has arrived for everybody, and everybody is done with the one before, whose place the next
// chunk takes while this one is multiplied.
template <class Math, bool A_ALONG_K, bool B_ALONG_K, class Operands>
__device__ __forceinline__ void multiply_tile(Results& results, Tiles& tiles, i32 chunks, Operands operands) {
    Operand a, b;
    if (chunks > 0) {
        operands(0, a, b);
        copy_tile<A_ALONG_K>(tiles.a[0], a);
        copy_tile<B_ALONG_K>(tiles.b[0], b);
        commit_copies();
    }
    for (i32 chunk = 0; chunk < chunks; chunk++) {
        wait_for_copies();
        __syncthreads();
        if (chunk + 1 < chunks) {
            operands(chunk + 1, a, b);
            copy_tile<A_ALONG_K>(tiles.a[(chunk + 1) % 2], a);
            copy_tile<B_ALONG_K>(tiles.b[(chunk + 1) % 2], b);
            commit_copies();
        }
        Multiply<Math, A_ALONG_K, B_ALONG_K>::stage(results, tiles.a[chunk % 2], tiles.b[chunk % 2]);
    }
}
