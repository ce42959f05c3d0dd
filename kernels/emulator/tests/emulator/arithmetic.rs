//! Every arithmetic family against Rust's own, in code that NVRTC made of `tests/ptx/math.cu`.

use crate::common::Arg::{Int, Pointer};
use crate::common::{Rig, random};

const N: usize = 1000;

/// Equal, or so near that the difference is rounding: `ulps` units of f32 at the size of the value. NaN is never near.
#[track_caller]
fn near(got: f64, want: f64, tolerance: f64, what: &str) {
    let same = got == want || (got.is_nan() && want.is_nan());
    assert!(same || (got - want).abs() <= tolerance * want.abs().max(1e-30), "{what}: got {got}, want {want}");
}

#[test]
fn floats_agree() {
    let mut rig = Rig::new("math");
    let make =
        |seed| -> Vec<f32> { random(N, seed).iter().map(|v| ((v >> 40) as f32 / 8388608.0 - 1.0) * 20.0).collect() };
    let (x, y) = (make(1), make(2));
    let (dx, dy, out) = (rig.upload(&x), rig.upload(&y), rig.alloc(N * 24 * 4));
    rig.run("floats", 4, 256, &[Pointer(out), Pointer(dx), Pointer(dy), Int(N as i32)]).unwrap();
    let got = rig.download::<f32>(out, N * 24);
    for i in 0..N {
        let (a, b) = (x[i], y[i]);
        let o = &got[i * 24..(i + 1) * 24];
        // Exactly rounded.
        let exact = [a + b, a - b, a * b, a / b, a.mul_add(b, 1.5), a.abs().sqrt(), a.min(b), a.max(b)];
        for (k, want) in exact.into_iter().enumerate() {
            assert_eq!(o[k].to_bits(), want.to_bits(), "operation {k} of {a} and {b}");
        }
        for (k, want) in
            [(13, a.floor()), (14, a.ceil()), (15, a.trunc()), (16, a.round_ties_even()), (23, a.copysign(b))]
        {
            assert_eq!(o[k], want, "operation {k} of {a}");
        }
        // Libraries in PTX: a few units in the last place; the fast ones lose bits with the size of their argument.
        let (wa, wb) = (f64::from(a), f64::from(b));
        let approximate = [
            (8, wa.exp(), 4e-7),
            (10, wa.exp2(), 4e-7),
            (12, 1.0 / wa.abs().sqrt(), 4e-7),
            (17, wa.exp(), 4e-6),
            (19, wa / wb, 4e-7),
            (20, wa.tanh(), 1e-6),
            (21, wa.abs().ln_1p(), 4e-7),
            (22, wa.exp_m1(), 1e-6),
        ];
        for (k, want, tolerance) in approximate {
            near(f64::from(o[k]), want, tolerance, &format!("operation {k} of {a} and {b}"));
        }
        for (k, want) in [(9, wa.abs().ln()), (11, wb.abs().log2()), (18, wb.abs().ln())] {
            let error = (f64::from(o[k]) - want).abs();
            assert!(error <= 4e-7 * want.abs().max(1.0), "operation {k} of {a} and {b}: {} and {want}", o[k]);
        }
    }
}

#[test]
fn doubles_agree() {
    let mut rig = Rig::new("math");
    let make = |seed| -> Vec<f64> {
        random(N, seed).iter().map(|v| ((v >> 11) as f64 / (1u64 << 52) as f64 - 1.0) * 30.0).collect()
    };
    let (x, y) = (make(3), make(4));
    let (dx, dy, out) = (rig.upload(&x), rig.upload(&y), rig.alloc(N * 12 * 8));
    rig.run("doubles", 4, 256, &[Pointer(out), Pointer(dx), Pointer(dy), Int(N as i32)]).unwrap();
    let got = rig.download::<f64>(out, N * 12);
    for i in 0..N {
        let (a, b) = (x[i], y[i]);
        let o = &got[i * 12..(i + 1) * 12];
        let exact = [a + b, a - b, a * b, a / b, a.mul_add(b, 1.5), a.abs().sqrt(), a.min(b), a.max(b)];
        for (k, want) in exact.into_iter().enumerate() {
            assert_eq!(o[k].to_bits(), want.to_bits(), "operation {k} of {a} and {b}");
        }
        near(o[8], a.exp(), 1e-15, "exp");
        near(o[9], a.abs().ln(), 1e-14, "log");
        assert_eq!(o[10], f64::from(a as f32));
        assert_eq!(o[11], b.floor());
    }
}

