//! `cp.async` and `ldmatrix`: from global to shared memory without waiting, and from there to the tensor cores.

use crate::access::read;
use crate::counters::{Counters, wavefronts};
use crate::lanes::{FULL, LANES, Long, Word, lanes_of};
use crate::machine::Machine;
use crate::program::{Slot, Space};
use crate::race::Touch;
use crate::region::Access;
use crate::result::Code;
use crate::result::Fault;
use crate::warp::{Copy, Warp};

impl Machine<'_> {
    /// Starts copies. Both ends are checked now; the bytes move when the lane waits for them.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn copy_async(
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
        self.counters.async_copies += 1;
        // Lanes that read less than they write (the rest is zeros) may do so at the end of an allocation.
        let mut reading: u32 = lanes_of(mask).filter(|&l| take[l] > 0).fold(0, |m, l| m | 1 << l);
        while reading != 0 {
            let bytes = take[reading.trailing_zeros() as usize];
            let same = lanes_of(reading).filter(|&l| take[l] == bytes).fold(0, |m, l| m | 1 << l);
            let access = Access { align: width, ..Access::new(line, bytes as usize, Touch::Read) };
            self.each_region(warp, same, Space::Global, &from, access, |_, _, _| {})?;
            reading &= !same;
        }
        let access = Access::new(line, width, Touch::Write);
        let at = self.copy_targets(warp, mask, &to, access)?;
        if self.count {
            Counters::count_shared(&mut self.counters.shared_store, &to, mask, width);
        }
        for lane in lanes_of(mask) {
            if self.config.check_shared
                && let Err(conflict) = self.shared_race.copy_starts(warp.id, lane, at[lane] as usize, width)
            {
                return Err(self.shared_conflict(warp, lane, at[lane] as usize, access, &conflict));
            }
            self.shared.unmark(at[lane] as usize, width);
            warp.copies.push(Copy {
                lane: lane as u8,
                group: warp.committed[lane],
                to: at[lane],
                from: from[lane],
                size,
                source_size: take[lane] as u8,
            });
        }
        Ok(())
    }

    /// Lets copies of the lanes arrive: all groups but the last `pending` ones, or with `all` also the open group.
    pub(crate) fn deliver(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        pending: u32,
        all: bool,
        line: u32,
    ) -> Result<(), Fault> {
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
                    let access = Access::new(line, take, Touch::Read);
                    return Err(self.out_of_bounds(warp, copy.lane.into(), copy.from, access));
                };
                bytes[..take].copy_from_slice(&region.bytes.data[at..at + take]);
            }
            self.shared.data[to..to + size].copy_from_slice(&bytes[..size]);
            self.shared.mark(to, size);
            self.shared_race.copy_ends(warp.id, copy.lane.into(), to, size);
        }
        Ok(())
    }

    /// Lane `8m + r` gives the address of row `r` of matrix `m`: eight 16-bit values. Each lane gets two neighbours of
    /// each matrix: (lane/4, 2(lane%4)) and the next column, or transposed the next row.
    pub(crate) fn load_matrix(
        &mut self,
        warp: &mut Warp,
        line: u32,
        n: usize,
        trans: bool,
        d: [Slot; 4],
        address: &Long,
    ) -> Result<(), Fault> {
        let mask = if n == 4 { FULL } else { (1 << (8 * n)) - 1 };
        let access = Access { together: true, ..Access::new(line, 16, Touch::Read) };
        let mut rows = [[0u16; 8]; LANES];
        self.each_region(warp, mask, Space::Shared, address, access, |bytes, lanes, at| {
            for lane in lanes_of(lanes) {
                for (k, value) in rows[lane].iter_mut().enumerate() {
                    *value = read(&bytes.data, at[lane] as usize + 2 * k, 2) as u16;
                }
            }
        })?;
        if self.count {
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
