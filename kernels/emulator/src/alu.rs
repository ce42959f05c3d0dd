//! Integer, logic and move instructions on all lanes at once, and the door to the float ones.
//!
//! Every loop runs over 32 lanes without branches and is compiled twice: for any x86-64 and for AVX2 with FMA, chosen
//! when the program runs.

use crate::convert;
use crate::float;
use crate::lanes::{LANES, Lanes};
use crate::mma;
use crate::program::*;

/// Computes `$body` for each lane and writes it where `mask` says.
macro_rules! words {
    ($r:expr, $mask:expr, $d:expr, [$($x:ident = $slot:expr),+] => $body:expr) => {{
        $(let $x = $r.word($slot);)+
        let mut out = [0u32; LANES];
        for lane in 0..LANES {
            $(let $x = $x[lane];)+
            out[lane] = $body;
        }
        $r.put_word($d, $mask, &out);
    }};
}

/// The same for a 64-bit result; each operand says which file it comes from.
macro_rules! longs {
    ($r:expr, $mask:expr, $d:expr, [$($x:ident = $file:ident $slot:expr),+] => $body:expr) => {{
        $(let $x = $r.$file($slot);)+
        let mut out = [0u64; LANES];
        for lane in 0..LANES {
            $(let $x = $x[lane];)+
            out[lane] = $body;
        }
        $r.put_long($d, $mask, &out);
    }};
}

pub(crate) use {longs, words};

/// Executes an arithmetic instruction in the lanes of `mask`; false if it is not one.
pub fn execute(r: &mut Lanes, mask: u32, op: &Op) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: both features were detected on the line above.
        return unsafe { execute_avx2(r, mask, op) };
    }
    execute_anywhere(r, mask, op)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn execute_avx2(r: &mut Lanes, mask: u32, op: &Op) -> bool {
    execute_anywhere(r, mask, op)
}

