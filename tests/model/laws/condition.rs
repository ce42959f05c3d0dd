//! Conditional samples: what is drawn follows p(missing | kept), and what is kept stays.

use super::*;

/// The circuit with parameters so far apart that what is kept says much about what is missing: with mild ones, draws
/// that ignored it would hardly be told from right ones.
pub fn outspoken(case: &Case, seed: u64) -> Case {
    let mut params = Params::random(&case.circuit, seed, 8.0).unwrap();
    let mut rng = Rng::stream(seed, 55);
    for id in case.circuit.param_ids() {
        let ParamKind::Input(distribution) = &case.circuit.params()[id.index()].kind else { continue };
        for unit in (0..case.circuit.layout().block(id).units()).filter(|_| !distribution.is_table()) {
            let row = match distribution.num_cats() {
                None => [3.0 * rng.normal(), 0.2 + 0.3 * rng.uniform()],
                Some(_) => [2.0 * rng.uniform() - 1.0, 0.05 + 0.1 * rng.uniform()],
            };
            params.set_row(id, unit, &row.map(|v| v as f32)).unwrap();
        }
    }
    Case { name: case.name.clone(), circuit: case.circuit.clone(), params }
}

/// Rows that the circuit itself draws, so that they are possible, with about half of the cells missing; in the first
/// row everything is.
pub fn asked(case: &Case, rows: usize, seed: u64) -> Batch {
    let vars = case.circuit.num_vars();
    let mut rng = Rng::stream(seed, 77);
    let mask: Vec<bool> = (0..rows * vars).map(|cell| cell < vars || rng.below(2) == 0).collect();
    let drawn = sample(&case.circuit, &case.params, rows, &mut rng).unwrap();
    drawn.with_missing(|row, var| mask[row * vars + var])
}

pub fn cells(batch: &Batch, row: usize) -> Vec<f64> {
    (0..batch.num_vars()).map(|var| batch.column(var).real(row)).collect()
}

/// Pearson's statistic of the completions of every row against the exact conditional, by listing all worlds.
pub fn completions_are_as_frequent_as_the_conditional_says(case: &Case, seed: u64) {
    const DRAWN: usize = 3000;
    let case = &outspoken(case, seed);
    let Some(worlds) = case.all_worlds() else { return };
    let log_likelihoods = cpu(&case.circuit, &case.params).log_likelihoods(&worlds).unwrap();
    let asked = asked(case, 3, seed);
    let completions = sample_given(&case.circuit, &case.params, &asked, DRAWN, &mut Rng::new(seed)).unwrap();
    let cats = case.cardinalities().unwrap();
    let world_of = |row: usize| {
        // The order in which `all_worlds` lists them: the first variable is fastest.
        cats.iter().enumerate().rev().fold(0, |world, (var, &cats)| {
            world * cats as usize + completions.column(var).category(row).unwrap() as usize
        })
    };
    for row in 0..asked.num_rows() {
        let agrees = |world: usize| {
            (0..cats.len())
                .all(|var| asked.is_missing(row, var) || asked.column(var).real(row) == worlds.column(var).real(world))
        };
        let mass = |world: usize| if agrees(world) { log_likelihoods[world].exp() } else { 0.0 };
        let evidence: f64 = (0..worlds.num_rows()).map(mass).sum();
        let mut counts = vec![0.0; worlds.num_rows()];
        (row * DRAWN..(row + 1) * DRAWN).for_each(|drawn| counts[world_of(drawn)] += 1.0);
        // Cells of fewer than five are counted together, as the statistic needs it.
        let (mut statistic, mut freedom, mut rare) = (0.0, -1.0, (0.0, 0.0));
        let mut add = |count: f64, expected: f64| {
            statistic += (count - expected).powi(2) / expected;
            freedom += 1.0;
        };
        for (world, &count) in counts.iter().enumerate() {
            let expected = DRAWN as f64 * mass(world) / evidence;
            assert!(count == 0.0 || expected > 0.0, "{}: row {row}: world {world} cannot be", case.name);
            match expected < 5.0 {
                true => rare = (rare.0 + count, rare.1 + expected),
                false => add(count, expected),
            }
        }
        if rare.1 >= 1.0 {
            add(rare.0, rare.1);
        }
        // Mean d and variance 2d: six standard deviations, and a little for few degrees of freedom, whose tail is
        // longer.
        let most = freedom + 6.0 * (2.0f64 * freedom).sqrt() + 12.0;
        assert!(statistic <= most, "{}: row {row}: {statistic} with {freedom} degrees of freedom", case.name);
    }
}

#[test]
fn completions_follow_the_conditional_on_every_shape() {
    let cases = cases::all();
    assert!(cases.iter().filter(|case| case.all_worlds().is_some()).count() > 10);
    cases.iter().for_each(|case| completions_are_as_frequent_as_the_conditional_says(case, 3));
}

