//! Regret: how far a contender is from the best of every section, over all sections.
//!
//! A contender that is tuned for each section wins some of them. A user who must choose one without trying wants the
//! one that is nowhere far from the best: the lowest mean gap. Gaps are shares of the best log-likelihood of the
//! section, so that sections with many variables do not outweigh the others.
//!
//! The best of a section has gap 0, no gap is negative, and neither the order of sections nor that of contenders
//! matters, to the last bit. Only a contender with a number in every run of a section has a gap there, or is its best:
//! a run that failed never helps. Sections that are not over have no gaps yet.

use std::cmp::Ordering;

use super::{Spread, Standing, wanted};
use crate::compare::findings::{Contender, Findings, Section};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// The best held-out log-likelihood of a run.
    Valid,
    /// The test log-likelihood of a run.
    Test,
}

/// The regret of every contender.
#[derive(Clone, Debug)]
pub struct Regret<'a> {
    /// Of what.
    pub measure: Measure,
    /// The sections that are over, in the order of the findings.
    pub sections: Vec<&'a Section>,
    /// One for each name: the lowest regret first, then those that have none, by name.
    pub rows: Vec<RegretRow<'a>>,
}

/// The regret of one contender.
#[derive(Clone, Debug, PartialEq)]
pub struct RegretRow<'a> {
    /// Its name.
    pub name: &'a str,
    /// One for each section.
    pub gaps: Vec<Gap>,
    /// The mean of the gaps, in percent; `None` if one is missing.
    pub regret: Option<f64>,
}

/// How far a contender is from the best of a section.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gap {
    /// |best − x| / |best|, in percent.
    Percent(f64),
    /// It is not in this section.
    Absent,
    /// One of its runs failed.
    Failed,
    /// One of its runs has no value that is a number, or the best is zero, which has no shares.
    Unknown,
}

impl Gap {
    /// The number, if there is one.
    pub fn percent(self) -> Option<f64> {
        match self {
            Self::Percent(percent) => Some(percent),
            Self::Absent | Self::Failed | Self::Unknown => None,
        }
    }
}

/// The regret on held-out rows, and on test rows if every contender that has the one has the other. Nothing unless two
/// sections that are over share two contenders.
pub fn regrets(findings: &Findings) -> Vec<Regret<'_>> {
    let sections: Vec<&Section> = findings.sections.iter().filter(|section| is_over(section)).collect();
    let shared = |a: &Section, b: &Section| a.contenders.iter().filter(|c| find(b, &c.name).is_some()).count();
    let is_shared = |(at, a): (usize, &&Section)| sections[..at].iter().any(|b| shared(a, b) >= 2);
    if !sections.iter().enumerate().any(is_shared) {
        return Vec::new();
    }
    let has_test = |c: &Contender| mean(c, Measure::Valid).is_none() || mean(c, Measure::Test).is_some();
    let is_tested = sections.iter().flat_map(|section| &section.contenders).all(has_test);
    let measures = if is_tested { &[Measure::Valid, Measure::Test][..] } else { &[Measure::Valid] };
    measures.iter().map(|measure| regret(&sections, *measure)).collect()
}

fn regret<'a>(sections: &[&'a Section], measure: Measure) -> Regret<'a> {
    let mut names: Vec<&str> = sections.iter().flat_map(|s| &s.contenders).map(|c| c.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let best_of = |section: &&Section| section.contenders.iter().filter_map(|c| mean(c, measure)).reduce(f64::max);
    let bests: Vec<Option<f64>> = sections.iter().map(best_of).collect();
    let row = |name: &'a str| {
        let gap = |(section, best): (&&Section, &Option<f64>)| match find(section, name) {
            None => Gap::Absent,
            Some(contender) => gap(contender, *best, measure),
        };
        let gaps: Vec<Gap> = sections.iter().zip(&bests).map(gap).collect();
        RegretRow { name, regret: mean_gap(&gaps), gaps }
    };
    let mut rows: Vec<RegretRow<'a>> = names.into_iter().map(row).collect();
    rows.sort_by(|a, b| by_regret(a.regret, b.regret)); // stable: equals stay by name
    Regret { measure, sections: sections.to_vec(), rows }
}

