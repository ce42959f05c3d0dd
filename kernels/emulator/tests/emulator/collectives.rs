//! NCCL's stand-in: sums in the order of the ranks, when all have come.

#![allow(clippy::needless_range_loop)] // a rank is an index into several lists at once

use crate::common::{Plain, Rig};
use cuda_emulator::collective::{Call, Element, Kind, Move, Reduction};
use cuda_emulator::config::{Config, StreamMode};
use cuda_emulator::result::Code;
use cuda_emulator::state::Handle;
use cuda_emulator::stream::{HostBytes, Op, Progress};

struct Ranks {
    rig: Rig,
    comms: Vec<Handle>,
    streams: Vec<Handle>,
}

fn ranks(size: usize, streams: StreamMode) -> Ranks {
    let mut rig = Rig::with("patterns", Config { devices: size, streams, ..Config::default() });
    let comms = (0..size).map(|r| rig.system.comm_init(77, r, size, r, false).unwrap()).collect();
    let streams = (0..size).map(|r| rig.system.new_stream(r, false)).collect();
    Ranks { rig, comms, streams }
}

impl Ranks {
    fn upload<T: Plain>(&mut self, rank: usize, values: &[T]) -> u64 {
        let address = self.rig.system.alloc(rank, size_of_val(values)).unwrap();
        let bytes = values.iter().flat_map(|v| v.bytes()).collect();
        self.rig.system.submit(self.streams[rank], Op::Upload { to: address, from: HostBytes::Taken(bytes) }).unwrap();
        address
    }

    #[allow(clippy::too_many_arguments)] // NCCL's own
    fn call(
        &mut self,
        rank: usize,
        kind: Kind,
        send: u64,
        recv: u64,
        count: usize,
        ty: Element,
        root: usize,
    ) -> Result<(), Code> {
        let call = Call { kind, send, recv, count, ty, op: Reduction::Sum, root, stream: self.streams[rank] };
        self.rig.system.collective(self.comms[rank], call)
    }
}

const MODES: [StreamMode; 3] = [StreamMode::Eager, StreamMode::Lazy, StreamMode::OthersFirst];

#[test]
fn all_reduce_adds_in_the_order_of_ranks_whoever_comes_first() {
    // Values whose f32 sum depends on the order.
    let parts = [1.0e8f32, 1.0, -1.0e8];
    let want = (parts[0] + parts[1]) + parts[2];
    for mode in MODES {
        for order in [[0, 1, 2], [2, 0, 1]] {
            let mut r = ranks(3, mode);
            let data: Vec<u64> = (0..3).map(|rank| r.upload(rank, &[parts[rank], rank as f32])).collect();
            for rank in order {
                r.call(rank, Kind::AllReduce, data[rank], data[rank], 2, Element::Float32, 0).unwrap();
            }
            for rank in 0..3 {
                assert_eq!(r.rig.system.demand(r.streams[rank], u64::MAX), Progress::Done);
                assert_eq!(r.rig.read::<f32>(data[rank], 2), [want, 3.0], "{mode:?}, rank {rank}");
            }
        }
    }
}

#[test]
fn a_rank_that_does_not_come_blocks_the_others() {
    for mode in MODES {
        let mut r = ranks(2, mode);
        let data: Vec<u64> = (0..2).map(|rank| r.upload(rank, &[1.0f64])).collect();
        r.call(0, Kind::AllReduce, data[0], data[0], 1, Element::Float64, 0).unwrap();
        assert_eq!(r.rig.system.demand(r.streams[0], u64::MAX), Progress::Blocked);
        r.call(1, Kind::AllReduce, data[1], data[1], 1, Element::Float64, 0).unwrap();
        assert_eq!(r.rig.system.demand(r.streams[0], u64::MAX), Progress::Done);
        assert_eq!(r.rig.read::<f64>(data[1], 1), [2.0]);
    }
}

#[test]
fn the_other_collectives_do_what_they_are_named_for() {
    let mut r = ranks(2, StreamMode::Lazy);
    let send: Vec<u64> = (0..2).map(|rank| r.upload(rank, &[rank as f32 + 1.0, rank as f32 + 10.0])).collect();
    let recv: Vec<u64> = (0..2).map(|rank| r.upload(rank, &[0f32; 4])).collect();
    let cases = [
        (Kind::Broadcast, 2, 1, [[2.0, 11.0, 0.0, 0.0], [2.0, 11.0, 0.0, 0.0]]),
        (Kind::AllGather, 2, 0, [[1.0, 10.0, 2.0, 11.0], [1.0, 10.0, 2.0, 11.0]]),
        (Kind::ReduceScatter, 1, 0, [[3.0, 10.0, 2.0, 11.0], [21.0, 10.0, 2.0, 11.0]]),
        (Kind::Reduce, 2, 1, [[3.0, 10.0, 2.0, 11.0], [3.0, 21.0, 2.0, 11.0]]),
    ];
    for (kind, count, root, want) in cases {
        for rank in 0..2 {
            r.call(rank, kind, send[rank], recv[rank], count, Element::Float32, root).unwrap();
        }
        r.rig.system.demand_all(None);
        for rank in 0..2 {
            assert_eq!(r.rig.read::<f32>(recv[rank], 4), want[rank], "{kind:?}, rank {rank}");
        }
    }
}

