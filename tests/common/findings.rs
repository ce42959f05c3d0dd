//! Findings that look like real ones, made by a formula.

use anemone::compare::findings::{Contender, Findings, Point, Reference, Run, Section, Setting, Trial};

/// A name that would break a page that is not careful.
pub const ODD_NAME: &str = "Ädäm <b>&\"quoted\" ∞";

/// How a learner behaves.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Where it gets.
    pub end: f64,
    /// In about how many epochs.
    pub pace: f64,
    /// How long an epoch takes.
    pub epoch_seconds: f64,
}

/// Two sections: one with everything, one with everything that can go wrong.
pub fn findings() -> Findings {
    Findings {
        title: "Optimizers, side by side".into(),
        date: "2026-11-16".into(),
        machine: "2 threads of a computer".into(),
        command: "anemone compare \"a & b.toml\"".into(),
        sections: vec![text(), troubled()],
    }
}

/// Six contenders under three seeds, forty epochs.
pub fn text() -> Section {
    let mut without =
        contender("anemone without momentum", "anemone", Shape { end: -668.0, pace: 1.6, epoch_seconds: 6.0 });
    without.ablates = Some("anemone".into());
    Section {
        name: "text-hmm".into(),
        title: "Text with a hidden Markov model".into(),
        about: "Rows of 128 tokens, in a new order each epoch.".into(),
        data: "text, 128 tokens a row".into(),
        rows: 18_214,
        valid_rows: 1_910,
        num_vars: 128,
        circuit: "hmm, 256 latents".into(),
        parameters: 12_931_584,
        epochs: 40,
        references: vec![
            Reference { name: "unigram".into(), valid: Some(-854.3), test: Some(-862.1) },
            Reference { name: "uniform".into(), valid: Some(-1385.6), test: None },
        ],
        thresholds: vec![-700.0, -680.0, -670.0],
        contenders: vec![
            contender("anemone", "anemone", Shape { end: -655.0, pace: 1.9, epoch_seconds: 6.2 }),
            without,
            contender("mini-batch EM", "mini_batch_em", Shape { end: -672.0, pace: 3.0, epoch_seconds: 6.0 }),
            contender("stepwise EM", "stepwise_em", Shape { end: -679.0, pace: 3.5, epoch_seconds: 7.0 }),
            contender("full-batch EM", "full_batch_em", Shape { end: -668.0, pace: 9.0, epoch_seconds: 5.4 }),
            contender("Adam", "adam", Shape { end: -701.0, pace: 7.0, epoch_seconds: 9.0 }),
        ],
    }
}

/// A run that failed, one that is missing, one without a single value, and odd names.
pub fn troubled() -> Section {
    let mut section = text();
    section.name = "troubled".into();
    section.title = "Trouble & \"quotes\" <here>".into();
    section.contenders[2].runs.pop();
    section.contenders[3].name = "impossible".into();
    for run in &mut section.contenders[3].runs {
        run.points.iter_mut().for_each(|point| point.valid = None);
        run.test = None;
    }
    let adam = &mut section.contenders[5];
    adam.name = ODD_NAME.into();
    adam.runs[1].failed = Some("row 7 <of> 9 is impossible".into());
    adam.runs[1].points.truncate(13);
    section
}

/// Three runs along a curve that starts with a cliff.
pub fn contender(name: &str, optimizer: &str, shape: Shape) -> Contender {
    let setting = |key: &str, value: &str| Setting { key: key.into(), value: value.into() };
    let trial = |step: &str, best_valid| Trial {
        settings: vec![setting("learn.step", step)],
        epochs: 5,
        best_valid,
        is_chosen: step == "0.4",
    };
    Contender {
        name: name.into(),
        optimizer: optimizer.into(),
        ablates: None,
        settings: vec![setting("learn.step", "0.4"), setting("batch.rows", "256")],
        seeds: Vec::new(),
        trials: vec![trial("0.2", Some(-731.25)), trial("0.4", Some(-729.5)), trial("0.8", None)],
        runs: (1..=3).map(|seed| run(seed, shape)).collect(),
    }
}

fn run(seed: u64, shape: Shape) -> Run {
    let point = |epoch: u32| {
        let epoch = f64::from(epoch);
        let depth = shape.end + 900.0;
        let wave = (epoch * 1.7 + seed as f64 * 2.1 + shape.end).sin();
        let cliff = if epoch == 0.0 { 480.0 } else { 0.0 };
        let valid = shape.end - depth * (0.6 * (-epoch / shape.pace).exp() + 0.4 / (1.0 + epoch / shape.pace)) - cliff
            + (seed as f64 - 2.0) * 1.3
            + 0.3 * wave;
        Point {
            epoch,
            seconds: epoch * shape.epoch_seconds,
            valid: Some(valid),
            train: (epoch > 0.0).then_some(valid + 3.0),
        }
    };
    let points: Vec<Point> = (0..=40).map(point).collect();
    let best = points.iter().filter_map(|p| p.valid).fold(f64::NEG_INFINITY, f64::max);
    Run {
        seed,
        rows: 40 * 18_214,
        seconds: 40.0 * shape.epoch_seconds,
        test: Some(best - 11.0),
        points,
        ..Run::default()
    }
}
