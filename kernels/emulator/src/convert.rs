//! Conversions between types, and arithmetic on 16-bit floats.

use crate::alu::{longs, words};
use crate::float::{directed, saturate};
use crate::lanes::{LANES, Lanes};
use crate::program::*;

/// `cvt`. The frequent conversions have loops of their own; the rest goes lane by lane.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
pub fn convert(r: &mut Lanes, mask: u32, d: Reg, a: Reg, to: Type, from: Type, how: Finish, integer: bool) {
    match (d, a, to, from) {
        (Reg::Word(d), Reg::Long(a), Type::U32 | Type::S32, Type::U64 | Type::S64) if !how.sat => {
            let out = r.long(a).map(|x| x as u32);
            r.put_word(d, mask, &out);
        }
        (Reg::Long(d), Reg::Word(a), Type::U64 | Type::S64, Type::U32) => {
            longs!(r, mask, d, [x = word a] => u64::from(x))
        }
        (Reg::Long(d), Reg::Word(a), Type::S64 | Type::U64, Type::S32) if !how.sat => {
            longs!(r, mask, d, [x = word a] => i64::from(x as i32) as u64)
        }
        (Reg::Word(d), Reg::Word(a), Type::F32, Type::S32) if how.round == Round::Nearest && !how.sat => {
            words!(r, mask, d, [x = a] => (x as i32 as f32).to_bits())
        }
        (Reg::Word(d), Reg::Word(a), Type::F32, Type::U32) if how.round == Round::Nearest && !how.sat => {
            words!(r, mask, d, [x = a] => (x as f32).to_bits())
        }
        (Reg::Word(d), Reg::Word(a), Type::Tf32, Type::F32) => words!(r, mask, d, [x = a] => to_tf32(x)),
        (Reg::Long(d), Reg::Word(a), Type::F64, Type::F32) if !how.sat && !how.ftz && !integer => {
            longs!(r, mask, d, [x = word a] => f64::from(f32::from_bits(x)).to_bits())
        }
        _ => {
            let out = r.get(a).map(|bits| convert_one(bits, to, from, how, integer));
            r.put(d, mask, &out);
        }
    }
}

/// Rounded to 10 bits of mantissa, ties away from zero. Infinities and NaN stay.
fn to_tf32(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0x7f80_0000 { bits } else { bits.wrapping_add(0x1000) & 0xffff_e000 }
}

/// One value. Bits come and go in the low end; integers leave extended to 64 bits so that any register can take them.
fn convert_one(bits: u64, to: Type, from: Type, how: Finish, integer: bool) -> u64 {
    match (from.is_float(), to.is_float()) {
        (false, false) => int_to_int(integer_value(bits, from), to, how.sat),
        (false, true) => int_to_float(integer_value(bits, from), to, how),
        (true, false) => float_to_int(float_value(bits, from, how.ftz), to, how.round),
        (true, true) => float_to_float(bits, to, from, how, integer),
    }
}

fn integer_value(bits: u64, ty: Type) -> i128 {
    match ty {
        Type::U8 => i128::from(bits as u8),
        Type::S8 => i128::from(bits as i8),
        Type::U16 => i128::from(bits as u16),
        Type::S16 => i128::from(bits as i16),
        Type::U32 => i128::from(bits as u32),
        Type::S32 => i128::from(bits as i32),
        Type::S64 => i128::from(bits as i64),
        _ => i128::from(bits),
    }
}

