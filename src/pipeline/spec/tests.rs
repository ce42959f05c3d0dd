//! What pipelines may say, and what is said to those that may not.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::Union;

use super::*;
use crate::backend::RetainSource;
use crate::circuit::Smoothing;
use crate::data::{CellType, ColumnSchema, Label, Meaning, TableSchema};
use crate::decode::image_spec::Color;
use crate::error::ErrorKind;
use crate::optim::{
    AdamSpec, AnemoneSpec, AverageSpec, Averaging, FullBatchEmSpec, Length, MiniBatchEmSpec, OptimizerSpec, Schedule,
    StepwiseEmSpec,
};
use crate::source::OnGap;
use crate::source::token_width::TokenWidth;

fn parse(text: &str) -> Result<PipelineSpec> {
    PipelineSpec::parse(text, "p.toml")
}

/// A pipeline of which only one section matters.
fn with(section: &str) -> Result<PipelineSpec> {
    parse(&format!("[source]\nfiles = \"a.parquet\"\n{section}"))
}

fn refused(text: &str) -> String {
    with(text).expect_err(text).to_string()
}

#[test]
fn three_lines_are_a_pipeline_and_the_rest_are_defaults() {
    let spec = parse("[source]\nfiles = \"a.parquet\"\ncolumn = \"text\"\n").unwrap();
    assert_eq!(spec.source.format, Some(Format::Parquet));
    assert_eq!((spec.batch.rows, spec.batch.shuffle, spec.batch.seed), (512, true, 1));
    assert_eq!(spec.circuit.model, ModelSpec::Hmm { latents: 64, tying: TyingSpec::Homogeneous });
    assert_eq!(spec.learn.optimizer, OptimizerSpec::Anemone(AnemoneSpec::default()));
    assert_eq!((spec.learn.epochs, spec.learn.batches, spec.learn.seconds), (Some(1), None, None));
    assert_eq!((spec.checkpoint.every_seconds, spec.checkpoint.keep), (Some(300.0), 3));
    assert_eq!((spec.pipeline.memory, spec.pipeline.bad.on_bad), (256 << 20, OnBad::Fail));
    assert_eq!((spec.validate, spec.name), (None, None));
}

#[test]
fn the_start_and_how_far_apart_it_is_depend_on_the_model_and_are_written_out() {
    use StartSpec::{Noise, Rows};
    for (text, start, perturbation) in [
        ("model = \"hmm\"", Some(Rows), 8.0),
        ("model = \"monarch-hmm\"", Some(Rows), 8.0),
        ("model = \"hclt\"", Some(Rows), 2.0),
        ("model = \"hclt\"\ncomponents = 3", Some(Rows), 2.0),
        ("model = \"pdhclt\"", Some(Rows), 2.0),
        ("model = \"pd\"", Some(Noise), 2.0),
        ("model = \"rat-spn\"", Some(Noise), 2.0),
        ("model = \"file\"\npath = \"a.json\"", None, 2.0),
        ("model = \"hmm\"\nstart = \"noise\"", Some(Noise), 2.0),
        ("model = \"hmm\"\nperturbation = 3", Some(Rows), 3.0),
        ("model = \"hclt\"\nstart = \"noise\"\nperturbation = 9", Some(Noise), 9.0),
        ("model = \"rat-spn\"\nstart = \"rows\"", Some(Rows), 2.0),
    ] {
        let spec = with(&format!("[circuit]\n{text}")).unwrap();
        assert_eq!((spec.circuit.start, spec.circuit.perturbation), (start, perturbation), "{text}");
        let resolved = spec.to_toml().unwrap();
        assert!(resolved.contains(&format!("perturbation = {perturbation:.1}\n")), "{resolved}");
        let word = start.map(|start| if start == Rows { "start = \"rows\"\n" } else { "start = \"noise\"\n" });
        assert!(word.is_none_or(|word| resolved.contains(word)) && resolved.contains("start =") == word.is_some());
    }
    assert!(refused("[circuit]\nmodel = \"file\"\npath = \"a.json\"\nstart = \"rows\"").contains("has no meaning for"));
    assert!(refused("[circuit]\nstart = \"row\"").contains("did you mean `rows`?"));
}

#[test]
fn a_limit_replaces_the_default_of_one_epoch() {
    let learn = |text: &str| with(&format!("[learn]\n{text}")).unwrap().learn;
    assert_eq!(learn("batches = 9").epochs, None);
    assert_eq!(learn("seconds = 1.5").epochs, None);
    assert_eq!(learn("epochs = 3\nbatches = 9").epochs, Some(3));
}

