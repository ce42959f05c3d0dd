//! How large each step is. A stream has no end, so schedules without a horizon come first.

use serde::{Deserialize, Serialize, Serializer};

use super::length::{Length, Pace};
use super::{check_option, inside};
use crate::error::{Error, Result};

/// Step size as a function of the number of updates already made.
///
/// Lengths may be given in rows or epochs; an optimizer is built from a schedule whose lengths are
/// [resolved](Self::resolved) to updates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "schedule", rename_all = "snake_case", deny_unknown_fields)]
pub enum Schedule {
    /// The same for ever.
    Constant {
        /// Its size.
        step: f64,
    },
    /// min(most, factor·√c), where c is how often a batch uses each state of the inputs on average
    /// ([`counts_per_row`](crate::circuit::Circuit::counts_per_row) times its rows). The less a batch says about a
    /// state, the more of it is noise.
    Counts {
        /// The step where a state is used once.
        factor: f64,
        /// The largest step.
        most: f64,
    },
    /// max(floor, from·(1 + t/delay)^−κ): the Robbins–Monro shape, for streams without an end.
    Power {
        /// The first step.
        from: f64,
        /// κ, in (0.5, 1] for the classical convergence theorems, which want no floor.
        kappa: f64,
        /// Before the decay is felt.
        #[serde(serialize_with = "as_real")]
        delay: Length,
        /// No step is smaller: a stream that changes is followed for ever. 0 is none.
        #[serde(default, skip_serializing_if = "is_zero")]
        floor: f64,
    },
    /// Half a cosine from the first to the last step, which then stays.
    Cosine {
        /// The first step.
        from: f64,
        /// The last.
        to: f64,
        /// From first to last.
        horizon: Length,
    },
    /// Up linearly, flat, and down linearly to `to`, where it stays.
    WarmupStableDecay {
        /// The flat part.
        peak: f64,
        /// The last step.
        to: f64,
        /// Going up.
        warmup: Length,
        /// On the flat part.
        stable: Length,
        /// Going down.
        decay: Length,
    },
}

impl From<f64> for Schedule {
    fn from(step: f64) -> Self {
        Self::constant(step)
    }
}

