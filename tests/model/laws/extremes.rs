//! Where single precision, or linear space, would not be enough.

use super::division::windowed_optimizers;
use super::rows::rows_sum_to_one;
use super::*;

/// A row of every unit's flows and likelihoods must be the specification's, in log space if need be.
pub fn survives(what: &str, circuit: &Arc<Circuit>, params: &Params, batch: &Batch) -> usize {
    let spec = Spec::new(circuit, params);
    let mut backend = cpu(circuit, params);
    let want = spec.log_likelihoods(batch);
    assert!(want.iter().all(|ll| ll.is_finite()), "{what}: the specification itself has {want:?}");
    close(what, &backend.log_likelihoods(batch).unwrap(), &want, LOG_LIKELIHOOD);
    let counts = (0..batch.num_rows()).map(|row| [0.5, 3.0][row % 2]).collect();
    let weighted = batch.clone().with_weights(counts).unwrap();
    let mut rescued = 0;
    for batch in [batch, &weighted] {
        let (flows, report) = mean_flows(&mut backend, batch);
        close_table(&format!("{what}: flows"), &flows, &spec.mean_flows(batch), PROBABILITY);
        assert_eq!(report.impossible_rows, 0, "{what}");
        rescued += report.rescued_rows;
    }
    for spec in [anemone(0.4, 0.9, Smoothing::default()), full_batch_em()] {
        rows_sum_to_one(what, circuit, &learned(circuit, params, &spec, &[batch]));
    }
    rescued
}

/// An HMM of two states that never change; each emits its own symbol, and the other's with probability `rare`.
pub fn stubborn_hmm(length: usize, rare: f32, switch: f32) -> (Arc<Circuit>, Params) {
    let circuit = cases::tied_hmm(length, 2, 2);
    let params = Params::from_rows(&circuit, |param, unit| match (param.index(), unit) {
        (0, 0) => vec![1.0 - rare, rare],
        (0, _) => vec![rare, 1.0 - rare],
        (1, 0) => vec![1.0 - switch, switch],
        (1, _) => vec![switch, 1.0 - switch],
        _ => vec![0.5, 0.5],
    });
    let params = params.unwrap();
    (Arc::new(circuit), params)
}

#[test]
fn paths_hundreds_of_nats_apart_are_not_lost() {
    let mut rescued = 0;
    // Read from the end, three zeros leave state 1 behind by a factor 1e-90 or more; then the ones make it win.
    let rows: Vec<u8> = [[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1, 1], [0; 8]].concat();
    let batch = Batch::from_rows(&rows, 8).unwrap();
    for rare in [1e-3, 1e-10, 1e-20, 1e-30, 1e-37, 1e-38, 1e-40] {
        for switch in [0.0, 1e-38, 1e-30, 1e-5] {
            let (circuit, params) = stubborn_hmm(8, rare, switch);
            rescued += survives(&format!("rare {rare:e}, switch {switch:e}"), &circuit, &params, &batch);
        }
    }
    assert!(rescued > 0, "no row was rescued: the rescue path was not tested");
}

#[test]
fn a_product_of_forty_unlikely_factors_is_not_lost() {
    let circuit = Arc::new(cases::wide_product(40, 3));
    let mut rng = Rng::new(3);
    let mut rescued = 0;
    for rare in [1e-2f32, 1e-10, 1e-30, 1e-38] {
        // Unit u of every variable prefers value u; rows follow no unit, or each unit for a part.
        let params = Params::from_rows(&circuit, |param, unit| match param.index() == 40 {
            true => vec![0.2, 0.3, 0.5],
            false => (0..3).map(|v| if v == unit { 1.0 - 2.0 * rare } else { rare * (1 + v) as f32 }).collect(),
        });
        let params = params.unwrap();
        let mut rows: Vec<u8> = (0..40).map(|v| if v < 20 { 0 } else { 1 }).collect();
        rows.extend((0..40).map(|v| (v % 3) as u8));
        rows.extend((0..40).map(|_| rng.below(3) as u8));
        rows.extend([2; 40]);
        let batch = Batch::from_rows(&rows, 40).unwrap();
        rescued += survives(&format!("rare {rare:e}"), &circuit, &params, &batch);
    }
    assert!(rescued > 0, "no row was rescued: the rescue path was not tested");
}

