// A tile of a matrix product: 64 × 64 or 128 × 64 results by one block of 128 threads, operands through double-buffered
// shared memory.
//
//   result[m,n] = Σ_k A[m,k]·B[n,k]
//
// Operands are f32 in global memory, contiguous along k (`along_k`) or along m or n. cp.async brings 32 (or 16) steps
// of k at a time; what lies outside a matrix is filled with zeros by the copy itself, so that no edge needs code of its
// own and nothing outside is read.
//
// Warp (i, j) of 2 × 2 owns 32 × 32 (or 64 × 32) results. With g = lane/4, q = lane%4 a thread owns the rows g + 8·i
// and the columns 2q + {0,1} + 8·j of them: the layout of mma accumulators, which the plain version keeps. The tall
// tile reads a quarter less shared memory for each mma, and a quarter less global memory; the square one makes more
// blocks. The host chooses.
//
// The order of k inside an mma is free as long as A and B agree. So a thread takes steps 2q and 2q+1, which lie side by
// side, for slots q and q+4 of a tf32 mma; for bf16 these are its own steps. One way of reading serves both, 8 bytes at
// a time where tiles are contiguous along k. Free words between rows make these reads free of bank conflicts. Along k,
// half a warp reads 8 words from each of 4 rows: rows must be 8 or 24 words apart, mod 32. Across k, a warp reads 8
// words from each of 4 pairs of rows: rows must be 4 words apart, mod 16.
#pragma once
#include "common.cuh"

enum : i32 {
    TILE = 64,  // columns of every tile, rows of the square one
    THREADS = 128,
    LD_ACROSS = TILE + 4,
};

// M is how many 16-row mma tiles a warp has: 2 for the square tile, 4 for the tall one.
template <i32 M>
struct Shape {
    enum : i32 {
        ROWS = 32 * M,
        STEPS = M == 2 ? 32 : 16,
        LD_ALONG = STEPS + 8,
        LD_ROWS = ROWS + 4,         // of A across k
        A_WORDS = ROWS * LD_ALONG,  // the larger of both layouts, as for B
        B_WORDS = TILE * LD_ALONG,
    };
};

