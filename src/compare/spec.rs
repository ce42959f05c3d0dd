//! A comparison as it is written: a pipeline, and several contenders that learn it.
//!
//! ```toml
//! [compare]
//! pipeline = "../../wikitext-hmm.toml"   # beside this file
//! epochs = 40
//! seeds = [1, 2, 3]
//! search_epochs = 10
//!
//! [set]                                  # changes of the pipeline, for all contenders
//! circuit.latents = 64
//!
//! [contender.anemone]
//! learn.optimizer = "anemone"
//! learn.step = { try = [0.2, 0.4] }      # the better one after search_epochs is taken
//!
//! [contender."without momentum"]
//! like = "anemone"                       # the same, with what its search found, but for
//! learn.momentum = 0.0
//!
//! [contender."full-batch EM"]
//! seeds = [1]                            # fewer than the others
//! learn.optimizer = "full_batch_em"
//! ```
//!
//! Also in `[compare]`: `title` and `about` for the report, `test`, the files of test rows, and `thresholds`,
//! log-likelihoods whose first crossing is asked for; `[reference.NAME]` with `valid` or `test` is a model to beat. The
//! pipeline is found beside this file, data as in a pipeline.
//!
//! Contenders share data, decoder, circuit, start and order of rows; they differ in how they learn (`learn`) and in how
//! many rows they take at once (`batch.rows`). A contender that shows what a start is worth says its own
//! (`circuit.start`, `circuit.perturbation`); the structure stays shared. Everything is understood, including every
//! combination of options to try, before anything is learned.
//!
//! Schedules in the file are written for its `epochs` and for the size of batches beside them. A trial of fewer epochs,
//! or a run with `--epochs`, goes the same way from the first step to the last in as many epochs as it has: a schedule
//! that ends with small steps must be judged by its end.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Value, json};

use super::findings::{Reference, Setting};
use super::keys;
use crate::error::{Error, Result};
use crate::pipeline::overrides::{Change, apply_changes};
use crate::pipeline::spec::{Document, PipelineSpec, Section, inline, load_document};
use crate::pipeline::suggest::hint;

/// A comparison that was understood.
#[derive(Clone, Debug)]
pub struct ComparisonSpec {
    /// Names its folder and its files: the stem of the file.
    pub name: String,
    /// What is compared, in a line.
    pub title: String,
    /// The same in a few sentences; may be empty.
    pub about: String,
    /// Epochs of every run.
    pub epochs: u64,
    /// The epochs that schedules were written for.
    written_epochs: u64,
    /// Epochs of every trial of a search.
    pub search_epochs: u64,
    /// One run each. A search has the first.
    pub seeds: Vec<u64>,
    /// Likelihoods whose first crossing is asked for, ascending.
    pub thresholds: Vec<f64>,
    /// Models to beat.
    pub references: Vec<Reference>,
    /// Files of test rows; empty if there are none.
    pub test: Vec<String>,
    /// The contenders, in the order of the file; one that is `like` another comes after it.
    pub contenders: Vec<ContenderSpec>,
    /// The pipeline with `[set]` and the command line applied.
    base: Document,
}

/// A contender as it is written.
#[derive(Clone, Debug)]
pub struct ContenderSpec {
    /// Its name.
    pub name: String,
    /// The contender that it takes everything from that it does not say itself.
    pub like: Option<String>,
    /// The seeds it runs under: all, or as many of them as it says. A baseline may have fewer than the headline.
    pub seeds: Vec<u64>,
    /// What it says itself; values may be choices.
    options: Vec<Change>,
}

/// Options with a value each: what a contender or a trial learns with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    changes: Vec<Change>,
}

/// What the command line changes about a file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--set`.
    pub(crate) set: Vec<Change>,
    /// `--epochs`.
    pub epochs: Option<u64>,
    /// `--seeds`.
    pub seeds: Vec<u64>,
}

