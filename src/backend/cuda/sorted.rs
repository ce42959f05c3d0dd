//! The rows of a micro-batch by the category that they have, table by table: what the flows of tables are added up
//! along.
//!
//! Counting sort on the host, in the order of uses and rows, so that every category has one list of flow rows, added in
//! a fixed order by whoever owns it. Lists of more than 256 rows are cut into pieces that are summed first, into
//! scratch rows.

use std::ops::Range;

use super::descriptors::{MISSING, ParamDesc, Piece, UseDesc};
use super::program::{BlockClass, CellColumn, Program};
use super::slabs::{PIECE, WorkspaceSizes};
use crate::data::Batch;

/// Lists of items: where a flow row lies in the flows, in eighths.
#[derive(Clone, Debug, Default)]
pub(super) struct Sorted {
    /// Per table, where the items of each category start, and where the last end.
    pub starts: Vec<u32>,
    /// Per table, the summed row of all its missing cells.
    pub missing: Vec<u32>,
    pub items: Vec<u32>,
    /// Round after round.
    pub pieces: Vec<Piece>,
    /// Pieces of each round: a round sums what the one before it made.
    pub rounds: Vec<Range<usize>>,
    /// The most units of any piece.
    pub units: usize,
}

/// Long lists, until their place behind the others is known.
#[derive(Default)]
struct Cuts {
    items: Vec<u32>,
    rounds: Vec<Vec<Piece>>,
    /// The next scratch row, in eighths.
    scratch: usize,
}

impl Cuts {
    /// Sums a list in pieces until it has at most `most` items.
    fn shorten(&mut self, mut list: Vec<u32>, most: usize, table: &ParamDesc) -> Vec<u32> {
        for round in 0.. {
            if list.len() <= most {
                break;
            }
            if self.rounds.len() == round {
                self.rounds.push(Vec::new());
            }
            let mut sums = Vec::with_capacity(list.len().div_ceil(PIECE));
            for part in list.chunks(PIECE) {
                let out = self.scratch as u32;
                self.scratch += table.ld as usize / 8;
                let (first, count) = (self.items.len() as u32, part.len() as u32);
                self.items.extend_from_slice(part);
                self.rounds[round].push(Piece { first, count, out, units: table.units as u32 });
                sums.push(out);
            }
            list = sums;
        }
        list
    }
}

impl Sorted {
    /// Sorts some rows of a batch.
    pub fn new(program: &Program, sizes: &WorkspaceSizes, batch: &Batch, rows: &Range<usize>) -> Self {
        let mut sorted = Self::default();
        let mut cuts = Cuts { scratch: sizes.scratch_at / 8, ..Cuts::default() };
        for table in program.params.class(BlockClass::Table) {
            let uses = &program.uses[table.first_use as usize..][..table.num_uses as usize];
            sorted.add_table(table, uses, &program.columns, sizes.capacity, batch, rows, &mut cuts);
            sorted.units = sorted.units.max(table.units as usize);
        }
        let behind = sorted.items.len() as u32;
        sorted.items.append(&mut cuts.items);
        for round in cuts.rounds {
            let start = sorted.pieces.len();
            sorted.pieces.extend(round.into_iter().map(|piece| Piece { first: piece.first + behind, ..piece }));
            sorted.rounds.push(start..sorted.pieces.len());
        }
        sorted
    }