fn by_regret(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

fn gap(contender: &Contender, best: Option<f64>, measure: Measure) -> Gap {
    if contender.runs.iter().any(|run| run.failed.is_some()) {
        return Gap::Failed;
    }
    let percent = best.zip(mean(contender, measure)).map(|(best, own)| percent_below(best, own));
    percent.filter(|percent| percent.is_finite()).map_or(Gap::Unknown, Gap::Percent)
}

/// Not simply a quotient: the best is 0 % below itself, even if it is zero.
fn percent_below(best: f64, own: f64) -> f64 {
    if own == best { 0.0 } else { (best - own).abs() / best.abs() * 100.0 }
}

/// The mean over all gaps, if all are there. Summed from the least, so that the order of sections leaves no trace.
fn mean_gap(gaps: &[Gap]) -> Option<f64> {
    let mut percents = gaps.iter().map(|gap| gap.percent()).collect::<Option<Vec<f64>>>()?;
    percents.sort_by(f64::total_cmp);
    Spread::of(&percents).map(|spread| spread.mean).filter(|mean| mean.is_finite())
}

/// The mean over the runs of a contender, if every single one has a value.
fn mean(contender: &Contender, measure: Measure) -> Option<f64> {
    let standing = Standing::of(contender);
    let spread = match measure {
        Measure::Valid => standing.best,
        Measure::Test => standing.test,
    };
    spread.filter(|spread| spread.count == contender.runs.len() && spread.mean.is_finite()).map(|spread| spread.mean)
}

/// The contender of this name.
fn find<'a>(section: &'a Section, name: &str) -> Option<&'a Contender> {
    section.contenders.iter().find(|contender| contender.name == name)
}

