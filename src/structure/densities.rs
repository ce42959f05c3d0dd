//! A start for inputs that are densities: means and widths from the first rows.
//!
//! Columns come in any unit. A unit whose mean starts far from all values, or whose width is not of their order, wins
//! or loses every row by that alone: one unit takes all weight and the others never move. So the units of a variable
//! start at values that rows have, as wide as their column asks for. The rows are chosen one after the other, each with
//! a probability that grows with its distance to those already chosen (k-means++, Arthur and Vassilvitskii 2007), and
//! unit k of every variable starts at the same row: a product of units is then likely somewhere.
//!
//! [`Spreads`] also say where moments are taken about, and what the least width is ([`Gaussian`]). The same rows and
//! seed give the same start on any number of threads. `docs/MATH.md`, "Densities start from rows", has the formulas.
//!
//! [`Gaussian`]: crate::circuit::Gaussian

use rayon::prelude::*;

use crate::circuit::{Circuit, Distribution, NodeKind, ParamId, ParamKind, Params};
use crate::data::Batch;
use crate::error::Result;
use crate::rng::Rng;

/// A unit starts as wide as its column times this, times units^(−1/5): many units need not reach far.
const SHARE_OF_SPREAD: f64 = 0.75;

/// Units start this share of their width beside the value of their row: two units of one row do not stay alike.
const JITTER: f64 = 0.05;

/// Distances count a variable up to this many widths: an outlier is one row, not all of the distance.
const FAR: f32 = 4.0;

/// About how many squared differences choosing may cost; beyond, fewer rows are looked at, but four for every unit.
const MOST_DIFFERENCES: usize = 1 << 31;

/// Numbers of a sample that are looked at.
const MOST_CELLS: usize = 1 << 24;

/// The normal distribution has this many standard deviations between its quartiles.
const QUARTILES_OF_NORMAL: f64 = 1.349;

/// What the choice of rows, and what units are moved by, is drawn with besides the seed: not with the numbers of the
/// weights.
const SEED_OF_ROWS: u64 = 0x726f_7773;
const SEED_OF_UNITS: u64 = 0x756e_6974;

/// A column whose width is fewer steps of an `f32` than this is a column of steps.
const STEPS_OF_A_WIDTH: f64 = 32.0;

/// Where the values of a column are, and how far apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median, rounded to an `f32`.
    pub centre: f64,
    /// The standard deviation, or what a normal distribution with the same quartiles has where that is less: a few huge
    /// values do not make a column wide. 1 for a column of one value.
    pub width: f64,
}

impl Spread {
    /// Of some values; of none it is that of a standardised column.
    fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self { centre: 0.0, width: 1.0 };
        }
        values.sort_by(f64::total_cmp);
        let quantile = |share: f64| values[(share * (values.len() - 1) as f64).round() as usize];
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64;
        let between_quartiles = (quantile(0.75) - quantile(0.25)) / QUARTILES_OF_NORMAL;
        let width = match variance.sqrt() {
            std if between_quartiles > 0.0 => std.min(between_quartiles),
            std => std,
        };
        Self { centre: f64::from(quantile(0.5) as f32), width: if width > 0.0 { width } else { 1.0 } }
    }
}

impl Spread {
    /// Returns true if an `f32` can hardly tell the values apart: they are far from 0 and near each other.
    pub fn is_coarse(&self) -> bool {
        self.width < STEPS_OF_A_WIDTH * f64::from(f32::EPSILON) * self.centre.abs()
    }
}

/// The spread of every variable over some rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Spreads {
    by_var: Vec<Spread>,
    /// Of the values of all variables together, for inputs that they share.
    shared: Spread,
}

impl Spreads {
    /// Of these rows; missing values say nothing.
    pub fn of_rows(rows: &Batch) -> Self {
        let vars = 0..rows.num_vars();
        let by_var = vars.into_par_iter().map(|var| Spread::of(present(rows, var, 1).collect())).collect();
        Self { by_var, shared: Spread::of(pooled(rows)) }
    }

