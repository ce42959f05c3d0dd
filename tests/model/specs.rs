//! Options as they are written in files: short where the defaults will do, complete when written back.

use std::fmt::Debug;

use anemone::backend::RetainSource;
use anemone::circuit::Smoothing;
use anemone::optim::{
    AdamSpec, AnemoneSpec, AverageSpec, Averaging, FullBatchEmSpec, Length, MiniBatchEmSpec, OptimizerSpec, Pace,
    Schedule, SgdSpec, StepwiseEmSpec,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Every optimizer under its name, with defaults.
fn defaults() -> Vec<(&'static str, OptimizerSpec)> {
    vec![
        ("anemone", OptimizerSpec::Anemone(AnemoneSpec::default())),
        ("full_batch_em", OptimizerSpec::FullBatchEm(FullBatchEmSpec::default())),
        ("mini_batch_em", OptimizerSpec::MiniBatchEm(MiniBatchEmSpec::default())),
        ("stepwise_em", OptimizerSpec::StepwiseEm(StepwiseEmSpec::default())),
        ("adam", OptimizerSpec::Adam(AdamSpec::default())),
        ("sgd", OptimizerSpec::Sgd(SgdSpec::default())),
    ]
}

/// Every optimizer with no option at its default, as it is written and as it is meant.
fn complete() -> Vec<(Value, OptimizerSpec)> {
    let step = json!({"schedule": "cosine", "from": 0.8, "to": 0.2, "horizon": 300});
    let cosine = Schedule::cosine(0.8, 0.2, 300);
    let absolute = Smoothing::Absolute(1e-4);
    let average = json!({"window": 3.0, "every": 5, "cap": 70, "reset": 9.0});
    let averaging = Averaging::On(AverageSpec { window: 3.0, every: 5, cap: 70, reset: 9.0 });
    vec![
        (
            json!({"optimizer": "anemone", "step": step, "momentum": 0.5, "batches_per_update": 4,
                   "smoothing": {"absolute": 1e-4}, "retain": "flows", "retain_inputs": "flows", "average": average}),
            OptimizerSpec::Anemone(AnemoneSpec {
                step: cosine,
                momentum: 0.5,
                batches_per_update: 4,
                smoothing: absolute,
                retain: RetainSource::Flows,
                retain_inputs: RetainSource::Flows,
                average: averaging,
            }),
        ),
        (
            json!({"optimizer": "full_batch_em", "smoothing": {"relative": 0.25}, "average": average}),
            OptimizerSpec::FullBatchEm(FullBatchEmSpec { smoothing: Smoothing::Relative(0.25), average: averaging }),
        ),
        (
            json!({"optimizer": "mini_batch_em", "step": step, "momentum": 0.25, "batches_per_update": 2,
                   "smoothing": {"absolute": 1e-4}, "retain": "top-down", "retain_inputs": "top-down",
                   "average": false}),
            OptimizerSpec::MiniBatchEm(MiniBatchEmSpec {
                step: cosine,
                momentum: 0.25,
                batches_per_update: 2,
                smoothing: absolute,
                retain: RetainSource::TopDown,
                retain_inputs: RetainSource::TopDown,
                average: Averaging::Off,
            }),
        ),
        (
            json!({"optimizer": "stepwise_em", "step": step, "batches_per_update": 3, "smoothing": {"absolute": 1e-4},
                   "average": average}),
            OptimizerSpec::StepwiseEm(StepwiseEmSpec {
                step: cosine,
                batches_per_update: 3,
                smoothing: absolute,
                average: averaging,
            }),
        ),
        (
            json!({"optimizer": "adam", "rate": step, "beta1": 0.5, "beta2": 0.75, "epsilon": 0.125,
                   "batches_per_update": 7, "average": false}),
            OptimizerSpec::Adam(AdamSpec {
                rate: cosine,
                beta1: 0.5,
                beta2: 0.75,
                epsilon: 0.125,
                batches_per_update: 7,
                average: Averaging::Off,
            }),
        ),
        (
            json!({"optimizer": "sgd", "rate": step, "batches_per_update": 5, "average": average}),
            OptimizerSpec::Sgd(SgdSpec { rate: cosine, batches_per_update: 5, average: averaging }),
        ),
    ]
}

fn schedules() -> Vec<(Value, Schedule)> {
    vec![
        (json!({"schedule": "constant", "step": 0.3}), Schedule::Constant { step: 0.3 }),
        (json!({"schedule": "power", "from": 0.9, "kappa": 0.7, "delay": 10.0}), Schedule::power(0.9, 0.7, 10, 0.0)),
        (json!({"schedule": "cosine", "from": 0.8, "to": 0.2, "horizon": 300}), Schedule::cosine(0.8, 0.2, 300)),
        (
            json!({"schedule": "cosine", "from": 0.8, "to": 0.2, "horizon": "10 epochs"}),
            Schedule::cosine(0.8, 0.2, Length::Epochs(10.0)),
        ),
        (
            json!({"schedule": "warmup_stable_decay", "peak": 0.4, "to": 0.1, "warmup": 3, "stable": 5, "decay": 9}),
            Schedule::warmup_stable_decay(0.4, 0.1, 3, 5, 9),
        ),
    ]
}

/// Written in JSON it is exactly this, and what is read from it is the same again.
fn is_written<T: Serialize + DeserializeOwned + PartialEq + Debug>(spec: &T, written: &Value) {
    assert_eq!(serde_json::to_value(spec).unwrap(), *written);
    assert_eq!(serde_json::from_value::<T>(written.clone()).unwrap(), *spec);
    let text = serde_json::to_string(spec).unwrap();
    assert_eq!(serde_json::from_str::<T>(&text).unwrap(), *spec, "{text}");
}

/// Refused with a message that has all the words.
fn refused<T: DeserializeOwned + Debug>(written: &Value, words: &[&str]) {
    let error = serde_json::from_value::<T>(written.clone()).expect_err(&format!("{written} must be refused"));
    for word in words {
        assert!(error.to_string().contains(word), "{written}: `{error}` does not say `{word}`");
    }
}

fn with(object: &Value, key: &str, value: Value) -> Value {
    let mut object = object.clone();
    object.as_object_mut().unwrap().insert(key.to_string(), value);
    object
}

#[test]
fn the_name_of_an_optimizer_alone_means_its_defaults() {
    for (name, spec) in defaults() {
        assert_eq!(serde_json::from_value::<OptimizerSpec>(json!({ "optimizer": name })).unwrap(), spec);
        let written = serde_json::to_value(&spec).unwrap();
        assert_eq!(written["optimizer"], json!(name));
        is_written(&spec, &written);
    }
}

#[test]
fn the_defaults_of_anemone_and_the_papers_options_are_written_out() {
    let average = json!({"window": 8.0, "every": 8, "cap": 10_000, "reset": 6.0});
    let step = json!({"schedule": "counts", "factor": 0.14, "most": 0.4, "kappa": 0.5, "delay": 50.0, "floor": 0.035});
    let written = json!({"optimizer": "anemone", "step": step,
                         "momentum": 0.0, "batches_per_update": 1, "smoothing": {"relative": 1e-6},
                         "retain": "larger", "retain_inputs": "larger", "average": average});
    is_written(&OptimizerSpec::Anemone(AnemoneSpec::default()), &written);
    let written = json!({"optimizer": "anemone", "step": {"schedule": "constant", "step": 0.4}, "momentum": 0.9,
                         "batches_per_update": 1, "smoothing": {"relative": 1e-6}, "retain": "top-down",
                         "retain_inputs": "top-down", "average": false});
    is_written(&OptimizerSpec::Anemone(AnemoneSpec::paper()), &written);
}

#[test]
fn optimizers_are_written_in_full_and_come_back() {
    let (complete, defaults) = (complete(), defaults());
    assert_eq!(complete.len(), defaults.len());
    for ((written, spec), (name, default)) in complete.iter().zip(&defaults) {
        assert_eq!(written["optimizer"], json!(name));
        is_written(spec, written);
        // Nothing in it is at its default: an option that is not read would show.
        let default = serde_json::to_value(default).unwrap();
        let keys: Vec<&String> = default.as_object().unwrap().keys().collect();
        assert_eq!(keys, written.as_object().unwrap().keys().collect::<Vec<_>>());
        for key in keys.into_iter().filter(|key| *key != "optimizer") {
            assert_ne!(default[key], written[key], "{name}: {key}");
        }
    }
}

#[test]
fn an_option_left_out_is_at_its_default_and_the_others_are_kept() {
    let written = json!({"optimizer": "anemone", "momentum": 0.25});
    let want = OptimizerSpec::Anemone(AnemoneSpec { momentum: 0.25, ..Default::default() });
    assert_eq!(serde_json::from_value::<OptimizerSpec>(written).unwrap(), want);
}

#[test]
fn schedules_are_written_by_name_and_come_back() {
    for (written, schedule) in schedules() {
        is_written(&schedule, &written);
    }
}

#[test]
fn the_floor_of_a_power_may_be_left_out_and_lengths_keep_their_unit() {
    let power = json!({"schedule": "power", "from": 0.4, "kappa": 0.33, "delay": "0.5 epochs"});
    is_written(&Schedule::power(0.4, 0.33, Length::Epochs(0.5), 0.0), &power);
    let floored = with(&with(&power, "floor", json!(0.05)), "delay", json!("1 row"));
    is_written(&Schedule::power(0.4, 0.33, Length::Rows(1.0), 0.05), &floored);
    // Other ways to say the same.
    let read = |delay: Value| serde_json::from_value::<Schedule>(with(&power, "delay", delay)).unwrap();
    assert_eq!(read(json!(20)), Schedule::power(0.4, 0.33, 20, 0.0));
    assert_eq!(read(json!("20 updates")), read(json!(20.0)));
}

#[test]
fn every_optimizer_resolves_its_schedule_by_its_own_groups_of_batches() {
    for (written, spec) in complete() {
        let Some((key, _)) = spec.schedule() else { continue };
        let step = json!({"schedule": "cosine", "from": 0.8, "to": 0.2, "horizon": "2 epochs"});
        let spec: OptimizerSpec = serde_json::from_value(with(&written, key, step)).unwrap();
        let groups = written["batches_per_update"].as_u64().unwrap();
        assert_eq!(spec.batches_per_update(), Some(groups));
        let pace = Pace::new(Some(1000), 96, false, groups);
        let (_, schedule) = spec.clone().resolved(&pace).unwrap().schedule().unwrap();
        assert_eq!(schedule, Schedule::cosine(0.8, 0.2, 2 * 11u64.div_ceil(groups)), "{written}");
        let error = spec.resolved(&Pace::new(None, 96, false, groups)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{key}.horizon = \"2 epochs\": ")), "{error}");
    }
}

