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
    /// min(most, √c·max(floor, factor·(1 + t/delay)^−κ)), where c is how often a batch uses each state of the inputs
    /// on average ([`counts_per_row`](crate::circuit::Circuit::counts_per_row) times its rows). The less a batch says
    /// about a state, the more of it is noise; and while states are still far from their place, noise matters less.
    Counts {
        /// The first step where a state is used once.
        factor: f64,
        /// The largest step.
        most: f64,
        /// κ; 0 is the same step for ever.
        #[serde(default, skip_serializing_if = "is_zero")]
        kappa: f64,
        /// Before the decay is felt.
        #[serde(default = "one_update", serialize_with = "as_real", skip_serializing_if = "is_one_update")]
        delay: Length,
        /// No factor is smaller.
        #[serde(default, skip_serializing_if = "is_zero")]
        floor: f64,
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

fn one_update() -> Length {
    Length::Updates(1.0)
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_one_update(length: &Length) -> bool {
    *length == one_update()
}

/// (1 + t/delay)^−κ.
fn decayed(t: f64, delay: Length, kappa: f64) -> f64 {
    (1.0 + t / delay.in_updates().unwrap_or(f64::NAN)).powf(-kappa)
}

/// The larger of the two. Not `max`, which would hide what is no number.
fn above(floor: f64, step: f64) -> f64 {
    if step < floor { floor } else { step }
}

/// After how many updates (1 + t/delay)^−κ has come down to `share`, if it ever does.
fn decays_to(share: f64, delay: Length, kappa: f64) -> Option<f64> {
    if !(share > 0.0 && kappa > 0.0) {
        return None;
    }
    let updates = delay.in_updates()? * (share.powf(-1.0 / kappa) - 1.0);
    Some(updates * (1.0 - 1e-12)).filter(|updates| *updates <= FAR) // a rounding error is not a whole update
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
        Self::Counts { factor, most, kappa: 0.0, delay: one_update(), floor: 0.0 }
    }

    /// min(most, √c·max(floor, factor·(1 + t/delay)^−κ)).
    pub fn falling_counts(factor: f64, most: f64, kappa: f64, delay: impl Into<Length>, floor: f64) -> Self {
        Self::Counts { factor, most, kappa, delay: delay.into(), floor }
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
            Self::Counts { factor, most, kappa, delay, floor } => {
                let step = counts.sqrt() * above(floor, factor * decayed(t, delay, kappa));
                if step > most { most } else { step }
            }
            Self::Power { from, kappa, delay, floor } => above(floor, from * decayed(t, delay, kappa)),
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

    /// The schedule that begins where the rows have changed; none if this one goes on. A step falls by counts because
    /// states are near their place: where they are not any more it begins again, and comes down to half of its first
    /// size only, for states that have settled on other rows are moved by large steps or not at all. Schedules that
    /// somebody wrote for a run, or for convergence, go on as they were written.
    pub fn after_change(&self) -> Option<Self> {
        match *self {
            Self::Counts { factor, most, kappa, delay, floor } if kappa > 0.0 => {
                Some(Self::Counts { factor, most, kappa, delay, floor: above(floor, factor / 2.0) })
            }
            _ => None,
        }
    }

    /// Updates after which it is worth telling where the step is, from rows that use each state `counts` times: the
    /// first; where it begins to fall; where half of it is left, and where it stays. Ascending, once each.
    pub fn landmarks(&self, counts: f64) -> Vec<u64> {
        let in_updates = |length: Length| length.in_updates().unwrap_or(f64::NAN);
        let mut landmarks = vec![0.0];
        match *self {
            Self::Constant { .. } => {}
            Self::Counts { .. } | Self::Power { .. } => {
                let first = self.at(0, counts);
                let last = self.lowest(counts);
                landmarks.extend([first, first / 2.0, last].into_iter().filter_map(|step| self.reaches(step, counts)));
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

    /// The step that a schedule without an end never falls below, and reaches if that is not 0.
    pub fn lowest(&self, counts: f64) -> f64 {
        match *self {
            Self::Constant { step } => step,
            Self::Counts { kappa, .. } | Self::Power { kappa, .. } if kappa == 0.0 => self.at(0, counts),
            Self::Counts { most, floor, .. } => (floor * counts.sqrt()).min(most),
            Self::Power { floor, .. } => floor,
            Self::Cosine { to, .. } | Self::WarmupStableDecay { to, .. } => to,
        }
    }

    /// After how many updates a step that falls by a power comes down to `step`, if it ever does.
    fn reaches(&self, step: f64, counts: f64) -> Option<f64> {
        let (from, kappa, delay) = match *self {
            Self::Counts { factor, kappa, delay, .. } => (factor * counts.sqrt(), kappa, delay),
            Self::Power { from, kappa, delay, .. } => (from, kappa, delay),
            _ => return None,
        };
        let lowest = self.lowest(counts);
        if step < lowest || lowest == self.at(0, counts) { None } else { decays_to(step / from, delay, kappa) }
    }

    /// After how many updates a step that falls by a power begins to: one that is cut off at `most` stays there first.
    pub fn falls_after(&self, counts: f64) -> Option<u64> {
        self.reaches(self.at(0, counts), counts).map(|updates| updates.ceil() as u64)
    }

    /// After how many updates a step that falls by a power has half of its first size left, if it ever has.
    pub fn halves_after(&self, counts: f64) -> Option<u64> {
        self.reaches(self.at(0, counts) / 2.0, counts).map(|updates| updates.ceil() as u64)
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
            Self::Constant { .. } => Vec::new(),
            Self::Counts { delay, .. } | Self::Power { delay, .. } => vec![("delay", delay)],
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
            Self::Counts { factor, most, kappa, floor, .. } => {
                check_option(factor > 0.0 && factor.is_finite(), "factor", factor, "a positive number")?;
                check_step("most", most, max)?;
                check_decay(kappa, floor, factor, "factor")
            }
            Self::Power { from, kappa, floor, .. } => {
                check_step("from", from, max)?;
                check_decay(kappa, floor, from, "step")
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

/// Refuses exponents that are none, and floors above the first step or factor.
fn check_decay(kappa: f64, floor: f64, first: f64, of: &str) -> Result<()> {
    check_option(kappa >= 0.0 && kappa.is_finite(), "kappa", kappa, "a number, 0 or more")?;
    let range = format!("in [0, {first}], not above the first {of}");
    check_option((0.0..=first).contains(&floor), "floor", floor, &range)
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
        assert_eq!(cosine.landmarks(1.0), [0, 100]);
        let power = Schedule::power(0.9, 0.5, 1.0, 0.0);
        near(power.at(0, 1.0), 0.9);
        near(power.at(3, 1.0), 0.45);
        assert_eq!((power.landmarks(1.0), power.halves_after(1.0)), (vec![0, 3], Some(3)));
        let wsd = Schedule::warmup_stable_decay(0.4, 0.1, 3, 5, 10);
        near(wsd.at(0, 1.0), 0.1);
        near(wsd.at(3, 1.0), 0.4);
        near(wsd.at(8, 1.0), 0.4);
        near(wsd.at(13, 1.0), 0.25);
        near(wsd.at(18, 1.0), 0.1);
        near(wsd.at(u64::MAX, 1.0), 0.1);
        assert_eq!(wsd.landmarks(1.0), [0, 3, 8, 18]);
        assert_eq!(Schedule::constant(0.4).landmarks(1.0), [0]);
    }

    #[test]
    fn a_power_does_not_fall_below_its_floor() {
        let (plain, floored) = (Schedule::power(0.8, 0.5, 2, 0.0), Schedule::power(0.8, 0.5, 2, 0.1));
        assert_eq!(floored.landmarks(1.0), [0, 6, 126]); // 2·(2² − 1) and 2·(8² − 1)
        for t in 0..=126 {
            assert_eq!(plain.at(t, 1.0), floored.at(t, 1.0));
        }
        near(floored.at(126, 1.0), 0.1);
        assert_eq!(floored.at(127, 1.0), 0.1);
        assert_eq!(floored.at(u64::MAX, 1.0), 0.1);
        assert!(plain.at(127, 1.0) < 0.1);
        // Never half of the first step; always the first step.
        assert_eq!(Schedule::power(0.8, 0.5, 2, 0.5).halves_after(1.0), None);
        assert_eq!(Schedule::power(0.8, 0.0, 2, 0.0).landmarks(1.0), [0]);
        assert_eq!(Schedule::power(0.8, 1e-3, 2, 0.0).landmarks(1.0), [0], "after 2^1000 updates is never");
    }

    #[test]
    fn a_step_by_counts_falls_from_its_largest_to_its_floor() {
        let steps = Schedule::falling_counts(0.2, 0.4, 0.5, 10, 0.05);
        for (counts, first, last) in [(1.0, 0.2, 0.05), (2.25, 0.3, 0.075), (16.0, 0.4, 0.2), (1024.0, 0.4, 0.4)] {
            near(steps.at(0, counts), first);
            near(steps.at(u64::MAX, counts), last);
            near(steps.lowest(counts), last);
            assert!((0..500).all(|t| steps.at(t, counts) >= steps.at(t + 1, counts)), "{counts}");
        }
        near(steps.at(30, 1.0), 0.1);
        assert_eq!(steps.landmarks(1.0), [0, 30, 150]); // 10·(2² − 1) and 10·(4² − 1)
        assert_eq!((steps.falls_after(1.0), steps.halves_after(1.0)), (Some(0), Some(30)));
        // 0.8 is cut off at 0.4: it is there until the power has come down to it, and its floor is half of that.
        assert_eq!((steps.falls_after(16.0), steps.halves_after(16.0)), (Some(30), Some(150)));
        assert_eq!(steps.landmarks(16.0), [0, 30, 150]);
        assert_eq!(steps.at(30, 16.0), 0.4);
        assert!(steps.at(31, 16.0) < 0.4);
        // Never below the largest step; never at all.
        assert_eq!((steps.falls_after(1024.0), steps.halves_after(1024.0)), (None, None));
        assert_eq!(steps.landmarks(1024.0), [0]);
        assert_eq!(Schedule::counts(0.07, 0.4).landmarks(8.0), [0]);
        near(Schedule::counts(0.07, 0.4).lowest(4.0), 0.14);
        assert!(Schedule::falling_counts(0.2, 0.4, 0.5, Length::Rows(9.0), 0.0).at(3, 1.0).is_nan());
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
        for (factor, kappa, floor, key) in
            [(0.0, 0.5, 0.0, "step.factor"), (0.2, -1.0, 0.0, "step.kappa"), (0.2, 0.5, 0.3, "step.floor")]
        {
            let error = Schedule::falling_counts(factor, 0.4, kappa, 10, floor).check("step", 1.0).unwrap_err();
            assert_eq!(error.key(), Some(key), "{error}");
        }
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
