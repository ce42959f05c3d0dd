//! Device memory: an allocation map with exact bounds, poison, and a note of which bytes were ever written.
//!
//! Each device has its own range of addresses, and no address is ever used twice, so that a pointer of another device,
//! a stale pointer and one past the end are all found. Freed memory is gone at once.

use crate::race::BlockTags;
use crate::result::{Code, Fault};

/// What fresh memory holds: as a float it is NaN.
pub const POISON: u8 = 0xff;

/// Bytes, and for each whether it was ever written.
#[derive(Debug, Default)]
pub struct Bytes {
    /// The bytes.
    pub data: Vec<u8>,
    /// One bit a byte.
    written: Vec<u64>,
}

impl Bytes {
    /// Poisoned and unwritten.
    pub fn poisoned(len: usize) -> Bytes {
        Bytes { data: vec![POISON; len], written: vec![0; len.div_ceil(64) + 1] }
    }

    /// Poisons everything again.
    pub fn poison(&mut self) {
        self.data.fill(POISON);
        self.written.fill(0);
    }

    /// Whether all bytes of the range were written.
    #[inline]
    pub fn is_written(&self, at: usize, len: usize) -> bool {
        self.spans(at, len).all(|(word, bits)| self.written[word] & bits == bits)
    }

    /// Whether nothing was ever written.
    pub fn is_untouched(&self) -> bool {
        self.written.iter().all(|word| *word == 0)
    }

    /// Notes that the range was written.
    #[inline]
    pub fn mark(&mut self, at: usize, len: usize) {
        for (word, bits) in self.spans(at, len) {
            self.written[word] |= bits;
        }
    }

    /// Poisons the range and forgets that it was written.
    pub fn unmark(&mut self, at: usize, len: usize) {
        self.data[at..at + len].fill(POISON);
        for (word, bits) in self.spans(at, len) {
            self.written[word] &= !bits;
        }
    }

    /// Copies the note of what was written along with a copy of the bytes.
    pub fn copy_marks(&mut self, at: usize, from: &Bytes, from_at: usize, len: usize) {
        if from.is_written(from_at, len) {
            return self.mark(at, len);
        }
        for i in 0..len {
            if from.is_written(from_at + i, 1) {
                self.mark(at + i, 1);
            } else {
                self.unmark(at + i, 1);
            }
        }
    }

    /// The words of the bitmap that a range covers, with the bits in each.
    #[inline]
    fn spans(&self, at: usize, len: usize) -> impl Iterator<Item = (usize, u64)> + use<> {
        let (mut at, end) = (at, at + len);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (word, first) = (at / 64, at % 64);
            let count = (64 - first).min(end - at);
            at += count;
            Some((word, (u64::MAX >> (64 - count)) << first))
        })
    }
}

/// One allocation.
#[derive(Debug)]
pub struct Allocation {
    /// Its device address.
    pub base: u64,
    /// What it holds.
    pub bytes: Bytes,
    /// Who touched it in the running launch, for the race check. Made when a kernel first touches it.
    pub tags: BlockTags,
}

impl Allocation {
    /// One past its last address.
    pub fn end(&self) -> u64 {
        self.base + self.bytes.data.len() as u64
    }
}

/// The memory of one device.
#[derive(Debug)]
pub struct DeviceMemory {
    /// By ascending address; addresses only grow, so new ones go to the end.
    allocations: Vec<Allocation>,
    next: u64,
    used: u64,
    limit: u64,
    /// Where the last search ended: the next one mostly ends there too.
    last: usize,
}

impl DeviceMemory {
    /// Empty memory of the device with this number.
    pub fn new(device: usize, limit: u64) -> DeviceMemory {
        DeviceMemory { allocations: Vec::new(), next: Self::first_address(device), used: 0, limit, last: 0 }
    }

    fn first_address(device: usize) -> u64 {
        (device as u64 + 1) << 40
    }

    /// The device whose memory this address would be in.
    pub fn device_of(address: u64) -> Option<usize> {
        ((address >> 40) as usize).checked_sub(1).filter(|d| *d < 64)
    }

    /// Bytes not in use.
    pub fn free_bytes(&self) -> u64 {
        self.limit - self.used
    }