#[inline(always)]
fn execute_anywhere(r: &mut Lanes, mask: u32, op: &Op) -> bool {
    match *op {
        Op::Int2 { f, d, a, b } => int2(r, mask, f, d, a, b),
        Op::Fma { how, d, a, b, c } => float::fma(r, mask, how, d, a, b, c),
        Op::Float2 { f, how, d, a, b } => float::float2(r, mask, f, how, d, a, b),
        Op::Mma { kind, d, a, b, c } => mma::mma(r, kind, d, a, b, c),
        Op::Mov32 { d, a } => {
            let value = r.word(a);
            r.put_word(d, mask, &value);
        }
        Op::Mov64 { d, a } => {
            let value = r.long(a);
            r.put_long(d, mask, &value);
        }
        Op::Mov16 { d, a } => words!(r, mask, d, [x = a] => x & 0xffff),
        Op::Setp { ty, cmp, ftz, d, q, a, b, with } => float::setp(r, mask, ty, cmp, ftz, (d, q), (a, b), with),
        Op::MulWide { signed: true, d, a, b } => {
            longs!(r, mask, d, [x = word a, y = word b] => i64::from(x as i32).wrapping_mul(i64::from(y as i32)) as u64)
        }
        Op::MulWide { signed: false, d, a, b } => {
            longs!(r, mask, d, [x = word a, y = word b] => u64::from(x).wrapping_mul(u64::from(y)))
        }
        Op::MadWide { signed: true, d, a, b, c } => longs!(r, mask, d, [x = word a, y = word b, z = long c] =>
            (i64::from(x as i32).wrapping_mul(i64::from(y as i32)) as u64).wrapping_add(z)),
        Op::MadWide { signed: false, d, a, b, c } => longs!(r, mask, d, [x = word a, y = word b, z = long c] =>
            u64::from(x).wrapping_mul(u64::from(y)).wrapping_add(z)),
        Op::Long2 { f, d, a, b } => long2(r, mask, f, d, a, b),
        Op::LongShift { f, d, a, b } => long_shift(r, mask, f, d, a, b),
        Op::LongMad { d, a, b, c } => {
            longs!(r, mask, d, [x = long a, y = long b, z = long c] => x.wrapping_mul(y).wrapping_add(z))
        }
        Op::Int3 { f, d, a, b, c } => int3(r, mask, f, d, a, b, c),
        Op::Int1 { f, d, a } => int1(r, mask, f, d, a),
        Op::Long1 { f, d, a } => long1(r, mask, f, d, a),
        Op::LongTo32 { f, d, a } => long_to_32(r, mask, f, d, a),
        Op::Short1 { f, d, a } => short1(r, mask, f, d, a),
        Op::Short2 { f, signed, d, a, b } => short2(r, mask, f, signed, d, a, b),
        Op::MulWideShort { signed: true, d, a, b } => words!(r, mask, d, [x = a, y = b] =>
            i32::from(x as i16).wrapping_mul(i32::from(y as i16)) as u32),
        Op::MulWideShort { signed: false, d, a, b } => {
            words!(r, mask, d, [x = a, y = b] => (x & 0xffff).wrapping_mul(y & 0xffff))
        }
        Op::Lop3 { d, a, b, c, table } => words!(r, mask, d, [x = a, y = b, z = c] => lop3(x, y, z, table)),
        Op::Bfi { d, a, b, pos, len } => words!(r, mask, d, [x = a, y = b, p = pos, n = len] => bfi(x, y, p, n)),
        Op::Select32 { d, a, b, p } => {
            let p = r.preds[p as usize];
            let (x, y) = (r.word(a), r.word(b));
            let out = std::array::from_fn(|l| if (p >> l) & 1 == 1 { x[l] } else { y[l] });
            r.put_word(d, mask, &out);
        }
        Op::Select64 { d, a, b, p } => {
            let p = r.preds[p as usize];
            let (x, y) = (r.long(a), r.long(b));
            let out = std::array::from_fn(|l| if (p >> l) & 1 == 1 { x[l] } else { y[l] });
            r.put_long(d, mask, &out);
        }
        Op::SelectPred { d, a, b, p } => {
            let p = r.preds[p as usize];
            let bits = (r.pred(a) & p) | (r.pred(b) & !p);
            r.put_pred(d, mask, bits);
        }
        Op::Logic { f, d, a, b } => {
            let bits = logic(f, r.pred(a), r.pred(b));
            r.put_pred(d, mask, bits);
        }
        Op::MovPred { d, a } => {
            let bits = r.pred(a);
            r.put_pred(d, mask, bits);
        }
        Op::ConstPred { d, value } => r.put_pred(d, mask, if value { u32::MAX } else { 0 }),
        Op::Pack64 { d, lo, hi } => longs!(r, mask, d, [x = word lo, y = word hi] => u64::from(x) | u64::from(y) << 32),
        Op::Unpack64 { lo, hi, a } => {
            let value = r.long(a);
            r.put(lo, mask, &value.map(|v| v & 0xffff_ffff));
            r.put(hi, mask, &value.map(|v| v >> 32));
        }
        Op::Pack32 { d, lo, hi } => words!(r, mask, d, [x = lo, y = hi] => (x & 0xffff) | y << 16),
        Op::Unpack32 { lo, hi, a } => {
            let value = r.word(a);
            r.put(lo, mask, &value.map(|v| u64::from(v & 0xffff)));
            r.put(hi, mask, &value.map(|v| u64::from(v >> 16)));
        }
        Op::Pack64From16 { d, parts: [a, b, c, e] } => {
            longs!(r, mask, d, [x = word a, y = word b, z = word c, w = word e] =>
                u64::from(x & 0xffff) | u64::from(y & 0xffff) << 16 | u64::from(z & 0xffff) << 32 | u64::from(w) << 48)
        }
        Op::Unpack64To16 { d, a } => {
            let value = r.long(a);
            for (part, reg) in d.into_iter().enumerate() {
                r.put(reg, mask, &value.map(|v| (v >> (16 * part)) & 0xffff));
            }
        }
        Op::Cvta { d, a, add } => longs!(r, mask, d, [x = long a] => x.wrapping_add(add)),
        Op::IsSpace { space, d, a } => {
            let address = r.long(a);
            let bits = (0..LANES).map(|l| u32::from(is_in(space, address[l])) << l).sum();
            r.put_pred(d, mask, bits);
        }
        Op::Float1 { f, how, d, a } => float::float1(r, mask, f, how, d, a),
        Op::Double1 { f, d, a } => float::double1(r, mask, f, d, a),
        Op::Double2 { f, d, a, b } => float::double2(r, mask, f, d, a, b),
        Op::DoubleFma { d, a, b, c } => longs!(r, mask, d, [x = long a, y = long b, z = long c] =>
            f64::from_bits(x).mul_add(f64::from_bits(y), f64::from_bits(z)).to_bits()),
        Op::Packed { f, bf16, pair, d, a, b, c } => convert::packed(r, mask, f, bf16, pair, d, [a, b, c]),
        Op::Testp { what, wide, d, a } => float::testp(r, mask, what, wide, d, a),
        Op::Cvt { d, a, to, from, how, integer } => convert::convert(r, mask, d, a, to, from, how, integer),
        Op::CvtPair { bf16, relu, d, hi, lo } => convert::convert_pair(r, mask, bf16, relu, d, hi, lo),
        Op::Nop => {}
        _ => return false,
    }
    true
}

