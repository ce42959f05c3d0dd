//! Lanes together: divergence, jump tables, shuffles, votes, barriers.

use crate::common::Arg::{Float, Int, Pointer};
use crate::common::{Rig, random};
use cuda_emulator::config::Config;

#[test]
fn a_guarded_loop_over_many_blocks_agrees() {
    let mut rig = Rig::new("simple");
    let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let (dx, dy) = (rig.upload(&x), rig.upload(&vec![1f32; 1000]));
    rig.run("saxpy", 8, 128, &[Pointer(dy), Pointer(dx), Float(2.0), Int(1000)]).unwrap();
    assert!(rig.download::<f32>(dy, 1000).iter().enumerate().all(|(i, y)| *y == 2.0 * i as f32 + 1.0));
}

#[test]
fn lanes_that_part_meet_again() {
    let mut rig = Rig::new("simple");
    let out = rig.alloc(4000);
    rig.run("collatz", 8, 128, &[Pointer(out), Int(1000)]).unwrap();
    let steps = |mut v: u32| {
        std::iter::from_fn(|| (v != 1).then(|| v = if v.is_multiple_of(2) { v / 2 } else { 3 * v + 1 })).count() as i32
    };
    for (i, got) in rig.download::<i32>(out, 1000).into_iter().enumerate() {
        assert_eq!(got, steps(i as u32 + 1));
    }
}

#[test]
fn a_switch_goes_to_its_case() {
    let mut rig = Rig::new("simple");
    let x: Vec<i32> = (0..100).map(|i| i % 11 - 1).collect();
    let (dx, out) = (rig.upload(&x), rig.alloc(400));
    let n = 100;
    rig.run("table", 1, 128, &[Pointer(out), Pointer(dx), Int(n)]).unwrap();
    for (x, got) in x.into_iter().zip(rig.download::<i32>(out, 100)) {
        let want = match x {
            0 => n * 3,
            1 => n / 7,
            2 => n % 11,
            3 => n ^ 0x55,
            4 => n << 3,
            5 => n >> 2,
            6 => -n,
            7 => n & 12,
            _ => 1234,
        };
        assert_eq!(got, want, "case {x}");
    }
}

#[test]
fn a_block_sums_by_shuffles_and_a_barrier_in_any_order_of_warps() {
    let x: Vec<f32> = (0..1000).map(|i| (i % 17) as f32).collect();
    for reverse in [false, true] {
        let mut rig = Rig::with("simple", Config { reverse, ..Config::default() });
        let (dx, out) = (rig.upload(&x), rig.alloc(16));
        rig.run("block_sum", 4, 256, &[Pointer(out), Pointer(dx), Int(1000)]).unwrap();
        let want: Vec<f32> = x.chunks(256).map(|c| c.iter().sum()).collect();
        assert_eq!(rig.download::<f32>(out, 4), want);
    }
}

#[test]
fn shuffles_votes_and_reductions_agree() {
    let mut rig = Rig::new("math");
    let x: Vec<i32> = random(64, 11).iter().map(|v| (*v as i32) >> 8).collect();
    let (dx, out) = (rig.upload(&x), rig.alloc(64 * 12 * 4));
    rig.run("warps", 2, 32, &[Pointer(out), Pointer(dx)]).unwrap();
    let got = rig.download::<i32>(out, 64 * 12);
    for (block, x) in x.chunks(32).enumerate() {
        for lane in 0..32 {
            let want = [
                x[(lane * 7) & 31],
                if lane >= 3 { x[lane - 3] } else { x[lane] },
                if lane % 16 + 5 < 16 { x[lane + 5] } else { x[lane] },
                x[lane ^ 9],
                (0..32).map(|l| i32::from(x[l] > 0) << l).fold(0, |a, b| a | b),
                i32::from(x.contains(&17)),
                i32::from(x.iter().all(|v| *v < 1_000_000)),
                x.iter().fold(0i32, |a, b| a.wrapping_add(*b)),
                *x.iter().min().unwrap(),
                x.iter().map(|v| *v as u32).max().unwrap() as i32,
                x.iter().fold(0, |a, b| a ^ b),
                if lane % 2 == 1 { 0xaaaa_aaaau32 as i32 } else { -1 },
            ];
            let at = (block * 32 + lane) * 12;
            assert_eq!(got[at..at + 12], want, "lane {lane}");
        }
    }
}

#[test]
fn named_barriers_pass_a_slot_from_half_to_half() {
    let mut rig = Rig::new("checks");
    let x: Vec<f32> = (0..256).map(|i| i as f32).collect();
    let (dx, out) = (rig.upload(&x), rig.alloc(256));
    rig.run("producer_ok", 1, 128, &[Pointer(out), Pointer(dx), Int(4)]).unwrap();
    for (t, got) in rig.download::<f32>(out, 64).into_iter().enumerate() {
        assert_eq!(got, (0..4).map(|r| x[r * 64 + 63 - t]).sum::<f32>());
    }
}

#[test]
fn variables_of_a_module_have_their_values() {
    let mut rig = Rig::new("checks");
    let out = rig.alloc(32 * 4);
    rig.run("variables", 1, 32, &[Pointer(out)]).unwrap();
    assert_eq!(rig.download::<f32>(out, 5), [1.5, 2.5, -3.5, 4.5, 1.5]);
    let (total, size) = rig.system.global(rig.module, "total").unwrap();
    assert_eq!((rig.read::<i32>(total, 1)[0], size), (39, 4));
}