#[test]
fn slips_are_refused_with_the_nearest_word_and_their_line() {
    for (text, words) in [
        ("[learn]\nstpe = 0.1", "p.toml:4: learn.stpe: unknown key; did you mean `step`?"),
        ("[leran]\nstep = 0.1", "p.toml:3: leran: unknown section; did you mean `learn`?"),
        (
            "[learn]\noptimizer = \"anemona\"",
            "p.toml:4: learn.optimizer = \"anemona\": unknown; did you mean `anemone`?",
        ),
        ("[circuit]\nmodel = \"hlct\"", "circuit.model = \"hlct\": unknown; did you mean `hclt`?"),
        ("[circuit]\nlatent = 3", "circuit.latent: unknown key; did you mean `latents`?"),
        ("[decode]\nkind = \"txt\"", "decode.kind = \"txt\": unknown; did you mean `text`?"),
        ("[decode]\ncolor = \"rbg\"", "did you mean `rgb`?"),
        ("[batch]\nrow = 3", "batch.row: unknown key; did you mean `rows`?"),
        ("[batch]\nwindow = 3", "batch.window: unknown key; did you mean `decode.window`?"),
        ("[pipeline]\non_bad = \"fial\"", "did you mean `fail`?"),
        ("[learn.step]\nschedule = \"cosin\"", "learn.step.schedule = \"cosin\": unknown; did you mean `cosine`?"),
        (
            "[learn]\nstep = { schedule = \"cosine\", form = 1.0, to = 0.1, horizon = 5 }",
            "p.toml:4: learn.step.form: unknown key; did you mean `from`?",
        ),
        ("[learn]\nsmoothing = { relativ = 1.0 }", "learn.smoothing.relativ: unknown key; did you mean `relative`?"),
        (
            "[learn]\noptimizer = \"adam\"\nstep = 0.1",
            "adam has no such option, it belongs to anemone, mini_batch_em and stepwise_em",
        ),
        ("[validate]\nfile = \"b.parquet\"", "validate.file: unknown key; did you mean `files`?"),
        ("[checkpoint]\nkeep_bset = true", "did you mean `keep_best`?"),
        ("[quux]\na = 1", "quux: unknown section; there are source, decode"),
    ] {
        let error = refused(text);
        assert!(error.contains(words), "{text}: {error}");
    }
    let error = parse("epochs = 3\n[source]\nfiles = \"a.npy\"").unwrap_err().to_string();
    assert_eq!(error, "p.toml:1: epochs: unknown section; did you mean `learn.epochs`?");
}