/// Combines bits.
pub fn logic(f: Logic, a: u32, b: u32) -> u32 {
    match f {
        Logic::And => a & b,
        Logic::Or => a | b,
        Logic::Xor => a ^ b,
    }
}

fn is_in(space: Space, address: u64) -> bool {
    let inside = |base: u64| (base..base + WINDOW).contains(&address);
    match space {
        Space::Shared => inside(SHARED_WINDOW),
        Space::Local => inside(LOCAL_WINDOW),
        _ => !inside(SHARED_WINDOW) && !inside(LOCAL_WINDOW),
    }
}

#[inline(always)]
fn int2(r: &mut Lanes, mask: u32, f: Int2, d: Slot, a: Slot, b: Slot) {
    match f {
        Int2::Add => words!(r, mask, d, [x = a, y = b] => x.wrapping_add(y)),
        Int2::Sub => words!(r, mask, d, [x = a, y = b] => x.wrapping_sub(y)),
        Int2::MulLo => words!(r, mask, d, [x = a, y = b] => x.wrapping_mul(y)),
        Int2::And => words!(r, mask, d, [x = a, y = b] => x & y),
        Int2::Or => words!(r, mask, d, [x = a, y = b] => x | y),
        Int2::Xor => words!(r, mask, d, [x = a, y = b] => x ^ y),
        Int2::Shl => words!(r, mask, d, [x = a, y = b] => if y < 32 { x << (y & 31) } else { 0 }),
        Int2::ShrU => words!(r, mask, d, [x = a, y = b] => if y < 32 { x >> (y & 31) } else { 0 }),
        Int2::ShrS => words!(r, mask, d, [x = a, y = b] => ((x as i32) >> y.min(31)) as u32),
        _ => words!(r, mask, d, [x = a, y = b] => int2_rare(f, x, y)),
    }
}

fn int2_rare(f: Int2, x: u32, y: u32) -> u32 {
    let (sx, sy) = (x as i32, y as i32);
    match f {
        Int2::MulHiS => ((i64::from(sx) * i64::from(sy)) >> 32) as u32,
        Int2::MulHiU => ((u64::from(x) * u64::from(y)) >> 32) as u32,
        // Division by zero is unspecified; all ones, as the hardware gives.
        Int2::DivS => {
            if y == 0 {
                u32::MAX
            } else {
                sx.wrapping_div(sy) as u32
            }
        }
        Int2::DivU => x.checked_div(y).unwrap_or(u32::MAX),
        Int2::RemS => {
            if y == 0 {
                x
            } else {
                sx.wrapping_rem(sy) as u32
            }
        }
        Int2::RemU => x.checked_rem(y).unwrap_or(x),
        Int2::MinS => sx.min(sy) as u32,
        Int2::MinU => x.min(y),
        Int2::MaxS => sx.max(sy) as u32,
        Int2::MaxU => x.max(y),
        _ => unreachable!("common operations are handled by the caller"),
    }
}