/// A mixture of two products of Gaussians, with means 0 and 1 and one σ for all.
pub fn two_gaussians(num_vars: usize, sigma: f32) -> (Arc<Circuit>, Params) {
    let mut c = CircuitBuilder::new(num_vars);
    let x: Vec<NodeId> = (0..num_vars)
        .map(|var| {
            let param = c.input_param(2, Gaussian::new(0.001, 0.0).unwrap()).unwrap();
            c.input(var, param).unwrap()
        })
        .collect();
    let all = c.product(&x).unwrap();
    cases::sum(&mut c, 1, &[all]);
    let circuit = Arc::new(c.finish().unwrap());
    let params = Params::from_rows(&circuit, |param, unit| match param.index() == num_vars {
        true => vec![0.5, 0.5],
        false => vec![unit as f32, sigma],
    });
    let params = params.unwrap();
    (circuit, params)
}

#[test]
fn gaussians_far_from_the_data_are_not_lost() {
    let (circuit, params) = two_gaussians(3, 0.01);
    let batch = Batch::from_columns(vec![
        Values::F32(vec![0.0, 5.0, -3.0]),
        Values::F32(vec![1.0, 5.0, 3.0]),
        Values::F32(vec![0.45, 4.0, 0.5]),
    ]);
    assert!(survives("far gaussians", &circuit, &params, &batch.unwrap()) > 0, "no row was rescued");
}

/// Values so many standard deviations out, one of them or all, have the log-likelihood of the formula, and the
/// nearer of the two units gets the flow.
#[test]
fn gaussians_a_trillion_standard_deviations_from_the_data_are_not_lost() {
    for num_vars in [2, 5] {
        for z in [1e3f32, 1e6, 1e9, 1e12] {
            for sigma in [0.01f32, 1.0] {
                let (circuit, params) = two_gaussians(num_vars, sigma);
                let far = z * sigma;
                let columns = (0..num_vars).map(|var| match var {
                    0 => Values::F32(vec![far, far, 0.0, -far]),
                    _ => Values::F32(vec![far, 0.25, -far, -far]),
                });
                let batch = Batch::from_columns(columns.collect()).unwrap();
                let what = format!("{num_vars} variables, z {z:e}, sigma {sigma}");
                let mut backend = cpu(&circuit, &params);
                let want = Spec::new(&circuit, &params).log_likelihoods(&batch);
                let all_out = -0.5 * (f64::from(z) * f64::from(z)) * num_vars as f64;
                assert!(want[3].is_finite() && want[3] < 0.9 * all_out, "{what}: the specification has {want:?}");
                close(&what, &backend.log_likelihoods(&batch).unwrap(), &want, LOG_LIKELIHOOD);
                let (flows, report) = mean_flows(&mut backend, &batch);
                assert_eq!(report.impossible_rows, 0, "{what}");
                assert!(z < 1e9 || report.rescued_rows == 4, "{what}: only {} rescued", report.rescued_rows);
                close_number(&what, report.log_likelihood, want.iter().sum(), LOG_LIKELIHOOD);
                if z <= 1e6 {
                    // Further out double precision rounds away the weights, in the specification too.
                    let want = Spec::new(&circuit, &params).mean_flows(&batch);
                    close(&format!("{what}: nearer"), &flows[num_vars][0], &want[num_vars][0], PROBABILITY);
                }
                for spec in [anemone(0.4, 0.9, Smoothing::default()), full_batch_em()] {
                    rows_sum_to_one(&what, &circuit, &learned(&circuit, &params, &spec, &[&batch]));
                }
            }
        }
    }
}

/// Where a row is further out than this, double precision no longer tells apart what differs by some nats.
pub const TELLING: f64 = -1e8;