/// Writes a length that has always been a real number as one: `10.0`, where others are `10`.
fn as_real<S: Serializer>(length: &Length, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    match length.in_updates() {
        Some(updates) => serializer.serialize_f64(updates),
        None => length.serialize(serializer),
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(number: &f64) -> bool {
    *number == 0.0
}

/// Landmarks beyond this many updates are not worth a word.
const FAR: f64 = 1e15;

impl Schedule {
    /// The same for ever.
    pub fn constant(step: f64) -> Self {
        Self::Constant { step }
    }

    /// min(most, factor·√c).
    pub fn counts(factor: f64, most: f64) -> Self {
        Self::Counts { factor, most }
    }

    /// max(floor, from·(1 + t/delay)^−κ).
    pub fn power(from: f64, kappa: f64, delay: impl Into<Length>, floor: f64) -> Self {
        Self::Power { from, kappa, delay: delay.into(), floor }
    }

    /// Half a cosine.
    pub fn cosine(from: f64, to: f64, horizon: impl Into<Length>) -> Self {
        Self::Cosine { from, to, horizon: horizon.into() }
    }

    /// Up, flat and down.
    pub fn warmup_stable_decay(
        peak: f64,
        to: f64,
        warmup: impl Into<Length>,
        stable: impl Into<Length>,
        decay: impl Into<Length>,
    ) -> Self {
        Self::WarmupStableDecay { peak, to, warmup: warmup.into(), stable: stable.into(), decay: decay.into() }
    }

    /// The step after `updates` updates from rows that use each state `counts` times; no number if a length is not in
    /// updates, which optimizers refuse.
    pub fn at(&self, updates: u64, counts: f64) -> f64 {
        let t = updates as f64;
        let in_updates = |length: Length| length.in_updates().unwrap_or(f64::NAN);
        match *self {
            Self::Constant { step } => step,
            Self::Counts { factor, most } => (factor * counts.sqrt()).min(most),
            Self::Power { from, kappa, delay, floor } => {
                let step = from * (1.0 + t / in_updates(delay)).powf(-kappa);
                if step < floor { floor } else { step } // not `max`, which would hide what is no number
            }
            Self::Cosine { from, to, horizon } => {
                let part = t / in_updates(horizon);
                let progress = if part > 1.0 { 1.0 } else { part };
                to + (from - to) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
            }
            Self::WarmupStableDecay { peak, to, warmup, stable, decay } => {
                let [warmup, stable, decay] = [warmup, stable, decay].map(in_updates);
                let falling = t - (warmup + stable);
                if t < warmup {
                    peak * (t + 1.0) / (warmup + 1.0)
                } else if falling <= 0.0 {
                    peak
                } else {
                    let part = falling / decay;
                    peak + (to - peak) * if part > 1.0 { 1.0 } else { part }
                }
            }
        }
    }

    /// Updates after which it is worth telling where the step is: the first; where half of it is left, and where it
    /// stays. Ascending, once each.
    pub fn landmarks(&self) -> Vec<u64> {
        let in_updates = |length: Length| length.in_updates().unwrap_or(f64::NAN);
        let mut landmarks = vec![0.0];
        match *self {
            Self::Constant { .. } | Self::Counts { .. } => {}
            Self::Power { from, floor, .. } => {
                landmarks.extend([from / 2.0, floor].into_iter().filter_map(|step| self.reaches(step)));
            }
            Self::Cosine { horizon, .. } => landmarks.push(in_updates(horizon)),
            Self::WarmupStableDecay { warmup, stable, decay, .. } => {
                let [warmup, stable, decay] = [warmup, stable, decay].map(in_updates);
                landmarks.extend([warmup, warmup + stable, warmup + stable + decay]);
            }
        }
        let mut landmarks: Vec<u64> = landmarks.into_iter().filter(|&t| t <= FAR).map(|t| t.ceil() as u64).collect();
        landmarks.sort_unstable();
        landmarks.dedup();
        landmarks
    }

    /// After how many updates a power comes down to `step`, if it ever does.
    fn reaches(&self, step: f64) -> Option<f64> {
        let Self::Power { from, kappa, delay, floor } = *self else { return None };
        if !(step > 0.0 && step >= floor && kappa > 0.0) {
            return None;
        }
        let updates = delay.in_updates()? * ((from / step).powf(1.0 / kappa) - 1.0);
        Some(updates * (1.0 - 1e-12)).filter(|updates| *updates <= FAR) // a rounding error is not a whole update
    }

    /// After how many updates a power has half of its first step left, if it ever has.
    pub fn halves_after(&self) -> Option<u64> {
        let Self::Power { from, .. } = *self else { return None };
        self.reaches(from / 2.0).map(|updates| updates.ceil() as u64)
    }

    /// The same way from the first step to the last in `factor` times the length, whatever unit that has. What has no
    /// end stays as it is.
    pub fn stretched(self, factor: f64) -> Self {
        match self {
            Self::Constant { .. } | Self::Counts { .. } | Self::Power { .. } => self,
            Self::Cosine { .. } | Self::WarmupStableDecay { .. } => {
                let mut stretched = self;
                stretched.lengths_mut().into_iter().for_each(|(_, length)| *length = length.stretched(factor));
                stretched
            }
        }
    }

    /// The same with every length in updates.
    pub fn resolved(self, pace: &Pace) -> Result<Self> {
        self.check_lengths()?;
        let mut resolved = self;
        for (name, length) in resolved.lengths_mut() {
            *length = length.resolved(pace).map_err(|e| e.at(length.written(name)).with_key(name))?;
        }
        Ok(resolved)
    }

    /// Every length with its name.
    fn lengths_mut(&mut self) -> Vec<(&'static str, &mut Length)> {
        match self {
            Self::Constant { .. } | Self::Counts { .. } => Vec::new(),
            Self::Power { delay, .. } => vec![("delay", delay)],
            Self::Cosine { horizon, .. } => vec![("horizon", horizon)],
            Self::WarmupStableDecay { warmup, stable, decay, .. } => {
                vec![("warmup", warmup), ("stable", stable), ("decay", decay)]
            }
        }
    }

    fn check_lengths(&self) -> Result<()> {
        let may_be_zero = |name: &str| ["warmup", "stable"].contains(&name);
        let mut schedule = *self;
        schedule.lengths_mut().into_iter().try_for_each(|(name, length)| length.check(name, may_be_zero(name)))
    }

    /// Refuses steps that are not in (0, `max`], and lengths that are none. `option` is what the schedule is called; a
    /// constant one has no other name for its step.
    pub(super) fn check(&self, option: &str, max: f64) -> Result<()> {
        match *self {
            Self::Constant { step } => check_step(option, step, max),
            _ => self.check_parts(max).map_err(|e| inside(option, e)),
        }
    }

    fn check_parts(&self, max: f64) -> Result<()> {
        self.check_lengths()?;
        match *self {
            Self::Constant { step } => check_step("step", step, max),
            Self::Counts { factor, most } => {
                check_option(factor > 0.0 && factor.is_finite(), "factor", factor, "a positive number")?;
                check_step("most", most, max)
            }
            Self::Power { from, kappa, floor, .. } => {
                check_step("from", from, max)?;
                check_option(kappa >= 0.0 && kappa.is_finite(), "kappa", kappa, "a number, 0 or more")?;
                let range = format!("in [0, {from}], not above the first step");
                check_option((0.0..=from).contains(&floor), "floor", floor, &range)
            }
            Self::Cosine { from, to, .. } => {
                check_step("from", from, max)?;
                check_step("to", to, max)
            }
            Self::WarmupStableDecay { peak, to, .. } => {
                check_step("peak", peak, max)?;
                check_step("to", to, max)
            }
        }
    }

    /// Refuses lengths that are not in updates: an optimizer counts nothing else.
    pub(super) fn check_in_updates(&self, option: &str) -> Result<()> {
        let mut schedule = *self;
        let other = schedule.lengths_mut().into_iter().find(|(_, length)| length.in_updates().is_none());
        let Some((name, length)) = other else { return Ok(()) };
        let why = "must be in updates before an optimizer is built, see OptimizerSpec::resolved";
        Err(inside(option, Error::option(format!("{}: {why}", length.written(name))).with_key(name)))
    }
}

/// Refuses a step that is not in (0, `max`].
fn check_step(name: &str, value: f64, max: f64) -> Result<()> {
    let range = if max.is_finite() { format!("in (0, {max}]") } else { "positive and finite".to_string() };
    check_option(value > 0.0 && value <= max && value.is_finite(), name, value, &range)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-12, "{a} is not {b}");
    }

    #[test]
    fn schedules_pass_through_their_landmarks() {
        let cosine = Schedule::cosine(0.8, 0.2, 100);
        near(cosine.at(0, 1.0), 0.8);
        near(cosine.at(50, 1.0), 0.5);
        near(cosine.at(100, 1.0), 0.2);
        near(cosine.at(1_000_000, 1.0), 0.2);
        assert_eq!(cosine.landmarks(), [0, 100]);
        let power = Schedule::power(0.9, 0.5, 1.0, 0.0);
        near(power.at(0, 1.0), 0.9);
        near(power.at(3, 1.0), 0.45);
        assert_eq!((power.landmarks(), power.halves_after()), (vec![0, 3], Some(3)));
        let wsd = Schedule::warmup_stable_decay(0.4, 0.1, 3, 5, 10);
        near(wsd.at(0, 1.0), 0.1);
        near(wsd.at(3, 1.0), 0.4);
        near(wsd.at(8, 1.0), 0.4);
        near(wsd.at(13, 1.0), 0.25);
        near(wsd.at(18, 1.0), 0.1);
        near(wsd.at(u64::MAX, 1.0), 0.1);
        assert_eq!(wsd.landmarks(), [0, 3, 8, 18]);
        assert_eq!(Schedule::constant(0.4).landmarks(), [0]);
    }

    #[test]
    fn a_power_does_not_fall_below_its_floor() {
        let (plain, floored) = (Schedule::power(0.8, 0.5, 2, 0.0), Schedule::power(0.8, 0.5, 2, 0.1));
        assert_eq!(floored.landmarks(), [0, 6, 126]); // 2·(2² − 1) and 2·(8² − 1)
        for t in 0..=126 {
            assert_eq!(plain.at(t, 1.0), floored.at(t, 1.0));
        }
        near(floored.at(126, 1.0), 0.1);
        assert_eq!(floored.at(127, 1.0), 0.1);
        assert_eq!(floored.at(u64::MAX, 1.0), 0.1);
        assert!(plain.at(127, 1.0) < 0.1);
        // Never half of the first step; always the first step.
        assert_eq!(Schedule::power(0.8, 0.5, 2, 0.5).halves_after(), None);
        assert_eq!(Schedule::power(0.8, 0.0, 2, 0.0).landmarks(), [0]);
        assert_eq!(Schedule::power(0.8, 1e-3, 2, 0.0).landmarks(), [0], "after 2^1000 updates is never");
    }

    #[test]
    fn a_stretched_schedule_is_as_far_at_the_same_share_of_its_way() {
        let cosine = Schedule::cosine(0.8, 0.2, 100);
        let wsd = Schedule::warmup_stable_decay(0.4, 0.1, 0, 40, 60);
        for (schedule, factor) in [(cosine, 0.5), (cosine, 3.0), (wsd, 0.5), (wsd, 3.0)] {
            let other = schedule.stretched(factor);
            for t in (0..=120).step_by(10) {
                let (here, there) = (schedule.at(t, 1.0), other.at((t as f64 * factor) as u64, 1.0));
                assert!((here - there).abs() < 1e-12, "{schedule:?} at {t}: {here} is not {there}");
            }
        }
        assert_eq!(cosine.stretched(1e-9), Schedule::cosine(0.8, 0.2, 1));
        for endless in [Schedule::constant(0.1), Schedule::power(0.9, 0.7, Length::Epochs(5.0), 0.1)] {
            assert_eq!(endless.stretched(0.5), endless);
        }
        let written = Schedule::warmup_stable_decay(0.4, 0.1, 7, Length::Rows(5000.0), Length::Epochs(3.0));
        let stretched = Schedule::warmup_stable_decay(0.4, 0.1, 4, Length::Rows(2500.0), Length::Epochs(1.5));
        assert_eq!(written.stretched(0.5), stretched);
    }

    #[test]
    fn lengths_in_epochs_and_rows_are_resolved_to_updates_each() {
        let written = Schedule::warmup_stable_decay(0.4, 0.1, 7, Length::Rows(960.0), Length::Epochs(2.0));
        let pace = Pace::new(Some(1000), 96, true, 2);
        assert_eq!(written.resolved(&pace).unwrap(), Schedule::warmup_stable_decay(0.4, 0.1, 7, 5, 10));
        assert!(written.at(50, 1.0).is_nan(), "an epoch is not an update");
        assert!(written.check("step", 1.0).is_ok(), "in whatever unit");
        let error = written.check_in_updates("step").unwrap_err();
        assert_eq!(error.key(), Some("step.stable"));
        assert!(error.to_string().starts_with("step.stable = \"960 rows\": must be in updates"), "{error}");
        for schedule in
            [Schedule::cosine(0.4, 0.1, Length::Epochs(1.0)), Schedule::power(0.4, 1.0, Length::Rows(1.0), 0.1)]
        {
            assert!(schedule.at(0, 1.0).is_nan() && schedule.at(9, 1.0).is_nan(), "{schedule:?}");
            let resolved = schedule.resolved(&pace).unwrap();
            assert!(resolved.check("step", 1.0).is_ok() && resolved.check_in_updates("step").is_ok());
        }
        let unknown = Pace::new(None, 96, true, 2);
        let error = written.resolved(&unknown).unwrap_err().to_string();
        assert!(error.starts_with("decay = \"2 epochs\": how many rows"), "{error}");
    }

    #[test]
    fn steps_and_lengths_outside_their_range_are_refused_by_name() {
        for step in [0.0, -0.1, 1.4, f64::NAN, f64::INFINITY] {
            let error = Schedule::Constant { step }.check("rate", 1.0).unwrap_err();
            assert_eq!(error.key(), Some("rate"));
            assert_eq!(error.to_string(), format!("rate = {step}: must be in (0, 1]"));
        }
        assert!(Schedule::constant(1.0).check("step", 1.0).is_ok());
        assert!(Schedule::power(0.4, f64::NAN, 1.0, 0.0).check("step", 1.0).is_err());
        for floor in [-0.1, 0.5, f64::NAN] {
            let error = Schedule::power(0.4, 0.5, 1.0, floor).check("step", 1.0).unwrap_err();
            assert_eq!(error.key(), Some("step.floor"));
            assert!(error.to_string().starts_with(&format!("step.floor = {floor}: must be in [0, 0.4]")), "{error}");
        }
        assert!(Schedule::power(0.4, 0.5, 1.0, 0.4).check("step", 1.0).is_ok());
        for length in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            for schedule in [
                Schedule::cosine(0.4, 0.2, length),
                Schedule::power(0.4, 0.5, length, 0.0),
                Schedule::warmup_stable_decay(0.4, 0.2, 0, 0, length),
            ] {
                assert!(schedule.check("step", 1.0).is_err(), "{schedule:?}");
            }
        }
        let none = Schedule::cosine(0.4, 0.2, Length::Epochs(0.0));
        let error = none.resolved(&Pace::new(Some(9), 1, false, 1)).unwrap_err().to_string();
        assert!(error.starts_with("horizon = \"0 epochs\": must be more than 0"), "{error}");
    }
}
