//! Ranges of characters become sequences of ranges of bytes, as UTF-8 spells them.

use super::pattern::Pattern;

/// The largest character.
pub(super) const LARGEST: u32 = 0x10_FFFF;

/// Characters that are spelled with as many bytes, without the surrogates, which are no characters.
const BY_LENGTH: [(u32, u32); 5] = [(0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x1_0000, LARGEST)];

/// One character out of the ranges, over bytes.
pub(super) fn characters(ranges: &[(u32, u32)]) -> Pattern {
    let mut ways = Vec::new();
    for &(low, high) in ranges {
        for (first, last) in BY_LENGTH {
            if low.max(first) <= high.min(last) {
                spell(low.max(first), high.min(last), &mut ways);
            }
        }
    }
    Pattern::Any(ways)
}

/// Characters of one length, cut until each byte ranges by itself.
fn spell(low: u32, high: u32, ways: &mut Vec<Pattern>) {
    let (first, last) = (bytes(low), bytes(high));
    // Byte i ranges by itself if all bytes after it range over all continuations, or no earlier byte ranges.
    for tail in 1..first.len() {
        let mask = (1u32 << (6 * tail)) - 1;
        if low & !mask != high & !mask {
            if low & mask != 0 {
                spell(low, low | mask, ways);
                return spell((low | mask) + 1, high, ways);
            }
            if high & mask != mask {
                spell(low, (high & !mask) - 1, ways);
                return spell(high & !mask, high, ways);
            }
        }
    }
    let byte = |(&low, &high): (&u8, &u8)| Pattern::Symbol(vec![(u32::from(low), u32::from(high))]);
    ways.push(Pattern::All(first.iter().zip(&last).map(byte).collect()));
}

fn bytes(character: u32) -> Vec<u8> {
    let character = char::from_u32(character).expect("surrogates were left out");
    character.encode_utf8(&mut [0; 4]).as_bytes().to_vec()
}
