//! A section in sentences, made of its figures and saying no more than they do.

use super::{Against, Reached, Spread, Standing, against, ended, full_batch_em, last, mean_curve, value, wanted};
use crate::compare::findings::{Contender, Section};
use crate::compare::numbers::{decimals, fixed, short};

/// Whether anemone reaches full-batch EM and how soon, who is ahead at the end, what ablations add.
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
    sentences
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
            } else if !run.points.iter().any(|point| value(point).is_some()) {
                notes.push(format!("{name}: the run of seed {} has no held-out value that is a number.", run.seed));
            } else if last(run).is_none() {
                notes.push(format!("{name}: the run of seed {} ends without a held-out value.", run.seed));
            }
        }
        let missing = |p: &&crate::compare::findings::Point| value(p).is_none();
        let gaps: usize = ended(contender).map(|run| run.points.iter().filter(missing).count()).sum();
        if gaps > 0 && mean_curve(contender).iter().any(|p| p.valid.is_some()) {
            notes.push(format!("{name}: {gaps} of its held-out values are no numbers; its line has gaps there."));
        }
        if let Some(whole) = contender.ablates.as_ref().filter(|w| section.contenders.iter().all(|c| c.name != **w)) {
            notes.push(format!("{name} leaves something out of {whole}, which is not among the contenders."));
        }
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
    let each = if reached.runs > 1 { format!(" in each of {} seeds", reached.runs) } else { String::new() };
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

/// "after 5 epochs where … took 40 (8 times fewer) and 12 seconds where … took 80 (6.7 times fewer)".
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

/// Who is ahead at the end, and by how much.
fn ahead(section: &Section, decimals: usize) -> Option<String> {
    let standing = |c| {
        let standing = Standing::of(c);
        standing.last.map(|last| (standing, last))
    };
    let mut order: Vec<(Standing<'_>, Spread)> = section.contenders.iter().filter_map(standing).collect();
    order.sort_by(|a, b| b.1.mean.total_cmp(&a.1.mean));
    let [(first, highest), (next, lower), ..] = order.as_slice() else { return None };
    let is_over = section.contenders.iter().all(|c| c.runs.len() == wanted(section, c));
    let so_far = if is_over { "At the end" } else { "So far, at the end of their runs," };
    // Over the seeds that both have, if there are any: seeds differ, and some contenders have few.
    let paired = against(first.contender, next.contender).last_difference;
    let difference = paired.map_or(highest.mean - lower.mean, |paired| paired.mean);
    let shared = match paired {
        Some(paired) if paired.count < highest.count.max(lower.count) => {
            format!(" over {} that both have", plural(paired.count as f64, "seed"))
        }
        _ => String::new(),
    };
    if fixed(difference, decimals) == fixed(0.0, decimals) {
        let (a, b) = (whose(first, highest), whose(next, lower));
        return Some(format!("{so_far} {a} and {b} are equally far, at {}.", fixed(highest.mean, decimals)));
    }
    let is_kin = |c: &Contender| c.ablates.as_ref() == Some(&first.contender.name);
    let other = order[2..].iter().find(|(other, _)| is_kin(next.contender) && !is_kin(other.contender));
    let over = other.map_or(String::new(), |(standing, spread)| {
        format!("; it is {} above {}", fixed(highest.mean - spread.mean, decimals), whose(standing, spread))
    });
    Some(format!(
        "{so_far} {} has the highest held-out log-likelihood, {}: {} nats {} {}, the next{shared}{}{over}.",
        whose(first, highest),
        fixed(highest.mean, decimals),
        fixed(difference.abs(), decimals),
        if difference < 0.0 { "below" } else { "above" },
        whose(next, lower),
        spread_of_two(difference, highest, lower, decimals)
    ))
}

/// A name, and how many of its runs are spoken of unless it is all.
fn whose(standing: &Standing<'_>, spread: &Spread) -> String {
    let (name, runs) = (&standing.contender.name, standing.contender.runs.len());
    if spread.count == runs { name.clone() } else { format!("{name} ({} of {runs} runs)", spread.count) }
}

/// Whether a difference is more than what seeds make: more than either side spreads between its lowest and highest.
fn spread_of_two(difference: f64, one: &Spread, other: &Spread, decimals: usize) -> String {
    if one.count < 2 || other.count < 2 {
        return String::new();
    }
    let range = one.range().max(other.range());
    let told = fixed(range, decimals);
    match difference.abs() > range {
        true => format!(", more than seeds differ among themselves (by {told} at most)"),
        false => format!(", no more than seeds differ among themselves (by up to {told})"),
    }
}

/// What the whole contender has over the one that leaves something out.
fn ablation(whole: &Contender, one: &Contender, decimals: usize) -> Option<String> {
    let Against { best, their_best, best_difference, last_difference, .. } = against(whole, one);
    let (best, theirs, difference) = (best?, their_best?, best_difference?.mean);
    let told = fixed(difference.abs(), decimals);
    let both = format!("{} against {}", fixed(best.mean, decimals), fixed(theirs.mean, decimals));
    let spread = spread_of_two(difference, &best, &theirs, decimals);
    let end = last_difference.map_or(String::new(), |d| {
        let word = if d.mean < 0.0 { "below" } else { "above" };
        format!("; at the end it is {} {word}", fixed(d.mean.abs(), decimals))
    });
    let (whole, one) = (&whole.name, &one.name);
    if told == fixed(0.0, decimals) {
        return Some(format!("The best of {whole} and of {one} are the same ({both}){end}."));
    }
    let word = if difference < 0.0 { "below" } else { "above" };
    Some(format!("The best of {whole} is {told} nats {word} that of {one} ({both}){spread}{end}."))
}

fn plural(count: f64, unit: &str) -> String {
    let count = short(count);
    if count == "1" { format!("1 {unit}") } else { format!("{count} {unit}s") }
}
