//! A pipeline as the command line gives it: a file, or a few flags that mean one.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::words;
use crate::error::{Error, Result};
use crate::pipeline::overrides;
use crate::pipeline::spec::{Document, Format, PipelineSpec, load_document};

/// Which pipeline.
#[derive(Args, Clone, Debug)]
pub(super) struct PipelineArgs {
    /// Pipeline file (TOML); without it, --data and the flags beside it say what to learn
    #[arg(value_name = "FILE.toml")]
    file: Option<PathBuf>,
    /// Change a key for this run, such as --set batch.rows=64; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// What to learn from: paths or patterns in quotes (.parquet, .csv, .jsonl, .bin, .npy, …)
    #[arg(long, value_name = "PATTERN", num_args = 1.., conflicts_with = "file")]
    data: Vec<String>,
    /// What the data is: parquet, csv, jsonl, tokens, npy, arrow; without it the ending says so, and - is Arrow
    #[arg(long, requires = "data", conflicts_with = "file")]
    format: Option<String>,
    /// Reads one .jsonl or .bin file as it is written, without an end
    #[arg(long, requires = "data", conflicts_with = "file")]
    follow: bool,
    /// Watch for files that match --data and learn from each as it appears, without an end
    #[arg(long, requires = "data", conflicts_with = "file")]
    watch: bool,
    /// The column that holds the records
    #[arg(long, requires = "data", conflicts_with = "file")]
    column: Option<String>,
    /// Columns of numbers, one for each variable: names with commas between; x* is all that begin with x
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    #[arg(requires = "data", conflicts_with_all = ["file", "column"])]
    columns: Vec<String>,
    /// The data is a table whose columns mean something each: names, truths, counts, numbers, times; `anemone check`
    /// says how they are understood, --set columns.NAME.as=… what one is instead
    #[arg(long, requires = "data", conflicts_with_all = ["file", "column"])]
    table: bool,
    /// The model: hmm, monarch-hmm, hclt, pd, pdhclt, rat-spn
    #[arg(long, requires = "data", conflicts_with = "file", value_parser = words::MODELS, hide_possible_values = true)]
    model: Option<String>,
    /// Its hidden states
    #[arg(long, requires = "data", conflicts_with = "file")]
    latents: Option<u64>,
    /// What to hold out
    #[arg(long, value_name = "PATTERN", num_args = 1.., requires = "data", conflicts_with = "file")]
    valid: Vec<String>,
    /// Passes over the data, in place of what a pipeline file says
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Rows in a batch
    #[arg(long, requires = "data", conflicts_with = "file")]
    batch_rows: Option<u64>,
    #[arg(long, requires = "data", conflicts_with = "file")]
    #[arg(value_parser = words::OPTIMIZERS, hide_possible_values = true)]
    #[arg(help = format!("The optimizer: {}", words::OPTIMIZERS.list()))]
    optimizer: Option<String>,
}

/// A pipeline that was understood.
#[derive(Debug)]
pub(super) struct Understood {
    /// The pipeline.
    pub spec: PipelineSpec,
    /// What a run of it is called.
    pub name: String,
    /// What a user should be told about how it was understood.
    pub notes: Vec<String>,
}

impl PipelineArgs {
    /// The pipeline file, if one is named.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The same with a pipeline file where neither a file nor data is named.
    pub fn or_file(&self, file: impl FnOnce() -> Option<PathBuf>) -> Self {
        let is_silent = self.file.is_none() && self.data.is_empty();
        Self { file: if is_silent { file() } else { self.file.clone() }, ..self.clone() }
    }

    /// Reads the file or the flags.
    pub fn understand(&self) -> Result<Understood> {
        let mut document = match &self.file {
            Some(file) => {
                refuse_data(file)?;
                load_document(file)?
            }
            None => self.flags_as_document()?,
        };
        let notes = overrides::apply(&mut document, &self.set)?;
        if let Some(epochs) = self.epochs {
            document.set("learn.epochs", json!(epochs), "--epochs")?;
        }
        let spec = PipelineSpec::from_document(&document)?;
        let stem = self.file.as_deref().and_then(Path::file_stem).map(|stem| stem.to_string_lossy().into_owned());
        let name = spec.name.clone().or(stem).unwrap_or_else(|| spec.circuit.model.name().to_string());
        Ok(Understood { spec, name, notes })
    }

