//! Floating-point instructions.
//!
//! `fma` and the four basic operations round as IEEE says, also in the directed modes. The approximate functions
//! (`ex2`, `lg2`, `rcp`, `rsqrt`, …) are as exact as the host's, which real devices are not quite.

use crate::alu::{logic, longs, words};
use crate::lanes::{LANES, Lanes};
use crate::program::*;

/// `d = a·b + c`, rounded once.
#[inline(always)]
pub fn fma(r: &mut Lanes, mask: u32, how: Finish, d: Slot, a: Slot, b: Slot, c: Slot) {
    if how == (Finish { round: Round::Nearest, ftz: false, sat: false }) {
        return words!(r, mask, d, [x = a, y = b, z = c] =>
            f32::from_bits(x).mul_add(f32::from_bits(y), f32::from_bits(z)).to_bits());
    }
    words!(r, mask, d, [x = a, y = b, z = c] => {
        let (x, y, z) = (flush(x, how), flush(y, how), flush(z, how));
        let value = if how.round == Round::Nearest { x.mul_add(y, z) } else { fma_directed(x, y, z, how.round) };
        end(value, how)
    });
}

#[inline(always)]
pub fn float2(r: &mut Lanes, mask: u32, f: Float2, how: Finish, d: Slot, a: Slot, b: Slot) {
    if how.round == Round::Nearest && !how.ftz && !how.sat {
        macro_rules! plain {
            (|$x:ident, $y:ident| $body:expr) => {
                words!(r, mask, d, [p = a, q = b] => {
                    let ($x, $y) = (f32::from_bits(p), f32::from_bits(q));
                    f32::to_bits($body)
                })
            };
        }
        match f {
            Float2::Add => return plain!(|x, y| x + y),
            Float2::Sub => return plain!(|x, y| x - y),
            Float2::Mul => return plain!(|x, y| x * y),
            Float2::Div => return plain!(|x, y| x / y),
            _ => {}
        }
    }
    words!(r, mask, d, [x = a, y = b] => {
        let (x, y) = (flush(x, how), flush(y, how));
        let value = match (f, how.round) {
            (Float2::Add, Round::Nearest) => x + y,
            (Float2::Sub, Round::Nearest) => x - y,
            (Float2::Mul, Round::Nearest) => x * y,
            (Float2::Add, round) => fma_directed(x, 1.0, y, round),
            (Float2::Sub, round) => fma_directed(x, 1.0, -y, round),
            (Float2::Mul, round) => fma_directed(x, y, -0.0, round),
            (Float2::Div, _) => x / y,
            (Float2::Min, _) => lesser(x, y),
            (Float2::Max, _) => -lesser(-x, -y),
            (Float2::MinNan, _) => if x.is_nan() || y.is_nan() { f32::NAN } else { lesser(x, y) },
            (Float2::MaxNan, _) => if x.is_nan() || y.is_nan() { f32::NAN } else { -lesser(-x, -y) },
            // PTX: the sign of the first operand on the magnitude of the second.
            (Float2::Copysign, _) => y.copysign(x),
        };
        end(value, how)
    });
}

/// The smaller one; a NaN yields to a number, and -0 lies below +0.
fn lesser(x: f32, y: f32) -> f32 {
    if x == y { f32::from_bits(x.to_bits() | y.to_bits()) } else { x.min(y) }
}

fn flush(bits: u32, how: Finish) -> f32 {
    let value = f32::from_bits(bits);
    if how.ftz && value.is_subnormal() { 0f32.copysign(value) } else { value }
}

fn end(value: f32, how: Finish) -> u32 {
    let value = if how.ftz && value.is_subnormal() { 0f32.copysign(value) } else { value };
    if how.sat { saturate(value).to_bits() } else { value.to_bits() }
}

/// Clamped to [0, 1]; NaN becomes 0.
pub fn saturate(value: f32) -> f32 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
}

/// `x·y + z` in a directed rounding mode: the f64 sum and its exact error tell on which side of the nearest f32 the
/// true value lies.
fn fma_directed(x: f32, y: f32, z: f32, round: Round) -> f32 {
    let product = f64::from(x) * f64::from(y); // exact: 48 bits
    let addend = f64::from(z);
    let sum = product + addend;
    let part = sum - product;
    let error = (product - (sum - part)) + (addend - part);
    directed(sum, error, round)
}

