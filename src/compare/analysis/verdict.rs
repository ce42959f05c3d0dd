//! A section in sentences, made of its figures and saying no more than they do.

use super::{
    Against, Reached, against, best_of_seed, ended, full_batch_em, is_learned, last, mean_curve, value, wanted,
};
use crate::compare::findings::{Contender, Point, Section};
use crate::compare::numbers::{decimals, fixed, short};

/// Says if anemone reaches full-batch EM and how soon, which contender is ahead at the end, and what ablations add.
pub fn verdict(section: &Section) -> Vec<String> {
    let decimals = decimals(section);
    let mut sentences = Vec::new();
    if let Some(full) = full_batch_em(section) {
        let ours = section.contenders.iter().filter(|c| c.optimizer == "anemone" && c.ablates.is_none());
        sentences.extend(ours.filter_map(|one| reaching(section, one, full, decimals)));
    }
    sentences.extend(ahead(section, decimals));
    for one in &section.contenders {
        let whole = section.contenders.iter().find(|other| one.ablates.as_ref() == Some(&other.name));
        sentences.extend(whole.and_then(|whole| ablation(whole, one, decimals)));
    }
    sentences.extend(tuning(section));
    sentences
}

/// Whose options were searched and whose were not: a tuned contender has an advantage that the optimizer does not
/// explain.
fn tuning(section: &Section) -> Option<String> {
    let (tuned, others): (Vec<&Contender>, Vec<&Contender>) =
        section.contenders.iter().partition(|contender| !contender.trials.is_empty());
    if tuned.is_empty() {
        return None;
    }
    let tuned: Vec<String> =
        tuned.iter().map(|c| format!("{} ({})", c.name, plural(c.trials.len() as f64, "trial"))).collect();
    let others: Vec<&str> = others.iter().map(|contender| contender.name.as_str()).collect();
    Some(match others.is_empty() {
        true => format!("The options of every contender were searched: {}.", tuned.join(", ")),
        false => format!(
            "Options were searched for {}; not searched, but taken from the file or the defaults, for {}.",
            tuned.join(", "),
            others.join(", ")
        ),
    })
}

/// What a reader of means must know: runs that are missing, that failed, that have no value.
pub fn notes(section: &Section) -> Vec<String> {
    let mut notes = Vec::new();
    let late: Vec<String> = section
        .contenders
        .iter()
        .map(|c| (c, wanted(section, c)))
        .filter(|(c, wanted)| c.runs.len() < *wanted || *wanted == 0)
        .map(|(c, wanted)| format!("{} has {}", c.name, of_runs(c.runs.len(), wanted)))
        .collect();
    if !late.is_empty() {
        notes.push(format!("The comparison is not over: {}.", late.join(", ")));
    }
    for contender in &section.contenders {
        let name = &contender.name;
        for run in &contender.runs {
            if let Some(why) = &run.failed {
                notes.push(format!("{name}: the run of seed {} failed and is in no mean: {why}.", run.seed));
            } else if !run.points.iter().any(|point| is_learned(point) && value(point).is_some()) {
                notes.push(format!("{name}: the run of seed {} has no held-out value that is a number.", run.seed));
            } else if last(run).is_none() {
                notes.push(format!("{name}: the run of seed {} ends without a held-out value.", run.seed));
            }
        }
        let missing = |p: &&Point| is_learned(p) && value(p).is_none();
        let gaps: usize = ended(contender).map(|run| run.points.iter().filter(missing).count()).sum();
        if gaps > 0 && mean_curve(contender).iter().any(|p| p.epoch > 0.0 && p.valid.is_some()) {
            notes.push(format!("{name}: {gaps} of its held-out values are not numbers; its line has gaps there."));
        }
        if let Some(whole) = contender.ablates.as_ref().filter(|w| section.contenders.iter().all(|c| c.name != **w)) {
            notes.push(format!("{name} leaves something out of {whole}, which is not among the contenders."));
        }
    }
    let mut machines: Vec<&str> = section.contenders.iter().flat_map(|c| &c.runs).map(|r| r.machine.as_str()).collect();
    machines.sort_unstable();
    machines.dedup();
    if machines.len() > 1 {
        let why = "so seconds and rows per second of one contender cannot be held against another's";
        notes.push(format!("Runs were learned on different machines, {why}."));
    }
    notes
}

fn of_runs(count: usize, wanted: usize) -> String {
    if wanted == 0 { "no run yet".into() } else { format!("{count} of {wanted} runs") }
}

