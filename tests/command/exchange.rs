//! Models in the format of another program: Ctrl-G's folders, written, read, and told from bad ones.

use std::path::Path;

use anemone::circuit::{Categorical, Params};
use anemone::learner::{circuit_digest, ctrlg, model};
use anemone::rng::Rng;
use anemone::structure::{Tying, hmm, hmm_with, monarch_hmm};
use anemone::{Batch, ErrorKind, View};
use assert_cmd::Command;
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::commands::python_with_numpy;
use crate::common::shards;
use crate::drawn_rows::{both, printed, refused};

const STATES: usize = 4;
const SYMBOLS: usize = 7;
const LENGTH: usize = 6;

/// A tensor of a folder, as numbers.
fn tensor(folder: &Path, name: &str) -> (Vec<usize>, Vec<f64>) {
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(name).unwrap();
    let values = view.data().as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b)));
    (view.shape().to_vec(), values.collect())
}

/// log p(row) by the forward algorithm, from the tensors of a folder alone.
fn forward(folder: &Path, row: &[u32]) -> f64 {
    let (alpha_shape, alpha) = tensor(folder, "alpha_exp");
    let (beta_shape, beta) = tensor(folder, "beta");
    let (_, gamma) = tensor(folder, "gamma");
    let (states, symbols) = (gamma.len(), beta_shape[1]);
    assert_eq!((alpha_shape, beta_shape), (vec![states, states], vec![states, symbols]));
    let emit = |state: usize, symbol: u32| beta[state * symbols + symbol as usize].exp();
    let mut at: Vec<f64> = (0..states).map(|state| gamma[state].exp() * emit(state, row[0])).collect();
    for &symbol in &row[1..] {
        let into = |to: usize| (0..states).map(|from| at[from] * alpha[from * states + to]).sum::<f64>();
        at = (0..states).map(|to| into(to) * emit(to, symbol)).collect();
    }
    at.iter().sum::<f64>().ln()
}

fn some_rows(count: usize, symbols: usize, length: usize) -> Vec<Vec<u32>> {
    let mut rng = Rng::new(9);
    (0..count).map(|_| (0..length).map(|_| rng.below(symbols) as u32).collect()).collect()
}

/// Fails on NaN and where there is nothing to compare.
fn assert_near(found: &[f64], wanted: &[f64], tolerance: f64, what: &str) {
    assert!(!found.is_empty() && found.len() == wanted.len(), "{what}");
    for (found, wanted) in found.iter().zip(wanted) {
        let is_near = found == wanted || (found - wanted).abs() <= tolerance;
        assert!(is_near, "{what}: {found} is not {wanted}");
    }
}

#[test]
fn a_folder_has_our_log_likelihoods_and_comes_back_as_the_same_model() {
    let home = tempfile::tempdir().unwrap();
    let table = || Categorical::new(SYMBOLS as u32).unwrap();
    let dense = hmm(LENGTH, STATES, table()).unwrap();
    let monarch = monarch_hmm(LENGTH, (2, 2), table()).unwrap();
    for (name, circuit) in [("dense", dense), ("monarch", monarch)] {
        let mut params = Params::random(&circuit, 3, 4.0).unwrap();
        // A zero, so that some rows are impossible.
        let emissions = circuit.param_ids().next().unwrap();
        for unit in 0..STATES {
            let mut row = params.row(emissions, unit);
            row[0] += row[SYMBOLS - 1];
            row[SYMBOLS - 1] = 0.0;
            params.set_row(emissions, unit, &row).unwrap();
        }
        let folder = home.path().join(name);
        ctrlg::write(&folder, &circuit, &params, 2).unwrap();
        let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        assert_eq!(config, json!({"hidden_states": STATES, "vocab_size": SYMBOLS, "eos_token_id": 2}));
        let beta = tensor(&folder, "beta").1;
        assert!(beta.iter().all(|log| log.is_finite()) && beta.iter().any(|&log| log.exp() == 0.0), "{beta:?}");

        let rows = some_rows(50, SYMBOLS, LENGTH);
        let batch = Batch::from_rows(&rows.concat(), LENGTH).unwrap();
        let view = View::of(circuit.clone().into(), params.clone()).unwrap();
        let ours = view.log_likelihoods(&batch).unwrap();
        assert!(ours.iter().any(|ll| ll.is_finite()) && ours.contains(&f64::NEG_INFINITY));
        let theirs: Vec<f64> = rows.iter().map(|row| forward(&folder, row)).collect();
        assert_near(&theirs, &ours, 1e-5, name);

        let again = ctrlg::read(&folder, None).unwrap();
        assert_eq!((again.circuit.num_vars(), again.end_of_text, again.farthest), (LENGTH, 2, 0.0), "{name}");
        let view = View::of(again.circuit.clone(), again.params.clone()).unwrap();
        assert_near(&view.log_likelihoods(&batch).unwrap(), &ours, 1e-5, name);
        if name == "dense" {
            assert_eq!(circuit_digest(&again.circuit), circuit_digest(&circuit));
            for id in circuit.param_ids() {
                for unit in 0..circuit.layout().block(id).units() {
                    let pairs = again.params.row(id, unit).into_iter().zip(params.row(id, unit));
                    // Logarithms of f32 keep seven digits of the logarithm.
                    pairs.for_each(|(a, b)| assert!((a - b).abs() <= 4e-6 * b, "{id} {unit}: {a} is not {b}"));
                }
            }
        }
        // As a model like any other, and of another length.
        let loaded = model::load(&folder).unwrap();
        assert_eq!((loaded.end_of_text(), loaded.origin(), &loaded.params), (Some(2), Some("Ctrl-G"), &again.params));
        assert_eq!(ctrlg::read(&folder, Some(40)).unwrap().circuit.num_vars(), 40);
    }
}