impl ComparisonSpec {
    /// Reads a comparison and its pipeline.
    pub fn load(path: &Path, overrides: &Overrides) -> Result<Self> {
        let document = load_document(path)?;
        let name = path.file_stem().map(|stem| slug(&stem.to_string_lossy())).unwrap_or_default();
        if name.is_empty() {
            return Err(Error::option(format!("{}: the name of the file needs a letter or a digit", path.display())));
        }
        let compare = Section::open(&document, "compare")?.only(keys::COMPARE.keys, |_| None)?;
        let Some(pipeline) = compare.text("pipeline")? else {
            return Err(
                compare.refuse("pipeline", "is missing: the pipeline file that everybody learns, beside this one")
            );
        };
        let mut base = load_document(&path.parent().unwrap_or(Path::new("")).join(&pipeline))
            .map_err(|e| e.at(compare.at("pipeline")))?;
        apply_changes(&mut base, &options_of(&document, "set", not_for_everybody)?)?;
        for change in &overrides.set {
            if let Some(why) = not_for_everybody(&change.path) {
                return Err(Error::option(format!("--set {}: {why}", change.path)));
            }
        }
        apply_changes(&mut base, &overrides.set)?;
        base.settle(); // what an optimizer does not know of all this is left out of its run
        ["learn.epochs", "learn.batches", "learn.seconds"].iter().for_each(|limit| {
            base.remove(limit);
        });
        let written_epochs = compare.whole("epochs", 1)?.or(overrides.epochs);
        let written_epochs =
            written_epochs.ok_or_else(|| compare.refuse("epochs", "is missing: how long everybody learns"))?;
        let epochs = overrides.epochs.unwrap_or(written_epochs);
        let written = if compare.has("seeds") { seeds(&compare)? } else { vec![1] };
        let mut thresholds = numbers(&compare, "thresholds")?;
        thresholds.sort_by(f64::total_cmp);
        if overrides.seeds.iter().collect::<HashSet<_>>().len() < overrides.seeds.len() {
            return Err(Error::option("--seeds: expected different numbers"));
        }
        let mut contenders = contenders(&document, &written)?;
        for contender in &contenders {
            let is_own = |change: &&Change| contender.options.iter().any(|option| option.path == change.path);
            if let Some(change) = overrides.set.iter().find(is_own) {
                let why = format!("contender {:?} has a value of its own: change it in the file", contender.name);
                return Err(Error::option(format!("--set {}: {why}", change.path)));
            }
        }
        if !overrides.seeds.is_empty() {
            contenders.iter_mut().for_each(|contender| contender.seeds.clone_from(&overrides.seeds));
        }
        let seeds = if overrides.seeds.is_empty() { written } else { overrides.seeds.clone() };
        let spec = Self {
            title: compare.text("title")?.unwrap_or_else(|| name.clone()),
            about: compare.text("about")?.unwrap_or_default().trim().to_string(),
            epochs,
            written_epochs,
            search_epochs: compare.whole("search_epochs", 1)?.unwrap_or(epochs).min(epochs),
            seeds,
            thresholds,
            references: references(&document)?,
            test: compare.texts("test")?.unwrap_or_default(),
            contenders,
            base,
            name,
        };
        spec.check(&document)?;
        Ok(spec)
    }

    /// Refuses what could not be compared, and every option that cannot be.
    fn check(&self, document: &Document) -> Result<()> {
        for key in document.root().keys() {
            let known = ["compare", "set", "reference", "contender"];
            if !known.contains(&key.as_str()) {
                let place = document.place(key);
                return Err(Error::option(format!("{place}: {key}: unknown section; {}", hint(key, known))));
            }
        }
        let shared = PipelineSpec::from_document(&self.base)?;
        let refuse = |why: &str| Err(Error::option(format!("{}: {why}", document.place("compare.pipeline"))));
        match &shared.validate {
            None => {
                return refuse(
                    "the pipeline holds nothing out, and optimizers are compared by held-out rows: give it [validate]",
                );
            }
            Some(validate) if validate.every_batches.is_some() || validate.every_epochs != Some(1) => {
                return refuse(
                    "optimizers are compared after every epoch: leave out validate.every_batches and every_epochs",
                );
            }
            Some(_) => {}
        }
        for contender in &self.contenders {
            for choice in self.trials(contender)? {
                self.pipeline(&choice, self.seeds[0], self.epochs)?;
            }
        }
        Ok(())
    }