    /// Bytes of the device.
    pub fn total_bytes(&self) -> u64 {
        self.limit
    }

    /// Makes an allocation of exactly so many bytes.
    pub fn alloc(&mut self, len: usize) -> Result<u64, Code> {
        let size = (len as u64).next_multiple_of(512);
        if len == 0 {
            return Err(Code::InvalidValue);
        }
        if size > self.free_bytes() {
            return Err(Code::OutOfMemory);
        }
        let base = self.next;
        // A gap after each allocation: what runs past its end hits nothing.
        self.next += size.next_multiple_of(4096) + 4096;
        self.used += size;
        self.allocations.push(Allocation { base, bytes: Bytes::poisoned(len), tags: BlockTags::default() });
        Ok(base)
    }

    /// Ends an allocation, which must be named by its first address.
    pub fn free(&mut self, base: u64) -> Result<(), Code> {
        let at = self.allocations.binary_search_by_key(&base, |a| a.base).map_err(|_| Code::InvalidValue)?;
        let gone = self.allocations.remove(at);
        self.used -= (gone.bytes.data.len() as u64).next_multiple_of(512);
        Ok(())
    }

    /// The allocation that holds this address.
    #[inline]
    pub fn find(&mut self, address: u64) -> Option<&mut Allocation> {
        let near = self.allocations.get(self.last);
        if !near.is_some_and(|a| a.base <= address && address < a.end()) {
            self.last = self.allocations.partition_point(|a| a.base <= address).checked_sub(1)?;
        }
        let found = &mut self.allocations[self.last];
        (address < found.end()).then_some(found)
    }

    /// A range for a copy or a fill, as allocation and offset.
    pub fn range(&mut self, address: u64, len: usize) -> Result<(&mut Allocation, usize), Fault> {
        match self.find(address) {
            Some(a) if address + len as u64 <= a.end() => {}
            _ => return Err(Fault::new(Code::InvalidValue, self.describe(address, len))),
        }
        // `find` has left its place in `last`.
        let found = &mut self.allocations[self.last];
        let at = (address - found.base) as usize;
        Ok((found, at))
    }

    /// Forgets every tag of the race check.
    pub fn clear_tags(&mut self) {
        for allocation in &mut self.allocations {
            allocation.tags = BlockTags::default();
        }
    }

    /// What is known about an address that an access went wrong with.
    pub fn describe(&self, address: u64, len: usize) -> String {
        let at = self.allocations.partition_point(|a| a.base <= address);
        let near = match at.checked_sub(1).map(|i| &self.allocations[i]) {
            Some(a) if address < a.end() || address - a.base < 1 << 30 => {
                format!("offset {} of an allocation of {} bytes", address - a.base, a.bytes.data.len())
            }
            _ => "no allocation is near".into(),
        };
        format!("{len} bytes at {address:#x} ({near})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_ranges_are_remembered_across_words() {
        let mut bytes = Bytes::poisoned(300);
        bytes.mark(60, 140);
        assert!(bytes.is_written(60, 140) && bytes.is_written(100, 1));
        assert!(!bytes.is_written(59, 2) && !bytes.is_written(199, 2));
        bytes.unmark(128, 1);
        assert!(!bytes.is_written(60, 140) && bytes.is_written(129, 71));
        let mut copy = Bytes::poisoned(300);
        copy.copy_marks(0, &bytes, 60, 140);
        assert!(!copy.is_written(68, 1) && copy.is_written(69, 71) && !copy.is_written(140, 1));
    }

    #[test]
    fn bounds_are_exact_and_addresses_are_not_reused() {
        let mut memory = DeviceMemory::new(1, 4096);
        let a = memory.alloc(10).unwrap();
        assert_eq!(DeviceMemory::device_of(a), Some(1));
        assert!(memory.range(a, 10).is_ok() && memory.range(a, 11).is_err());
        memory.free(a).unwrap();
        assert!(memory.find(a).is_none());
        let b = memory.alloc(10).unwrap();
        assert_ne!(a, b);
        assert_eq!(memory.alloc(8192).unwrap_err(), Code::OutOfMemory);
        assert_eq!(memory.free(b + 1).unwrap_err(), Code::InvalidValue);
    }
}
