//! Rarer instructions, narrow types, generic pointers: `tests/ptx/misc.cu`.

use crate::common::Arg::{Int, Pointer};
use crate::common::{Rig, random};
use cuda_emulator::machine::Shape;
use cuda_emulator::result::Code;

#[test]
fn barriers_count_and_vote() {
    let mut rig = Rig::new("misc");
    let x: Vec<i32> = (0..96).map(|i| i % 23).collect();
    let (dx, out) = (rig.upload(&x), rig.alloc(96 * 12));
    rig.run("counting", 1, 96, &[Pointer(out), Pointer(dx)]).unwrap();
    let want = [x.iter().filter(|v| **v > 10).count() as i32, 1, 1];
    for got in rig.download::<i32>(out, 96 * 3).chunks(3) {
        assert_eq!([got[0], i32::from(got[1] != 0), i32::from(got[2] != 0)], want);
    }
}

#[test]
fn lanes_find_their_equals() {
    let mut rig = Rig::new("misc");
    let x: Vec<i32> = (0..32).map(|i| i % 5).collect();
    let (dx, out) = (rig.upload(&x), rig.alloc(32 * 12));
    rig.run("matching", 1, 32, &[Pointer(out), Pointer(dx)]).unwrap();
    for (lane, got) in rig.download::<u32>(out, 96).chunks(3).enumerate() {
        let equal = (0..32).filter(|l| l % 5 == lane % 5).fold(0u32, |m, l| m | 1 << l);
        assert_eq!((got[0], got[1], got[2] != 0), (equal, u32::MAX, true));
    }
}

#[test]
fn halves_round_once() {
    let mut rig = Rig::new("misc");
    let make = |seed| -> Vec<f32> { random(32, seed).iter().map(|v| (v >> 40) as f32 / 8388608.0 - 1.0).collect() };
    let (x, y) = (make(1), make(2));
    let (dx, dy, out) = (rig.upload(&x), rig.upload(&y), rig.alloc(32 * 24));
    rig.run("halves", 1, 32, &[Pointer(out), Pointer(dx), Pointer(dy), Int(32)]).unwrap();
    let round = |v: f64, bits: i32| {
        let step = 2f64.powi(v.abs().log2().floor() as i32 - bits);
        (v / step).round_ties_even() * step
    };
    let (bf16, f16) = (|v: f64| round(v, 7), |v: f64| round(v, 10));
    for (i, got) in rig.download::<f32>(out, 32 * 6).chunks(6).enumerate() {
        let (x, y) = (f64::from(x[i]), f64::from(y[i]));
        let (bx, by, hx, hy) = (bf16(x), bf16(y), f16(x), f16(y));
        let want = [bf16(bx * by + bx), bf16(by * bx + by), f16(hx + hy), f16(hy + hx), f16(hx * hy), hx.max(hy)];
        assert_eq!(got, want.map(|v| v as f32), "of {x} and {y}");
    }
}

#[test]
fn narrow_values_keep_their_sign() {
    let mut rig = Rig::new("misc");
    let s: Vec<u8> = (0..32).map(|i| (i as i8 - 16) as u8).collect();
    let u: Vec<u8> = (0..32).map(|i| 255 - i).collect();
    let h: Vec<u16> = (0..32).map(|i| (i as i16 * -1000) as u16).collect();
    let (ds, du, dh, out) = (rig.upload(&s), rig.upload(&u), rig.upload(&h), rig.alloc(128));
    rig.run("bytes", 1, 32, &[Pointer(out), Pointer(ds), Pointer(du), Pointer(dh)]).unwrap();
    for (i, got) in rig.download::<i32>(out, 32).into_iter().enumerate() {
        assert_eq!(got, i32::from(s[i] as i8) * 1000 + i32::from(u[i]) + i32::from(h[i] as i16));
    }
    assert_eq!(rig.download::<u8>(ds, 2), [(-5i8) as u8, (-4i8) as u8]);
    assert_eq!(rig.download::<u8>(du, 32)[30], 14);
    assert_eq!(rig.download::<u16>(dh, 3)[2] as i16, -600);
}

