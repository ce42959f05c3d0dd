//! Rows that look like text or like images, as many as one likes.
//!
//! Speed depends on data: tokens that are rare and common, so that tables are touched as they are by text; neighbours
//! that resemble each other, so that likelihoods stay in the range of real ones.

use super::trees::{CHANNELS, side};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::rng::Rng;

/// p(i) ∝ 1/(i + this): flattens the head, as in the vocabularies of real text.
const ZIPF_SHIFT: f64 = 2.7;

/// Pixels between two places where an image's brightness is drawn; it is interpolated between them.
const LATTICE: usize = 4;

/// Standard deviation of a pixel's own noise, where that of the smooth field is 1.
const NOISE: f64 = 0.3;

/// What a line of variables keeps of its last value.
const KEPT: f64 = 0.95;

/// Makes batches of one kind of rows.
#[derive(Clone, Debug)]
pub struct Rows {
    num_vars: usize,
    cats: u32,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Independent tokens; Σ p up to each token, the last one is 1.
    Tokens(Vec<f64>),
    /// Smooth fields, quantised.
    Fields,
}

impl Rows {
    /// Rows of tokens out of `cats`, each as frequent as its rank says: p(i) ∝ 1/(i + 2.7).
    pub fn tokens(num_vars: usize, cats: u32) -> Result<Self> {
        let mut sum = 0.0;
        let weights = (0..cats).map(|token| 1.0 / (f64::from(token) + ZIPF_SHIFT));
        let sums = weights.map(|weight| {
            sum += weight;
            sum
        });
        let mut cumulative: Vec<f64> = sums.collect();
        cumulative.iter_mut().for_each(|c| *c /= sum);
        Self { num_vars, cats, kind: Kind::Tokens(cumulative) }.checked()
    }

    /// Smooth random fields in `cats` levels: square images in three colours where `num_vars` is one
    /// ([`side`]), lines otherwise.
    pub fn fields(num_vars: usize, cats: u32) -> Result<Self> {
        Self { num_vars, cats, kind: Kind::Fields }.checked()
    }

    fn checked(self) -> Result<Self> {
        for (name, count) in [("vars", self.num_vars), ("cats", self.cats as usize)] {
            if count == 0 {
                return Err(Error::option(format!("{name} = 0: must be at least 1")));
            }
        }
        Ok(self)
    }

    /// The next rows of a random stream, in the narrowest type that holds their categories.
    pub fn batch(&self, num_rows: usize, rng: &mut Rng) -> Result<Batch> {
        let mut values = Vec::with_capacity(num_rows * self.num_vars);
        for _ in 0..num_rows {
            match (&self.kind, side(self.num_vars)) {
                (Kind::Tokens(cumulative), _) => values.extend((0..self.num_vars).map(|_| token(cumulative, rng))),
                (Kind::Fields, Some(side)) => values.extend(image(side, rng).into_iter().map(|x| self.level(x))),
                (Kind::Fields, None) => values.extend(line(self.num_vars, rng).into_iter().map(|x| self.level(x))),
            }
        }
        match self.cats {
            ..=0x100 => Batch::from_rows(&values.iter().map(|&v| v as u8).collect::<Vec<_>>(), self.num_vars),
            0x101..=0x1_0000 => Batch::from_rows(&values.iter().map(|&v| v as u16).collect::<Vec<_>>(), self.num_vars),
            _ => Batch::from_rows(&values, self.num_vars),
        }
    }

    /// The level of a value that is about normal.
    fn level(&self, value: f64) -> u32 {
        let top = f64::from(self.cats - 1);
        (top * (0.5 + 0.5 * value.tanh())).round() as u32
    }
}

fn token(cumulative: &[f64], rng: &mut Rng) -> u32 {
    let at = rng.uniform();
    let token = cumulative.partition_point(|&sum| sum <= at);
    token.min(cumulative.len() - 1) as u32 // rounding may have left the last sum below 1
}

/// One image, `[side × side × channels]`: smooth brightness that all colours share in part, and noise.
fn image(side: usize, rng: &mut Rng) -> Vec<f64> {
    let mut lattice = || Lattice::new(side, rng);
    let shared = lattice();
    let own: [Lattice; CHANNELS] = std::array::from_fn(|_| lattice());
    let mut values = Vec::with_capacity(CHANNELS * side * side);
    for (row, col) in (0..side * side).map(|pixel| (pixel / side, pixel % side)) {
        let brightness = shared.at(row, col);
        values.extend(own.iter().map(|own| 0.8 * brightness + 0.6 * own.at(row, col) + NOISE * rng.normal()));
    }
    values
}

/// Normal values on a coarse lattice.
struct Lattice {
    values: Vec<f64>,
    width: usize,
}

