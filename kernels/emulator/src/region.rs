//! The checks of every access: bounds, alignment, whether bytes read were ever written, races.
//!
//! Addresses of a warp mostly form one of two patterns, all the same or side by side; both are recognised without a
//! branch per lane and checked as one range. Part of `Machine`, used by `access` and `copies`.

use crate::counters::Counters;
use crate::lanes::{FULL, LANES, Long, lanes_of};
use crate::machine::Machine;
use crate::memory::{Allocation, Bytes};
use crate::program::{LOCAL_WINDOW, SHARED_WINDOW, Space, WINDOW};
use crate::race::{By, Clash, Conflict, LaunchTags, SharedRace, Touch};
use crate::result::{Code, Fault};
use crate::warp::Warp;

/// Who does what: carried through the checks for their reports.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub line: u32,
    /// Bytes of each lane.
    pub width: usize,
    /// What the address must be a multiple of; a power of two.
    pub align: usize,
    pub touch: Touch,
    /// The lanes together use what each of them fetches (`ldmatrix`).
    pub together: bool,
}

impl Access {
    pub fn new(line: u32, width: usize, touch: Touch) -> Access {
        Access { line, width, align: width, touch, together: false }
    }
}

/// What the offsets of the lanes have in common.
struct Survey {
    /// Some lane reaches past the end.
    over: bool,
    pattern: Pattern,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// All lanes at the same place.
    Same,
    /// All 32 lanes, side by side, in order.
    Row,
    Scattered,
}

/// `last` is the highest offset a lane may have. Only bit operations and subtractions, so that this becomes vector
/// code.
fn survey(at: &Long, mask: u32, width: usize, last: u64) -> Survey {
    let first = at[mask.trailing_zeros() as usize];
    let (mut over, mut differ, mut ragged) = (0u64, 0u64, 0u64);
    if mask == FULL {
        for (lane, &here) in at.iter().enumerate() {
            over |= last.wrapping_sub(here) | here;
            differ |= here ^ first;
            ragged |= here ^ first.wrapping_add((lane * width) as u64);
        }
    } else {
        ragged = 1;
        for (lane, &here) in at.iter().enumerate() {
            let on = 0u64.wrapping_sub(u64::from((mask >> lane) & 1));
            let here = (here & on) | (first & !on);
            over |= last.wrapping_sub(here) | here;
            differ |= here ^ first;
        }
    }
    let pattern = match (differ, ragged) {
        (0, _) => Pattern::Same,
        (_, 0) => Pattern::Row,
        _ => Pattern::Scattered,
    };
    Survey { over: over >> 63 != 0, pattern }
}

