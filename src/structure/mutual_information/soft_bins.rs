//! Mutual information from soft histograms: PyJuice's rule for hidden Chow–Liu trees.
//!
//! With x scaled to [0, 1] and bin centres c_a equally spaced, r(x, a) = exp(−½((x − c_a)/σ)²). A marginal is the mean
//! over rows of r normalised per row; a joint is Σ r(x, a)·r(y, b) normalised once, over all bins. With
//! H(p) = −Σ p·log(p + 10⁻⁴) the information is H(u) + H(v) − H(uv). The two normalisations do not match, and the
//! result is not an exact information; it is what the published structures were learned with.
//!
//! A value reaches few bins, so its r is kept as a *band*: some consecutive bins, as many for every value of a column.

use rayon::prelude::*;

use super::columns::{CodedColumn, Table};

/// Bins are handled eight at a time, so that the compiler can use vectors of any width.
const LANES: usize = 8;

/// Bins whose r is below this share of the value's largest are left out.
const NEGLIGIBLE: f64 = 1e-12;

/// A variable whose values occur in at least this many rows each, on average, is added value by value.
const ROWS_PER_LINE: usize = 4;

/// Categories that have a bin of their own: a histogram has the square of these.
const MOST_CATEGORIES: usize = 256;

pub(super) struct SoftBins<'a> {
    table: &'a Table,
    bands: Vec<Bands>,
    /// H of each variable's marginal over all its rows. Pairs with missing cells have margins of their own.
    entropies: Vec<f64>,
    /// Bins, rounded up to whole lanes; nothing falls into the extra ones.
    padded_bins: usize,
}

/// The bands of all distinct values of one column.
struct Bands {
    /// Bins in a band; whole lanes.
    width: usize,
    /// For each distinct value, its first bin; then one more, for a missing value.
    starts: Vec<u32>,
    /// `[(distinct values + 1) × width]`; a missing value reaches nothing.
    reach: Vec<f32>,
}

impl<'a> SoftBins<'a> {
    /// Over the values, scaled to [0, 1] `chunk_size` columns at a time.
    pub(super) fn of_values(table: &'a Table, num_bins: usize, sigma: f64, chunk_size: usize) -> Self {
        let mut bands = Vec::with_capacity(table.columns.len());
        for chunk in table.columns.chunks(chunk_size) {
            // Over the chunk as a whole, not column by column.
            let values = || chunk.iter().flat_map(|column| column.values.iter().copied());
            let low = values().fold(f64::INFINITY, f64::min);
            let high = values().fold(f64::NEG_INFINITY, f64::max);
            let scale = |value: &f64| (value - low) / (high - low + 1e-8);
            let scaled = |column: &CodedColumn| column.values.iter().map(scale).collect::<Vec<_>>();
            bands.extend(chunk.iter().map(|column| Bands::new(&scaled(column), num_bins, sigma)));
        }
        Self::with_bands(table, bands, num_bins)
    }

    /// Over the ranks of the values, each column's from 0 to 1.
    pub(super) fn of_ranks(table: &'a Table, num_bins: usize, sigma: f64) -> Self {
        let of = |column: &CodedColumn| Bands::new(&ranks(table, column), num_bins, sigma);
        Self::with_bands(table, table.columns.par_iter().map(of).collect(), num_bins)
    }

    /// Over the ranks of the values, and over categories where a column has these: each has a bin of its own, so that
    /// two columns of categories are counted.
    pub(super) fn of_mixed(table: &'a Table, is_category: &[bool], num_bins: usize, sigma: f64) -> Self {
        let of = |(column, &is_category): (&CodedColumn, &bool)| match is_category {
            true => Bands::of_categories(column.values.len()),
            false => Bands::new(&ranks(table, column), num_bins, sigma),
        };
        let categories = table.columns.iter().zip(is_category).filter(|(_, is)| **is).map(|(c, _)| c.values.len());
        let most = categories.max().unwrap_or(0).min(MOST_CATEGORIES);
        let bands = table.columns.par_iter().zip(is_category).map(of).collect();
        Self::with_bands(table, bands, num_bins.max(most))
    }

    fn with_bands(table: &'a Table, bands: Vec<Bands>, num_bins: usize) -> Self {
        let padded_bins = num_bins.next_multiple_of(LANES);
        let mut bins = Self { table, bands, entropies: Vec::new(), padded_bins };
        bins.entropies = (0..table.columns.len()).map(|var| bins.margin_entropy(var, |_| true)).collect();
        bins
    }

