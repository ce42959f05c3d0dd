//! How soon a likelihood is reached, and how one contender stands against another of the same seeds.

use super::{Spread, best, ended, first_reaching, last, value};
use crate::compare::findings::{Contender, Run, Section};

/// How soon the runs of a contender reached something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reached {
    /// Runs that had something to reach, failed ones too: those count as never reaching.
    pub runs: usize,
    /// Epochs, of the runs that reached it.
    pub epochs: Option<Spread>,
    /// Seconds, of the same.
    pub seconds: Option<Spread>,
}

impl Reached {
    /// How many runs reached it.
    pub fn count(&self) -> usize {
        self.epochs.map_or(0, |epochs| epochs.count)
    }

    /// Returns true if all did, and there was one.
    pub fn is_by_all(&self) -> bool {
        self.runs > 0 && self.count() == self.runs
    }
}

/// How soon each run of a contender reached what `threshold` names for its seed; seeds for which it names nothing are
/// left out.
pub fn reach(contender: &Contender, threshold: impl Fn(u64) -> Option<f64>) -> Reached {
    let asked: Vec<(&Run, f64)> =
        contender.runs.iter().filter_map(|run| Some((run, threshold(run.seed).filter(|t| !t.is_nan())?))).collect();
    let whole = asked.iter().filter(|(run, _)| run.failed.is_none());
    let points: Vec<_> = whole.filter_map(|(run, threshold)| first_reaching(&run.points, *threshold)).collect();
    Reached {
        runs: asked.len(),
        epochs: Spread::of(&points.iter().map(|point| point.epoch).collect::<Vec<_>>()),
        seconds: Spread::of(&points.iter().map(|point| point.seconds).collect::<Vec<_>>()),
    }
}

/// The best held-out log-likelihood of a contender under one seed.
pub fn best_of_seed(contender: &Contender, seed: u64) -> Option<f64> {
    ended(contender).find(|run| run.seed == seed).and_then(best).and_then(value)
}

/// Full-batch EM as a mark to reach: the contender whose best is highest, if there are several.
pub fn full_batch_em(section: &Section) -> Option<&Contender> {
    let candidates = section.contenders.iter().filter(|c| c.optimizer == "full_batch_em" && c.ablates.is_none());
    let mean = |c: &Contender| super::Standing::of(c).best.map(|best| best.mean);
    candidates.filter_map(|c| Some((c, mean(c)?))).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(c, _)| c)
}

/// One contender against another, over the seeds that both ended with a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Against {
    /// Best of the one.
    pub best: Option<Spread>,
    /// Best of the other.
    pub their_best: Option<Spread>,
    /// The one's best minus the other's, seed by seed.
    pub best_difference: Option<Spread>,
    /// Last of the one.
    pub last: Option<Spread>,
    /// Last of the other.
    pub their_last: Option<Spread>,
    /// The one's last minus the other's, seed by seed.
    pub last_difference: Option<Spread>,
    /// How soon the one reaches the other's best of the same seed.
    pub reached: Reached,
    /// How soon the other reached its own best, over the runs that `reached` asks.
    pub theirs: Reached,
}

/// Holds `one` against `other`.
pub fn against(one: &Contender, other: &Contender) -> Against {
    let pairs = |of: &dyn Fn(&Run) -> Option<f64>| -> (Vec<f64>, Vec<f64>) {
        let pair = |run: &Run| Some((of(run)?, of(ended(other).find(|r| r.seed == run.seed)?)?));
        ended(one).filter_map(pair).unzip()
    };
    let difference = |(ours, theirs): &(Vec<f64>, Vec<f64>)| {
        Spread::of(&ours.iter().zip(theirs).map(|(a, b)| a - b).collect::<Vec<_>>())
    };
    let (best, last) = (pairs(&|run| best(run).and_then(value)), pairs(&last));
    let has = |seed: u64| one.runs.iter().any(|run| run.seed == seed);
    Against {
        best: Spread::of(&best.0),
        their_best: Spread::of(&best.1),
        best_difference: difference(&best),
        last: Spread::of(&last.0),
        their_last: Spread::of(&last.1),
        last_difference: difference(&last),
        reached: reach(one, |seed| best_of_seed(other, seed)),
        theirs: reach(other, |seed| best_of_seed(other, seed).filter(|_| has(seed))),
    }
}