#[test]
fn what_the_format_cannot_hold_is_one_error() {
    let home = tempfile::tempdir().unwrap();
    let table = || Categorical::new(3).unwrap();
    let write = |circuit: anemone::Circuit, end: u32| {
        let params = Params::random(&circuit, 1, 2.0).unwrap();
        let error = ctrlg::write(&home.path().join("x"), &circuit, &params, end).unwrap_err();
        assert!(!home.path().join("x").exists());
        error
    };
    let free = write(hmm_with(3, 2, table(), Tying::Inhomogeneous).unwrap(), 0);
    assert!(free.kind() == ErrorKind::Unsupported && free.to_string().contains("tying"), "{free}");
    assert!(write(hmm(1, 2, table()).unwrap(), 0).to_string().contains("two variables"));
    assert!(write(hmm(3, 2, table()).unwrap(), 3).to_string().contains("outside 0..3"));
}

/// Writes a folder with these tensors, whatever they are.
fn write_folder(folder: &Path, config: &str, tensors: &[(&str, &str, Vec<usize>, Vec<u8>)]) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.json"), config).unwrap();
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert((*name).into(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[test]
fn folders_of_others_are_read_and_bad_ones_are_one_error_each() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    const CONFIG: &str = r#"{"hidden_states": 2, "vocab_size": 3, "eos_token_id": 2, "more": "than we know"}"#;
    let alpha = || ("alpha_exp", "F32", vec![2, 2], bytes(&[0.25, 0.75, 1.0, 0.0]));
    let logs = [0.5f32, 0.25, 0.25, 0.125, 0.125, 0.75].map(f32::ln);
    let beta = || ("beta", "F32", vec![2, 3], bytes(&logs));
    let gamma = || ("gamma", "F32", vec![2], bytes(&[0.5f32.ln(), 0.5f32.ln()]));
    // A folder as Ctrl-G writes it: no length, rows that are a little off, a gamma that only its softmax makes one.
    let off = bytes(&[0.25, 0.7502, 1.0, 0.0]);
    let shifted = bytes(&[3.0, 3.0]);
    let tensors = [("alpha_exp", "F32", vec![2, 2], off), beta(), ("gamma", "F32", vec![2], shifted)];
    write_folder(&dir.join("good"), CONFIG, &tensors);
    let read = ctrlg::read(&dir.join("good"), Some(2)).unwrap();
    assert!((read.farthest - 2e-4).abs() < 1e-6, "{}", read.farthest);
    let view = View::of(read.circuit.clone(), read.params.clone()).unwrap();
    // p(0, 2) = Σ γ β(z, 0) Σ α β(z', 2), by hand.
    let (kept, moved) = (0.25 / 1.0002, 0.7502 / 1.0002);
    let wanted = 0.5 * 0.5 * (kept * 0.25 + moved * 0.75) + 0.5 * 0.125 * 0.25;
    let found = view.log_likelihoods(&Batch::from_rows(&[0u8, 2], 2).unwrap()).unwrap()[0].exp();
    assert!((found - wanted).abs() < 1e-6, "{found} is not {wanted}");
    refused(
        dir,
        &[
            (&["import", "good", "model"], 2, "does not say how many tokens a row has"),
            (&["import", "good", "model", "--length", "1"], 2, "length = 1: a chain with transitions"),
            (&["sample", "good"], 2, "--length"),
            (&["import", "nowhere", "model"], 2, "nowhere: no such folder"),
            (&["import", ".", "model"], 2, "is no Ctrl-G folder"),
        ],
    );
    let (said, noted) = both(dir, &["import", "good", "model", "--length", "5"]);
    assert!(said.contains("model: 2 hidden states, 3 tokens, rows of 5, end-of-text 2"), "{said}");
    assert!(noted.contains("normalised (off by up to 2.0e-4)"), "{noted}");
    assert_eq!(model::load(&dir.join("model")).unwrap().end_of_text(), Some(2));
    assert!(printed(dir, &["inspect", "model"]).contains("imported from Ctrl-G"));
    // The token that ends a text is known, so that ids can end.
    for line in printed(dir, &["sample", "model", "--ends", "--max-length", "2", "--rows", "20"]).lines().skip(1) {
        let ids: Vec<&str> = line.split(',').skip(1).collect();
        let end = ids.iter().position(|&id| id == "2").unwrap_or(ids.len());
        assert!(ids.len() == 5 && end <= 2 && ids[end + 1..].iter().all(|id| id.is_empty()), "{line}");
    }

    let nan = ("beta", "F32", vec![2, 3], bytes(&[logs[0], f32::NAN, logs[2], logs[3], logs[4], logs[5]]));
    let above = ("beta", "F32", vec![2, 3], bytes(&[1000.0, logs[1], logs[2], logs[3], logs[4], logs[5]]));
    let half = ("beta", "F32", vec![2, 3], bytes(&logs.map(|log| log - 2f32.ln())));
    let negative = ("alpha_exp", "F32", vec![2, 2], bytes(&[0.5, 0.5, 1.5, -0.5]));
    let unsummed = ("alpha_exp", "F32", vec![2, 2], bytes(&[0.5, 0.5, 0.5, 0.25]));
    let turned = ("beta", "F32", vec![3, 2], bytes(&logs));
    let halves = ("beta", "F16", vec![2, 3], vec![0; 12]);
    let lost = ("gamma", "F32", vec![2], bytes(&[f32::NEG_INFINITY; 2]));
    let nan_gamma = ("gamma", "F32", vec![2], bytes(&[f32::NAN, 0.0]));
    type Tensors = Vec<(&'static str, &'static str, Vec<usize>, Vec<u8>)>;
    let cases: Vec<(&str, Tensors, &str)> = vec![
        (CONFIG, vec![alpha(), gamma()], "has no tensor `beta`"),
        (CONFIG, vec![beta(), gamma()], "has no tensor `alpha_exp`"),
        (CONFIG, vec![alpha(), turned, gamma()], "`beta` is F32 [3, 2] where F32 [2, 3] belongs"),
        (CONFIG, vec![alpha(), halves, gamma()], "`beta` is F16 [2, 3] where F32 [2, 3] belongs"),
        (CONFIG, vec![alpha(), nan, gamma()], "beta, as exponentials: row 0: entry 1: NaN is not a probability"),
        (CONFIG, vec![alpha(), above, gamma()], "beta, as exponentials: row 0: entry 0: inf is not a probability"),
        (CONFIG, vec![alpha(), half, gamma()], "beta, as exponentials: row 0: sums to 0.500000"),
        (CONFIG, vec![negative, beta(), gamma()], "alpha_exp: row 1: entry 1: -0.5 is not a probability"),
        (CONFIG, vec![unsummed, beta(), gamma()], "alpha_exp: row 1: sums to 0.750000, and probabilities sum to one"),
        (CONFIG, vec![alpha(), beta(), lost], "gamma: -inf is no logarithm of a distribution"),
        (CONFIG, vec![alpha(), beta(), nan_gamma], "gamma: NaN is no logarithm of a distribution"),
        ("{", vec![alpha(), beta(), gamma()], "config.json: is no JSON"),
        (r#"{"hidden_states": 2}"#, vec![alpha(), beta(), gamma()], "`vocab_size` is null"),
        (
            r#"{"hidden_states": 2, "vocab_size": 3, "eos_token_id": 3}"#,
            vec![alpha(), beta(), gamma()],
            "end-of-text is one of the tokens",
        ),
        (
            r#"{"hidden_states": 4000000000, "vocab_size": 4000000000, "eos_token_id": 3}"#,
            vec![alpha(), beta(), gamma()],
            "`alpha_exp` is F32 [2, 2] where F32 [4000000000, 4000000000] belongs",
        ),
    ];
    for (config, tensors, words) in cases {
        write_folder(&dir.join("bad"), config, &tensors);
        refused(dir, &[(&["import", "bad", "other", "--length", "5"], 3, words)]);
        assert!(!dir.join("other").exists());
    }
    write_folder(&dir.join("bad"), CONFIG, &[alpha(), beta(), gamma()]);
    let file = dir.join("bad/model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    for (cut, words) in [(4, "ends too early"), (20, "header is longer"), (whole.len() - 4, "its header describes")] {
        std::fs::write(&file, &whole[..cut]).unwrap();
        refused(dir, &[(&["import", "bad", "other", "--length", "5"], 3, words)]);
    }
}

#[test]
fn a_run_goes_out_and_comes_back_and_numpy_agrees() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path();
    shards::write_texts(&dir.join("train.parquet"), &shards::texts(120, 1), 40);
    shards::write_texts(&dir.join("valid.parquet"), &shards::texts(40, 2), 40);
    let train = ["train", "--data", "train.parquet", "--column", "text", "--valid", "valid.parquet", "--latents", "3"];
    let options = ["--epochs", "1", "--set", "decode.window=8", "--out", "run", "--quiet"];
    printed(dir, &[&train[..], &options].concat());
    let (said, _) = both(dir, &["export", "run", "hmm", "--format", "ctrlg"]);
    assert!(said.contains("hmm: 3 hidden states, 50,257 tokens, rows of 8, end-of-text 50256"), "{said}");
    printed(dir, &["export", "run", "hmm"]); // once more, in its place
    assert!(printed(dir, &["import", "hmm", "model"]).contains("3 hidden states"));
    // The folder itself is a model too. Its tokens are as many as GPT-2's, so that they are text.
    let sampled = |model: &str| printed(dir, &["sample", model, "--contains", "sea", "--rows", "5"]);
    assert!(sampled("hmm").matches("sea").count() >= 5 && sampled("hmm") == sampled("model"), "{}", sampled("hmm"));
    assert!(printed(dir, &["inspect", "hmm"]).contains("in the format of Ctrl-G"));
    let eval = |model: &str| -> f64 {
        // The run's own pipeline, as it wrote it down.
        let found = printed(dir, &["eval", model, "run/resolved.toml", "--json"]);
        let found: Value = serde_json::from_str(&found).unwrap();
        found["mean_log_likelihood"].as_f64().unwrap()
    };
    let ours = eval("run");
    assert_near(&[eval("hmm"), eval("model")], &[ours, ours], 1e-4, "eval");
    printed(dir, &["tokenize", "valid.parquet", "--column", "text", "--out", "valid.bin"]);
    refused(
        dir,
        &[
            (&["export", "run", "hmm", "--end-of-text", "50257"], 2, "end-of-text is 50257, which is outside 0..50257"),
            (&["export", "run", "run"], 2, "it is not replaced, choose another folder"),
            (&["export", "nowhere", "x"], 2, "no such model"),
            (&["sample", "hmm", "--best"], 2, "--best: hmm is one checkpoint or model"),
        ],
    );

    let Some(python) = python_with_numpy() else {
        eprintln!("skipped: there is no python3 with NumPy (ANEMONE_PYTHON names another)");
        return;
    };
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/EXCHANGE.md")).unwrap();
    let code: String = page.split("```python\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    // Rows are cut out of the tokens as the run cut them: eight at a time, the rest dropped.
    let driver = "rows = np.fromfile('valid.bin', dtype='<u2')\n\
                  print(log_likelihoods('hmm', rows[:len(rows) // 8 * 8].reshape(-1, 8)).mean())\n";
    std::fs::write(dir.join("reader.py"), code + driver).unwrap();
    let mut command = Command::new(python);
    let output =
        command.current_dir(dir).arg("reader.py").timeout(std::time::Duration::from_secs(120)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: f64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    assert_near(&[found], &[ours], 1e-4, "NumPy");
}
