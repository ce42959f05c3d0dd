//! Rows that are in memory already: for programs that embed a learner, and for tests.

use std::sync::Arc;

use super::{FileEntry, IndexedSource, Lists, Manifest, Piece, Positions, Records};
use crate::data::{Digest, Table, Values};
use crate::error::{Error, Result};

/// A table as a source.
///
/// ```
/// use anemone::data::{Values, Table};
/// use anemone::source::IndexedSource;
/// use anemone::source::memory::MemorySource;
///
/// let table = Table::new(2, Values::U8(vec![0, 1, 1, 0, 1, 1]))?;
/// let source = MemorySource::new("coins", table)?;
/// assert_eq!(source.num_rows(), Some(3));
/// # Ok::<(), anemone::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemorySource {
    name: Arc<str>,
    table: Table,
    manifest: Manifest,
}

impl MemorySource {
    /// The rows of a table. Messages call it `name`.
    pub fn new(name: &str, table: Table) -> Result<Self> {
        if table.num_rows() == 0 {
            return Err(Error::data(format!("{name}: no rows")));
        }
        let entry = FileEntry { name: name.into(), bytes: table.num_bytes() as u64, digest: digest(&table) };
        let manifest = Manifest::new("memory", vec![entry], "");
        Ok(Self { name: name.into(), table, manifest })
    }
}

/// Of all cells, with their type; what a missing cell holds does not matter, but takes part.
fn digest(table: &Table) -> String {
    let (kind, bytes): (&str, Vec<u8>) = match table.values() {
        Values::U8(values) => ("u8", values.clone()),
        Values::U16(values) => ("u16", values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        Values::U32(values) => ("u32", values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        Values::F32(values) => ("f32", values.iter().flat_map(|value| value.to_le_bytes()).collect()),
    };
    let missing: Vec<u8> = table.missing().unwrap_or_default().iter().map(|&missing| u8::from(missing)).collect();
    Digest::new().part(kind).part((table.num_vars() as u64).to_le_bytes()).part(bytes).part(missing).finish()
}

impl IndexedSource for MemorySource {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn num_rows(&self) -> Option<u64> {
        Some(self.table.num_rows() as u64)
    }

    fn gather(&self, rows: &[u64]) -> Result<Piece> {
        let num_rows = self.table.num_rows();
        if let Some(row) = rows.iter().find(|&&row| row >= num_rows as u64) {
            return Err(Error::data(format!("{}: row {row} is outside 0..{num_rows}", self.name)));
        }
        // An empty table takes the type of the first rows it is given.
        let mut picked = Table::new(self.table.num_vars(), Values::U8(Vec::new()))?;
        picked.append_rows(&self.table, rows.iter().map(|&row| row as usize))?;
        Ok(Piece {
            file: self.name.clone(),
            positions: Positions::RowNumbers(rows.to_vec()),
            records: Records::Lists(Lists {
                values: picked.values().clone(),
                ends: (1..=rows.len()).map(|row| row * self.table.num_vars()).collect(),
                missing: picked.missing().filter(|mask| mask.contains(&true)).map(<[bool]>::to_vec),
            }),
            bad: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(piece: Piece) -> Lists {
        let Records::Lists(lists) = piece.records else { panic!("rows are lists") };
        lists
    }

    #[test]
    fn rows_come_in_the_order_they_are_asked_for_with_type_and_missing_cells() {
        for values in [
            Values::U8(vec![0, 1, 2, 3, 4, 5]),
            Values::U16(vec![0, 1, 2, 3, 4, 500]),
            Values::U32(vec![0, 1, 2, 3, 4, 70_000]),
            Values::F32(vec![0.0, 1.0, 2.0, 3.0, 4.0, 0.5]),
        ] {
            let mask = vec![false, false, true, false, false, false];
            let table = Table::new(2, values.clone()).unwrap().with_missing(mask).unwrap();
            let source = MemorySource::new("here", table).unwrap();
            let got = lists(source.gather(&[2, 0]).unwrap());
            assert_eq!((got.ends, got.missing), (vec![2, 4], None));
            assert_eq!((got.values.slice(0..2), got.values.slice(2..4)), (values.slice(4..6), values.slice(0..2)));
            let got = lists(source.gather(&[0, 1]).unwrap());
            assert_eq!(got.missing, Some(vec![false, false, true, false]));
        }
    }

    #[test]
    fn rows_that_are_not_there_are_refused() {
        let source = MemorySource::new("here", Table::new(1, Values::U8(vec![1, 2])).unwrap()).unwrap();
        assert_eq!(source.gather(&[2]).unwrap_err().to_string(), "here: row 2 is outside 0..2");
        assert!(MemorySource::new("here", Table::new(1, Values::U8(vec![])).unwrap()).is_err());
    }

    #[test]
    fn any_change_of_the_content_is_other_data() {
        let digest = |num_vars, values: Vec<u8>, mask: Option<Vec<bool>>| {
            let mut table = Table::new(num_vars, Values::U8(values)).unwrap();
            if let Some(mask) = mask {
                table = table.with_missing(mask).unwrap();
            }
            MemorySource::new("here", table).unwrap().manifest().digest.clone()
        };
        let base = digest(2, vec![1, 2, 3, 4], None);
        assert_eq!(base, digest(2, vec![1, 2, 3, 4], None));
        assert_ne!(base, digest(1, vec![1, 2, 3, 4], None));
        assert_ne!(base, digest(2, vec![1, 2, 3, 5], None));
        assert_ne!(base, digest(2, vec![1, 2, 3, 4], Some(vec![false, true, false, false])));
    }
}
