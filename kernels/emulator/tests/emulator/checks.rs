//! Every check finds its mistake, and stays silent where there is none.

use crate::common::Arg::{Int, Pointer};
use cuda_emulator::config::Config;
use cuda_emulator::result::Code;
use cuda_emulator::state::SHARED_LIMIT;

use crate::common::Rig;

fn floats(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn a_missing_barrier_is_a_race() {
    let x = floats(512);
    for reverse in [false, true] {
        for (kernel, ok) in [("neighbours_ok", true), ("neighbours_no_barrier", false)] {
            let mut rig = Rig::with("checks", Config { reverse, check_written: false, ..Config::default() });
            let (dx, out) = (rig.upload(&x), rig.alloc(2048));
            if ok {
                rig.run(kernel, 2, 256, &[Pointer(out), Pointer(dx)]).unwrap();
                assert_eq!(rig.download::<f32>(out, 512)[256..258], [288.0, 289.0]);
            } else {
                rig.must_report(
                    kernel,
                    2,
                    256,
                    &[Pointer(out), Pointer(dx)],
                    Code::LaunchFailed,
                    "no barrier lies between",
                );
                assert!(rig.report().contains("kernel `neighbours_no_barrier`, PTX line "), "{}", rig.report());
                assert!(rig.report().contains("block (0, 0, 0)") || reverse, "{}", rig.report());
            }
        }
    }
}

#[test]
fn a_missing_barrier_before_overwriting_is_a_race() {
    for (kernel, ok) in [("reused_ok", true), ("reused_no_barrier", false)] {
        let mut rig = Rig::new("checks");
        let (dx, out) = (rig.upload(&floats(512)), rig.alloc(1024));
        if ok {
            rig.run(kernel, 1, 256, &[Pointer(out), Pointer(dx)]).unwrap();
        } else {
            rig.must_report(kernel, 1, 256, &[Pointer(out), Pointer(dx)], Code::LaunchFailed, "races with warp");
        }
    }
}

#[test]
fn lanes_of_a_warp_need_to_meet_too() {
    let x = floats(64);
    let mut rig = Rig::new("checks");
    let (dx, out) = (rig.upload(&x), rig.alloc(256));
    rig.run("lanes_ok", 1, 64, &[Pointer(out), Pointer(dx)]).unwrap();
    assert_eq!(rig.download::<f32>(out, 3), [2.0, 1.0, 4.0]);
    rig.must_report(
        "lanes_no_sync",
        1,
        64,
        &[Pointer(out), Pointer(dx)],
        Code::LaunchFailed,
        "no __syncwarp lies between",
    );

    let mut rig = Rig::with("checks", Config { check_lanes: false, ..Config::default() });
    let (dx, out) = (rig.upload(&x), rig.alloc(256));
    rig.run("lanes_no_sync", 1, 64, &[Pointer(out), Pointer(dx)]).unwrap();
}

#[test]
fn the_race_check_can_be_switched_off() {
    let mut rig = Rig::with("checks", Config { check_shared: false, ..Config::default() });
    let (dx, out) = (rig.upload(&floats(512)), rig.alloc(1024));
    rig.run("reused_no_barrier", 1, 256, &[Pointer(out), Pointer(dx)]).unwrap();
}

#[test]
fn named_barriers_order_only_those_who_meet() {
    let mut rig = Rig::new("checks");
    let (dx, out) = (rig.upload(&floats(256)), rig.alloc(256));
    let args = [Pointer(out), Pointer(dx), Int(4)];
    rig.must_report("producer_too_early", 1, 128, &args, Code::LaunchFailed, "races with warp");
}

#[test]
fn one_past_the_end_is_an_illegal_address_and_sticks() {
    let mut rig = Rig::new("checks");
    let (dx, out) = (rig.upload(&floats(100)), rig.alloc(400));
    rig.run("copy", 1, 128, &[Pointer(out), Pointer(dx), Int(100)]).unwrap();
    let args = [Pointer(out), Pointer(dx), Int(101)];
    rig.must_report("copy", 1, 128, &args, Code::IllegalAddress, "thread (100, 0, 0): read of 4 bytes");
    assert!(rig.report().contains("offset 400 of an allocation of 400 bytes"), "{}", rig.report());
    assert_eq!(rig.system.alloc(0, 4), Err(Code::IllegalAddress), "nothing works on this device any more");
    assert_eq!(rig.run("copy", 1, 32, &[Pointer(out), Pointer(dx), Int(1)]), Err(Code::IllegalAddress));
}

#[test]
fn a_stale_pointer_and_one_of_another_device_are_illegal() {
    let mut rig = Rig::with("checks", Config { devices: 2, ..Config::default() });
    let dx = rig.upload(&floats(32));
    let other = rig.system.alloc(1, 128).unwrap();
    rig.must_report("copy", 1, 32, &[Pointer(other), Pointer(dx), Int(32)], Code::IllegalAddress, "write of 4 bytes");
    assert_eq!(rig.system.status(1), Ok(()), "the other device goes on");

    let mut rig = Rig::new("checks");
    let (dx, out) = (rig.upload(&floats(32)), rig.alloc(128));
    rig.system.devices[0].memory.free(dx).unwrap();
    rig.must_report("copy", 1, 32, &[Pointer(out), Pointer(dx), Int(32)], Code::IllegalAddress, "read of 4 bytes");
}

#[test]
fn an_odd_address_is_misaligned() {
    let mut rig = Rig::new("checks");
    let (x, out) = (rig.upload(&[0u8; 600]), rig.alloc(256));
    rig.run("pairs", 1, 32, &[Pointer(out), Pointer(x), Int(8)]).unwrap();
    rig.must_report("pairs", 1, 32, &[Pointer(out), Pointer(x), Int(4)], Code::MisalignedAddress, "misaligned");
}

#[test]
fn memory_nobody_wrote_is_not_read() {
    let mut rig = Rig::new("checks");
    let (raw, out) = (rig.alloc(400), rig.alloc(400));
    rig.write(rig.stream, raw, &floats(50));
    rig.run("copy", 1, 128, &[Pointer(out), Pointer(raw), Int(50)]).unwrap();
    let args = [Pointer(out), Pointer(raw), Int(51)];
    rig.must_report("copy", 1, 128, &args, Code::LaunchFailed, "which was never written");

    // Switched off, the poison shows.
    let mut rig = Rig::with("checks", Config { check_written: false, ..Config::default() });
    let (raw, out) = (rig.alloc(400), rig.alloc(400));
    rig.run("copy", 1, 128, &[Pointer(out), Pointer(raw), Int(100)]).unwrap();
    assert!(rig.download::<f32>(out, 100).iter().all(|v| v.is_nan()));
}

#[test]
fn shared_memory_nobody_wrote_is_not_read() {
    let mut rig = Rig::new("checks");
    let out = rig.alloc(256);
    rig.run("half_written", 1, 64, &[Pointer(out), Int(32)]).unwrap();
    let args = [Pointer(out), Int(33)];
    rig.must_report("half_written", 1, 64, &args, Code::LaunchFailed, "shared memory at 0x80, which was never written");
}

#[test]
fn a_barrier_that_not_all_come_to_is_reported() {
    for (n, words) in [(64, None), (40, Some("never come")), (32, Some("never opens: 32 of 64 threads"))] {
        let mut rig = Rig::new("checks");
        let out = rig.alloc(256);
        match words {
            None => rig.run("half_barrier", 1, 64, &[Pointer(out), Int(n)]).unwrap(),
            Some(words) => rig.must_report("half_barrier", 1, 64, &[Pointer(out), Int(n)], Code::LaunchFailed, words),
        }
    }
}

#[test]
fn a_shuffle_with_lanes_that_left_is_reported() {
    let mut rig = Rig::new("checks");
    let out = rig.alloc(128);
    rig.run("lonely_shuffle", 1, 32, &[Pointer(out), Int(32)]).unwrap();
    rig.must_report("lonely_shuffle", 1, 32, &[Pointer(out), Int(20)], Code::LaunchFailed, "that never come");
}

#[test]
fn blocks_that_touch_the_same_word_are_reported() {
    let mut rig = Rig::new("checks");
    let out = rig.alloc(5 * 128);
    rig.run("block_write", 4, 32, &[Pointer(out), Int(0)]).unwrap();
    rig.run("block_write", 4, 32, &[Pointer(out), Int(0)]).unwrap();
    rig.must_report("block_write", 4, 32, &[Pointer(out), Int(1)], Code::LaunchFailed, "a race between blocks");

    let mut rig = Rig::new("checks");
    let x = rig.upload(&floats(5 * 32));
    rig.run("block_chain", 1, 32, &[Pointer(x)]).unwrap();
    rig.must_report("block_chain", 2, 32, &[Pointer(x)], Code::LaunchFailed, "a race between blocks");

    let mut rig = Rig::with("checks", Config { check_global: false, ..Config::default() });
    let x = rig.upload(&floats(5 * 32));
    rig.run("block_chain", 2, 32, &[Pointer(x)]).unwrap();
}

#[test]
fn warps_that_meet_in_global_memory_need_a_barrier() {
    let mut rig = Rig::new("checks");
    let (scratch, out) = (rig.upload(&floats(64)), rig.alloc(256));
    rig.run("exchange_ok", 1, 64, &[Pointer(out), Pointer(scratch)]).unwrap();
    assert_eq!(rig.download::<f32>(out, 2), [32.0, 33.0]);
    let args = [Pointer(out), Pointer(scratch)];
    rig.must_report(
        "exchange_no_barrier",
        1,
        64,
        &args,
        Code::LaunchFailed,
        "of the same block: no barrier lies between",
    );
}

#[test]
fn a_kernel_without_an_end_is_ended() {
    let mut rig = Rig::with("checks", Config { max_steps: 100_000, ..Config::default() });
    let flag = rig.upload(&[0i32]);
    rig.must_report("forever", 1, 32, &[Pointer(flag)], Code::LaunchTimeout, "without an end");
}

#[test]
fn shared_memory_beyond_48_k_wants_an_attribute() {
    let mut rig = Rig::new("checks");
    let out = rig.alloc(1024);
    let n = (60 << 10) / 4;
    let args = [Pointer(out), Int(n)];
    assert_eq!(rig.run_shared("big_shared", 1, 256, 60 << 10, &args), Err(Code::InvalidValue));
    assert!(rig.report().contains("49152 are allowed"), "{}", rig.report());
    let function = rig.system.function(rig.module, "big_shared").unwrap();
    assert_eq!(rig.system.set_max_dynamic(function, SHARED_LIMIT as i32 + 1), Err(Code::InvalidValue));
    rig.system.set_max_dynamic(function, 60 << 10).unwrap();
    rig.run_shared("big_shared", 1, 256, 60 << 10, &args).unwrap();
    assert_eq!(rig.download::<f32>(out, 2), [(n - 1) as f32, (n - 2) as f32]);
    // One word more than there is.
    let args = [Pointer(out), Int(n + 1)];
    assert_eq!(rig.run_shared("big_shared", 1, 256, 60 << 10, &args), Err(Code::IllegalAddress));
}

#[test]
fn impossible_launches_are_refused() {
    let mut rig = Rig::new("checks");
    let (dx, out) = (rig.upload(&floats(32)), rig.alloc(128));
    for (grid, block) in [(0, 32), (1, 0), (1, 1056)] {
        let result = rig.run("copy", grid, block, &[Pointer(out), Pointer(dx), Int(1)]);
        assert_eq!(result, Err(Code::InvalidValue), "{grid} blocks of {block}");
    }
    assert_eq!(rig.run("copy", 1, 32, &[Pointer(out), Pointer(dx)]), Err(Code::InvalidValue), "an argument is missing");
    rig.run("copy", 1, 32, &[Pointer(out), Pointer(dx), Int(1)]).unwrap();
}

#[test]
fn an_unknown_instruction_is_refused_when_its_kernel_is_requested() {
    let ptx = ".version 8.4\n.target sm_80\n.address_size 64\n\
        .visible .entry good()\n{\n\tret;\n}\n\
        .visible .entry bad()\n{\n\t.reg .b32 %r<2>;\n\tfrobnicate.b32 %r1, %r1;\n\tret;\n}\n";
    let mut rig = Rig::from_text(ptx, Config::default());
    rig.run("good", 1, 32, &[]).unwrap();
    assert_eq!(rig.system.function(rig.module, "bad"), Err(Code::InvalidPtx));
    assert_eq!(rig.report(), "kernel `bad`, PTX line 11: `frobnicate.b32`: this instruction is not emulated");
    assert_eq!(rig.system.function(rig.module, "ugly"), Err(Code::NotFound));
    let newer = rig.system.load_module(0, ".version 9.9\n.target sm_80\n.address_size 64\n");
    assert_eq!(newer, Err(Code::UnsupportedPtxVersion));
    assert_eq!(rig.system.load_module(0, ".version 8.4\nrubbish"), Err(Code::InvalidPtx));
}

#[test]
fn allocations_fail_when_they_must() {
    let config = Config { memory: 1 << 20, fail_alloc: Some(3), ..Config::default() };
    let mut rig = Rig::with("checks", config);
    rig.alloc(1000);
    assert_eq!(rig.system.alloc(0, 2 << 20), Err(Code::OutOfMemory), "more than there is");
    assert_eq!(rig.system.alloc(0, 1000), Err(Code::OutOfMemory), "the third one, as asked");
    let (free, total) = (rig.system.devices[0].memory.free_bytes(), rig.system.devices[0].memory.total_bytes());
    rig.alloc(1000);
    assert_eq!((rig.system.devices[0].memory.free_bytes(), total), (free - 1024, 1 << 20));
}