/// Rosenblatt's transform: each missing variable in turn becomes P(X ≤ x | kept, those before it), and all of these are
/// uniform. Works for numbers and categories alike, and needs nothing but log-likelihoods.
pub fn completions_are_uniform_under_their_own_conditionals(case: &Case, seed: u64) {
    const DRAWN: usize = 200;
    /// Beyond the reach of every Gaussian of these circuits, in steps well below the smallest σ.
    const GRID: (f64, f64, usize) = (-15.0, 15.0, 601);
    let case = &outspoken(case, seed);
    let mut backend = cpu(&case.circuit, &case.params);
    let vars = case.circuit.num_vars();
    let asked = asked(case, 4, seed);
    let completions = sample_given(&case.circuit, &case.params, &asked, DRAWN, &mut Rng::new(seed)).unwrap();
    let mut rng = Rng::stream(seed, 3);
    for row in 0..asked.num_rows() {
        for var in (0..vars).filter(|&var| asked.is_missing(row, var)) {
            let cats = case.num_cats(var);
            let points: Vec<f64> = match cats {
                Some(cats) => (0..cats).map(f64::from).collect(),
                None => (0..GRID.2).map(|i| GRID.0 + (GRID.1 - GRID.0) * i as f64 / (GRID.2 - 1) as f64).collect(),
            };
            let mut places: Vec<f64> = (0..DRAWN)
                .map(|drawn| {
                    let drawn = row * DRAWN + drawn;
                    let grid = on_grid(&completions, drawn, var, &points)
                        .with_missing(|_, other| other > var && asked.is_missing(row, other));
                    let densities: Vec<f64> =
                        backend.log_likelihoods(&grid).unwrap().iter().map(|ll| ll.exp()).collect();
                    let x = completions.column(var).real(drawn);
                    let total: f64 = densities.iter().sum();
                    let below: f64 = points.iter().zip(&densities).filter(|(p, _)| **p < x).map(|(_, d)| d).sum();
                    // Somewhere inside the category, or inside the step of the grid.
                    let at = points.partition_point(|p| *p < x).min(points.len() - 1);
                    match cats {
                        Some(_) => (below + rng.uniform() * densities[at]) / total,
                        None => (below - rng.uniform() * densities[at.saturating_sub(1)]) / total,
                    }
                })
                .collect();
            places.sort_by(f64::total_cmp);
            let n = DRAWN as f64;
            let gap = |(i, u): (usize, &f64)| (u - i as f64 / n).abs().max((u - (i + 1) as f64 / n).abs());
            let distance = places.iter().enumerate().map(gap).fold(0.0, f64::max);
            // Kolmogorov: above 2.5/√n once in 130,000.
            assert!(distance < 2.5 / n.sqrt(), "{}: row {row}: variable {var}: {distance}", case.name);
        }
    }
}

/// Copies of a row that differ in one variable.
fn on_grid(batch: &Batch, row: usize, var: usize, points: &[f64]) -> Batch {
    let columns = (0..batch.num_vars()).map(|v| {
        let values = points.iter().map(|&point| if v == var { point } else { batch.column(v).real(row) });
        match batch.column(v) {
            Values::F32(_) => Values::F32(values.map(|x| x as f32).collect()),
            _ => Values::U32(values.map(|x| x as u32).collect()),
        }
    });
    Batch::from_columns(columns.collect()).unwrap()
}

#[test]
fn completions_with_densities_follow_the_conditional() {
    let with_densities: Vec<Case> = cases::all().into_iter().filter(|case| !case.is_discrete()).collect();
    assert!(!with_densities.is_empty());
    for case in with_densities {
        completions_are_uniform_under_their_own_conditionals(&case, 5);
    }
}

#[test]
fn kept_values_stay_and_a_whole_row_is_its_own_completion() {
    for case in cases::all() {
        let asked = asked(&case, 5, 8);
        let completions = sample_given(&case.circuit, &case.params, &asked, 3, &mut Rng::new(2)).unwrap();
        for drawn in 0..15 {
            for var in (0..asked.num_vars()).filter(|&var| !asked.is_missing(drawn / 3, var)) {
                let (kept, found) = (asked.column(var).real(drawn / 3), completions.column(var).real(drawn));
                assert_eq!(found, kept, "{}: completion {drawn}: variable {var}", case.name);
            }
        }
        let whole = case.batch(4, 6);
        let same = sample_given(&case.circuit, &case.params, &whole, 1, &mut Rng::new(2)).unwrap();
        assert!((0..4).all(|row| cells(&same, row) == cells(&whole, row)), "{}", case.name);
        assert!((0..same.num_vars()).all(|var| same.missing(var).is_none()));
    }
}

