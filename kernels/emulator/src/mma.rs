//! `mma.sync`: a warp's matrix product.
//!
//! Each lane holds some elements of A, B and C; with `g = lane / 4` and `q = lane % 4`, register `i` of a lane is
//!
//! | shape | A | B | C, D |
//! |---|---|---|---|
//! | m16n8k8 tf32 | (g + 8(i&1), q + 4(i>>1)) | (q + 4i, g) | (g + 8(i>>1), 2q + (i&1)) |
//! | m16n8k16 bf16, f16; half `h` | (g + 8(i&1), 2q + h + 8(i>>1)) | (2q + h + 8i, g) | the same |
//!
//! The shapes with half the depth have half the registers of A and B. Products are exact; sums are f32, in order of k.
//! Tensor cores read only the upper 19 bits of a tf32 operand: so do we.

use crate::convert::f16_to_f32;
use crate::lanes::{FULL, LANES, Lanes};
use crate::program::{MmaKind, Slot};

/// `D = A·B + C`
#[inline(always)]
pub fn mma(r: &mut Lanes, kind: MmaKind, d: [Slot; 4], a: [Slot; 4], b: [Slot; 2], c: [Slot; 4]) {
    let mut left = [[0f32; 16]; 16]; // [row][k]
    let mut right = [[0f32; 8]; 16]; // [k][column]
    let depth = match kind {
        MmaKind::Tf32K4 => gather_tf32(r, &a[..2], &b[..1], &mut left, &mut right),
        MmaKind::Tf32K8 => gather_tf32(r, &a, &b, &mut left, &mut right),
        MmaKind::Bf16K8 => {
            gather_halves(r, &a[..2], &b[..1], &mut left, &mut right, |h| f32::from_bits(u32::from(h) << 16))
        }
        MmaKind::Bf16K16 => gather_halves(r, &a, &b, &mut left, &mut right, |h| f32::from_bits(u32::from(h) << 16)),
        MmaKind::F16K8 => gather_halves(r, &a[..2], &b[..1], &mut left, &mut right, f16_to_f32),
        MmaKind::F16K16 => gather_halves(r, &a, &b, &mut left, &mut right, f16_to_f32),
    };
    let mut sums = [[0f32; 8]; 16];
    for (i, &slot) in c.iter().enumerate() {
        let word = r.word(slot);
        for lane in 0..LANES {
            sums[lane / 4 + 8 * (i >> 1)][2 * (lane % 4) + (i & 1)] = f32::from_bits(word[lane]);
        }
    }
    for row in 0..16 {
        let mut sum = sums[row];
        for k in 0..depth {
            let scale = left[row][k];
            for column in 0..8 {
                sum[column] += scale * right[k][column];
            }
        }
        sums[row] = sum;
    }
    for (i, &slot) in d.iter().enumerate() {
        let mut word = [0u32; LANES];
        for lane in 0..LANES {
            word[lane] = sums[lane / 4 + 8 * (i >> 1)][2 * (lane % 4) + (i & 1)].to_bits();
        }
        r.put_word(slot, FULL, &word);
    }
}

#[inline(always)]
fn gather_tf32(r: &Lanes, a: &[Slot], b: &[Slot], left: &mut [[f32; 16]; 16], right: &mut [[f32; 8]; 16]) -> usize {
    let cut = |bits: u32| f32::from_bits(bits & 0xffff_e000);
    for (i, &slot) in a.iter().enumerate() {
        let word = r.word(slot);
        for lane in 0..LANES {
            left[lane / 4 + 8 * (i & 1)][lane % 4 + 4 * (i >> 1)] = cut(word[lane]);
        }
    }
    for (i, &slot) in b.iter().enumerate() {
        let word = r.word(slot);
        for lane in 0..LANES {
            right[lane % 4 + 4 * i][lane / 4] = cut(word[lane]);
        }
    }
    4 * b.len()
}

#[inline(always)]
fn gather_halves(
    r: &Lanes,
    a: &[Slot],
    b: &[Slot],
    left: &mut [[f32; 16]; 16],
    right: &mut [[f32; 8]; 16],
    widen: impl Fn(u16) -> f32,
) -> usize {
    for (i, &slot) in a.iter().enumerate() {
        let word = r.word(slot);
        for (lane, pair) in word.into_iter().enumerate() {
            let (row, k) = (lane / 4 + 8 * (i & 1), 2 * (lane % 4) + 8 * (i >> 1));
            left[row][k] = widen(pair as u16);
            left[row][k + 1] = widen((pair >> 16) as u16);
        }
    }
    for (i, &slot) in b.iter().enumerate() {
        let word = r.word(slot);
        for (lane, pair) in word.into_iter().enumerate() {
            let (k, column) = (2 * (lane % 4) + 8 * i, lane / 4);
            right[k][column] = widen(pair as u16);
            right[k + 1][column] = widen((pair >> 16) as u16);
        }
    }
    8 * b.len()
}
