//! The tables of a section.

use super::table::{Cell, Table};
use crate::compare::analysis::{Reached, Spread, Standing, against, best_of_seed, full_batch_em, reach, wanted};
use crate::compare::findings::{Contender, Section, Setting, Trial};
use crate::compare::numbers::{decimals, fixed, short, signed};
use crate::optim::optimizer_title;

/// The result of every contender.
pub fn results(section: &Section) -> Table {
    let decimals = decimals(section);
    let standings: Vec<Standing<'_>> = section.contenders.iter().map(Standing::of).collect();
    // Of those with the most runs: seeds differ, and a mean of fewer may be of the easy ones. One alone is no highest
    // of many.
    let highest = |of: fn(&Standing<'_>) -> Option<Spread>| {
        let spreads: Vec<Spread> = standings.iter().filter_map(of).collect();
        let most = spreads.iter().map(|spread| spread.count).max()?;
        let peers: Vec<f64> = spreads.iter().filter(|s| s.count == most).map(|s| s.mean).collect();
        peers.iter().copied().reduce(f64::max).filter(|_| peers.len() > 1 || spreads.len() == 1)
    };
    let (best, last, test) = (highest(|s| s.best), highest(|s| s.last), highest(|s| s.test));
    let rate = highest(|s| s.rows_per_second);
    let has_spread = standings.iter().any(|s| s.best.is_some_and(|spread| spread.count > 1));
    let is_whole = |s: &Standing<'_>| s.best_epoch.is_none_or(|epoch| epoch.mean.fract() == 0.0);
    let epoch_decimals = usize::from(!standings.iter().all(is_whole));
    let row = |s: &Standing<'_>| {
        let likelihood = |spread: Option<Spread>, highest: Option<f64>| {
            likelihood(spread, s.ended, highest, decimals).padded_if(has_spread)
        };
        let mean = |spread: Option<Spread>| spread.map_or_else(Cell::none, |spread| Cell::number(short(spread.mean)));
        let is_fastest = s.rows_per_second.map(|spread| spread.mean) == rate;
        vec![
            Cell::words(&s.contender.name),
            Cell::words(optimizer(&s.contender.optimizer)).below(options(s.contender)),
            runs(s, wanted(section, s.contender)),
            likelihood(s.best, best),
            s.best_epoch.map_or_else(Cell::none, |epoch| Cell::number(fixed(epoch.mean, epoch_decimals))),
            likelihood(s.last, last),
            likelihood(s.test, test),
            mean(s.rows_per_second).best_if(rate.is_some() && is_fastest),
            mean(s.seconds),
        ]
    };
    let reference = |r: &crate::compare::findings::Reference| {
        let known =
            |v: Option<f64>| v.map_or_else(Cell::none, |v| Cell::number(fixed(v, decimals))).padded_if(has_spread);
        let mut cells = vec![Cell::words(&r.name), Cell::words("reference"), Cell::number("")];
        cells.extend([known(r.valid), Cell::number(""), Cell::number(""), known(r.test)]);
        cells.extend([Cell::number(""), Cell::number("")]);
        cells
    };
    let deviation = match has_spread {
        true => "Means over the runs that did not fail, ± their standard deviation. ",
        false => "",
    };
    Table {
        title: "Results".into(),
        caption: format!(
            "{deviation}Log-likelihoods in nats per row, the highest of each column among those with the most runs in \
             bold. Test: under the parameters that were best on the held-out rows. Seconds of learning, without \
             validation."
        ),
        heads: vec![
            Cell::words("contender"),
            Cell::words("optimizer"),
            Cell::number("runs"),
            Cell::number("best validation").padded_if(has_spread),
            Cell::number("at epoch"),
            Cell::number("final validation").padded_if(has_spread),
            Cell::number("test").padded_if(has_spread),
            Cell::number("rows/s"),
            Cell::number("seconds"),
        ],
        rows: standings.iter().map(row).collect(),
        quiet_rows: section.references.iter().map(reference).collect(),
        ..Table::default()
    }
}

