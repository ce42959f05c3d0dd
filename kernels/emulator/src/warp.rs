//! One warp: 32 lanes in lockstep, with divergence.
//!
//! Lanes that took different ways form groups. The group with the smallest pc always moves first, which brings
//! structured code together again where its ways meet. An instruction that wants lanes which are elsewhere (a shuffle,
//! a barrier) parks its group until they come; if none can move any more, that is a fault.

use crate::alu;
use crate::lanes::{FULL, LANES, Lanes, lanes_of};
use crate::machine::Machine;
use crate::memory::Bytes;
use crate::program::*;
use crate::result::{Code, Fault};

/// Lanes that wait at a pc.
#[derive(Debug, Clone, Copy)]
struct Group {
    pc: u32,
    mask: u32,
    /// Waits for other lanes to come to the same pc.
    parked: bool,
}

/// A copy from global to shared memory that a lane has started.
#[derive(Debug, Clone, Copy)]
pub struct Copy {
    pub lane: u8,
    /// Which of the lane's groups it belongs to, from 0; the open group is the number of committed ones.
    pub group: u32,
    pub to: u64,
    pub from: u64,
    pub size: u8,
    /// Bytes really read; the rest is zero.
    pub source_size: u8,
}

/// A warp and all it owns.
#[derive(Debug)]
pub struct Warp {
    /// Its number in the block.
    pub id: usize,
    /// Registers.
    pub lanes: Lanes,
    /// Local memory of all lanes: lane `l` owns `l · local_bytes ..`.
    pub local: Bytes,
    /// Copies on their way.
    pub copies: Vec<Copy>,
    /// Groups each lane has committed.
    pub committed: [u32; LANES],
    pub pc: u32,
    active: u32,
    /// Lanes it started with.
    pub born: u32,
    /// Lanes that have not exited.
    pub live: u32,
    waiting: Vec<Group>,
    /// Smallest pc among waiting groups that are not parked.
    next_pc: u32,
}

/// Why a warp stopped.
#[derive(Debug, Clone, Copy)]
pub enum Stop {
    /// It is at the barrier at its pc, which has been passed over already.
    Barrier(BarrierCall),
    /// All lanes have exited.
    Exit,
}

/// A warp's call of a barrier.
#[derive(Debug, Clone, Copy)]
pub struct BarrierCall {
    pub what: Barrier,
    pub id: u32,
    /// Threads expected; `None` for all.
    pub count: Option<u32>,
    /// Where the result of a reduction goes.
    pub d: Option<Reg>,
    /// Lanes whose predicate holds, and all that take part.
    pub votes: u32,
    pub mask: u32,
    pub line: u32,
}

impl Warp {
    /// A warp with poisoned registers.
    pub fn new(id: usize, kernel: &Kernel) -> Warp {
        Warp {
            id,
            lanes: Lanes::new(kernel),
            local: Bytes::poisoned(kernel.local_bytes * LANES),
            copies: Vec::new(),
            committed: [0; LANES],
            pc: 0,
            active: 0,
            born: 0,
            live: 0,
            waiting: Vec::new(),
            next_pc: u32::MAX,
        }
    }

    /// Back to the first instruction with these lanes.
    pub fn start(&mut self, live: u32) {
        self.local.poison();
        self.copies.clear();
        self.committed = [0; LANES];
        self.pc = 0;
        self.active = live;
        self.born = live;
        self.live = live;
        self.waiting.clear();
        self.next_pc = u32::MAX;
    }

