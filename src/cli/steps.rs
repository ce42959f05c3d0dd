//! What a schedule will do in a run, for `anemone check`: in a line, and as data.

use serde_json::{Value, json};

use super::output::{counted, thousands};
use crate::optim::Schedule;

/// A schedule whose lengths are in updates, and what is known of the run.
pub(super) struct Steps {
    /// The option that holds the schedule: `step` or `rate`.
    pub key: &'static str,
    pub schedule: Schedule,
    /// How often a batch uses each state of the inputs.
    pub counts: f64,
    pub updates_per_epoch: Option<u64>,
    /// Updates until the run ends, where that is known.
    pub updates: Option<u64>,
}

impl Steps {
    /// In a line: `0.4 falling to 0.02 at update 940 (end of epoch 10), the end of the run`.
    pub fn describe(&self) -> String {
        let at = |step: f64, what: &str| format!("{} {what}", short(step));
        match self.schedule {
            Schedule::Constant { step } => at(step, "throughout"),
            Schedule::Counts { .. } => {
                format!("{}, by the {} times that a batch uses each state", self.falling(), short(self.counts))
            }
            Schedule::Power { .. } => self.falling(),
            Schedule::Cosine { from, to, .. } => {
                format!("{} {} to {}{}", short(from), direction(from, to), short(to), self.ending())
            }
            Schedule::WarmupStableDecay { peak, to, warmup, stable, .. } => {
                let (warmup, stable) = (warmup.in_updates().unwrap_or(0.0), stable.in_updates().unwrap_or(0.0));
                let mut text = String::new();
                if warmup > 0.0 {
                    let (first, flat) = (short(self.schedule.at(0, self.counts)), warmup.ceil() as u64);
                    text += &format!("{first} rising to {} at {}, ", short(peak), self.place(flat));
                }
                let flat = if text.is_empty() { short(peak) } else { "constant".to_string() };
                match stable > 0.0 {
                    true => text += &format!("{flat} until {}, ", self.place((warmup + stable).ceil() as u64)),
                    false if warmup == 0.0 => text += &format!("{flat} "),
                    false => {}
                }
                text + &format!("{} to {}{}", direction(peak, to), short(to), self.ending())
            }
        }
    }

    /// A step that falls by a power, or not at all: `0.4 at first, 0.2 after 150 updates, never below 0.05`.
    fn falling(&self) -> String {
        let at = |step: f64, what: &str| format!("{} {what}", short(step));
        let (first, lowest) = (self.schedule.at(0, self.counts), self.schedule.lowest(self.counts));
        if first == lowest {
            return at(first, "throughout");
        }
        let after = |updates: u64| format!("{}{}", counted(updates, "update", "updates"), self.epoch_words(updates));
        let mut parts = vec![match self.schedule.falls_after(self.counts) {
            Some(updates) if updates > 0 => at(first, &format!("for {}", after(updates))),
            _ => at(first, "at first"),
        }];
        if let Some(updates) = self.schedule.halves_after(self.counts) {
            parts.push(at(first / 2.0, &format!("after {}", after(updates))));
        }
        if lowest > 0.0 {
            parts.push(format!("never below {}", short(lowest)));
        }
        if let Some((updates, step)) = self.last() {
            parts.push(at(step, &format!("at the end of the run ({})", counted(updates, "update", "updates"))));
        }
        parts.join(", ")
    }

    /// The landmarks of the schedule and the end of the run: `{update, epoch, step}`, the step being that after so many
    /// updates, and `epoch` how many have passed by then.
    pub fn to_json(&self) -> Value {
        let mut updates = self.schedule.landmarks(self.counts);
        updates.extend(self.updates);
        updates.sort_unstable();
        updates.dedup();
        let epoch = |update: u64| self.updates_per_epoch.map(|updates| update as f64 / updates as f64);
        let landmark = |&update: &u64| {
            let step = self.schedule.at(update, self.counts);
            json!({"update": update, "epoch": epoch(update), "step": step})
        };
        json!({
            "key": self.key,
            "updates_per_epoch": self.updates_per_epoch,
            "updates": self.updates,
            "landmarks": updates.iter().map(landmark).collect::<Vec<_>>(),
        })
    }

    /// When a schedule with an end has come there, and where the run is then.
    fn ending(&self) -> String {
        let Some(&end) = self.schedule.landmarks(self.counts).last() else { return String::new() };
        let text = format!(" at {}", self.place(end));
        let Some((run, last)) = self.last() else { return text + ", then constant" };
        let rest = run.saturating_sub(end);
        let of_run = || counted(run, "update", "updates");
        match run {
            _ if run == end => text + ", the end of the run",
            _ if run < end => format!("{text}; the run ends before that, after {}, at {}", of_run(), short(last)),
            _ if rest > run / 10 => format!("{text}, then constant for {} of the run's {}", thousands(rest), of_run()),
            _ => text + ", then constant to the end of the run",
        }
    }

    /// Updates of the run, and the step of its last one.
    fn last(&self) -> Option<(u64, f64)> {
        let updates = self.updates?;
        Some((updates, self.schedule.at(updates.saturating_sub(1), self.counts)))
    }