    /// Of one variable.
    pub fn of(&self, var: usize) -> Spread {
        self.by_var[var]
    }

    /// Of all variables together.
    pub fn shared(&self) -> Spread {
        self.shared
    }
}

/// Moves all inputs of a circuit that are densities to where rows are; everything else stays as it is.
pub fn start_densities(circuit: &Circuit, rows: &Batch, seed: u64, params: &mut Params) -> Result<()> {
    if rows.num_rows() == 0 || !has_densities(circuit) {
        return Ok(());
    }
    let spreads = Spreads::of_rows(rows);
    let uses = uses_of_inputs(circuit);
    let candidates = Candidates::of_rows(rows, &spreads);
    // Rows for the first, second, … input of a variable: a circuit that sees a variable in several places sees several
    // parts of the data.
    let chosen: Vec<Vec<usize>> = most_units_by_place(circuit, &uses)
        .into_iter()
        .enumerate()
        .map(|(place, units)| candidates.choose(units, &mut Rng::stream(seed ^ SEED_OF_ROWS, place as u64)))
        .collect();
    let mut seen = vec![0; circuit.num_vars()];
    for param in circuit.param_ids() {
        let ParamKind::Input(distribution) = &circuit.params()[param.index()].kind else { continue };
        if distribution.is_table() {
            continue;
        }
        let units = circuit.layout().block(param).units();
        let mut rng = Rng::stream(seed ^ SEED_OF_UNITS, param.index() as u64);
        let (values, spread): (Vec<f64>, Spread) = match uses[param.index()] {
            Use::None => continue,
            Use::One(var) => {
                let place = seen[var];
                seen[var] += 1;
                let spread = spreads.of(var);
                let value = |&at: &usize| candidates.value(rows, at, var).unwrap_or(spread.centre);
                (chosen[place].iter().map(value).collect(), spread)
            }
            Use::Several => {
                let (values, spread) = (pooled(rows), spreads.shared());
                let picked = Candidates::of_values(&values, spread).choose(units, &mut rng);
                (picked.iter().map(|&at| values[at]).collect(), spread)
            }
        };
        start_units(params, param, &**distribution, &values[..units.min(values.len())], spread, &mut rng)?;
    }
    Ok(())
}

/// Returns true if any input is a density.
pub fn has_densities(circuit: &Circuit) -> bool {
    circuit.params().iter().any(|param| matches!(&param.kind, ParamKind::Input(input) if !input.is_table()))
}

fn start_units(
    params: &mut Params,
    param: ParamId,
    distribution: &dyn Distribution,
    values: &[f64],
    spread: Spread,
    rng: &mut Rng,
) -> Result<()> {
    let width = spread.width * SHARE_OF_SPREAD * (values.len() as f64).powf(-0.2);
    for (unit, value) in values.iter().enumerate() {
        let mut row = params.row(param, unit);
        distribution.start_at(value + JITTER * width * rng.normal(), width, &mut row);
        params.set_row(param, unit, &row)?;
    }
    Ok(())
}

/// The variables whose inputs use a parameter block.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    None,
    One(usize),
    Several,
}

fn uses_of_inputs(circuit: &Circuit) -> Vec<Use> {
    let mut uses = vec![Use::None; circuit.params().len()];
    for node in circuit.nodes() {
        if let NodeKind::Input { var, param } = node.kind {
            let own = &mut uses[param.index()];
            *own = if matches!(*own, Use::None) || *own == Use::One(var) { Use::One(var) } else { Use::Several };
        }
    }
    uses
}

