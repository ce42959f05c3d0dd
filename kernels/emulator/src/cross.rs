//! Instructions that look at other lanes: shuffles, votes, reductions, matches.

use crate::lanes::{LANES, Lanes, Word, lanes_of};
use crate::program::*;

/// Executes one in the lanes of `mask`, which are all its members.
pub fn execute(r: &mut Lanes, mask: u32, op: &Op) {
    match *op {
        Op::Shfl { mode, d, p, a, b, c, .. } => {
            let (value, within) = shuffle(mode, &r.word(a), &r.word(b), &r.word(c), mask);
            r.put_word(d, mask, &value);
            if let Some(p) = p {
                r.put_pred(p, mask, within);
            }
        }
        Op::Vote { mode, d, a, .. } => {
            let votes = r.pred(a) & mask;
            let yes = |b: bool| if b { u32::MAX } else { 0 };
            match mode {
                Vote::Ballot => r.put_word(d, mask, &[votes; LANES]),
                Vote::All => r.put_pred(d, mask, yes(votes == mask)),
                Vote::Any => r.put_pred(d, mask, yes(votes != 0)),
                Vote::Uniform => r.put_pred(d, mask, yes(votes == 0 || votes == mask)),
            }
        }
        Op::Redux { f, signed, d, a, .. } => {
            let value = r.word(a);
            let result = lanes_of(mask).map(|l| value[l]).reduce(|x, y| reduce(f, signed, x, y)).unwrap_or(0);
            r.put_word(d, mask, &[result; LANES]);
        }
        Op::Match { all, wide, d, p, a, .. } => {
            let value = if wide { r.long(a) } else { r.word(a).map(u64::from) };
            let equal: Word =
                std::array::from_fn(|l| lanes_of(mask).filter(|&k| value[k] == value[l]).fold(0, |m, k| m | 1 << k));
            let one = lanes_of(mask).all(|l| equal[l] == mask);
            if let Some(p) = p {
                r.put_pred(p, mask, if one { u32::MAX } else { 0 });
            }
            let out = if all && !one { [0; LANES] } else { equal };
            r.put_word(d, mask, &out);
        }
        _ => {} // bar.warp.sync: that all came is all it wants
    }
}

/// For each lane the value it gets and whether its source was inside its segment. `c` holds the clamp in its low bits
/// and the segment mask from bit 8. A lane that is switched off gives its own value.
fn shuffle(mode: Shuffle, a: &Word, b: &Word, c: &Word, mask: u32) -> (Word, u32) {
    let mut within = 0;
    let value = std::array::from_fn(|lane| {
        let (lane32, by) = (lane as u32, b[lane] & 31);
        let (clamp, segment) = (c[lane] & 31, (c[lane] >> 8) & 31);
        let highest = (lane32 & segment) | (clamp & !segment);
        let lowest = lane32 & segment;
        let (from, ok) = match mode {
            // Unsigned wrap-around below lane 0 must fail the comparison, hence the signed difference.
            Shuffle::Up => (lane32.wrapping_sub(by), lane32 as i32 - by as i32 >= highest as i32),
            Shuffle::Down => (lane32 + by, lane32 + by <= highest),
            Shuffle::Butterfly => (lane32 ^ by, lane32 ^ by <= highest),
            Shuffle::Index => {
                let from = lowest | (by & !segment);
                (from, from <= highest)
            }
        };
        within |= u32::from(ok) << lane;
        let from = if ok { (from & 31) as usize } else { lane };
        if (mask >> from) & 1 == 1 { a[from] } else { a[lane] }
    });
    (value, within)
}

fn reduce(f: Atomic, signed: bool, x: u32, y: u32) -> u32 {
    match (f, signed) {
        (Atomic::Add, _) => x.wrapping_add(y),
        (Atomic::Min, true) => (x as i32).min(y as i32) as u32,
        (Atomic::Max, true) => (x as i32).max(y as i32) as u32,
        (Atomic::Min, false) => x.min(y),
        (Atomic::Max, false) => x.max(y),
        (Atomic::And, _) => x & y,
        (Atomic::Or, _) => x | y,
        _ => x ^ y,
    }
}
