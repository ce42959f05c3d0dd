//! Race checks.
//!
//! *Shared memory*: who wrote and who read each 4-byte word last, with vector clocks over the warps of a block. Two
//! accesses of different warps, one of them a write, must be ordered by barriers; a read and a write of different lanes
//! of one warp by a barrier or `bar.warp.sync`, because lanes need not move together. Atomics may meet atomics. A word
//! that an asynchronous copy is on its way to may not be touched at all.
//!
//! *Global memory*: a 4-byte word that one block of a launch writes must not be touched by another one, except by
//! atomics on both sides; inside a block the warps must be ordered by barriers, as in shared memory (of several readers
//! the last is remembered). Narrower accesses are not checked: neighbours share a word.

/// How memory is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    /// A load.
    Read,
    /// A store.
    Write,
    /// Read, modify, write at once.
    Atomic,
}

/// Which lanes of a warp touch a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// This one.
    Lane(usize),
    /// All in order, each so many words.
    Row(usize),
    /// Several touch the same words.
    Many,
    /// Nobody in particular: narrower than a word, so lanes share words without meeting.
    Unknown,
}

impl By {
    /// The lane that touches the i-th word of the range.
    #[inline]
    fn lane(self, i: usize) -> u32 {
        match self {
            By::Lane(lane) => lane as u32,
            By::Row(words) => (i / words) as u32,
            By::Many => MANY,
            By::Unknown => UNKNOWN,
        }
    }
}

/// Lane numbers that are none.
const MANY: u32 = 62;
const UNKNOWN: u32 = 63;
/// Bits of a record that hold the lane; the segment is above.
const LANE_BITS: u32 = 6;

/// Whether two lanes of a warp are known to be different ones.
#[inline]
fn differ(a: u32, b: u32) -> bool {
    a != UNKNOWN && b != UNKNOWN && (a != b || a == MANY)
}

/// The state of one block's shared memory.
#[derive(Debug)]
pub struct SharedRace {
    warps: usize,
    words: usize,
    check_lanes: bool,
    /// Last writer of each word.
    writers: Vec<Writer>,
    /// Segment and lane in which each warp last read each word, `[warp × word]`: `segment << LANE_BITS | lane`.
    readers: Vec<u32>,
    /// Warp (from 1) with a copy in flight to this word.
    in_flight: Vec<u8>,
    /// Whether there is any.
    copies: usize,
    /// Segment each warp is in. A segment ends when its warp arrives at a barrier; numbers grow over all blocks of a
    /// launch, so nothing has to be cleared between blocks.
    segment: Vec<u32>,
    /// `clock[x · warps + w]`: the last segment of warp `w` that lies before what warp `x` does now.
    clock: Vec<u32>,
    /// The smallest of each warp's clock: what was written up to there needs no closer look.
    floor: Vec<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Writer {
    segment: u32,
    warp: u8,
    lane: u8,
    atomic: bool,
}

/// What a race check found.
#[derive(Debug, PartialEq, Eq)]
pub enum Conflict {
    /// The warp with which this access collides.
    Warp(usize),
    /// Another lane of the same warp.
    Lane,
    /// A copy of this warp is on its way to the word.
    Copy(usize),
}

impl SharedRace {
    /// For so many bytes and warps.
    pub fn new(bytes: usize, warps: usize, check_lanes: bool) -> SharedRace {
        let words = bytes.div_ceil(4);
        SharedRace {
            warps,
            words,
            check_lanes,
            writers: vec![Writer::default(); words],
            readers: vec![0; words * warps],
            in_flight: vec![0; words],
            copies: 0,
            segment: vec![1; warps],
            clock: vec![0; warps * warps],
            floor: vec![0; warps],
        }
    }

    /// A new block: all that went before lies before it.
    pub fn start_block(&mut self) {
        for warp in 0..self.warps {
            let row = warp * self.warps..(warp + 1) * self.warps;
            self.clock[row].copy_from_slice(&self.segment);
        }
        self.floor.fill(self.segment.iter().copied().min().unwrap_or(0));
        self.segment.iter_mut().for_each(|s| *s += 1);
        self.in_flight.fill(0);
        self.copies = 0;
    }