/// Rounds `value + error` to f32 in a directed mode.
pub fn directed(value: f64, error: f64, round: Round) -> f32 {
    let near = value as f32;
    if !near.is_finite() && !value.is_finite() {
        return near;
    }
    let back = f64::from(near);
    let above = back > value || (back == value && error < 0.0);
    let below = back < value || (back == value && error > 0.0);
    match round {
        Round::Down | Round::Zero if above && (round == Round::Down || value > 0.0) => near.next_down(),
        Round::Up | Round::Zero if below && (round == Round::Up || value < 0.0) => near.next_up(),
        _ => near,
    }
}

pub fn float1(r: &mut Lanes, mask: u32, f: Float1, how: Finish, d: Slot, a: Slot) {
    match f {
        Float1::Neg if !how.ftz => words!(r, mask, d, [x = a] => x ^ 0x8000_0000),
        Float1::Abs if !how.ftz => words!(r, mask, d, [x = a] => x & 0x7fff_ffff),
        _ => words!(r, mask, d, [x = a] => end(function(f, flush(x, how)), how)),
    }
}

fn function(f: Float1, x: f32) -> f32 {
    match f {
        Float1::Neg => -x,
        Float1::Abs => x.abs(),
        Float1::Sqrt => x.sqrt(),
        Float1::Rsqrt | Float1::RsqrtUpper => (1.0 / f64::from(x).sqrt()) as f32,
        Float1::Rcp | Float1::RcpUpper => 1.0 / x,
        Float1::Exp2 => x.exp2(),
        Float1::Log2 => x.log2(),
        Float1::Sin => x.sin(),
        Float1::Cos => x.cos(),
        Float1::Tanh => x.tanh(),
    }
}

pub fn double1(r: &mut Lanes, mask: u32, f: Float1, d: Slot, a: Slot) {
    // The approximate forms deliver the upper half of the result only.
    let upper = |value: f64| f64::from_bits(value.to_bits() & 0xffff_ffff_0000_0000);
    longs!(r, mask, d, [x = long a] => {
        let x = f64::from_bits(x);
        let value = match f {
            Float1::Neg => -x,
            Float1::Abs => x.abs(),
            Float1::Sqrt => x.sqrt(),
            Float1::Rcp => 1.0 / x,
            Float1::RcpUpper => upper(1.0 / x),
            Float1::RsqrtUpper | Float1::Rsqrt => upper(1.0 / x.sqrt()),
            Float1::Exp2 => x.exp2(),
            Float1::Log2 => x.log2(),
            _ => x,
        };
        value.to_bits()
    });
}

#[inline(always)]
pub fn double2(r: &mut Lanes, mask: u32, f: Float2, d: Slot, a: Slot, b: Slot) {
    longs!(r, mask, d, [x = long a, y = long b] => {
        let (x, y) = (f64::from_bits(x), f64::from_bits(y));
        let value = match f {
            Float2::Add => x + y,
            Float2::Sub => x - y,
            Float2::Mul => x * y,
            Float2::Div => x / y,
            Float2::Min | Float2::MinNan => x.min(y),
            Float2::Max | Float2::MaxNan => x.max(y),
            Float2::Copysign => y.copysign(x),
        };
        value.to_bits()
    });
}