impl Lattice {
    fn new(side: usize, rng: &mut Rng) -> Self {
        let width = side.div_ceil(LATTICE) + 1; // one beyond the last pixel
        Self { values: (0..width * width).map(|_| rng.normal()).collect(), width }
    }

    /// Between the four values around a pixel, in proportion.
    fn at(&self, row: usize, col: usize) -> f64 {
        let (r, c) = (row / LATTICE, col / LATTICE);
        let part = |at: usize| (at % LATTICE) as f64 / LATTICE as f64;
        let value = |r: usize, c: usize| self.values[r * self.width + c];
        let along = |r: usize| (1.0 - part(col)) * value(r, c) + part(col) * value(r, c + 1);
        (1.0 - part(row)) * along(r) + part(row) * along(r + 1)
    }
}

/// A walk that returns to 0, with a standard deviation of about 1.
fn line(num_vars: usize, rng: &mut Rng) -> Vec<f64> {
    let step = (1.0 - KEPT * KEPT).sqrt();
    let mut value = rng.normal();
    let next = |_| {
        value = KEPT * value + step * rng.normal();
        value
    };
    (0..num_vars).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Values;

    fn categories(batch: &Batch, var: usize) -> Vec<f64> {
        (0..batch.num_rows()).map(|row| batch.column(var).real(row)).collect()
    }

    fn correlation(a: &[f64], b: &[f64]) -> f64 {
        let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
        let (ma, mb) = (mean(a), mean(b));
        let moment =
            |x: &[f64], mx: f64, y: &[f64], my: f64| -> f64 { x.iter().zip(y).map(|(x, y)| (x - mx) * (y - my)).sum() };
        moment(a, ma, b, mb) / (moment(a, ma, a, ma) * moment(b, mb, b, mb)).sqrt()
    }

    #[test]
    fn tokens_are_as_frequent_as_their_rank_says() {
        let cats = 50;
        let batch = Rows::tokens(8, cats).unwrap().batch(20_000, &mut Rng::new(1)).unwrap();
        let mut counts = vec![0.0; cats as usize];
        (0..8).for_each(|var| categories(&batch, var).iter().for_each(|&token| counts[token as usize] += 1.0));
        let total: f64 = (0..cats).map(|i| 1.0 / (f64::from(i) + 2.7)).sum();
        for (token, count) in counts.iter().enumerate() {
            let want = 160_000.0 / ((token as f64 + 2.7) * total);
            // Five standard deviations of a Poisson count.
            assert!((count - want).abs() < 5.0 * want.sqrt(), "token {token}: {count}, expected {want}");
        }
    }

    #[test]
    fn neighbours_and_colours_resemble_each_other() {
        let batch = Rows::fields(768, 256).unwrap().batch(2000, &mut Rng::new(2)).unwrap();
        let at = |row: usize, col: usize, channel: usize| categories(&batch, (row * 16 + col) * 3 + channel);
        let here = at(7, 7, 0);
        let (right, other, far) = (at(7, 8, 0), at(7, 7, 1), at(0, 15, 0));
        let [near, colour, far] = [right, other, far].map(|there| correlation(&here, &there));
        assert!(near > 0.6 && colour > 0.3 && far.abs() < 0.15, "{near} {colour} {far}");
        let line = Rows::fields(40, 16).unwrap().batch(2000, &mut Rng::new(3)).unwrap();
        let [near, far] = [11, 39].map(|var| correlation(&categories(&line, 10), &categories(&line, var)));
        assert!(near > 0.8 && far < 0.5, "{near} {far}");
    }

    #[test]
    fn values_are_categories_in_the_narrowest_type_and_repeat_with_the_seed() {
        let is_u8 = |c: &Values| matches!(c, Values::U8(_));
        let is_u16 = |c: &Values| matches!(c, Values::U16(_));
        let is_u32 = |c: &Values| matches!(c, Values::U32(_));
        for (cats, narrow) in
            [(1, is_u8 as fn(&Values) -> bool), (256, is_u8), (257, is_u16), (65_536, is_u16), (65_537, is_u32)]
        {
            for rows in
                [Rows::tokens(12, cats).unwrap(), Rows::fields(12, cats).unwrap(), Rows::fields(5, cats).unwrap()]
            {
                let batch = rows.batch(30, &mut Rng::new(4)).unwrap();
                assert!((0..batch.num_vars()).all(|var| narrow(batch.column(var))), "{cats}");
                assert!((0..batch.num_vars()).all(|var| categories(&batch, var).iter().all(|&v| v < f64::from(cats))));
                assert_eq!(batch, rows.batch(30, &mut Rng::new(4)).unwrap());
            }
        }
        assert!(Rows::tokens(0, 3).is_err() && Rows::fields(3, 0).is_err());
    }
}
