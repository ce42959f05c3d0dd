//! The order of rows, computed and never remembered.
//!
//! A [`Permutation`] is a keyed Feistel network with cycle walking: where position `i` goes is a pure function of the
//! key, so a stream can go on from any position without a shuffle buffer. [`EpochOrder`] permutes the blocks of an
//! epoch and cuts them into windows by bytes; `batcher` permutes the rows inside each window. A [`Share`] is what one
//! shard of a global batch has of that order.

use std::ops::Range;

/// Rounds of the network. Four make a good permutation of large domains; small ones want more.
const ROUNDS: usize = 8;

/// A permutation of `0..len`, computed.
#[derive(Clone, Debug)]
pub struct Permutation {
    len: u64,
    /// Bits of each half: the network permutes `0..4^half_bits`, the smallest such range that holds `0..len`.
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..len` that `key` names.
    pub fn new(len: u64, key: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let mut state = key;
        Self { len, half_bits: bits.div_ceil(2).max(1), keys: std::array::from_fn(|_| next_key(&mut state)) }
    }

    /// Where position `index` goes.
    pub fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.len, "{index} is outside 0..{}", self.len);
        let mut value = index;
        loop {
            value = self.network(value);
            // Outside the range: walk on along the cycle. It leads back inside, because it began there.
            if value < self.len {
                return value;
            }
        }
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// A key for one purpose out of a seed and some numbers: epoch, window, …
pub fn key(seed: u64, parts: &[u64]) -> u64 {
    parts.iter().fold(mix(seed), |state, &part| mix(state.rotate_left(23) ^ mix(part.wrapping_add(0xA5A5))))
}

/// One shard of a stream: which, of how many. Its rows follow from these numbers and the order of the epoch alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which shard, from 0.
    pub shard: usize,
    /// How many shards there are.
    pub shards: usize,
}

impl Default for Share {
    /// The whole.
    fn default() -> Self {
        Self { shard: 0, shards: 1 }
    }
}

impl Share {
    /// Which of `rows` consecutive rows are this shard's.
    pub fn of_rows(self, rows: usize) -> Range<usize> {
        self.shard * rows / self.shards..(self.shard + 1) * rows / self.shards
    }

    /// How many of the first `positions` of an order are this shard's, where it has its run of each `batch_rows`.
    pub fn count(self, positions: u64, batch_rows: usize) -> u64 {
        let own = self.of_rows(batch_rows);
        let rest = positions % batch_rows as u64;
        positions / batch_rows as u64 * own.len() as u64 + rest.clamp(own.start as u64, own.end as u64)
            - own.start as u64
    }

    /// The position in the order of this shard's position `index`: the inverse of [`count`](Self::count).
    pub fn position(self, index: u64, batch_rows: usize) -> u64 {
        let own = self.of_rows(batch_rows);
        let (batch, row) = (index / own.len() as u64, index % own.len() as u64);
        batch.saturating_mul(batch_rows as u64).saturating_add(own.start as u64 + row)
    }

    /// Returns true if what has this number is this shard's: a block by its position in the order, a partition, a file
    /// by the digest of its name. Every shard has one in turn.
    pub fn has(self, number: u64) -> bool {
        number % self.shards as u64 == self.shard as u64
    }
}

/// The blocks of one epoch: in which order, and which of them share a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochOrder {
    /// Block numbers in the order of this epoch.
    order: Vec<usize>,
    /// Where in `order` each window is.
    windows: Vec<Range<usize>>,
}

impl EpochOrder {
    /// Every block of a share a window of its own, in the order of the data.
    pub fn in_order(num_blocks: usize, share: Share) -> Self {
        let order: Vec<usize> = (0..num_blocks).filter(|&block| share.has(block as u64)).collect();
        let windows = (0..order.len()).map(|b| b..b + 1).collect();
        Self { order, windows }
    }

    /// Blocks permuted and dealt out to shards; those of a share are put into windows of up to its part of
    /// `window_bytes`. A larger block gets a window to itself.
    pub fn shuffled(block_bytes: &[u64], window_bytes: u64, seed: u64, epoch: u64, share: Share) -> Self {
        let permutation = Permutation::new(block_bytes.len() as u64, key(seed, &[epoch, 0]));
        let own = (0..block_bytes.len()).filter(|&position| share.has(position as u64));
        let order: Vec<usize> = own.map(|position| permutation.at(position as u64) as usize).collect();
        let window_bytes = window_bytes / share.shards as u64;
        let mut windows: Vec<Range<usize>> = Vec::new();
        let mut bytes = 0u64;
        for (position, &block) in order.iter().enumerate() {
            bytes = bytes.saturating_add(block_bytes[block]);
            match windows.last_mut() {
                Some(window) if bytes <= window_bytes => window.end = position + 1,
                _ => {
                    windows.push(position..position + 1);
                    bytes = block_bytes[block];
                }
            }
        }
        Self { order, windows }
    }

    /// How many windows there are.
    pub fn num_windows(&self) -> u64 {
        self.windows.len() as u64
    }

    /// The blocks of a window, in order.
    pub fn window(&self, window: u64) -> &[usize] {
        &self.order[self.windows[window as usize].clone()]
    }
}

/// The permutation of the rows inside a window.
pub fn rows_of_window(num_rows: u64, seed: u64, epoch: u64, window: u64) -> Permutation {
    Permutation::new(num_rows, key(seed, &[epoch, 1, window]))
}

/// The permutation of all rows of a source whose rows can be read by number.
pub fn rows_of_epoch(num_rows: u64, seed: u64, epoch: u64) -> Permutation {
    Permutation::new(num_rows, key(seed, &[epoch, 2]))
}

fn next_key(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mix(*state)
}

/// The finaliser of SplitMix64: every bit of the input moves every bit of the output.
fn mix(value: u64) -> u64 {
    let z = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_permutation_hits_every_place_once(len in 1u64..3000, seed in any::<u64>()) {
            let permutation = Permutation::new(len, seed);
            let mut places: Vec<u64> = (0..len).map(|i| permutation.at(i)).collect();
            places.sort_unstable();
            prop_assert!(places.into_iter().eq(0..len));
        }

        #[test]
        fn a_plan_has_every_block_once_in_windows_that_fit(
            bytes in prop::collection::vec(1u64..100, 0..60),
            window_bytes in 1u64..300,
            epoch in 0u64..5,
        ) {
            let order = EpochOrder::shuffled(&bytes, window_bytes, 7, epoch, Share::default());
            let windows: Vec<&[usize]> = (0..order.num_windows()).map(|w| order.window(w)).collect();
            let mut blocks: Vec<usize> = windows.concat();
            for window in windows {
                let total: u64 = window.iter().map(|&b| bytes[b]).sum();
                prop_assert!(!window.is_empty() && (total <= window_bytes || window.len() == 1));
            }
            blocks.sort_unstable();
            prop_assert!(blocks.into_iter().eq(0..bytes.len()));
        }
    }

    /// Over many keys each value comes to each place equally often: chi-square with (8−1)² degrees of freedom has mean
    /// 49 and standard deviation 9.9 over the 8 × 8 table; 110 is six of them above.
    #[test]
    fn every_place_is_equally_likely() {
        let keys = 8000;
        let mut counts = [[0f64; 8]; 8];
        for k in 0..keys {
            let permutation = Permutation::new(8, key(k, &[3]));
            (0..8u64).for_each(|i| counts[i as usize][permutation.at(i) as usize] += 1.0);
        }
        let expected = keys as f64 / 8.0;
        let chi_square: f64 = counts.iter().flatten().map(|c| (c - expected).powi(2) / expected).sum();
        assert!(chi_square < 110.0, "{chi_square}");
    }

    /// Neighbours of a shuffled order are far apart: their distance has the mean n/3 of two independent places.
    #[test]
    fn neighbours_come_from_everywhere() {
        let n = 100_000u64;
        let permutation = rows_of_epoch(n, 5, 0);
        let total: u64 = (1..n).map(|i| permutation.at(i).abs_diff(permutation.at(i - 1))).sum();
        let mean = total as f64 / (n - 1) as f64 / n as f64;
        // The distance has standard deviation n/√18, so the mean of 1e5 (weakly dependent) ones moves by 7e-4.
        assert!((mean - 1.0 / 3.0).abs() < 0.005, "{mean}");
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let order = |seed, epoch| EpochOrder::shuffled(&[1; 40], 8, seed, epoch, Share::default());
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        assert_eq!(order(1, 1), order(1, 1));
    }

    proptest! {
        /// Shards share out blocks and positions: each has one owner, and a batch is the runs of its shards in order.
        #[test]
        fn every_block_and_position_is_of_one_shard(
            blocks in 0usize..60, positions in 0u64..300, rows in 1usize..40, shards in 1usize..9, epoch in 0u64..4,
        ) {
            let shares: Vec<Share> = (0..shards).map(|shard| Share { shard, shards }).collect();
            let orders = shares.iter().flat_map(|&share| {
                let order = EpochOrder::shuffled(&vec![3; blocks], 20, 7, epoch, share);
                (0..order.num_windows()).flat_map(|window| order.window(window).to_vec()).collect::<Vec<_>>()
            });
            let mut seen: Vec<usize> = orders.collect();
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..blocks));

            let counts: Vec<u64> = shares.iter().map(|share| share.count(positions, rows)).collect();
            prop_assert_eq!(counts.iter().sum::<u64>(), positions);
            let own = |(share, &count): (&Share, &u64)| (0..count).map(|i| share.position(i, rows)).collect::<Vec<_>>();
            let per_shard: Vec<Vec<u64>> = shares.iter().zip(&counts).map(own).collect();
            let batches = positions.div_ceil(rows as u64);
            let mut order: Vec<u64> = Vec::new();
            for batch in 0..batches {
                for positions in &per_shard {
                    order.extend(positions.iter().filter(|&&position| position / rows as u64 == batch));
                }
            }
            prop_assert!(order.into_iter().eq(0..positions), "batches are those of one shard");
        }
    }
}