/// Compares lane by lane and combines the result with another predicate.
// Negated and doubled comparisons are what PTX's unordered ones mean: each is true, or false, if an operand is NaN.
#[allow(
    clippy::too_many_arguments,
    clippy::neg_cmp_op_on_partial_ord,
    clippy::double_comparisons,
    clippy::nonminimal_bool
)]
#[inline(always)]
pub fn setp(
    r: &mut Lanes,
    mask: u32,
    ty: Type,
    cmp: Compare,
    ftz: bool,
    (d, q): (Slot, Option<Slot>),
    (a, b): (Slot, Slot),
    with: Option<(Logic, Guard)>,
) {
    macro_rules! compare {
        ($file:ident, |$x:ident| $as:expr) => {{
            let (left, right) = (r.$file(a), r.$file(b));
            // Bits are gathered from bytes: a loop over bytes becomes vector code, one over shifted bits does not.
            let mut hits = [0u8; LANES];
            macro_rules! each {
                ($test:expr) => {
                    for lane in 0..LANES {
                        let (x, y) = (
                            {
                                let $x = left[lane];
                                $as
                            },
                            {
                                let $x = right[lane];
                                $as
                            },
                        );
                        hits[lane] = u8::from($test(x, y));
                    }
                };
            }
            match cmp {
                Compare::Eq => each!(|x, y| x == y),
                Compare::Ne => each!(|x, y| x < y || x > y),
                Compare::Lt => each!(|x, y| x < y),
                Compare::Le => each!(|x, y| x <= y),
                Compare::Gt => each!(|x, y| x > y),
                Compare::Ge => each!(|x, y| x >= y),
                Compare::EqU => each!(|x, y| !(x < y || x > y)),
                Compare::NeU => each!(|x, y| x != y),
                Compare::LtU => each!(|x, y| !(x >= y)),
                Compare::LeU => each!(|x, y| !(x > y)),
                Compare::GtU => each!(|x, y| !(x <= y)),
                Compare::GeU => each!(|x, y| !(x < y)),
                Compare::Num => each!(|x, y| x <= y || x >= y),
                Compare::Nan => each!(|x, y| !(x <= y || x >= y)),
            }
            bits_of(&hits)
        }};
    }
    let bits = match ty {
        Type::U16 => compare!(word, |x| x & 0xffff),
        Type::S16 => compare!(word, |x| x as i16),
        Type::U32 => compare!(word, |x| x),
        Type::S32 => compare!(word, |x| x as i32),
        Type::U64 => compare!(long, |x| x),
        Type::S64 => compare!(long, |x| x as i64),
        Type::F64 => compare!(long, |x| f64::from_bits(x)),
        Type::Bf16 => compare!(word, |x| f32::from_bits(x << 16)),
        Type::F16 => compare!(word, |x| crate::convert::f16_to_f32(x as u16)),
        _ => compare!(word, |x| flush(x, Finish { round: Round::Nearest, ftz, sat: false })),
    };
    let (yes, no) = match with {
        Some((f, p)) => (logic(f, bits, r.pred(p)), logic(f, !bits, r.pred(p))),
        None => (bits, !bits),
    };
    r.put_pred(d, mask, yes);
    if let Some(q) = q {
        r.put_pred(q, mask, no);
    }
}

#[inline(always)]
fn bits_of(hits: &[u8; LANES]) -> u32 {
    let mut bits = 0;
    for (group, eight) in hits.as_chunks::<8>().0.iter().enumerate() {
        // Multiplying eight bytes of 0 or 1 by this constant collects them in the top byte.
        let packed = u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        bits |= (packed as u32) << (8 * group);
    }
    bits
}

pub fn testp(r: &mut Lanes, mask: u32, what: Testp, wide: bool, d: Slot, a: Slot) {
    let classes: [std::num::FpCategory; LANES] = if wide {
        r.long(a).map(|x| f64::from_bits(x).classify())
    } else {
        r.word(a).map(|x| f32::from_bits(x).classify())
    };
    use std::num::FpCategory as Class;
    let bits = (0..LANES)
        .map(|l| {
            let yes = match what {
                Testp::Finite => !matches!(classes[l], Class::Infinite | Class::Nan),
                Testp::Infinite => classes[l] == Class::Infinite,
                Testp::Number => classes[l] != Class::Nan,
                Testp::NotANumber => classes[l] == Class::Nan,
                Testp::Normal => classes[l] == Class::Normal,
                Testp::Subnormal => classes[l] == Class::Subnormal,
            };
            u32::from(yes) << l
        })
        .sum();
    r.put_pred(d, mask, bits);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directed_rounding_brackets_the_true_value() {
        let (x, y, z) = (1.0f32 + f32::EPSILON, 1.0f32 + f32::EPSILON, 1.0e-20f32);
        let down = fma_directed(x, y, z, Round::Down);
        let up = fma_directed(x, y, z, Round::Up);
        assert_eq!(up, down.next_up());
        assert_eq!(fma_directed(-x, y, -z, Round::Zero), -down);
        assert_eq!(fma_directed(2.0, 3.0, 1.0, Round::Up), 7.0);
        assert_eq!(fma_directed(1.0, 1.0, 1e-30, Round::Zero), 1.0);
        assert_eq!(fma_directed(1.0, 1.0, -1e-30, Round::Zero), 1f32.next_down());
    }

    #[test]
    fn zeros_and_nans_are_ordered() {
        assert!(lesser(0.0, -0.0).is_sign_negative());
        assert_eq!(lesser(f32::NAN, 2.0), 2.0);
        assert_eq!(saturate(f32::NAN), 0.0);
    }

    #[test]
    fn bits_keep_their_lanes() {
        let mut hits = [0u8; LANES];
        for lane in [0, 3, 8, 21, 31] {
            hits[lane] = 1;
        }
        assert_eq!(bits_of(&hits), 1 | 1 << 3 | 1 << 8 | 1 << 21 | 1 << 31);
    }
}
