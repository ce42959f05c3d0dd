//! How much each pair of variables tells about each other, estimated from data.
//!
//! Two estimates: exact counts of pairs of categories, for variables of few categories, and PyJuice's soft bins, for
//! variables of many ordered categories or real values; pairs of both kinds have a bin for every category. Structures
//! need only the order of the numbers.
//!
//! Pairs are computed in fixed tiles on the current thread pool and each pair belongs to one task, so the result does
//! not depend on the number of threads. Missing cells are skipped pair by pair: a pair is judged by the rows in which
//! both are present, and one without such rows counts as independent. Row weights count.

mod columns;
mod counts;
mod soft_bins;

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use self::columns::Table;
use super::at_least_one;
use crate::data::{Batch, Values};
use crate::error::{Error, Result};

/// Up to this many categories, [`MutualInformation::Auto`] counts.
const MAX_COUNTED_CATS: u32 = 32;

/// Pairs are handed to threads in squares of this many variables: large enough to reuse the columns in the cache.
const TILE: usize = 16;

/// How mutual information is estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum MutualInformation {
    /// [`Counts`](Self::Counts) if all columns are integers below 32, [`ranks`](Self::ranks) if all hold real numbers,
    /// [`mixed`](Self::mixed) if only some do, else [`soft_bins`](Self::soft_bins).
    #[default]
    Auto,
    /// From the joint counts of categories, without smoothing, in nats. For integer columns.
    Counts,
    /// From histograms in which a value falls into all bins around it: the rule of PyJuice's HCLT.
    ///
    /// Columns are taken in chunks and each chunk is scaled to [0, 1] as a whole, so where ranges differ the result
    /// depends on the chunks. Real columns need memory of `num_rows × num_vars` times 4 bytes a bin in reach, where
    /// bins are in reach of a value up to about 7.4·sigma.
    SoftBins {
        /// Bins, with centres equally spaced from 0 to 1 inclusive.
        num_bins: usize,
        /// How far a value reaches, as the standard deviation of a Gaussian, where the range is 1.
        sigma: f64,
        /// Columns scaled together.
        chunk_size: usize,
    },
    /// Soft bins over the ranks of a column's values instead of the values: a unit of measurement, a shift or a few
    /// huge values change nothing, as they change nothing about mutual information. For real numbers.
    Ranks {
        /// Bins, with centres equally spaced from 0 to 1 inclusive.
        num_bins: usize,
        /// How far a value reaches, as the standard deviation of a Gaussian, where all ranks span 1.
        sigma: f64,
    },
    /// Ranks of real columns, and categories as they are where a column holds integers: any two kinds of column are
    /// compared, and two columns of categories by their counts. Beyond 256 categories of a column the rest is one.
    Mixed {
        /// Bins of a real column, with centres equally spaced from 0 to 1 inclusive.
        num_bins: usize,
        /// How far a real value reaches, as the standard deviation of a Gaussian, where all ranks span 1.
        sigma: f64,
    },
}

impl MutualInformation {
    /// Soft bins with PyJuice's defaults.
    pub const fn soft_bins() -> Self {
        Self::SoftBins { num_bins: 32, sigma: 0.5 / 32.0, chunk_size: 64 }
    }

    /// Ranks in as many soft bins.
    pub const fn ranks() -> Self {
        Self::Ranks { num_bins: 32, sigma: 0.5 / 32.0 }
    }

    /// Ranks in as many soft bins beside categories.
    pub const fn mixed() -> Self {
        Self::Mixed { num_bins: 32, sigma: 0.5 / 32.0 }
    }

    /// What `Auto` means for this data; the others mean themselves.
    pub(super) fn resolve(self, data: &Batch) -> Self {
        let few = |var: usize| match data.column(var) {
            Values::F32(_) => false,
            column => column.first_outside(MAX_COUNTED_CATS, data.missing(var)).is_none(),
        };
        match self {
            Self::Auto if (0..data.num_vars()).all(few) => Self::Counts,
            Self::Auto => match (0..data.num_vars()).filter(|&var| is_real(data, var)).count() {
                0 => Self::soft_bins(),
                reals if reals == data.num_vars() => Self::ranks(),
                _ => Self::mixed(),
            },
            chosen => chosen,
        }
    }

    fn check(self) -> Result<()> {
        let (num_bins, sigma, chunk_size) = match self {
            Self::SoftBins { num_bins, sigma, chunk_size } => (num_bins, sigma, chunk_size),
            Self::Ranks { num_bins, sigma } | Self::Mixed { num_bins, sigma } => (num_bins, sigma, 1),
            Self::Auto | Self::Counts => return Ok(()),
        };
        at_least_one("chunk_size", chunk_size)?;
        if num_bins < 2 {
            return Err(Error::option(format!("num_bins = {num_bins}: must be at least 2")));
        }
        // Narrower, and a value between two centres belongs to no bin as far as an f32 can tell.
        let narrowest = 1.0 / (24.0 * (num_bins - 1) as f64);
        if !(sigma.is_finite() && sigma >= narrowest) {
            return Err(Error::option(format!(
                "sigma = {sigma}: must be a number, at least {narrowest:.6} with {num_bins} bins"
            )));
        }
        Ok(())
    }
}

