//! When things run: ordering mistakes are found in the lazy modes, and correct programs give the same in all of them.

use std::sync::Arc;

use crate::common::Arg::{Float, Int, Pointer};
use cuda_emulator::config::{Config, StreamMode};
use cuda_emulator::result::Code;
use cuda_emulator::state::Handle;
use cuda_emulator::stream::{Event, HostBytes, Op, Progress};

use crate::common::Rig;

const MODES: [StreamMode; 3] = [StreamMode::Eager, StreamMode::Lazy, StreamMode::OthersFirst];

fn rig(streams: StreamMode) -> Rig {
    Rig::with("patterns", Config { streams, ..Config::default() })
}

fn event(rig: &mut Rig) -> Handle {
    rig.system.new_event(Event::default())
}

fn scale(rig: &mut Rig, stream: Handle, x: u64, by: f32) {
    rig.launch(stream, "scale", 1, 32, 0, &[Pointer(x), Float(by), Int(32)]).unwrap();
}

/// A copy stream feeds a compute stream, with or without the event between them. Result, or the device's error.
fn feed(mode: StreamMode, wait: bool) -> Result<f32, Code> {
    let mut rig = rig(mode);
    let (copy, compute) = (rig.system.new_stream(0, false), rig.stream);
    let x = rig.upload(&[1f32; 32]);
    rig.write(copy, x, &[5f32; 32]);
    if wait {
        let ready = event(&mut rig);
        rig.system.record_event(ready, copy).unwrap();
        rig.system.wait_event(compute, ready).unwrap();
    }
    scale(&mut rig, compute, x, 2.0);
    let got = rig.download::<f32>(x, 1)[0];
    rig.system.status(0).map(|()| got)
}

#[test]
fn a_consumer_that_does_not_wait_is_found_in_lazy_mode() {
    for mode in MODES {
        assert_eq!(feed(mode, true), Ok(10.0), "{mode:?}");
    }
    assert_eq!(feed(StreamMode::Eager, false), Ok(10.0), "eager mode hides it");
    assert_eq!(feed(StreamMode::Lazy, false), Ok(2.0), "the old value was used");
}

/// The next batch is written over the one that compute still reads, unless the copy stream waits.
fn overwrite(mode: StreamMode, wait: bool) -> f32 {
    let mut rig = rig(mode);
    let (copy, compute) = (rig.system.new_stream(0, false), rig.stream);
    let (x, out) = (rig.upload(&[3f32; 32]), rig.alloc(128));
    rig.launch(compute, "add", 1, 32, 0, &[Pointer(out), Pointer(x), Pointer(x), Int(32)]).unwrap();
    if wait {
        let free = event(&mut rig);
        rig.system.record_event(free, compute).unwrap();
        rig.system.wait_event(copy, free).unwrap();
    }
    rig.write(copy, x, &[100f32; 32]);
    rig.download::<f32>(out, 1)[0]
}

#[test]
fn a_producer_that_does_not_wait_is_found_with_others_first() {
    for mode in MODES {
        assert_eq!(overwrite(mode, true), 6.0, "{mode:?}");
    }
    assert_eq!(overwrite(StreamMode::Lazy, false), 6.0, "lazy mode alone hides it");
    assert_eq!(overwrite(StreamMode::OthersFirst, false), 200.0);
}

#[test]
fn an_event_means_its_last_record_before_the_wait() {
    for mode in MODES {
        let mut rig = rig(mode);
        let (a, b) = (rig.system.new_stream(0, false), rig.stream);
        let x = rig.upload(&[1f32; 32]);
        let e = event(&mut rig);
        rig.system.wait_event(b, e).unwrap(); // never recorded: nothing to wait for
        scale(&mut rig, a, x, 2.0);
        rig.system.record_event(e, a).unwrap();
        rig.system.wait_event(b, e).unwrap();
        scale(&mut rig, b, x, 3.0);
        let done = event(&mut rig);
        rig.system.record_event(done, b).unwrap();
        rig.system.wait_event(a, done).unwrap();
        scale(&mut rig, a, x, 5.0);
        rig.system.record_event(e, a).unwrap(); // does not change the wait above
        assert_eq!(rig.system.demand(b, u64::MAX), Progress::Done);
        let expected = if mode == StreamMode::Lazy { 6.0 } else { 30.0 };
        assert_eq!(rig.read::<f32>(x, 1)[0], expected, "{mode:?}");
        rig.system.demand_all(None);
        assert_eq!(rig.read::<f32>(x, 1)[0], 30.0);
    }
}