fn reaching(section: &Section, one: &Contender, full: &Contender, decimals: usize) -> Option<String> {
    let Against { reached, theirs, best_difference, best, their_best, .. } = against(one, full);
    let mark = format!("{}’s best held-out log-likelihood", full.name);
    if reached.runs == 0 {
        return None;
    }
    let each = match (reached.runs, one.runs.len()) {
        (1, 1) => String::new(),
        (asked, all) if asked < all => format!(" in {asked} of {all} seeds, those that both have"),
        (asked, _) => format!(" in each of {asked} seeds"),
    };
    if reached.is_by_all() {
        let level = their_best.map_or(String::new(), |level| format!(" ({})", fixed(level.mean, decimals)));
        let sooner = sooner(&reached, &theirs)?;
        return Some(format!("{} reaches {mark}{level}{each}, {sooner}.", one.name));
    }
    if reached.count() > 0 {
        let epochs = reached.epochs.map_or(String::new(), |e| format!(", there after {}", plural(e.mean, "epoch")));
        return Some(format!(
            "{} reaches {mark} in {} of {} seeds only{epochs}.",
            one.name,
            reached.count(),
            reached.runs
        ));
    }
    let within = format!("within {}", plural(section.epochs as f64, "epoch"));
    let short_by = match (best, their_best, best_difference) {
        (Some(ours), Some(theirs), Some(difference)) => format!(
            ": its best is {}, {} nats below {}",
            fixed(ours.mean, decimals),
            fixed(-difference.mean, decimals),
            fixed(theirs.mean, decimals)
        ),
        _ => String::new(),
    };
    Some(format!("{} does not reach {mark} {within}{short_by}.", one.name))
}

/// "after 5 epochs against 40 (8 times fewer) and 12 seconds against 80 (6.7 times fewer)".
fn sooner(ours: &Reached, theirs: &Reached) -> Option<String> {
    let epochs = (ours.epochs?.mean, theirs.epochs?.mean);
    let seconds = (ours.seconds?.mean, theirs.seconds?.mean);
    let told = |(ours, theirs): (f64, f64), unit: &str| {
        format!("{} against {}{}", plural(ours, unit), short(theirs), times(ours, theirs))
    };
    Some(format!("after {} and {}", told(epochs, "epoch"), told(seconds, "second")))
}

fn times(ours: f64, theirs: f64) -> String {
    if ours <= 0.0 || theirs <= 0.0 {
        return String::new();
    }
    let (ratio, word) = if theirs >= ours { (theirs / ours, "fewer") } else { (ours / theirs, "more") };
    match ratio {
        ..1.05 => " (as many)".into(),
        ..10.0 => format!(" ({ratio:.1} times {word})"),
        _ => format!(" ({ratio:.0} times {word})"),
    }
}

/// Which contender is ahead at the end, and by how much.
fn ahead(section: &Section, decimals: usize) -> Option<String> {
    let Ranking { seeds, order } = Ranking::of(section)?;
    let [(first, highest), (next, lower), ..] = order.as_slice() else { return None };
    let is_over = section.contenders.iter().all(|c| c.runs.len() == wanted(section, c));
    let so_far = if is_over { "At the end" } else { "So far, at the end of their runs," };
    // Some contenders have fewer seeds: on those that they have, one of them may be ahead of the first.
    let is_outside = |c: &&Contender| !c.runs.is_empty() && order.iter().all(|(ranked, _)| ranked.name != c.name);
    let outsiders: Vec<&Contender> = section.contenders.iter().filter(is_outside).collect();
    let next_one = if outsiders.is_empty() { "the next" } else { "the next with as many seeds" };
    let others: String = outsiders
        .into_iter()
        .filter_map(|other| Some((other, against(other, first).last_difference?)))
        .filter(|(_, difference)| difference.mean > 0.0 && !is_nothing(difference.mean, decimals))
        .map(|(other, d)| {
            let seeds = plural(d.count as f64, "seed");
            format!("; on the {seeds} that both have {} is {} above it", other.name, fixed(d.mean, decimals))
        })
        .collect();
    let level = fixed(*highest, decimals);
    if is_nothing(highest - lower, decimals) {
        return Some(format!("{so_far} {} and {} are equally far, at {level}{others}.", first.name, next.name));
    }
    let is_kin = |c: &Contender| c.ablates.as_ref() == Some(&first.name);
    let stranger = order[2..].iter().find(|(other, _)| is_kin(next) && !is_kin(other));
    let over = stranger.map_or(String::new(), |(other, lower)| {
        format!(", and {} above {}{}", fixed(highest - lower, decimals), other.name, how_often(first, other, &seeds))
    });
    Some(format!(
        "{so_far} {} has the highest held-out log-likelihood, {level}: {} nats above {}, {next_one}{}{over}{others}.",
        first.name,
        fixed(highest - lower, decimals),
        next.name,
        how_often(first, next, &seeds),
    ))
}