/// Random circuits with densities anywhere, and values up to 1e15: every likelihood is right, and every flow that
/// double precision can tell.
#[test]
fn random_densities_far_from_the_data_are_the_specification() {
    let (mut rescued, mut furthest, mut told) = (0, 0.0f64, 0);
    for seed in 0..150 {
        let case = random::with_densities(seed).with_densities_anywhere(seed);
        let (spec, mut backend) = (Spec::new(&case.circuit, &case.params), cpu(&case.circuit, &case.params));
        for batch in [case.far_batch(16, seed), case.batch_with_missing(16, seed)] {
            let want = spec.log_likelihoods(&batch);
            assert!(want.iter().all(|ll| ll.is_finite()), "{}: the specification itself has {want:?}", case.name);
            furthest = want.iter().copied().fold(furthest, f64::min);
            let tolerance = Tolerance { absolute: 2e-6, ..LOG_LIKELIHOOD };
            close(&case.name, &backend.log_likelihoods(&batch).unwrap(), &want, tolerance);
            let (_, report) = mean_flows(&mut backend, &batch);
            assert_eq!(report.impossible_rows, 0, "{}", case.name);
            close_number(&case.name, report.log_likelihood, want.iter().sum(), tolerance);
            rescued += report.rescued_rows;
            for row in (0..16).filter(|&row| want[row] > TELLING) {
                flows_of_a_row_agree(&case, &mut backend, &batch.slice(row..row + 1));
                told += 1;
            }
            for spec in [anemone(0.4, 0.9, Smoothing::default()), full_batch_em()] {
                let after = learned(&case.circuit, &case.params, &spec, &[&batch, &batch]);
                rows_sum_to_one(&format!("{}: {spec:?}", case.name), &case.circuit, &after);
            }
        }
    }
    assert!(rescued > 100 && told > 100 && furthest < -1e24, "{rescued} rescued, {told} told, furthest {furthest:e}");
}

/// A draw from the root passes one input of every variable: so does the flow of a row, all of it.
#[test]
fn the_flow_of_a_row_arrives_whole_however_unlikely_the_row_is() {
    for seed in 0..150 {
        let case = random::with_densities(seed).with_densities_anywhere(seed);
        let mut backend = cpu(&case.circuit, &case.params);
        for batch in [case.batch(16, seed), case.far_batch(16, seed)] {
            let (flows, _) = mean_flows(&mut backend, &batch);
            let masses = Spec::new(&case.circuit, &case.params).row_masses(&flows);
            let is_input = |b: usize| matches!(&case.circuit.params()[b].kind, ParamKind::Input(_));
            let arrived = (0..masses.len()).filter(|&b| is_input(b)).map(|b| masses[b].iter().sum::<f64>()).sum();
            close_number(&case.name, arrived, case.circuit.num_vars() as f64, PROBABILITY);
        }
    }
}

/// Flows and, scaled by the square of the row's largest number, the moments of densities.
pub fn flows_of_a_row_agree(case: &Case, backend: &mut CpuBackend, row: &Batch) {
    let ((got, _), want) = (mean_flows(backend, row), Spec::new(&case.circuit, &case.params).mean_flows(row));
    let largest = case.params.values().iter().map(|v| f64::from(v.abs()));
    let largest = (0..row.num_vars()).map(|var| row.column(var).real(0).abs()).chain(largest).fold(1.0, f64::max);
    for (b, block) in case.circuit.params().iter().enumerate() {
        let is_density = matches!(&block.kind, ParamKind::Input(distribution) if !distribution.is_table());
        let what = format!("{}: block {b}", case.name);
        // Σf·x, Σf·x², Σf: each at its own scale.
        let scaled = |rows: &[Vec<f64>]| -> Vec<Vec<f64>> {
            let at_scale =
                |(k, v): (usize, &f64)| if is_density { v / [largest, largest * largest, 1.0][k] } else { *v };
            rows.iter().map(|row| row.iter().enumerate().map(at_scale).collect()).collect()
        };
        close_rows(&what, &scaled(&got[b]), &scaled(&want[b]), PROBABILITY);
    }
}

/// A tower of sums in which each floor reaches the next with probability 1e-20: the lowest has TD 1e-40 and less.
#[test]
fn a_row_that_is_hardly_ever_reached_stays_a_distribution() {
    for floors in 1..5 {
        let mut c = CircuitBuilder::new(1);
        let mut below = cases::categorical(&mut c, 0, 2, 3);
        for _ in 0..floors {
            let beside = cases::categorical(&mut c, 0, 1, 3);
            let mixed = cases::sum(&mut c, 1, &[below]);
            below = cases::sum(&mut c, 1, &[mixed, beside]);
        }
        let circuit = Arc::new(c.finish().unwrap());
        let mut table = param_table(&circuit, &Params::random(&circuit, 1, 2.0).unwrap());
        for floor in 0..floors {
            table[3 + 3 * floor][0] = vec![1e-20, 1.0];
        }
        let params = params_from(&circuit, &table);
        let batch = Batch::from_rows(&[0u8, 1, 2, 1], 1).unwrap();
        let case = Case { name: format!("{floors} floors"), circuit, params };
        for spec in optimizers_for(&case) {
            let after = learned(&case.circuit, &case.params, &spec, &[&batch, &batch]);
            rows_sum_to_one(&format!("{}: {spec:?}", case.name), &case.circuit, &after);
        }
    }
}