/// How soon each contender reaches each log-likelihood.
pub fn crossings(section: &Section) -> Table {
    let decimals = decimals(section);
    let full = full_batch_em(section);
    let mut marks: Vec<(String, Vec<Reached>)> = Vec::new();
    for threshold in section.thresholds.iter().copied().filter(|t| t.is_finite()) {
        let reached = section.contenders.iter().map(|c| reach(c, |_| Some(threshold))).collect();
        marks.push((format!("≥ {}", fixed(threshold, shown_decimals(threshold))), reached));
    }
    if let Some(full) = full {
        let reached = section.contenders.iter().map(|c| reach(c, |seed| best_of_seed(full, seed))).collect();
        let level = Standing::of(full).best.map_or(String::new(), |b| format!(" ({})", fixed(b.mean, decimals)));
        marks.push((format!("{}’s best{level}", full.name), reached));
    }
    if marks.is_empty() {
        return Table::default();
    }
    // As above, of those with the most runs.
    let most = section.contenders.iter().map(|c| c.runs.len()).max().unwrap_or(0);
    let least = |reached: &[Reached]| {
        let peers = reached.iter().filter(|r| r.is_by_all() && r.runs == most);
        let means = peers.filter_map(|r| Some((r.epochs?.mean, r.seconds?.mean)));
        means.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)))
    };
    let row = |(at, contender): (usize, &Contender)| {
        let mut cells = vec![Cell::words(&contender.name)];
        for (_, reached) in &marks {
            let least = least(reached).filter(|_| reached[at].runs == most);
            let (epochs, seconds) = (of_column(reached, |r| r.epochs), of_column(reached, |r| r.seconds));
            let all = contender.runs.len();
            cells.push(crossing(&reached[at], reached[at].epochs, all, least.map(|l| l.0), epochs));
            cells.push(crossing(&reached[at], reached[at].seconds, all, least.map(|l| l.1), seconds));
        }
        cells
    };
    let mut heads = vec![Cell::words("contender")];
    let mut groups = vec![(String::new(), 1)];
    for (mark, _) in &marks {
        heads.extend([Cell::number("epochs"), Cell::number("seconds")]);
        groups.push((mark.clone(), 2));
    }
    let paired = match (full.is_some(), section.contenders.iter().any(|c| c.runs.len() > 1)) {
        (true, true) => " Full-batch EM’s best is taken seed by seed; its mean is shown.",
        _ => "",
    };
    Table {
        title: "How soon a log-likelihood is reached".into(),
        caption: format!(
            "The first look at the held-out rows that reaches a log-likelihood, as a mean over runs; the least of \
             those with the most runs in bold. ∞: not within {} epochs, in brackets how many runs did, and their mean. \
             A run that failed counts as never reaching.{paired}",
            section.epochs
        ),
        groups,
        heads,
        rows: section.contenders.iter().enumerate().map(row).collect(),
        ..Table::default()
    }
}

/// What is lost or won by changing one thing.
pub fn ablations(section: &Section) -> Table {
    let decimals = decimals(section);
    let find = |name: &str| section.contenders.iter().find(|c| c.name == name);
    let row = |one: &Contender| {
        let whole = find(one.ablates.as_deref()?)?;
        let a = against(one, whole);
        let mean = |s: Option<Spread>| s.map_or_else(Cell::none, |s| Cell::number(fixed(s.mean, decimals)));
        let difference = |s: Option<Spread>| s.map_or_else(Cell::none, |s| Cell::number(signed(s.mean, decimals)));
        Some(vec![
            Cell::words(&one.name),
            Cell::words(&whole.name),
            mean(a.best),
            mean(a.their_best),
            difference(a.best_difference),
            mean(a.last),
            mean(a.their_last),
            difference(a.last_difference),
            crossing(&a.reached, a.reached.epochs, a.reached.runs, None, 1),
            crossing(&a.theirs, a.theirs.epochs, a.theirs.runs, None, 1),
        ])
    };
    Table {
        title: "One thing changed".into(),
        caption: "A contender, and the other that it takes all else from, over the seeds that both have. A difference \
                  below zero is what the change costs. Epochs to the other's best, seed by seed."
            .into(),
        groups: vec![
            (String::new(), 2),
            ("best validation".into(), 3),
            ("final validation".into(), 3),
            ("epochs to the other's best".into(), 2),
        ],
        heads: vec![
            Cell::words("contender"),
            Cell::words("the other"),
            Cell::number("contender"),
            Cell::number("other"),
            Cell::number("difference"),
            Cell::number("contender"),
            Cell::number("other"),
            Cell::number("difference"),
            Cell::number("contender"),
            Cell::number("other"),
        ],
        rows: section.contenders.iter().filter_map(row).collect(),
        ..Table::default()
    }
}

