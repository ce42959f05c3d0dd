//! Matrix products against the definition, with distinct values so that no two places can be mistaken; `ldmatrix`;
//! `cp.async`.

use crate::common::Arg::{Int, Pointer};
use cuda_emulator::config::Config;
use cuda_emulator::result::Code;

use crate::common::Rig;

/// Distinct, and exact in tf32 and bf16.
fn distinct(count: usize, shift: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + shift) % 256) as f32 - 100.0).collect()
}

fn product(a: &[f32], b: &[f32], c: &[f32], depth: usize) -> Vec<f32> {
    let at = |i: usize, j: usize| c[i * 8 + j] + (0..depth).map(|k| a[i * depth + k] * b[k * 8 + j]).sum::<f32>();
    (0..128).map(|i| at(i / 8, i % 8)).collect()
}

#[test]
fn tf32_products_agree() {
    let mut rig = Rig::new("tensor");
    let (a, b, c) = (distinct(128, 1), distinct(64, 2), distinct(128, 3));
    let (da, db, dc, d) = (rig.upload(&a), rig.upload(&b), rig.upload(&c), rig.alloc(512));
    rig.run("mma_tf32", 1, 32, &[Pointer(d), Pointer(da), Pointer(db), Pointer(dc)]).unwrap();
    assert_eq!(rig.download::<f32>(d, 128), product(&a, &b, &c, 8));
}

#[test]
fn tf32_operands_are_cut_to_19_bits() {
    let mut rig = Rig::new("tensor");
    let a = vec![1.0f32 + 1.0 / 1024.0 + 1.0 / 4096.0; 128];
    let (da, db, dc) = (rig.upload(&a), rig.upload(&[1f32; 64]), rig.upload(&[0f32; 128]));
    let d = rig.alloc(512);
    rig.run("mma_tf32", 1, 32, &[Pointer(d), Pointer(da), Pointer(db), Pointer(dc)]).unwrap();
    assert!(rig.download::<f32>(d, 128).iter().all(|v| *v == 8.0 * (1.0 + 1.0 / 1024.0)));
}

#[test]
fn bf16_products_through_ldmatrix_agree() {
    let mut rig = Rig::new("tensor");
    let (a, b) = (distinct(256, 4), distinct(128, 5));
    let bits = |v: &[f32]| v.iter().map(|x| (x.to_bits() >> 16) as u16).collect::<Vec<u16>>();
    let (da, db, d) = (rig.upload(&bits(&a)), rig.upload(&bits(&b)), rig.alloc(512));
    rig.run("mma_bf16", 1, 32, &[Pointer(d), Pointer(da), Pointer(db)]).unwrap();
    assert_eq!(rig.download::<f32>(d, 128), product(&a, &b, &[0.0; 128], 16));
}

/// The mutant of the fragment map: two registers of A exchanged in the PTX must change the result.
#[test]
fn swapped_mma_registers_are_noticed() {
    let path = format!("{}/tests/ptx/tensor.ptx", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find(|l| l.contains("mma.sync.aligned.m16n8k8")).unwrap();
    let registers: Vec<&str> = line.split(['{', '}', ',', ' ', ';']).filter(|w| w.starts_with("%r")).collect();
    let swapped = line.replace(registers[0], "%tmp").replace(registers[1], registers[0]).replace("%tmp", registers[1]);
    let mut rig = Rig::from_text(&text.replace(line, &swapped), Config::default());
    let (a, b, c) = (distinct(128, 1), distinct(64, 2), distinct(128, 3));
    let (da, db, dc, d) = (rig.upload(&a), rig.upload(&b), rig.upload(&c), rig.alloc(512));
    rig.run("mma_tf32", 1, 32, &[Pointer(d), Pointer(da), Pointer(db), Pointer(dc)]).unwrap();
    assert_ne!(rig.download::<f32>(d, 128), product(&a, &b, &c, 8));
}

#[test]
fn copies_arrive_when_waited_for() {
    let mut rig = Rig::new("tensor");
    let (threads, rounds) = (64, 5);
    let x: Vec<f32> = (0..threads * 4 * rounds).map(|i| i as f32).collect();
    let (dx, out) = (rig.upload(&x), rig.alloc(threads * 4));
    let args = [Pointer(out), Pointer(dx), Int(rounds as i32)];
    rig.run_shared("staged_sum", 1, threads as u32, (threads * 32) as u32, &args).unwrap();
    for (t, got) in rig.download::<f32>(out, threads).into_iter().enumerate() {
        let want: f32 =
            (0..rounds).flat_map(|r| (0..4).map(move |k| r * threads * 4 + k * threads + t)).map(|i| x[i]).sum();
        assert_eq!(got, want);
    }
}

#[test]
fn a_copy_nobody_waits_for_is_reported_or_poison() {
    let (threads, rounds) = (64, 5);
    let x: Vec<f32> = (0..threads * 4 * rounds).map(|i| i as f32).collect();
    for check in [true, false] {
        let config = Config { check_shared: check, check_written: check, ..Config::default() };
        let mut rig = Rig::with("tensor", config);
        let (dx, out) = (rig.upload(&x), rig.alloc(threads * 4));
        let args = [Pointer(out), Pointer(dx), Int(rounds as i32)];
        let result = rig.run_shared("staged_sum_no_wait", 1, threads as u32, (threads * 32) as u32, &args);
        if check {
            assert_eq!(result, Err(Code::LaunchFailed));
            assert!(rig.report().contains("a copy of warp 0 has not arrived"), "{}", rig.report());
        } else {
            result.unwrap();
            assert!(
                rig.download::<f32>(out, threads).iter().all(|v| v.is_nan()),
                "the destination is poisoned meanwhile"
            );
        }
    }
}
