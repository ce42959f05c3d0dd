//! A vector cut into rows, of which ranks have some: where they lie, and how many numbers they are.
//!
//! Flows of a large table are zero but for the categories that a batch has. A [`RowSet`] says which rows of a vector
//! may be other than zero, a [`RowLayout`] where rows begin and how long they are. What is sent is *packed*: the
//! numbers of the rows of a set, one after the other. Used by `shard_sum` and by `backend/replicated.rs`.

use std::ops::Range;

/// Numbers of a row where a vector has no rows of its own: fine enough to be cut evenly.
const DENSE_ROW: usize = 1024;

/// How a vector is cut into rows.
#[derive(Clone, Debug, Default)]
pub struct RowLayout {
    groups: Vec<Group>,
    num_rows: usize,
    len: usize,
}

/// Rows of one length that lie one after the other.
#[derive(Clone, Debug)]
struct Group {
    rows: Range<usize>,
    /// Where the first one begins.
    start: usize,
    width: usize,
}

impl RowLayout {
    /// A vector that has no rows of its own.
    pub fn dense(len: usize) -> Self {
        let mut layout = Self::default();
        layout.push_dense(len);
        layout
    }

    /// The vector goes on with rows of one length. Returns their numbers.
    pub fn push(&mut self, width: usize, count: usize) -> Range<usize> {
        let rows = self.num_rows..self.num_rows + count;
        if width > 0 && count > 0 {
            self.groups.push(Group { rows: rows.clone(), start: self.len, width });
        }
        (self.num_rows, self.len) = (rows.end, self.len + width * count);
        rows
    }

    /// The vector goes on with numbers that have no rows. Returns the rows that they are put into.
    pub fn push_dense(&mut self, len: usize) -> Range<usize> {
        let whole = self.push(DENSE_ROW, len / DENSE_ROW);
        let last = self.push(len % DENSE_ROW, usize::from(!len.is_multiple_of(DENSE_ROW)));
        whole.start..last.end
    }

    /// Rows in all.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Calls with every row of a set among some: its number, and where it lies in the vector.
    fn for_each(&self, set: &RowSet, among: &Range<usize>, mut act: impl FnMut(usize, Range<usize>)) {
        for group in &self.groups {
            let rows = group.rows.start.max(among.start)..group.rows.end.min(among.end);
            set.for_each(&rows, |row| {
                let start = group.start + (row - group.rows.start) * group.width;
                act(row, start..start + group.width);
            });
        }
    }

    /// How many numbers the rows of a set among some have.
    pub fn numbers_of(&self, set: &RowSet, among: &Range<usize>) -> usize {
        let of_group = |group: &Group| {
            let rows = group.rows.start.max(among.start)..group.rows.end.min(among.end);
            set.count(&rows) * group.width
        };
        self.groups.iter().map(of_group).sum()
    }

    /// The stretches of the vector that the rows of a set make up, in order.
    pub fn spans(&self, set: &RowSet) -> Vec<Range<usize>> {
        let mut spans: Vec<Range<usize>> = Vec::new();
        self.for_each(set, &(0..self.num_rows), |_, span| match spans.last_mut() {
            Some(last) if last.end == span.start => last.end = span.end,
            _ => spans.push(span),
        });
        spans
    }

    /// Cuts all rows into `parts` runs, of which each has about as many numbers of the set.
    pub fn cut(&self, set: &RowSet, parts: usize) -> Vec<Range<usize>> {
        let total = self.numbers_of(set, &(0..self.num_rows));
        let mut ends = Vec::with_capacity(parts);
        let mut seen = 0;
        self.for_each(set, &(0..self.num_rows), |row, span| {
            // A row belongs to the part that its first number falls into.
            while ends.len() + 1 < parts && seen >= (ends.len() + 1) * total / parts {
                ends.push(row);
            }
            seen += span.len();
        });
        ends.resize(parts, self.num_rows);
        let mut start = 0;
        ends.into_iter().map(|end| std::mem::replace(&mut start, end)..end).collect()
    }

    /// Puts packed numbers of a part's rows to their places among packed numbers of a whole's, among some rows: adds
    /// them, or writes them and zeros where the part has none.
    pub fn place<T: Copy + Default + std::ops::AddAssign>(
        &self,
        (whole, part): (&RowSet, &RowSet),
        among: &Range<usize>,
        numbers: &[T],
        into: &mut [T],
        how: Place,
    ) {
        let (mut from, mut to) = (numbers, into);
        self.for_each(whole, among, |row, span| {
            let into = to.split_off_mut(..span.len()).expect("as many numbers as the whole has");
            match (how, part.contains(row)) {
                (Place::Write, false) => into.fill(T::default()),
                (Place::Add, false) => {}
                (how, true) => {
                    let own = from.split_off(..span.len()).expect("as many numbers as the part has");
                    match how {
                        Place::Write => into.copy_from_slice(own),
                        Place::Add => into.iter_mut().zip(own).for_each(|(x, &y)| *x += y),
                    }
                }
            }
        });
    }
}

/// What [`RowLayout::place`] does with numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Replaces what is there.
    Write,
    /// Adds to it.
    Add,
}

/// Some rows of a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSet {
    bits: Vec<u64>,
}

impl RowSet {
    /// No rows, of so many.
    pub fn none(num_rows: usize) -> Self {
        Self { bits: vec![0; num_rows.div_ceil(64)] }
    }

