//! Every pipeline of the repository is read, resolved and built (with made-up rows where a structure is learned), and
//! run where its data is.

use std::path::PathBuf;

use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::data::Batch;
use anemone::decode::{RowShape, ValueKind};
use anemone::pipeline::model::{build_circuit, estimate, initial_params, learns_structure, needs_sample};
use anemone::pipeline::spec::{DecodeKind, ModelSpec, PipelineSpec};
use anemone::rng::Rng;

use crate::common::data_folder::{data, data_folder};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("pipelines")
}

fn pipelines() -> Vec<(String, PipelineSpec)> {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
    files.sort();
    let named =
        |path: PathBuf| (path.file_stem().unwrap().to_string_lossy().into_owned(), PipelineSpec::load(&path).unwrap());
    files.into_iter().map(named).collect()
}

/// The rows that the decoder of a pipeline makes, without opening its data.
fn shape(spec: &PipelineSpec) -> RowShape {
    let decode = &spec.decode;
    match decode.kind.expect("every pipeline says what its records are, or its source does") {
        DecodeKind::Text => categories(decode.window.unwrap(), 50257),
        DecodeKind::Tokens => categories(decode.window.unwrap(), decode.vocab.unwrap()),
        DecodeKind::Image => {
            let (patch, color) = (decode.patch.unwrap(), decode.color.unwrap());
            let grid = Some(vec![patch, patch, color.channels()]);
            RowShape { grid, ..categories(patch * patch * color.channels(), decode.image().categories()) }
        }
        DecodeKind::Rows => match &spec.source.synthetic {
            Some(synthetic) => categories(synthetic.num_vars, synthetic.cats),
            None => categories(805, decode.cats.unwrap()),
        },
        DecodeKind::Table => panic!("its columns are known only with its data"),
    }
}

fn categories(num_vars: usize, cats: u32) -> RowShape {
    RowShape::of(num_vars, ValueKind::Categories(cats))
}

/// A few random rows of that shape. Few categories, so that pairs of variables are counted and a test stays quick.
fn rows(shape: &RowShape) -> Batch {
    let ValueKind::Categories(cats) = shape.values else { panic!("categories") };
    let mut rng = Rng::new(5);
    let values: Vec<u16> = (0..24 * shape.num_vars).map(|_| rng.below((cats as usize).min(16)) as u16).collect();
    Batch::from_rows(&values, shape.num_vars).unwrap()
}

/// The same model with few latents, so that a test stays quick; the structure is what is looked at.
fn small(mut spec: PipelineSpec) -> PipelineSpec {
    match &mut spec.circuit.model {
        ModelSpec::Hmm { latents, .. } | ModelSpec::MonarchHmm { latents, .. } => *latents = 4,
        ModelSpec::Hclt { latents, components, .. } => (*latents, *components) = (4, (*components).min(3)),
        ModelSpec::Pd(pd) | ModelSpec::Pdhclt(pd) => pd.latents = 4,
        ModelSpec::RatSpn { latents, .. } => *latents = 4,
        ModelSpec::File { .. } => {}
    }
    spec
}

#[test]
fn every_pipeline_builds_a_circuit_and_an_optimizer_for_its_rows() {
    let pipelines = pipelines();
    assert!(pipelines.len() >= 7, "{} pipelines", pipelines.len());
    for (name, spec) in pipelines {
        let spec = small(spec);
        let shape = shape(&spec);
        let sample = rows(&shape);
        let circuit =
            build_circuit(&spec.circuit, &shape, needs_sample(&spec.circuit, &shape).then_some(&sample), &|_| ());
        let circuit = std::sync::Arc::new(circuit.unwrap_or_else(|e| panic!("{name}: {e}")));
        assert_eq!(circuit.num_vars(), shape.num_vars, "{name}");
        circuit.check_batch(&sample).unwrap_or_else(|e| panic!("{name}: {e}"));
        let params = initial_params(&spec.circuit, &circuit, Some(&sample)).unwrap();
        let mut backend = CpuBackend::new(circuit.clone(), &params, &CpuOptions::default()).unwrap();
        spec.learn.optimizer.build(&mut backend).unwrap_or_else(|e| panic!("{name}: {e}"));
        let memory = estimate(&circuit, &spec.learn.optimizer, spec.batch.rows, 1 << 30, spec.pipeline.memory);
        assert!(memory.parameters > 0 && memory.total() > memory.parameters, "{name}: {memory:?}");
    }
}

#[test]
fn every_pipeline_reads_back_from_its_resolved_form() {
    for (name, spec) in pipelines() {
        let text = spec.to_toml().unwrap();
        assert_eq!(PipelineSpec::parse(&text, "resolved.toml").unwrap(), spec, "{name}:\n{text}");
    }
}

#[test]
fn every_pipeline_opens_with_what_it_shows_and_how_it_becomes_full_batch_em() {
    for (name, spec) in pipelines() {
        let text = std::fs::read_to_string(folder().join(format!("{name}.toml"))).unwrap();
        assert!(text.starts_with("# "), "{name}");
        assert!(text.contains(&format!("anemone train pipelines/{name}.toml")), "{name}");
        assert!(text.contains("--set learn.optimizer=full_batch_em"), "{name}");
        assert!(spec.validate.is_some(), "{name} holds nothing out");
        let files = spec.source.files.iter().chain(spec.validate.iter().flat_map(|v| &v.source.files));
        for file in files.filter(|file| *file != "-") {
            assert!(file.starts_with("${ANEMONE_DATA}/"), "{name}: {file} is a place of one machine");
        }
    }
}

/// Small models and a few batches: what is shown is that each file fits its data, under its own optimizer and under
/// full-batch EM.
#[test]
fn every_pipeline_learns_from_its_data() {
    let out = tempfile::tempdir().unwrap();
    for (name, spec) in pipelines() {
        if spec.source.kafka.is_some() {
            continue; // `kafka.rs` runs them where there is a broker
        }
        // `${ANEMONE_DATA}/wikitext2/train-*.parquet` is of the data set `wikitext2`; what arrives is of none.
        if let Some(file) = spec.source.files.first()
            && file.split('/').nth(1).and_then(data).is_none()
        {
            continue;
        }
        for optimizer in ["anemone", "full-batch-em"] {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_anemone"));
            command.args(["train", "--json", "--out"]).arg(out.path().join(format!("{name}-{optimizer}")));
            command.arg(folder().join(format!("{name}.toml")));
            let optimizer = format!("learn.optimizer={optimizer}");
            let mut settings =
                vec!["learn.batches=3", "batch.rows=32", "circuit.latents=8", "validate.rows=40", &optimizer];
            if learns_structure(&spec.circuit) {
                settings.push("circuit.structure_rows=300");
            }
            command.args(settings.iter().flat_map(|setting| ["--set", setting]));
            command.env("ANEMONE_DATA", data_folder());
            let output = command.output().unwrap();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            let lines = String::from_utf8(output.stdout).unwrap();
            let events: Vec<serde_json::Value> =
                lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let finished = events.iter().find(|event| event["event"] == "finished").expect("a run ends with a line");
            assert_eq!(finished["step"], 3, "{name}");
            assert!(finished["valid_ll"].as_f64().is_some_and(|ll| ll.is_finite() && ll < 0.0), "{name}: {finished}");
        }
    }
}
