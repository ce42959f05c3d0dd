//! Findings for unit tests.

use crate::compare::findings::{Contender, Point, Run, Section};

/// A run with these held-out values at epochs 0, 1, …, ten seconds each.
pub fn run(seed: u64, valid: &[Option<f64>]) -> Run {
    let point = |(at, valid): (usize, &Option<f64>)| Point {
        epoch: at as f64,
        seconds: 10.0 * at as f64,
        valid: *valid,
        train: None,
    };
    let points: Vec<Point> = valid.iter().enumerate().map(point).collect();
    let seconds = points.last().map_or(0.0, |p| p.seconds);
    Run { seed, points, rows: 100, seconds, ..Run::default() }
}

/// A contender with one run a seed, seeds from 1.
pub fn contender(name: &str, optimizer: &str, runs: &[&[f64]]) -> Contender {
    let some = |values: &[f64]| values.iter().map(|v| Some(*v)).collect::<Vec<_>>();
    let runs = runs.iter().zip(1..).map(|(values, seed)| run(seed, &some(values))).collect();
    Contender { name: name.into(), optimizer: optimizer.into(), runs, ..Contender::default() }
}

/// A section of these contenders.
pub fn section(contenders: Vec<Contender>) -> Section {
    Section { name: "test".into(), title: "Test".into(), epochs: 4, contenders, ..Section::default() }
}