/// A tree that gives category 2 of variable 0 no probability at all.
pub fn with_an_impossible_category() -> Case {
    let mut c = CircuitBuilder::new(2);
    let x = [cases::categorical(&mut c, 0, 3, 3), cases::categorical(&mut c, 1, 3, 2)];
    let both = c.product(&x).unwrap();
    cases::sum(&mut c, 1, &[both]);
    let mut case = Case::new("impossible", c.finish().unwrap());
    let mut table = param_table(&case.circuit, &case.params);
    table[0].iter_mut().for_each(|row| *row = vec![0.3, 0.7, 0.0]);
    case.params = params_from(&case.circuit, &table);
    case
}

#[test]
fn a_row_of_probability_zero_is_counted_and_changes_nothing_else() {
    let case = with_an_impossible_category();
    let possible = Batch::from_rows(&[0u8, 1, 1, 0, 0, 0], 2).unwrap();
    let both = Batch::from_rows(&[2u8, 1, 0, 1, 1, 0, 2, 0, 0, 0], 2).unwrap();
    let mut backend = cpu(&case.circuit, &case.params);
    let lls = backend.log_likelihoods(&both).unwrap();
    let apart = backend.log_likelihoods(&possible).unwrap();
    assert_eq!(lls, [f64::NEG_INFINITY, apart[0], apart[1], f64::NEG_INFINITY, apart[2]]);
    let ((flows, report), (alone, _)) = (mean_flows(&mut backend, &both), mean_flows(&mut backend, &possible));
    close_table("flows", &scaled(&flows, 5.0), &scaled(&alone, 3.0), Tolerance { absolute: 1e-6, relative: 1e-6 });
    assert_eq!((report.num_rows, report.impossible_rows), (5, 2));
    assert_eq!((report.weight, report.possible_weight), (5.0, 3.0));
    close_number("reported", report.log_likelihood, apart.iter().sum(), LOG_LIKELIHOOD);

    let none = both.slice(0..1);
    for spec in optimizers_for(&case) {
        let (mut backend, mut optimizer) = start(&case.circuit, &case.params, &spec);
        for batch in [&both, &none, &both, &none] {
            optimizer.learn(&mut backend, batch).unwrap();
            rows_sum_to_one(&format!("{spec:?}"), &case.circuit, &backend.params().unwrap());
        }
        optimizer.end_epoch(&mut backend).unwrap();
        rows_sum_to_one(&format!("{spec:?}"), &case.circuit, &backend.params().unwrap());
    }
}

#[test]
fn a_minus_zero_is_a_zero() {
    let zero = with_an_impossible_category();
    let mut table = param_table(&zero.circuit, &zero.params);
    table[2][0] = vec![0.4, 0.0, 0.6]; // a weight, too
    let plus = params_from(&zero.circuit, &table);
    let minus = map_table(&table, |p| if p == 0.0 { -0.0 } else { p });
    let flat: Vec<f32> = plus.values().iter().map(|&p| if p == 0.0 { -0.0 } else { p }).collect();
    assert_eq!(flat.iter().filter(|p| p.to_bits() == (-0.0f32).to_bits()).count(), 4);
    let data = zero.batch_with_missing(20, 2);
    let worlds = zero.all_worlds().unwrap();
    let seen = |params: &Params| {
        let mut backend = cpu(&zero.circuit, params);
        let lls: Vec<u64> = backend.log_likelihoods(&worlds).unwrap().iter().map(|ll| ll.to_bits()).collect();
        let (flows, report) = mean_flows(&mut backend, &data);
        let after: Vec<Vec<u32>> =
            optimizers_for(&zero).iter().map(|spec| bits(&learned(&zero.circuit, params, spec, &[&data]))).collect();
        (lls, flows, report, after)
    };
    let want = seen(&plus);
    assert!(want.2.impossible_rows > 0 && want.2.impossible_rows < 20);
    assert!(seen(&params_from(&zero.circuit, &minus)) == want, "rows with −0 are others than rows with 0");
    assert!(seen(&Params::from_values(&zero.circuit, flat).unwrap()) == want, "values with −0 are others");
}

