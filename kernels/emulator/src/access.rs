//! Loads, stores and what else touches memory, with all their checks.
//!
//! Every access of every lane is checked for bounds, alignment, whether the bytes read were ever written, and races. The
//! pattern that matters most, 32 lanes side by side in one allocation, is checked as one range.

use crate::counters::{Counters, wavefronts};
use crate::lanes::{FULL, LANES, Long, Word, lanes_of};
use crate::machine::Machine;
use crate::memory::{Allocation, Bytes};
use crate::program::*;
use crate::race::{Conflict, Touch};
use crate::result::{Code, Fault};
use crate::warp::{Copy, Warp};

/// Who does what: carried through the checks for their reports.
#[derive(Clone, Copy)]
struct Access {
    line: u32,
    /// Bytes of each lane.
    width: usize,
    touch: Touch,
}

impl Machine<'_> {
    /// Executes an instruction that touches memory.
    pub fn access(&mut self, warp: &mut Warp, mask: u32, instr: &Instr) -> Result<(), Fault> {
        let line = instr.line;
        match instr.op {
            Op::Load { space, ty, ref d, n, at } => self.load(warp, mask, line, space, ty, &d[..n as usize], at),
            Op::Store { space, ty, ref a, n, at } => self.store(warp, mask, line, space, ty, &a[..n as usize], at),
            Op::Atomic { space, f, ty, d, at, b, c } => self.atomic(warp, mask, line, space, f, ty, d, at, [b, c]),
            Op::CopyAsync { to, from, size, source_size } => {
                self.copy_async(warp, mask, line, addresses(warp, to), addresses(warp, from), size, source_size)
            }
            Op::CopyCommit => {
                lanes_of(mask).for_each(|l| warp.committed[l] += 1);
                Ok(())
            }
            Op::CopyWait { pending } => self.deliver(warp, mask, pending, false, line),
            Op::CopyWaitAll => self.deliver(warp, mask, 0, true, line),
            Op::LoadMatrix { n, trans, d, at } => {
                self.check_whole_warp(warp, mask, instr)?;
                self.load_matrix(warp, line, n as usize, trans, d, &addresses(warp, at))
            }
            ref other => {
                Err(self.fault(Code::IllegalInstruction, warp, 0, line, &format!("{other:?} is not executed")))
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn load(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        line: u32,
        space: Space,
        ty: Type,
        d: &[Reg],
        at: Address,
    ) -> Result<(), Fault> {
        let size = ty.bytes();
        let access = Access { line, width: size * d.len(), touch: Touch::Read };
        if space == Space::Param {
            return self.load_param(warp, mask, line, ty, d, at);
        }
        let address = addresses(warp, at);
        // The pattern that most kernels live on: full warp, 32-bit registers.
        let mut words = [[0u32; LANES]; 4];
        let plain = size == 4 && d.iter().all(|r| matches!(r, Reg::Word(_)));
        let mut values = [[0u64; LANES]; 4];
        for (space, mask) in self.spaces(space, mask, &address) {
            self.each_region(warp, mask, space, &address, access, |bytes, lanes, at| {
                if plain {
                    for (k, word) in words[..d.len()].iter_mut().enumerate() {
                        read_words(&bytes.data, lanes, at, 4 * k, word);
                    }
                } else {
                    for (k, value) in values[..d.len()].iter_mut().enumerate() {
                        for lane in lanes_of(lanes) {
                            value[lane] = extend(read(&bytes.data, at[lane] + size * k, size), ty);
                        }
                    }
                }
            })?;
        }
        for (k, &reg) in d.iter().enumerate() {
            match reg {
                Reg::Word(slot) if plain => warp.lanes.put_word(slot, mask, &words[k]),
                _ => warp.lanes.put(reg, mask, &values[k]),
            }
        }
        Ok(())
    }

    fn load_param(&self, warp: &mut Warp, mask: u32, line: u32, ty: Type, d: &[Reg], at: Address) -> Result<(), Fault> {
        let address = addresses(warp, at);
        for (k, &reg) in d.iter().enumerate() {
            let mut value = [0; LANES];
            for lane in lanes_of(mask) {
                let from = address[lane] as usize + k * ty.bytes();
                if from + ty.bytes() > self.params.len() {
                    return Err(self.fault(
                        Code::IllegalAddress,
                        warp,
                        lane,
                        line,
                        "a read past the kernel's parameters",
                    ));
                }
                value[lane] = extend(read(self.params, from, ty.bytes()), ty);
            }
            warp.lanes.put(reg, mask, &value);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn store(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        line: u32,
        space: Space,
        ty: Type,
        a: &[Reg],
        at: Address,
    ) -> Result<(), Fault> {
        let size = ty.bytes();
        let address = addresses(warp, at);
        let access = Access { line, width: size * a.len(), touch: Touch::Write };
        let mut values = [[0u64; LANES]; 4];
        for (value, &reg) in values.iter_mut().zip(a) {
            *value = warp.lanes.get(reg);
        }
        for (space, mask) in self.spaces(space, mask, &address) {
            self.each_region(warp, mask, space, &address, access, |bytes, lanes, at| {
                for (k, value) in values[..a.len()].iter().enumerate() {
                    for lane in lanes_of(lanes) {
                        write(&mut bytes.data, at[lane] + size * k, size, value[lane]);
                    }
                }
            })?;
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn atomic(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        line: u32,
        space: Space,
        f: Atomic,
        ty: Type,
        d: Reg,
        at: Address,
        operands: [Reg; 2],
    ) -> Result<(), Fault> {
        let address = addresses(warp, at);
        let [b, c] = operands.map(|reg| warp.lanes.get(reg));
        let size = ty.bytes();
        let access = Access { line, width: size, touch: Touch::Atomic };
        let mut old = [0u64; LANES];
        self.counters.atomics += 1;
        for (space, mask) in self.spaces(space, mask, &address) {
            self.each_region(warp, mask, space, &address, access, |bytes, lanes, at| {
                for lane in lanes_of(lanes) {
                    old[lane] = read(&bytes.data, at[lane], size);
                    write(&mut bytes.data, at[lane], size, combine(f, ty, old[lane], b[lane], c[lane]));
                }
            })?;
        }
        warp.lanes.put(d, mask, &old);
        Ok(())
    }

    /// Splits lanes by the memory their generic address points into; `each_region` takes the window's base off.
    fn spaces(&self, space: Space, mask: u32, address: &Long) -> impl Iterator<Item = (Space, u32)> + use<> {
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

    /// Calls `go` for each piece of memory that lanes of `mask` touch, with the lanes and their offsets in it, after all
    /// checks have passed.
    fn each_region(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        space: Space,
        address: &Long,
        access: Access,
        go: impl FnMut(&mut Bytes, u32, &[usize; LANES]),
    ) -> Result<(), Fault> {
        if let Some(lane) = lanes_of(mask).find(|&l| !address[l].is_multiple_of(access.width as u64)) {
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
        mut go: impl FnMut(&mut Bytes, u32, &[usize; LANES]),
    ) -> Result<(), Fault> {
        if self.count {
            let requests = if access.touch == Touch::Read {
                &mut self.counters.global_load
            } else {
                &mut self.counters.global_store
            };
            Counters::count_global(requests, address, mask, access.width);
        }
        let (tags, tag) = (self.tags, self.tag());
        let (check_written, check_global) = (self.config.check_written, self.config.check_global);
        let mut rest = mask;
        while rest != 0 {
            let first = rest.trailing_zeros() as usize;
            let Some(region) = self.memory.find(address[first]) else {
                return Err(self.out_of_bounds(warp, first, address[first], access));
            };
            let (base, last) = (region.base, (region.end() - region.base).wrapping_sub(access.width as u64));
            if region.bytes.data.len() < access.width {
                return Err(self.out_of_bounds(warp, first, address[first], access));
            }
            let mut inside = 0u32;
            let mut at = [0usize; LANES];
            for lane in 0..LANES {
                let offset = address[lane].wrapping_sub(base);
                inside |= u32::from(offset <= last) << lane;
                at[lane] = offset as usize;
            }
            inside &= rest;
            if (inside >> first) & 1 == 0 {
                return Err(self.out_of_bounds(warp, first, address[first], access));
            }
            if let Err((lane, problem)) =
                check_global_access(region, inside, &at, access, check_written, check_global.then_some((tags, tag)))
            {
                let place = self.memory.describe(address[lane], access.width);
                let what = match problem {
                    Problem::NeverWritten => format!("{} of {place}, which was never written", verb(access.touch)),
                    Problem::OtherBlock(0) => {
                        format!("{} of {place}, which other blocks of this launch read", verb(access.touch))
                    }
                    Problem::OtherBlock(other) => format!(
                        "{} of {place}, which block number {} of this launch touched: a race between blocks",
                        verb(access.touch),
                        other - tags.first
                    ),
                };
                return Err(self.fault(Code::LaunchFailed, warp, lane, access.line, &what));
            }
            go(&mut region.bytes, inside, &at);
            rest &= !inside;
        }
        Ok(())
    }

    fn out_of_bounds(&self, warp: &Warp, lane: usize, address: u64, access: Access) -> Fault {
        let place = self.memory.describe(address, access.width);
        self.fault(Code::IllegalAddress, warp, lane, access.line, &format!("{} of {place}", verb(access.touch)))
    }

    fn shared_region(
        &mut self,
        warp: &Warp,
        mask: u32,
        address: &Long,
        access: Access,
        mut go: impl FnMut(&mut Bytes, u32, &[usize; LANES]),
    ) -> Result<(), Fault> {
        let at = self.shared_offsets(warp, mask, address, access)?;
        if self.count {
            let requests = if access.touch == Touch::Read {
                &mut self.counters.shared_load
            } else {
                &mut self.counters.shared_store
            };
            Counters::count_shared(requests, address, mask, access.width);
        }
        // Lanes that ask for the same bytes, or for bytes side by side, are checked as one.
        let first = mask.trailing_zeros() as usize;
        let (checked, len) = if access.touch == Touch::Atomic {
            (mask, access.width)
        } else if lanes_of(mask).all(|l| at[l] == at[first]) {
            (1 << first, access.width)
        } else if mask == FULL && (0..LANES).all(|l| at[l] == at[0] + l * access.width) {
            (1, access.width * LANES)
        } else {
            (mask, access.width)
        };
        for lane in lanes_of(checked) {
            if access.touch != Touch::Write && self.config.check_written && !self.shared.is_written(at[lane], len) {
                return Err(self.shared_never_written(warp, mask, &at, access));
            }
            if self.config.check_shared
                && let Err(conflict) = self.shared_race.touch(warp.id, at[lane], len, access.touch)
            {
                return Err(self.shared_conflict(warp, lane, at[lane], access, &conflict));
            }
            if access.touch != Touch::Read {
                self.shared.mark(at[lane], len);
            }
        }
        go(&mut self.shared, mask, &at);
        Ok(())
    }

    fn shared_offsets(&self, warp: &Warp, mask: u32, address: &Long, access: Access) -> Result<[usize; LANES], Fault> {
        let len = self.shared.data.len() as u64;
        let mut at = [0; LANES];
        for lane in lanes_of(mask) {
            // Generic addresses carry the window's base; plain ones are below it.
            let offset = if address[lane] >= SHARED_WINDOW { address[lane] - SHARED_WINDOW } else { address[lane] };
            if offset + access.width as u64 > len {
                let what = format!(
                    "{} of {} bytes of shared memory at {offset:#x}, of {len} bytes",
                    verb(access.touch),
                    access.width
                );
                return Err(self.fault(Code::IllegalAddress, warp, lane, access.line, &what));
            }
            at[lane] = offset as usize;
        }
        Ok(at)
    }

    /// The story of a read of unwritten shared memory. A copy that has not arrived explains it better.
    fn shared_never_written(&mut self, warp: &Warp, mask: u32, at: &[usize; LANES], access: Access) -> Fault {
        let lane = lanes_of(mask).find(|&l| !self.shared.is_written(at[l], access.width)).unwrap_or(0);
        if self.config.check_shared
            && let Err(conflict @ Conflict::Copy(_)) =
                self.shared_race.touch(warp.id, at[lane], access.width, access.touch)
        {
            return self.shared_conflict(warp, lane, at[lane], access, &conflict);
        }
        let what = format!("{} of shared memory at {:#x}, which was never written", verb(access.touch), at[lane]);
        self.fault(Code::LaunchFailed, warp, lane, access.line, &what)
    }

    fn shared_conflict(&self, warp: &Warp, lane: usize, at: usize, access: Access, conflict: &Conflict) -> Fault {
        let what = match conflict {
            Conflict::Warp(other) => {
                format!(
                    "{} of shared memory at {at:#x} races with warp {other}: no barrier lies between",
                    verb(access.touch)
                )
            }
            Conflict::Copy(other) => {
                format!(
                    "{} of shared memory at {at:#x}, where a copy of warp {other} has not arrived",
                    verb(access.touch)
                )
            }
        };
        self.fault(Code::LaunchFailed, warp, lane, access.line, &what)
    }

    fn local_region(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        address: &Long,
        access: Access,
        mut go: impl FnMut(&mut Bytes, u32, &[usize; LANES]),
    ) -> Result<(), Fault> {
        self.counters.local += 1;
        let size = self.kernel.local_bytes;
        let mut at = [0; LANES];
        for lane in lanes_of(mask) {
            let offset = if address[lane] >= LOCAL_WINDOW { address[lane] - LOCAL_WINDOW } else { address[lane] };
            if offset + access.width as u64 > size as u64 {
                let what = format!("{} of local memory at {offset:#x}, of {size} bytes", verb(access.touch));
                return Err(self.fault(Code::IllegalAddress, warp, lane, access.line, &what));
            }
            at[lane] = lane * size + offset as usize;
            if access.touch == Touch::Read
                && self.config.check_written
                && !warp.local.is_written(at[lane], access.width)
            {
                let what = format!("read of local memory at {offset:#x}, which was never written");
                return Err(self.fault(Code::LaunchFailed, warp, lane, access.line, &what));
            }
            if access.touch != Touch::Read {
                warp.local.mark(at[lane], access.width);
            }
        }
        go(&mut warp.local, mask, &at);
        Ok(())
    }

    /// Starts copies. Both ends are checked now; the bytes move when the lane waits for them.
    #[allow(clippy::too_many_arguments)]
    fn copy_async(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        line: u32,
        to: Long,
        from: Long,
        size: u8,
        source_size: Option<Slot>,
    ) -> Result<(), Fault> {
        let width = usize::from(size);
        let take = source_size.map_or([u32::from(size); LANES], |slot| warp.lanes.word(slot));
        if let Some(lane) = lanes_of(mask).find(|&l| take[l] > u32::from(size)) {
            return Err(self.fault(Code::LaunchFailed, warp, lane, line, "cp.async reads more than it writes"));
        }
        let reading = lanes_of(mask).filter(|&l| take[l] > 0).fold(0, |m, l| m | 1 << l);
        self.counters.async_copies += 1;
        if reading != 0 {
            let access = Access { line, width, touch: Touch::Read };
            self.each_region(warp, reading, Space::Global, &from, access, |_, _, _| {})?;
        }
        let access = Access { line, width, touch: Touch::Write };
        if let Some(lane) = lanes_of(mask).find(|&l| !to[l].is_multiple_of(width as u64)) {
            return Err(self.fault(Code::MisalignedAddress, warp, lane, line, "cp.async to a misaligned address"));
        }
        let at = self.shared_offsets(warp, mask, &to, access)?;
        if self.count {
            Counters::count_shared(&mut self.counters.shared_store, &to, mask, width);
        }
        for lane in lanes_of(mask) {
            if self.config.check_shared
                && let Err(conflict) = self.shared_race.copy_starts(warp.id, at[lane], width)
            {
                return Err(self.shared_conflict(warp, lane, at[lane], access, &conflict));
            }
            self.shared.unmark(at[lane], width);
            warp.copies.push(Copy {
                lane: lane as u8,
                group: warp.committed[lane],
                to: at[lane] as u64,
                from: from[lane],
                size,
                source_size: take[lane] as u8,
            });
        }
        Ok(())
    }

    /// Lets copies of the lanes arrive: all groups but the last `pending` ones, or with `all` also the open group.
    pub fn deliver(&mut self, warp: &mut Warp, mask: u32, pending: u32, all: bool, line: u32) -> Result<(), Fault> {
        let committed = warp.committed;
        let due = |copy: &Copy| {
            let lane = usize::from(copy.lane);
            (mask >> lane) & 1 == 1 && (all || copy.group + pending < committed[lane])
        };
        let (now, later): (Vec<Copy>, Vec<Copy>) = std::mem::take(&mut warp.copies).into_iter().partition(due);
        warp.copies = later;
        for copy in now {
            let (to, size, take) = (copy.to as usize, usize::from(copy.size), usize::from(copy.source_size));
            let mut bytes = [0u8; 16];
            if take > 0 {
                let Ok((region, at)) = self.memory.range(copy.from, take) else {
                    let access = Access { line, width: take, touch: Touch::Read };
                    return Err(self.out_of_bounds(warp, copy.lane.into(), copy.from, access));
                };
                bytes[..take].copy_from_slice(&region.bytes.data[at..at + take]);
            }
            self.shared.data[to..to + size].copy_from_slice(&bytes[..size]);
            self.shared.mark(to, size);
            self.shared_race.copy_ends(warp.id, to, size);
        }
        Ok(())
    }

    /// Lane `8m + r` gives the address of row `r` of matrix `m`: eight 16-bit values. Each lane gets two neighbours of each
    /// matrix: (lane/4, 2(lane%4)) and the next column, or transposed the next row.
    fn load_matrix(
        &mut self,
        warp: &mut Warp,
        line: u32,
        n: usize,
        trans: bool,
        d: [Slot; 4],
        address: &Long,
    ) -> Result<(), Fault> {
        let mask = if n == 4 { FULL } else { (1 << (8 * n)) - 1 };
        let access = Access { line, width: 16, touch: Touch::Read };
        let mut rows = [[0u16; 8]; LANES];
        let counting = std::mem::take(&mut self.count);
        self.each_region(warp, mask, Space::Shared, address, access, |bytes, lanes, at| {
            for lane in lanes_of(lanes) {
                for (k, value) in rows[lane].iter_mut().enumerate() {
                    *value = read(&bytes.data, at[lane] + 2 * k, 2) as u16;
                }
            }
        })?;
        self.count = counting;
        if counting {
            let requests = &mut self.counters.shared_load;
            requests.requests += 1;
            requests.ideal += n as u64;
            requests.cost += (0..n).map(|m| wavefronts(address[8 * m..8 * m + 8].iter().copied(), 16)).sum::<u64>();
        }
        for (m, &slot) in d[..n].iter().enumerate() {
            let matrix = &rows[8 * m..8 * m + 8];
            let word: Word = std::array::from_fn(|lane| {
                let (g, q) = (lane / 4, lane % 4);
                let (lo, hi) = if trans {
                    (matrix[2 * q][g], matrix[2 * q + 1][g])
                } else {
                    (matrix[g][2 * q], matrix[g][2 * q + 1])
                };
                u32::from(lo) | u32::from(hi) << 16
            });
            warp.lanes.put_word(slot, FULL, &word);
        }
        Ok(())
    }
}

enum Problem {
    NeverWritten,
    OtherBlock(u32),
}

/// The checks of global memory inside one allocation; notes what is written.
fn check_global_access(
    region: &mut Allocation,
    mask: u32,
    at: &[usize; LANES],
    access: Access,
    check_written: bool,
    tags: Option<(crate::race::LaunchTags, u32)>,
) -> Result<(), (usize, Problem)> {
    let (width, size) = (access.width, region.bytes.data.len());
    let side_by_side = mask == FULL && (0..LANES).all(|l| at[l] == at[0].wrapping_add(l * width));
    // One range instead of 32; if it fails, lane by lane to name the lane.
    if side_by_side && access.touch != Touch::Atomic {
        let all = width * LANES;
        let written = access.touch == Touch::Write || !check_written || region.bytes.is_written(at[0], all);
        if written {
            if let Some((launch, tag)) = tags
                && let Err(other) =
                    region.tags.touch(size, launch, tag, at[0], if width < 4 { 0 } else { all }, access.touch)
            {
                return Err((0, Problem::OtherBlock(other)));
            }
            if access.touch == Touch::Write {
                region.bytes.mark(at[0], all);
            }
            return Ok(());
        }
    }
    for lane in lanes_of(mask) {
        if access.touch != Touch::Write && check_written && !region.bytes.is_written(at[lane], width) {
            return Err((lane, Problem::NeverWritten));
        }
        if let Some((launch, tag)) = tags
            && let Err(other) = region.tags.touch(size, launch, tag, at[lane], width, access.touch)
        {
            return Err((lane, Problem::OtherBlock(other)));
        }
        if access.touch != Touch::Read {
            region.bytes.mark(at[lane], width);
        }
    }
    Ok(())
}

fn verb(touch: Touch) -> &'static str {
    match touch {
        Touch::Read => "read",
        Touch::Write => "write",
        Touch::Atomic => "atomic access",
    }
}

fn addresses(warp: &Warp, at: Address) -> Long {
    match at.base {
        Base::None => [at.offset as u64; LANES],
        Base::Word(slot) => warp.lanes.word(slot).map(|b| u64::from(b.wrapping_add(at.offset as u32))),
        Base::Long(slot) => warp.lanes.long(slot).map(|b| b.wrapping_add(at.offset as u64)),
    }
}

/// 32-bit words of the lanes, `shift` bytes behind each lane's offset.
#[inline]
fn read_words(data: &[u8], lanes: u32, at: &[usize; LANES], shift: usize, out: &mut Word) {
    if lanes == FULL {
        for lane in 0..LANES {
            out[lane] = read(data, at[lane] + shift, 4) as u32;
        }
        return;
    }
    for lane in lanes_of(lanes) {
        out[lane] = read(data, at[lane] + shift, 4) as u32;
    }
}

#[inline(always)]
fn read(data: &[u8], at: usize, size: usize) -> u64 {
    match size {
        4 => u64::from(u32::from_le_bytes(data[at..at + 4].try_into().expect("four bytes"))),
        8 => u64::from_le_bytes(data[at..at + 8].try_into().expect("eight bytes")),
        2 => u64::from(u16::from_le_bytes([data[at], data[at + 1]])),
        _ => u64::from(data[at]),
    }
}

#[inline(always)]
fn write(data: &mut [u8], at: usize, size: usize, value: u64) {
    match size {
        4 => data[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes()),
        _ => data[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]),
    }
}

fn extend(bits: u64, ty: Type) -> u64 {
    match ty {
        Type::S8 => bits as i8 as u64,
        Type::S16 => bits as i16 as u64,
        Type::S32 => bits as i32 as u64,
        _ => bits,
    }
}

/// The new value of an atomic operation.
fn combine(f: Atomic, ty: Type, old: u64, b: u64, c: u64) -> u64 {
    match (f, ty) {
        (Atomic::Add, Type::F32) => u64::from((f32::from_bits(old as u32) + f32::from_bits(b as u32)).to_bits()),
        (Atomic::Add, Type::F64) => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
        (Atomic::Add, _) => old.wrapping_add(b),
        (Atomic::Min, Type::S32) => (old as i32).min(b as i32) as u64,
        (Atomic::Max, Type::S32) => (old as i32).max(b as i32) as u64,
        (Atomic::Min, Type::S64) => (old as i64).min(b as i64) as u64,
        (Atomic::Max, Type::S64) => (old as i64).max(b as i64) as u64,
        (Atomic::Min, _) => old.min(b),
        (Atomic::Max, _) => old.max(b),
        (Atomic::And, _) => old & b,
        (Atomic::Or, _) => old | b,
        (Atomic::Xor, _) => old ^ b,
        (Atomic::Exchange, _) => b,
        (Atomic::CompareSwap, _) => {
            if old == b {
                c
            } else {
                old
            }
        }
        (Atomic::Inc, _) => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        (Atomic::Dec, _) => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
    }
}