#[test]
fn ranks_that_disagree_or_send_nothing_are_reported() {
    let mut r = ranks(2, StreamMode::Eager);
    let data: Vec<u64> = (0..2).map(|rank| r.upload(rank, &[1.0f32; 4])).collect();
    r.call(0, Kind::AllReduce, data[0], data[0], 4, Element::Float32, 0).unwrap();
    r.call(1, Kind::AllReduce, data[1], data[1], 3, Element::Float32, 0).unwrap();
    assert_eq!(r.rig.system.status(0), Err(Code::LaunchFailed));
    assert!(r.rig.report().contains("they must agree"), "{}", r.rig.report());

    let mut r = ranks(2, StreamMode::Eager);
    let data = r.upload(0, &[1.0f32; 4]);
    let raw = r.rig.system.alloc(1, 16).unwrap();
    r.call(0, Kind::AllReduce, data, data, 4, Element::Float32, 0).unwrap();
    r.call(1, Kind::AllReduce, raw, raw, 4, Element::Float32, 0).unwrap();
    assert!(r.rig.report().contains("rank 1 sends memory in AllReduce that was never written"), "{}", r.rig.report());
}

/// Bytes to or from a peer.
fn one(is_send: bool, peer: usize, address: u64, bytes: usize) -> Move {
    Move { is_send, peer, address, bytes }
}

#[test]
fn sends_and_receives_between_two_ranks_meet_in_their_order() {
    for mode in MODES {
        let mut r = ranks(3, mode);
        let send: Vec<u64> = (0..3).map(|rank| r.upload(rank, &[rank as f32 + 1.0, rank as f32 + 10.0])).collect();
        let recv: Vec<u64> = (0..3).map(|rank| r.upload(rank, &[0f32; 4])).collect();
        for rank in [2, 0, 1] {
            let (next, previous) = ((rank + 1) % 3, (rank + 2) % 3);
            let moves = vec![
                one(true, next, send[rank], 4),
                one(false, previous, recv[rank] + 8, 4),
                one(true, next, send[rank] + 4, 4),
                one(false, previous, recv[rank], 4),
            ];
            r.rig.system.exchange(r.comms[rank], r.streams[rank], moves).unwrap();
        }
        r.rig.system.demand_all(None);
        for rank in 0..3 {
            let previous = ((rank + 2) % 3) as f32;
            assert_eq!(r.rig.read::<f32>(recv[rank], 4), [previous + 10.0, 0.0, previous + 1.0, 0.0], "{mode:?}");
        }
    }
}

#[test]
fn sends_that_nobody_receives_alike_are_reported() {
    let mut r = ranks(2, StreamMode::Eager);
    let data: Vec<u64> = (0..2).map(|rank| r.upload(rank, &[1.0f32; 4])).collect();
    r.rig.system.exchange(r.comms[0], r.streams[0], vec![one(true, 1, data[0], 8)]).unwrap();
    r.rig.system.exchange(r.comms[1], r.streams[1], vec![one(false, 0, data[1], 4)]).unwrap();
    assert!(r.rig.report().contains("rank 0 sends [8] bytes to rank 1, which receives [4]"), "{}", r.rig.report());

    let mut r = ranks(2, StreamMode::Eager);
    let data: Vec<u64> = (0..2).map(|rank| r.upload(rank, &[1.0f32; 4])).collect();
    r.rig.system.exchange(r.comms[0], r.streams[0], vec![one(true, 1, data[0], 4)]).unwrap();
    r.call(1, Kind::AllReduce, data[1], data[1], 1, Element::Float32, 0).unwrap();
    assert!(r.rig.report().contains("where others send and receive: they must agree"), "{}", r.rig.report());
}

#[test]
fn a_rank_that_gives_up_is_free_and_leaves_the_others_waiting() {
    let mut r = ranks(2, StreamMode::Lazy);
    let data: Vec<u64> = (0..2).map(|rank| r.upload(rank, &[1.0f32])).collect();
    r.call(0, Kind::AllReduce, data[0], data[0], 1, Element::Float32, 0).unwrap();
    assert_eq!(r.rig.system.demand(r.streams[0], u64::MAX), Progress::Blocked);
    r.rig.system.comm_abort(r.comms[0]).unwrap();
    assert_eq!(r.rig.system.demand(r.streams[0], u64::MAX), Progress::Done);
    r.call(1, Kind::AllReduce, data[1], data[1], 1, Element::Float32, 0).unwrap();
    assert_eq!(r.rig.system.demand(r.streams[1], u64::MAX), Progress::Blocked);
    assert_eq!(r.rig.system.comm_abort(r.comms[0]), Err(Code::InvalidHandle));
}

#[test]
fn a_communicator_that_does_not_wait_is_not_called_before_it_is_ready() {
    let mut r = ranks(2, StreamMode::Lazy);
    let data: Vec<u64> = (0..2).map(|rank| r.upload(rank, &[1.0f32])).collect();
    let first = r.rig.system.comm_init(78, 0, 2, 0, true).unwrap();
    assert_eq!(r.rig.system.comm_is_ready(first), Ok(false), "a rank is missing");
    let moves = |peer, address| vec![one(peer == 1, peer, address, 4)];
    assert_eq!(r.rig.system.exchange(first, r.streams[0], moves(1, data[0])), Err(Code::InvalidValue));
    assert_eq!(r.rig.system.comm_init(78, 1, 2, 0, true), Err(Code::NotSupported), "the device of another rank");
    let second = r.rig.system.comm_init(78, 1, 2, 1, true).unwrap();
    assert_eq!(r.rig.system.comm_is_ready(first), Ok(true));
    r.rig.system.exchange(first, r.streams[0], moves(1, data[0])).unwrap();
    assert_eq!(r.rig.system.exchange(first, r.streams[0], moves(1, data[0])), Err(Code::InvalidValue), "not asked");
    assert_eq!((r.rig.system.comm_is_ready(first), r.rig.system.comm_is_ready(first)), (Ok(false), Ok(true)));
    r.rig.system.exchange(second, r.streams[1], moves(0, data[1])).unwrap();
    assert_eq!(r.rig.system.demand(r.streams[1], u64::MAX), Progress::Done);
}