/// A number for every pair of variables; symmetric.
#[derive(Clone, Debug, PartialEq)]
pub struct InformationMatrix {
    num_vars: usize,
    /// `[num_vars × num_vars]`.
    values: Vec<f64>,
}

impl InformationMatrix {
    /// The matrix of `information(u, v)`, asked for once per pair, `u ≤ v`.
    pub fn from_fn(num_vars: usize, information: impl Fn(usize, usize) -> f64) -> Self {
        let mut matrix = Self { num_vars, values: vec![0.0; num_vars * num_vars] };
        for u in 0..num_vars {
            (u..num_vars).for_each(|v| matrix.set(u, v, information(u, v)));
        }
        matrix
    }

    /// How many variables.
    pub fn num_vars(&self) -> usize {
        self.num_vars
    }

    /// What `u` and `v` tell about each other.
    pub fn get(&self, u: usize, v: usize) -> f64 {
        self.values[u * self.num_vars + v]
    }

    fn set(&mut self, u: usize, v: usize, value: f64) {
        self.values[u * self.num_vars + v] = value;
        self.values[v * self.num_vars + u] = value;
    }
}

/// The mutual information of every pair of variables, and of each variable with itself.
///
/// ```
/// use anemone::data::Batch;
/// use anemone::structure::{MutualInformation, mutual_information};
///
/// // The first two coins always agree, the third is on its own.
/// let data = Batch::from_rows(&[0u8, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1], 3)?;
/// let information = mutual_information(&data, MutualInformation::Auto)?;
/// assert!((information.get(0, 1) - 2f64.ln()).abs() < 1e-12 && information.get(0, 2) < 1e-12);
/// # Ok::<(), anemone::Error>(())
/// ```
pub fn mutual_information(data: &Batch, how: MutualInformation) -> Result<InformationMatrix> {
    mutual_information_telling(data, how, &|_| ())
}

/// The same. `tell` is told by any thread how much of it is done, from 0 to 1: many variables take minutes.
pub fn mutual_information_telling(
    data: &Batch,
    how: MutualInformation,
    tell: &(dyn Fn(f64) + Sync),
) -> Result<InformationMatrix> {
    let vars: Vec<usize> = (0..data.num_vars()).collect();
    information_among(data, &vars, how.resolve(data), tell)
}

/// The mutual information among some of the variables; `(u, v)` of the result are positions in `vars`. `Auto` must
/// have been resolved, over all the data: boxes of one image should not differ in the estimate.
pub(super) fn information_among(
    data: &Batch,
    vars: &[usize],
    how: MutualInformation,
    tell: &(dyn Fn(f64) + Sync),
) -> Result<InformationMatrix> {
    how.check()?;
    let table = Table::new(data, vars)?;
    let among = |bins: &soft_bins::SoftBins<'_>| {
        every_pair(vars.len(), || bins.scratch(), |u, v, scratch| bins.information(u, v, scratch), tell)
    };
    match how {
        MutualInformation::SoftBins { num_bins, sigma, chunk_size } => {
            Ok(among(&soft_bins::SoftBins::of_values(&table, num_bins, sigma, chunk_size)))
        }
        MutualInformation::Ranks { num_bins, sigma } => {
            Ok(among(&soft_bins::SoftBins::of_ranks(&table, num_bins, sigma)))
        }
        MutualInformation::Mixed { num_bins, sigma } => {
            let is_category: Vec<bool> = vars.iter().map(|&var| !is_real(data, var)).collect();
            Ok(among(&soft_bins::SoftBins::of_mixed(&table, &is_category, num_bins, sigma)))
        }
        MutualInformation::Counts | MutualInformation::Auto => {
            if let Some(&var) = vars.iter().find(|&&var| matches!(data.column(var), Values::F32(_))) {
                return Err(Error::option(format!(
                    "mutual information by counts: variable {var} holds real numbers, which have no counts; \
                     use soft bins"
                )));
            }
            let counts = counts::Counts::new(&table);
            let information = |u, v, scratch: &mut _| counts.information(u, v, scratch);
            Ok(every_pair(vars.len(), columns::JointScratch::default, information, tell))
        }
    }
}

fn is_real(data: &Batch, var: usize) -> bool {
    matches!(data.column(var), Values::F32(_))
}