    /// Warp `warp` touches the bytes `at..at + len`.
    #[inline]
    pub fn touch(&mut self, warp: usize, at: usize, len: usize, touch: Touch, by: By) -> Result<(), Conflict> {
        let range = at / 4..(at + len).div_ceil(4);
        if self.copies > 0
            && let Some(&owner) = self.in_flight[range.clone()].iter().find(|w| **w != 0)
        {
            return Err(Conflict::Copy(usize::from(owner) - 1));
        }
        let (segment, floor) = (self.segment[warp], self.floor[warp]);
        for (i, word) in range.clone().enumerate() {
            let writer = self.writers[word];
            if writer.segment > floor {
                self.check_writer(warp, writer, touch, by.lane(i))?;
            }
        }
        if touch == Touch::Read {
            for (i, read) in self.readers[warp * self.words..][range].iter_mut().enumerate() {
                let lane = by.lane(i);
                let again = *read >> LANE_BITS == segment && *read & MANY_MASK != lane;
                *read = segment << LANE_BITS | if again { MANY } else { lane };
            }
            return Ok(());
        }
        for other in 0..self.warps {
            let known = self.clock[warp * self.warps + other];
            let reads = &self.readers[other * self.words..][range.clone()];
            if other != warp {
                if reads.iter().any(|r| r >> LANE_BITS > known) {
                    return Err(Conflict::Warp(other));
                }
            } else if self.check_lanes {
                let met = |(i, r): (usize, &u32)| r >> LANE_BITS == segment && differ(r & MANY_MASK, by.lane(i));
                if reads.iter().enumerate().any(met) {
                    return Err(Conflict::Lane);
                }
            }
        }
        let atomic = touch == Touch::Atomic;
        for (i, writer) in self.writers[range].iter_mut().enumerate() {
            *writer = Writer { segment, warp: warp as u8, lane: by.lane(i) as u8, atomic };
        }
        Ok(())
    }

    fn check_writer(&self, warp: usize, writer: Writer, touch: Touch, lane: u32) -> Result<(), Conflict> {
        let by = usize::from(writer.warp);
        if writer.atomic && touch == Touch::Atomic {
            return Ok(());
        }
        if by != warp {
            let known = self.clock[warp * self.warps + by];
            return if writer.segment > known { Err(Conflict::Warp(by)) } else { Ok(()) };
        }
        // Two writes of one warp: which of them stays is open, but that is all.
        let meet = self.check_lanes && touch == Touch::Read && writer.segment == self.segment[warp];
        if meet && differ(u32::from(writer.lane), lane) { Err(Conflict::Lane) } else { Ok(()) }
    }

    /// A copy of a lane sets out: from here to its arrival the words belong to it.
    pub fn copy_starts(&mut self, warp: usize, lane: usize, at: usize, len: usize) -> Result<(), Conflict> {
        self.touch(warp, at, len, Touch::Write, By::Lane(lane))?;
        self.in_flight[at / 4..(at + len).div_ceil(4)].fill(warp as u8 + 1);
        self.copies += 1;
        Ok(())
    }

    /// A copy arrives: it counts as a store of its lane, now.
    pub fn copy_ends(&mut self, warp: usize, lane: usize, at: usize, len: usize) {
        self.copies = self.copies.saturating_sub(1);
        for word in at / 4..(at + len).div_ceil(4) {
            self.in_flight[word] = 0;
            self.writers[word] =
                Writer { segment: self.segment[warp], warp: warp as u8, lane: lane as u8, atomic: false };
        }
    }

    /// What a warp does now, as a record.
    fn record(&self, warp: usize) -> u32 {
        (warp as u32) << SEGMENT_BITS | (self.segment[warp] & SEGMENT_MASK)
    }

    /// The warp of a record, if it is another one and nothing orders the record before what `warp` does now.
    fn unordered(&self, warp: usize, record: u32) -> Option<usize> {
        let by = (record >> SEGMENT_BITS) as usize;
        (by != warp && record & SEGMENT_MASK > self.clock[warp * self.warps + by]).then_some(by)
    }

    /// The lanes of a warp meet: what they did before is ordered before what they do next.
    pub fn sync_warp(&mut self, warp: usize) {
        self.segment[warp] += 1;
    }

    /// A warp arrives at a barrier: what it knows is added to what the barrier knows, and a new segment begins.
    pub fn arrive(&mut self, warp: usize, barrier: &mut Vec<u32>) {
        barrier.resize(self.warps, 0);
        let row = &self.clock[warp * self.warps..(warp + 1) * self.warps];
        for (known, &own) in barrier.iter_mut().zip(row) {
            *known = (*known).max(own);
        }
        barrier[warp] = self.segment[warp];
        self.segment[warp] += 1;
    }