/// Returns true if everybody has all runs. A section of nobody has not begun.
fn is_over(section: &Section) -> bool {
    !section.contenders.is_empty() && section.contenders.iter().all(|c| c.runs.len() >= wanted(section, c).max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::compare::analysis::testing::{contender, run, section};

    fn findings(sections: Vec<Vec<Contender>>) -> Findings {
        let named =
            |(at, contenders): (usize, Vec<Contender>)| Section { name: format!("s{at}"), ..section(contenders) };
        Findings { sections: sections.into_iter().enumerate().map(named).collect(), ..Findings::default() }
    }

    /// A contender whose runs have these bests, one seed each.
    fn with(name: &str, bests: &[f64]) -> Contender {
        let curves: Vec<[f64; 2]> = bests.iter().map(|best| [-99.0, *best]).collect();
        let mut contender = contender(name, "anemone", &curves.iter().map(|curve| &curve[..]).collect::<Vec<_>>());
        contender.seeds = (1..=bests.len() as u64).collect();
        contender
    }

    fn percents(regret: &Regret<'_>) -> Vec<(String, Vec<Option<f64>>, Option<f64>)> {
        let shown = |row: &RegretRow<'_>| {
            (row.name.to_string(), row.gaps.iter().map(|gap| gap.percent()).collect(), row.regret)
        };
        regret.rows.iter().map(shown).collect()
    }

    #[test]
    fn regret_is_the_mean_share_that_is_missing_to_the_best_of_each_section() {
        let found = findings(vec![
            vec![with("a", &[-10.0, -12.0]), with("b", &[-9.0, -11.0]), with("c", &[-20.0, -20.0])],
            vec![with("c", &[-100.0]), with("a", &[-50.0]), with("b", &[-60.0])],
        ]);
        let all = regrets(&found);
        let [regret] = &all[..] else { panic!("no test rows: {all:?}") };
        let some = |gaps: [f64; 2]| gaps.map(Some).to_vec();
        let want = [
            ("a".to_string(), some([10.0, 0.0]), Some(5.0)),
            ("b".to_string(), some([0.0, 20.0]), Some(10.0)),
            ("c".to_string(), some([100.0, 100.0]), Some(100.0)),
        ];
        assert_eq!(percents(regret), want);
    }

    #[test]
    fn test_rows_have_a_table_if_everybody_has_them() {
        let mut found = findings(vec![
            vec![with("a", &[-10.0]), with("b", &[-11.0])],
            vec![with("a", &[-10.0]), with("b", &[-11.0])],
        ]);
        for (section, test) in found.sections.iter_mut().zip([-20.0, -40.0]) {
            section.contenders[0].runs[0].test = Some(test);
            section.contenders[1].runs[0].test = Some(test / 2.0);
        }
        let all = regrets(&found);
        assert_eq!(all.iter().map(|regret| regret.measure).collect::<Vec<_>>(), [Measure::Valid, Measure::Test]);
        assert_eq!(
            all[1].rows.iter().map(|row| (row.name, row.regret)).collect::<Vec<_>>(),
            [("b", Some(0.0)), ("a", Some(100.0))]
        );
        found.sections[1].contenders[1].runs[0].test = None;
        assert_eq!(regrets(&found).len(), 1);
        // A run that failed has no test rows to ask for.
        found.sections[1].contenders[1].runs[0].failed = Some("diverged".into());
        assert_eq!(regrets(&found).len(), 2);
    }

    #[test]
    fn who_failed_has_no_number_or_is_not_there_has_no_regret_and_is_nobodys_best() {
        let mut failed = with("failed", &[-1.0, -1.0]);
        failed.runs[1].failed = Some("diverged".into());
        let mut odd = with("odd", &[-2.0, -2.0]);
        odd.runs[0].points[1].valid = Some(f64::NAN);
        let found = findings(vec![
            vec![with("a", &[-10.0]), failed, odd, with("b", &[-11.0])],
            ["a", "failed", "odd", "b", "new"].iter().map(|name| with(name, &[-5.0])).collect(),
        ]);
        let all = regrets(&found);
        let row = |name: &str| all[0].rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!(row("a").regret, Some(0.0), "the best of those whose runs all count");
        for (name, gap) in [("failed", Gap::Failed), ("odd", Gap::Unknown), ("new", Gap::Absent)] {
            assert_eq!((row(name).gaps[0], row(name).gaps[1], row(name).regret), (gap, Gap::Percent(0.0), None));
        }
        let names: Vec<&str> = all[0].rows.iter().map(|row| row.name).collect();
        assert_eq!(names, ["a", "b", "failed", "new", "odd"], "whoever has no regret comes last");
    }

    #[test]
    fn two_sections_have_to_share_two_contenders_and_be_over() {
        let two = || vec![with("a", &[-10.0, -10.0]), with("b", &[-11.0, -11.0])];
        assert_eq!(regrets(&findings(vec![two(), two()])).len(), 1);
        assert!(regrets(&findings(vec![two()])).is_empty());
        assert!(regrets(&findings(vec![two(), vec![with("a", &[-1.0]), with("c", &[-1.0])]])).is_empty());
        assert!(regrets(&findings(vec![two(), Vec::new()])).is_empty());
        let mut found = findings(vec![two(), two(), two(), Vec::new(), vec![contender("a", "adam", &[])]]);
        found.sections[1].contenders[1].runs.pop();
        let names: Vec<&str> = regrets(&found)[0].sections.iter().map(|section| section.name.as_str()).collect();
        assert_eq!(names, ["s0", "s2"]);
        found.sections[2].contenders[0].runs.clear();
        assert!(regrets(&found).is_empty());
    }

    #[test]
    fn a_best_of_zero_has_no_shares_but_is_the_best() {
        let found =
            findings(vec![vec![with("a", &[0.0]), with("b", &[-1.0])], vec![with("a", &[3.0]), with("b", &[2.0])]]);
        let all = regrets(&found);
        let row = |name: &str| all[0].rows.iter().find(|row| row.name == name).unwrap();
        assert_eq!((row("a").regret, row("b").gaps[0], row("b").regret), (Some(0.0), Gap::Unknown, None));
    }

    fn number() -> impl Strategy<Value = f64> {
        let odd = prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, 1e308, -1e308, 1e-308]);
        prop_oneof![8 => -900.0..-1.0f64, 1 => odd]
    }

    /// Three or four sections of some of five contenders, with two seeds each.
    fn any_findings() -> impl Strategy<Value = Vec<Vec<Contender>>> {
        let one = (any::<bool>(), prop::collection::vec(number(), 2), prop::bool::weighted(0.1));
        let contenders = prop::collection::vec(one, 5).prop_map(|all| {
            let made = all.into_iter().zip(["a", "b", "c", "d", "e"]).map(|((is_there, bests, fails), name)| {
                let mut contender = with(name, &bests);
                contender.runs[1] = run(2, &[None, Some(bests[1])]);
                contender.runs[1].failed = fails.then(|| "diverged".into());
                (is_there || name < "c").then_some(contender)
            });
            made.flatten().collect::<Vec<_>>()
        });
        prop::collection::vec(contenders, 3..=4)
    }

    proptest! {
        #[test]
        fn the_best_has_no_gap_nobody_a_negative_one_and_failures_none(sections in any_findings()) {
            let found = findings(sections);
            for regret in regrets(&found) {
                for (at, section) in regret.sections.iter().enumerate() {
                    let gaps: Vec<f64> = regret.rows.iter().filter_map(|row| row.gaps[at].percent()).collect();
                    prop_assert!(gaps.iter().all(|gap| gap.is_finite() && *gap >= 0.0));
                    prop_assert!(gaps.is_empty() || gaps.contains(&0.0));
                    for row in &regret.rows {
                        let runs = find(section, row.name).map_or(&[][..], |contender| &contender.runs);
                        let is_sound = runs.iter().all(|run| {
                            run.failed.is_none() && run.points[1].valid.is_some_and(f64::is_finite)
                        });
                        prop_assert!(row.gaps[at].percent().is_none() || is_sound && !runs.is_empty());
                        prop_assert!(row.regret.is_none() || row.gaps[at].percent().is_some());
                    }
                }
                let mut means = regret.rows.iter().filter_map(|row| row.regret);
                prop_assert!(means.all(|mean| mean.is_finite() && mean >= 0.0));
                let known = regret.rows.iter().map_while(|row| row.regret).collect::<Vec<_>>();
                prop_assert!(known.is_sorted() && regret.rows[known.len()..].iter().all(|row| row.regret.is_none()));
            }
        }

        #[test]
        fn the_order_of_sections_and_contenders_changes_no_bit(sections in any_findings(), turn in 0usize..4) {
            let found = findings(sections);
            let mut turned = found.clone();
            let by = turn.min(turned.sections.len());
            turned.sections.rotate_left(by);
            turned.sections.iter_mut().for_each(|section| section.contenders.reverse());
            // All of it as text, but for the order of columns: `{:?}` tells apart what differs in one bit.
            let bits = |findings: &Findings| {
                let mut lines: Vec<String> = Vec::new();
                for regret in regrets(findings) {
                    lines.extend(regret.rows.iter().map(|row| format!("{} {:?}", row.name, row.regret)));
                    let column = |at: usize| regret.rows.iter().map(move |row| row.gaps[at]).collect::<Vec<_>>();
                    let columns = regret.sections.iter().enumerate();
                    let columns = columns.map(|(at, s)| format!("{} {:?}", s.name, column(at)));
                    let mut columns: Vec<String> = columns.collect();
                    columns.sort();
                    lines.extend(columns);
                }
                lines
            };
            prop_assert_eq!(bits(&found), bits(&turned));
        }
    }
}