impl Machine<'_> {
    /// Splits lanes by the memory their generic address points into; `each_region` takes the window's base off.
    pub(crate) fn spaces(&self, space: Space, mask: u32, address: &Long) -> impl Iterator<Item = (Space, u32)> + use<> {
        let mut parts = [(space, mask), (Space::Shared, 0), (Space::Local, 0)];
        if space == Space::Generic {
            let inside = |base: u64| {
                lanes_of(mask).filter(|&l| (base..base + WINDOW).contains(&address[l])).fold(0, |m, l| m | 1 << l)
            };
            let (shared, local) = (inside(SHARED_WINDOW), inside(LOCAL_WINDOW));
            parts = [(Space::Global, mask & !shared & !local), (Space::Shared, shared), (Space::Local, local)];
        }
        parts.into_iter().filter(|(_, mask)| *mask != 0)
    }

    /// Calls `go` for each piece of memory that lanes of `mask` touch, with the lanes and their offsets in it, after
    /// all checks have passed.
    pub(crate) fn each_region(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        space: Space,
        address: &Long,
        access: Access,
        go: impl FnMut(&mut Bytes, u32, &Long),
    ) -> Result<(), Fault> {
        let low = (access.align - 1) as u64;
        if address.iter().fold(0, |all, a| all | a) & low != 0
            && let Some(lane) = lanes_of(mask).find(|&l| address[l] & low != 0)
        {
            let what = format!("{} of {} bytes at {:#x}: misaligned", verb(access.touch), access.width, address[lane]);
            return Err(self.fault(Code::MisalignedAddress, warp, lane, access.line, &what));
        }
        match space {
            Space::Shared => self.shared_region(warp, mask, address, access, go),
            Space::Local => self.local_region(warp, mask, address, access, go),
            _ => self.global_regions(warp, mask, address, access, go),
        }
    }

    fn global_regions(
        &mut self,
        warp: &Warp,
        mask: u32,
        address: &Long,
        access: Access,
        mut go: impl FnMut(&mut Bytes, u32, &Long),
    ) -> Result<(), Fault> {
        if self.count {
            let load = access.touch == Touch::Read;
            let requests = if load { &mut self.counters.global_load } else { &mut self.counters.global_store };
            Counters::count_global(requests, address, mask, access.width);
        }
        let owner = Owner { launch: self.tags, tag: self.tag(), warp: warp.id, order: &self.shared_race };
        let owner = self.config.check_global.then_some(&owner);
        let check_written = self.config.check_written;
        // Mostly one turn: all lanes are in one allocation.
        let mut rest = mask;
        while rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let region = match self.memory.find(address[first]) {
                Some(region) if address[first] + access.width as u64 <= region.end() => region,
                _ => return Err(self.out_of_bounds(warp, first, address[first], access)),
            };
            let base = region.base;
            let last = region.bytes.data.len() as u64 - access.width as u64;
            let at = address.map(|a| a.wrapping_sub(base));
            let mut found = survey(&at, rest, access.width, last);
            let mut inside = rest;
            if found.over {
                inside = lanes_of(rest).filter(|&l| at[l] <= last).fold(0, |m, l| m | 1 << l);
                found.pattern = Pattern::Scattered;
            }
            if let Err((lane, problem)) = check_global(region, inside, &at, found.pattern, access, check_written, owner)
            {
                let what = self.story(address[lane], access, &problem);
                return Err(self.fault(Code::LaunchFailed, warp, lane, access.line, &what));
            }
            go(&mut region.bytes, inside, &at);
            rest &= !inside;
        }
        Ok(())
    }

    pub(crate) fn out_of_bounds(&self, warp: &Warp, lane: usize, address: u64, access: Access) -> Fault {
        let place = self.memory.describe(address, access.width);
        self.fault(Code::IllegalAddress, warp, lane, access.line, &format!("{} of {place}", verb(access.touch)))
    }

    fn story(&self, address: u64, access: Access, problem: &Problem) -> String {
        let place = self.memory.describe(address, access.width);
        let verb = verb(access.touch);
        match problem {
            Problem::NeverWritten => format!("{verb} of {place}, which was never written"),
            Problem::Race(Clash::Blocks) => {
                format!("{verb} of {place}, which several blocks of this launch read: a race between blocks")
            }
            Problem::Race(Clash::Block(other)) => {
                let number = other - self.tags.first;
                format!("{verb} of {place}, which block number {number} of this launch touched: a race between blocks")
            }
            Problem::Race(Clash::Warp(other)) => {
                format!("{verb} of {place} races with warp {other} of the same block: no barrier lies between")
            }
        }
    }

    fn shared_region(
        &mut self,
        warp: &Warp,
        mask: u32,
        address: &Long,
        access: Access,
        mut go: impl FnMut(&mut Bytes, u32, &Long),
    ) -> Result<(), Fault> {
        let (at, pattern) = self.shared_offsets(warp, mask, address, access)?;
        if self.count && !access.together {
            let load = access.touch == Touch::Read;
            let requests = if load { &mut self.counters.shared_load } else { &mut self.counters.shared_store };
            Counters::count_shared(requests, address, mask, access.width);
        }
        let first = mask.trailing_zeros() as usize;
        let (checked, len) = match pattern {
            _ if access.touch == Touch::Atomic => (mask, access.width),
            Pattern::Same => (1 << first, access.width),
            Pattern::Row => (1, access.width * LANES),
            Pattern::Scattered => (mask, access.width),
        };
        for lane in lanes_of(checked) {
            let by = match pattern {
                _ if access.width < 4 => By::Unknown,
                _ if access.together => By::Many,
                Pattern::Row if checked != mask => By::Row(access.width / 4),
                // Lanes that store to one word at once store the same, or do not care.
                Pattern::Same if checked != mask && access.touch == Touch::Write => By::Unknown,
                Pattern::Same if checked != mask => By::Many,
                _ => By::Lane(lane),
            };
            let start = at[lane] as usize;
            if access.touch != Touch::Write && self.config.check_written && !self.shared.is_written(start, len) {
                return Err(self.shared_never_written(warp, mask, &at, access));
            }
            if self.config.check_shared
                && let Err(conflict) = self.shared_race.touch(warp.id, start, len, access.touch, by)
            {
                return Err(self.shared_conflict(warp, lane, start, access, &conflict));
            }
            if access.touch != Touch::Read {
                self.shared.mark(start, len);
            }
        }
        go(&mut self.shared, mask, &at);
        Ok(())
    }

    /// Offsets in shared memory, inside its bounds in all lanes of `mask`.
    fn shared_offsets(&self, warp: &Warp, mask: u32, address: &Long, access: Access) -> Result<(Long, Pattern), Fault> {
        let len = self.shared.data.len() as u64;
        // Generic addresses carry the window's base; plain ones are below it.
        let generic = address[mask.trailing_zeros() as usize] >= SHARED_WINDOW;
        let at = if generic { address.map(|a| a.wrapping_sub(SHARED_WINDOW)) } else { *address };
        let found = survey(&at, mask, access.width, len.wrapping_sub(access.width as u64));
        if found.over || access.width as u64 > len {
            let lane = lanes_of(mask).find(|&l| at[l].saturating_add(access.width as u64) > len).unwrap_or(0);
            let what = format!(
                "{} of {} bytes of shared memory at {:#x}, of {len} bytes",
                verb(access.touch),
                access.width,
                at[lane]
            );
            return Err(self.fault(Code::IllegalAddress, warp, lane, access.line, &what));
        }
        Ok((at, found.pattern))
    }

    /// As `shared_offsets`, with the alignment: for the target of an asynchronous copy, which is written later.
    pub(crate) fn copy_targets(&self, warp: &Warp, mask: u32, to: &Long, access: Access) -> Result<Long, Fault> {
        if let Some(lane) = lanes_of(mask).find(|&l| !to[l].is_multiple_of(access.align as u64)) {
            return Err(self.fault(
                Code::MisalignedAddress,
                warp,
                lane,
                access.line,
                "cp.async to a misaligned address",
            ));
        }
        Ok(self.shared_offsets(warp, mask, to, access)?.0)
    }

    /// The story of a read of unwritten shared memory. A copy that has not arrived explains it better.
    fn shared_never_written(&mut self, warp: &Warp, mask: u32, at: &Long, access: Access) -> Fault {
        let unwritten = |l: &usize| !self.shared.is_written(at[*l] as usize, access.width);
        let lane = lanes_of(mask).find(unwritten).unwrap_or(0);
        let start = at[lane] as usize;
        if self.config.check_shared
            && let Err(conflict @ Conflict::Copy(_)) =
                self.shared_race.touch(warp.id, start, access.width, access.touch, By::Unknown)
        {
            return self.shared_conflict(warp, lane, start, access, &conflict);
        }
        let what = format!("{} of shared memory at {start:#x}, which was never written", verb(access.touch));
        self.fault(Code::LaunchFailed, warp, lane, access.line, &what)
    }

    pub(crate) fn shared_conflict(
        &self,
        warp: &Warp,
        lane: usize,
        at: usize,
        access: Access,
        conflict: &Conflict,
    ) -> Fault {
        let what = format!("{} of shared memory at {at:#x}", verb(access.touch));
        let what = match conflict {
            Conflict::Warp(other) => format!("{what} races with warp {other}: no barrier lies between"),
            Conflict::Lane => format!("{what} races with another lane of its warp: no __syncwarp lies between"),
            Conflict::Copy(other) => format!("{what}, where a copy of warp {other} has not arrived"),
        };
        self.fault(Code::LaunchFailed, warp, lane, access.line, &what)
    }

    fn local_region(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        address: &Long,
        access: Access,
        mut go: impl FnMut(&mut Bytes, u32, &Long),
    ) -> Result<(), Fault> {
        self.counters.local += 1;
        let size = self.kernel.local_bytes as u64;
        let mut at = [0; LANES];
        for lane in lanes_of(mask) {
            let offset = if address[lane] >= LOCAL_WINDOW { address[lane] - LOCAL_WINDOW } else { address[lane] };
            if offset.saturating_add(access.width as u64) > size {
                let what = format!("{} of local memory at {offset:#x}, of {size} bytes", verb(access.touch));
                return Err(self.fault(Code::IllegalAddress, warp, lane, access.line, &what));
            }
            at[lane] = lane as u64 * size + offset;
            let start = at[lane] as usize;
            if access.touch == Touch::Read && self.config.check_written && !warp.local.is_written(start, access.width) {
                let what = format!("read of local memory at {offset:#x}, which was never written");
                return Err(self.fault(Code::LaunchFailed, warp, lane, access.line, &what));
            }
            if access.touch != Touch::Read {
                warp.local.mark(start, access.width);
            }
        }
        go(&mut warp.local, mask, &at);
        Ok(())
    }
}

