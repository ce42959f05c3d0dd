use proptest::prelude::*;

use super::testing::{contender, run, section};
use super::*;
use crate::compare::findings::Trial;

fn points(values: &[Option<f64>]) -> Vec<Point> {
    run(1, values).points
}

fn curve() -> impl Strategy<Value = Vec<Option<f64>>> {
    let valid = prop_oneof![
        5 => (-900.0..-600.0f64).prop_map(Some),
        1 => Just(None),
        1 => Just(Some(f64::NAN)),
        1 => Just(Some(f64::NEG_INFINITY)),
    ];
    prop::collection::vec(valid, 0..30)
}

proptest! {
    #[test]
    fn a_threshold_is_reached_at_its_first_crossing(values in curve(), threshold in -950.0..-550.0f64) {
        let points = points(&values);
        let found = first_reaching(&points, threshold).map(|p| p.epoch as usize);
        let is_reached = |v: &Option<f64>| v.is_some_and(|v| v.is_finite() && v >= threshold);
        let expected = values.iter().skip(1).position(is_reached).map(|at| at + 1); // the start was not learned
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_higher_threshold_is_never_reached_sooner(values in curve(), low in -950.0..-550.0f64, more in 0.0..100.0f64) {
        let points = points(&values);
        let epoch = |threshold| first_reaching(&points, threshold).map_or(f64::INFINITY, |p| p.epoch);
        prop_assert!(epoch(low) <= epoch(low + more));
    }

    #[test]
    fn a_run_reaches_its_own_best_where_it_is_and_nothing_above(values in curve()) {
        let run = run(1, &values);
        let Some(best) = best(&run) else {
            prop_assert!(values.iter().skip(1).all(|v| !v.is_some_and(f64::is_finite)));
            return Ok(());
        };
        let level = value(best).unwrap();
        prop_assert_eq!(first_reaching(&run.points, level), Some(best));
        prop_assert_eq!(first_reaching(&run.points, level + 1e-6), None);
    }

    #[test]
    fn a_mean_lies_between_the_least_and_the_greatest(values in prop::collection::vec(-1e3..1e3f64, 1..20)) {
        let spread = Spread::of(&values).unwrap();
        prop_assert!(spread.min <= spread.mean + 1e-9 && spread.mean <= spread.max + 1e-9);
        prop_assert_eq!(spread.sd.is_some(), values.len() > 1);
        prop_assert!(spread.sd.unwrap_or(0.0) <= spread.max - spread.min + 1e-9);
    }

    #[test]
    fn any_findings_have_a_verdict_and_notes(one in curve(), other in curve(), fails in any::<bool>()) {
        let mut full = contender("full", "full_batch_em", &[]);
        let mut anemone = contender("anemone", "anemone", &[]);
        let mut ablated = contender("ablated", "anemone", &[]);
        ablated.ablates = Some("anemone".into());
        full.runs = vec![run(1, &one), run(2, &other)];
        anemone.runs = vec![run(2, &one), run(1, &other)];
        anemone.runs[0].failed = fails.then(|| "diverged".to_string());
        ablated.runs = vec![run(3, &one)];
        let section = section(vec![full, anemone, ablated]);
        let text = [verdict(&section), notes(&section)].concat().join(" ");
        prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{}", text);
    }
}

#[test]
fn of_nothing_there_is_nothing() {
    assert_eq!(Spread::of(&[]), None);
    assert_eq!(Spread::of(&[1.0, f64::NAN]), None);
    assert_eq!(first_reaching(&[], -1.0), None);
    assert_eq!(first_reaching(&points(&[Some(-1.0)]), f64::NAN), None);
    assert_eq!(best(&Run::default()), None);
    assert!(mean_curve(&Contender::default()).is_empty());
    assert!(verdict(&Section::default()).is_empty() && notes(&Section::default()).is_empty());
}

#[test]
fn a_standing_has_means_and_sample_deviations() {
    let c = contender("a", "adam", &[&[-9.0, -3.0, -4.0], &[-9.0, -6.0, -5.0]]);
    let standing = Standing::of(&c);
    assert_eq!(standing.best.unwrap().mean, -4.0);
    assert_eq!(standing.best.unwrap().sd, Some(2f64.sqrt()));
    assert_eq!(standing.best_epoch.unwrap().mean, 1.5);
    assert_eq!(standing.last.unwrap().mean, -4.5);
    assert_eq!(standing.test, None);
    assert_eq!(standing.rows_per_second.unwrap().mean, 5.0);
}

#[test]
fn a_run_that_failed_is_in_no_mean_and_reaches_nothing() {
    let mut c = contender("a", "adam", &[&[-9.0, -3.0], &[-9.0, -6.0]]);
    c.runs[0].failed = Some("diverged".into());
    assert_eq!(Standing::of(&c).best.map(|s| (s.count, s.mean)), Some((1, -6.0)));
    let reached = reach(&c, |_| Some(-4.0));
    assert_eq!((reached.runs, reached.count()), (2, 0));
    assert_eq!(mean_curve(&c).last().unwrap().valid.unwrap().mean, -6.0);
    let notes = notes(&section(vec![c]));
    assert_eq!(notes, ["a: the run of seed 1 failed and is in no mean: diverged."]);
}

#[test]
fn a_mean_curve_has_the_points_that_all_have_and_gaps_where_one_has_no_value() {
    let mut c = contender("a", "adam", &[&[-9.0, -4.0, -2.0], &[-9.0, -6.0]]);
    c.runs[1].points[1].valid = None;
    let curve = mean_curve(&c);
    assert_eq!(curve.len(), 2);
    assert_eq!(curve[0].valid, Some(Band { mean: -9.0, min: -9.0, max: -9.0 }));
    assert_eq!((curve[1].epoch, curve[1].valid), (1.0, None));
}

#[test]
fn a_run_that_ends_without_a_value_has_no_last_one() {
    assert_eq!(last(&run(1, &[Some(-2.0), None])), None);
    assert_eq!(best(&run(1, &[Some(-1.0), Some(-2.0), None])).unwrap().epoch, 1.0, "nobody learned the start");
    assert_eq!(best(&run(1, &[Some(-2.0), None])), None);
}

#[test]
fn full_batch_em_is_reached_seed_by_seed() {
    let full = contender("full", "full_batch_em", &[&[-9.0, -8.0, -7.0, -6.0, -5.0], &[-9.0, -8.0, -7.0, -6.0, -5.5]]);
    let ours = contender("anemone", "anemone", &[&[-9.0, -5.0, -4.0, -4.0, -4.0], &[-9.0, -7.0, -5.4, -4.0, -4.0]]);
    let told = verdict(&section(vec![full, ours]));
    assert_eq!(
        told[0],
        "anemone reaches full’s best held-out log-likelihood (−5.2500) in each of 2 seeds, after 1.5 epochs against 4 \
         (2.7 times fewer) and 15 seconds against 40 (2.7 times fewer)."
    );
    assert_eq!(
        told[1],
        "At the end anemone has the highest held-out log-likelihood, −4.0000: 1.2500 nats above full, the next (in \
         each of 2 seeds)."
    );
}

#[test]
fn who_does_not_get_there_is_said_not_to() {
    let full = contender("full", "full_batch_em", &[&[-9.0, -5.0], &[-9.0, -5.0]]);
    let ours = contender("anemone", "anemone", &[&[-9.0, -6.0], &[-9.0, -7.0]]);
    let told = verdict(&section(vec![full.clone(), ours]));
    let expected = "anemone does not reach full’s best held-out log-likelihood within 4 epochs: its best is −6.5000, \
                    1.5000 nats below −5.0000.";
    assert_eq!(told[0], expected);
    let half = contender("anemone", "anemone", &[&[-9.0, -4.0], &[-9.0, -7.0]]);
    let told = verdict(&section(vec![full, half]));
    assert_eq!(
        told[0],
        "anemone reaches full’s best held-out log-likelihood in 1 of 2 seeds only, there after 1 epoch."
    );
    let expected = "full has the highest held-out log-likelihood, −5.0000: 0.5000 nats above anemone, the next (in 1 \
                    of 2 seeds).";
    assert!(told[1].ends_with(expected), "{}", told[1]);
}

#[test]
fn an_ablation_is_told_with_its_sign() {
    let whole = contender("anemone", "anemone", &[&[-9.0, -4.0]]);
    let mut without = contender("plain", "anemone", &[&[-9.0, -3.0]]);
    without.ablates = Some("anemone".into());
    let told = verdict(&section(vec![whole, without]));
    let expected = "The best of anemone is 1.0000 nats below that of plain (one seed): −4.0000 against −3.0000; at the \
                    end anemone is 1.0000 below.";
    assert_eq!(told.last().unwrap(), expected);

    let whole = contender("anemone", "anemone", &[&[-9.0, -3.0, -4.0]]);
    let mut without = contender("plain", "anemone", &[&[-9.0, -5.0, -4.0]]);
    without.ablates = Some("anemone".into());
    let told = verdict(&section(vec![whole, without]));
    assert!(told.last().unwrap().ends_with("; at the end they are the same."), "{told:?}");
}

#[test]
fn who_has_fewer_seeds_is_held_against_others_on_those_alone() {
    let ours = contender("anemone", "anemone", &[&[-9.0, -11.0], &[-9.0, -5.0], &[-9.0, -5.0]]);
    let mut em = contender("em", "mini_batch_em", &[&[-9.0, -12.0], &[-9.0, -6.0], &[-9.0, -6.0]]);
    let told = |contenders: &[&Contender]| {
        let told = verdict(&section(contenders.iter().map(|c| (*c).clone()).collect()));
        told.into_iter().find(|sentence| sentence.contains("the end")).unwrap_or_default()
    };
    // One hard seed: lower than anemone's mean, and yet ahead of it.
    let mut adam = contender("Adam", "adam", &[&[-9.0, -10.0]]);
    (adam.seeds, em.seeds) = (vec![1], vec![1, 2, 3]);
    let expected = "At the end anemone has the highest held-out log-likelihood, −7.000: 1.000 nats above em, the next \
                    with as many seeds (in each of 3 seeds); on the 1 seed that both have Adam is 1.000 above it.";
    assert_eq!(told(&[&ours, &em, &adam]), expected);
    let expected = "At the end Adam has the highest held-out log-likelihood, −10.000: 1.000 nats above anemone, the \
                    next (one seed).";
    assert_eq!(told(&[&ours, &adam]), expected);
    adam.runs[0].points[1].valid = Some(-11.0);
    assert_eq!(told(&[&ours, &adam]), "At the end anemone and Adam are equally far, at −11.000.");
    adam.runs[0].seed = 7;
    assert_eq!(told(&[&ours, &adam]), "", "no seed that both have");
}

#[test]
fn a_mark_that_some_seeds_have_not_is_told_of_the_others() {
    let full = contender("full", "full_batch_em", &[&[-9.0, -8.0, -5.0]]);
    let ours = contender("anemone", "anemone", &[&[-9.0, -4.0], &[-9.0, -4.0]]);
    let told = verdict(&section(vec![full, ours]));
    assert!(
        told[0].contains("(−5.0000) in 1 of 2 seeds, those that both have, after 1 epoch against 2"),
        "{}",
        told[0]
    );
}

#[test]
fn what_is_still_to_come_is_said() {
    let a = contender("a", "anemone", &[&[-9.0, -4.0], &[-9.0, -4.0]]);
    let b = contender("b", "adam", &[&[-9.0, -5.0]]);
    let section = section(vec![a, b]);
    assert_eq!(notes(&section), ["The comparison is not over: b has 1 of 2 runs."]);
    assert!(verdict(&section)[0].starts_with("So far"), "{:?}", verdict(&section));
}

#[test]
fn the_verdict_says_whose_options_were_searched() {
    let of = |name: &str, trials: usize| Contender {
        name: name.into(),
        optimizer: "adam".into(),
        trials: vec![Trial::default(); trials],
        ..Contender::default()
    };
    let told = |contenders: Vec<Contender>| verdict(&section(contenders)).pop();
    let some = told(vec![of("a", 3), of("b", 0), of("c", 1)]).unwrap();
    assert!(some.contains("searched for a (3 trials), c (1 trial)") && some.ends_with("for b."), "{some}");
    assert!(told(vec![of("a", 2), of("b", 2)]).unwrap().contains("every contender"));
    assert_eq!(told(vec![of("a", 0), of("b", 0)]), None);
}
