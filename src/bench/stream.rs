//! Several optimizers on one stream: which is further after the same rows, and which after the same seconds?
//!
//! Every optimizer gets the same rows in the same order, the same circuit and the same start, through the loop that
//! trains; nothing is written. Seconds are those of learning: looking at held-out rows is left out of them.

use std::sync::Arc;
use std::time::Instant;

use super::flops::flops_per_row;
use super::host::{Host, reset_peak_memory};
use super::{Line, Reference, Setting, Speed, Standing, Subject};
use crate::circuit::Circuit;
use crate::error::{Error, Result};
use crate::pipeline::observer::{Event, Finished, Observer, Phases};
use crate::pipeline::prepare::Inputs;
use crate::pipeline::run::rehearse;
use crate::pipeline::spec::PipelineSpec;
use crate::pipeline::stop::Stop;
use crate::source::Source;

/// Learns each pipeline with each setting. They are one pipeline with different optimizers: data and circuit are opened
/// and built once, as the first one says. `tell` is called with what a user should know meanwhile.
pub async fn compare(
    name: &str,
    specs: &[PipelineSpec],
    settings: &[Setting],
    reference: &mut Reference,
    tell: &mut (dyn FnMut(&str) + Send),
) -> Result<Vec<Line>> {
    let Some(first) = specs.first() else { return Ok(Vec::new()) };
    let inputs = Inputs::open(first).await?;
    check_ends(first, &inputs.source)?;
    let circuit = Arc::new(inputs.build_circuit(&mut |_| ()).await?);
    let mut lines = Vec::new();
    let mut curves = Vec::new();
    for setting in settings {
        for spec in specs {
            reset_peak_memory();
            let mut watch = Watch::new(inputs.valid.is_some(), tell);
            let stop = Stop::new(); // nothing is left behind, so a signal may end the process at once
            let finished =
                rehearse(&inputs.learned_as(spec), circuit.clone(), &setting.place, &stop, &mut watch).await?;
            let (curve, host) = (watch.finish(&finished), Host::look());
            reference.again();
            lines.push(line(name, spec, setting, &circuit, &curve, host));
            curves.push(curve);
        }
    }
    let fastest = curves.iter().map(|curve| curve.seconds).fold(f64::INFINITY, f64::min);
    for (line, curve) in lines.iter_mut().zip(&curves) {
        line.standing = Some(curve.standing(fastest));
        line.hold_against(reference);
    }
    Ok(lines)
}

/// Refuses a comparison that has no end, or whose rows come only once.
fn check_ends(spec: &PipelineSpec, source: &Source) -> Result<()> {
    let learn = &spec.learn;
    let endless = match source {
        Source::Live(_) => {
            return Err(Error::unsupported("a live stream comes only once: several optimizers cannot learn from it"));
        }
        Source::Indexed(source) => source.num_rows().is_none(),
        Source::Blocks(_) => false,
    };
    if learn.batches.is_none() && (endless || learn.epochs.is_none()) {
        return Err(Error::option(
            "a comparison at equal rows needs an end: --epochs, or --set learn.batches=N where the source has none",
        ));
    }
    Ok(())
}

fn line(name: &str, spec: &PipelineSpec, setting: &Setting, circuit: &Circuit, curve: &Curve, host: Host) -> Line {
    let steps = (curve.steps as f64).max(1.0);
    let rows = curve.rows as f64 / steps;
    let speed = Speed::new(curve.steps, rows, curve.seconds / steps, flops_per_row(circuit));
    let phases = curve.phases;
    Line {
        subject: Subject {
            bench: "stream",
            pipeline: Some(name.into()),
            circuit: spec.circuit.model.name().into(),
            vars: circuit.num_vars(),
            parameters: circuit.layout().num_values() as u64,
            optimizer: spec.learn.optimizer.name().into(),
            device: setting.device.clone(),
            precision: setting.precision.clone(),
            isa: setting.isa.clone(),
            threads: setting.threads(),
            batch_rows: spec.batch.rows,
            ..Subject::default()
        },
        speed: speed.with_phases(Phases {
            read: phases.read / steps,
            decode: phases.decode / steps,
            wait: phases.wait / steps,
            prepare: phases.prepare / steps,
            forward: phases.forward / steps,
            backward: phases.backward / steps,
            flows: phases.flows / steps,
            update: phases.update / steps,
        }),
        log_likelihood: curve.last_batch_ll,
        standing: None,
        host,
    }
}