#[test]
fn the_default_stream_orders_blocking_streams_only() {
    let mut rig = rig(StreamMode::Lazy);
    let default = rig.system.devices[0].default_stream;
    let blocking = rig.system.new_stream(0, true);
    let x = rig.upload(&[1f32; 32]);
    scale(&mut rig, blocking, x, 2.0);
    scale(&mut rig, default, x, 3.0);
    let free = rig.stream;
    scale(&mut rig, free, x, 7.0);
    rig.system.demand(default, u64::MAX);
    assert_eq!(rig.read::<f32>(x, 1)[0], 6.0, "the blocking stream came first, the other not at all");
    scale(&mut rig, default, x, 5.0);
    scale(&mut rig, blocking, x, 11.0);
    rig.system.demand(blocking, u64::MAX);
    assert_eq!(rig.read::<f32>(x, 1)[0], 330.0);
}

#[test]
fn page_locked_memory_is_read_and_written_late() {
    let mut rig = rig(StreamMode::Lazy);
    let x = rig.alloc(8);
    let mut host = [1.0f32, 2.0];
    let from = HostBytes::Late { at: host.as_mut_ptr() as usize, len: 8 };
    rig.system.submit(rig.stream, Op::Upload { to: x, from }).unwrap();
    host[0] = 50.0; // a mistake: the copy has not run
    let mut back = [0f32; 2];
    rig.system.submit(rig.stream, Op::Download { to: back.as_mut_ptr() as usize, from: x, len: 8 }).unwrap();
    assert_eq!(std::hint::black_box(&back)[0], 0.0, "nobody has waited");
    rig.finish();
    assert_eq!(std::hint::black_box(back), [50.0, 2.0]);
    assert_eq!(host[1], 2.0);
}

/// A copy stream fills memory that a compute stream allocates, with or without the event between them.
fn allocate(mode: StreamMode, wait: bool) -> Result<f32, Code> {
    let mut rig = rig(mode);
    let (copy, compute) = (rig.system.new_stream(0, false), rig.stream);
    let x = rig.system.alloc_in(compute, 128).unwrap();
    if wait {
        let there = event(&mut rig);
        rig.system.record_event(there, compute).unwrap();
        rig.system.wait_event(copy, there).unwrap();
    }
    rig.write(copy, x, &[5f32; 32]);
    rig.system.demand(copy, u64::MAX);
    let got = rig.download::<f32>(x, 1)[0];
    rig.system.status(0).map(|()| got)
}

#[test]
fn memory_that_is_used_before_its_place_in_the_stream_is_found() {
    for mode in MODES {
        assert_eq!(allocate(mode, true), Ok(5.0), "{mode:?}");
    }
    assert_eq!(allocate(StreamMode::Eager, false), Ok(5.0), "eager mode hides it");
    assert_eq!(allocate(StreamMode::Lazy, false), Err(Code::IllegalAddress));
}

#[test]
fn page_locked_memory_does_not_go_under_a_copy() {
    for mode in MODES {
        let mut rig = rig(mode);
        let x = rig.alloc(8);
        let host = [1.0f32, 2.0];
        let at = host.as_ptr() as usize;
        rig.system.submit(rig.stream, Op::Upload { to: x, from: HostBytes::Late { at, len: 8 } }).unwrap();
        let expected = if mode == StreamMode::Eager { Ok(()) } else { Err(Code::IllegalAddress) };
        assert_eq!(rig.system.check_free_host(at + 4, 4), expected, "{mode:?}");
        assert_eq!(rig.system.status(0), expected, "the device has ended");
        rig.finish();
        assert_eq!(rig.system.check_free_host(at, 8), Ok(()), "nothing is on its way any more");
    }
}

#[test]
fn a_query_is_not_ready_until_it_is_asked_again() {
    let mut rig = rig(StreamMode::Lazy);
    let x = rig.upload(&[1f32; 32]);
    let e = event(&mut rig);
    assert_eq!(rig.system.query_event(e), Ok(()));
    let stream = rig.stream;
    scale(&mut rig, stream, x, 2.0);
    rig.system.record_event(e, stream).unwrap();
    assert_eq!(rig.system.query_event(e), Err(Code::NotReady));
    assert_eq!(rig.system.query_event(e), Ok(()));
}