/// For the first, second, … density of the variables, the most units that one has.
fn most_units_by_place(circuit: &Circuit, uses: &[Use]) -> Vec<usize> {
    let mut seen = vec![0; circuit.num_vars()];
    let mut most = Vec::new();
    for param in circuit.param_ids() {
        let ParamKind::Input(distribution) = &circuit.params()[param.index()].kind else { continue };
        if let (Use::One(var), false) = (uses[param.index()], distribution.is_table()) {
            most.resize(most.len().max(seen[var] + 1), 0);
            most[seen[var]] = circuit.layout().block(param).units().max(most[seen[var]]);
            seen[var] += 1;
        }
    }
    most
}

/// Every `step`-th value of a variable that is not missing.
fn present(rows: &Batch, var: usize, step: usize) -> impl Iterator<Item = f64> + '_ {
    let there = (0..rows.num_rows()).filter(move |&row| !rows.is_missing(row, var));
    there.step_by(step).map(move |row| rows.column(var).real(row))
}

/// Values of all variables, as many of each as there is room for.
fn pooled(rows: &Batch) -> Vec<f64> {
    const MOST_POOLED: usize = 1 << 16;
    let step = (rows.num_rows() * rows.num_vars()).div_ceil(MOST_POOLED).max(1);
    (0..rows.num_vars()).flat_map(|var| present(rows, var, step)).collect()
}

/// Rows to choose from, each variable in widths from its centre.
struct Candidates {
    /// Of the sample every `step`-th row is looked at.
    step: usize,
    num_vars: usize,
    /// `[rows × num_vars]`, within ±[`FAR`]; 0 where a value is missing.
    cells: Vec<f32>,
}

impl Candidates {
    fn of_rows(rows: &Batch, spreads: &Spreads) -> Self {
        let num_vars = rows.num_vars();
        let step = (rows.num_rows() * num_vars).div_ceil(MOST_CELLS).max(1);
        let picked: Vec<usize> = (0..rows.num_rows()).step_by(step).collect();
        let mut cells = vec![0.0; picked.len() * num_vars];
        cells.par_chunks_mut(num_vars).zip(&picked).for_each(|(cells, &row)| {
            for (var, cell) in cells.iter_mut().enumerate().filter(|(var, _)| !rows.is_missing(row, *var)) {
                *cell = in_widths(rows.column(var).real(row), spreads.of(var));
            }
        });
        Self { step, num_vars, cells }
    }

    fn of_values(values: &[f64], spread: Spread) -> Self {
        Self { step: 1, num_vars: 1, cells: values.iter().map(|&value| in_widths(value, spread)).collect() }
    }

    fn len(&self) -> usize {
        self.cells.len() / self.num_vars
    }

    fn value(&self, rows: &Batch, chosen: usize, var: usize) -> Option<f64> {
        let row = chosen * self.step;
        (!rows.is_missing(row, var)).then(|| rows.column(var).real(row))
    }

    /// `count` of them: the first by chance, each other with a probability ∝ its squared distance to the nearest that
    /// is chosen. Where all are at a distance of 0 chance decides again. Of none nothing is chosen.
    fn choose(&self, count: usize, rng: &mut Rng) -> Vec<usize> {
        if self.cells.is_empty() {
            return Vec::new();
        }
        let affordable = (MOST_DIFFERENCES / (count * self.num_vars).max(1)).max(4 * count).max(1);
        let looked_at = self.len().min(affordable);
        let mut nearest = vec![f32::INFINITY; looked_at];
        let mut chosen = Vec::with_capacity(count);
        while chosen.len() < count {
            let total: f64 = nearest.iter().map(|&d| f64::from(d)).sum();
            let next = match chosen.is_empty() || total <= 0.0 {
                true => rng.below(looked_at),
                false => rng.weighted(nearest.iter().map(|&d| f64::from(d))),
            };
            chosen.push(next);
            let centre = &self.cells[next * self.num_vars..][..self.num_vars];
            nearest.par_iter_mut().zip(self.cells.par_chunks(self.num_vars)).for_each(|(nearest, row)| {
                let distance: f32 = row.iter().zip(centre).map(|(a, b)| (a - b) * (a - b)).sum();
                *nearest = nearest.min(distance);
            });
        }
        chosen
    }
}