/// Computes every pair `u ≤ v`, tile by tile. Scratch is made once per tile; it must not carry results over.
fn every_pair<S>(
    num_vars: usize,
    scratch: impl Fn() -> S + Sync,
    information: impl Fn(usize, usize, &mut S) -> f64 + Sync,
    tell: &(dyn Fn(f64) + Sync),
) -> InformationMatrix {
    let done = AtomicUsize::new(0);
    let starts = || (0..num_vars).step_by(TILE);
    let tiles: Vec<_> = starts().flat_map(|u| starts().filter(move |v| *v >= u).map(move |v| (u, v))).collect();
    let pairs_of = |(u0, v0): (usize, usize)| {
        let (u_end, v_end) = ((u0 + TILE).min(num_vars), (v0 + TILE).min(num_vars));
        (u0..u_end).flat_map(move |u| (v0.max(u)..v_end).map(move |v| (u, v)))
    };
    let computed: Vec<Vec<f64>> = tiles
        .par_iter()
        .map(|&tile| {
            let mut scratch = scratch();
            let values = pairs_of(tile).map(|(u, v)| information(u, v, &mut scratch)).collect();
            tell((done.fetch_add(1, Ordering::Relaxed) + 1) as f64 / tiles.len() as f64);
            values
        })
        .collect();
    let mut matrix = InformationMatrix { num_vars, values: vec![0.0; num_vars * num_vars] };
    for (&tile, values) in tiles.iter().zip(computed) {
        pairs_of(tile).zip(values).for_each(|((u, v), value)| matrix.set(u, v, value));
    }
    matrix
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::rng::Rng;

    fn random_batch(num_rows: usize, num_vars: usize, cats: usize, seed: u64) -> Batch {
        let mut rng = Rng::new(seed);
        let values: Vec<u16> = (0..num_rows * num_vars).map(|_| rng.below(cats) as u16).collect();
        Batch::from_rows(&values, num_vars).unwrap()
    }

    #[test]
    fn the_result_does_not_depend_on_the_number_of_threads() {
        let data = random_batch(200, 40, 50, 1).with_missing(|row, var| (row + var) % 7 == 0);
        for how in [MutualInformation::Counts, MutualInformation::soft_bins()] {
            let with_threads = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| mutual_information(&data, how)).unwrap()
            };
            assert_eq!(with_threads(1), with_threads(3));
        }
    }

    #[test]
    fn auto_counts_few_categories_and_bins_many() {
        use MutualInformation::{Auto, Counts};
        assert_eq!(Auto.resolve(&random_batch(50, 3, 32, 1)), Counts);
        assert_eq!(Auto.resolve(&random_batch(500, 3, 200, 1)), MutualInformation::soft_bins());
        let real = Batch::from_rows(&[0.0f32, 1.0], 1).unwrap();
        assert_eq!(Auto.resolve(&real), MutualInformation::ranks());
        let one_is_missing = Batch::from_rows(&[1u16, 999], 1).unwrap().with_missing(|row, _| row == 1);
        assert_eq!(Auto.resolve(&one_is_missing), Counts);
        assert_eq!(Counts.resolve(&real), Counts);
    }

    #[test]
    fn rows_of_weight_two_count_as_two_rows() {
        let rows = [0u8, 3, 1, 1, 2, 0, 3, 3];
        let data = Batch::from_rows(&rows, 2).unwrap();
        let weighted = data.clone().with_weights(vec![1.0, 2.0, 0.0, 1.0]).unwrap();
        let doubled = Batch::from_rows(&[0u8, 3, 1, 1, 1, 1, 3, 3], 2).unwrap();
        for how in [MutualInformation::Counts, MutualInformation::soft_bins()] {
            let (a, b) = (mutual_information(&weighted, how).unwrap(), mutual_information(&doubled, how).unwrap());
            (0..4).for_each(|i| assert!((a.values[i] - b.values[i]).abs() < 1e-12, "{how:?}: {a:?} {b:?}"));
        }
    }

    #[test]
    fn data_and_options_without_meaning_are_refused() {
        let data = random_batch(10, 2, 4, 1);
        let soft = |num_bins, sigma, chunk_size| MutualInformation::SoftBins { num_bins, sigma, chunk_size };
        let auto = MutualInformation::Auto;
        let empty = Batch::from_columns(vec![Values::U8(vec![]), Values::U8(vec![])]).unwrap();
        let gone = data.clone().with_missing(|_, var| var == 1);
        let weightless = data.clone().with_weights(vec![0.0; 10]).unwrap();
        let nan = Batch::from_rows(&[0.0f32, f32::NAN], 1).unwrap();
        let real = Batch::from_rows(&[0.0f32, 1.0], 1).unwrap();
        let cases = [
            (mutual_information(&data, soft(1, 0.1, 4)), ErrorKind::Option, "num_bins = 1"),
            (mutual_information(&data, soft(8, 0.0, 4)), ErrorKind::Option, "sigma = 0"),
            (mutual_information(&data, soft(8, f64::NAN, 4)), ErrorKind::Option, "sigma = NaN"),
            (mutual_information(&data, soft(8, 0.1, 0)), ErrorKind::Option, "chunk_size = 0"),
            (mutual_information(&empty, auto), ErrorKind::Data, "no rows"),
            (mutual_information(&weightless, auto), ErrorKind::Data, "no rows"),
            (mutual_information(&gone, auto), ErrorKind::Data, "variable 1"),
            (mutual_information(&nan, auto), ErrorKind::Data, "row 1: variable 0"),
            (mutual_information(&real, MutualInformation::Counts), ErrorKind::Option, "variable 0 holds real numbers"),
        ];
        for (result, kind, words) in cases {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words), "`{error}` does not say `{words}`");
        }
    }
}