/// Two batches of the heaviest rows there are overflow the flows of a window: parameters then stay, or move, but
/// never stop being distributions.
#[test]
fn flows_that_overflow_make_no_parameter_that_is_none() {
    for case in [Case::new("hmm", cases::tied_hmm(4, 3, 5)), Case::new("mixed", cases::mixed())] {
        let heavy = case.batch(6, 1).with_weights(vec![3e38; 6]).unwrap();
        let mut specs = windowed_optimizers();
        specs.extend(em_optimizers());
        let gradient = |spec: &OptimizerSpec| matches!(spec, OptimizerSpec::Adam(_) | OptimizerSpec::Sgd(_));
        for spec in specs.iter().filter(|spec| case.is_discrete() || !gradient(spec)) {
            let what = format!("{}: {spec:?}", case.name);
            let (mut backend, mut optimizer) = start(&case.circuit, &case.params, spec);
            for batch in [&heavy, &heavy, &case.batch(6, 2), &case.batch(6, 3)] {
                // Refusing is as good as learning.
                let _ = optimizer.learn(&mut backend, batch);
                rows_sum_to_one(&what, &case.circuit, &backend.params().unwrap());
            }
            let _ = optimizer.end_epoch(&mut backend);
            rows_sum_to_one(&what, &case.circuit, &backend.params().unwrap());
        }
    }
}

/// Flows without bounds say nothing about a row: it keeps what it was.
#[test]
fn a_row_of_infinite_flow_keeps_its_parameters() {
    let case = Case::new("hmm", cases::tied_hmm(4, 3, 5));
    for retained in [false, true] {
        for smoothing in [Smoothing::NONE, Smoothing::default(), Smoothing::Absolute(1e-3)] {
            let mut backend = cpu(&case.circuit, &case.params);
            let (flows, rows) = (backend.new_flows(FlowPrecision::Single).unwrap(), backend.new_rows().unwrap());
            backend.top_down(rows).unwrap();
            let endless = vec![f32::INFINITY; backend.flows(flows).unwrap().values().len()];
            backend.load_flows(flows, &Tensor::F32(endless)).unwrap();
            let retain = retained.then_some(Retain { rows, at_least: None, scale: 1.5, offset: 0.0 });
            backend.em_update(&EmUpdate { retain, retain_inputs: retain, flows, gain: 0.5, smoothing }).unwrap();
            assert_eq!(bits(&backend.params().unwrap()), bits(&case.params), "{retained}: {smoothing:?}");
        }
    }
}

#[test]
fn samples_keep_the_categories_of_the_widest_input_of_their_variable() {
    for order in [[2u32, 1000], [1000, 2], [2, 70_000], [70_000, 2]] {
        let mut c = CircuitBuilder::new(1);
        let x = order.map(|cats| cases::categorical(&mut c, 0, 1, cats));
        cases::sum(&mut c, 1, &x);
        let circuit = c.finish().unwrap();
        // Every input draws its last category, and both are drawn equally often.
        let params = Params::from_rows(&circuit, |param, _| match param.index() {
            2 => vec![0.5, 0.5],
            b => (0..order[b]).map(|v| if v + 1 == order[b] { 1.0 } else { 0.0 }).collect(),
        });
        let batch = sample(&circuit, &params.unwrap(), 400, &mut Rng::new(4)).unwrap();
        let drawn = |cats: u32| (0..400).filter(|&row| batch.column(0).category(row) == Some(cats - 1)).count();
        let counts = order.map(drawn);
        assert_eq!(counts[0] + counts[1], 400, "{order:?}");
        // Five standard deviations of a fair coin.
        assert!(counts.iter().all(|&count| (150..=250).contains(&count)), "{order:?}: {counts:?}");
    }
}

