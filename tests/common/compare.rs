//! Comparisons that fail on NaN, on empty input and on different lengths: a test must not pass by comparing nothing.

use super::spec::Table;

/// How far apart two numbers may be: `absolute + relative·|wanted|`.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    pub absolute: f64,
    pub relative: f64,
}

/// Log-likelihoods: a row's value is a product of f32 numbers, 6e-8 relative each, over at most some hundred nodes.
/// That is an absolute error of the logarithm, which a relative one alone would not allow where everything is missing
/// and log p = 0.
pub const LOG_LIKELIHOOD: Tolerance = Tolerance { absolute: 1e-6, relative: 1e-5 };

/// Parameters and mean flows are probabilities, or sums of a few dozen of them: f32 sums of numbers below 1.
pub const PROBABILITY: Tolerance = Tolerance { absolute: 2e-5, relative: 0.0 };

pub fn close(what: &str, got: &[f64], want: &[f64], tolerance: Tolerance) {
    assert!(!want.is_empty(), "{what}: there is nothing to compare");
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!(!g.is_nan() && !w.is_nan(), "{what}: NaN at {i}: got {g}, want {w}");
        let allowed = tolerance.absolute + tolerance.relative * w.abs();
        let same = if w.is_infinite() { g == w } else { (g - w).abs() <= allowed };
        assert!(same, "{what}: at {i} got {g}, want {w}: off by {:e}, allowed {allowed:e}", (g - w).abs());
    }
}

pub fn close_number(what: &str, got: f64, want: f64, tolerance: Tolerance) {
    close(what, &[got], &[want], tolerance);
}

pub fn close_rows(what: &str, got: &[Vec<f64>], want: &[Vec<f64>], tolerance: Tolerance) {
    assert!(!want.is_empty(), "{what}: there is nothing to compare");
    assert_eq!(got.len(), want.len(), "{what}: numbers of rows differ");
    for (r, (got, want)) in got.iter().zip(want).enumerate() {
        close(&format!("{what}: row {r}"), got, want, tolerance);
    }
}

pub fn close_table(what: &str, got: &Table, want: &Table, tolerance: Tolerance) {
    assert!(!want.is_empty(), "{what}: there is nothing to compare");
    assert_eq!(got.len(), want.len(), "{what}: numbers of blocks differ");
    for (b, (got, want)) in got.iter().zip(want).enumerate() {
        close_rows(&format!("{what}: block {b}"), got, want, tolerance);
    }
}

/// The largest distance between two tables of one shape; fails on NaN.
pub fn distance(a: &Table, b: &Table) -> f64 {
    let pairs = a.iter().flatten().flatten().zip(b.iter().flatten().flatten());
    let distances: Vec<f64> = pairs.map(|(x, y)| (x - y).abs()).collect();
    assert!(!distances.is_empty() && distances.iter().all(|d| !d.is_nan()), "nothing to compare, or NaN");
    distances.into_iter().fold(0.0, f64::max)
}
