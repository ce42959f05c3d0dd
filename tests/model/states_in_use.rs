//! How many states of its latents a circuit uses: by hand, by the specification, between two batches, and in `inspect`.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use crate::common::cases::{Case, all, mixed, tied_hmm};
use crate::common::spec::Spec;
use crate::common::{bits, cpu, start, top_down};
use anemone::Result;
use anemone::backend::{Backend, BatchReport};
use anemone::circuit::{Categorical, Circuit, ParamKind, Params, StatesInUse};
use anemone::data::Batch;
use anemone::learner::{Identity, Learner, model};
use anemone::optim::{Optimizer, OptimizerSpec, OptimizerState, StepReport};
use anemone::structure::{Tying, hmm, hmm_with};
use assert_cmd::Command;
use serde_json::{Map, Value, json};

fn in_use(circuit: &Arc<Circuit>, params: &Params) -> StatesInUse {
    StatesInUse::new(circuit, &top_down(&mut cpu(circuit, params)).concat()).unwrap()
}

/// exp(H) of shares that need not sum to one.
fn perplexity(masses: &[f64]) -> f64 {
    let total: f64 = masses.iter().sum();
    masses.iter().filter(|m| **m > 0.0).map(|m| (m / total).powf(-m / total)).product()
}

fn learner(case: &Case, spec: &OptimizerSpec) -> Learner {
    let (backend, optimizer) = start(&case.circuit, &case.params, spec);
    Learner::from_parts(Box::new(backend), optimizer, None).unwrap()
}

fn anemone() -> OptimizerSpec {
    serde_json::from_value(json!({"optimizer": "anemone"})).unwrap()
}

/// An HMM of three states, all alike, but that nothing ever leads to the last one; it begins in the first.
fn with_a_dead_state(tying: Tying) -> Case {
    let circuit = hmm_with(3, 3, Categorical::new(2).unwrap(), tying).unwrap();
    let initial = circuit.param_ids().last();
    let rows = |id, _| match circuit.layout().block(id).values_per_row {
        2 => vec![0.5, 0.5],
        _ if Some(id) == initial => vec![1.0, 0.0, 0.0],
        _ => vec![0.5, 0.5, 0.0],
    };
    let params = Params::from_rows(&circuit, rows).unwrap();
    Case { params, ..Case::new("dead state", circuit.clone()) }
}

#[test]
fn a_tied_hmm_has_the_number_of_the_average_over_positions() {
    let (length, states) = (5, 4);
    let circuit = Arc::new(hmm(length, states, Categorical::new(3).unwrap()).unwrap());
    let params = Params::random(&circuit, 7, 4.0).unwrap();
    let ids: Vec<_> = circuit.param_ids().collect();
    let row = |block: usize, unit: usize| params.row(ids[block], unit).into_iter().map(f64::from).collect::<Vec<_>>();
    // p(state of t), step by step.
    let mut here = row(2, 0);
    let (mut emitted, mut left) = (here.clone(), here.clone());
    for t in 1..length {
        let next = |to: usize| (0..states).map(|from| here[from] * row(1, from)[to]).sum();
        here = (0..states).map(next).collect();
        emitted.iter_mut().zip(&here).for_each(|(sum, p)| *sum += p);
        if t < length - 1 {
            left.iter_mut().zip(&here).for_each(|(sum, p)| *sum += p);
        }
    }
    let used = in_use(&circuit, &params);
    let (variable, sum) = (used.variables[0], used.sums[0]);
    assert_eq!((used.variables.len(), variable.index, variable.states), (1, 0, states));
    // Weights are f32.
    assert!((variable.in_use - perplexity(&emitted)).abs() < 1e-5, "{variable:?}");
    assert_eq!((used.sums.len(), sum.index, sum.states), (1, 1, states), "the initial distribution is no latent");
    assert!((sum.in_use - perplexity(&left)).abs() < 1e-5, "{sum:?}");
    assert!(variable.in_use < states as f64 - 0.1, "a case that tells shares from counts: {variable:?}");
}

#[test]
fn every_circuit_has_the_numbers_of_its_definition() {
    for case in all() {
        let used = in_use(&case.circuit, &case.params);
        let td = Spec::new(&case.circuit, &case.params).top_down();
        assert!(!used.variables.is_empty() && used.mean() > 0.0, "{}", case.name);
        for sum in &used.sums {
            // A block that nothing reaches counts 0, where an empty product would be 1.
            let wanted = if td[sum.index].iter().sum::<f64>() > 0.0 { perplexity(&td[sum.index]) } else { 0.0 };
            assert!((sum.in_use - wanted).abs() < 1e-4 * wanted.max(1.0), "{}: {sum:?} is not {wanted}", case.name);
        }
        let states: usize = used.variables.iter().map(|variable| variable.states).sum();
        let input_rows = case.circuit.params().iter().zip(&td);
        let input_rows = input_rows.filter(|(block, _)| matches!(block.kind, ParamKind::Input(_)));
        assert_eq!(states, input_rows.map(|(_, rows)| rows.len()).sum::<usize>(), "{}: every row once", case.name);
    }
}

