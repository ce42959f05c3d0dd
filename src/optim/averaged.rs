//! Averaged parameters θ̄ around any optimizer: learn with θ, answer with θ̄.
//!
//! A constant step leaves its noise in θ, and a step that shrinks needs to know when the stream ends. The mean of the
//! last part of the way has neither trouble (docs/MATH.md, "Averaged parameters"). The arithmetic is a verb of the
//! backend; here are the weights, when it is due, and when the past is to be forgotten.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::state::OptimizerState;
use super::{Optimizer, StepReport, check_option, inside};
use crate::backend::{Backend, Tensor};
use crate::circuit::Params;
use crate::data::Batch;
use crate::error::{Error, Result};

/// Whether parameters are averaged, and how. In files `true`, `false` or a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Averaging {
    /// Answers are those of θ.
    Off,
    /// Answers are those of θ̄.
    On(AverageSpec),
}

/// How parameters are averaged.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AverageSpec {
    /// θ̄ is of about the last 1/(window + 1) of the updates since the start or the last reset.
    pub window: f64,
    /// Updates between two averages, once there have been 32 times as many; before, fewer.
    pub every: u64,
    /// Updates that θ̄ spans at the most, however long the stream is.
    pub cap: u64,
    /// θ̄ starts anew where a batch is so many standard deviations less likely than those before it, and with it a step
    /// that falls by counts; 0 is never.
    pub reset: f64,
}

impl Default for AverageSpec {
    fn default() -> Self {
        Self { window: 8.0, every: 8, cap: 10_000, reset: 6.0 }
    }
}

impl Averaging {
    /// With the default options.
    pub fn on() -> Self {
        Self::On(AverageSpec::default())
    }

    /// Returns true if answers are those of averaged parameters.
    pub fn is_on(&self) -> bool {
        matches!(self, Self::On(_))
    }

    /// Refuses options outside their range.
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::Off => Ok(()),
            Self::On(spec) => spec.check().map_err(|e| inside("average", e)),
        }
    }

    /// The optimizer, with its parameters averaged if that is asked for.
    pub(super) fn around(&self, optimizer: Box<dyn Optimizer>) -> Box<dyn Optimizer> {
        match *self {
            Self::Off => optimizer,
            Self::On(spec) => Box::new(Averaged { optimizer, spec, updates: 0, averaged: 0, usual: Usual::default() }),
        }
    }
}

impl AverageSpec {
    fn check(&self) -> Result<()> {
        let Self { window, every, cap, reset } = *self;
        check_option(window >= 0.0 && window.is_finite(), "window", window, "a number, 0 or more")?;
        check_option(every > 0, "every", every as f64, "at least 1")?;
        check_option(cap > 0, "cap", cap as f64, "at least 1")?;
        check_option(reset >= 0.0 && reset.is_finite(), "reset", reset, "a number, 0 or more")
    }
}

struct Averaged {
    optimizer: Box<dyn Optimizer>,
    spec: AverageSpec,
    /// Updates since the start or the last reset.
    updates: u64,
    /// The update at which θ was last averaged.
    averaged: u64,
    usual: Usual,
}

/// An average is never older than this share of the updates: early on θ moves fast.
const OLDEST: u64 = 32;

impl Averaged {
    /// Notes that θ has moved, and averages it if that is due.
    fn moved(&mut self, backend: &mut dyn Backend) -> Result<()> {
        self.updates += 1;
        let wait = (self.updates / OLDEST).clamp(1, self.spec.every);
        if self.updates - self.averaged < wait {
            return Ok(());
        }
        backend.average(weight(&self.spec, self.averaged, self.updates))?;
        self.averaged = self.updates;
        Ok(())
    }