/// What was tried for a contender, and what was chosen.
pub fn trials(section: &Section, contender: &Contender) -> Table {
    let decimals = decimals(section);
    let row = |trial: &Trial| {
        let best = trial.best_valid.filter(|v| v.is_finite());
        vec![
            Cell::words(settings(&trial.settings)).best_if(trial.is_chosen),
            Cell::number(trial.epochs.to_string()),
            best.map_or_else(Cell::none, |v| Cell::number(fixed(v, decimals)).best_if(trial.is_chosen)),
            Cell::words(if trial.is_chosen { "✓\u{a0}chosen" } else { "" }),
        ]
    };
    Table {
        heads: vec![Cell::words("tried"), Cell::number("epochs"), Cell::number("best validation"), Cell::words("")],
        rows: contender.trials.iter().map(row).collect(),
        ..Table::default()
    }
}

/// An optimizer as people call it; one that this version does not know by its name.
pub fn optimizer(name: &str) -> String {
    optimizer_title(name).map_or_else(|| name.replace('_', " "), str::to_string)
}

/// What a contender ran with, and if it was searched for.
fn options(contender: &Contender) -> String {
    let searched = match contender.trials.len() {
        0 => "not searched".to_string(),
        1 => "searched in 1 trial".to_string(),
        trials => format!("searched in {trials} trials"),
    };
    match settings(&contender.settings) {
        none if none.is_empty() => searched,
        settings => format!("{settings}; {searched}"),
    }
}

/// Options without the name of the table that nearly all are of, each in one piece.
fn settings(settings: &[Setting]) -> String {
    let shown = |s: &Setting| format!("{}\u{a0}=\u{a0}{}", s.key.strip_prefix("learn.").unwrap_or(&s.key), s.value);
    settings.iter().map(shown).collect::<Vec<_>>().join(", ")
}

fn runs(standing: &Standing<'_>, wanted: usize) -> Cell {
    let (ended, all) = (standing.ended, standing.contender.runs.len());
    let cell = Cell::number(if all < wanted { format!("{ended} of {wanted}") } else { ended.to_string() });
    if ended < all { cell.small(format!("({} failed)", all - ended)) } else { cell }
}

/// A mean with its deviation. Where some run has no value, how many have one.
fn likelihood(spread: Option<Spread>, runs: usize, highest: Option<f64>, decimals: usize) -> Cell {
    let Some(spread) = spread else { return Cell::none() };
    let of = if spread.count < runs { format!("({} of {runs})", spread.count) } else { String::new() };
    let sd = spread.sd.map_or(String::new(), |sd| format!("± {}", fixed(sd, decimals)));
    Cell::number(fixed(spread.mean, decimals))
        .small([sd, of].join(" ").trim().to_string())
        .best_if(highest == Some(spread.mean))
}

/// How soon something was reached by the runs that had something to reach; of how many, where that is not `all`.
fn crossing(reached: &Reached, amount: Option<Spread>, all: usize, least: Option<f64>, decimals: usize) -> Cell {
    let of = if reached.runs < all { format!("({} of {all} runs)", reached.runs) } else { String::new() };
    match amount {
        _ if reached.runs == 0 => Cell::none(),
        None => Cell::number("∞").small(of),
        Some(amount) if reached.is_by_all() => Cell::number(fixed(amount.mean, decimals))
            .best_if(of.is_empty() && least.is_some_and(|least| amount.mean <= least))
            .small(of),
        Some(amount) => {
            let mean = fixed(amount.mean, decimals);
            Cell::number("∞").small(format!("({} of {}: {mean})", amount.count, reached.runs))
        }
    }
}