#[inline(always)]
fn int3(r: &mut Lanes, mask: u32, f: Int3, d: Slot, a: Slot, b: Slot, c: Slot) {
    match f {
        Int3::MadLo => words!(r, mask, d, [x = a, y = b, z = c] => x.wrapping_mul(y).wrapping_add(z)),
        _ => words!(r, mask, d, [x = a, y = b, z = c] => int3_rare(f, x, y, z)),
    }
}

fn int3_rare(f: Int3, x: u32, y: u32, z: u32) -> u32 {
    let both = u64::from(y) << 32 | u64::from(x);
    match f {
        Int3::MadLo => x.wrapping_mul(y).wrapping_add(z),
        Int3::MadHiS => int2_rare(Int2::MulHiS, x, y).wrapping_add(z),
        Int3::MadHiU => int2_rare(Int2::MulHiU, x, y).wrapping_add(z),
        Int3::BfeU | Int3::BfeS => bfe(f == Int3::BfeS, x, y, z),
        Int3::ShfLWrap => ((both << (z & 31)) >> 32) as u32,
        Int3::ShfLClamp => ((both << z.min(32)) >> 32) as u32,
        Int3::ShfRWrap => (both >> (z & 31)) as u32,
        Int3::ShfRClamp => (both >> z.min(32)) as u32,
        Int3::Prmt => prmt(both, z),
        Int3::SadS => (x as i32).abs_diff(y as i32).wrapping_add(z),
        Int3::SadU => x.abs_diff(y).wrapping_add(z),
        Int3::Dp4aS => {
            let dot: i32 = x
                .to_le_bytes()
                .iter()
                .zip(y.to_le_bytes())
                .map(|(&p, q)| i32::from(p as i8) * i32::from(q as i8))
                .sum();
            z.wrapping_add(dot as u32)
        }
        Int3::Dp4aU => {
            let dot: u32 = x.to_le_bytes().iter().zip(y.to_le_bytes()).map(|(&p, q)| u32::from(p) * u32::from(q)).sum();
            z.wrapping_add(dot)
        }
    }
}

/// Bit field of `x` from `pos`, `len` bits; the sign is the field's top bit, or that of `x` where it runs over.
fn bfe(signed: bool, x: u32, pos: u32, len: u32) -> u32 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if len == 0 {
        return 0;
    }
    let wide = if signed { i64::from(x as i32) } else { i64::from(x) };
    let field = wide >> pos.min(63);
    if len >= 32 {
        return field as u32;
    }
    let cut = 64 - len;
    if signed { ((field << cut) >> cut) as u32 } else { (((field as u64) << cut) >> cut) as u32 }
}

fn bfi(x: u32, y: u32, pos: u32, len: u32) -> u32 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    let ones = if len >= 32 { u64::from(u32::MAX) } else { (1u64 << len) - 1 };
    let field = if pos >= 32 { 0 } else { (ones << pos) as u32 };
    let value = if pos >= 32 { 0 } else { x << pos };
    (y & !field) | (value & field)
}

fn prmt(both: u64, selector: u32) -> u32 {
    let bytes = both.to_le_bytes();
    u32::from_le_bytes(std::array::from_fn(|i| {
        let pick = (selector >> (4 * i)) & 0xf;
        let byte = bytes[(pick & 7) as usize];
        if pick & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte }
    }))
}

/// Bit `4a + 2b + c` of the table for each bit position.
#[inline(always)]
fn lop3(a: u32, b: u32, c: u32, table: u8) -> u32 {
    let mut out = 0;
    for row in 0..8u32 {
        let term = (if row & 4 != 0 { a } else { !a })
            & (if row & 2 != 0 { b } else { !b })
            & (if row & 1 != 0 { c } else { !c });
        let on = (u32::from(table >> row) & 1).wrapping_neg();
        out |= term & on;
    }
    out
}