    /// Puts saved counters and parameters back.
    fn replace(&mut self, backend: &mut dyn Backend, state: &OptimizerState) -> Result<()> {
        let is_averaged = state.buffers.contains_key(THETA)
            || COUNTERS.iter().any(|&name| state.counters.contains_key(name))
            || NUMBERS.iter().any(|&name| state.numbers.contains_key(name));
        if !is_averaged {
            // Saved without an average: it begins here.
            (self.updates, self.averaged, self.usual) = (0, 0, Usual::default());
            return Ok(());
        }
        let Tensor::F32(theta) = state.buffer(THETA)? else {
            return Err(Error::state("saved parameters must be of type f32"));
        };
        let [updates, averaged, batches] = COUNTERS.map(|name| state.counter(name));
        let [mean, variance, weight] = NUMBERS.map(|name| state.number(name));
        let usual = Usual { batches: batches?, mean: mean?, variance: variance?, weight: weight? };
        let (updates, averaged) = (updates?, averaged?);
        let average = backend.averaged_params()?; // what the checkpoint calls its model
        let theta = Params::from_values(backend.circuit(), theta.clone()).map_err(|e| e.at("the saved state"))?;
        backend.set_params(&theta)?;
        backend.set_average(&average)?;
        (self.updates, self.averaged, self.usual) = (updates, averaged, usual);
        Ok(())
    }
}

/// What the parameters of now count for. After u updates the past has (v/u)^(window+1) if it was last averaged at v, so
/// that θ̄ is the same mean however its updates are spaced, and the first average is θ itself.
fn weight(spec: &AverageSpec, before: u64, now: u64) -> f64 {
    let (now, before) = (now as f64, before as f64);
    let share = 1.0 - (before / now).powf(spec.window + 1.0);
    share.max((now - before) / spec.cap as f64).min(1.0)
}

/// Names of what is saved besides what the optimizer saves.
const THETA: &str = "learning_params";
const COUNTERS: [&str; 3] = ["average_updates", "average_at", "average_batches"];
const NUMBERS: [&str; 3] = ["average_mean", "average_variance", "average_weight"];

impl Optimizer for Averaged {
    fn name(&self) -> &'static str {
        self.optimizer.name()
    }

    fn learn(&mut self, backend: &mut dyn Backend, batch: &Batch) -> Result<StepReport> {
        let report = self.optimizer.learn(backend, batch)?;
        let (weight, reset) = (report.batch.possible_weight, self.spec.reset);
        if weight > 0.0 && self.usual.is_broken_by(report.batch.mean_log_likelihood(), weight, reset) {
            (self.updates, self.averaged) = (0, 0);
            self.optimizer.restart_schedule();
        }
        if report.step_size.is_some() {
            self.moved(backend)?;
        }
        Ok(report)
    }

    fn end_epoch(&mut self, backend: &mut dyn Backend) -> Result<bool> {
        let has_moved = self.optimizer.end_epoch(backend)?;
        if has_moved {
            self.moved(backend)?;
        }
        Ok(has_moved)
    }

    fn restart(&mut self, backend: &mut dyn Backend) -> Result<()> {
        (self.updates, self.averaged, self.usual) = (0, 0, Usual::default());
        self.optimizer.restart(backend)
    }

    fn raise_step(&mut self, backend: &mut dyn Backend) -> Result<()> {
        (self.updates, self.averaged, self.usual) = (0, 0, Usual::default());
        self.optimizer.raise_step(backend)
    }

    fn is_averaged(&self) -> bool {
        true
    }

    /// The optimizer's state, and θ: the parameters of a checkpoint are θ̄.
    fn save(&self, backend: &dyn Backend) -> Result<OptimizerState> {
        let mut state = self.optimizer.save(backend)?;
        state.buffers.insert(THETA.into(), Tensor::F32(backend.params()?.values().to_vec()));
        let Usual { batches, mean, variance, weight } = self.usual;
        let counters = [self.updates, self.averaged, batches];
        state.counters.extend(COUNTERS.map(String::from).into_iter().zip(counters));
        state.numbers.extend(NUMBERS.map(String::from).into_iter().zip([mean, variance, weight]));
        Ok(state)
    }

    fn load(&mut self, backend: &mut dyn Backend, state: &OptimizerState) -> Result<()> {
        let before = self.save(backend)?;
        let average = backend.averaged_params()?;
        let loaded = self.optimizer.load(backend, state).and_then(|()| self.replace(backend, state));
        if loaded.is_err() {
            // A state that does not fit changes nothing.
            self.optimizer.load(backend, &before)?;
            backend.set_params(&average)?;
            self.replace(backend, &before)?;
        }
        loaded
    }
}