/// Contenders by their held-out log-likelihood at the end, highest first, all over the same seeds.
struct Ranking<'a> {
    seeds: Vec<u64>,
    order: Vec<(&'a Contender, f64)>,
}

impl<'a> Ranking<'a> {
    /// Of those that have the most seeds; if that is one alone, of all, over the seeds that all have.
    fn of(section: &'a Section) -> Option<Self> {
        let with_seeds = |contender: &'a Contender| (contender, seeds_with_an_end(contender));
        let all: Vec<(&Contender, Vec<u64>)> =
            section.contenders.iter().map(with_seeds).filter(|(_, seeds)| !seeds.is_empty()).collect();
        let most = all.iter().map(|(_, seeds)| seeds).max_by_key(|seeds| seeds.len())?;
        let ranking = |wanted: &[u64]| {
            let has_all = |seeds: &[u64]| wanted.iter().all(|seed| seeds.contains(seed));
            let mean =
                |c: &Contender| wanted.iter().filter_map(|seed| end(c, *seed)).sum::<f64>() / wanted.len() as f64;
            let ranked = all.iter().filter(|(_, seeds)| has_all(seeds)).map(|(c, _)| (*c, mean(c)));
            let mut order: Vec<(&Contender, f64)> = ranked.collect();
            order.sort_by(|a, b| b.1.total_cmp(&a.1));
            Self { seeds: wanted.to_vec(), order }
        };
        let of_most = ranking(most);
        if of_most.order.len() > 1 {
            return Some(of_most);
        }
        let shared: Vec<u64> = most.iter().copied().filter(|seed| all.iter().all(|(_, s)| s.contains(seed))).collect();
        (!shared.is_empty()).then(|| ranking(&shared))
    }
}

/// The held-out log-likelihood at the end of the run of a seed.
fn end(contender: &Contender, seed: u64) -> Option<f64> {
    ended(contender).find(|run| run.seed == seed).and_then(last)
}

fn seeds_with_an_end(contender: &Contender) -> Vec<u64> {
    ended(contender).filter(|run| last(run).is_some()).map(|run| run.seed).collect()
}

/// In how many seeds one is above another.
fn how_often(one: &Contender, other: &Contender, seeds: &[u64]) -> String {
    let is_above = |seed: &&u64| end(one, **seed) > end(other, **seed);
    in_seeds(seeds.iter().filter(is_above).count(), seeds.len())
}

fn in_seeds(count: usize, all: usize) -> String {
    match (count, all) {
        (_, 1) => " (one seed)".into(),
        (count, all) if count == all => format!(" (in each of {all} seeds)"),
        (count, all) => format!(" (in {count} of {all} seeds)"),
    }
}

/// Returns true if a number is shown as zero.
fn is_nothing(number: f64, decimals: usize) -> bool {
    fixed(number.abs(), decimals) == fixed(0.0, decimals)
}

/// What the whole contender has over the one that leaves something out.
fn ablation(whole: &Contender, one: &Contender, decimals: usize) -> Option<String> {
    let Against { best, their_best, best_difference, last_difference, .. } = against(whole, one);
    let (best, theirs, difference) = (best?, their_best?, best_difference?.mean);
    let both = format!("{} against {}", fixed(best.mean, decimals), fixed(theirs.mean, decimals));
    let end = last_difference.map_or(String::new(), |d| match d.mean {
        nothing if is_nothing(nothing, decimals) => "; at the end they are the same".into(),
        below @ ..0.0 => format!("; at the end {} is {} below", whole.name, fixed(-below, decimals)),
        above => format!("; at the end {} is {} above", whole.name, fixed(above, decimals)),
    });
    if is_nothing(difference, decimals) {
        return Some(format!("The best of {} and of {} are the same ({both}){end}.", whole.name, one.name));
    }
    let (higher, lower, word) = if difference < 0.0 { (one, whole, "below") } else { (whole, one, "above") };
    let pairs = ended(higher).filter_map(|run| Some((best_of_seed(higher, run.seed)?, best_of_seed(lower, run.seed)?)));
    let often = in_seeds(pairs.filter(|(high, low)| high > low).count(), best.count);
    let told = fixed(difference.abs(), decimals);
    Some(format!("The best of {} is {told} nats {word} that of {}{often}: {both}{end}.", whole.name, one.name))
}

fn plural(count: f64, unit: &str) -> String {
    let count = short(count);
    if count == "1" { format!("1 {unit}") } else { format!("{count} {unit}s") }
}