#[test]
fn ints_agree() {
    let mut rig = Rig::new("math");
    let mut x: Vec<i32> = random(N, 5).iter().map(|v| *v as i32).collect();
    let mut y: Vec<i32> = random(N, 6).iter().map(|v| (*v as i32) >> (v >> 60)).collect();
    x[..6].copy_from_slice(&[0, -1, i32::MIN, i32::MAX, 1, i32::MIN]);
    y[..6].copy_from_slice(&[0, 0, 7, -7, i32::MIN, 1]);
    let (dx, dy, out) = (rig.upload(&x), rig.upload(&y), rig.alloc(N * 32 * 4));
    rig.run("ints", 4, 256, &[Pointer(out), Pointer(dx), Pointer(dy), Int(N as i32)]).unwrap();
    let got = rig.download::<i32>(out, N * 32);
    for i in 0..N {
        let (a, b) = (x[i], y[i]);
        let (ua, ub) = (a as u32, b as u32);
        let low = b as u32 & 31;
        let or_zero = |yes: Option<i32>| yes.unwrap_or(0);
        let wide = u64::from(ub) << 32 | u64::from(ua);
        let want = [
            a.wrapping_add(b),
            a.wrapping_sub(b),
            a.wrapping_mul(b),
            or_zero((b != 0).then(|| a.wrapping_div(b))),
            or_zero((b != 0).then(|| a.wrapping_rem(b))),
            or_zero(ua.checked_div(ub).map(|v| v as i32)),
            or_zero(ua.checked_rem(ub).map(|v| v as i32)),
            a & b,
            a | b,
            a ^ b,
            a << low,
            a >> low,
            (ua >> low) as i32,
            a.min(b),
            a.max(b),
            ua.min(ub) as i32,
            ua.max(ub) as i32,
            a.count_ones() as i32,
            a.leading_zeros() as i32,
            a.reverse_bits(),
            ((i64::from(a) * i64::from(b)) >> 32) as i32,
            ((u64::from(ua) * u64::from(ub)) >> 32) as i32,
            a.wrapping_abs(),
            if a == 0 { 0 } else { a.trailing_zeros() as i32 + 1 },
            ((wide << (ua & 31)) >> 32) as i32,
            (wide >> low) as i32,
            i32::from_le_bytes([ua.to_le_bytes()[0], ub.to_le_bytes()[0], ua.to_le_bytes()[1], ub.to_le_bytes()[1]]),
            (a & b) ^ (!a | 7),
            ((ua >> 5) & 0x7f) as i32,
            (a << 20) >> 25,
            i32::from(a as i16),
            i32::from(b as i8),
        ];
        assert_eq!(got[i * 32..(i + 1) * 32], want, "of {a} and {b}");
    }
}

#[test]
fn longs_agree() {
    let mut rig = Rig::new("math");
    let mut x: Vec<i64> = random(N, 7).iter().map(|v| *v as i64).collect();
    let mut y: Vec<i64> = random(N, 8).iter().map(|v| (*v as i64) >> (v >> 58)).collect();
    x[..3].copy_from_slice(&[0, i64::MIN, 5]);
    y[..3].copy_from_slice(&[0, 3, i64::MIN]);
    let (dx, dy, out) = (rig.upload(&x), rig.upload(&y), rig.alloc(N * 20 * 8));
    rig.run("longs", 4, 256, &[Pointer(out), Pointer(dx), Pointer(dy), Int(N as i32)]).unwrap();
    let got = rig.download::<i64>(out, N * 20);
    for i in 0..N {
        let (a, b) = (x[i], y[i]);
        let (ua, ub) = (a as u64, b as u64);
        let low = ub & 63;
        let want = [
            a.wrapping_add(b),
            a.wrapping_sub(b),
            a.wrapping_mul(b),
            if b == 0 { 0 } else { a.wrapping_div(b) },
            if b == 0 { 0 } else { a.wrapping_rem(b) },
            ua.checked_div(ub).unwrap_or(0) as i64,
            a & b,
            a | !b,
            a << low,
            a >> low,
            (ua >> low) as i64,
            a.min(b),
            ua.max(ub) as i64,
            i64::from(a.count_ones()),
            i64::from(a.leading_zeros()),
            i64::from(a as i32) * i64::from(b as i32),
            (u64::from(a as u32) * u64::from(b as u32)) as i64,
            ((i128::from(a) * i128::from(b)) >> 64) as i64,
            if a < b { a } else { b.wrapping_neg() },
            a.reverse_bits(),
        ];
        assert_eq!(got[i * 20..(i + 1) * 20], want, "of {a} and {b}");
    }
}