    /// The pipeline that the flags mean; a mistake in a value names its flag.
    fn flags_as_document(&self) -> Result<Document> {
        let mut document = Document::new("the command line");
        let some = |values: &Vec<String>| (!values.is_empty()).then(|| json!(values));
        let flags: [(&str, &str, Option<Value>); 12] = [
            ("source.files", "--data", some(&self.data)),
            ("source.format", "--format", self.format.as_ref().map(|format| json!(format))),
            ("source.follow", "--follow", self.follow.then_some(json!(true))),
            ("source.watch", "--watch", self.watch.then_some(json!(true))),
            ("source.column", "--column", self.column.as_ref().map(|column| json!(column))),
            ("source.columns", "--columns", some(&self.columns)),
            ("decode.kind", "--table", self.table.then_some(json!("table"))),
            ("batch.rows", "--batch-rows", self.batch_rows.map(Value::from)),
            ("circuit.model", "--model", self.model.as_ref().map(|model| json!(model))),
            ("circuit.latents", "--latents", self.latents.map(Value::from)),
            ("learn.optimizer", "--optimizer", self.optimizer.as_ref().map(|optimizer| json!(optimizer))),
            ("validate.files", "--valid", some(&self.valid)),
        ];
        for (path, flag, value) in flags {
            if let Some(value) = value {
                document.set(path, value, flag)?;
            }
        }
        if document.root().is_empty() {
            return Err(Error::option("say what to learn: a pipeline file, or --data"));
        }
        Ok(document)
    }
}

/// A file of data in place of a pipeline is a slip that the text of a parser would not explain.
fn refuse_data(file: &Path) -> Result<()> {
    let name = file.to_string_lossy();
    match Format::of(&name) {
        Some(_) => Err(Error::option(format!("{name}: is data, not a pipeline file; to learn from it: --data {name}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::optim::OptimizerSpec;
    use crate::pipeline::spec::ModelSpec;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        pipeline: PipelineArgs,
    }

    fn parse(args: &[&str]) -> std::result::Result<PipelineArgs, String> {
        let args = ["anemone"].iter().chain(args);
        Command::try_parse_from(args).map(|command| command.pipeline).map_err(|e| e.to_string())
    }

    #[test]
    fn flags_are_a_pipeline_and_their_mistakes_name_them() {
        let args =
            ["--data", "a.parquet", "b.parquet", "--model", "hclt", "--latents", "8", "--optimizer", "full-batch-em"];
        let understood = parse(&args).unwrap().understand().unwrap();
        assert_eq!(understood.spec.source.files, ["a.parquet", "b.parquet"]);
        assert_eq!(understood.spec.circuit.model, ModelSpec::Hclt { latents: 8, components: 1, tie_inputs: false });
        assert!(matches!(understood.spec.learn.optimizer, OptimizerSpec::FullBatchEm(_)));
        assert_eq!(understood.name, "hclt");
        for (args, words) in [
            (&["--data", "a.dat"][..], "--data: source.files"),
            (&["--data", "a.npy", "--latents", "0"], "--latents: circuit.latents = 0: must be at least 1"),
            (
                &["--data", "a.npy", "--model", "hlct"],
                "--model: circuit.model = \"hlct\": unknown; did you mean `hclt`?",
            ),
            (&["--data", "a.npy", "--column", "x"], "--column: source.column"),
        ] {
            let error = parse(args).unwrap().understand().unwrap_err().to_string();
            assert!(error.starts_with(words), "{args:?}: {error}");
        }
    }

    #[test]
    fn flags_and_a_file_contradict_each_other() {
        for args in [&["p.toml", "--latents", "3"][..], &["p.toml", "--data", "a.npy"], &["--latents", "3"]] {
            assert!(parse(args).is_err(), "{args:?}");
        }
        let error = parse(&[]).unwrap().understand().unwrap_err().to_string();
        assert!(error.contains("a pipeline file, or --data"), "{error}");
    }

    #[test]
    fn a_file_learns_for_as_many_epochs_as_the_flag_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        std::fs::write(&path, "[source]\nfiles = \"a.npy\"\n[learn]\nepochs = 3\nbatches = 9\n").unwrap();
        let path = path.to_str().unwrap();
        let spec = |args: &[&str]| parse(args).unwrap().understand().map(|understood| understood.spec);
        let changed = spec(&[path, "--epochs", "7", "--set", "learn.epochs=5"]).unwrap();
        assert_eq!((changed.learn.epochs, changed.learn.batches), (Some(7), Some(9)));
        assert!(changed.to_toml().unwrap().contains("epochs = 7"));
        assert_eq!(spec(&["--data", "a.npy", "--epochs", "2"]).unwrap().learn.epochs, Some(2));
        let error = spec(&[path, "--epochs", "0"]).unwrap_err().to_string();
        assert!(error.starts_with("--epochs: learn.epochs = 0: must be at least 1"), "{error}");
    }

    #[test]
    fn a_file_names_its_run_unless_it_says_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        std::fs::write(&path, "[source]\nfiles = \"a.npy\"\n").unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(parse(&[path]).unwrap().understand().unwrap().name, "mine");
        assert_eq!(parse(&[path, "--set", "name=other"]).unwrap().understand().unwrap().name, "other");
        let understood = parse(&[path, "--set", "learn.optimizer=sgd"]).unwrap().understand().unwrap();
        assert_eq!(understood.notes.len(), 1, "{:?}", understood.notes);
    }
}