enum Problem {
    NeverWritten,
    Race(Clash),
}

/// Who touches global memory, for the race check.
struct Owner<'a> {
    launch: LaunchTags,
    tag: u32,
    warp: usize,
    order: &'a SharedRace,
}

/// The checks of global memory inside one allocation; notes what is written.
fn check_global(
    region: &mut Allocation,
    mask: u32,
    at: &Long,
    pattern: Pattern,
    access: Access,
    check_written: bool,
    owner: Option<&Owner>,
) -> Result<(), (usize, Problem)> {
    let size = region.bytes.data.len();
    let first = mask.trailing_zeros() as usize;
    let (checked, len) = match pattern {
        Pattern::Same => (1 << first, access.width),
        Pattern::Row => (1, access.width * LANES),
        Pattern::Scattered => (mask, access.width),
    };
    for lane in lanes_of(checked) {
        let start = at[lane] as usize;
        if access.touch != Touch::Write && check_written && !region.bytes.is_written(start, len) {
            let unwritten = |l: &usize| !region.bytes.is_written(at[*l] as usize, access.width);
            return Err((lanes_of(mask).find(unwritten).unwrap_or(lane), Problem::NeverWritten));
        }
        if let Some(o) = owner
            && access.width >= 4
            && let Err(clash) = region.tags.touch(size, o.launch, o.tag, o.warp, o.order, start, len, access.touch)
        {
            return Err((lane, Problem::Race(clash)));
        }
        if access.touch != Touch::Read {
            region.bytes.mark(start, len);
        }
    }
    Ok(())
}

pub(crate) fn verb(touch: Touch) -> &'static str {
    match touch {
        Touch::Read => "read",
        Touch::Write => "write",
        Touch::Atomic => "atomic access",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_told_apart_and_ends_are_exact() {
        let row: Long = std::array::from_fn(|l| 64 + 4 * l as u64);
        let of = |at: &Long, mask, last| {
            let found = survey(at, mask, 4, last);
            (found.over, found.pattern)
        };
        assert!(of(&row, FULL, 64 + 124) == (false, Pattern::Row));
        assert!(of(&row, FULL, 64 + 123).0, "the last lane is past the end");
        assert!(!of(&row, FULL >> 1, 64 + 123).0, "but it is switched off");
        assert!(of(&row, FULL >> 1, 1000).1 == Pattern::Scattered);
        assert!(of(&[8; LANES], 0b1010, 8) == (false, Pattern::Same));
        let mut wild = row;
        wild[7] = u64::MAX - 3;
        assert!(of(&wild, FULL, 1000).0, "below the start wraps around");
        assert!(!of(&wild, !(1 << 7), 1000).0);
    }
}