// Two stages of two operands: 40 KiB, or 36.
template <i32 M>
struct Tiles {
    float a[2][Shape<M>::A_WORDS];
    float b[2][Shape<M>::B_WORDS];
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
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void copy_4(float* to, const float* from, i32 bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// Starts copying a tile of OUTER rows (or columns) and STEPS steps. A line of it is contiguous in memory: all steps of
// one row, or all rows of one step.
template <bool ALONG_K, i32 OUTER, i32 STEPS>
__device__ __forceinline__ void copy_tile(float* tile, const Operand& x) {
    enum : i32 {
        WIDTH = ALONG_K ? STEPS : OUTER,
        LINES = ALONG_K ? OUTER : STEPS,
        LD = ALONG_K ? STEPS + 8 : OUTER + 4,
        PER_LINE = WIDTH / 4
    };
    const i32 lines = ALONG_K ? x.outer : x.depth, width = ALONG_K ? x.depth : x.outer;
    const bool aligned = (((unsigned long long)x.at | (unsigned long long)(x.ld * 4)) & 15) == 0;
    if (aligned) {
#pragma unroll
        for (i32 i = 0; i < LINES * PER_LINE / THREADS; i++) {
            i32 chunk = i * THREADS + threadIdx.x, line = chunk / PER_LINE, at = chunk % PER_LINE * 4;
            // Eight lanes write together. If they hold two lines, these must be 16 words apart, mod 32, and neighbours
            // are 24: every other line, then.
            if (PER_LINE == 4) line = (line & ~3) | (line & 1) << 1 | (line >> 1 & 1);
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

// Steps k and k+1 of one row of a tile whose lines are LD words apart.
template <bool ALONG_K, i32 LD>
__device__ __forceinline__ Pair read_pair(const float* tile, i32 row, i32 k) {
    if (ALONG_K) {
        float2 both = *reinterpret_cast<const float2*>(tile + row * LD + k);
        return {both.x, both.y};
    }
    return {tile[k * LD + row], tile[(k + 1) * LD + row]};
}

// A thread's results: [m16 tile][n8 tile][register].
template <i32 M>
struct Results {
    float of[M][4][4] = {};

    // Row and column of a result in the block's tile.
    static __device__ __forceinline__ i32 row(i32 m, i32 reg) {
        i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        return warp / 2 * 16 * M + m * 16 + lane / 4 + reg / 2 * 8;
    }

    static __device__ __forceinline__ i32 col(i32 n, i32 reg) {
        i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        return warp % 2 * 32 + n * 8 + lane % 4 * 2 + reg % 2;
    }
};

// Rounds to nearest, ties away from zero: half a unit in the last place, then the rest is cut off. Not left to the
// tensor core, which only cuts: all terms are positive, and errors of one sign would add up.
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

    static __device__ __forceinline__ void multiply(float (&c)[4], const Fragment& upper, const Fragment& lower,
                                                    const Fragment& b) {
#pragma unroll
        for (i32 i = 0; i < 2; i++) {
            asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                "{%0,%1,%2,%3};"
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

    static __device__ __forceinline__ void multiply(float (&c)[4], const Fragment& upper, const Fragment& lower,
                                                    const Fragment& b) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(upper[0]), "r"(lower[0]), "r"(upper[1]), "r"(lower[1]), "r"(b[0]), "r"(b[1]));
    }
};

// Three products: what bf16 leaves of an operand is another bf16, and only low·low is left out. `Precision::Bf16x3` of
// the CPU.
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

    static __device__ __forceinline__ void multiply(float (&c)[4], const Fragment& upper, const Fragment& lower,
                                                    const Fragment& b) {
        Bf16::multiply(c, upper.low, lower.low, b.high);
        Bf16::multiply(c, upper.high, lower.high, b.low);
        Bf16::multiply(c, upper.high, lower.high, b.high);
    }
};

struct F32 {};

// Adds the products of one stage.
template <class Math, i32 M, bool A_ALONG_K, bool B_ALONG_K>
struct Multiply {
    enum : i32 {
        A_LD = A_ALONG_K ? Shape<M>::LD_ALONG : Shape<M>::LD_ROWS,
        B_LD = B_ALONG_K ? Shape<M>::LD_ALONG : LD_ACROSS
    };

    static __device__ __forceinline__ void stage(Results<M>& results, const float* a, const float* b) {
        i32 lane = threadIdx.x % WARP, g = lane / 4, q = lane % 4;
        i32 row = results.row(0, 0), col = results.col(0, 0) - 2 * q + g;
#pragma unroll
        for (i32 k = 2 * q; k < Shape<M>::STEPS + 2 * q; k += 16) {
            typename Math::Fragment upper[M], lower[M], right[4];
#pragma unroll
            for (i32 m = 0; m < M; m++) {
                i32 at = row + m * 16;
                Math::pack(upper[m], read_pair<A_ALONG_K, A_LD>(a, at, k), read_pair<A_ALONG_K, A_LD>(a, at, k + 8));
                Math::pack(lower[m], read_pair<A_ALONG_K, A_LD>(a, at + 8, k),
                           read_pair<A_ALONG_K, A_LD>(a, at + 8, k + 8));
            }
#pragma unroll
            for (i32 n = 0; n < 4; n++) {
                i32 at = col + n * 8;
                Math::pack(right[n], read_pair<B_ALONG_K, B_LD>(b, at, k), read_pair<B_ALONG_K, B_LD>(b, at, k + 8));
            }
#pragma unroll
            for (i32 m = 0; m < M; m++) {
#pragma unroll
                for (i32 n = 0; n < 4; n++) Math::multiply(results.of[m][n], upper[m], lower[m], right[n]);
            }
        }
    }
};

// The reference: one fused multiply-add a term. Threads begin at different steps, two apart: rows 2q of B are 80 words
// from each other, and would meet in a bank.
template <i32 M, bool A_ALONG_K, bool B_ALONG_K>
struct Multiply<F32, M, A_ALONG_K, B_ALONG_K> {
    enum : i32 {
        A_LD = A_ALONG_K ? Shape<M>::LD_ALONG : Shape<M>::LD_ROWS,
        B_LD = B_ALONG_K ? Shape<M>::LD_ALONG : LD_ACROSS
    };

    static __device__ __forceinline__ void stage(Results<M>& results, const float* a, const float* b) {
        i32 row = results.row(0, 0), col = results.col(0, 0), begin = threadIdx.x % 4 / 2 * 2;
#pragma unroll 4
        for (i32 step = 0; step < Shape<M>::STEPS; step += 2) {
            i32 k = (begin + step) % Shape<M>::STEPS;
            Pair left[2 * M], right[4][2];
#pragma unroll
            for (i32 i = 0; i < 2 * M; i++) left[i] = read_pair<A_ALONG_K, A_LD>(a, row + i * 8, k);
#pragma unroll
            for (i32 i = 0; i < 8; i++) right[i / 2][i % 2] = read_pair<B_ALONG_K, B_LD>(b, col + i / 2 * 8 + i % 2, k);
#pragma unroll
            for (i32 m = 0; m < M; m++) {
#pragma unroll
                for (i32 n = 0; n < 4; n++) {
#pragma unroll
                    for (i32 reg = 0; reg < 4; reg++) {
                        Pair x = left[2 * m + reg / 2], y = right[n][reg % 2];
                        results.of[m][n][reg] = fmaf(x.y, y.y, fmaf(x.x, y.x, results.of[m][n][reg]));
                    }
                }
            }
        }
    }
};

// The whole product: `operands(number, a, b)` says where the operands of that stage lie. All threads of a block take
// part.
//
// One barrier a stage: behind it the stage has arrived for everybody, and everybody is done with the one before, whose
// place the next one takes while this one is multiplied.
template <class Math, bool A_ALONG_K, bool B_ALONG_K, i32 M, class Operands>
__device__ __forceinline__ void multiply_tile(Results<M>& results, Tiles<M>& tiles, i32 stages, Operands operands) {
    Operand a, b;
    auto copy = [&](i32 number) {
        operands(number, a, b);
        copy_tile<A_ALONG_K, Shape<M>::ROWS, Shape<M>::STEPS>(tiles.a[number % 2], a);
        copy_tile<B_ALONG_K, TILE, Shape<M>::STEPS>(tiles.b[number % 2], b);
        commit_copies();
    };
    if (stages > 0) copy(0);
    for (i32 number = 0; number < stages; number++) {
        wait_for_copies();
        __syncthreads();
        if (number + 1 < stages) copy(number + 1);
        Multiply<Math, M, A_ALONG_K, B_ALONG_K>::stage(results, tiles.a[number % 2], tiles.b[number % 2]);
    }
}