fn in_widths(value: f64, spread: Spread) -> f32 {
    (((value - spread.centre) / spread.width) as f32).clamp(-FAR, FAR)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{RatSpnOptions, Tying, hmm, hmm_with, rat_spn};
    use super::*;
    use crate::circuit::{DiscreteLogistic, Gaussian};
    use crate::data::Values;

    /// Two groups of rows, in units that differ by variable.
    fn rows(num_rows: usize, scale: f32, shift: f32) -> Batch {
        let mut rng = Rng::new(7);
        let groups: Vec<f32> = (0..num_rows).map(|_| if rng.below(2) == 0 { -4.0 } else { 4.0 }).collect();
        let columns = (0..4).map(|var| {
            let unit = 2f32.powi(3 * var) * scale;
            Values::F32(groups.iter().map(|group| (group + rng.normal() as f32) * unit + shift).collect())
        });
        Batch::from_columns(columns.collect()).unwrap()
    }

    fn gaussian(_: usize) -> Arc<dyn Distribution> {
        Gaussian::new(1e-6, 0.0).unwrap()
    }

    fn spn() -> Circuit {
        let options = RatSpnOptions { latents: 5, depth: 1, repetitions: 3, pieces: 2, seed: 1 };
        rat_spn(4, &options, gaussian).unwrap()
    }

    /// Mean and width of every unit of every input, in the order of the blocks.
    fn started(circuit: &Circuit, rows: &Batch, seed: u64) -> Vec<[f32; 2]> {
        let mut params = Params::random(circuit, 1, 2.0).unwrap();
        start_densities(circuit, rows, seed, &mut params).unwrap();
        params.check(circuit).unwrap();
        let inputs = circuit.param_ids().filter(|p| matches!(circuit.params()[p.index()].kind, ParamKind::Input(_)));
        let units = inputs.flat_map(|param| (0..circuit.layout().block(param).units()).map(move |unit| (param, unit)));
        units.map(|(param, unit)| params.row(param, unit).try_into().unwrap()).collect()
    }

    #[test]
    fn another_unit_moves_the_start_with_the_data_and_changes_nothing_else() {
        let circuit = spn();
        for seed in 1..6 {
            let plain = started(&circuit, &rows(300, 1.0, 0.0), seed);
            // A power of two and no shift are exact in f32; a shift rounds.
            for (scale, shift, rounding) in [(4096.0f32, 0.0f32, 1e-6), (0.125, 0.0, 1e-6), (1.0, 512.0, 1e-3)] {
                for (a, b) in plain.iter().zip(started(&circuit, &rows(300, scale, shift), seed)) {
                    let wanted = [a[0] * scale + shift, a[1] * scale];
                    let near = |x: f32, y: f32| (x - y).abs() <= rounding * wanted[1];
                    assert!(near(b[0], wanted[0]) && near(b[1], wanted[1]), "{b:?} is not {wanted:?}");
                }
            }
        }
    }

    #[test]
    fn units_start_where_rows_are_and_in_both_groups() {
        let (circuit, rows) = (spn(), rows(300, 1.0, 0.0));
        let spreads = Spreads::of_rows(&rows);
        for (at, units) in started(&circuit, &rows, 3).chunks(5).enumerate() {
            let means: Vec<f32> = units.iter().map(|unit| unit[0]).collect();
            let width = spreads.of(at % 4).width as f32;
            assert!(means.iter().any(|mean| *mean > 0.0) && means.iter().any(|mean| *mean < 0.0), "{at}: {means:?}");
            assert!(units.iter().all(|[mean, std]| mean.abs() < 3.0 * width && *std > 0.2 * width && *std < width));
            assert!(means.windows(2).all(|pair| pair[0] != pair[1]), "two units are alike: {means:?}");
        }
        assert_ne!(started(&circuit, &rows, 3), started(&circuit, &rows, 4), "a seed decides");
    }

    #[test]
    fn the_start_does_not_depend_on_the_number_of_threads() {
        let (circuit, rows) = (spn(), rows(500, 3.0, 100.0));
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| started(&circuit, &rows, 5))
        };
        assert_eq!(on(1), on(3));
    }

    #[test]
    fn a_few_huge_values_do_not_make_a_column_wide_and_one_value_has_a_width() {
        let mut values: Vec<f64> = (0..1000).map(|n| f64::from(n) / 1000.0).collect();
        values[10] = 1e17;
        let spread = Spread::of(values);
        assert!(spread.width < 0.5 && (spread.centre - 0.5).abs() < 0.01, "{spread:?}");
        // Most values are one: the quartiles say nothing.
        let spread = Spread::of((0..100).map(|n| if n < 80 { 0.0 } else { 10.0 }).collect());
        assert!((spread.width - 4.0).abs() < 1e-9, "{spread:?}");
        assert_eq!(Spread::of(vec![5.0; 9]), Spread { centre: 5.0, width: 1.0 });
        assert_eq!(Spread::of(Vec::new()), Spread { centre: 0.0, width: 1.0 });
    }

    #[test]
    fn a_column_is_coarse_where_an_f32_cannot_follow_it() {
        let coarse = |centre: f64, width: f64| Spread { centre, width }.is_coarse();
        assert!(coarse(1.7e9, 3.0) && coarse(-1e9, 1.0) && coarse(1e8, 100.0));
        assert!(!coarse(1e9, 3e6) && !coarse(300.0, 0.5) && !coarse(0.0, 1e-9));
    }

    #[test]
    fn missing_values_few_rows_and_equal_rows_still_give_a_start() {
        let circuit = spn();
        let some = rows(40, 1.0, 0.0).with_missing(|row, var| var == 1 || row % 3 == 0);
        let one = rows(1, 1.0, 0.0);
        let equal = Batch::from_rows(&[1.5f32; 80], 4).unwrap();
        for (rows, alike) in [(some, false), (one, true), (equal, true)] {
            for units in started(&circuit, &rows, 1).chunks(5) {
                assert!(units.iter().all(|[mean, std]| mean.is_finite() && *std > 0.0), "{units:?}");
                assert!(
                    !alike || units.windows(2).all(|pair| pair[0] != pair[1]),
                    "nothing tells units apart: {units:?}"
                );
            }
        }
    }

    #[test]
    fn inputs_that_variables_share_start_from_all_of_them() {
        let values: Vec<f32> = (0..200).flat_map(|n| [10.0 + (n % 7) as f32, 1000.0 + (n % 5) as f32]).collect();
        let rows = Batch::from_rows(&values, 2).unwrap();
        let circuit = hmm(2, 6, gaussian(0)).unwrap();
        let means: Vec<f32> = started(&circuit, &rows, 2).iter().map(|unit| unit[0]).collect();
        assert!(means.iter().any(|mean| *mean < 200.0) && means.iter().any(|mean| *mean > 800.0), "{means:?}");
    }

    #[test]
    fn categories_on_a_line_start_at_their_bins() {
        let values: Vec<u8> = (0..100).flat_map(|n| [if n % 2 == 0 { 10 } else { 240 }; 2]).collect();
        let rows = Batch::from_rows(&values, 2).unwrap();
        let logistic = DiscreteLogistic::new(256, (-1.0, 1.0), 0.01).unwrap();
        let circuit = hmm_with(2, 4, logistic, Tying::Inhomogeneous).unwrap();
        let places: Vec<f32> = started(&circuit, &rows, 2).iter().map(|unit| unit[0]).collect();
        let near = |place: f32| places.iter().any(|found| (found - place).abs() < 0.2);
        assert!(near(-0.92) && near(0.88), "{places:?}");
    }
}