    /// The pipeline that all contenders share, under one seed: data and circuit are its, and the start of a contender
    /// that says none.
    pub fn shared(&self, seed: u64) -> Result<PipelineSpec> {
        self.pipeline(&Choice::default(), seed, self.epochs)
    }

    /// The pipeline of a contender that made its choice.
    pub fn pipeline(&self, choice: &Choice, seed: u64, epochs: u64) -> Result<PipelineSpec> {
        let mut document = self.base.clone();
        apply_changes(&mut document, &choice.changes)?;
        for path in ["batch.seed", "circuit.seed"] {
            document.set(path, json!(seed), "seeds")?;
        }
        document.set("learn.epochs", json!(epochs), "epochs")?;
        // The last checkpoint is for resuming, and is the model. Writing each best one would take time from learning.
        document.set("checkpoint.keep", json!(1), "compare")?;
        document.set("checkpoint.keep_best", json!(false), "compare")?;
        let mut pipeline = PipelineSpec::from_document(&document)?;
        pipeline.learn.optimizer = pipeline.learn.optimizer.stretched(epochs as f64 / self.written_epochs as f64);
        Ok(pipeline)
    }

    /// Every combination of the options that a contender searches; one if it searches none.
    pub fn trials(&self, contender: &ContenderSpec) -> Result<Vec<Choice>> {
        let mut choices = match contender.like.as_deref() {
            None => vec![Choice::default()],
            // Only to be understood: a run takes what the other's search found.
            Some(other) => match self.contenders.iter().find(|other_one| other_one.name == other) {
                Some(other) => self.trials(other)?,
                None => Vec::new(),
            },
        };
        for option in &contender.options {
            choices = combine(&choices, option)?;
        }
        Ok(choices)
    }

    /// What a contender tries, if the one that it is like has made its `inherited` choice.
    pub fn trials_after(&self, contender: &ContenderSpec, inherited: &Choice) -> Result<Vec<Choice>> {
        contender.options.iter().try_fold(vec![inherited.clone()], |choices, option| combine(&choices, option))
    }
}

impl Choice {
    /// The options, for people.
    pub fn settings(&self) -> Vec<Setting> {
        let shown = |change: &Change| Setting { key: change.path.clone(), value: inline(&change.value) };
        self.changes.iter().map(shown).collect()
    }

    /// Those options of which there is another value in one of `others`.
    pub fn searched(&self, others: &[Self]) -> Vec<Setting> {
        let differs = |setting: &Setting| others.iter().any(|other| !other.settings().contains(setting));
        self.settings().into_iter().filter(differs).collect()
    }
}

/// All choices with one more option: once for each value that it may have.
fn combine(choices: &[Choice], option: &Change) -> Result<Vec<Choice>> {
    let values = match option.value.as_object().and_then(|table| table.get("try")) {
        None => vec![option.value.clone()],
        Some(Value::Array(values)) if !values.is_empty() => values.clone(),
        Some(_) => {
            let why = "expected a list of at least one value";
            return Err(Error::option(format!("{}: {}.try: {why}", option.place, option.path)));
        }
    };
    let with = |(choice, value): (&Choice, Value)| {
        let mut changes = choice.changes.clone();
        changes.retain(|change| change.path != option.path);
        changes.push(Change { value, ..option.clone() });
        Choice { changes }
    };
    Ok(choices.iter().flat_map(|choice| values.iter().map(move |value| (choice, value.clone()))).map(with).collect())
}

/// Why a key of a pipeline is not for `[set]`.
fn not_for_everybody(path: &str) -> Option<String> {
    let why = match path {
        "learn.epochs" => "is the comparison's: epochs in [compare], or --epochs",
        "learn.batches" | "learn.seconds" => "cannot be compared by: everybody learns for so many epochs",
        "batch.seed" | "circuit.seed" => "is the comparison's: seeds in [compare], or --seeds",
        _ => return None,
    };
    Some(why.to_string())
}

