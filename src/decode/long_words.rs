//! Words of GPT-2 that are thousands of letters long, encoded in little memory and in time proportional to their
//! length.
//!
//! `tiktoken-rs` encodes a word as a whole: a hundred bytes of memory per letter, and a regular expression that gives
//! up on long runs of white space. Words of texts are short; but a file may hold fifty megabytes of one letter, and one
//! record must not cost gigabytes. So texts with a long word are cut around it ([`Words`]), and the word is encoded
//! here, a window at a time, to the very same tokens. `gpt2` does the rest.
//!
//! Why windows are exact. Byte-pair encoding merges, again and again, the leftmost pair of least rank. What happens
//! inside a stretch of bytes depends on that stretch alone for as long as nothing merges across its ends. So (1) the
//! first tokens of an encoding are the encoding of their own bytes; and (2) if `E` and `U` are encodings, and the last
//! token of `E` and the first of `U`, encoded together, stay two tokens, then `E` followed by `U` is the encoding of
//! all their bytes: the first merge across the seam would be one between these two. A window is encoded, all but its
//! last tokens are kept (1), and the next window begins after them; (2) is checked at every seam, and where it fails
//! another seam or a larger window is tried.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::OnceLock;

use regex::Regex;

/// A word at least this long is encoded here, in bytes.
pub(super) const LONG: usize = 4096;

/// A word of `LONG` bytes has a stretch of so many that begins at a multiple of so many, its first byte not counted.
const STRETCH: usize = 2000;

/// What is encoded at once: its merges fit into a first cache.
const WINDOW: usize = 4 << 10;

/// Tokens at the end of a window that are encoded again with the next one: what follows may change them.
const UNSURE: usize = 16;

/// Seams of a window that are tried before it grows.
const SEAMS: usize = 16;

/// No token.
const NONE: u32 = u32::MAX;

/// Returns true if a text may have a long word. Ordinary texts are told apart by a few bytes in every two thousand.
pub(super) fn may_have_long_word(text: &str) -> bool {
    text.len() >= LONG && text.as_bytes().chunks_exact(STRETCH).any(may_be_inside_a_word)
}

/// Returns true if there is no byte that ends a word. Letters outside ASCII may be anything.
fn may_be_inside_a_word(bytes: &[u8]) -> bool {
    let class = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' => 0,
        b'0'..=b'9' => 1,
        b' ' | 9..=13 => 2,
        _ => 3,
    };
    let mut classes = bytes.iter().filter(|byte| byte.is_ascii()).map(class);
    classes.next().is_none_or(|first| classes.all(|class| class == first))
}

/// The words of a text, as GPT-2's regular expression cuts it:
/// `'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s`.
///
/// Without its look-ahead, which is done by hand, it is one for a machine that never steps back.
pub(super) struct Words<'a> {
    text: &'a str,
    next: usize,
}

impl<'a> Words<'a> {
    /// All words of a text.
    pub fn new(text: &'a str) -> Self {
        Self { text, next: 0 }
    }
}

impl Iterator for Words<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        static WORD: OnceLock<Regex> = OnceLock::new();
        let word = WORD.get_or_init(|| {
            let pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
            Regex::new(pattern).expect("a pattern that was tried")
        });
        let mut found = word.find_at(self.text, self.next)?.range();
        if found.end < self.text.len() && is_space(&self.text[found.clone()]) {
            // The last space belongs to what follows, unless it is all there is.
            let last = self.text[found.clone()].char_indices().next_back().map_or(0, |(at, _)| at);
            found.end = if last > 0 { found.start + last } else { found.end };
        }
        self.next = found.end;
        Some(found)
    }
}

/// Returns true if a word is white space.
pub(super) fn is_space(word: &str) -> bool {
    word.chars().next_back().is_some_and(char::is_whitespace)
}

/// Merges of a vocabulary.
pub(super) struct Merges {
    /// The token of every byte.
    bytes: [u32; 256],
    /// What two tokens become together. A token that is made of others in several ways has several pairs: `tiktoken`
    /// looks at the bytes only.
    pairs: HashMap<u64, u32, BuildHasherDefault<PairHasher>>,
    /// The bytes of every token.
    spelled: Vec<Vec<u8>>,
}

impl Merges {
    /// The merges of tokens with these bytes; a token's number is its rank.
    pub fn new(spelled: Vec<Vec<u8>>) -> Self {
        let numbers: HashMap<&[u8], u32> = spelled.iter().map(Vec::as_slice).zip(0..).collect();
        let mut bytes = [NONE; 256];
        let mut pairs = HashMap::default();
        for (token, number) in spelled.iter().zip(0..) {
            if let &[byte] = token.as_slice() {
                bytes[usize::from(byte)] = number;
            }
            for middle in 1..token.len() {
                let (left, right) = token.split_at(middle);
                if let (Some(&left), Some(&right)) = (numbers.get(left), numbers.get(right)) {
                    pairs.insert(pair(left, right), number);
                }
            }
        }
        Self { bytes, pairs, spelled }
    }