/// How many decimals a column needs: none for whole numbers, else enough for the least of them.
fn of_column(reached: &[Reached], of: fn(&Reached) -> Option<Spread>) -> usize {
    let means: Vec<f64> = reached.iter().filter_map(|r| of(r).map(|spread| spread.mean)).collect();
    let least = means.iter().copied().filter(|mean| *mean > 0.0).fold(f64::INFINITY, f64::min);
    match least {
        _ if means.iter().all(|mean| mean.fract() == 0.0) => 0,
        ..1.0 => 2,
        ..20.0 => 1,
        _ => 0,
    }
}

/// A threshold has the decimals that its author wrote.
fn shown_decimals(value: f64) -> usize {
    value.to_string().split_once('.').map_or(0, |(_, decimals)| decimals.len().min(4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::analysis::testing::{contender, section};

    #[test]
    fn who_does_not_always_get_there_has_an_infinity_and_a_count() {
        let mut some = contender("some", "adam", &[&[-9.0, -8.0, -4.0], &[-9.0, -4.0, -4.0], &[-9.0, -9.0, -9.0]]);
        let all = contender("all", "anemone", &[&[-9.0, -4.0], &[-9.0, -4.0], &[-9.0, -4.0]]);
        let none = contender("none", "sgd", &[&[-9.0], &[-9.0], &[-9.0]]);
        some.runs[2].failed = Some("diverged".into());
        let mut section = section(vec![some, all, none]);
        section.thresholds = vec![-5.0];
        let html = crossings(&section).html();
        assert!(html.contains("∞ <small>(2 of 3: 1.5)</small>"), "{html}");
        assert!(html.contains("<strong>1.0</strong>"), "{html}");
        assert!(html.contains("<td class=\"n\">∞</td>"), "{html}");
        assert!(html.contains("≥ −5"), "{html}");
    }

    #[test]
    fn results_are_of_runs_that_did_not_fail_and_say_how_many() {
        let mut a = contender("a", "adam", &[&[-9.0, -4.0], &[-9.0, -6.0], &[-9.0, -1.0]]);
        a.runs[2].failed = Some("diverged".into());
        a.runs[0].test = Some(-7.0);
        let html = results(&section(vec![a])).html();
        assert!(html.contains("2 <small>(1 failed)</small>"), "{html}");
        assert!(html.contains("<strong>−5.0000</strong> <small class=\"pad\">± 1.4142</small>"), "{html}");
        assert!(html.contains("<strong>−7.0000</strong> <small class=\"pad\">(1 of 2)</small>"), "{html}");
    }

    #[test]
    fn an_ablation_is_the_difference_to_what_it_ablates() {
        let whole = contender("whole", "anemone", &[&[-9.0, -4.0]]);
        let mut less = contender("less", "anemone", &[&[-9.0, -5.0]]);
        less.ablates = Some("whole".into());
        let mut lost = less.clone();
        lost.ablates = Some("nobody".into());
        let table = ablations(&section(vec![whole, less, lost]));
        assert_eq!(table.rows.len(), 1);
        assert!(table.html().contains("−1.0000"), "{}", table.html());
    }

    #[test]
    fn who_alone_has_a_second_seed_is_not_the_best_for_that() {
        let many = contender("many", "anemone", &[&[-9.0, -7.0, -6.0], &[-9.0, -7.0, -6.0]]);
        let quick = contender("quick", "adam", &[&[-9.0, -4.0, -4.0]]);
        let slow = contender("slow", "adam", &[&[-9.0, -9.0, -7.0], &[-9.0, -8.0, -7.0]]);
        let mut alone = section(vec![many.clone(), quick.clone()]);
        alone.thresholds = vec![-8.5];
        assert!(!results(&alone).html().contains("<strong>"), "{}", results(&alone).html());
        let mut all = section(vec![many, quick, slow]);
        all.thresholds = vec![-8.5];
        assert!(results(&all).html().contains("<strong>−6.0000</strong>"), "{}", results(&all).html());
        let html = crossings(&all).html();
        assert_eq!(html.matches("<strong>").count(), 2, "epochs and seconds of one contender: {html}");
    }
}