/// The keys of a table of sections, as changes to a pipeline. `refuse` says what is wrong with a path.
fn options_of(document: &Document, table: &str, refuse: impl Fn(&str) -> Option<String>) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for section in document.keys_in_order(table) {
        let inside = format!("{table}.{section}");
        let Some(Value::Object(_)) = document.get(&inside) else {
            let place = document.place(&inside);
            let why = "expected a key of a pipeline with its section, such as learn.step";
            return Err(Error::option(format!("{place}: {section}: {why}")));
        };
        for key in document.keys_in_order(&inside) {
            let (written, path) = (format!("{inside}.{key}"), format!("{section}.{key}"));
            let place = document.place(&written);
            if let Some(why) = refuse(&path) {
                return Err(Error::option(format!("{place}: {path}: {why}")));
            }
            if let Some(value) = document.get(&written) {
                changes.push(Change { path, value: value.clone(), place });
            }
        }
    }
    Ok(changes)
}

fn contenders(document: &Document, seeds: &[u64]) -> Result<Vec<ContenderSpec>> {
    let mut contenders: Vec<ContenderSpec> = Vec::new();
    let mut slugs = HashSet::new();
    // A dot in a name would be taken for a path.
    if let Some(name) =
        document.keys_in_order("contender").iter().find(|name| name.contains('.') || slug(name).is_empty())
    {
        return Err(Error::option(format!(
            "{}: contender {name:?}: a name needs letters or digits, and no dot",
            document.place("contender")
        )));
    }
    for name in document.keys_in_order("contender") {
        let path = format!("contender.{name}");
        let place = document.place(&path);
        let refuse = |why: String| Error::option(format!("{place}: contender {name:?}: {why}"));
        if !matches!(document.get(&path), Some(Value::Object(_))) {
            return Err(refuse("expected a table, such as { learn.optimizer = \"full_batch_em\" }".into()));
        }
        if !slugs.insert(slug(&name)) {
            return Err(refuse("another one's folder would have the same name".into()));
        }
        let mut own = document.clone();
        let like = match own.get(&format!("{path}.like")) {
            None => None,
            Some(Value::String(other)) if contenders.iter().any(|known| known.name == *other) => Some(other.clone()),
            Some(other) => {
                let known = contenders.iter().map(|known| known.name.as_str());
                let text = other.as_str().map_or_else(|| other.to_string(), str::to_string);
                let hint = hint(&text, known.collect::<Vec<_>>());
                return Err(refuse(format!("like = {other}: no contender above it has that name; {hint}")));
            }
        };
        let seeds = match own.get(&format!("{path}.seeds")).map(Value::as_array) {
            None => seeds.to_vec(),
            Some(own) => {
                let own: Vec<Option<u64>> = own.map(|own| own.iter().map(Value::as_u64).collect()).unwrap_or_default();
                if own.is_empty() || own.iter().any(|seed| seed.is_none_or(|seed| !seeds.contains(&seed))) {
                    return Err(refuse(format!("seeds: expected a list of some of {seeds:?}")));
                }
                seeds.iter().copied().filter(|seed| own.contains(&Some(*seed))).collect()
            }
        };
        // What is left has a dot, and is the pipeline's.
        keys::CONTENDER.keys.iter().filter(|key| !key.name.contains('.')).for_each(|key| {
            own.remove(&format!("{path}.{}", key.name));
        });
        let shared = |path: &str| {
            let allowed = path.starts_with("learn.") || keys::OF_A_START.contains(&path) || path == "batch.rows";
            let limits = ["learn.epochs", "learn.batches", "learn.seconds"];
            let why = "is the same for everybody (put it into [set], or epochs into [compare])";
            (!allowed || limits.contains(&path)).then(|| why.to_string())
        };
        let options = options_of(&own, &path, shared)?;
        contenders.push(ContenderSpec { name, like, seeds, options });
    }
    if contenders.is_empty() {
        return Err(Error::option(format!("{}: no [contender.NAME]: nobody to compare", document.place("contender"))));
    }
    Ok(contenders)
}

