//! Held-out rows of a synthetic source: those that come after the ones that are learned from.

use crate::error::Result;
use crate::source::synthetic::{Synthetic, SyntheticSpec};
use crate::source::{IndexedSource, Manifest, Piece, Records};

/// Rows of synthetic data that come after those learned from.
#[derive(Debug)]
pub struct HeldOutRows {
    synthetic: Synthetic,
    manifest: Manifest,
    first: u64,
    rows: u64,
}

/// Where held-out rows of an endless source begin: no run comes so far.
const BEYOND: u64 = 1 << 48;

impl HeldOutRows {
    /// `rows` rows after those of `spec`.
    pub fn new(spec: &SyntheticSpec, rows: u64) -> Result<Self> {
        let synthetic = Synthetic::new(&SyntheticSpec { rows: None, ..spec.clone() })?;
        let first = spec.rows.unwrap_or(BEYOND);
        let manifest = Manifest::new("synthetic", Vec::new(), &format!("{spec:?} {first} {rows}"));
        Ok(Self { synthetic, manifest, first, rows })
    }

    /// Mean log-likelihood of these rows under their own source, which no model beats but by chance.
    pub fn source_log_likelihood(&self) -> Result<f64> {
        let mut total = 0.0;
        for row in 0..self.rows {
            if let Records::Lists(lists) = self.gather(&[row])?.records {
                let values: Vec<u32> = (0..lists.values.len()).filter_map(|at| lists.values.category(at)).collect();
                total += self.synthetic.log_likelihood(&values);
            }
        }
        Ok(total / self.rows as f64)
    }
}

impl IndexedSource for HeldOutRows {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn num_rows(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn gather(&self, rows: &[u64]) -> Result<Piece> {
        let rows: Vec<u64> = rows.iter().map(|row| row + self.first).collect();
        self.synthetic.gather(&rows)
    }
}