#[test]
fn conversions_agree() {
    let mut rig = Rig::new("math");
    let mut x: Vec<f32> = random(N, 9).iter().map(|v| ((v >> 40) as f32 / 8388608.0 - 1.0) * 200.0).collect();
    x[..5].copy_from_slice(&[0.5, -0.5, 1.5, 2.5, -2.5]);
    let (dx, out) = (rig.upload(&x), rig.alloc(N * 16 * 8));
    rig.run("conversions", 4, 256, &[Pointer(out), Pointer(dx), Int(N as i32)]).unwrap();
    let got = rig.download::<f64>(out, N * 16);
    for (i, &a) in x.iter().enumerate() {
        let bf16 = |v: f32| {
            let bits = v.to_bits();
            f64::from(f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000))
        };
        // f16 near 200 has steps of 2^-3 and less: rounding in f64 to 11 bits of mantissa is the definition.
        let f16 = |v: f32| {
            let step = 2f64.powi(f64::from(v.abs()).log2().floor().max(-14.0) as i32 - 10);
            (f64::from(v) / step).round_ties_even() * step
        };
        let tf32 = f64::from(f32::from_bits((a.to_bits() + 0x1000) & 0xffff_e000));
        let want = [
            f64::from(a as i32),
            f64::from(a.abs() as u32),
            (a as i64) as f64,
            f64::from((a as i32) as f32),
            f64::from(a.round_ties_even() as i32),
            f64::from(a.floor() as i32),
            f64::from(a.ceil() as i32),
            f64::from(a.abs() as i32 as u8),
            bf16(a),
            f16(a),
            bf16(a),
            bf16(-a),
            tf32,
            ((a * 1e6f32).round_ties_even() as i64) as f64,
            f64::from((i as u32).wrapping_mul(2_654_435_761) as f32),
            f64::from(a as i32 as i16),
        ];
        assert_eq!(got[i * 16..(i + 1) * 16], want, "of {a}");
    }
}

#[test]
fn local_arrays_and_atomics_agree() {
    let mut rig = Rig::new("math");
    let index: Vec<i32> = random(N, 10).iter().map(|v| (v >> 33) as i32 % 1000).collect();
    let (di, out) = (rig.upload(&index), rig.alloc(N * 4));
    rig.run("locals", 4, 256, &[Pointer(out), Pointer(di), Int(N as i32)]).unwrap();
    let got = rig.download::<f32>(out, N);
    for i in 0..N {
        let k = (index[i] & 15) as usize;
        assert_eq!(got[i], (i as i32 * 100 + index[(i + k) % N]) as f32);
    }

    let sums = rig.upload(&[0, i32::MAX, i32::MIN, 0, 0, 0]);
    let (big, ones) = (rig.upload(&[0u64]), rig.upload(&[0f32]));
    rig.run("atomics", 4, 256, &[Pointer(sums), Pointer(big), Pointer(ones), Pointer(di), Int(N as i32)]).unwrap();
    let got = rig.download::<i32>(sums, 6);
    let want = [
        index.iter().sum(),
        *index.iter().min().unwrap(),
        *index.iter().max().unwrap(),
        index.iter().fold(0, |a, b| a ^ b),
        0,
        N as i32,
    ];
    assert_eq!(got, want);
    assert_eq!(rig.download::<u64>(big, 1)[0], index.iter().map(|v| (v * v) as u64).sum::<u64>());
    assert_eq!(rig.download::<f32>(ones, 1)[0], N as f32);
}