#[test]
fn completions_depend_on_the_seed_and_not_on_threads_or_their_number() {
    for case in cases::all() {
        let asked = asked(&case, 7, 1);
        let on = |threads: usize, samples: usize, seed: u64| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let draw = || sample_given(&case.circuit, &case.params, &asked, samples, &mut Rng::new(seed)).unwrap();
            pool.install(draw)
        };
        let one = on(1, 4, 9);
        assert_eq!(one, on(2, 4, 9), "{}", case.name);
        let fewer = on(2, 3, 9);
        for (row, k) in (0..7).flat_map(|row| (0..3).map(move |k| (row, k))) {
            assert_eq!(cells(&fewer, 3 * row + k), cells(&one, 4 * row + k), "{}", case.name);
        }
        assert_eq!(sample_given(&case.circuit, &case.params, &asked, 0, &mut Rng::new(1)).unwrap().num_rows(), 0);
    }
    let case = cases::all().into_iter().find(|case| case.name == "tied hmm").unwrap();
    let draw = |seed| sample(&case.circuit, &case.params, 50, &mut Rng::new(seed)).unwrap();
    assert_ne!(draw(1), draw(2));
}

/// Two states that never change, each with symbols of its own.
fn split_chain() -> (Arc<Circuit>, Params) {
    let circuit = Arc::new(hmm(3, 2, Categorical::new(4).unwrap()).unwrap());
    let params = Params::from_rows(&circuit, |param, unit| match &circuit.params()[param.index()].kind {
        ParamKind::Input(_) => [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.25, 0.75]][unit].to_vec(),
        ParamKind::Sum { .. } if circuit.params()[param.index()].units == 1 => vec![0.5, 0.5],
        ParamKind::Sum { .. } => [[1.0, 0.0], [0.0, 1.0]][unit].to_vec(),
    });
    (circuit, params.unwrap())
}

#[test]
fn evidence_that_cannot_be_is_an_error_that_names_its_row() {
    let (circuit, params) = split_chain();
    let rows = Batch::from_rows(&[0u8, 9, 1, 2, 9, 3, 0, 9, 2, 3, 9, 0], 3).unwrap().with_missing(|_, var| var == 1);
    let error = sample_given(&circuit, &params, &rows, 2, &mut Rng::new(1)).unwrap_err().to_string();
    assert!(error.starts_with("row 2: ") && error.contains("probability zero"), "{error}");
    let possible = sample_given(&circuit, &params, &rows.slice(0..2), 50, &mut Rng::new(1)).unwrap();
    for drawn in 0..100 {
        let middle = possible.column(1).category(drawn).unwrap();
        assert_eq!(middle < 2, drawn < 50, "the state that was seen goes on");
    }
    let wide = sample_given(&circuit, &params, &Batch::from_rows(&[0u8], 1).unwrap(), 1, &mut Rng::new(1));
    assert!(wide.unwrap_err().to_string().contains("1 variables, the circuit 3"));
    let outside = Batch::from_rows(&[0u8, 1, 4], 3).unwrap();
    let error = sample_given(&circuit, &params, &outside, 1, &mut Rng::new(1)).unwrap_err().to_string();
    assert!(error.contains("row 0: variable 2"), "{error}");
}

/// Far out of the range of a float: every symbol has probability 1e-30, and the state is known all the same.
#[test]
fn evidence_of_any_smallness_decides() {
    let (length, tiny) = (400, 1e-30f32);
    let circuit = Arc::new(hmm(length, 2, Categorical::new(3).unwrap()).unwrap());
    let params = Params::from_rows(&circuit, |param, unit| match &circuit.params()[param.index()].kind {
        ParamKind::Input(_) => [[tiny, 1.0, 0.0], [tiny / 3.0, 0.0, 1.0]][unit].to_vec(),
        ParamKind::Sum { .. } if circuit.params()[param.index()].units == 1 => vec![0.5, 0.5],
        ParamKind::Sum { .. } => [[1.0, 0.0], [0.0, 1.0]][unit].to_vec(),
    });
    let row = Batch::from_rows(&vec![0u8; length], length).unwrap().with_missing(|_, var| var == 17);
    let drawn = sample_given(&circuit, &params.unwrap(), &row, 200, &mut Rng::new(1)).unwrap();
    // The first state is 3⁴⁰⁰ times as likely.
    assert!((0..200).all(|k| drawn.column(17).category(k) == Some(1)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn completions_of_random_circuits_follow_the_conditional(seed in 0u64..1_000_000) {
        completions_are_as_frequent_as_the_conditional_says(&random::categorical(seed), seed);
    }

    #[test]
    fn completions_of_structures_follow_the_conditional(drawn in drawing::drawn(6, 5, 4)) {
        completions_are_as_frequent_as_the_conditional_says(&drawn.case(), drawn.seed);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn completions_of_random_circuits_with_densities_follow_the_conditional(seed in 0u64..1_000_000) {
        completions_are_uniform_under_their_own_conditionals(&random::with_densities(seed), seed);
    }
}