    /// A warp passes a barrier: it learns what the barrier knows.
    pub fn pass(&mut self, warp: usize, barrier: &[u32]) {
        let row = &mut self.clock[warp * self.warps..(warp + 1) * self.warps];
        for (own, &known) in row.iter_mut().zip(barrier) {
            *own = (*own).max(known);
        }
        self.floor[warp] = row.iter().copied().min().unwrap_or(0);
    }
}

/// The bits of a reader's record that hold its lane.
const MANY_MASK: u32 = (1 << LANE_BITS) - 1;

/// A record of global memory: warp and segment.
const SEGMENT_BITS: u32 = 27;
const SEGMENT_MASK: u32 = (1 << SEGMENT_BITS) - 1;

/// For each 4-byte word of an allocation, who of the running launch wrote and read it.
///
/// A block is a number that no other launch uses, so tags of earlier launches are simply too small.
#[derive(Debug, Default)]
pub struct BlockTags {
    words: Vec<WordTags>,
}

#[derive(Debug, Clone, Copy, Default)]
struct WordTags {
    /// Block that wrote it. The top bit says "by an atomic".
    writer: u32,
    /// Block that read it. The top bit says "and others".
    reader: u32,
    /// Warp and segment of the last write and read.
    written: u32,
    read: u32,
}

/// The tags of one launch: block `b` is `first + b`.
#[derive(Debug, Clone, Copy)]
pub struct LaunchTags {
    /// Tag of the launch's first block.
    pub first: u32,
}

/// Whom an access to global memory collides with.
#[derive(Debug, PartialEq, Eq)]
pub enum Clash {
    /// The block with this tag.
    Block(u32),
    /// Several blocks.
    Blocks,
    /// A warp of the same block.
    Warp(usize),
}

const TOP: u32 = 1 << 31;

impl BlockTags {
    /// Warp `warp` of block `tag` touches bytes `at..at + len`, at least a word, of an allocation of `size` bytes.
    /// `order` knows which warps have met.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub fn touch(
        &mut self,
        size: usize,
        launch: LaunchTags,
        tag: u32,
        warp: usize,
        order: &SharedRace,
        at: usize,
        len: usize,
        touch: Touch,
    ) -> Result<(), Clash> {
        if self.words.is_empty() {
            self.words = vec![WordTags::default(); size.div_ceil(4)];
        }
        let now = order.record(warp);
        for word in &mut self.words[at / 4..(at + len).div_ceil(4)] {
            let by = word.writer & !TOP;
            let both_atomic = word.writer & TOP != 0 && touch == Touch::Atomic;
            if by >= launch.first && !both_atomic {
                if by != tag {
                    return Err(Clash::Block(by));
                }
                order.unordered(warp, word.written).map_or(Ok(()), |other| Err(Clash::Warp(other)))?;
            }
            let read_by = word.reader & !TOP;
            if touch == Touch::Read {
                if read_by < launch.first {
                    word.reader = tag;
                } else if read_by != tag {
                    word.reader |= TOP;
                }
                word.read = now;
                continue;
            }
            if read_by >= launch.first {
                if word.reader != tag {
                    return Err(if word.reader & TOP != 0 { Clash::Blocks } else { Clash::Block(read_by) });
                }
                order.unordered(warp, word.read).map_or(Ok(()), |other| Err(Clash::Warp(other)))?;
            }
            word.writer = tag | if touch == Touch::Atomic { TOP } else { 0 };
            word.written = now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_warps() -> SharedRace {
        let mut race = SharedRace::new(64, 2, true);
        race.start_block();
        race
    }

    fn barrier(race: &mut SharedRace) {
        let mut known = Vec::new();
        race.arrive(0, &mut known);
        race.arrive(1, &mut known);
        race.pass(0, &known);
        race.pass(1, &known);
    }

    #[test]
    fn a_read_after_anothers_write_needs_a_barrier() {
        let mut race = two_warps();
        race.touch(0, 8, 4, Touch::Write, By::Lane(0)).unwrap();
        race.touch(0, 8, 4, Touch::Read, By::Lane(0)).unwrap();
        assert_eq!(race.touch(1, 8, 4, Touch::Read, By::Lane(0)), Err(Conflict::Warp(0)));
        barrier(&mut race);
        race.touch(1, 8, 4, Touch::Read, By::Lane(0)).unwrap();
        assert_eq!(
            race.touch(0, 8, 4, Touch::Write, By::Lane(0)),
            Err(Conflict::Warp(1)),
            "a write after a read needs one too"
        );
        race.start_block();
        race.touch(0, 8, 4, Touch::Write, By::Lane(0)).unwrap();
    }

    #[test]
    fn a_barrier_that_only_one_arrives_at_orders_one_way() {
        let mut race = two_warps();
        race.touch(0, 0, 4, Touch::Write, By::Lane(0)).unwrap();
        let mut known = Vec::new();
        race.arrive(0, &mut known);
        race.touch(0, 4, 4, Touch::Write, By::Lane(0)).unwrap();
        race.arrive(1, &mut known);
        race.pass(1, &known);
        race.touch(1, 0, 4, Touch::Read, By::Lane(0)).unwrap();
        assert_eq!(race.touch(1, 4, 4, Touch::Read, By::Lane(0)), Err(Conflict::Warp(0)), "written after the arrival");
    }

    #[test]
    fn atomics_meet_only_atomics() {
        let mut race = two_warps();
        race.touch(0, 0, 4, Touch::Atomic, By::Lane(0)).unwrap();
        race.touch(1, 0, 4, Touch::Atomic, By::Lane(0)).unwrap();
        assert_eq!(race.touch(0, 0, 4, Touch::Read, By::Lane(0)), Err(Conflict::Warp(1)));
    }

    #[test]
    fn a_copy_in_flight_owns_its_words() {
        let mut race = two_warps();
        race.copy_starts(0, 0, 16, 16).unwrap();
        barrier(&mut race);
        assert_eq!(
            race.touch(1, 20, 4, Touch::Read, By::Lane(0)),
            Err(Conflict::Copy(0)),
            "a barrier does not bring it"
        );
        race.copy_ends(0, 0, 16, 16);
        assert_eq!(race.touch(1, 20, 4, Touch::Read, By::Lane(0)), Err(Conflict::Warp(0)), "its arrival is a write");
        barrier(&mut race);
        race.touch(1, 20, 4, Touch::Read, By::Lane(0)).unwrap();
        assert_eq!(race.copy_starts(0, 0, 16, 16), Err(Conflict::Warp(1)), "it may not overtake a reader");
    }

    #[test]
    fn lanes_meet_only_where_they_say_so() {
        let mut race = two_warps();
        race.touch(0, 0, 32, Touch::Write, By::Row(1)).unwrap();
        race.touch(0, 0, 32, Touch::Read, By::Row(1)).unwrap();
        race.touch(0, 0, 4, Touch::Write, By::Lane(0)).unwrap();
        assert_eq!(race.touch(0, 8, 4, Touch::Read, By::Lane(1)), Err(Conflict::Lane), "lane 2 wrote it");
        assert_eq!(race.touch(0, 8, 4, Touch::Read, By::Many), Err(Conflict::Lane));
        assert_eq!(race.touch(0, 8, 4, Touch::Read, By::Unknown), Ok(()));
        race.sync_warp(0);
        race.touch(0, 8, 4, Touch::Read, By::Many).unwrap();
        race.touch(0, 12, 4, Touch::Read, By::Lane(3)).unwrap();
        assert_eq!(race.touch(0, 8, 4, Touch::Write, By::Lane(2)), Err(Conflict::Lane), "others read it");
        race.touch(0, 12, 4, Touch::Write, By::Lane(3)).unwrap();
        let mut loose = SharedRace::new(64, 2, false);
        loose.start_block();
        loose.touch(0, 0, 4, Touch::Write, By::Lane(1)).unwrap();
        loose.touch(0, 0, 4, Touch::Read, By::Lane(2)).unwrap();
    }

    #[test]
    fn blocks_own_what_they_write() {
        let order = two_warps();
        let mut tags = BlockTags::default();
        let mut go = |first, tag, at, len, touch| tags.touch(64, LaunchTags { first }, tag, 0, &order, at, len, touch);
        go(10, 10, 0, 8, Touch::Write).unwrap();
        go(10, 10, 4, 4, Touch::Read).unwrap();
        assert_eq!(go(10, 11, 4, 4, Touch::Read), Err(Clash::Block(10)));
        assert_eq!(go(10, 11, 0, 4, Touch::Write), Err(Clash::Block(10)));
        go(10, 10, 16, 4, Touch::Read).unwrap();
        go(10, 11, 16, 4, Touch::Read).unwrap();
        assert_eq!(go(10, 11, 16, 4, Touch::Write), Err(Clash::Blocks));
        go(10, 10, 32, 4, Touch::Atomic).unwrap();
        go(10, 11, 32, 4, Touch::Atomic).unwrap();
        go(20, 21, 4, 4, Touch::Read).unwrap();
    }

    #[test]
    fn warps_of_a_block_are_ordered_by_barriers_in_global_memory_too() {
        let mut order = two_warps();
        let mut tags = BlockTags::default();
        let mut go =
            |order: &SharedRace, warp, touch| tags.touch(64, LaunchTags { first: 1 }, 1, warp, order, 0, 4, touch);
        go(&order, 0, Touch::Write).unwrap();
        go(&order, 0, Touch::Read).unwrap();
        assert_eq!(go(&order, 1, Touch::Read), Err(Clash::Warp(0)));
        barrier(&mut order);
        go(&order, 1, Touch::Read).unwrap();
        assert_eq!(go(&order, 0, Touch::Write), Err(Clash::Warp(1)));
        barrier(&mut order);
        go(&order, 0, Touch::Write).unwrap();
    }
}