    pub(super) fn scratch(&self) -> SoftScratch {
        SoftScratch { histogram: vec![0.0; self.padded_bins * self.padded_bins], lines: Vec::new() }
    }

    /// The information of variables `u` and `v`, by the rule of the module.
    pub(super) fn information(&self, u: usize, v: usize, scratch: &mut SoftScratch) -> f64 {
        scratch.histogram.fill(0.0);
        if self.table.columns[u].values.len() * ROWS_PER_LINE <= self.table.num_rows() {
            self.add_by_value(u, v, scratch);
        } else {
            self.add_by_row(u, v, scratch);
        }
        let total: f64 = scratch.histogram.iter().sum();
        if total == 0.0 {
            return 0.0; // no row has both: nothing speaks for an edge
        }
        let [column_u, column_v] = [u, v].map(|var| &self.table.columns[var]);
        let margins = if column_u.has_missing || column_v.has_missing {
            let both = |row: usize| column_u.is_present(row) && column_v.is_present(row);
            self.margin_entropy(u, both) + self.margin_entropy(v, both)
        } else {
            self.entropies[u] + self.entropies[v]
        };
        margins - entropy(&scratch.histogram, total)
    }

    /// Fills the joint histogram where u has few values: as Aᵀ·L, where line L[a] is the sum of v's bands over the
    /// rows in which u has its value `a`, and A holds the bands of u.
    fn add_by_value(&self, u: usize, v: usize, scratch: &mut SoftScratch) {
        let (codes_u, codes_v) = (&self.table.columns[u].codes, &self.table.columns[v].codes);
        let (bands_u, bands_v) = (&self.bands[u], &self.bands[v]);
        let SoftScratch { histogram, lines } = scratch;
        // Where u is missing, the line is one too many and not spread; where v is, its band is empty. So no row needs
        // a question.
        let num_values = self.table.columns[u].values.len();
        lines.clear();
        lines.resize((num_values + 1) * self.padded_bins, 0.0);
        let mut add = |a: u32, b: u32, weight: f64| {
            let (start, band) = bands_v.of(b as usize);
            add_scaled(&mut lines[a as usize * self.padded_bins + start..], band, weight);
        };
        match &self.table.weights {
            None => codes_u.iter().zip(codes_v).for_each(|(&a, &b)| add(a, b, 1.0)),
            Some(weights) => codes_u.iter().zip(codes_v).zip(weights).for_each(|((&a, &b), &w)| add(a, b, w)),
        }
        for (a, line) in lines.chunks_exact(self.padded_bins).take(num_values).enumerate() {
            let (start, band) = bands_u.of(a);
            let rows = histogram[start * self.padded_bins..].chunks_exact_mut(self.padded_bins);
            for (row, &reach) in rows.zip(band.as_flattened()) {
                add_scaled(row, line.as_chunks().0, f64::from(reach));
            }
        }
    }

    /// Fills the joint histogram row by row of the data.
    fn add_by_row(&self, u: usize, v: usize, scratch: &mut SoftScratch) {
        let [column_u, column_v] = [u, v].map(|var| &self.table.columns[var]);
        for row in (0..self.table.num_rows()).filter(|&row| column_u.is_present(row) && column_v.is_present(row)) {
            let (start_u, band_u) = self.bands[u].of(column_u.codes[row] as usize);
            let (start_v, band_v) = self.bands[v].of(column_v.codes[row] as usize);
            let weight = self.table.weight(row);
            let lines = scratch.histogram[start_u * self.padded_bins..].chunks_exact_mut(self.padded_bins);
            for (line, &reach) in lines.zip(band_u.as_flattened()) {
                add_scaled(&mut line[start_v..], band_v, weight * f64::from(reach));
            }
        }
    }

    /// H of the marginal of a variable over some of the rows in which it is present.
    fn margin_entropy(&self, var: usize, counts: impl Fn(usize) -> bool) -> f64 {
        let (column, bands) = (&self.table.columns[var], &self.bands[var]);
        let mut weights = vec![0.0; column.values.len()];
        for row in (0..self.table.num_rows()).filter(|&row| column.is_present(row) && counts(row)) {
            weights[column.codes[row] as usize] += self.table.weight(row);
        }
        let mut histogram = vec![0.0; self.padded_bins];
        for (value, &weight) in weights.iter().enumerate() {
            let (start, band) = bands.of(value);
            let total: f64 = band.as_flattened().iter().map(|&r| f64::from(r)).sum();
            add_scaled(&mut histogram[start..], band, weight / total);
        }
        entropy(&histogram, weights.iter().sum())
    }
}