fn range(ty: Type) -> (i128, i128) {
    let bits = 8 * ty.bytes() as u32;
    if ty.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn int_to_int(value: i128, to: Type, sat: bool) -> u64 {
    let (low, high) = range(to);
    let value = if sat { value.clamp(low, high) } else { value };
    integer_value(value as u64, to) as u64
}

fn int_to_float(value: i128, to: Type, how: Finish) -> u64 {
    match to {
        Type::F64 => (value as f64).to_bits(),
        Type::F32 => {
            let rounded = if how.round == Round::Nearest {
                value as f32
            } else {
                let near = value as f64;
                directed(near, (value - near as i128) as f64, how.round)
            };
            u64::from(if how.sat { saturate(rounded) } else { rounded }.to_bits())
        }
        // 16-bit floats: integers up to 2^24 are exact in f32, beyond lies infinity for f16.
        Type::F16 => u64::from(f32_to_f16(value as f32)),
        _ => u64::from(f32_to_bf16(value as f32)),
    }
}

fn float_value(bits: u64, ty: Type, ftz: bool) -> f64 {
    match ty {
        Type::F64 => f64::from_bits(bits),
        Type::F16 => f64::from(f16_to_f32(bits as u16)),
        Type::Bf16 => f64::from(f32::from_bits((bits as u32) << 16)),
        _ => {
            let value = f32::from_bits(bits as u32);
            f64::from(if ftz && value.is_subnormal() { 0.0 } else { value })
        }
    }
}

fn float_to_int(value: f64, to: Type, round: Round) -> u64 {
    let whole = round_whole(value, round);
    if whole.is_nan() {
        return 0;
    }
    let (low, high) = range(to);
    integer_value((whole as i128).clamp(low, high) as u64, to) as u64
}

fn round_whole(value: f64, round: Round) -> f64 {
    match round {
        Round::Nearest | Round::NearestAway => value.round_ties_even(),
        Round::Zero => value.trunc(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
    }
}

fn float_to_float(bits: u64, to: Type, from: Type, how: Finish, integer: bool) -> u64 {
    let mut value = float_value(bits, from, how.ftz);
    if integer {
        value = round_whole(value, how.round);
    }
    match to {
        Type::F64 => if how.sat { f64::from(saturate(value as f32)) } else { value }.to_bits(),
        Type::F16 => u64::from(f32_to_f16(value as f32)),
        Type::Bf16 => u64::from(f32_to_bf16(value as f32)),
        Type::Tf32 => u64::from(to_tf32((value as f32).to_bits())),
        _ => {
            let narrow =
                if integer || how.round == Round::Nearest { value as f32 } else { directed(value, 0.0, how.round) };
            let narrow = if how.ftz && narrow.is_subnormal() { 0f32.copysign(narrow) } else { narrow };
            u64::from(if how.sat { saturate(narrow) } else { narrow }.to_bits())
        }
    }
}

/// `cvt.rn.bf16x2.f32 d, hi, lo` and its f16 twin.
pub fn convert_pair(r: &mut Lanes, mask: u32, bf16: bool, relu: bool, d: Slot, hi: Slot, lo: Slot) {
    let narrow = |bits: u32| {
        let value = f32::from_bits(bits);
        let value = if relu && value < 0.0 { 0.0 } else { value };
        u32::from(if bf16 { f32_to_bf16(value) } else { f32_to_f16(value) })
    };
    words!(r, mask, d, [x = hi, y = lo] => narrow(x) << 16 | narrow(y));
}

/// Rounded to nearest, ties to even.
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return 0x7fff;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// Rounded to nearest, ties to even.
pub fn f32_to_f16(value: f32) -> u16 {
    let sign = ((value.to_bits() >> 16) & 0x8000) as u16;
    let size = value.abs();
    if size.is_nan() {
        return 0x7fff;
    }
    if size >= 65520.0 {
        return sign | 0x7c00;
    }
    if size < 6.103_515_6e-5 {
        // Subnormal: whole multiples of 2^-24.
        return sign | (size * 16_777_216.0).round_ties_even() as u16;
    }
    let bits = size.to_bits();
    let rounded = bits + 0xfff + ((bits >> 13) & 1);
    sign | ((rounded >> 13) - (112 << 10)) as u16
}

/// Exact.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let (exponent, mantissa) = (u32::from(bits >> 10) & 0x1f, u32::from(bits) & 0x3ff);
    let size = match exponent {
        0 => (mantissa as f32 / 16_777_216.0).to_bits(),
        31 => 0x7f80_0000 | mantissa << 13,
        _ => (exponent + 112) << 23 | mantissa << 13,
    };
    f32::from_bits(sign | size)
}

/// Arithmetic on the two halves of a register, or on the lower one alone.
pub fn packed(r: &mut Lanes, mask: u32, f: Packed, bf16: bool, pair: bool, d: Slot, [a, b, c]: [Slot; 3]) {
    let widen = |bits: u32| if bf16 { f32::from_bits(bits << 16) } else { f16_to_f32(bits as u16) };
    let narrow = |value: f32| u32::from(if bf16 { f32_to_bf16(value) } else { f32_to_f16(value) });
    let half = |x: u32, y: u32, z: u32| {
        let (x, y, z) = (widen(x & 0xffff), widen(y & 0xffff), widen(z & 0xffff));
        // f64 holds the exact product and, for these widths, a sum that rounds the same way.
        let (wx, wy, wz) = (f64::from(x), f64::from(y), f64::from(z));
        narrow(match f {
            Packed::Add => x + y,
            Packed::Sub => x - y,
            Packed::Mul => x * y,
            Packed::Fma => (wx * wy + wz) as f32,
            Packed::Min => x.min(y),
            Packed::Max => x.max(y),
            Packed::Neg => -x,
            Packed::Abs => x.abs(),
        })
    };
    let upper = |x: u32, y: u32, z: u32| if pair { half(x >> 16, y >> 16, z >> 16) << 16 } else { 0 };
    words!(r, mask, d, [x = a, y = b, z = c] => half(x, y, z) | upper(x, y, z));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Finish = Finish { round: Round::Nearest, ftz: false, sat: false };

    #[test]
    fn every_f16_survives_the_way_through_f32() {
        for bits in 0..=u16::MAX {
            let value = f16_to_f32(bits);
            if !value.is_nan() {
                assert_eq!(f32_to_f16(value), bits);
            }
        }
        assert_eq!(f32_to_f16(2049.0), f32_to_f16(2048.0), "ties to even");
        assert_eq!(f32_to_f16(2051.0), f32_to_f16(2052.0));
        assert_eq!(f32_to_f16(1e9), 0x7c00);
    }

    #[test]
    fn bf16_and_tf32_round_as_documented() {
        assert_eq!(f32_to_bf16(1.0 + 1.0 / 256.0), 0x3f80, "a tie goes to even");
        assert_eq!(f32_to_bf16(1.0 + 3.0 / 256.0), 0x3f82);
        assert_eq!(
            to_tf32((1.0f32 + 1.0 / 2048.0).to_bits()),
            (1.0f32 + 1.0 / 1024.0).to_bits(),
            "a tie goes away from zero"
        );
        assert_eq!(to_tf32(f32::INFINITY.to_bits()), f32::INFINITY.to_bits());
    }

    #[test]
    fn floats_become_integers_by_the_named_mode_and_clamp() {
        let go = |v: f32, to, round| {
            convert_one(u64::from(v.to_bits()), to, Type::F32, Finish { round, ..PLAIN }, true) as i64
        };
        assert_eq!(go(2.5, Type::S32, Round::Nearest), 2);
        assert_eq!(go(-2.5, Type::S32, Round::Zero), -2);
        assert_eq!(go(-2.5, Type::S32, Round::Down), -3);
        assert_eq!(go(2.1, Type::S32, Round::Up), 3);
        assert_eq!(go(1e20, Type::S32, Round::Zero), i64::from(i32::MAX));
        assert_eq!(go(-5.0, Type::U32, Round::Zero), 0);
        assert_eq!(go(f32::NAN, Type::S32, Round::Zero), 0);
    }

    #[test]
    fn integers_are_cut_extended_or_clamped() {
        assert_eq!(convert_one(0xffff_ff85, Type::S32, Type::S8, PLAIN, false) as i64, -123);
        assert_eq!(convert_one(0x1_0000_0007, Type::U32, Type::U64, PLAIN, false), 7);
        assert_eq!(convert_one(300, Type::U8, Type::U32, Finish { sat: true, ..PLAIN }, false), 255);
        assert_eq!(convert_one((-1i64) as u64, Type::F32, Type::S64, PLAIN, false) as u32, (-1f32).to_bits());
        assert_eq!(
            convert_one(16_777_217, Type::F32, Type::U32, Finish { round: Round::Up, ..PLAIN }, false) as u32,
            16_777_218f32.to_bits()
        );
    }
}