#[test]
fn generic_pointers_lead_where_they_point() {
    let mut rig = Rig::new("misc");
    let x: Vec<f32> = (0..64).map(|i| if i % 3 == 0 { 1.0 } else { -(i as f32) }).collect();
    let (dx, out) = (rig.upload(&x), rig.alloc(256));
    rig.run("generic", 1, 64, &[Pointer(out), Pointer(dx)]).unwrap();
    for (i, got) in rig.download::<f32>(out, 64).into_iter().enumerate() {
        assert_eq!(got, if i % 3 == 0 { i as f32 + 0.5 } else { 0.5 - i as f32 });
    }
}

#[test]
fn the_other_atomics() {
    let mut rig = Rig::new("misc");
    let a = rig.upload(&[0u32, 0, 0, u32::MAX, 5, 1000]);
    let (d, b) = (rig.upload(&[0f64]), rig.upload(&[3u64]));
    rig.run("more_atomics", 2, 32, &[Pointer(a), Pointer(d), Pointer(b)]).unwrap();
    // 64 increments modulo 10; 64 decrements from 0, which wraps to 9.
    assert_eq!(rig.download::<u32>(a, 6), [4, 6, u32::MAX, 0, 77, 1000 - 128]);
    assert_eq!((rig.download::<f64>(d, 1)[0], rig.download::<u64>(b, 1)[0]), (16.0, 630_000_000_000));
}

#[test]
fn threads_know_their_place_in_three_dimensions() {
    let mut rig = Rig::new("misc");
    let (grid, block) = ([3, 2, 2], [5, 4, 3]);
    let out = rig.alloc(12 * 60 * 4);
    let function = rig.system.function(rig.module, "indices").unwrap();
    let shape = Shape { grid, block, shared: 0 };
    rig.system.launch(rig.stream, function, shape, out.to_le_bytes().to_vec()).unwrap();
    for (i, got) in rig.download::<i32>(out, 720).into_iter().enumerate() {
        assert_eq!(got, (i / 60 * 1000 + i % 60) as i32);
    }
}

#[test]
fn loops_with_breaks_and_predicates_agree() {
    let mut rig = Rig::new("misc");
    let x: Vec<i32> = random(60, 3).iter().map(|v| (v >> 50) as i32 % 80 - 10).collect();
    let (dx, out) = (rig.upload(&x), rig.alloc(256));
    rig.run("mixed", 1, 64, &[Pointer(out), Pointer(dx), Int(60)]).unwrap();
    for (i, got) in rig.download::<i32>(out, 64).into_iter().enumerate() {
        let i = i as i32;
        let mut sum = 0;
        for &v in &x {
            if v < 0 || (v > 50 && i % 3 == 0) {
                continue;
            }
            if v == i {
                break;
            }
            let (odd, big) = ((v & 1) != (i & 1), v > i);
            sum += if odd ^ big { v } else { -1 };
        }
        assert_eq!(got, sum, "thread {i}");
    }
}

#[test]
fn a_failed_assertion_is_one() {
    let mut rig = Rig::new("misc");
    let mut x = [5i32; 32];
    let good = rig.upload(&x);
    rig.run("asserts", 1, 32, &[Pointer(good)]).unwrap();
    x[9] = 100;
    let bad = rig.upload(&x);
    rig.must_report("asserts", 1, 32, &[Pointer(bad)], Code::Assert, "thread (9, 0, 0)");
}

#[test]
fn dot_products_of_bytes() {
    let mut rig = Rig::new("misc");
    let x: Vec<i32> = random(32, 4).iter().map(|v| *v as i32).collect();
    let y: Vec<i32> = random(32, 5).iter().map(|v| *v as i32).collect();
    let (dx, dy, out) = (rig.upload(&x), rig.upload(&y), rig.alloc(512));
    rig.run("dots", 1, 32, &[Pointer(out), Pointer(dx), Pointer(dy)]).unwrap();
    for (i, got) in rig.download::<i32>(out, 128).chunks(4).enumerate() {
        let (p, q) = (x[i].to_le_bytes(), y[i].to_le_bytes());
        let signed: i32 = (0..4).map(|k| i32::from(p[k] as i8) * i32::from(q[k] as i8)).sum();
        let plain: u32 = (0..4).map(|k| u32::from(p[k]) * u32::from(q[k])).sum();
        let low = (x[i].wrapping_add(y[i])) & 0xffff;
        let high = ((x[i] >> 16).wrapping_add(y[i] >> 16)) << 16;
        let want = [signed + 5, x[i].abs_diff(y[i]).wrapping_add(3) as i32, plain as i32 + 1, high | low];
        assert_eq!(got, want);
    }
}
