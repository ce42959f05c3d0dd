//! What a kernel cost, counted as a profiler counts it: per warp and request.
//!
//! *Sectors*: a request to global memory fetches 32-byte sectors. The ideal is the number of sectors that the distinct
//! bytes asked for would fill; their quotient is the efficiency. *Wavefronts*: a request to shared memory takes as many
//! passes as the busiest of the 32 banks has distinct words; wide accesses are served in groups of lanes that ask for
//! 128 bytes together. One pass a group is the ideal.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::lanes::{LANES, Long, lanes_of};

/// Requests of one kind and what they cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    /// Warp-wide requests.
    pub requests: u64,
    /// Sectors (global) or wavefronts (shared).
    pub cost: u64,
    /// The least they could have cost.
    pub ideal: u64,
}

impl Requests {
    /// Ideal over cost: 1 is best.
    pub fn efficiency(&self) -> f64 {
        if self.cost == 0 { 1.0 } else { self.ideal as f64 / self.cost as f64 }
    }

    /// Cost over ideal: 1 is best.
    pub fn factor(&self) -> f64 {
        if self.ideal == 0 { 1.0 } else { self.cost as f64 / self.ideal as f64 }
    }
}

/// The counters of one kernel.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)]
pub struct Counters {
    pub launches: u64,
    pub blocks: u64,
    /// Instructions issued, by warp.
    pub instructions: u64,
    /// Of these, issued while lanes of the warp waited elsewhere.
    pub divergent: u64,
    pub global_load: Requests,
    pub global_store: Requests,
    pub shared_load: Requests,
    pub shared_store: Requests,
    /// Local memory is spilled or indexed at run time; both are slow.
    pub local: u64,
    pub mma: u64,
    pub barriers: u64,
    pub atomics: u64,
    pub async_copies: u64,
}

impl Counters {
    /// Counts one request to global memory.
    pub fn count_global(requests: &mut Requests, address: &Long, mask: u32, width: usize) {
        if is_dense(address, mask, width) && address[0].is_multiple_of(32) {
            let sectors = (width * LANES / 32) as u64;
            requests.requests += 1;
            requests.cost += sectors;
            requests.ideal += sectors;
            return;
        }
        let mut sectors = Vec::with_capacity(LANES);
        let mut pieces = Vec::with_capacity(LANES);
        for lane in lanes_of(mask) {
            push_new(&mut pieces, address[lane]);
            for sector in address[lane] / 32..=(address[lane] + width as u64 - 1) / 32 {
                push_new(&mut sectors, sector);
            }
        }
        requests.requests += 1;
        requests.cost += sectors.len() as u64;
        requests.ideal += ((pieces.len() * width) as u64).div_ceil(32).min(sectors.len() as u64);
    }

    /// Counts one request to shared memory.
    pub fn count_shared(requests: &mut Requests, address: &Long, mask: u32, width: usize) {
        requests.requests += 1;
        let lanes_a_group = (128 / width.max(4)).min(LANES);
        if mask == u32::MAX && (is_dense(address, mask, width) || address.iter().all(|a| *a == address[0])) {
            // One pass a group, whatever the width: all of 128 bytes, or one broadcast.
            requests.cost += (LANES / lanes_a_group) as u64;
            requests.ideal += (LANES / lanes_a_group) as u64;
            return;
        }
        for first in (0..LANES).step_by(lanes_a_group) {
            let group = lanes_of(mask).filter(|l| (first..first + lanes_a_group).contains(l));
            let passes = wavefronts(group.map(|l| address[l]), width);
            if passes > 0 {
                requests.cost += passes;
                requests.ideal += 1;
            }
        }
    }

    /// `{"launches": …}`
    pub fn json(&self) -> String {
        let mut out = String::from("{");
        for (name, value) in [
            ("launches", self.launches),
            ("blocks", self.blocks),
            ("instructions", self.instructions),
            ("divergent", self.divergent),
            ("local", self.local),
            ("mma", self.mma),
            ("barriers", self.barriers),
            ("atomics", self.atomics),
            ("async_copies", self.async_copies),
        ] {
            let _ = write!(out, "\"{name}\": {value}, ");
        }
        for (name, r, quality, value) in [
            ("global_load", self.global_load, "efficiency", self.global_load.efficiency()),
            ("global_store", self.global_store, "efficiency", self.global_store.efficiency()),
            ("shared_load", self.shared_load, "conflict_factor", self.shared_load.factor()),
            ("shared_store", self.shared_store, "conflict_factor", self.shared_store.factor()),
        ] {
            let unit = if quality == "efficiency" { "sectors" } else { "wavefronts" };
            let _ = write!(
                out,
                "\"{name}\": {{\"requests\": {}, \"{unit}\": {}, \"ideal\": {}, \"{quality}\": {value:.4}}}, ",
                r.requests, r.cost, r.ideal
            );
        }
        out.truncate(out.len() - 2);
        out.push('}');
        out
    }
}