/// What batches are usually like: moving mean and variance of their log-likelihoods per row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Usual {
    batches: u64,
    mean: f64,
    variance: f64,
    /// Moving mean of the batches' weights.
    weight: f64,
}

/// What a batch counts for among those before it.
const SHARE: f64 = 0.05;

/// Batches before one can be unusual.
const FIRST: u64 = 20;

impl Usual {
    /// Returns true if a batch is more than `deviations` below the mean of those before it, and takes it in. A batch of
    /// fewer rows deviates further by nature.
    fn is_broken_by(&mut self, log_likelihood: f64, weight: f64, deviations: f64) -> bool {
        let away = log_likelihood - self.mean;
        let share = if self.batches == 0 { 1.0 } else { SHARE };
        self.weight += share * (weight - self.weight);
        // What the deviation would be of a batch of the usual weight.
        let square = away * away * (weight / self.weight).min(1.0);
        let is_lower = away < 0.0 && square > deviations * deviations * self.variance;
        let is_unusual = deviations > 0.0 && self.batches >= FIRST && is_lower;
        self.batches += 1;
        self.mean += share * away;
        self.variance = if share < 1.0 { (1.0 - share) * (self.variance + share * square) } else { 0.0 };
        is_unusual
    }
}

impl Serialize for Averaging {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_bool(false),
            Self::On(spec) => spec.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Averaging {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        match value {
            serde_json::Value::Bool(false) => Ok(Self::Off),
            serde_json::Value::Bool(true) => Ok(Self::on()),
            table => AverageSpec::deserialize(table).map(Self::On).map_err(D::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The weights of all updates in an average made at `times`.
    fn weights(spec: AverageSpec, updates: u64) -> Vec<f64> {
        let mut averaged = 0;
        let mut weights = vec![0.0; updates as usize + 1];
        for now in 1..=updates {
            if now - averaged >= (now / OLDEST).clamp(1, spec.every) {
                let weight = weight(&spec, averaged, now);
                weights.iter_mut().for_each(|w| *w *= 1.0 - weight);
                weights[now as usize] = weight;
                averaged = now;
            }
        }
        weights
    }

    #[test]
    fn an_average_spans_the_share_of_the_past_that_its_window_says_however_it_is_spaced() {
        for (window, every) in [(8.0, 1), (8.0, 8), (8.0, 40), (3.0, 8), (0.0, 8)] {
            let weights = weights(AverageSpec { window, every, ..Default::default() }, 4000);
            let age: f64 = weights.iter().enumerate().map(|(at, w)| w * (4000.0 - at as f64)).sum();
            assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            // The density (w+1)·u^w on [0, 1] has its mean at (w+1)/(w+2).
            let want = 4000.0 / (window + 2.0);
            assert!((age - want).abs() < 0.05 * want + every as f64, "{window} every {every}: {age} is not {want}");
        }
    }

    #[test]
    fn a_cap_bounds_what_an_average_spans() {
        let weights = weights(AverageSpec { cap: 100, ..Default::default() }, 20_000);
        let age: f64 = weights.iter().enumerate().map(|(at, w)| w * (20_000.0 - at as f64)).sum();
        assert!((80.0..110.0).contains(&age), "{age}");
    }

    #[test]
    fn averaging_is_written_as_a_truth_or_a_table() {
        let read = |text: &str| serde_json::from_str::<Averaging>(text);
        assert_eq!(read("true").unwrap(), Averaging::on());
        assert_eq!(read("false").unwrap(), Averaging::Off);
        let every = AverageSpec { every: 3, ..Default::default() };
        assert_eq!(read("{\"every\": 3}").unwrap(), Averaging::On(every));
        assert!(read("{\"evry\": 3}").is_err() && read("3").is_err());
        for averaging in [Averaging::Off, Averaging::on(), Averaging::On(every)] {
            assert_eq!(read(&serde_json::to_string(&averaging).unwrap()).unwrap(), averaging);
        }
    }
}
