//! A launch: blocks one after another, the warps of a block in turns from barrier to barrier.

use crate::config::Config;
use crate::counters::Counters;
use crate::lanes::{LANES, Word};
use crate::machine::{Machine, Shape};
use crate::memory::{Bytes, DeviceMemory};
use crate::program::*;
use crate::race::{LaunchTags, SharedRace};
use crate::result::{Code, Fault};
use crate::warp::{BarrierCall, Stop, Warp};

/// Where a warp stands.
enum State {
    Ready,
    Waits(BarrierCall),
    Done,
}

/// One of the 16 barriers of a block.
#[derive(Default, Clone)]
struct BarrierState {
    /// Threads that arrived.
    arrived: u32,
    /// Threads for which the predicate of a reduction holds.
    votes: u32,
    /// What those who arrived know of each other's accesses.
    known: Vec<u32>,
}

/// Runs a kernel to its end, or to its first fault.
#[allow(clippy::too_many_arguments)]
pub fn launch(
    kernel: &Kernel,
    config: &Config,
    memory: &mut DeviceMemory,
    params: &[u8],
    shape: Shape,
    counters: &mut Counters,
    tags: LaunchTags,
) -> Result<(), Fault> {
    let num_warps = shape.threads().div_ceil(LANES);
    let shared_bytes = kernel.shared_static + shape.shared as usize;
    let blocks = shape.blocks();
    counters.launches += 1;
    counters.blocks += blocks;
    let mut machine = Machine {
        kernel,
        config,
        memory,
        params,
        shape,
        counters,
        shared: Bytes::poisoned(shared_bytes),
        shared_race: SharedRace::new(shared_bytes, num_warps, config.check_lanes),
        tags,
        block: [0; 3],
        block_number: 0,
        count: config.counters.is_some(),
        steps: 0,
    };
    let mut warps: Vec<Warp> = (0..num_warps).map(|id| Warp::new(id, kernel)).collect();
    let result = (0..blocks).try_for_each(|n| {
        let n = if config.reverse { blocks - 1 - n } else { n };
        let [x, y, _] = shape.grid.map(u64::from);
        machine.block_number = n as u32;
        machine.block = [n % x, n / x % y, n / (x * y)].map(|v| v as u32);
        run_block(&mut machine, &mut warps)
    });
    machine.counters.instructions += machine.steps;
    result
}

fn run_block(machine: &mut Machine, warps: &mut [Warp]) -> Result<(), Fault> {
    machine.shared.poison();
    machine.shared_race.start_block();
    let threads = machine.shape.threads();
    for warp in warps.iter_mut() {
        let here = (threads - warp.id * LANES).min(LANES);
        warp.start(u32::MAX >> (LANES - here));
        fill_specials(machine, warp);
    }
    let mut states: Vec<State> = warps.iter().map(|_| State::Ready).collect();
    let mut barriers = vec![BarrierState::default(); 16];
    loop {
        let mut moved = false;
        for turn in 0..warps.len() {
            let id = if machine.config.reverse { warps.len() - 1 - turn } else { turn };
            while matches!(states[id], State::Ready) {
                moved = true;
                states[id] = State::Done;
                if let Stop::Barrier(call) = warps[id].run(machine)? {
                    states[id] = arrive(machine, &warps[id], &mut barriers, call)?;
                    open(machine, warps, &mut states, &mut barriers[call.id as usize], call);
                }
            }
        }
        if states.iter().all(|s| matches!(s, State::Done)) {
            return Ok(());
        }
        if !moved && !states.iter().any(|s| matches!(s, State::Ready)) {
            return Err(stuck(machine, warps, &states, &barriers));
        }
    }
}

fn arrive(
    machine: &mut Machine,
    warp: &Warp,
    barriers: &mut [BarrierState],
    call: BarrierCall,
) -> Result<State, Fault> {
    machine.counters.barriers += 1;
    let problem = if call.id >= 16 {
        Some(format!("barrier {}: there are 16", call.id))
    } else if call.count.is_some_and(|c| c == 0 || c % 32 != 0) {
        Some(format!("a barrier for {:?} threads: must be a multiple of 32", call.count))
    } else {
        None
    };
    if let Some(what) = problem {
        return Err(machine.fault(Code::LaunchFailed, warp, 0, call.line, &what));
    }
    let barrier = &mut barriers[call.id as usize];
    barrier.arrived += LANES as u32;
    barrier.votes += call.votes.count_ones();
    machine.shared_race.arrive(warp.id, &mut barrier.known);
    Ok(if call.what == Barrier::Arrive { State::Ready } else { State::Waits(call) })
}