/// Whether all lanes ask for bytes side by side, in order: the pattern that most requests have.
fn is_dense(address: &Long, mask: u32, width: usize) -> bool {
    mask == u32::MAX && (0..LANES).all(|l| address[l] == address[0].wrapping_add((l * width) as u64))
}

/// All counters of a process as one line: `{"kernels": {"name": {…}}}`.
pub fn json_line(kernels: &BTreeMap<String, Counters>) -> String {
    let parts: Vec<String> = kernels.iter().map(|(name, c)| format!("\"{name}\": {}", c.json())).collect();
    format!("{{\"kernels\": {{{}}}}}\n", parts.join(", "))
}

/// Passes that one group of lanes needs: the most distinct words in one bank.
pub fn wavefronts(addresses: impl Iterator<Item = u64>, width: usize) -> u64 {
    let mut words = Vec::with_capacity(LANES);
    for address in addresses {
        for word in address / 4..(address + width as u64).div_ceil(4) {
            push_new(&mut words, word);
        }
    }
    let mut banks = [0u64; LANES];
    for word in words {
        banks[(word % 32) as usize] += 1;
    }
    banks.into_iter().max().unwrap_or(0)
}

/// Neighbouring lanes mostly repeat the last value or bring a new highest one; only the rest is searched for.
fn push_new(list: &mut Vec<u64>, value: u64) {
    match list.last() {
        Some(&last) if last == value => {}
        Some(&last) if value < last || list[0] > value => {
            if !list.contains(&value) {
                list.push(value);
                // Keeps the highest value last, so that a new highest one is known to be new.
                let top = list.len() - 1;
                list.swap(top, top - 1);
            }
        }
        _ => list.push(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn global(address: impl Fn(u64) -> u64, width: usize) -> Requests {
        let mut requests = Requests::default();
        Counters::count_global(&mut requests, &std::array::from_fn(|l| address(l as u64)), u32::MAX, width);
        requests
    }

    fn shared(address: impl Fn(u64) -> u64, width: usize) -> Requests {
        let mut requests = Requests::default();
        Counters::count_shared(&mut requests, &std::array::from_fn(|l| address(l as u64)), u32::MAX, width);
        requests
    }

    #[test]
    fn sectors_of_known_patterns() {
        assert_eq!(global(|l| 4096 + 4 * l, 4).efficiency(), 1.0);
        assert_eq!(global(|l| 4096 + 4 * (31 - l), 4).efficiency(), 1.0);
        assert_eq!(global(|l| 4096 + 4 * ((l * 7) % 32), 4).cost, 4);
        assert_eq!(global(|l| 4096 + 16 * l, 16), Requests { requests: 1, cost: 16, ideal: 16 });
        assert_eq!(global(|l| 4096 + 32 * l, 4).efficiency(), 0.125);
        assert_eq!(global(|_| 4096, 4), Requests { requests: 1, cost: 1, ideal: 1 });
        assert_eq!(global(|l| 4100 + 4 * l, 4), Requests { requests: 1, cost: 5, ideal: 4 });
    }

    #[test]
    fn bank_conflicts_of_known_patterns() {
        assert_eq!(shared(|l| 4 * l, 4).factor(), 1.0);
        assert_eq!(shared(|_| 64, 4).factor(), 1.0);
        assert_eq!(shared(|l| 8 * l, 4).factor(), 2.0);
        assert_eq!(shared(|l| 128 * l, 4).factor(), 32.0);
        assert_eq!(shared(|l| 132 * l, 4).factor(), 1.0);
        assert_eq!(shared(|l| 16 * l, 16), Requests { requests: 1, cost: 4, ideal: 4 });
        assert_eq!(shared(|l| 8 * l, 8), Requests { requests: 1, cost: 2, ideal: 2 });
        assert_eq!(shared(|l| 2 * l, 2).factor(), 1.0);
    }
}