    /// `update 940 (end of epoch 10)`.
    fn place(&self, update: u64) -> String {
        format!("update {}{}", thousands(update), self.epoch_words(update))
    }

    /// The epoch in which so many updates are made; empty where epochs are not known.
    fn epoch_words(&self, update: u64) -> String {
        match self.updates_per_epoch {
            Some(updates) if update > 0 && update.is_multiple_of(updates) => {
                format!(" (end of epoch {})", thousands(update / updates))
            }
            Some(updates) => format!(" (epoch {})", thousands(update / updates + 1)),
            None => String::new(),
        }
    }
}

fn direction(from: f64, to: f64) -> &'static str {
    if to > from { "rising" } else { "falling" }
}

/// A step in three digits.
fn short(step: f64) -> String {
    let rounded = format!("{step:.2e}").parse().unwrap_or(step);
    if rounded < 1e-4 { format!("{rounded:e}") } else { format!("{rounded}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(schedule: Schedule, updates_per_epoch: impl Into<Option<u64>>, updates: impl Into<Option<u64>>) -> String {
        let (updates_per_epoch, updates) = (updates_per_epoch.into(), updates.into());
        Steps { key: "step", schedule, counts: 8.0, updates_per_epoch, updates }.describe()
    }

    #[test]
    fn a_schedule_is_told_with_its_landmarks_in_updates_and_epochs() {
        let power = Schedule::power(0.4, 0.5, 50, 0.05);
        assert_eq!(told(Schedule::constant(0.4), 50, 900), "0.4 throughout");
        let by_counts = "0.198 throughout, by the 8 times that a batch uses each state";
        assert_eq!(told(Schedule::counts(0.07, 0.4), 50, 900), by_counts);
        let falling = Schedule::falling_counts(0.2, 0.4, 0.5, 10, 0.05);
        assert_eq!(
            told(falling, 47, 470),
            "0.4 for 10 updates (epoch 1), 0.2 after 70 updates (epoch 2), never below 0.141, 0.141 at the end of the \
             run (470 updates), by the 8 times that a batch uses each state"
        );
        assert_eq!(told(Schedule::power(0.4, 0.0, 50, 0.0), 50, 900), "0.4 throughout");
        assert_eq!(told(power, None, None), "0.4 at first, 0.2 after 150 updates, never below 0.05");
        assert_eq!(
            told(power, 47, 470),
            "0.4 at first, 0.2 after 150 updates (epoch 4), never below 0.05, 0.124 at the end of the run (470 updates)"
        );
        assert_eq!(
            told(Schedule::power(0.4, 0.5, 50, 0.3), 50, 900),
            "0.4 at first, never below 0.3, 0.3 at the end of the run (900 updates)"
        );
        let wsd = Schedule::warmup_stable_decay(0.4, 0.00001, 3, 5, 10);
        assert_eq!(
            told(wsd, 9, None),
            "0.1 rising to 0.4 at update 3 (epoch 1), constant until update 8 (epoch 1), falling to 1e-5 at update 18 \
             (end of epoch 2), then constant"
        );
        let decay = |stable: u64| told(Schedule::warmup_stable_decay(0.4, 0.1, 0, stable, 10), None, None);
        assert_eq!(decay(5), "0.4 until update 5, falling to 0.1 at update 15, then constant");
        assert_eq!(decay(0), "0.4 falling to 0.1 at update 10, then constant");
    }

    #[test]
    fn a_cosine_that_does_not_end_with_its_run_is_told_so() {
        let cosine = Schedule::cosine(0.4, 0.02, 940);
        let begin = "0.4 falling to 0.02 at update 940 (end of epoch 10)";
        assert_eq!(told(cosine, 94, None), format!("{begin}, then constant"));
        assert_eq!(told(cosine, 94, 940), format!("{begin}, the end of the run"));
        assert_eq!(told(cosine, 94, 1034), format!("{begin}, then constant to the end of the run"));
        assert_eq!(told(cosine, 94, 1880), format!("{begin}, then constant for 940 of the run's 1,880 updates"));
        assert_eq!(told(cosine, 94, 471), format!("{begin}; the run ends before that, after 471 updates, at 0.21"));
    }

    #[test]
    fn landmarks_as_data_are_places_on_the_schedule() {
        let schedule = Schedule::cosine(0.4, 0.02, 940);
        let steps = Steps { key: "rate", schedule, counts: 8.0, updates_per_epoch: Some(94), updates: Some(470) };
        let want = json!({
            "key": "rate",
            "updates_per_epoch": 94,
            "updates": 470,
            "landmarks": [
                {"update": 0, "epoch": 0.0, "step": 0.4},
                {"update": 470, "epoch": 5.0, "step": schedule.at(470, 8.0)},
                {"update": 940, "epoch": 10.0, "step": 0.02},
            ],
        });
        assert_eq!(steps.to_json(), want);
        let unknown = Steps { updates_per_epoch: None, updates: None, ..steps };
        assert_eq!(unknown.to_json()["landmarks"][1], json!({"update": 940, "epoch": null, "step": 0.02}));
    }
}