/// Opens the barrier of this call if enough threads have arrived, be it that none of them waits.
fn open(
    machine: &mut Machine,
    warps: &mut [Warp],
    states: &mut [State],
    barrier: &mut BarrierState,
    last: BarrierCall,
) {
    let all = (warps.len() * LANES) as u32;
    if barrier.arrived < last.count.unwrap_or(all) {
        return;
    }
    let threads = if last.count.is_some() { barrier.arrived } else { machine.shape.threads() as u32 };
    for (warp, state) in warps.iter_mut().zip(states.iter_mut()) {
        let State::Waits(call) = *state else { continue };
        if call.id != last.id {
            continue;
        }
        let result = match call.what {
            Barrier::Popc => u64::from(barrier.votes),
            Barrier::And => u64::from(barrier.votes == threads),
            _ => u64::from(barrier.votes > 0),
        };
        if let Some(d) = call.d {
            warp.lanes.put(d, call.mask, &[result; LANES]);
        }
        machine.shared_race.pass(warp.id, &barrier.known);
        *state = State::Ready;
    }
    *barrier = BarrierState::default();
}

fn stuck(machine: &Machine, warps: &[Warp], states: &[State], barriers: &[BarrierState]) -> Fault {
    let ended = states.iter().filter(|s| matches!(s, State::Done)).count();
    for (warp, state) in warps.iter().zip(states) {
        if let State::Waits(call) = state {
            let what = format!(
                "barrier {} never opens: {} of {} threads came, and {ended} warps have ended without it",
                call.id,
                barriers[call.id as usize].arrived,
                call.count.unwrap_or(machine.shape.threads() as u32),
            );
            return machine.fault(Code::LaunchFailed, warp, 0, call.line, &what);
        }
    }
    Fault::new(Code::LaunchFailed, format!("kernel `{}` is stuck", machine.kernel.name))
}

/// Writes special registers into their slots.
fn fill_specials(machine: &Machine, warp: &mut Warp) {
    let Shape { grid, block, shared } = machine.shape;
    let thread: Word = std::array::from_fn(|lane| (warp.id * LANES + lane) as u32);
    let lane: Word = std::array::from_fn(|lane| lane as u32);
    for &(slot, special) in &machine.kernel.specials {
        let value: Word = match special {
            Special::TidX => thread.map(|t| t % block[0]),
            Special::TidY => thread.map(|t| t / block[0] % block[1]),
            Special::TidZ => thread.map(|t| t / (block[0] * block[1])),
            Special::NtidX => [block[0]; LANES],
            Special::NtidY => [block[1]; LANES],
            Special::NtidZ => [block[2]; LANES],
            Special::CtaidX => [machine.block[0]; LANES],
            Special::CtaidY => [machine.block[1]; LANES],
            Special::CtaidZ => [machine.block[2]; LANES],
            Special::NctaidX => [grid[0]; LANES],
            Special::NctaidY => [grid[1]; LANES],
            Special::NctaidZ => [grid[2]; LANES],
            Special::LaneId => lane,
            Special::WarpId => [warp.id as u32; LANES],
            Special::NumWarps => [machine.shape.threads().div_ceil(LANES) as u32; LANES],
            Special::LaneMaskEq => lane.map(|l| 1 << l),
            Special::LaneMaskLt => lane.map(|l| (1 << l) - 1),
            Special::LaneMaskLe => lane.map(|l| u32::MAX >> (31 - l)),
            Special::LaneMaskGt => lane.map(|l| !(u32::MAX >> (31 - l))),
            Special::LaneMaskGe => lane.map(|l| u32::MAX << l),
            Special::DynamicShared => [shared; LANES],
            Special::TotalShared => [shared + machine.kernel.shared_static as u32; LANES],
            Special::Zero => [0; LANES],
            Special::One => [1; LANES],
            Special::WarpSize => [32; LANES],
        };
        warp.lanes.words[slot as usize] = value;
    }
}
