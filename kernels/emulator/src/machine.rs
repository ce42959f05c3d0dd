//! What the warps of a block share: memories, counters, checks, and the way to report a fault.

use crate::config::Config;
use crate::counters::Counters;
use crate::lanes::{FULL, lanes_of};
use crate::memory::{Bytes, DeviceMemory};
use crate::program::{Instr, Kernel, Slot};
use crate::race::{LaunchTags, SharedRace};
use crate::result::{Code, Fault};
use crate::warp::Warp;

/// The sizes of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
}

impl Shape {
    /// Threads of a block.
    pub fn threads(&self) -> usize {
        self.block.iter().map(|&n| n as usize).product()
    }

    /// Blocks of the grid.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }
}

/// The surroundings of the block that runs.
pub(crate) struct Machine<'a> {
    pub kernel: &'a Kernel,
    pub config: &'a Config,
    pub memory: &'a mut DeviceMemory,
    /// The parameter block.
    pub params: &'a [u8],
    pub shape: Shape,
    pub counters: &'a mut Counters,
    /// Shared memory of the block.
    pub shared: Bytes,
    pub shared_race: SharedRace,
    pub tags: LaunchTags,
    /// The running block, and its number in the grid.
    pub block: [u32; 3],
    pub block_number: u32,
    /// Whether requests are counted.
    pub count: bool,
    pub(crate) steps: u64,
}

impl Machine<'_> {
    /// Before each instruction.
    #[inline(always)]
    pub fn step(&mut self, warp: &Warp, line: u32, divergent: bool) -> Result<(), Fault> {
        self.steps += 1;
        self.counters.divergent += u64::from(divergent);
        if self.steps > self.config.max_steps {
            let what = format!("{} instructions without an end", self.config.max_steps);
            return Err(self.fault(Code::LaunchTimeout, warp, 0, line, &what));
        }
        Ok(())
    }

    /// Instructions so far: what `%clock` reads.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The tag of the running block in the race check of global memory.
    pub fn tag(&self) -> u32 {
        self.tags.first + self.block_number
    }

    /// A fault that names kernel, line, block and thread.
    pub fn fault(&self, code: Code, warp: &Warp, lane: usize, line: u32, what: &str) -> Fault {
        let thread = (warp.id * 32 + lane) as u32;
        let [x, y, _] = self.shape.block;
        let place = (thread % x, thread / x % y, thread / (x * y));
        let block = (self.block[0], self.block[1], self.block[2]);
        Fault::new(
            code,
            format!("kernel `{}`, PTX line {line}, block {block:?}, thread {place:?}: {what}", self.kernel.name),
        )
    }

    /// The members of a warp-wide instruction: the same for all lanes, and all of these among them.
    pub fn members(&self, warp: &Warp, mask: u32, slot: Slot, line: u32) -> Result<u32, Fault> {
        let word = warp.lanes.word(slot);
        let first = word[mask.trailing_zeros() as usize];
        if let Some(lane) = lanes_of(mask).find(|&l| word[l] != first) {
            return Err(self.fault(Code::LaunchFailed, warp, lane, line, "lanes name different members"));
        }
        if mask & !first != 0 {
            let lane = (mask & !first).trailing_zeros() as usize;
            return Err(self.fault(
                Code::LaunchFailed,
                warp,
                lane,
                line,
                "a lane that is not among the members it names",
            ));
        }
        Ok(first & warp.born)
    }

    /// `mma` and `ldmatrix` want all 32 lanes.
    pub fn check_whole_warp(&self, warp: &Warp, mask: u32, instr: &Instr) -> Result<(), Fault> {
        if mask == FULL {
            return Ok(());
        }
        let lane = (!mask).trailing_zeros() as usize;
        Err(self.fault(Code::LaunchFailed, warp, lane, instr.line, "this instruction wants all 32 lanes of the warp"))
    }
}