#[test]
fn memory_freed_in_its_stream_lives_until_then() {
    for mode in MODES {
        let mut rig = rig(mode);
        let x = rig.upload(&[1f32; 32]);
        let stream = rig.stream;
        scale(&mut rig, stream, x, 2.0);
        rig.system.submit(stream, Op::Free { address: x }).unwrap();
        rig.finish();
        assert_eq!(rig.system.status(0), Ok(()), "{mode:?}");
        assert_eq!(rig.launch(stream, "scale", 1, 32, 0, &[Pointer(x), Float(1.0), Int(32)]), Ok(()));
        rig.finish();
        assert_eq!(rig.system.status(0), Err(Code::IllegalAddress), "used after it was freed");
    }
}

/// Captures: upload, then a fork with `x·2` in another stream and `y·3` in this one, then `x + y`.
fn capture(rig: &mut Rig, host: &[f32], join: bool) -> Result<(u64, Arc<cuda_emulator::graph::Graph>), Code> {
    let (main, side) = (rig.stream, rig.system.new_stream(0, false));
    let (x, y, out) = (rig.upload(&[1f32; 32]), rig.upload(&[1f32; 32]), rig.alloc(128));
    let (fork, joined) = (event(rig), event(rig));
    rig.system.begin_capture(main, false).unwrap();
    let from = HostBytes::Late { at: host.as_ptr() as usize, len: 128 };
    rig.system.submit(main, Op::Upload { to: x, from: from.clone() })?;
    rig.system.submit(main, Op::Upload { to: y, from })?;
    rig.system.record_event(fork, main)?;
    rig.system.wait_event(side, fork)?;
    scale(rig, side, x, 2.0);
    rig.system.record_event(joined, side)?;
    scale(rig, main, y, 3.0);
    if join {
        rig.system.wait_event(main, joined)?;
    }
    rig.launch(main, "add", 1, 32, 0, &[Pointer(out), Pointer(x), Pointer(y), Int(32)])?;
    Ok((out, Arc::new(rig.system.end_capture(main)?)))
}

#[test]
fn a_graph_replays_and_reads_memory_again() {
    for mode in MODES {
        let mut rig = rig(mode);
        let mut host = vec![1f32; 32];
        let (out, graph) = capture(&mut rig, &host, true).unwrap();
        assert!(rig.read::<f32>(out, 1)[0].is_nan(), "capturing runs nothing");
        for value in [1f32, 7.0] {
            host.fill(value);
            std::hint::black_box(&host);
            rig.system.submit(rig.stream, Op::Graph(graph.clone())).unwrap();
            assert_eq!(rig.download::<f32>(out, 32), [5.0 * value; 32], "{mode:?}");
        }
    }
}

#[test]
fn a_graph_keeps_only_the_order_it_was_given() {
    // Without the join the capture is refused, as by a real driver.
    let mut rig = rig(StreamMode::Lazy);
    assert_eq!(capture(&mut rig, &[1f32; 32], false).unwrap_err(), Code::CaptureUnjoined);

    // Independent nodes run last one first.
    let mut rig = self::rig(StreamMode::Lazy);
    let (_, graph) = capture(&mut rig, &[1f32; 32], true).unwrap();
    let order = graph.order(StreamMode::Lazy);
    let place = |n: usize| order.iter().position(|o| *o == n).unwrap();
    assert!(place(3) < place(2), "{order:?}: the branches have no order of their own");
    assert!(order[4] == 4 && place(0) < place(2) && place(1) < place(3));
    assert_eq!(graph.order(StreamMode::Eager), [0, 1, 2, 3, 4]);
}

#[test]
fn what_a_capture_forbids_ruins_it() {
    let mut rig = rig(StreamMode::Eager);
    let main = rig.stream;
    let x = rig.upload(&[1f32; 32]);
    let outside = event(&mut rig);
    rig.system.record_event(outside, main).unwrap();
    rig.system.begin_capture(main, false).unwrap();
    assert_eq!(rig.system.begin_capture(main, false), Err(Code::CaptureUnsupported));
    assert_eq!(rig.system.wait_event(main, outside), Err(Code::CaptureIsolation));
    assert_eq!(rig.launch(main, "scale", 1, 32, 0, &[Pointer(x), Float(1.0), Int(32)]), Err(Code::CaptureInvalidated));
    assert_eq!(rig.system.end_capture(main).unwrap_err(), Code::CaptureInvalidated);
    assert_eq!(rig.system.end_capture(main).unwrap_err(), Code::InvalidValue);
    rig.run("scale", 1, 32, &[Pointer(x), Float(1.0), Int(32)]).unwrap();
}