#[test]
fn wrong_types_and_ranges_say_what_was_expected() {
    for (text, words, kind) in [
        ("[batch]\nrows = 0", "p.toml:4: batch.rows = 0: must be at least 1", ErrorKind::Option),
        ("[batch]\nrows = -1", "batch.rows = -1: must be at least 1", ErrorKind::Option),
        ("[batch]\nrows = 1.5", "batch.rows = 1.5: expected a whole number", ErrorKind::Option),
        ("[batch]\nrows = \"many\"", "batch.rows = \"many\": expected a whole number", ErrorKind::Option),
        ("[batch]\nshuffle = 1", "batch.shuffle = 1: expected true or false", ErrorKind::Option),
        ("[batch]\nshuffle_window = \"a lot\"", "expected a size such as \"256MiB\"", ErrorKind::Option),
        ("[pipeline]\nmemory = \"5B\"", "pipeline.memory = \"5B\": must be at least 1048576 bytes", ErrorKind::Option),
        ("[pipeline]\nmax_bad_fraction = 2", "must be in [0, 1]", ErrorKind::Option),
        ("[learn]\nstep = 1.4", "p.toml:4: learn.step = 1.4: must be in (0, 1]", ErrorKind::Option),
        ("[learn]\nmomentum = 1.0", "learn.momentum = 1: must be in [0, 1)", ErrorKind::Option),
        ("[learn]\nmomentum = \"much\"", "learn.momentum = \"much\": expected a number", ErrorKind::Option),
        ("[learn]\nbatches_per_update = 0", "learn.batches_per_update = 0: must be at least 1", ErrorKind::Option),
        ("[learn]\nsmoothing = -1", "learn.smoothing = -1: must be a number, 0 or more", ErrorKind::Option),
        ("[learn]\nsmoothing = {}", "needs one of relative and absolute", ErrorKind::Option),
        ("[learn]\noptimizer = \"sgd\"\nrate = -1.0", "p.toml:5: learn.rate = -1: must be positive", ErrorKind::Option),
        (
            "[learn.step]\nschedule = \"cosine\"\nfrom = 2.0\nto = 0.1\nhorizon = 9",
            "p.toml:5: learn.step.from = 2: must be in (0, 1]",
            ErrorKind::Option,
        ),
        (
            "[learn.step]\nschedule = \"cosine\"\nfrom = 1.0\nto = 0.1",
            "learn.step.horizon: is missing; cosine needs from, to and horizon",
            ErrorKind::Option,
        ),
        (
            "[learn]\nstep = { schedule = \"power\", from = 0.4, kappa = 0.5 }",
            "p.toml:4: learn.step.delay: is missing; power needs from, kappa and delay",
            ErrorKind::Option,
        ),
        (
            "[learn]\nstep = { schedule = \"power\", from = 0.4, kappa = 0.5, delay = \"3 weeks\" }",
            "p.toml:4: learn.step.delay = \"3 weeks\": expected a number of updates, or a text such as \"10 epochs\"",
            ErrorKind::Option,
        ),
        (
            "[learn.rate]\nschedule = \"cosine\"\nfrom = 1.0\nto = 0.1\nhorizon = \"0 rows\"\n\
             [learn]\noptimizer = \"sgd\"",
            "p.toml:7: learn.rate.horizon = \"0 rows\": must be more than 0",
            ErrorKind::Option,
        ),
        (
            "[learn]\nstep = { schedule = \"power\", from = 0.4, kappa = 0.5, delay = 1, floor = 0.5 }",
            "p.toml:4: learn.step.floor = 0.5: must be in [0, 0.4], not above the first step",
            ErrorKind::Option,
        ),
        (
            "[learn]\nstep = { schedule = \"cosine\", from = 0.4, to = 0.1, horizon = 9, floor = 0.1 }",
            "learn.step.floor: unknown key",
            ErrorKind::Option,
        ),
        ("[learn.step]\nfrom = 1.0", "learn.step.schedule: is missing; there are constant", ErrorKind::Option),
        ("[learn]\nepochs = 0", "learn.epochs = 0: must be at least 1", ErrorKind::Option),
        ("[learn]\nseconds = 0", "learn.seconds = 0: must be positive", ErrorKind::Option),
        ("[circuit]\nperturbation = 100", "must be in [0, 80]", ErrorKind::Option),
        ("[circuit]\nmodel = \"file\"", "circuit.path: is missing", ErrorKind::Option),
        ("[circuit]\nmodel = \"pd\"\nshape = [2, 0]", "circuit.shape = [2,0]: must be at least 1", ErrorKind::Option),
        ("[circuit]\nmodel = \"pd\"\nlatents = 6\nblock_size = 4", "must divide latents = 6", ErrorKind::Option),
        ("[circuit]\nmodel = \"monarch-hmm\"\nlatents = 6\nfactors = [2, 2]", "must multiply", ErrorKind::Option),
        (
            "[circuit]\nmodel = \"hclt\"\ntying = \"homogeneous\"",
            "has no meaning for model = \"hclt\"",
            ErrorKind::Option,
        ),
        (
            "[decode]\nkind = \"rows\"\nwindow = 3",
            "has no meaning for kind = \"rows\", which takes cats",
            ErrorKind::Option,
        ),
        ("[decode]\nkind = \"image\"", "say into what squares", ErrorKind::Option),
        (
            "[decode]\npatch = 4\ncolor = \"grey\"\nlevels = 1",
            "p.toml:6: decode.levels = 1: must be in 2..=256",
            ErrorKind::Option,
        ),
        ("[decode]\npatch = 4\ncolor = \"rgb\"\nlevels = 257", "must be in 2..=256", ErrorKind::Option),
        (
            "[decode]\npatch = 4\nlevels = 16",
            "decode.levels = 16: has no meaning for color = \"ycocg-r\"; say color = \"grey\" or \"rgb\", or leave it \
             out",
            ErrorKind::Option,
        ),
        (
            "[circuit]\nmodel = \"hclt\"\ncomponents = 0",
            "circuit.components = 0: must be at least 1",
            ErrorKind::Option,
        ),
        (
            "[circuit]\nmodel = \"pd\"\ncomponents = 2",
            "components = 2: has no meaning for model = \"pd\"",
            ErrorKind::Option,
        ),
        ("[decode]\npatch = 4\nsize = [1]", "expected a list of 2 whole numbers", ErrorKind::Option),
        ("[decode]\nvocab = 5000000000", "must be at most 4294967295", ErrorKind::Option),
        ("[validate]\nrows = 3", "validate.files: is missing", ErrorKind::Option),
    ] {
        let error = with(text).expect_err(text);
        assert!(error.to_string().contains(words), "{text}: {error}");
        assert_eq!(error.kind(), kind, "{text}: {error}");
    }
    for (text, words) in [
        ("", "p.toml: source.files: is missing"),
        ("source = 3", "p.toml:1: source = 3: is a number, expected a section [source]"),
        ("name = \"a/b\"\n[source]\nfiles = \"a.npy\"", "can name a folder"),
        ("name = 3", "can name a folder"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn files_say_what_they_are_or_are_refused() {
    for (files, format) in [
        ("\"a-*.parquet\"", Format::Parquet),
        ("[\"a.bin\", \"b.bin.zst\"]", Format::Tokens),
        ("\"s3://bucket/a.jsonl.zst\"", Format::Jsonl),
        ("\"a-*.csv\"", Format::Csv),
        ("[\"a.tsv\", \"b.CSV.zst\", \"c.tsv.zst\"]", Format::Csv),
        ("\"-\"\nformat = \"csv\"", Format::Csv),
        ("\"A.NPY\"", Format::Npy),
        ("\"-\"", Format::Arrow),
        ("\"a.dat\"\nformat = \"tokens\"", Format::Tokens),
    ] {
        let spec = parse(&format!("[source]\nfiles = {files}")).expect(files);
        assert_eq!(spec.source.format, Some(format), "{files}");
    }
    let (bin, jsonl) = (parse("[source]\nfiles = \"a.bin\"").unwrap(), parse("[source]\nfiles = \"a.jsonl\"").unwrap());
    assert_eq!((bin.source.tokens, bin.decode.kind), (Some(TokenWidth::U16), Some(DecodeKind::Tokens)));
    assert_eq!((jsonl.source.column.as_deref(), jsonl.decode.kind), (None, None), "the first lines decide");
    for (files, words) in [
        ("[]", "must name at least one"),
        ("\"a.dat\"", "cannot tell the format from the name; there are .parquet"),
        ("[\"a.bin\", \"a.npy\"]", "are of two formats, tokens and npy"),
        ("[\"-\", \"-\"]", "write files = \"-\" alone"),
        ("3", "expected a text in quotes, or a list of them"),
        ("\"a.bin\"\ncolumn = \"x\"", "has no meaning for tokens files, whose format takes tokens"),
        ("\"a.npy\"\nfield = \"x\"", "takes no key"),
        ("\"a.parquet\"\ncolumn = \"x\"\ncolumns = \"y*\"", "has no meaning beside column"),
        ("\"a.parquet\"\n[source.synthetic]", "has no meaning beside [source.synthetic]"),
    ] {
        let error = parse(&format!("[source]\nfiles = {files}")).unwrap_err().to_string();
        assert!(error.contains(words), "{files}: {error}");
    }
}

#[test]
fn what_is_held_out_is_read_as_the_training_files_are() {
    let text = "[source]\nfiles = \"a.parquet\"\ncolumn = \"text\"\n[validate]\nfiles = \"b.parquet\"";
    let valid = parse(text).unwrap().validate.unwrap();
    assert_eq!((valid.source.column.as_deref(), valid.every_epochs), (Some("text"), Some(1)));
    let own = parse(&format!("{text}\ncolumns = [\"x*\"]\nevery_batches = 5")).unwrap().validate.unwrap();
    assert_eq!((own.source.column, own.source.columns), (None, vec!["x*".to_string()]));
    assert_eq!((own.every_epochs, own.every_batches), (None, Some(5)));
    let other = parse(&text.replace("b.parquet", "b.jsonl")).unwrap().validate.unwrap();
    assert_eq!(
        other.source.column.as_deref(),
        Some("text"),
        "the usual one of JSON lines, not that of the Parquet files"
    );
    let made = parse("[source.synthetic]\n[validate]").unwrap();
    assert_eq!(made.validate.unwrap().rows, Some(DEFAULT_HELD_OUT));
    assert_eq!(made.decode.kind, Some(DecodeKind::Rows));
}

#[test]
fn the_former_name_of_a_column_of_json_lines_is_still_read() {
    let text = "[source]\nfiles = \"a.jsonl\"\n[validate]\nfiles = \"b.jsonl\"";
    for key in ["field", "column"] {
        let spec = parse(&text.replace("a.jsonl\"", &format!("a.jsonl\"\n{key} = \"body\""))).unwrap();
        assert_eq!(spec.source.column.as_deref(), Some("body"), "{key}");
        assert_eq!(spec.validate.as_ref().unwrap().source.column.as_deref(), Some("body"), "{key}");
        let resolved = spec.to_toml().unwrap();
        assert!(resolved.contains("column = \"body\"") && !resolved.contains("field"), "{resolved}");
    }
    for (files, words) in [
        ("\"a.jsonl\"\nfield = \"x\"\ncolumn = \"y\"", "source.field = \"x\": is the former name of column"),
        ("\"a.parquet\"\nfield = \"x\"", "has no meaning for parquet files, whose format takes column and columns"),
    ] {
        let error = parse(&format!("[source]\nfiles = {files}")).unwrap_err().to_string();
        assert!(error.contains(words), "{files}: {error}");
    }
}

#[test]
fn csv_is_a_table_with_one_character_between_cells() {
    let text = "[source]\nfiles = \"a.csv\"\ncolumns = [\"x*\"]\ndelimiter = \";\"\n[validate]\nfiles = \"b.csv\"\n";
    let spec = parse(text).unwrap();
    assert_eq!((spec.source.delimiter, spec.decode.kind), (Some(';'), Some(DecodeKind::Table)));
    let held_out = &spec.validate.as_ref().unwrap().source;
    assert_eq!((held_out.delimiter, &held_out.columns), (Some(';'), &spec.source.columns));
    assert_eq!(PipelineSpec::parse(&spec.to_toml().unwrap(), "resolved.toml").unwrap(), spec);
    let rows = parse("[source]\nfiles = \"a.tsv\"\n[decode]\nkind = \"rows\"").unwrap();
    assert_eq!((rows.source.delimiter, rows.decode.kind), (None, Some(DecodeKind::Rows)));
    for (source, words) in [
        ("files = \"a.csv\"\ndelimiter = \"ab\"", "source.delimiter = \"ab\": must be one ASCII character"),
        ("files = \"a.csv\"\ndelimiter = \"\"", "must be one ASCII character"),
        ("files = \"a.csv\"\ndelimiter = '\"'", "must be one ASCII character"),
        ("files = \"a.csv\"\ndelimiter = \"é\"", "must be one ASCII character"),
        ("files = \"a.jsonl\"\ndelimiter = \";\"", "has no meaning for jsonl files"),
        ("files = \"a.csv\"\nfollow = true", "follows JSON lines (.jsonl) or flat tokens (.bin)"),
    ] {
        let error = parse(&format!("[source]\n{source}")).unwrap_err().to_string();
        assert!(error.contains(words), "{source}: {error}");
    }
}

#[test]
fn one_file_of_lines_or_tokens_is_followed_and_standard_input_is_arrow_or_lines() {
    let followed = parse("[source]\nfiles = \"a.jsonl\"\nfollow = true\non_gap = \"skip\"").unwrap();
    assert!(followed.source.is_live() && followed.source.has_fixed_order() && followed.learn.epochs.is_none());
    assert_eq!((followed.source.on_gap, followed.batch.max_wait), (OnGap::Skip, Some(Duration::MAX)));
    assert_eq!(PipelineSpec::parse(&followed.to_toml().unwrap(), "resolved.toml").unwrap(), followed);
    let piped = parse("[source]\nfiles = \"-\"\nformat = \"jsonl\"\ncolumns = [\"a\", \"b\"]").unwrap();
    assert!(piped.source.is_live() && !piped.source.has_fixed_order() && piped.batch.max_wait.is_some());
    for (files, words) in [
        ("[\"a.jsonl\", \"b.jsonl\"]\nfollow = true", "follows one file"),
        ("\"a-*.jsonl\"\nfollow = true", "not a pattern"),
        ("\"s3://b/a.jsonl\"\nfollow = true", "of this machine"),
        ("\"a.jsonl.zst\"\nfollow = true", "not compressed"),
        ("\"a.parquet\"\nfollow = true", "follows JSON lines (.jsonl) or flat tokens (.bin)"),
        ("\"-\"\nformat = \"jsonl\"\nfollow = true", "without being followed"),
        ("\"a.jsonl\"\non_gap = \"skip\"", "has no meaning for files that are neither followed nor watched"),
        ("\"a.jsonl\"\nfollow = true\ndigest = \"whole\"", "has no meaning for a live stream"),
        ("\"-\"\nformat = \"npy\"", "standard input is an Arrow stream, JSON lines or CSV"),
        ("[\"-\", \"a.jsonl\"]\nformat = \"jsonl\"", "standard input is read alone"),
        ("\"a.arrow\"\nformat = \"arrow\"", "an Arrow stream is read from standard input"),
    ] {
        let error = parse(&format!("[source]\nfiles = {files}")).expect_err(files).to_string();
        assert!(error.contains(words), "{files}: {error}");
    }
}

#[test]
fn keys_of_one_kind_say_what_records_are() {
    for (keys, kind) in [
        ("patch = 16", Some(DecodeKind::Image)),
        ("patch = 16\ncolor = \"grey\"\nlevels = 4", Some(DecodeKind::Image)),
        ("tokenizer = \"gpt2\"", Some(DecodeKind::Text)),
        ("vocab = 300", Some(DecodeKind::Tokens)),
        ("cats = 3", Some(DecodeKind::Rows)),
        ("window = 64", None),
        ("", None),
    ] {
        assert_eq!(with(&format!("[decode]\n{keys}")).unwrap().decode.kind, kind, "{keys}");
    }
    assert_eq!(with("[decode]\nwindow = 64").unwrap().decode.window, Some(64));
}

#[test]
fn the_resolved_pipeline_is_in_the_order_of_the_data_and_complete() {
    let text = with("[decode]\nkind = \"text\"").unwrap().to_toml().unwrap();
    let positions: Vec<_> = ["[source]", "[decode]", "[batch]", "[circuit]", "[learn]", "[checkpoint]", "[pipeline]"]
        .map(|section| text.find(section).unwrap_or_else(|| panic!("no {section} in:\n{text}")))
        .into();
    assert!(positions.is_sorted(), "{text}");
    for line in [
        "tokenizer = \"gpt2\"",
        "window = 128",
        "rows = 512",
        "optimizer = \"anemone\"",
        "momentum = 0.0",
        "retain = \"larger\"",
        "memory = \"256MiB\"",
        "epochs = 1",
    ] {
        assert!(text.lines().any(|l| l == line), "no `{line}` in:\n{text}");
    }
    assert!(text.lines().any(|l| l.starts_with("smoothing = ")), "{text}");
}

fn texts(pattern: &'static str) -> impl Strategy<Value = String> {
    proptest::string::string_regex(pattern).unwrap()
}

fn sources() -> impl Strategy<Value = SourceSpec> {
    let files = |ending: &'static str| {
        vec(texts("[a-z${}'\" ]{1,6}"), 1..3).prop_map(move |f| f.iter().map(|f| format!("{f}{ending}")).collect())
    };
    let parquet = (files(".parquet"), option::of(texts("[a-z\"\\\\\n]{1,4}")), vec(texts("[a-z]{1,3}\\*?"), 0..3))
        .prop_map(|(files, column, columns): (Vec<String>, _, _)| SourceSpec {
            files,
            format: Some(Format::Parquet),
            columns: if column.is_some() { Vec::new() } else { columns },
            column,
            ..SourceSpec::default()
        });
    let tokens = (files(".bin"), any::<bool>()).prop_map(|(files, wide)| SourceSpec {
        files,
        format: Some(Format::Tokens),
        tokens: Some(if wide { TokenWidth::U32 } else { TokenWidth::U16 }),
        ..SourceSpec::default()
    });
    let synthetic = (1u64..99, option::of(1u64..1 << 40), option::of(1u64..1000)).prop_map(|(n, rows, drift)| {
        let spec = serde_json::json!({"kind": "mixture", "num_vars": n, "cats": n, "latents": n, "seed": n,
                                      "rows": rows, "drift": drift});
        SourceSpec { synthetic: Some(serde_json::from_value(spec).unwrap()), ..SourceSpec::default() }
    });
    Union::new([parquet.boxed(), tokens.boxed(), synthetic.boxed()])
}

fn decodes() -> impl Strategy<Value = DecodeSpec> {
    let kinds = [DecodeKind::Text, DecodeKind::Tokens, DecodeKind::Image, DecodeKind::Rows, DecodeKind::Table];
    (proptest::sample::select(kinds.to_vec()), 1usize..999, any::<bool>(), option::of(1u32..99)).prop_map(
        |(kind, n, truth, some)| {
            let written = DecodeSpec {
                kind: None,
                tokenizer: truth.then(|| "a/tokenizer.json".to_string()),
                window: Some(n),
                rows: truth.then_some(TextRows::Texts),
                end_of_text: Some(truth),
                vocab: some,
                patch: Some(n),
                color: Some(if truth { Color::YcocgR } else { Color::Grey }),
                levels: some.filter(|_| !truth).map(|s| s + 1),
                size: some.map(|s| (s as usize, n)),
                cats: some,
                schema: truth.then(every_meaning),
            };
            written.of_kind(kind)
        },
    )
}

/// A schema with a column of every meaning, and numbers that are hard to write.
fn every_meaning() -> TableSchema {
    use crate::data::schema::{BoolDistribution, CountDistribution, IgnoredColumn, TimePart, Unseen};
    let labels = vec![Label::Text("a \"b\"\n".into()), Label::Int(-3), Label::Bool(true), Label::Text(String::new())];
    let meanings = [
        Meaning::Category { vocabulary: labels, unseen: Unseen::Error },
        Meaning::Bool { distribution: BoolDistribution::Bernoulli },
        Meaning::Count { distribution: CountDistribution::NegativeBinomial },
        Meaning::Count { distribution: CountDistribution::Binomial(7) },
        Meaning::Number,
        Meaning::Range { low: -1 << 40, high: (-1 << 40) + 9 },
        Meaning::Bins { edges: vec![-1e300, 0.1 + 0.2, f64::MAX], means: vec![-1e-300, 1.0 / 3.0] },
        Meaning::Time { origin: i64::MIN },
        Meaning::Part { part: TimePart::Weekday },
    ];
    let columns = meanings.into_iter().enumerate().map(|(at, meaning)| ColumnSchema {
        name: format!("column.{at} \""),
        cell_type: CellType::Int,
        meaning,
    });
    let ignored = vec![IgnoredColumn { name: "id".into(), why: "numbers of rows".into() }];
    TableSchema { columns: columns.collect(), ignored }
}

fn circuits() -> impl Strategy<Value = CircuitSpec> {
    let pds = (1usize..9, option::of(vec(1usize..9, 2..=2)), option::of(vec(1usize..9, 2..=2)), option::of(1usize..9));
    let pds = pds.prop_map(|(latents, shape, intervals, limit)| PdSpec {
        latents,
        shape,
        intervals,
        max_product_connections: limit,
        block_size: limit.map(|_| latents),
    });
    let models = Union::new([
        (1usize..999).prop_map(|latents| ModelSpec::Hmm { latents, tying: TyingSpec::Inhomogeneous }).boxed(),
        (2usize..9, 2usize..9)
            .prop_map(|(a, b)| ModelSpec::MonarchHmm { latents: a * b, factors: Some((a, b)) })
            .boxed(),
        (1usize..999, 1usize..99, any::<bool>())
            .prop_map(|(latents, components, tie_inputs)| ModelSpec::Hclt { latents, components, tie_inputs })
            .boxed(),
        pds.clone().prop_map(ModelSpec::Pd).boxed(),
        pds.prop_map(ModelSpec::Pdhclt).boxed(),
        (1usize..9, option::of(1usize..9))
            .prop_map(|(n, depth)| ModelSpec::RatSpn { latents: n, depth, repetitions: n, pieces: n + 1 })
            .boxed(),
        texts("[a-z${}'\" ]{1,6}").prop_map(|path| ModelSpec::File { path }).boxed(),
    ]);
    let inputs = [InputKind::Categorical, InputKind::Gaussian, InputKind::DiscreteLogistic];
    let input = option::of(proptest::sample::select(inputs.to_vec()));
    (models, input, 1e-6..9.0, 2u64..99, 0u64..=i64::MAX as u64, 0.0..80.0).prop_map(
        |(model, input, min_std, structure_rows, seed, perturbation)| {
            let start = if seed % 2 == 0 { StartSpec::Rows } else { StartSpec::Noise };
            CircuitSpec {
                input,
                min_std,
                structure_rows,
                seed,
                perturbation,
                start: (!matches!(model, ModelSpec::File { .. })).then_some(start),
                model,
            }
        },
    )
}

fn learns() -> impl Strategy<Value = LearnSection> {
    let lengths = || {
        (0usize..4, 0.1..9e5).prop_map(|(unit, number)| match unit {
            0 => Length::Updates(number),
            1 => Length::Updates(number.ceil()),
            2 => Length::Rows(number),
            _ => Length::Epochs(number),
        })
    };
    let schedules = Union::new([
        (1e-6..1.0).prop_map(Schedule::constant).boxed(),
        (0.1..1.0, 0.0..2.0, lengths(), any::<bool>())
            .prop_map(|(from, kappa, delay, floor)| {
                Schedule::power(from, kappa, delay, if floor { from / 9.0 } else { 0.0 })
            })
            .boxed(),
        (0.1..1.0, 0.0..2.0, lengths(), any::<bool>())
            .prop_map(|(factor, kappa, delay, floor)| {
                Schedule::falling_counts(factor, 0.4, kappa, delay, if floor { factor / 4.0 } else { 0.0 })
            })
            .boxed(),
        (0.1..1.0, 0.1..1.0).prop_map(|(factor, most)| Schedule::counts(factor, most)).boxed(),
        (0.1..1.0, lengths()).prop_map(|(from, horizon)| Schedule::cosine(from, from / 3.0, horizon)).boxed(),
        (0.1..1.0, option::of(lengths()), lengths())
            .prop_map(|(peak, warmup, decay)| {
                Schedule::warmup_stable_decay(peak, peak / 7.0, warmup.unwrap_or(Length::Updates(0.0)), decay, decay)
            })
            .boxed(),
    ]);
    let smoothing = (any::<bool>(), 0.0..1.0).prop_map(|(relative, epsilon): (bool, f64)| match relative {
        true => Smoothing::Relative(epsilon),
        false => Smoothing::Absolute(epsilon),
    });
    let limits = (option::of(1u64..99), option::of(1u64..99), option::of(1e-3..1e9));
    let averages = option::of((0.0..99.0, 1u64..99, 1u64..99, 0.0..9.0)).prop_map(|average| match average {
        Some((window, every, cap, reset)) => Averaging::On(AverageSpec { window, every, cap, reset }),
        None => Averaging::Off,
    });
    let sources = proptest::sample::select(vec![RetainSource::TopDown, RetainSource::Flows]);
    let sources = (sources.clone(), sources);
    (0usize..5, schedules, smoothing, 0.0..0.99, 1u64..9, limits, averages, sources).prop_map(
        |(which, step, smoothing, momentum, batches_per_update, (epochs, batches, seconds), average, sources)| {
            let (retain, retain_inputs) = sources;
            let optimizer = match which {
                0 => OptimizerSpec::Anemone(AnemoneSpec {
                    step,
                    momentum,
                    batches_per_update,
                    smoothing,
                    retain,
                    retain_inputs,
                    average,
                }),
                1 => OptimizerSpec::FullBatchEm(FullBatchEmSpec { smoothing, average }),
                2 => OptimizerSpec::MiniBatchEm(MiniBatchEmSpec {
                    step,
                    momentum,
                    batches_per_update,
                    smoothing,
                    retain,
                    retain_inputs,
                    average,
                }),
                3 => OptimizerSpec::StepwiseEm(StepwiseEmSpec { step, batches_per_update, smoothing, average }),
                _ => OptimizerSpec::Adam(AdamSpec { rate: step, beta1: momentum, average, ..AdamSpec::default() }),
            };
            let some = epochs.is_some() || batches.is_some() || seconds.is_some();
            let epochs = if some { epochs } else { Some(1) };
            LearnSection { optimizer, epochs, window_rows: None, batches, rows: None, seconds }
        },
    )
}

fn stages() -> impl Strategy<Value = (BatchSpec, CheckpointSpec, StreamOptions)> {
    let policies = [OnBad::Fail, OnBad::Skip, OnBad::Quarantine];
    let small = (1usize..9999, any::<bool>(), option::of(1u64..99), option::of(1e-3..1e6));
    (small, 1u64 << 20..1 << 50, proptest::sample::select(policies.to_vec()), 0.0..=1.0).prop_map(
        |((n, truth, some, seconds), bytes, on_bad, part)| {
            let batch = BatchSpec {
                rows: n,
                shards: n.min(1 + n % 9),
                shuffle: truth,
                seed: n as u64,
                drop_last: !truth,
                window_bytes: bytes.next_multiple_of(1 << 10),
                ..BatchSpec::default()
            };
            let every_rows = some.filter(|_| truth);
            let every_seconds = seconds.or(some.is_none().then_some(300.0));
            let checkpoint =
                CheckpointSpec { every_batches: some, every_rows, every_seconds, keep: n, keep_best: truth };
            let workers = some.map(|n| n as usize);
            let bad = BadPolicy { on_bad, max_bad: bytes, max_bad_fraction: part };
            let pipeline =
                StreamOptions { memory: bytes, workers, prefetch: n % 1024 + 1, bad, ..StreamOptions::default() };
            (batch, checkpoint, pipeline)
        },
    )
}

/// What is written must be what holds: a resumed run reads it.
#[test]
fn how_long_batches_wait_is_written_out_for_live_sources_and_only_for_them() {
    let wait = |source: &str, batch: &str| {
        let text = format!("[source]\n{source}\n[batch]\n{batch}\n[decode]\nkind = 'rows'\ncats = 3");
        let spec = PipelineSpec::parse(&text, "x.toml")?;
        let again = PipelineSpec::parse(&spec.to_toml()?, "again.toml")?;
        assert_eq!(again, spec);
        Ok::<_, Error>(spec.to_toml()?.lines().find_map(|line| line.strip_prefix("max_wait = ").map(str::to_string)))
    };
    let (pipe, followed) = ("files = '-'\nformat = 'jsonl'", "files = 'a.jsonl'\nfollow = true");
    assert_eq!(wait(pipe, ""), Ok(Some("5.0".into())));
    assert_eq!(wait(pipe, "max_wait = 'never'"), Ok(Some("\"never\"".into())));
    assert_eq!(wait(pipe, "max_wait = 0.25"), Ok(Some("0.25".into())));
    assert_eq!(wait(followed, ""), Ok(Some("\"never\"".into())));
    assert_eq!(wait(followed, "max_wait = 3"), Ok(Some("3.0".into())));
    assert_eq!(wait("files = 'a.jsonl'", ""), Ok(None));
    for (source, batch, why) in [
        ("files = 'a.jsonl'", "max_wait = 3", "has no meaning for files that end"),
        (pipe, "max_wait = 0", "must be positive, or \"never\""),
        (pipe, "max_wait = 'soon'", "expected"),
    ] {
        let error = wait(source, batch).unwrap_err().to_string();
        assert!(error.contains("batch.max_wait") && error.contains(why), "{error}");
    }
}

proptest! {
    #[test]
    fn a_resolved_pipeline_reads_back_to_the_same(
        source in sources(),
        decode in decodes(),
        circuit in circuits(),
        learn in learns(),
        (batch, checkpoint, pipeline) in stages(),
        name in option::of(texts("[a-z_-]{1,8}")),
        every in option::of(1u64..99),
        is_watched in any::<bool>(),
    ) {
        // Decoders and sources are drawn apart; what a decoder may be depends on its source.
        let decode = match source.format {
            Some(Format::Parquet) => decode,
            Some(_) => decode.of_kind(DecodeKind::Tokens),
            None => decode.of_kind(DecodeKind::Rows),
        };
        let held_out = if source.synthetic.is_some() { SourceSpec::default() } else { source.clone() };
        let validate = every.map(|n| {
            let every_seconds = every.map(|n| n as f64 / 8.0);
            ValidateSpec {
                source: held_out,
                every_epochs: Some(n),
                every_batches: every,
                every_rows: every,
                every_seconds,
                rows: every,
            }
        });
        let metrics = MetricsSpec {
            every_batches: every,
            every_rows: every.map(|n| 3 * n),
            every_seconds: every.map_or(Some(0.5), |n| Some(n as f64 / 4.0)),
            rotate: 4096 * checkpoint.keep as u64,
            keep: checkpoint.keep,
        };
        // Where the source has no end, somebody always watches.
        let drift = (source.is_endless() || is_watched).then(DriftSection::default);
        #[rustfmt::skip] // one line would be too long, and macros are not formatted
        let spec = PipelineSpec {
            name, source, decode, columns: ColumnsSpec::default(), batch, circuit, learn, drift, validate, checkpoint,
            metrics, pipeline,
        };
        let text = spec.to_toml().unwrap();
        let again = PipelineSpec::parse(&text, "again.toml");
        prop_assert_eq!(again.as_ref(), Ok(&spec), "{}", text);
        prop_assert_eq!(again.unwrap().to_toml().unwrap(), text);
    }

    #[test]
    fn no_text_panics(text in "[\\[\\]a-z.=\"0-9{},\n ]{0,60}") {
        let _ = PipelineSpec::parse(&text, "p.toml");
        let _ = with(&text);
    }
}
