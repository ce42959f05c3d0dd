//! How large each step is. A stream has no end, so schedules without a horizon come first.

use serde::{Deserialize, Serialize};

use super::check_option;
use crate::error::Result;

/// Step size as a function of the number of updates already made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "schedule", rename_all = "snake_case", deny_unknown_fields)]
pub enum Schedule {
    /// The same for ever.
    Constant {
        /// Its size.
        step: f64,
    },
    /// from·(1 + t/delay)^−κ: the Robbins–Monro shape, for streams without an end.
    Power {
        /// The first step.
        from: f64,
        /// κ, in (0.5, 1] for the classical convergence theorems.
        kappa: f64,
        /// Updates before the decay is felt.
        delay: f64,
    },
    /// Half a cosine from the first to the last step, which then stays.
    Cosine {
        /// The first step.
        from: f64,
        /// The last.
        to: f64,
        /// Updates from first to last.
        horizon: u64,
    },
    /// Up linearly, flat, and down linearly to `to`, where it stays.
    WarmupStableDecay {
        /// The flat part.
        peak: f64,
        /// The last step.
        to: f64,
        /// Updates going up.
        warmup: u64,
        /// Updates on the flat part.
        stable: u64,
        /// Updates going down.
        decay: u64,
    },
}

impl Schedule {
    /// The step after `updates` updates.
    pub fn at(&self, updates: u64) -> f64 {
        let t = updates as f64;
        match *self {
            Self::Constant { step } => step,
            Self::Power { from, kappa, delay } => from * (1.0 + t / delay).powf(-kappa),
            Self::Cosine { from, to, horizon } => {
                let progress = (t / horizon as f64).min(1.0);
                to + (from - to) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())
            }
            Self::WarmupStableDecay { peak, to, warmup, stable, decay } => {
                let falling = updates.saturating_sub(warmup.saturating_add(stable));
                if updates < warmup {
                    peak * (t + 1.0) / (warmup as f64 + 1.0)
                } else if falling == 0 {
                    peak
                } else {
                    peak + (to - peak) * (falling as f64 / decay as f64).min(1.0)
                }
            }
        }
    }

    /// The same way from the first step to the last in `factor` times as many updates. What has no end stays as it is.
    pub fn stretched(self, factor: f64) -> Self {
        let updates = |count: u64| (count as f64 * factor).round() as u64;
        match self {
            Self::Constant { .. } | Self::Power { .. } => self,
            Self::Cosine { from, to, horizon } => Self::Cosine { from, to, horizon: updates(horizon).max(1) },
            Self::WarmupStableDecay { peak, to, warmup, stable, decay } => Self::WarmupStableDecay {
                peak,
                to,
                warmup: updates(warmup),
                stable: updates(stable),
                decay: updates(decay).max(1),
            },
        }
    }

    /// Refuses steps that are not in (0, `max`].
    pub(super) fn check(&self, max: f64) -> Result<()> {
        let range = if max.is_finite() { format!("in (0, {max}]") } else { "positive and finite".to_string() };
        let step = |name: &str, value: f64| {
            check_option(value > 0.0 && value <= max && value.is_finite(), name, value, &range)
        };
        let at_least_one = |name: &str, value: u64| check_option(value > 0, name, value as f64, "at least 1");
        match *self {
            Self::Constant { step: value } => step("step", value),
            Self::Power { from, kappa, delay } => {
                step("from", from)?;
                check_option(kappa >= 0.0 && kappa.is_finite(), "kappa", kappa, "a number, 0 or more")?;
                check_option(delay > 0.0 && delay.is_finite(), "delay", delay, "a positive number")
            }
            Self::Cosine { from, to, horizon } => {
                step("from", from)?;
                step("to", to)?;
                at_least_one("horizon", horizon)
            }
            Self::WarmupStableDecay { peak, to, decay, .. } => {
                step("peak", peak)?;
                step("to", to)?;
                at_least_one("decay", decay)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_pass_through_their_landmarks() {
        let cosine = Schedule::Cosine { from: 0.8, to: 0.2, horizon: 100 };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} is not {b}");
        near(cosine.at(0), 0.8);
        near(cosine.at(50), 0.5);
        near(cosine.at(100), 0.2);
        near(cosine.at(1_000_000), 0.2);
        let power = Schedule::Power { from: 0.9, kappa: 0.5, delay: 1.0 };
        near(power.at(0), 0.9);
        near(power.at(3), 0.45);
        let wsd = Schedule::WarmupStableDecay { peak: 0.4, to: 0.1, warmup: 3, stable: 5, decay: 10 };
        near(wsd.at(0), 0.1);
        near(wsd.at(3), 0.4);
        near(wsd.at(8), 0.4);
        near(wsd.at(13), 0.25);
        near(wsd.at(18), 0.1);
        near(wsd.at(u64::MAX), 0.1);
    }

    #[test]
    fn a_stretched_schedule_is_as_far_at_the_same_share_of_its_way() {
        let cosine = Schedule::Cosine { from: 0.8, to: 0.2, horizon: 100 };
        let wsd = Schedule::WarmupStableDecay { peak: 0.4, to: 0.1, warmup: 0, stable: 40, decay: 60 };
        for (schedule, factor) in [(cosine, 0.5), (cosine, 3.0), (wsd, 0.5), (wsd, 3.0)] {
            let other = schedule.stretched(factor);
            for t in (0..=120).step_by(10) {
                let (here, there) = (schedule.at(t), other.at((t as f64 * factor) as u64));
                assert!((here - there).abs() < 1e-12, "{schedule:?} at {t}: {here} is not {there}");
            }
        }
        assert_eq!(cosine.stretched(1e-9), Schedule::Cosine { from: 0.8, to: 0.2, horizon: 1 });
        for endless in [Schedule::Constant { step: 0.1 }, Schedule::Power { from: 0.9, kappa: 0.7, delay: 5.0 }] {
            assert_eq!(endless.stretched(0.5), endless);
        }
    }

    #[test]
    fn steps_outside_their_range_are_refused_by_name() {
        for step in [0.0, -0.1, 1.4, f64::NAN, f64::INFINITY] {
            let error = Schedule::Constant { step }.check(1.0).unwrap_err();
            assert!(error.to_string().contains("must be in (0, 1]"), "{error}");
        }
        assert!(Schedule::Constant { step: 1.0 }.check(1.0).is_ok());
        assert!(Schedule::Cosine { from: 0.4, to: 0.2, horizon: 0 }.check(1.0).is_err());
        assert!(Schedule::Power { from: 0.4, kappa: f64::NAN, delay: 1.0 }.check(1.0).is_err());
    }
}
