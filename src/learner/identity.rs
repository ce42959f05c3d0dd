//! What a run is made of, so that it is not continued with something else by mistake.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::circuit::{Circuit, json::write_circuit};
use crate::data::Digest;
use crate::error::{Error, Result};

/// What parameters were learned from, and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Identity {
    /// Digest of the data's manifest.
    pub data: String,
    /// What turned records into rows: a decoder with its vocabulary.
    pub decoder: String,
    /// Digest of what the circuit is built from: `[circuit]` of the pipeline, the shape of a row, the file of a circuit
    /// from a file, and how densities start. Not [`circuit_digest`]: it is compared before anything is built, and to
    /// learn a structure takes minutes. Files call it `circuit`.
    #[serde(rename = "circuit")]
    pub circuit_spec: String,
    /// The optimizer's spec. Only its kind must stay: going on with another step size is a thing people do.
    pub optimizer: Value,
    /// How rows were ordered and batched.
    pub batch: Value,
}

impl Identity {
    /// Refuses to continue a run of another identity, naming everything that differs.
    pub fn check(&self, saved: &Self) -> Result<()> {
        let Some(differences) = self.differences(saved) else { return Ok(()) };
        Err(Error::state(format!(
            "the checkpoint is of another run, which differs in {differences}; start in a new folder, or go on \
             nevertheless with --force-resume"
        )))
    }

    /// Returns true if the parameters that were saved are averages of those that were learned with.
    pub fn is_averaged(&self) -> bool {
        self.optimizer.get("average").is_some_and(|average| *average != Value::Bool(false))
    }

    /// Everything that differs, in words; `None` if nothing does.
    pub fn differences(&self, saved: &Self) -> Option<String> {
        let kind = |spec: &Value| spec.get("optimizer").unwrap_or(spec).clone();
        let parts = [
            ("data", self.data.clone(), saved.data.clone()),
            ("decoder", self.decoder.clone(), saved.decoder.clone()),
            ("circuit", self.circuit_spec.clone(), saved.circuit_spec.clone()),
            ("optimizer", text(&kind(&self.optimizer)), text(&kind(&saved.optimizer))),
            ("batches", text(&self.batch), text(&saved.batch)),
        ];
        let differences = parts.into_iter().filter(|(_, here, there)| here != there).map(|(what, here, there)| {
            let (here, there) = shorten_both(here, there);
            format!("the {what} ({here} here, {there} there)")
        });
        let differences: Vec<String> = differences.collect();
        (!differences.is_empty()).then(|| differences.join(", "))
    }
}

/// Names a structure: the SHA-256 of its node list as [`write_circuit`] writes it without parameters, and so of the
/// file `circuit.json` of a checkpoint.
pub fn circuit_digest(circuit: &Circuit) -> String {
    Digest::of(write_circuit(circuit, None).as_bytes())
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

/// Both in the short form if that still tells them apart.
fn shorten_both(here: String, there: String) -> (String, String) {
    let short = (shorten(&here), shorten(&there));
    if short.0 == short.1 { (here, there) } else { short }
}

/// The same text with every digest cut to its first digits, and something to look at where it is empty.
fn shorten(text: &str) -> String {
    if text.is_empty() {
        return "none".to_string();
    }
    let is_digest = |word: &str| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let mut out = String::new();
    for piece in text.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let word = piece.trim_end_matches(|c: char| !c.is_alphanumeric());
        if is_digest(word) {
            out.push_str(&word[..12]);
            out.push_str(&piece[word.len()..]);
        } else {
            out.push_str(piece);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::circuit::Categorical;
    use crate::error::ErrorKind;
    use crate::structure::{Tying, hmm, hmm_with};

    fn identity() -> Identity {
        Identity {
            data: Digest::of(b"data"),
            decoder: format!("gpt2 {}", Digest::of(b"vocabulary")),
            circuit_spec: Digest::of(b"circuit"),
            optimizer: json!({"optimizer": "anemone", "momentum": 0.9}),
            batch: json!({"rows": 512, "seed": 1}),
        }
    }

    #[test]
    fn a_run_may_change_its_step_size_and_nothing_else() {
        let saved = identity();
        saved.check(&saved).unwrap();
        Identity { optimizer: json!({"optimizer": "anemone", "momentum": 0.5}), ..identity() }.check(&saved).unwrap();
        let short = |text: &[u8]| Digest::of(text)[..12].to_string();
        let others = [
            (Identity { data: Digest::of(b"x"), ..identity() }, "data", short(b"x"), short(b"data")),
            (
                Identity { decoder: format!("gpt2 {}", Digest::of(b"x")), ..identity() },
                "decoder",
                format!("gpt2 {} here", short(b"x")),
                format!("gpt2 {} there", short(b"vocabulary")),
            ),
            (Identity { circuit_spec: Digest::of(b"x"), ..identity() }, "circuit", short(b"x"), short(b"circuit")),
            (
                Identity { optimizer: json!({"optimizer": "adam"}), ..identity() },
                "optimizer",
                "adam".into(),
                "anemone".into(),
            ),
            (Identity { batch: json!({"rows": 64, "seed": 1}), ..identity() }, "batches", "64".into(), "512".into()),
            (Identity { data: String::new(), ..identity() }, "data", "none here".into(), short(b"data")),
        ];
        for (other, what, here, there) in others {
            let error = other.check(&saved).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::State);
            for word in [&format!("the {what} ("), &here, &there, "--force-resume"] {
                assert!(text.contains(word), "`{text}` has no `{word}`");
            }
            assert_eq!(text.matches(" there)").count(), 1, "`{text}` names one difference");
            assert!(!text.contains(&Digest::of(b"data")));
        }
    }

    /// Checkpoints of all versions are compared by these names.
    #[test]
    fn an_identity_has_the_same_names_in_every_version() {
        let identity = identity();
        let written = json!(identity);
        let names: Vec<&str> = written.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, ["batch", "circuit", "data", "decoder", "optimizer"]);
        assert_eq!(written["circuit"], json!(identity.circuit_spec));
        assert_eq!(serde_json::from_value::<Identity>(written).unwrap(), identity);
    }

    #[test]
    fn digests_that_begin_alike_are_shown_whole() {
        let saved = Identity { data: format!("{}1", "0".repeat(63)), ..identity() };
        let here = Identity { data: format!("{}2", "0".repeat(63)), ..identity() };
        assert!(here.check(&saved).unwrap_err().to_string().contains(&saved.data));
    }

    /// The order of keys in JSON objects depends on a feature of `serde_json` that any dependency can turn on: it would
    /// give every circuit another digest.
    #[test]
    fn a_circuit_has_the_same_digest_in_every_build() {
        let circuit = hmm(2, 2, Categorical::new(2).unwrap()).unwrap();
        assert_eq!(circuit_digest(&circuit), "a1ef8a5ac15cef77948afb89d7353db7543b59c1d710c70adb5b55207431630a");
        let other = hmm_with(2, 2, Categorical::new(2).unwrap(), Tying::Inhomogeneous).unwrap();
        assert_ne!(circuit_digest(&circuit), circuit_digest(&other));
    }
}
