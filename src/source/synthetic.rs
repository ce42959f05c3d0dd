//! Data whose distribution is known, made on the fly: an endless stream for tests, demonstrations and speed limits.
//!
//! A random hidden Markov model or a random mixture of independent variables. Row `i` is a pure function of the spec
//! and `i`, so rows can be had in any order and a run can be resumed anywhere. [`Synthetic::log_likelihood`] is the
//! source's own, which no model beats on average: a run can print how far it is from it. With `drift` the source moves:
//! row `i` comes from a second source of the same family with probability `min(1, i / drift)`. With `changes` it is
//! another source of the family from each of these rows on.
//!
//! The data side knows no circuits, so this samples and evaluates by itself.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{IndexedSource, Lists, Manifest, Piece, Positions, Records};
use crate::data::Values;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyntheticSpec {
    /// The family.
    pub kind: SyntheticKind,
    /// Variables in a row.
    pub num_vars: usize,
    /// Categories of a variable, at most 65,536.
    pub cats: u32,
    /// Hidden states, or components of the mixture.
    pub latents: usize,
    /// Decides the distribution and the rows.
    #[serde(default)]
    pub seed: u64,
    /// Rows in an epoch; without it the source is endless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// The row from which on all come from the second source; without it there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<u64>,
    /// Rows, ascending, from which on all come from another source each; not beside `drift`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<u64>,
}

/// A family of distributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyntheticKind {
    /// A stationary hidden Markov model.
    Hmm,
    /// A mixture of components within which variables are independent.
    Mixture,
}

/// A row is made whole.
const MOST_VARS: usize = 1 << 24;

/// The stationary distribution takes time cubic in the number of states.
const MOST_LATENTS: usize = 1024;

/// Probabilities in all tables of one source: 16 bytes each.
const MOST_PROBABILITIES: usize = 1 << 26;

/// Spread of log-probabilities: large, so that there is something to learn.
const PERTURBATION: f64 = 20.0;

/// Streams of the seed.
const FIRST_STREAM: u64 = 0;
const SECOND_STREAM: u64 = 1;
const ROWS_STREAM: u64 = 2;
/// That of the source after the first change; those after later ones follow.
const CHANGED_STREAM: u64 = 3;

/// Each change has tables of its own.
const MOST_CHANGES: usize = 1024;

/// A source of known distribution.
#[derive(Clone, Debug)]
pub struct Synthetic {
    spec: SyntheticSpec,
    first: Model,
    /// Where it drifts to.
    second: Option<Model>,
    /// What it is after each change.
    changed: Vec<Model>,
    /// Seed of the rows' streams, apart from those that made the models.
    rows_seed: u64,
    manifest: Manifest,
    name: Arc<str>,
}

impl Synthetic {
    /// Draws the distribution.
    pub fn new(spec: &SyntheticSpec) -> Result<Self> {
        check(spec)?;
        let options = serde_json::to_string(spec).map_err(|e| Error::option(format!("synthetic source: {e}")))?;
        let name = match spec.kind {
            SyntheticKind::Hmm => "synthetic hmm",
            SyntheticKind::Mixture => "synthetic mixture",
        };
        Ok(Self {
            first: Model::random(spec, &mut Rng::stream(spec.seed, FIRST_STREAM)),
            second: spec.drift.map(|_| Model::random(spec, &mut Rng::stream(spec.seed, SECOND_STREAM))),
            changed: (CHANGED_STREAM..)
                .take(spec.changes.len())
                .map(|stream| Model::random(spec, &mut Rng::stream(spec.seed, stream)))
                .collect(),
            rows_seed: Rng::stream(spec.seed, ROWS_STREAM).next_u64(),
            manifest: Manifest::new("synthetic", Vec::new(), &options),
            name: name.into(),
            spec: spec.clone(),
        })
    }

    /// Log-probability of a row under the source, in nats; −∞ for what is not a row of it. With `drift` or
    /// `changes` it is that of the first source, before it moves.
    pub fn log_likelihood(&self, row: &[u32]) -> f64 {
        if row.len() != self.spec.num_vars || row.iter().any(|&value| value >= self.spec.cats) {
            return f64::NEG_INFINITY;
        }
        self.first.log_likelihood(row)
    }