fn references(document: &Document) -> Result<Vec<Reference>> {
    let mut references = Vec::new();
    for name in document.keys_in_order("reference") {
        if name.contains('.') {
            let place = document.place("reference");
            return Err(Error::option(format!("{place}: reference {name:?}: a name has no dot")));
        }
        let path = format!("reference.{name}");
        let section = Section::open(document, &path)?.only(keys::REFERENCE.keys, |_| None)?;
        let finite = |key| section.number(key, f64::is_finite, "a number");
        references.push(Reference { valid: finite("valid")?, test: finite("test")?, name });
    }
    Ok(references)
}

fn numbers(section: &Section<'_>, key: &str) -> Result<Vec<f64>> {
    let Some(value) = section.value(key) else { return Ok(Vec::new()) };
    let numbers = value.as_array().and_then(|items| items.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>());
    numbers.ok_or_else(|| section.refuse(key, "expected a list of numbers"))
}

fn seeds(section: &Section<'_>) -> Result<Vec<u64>> {
    let items = section.value("seeds").and_then(Value::as_array);
    let seeds: Option<Vec<u64>> = items.and_then(|items| items.iter().map(Value::as_u64).collect());
    let seeds = seeds.filter(|seeds| !seeds.is_empty() && seeds.iter().collect::<HashSet<_>>().len() == seeds.len());
    seeds.ok_or_else(|| section.refuse("seeds", "expected a list of different whole numbers"))
}

