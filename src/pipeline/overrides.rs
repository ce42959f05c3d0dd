//! `--set key=value`: a pipeline with something changed, for one run.
//!
//! The key is the path in the file, the value is TOML or else a plain text: `--set batch.rows=64`,
//! `--set learn.optimizer=full_batch_em`,
//! `--set 'learn.step={ schedule = "cosine", from = 0.4, to = 0.05, horizon = 900 }'`.
//!
//! Another optimizer (or model) does not know all options of the one in the file. Those of the file that it does not
//! know are dropped, those that both know stay, and a note says which; an option that was itself `--set` stays, so that
//! a mistake in it is found.

use serde_json::Value;

use super::spec::{CIRCUIT_COMMON, Document, LIMITS, MODELS, default_options, parse_value};
use super::suggest::list;
use crate::error::{Error, Result};
use crate::optim::OPTIMIZERS;

/// A key that decides which others its section has.
struct Switch {
    path: &'static str,
    section: &'static str,
    /// What is chosen where nothing is written.
    default: &'static str,
    /// The keys that go with a choice; `None` where it is no choice.
    keys: fn(&str) -> Option<Vec<String>>,
}

const SWITCHES: [Switch; 2] = [
    Switch { path: "learn.optimizer", section: "learn", default: OPTIMIZERS[0], keys: optimizer_keys },
    Switch { path: "circuit.model", section: "circuit", default: MODELS[0].0, keys: model_keys },
];

/// A value for a key, and what said so: a flag as it is typed, or a line of another file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Change {
    /// Dotted path.
    pub path: String,
    /// What is to be there.
    pub value: Value,
    /// Where messages point.
    pub place: String,
}

/// Applies `key=value` assignments in their order. Returns what a user should be told.
pub(crate) fn apply(document: &mut Document, assignments: &[String]) -> Result<Vec<String>> {
    let changes = assignments.iter().map(|assignment| parse(assignment)).collect::<Result<Vec<_>>>()?;
    apply_changes(document, &changes)
}

/// Applies changes in their order. Returns what a user should be told.
pub(crate) fn apply_changes(document: &mut Document, changes: &[Change]) -> Result<Vec<String>> {
    let before: Vec<String> = SWITCHES.iter().map(|switch| chosen(document, switch)).collect();
    for Change { path, value, place } in changes {
        document.set(path, value.clone(), place)?;
    }
    let switched = SWITCHES.iter().zip(before).filter_map(|(switch, before)| drop_unknown(document, switch, &before));
    Ok(switched.collect())
}

/// Reads `key=value`.
pub(crate) fn parse(assignment: &str) -> Result<Change> {
    let refuse = |why: &str| Err(Error::option(format!("--set {assignment}: {why}, such as --set batch.rows=64")));
    let Some((path, text)) = assignment.split_once('=') else {
        return refuse("expected a key and a value");
    };
    let (path, text) = (path.trim(), text.trim());
    if path.split('.').any(|part| part.trim().is_empty()) {
        return refuse("expected the path of a key");
    }
    if text.is_empty() {
        return refuse("expected a value after `=`");
    }
    // Words need no quotes; what begins like a list, a table or a quoted text was meant as one.
    let place = format!("--set {path}");
    let value = match parse_value(text) {
        Ok(value) => value,
        Err(error) if text.starts_with(['[', '{', '"', '\'']) => return Err(error.at(place)),
        Err(_) => Value::String(text.to_string()),
    };
    Ok(Change { path: path.to_string(), value, place })
}

fn chosen(document: &Document, switch: &Switch) -> String {
    document.get(switch.path).and_then(Value::as_str).unwrap_or(switch.default).to_string()
}

/// Drops what the file says for the former choice and the new one does not know.
fn drop_unknown(document: &mut Document, switch: &Switch, before: &str) -> Option<String> {
    let now = chosen(document, switch);
    let (old, new) = ((switch.keys)(before)?, (switch.keys)(&now)?);
    if spelled(before) == spelled(&now) || !document.is_from_flag(switch.path) {
        return None;
    }
    let table = document.get(switch.section)?.as_object()?;
    let of_former = |key: &&String| old.contains(key) && !document.is_from_flag(&format!("{}.{key}", switch.section));
    let (kept, dropped): (Vec<String>, Vec<String>) =
        table.keys().filter(of_former).cloned().partition(|key| new.contains(key));
    for key in &dropped {
        document.remove(&format!("{}.{key}", switch.section));
    }
    let names = |keys: &[String]| list(keys.iter().map(String::as_str));
    let mut note = format!("{} = {now}: uses its own defaults", switch.path);
    if !kept.is_empty() {
        note += &format!(", keeps {} of {before} from the file", names(&kept));
    }
    if !dropped.is_empty() {
        note += &format!(", leaves out {}", names(&dropped));
    }
    Some(note)
}

fn spelled(word: &str) -> String {
    word.replace('-', "_")
}