    /// Makes row `row`.
    fn row(&self, row: u64, values: &mut Vec<u32>) {
        let mut rng = Rng::stream(self.rows_seed, row);
        let turn = rng.uniform(); // drawn without drift too: a row before the move is the same with it
        let model = match (&self.second, self.spec.drift) {
            (Some(second), Some(drift)) if turn < row as f64 / drift as f64 => second,
            _ => match self.spec.changes.partition_point(|&change| change <= row) {
                0 => &self.first,
                changes => &self.changed[changes - 1],
            },
        };
        model.sample(&mut rng, self.spec.num_vars, values);
    }
}

pub(crate) fn check(spec: &SyntheticSpec) -> Result<()> {
    let at_least_one = [
        ("num_vars", spec.num_vars as u64),
        ("latents", spec.latents as u64),
        ("rows", spec.rows.unwrap_or(1)),
        ("drift", spec.drift.unwrap_or(1)),
    ];
    if let Some((name, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
        return Err(Error::option(format!("{name} = 0: must be at least 1")));
    }
    if let Some(pair) = spec.changes.windows(2).find(|pair| pair[0] >= pair[1]) {
        return Err(Error::option(format!("changes = [… {}, {} …]: must ascend", pair[0], pair[1])));
    }
    if spec.changes.first() == Some(&0) {
        return Err(Error::option("changes = [0 …]: must be at least 1"));
    }
    if spec.changes.len() > MOST_CHANGES {
        return Err(Error::option(format!("changes: must be at most {MOST_CHANGES} rows")));
    }
    if spec.drift.is_some() && !spec.changes.is_empty() {
        return Err(Error::option("changes: has no meaning beside drift, which moves slowly; keep one of them"));
    }
    if !(2..=65_536).contains(&spec.cats) {
        return Err(Error::option(format!("cats = {}: must be in 2..=65536", spec.cats)));
    }
    for (name, value, most) in [("num_vars", spec.num_vars, MOST_VARS), ("latents", spec.latents, MOST_LATENTS)] {
        if value > most {
            return Err(Error::option(format!("{name} = {value}: must be at most {most}")));
        }
    }
    let tables = match spec.kind {
        SyntheticKind::Hmm => 1,
        SyntheticKind::Mixture => spec.num_vars,
    };
    let probabilities = tables
        .checked_mul(spec.latents)
        .and_then(|rows| rows.checked_mul(spec.cats as usize))
        .and_then(|one| one.checked_mul(spec.changes.len() + 1));
    if probabilities.is_none_or(|count| count > MOST_PROBABILITIES) {
        return Err(Error::option(format!(
            "num_vars = {}, latents = {}, cats = {}: more than {MOST_PROBABILITIES} probabilities; make one smaller",
            spec.num_vars, spec.latents, spec.cats
        )));
    }
    Ok(())
}

impl IndexedSource for Synthetic {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn num_rows(&self) -> Option<u64> {
        self.spec.rows
    }

    fn gather(&self, rows: &[u64]) -> Result<Piece> {
        if let Some(num_rows) = self.spec.rows
            && let Some(row) = rows.iter().find(|&&row| row >= num_rows)
        {
            return Err(Error::data(format!("{}: row {row} is outside 0..{num_rows}", self.name)));
        }
        let mut values = Vec::with_capacity(rows.len() * self.spec.num_vars);
        rows.iter().for_each(|&row| self.row(row, &mut values));
        let values = if self.spec.cats <= 256 {
            Values::U8(values.into_iter().map(|value| value as u8).collect())
        } else {
            Values::U16(values.into_iter().map(|value| value as u16).collect())
        };
        let ends = (1..=rows.len()).map(|row| row * self.spec.num_vars).collect();
        Ok(Piece {
            file: self.name.clone(),
            positions: Positions::RowNumbers(rows.to_vec()),
            records: Records::Lists(Lists { values, ends, missing: None }),
            bad: Vec::new(),
        })
    }
}

/// A distribution over rows.
#[derive(Clone, Debug)]
enum Model {
    Hmm {
        /// One row.
        start: Rows,
        /// From state to state.
        transition: Rows,
        /// From state to category.
        emission: Rows,
    },
    Mixture {
        /// One row.
        weights: Rows,
        /// Row `var · latents + component`.
        emission: Rows,
    },
}

impl Model {
    fn random(spec: &SyntheticSpec, rng: &mut Rng) -> Self {
        let (states, cats) = (spec.latents, spec.cats as usize);
        match spec.kind {
            SyntheticKind::Hmm => {
                let transition = Rows::random(states, states, rng);
                let start = Rows::new(states, stationary(&transition));
                Self::Hmm { start, transition, emission: Rows::random(states, cats, rng) }
            }
            SyntheticKind::Mixture => Self::Mixture {
                // Even weights: a component that hardly occurs is nothing to learn.
                weights: Rows::new(states, vec![1.0; states]),
                emission: Rows::random(spec.num_vars * states, cats, rng),
            },
        }
    }

    fn sample(&self, rng: &mut Rng, num_vars: usize, values: &mut Vec<u32>) {
        match self {
            Self::Hmm { start, transition, emission } => {
                let mut state = start.draw(0, rng);
                for var in 0..num_vars {
                    if var > 0 {
                        state = transition.draw(state, rng);
                    }
                    values.push(emission.draw(state, rng) as u32);
                }
            }
            Self::Mixture { weights, emission } => {
                let component = weights.draw(0, rng);
                values.extend((0..num_vars).map(|var| emission.draw(var * weights.width + component, rng) as u32));
            }
        }
    }

    fn log_likelihood(&self, row: &[u32]) -> f64 {
        match self {
            Self::Hmm { start, transition, emission } => {
                // forward[s] = p(x_0..x_v, state v = s) / p(x_0..x_v); the logarithms of the divisors add up to log p.
                let mut forward = start.row(0).to_vec();
                let mut log_likelihood = 0.0;
                for (var, &value) in row.iter().enumerate() {
                    if var > 0 {
                        let mut next = vec![0.0; forward.len()];
                        for (state, &mass) in forward.iter().enumerate() {
                            next.iter_mut().zip(transition.row(state)).for_each(|(to, p)| *to += mass * p);
                        }
                        forward = next;
                    }
                    forward.iter_mut().enumerate().for_each(|(s, mass)| *mass *= emission.row(s)[value as usize]);
                    let scale: f64 = forward.iter().sum();
                    forward.iter_mut().for_each(|mass| *mass /= scale);
                    log_likelihood += scale.ln();
                }
                log_likelihood
            }
            Self::Mixture { weights, emission } => {
                let joint = |component: usize| {
                    let log_p = |(var, &value): (usize, &u32)| {
                        emission.row(var * weights.width + component)[value as usize].ln()
                    };
                    weights.row(0)[component].ln() + row.iter().enumerate().map(log_p).sum::<f64>()
                };
                let joints: Vec<f64> = (0..weights.width).map(joint).collect();
                let largest = joints.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                largest + joints.iter().map(|joint| (joint - largest).exp()).sum::<f64>().ln()
            }
        }
    }
}

/// Distributions over `width` outcomes, one a row. Every probability is positive.
#[derive(Clone, Debug)]
struct Rows {
    width: usize,
    /// `[rows × width]`
    probabilities: Vec<f64>,
    /// Sums of each row's probabilities up to and with each outcome, for drawing by bisection.
    cumulative: Vec<f64>,
}

impl Rows {
    /// Rows in proportion to `weights`, `[rows × width]`.
    fn new(width: usize, mut weights: Vec<f64>) -> Self {
        let mut cumulative = Vec::with_capacity(weights.len());
        for row in weights.chunks_exact_mut(width) {
            let total: f64 = row.iter().sum();
            let mut sum = 0.0;
            for weight in row {
                *weight /= total;
                sum += *weight;
                cumulative.push(sum);
            }
        }
        Self { width, probabilities: weights, cumulative }
    }

    /// Rows ∝ exp(−k·u), u uniform: a few outcomes take most of the mass.
    fn random(rows: usize, width: usize, rng: &mut Rng) -> Self {
        Self::new(width, (0..rows * width).map(|_| (-PERTURBATION * rng.uniform()).exp()).collect())
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.probabilities[row * self.width..(row + 1) * self.width]
    }

    fn draw(&self, row: usize, rng: &mut Rng) -> usize {
        let cumulative = &self.cumulative[row * self.width..(row + 1) * self.width];
        let turn = rng.uniform();
        // Rounding may leave a sliver after the last sum.
        cumulative.partition_point(|&sum| sum <= turn).min(self.width - 1)
    }
}

/// The distribution that a chain keeps, up to a factor: states are eliminated one by one (Grassmann, Taksar and Heyman
/// 1985), which only adds, multiplies and divides positive numbers, so that a chain that hardly moves loses no digits.
fn stationary(transition: &Rows) -> Vec<f64> {
    let n = transition.width;
    let mut p = transition.probabilities.clone();
    for last in (1..n).rev() {
        // The chain watched only while it is in states below `last`.
        let leave: f64 = p[last * n..last * n + last].iter().sum();
        for from in 0..last {
            p[from * n + last] /= leave;
            for to in 0..last {
                p[from * n + to] += p[from * n + last] * p[last * n + to];
            }
        }
    }
    let mut mass = vec![1.0; n];
    for state in 1..n {
        mass[state] = (0..state).map(|from| mass[from] * p[from * n + state]).sum();
    }
    mass
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kind: SyntheticKind) -> SyntheticSpec {
        SyntheticSpec { kind, num_vars: 3, cats: 3, latents: 4, seed: 7, rows: None, drift: None, changes: Vec::new() }
    }

    const KINDS: [SyntheticKind; 2] = [SyntheticKind::Hmm, SyntheticKind::Mixture];

    /// All rows of `num_vars` categories.
    fn all_rows(num_vars: usize, cats: u32) -> Vec<Vec<u32>> {
        let count = (cats as usize).pow(num_vars as u32);
        let digit = |row: usize, var: usize| (row / (cats as usize).pow(var as u32)) as u32 % cats;
        (0..count).map(|row| (0..num_vars).map(|var| digit(row, var)).collect()).collect()
    }

    fn rows(source: &Synthetic, numbers: &[u64]) -> Vec<Vec<u32>> {
        let piece = source.gather(numbers).unwrap();
        let Records::Lists(lists) = piece.records else { panic!("rows are lists") };
        let row = |record| lists.range(record).map(|at| lists.values.category(at).unwrap()).collect();
        (0..numbers.len()).map(row).collect()
    }

    /// How often each row occurs, minus how often it should: half the sum of what differs.
    fn total_variation(rows: &[Vec<u32>], spec: &SyntheticSpec, probability: impl Fn(&[u32]) -> f64) -> f64 {
        let differs = |possible: &Vec<u32>| {
            let count = rows.iter().filter(|row| *row == possible).count();
            (count as f64 / rows.len() as f64 - probability(possible)).abs()
        };
        all_rows(spec.num_vars, spec.cats).iter().map(differs).sum::<f64>() / 2.0
    }

    #[test]
    fn probabilities_of_all_rows_sum_to_one() {
        for kind in KINDS {
            for (num_vars, cats, latents) in [(1, 2, 1), (3, 3, 4), (5, 2, 7), (2, 9, 2)] {
                let spec = SyntheticSpec { num_vars, cats, latents, ..spec(kind) };
                let source = Synthetic::new(&spec).unwrap();
                let total: f64 = all_rows(num_vars, cats).iter().map(|row| source.log_likelihood(row).exp()).sum();
                assert!((total - 1.0).abs() < 1e-12, "{spec:?}: {total}");
            }
        }
    }

    #[test]
    fn rows_are_as_frequent_as_the_likelihood_says() {
        for kind in KINDS {
            let spec = spec(kind);
            let source = Synthetic::new(&spec).unwrap();
            let numbers: Vec<u64> = (0..40_000).collect();
            // Of 27 outcomes and n rows the total variation is at most √(27/n)/2 = 0.013 on average; twice that is far
            // out.
            let distance = total_variation(&rows(&source, &numbers), &spec, |row| source.log_likelihood(row).exp());
            assert!(distance < 0.026, "{kind:?}: {distance}");
        }
    }

    #[test]
    fn every_variable_of_an_hmm_has_the_same_marginal() {
        let spec = spec(SyntheticKind::Hmm);
        let source = Synthetic::new(&spec).unwrap();
        let marginal = |var: usize, value: u32| -> f64 {
            let rows = all_rows(3, 3);
            rows.iter().filter(|row| row[var] == value).map(|row| source.log_likelihood(row).exp()).sum()
        };
        for value in 0..3 {
            let first = marginal(0, value);
            assert!((1..3).all(|var| (marginal(var, value) - first).abs() < 1e-12), "category {value}");
        }
    }

    #[test]
    fn a_row_does_not_depend_on_the_rows_around_it() {
        for kind in KINDS {
            let source = Synthetic::new(&SyntheticSpec { drift: Some(300), ..spec(kind) }).unwrap();
            let in_order = rows(&source, &(0..600).collect::<Vec<_>>());
            let mut numbers: Vec<u64> = (0..600).collect();
            Rng::new(1).shuffle(&mut numbers);
            for (number, row) in numbers.iter().zip(rows(&source, &numbers)) {
                assert_eq!(row, in_order[*number as usize], "row {number}");
            }
            assert_eq!(rows(&source, &[u64::MAX]), rows(&source, &[u64::MAX]));
        }
    }

    #[test]
    fn drift_starts_at_the_first_source_and_ends_at_the_second() {
        for kind in KINDS {
            let still = Synthetic::new(&spec(kind)).unwrap();
            let moving = Synthetic::new(&SyntheticSpec { drift: Some(1 << 40), ..spec(kind) }).unwrap();
            let numbers: Vec<u64> = (0..2000).collect();
            assert_eq!(rows(&still, &numbers), rows(&moving, &numbers));
            let second = moving.second.as_ref().unwrap();
            let after: Vec<u64> = (0..40_000).map(|row| (1 << 40) + row).collect();
            let after = rows(&moving, &after);
            let spec = spec(kind);
            assert!(total_variation(&after, &spec, |row| second.log_likelihood(row).exp()) < 0.026);
            assert!(total_variation(&after, &spec, |row| still.log_likelihood(row).exp()) > 0.2);
            let half: Vec<u64> = (0..40_000).map(|row| (1 << 39) + row).collect();
            let mixed = |row: &[u32]| (second.log_likelihood(row).exp() + still.log_likelihood(row).exp()) / 2.0;
            assert!(total_variation(&rows(&moving, &half), &spec, mixed) < 0.026);
        }
    }

    #[test]
    fn from_each_change_on_rows_come_from_another_source() {
        for kind in KINDS {
            let spec = SyntheticSpec { changes: vec![40_000, 80_000], ..spec(kind) };
            let (still, changing) =
                (Synthetic::new(&SyntheticSpec { changes: Vec::new(), ..spec.clone() }), Synthetic::new(&spec));
            let (still, changing) = (still.unwrap(), changing.unwrap());
            let part = |number: u64| rows(&changing, &(number * 40_000..(number + 1) * 40_000).collect::<Vec<_>>());
            assert_eq!(part(0), rows(&still, &(0..40_000).collect::<Vec<_>>()));
            let models = [&changing.first, &changing.changed[0], &changing.changed[1]];
            for (number, own) in models.iter().enumerate() {
                let rows = part(number as u64);
                for model in &models {
                    let distance = total_variation(&rows, &spec, |row| model.log_likelihood(row).exp());
                    assert_eq!(distance < 0.026, std::ptr::eq(*model, *own), "{kind:?}, part {number}: {distance}");
                }
            }
            assert_eq!(rows(&changing, &[39_999]), rows(&still, &[39_999]));
        }
    }

    #[test]
    fn a_chain_keeps_its_stationary_distribution() {
        for states in [1, 2, 5, 40] {
            let transition = Rows::random(states, states, &mut Rng::new(states as u64));
            let mass = Rows::new(states, stationary(&transition)).probabilities;
            for to in 0..states {
                let after: f64 = (0..states).map(|from| mass[from] * transition.row(from)[to]).sum();
                assert!((after - mass[to]).abs() < 1e-14, "{states} states: {after} {}", mass[to]);
            }
        }
    }

    #[test]
    fn there_is_something_to_learn() {
        // The next symbol is better known with the source than from the frequencies of symbols alone.
        let spec = SyntheticSpec { num_vars: 32, cats: 24, latents: 12, ..spec(SyntheticKind::Hmm) };
        let source = Synthetic::new(&spec).unwrap();
        let rows = rows(&source, &(0..2000).collect::<Vec<_>>());
        let mut counts = [1.0; 24];
        rows.iter().flatten().for_each(|&value| counts[value as usize] += 1.0);
        let total: f64 = counts.iter().sum();
        let symbols = (rows.len() * 32) as f64;
        let frequencies =
            rows.iter().flatten().map(|&value| (counts[value as usize] / total).ln()).sum::<f64>() / symbols;
        let truth = rows.iter().map(|row| source.log_likelihood(row)).sum::<f64>() / symbols;
        assert!(truth > frequencies + 0.2, "{truth} {frequencies}");
    }

    #[test]
    fn columns_are_as_narrow_as_the_categories() {
        let column = |cats| {
            let spec = SyntheticSpec { num_vars: 50, cats, ..spec(SyntheticKind::Hmm) };
            let Records::Lists(lists) = Synthetic::new(&spec).unwrap().gather(&[3]).unwrap().records else {
                panic!("rows are lists")
            };
            lists.values
        };
        assert!(matches!(column(256), Values::U8(_)));
        let Values::U16(wide) = column(65_536) else { panic!("65,536 categories need two bytes") };
        assert!(wide.iter().any(|&value| value > 255));
    }

    #[test]
    fn specs_are_checked_and_written_as_they_are_read() {
        let good: SyntheticSpec =
            serde_json::from_str(r#"{"kind": "mixture", "num_vars": 2, "cats": 3, "latents": 4, "rows": 10}"#).unwrap();
        assert_eq!(good, SyntheticSpec { num_vars: 2, seed: 0, rows: Some(10), ..spec(SyntheticKind::Mixture) });
        let text = serde_json::to_string(&good).unwrap();
        assert_eq!(serde_json::from_str::<SyntheticSpec>(&text).unwrap(), good);
        let unknown = text.replace("cats", "categories");
        assert!(serde_json::from_str::<SyntheticSpec>(&unknown).is_err());
        for bad in [
            SyntheticSpec { num_vars: 0, ..good.clone() },
            SyntheticSpec { cats: 1, ..good.clone() },
            SyntheticSpec { cats: 65_537, ..good.clone() },
            SyntheticSpec { latents: 0, ..good.clone() },
            SyntheticSpec { latents: 1025, ..good.clone() },
            SyntheticSpec { rows: Some(0), ..good.clone() },
            SyntheticSpec { drift: Some(0), ..good.clone() },
            SyntheticSpec { changes: vec![0], ..good.clone() },
            SyntheticSpec { changes: vec![5, 5], ..good.clone() },
            SyntheticSpec { changes: vec![5], drift: Some(5), ..good.clone() },
            SyntheticSpec { changes: (1..=1025).collect(), ..good.clone() },
            SyntheticSpec { num_vars: 1 << 24, ..good.clone() },
            SyntheticSpec { num_vars: usize::MAX, kind: SyntheticKind::Hmm, ..good.clone() },
        ] {
            assert_eq!(Synthetic::new(&bad).unwrap_err().kind(), crate::ErrorKind::Option, "{bad:?}");
        }
        let source = Synthetic::new(&good).unwrap();
        assert!(source.gather(&[9]).is_ok() && source.gather(&[10]).is_err());
        assert_eq!(source.log_likelihood(&[0]), f64::NEG_INFINITY);
        assert_eq!(source.log_likelihood(&[0, 3]), f64::NEG_INFINITY);
        let other = Synthetic::new(&SyntheticSpec { seed: 1, ..good }).unwrap();
        assert_ne!(source.manifest().digest, other.manifest().digest);
    }
}