/// A name for files: letters, digits and hyphens.
pub(super) fn slug(name: &str) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    plain.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::spec::Unset;

    const PIPELINE: &str = "[source.synthetic]\nkind = \"hmm\"\nnum_vars = 4\ncats = 3\nlatents = 2\nrows = 32\n\
        [circuit]\nlatents = 2\n[learn]\nstep = 0.3\nsmoothing = 1e-4\nepochs = 7\n[validate]\nrows = 16\n";

    const FILE: &str = "[compare]\npipeline = \"p.toml\"\nepochs = 5\nseeds = [3, 4]\nsearch_epochs = 2\n\
        thresholds = [-1, -2.5]\n\
        [set]\ncircuit.latents = 3\nlearn.momentum = 0.5\n[reference.uniform]\nvalid = -4.4\n\
        [contender.second]\nlearn = { optimizer = \"anemone\", step = { try = [0.1, 0.2] } }\n\
        batch.rows = { try = [8, 16] }\n\
        [contender.\"a, plain\"]\nlike = \"second\"\nlearn.momentum = 0.0\n\
        [contender.em]\nseeds = [4]\nlearn.optimizer = \"full_batch_em\"\n";

    fn load(text: &str, overrides: &Overrides) -> Result<ComparisonSpec> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("p.toml"), PIPELINE).unwrap();
        let path = folder.path().join("My file.toml");
        std::fs::write(&path, text).unwrap();
        ComparisonSpec::load(&path, overrides)
    }

    #[test]
    fn contenders_keep_their_order_share_the_pipeline_and_differ_in_how_they_learn() {
        let spec = load(FILE, &Overrides::default()).unwrap();
        assert_eq!((spec.name.as_str(), spec.title.as_str()), ("my-file", "my-file"));
        assert_eq!((spec.epochs, spec.search_epochs, &spec.seeds[..]), (5, 2, &[3, 4][..]));
        assert_eq!(spec.thresholds, [-2.5, -1.0]);
        assert_eq!(spec.references, [Reference { name: "uniform".into(), valid: Some(-4.4), test: None }]);
        let names: Vec<&str> = spec.contenders.iter().map(|contender| contender.name.as_str()).collect();
        assert_eq!(names, ["second", "a, plain", "em"]);
        let trials = spec.trials(&spec.contenders[0]).unwrap();
        assert_eq!(trials.len(), 4);
        let pipeline = spec.pipeline(&trials[3], 4, 2).unwrap();
        assert_eq!((pipeline.batch.rows, pipeline.batch.seed, pipeline.circuit.seed), (16, 4, 4));
        assert_eq!(pipeline.learn.epochs, Some(2));
        let searched = trials[3].searched(&trials);
        let shown: Vec<(&str, &str)> = searched.iter().map(|s| (s.key.as_str(), s.value.as_str())).collect();
        assert_eq!(shown, [("learn.step", "0.2"), ("batch.rows", "16")]);
        // What was found is passed on, what is said again replaces it.
        let plain = spec.trials_after(&spec.contenders[1], &trials[3]).unwrap();
        assert_eq!(plain.len(), 1);
        let settings = plain[0].settings();
        assert!(settings.contains(&searched[0]) && settings.iter().any(|s| s.key == "learn.momentum"), "{settings:?}");
        assert_eq!((&spec.contenders[0].seeds[..], &spec.contenders[2].seeds[..]), (&[3, 4][..], &[4][..]));
        // A start of its own is a contender's; all contenders share the rest of the circuit.
        let file = FILE.replacen("learn.momentum = 0.0", "circuit.perturbation = 0.5", 1);
        let other = load(&file, &Overrides::default()).unwrap();
        let choice = &other.trials(&other.contenders[1]).unwrap()[0];
        let circuits = [other.pipeline(choice, 3, 5).unwrap().circuit, other.shared(3).unwrap().circuit];
        assert_eq!([circuits[0].perturbation, circuits[1].perturbation], [0.5, 8.0]);
        assert_eq!(circuits[0].model, circuits[1].model);
        // Full-batch EM has no step; the pipeline's is left out.
        assert!(spec.pipeline(&spec.trials(&spec.contenders[2]).unwrap()[0], 3, 5).is_ok());
    }

    #[test]
    fn what_is_left_out_is_as_documented() {
        let least = "[compare]\npipeline = \"p.toml\"\nepochs = 5\n[contender.em]\n";
        let spec = load(least, &Overrides::default()).unwrap();
        let documented = |name: &str| match keys::COMPARE.key(name).unwrap().unset {
            Unset::Value(value) => value,
            _ => panic!("{name} has no value"),
        };
        assert_eq!(format!("{:?}", spec.seeds), documented("seeds"));
        assert_eq!((spec.title.as_str(), spec.about.as_str(), spec.search_epochs), ("my-file", "", spec.epochs));
        assert!(spec.thresholds.is_empty() && spec.test.is_empty() && spec.references.is_empty());
        assert_eq!((&spec.contenders[0].seeds, &spec.contenders[0].like), (&spec.seeds, &None));
        for required in ["pipeline = \"p.toml\"\n", "epochs = 5\n"] {
            let error = load(&least.replace(required, ""), &Overrides::default()).unwrap_err().to_string();
            assert!(error.contains("is missing"), "{error}");
        }
        for (written, wrong) in [("epochs = 5", "epochs = 0"), ("epochs = 5", "epochs = 5\nsearch_epochs = 0")] {
            let error = load(&least.replace(written, wrong), &Overrides::default()).unwrap_err().to_string();
            assert!(error.contains("epochs = 0: must be at least 1"), "{error}");
        }
    }

    #[test]
    fn a_shorter_run_goes_the_whole_way_of_its_schedule() {
        let cosine = "step = { schedule = \"cosine\", from = 0.4, to = 0.1, horizon = 20 }";
        let file = FILE.replacen("step = { try = [0.1, 0.2] }", cosine, 1);
        let horizon = |spec: &ComparisonSpec, epochs| {
            let choice = &spec.trials(&spec.contenders[0]).unwrap()[0];
            json!(spec.pipeline(choice, 3, epochs).unwrap().learn)["step"]["horizon"].as_u64()
        };
        let spec = load(&file, &Overrides::default()).unwrap();
        assert_eq!((horizon(&spec, spec.epochs), horizon(&spec, spec.search_epochs)), (Some(20), Some(8)));
        let spec = load(&file, &Overrides { epochs: Some(10), ..Overrides::default() }).unwrap();
        assert_eq!((horizon(&spec, spec.epochs), horizon(&spec, spec.search_epochs)), (Some(40), Some(8)));
    }

    #[test]
    fn the_command_line_has_the_last_word() {
        let set = vec![crate::pipeline::overrides::parse("circuit.latents=5").unwrap()];
        let overrides = Overrides { set, epochs: Some(2), seeds: vec![9] };
        let spec = load(FILE, &overrides).unwrap();
        assert_eq!((spec.epochs, spec.search_epochs, &spec.seeds[..]), (2, 2, &[9][..]));
        assert!(spec.shared(9).unwrap().to_toml().unwrap().contains("latents = 5"));
    }

    #[test]
    fn mistakes_name_their_line() {
        for (from, to, words) in [
            ("pipeline = \"p.toml\"\n", "", "compare.pipeline: is missing"),
            ("epochs = 5\n", "", "compare.epochs: is missing"),
            ("seeds = [3, 4]", "seeds = [3, 3]", "different whole numbers"),
            ("[set]", "[sett]", "sett: unknown section; did you mean `set`?"),
            ("like = \"second\"", "like = \"secnd\"", "did you mean `second`?"),
            ("learn.momentum = 0.0", "learn.momentun = 0.0", "learn.momentun: unknown key"),
            ("learn.momentum = 0.0", "learn.momentum = 7", "momentum"),
            ("step = { try = [0.1, 0.2] }", "step = { try = [0.1, 7] }", "step"),
            ("step = { try = [0.1, 0.2] }", "step = { try = [] }", "expected a list of at least one value"),
            ("learn.momentum = 0.0", "circuit.latents = 9", "is the same for everybody"),
            ("learn.momentum = 0.0", "learn.epochs = 9", "is the same for everybody"),
            ("learn.momentum = 0.0", "momentum = 0.0", "expected a key of a pipeline with its section"),
            ("[reference.uniform]", "[reference.\"v1.5\"]", "a name has no dot"),
            ("circuit.latents = 3", "validate.every_batches = 3", "compared after every epoch"),
            ("[contender.em]", "[contender.Second]", "the same name"),
            ("[contender.em]", "[contender.\"a.b\"]", "no dot"),
            ("learn.momentum = 0.0", "learn.momentum = 0.0\nseeds = [3, 9]", "some of [3, 4]"),
            ("thresholds = [-1, -2.5]", "thresholds = [-1, \"x\"]", "expected a list of numbers"),
            ("[set]\n", "[set]\nlearn.epochs = 3\n", "learn.epochs: is the comparison's"),
            ("[set]\n", "[set]\ncircuit.seed = 3\n", "circuit.seed: is the comparison's"),
            ("[contender.second]\n", "[contender]\nem2 = \"full_batch_em\"\n[contender.second]\n", "expected a table"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let error = load(&FILE.replacen(from, to, 1), &Overrides::default()).unwrap_err().to_string();
            assert!(error.contains(words), "{to}: {error}");
            assert!(error.contains("My file.toml"), "{to}: {error}");
        }
        for (set, words) in [
            ("learn.seconds=3", "--set learn.seconds: cannot be compared by"),
            ("learn.momentum=0.1", "--set learn.momentum: contender \"a, plain\" has a value of its own"),
        ] {
            let set = vec![crate::pipeline::overrides::parse(set).unwrap()];
            let error = load(FILE, &Overrides { set, ..Overrides::default() }).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
        let error = load(FILE, &Overrides { seeds: vec![1, 1], ..Overrides::default() }).unwrap_err().to_string();
        assert_eq!(error, "--seeds: expected different numbers");
        let error = load("[compare]\npipeline = \"p.toml\"\nepochs = 1\n", &Overrides::default()).unwrap_err();
        assert!(error.to_string().contains("nobody to compare"), "{error}");
    }
}