impl Bands {
    /// A bin for every value of a column; those beyond [`MOST_CATEGORIES`] share the last.
    fn of_categories(num_values: usize) -> Self {
        let bins: Vec<usize> = (0..num_values).map(|value| value.min(MOST_CATEGORIES - 1)).collect();
        let mut reach = vec![0.0; (num_values + 1) * LANES];
        bins.iter().enumerate().for_each(|(value, bin)| reach[value * LANES + bin % LANES] = 1.0);
        let starts = bins.iter().map(|bin| (bin - bin % LANES) as u32).chain([0]).collect();
        Self { width: LANES, starts, reach }
    }

    /// `scaled` are a column's distinct values, in [0, 1].
    fn new(scaled: &[f64], num_bins: usize, sigma: f64) -> Self {
        let padded_bins = num_bins.next_multiple_of(LANES);
        let last = (num_bins - 1) as f64;
        let half_square = |x: f64, bin: usize| 0.5 * ((x - bin as f64 / last) / sigma).powi(2);
        // The first and last bin that matter to a value.
        let reach_of = |x: f64| {
            let nearest = (x * last).round() as usize;
            let limit = half_square(x, nearest) - NEGLIGIBLE.ln();
            let below = (0..nearest).rev().take_while(|&bin| half_square(x, bin) < limit).count();
            let above = (nearest + 1..num_bins).take_while(|&bin| half_square(x, bin) < limit).count();
            (nearest - below, nearest + above)
        };
        let spans: Vec<(usize, usize)> = scaled.iter().map(|&x| reach_of(x)).collect();
        let widest = spans.iter().map(|(first, last)| last - first + 1).max().unwrap_or(1);
        let width = widest.next_multiple_of(LANES);
        // A band near the end starts earlier rather than reach past the padding.
        let mut starts: Vec<u32> = spans.iter().map(|(first, _)| (*first).min(padded_bins - width) as u32).collect();
        starts.push(0);
        let mut reach = vec![0.0; starts.len() * width];
        for ((band, &x), &start) in reach.chunks_exact_mut(width).zip(scaled).zip(&starts) {
            for (bin, reach) in (start as usize..num_bins).zip(band) {
                let exact = (-half_square(x, bin)).exp() as f32;
                // Subnormal numbers cost a hundred times a normal one and weigh nothing.
                *reach = if exact.is_normal() { exact } else { 0.0 };
            }
        }
        Self { width, starts, reach }
    }

    /// The first bin of a value's band, and its r from there on.
    fn of(&self, value: usize) -> (usize, &[[f32; LANES]]) {
        let band = &self.reach[value * self.width..][..self.width];
        (self.starts[value] as usize, band.as_chunks().0)
    }
}

/// For each distinct value the share of rows below it, half of its own included.
fn ranks(table: &Table, column: &CodedColumn) -> Vec<f64> {
    let mut weights = vec![0.0; column.values.len() + 1]; // one more, for missing cells
    column.codes.iter().enumerate().for_each(|(row, &code)| weights[code as usize] += table.weight(row));
    let mut order: Vec<usize> = (0..column.values.len()).collect();
    order.sort_by(|&a, &b| column.values[a].total_cmp(&column.values[b]));
    let total: f64 = order.iter().map(|&code| weights[code]).sum();
    let (mut ranks, mut below) = (vec![0.0; order.len()], 0.0);
    for code in order {
        ranks[code] = (below + 0.5 * weights[code]) / total;
        below += weights[code];
    }
    ranks
}

/// Buffers of one pair, kept only to save their allocation.
pub(super) struct SoftScratch {
    /// `[padded_bins × padded_bins]`, bins of u by bins of v.
    histogram: Vec<f64>,
    /// `[(values of u + 1) × padded_bins]`.
    lines: Vec<f64>,
}

/// to += scale·from, as far as `from` goes.
#[inline]
fn add_scaled<T: Copy + Into<f64>>(to: &mut [f64], from: &[[T; LANES]], scale: f64) {
    for (to, from) in to.as_chunks_mut::<LANES>().0.iter_mut().zip(from) {
        // Eight sums in hand, then stored: written in place they would be computed one by one.
        let sums: [f64; LANES] = std::array::from_fn(|i| to[i] + scale * from[i].into());
        *to = sums;
    }
}

