//! The table of unit maps: what factors gather by, and what their flows are pulled back by.

use std::collections::HashMap;
use std::sync::Arc;

use crate::plan::PlanFactor;

use super::log2;

/// Maps one after the other, equal ones once: an HMM of a hundred steps transposes by one map.
#[derive(Default)]
pub(super) struct Maps {
    pub numbers: Vec<u32>,
    forward: HashMap<Arc<[u32]>, i64>,
    backward: HashMap<(Arc<[u32]>, usize), Pull>,
}

/// Which units of a product flow to unit u of a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pull {
    /// −1: exactly one each.
    pub starts_at: i64,
    /// −1: unit u.
    pub items_at: i64,
}

impl Maps {
    /// Where the map of a factor lies; −1 for none.
    pub fn of(&mut self, map: Option<&Arc<[u32]>>) -> i64 {
        let Some(map) = map else { return -1 };
        if let Some(&at) = self.forward.get(map) {
            return at;
        }
        let at = self.add(map);
        self.forward.insert(map.clone(), at);
        at
    }

    /// Where the inverse of a map lies, for a factor of `units` units.
    pub fn pull(&mut self, map: Option<&Arc<[u32]>>, units: usize) -> Pull {
        let Some(map) = map else { return Pull { starts_at: -1, items_at: -1 } };
        let key = (map.clone(), units);
        if let Some(&pull) = self.backward.get(&key) {
            return pull;
        }
        let mut starts = vec![0u32; units + 1];
        map.iter().for_each(|&unit| starts[unit as usize + 1] += 1);
        let is_permutation = starts[1..].iter().all(|&count| count == 1);
        for unit in 0..units {
            starts[unit + 1] += starts[unit];
        }
        let mut next = starts.clone();
        let mut items = vec![0u32; map.len()];
        for (k, &unit) in map.iter().enumerate() {
            items[next[unit as usize] as usize] = k as u32;
            next[unit as usize] += 1;
        }
        let items_at = self.add(&items);
        let starts_at = if is_permutation { -1 } else { self.add(&starts) };
        let pull = Pull { starts_at, items_at };
        self.backward.insert(key, pull);
        pull
    }

    fn add(&mut self, numbers: &[u32]) -> i64 {
        let at = self.numbers.len() as i64;
        self.numbers.extend_from_slice(numbers);
        at
    }
}

/// How the words of a staged row are spread over the banks of shared memory: right + 256·left. A transpose reads with
/// the stride of its columns, forwards, or of its rows, backwards.
pub(super) fn skew(factor: &PlanFactor, is_forward: bool) -> i32 {
    let Some((rows, cols)) = factor.transpose else { return 0 };
    let (rows, cols) = if is_forward { (rows, cols) } else { (cols, rows) };
    (log2(cols) - 5).max(0) + 256 * (5 - log2(rows)).max(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_the_inverse_of_its_map() {
        let mut maps = Maps::default();
        let map: Arc<[u32]> = [2, 0, 2, 1].into();
        let pull = maps.pull(Some(&map), 4);
        let starts = &maps.numbers[pull.starts_at as usize..][..5];
        let items = &maps.numbers[pull.items_at as usize..][..4];
        assert_eq!((starts, items), (&[0, 1, 2, 4, 4][..], &[1, 3, 0, 2][..]));

        let permutation: Arc<[u32]> = [1, 2, 0].into();
        let pull = maps.pull(Some(&permutation), 3);
        assert_eq!(pull.starts_at, -1);
        assert_eq!(maps.numbers[pull.items_at as usize..][..3], [2, 0, 1]);
        let before = maps.numbers.len();
        assert_eq!(maps.pull(Some(&permutation), 3), pull);
        assert_eq!(maps.of(Some(&permutation)), before as i64);
        assert_eq!(maps.of(Some(&permutation)), before as i64, "an equal map lies there once");
        assert_eq!(maps.of(None), -1);
    }
}