#[test]
fn smoothings_are_written_by_name_and_come_back() {
    is_written(&Smoothing::Relative(1e-6), &json!({"relative": 1e-6}));
    is_written(&Smoothing::Absolute(0.5), &json!({"absolute": 0.5}));
    is_written(&Smoothing::NONE, &json!({"relative": 0.0}));
    // To the same bits, however long.
    let third = Smoothing::Absolute(1.0 / 3.0);
    let again: Smoothing = serde_json::from_str(&serde_json::to_string(&third).unwrap()).unwrap();
    assert_eq!(again.epsilon().to_bits(), (1.0f64 / 3.0).to_bits());
}

#[test]
fn unknown_keys_are_refused_by_name() {
    for (written, _) in complete() {
        refused::<OptimizerSpec>(&with(&written, "momentumm", json!(0.5)), &["momentumm"]);
    }
    for (name, _) in defaults() {
        refused::<OptimizerSpec>(&json!({"optimizer": name, "learning_rate": 0.1}), &["learning_rate"]);
    }
    for (written, _) in schedules() {
        refused::<Schedule>(&with(&written, "cycles", json!(3)), &["cycles"]);
        let nested = json!({"optimizer": "anemone", "step": with(&written, "cycles", json!(3))});
        refused::<OptimizerSpec>(&nested, &["cycles"]);
    }
}