/// How one optimizer did over time.
#[derive(Clone, Debug, Default)]
struct Curve {
    held_out: bool,
    /// Seconds of learning and the log-likelihood then, at every evaluation; −∞ where a held-out row was impossible, so
    /// that no optimizer gets ahead by ruling out what happens.
    points: Vec<(f64, Option<f64>)>,
    last_batch_ll: Option<f64>,
    impossible_rows: u64,
    steps: u64,
    epochs: u64,
    rows: u64,
    seconds: f64,
    phases: Phases,
}

impl Curve {
    fn standing(&self, equal_seconds: f64) -> Standing {
        let within = self.points.iter().rev().find(|(seconds, _)| *seconds <= equal_seconds);
        Standing {
            rows: self.rows,
            epochs: self.epochs,
            seconds: self.seconds,
            held_out: self.held_out,
            equal_rows_ll: self.points.last().and_then(|(_, ll)| *ll),
            equal_seconds,
            equal_seconds_ll: within.and_then(|(_, ll)| *ll),
            impossible_rows: self.impossible_rows,
        }
    }
}

/// Takes the time of a run and its likelihoods.
struct Watch<'a> {
    begun: Instant,
    /// Seconds that went into held-out rows.
    validating: f64,
    curve: Curve,
    tell: &'a mut (dyn FnMut(&str) + Send),
}

impl<'a> Watch<'a> {
    fn new(held_out: bool, tell: &'a mut (dyn FnMut(&str) + Send)) -> Self {
        let curve = Curve { held_out, ..Curve::default() };
        Self { begun: Instant::now(), validating: 0.0, curve, tell }
    }

    fn learned_for(&self) -> f64 {
        self.begun.elapsed().as_secs_f64() - self.validating
    }

    fn finish(mut self, finished: &Finished) -> Curve {
        // What was evaluated last was evaluated after all rows: its time is the run's own.
        self.curve.seconds = (finished.seconds - self.validating).max(0.0);
        if let Some((seconds, _)) = self.curve.points.last_mut() {
            *seconds = self.curve.seconds;
        }
        Curve {
            steps: finished.step,
            epochs: finished.epoch,
            rows: finished.rows,
            phases: finished.phases,
            ..self.curve
        }
    }
}

impl Observer for Watch<'_> {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Started(_) => self.begun = Instant::now(), // what came before was no learning
            Event::Step(line) => {
                self.curve.last_batch_ll = line.log_likelihood;
                if !self.curve.held_out {
                    let seconds = self.learned_for();
                    self.curve.points.push((seconds, line.prequential_ll));
                }
            }
            Event::Validated(found) => {
                self.validating += found.seconds;
                self.curve.impossible_rows = found.impossible_rows;
                let seconds = self.learned_for();
                self.curve.points.push((seconds, Some(found.log_likelihood.unwrap_or(f64::NEG_INFINITY))));
            }
            Event::Warning(message) => (self.tell)(&format!("warning: {message}")),
            Event::Note(message) => (self.tell)(&format!("note: {message}")),
            Event::EpochEnd(_) | Event::Structure { .. } | Event::Checkpointed { .. } => {}
            Event::Drift(_) | Event::Finished(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::observer::Validated;

    #[test]
    fn the_slower_one_is_judged_by_what_it_had_when_the_faster_one_was_done() {
        let points = vec![(1.0, Some(-9.0)), (2.0, Some(-7.0)), (3.0, Some(-6.0))];
        let curve = Curve { held_out: true, points, seconds: 3.0, rows: 30, ..Curve::default() };
        let at = |seconds: f64| {
            let standing = curve.standing(seconds);
            (standing.equal_rows_ll, standing.equal_seconds_ll)
        };
        assert_eq!(at(3.0), (Some(-6.0), Some(-6.0)));
        assert_eq!(at(2.5), (Some(-6.0), Some(-7.0)));
        assert_eq!(at(0.5), (Some(-6.0), None), "there was no evaluation yet");
    }

    #[test]
    fn who_rules_out_what_happens_is_last() {
        let mut tell = |_: &str| ();
        let mut watch = Watch::new(true, &mut tell);
        let found = Validated { possible_ll: Some(-1.0), ..Validated::default() };
        watch.event(&Event::Validated(Validated { log_likelihood: Some(-1.0), ..found.clone() }));
        watch.event(&Event::Validated(Validated { log_likelihood: None, impossible_rows: 1, ..found }));
        let standing = watch.finish(&Finished::default()).standing(f64::INFINITY);
        assert_eq!((standing.equal_rows_ll, standing.impossible_rows), (Some(f64::NEG_INFINITY), 1));
    }
}
