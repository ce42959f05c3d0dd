//! The same figures for other programs: RFC 4180, numbers that come back bit-identical, nothing where there is no
//! number.

use crate::compare::analysis::{Measure, Spread, Standing, regrets};
use crate::compare::findings::{Findings, Setting};

/// Every point of every run.
pub fn curves(findings: &Findings) -> String {
    let mut rows = vec![row(&["section", "contender", "optimizer", "seed", "epoch", "seconds", "valid", "train"])];
    for section in &findings.sections {
        for contender in &section.contenders {
            for run in &contender.runs {
                for point in &run.points {
                    rows.push(row(&[
                        &section.name,
                        &contender.name,
                        &contender.optimizer,
                        &run.seed.to_string(),
                        &number(Some(point.epoch)),
                        &number(Some(point.seconds)),
                        &number(point.valid),
                        &number(point.train),
                    ]));
                }
            }
        }
    }
    rows.concat()
}

/// The table of results: a row for each contender and each reference.
pub fn table(findings: &Findings) -> String {
    let mut rows = vec![row(&[
        "section",
        "contender",
        "optimizer",
        "settings",
        "runs",
        "failed",
        "best_valid_mean",
        "best_valid_sd",
        "best_valid_runs",
        "best_epoch_mean",
        "final_valid_mean",
        "final_valid_sd",
        "final_valid_runs",
        "test_mean",
        "test_sd",
        "test_runs",
        "rows_per_second",
        "seconds",
    ])];
    for section in &findings.sections {
        for contender in &section.contenders {
            let standing = Standing::of(contender);
            let mean = |spread: Option<Spread>| number(spread.map(|s| s.mean));
            let three = |spread: Option<Spread>| {
                [mean(spread), number(spread.and_then(|s| s.sd)), spread.map_or(0, |s| s.count).to_string()]
            };
            let mut cells = vec![
                section.name.clone(),
                contender.name.clone(),
                contender.optimizer.clone(),
                settings(&contender.settings),
                contender.runs.len().to_string(),
                (contender.runs.len() - standing.ended).to_string(),
            ];
            cells.extend(three(standing.best));
            cells.push(mean(standing.best_epoch));
            cells.extend(three(standing.last));
            cells.extend(three(standing.test));
            cells.extend([mean(standing.rows_per_second), mean(standing.seconds)]);
            rows.push(row(&cells));
        }
        for reference in &section.references {
            let mut cells = vec![String::new(); 18];
            cells[0].clone_from(&section.name);
            cells[1].clone_from(&reference.name);
            cells[2] = "reference".into();
            cells[6] = number(reference.valid);
            cells[13] = number(reference.test);
            rows.push(row(&cells));
        }
    }
    rows.concat()
}

/// What was tried to settle options.
pub fn trials(findings: &Findings) -> String {
    let mut rows = vec![row(&["section", "contender", "optimizer", "settings", "epochs", "best_valid", "is_chosen"])];
    for section in &findings.sections {
        for contender in &section.contenders {
            for trial in &contender.trials {
                rows.push(row(&[
                    section.name.clone(),
                    contender.name.clone(),
                    contender.optimizer.clone(),
                    settings(&trial.settings),
                    trial.epochs.to_string(),
                    number(trial.best_valid),
                    trial.is_chosen.to_string(),
                ]));
            }
        }
    }
    rows.concat()
}

/// Gaps to the best of each section in percent, a column each, and the regret over all; only a header where there is
/// none.
pub fn regret(findings: &Findings) -> String {
    let all = regrets(findings);
    let sections = all.first().map_or(&[][..], |regret| &regret.sections);
    let mut head = vec!["measure", "contender"];
    head.extend(sections.iter().map(|section| section.name.as_str()));
    head.push("regret");
    let mut rows = vec![row(&head)];
    for regret in &all {
        let measure = match regret.measure {
            Measure::Valid => "valid",
            Measure::Test => "test",
        };
        for of in &regret.rows {
            let mut cells = vec![measure.to_string(), of.name.to_string()];
            cells.extend(of.gaps.iter().map(|gap| number(gap.percent())));
            cells.push(number(of.regret));
            rows.push(row(&cells));
        }
    }
    rows.concat()
}

fn settings(settings: &[Setting]) -> String {
    settings.iter().map(|s| format!("{} = {}", s.key, s.value)).collect::<Vec<_>>().join("; ")
}

fn number(value: Option<f64>) -> String {
    value.filter(|v| v.is_finite()).map_or(String::new(), |v| v.to_string())
}

fn row<T: AsRef<str>>(cells: &[T]) -> String {
    let quoted = |cell: &T| {
        let cell = cell.as_ref();
        if cell.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.into() }
    };
    let mut line = cells.iter().map(quoted).collect::<Vec<String>>().join(",");
    line.push_str("\r\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_with_commas_quotes_or_lines_are_quoted() {
        assert_eq!(row(&["a", "b,c", "d\"e", "f\ng"]), "a,\"b,c\",\"d\"\"e\",\"f\ng\"\r\n");
    }

    #[test]
    fn numbers_come_back_to_the_same_bits_and_no_number_is_empty() {
        let value = -660.123_456_789_012_3;
        assert_eq!(number(Some(value)).parse::<f64>(), Ok(value));
        assert_eq!((number(None), number(Some(f64::NAN))), (String::new(), String::new()));
    }
}
