//! Loads, stores and atomics. What is checked about them is in `region`; copies and matrices are in `copies`.

use crate::lanes::{FULL, LANES, Long, Word, lanes_of};
use crate::machine::Machine;
use crate::program::*;
use crate::race::Touch;
use crate::region::Access;
use crate::result::{Code, Fault};
use crate::warp::Warp;

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
        let access = Access::new(line, size * d.len(), Touch::Read);
        if space == Space::Param {
            return self.load_param(warp, mask, line, ty, d, at);
        }
        let address = addresses(warp, at);
        if size == 4 && d.iter().all(|r| matches!(r, Reg::Word(_))) {
            return self.load_words(warp, mask, space, &address, access, d);
        }
        let mut values = [[0u64; LANES]; 4];
        for (space, mask) in self.spaces(space, mask, &address) {
            self.each_region(warp, mask, space, &address, access, |bytes, lanes, at| {
                for (k, value) in values[..d.len()].iter_mut().enumerate() {
                    for lane in lanes_of(lanes) {
                        value[lane] = extend(read(&bytes.data, at[lane] as usize + size * k, size), ty);
                    }
                }
            })?;
        }
        for (value, &reg) in values.iter().zip(d) {
            warp.lanes.put(reg, mask, value);
        }
        Ok(())
    }

    /// 32-bit values to 32-bit registers: what most kernels live on.
    fn load_words(
        &mut self,
        warp: &mut Warp,
        mask: u32,
        space: Space,
        address: &Long,
        access: Access,
        d: &[Reg],
    ) -> Result<(), Fault> {
        let mut words = [[0u32; LANES]; 4];
        for (space, mask) in self.spaces(space, mask, address) {
            self.each_region(warp, mask, space, address, access, |bytes, lanes, at| {
                for (k, word) in words[..d.len()].iter_mut().enumerate() {
                    read_words(&bytes.data, lanes, at, 4 * k, word);
                }
            })?;
        }
        for (word, &reg) in words.iter().zip(d) {
            if let Reg::Word(slot) = reg {
                warp.lanes.put_word(slot, mask, word);
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
        let access = Access::new(line, size * a.len(), Touch::Write);
        let mut values = [[0u64; LANES]; 4];
        for (value, &reg) in values.iter_mut().zip(a) {
            *value = warp.lanes.get(reg);
        }
        for (space, mask) in self.spaces(space, mask, &address) {
            self.each_region(warp, mask, space, &address, access, |bytes, lanes, at| {
                for (k, value) in values[..a.len()].iter().enumerate() {
                    for lane in lanes_of(lanes) {
                        write(&mut bytes.data, at[lane] as usize + size * k, size, value[lane]);
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
        let access = Access::new(line, size, Touch::Atomic);
        let mut old = [0u64; LANES];
        self.counters.atomics += 1;
        for (space, mask) in self.spaces(space, mask, &address) {
            self.each_region(warp, mask, space, &address, access, |bytes, lanes, at| {
                for lane in lanes_of(lanes) {
                    let place = at[lane] as usize;
                    old[lane] = read(&bytes.data, place, size);
                    write(&mut bytes.data, place, size, combine(f, ty, old[lane], b[lane], c[lane]));
                }
            })?;
        }
        warp.lanes.put(d, mask, &old);
        Ok(())
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
fn read_words(data: &[u8], lanes: u32, at: &Long, shift: usize, out: &mut Word) {
    if lanes == FULL {
        for lane in 0..LANES {
            out[lane] = read(data, at[lane] as usize + shift, 4) as u32;
        }
        return;
    }
    for lane in lanes_of(lanes) {
        out[lane] = read(data, at[lane] as usize + shift, 4) as u32;
    }
}

#[inline(always)]
pub(crate) fn read(data: &[u8], at: usize, size: usize) -> u64 {
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