    #[allow(clippy::too_many_arguments)] // what the loop above has in hand
    fn add_table(
        &mut self,
        table: &ParamDesc,
        uses: &[UseDesc],
        columns: &[CellColumn],
        capacity: usize,
        batch: &Batch,
        rows: &Range<usize>,
        cuts: &mut Cuts,
    ) {
        let cats = table.slots as usize;
        // Category of a cell, `cats` where it is missing, and where its flow row lies.
        let cells = || {
            uses.iter().flat_map(move |u| {
                let var = columns[u.cells as usize].var;
                let (column, missing) = (batch.column(var), batch.missing(var));
                rows.clone().map(move |row| {
                    let item = (u.flow.at as usize * capacity + (row - rows.start) * u.flow.ld as usize) / 8;
                    let is_missing = missing.is_some_and(|m| m[row]);
                    let cat = if is_missing { cats } else { column.category(row).map_or(cats, |c| c as usize) };
                    (cat, item as u32)
                })
            })
        };
        let mut ends = vec![0u32; cats + 2];
        cells().for_each(|(cat, _)| ends[cat + 1] += 1);
        for cat in 0..=cats {
            ends[cat + 1] += ends[cat];
        }
        let starts = ends.clone();
        let mut next = ends;
        let mut items = vec![0u32; starts[cats + 1] as usize];
        for (cat, item) in cells() {
            items[next[cat] as usize] = item;
            next[cat] += 1;
        }
        for cat in 0..cats {
            self.starts.push(self.items.len() as u32);
            let list = &items[starts[cat] as usize..starts[cat + 1] as usize];
            match list.len() {
                ..=PIECE => self.items.extend_from_slice(list),
                _ => self.items.extend(cuts.shorten(list.to_vec(), PIECE, table)),
            }
        }
        self.starts.push(self.items.len() as u32);
        let missing = cuts.shorten(items[starts[cats] as usize..].to_vec(), 1, table);
        self.missing.push(missing.first().copied().unwrap_or(MISSING));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circuit::Categorical;
    use crate::structure::hmm;

    /// Adds up a list as the device does: what its items stand for, sorted.
    fn expand(sorted: &Sorted, items: &[u32]) -> Vec<u32> {
        let made = |item: &u32| sorted.pieces.iter().find(|p| p.out == *item);
        let mut all: Vec<u32> = (items.iter())
            .flat_map(|item| match made(item) {
                Some(p) => expand(sorted, &sorted.items[p.first as usize..][..p.count as usize]),
                None => vec![*item],
            })
            .collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn every_cell_is_in_the_list_of_its_category_once() {
        let circuit = hmm(3, 4, Categorical::new(5).unwrap()).unwrap();
        let program = Program::new(&circuit).unwrap();
        let num_rows = 700;
        let values: Vec<u8> = (0..3 * num_rows).map(|i| if i % 3 == 0 { 2 } else { (i % 5) as u8 }).collect();
        let batch = Batch::from_rows(&values, 3).unwrap().with_missing(|row, var| row % 2 == 0 && var == 2);
        let sizes = WorkspaceSizes::new(&program, num_rows);
        let rows = 100..num_rows;
        let sorted = Sorted::new(&program, &sizes, &batch, &rows);
        assert!(sorted.items.len() <= sizes.feed.len - sizes.feed.items_at);
        assert!(4 * sorted.pieces.len() <= sizes.feed.items_at - sizes.feed.pieces_at);
        assert!(sorted.pieces.iter().all(|p| p.count as usize <= PIECE));

        let table = &program.params.class(BlockClass::Table)[0];
        let uses = &program.uses[table.first_use as usize..][..table.num_uses as usize];
        let mut want = vec![Vec::new(); 6];
        for u in uses {
            let var = program.columns[u.cells as usize].var;
            for row in rows.clone() {
                let at = u.flow.at as usize * num_rows + (row - 100) * u.flow.ld as usize;
                let cat = if batch.is_missing(row, var) { 5 } else { values[3 * row + var] as usize };
                want[cat].push(at as u32 / 8);
            }
        }
        want.iter_mut().for_each(|list| list.sort_unstable());
        assert!(want[2].len() > PIECE, "some list is long");
        for (cat, want) in want[..5].iter().enumerate() {
            let list = &sorted.items[sorted.starts[cat] as usize..sorted.starts[cat + 1] as usize];
            assert!(list.len() <= PIECE);
            assert_eq!(&expand(&sorted, list), want, "category {cat}");
        }
        assert_eq!(expand(&sorted, &sorted.missing), want[5], "missing cells");
        assert_eq!(sorted.rounds.len(), 2, "300 missing cells are two pieces, and one sum of both");
    }
}