fn optimizer_keys(name: &str) -> Option<Vec<String>> {
    let name = OPTIMIZERS.into_iter().find(|known| *known == spelled(name))?;
    debug_assert!(LIMITS.iter().all(|limit| !default_options(name).contains_key(*limit)));
    Some(default_options(name).keys().cloned().collect())
}

fn model_keys(name: &str) -> Option<Vec<String>> {
    let (_, keys) = MODELS.iter().find(|(known, _)| spelled(known) == spelled(name))?;
    debug_assert!(keys.iter().all(|key| !CIRCUIT_COMMON.contains(key)));
    Some(keys.iter().map(|key| (*key).to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circuit::Smoothing;
    use crate::optim::{FullBatchEmSpec, OptimizerSpec};
    use crate::pipeline::spec::{ModelSpec, PipelineSpec};

    const FILE: &str = "[source]\nfiles = \"a.parquet\"\n\
        [circuit]\nmodel = \"hmm\"\nlatents = 32\ntying = \"homogeneous\"\n\
        [learn]\nstep = 0.3\nmomentum = 0.5\nsmoothing = 1e-4\nepochs = 7\n";

    fn set(assignments: &[&str]) -> Result<(PipelineSpec, Vec<String>)> {
        let mut document = Document::parse(FILE, "p.toml")?;
        let assignments: Vec<String> = assignments.iter().map(|a| (*a).to_string()).collect();
        let notes = apply(&mut document, &assignments)?;
        Ok((PipelineSpec::from_document(&document)?, notes))
    }

    #[test]
    fn values_are_toml_or_else_texts_and_the_last_one_wins() {
        let (spec, notes) = set(&[
            "batch.rows=64",
            "batch.rows = 32",
            "source.files=b.parquet",
            "pipeline.memory=1GiB",
            "learn.step={ schedule = \"cosine\", from = 0.4, to = 0.1, horizon = 10 }",
            "validate.files=[\"c.parquet\", 'd.parquet']",
            "name=other",
        ])
        .unwrap();
        assert_eq!((spec.batch.rows, spec.pipeline.memory), (32, 1 << 30));
        assert_eq!(spec.source.files, ["b.parquet"]);
        assert_eq!(spec.validate.unwrap().source.files, ["c.parquet", "d.parquet"]);
        assert_eq!(spec.name.as_deref(), Some("other"));
        assert!(notes.is_empty(), "{notes:?}");
    }

    #[test]
    fn another_optimizer_keeps_what_both_know_and_says_so() {
        for spelling in ["full_batch_em", "full-batch-em", "\"full_batch_em\""] {
            let (spec, notes) = set(&[&format!("learn.optimizer={spelling}")]).unwrap();
            let want = OptimizerSpec::FullBatchEm(FullBatchEmSpec {
                smoothing: Smoothing::Relative(1e-4),
                ..Default::default()
            });
            assert_eq!((spec.learn.optimizer, spec.learn.epochs), (want, Some(7)));
            let [note] = notes.as_slice() else { panic!("{notes:?}") };
            assert!(
                note.contains("keeps smoothing of anemone") && note.contains("leaves out momentum and step"),
                "{note}"
            );
        }
        let (_, notes) = set(&["learn.optimizer=anemone"]).unwrap();
        assert!(notes.is_empty(), "nothing was switched: {notes:?}");
    }

    #[test]
    fn what_was_itself_set_is_not_dropped_in_silence() {
        let error = set(&["learn.optimizer=full_batch_em", "learn.step=0.1"]).unwrap_err().to_string();
        assert!(error.contains("--set learn.step") && error.contains("full_batch_em has no such option"), "{error}");
    }

    #[test]
    fn another_model_keeps_its_latents() {
        let (spec, notes) = set(&["circuit.model=hclt"]).unwrap();
        assert_eq!(spec.circuit.model, ModelSpec::Hclt { latents: 32, components: 1, tie_inputs: false });
        assert!(notes[0].contains("keeps latents of hmm") && notes[0].contains("leaves out tying"), "{notes:?}");
    }

    #[test]
    fn mistakes_name_the_assignment() {
        for (assignment, words) in [
            ("batch.rows", "--set batch.rows: expected a key and a value"),
            ("=3", "--set =3: expected the path"),
            ("batch..rows=3", "expected the path"),
            ("batch.rows=", "expected a value after `=`"),
            ("batch.rows=[1", "--set batch.rows: "),
            ("batch.rwos=3", "--set batch.rwos: batch.rwos: unknown key; did you mean `rows`?"),
            ("batch.rows=none", "--set batch.rows: batch.rows = \"none\": expected a whole number"),
            ("learn.optimizer=anemona", "did you mean `anemone`?"),
            ("source.files.first=3", "`source.files` is a text"),
        ] {
            let error = set(&[assignment]).unwrap_err().to_string();
            assert!(error.contains(words), "{assignment}: {error}");
        }
    }
}
