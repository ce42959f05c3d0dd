//! Optimizers: short programs for a [`Backend`].
//!
//! The EM rules differ only in what they retain of the old parameters and in when they update; each has a file that
//! says just that. [`OptimizerSpec`] is what a user writes, [`Optimizer`] what runs. Which optimizers there are is said
//! once, in the table `optimizers!`; pipelines, the command line and estimates of memory ask it.

/// [`Options`] of an optimizer that updates by a rule: its names, the option that is its schedule, and the bytes per
/// statistic and per param row of the buffers that it has besides the flows it gathers.
macro_rules! options_of_rule {
    ($spec:ident: $name:literal, $title:literal, $schedule:ident, $per_stat:literal, $per_row:literal) => {
        impl Options for $spec {
            const NAME: &'static str = $name;
            const TITLE: &'static str = $title;

            fn schedule_mut(&mut self) -> Option<(&'static str, &mut Schedule)> {
                Some((stringify!($schedule), &mut self.$schedule))
            }

            fn batches_per_update(&self) -> Option<u64> {
                Some(self.batches_per_update)
            }

            fn average(&self) -> Averaging {
                self.average
            }

            fn buffer_bytes(&self, stats: u64, rows: u64) -> u64 {
                FlowGatherer::bytes(self.batches_per_update, stats, rows) + $per_stat * stats + $per_row * rows
            }
        }
    };
}

mod adam;
mod anemone;
mod averaged;
mod full_batch_em;
mod length;
mod mean_flows;
mod mini_batch_em;
mod raised;
mod rule;
mod schedule;
mod sgd;
mod state;
mod stepwise_em;

use serde::{Deserialize, Serialize};

pub use adam::AdamSpec;
pub use anemone::AnemoneSpec;
pub use averaged::{AverageSpec, Averaging};
pub use full_batch_em::FullBatchEmSpec;
pub(crate) use length::ACCEPTED as ACCEPTED_LENGTHS;
pub use length::{Length, Pace};
pub use mini_batch_em::MiniBatchEmSpec;
pub use schedule::Schedule;
pub use sgd::SgdSpec;
pub use state::OptimizerState;
pub use stepwise_em::StepwiseEmSpec;

use crate::backend::{Backend, BatchReport};
use crate::circuit::Smoothing;
use crate::data::Batch;
use crate::error::{Error, Result};

/// Learns from a stream of batches.
pub trait Optimizer: Send {
    /// The name in specs and reports.
    fn name(&self) -> &'static str;

    /// Takes in one batch, and updates the parameters if it is time to.
    fn learn(&mut self, backend: &mut dyn Backend, batch: &Batch) -> Result<StepReport>;

    /// Says that the epoch is over. Full-batch EM updates here; the others use up a last, incomplete group of
    /// batches. Returns true if the parameters moved.
    fn end_epoch(&mut self, backend: &mut dyn Backend) -> Result<bool>;

    /// Forgets everything but its options: the parameters have been replaced.
    fn restart(&mut self, backend: &mut dyn Backend) -> Result<()>;

    /// Learns faster for a while, because the rows have changed. Whatever was gathered from those before is forgotten,
    /// but for the parameters; an optimizer without a step does no more than that.
    fn raise_step(&mut self, backend: &mut dyn Backend) -> Result<()> {
        self.restart(backend)
    }

    /// The rows have changed, as far as one batch can tell: a step that falls by counts begins again where it began.
    /// Nothing else is forgotten, for one batch may be wrong.
    fn restart_schedule(&mut self) {}

    /// Returns true if the backend's answers are those of averaged parameters.
    fn is_averaged(&self) -> bool {
        false
    }

    /// Everything needed to go on to the same bits, besides the parameters.
    fn save(&self, backend: &dyn Backend) -> Result<OptimizerState>;

    /// Puts saved state back.
    fn load(&mut self, backend: &mut dyn Backend, state: &OptimizerState) -> Result<()>;
}

/// What one batch brought.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The batch under the parameters before the update: test, then train.
    pub batch: BatchReport,
    /// The size of the step, if the parameters moved.
    pub step_size: Option<f64>,
}

/// What [`OptimizerSpec`] asks the options of every optimizer, besides `check` and `build`, which are for all.
trait Options {
    /// The name in specs, reports and saved state.
    const NAME: &'static str;

    /// What people call it.
    const TITLE: &'static str;