fn int1(r: &mut Lanes, mask: u32, f: Int1, d: Slot, a: Slot) {
    match f {
        Int1::Neg => words!(r, mask, d, [x = a] => x.wrapping_neg()),
        Int1::Not => words!(r, mask, d, [x = a] => !x),
        Int1::Abs => words!(r, mask, d, [x = a] => (x as i32).wrapping_abs() as u32),
        Int1::Popc => words!(r, mask, d, [x = a] => x.count_ones()),
        Int1::Clz => words!(r, mask, d, [x = a] => x.leading_zeros()),
        Int1::Brev => words!(r, mask, d, [x = a] => x.reverse_bits()),
        _ => words!(r, mask, d, [x = a] => find(f, i64::from(x as i32), u64::from(x), 32)),
    }
}

/// Position of the highest bit that differs from the sign, or that is set; all ones if there is none.
fn find(f: Int1, signed: i64, unsigned: u64, width: u32) -> u32 {
    let value = if matches!(f, Int1::FindS | Int1::FindShiftS) {
        (if signed < 0 { !signed } else { signed }) as u64
    } else {
        unsigned
    };
    if value == 0 {
        return u32::MAX;
    }
    let position = 63 - value.leading_zeros();
    if matches!(f, Int1::FindShiftS | Int1::FindShiftU) { width - 1 - position } else { position }
}

fn long1(r: &mut Lanes, mask: u32, f: Int1, d: Slot, a: Slot) {
    match f {
        Int1::Neg => longs!(r, mask, d, [x = long a] => x.wrapping_neg()),
        Int1::Not => longs!(r, mask, d, [x = long a] => !x),
        Int1::Abs => longs!(r, mask, d, [x = long a] => (x as i64).wrapping_abs() as u64),
        _ => longs!(r, mask, d, [x = long a] => x.reverse_bits()),
    }
}

fn long_to_32(r: &mut Lanes, mask: u32, f: Int1, d: Slot, a: Slot) {
    let out = r.long(a).map(|x| match f {
        Int1::Popc => x.count_ones(),
        Int1::Clz => x.leading_zeros(),
        _ => find(f, x as i64, x, 64),
    });
    r.put_word(d, mask, &out);
}

#[inline(always)]
fn long2(r: &mut Lanes, mask: u32, f: Int2, d: Slot, a: Slot, b: Slot) {
    match f {
        Int2::Add => longs!(r, mask, d, [x = long a, y = long b] => x.wrapping_add(y)),
        Int2::Sub => longs!(r, mask, d, [x = long a, y = long b] => x.wrapping_sub(y)),
        Int2::And => longs!(r, mask, d, [x = long a, y = long b] => x & y),
        Int2::Or => longs!(r, mask, d, [x = long a, y = long b] => x | y),
        Int2::Xor => longs!(r, mask, d, [x = long a, y = long b] => x ^ y),
        _ => longs!(r, mask, d, [x = long a, y = long b] => long2_rare(f, x, y)),
    }
}

fn long2_rare(f: Int2, x: u64, y: u64) -> u64 {
    let (sx, sy) = (x as i64, y as i64);
    match f {
        Int2::MulLo => x.wrapping_mul(y),
        Int2::MulHiS => ((i128::from(sx) * i128::from(sy)) >> 64) as u64,
        Int2::MulHiU => ((u128::from(x) * u128::from(y)) >> 64) as u64,
        Int2::DivS => {
            if y == 0 {
                u64::MAX
            } else {
                sx.wrapping_div(sy) as u64
            }
        }
        Int2::DivU => x.checked_div(y).unwrap_or(u64::MAX),
        Int2::RemS => {
            if y == 0 {
                x
            } else {
                sx.wrapping_rem(sy) as u64
            }
        }
        Int2::RemU => x.checked_rem(y).unwrap_or(x),
        Int2::MinS => sx.min(sy) as u64,
        Int2::MinU => x.min(y),
        Int2::MaxS => sx.max(sy) as u64,
        Int2::MaxU => x.max(y),
        _ => unreachable!("common operations and shifts are handled elsewhere"),
    }
}