/// −Σ p·log(p + 10⁻⁴) with p = weights / total.
fn entropy(weights: &[f64], total: f64) -> f64 {
    -weights.iter().map(|w| w / total).filter(|p| *p > 0.0).map(|p| p * (p + 1e-4).ln()).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{numbers, reference};
    use super::super::{MutualInformation, mutual_information};
    use super::*;
    use crate::data::{Batch, Values};
    use crate::rng::Rng;

    /// The rule, letter by letter, over the rows in which both are present.
    fn by_definition(data: &Batch, (u, v): (usize, usize), bins: usize, sigma: f64, chunk: usize) -> f64 {
        let extremes = |var: usize| {
            let vars = var / chunk * chunk..(var / chunk * chunk + chunk).min(data.num_vars());
            let cells: Vec<f64> = vars
                .flat_map(|var| (0..data.num_rows()).map(move |row| (row, var)))
                .filter(|&(row, var)| !data.is_missing(row, var))
                .map(|(row, var)| data.column(var).real(row))
                .collect();
            (cells.iter().copied().fold(f64::MAX, f64::min), cells.iter().copied().fold(f64::MIN, f64::max))
        };
        let reach = |row: usize, var: usize| -> Vec<f64> {
            let (low, high) = extremes(var);
            let x = (data.column(var).real(row) - low) / (high - low + 1e-8);
            (0..bins).map(|a| (-0.5 * ((x - a as f64 / (bins - 1) as f64) / sigma).powi(2)).exp()).collect()
        };
        let rows: Vec<usize> =
            (0..data.num_rows()).filter(|&row| !data.is_missing(row, u) && !data.is_missing(row, v)).collect();
        let (mut p_u, mut p_v, mut q) = (vec![0.0; bins], vec![0.0; bins], vec![0.0; bins * bins]);
        for &row in &rows {
            let (r_u, r_v) = (reach(row, u), reach(row, v));
            for a in 0..bins {
                p_u[a] += r_u[a] / r_u.iter().sum::<f64>() / rows.len() as f64;
                p_v[a] += r_v[a] / r_v.iter().sum::<f64>() / rows.len() as f64;
                (0..bins).for_each(|b| q[a * bins + b] += r_u[a] * r_v[b]);
            }
        }
        let total: f64 = q.iter().sum();
        entropy(&p_u, 1.0) + entropy(&p_v, 1.0) - entropy(&q, total)
    }

    fn drifting(num_rows: usize, num_vars: usize, seed: u64) -> Vec<f32> {
        let mut rng = Rng::new(seed);
        let mut values = Vec::new();
        for _ in 0..num_rows {
            let mut value = rng.normal();
            for _ in 0..num_vars {
                value = 0.8 * value + 0.6 * rng.normal();
                values.push(value as f32);
            }
        }
        values
    }

    #[test]
    fn bands_are_the_definition_for_reals_and_integers_with_missing_cells_and_chunks() {
        let reals = drifting(60, 5, 1);
        let integers: Vec<u16> = reals.iter().map(|x| (x.clamp(-3.0, 3.0) * 40.0 + 120.0) as u16).collect();
        let few: Vec<u8> = reals.iter().map(|x| (x.clamp(-2.0, 2.0) * 4.0 + 8.0) as u8).collect();
        for data in [
            Batch::from_rows(&reals, 5).unwrap(),
            Batch::from_rows(&integers, 5).unwrap(),
            Batch::from_rows(&few, 5).unwrap(),
            Batch::from_rows(&few, 5).unwrap().with_missing(|row, var| (row + 2 * var) % 9 == 0),
            Batch::from_rows(&reals, 5).unwrap().with_missing(|row, var| (row + 2 * var) % 9 == 0),
        ] {
            for (num_bins, sigma, chunk_size) in [(32, 0.5 / 32.0, 64), (20, 0.05, 2), (5, 0.1, 3), (9, 3.0, 5)] {
                let how = MutualInformation::SoftBins { num_bins, sigma, chunk_size };
                let information = mutual_information(&data, how).unwrap();
                for (u, v) in [(0, 1), (1, 4), (2, 2)] {
                    let wanted = by_definition(&data, (u, v), num_bins, sigma, chunk_size);
                    let ours = information.get(u, v);
                    // Bands are kept as f32.
                    assert!((ours - wanted).abs() < 1e-6, "{how:?} ({u}, {v}): {ours} is not {wanted}");
                }
            }
        }
    }

    #[test]
    fn by_value_and_by_row_give_the_same_histogram() {
        let values: Vec<u8> = drifting(400, 2, 2).iter().map(|x| (x.clamp(-3.0, 3.0) * 5.0 + 15.0) as u8).collect();
        let data = Batch::from_rows(&values, 2).unwrap().with_missing(|row, var| row % 6 == var);
        let table = Table::new(&data, &[0, 1]).unwrap();
        let bins = SoftBins::of_values(&table, 32, 0.5 / 32.0, 64);
        let (mut values, mut rows) = (bins.scratch(), bins.scratch());
        bins.add_by_value(0, 1, &mut values);
        bins.add_by_row(0, 1, &mut rows);
        // Only the order of addition differs.
        let difference = values.histogram.iter().zip(&rows.histogram).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(difference < 1e-10 && values.histogram.iter().sum::<f64>() > 1.0, "{difference}");
    }

    #[test]
    fn the_reference_data_gives_the_reference_information() {
        for name in ["hclt", "hclt_gaussian", "hclt_discrete_logistic"] {
            let circuit = reference(name);
            let (rows, wanted) = (numbers(&circuit["structure_data"]), numbers(&circuit["mutual_information"]));
            let arg = |key: &str| circuit["structure_args"][key].as_f64().unwrap();
            let how = MutualInformation::SoftBins {
                num_bins: arg("num_bins") as usize,
                sigma: arg("sigma"),
                chunk_size: arg("chunk_size") as usize,
            };
            let column = |var: usize| {
                let values = rows.iter().map(|row| row[var]);
                match name {
                    "hclt_gaussian" => Values::F32(values.map(|x| x as f32).collect()),
                    _ => Values::U8(values.map(|x| x as u8).collect()),
                }
            };
            let data = Batch::from_columns((0..wanted.len()).map(column).collect()).unwrap();
            let information = mutual_information(&data, how).unwrap();
            for (u, row) in wanted.iter().enumerate() {
                for (v, &wanted) in row.iter().enumerate() {
                    let ours = information.get(u, v);
                    // The reference is f32 and not symmetric beyond 1e-6 itself.
                    assert!((ours - wanted).abs() < 3e-6, "{name} ({u}, {v}): {ours} is not {wanted}");
                }
            }
        }
    }

    #[test]
    fn ranks_know_no_units_and_value_bins_do() {
        let mut rng = Rng::new(3);
        let rows: Vec<[f64; 3]> = (0..2000)
            .map(|_| {
                let x = rng.normal();
                [x, x + 0.3 * rng.normal(), rng.normal()]
            })
            .collect();
        let batch = |map: [fn(f64) -> f64; 3]| {
            let column = |var: usize| Values::F32(rows.iter().map(|row| map[var](row[var]) as f32).collect());
            Batch::from_columns((0..3).map(column).collect()).unwrap()
        };
        let plain = mutual_information(&batch([|x| x; 3]), MutualInformation::Auto).unwrap();
        let raw = batch([|x| 1e6 * x, |x| 30.0 + 0.01 * x, |x| x.exp()]);
        let found = mutual_information(&raw, MutualInformation::Auto).unwrap();
        for (u, v) in [(0, 1), (0, 2), (1, 2)] {
            let (a, b) = (plain.get(u, v), found.get(u, v));
            assert!((a - b).abs() < 0.02 * plain.get(0, 1), "{u}, {v}: {a} is not {b}"); // f32 rounds 0.01·x into ties
        }
        assert!(found.get(0, 1) > 5.0 * found.get(0, 2));
        // What it replaces: columns that are scaled together vanish beside a large one.
        let together = mutual_information(&raw, MutualInformation::soft_bins()).unwrap();
        assert!(together.get(0, 1) < 0.1 * found.get(0, 1), "{}", together.get(0, 1));
    }

    #[test]
    fn whoever_waits_is_told_how_much_is_done() {
        let values: Vec<u8> = (0..200 * 40).map(|n| (n * n % 7) as u8).collect();
        let data = Batch::from_rows(&values, 40).unwrap();
        let told = std::sync::Mutex::new(Vec::new());
        let tell = |share: f64| told.lock().unwrap().push(share);
        let told_matrix = super::super::mutual_information_telling(&data, MutualInformation::Auto, &tell).unwrap();
        assert_eq!(told_matrix, mutual_information(&data, MutualInformation::Auto).unwrap());
        let told = told.into_inner().unwrap();
        assert!(told.len() == 6 && told.contains(&1.0) && told.iter().all(|share| (0.0..=1.0).contains(share)));
    }
}