    /// All rows, of so many.
    pub fn all(num_rows: usize) -> Self {
        let mut set = Self::none(num_rows);
        set.insert_all(0..num_rows);
        set
    }

    /// Adds a row.
    pub fn insert(&mut self, row: usize) {
        self.bits[row / 64] |= 1 << (row % 64);
    }

    /// Adds a run of rows.
    pub fn insert_all(&mut self, rows: Range<usize>) {
        rows.for_each(|row| self.insert(row));
    }

    /// Adds the rows of another set.
    pub fn unite(&mut self, other: &Self) {
        self.bits.iter_mut().zip(&other.bits).for_each(|(bits, other)| *bits |= other);
    }

    /// Returns true if it has a row.
    pub fn contains(&self, row: usize) -> bool {
        self.bits[row / 64] >> (row % 64) & 1 == 1
    }

    /// The 64 rows of a word, without those outside of a run.
    fn word(&self, word: usize, among: &Range<usize>) -> u64 {
        let (start, end) = (among.start.max(word * 64) - word * 64, among.end.min((word + 1) * 64) - word * 64);
        let below = |bits: usize| if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        self.bits[word] & below(end) & !below(start)
    }

    fn words(among: &Range<usize>) -> Range<usize> {
        if among.is_empty() { 0..0 } else { among.start / 64..among.end.div_ceil(64) }
    }

    fn for_each(&self, among: &Range<usize>, mut act: impl FnMut(usize)) {
        for word in Self::words(among) {
            let mut bits = self.word(word, among);
            while bits != 0 {
                act(word * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    fn count(&self, among: &Range<usize>) -> usize {
        Self::words(among).map(|word| self.word(word, among).count_ones() as usize).sum()
    }

    /// As bytes, eight per 64 rows.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bits.iter().flat_map(|bits| bits.to_le_bytes()).collect()
    }

    /// How many bytes a set of so many rows is.
    pub fn num_bytes(num_rows: usize) -> usize {
        8 * num_rows.div_ceil(64)
    }

    /// What [`to_bytes`](Self::to_bytes) made.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        Self { bits: bytes.chunks_exact(8).map(word).collect() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(num_rows: usize, rows: &[usize]) -> RowSet {
        let mut set = RowSet::none(num_rows);
        rows.iter().filter(|row| **row < num_rows).for_each(|&row| set.insert(row));
        set
    }

    proptest! {
        #[test]
        fn packed_numbers_find_their_places(
            groups in prop::collection::vec((0usize..5, 0usize..90), 1..6),
            picks in prop::collection::vec(0usize..400, 0..80),
            others in prop::collection::vec(0usize..400, 0..80),
            parts in 1usize..6,
        ) {
            let mut layout = RowLayout::default();
            let len: usize = groups.iter().map(|(width, count)| width * count).sum();
            for &(width, count) in &groups {
                layout.push(width, count);
            }
            let all = 0..layout.num_rows();
            let (part, mut whole) = (set(all.end, &picks), set(all.end, &others));
            whole.unite(&part);
            prop_assert_eq!(&RowSet::from_bytes(&whole.to_bytes()), &whole);
            // By definition: a vector that is zero outside of the part's spans.
            let vector: Vec<i64> = (1..=len as i64).collect();
            let packed = |set: &RowSet| -> Vec<i64> {
                layout.spans(set).into_iter().flat_map(|span| &vector[span]).copied().collect()
            };
            let is_of_part: Vec<bool> =
                (1..=len as i64).map(|x| packed(&part).contains(&x)).collect();
            let want: Vec<i64> =
                packed(&whole).into_iter().map(|x| if is_of_part[x as usize - 1] { x } else { 0 }).collect();
            // Cut anywhere, the parts make up the whole.
            let mut written = Vec::new();
            let mut rest = &packed(&part)[..];
            let cuts = layout.cut(&whole, parts);
            prop_assert!(cuts.iter().cloned().flatten().eq(all.clone()));
            for cut in cuts {
                let own = rest.split_off(..layout.numbers_of(&part, &cut)).unwrap();
                let mut into = vec![7; layout.numbers_of(&whole, &cut)];
                layout.place((&whole, &part), &cut, own, &mut into, Place::Write);
                let mut twice = into.clone();
                layout.place((&whole, &part), &cut, own, &mut twice, Place::Add);
                prop_assert!(into.iter().zip(&twice).all(|(once, twice)| 2 * once == *twice));
                written.extend(into);
            }
            prop_assert!(rest.is_empty());
            prop_assert_eq!(written, want);
        }
    }

    #[test]
    fn cuts_are_even_and_dense_vectors_are_cut_finely() {
        let mut layout = RowLayout::default();
        layout.push_dense(10 * DENSE_ROW + 5);
        layout.push(8, 1000);
        let mut set = RowSet::all(layout.num_rows());
        assert_eq!(layout.num_rows(), 1011);
        assert_eq!(layout.numbers_of(&set, &(0..1011)), 10 * DENSE_ROW + 5 + 8000);
        let sizes =
            |set: &RowSet| -> Vec<usize> { layout.cut(set, 4).iter().map(|cut| layout.numbers_of(set, cut)).collect() };
        assert!(sizes(&set).iter().all(|size| size.abs_diff(18_245 / 4) <= DENSE_ROW), "{:?}", sizes(&set));
        set = RowSet::none(1011);
        assert_eq!(sizes(&set), [0; 4]);
    }
}