#[tokio::test]
async fn a_dead_state_is_seen_by_whoever_asks_the_learner() {
    let alive = Case::new("alive", hmm_with(4, 3, Categorical::new(2).unwrap(), Tying::Inhomogeneous).unwrap());
    let alive = Case { params: Params::random(&alive.circuit, 1, 0.0).unwrap(), ..alive };
    let used = learner(&alive, &anemone()).states_in_use().await.unwrap();
    assert!(used.variables.iter().all(|variable| (variable.in_use - 3.0).abs() < 1e-5), "{used:?}");

    let case = with_a_dead_state(Tying::Inhomogeneous);
    let used = learner(&case, &anemone()).states_in_use().await.unwrap();
    let found: Vec<_> = used.variables.iter().map(|variable| (variable.index, variable.states)).collect();
    assert_eq!(found, [(0, 3), (1, 3), (2, 3)]);
    for (variable, wanted) in used.variables.iter().zip([1.0, 2.0, 2.0]) {
        assert!((variable.in_use - wanted).abs() < 1e-6, "{variable:?}");
    }
    assert!((used.mean() - 5.0 / 3.0).abs() < 1e-6);
}

#[tokio::test]
async fn asking_changes_nothing_that_is_learned() {
    let large = hmm(3, 5, Categorical::new(5000).unwrap()).unwrap();
    let cases = [
        Case::new("tied hmm", tied_hmm(5, 3, 4)),
        Case::new("mixed inputs", mixed()),
        Case::new("a table whose rows lag", large),
    ];
    for case in cases {
        for spec in [
            json!({"optimizer": "anemone"}),
            json!({"optimizer": "anemone", "batches_per_update": 3}),
            json!({"optimizer": "full_batch_em"}),
            json!({"optimizer": "mini_batch_em", "momentum": 0.5}),
            json!({"optimizer": "stepwise_em"}),
            json!({"optimizer": "adam"}),
        ] {
            if spec["optimizer"] == "adam" && !case.is_discrete() {
                continue;
            }
            let optimizer: OptimizerSpec = serde_json::from_value(spec.clone()).unwrap();
            let (quiet, asked) = (learner(&case, &optimizer), learner(&case, &optimizer));
            for i in 0..7 {
                for learner in [&quiet, &asked] {
                    learner.learn(case.batch(6, i)).await.unwrap();
                }
                asked.states_in_use().await.unwrap();
                if i == 4 {
                    asked.states_in_use().await.unwrap();
                }
            }
            let (quiet, asked) = (quiet.snapshot().await.unwrap(), asked.snapshot().await.unwrap());
            assert_eq!(bits(&asked.params), bits(&quiet.params), "{}: {spec}", case.name);
            assert!(asked.optimizer == quiet.optimizer, "{}: {spec}", case.name);
        }
    }
}

/// Tells how many row buffers there are when a batch comes, by making one.
struct Counting(Sender<String>);

impl Optimizer for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn learn(&mut self, backend: &mut dyn Backend, _: &Batch) -> Result<StepReport> {
        self.0.send(format!("{:?}", backend.new_rows()?)).unwrap();
        Ok(StepReport { batch: BatchReport::default(), step_size: None })
    }

    fn end_epoch(&mut self, _: &mut dyn Backend) -> Result<bool> {
        Ok(false)
    }

    fn restart(&mut self, _: &mut dyn Backend) -> Result<()> {
        Ok(())
    }

    fn save(&self, _: &dyn Backend) -> Result<OptimizerState> {
        Ok(OptimizerState::default())
    }

    fn load(&mut self, _: &mut dyn Backend, _: &OptimizerState) -> Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn asking_takes_no_buffer_however_often() {
    let case = Case::new("tied hmm", tied_hmm(5, 3, 4));
    let (send, told) = mpsc::channel();
    let backend = cpu(&case.circuit, &case.params);
    let learner = Learner::from_parts(Box::new(backend), Box::new(Counting(send)), None).unwrap();
    learner.learn(case.batch(1, 0)).await.unwrap();
    for _ in 0..10 {
        learner.states_in_use().await.unwrap();
    }
    learner.learn(case.batch(1, 0)).await.unwrap();
    let told: Vec<String> = told.try_iter().collect();
    assert!(told[0].contains("index: 0 ") && told[1].contains("index: 1 "), "{told:?}");
}

fn inspect(path: &Path, more: &[&str]) -> String {
    let output = Command::cargo_bin("anemone").unwrap().arg("inspect").arg(path).args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn inspect_shows_a_dead_state() {
    let home = tempfile::tempdir().unwrap();
    for (tying, words) in [
        (Tying::Inhomogeneous, "states in use  1.7 of 3 on average; least 1.0 (variable 0)"),
        // The average over three positions: ⅔, ⅓, 0.
        (Tying::Homogeneous, "states in use  1.9 of 3\n"),
    ] {
        let case = with_a_dead_state(tying);
        let path = home.path().join(format!("{tying:?}"));
        let snapshot = learner(&case, &anemone()).snapshot().await.unwrap();
        model::save(&path, &snapshot, &Identity::default(), &Map::new()).unwrap();
        let text = inspect(&path, &[]);
        assert!(text.contains(words), "no `{words}` in:\n{text}");

        let states = serde_json::from_str::<Value>(&inspect(&path, &["--json"])).unwrap()["states_in_use"].clone();
        let used = in_use(&case.circuit, &case.params);
        let variables = &states["variables"];
        assert_eq!(variables["mean"].as_f64(), Some(used.mean()));
        assert_eq!(variables["states"], 3.0);
        assert_eq!(variables["least"]["in_use"].as_f64(), Some(used.variables[0].in_use));
        for (name, wanted) in [("variables", &used.variables), ("sums", &used.sums)] {
            let each: Vec<_> =
                states[name]["each"].as_array().unwrap().iter().map(|one| one["in_use"].as_f64()).collect();
            assert_eq!(each, wanted.iter().map(|one| Some(one.in_use)).collect::<Vec<_>>(), "{name}");
        }
    }
}