    /// Runs until a barrier or the end.
    pub fn run(&mut self, machine: &mut Machine) -> Result<Stop, Fault> {
        let kernel = machine.kernel;
        loop {
            if self.pc >= self.next_pc || self.active == 0 {
                if self.live == 0 {
                    return self.finish(machine).map(|()| Stop::Exit);
                }
                self.regroup(machine)?;
            }
            let instr = &kernel.code[self.pc as usize];
            machine.step(self, instr.line, self.active != self.live)?;
            let mask = match instr.guard {
                Some(guard) => self.active & self.lanes.pred(guard),
                None => self.active,
            };
            if mask == 0 || alu::execute(&mut self.lanes, mask, &instr.op) {
                if mask != 0 && matches!(instr.op, Op::Mma { .. }) {
                    machine.check_whole_warp(self, mask, instr)?;
                    machine.counters.mma += 1;
                }
                self.pc += 1;
                continue;
            }
            match &instr.op {
                Op::Bra { target } => self.branch(mask, |_, _| *target),
                Op::Brx { index, targets } => {
                    let index = self.lanes.word(*index);
                    if let Some(lane) = lanes_of(mask).find(|&l| index[l] as usize >= targets.len()) {
                        return Err(machine.fault(
                            Code::LaunchFailed,
                            self,
                            lane,
                            instr.line,
                            "a jump past the end of its table",
                        ));
                    }
                    self.branch(mask, |_, lane| targets[index[lane] as usize]);
                }
                Op::Exit => {
                    self.live &= !mask;
                    self.active &= !mask;
                    self.pc += 1;
                }
                Op::Bar { what, d, id, count, a } => {
                    if self.gather(mask, self.born) {
                        let lane = mask.trailing_zeros() as usize;
                        let call = BarrierCall {
                            what: *what,
                            id: self.lanes.word(*id)[lane],
                            count: count.map(|c| self.lanes.word(c)[lane]),
                            d: *d,
                            votes: a.map_or(0, |a| self.lanes.pred(a) & mask),
                            mask,
                            line: instr.line,
                        };
                        self.pc += 1;
                        return Ok(Stop::Barrier(call));
                    }
                }
                Op::Shfl { members, .. }
                | Op::Vote { members, .. }
                | Op::Redux { members, .. }
                | Op::Match { members, .. }
                | Op::WarpSync { members } => {
                    let members = machine.members(self, mask, *members, instr.line)?;
                    if self.gather(mask, members) {
                        crate::cross::execute(&mut self.lanes, mask, &instr.op);
                        if matches!(instr.op, Op::WarpSync { .. }) {
                            machine.shared_race.sync_warp(self.id);
                        }
                        self.pc += 1;
                    }
                }
                Op::ActiveMask { d } => {
                    self.lanes.put_word(*d, mask, &[mask; LANES]);
                    self.pc += 1;
                }
                Op::Fence => self.pc += 1,
                Op::Clock { d } => {
                    let now = machine.steps();
                    self.lanes.put(*d, mask, &[now; LANES]);
                    self.pc += 1;
                }
                Op::Trap => return Err(machine.fault(Code::LaunchFailed, self, lane_of(mask), instr.line, "trap")),
                Op::Assert => {
                    return Err(machine.fault(
                        Code::Assert,
                        self,
                        lane_of(mask),
                        instr.line,
                        "an assertion of the kernel failed",
                    ));
                }
                _ => {
                    machine.access(self, mask, instr)?;
                    self.pc += 1;
                }
            }
        }
    }

    /// Lanes of `mask` jump, the rest of the active ones falls through.
    fn branch(&mut self, mask: u32, target: impl Fn(&Self, usize) -> u32) {
        let stay = self.active & !mask;
        let mut rest = mask;
        let (mut pc, mut active) = (self.pc + 1, stay);
        while rest != 0 {
            let to = target(self, rest.trailing_zeros() as usize);
            let same = lanes_of(rest).filter(|&l| target(self, l) == to).fold(0, |m, l| m | 1 << l);
            rest &= !same;
            if active == 0 {
                (pc, active) = (to, same);
            } else if to == pc {
                active |= same;
            } else {
                self.waiting.push(Group { pc: to, mask: same, parked: false });
                self.next_pc = self.next_pc.min(to);
            }
        }
        if pc <= self.pc && !self.waiting.is_empty() {
            self.next_pc = 0; // going back may lead past a parked group again: look at all of them
        }
        self.pc = pc;
        self.active = active;
    }

    /// Whether all wanted lanes are here. If not, this group parks.
    fn gather(&mut self, mask: u32, wanted: u32) -> bool {
        if wanted & !mask == 0 {
            return true;
        }
        self.waiting.push(Group { pc: self.pc, mask: self.active, parked: true });
        self.active = 0;
        false
    }

    /// Puts the current group among the others, joins those that stand together, and takes the one with the smallest
    /// pc.
    fn regroup(&mut self, machine: &Machine) -> Result<(), Fault> {
        if self.active != 0 {
            self.waiting.push(Group { pc: self.pc, mask: self.active, parked: false });
        }
        self.waiting.sort_unstable_by_key(|g| g.pc);
        self.waiting.dedup_by(|next, first| {
            let same = next.pc == first.pc;
            if same {
                first.mask |= next.mask;
                first.parked = false; // somebody came: look again
            }
            same
        });
        let Some(at) = self.waiting.iter().position(|g| !g.parked) else {
            let group = self.waiting[0];
            let line = machine.kernel.code[group.pc as usize].line;
            let what = format!(
                "lanes {:#010x} wait here for others of {:#010x} that never come (they went another way, or exited)",
                group.mask, self.born
            );
            return Err(machine.fault(Code::LaunchFailed, self, lane_of(group.mask), line, &what));
        };
        let group = self.waiting.remove(at);
        self.pc = group.pc;
        self.active = group.mask;
        self.next_pc = self.waiting.iter().filter(|g| !g.parked).map(|g| g.pc).min().unwrap_or(u32::MAX);
        // A parked group ahead must be joined when this one reaches it.
        self.next_pc =
            self.waiting.iter().filter(|g| g.parked && g.pc > self.pc).map(|g| g.pc).fold(self.next_pc, u32::min);
        Ok(())
    }

    /// Copies that nobody waited for arrive now; nobody can tell.
    fn finish(&mut self, machine: &mut Machine) -> Result<(), Fault> {
        machine.deliver(self, FULL, 0, true, 0)
    }
}

fn lane_of(mask: u32) -> usize {
    mask.trailing_zeros() as usize
}
