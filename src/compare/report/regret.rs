//! The tables after all sections: which contender to take where nothing is tried first.

use super::table::{Cell, Table};
use crate::compare::analysis::{Gap, Measure, Regret, RegretRow, regrets};
use crate::compare::findings::{Findings, Section};
use crate::compare::numbers::fixed;

/// What stands over the tables.
pub const TITLE: &str = "Over all sections";

/// Shares of a percent matter: tuned contenders are that close.
const DECIMALS: usize = 3;

/// A table for each measure; none where sections have too little in common.
pub fn tables(findings: &Findings) -> Vec<Table> {
    let mut tables = unmarked_tables(findings);
    tables.iter_mut().for_each(|table| table.caption.push_str(" The lowest of each column in bold."));
    tables
}

/// The same for a terminal, which has no bold: there the order of rows tells which is lowest.
pub fn plain(findings: &Findings) -> String {
    unmarked_tables(findings).iter().map(Table::plain).collect::<Vec<_>>().join("\n\n")
}

fn unmarked_tables(findings: &Findings) -> Vec<Table> {
    regrets(findings).iter().map(|regret| table(findings, regret)).collect()
}

fn table(findings: &Findings, regret: &Regret<'_>) -> Table {
    let lowest = |of: &dyn Fn(&RegretRow<'_>) -> Option<f64>| regret.rows.iter().filter_map(of).reduce(f64::min);
    let lowest_gaps: Vec<Option<f64>> =
        (0..regret.sections.len()).map(|at| lowest(&|row| row.gaps[at].percent())).collect();
    let lowest_regret = lowest(&|row| row.regret);
    let percent = |value: Option<f64>, lowest: Option<f64>| {
        value.map_or_else(Cell::none, |value| Cell::number(fixed(value, DECIMALS)).best_if(Some(value) == lowest))
    };
    let row = |row: &RegretRow<'_>| {
        let mut cells = vec![Cell::words(row.name)];
        for ((gap, lowest), section) in row.gaps.iter().zip(&lowest_gaps).zip(&regret.sections) {
            cells.push(percent(gap.percent(), *lowest).small(fewer_seeds(section, row.name)));
        }
        cells.push(percent(row.regret, lowest_regret));
        cells
    };
    let mut heads = vec![Cell::words("contender")];
    heads.extend(regret.sections.iter().map(|section| Cell::number(&section.name)));
    heads.push(Cell::number("regret"));
    let (title, what) = match regret.measure {
        Measure::Valid => ("Regret on validation rows", "best validation"),
        Measure::Test => ("Regret on test rows", "test"),
    };
    let gaps = format!(
        "Gap to the best of each section, in percent of the best: between the means over seeds of the {what} \
         log-likelihoods. Regret is the mean of the gaps over all sections."
    );
    let sentences = [gaps, without_regret(regret), not_over(findings, regret)];
    Table {
        title: title.into(),
        caption: sentences.into_iter().filter(|sentence| !sentence.is_empty()).collect::<Vec<_>>().join(" "),
        heads,
        rows: regret.rows.iter().map(row).collect(),
        ..Table::default()
    }
}

/// Says that a mean is of fewer seeds than others of the section have.
fn fewer_seeds(section: &Section, name: &str) -> String {
    let most = section.contenders.iter().map(|contender| contender.runs.len()).max().unwrap_or(0);
    let own = section.contenders.iter().find(|contender| contender.name == name).map(|contender| contender.runs.len());
    own.filter(|own| *own < most).map_or(String::new(), |own| format!("({own} of {most} seeds)"))
}

/// Which contenders have no regret, and why.
fn without_regret(regret: &Regret<'_>) -> String {
    let why = |row: &RegretRow<'_>| {
        let places = |gap: Gap| {
            let here = row.gaps.iter().zip(&regret.sections).filter(|(other, _)| **other == gap);
            here.map(|(_, section)| section.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let reasons = [("not in", Gap::Absent), ("failed in", Gap::Failed), ("no number in", Gap::Unknown)];
        let told = reasons.map(|(reason, gap)| (reason, places(gap)));
        let told = told.iter().filter(|(_, places)| !places.is_empty());
        format!("{} ({})", row.name, told.map(|(why, at)| format!("{why} {at}")).collect::<Vec<_>>().join("; "))
    };
    let without: Vec<String> = regret.rows.iter().filter(|row| row.regret.is_none()).map(why).collect();
    if without.is_empty() { String::new() } else { format!("Without a mean: {}.", without.join(", ")) }
}

/// Which sections have no column yet.
fn not_over(findings: &Findings, regret: &Regret<'_>) -> String {
    let is_there = |section: &&Section| regret.sections.iter().any(|other| other.name == section.name);
    let missing = findings.sections.iter().filter(|section| !is_there(section)).map(|section| section.name.as_str());
    match missing.collect::<Vec<_>>() {
        none if none.is_empty() => String::new(),
        names => format!("Not over, and without a column: {}.", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::analysis::testing::{contender, section};

    fn found() -> Findings {
        let a = contender("a", "anemone", &[&[-9.0, -4.0], &[-9.0, -4.0]]);
        let b = contender("b", "adam", &[&[-9.0, -5.0], &[-9.0, -5.0]]);
        let named = |name: &str| Section { name: name.into(), ..section(vec![a.clone(), b.clone()]) };
        Findings { sections: vec![named("one"), named("two")], ..Findings::default() }
    }

    #[test]
    fn the_lowest_is_bold_in_every_column() {
        let [table] = &tables(&found())[..] else { panic!("no test rows, one table") };
        let html = table.html();
        assert_eq!(html.matches("<strong>0.000</strong>").count(), 3, "{html}");
        assert!(html.contains("in bold"), "{html}");
        assert_eq!(html.matches("<td class=\"n\">25.000</td>").count(), 3, "{html}");
        assert!(!html.contains("Without a mean") && !html.contains("Not over"), "{html}");
    }

    #[test]
    fn who_has_no_mean_or_fewer_seeds_and_what_is_not_over_is_said() {
        let mut found = found();
        found.sections.push(Section { name: "three".into(), ..found.sections[0].clone() });
        found.sections[2].contenders.push(contender("c", "sgd", &[]));
        found.sections[2].contenders[2].seeds = vec![1];
        found.sections[0].contenders[1].seeds = vec![1];
        found.sections[0].contenders[1].runs.truncate(1);
        let mut lost = contender("lost", "sgd", &[&[-9.0, -3.0], &[-9.0, -3.0]]);
        lost.runs[0].failed = Some("diverged".into());
        found.sections[1].contenders.push(lost);
        let table = &tables(&found)[0];
        assert!(table.caption.contains("Without a mean: lost (not in one; failed in two)."), "{}", table.caption);
        assert!(table.caption.contains("Not over, and without a column: three."), "{}", table.caption);
        let html = table.html();
        assert!(html.contains("25.000 <small>(1 of 2 seeds)</small>"), "{html}");
        assert!(html.ends_with("</p>\n") && html.contains("<td class=\"n\">—</td>"), "{html}");
    }

    #[test]
    fn lines_for_a_terminal_stand_below_each_other() {
        let text = plain(&found());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "Regret on validation rows",
                "  contender     one     two  regret",
                "  a           0.000   0.000   0.000",
                "  b          25.000  25.000  25.000",
            ]
        );
        assert!(lines[4].starts_with("  Gap to the best") && !text.contains("bold"), "{text}");
    }
}