/// Rows whose entries span many decades, some of them zero.
pub fn extreme_params(case: &Case, seed: u64, decades: f64) -> Table {
    let mut rng = Rng::stream(seed, 5);
    let mut table = param_table(&case.circuit, &case.params);
    for row in table.iter_mut().flatten() {
        let keep = rng.below(row.len()); // one entry stays of order one
        for (k, p) in row.iter_mut().enumerate() {
            *p = match (k == keep, rng.below(8)) {
                (true, _) => 1.0,
                (false, 0) => 0.0,
                _ => 10f64.powf(-decades * rng.uniform()),
            };
        }
        let total: f64 = row.iter().sum();
        row.iter_mut().for_each(|p| *p /= total);
    }
    table
}

/// With extreme parameters every likelihood is right or, if so, exactly −∞, every flow is right, and no optimizer
/// leaves the simplex.
pub fn extremes_agree(case: &Case, seed: u64, decades: f64) {
    let table = extreme_params(case, seed, decades);
    let params = params_from(&case.circuit, &table);
    let (spec, mut backend) = (Spec::new(&case.circuit, &params), cpu(&case.circuit, &params));
    for batch in [case.batch(12, seed), case.batch_with_missing(12, seed)] {
        let want = spec.log_likelihoods(&batch);
        let tolerance = Tolerance { absolute: 2e-6, ..LOG_LIKELIHOOD };
        close(&case.name, &backend.log_likelihoods(&batch).unwrap(), &want, tolerance);
        let (flows, report) = mean_flows(&mut backend, &batch);
        close_table(&case.name, &flows, &spec.mean_flows(&batch), PROBABILITY);
        assert_eq!(report.impossible_rows, want.iter().filter(|ll| **ll == f64::NEG_INFINITY).count());
        for spec in optimizers_for(case) {
            let what = format!("{}: {spec:?}", case.name);
            rows_sum_to_one(&what, &case.circuit, &learned(&case.circuit, &params, &spec, &[&batch, &batch]));
        }
    }
}

/// Two coins over `var`, mixed by weights of their own.
fn mixed_coins(c: &mut CircuitBuilder, var: usize) -> NodeId {
    let coins = c.input_param(2, Categorical::new(2).unwrap()).unwrap();
    let weights = c.sum_param(2, 2).unwrap();
    let coins = c.input(var, coins).unwrap();
    c.sum(&[coins], weights).unwrap()
}

/// Parameters by block and row.
fn by_block(circuit: &Circuit, rows: impl Fn(usize, usize) -> Vec<f32>) -> Params {
    Params::from_rows(circuit, |param, unit| rows(param.index(), unit)).unwrap()
}

const IDENTITY: [[f32; 2]; 2] = [[1.0, 0.0], [0.0, 1.0]];

/// A latent variable with many children: the first half of them speak for one state, the second half for the other, so
/// that the leader on the way is hundreds of bits ahead of the winner.
#[test]
fn a_star_of_hundreds_of_children_needs_no_rescue() {
    for (children, sure) in [(60, 0.999f32), (200, 0.999), (400, 0.99)] {
        let circuit = Arc::new(cases::wide_product(children, 3));
        let params = by_block(&circuit, |param, unit| match (param < children, unit == 0) {
            (false, _) => vec![0.5, 0.3, 0.2],
            (true, is_one) if (param < children / 2) == is_one => vec![sure, 0.7 * (1.0 - sure), 0.3 * (1.0 - sure)],
            (true, _) => vec![0.6 * (1.0 - sure), sure, 0.4 * (1.0 - sure)],
        });
        // A few of the first half are against their state: at the end it is behind by so many children.
        let row = |against: usize| (0..children).map(move |var| u8::from(var < against));
        let rows: Vec<u8> = (0..4).flat_map(row).chain((0..children).map(|var| (var % 2) as u8)).collect();
        let batch = Batch::from_rows(&rows, children).unwrap();
        assert_eq!(survives(&format!("{children} children"), &circuit, &params, &batch), 0, "{children} children");
    }
}

