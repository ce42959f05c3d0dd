//! The registers of a warp: three files, each register with its 32 lanes side by side so that loops over lanes become
//! vector instructions.

use crate::program::{Guard, Kernel, Reg, Slot};

/// Lanes of a warp.
pub const LANES: usize = 32;
/// All lanes.
pub const FULL: u32 = u32::MAX;
/// A 32-bit register.
pub type Word = [u32; LANES];
/// A 64-bit register.
pub type Long = [u64; LANES];

/// All registers of one warp.
#[derive(Debug)]
pub struct Lanes {
    /// Predicates: bit `l` belongs to lane `l`.
    pub preds: Vec<u32>,
    /// 32-bit registers.
    pub words: Vec<Word>,
    /// 64-bit registers.
    pub longs: Vec<Long>,
}

impl Lanes {
    /// Registers for a kernel: constants in place, all else poisoned (as floats they are NaN).
    pub fn new(kernel: &Kernel) -> Lanes {
        let mut lanes = Lanes {
            preds: vec![0; kernel.slots.predicates],
            words: vec![[u32::MAX; LANES]; kernel.slots.words],
            longs: vec![[u64::MAX; LANES]; kernel.slots.longs],
        };
        for &(slot, value) in &kernel.constants32 {
            lanes.words[slot as usize] = [value; LANES];
        }
        for &(slot, value) in &kernel.constants64 {
            lanes.longs[slot as usize] = [value; LANES];
        }
        lanes
    }

    /// A 32-bit register.
    #[inline(always)]
    pub fn word(&self, slot: Slot) -> Word {
        self.words[slot as usize]
    }

    /// A 64-bit register.
    #[inline(always)]
    pub fn long(&self, slot: Slot) -> Long {
        self.longs[slot as usize]
    }

    /// The lanes in which a predicate, perhaps negated, holds.
    #[inline(always)]
    pub fn pred(&self, guard: Guard) -> u32 {
        let bits = self.preds[guard.slot as usize];
        if guard.negate { !bits } else { bits }
    }

    /// Writes a 32-bit register in the lanes of `mask`.
    #[inline(always)]
    pub fn put_word(&mut self, slot: Slot, mask: u32, value: &Word) {
        let old = &mut self.words[slot as usize];
        if mask == FULL {
            *old = *value;
            return;
        }
        for lane in 0..LANES {
            let keep = ((mask >> lane) & 1).wrapping_sub(1);
            old[lane] = (old[lane] & keep) | (value[lane] & !keep);
        }
    }

    /// Writes a 64-bit register in the lanes of `mask`.
    #[inline(always)]
    pub fn put_long(&mut self, slot: Slot, mask: u32, value: &Long) {
        let old = &mut self.longs[slot as usize];
        if mask == FULL {
            *old = *value;
            return;
        }
        for lane in 0..LANES {
            let keep = u64::from((mask >> lane) & 1).wrapping_sub(1);
            old[lane] = (old[lane] & keep) | (value[lane] & !keep);
        }
    }

    /// Writes a predicate in the lanes of `mask`.
    #[inline(always)]
    pub fn put_pred(&mut self, slot: Slot, mask: u32, bits: u32) {
        let old = &mut self.preds[slot as usize];
        *old = (*old & !mask) | (bits & mask);
    }

    /// Any register, widened to 64 bits with zeros.
    pub fn get(&self, reg: Reg) -> Long {
        match reg {
            Reg::Half(slot) | Reg::Word(slot) => self.words[slot as usize].map(u64::from),
            Reg::Long(slot) => self.longs[slot as usize],
            Reg::Pred(slot) => std::array::from_fn(|l| u64::from((self.preds[slot as usize] >> l) & 1)),
            Reg::Sink => [0; LANES],
        }
    }

    /// Writes any register, cutting the value to its width.
    pub fn put(&mut self, reg: Reg, mask: u32, value: &Long) {
        match reg {
            Reg::Half(slot) => self.put_word(slot, mask, &value.map(|v| v as u32 & 0xffff)),
            Reg::Word(slot) => self.put_word(slot, mask, &value.map(|v| v as u32)),
            Reg::Long(slot) => self.put_long(slot, mask, value),
            Reg::Pred(slot) => self.put_pred(slot, mask, (0..LANES).map(|l| u32::from(value[l] != 0) << l).sum()),
            Reg::Sink => {}
        }
    }
}

/// The lanes of a mask, lowest first.
pub fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}
