//! How fast kernels are interpreted: two matrix products, checked against the definition, in processor time.
//!
//!     cargo run -p anemone-cuda-emulator --example speed

#[path = "../tests/common/mod.rs"]
mod common;

use common::Arg::{Int, Pointer};
use common::{Rig, random};
use cuda_emulator::config::Config;

const N: usize = 512;
const K: usize = 256;

fn main() {
    let plain = Config::default();
    let unchecked = Config { check_written: false, check_shared: false, check_global: false, ..Config::default() };
    let counting = Config { counters: Some("/dev/null".into()), ..Config::default() };
    for (what, config) in [("all checks", plain), ("no checks", unchecked), ("all checks, counters", counting)] {
        for (kernel, tile, threads) in [("product_fp32", 32, 256), ("product_tf32", 64, 128)] {
            let speed = run(&config, kernel, tile, threads);
            println!("{what}: {kernel}: {speed:.0} million FMA/s");
        }
    }
}

fn run(config: &Config, kernel: &str, tile: usize, threads: u32) -> f64 {
    let mut rig = Rig::with("speed", config.clone());
    let make = |seed| -> Vec<f32> { random(N * K, seed).iter().map(|v| (v >> 40) as f32 / 16777216.0).collect() };
    let (a, b) = (make(1), make(2));
    let (da, db, c) = (rig.upload(&a), rig.upload(&b), rig.alloc(N * N * 4));
    let start = processor_seconds();
    let blocks = (N / tile) * (N / tile);
    let args = [Pointer(c), Pointer(da), Pointer(db), Int(N as i32), Int(K as i32)];
    rig.run(kernel, blocks as u32, threads, &args).expect("the kernel runs");
    let seconds = processor_seconds() - start;
    let got = rig.download::<f32>(c, N * N);
    for at in (0..N * N).step_by(997) {
        let want: f64 = (0..K).map(|k| f64::from(a[at / N * K + k]) * f64::from(b[k * N + at % N])).sum();
        let error = (f64::from(got[at]) - want).abs() / want;
        assert!(error < 2e-3, "{kernel}: element {at} is {} and should be {want}", got[at]);
    }
    (N * N * K) as f64 / seconds / 1e6
}

/// Time this process has had a core for: fair on a busy machine.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux tells");
    let nanoseconds: f64 = text.split(' ').next().and_then(|n| n.parse().ok()).expect("the first number");
    nanoseconds / 1e9
}