#[inline(always)]
fn long_shift(r: &mut Lanes, mask: u32, f: Int2, d: Slot, a: Slot, b: Slot) {
    match f {
        Int2::Shl => longs!(r, mask, d, [x = long a, y = word b] => if y < 64 { x << (y & 63) } else { 0 }),
        Int2::ShrU => longs!(r, mask, d, [x = long a, y = word b] => if y < 64 { x >> (y & 63) } else { 0 }),
        _ => longs!(r, mask, d, [x = long a, y = word b] => ((x as i64) >> y.min(63)) as u64),
    }
}

fn short1(r: &mut Lanes, mask: u32, f: Int1, d: Slot, a: Slot) {
    match f {
        Int1::Neg => words!(r, mask, d, [x = a] => x.wrapping_neg() & 0xffff),
        Int1::Not => words!(r, mask, d, [x = a] => !x & 0xffff),
        _ => words!(r, mask, d, [x = a] => u32::from((x as i16).unsigned_abs())),
    }
}

fn short2(r: &mut Lanes, mask: u32, f: Int2, signed: bool, d: Slot, a: Slot, b: Slot) {
    let widen = |x: u32| if signed { i32::from(x as i16) as u32 } else { x & 0xffff };
    let (x, y) = (r.word(a).map(widen), r.word(b));
    let out = std::array::from_fn(|l| {
        let y = if matches!(f, Int2::Shl | Int2::ShrS | Int2::ShrU) { y[l] } else { widen(y[l]) };
        let x = x[l];
        let value = match f {
            Int2::Add => x.wrapping_add(y),
            Int2::Sub => x.wrapping_sub(y),
            Int2::MulLo => x.wrapping_mul(y),
            Int2::And => x & y,
            Int2::Or => x | y,
            Int2::Xor => x ^ y,
            Int2::Shl => x.checked_shl(y).unwrap_or(0),
            Int2::ShrU => x.checked_shr(y).unwrap_or(0),
            Int2::ShrS => ((x as i32) >> y.min(31)) as u32,
            _ => int2_rare(f, x, y),
        };
        value & 0xffff
    });
    r.put_word(d, mask, &out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_fields_are_cut_and_pasted_as_the_manual_says() {
        assert_eq!(bfe(false, 0xabcd_1234, 8, 8), 0x12);
        assert_eq!(bfe(true, 0x0000_8000, 8, 8), 0xffff_ff80);
        assert_eq!(bfe(true, 0x8000_0000, 28, 8), 0xffff_fff8);
        assert_eq!(bfe(false, 5, 0, 0), 0);
        assert_eq!(bfi(0x12, 0xffff_ffff, 8, 8), 0xffff_12ff);
        assert_eq!(bfi(7, 0, 40, 8), 0);
    }

    #[test]
    fn lop3_and_prmt_follow_their_tables() {
        let (a, b, c) = (0xf0f0_1234, 0xcccc_5678, 0xaaaa_9abc);
        assert_eq!(lop3(a, b, c, 0x80), a & b & c);
        assert_eq!(lop3(a, b, c, 0x96), a ^ b ^ c);
        assert_eq!(lop3(a, b, c, 0xca), (a & b) | (!a & c));
        assert_eq!(prmt(0x8877_6655_4433_2211, 0x7531), 0x8866_4422);
        assert_eq!(prmt(0x0000_0000_0000_8000, 0x0009), 0x0000_00ff);
    }

    #[test]
    fn funnel_shifts_and_searches() {
        assert_eq!(int3_rare(Int3::ShfLWrap, 0x8000_0000, 1, 1), 3);
        assert_eq!(int3_rare(Int3::ShfRClamp, 1, 0xffff_ffff, 40), 0xffff_ffff);
        assert_eq!(find(Int1::FindU, 0, 0x10, 32), 4);
        assert_eq!(find(Int1::FindShiftU, 0, 0x10, 32), 27);
        assert_eq!(find(Int1::FindS, -1, 0, 32), u32::MAX);
        assert_eq!(int2_rare(Int2::DivS, i32::MIN as u32, u32::MAX), i32::MIN as u32);
    }
}