/// The state that leads, by up to 1,800 bits, turns out to be impossible: the one that follows is all that is left.
#[test]
fn a_star_whose_leader_dies_is_not_taken_for_impossible() {
    for (behind, after) in [(60, 40), (110, 40), (150, 1), (170, 3), (180, 0), (230, 5)] {
        let children = behind + 1 + after;
        let circuit = Arc::new(cases::wide_product(children, 2));
        let coin = |p: f32| vec![p, 1.0 - p, 0.0];
        let params = by_block(&circuit, |param, unit| match (param, unit) {
            (param, _) if param == children => vec![0.5, 0.5],
            (param, 0) if param < behind => coin(1.0),
            (param, _) if param < behind => coin(2f32.powi(-10)),
            (param, 0) if param == behind => coin(0.0),
            _ => coin(0.5),
        });
        let batch = Batch::from_rows(&vec![0u8; children], children).unwrap();
        survives(&format!("{behind} children behind, {after} after"), &circuit, &params, &batch);
    }
}

/// Over four variables: (x0·x1)·(x2·x3), each pair with its large entries where the other has none, beside four
/// coins that are unlikely but less so than what is left of the pairs once small entries are dropped.
fn products_that_drop_each_other() -> (Arc<Circuit>, Params) {
    let mut c = CircuitBuilder::new(4);
    let x: Vec<NodeId> = (0..4).map(|var| mixed_coins(&mut c, var)).collect();
    let pairs = [c.product(&x[..2]).unwrap(), c.product(&x[2..]).unwrap()];
    let dropped = c.product(&pairs).unwrap();
    let coins: Vec<NodeId> = (0..4)
        .map(|var| {
            let coin = c.input_param(1, Categorical::new(2).unwrap()).unwrap();
            c.input(var, coin).unwrap()
        })
        .collect();
    let unlikely = c.product(&coins).unwrap();
    let weights = c.sum_param(1, 3).unwrap();
    c.sum(&[dropped, unlikely], weights).unwrap();
    let circuit = Arc::new(c.finish().unwrap());
    let coin = |p: f32| vec![p, 1.0 - p];
    let params = by_block(&circuit, |param, unit| match param {
        0..8 if param % 2 == 1 => IDENTITY[unit].to_vec(),
        0..8 if (param / 2) % 2 == unit => coin(1.0),
        0..8 => coin(2f32.powi(-101)),
        8..12 => coin(2f32.powi(-60)),
        _ => vec![0.25, 0.25, 0.5],
    });
    (circuit, params)
}

#[test]
fn a_product_of_rows_that_were_dropped_is_not_taken_for_nothing() {
    let (circuit, params) = products_that_drop_each_other();
    let batch = Batch::from_rows(&[0u8; 4], 4).unwrap();
    let mut backend = cpu(&circuit, &params);
    let spec = Spec::new(&circuit, &params);
    let lls = backend.log_likelihoods(&batch).unwrap();
    close("log-likelihood", &lls, &spec.log_likelihoods(&batch), LOG_LIKELIHOOD);
    let (flows, report) = mean_flows(&mut backend, &batch);
    close_table("flows", &flows, &spec.mean_flows(&batch), PROBABILITY);
    assert_eq!(report.rescued_rows, 1, "linear space cannot hold this row");
}

#[test]
fn renormalising_is_exact_where_partition_functions_are_out_of_range() {
    let mut c = CircuitBuilder::new(2);
    let x = [mixed_coins(&mut c, 0), mixed_coins(&mut c, 1)];
    let both = c.product(&x).unwrap();
    let weights = c.sum_param(1, 2).unwrap();
    c.sum(&[both], weights).unwrap();
    let circuit = Arc::new(c.finish().unwrap());
    // Each unit of the product has one factor with a partition function of 2e-33 or 8e-33.
    let tiny = 1e-33f32;
    let params = by_block(&circuit, |param, unit| match (param, unit) {
        (1, 1) => vec![tiny; 2],
        (3, 0) => vec![4.0 * tiny; 2],
        (0..4, _) => vec![0.5; 2],
        _ => vec![3.0, 1.0],
    });
    let mut backend = cpu(&circuit, &params);
    backend.renormalize().unwrap();
    let root = backend.params().unwrap().row(circuit.param_ids().next_back().unwrap(), 0);
    let root: Vec<f64> = root.iter().map(|&p| f64::from(p)).collect();
    close("root weights", &root, &[12.0 / 13.0, 1.0 / 13.0], PROBABILITY); // 3·4 : 1·1
}