    /// Adds the tokens of a word, however long it is.
    pub fn encode(&self, word: &[u8], tokens: &mut Vec<u32>) {
        self.encode_in_windows(word, WINDOW, tokens);
    }

    /// The same in windows of another size: for tests.
    pub(super) fn encode_in_windows(&self, word: &[u8], size: usize, tokens: &mut Vec<u32>) {
        let mut work = Work::default();
        let mut rest = word;
        let mut window = self.encode_window(&rest[..rest.len().min(size)], &mut work);
        let mut length = size;
        while length < rest.len() {
            // Somewhere before the end of the window, where what follows fits.
            let mut last = window.len().saturating_sub(UNSURE);
            let mut seam = None;
            for _ in 0..SEAMS {
                if last == 0 {
                    break;
                }
                let after = &rest[window[..last].iter().map(|&token| self.spelled[token as usize].len()).sum()..];
                let next = self.encode_window(&after[..after.len().min(size)], &mut work);
                if self.stay_two(window[last - 1], next[0], &mut work) {
                    seam = Some((last, after, next));
                    break;
                }
                last -= 1;
            }
            match seam {
                Some((last, after, next)) => {
                    tokens.extend_from_slice(&window[..last]);
                    (rest, window, length) = (after, next, size);
                }
                None => {
                    length = length.saturating_mul(2);
                    window = self.encode_window(&rest[..rest.len().min(length)], &mut work);
                }
            }
        }
        tokens.extend_from_slice(&window);
    }

    /// Returns true if two tokens are encoded as themselves where they follow each other.
    fn stay_two(&self, left: u32, right: u32, work: &mut Work) -> bool {
        let bytes = [self.spelled[left as usize].as_slice(), &self.spelled[right as usize]].concat();
        self.encode_window(&bytes, work) == [left, right]
    }

    /// The tokens of some bytes. Merges are taken from a heap, by rank and from the left.
    fn encode_window(&self, bytes: &[u8], work: &mut Work) -> Vec<u32> {
        let Work { tokens, next, before, merged, heap } = work;
        let count = bytes.len() as u32;
        tokens.clear();
        tokens.extend(bytes.iter().map(|&byte| self.bytes[usize::from(byte)]));
        next.clear();
        next.extend(1..=count);
        before.clear();
        before.extend((0..count).map(|at| at.wrapping_sub(1)));
        merged.clear();
        merged.resize(bytes.len(), NONE);
        let look = |at: u32, tokens: &[u32], next: &[u32], merged: &mut [u32]| {
            let after = next[at as usize];
            let right = tokens.get(after as usize).copied();
            let found = right.and_then(|right| self.pairs.get(&pair(tokens[at as usize], right)));
            merged[at as usize] = found.copied().unwrap_or(NONE);
            found.map(|&rank| Reverse(pair(rank, at)))
        };
        // All at once: a heap is made of a list in less time than by adding to it.
        let mut entries = std::mem::take(heap).into_vec();
        entries.clear();
        entries.extend((0..count).filter_map(|at| look(at, tokens, next, merged)));
        *heap = entries.into();
        while let Some(Reverse(entry)) = heap.pop() {
            let (rank, at) = ((entry >> 32) as u32, entry as u32);
            if merged[at as usize] != rank {
                continue; // one of the two is something else by now
            }
            let gone = next[at as usize];
            let after = next[gone as usize];
            tokens[at as usize] = rank;
            merged[gone as usize] = NONE;
            next[at as usize] = after;
            if after < count {
                before[after as usize] = at;
            }
            heap.extend(look(at, tokens, next, merged));
            if let Some(left) = Some(before[at as usize]).filter(|&left| left < count) {
                heap.extend(look(left, tokens, next, merged));
            }
        }
        let mut found = Vec::new();
        let mut at = 0;
        while at < count {
            found.push(tokens[at as usize]);
            at = next[at as usize];
        }
        found
    }
}

/// What encoding a window needs, kept from one to the next.
#[derive(Default)]
struct Work {
    /// The token that begins at each byte.
    tokens: Vec<u32>,
    /// Where the token after it begins, and the one before it.
    next: Vec<u32>,
    before: Vec<u32>,
    /// What it becomes together with the next one.
    merged: Vec<u32>,
    /// Merges by rank and place, some of them out of date.
    heap: BinaryHeap<Reverse<u64>>,
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// A hash of pairs of tokens. The vocabulary is fixed, so it cannot be chosen to make them collide.
#[derive(Default)]
struct PairHasher {
    hash: u64,
}

impl Hasher for PairHasher {
    fn write_u64(&mut self, value: u64) {
        let mixed = (value ^ value >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ mixed >> 29;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(self.hash << 8 | u64::from(byte)));
    }

    fn finish(&self) -> u64 {
        self.hash
    }
}