#[test]
fn wrong_names_are_refused_with_the_right_ones() {
    let wrong = json!({"optimizer": "anemona"});
    refused::<OptimizerSpec>(&wrong, &["anemona", "`anemone`", "`full_batch_em`", "`sgd`"]);
    refused::<OptimizerSpec>(&json!({"optimizer": "Anemone"}), &["Anemone", "`anemone`"]);
    refused::<OptimizerSpec>(&json!({"momentum": 0.5}), &["optimizer"]);
    refused::<OptimizerSpec>(&json!({}), &["optimizer"]);
    refused::<Schedule>(&json!({"schedule": "linear", "step": 0.1}), &["linear", "`constant`", "`power`"]);
    refused::<Schedule>(&json!({"step": 0.1}), &["schedule"]);
    refused::<Smoothing>(&json!({"laplace": 1.0}), &["laplace", "`relative`", "`absolute`"]);
}

#[test]
fn a_schedule_has_no_defaults_but_for_its_floor_and_numbers_are_numbers() {
    for (written, _) in schedules() {
        for key in written.as_object().unwrap().keys().filter(|key| *key != "schedule") {
            let mut short = written.clone();
            short.as_object_mut().unwrap().remove(key);
            refused::<Schedule>(&short, &["missing", key]);
            refused::<Schedule>(&with(&written, key, json!("much")), &["much"]);
        }
    }
    refused::<Schedule>(&json!({"schedule": "cosine", "from": 0.8, "to": 0.2, "horizon": -1}), &["-1"]);
    refused::<OptimizerSpec>(&json!({"optimizer": "anemone", "batches_per_update": 1.5}), &["1.5"]);
    refused::<OptimizerSpec>(&json!({"optimizer": "anemone", "momentum": null}), &["null"]);
    refused::<Smoothing>(&json!({"relative": "a little"}), &["a little"]);
}
