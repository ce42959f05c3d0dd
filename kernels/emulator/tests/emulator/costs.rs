//! Counters are exact on patterns whose cost is known.

use crate::common::Arg::{Int, Pointer};
use cuda_emulator::config::Config;
use cuda_emulator::counters::{Counters, Requests, json_line};

use crate::common::Rig;

fn rig(module: &str) -> Rig {
    Rig::with(module, Config { counters: Some("/dev/null".into()), ..Config::default() })
}

fn counters(rig: &Rig, kernel: &str) -> Counters {
    rig.system.counters[kernel].clone()
}

#[test]
fn sectors_of_strided_loads() {
    for (stride, sectors, efficiency) in [(1, 4, 1.0), (2, 8, 0.5), (8, 32, 0.125), (32, 32, 0.125)] {
        let mut rig = rig("patterns");
        let (x, out) = (rig.upload(&[1f32; 1024]), rig.alloc(128));
        rig.run("strided", 1, 32, &[Pointer(out), Pointer(x), Int(stride)]).unwrap();
        let c = counters(&rig, "strided");
        assert_eq!(c.global_load, Requests { requests: 1, cost: sectors, ideal: 4 });
        assert_eq!(c.global_load.efficiency(), efficiency);
        assert_eq!(c.global_store, Requests { requests: 1, cost: 4, ideal: 4 });
    }
}

#[test]
fn wide_loads_are_as_efficient() {
    let mut rig = rig("patterns");
    let (x, out) = (rig.upload(&[1f32; 128]), rig.alloc(512));
    rig.run("wide", 1, 32, &[Pointer(out), Pointer(x)]).unwrap();
    assert_eq!(counters(&rig, "wide").global_load, Requests { requests: 1, cost: 16, ideal: 16 });
}

#[test]
fn wavefronts_of_strided_shared_loads() {
    for (stride, factor) in [(0, 1), (1, 1), (2, 2), (32, 32), (33, 1)] {
        let mut rig = rig("patterns");
        let out = rig.alloc(128);
        rig.run("banks", 1, 32, &[Pointer(out), Int(stride)]).unwrap();
        let c = counters(&rig, "banks");
        assert_eq!(c.shared_load, Requests { requests: 1, cost: factor, ideal: 1 }, "stride {stride}");
        assert_eq!((c.shared_store, c.barriers), (Requests { requests: 33, cost: 33, ideal: 33 }, 1));
    }
}

#[test]
fn divergence_matrix_products_and_atomics_are_counted() {
    let mut rig = rig("simple");
    let out = rig.alloc(400);
    rig.run("collatz", 1, 32, &[Pointer(out), Int(32)]).unwrap();
    assert!(counters(&rig, "collatz").divergent > 0);
    let x = rig.upload(&[1f32; 32]);
    rig.run("saxpy", 1, 32, &[Pointer(x), Pointer(x), crate::common::Arg::Float(1.0), Int(32)]).unwrap();
    assert_eq!(counters(&rig, "saxpy").divergent, 0);

    let mut rig = self::rig("tensor");
    let a = rig.upload(&[0u16; 256]);
    let d = rig.alloc(512);
    for launches in 1..=2 {
        rig.run("mma_bf16", 1, 32, &[Pointer(d), Pointer(a), Pointer(a)]).unwrap();
        let c = counters(&rig, "mma_bf16");
        assert_eq!((c.launches, c.mma), (launches, launches));
    }
    // Rows of 32 bytes: eight of them lie over half the banks twice. The x2 load has rows of 16: no conflict.
    assert_eq!(
        counters(&rig, "mma_bf16").shared_load,
        Requests { requests: 4, cost: 2 * (4 * 2 + 2), ideal: 2 * (4 + 2) }
    );

    let mut rig = self::rig("checks");
    let out = rig.alloc(128);
    rig.run("variables", 1, 32, &[Pointer(out)]).unwrap();
    assert_eq!(counters(&rig, "variables").atomics, 1);
}

#[test]
fn counters_are_written_as_a_line_of_json() {
    let mut rig = rig("patterns");
    let (x, out) = (rig.upload(&[1f32; 1024]), rig.alloc(128));
    rig.run("strided", 1, 32, &[Pointer(out), Pointer(x), Int(8)]).unwrap();
    let line = json_line(&rig.system.counters);
    assert!(line.starts_with("{\"kernels\": {\"strided\": {\"launches\": 1, "), "{line}");
    let load = "\"global_load\": {\"requests\": 1, \"sectors\": 32, \"ideal\": 4, \"efficiency\": 0.1250}";
    assert!(line.contains(load) && line.ends_with("}}}\n"), "{line}");
    assert_eq!(line.matches('{').count(), line.matches('}').count());
}