    /// The schedule of the steps with the name of its option, if there is one.
    fn schedule_mut(&mut self) -> Option<(&'static str, &mut Schedule)>;

    /// Batches that make one update; `None` where those of an epoch do.
    fn batches_per_update(&self) -> Option<u64>;

    /// Whether answers are those of averaged parameters.
    fn average(&self) -> Averaging;

    /// Bytes of the buffers that `build` asks of a device, for so many statistics and param rows: flows have 4 bytes a
    /// number, those that sum up many batches 8; row buffers 8.
    fn buffer_bytes(&self, stats: u64, rows: u64) -> u64;
}

/// Makes [`OptimizerSpec`] and all that is asked of any optimizer of one line for each of them.
macro_rules! optimizers {
    ($($(#[$doc:meta])* $variant:ident($spec:ident),)*) => {
        /// Which optimizer, with its options.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "optimizer", rename_all = "snake_case", deny_unknown_fields)]
        pub enum OptimizerSpec {
            $($(#[$doc])* $variant($spec),)*
        }

        /// Every optimizer by its name in specs; the first is the usual one.
        pub(crate) const OPTIMIZERS: [&str; [$(stringify!($variant)),*].len()] = [$($spec::NAME),*];

        /// What people call the optimizer of a name.
        pub(crate) fn optimizer_title(name: &str) -> Option<&'static str> {
            [$(($spec::NAME, $spec::TITLE)),*].into_iter().find(|(known, _)| *known == name).map(|(_, title)| title)
        }

        $(impl From<$spec> for OptimizerSpec {
            fn from(spec: $spec) -> Self {
                Self::$variant(spec)
            }
        })*

        impl OptimizerSpec {
            /// The name in specs.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $spec::NAME,)* }
            }

            fn schedule_mut(&mut self) -> Option<(&'static str, &mut Schedule)> {
                match self { $(Self::$variant(spec) => spec.schedule_mut(),)* }
            }

            /// Batches that make one update; `None` for full-batch EM, which takes those of an epoch.
            pub fn batches_per_update(&self) -> Option<u64> {
                match self { $(Self::$variant(spec) => spec.batches_per_update(),)* }
            }

            /// Whether answers are those of averaged parameters.
            pub fn average(&self) -> Averaging {
                match self { $(Self::$variant(spec) => spec.average(),)* }
            }

            /// Bytes of the buffers on the device, for so many statistics and param rows; averaged parameters are not
            /// among them.
            pub(crate) fn buffer_bytes(&self, stats: u64, rows: u64) -> u64 {
                match self { $(Self::$variant(spec) => spec.buffer_bytes(stats, rows),)* }
            }

            /// Refuses options outside their range. The [key](Error::key) of the error is the path of the option, and
            /// its message begins with that. Lengths may be in any unit.
            pub fn check(&self) -> Result<()> {
                match self { $(Self::$variant(spec) => spec.check(),)* }
            }

            /// [Checks](Self::check) the options and allocates what the optimizer needs on the device. A schedule with
            /// lengths in rows or epochs must be [resolved](Self::resolved) first.
            pub fn build(&self, backend: &mut dyn Backend) -> Result<Box<dyn Optimizer>> {
                match self { $(Self::$variant(spec) => spec.build(backend),)* }
            }
        }
    };
}

// The order is that of messages, help and documentation.
optimizers! {
    /// The paper's mini-batch EM.
    Anemone(AnemoneSpec),
    /// One EM step an epoch.
    FullBatchEm(FullBatchEmSpec),
    /// Peharz et al. 2020.
    MiniBatchEm(MiniBatchEmSpec),
    /// Cappé and Moulines 2009.
    StepwiseEm(StepwiseEmSpec),
    /// Kingma and Ba 2015, with global renormalisation.
    Adam(AdamSpec),
    /// Stochastic gradient ascent, with global renormalisation.
    Sgd(SgdSpec),
}

impl OptimizerSpec {
    /// The schedule of the steps with the name of its option; full-batch EM has none.
    pub fn schedule(&self) -> Option<(&'static str, Schedule)> {
        let mut spec = self.clone();
        spec.schedule_mut().map(|(name, schedule)| (name, *schedule))
    }

    /// The same rule with its schedule [stretched](Schedule::stretched).
    pub fn stretched(mut self, factor: f64) -> Self {
        if let Some((_, schedule)) = self.schedule_mut() {
            *schedule = schedule.stretched(factor);
        }
        self
    }

    /// The same rule with the lengths of its schedule in updates, as [`build`](Self::build) wants them.
    pub fn resolved(mut self, pace: &Pace) -> Result<Self> {
        if let Some((name, schedule)) = self.schedule_mut() {
            *schedule = schedule.resolved(pace).map_err(|e| inside(name, e))?;
        }
        Ok(self)
    }
}

/// Refuses an option outside its range.
fn check_option(holds: bool, name: &str, value: f64, must: &str) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::option(format!("{name} = {value}: must be {must}")).with_key(name)),
    }
}

/// An error about an option that is part of the option `name`: both begin with it.
fn inside(name: &str, error: Error) -> Error {
    match error.key() {
        Some(key) => Error::option(format!("{name}.{error}")).with_key(format!("{name}.{key}")),
        None => error,
    }
}

/// Refuses a smoothing that is not one.
fn check_smoothing(smoothing: Smoothing) -> Result<()> {
    let epsilon = smoothing.epsilon();
    check_option(epsilon >= 0.0 && epsilon.is_finite(), "smoothing", epsilon, "a number, 0 or more")
}

/// Refuses updates of no batches.
fn check_batches_per_update(batches: u64) -> Result<()> {
    check_option(batches > 0, "batches_per_update", batches as f64, "at least 1")
}

/// Refuses a momentum that never forgets.
fn check_momentum(momentum: f64) -> Result<()> {
    check_option((0.0..1.0).contains(&momentum), "momentum", momentum, "in [0, 1)")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_optimizer_is_read_and_written_by_its_name() {
        for name in OPTIMIZERS {
            let spec: OptimizerSpec = serde_json::from_value(json!({ "optimizer": name })).unwrap();
            assert_eq!((spec.name(), &serde_json::to_value(&spec).unwrap()["optimizer"]), (name, &json!(name)));
            spec.check().unwrap();
        }
    }
}
