//! Bad input as a user meets it: each gives its documented exit code and one line that says what, where and what to do,
//! and the last good checkpoint survives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anemone::learner::{latest, list};
use anemone::rng::Rng;
use anemone::source::compressed_tokens::CompressedWriter;
use anemone::source::token_width::TokenWidth;

use crate::common::shards;

const FAILED: i32 = 1;
const NOT_UNDERSTOOD: i32 = 2;
const BAD_DATA: i32 = 3;
const NOT_RESUMED: i32 = 4;

struct Desk {
    dir: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// A pipeline over `files` with what else it needs.
    fn pipeline(&self, files: &Path, more: &str) -> PathBuf {
        self.write("pipeline.toml", &format!("[source]\nfiles = '{}'\n{more}", files.display()))
    }

    fn train(&self, pipeline: &Path, flags: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
        command.args(["train", "--quiet", "--threads", "1", "--out"]).arg(self.path("run")).args(flags).arg(pipeline);
        command.output().unwrap()
    }

    /// Trains, expects this exit code, and one error line with all these words.
    fn refuses(&self, pipeline: &Path, flags: &[&str], code: i32, words: &[&str]) {
        let output = self.train(pipeline, flags);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{error}");
        let lines: Vec<&str> = error.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(lines.len(), 1, "one error line: {error}");
        words.iter().for_each(|word| assert!(lines[0].contains(word), "`{}` does not say `{word}`", lines[0]));
        assert!(!error.contains("panicked"), "{error}");
    }

    fn last_step(&self) -> Option<u64> {
        list(&self.path("run/checkpoints")).unwrap_or_default().last().map(|(step, _)| *step)
    }
}

const TEXT: &str =
    "[decode]\nkind = 'text'\nwindow = 16\n[batch]\nrows = 8\nshuffle = false\n[circuit]\nmodel = 'hmm'\nlatents = 2\n";
const TOKENS: &str = "[decode]\nwindow = 16\nvocab = 1000\n[batch]\nrows = 8\nshuffle = false\n\
                      [circuit]\nmodel = 'hmm'\n\
                      latents = 2\n";

fn tokens(count: usize) -> Vec<u8> {
    let mut rng = Rng::new(1);
    (0..count).flat_map(|_| (rng.below(1000) as u16).to_le_bytes()).collect()
}

#[test]
fn a_truncated_parquet_file() {
    let desk = Desk::new();
    let file = desk.path("a.parquet");
    shards::write_texts(&file, &shards::texts(200, 1), 50);
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() * 2 / 3]).unwrap();
    desk.refuses(&desk.pipeline(&file, TEXT), &[], BAD_DATA, &["a.parquet", "Parquet"]);
    assert_eq!(desk.last_step(), None);
}

#[test]
fn a_damaged_row_group_ends_the_run_after_what_came_before_it_was_learned_and_kept() {
    let desk = Desk::new();
    let file = desk.path("a.parquet");
    shards::write_texts(&file, &shards::texts(400, 1), 100);
    let mut bytes = fs::read(&file).unwrap();
    let late = bytes.len() * 3 / 4; // in the data of a late row group; the footer of this file is small
    bytes[late..late + 40].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(&file, bytes).unwrap();
    let pipeline = desk.pipeline(&file, TEXT);
    desk.refuses(&pipeline, &[], BAD_DATA, &["a.parquet", "row group", "on_bad"]);
    assert!(desk.last_step().is_some_and(|step| step > 0), "what was learned is kept");
    // Told to continue without it, it does.
    let output = desk.train(&pipeline, &["--resume", "--set", "pipeline.on_bad=skip"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_flipped_bit_in_a_zstd_frame() {
    let desk = Desk::new();
    let file = desk.path("a.bin.zst");
    let mut writer = CompressedWriter::new(fs::File::create(&file).unwrap(), TokenWidth::U16).unwrap();
    let mut rng = Rng::new(2);
    writer.push(&(0..60_000).map(|_| rng.below(1000) as u32).collect::<Vec<_>>()).unwrap();
    writer.finish().unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(&file, bytes).unwrap();
    desk.refuses(&desk.pipeline(&file, TOKENS), &[], BAD_DATA, &["a.bin.zst", "frame"]);
}

#[test]
fn a_png_cut_in_half() {
    let desk = Desk::new();
    let mut rng = Rng::new(3);
    let mut images: Vec<Vec<u8>> = (0..40).map(|_| shards::picture(8, &mut rng)).collect();
    let half = images[17].len() / 2;
    images[17].truncate(half);
    let file = desk.path("images.parquet");
    shards::write_images(&file, &images, 10);
    let more = "[decode]\npatch = 4\n[batch]\nrows = 8\n[circuit]\nmodel = 'rat-spn'\nlatents = 2\n";
    let pipeline = desk.pipeline(&file, more);
    desk.refuses(&pipeline, &[], BAD_DATA, &["images.parquet", "row 17", "quarantine"]);
    let quarantined = desk.train(&pipeline, &["--resume", "--set", "pipeline.on_bad=quarantine"]);
    assert!(quarantined.status.success(), "{}", String::from_utf8_lossy(&quarantined.stderr));
    let ledger = fs::read_to_string(desk.path("run/quarantine.jsonl")).unwrap();
    assert_eq!(ledger.lines().count(), 1);
    assert!(ledger.contains("\"position\":17"), "{ledger}");
}

#[test]
fn a_token_file_of_odd_length() {
    let desk = Desk::new();
    let file = desk.path("odd.bin");
    fs::write(&file, &tokens(1000)[1..]).unwrap();
    desk.refuses(&desk.pipeline(&file, TOKENS), &[], BAD_DATA, &["odd.bin", "1999 bytes", "u16"]);
}

#[test]
fn an_id_beyond_the_vocabulary() {
    let desk = Desk::new();
    let file = desk.path("ids.bin");
    let mut bytes = tokens(1600);
    bytes[2 * 800..2 * 800 + 2].copy_from_slice(&60_000u16.to_le_bytes());
    fs::write(&file, bytes).unwrap();
    desk.refuses(&desk.pipeline(&file, TOKENS), &[], BAD_DATA, &["ids.bin", "row 50", "60000", "0..1000"]);
}

#[test]
fn a_missing_column_a_directory_and_a_file_that_is_not_there() {
    let desk = Desk::new();
    let file = desk.path("a.parquet");
    shards::write_texts(&file, &shards::texts(20, 1), 50);
    let more = format!("column = 'txet'\n{TEXT}");
    desk.refuses(&desk.pipeline(&file, &more), &[], NOT_UNDERSTOOD, &["a.parquet", "txet", "text"]);
    let folder = desk.path("shards.parquet");
    fs::create_dir(&folder).unwrap();
    desk.refuses(&desk.pipeline(&folder, TEXT), &[], NOT_UNDERSTOOD, &["shards.parquet", "*.parquet"]);
    desk.refuses(&desk.pipeline(&desk.path("none.parquet"), TEXT), &[], NOT_UNDERSTOOD, &["none.parquet"]);
}

#[test]
fn a_pipeline_with_a_mistake_is_not_begun() {
    let desk = Desk::new();
    let pipeline = desk.write("typo.toml", "[source]\nfiles = 'a.bin'\n[learn]\nstpe = 0.3\n");
    desk.refuses(&pipeline, &[], NOT_UNDERSTOOD, &["typo.toml:4", "learn.stpe", "`step`"]);
    assert!(!desk.path("run").exists());
}

/// A limit that no check before could know of.
#[cfg(target_os = "linux")]
#[test]
fn a_process_without_memory_says_so_in_one_sentence() {
    let desk = Desk::new();
    let pipeline = desk.path("large.toml");
    let text = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 20000\nlatents = 3\nrows = 5000\n[batch]\n\
                rows = 16\n[circuit]\nmodel = 'hmm'\nlatents = 512\n";
    fs::write(&pipeline, text).unwrap();
    // The program fits, the parameters (42 MB, in several places) do not.
    let limited = Command::new("sh")
        .args(["-c", "ulimit -v 400000; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_anemone")])
        .args(["train", "--quiet", "--threads", "1", "--out"])
        .args([desk.path("run"), pipeline])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&limited.stderr);
    assert_eq!(limited.status.code(), Some(FAILED), "{error}");
    let sentences: Vec<&str> = error.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(matches!(sentences[..], [one] if one.contains("error: no memory for ")), "{error}");
}

/// A disk that takes no file above some size: what a full disk does to the large file, without the small ones.
#[cfg(unix)]
#[test]
fn a_full_disk_while_checkpointing() {
    let desk = Desk::new();
    let file = desk.path("a.bin");
    fs::write(&file, tokens(16 * 400)).unwrap();
    let more = TOKENS.replace("latents = 2", "latents = 40");
    let pipeline = |batches: u64| desk.pipeline(&file, &format!("{more}[learn]\nbatches = {batches}\n"));
    assert!(desk.train(&pipeline(10), &[]).status.success());
    let limited = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_anemone")])
        .args(["train", "--quiet", "--resume", "--threads", "1", "--out"])
        .args([desk.path("run"), pipeline(20)])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&limited.stderr);
    assert_eq!(limited.status.code(), Some(FAILED), "{error}");
    assert!(error.contains("checkpoints") && !error.contains("panicked"), "{error}");
    assert_eq!(desk.last_step(), Some(10), "the last good one stays");
    let after = desk.train(&pipeline(20), &["--resume"]);
    assert!(after.status.success(), "{}", String::from_utf8_lossy(&after.stderr));
    let resumed = latest(&desk.path("run/checkpoints")).unwrap().found.unwrap().1;

    let whole = Desk::new();
    let other = whole.pipeline(&file, &format!("{more}[learn]\nbatches = 20\n"));
    assert!(whole.train(&other, &[]).status.success());
    let expected = latest(&whole.path("run/checkpoints")).unwrap().found.unwrap().1;
    assert!(resumed.params == expected.params && resumed.optimizer == expected.optimizer);
}

#[test]
fn a_corrupted_checkpoint() {
    let desk = Desk::new();
    let file = desk.path("a.bin");
    fs::write(&file, tokens(16 * 400)).unwrap();
    let more = format!("{TOKENS}[checkpoint]\nevery_batches = 10\n[learn]\n");
    let pipeline = |batches: u64| desk.pipeline(&file, &format!("{more}batches = {batches}\n"));
    assert!(desk.train(&pipeline(20), &[]).status.success());
    let corrupt = |step: &str| {
        let path = desk.path("run/checkpoints").join(step).join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 4;
        fs::write(path, bytes).unwrap();
    };
    corrupt("step-0000000020");
    let output = desk.train(&pipeline(30), &["--resume"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.contains("step-0000000020") && error.contains("SHA-256"), "{error}");
    for (_, path) in list(&desk.path("run/checkpoints")).unwrap() {
        corrupt(path.file_name().unwrap().to_str().unwrap());
    }
    let output = desk.train(&pipeline(40), &["--resume"]);
    assert_eq!(output.status.code(), Some(BAD_DATA), "nothing half-written is ever taken for whole");
}

#[test]
fn checkpoints_that_are_there_are_not_trained_over() {
    let desk = Desk::new();
    let file = desk.path("a.bin");
    fs::write(&file, tokens(16 * 100)).unwrap();
    let pipeline = desk.pipeline(&file, TOKENS);
    assert!(desk.train(&pipeline, &[]).status.success());
    desk.refuses(&pipeline, &[], NOT_RESUMED, &["--resume", "--out"]);
    let other = desk.pipeline(&file, &TOKENS.replace("vocab = 1000", "vocab = 1001"));
    desk.refuses(&other, &["--resume"], NOT_RESUMED, &["decoder", "--force-resume"]);
}

/// Runs a command that must not hang.
#[cfg(unix)]
fn within_a_minute(command: &mut Command) -> Output {
    use std::process::Stdio;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if std::time::Instant::now() > deadline {
            child.kill().unwrap(); // by id
            child.wait().unwrap();
            panic!("it hangs: {command:?}");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

/// Only `metrics.jsonl` is too large for this disk, and SIGXFSZ says so: the run continues, and what it learned is
/// saved.
#[cfg(unix)]
#[test]
fn lines_that_cannot_be_written_do_not_end_a_run() {
    let desk = Desk::new();
    let file = desk.path("a.bin");
    fs::write(&file, tokens(16 * 400)).unwrap();
    let pipeline = |batches: u64| desk.pipeline(&file, &format!("{TOKENS}[learn]\nbatches = {batches}\n"));
    assert!(desk.train(&pipeline(10), &[]).status.success());
    let metrics = desk.path("run/metrics.jsonl");
    let earlier = format!("{{\"step\":1,\"epoch\":0,\"pad\":\"{}\"}}\n", "x".repeat(300 << 10));
    // The last line was torn when the disk became full.
    fs::write(&metrics, format!("{earlier}{{\"step\":2,\"ep")).unwrap();
    let limited = Command::new("sh")
        .args(["-c", "ulimit -f 256; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_anemone")])
        .args(["train", "--quiet", "--resume", "--threads", "1", "--out"])
        .args([desk.path("run"), pipeline(20)])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&limited.stderr);
    assert!(limited.status.success(), "{:?} {error}", limited.status);
    assert_eq!(desk.last_step(), Some(20), "what was learned is saved");
    let of_metrics: Vec<&str> = error.lines().filter(|line| line.contains("metrics.jsonl")).collect();
    assert_eq!(of_metrics.len(), 2, "once when it begins, once at the end: {error}");
    assert!(of_metrics[1].contains("lines could not be written"), "{error}");
    assert_eq!(fs::read_to_string(&metrics).unwrap(), earlier, "whole lines only");
    // Where there is room again, lines come again.
    assert!(desk.train(&pipeline(30), &["--resume"]).status.success());
    let text = fs::read_to_string(&metrics).unwrap();
    assert!(text.starts_with(&earlier) && text.lines().count() > 1 && text.ends_with('\n'), "{} bytes", text.len());
}

#[test]
fn files_of_others_are_not_replaced() {
    let desk = Desk::new();
    let file = desk.path("a.bin");
    fs::write(&file, tokens(16 * 100)).unwrap();
    let pipeline = desk.pipeline(&file, TOKENS);
    fs::create_dir(desk.path("run")).unwrap();
    for name in ["metrics.jsonl", "resolved.toml", "quarantine.jsonl"] {
        desk.write(&format!("run/{name}"), "of somebody else\n");
        desk.refuses(&pipeline, &[], NOT_UNDERSTOOD, &[name, "--out"]);
        assert_eq!(fs::read_to_string(desk.path("run").join(name)).unwrap(), "of somebody else\n");
        assert_eq!(fs::read_dir(desk.path("run")).unwrap().count(), 1, "nothing was begun");
        fs::remove_file(desk.path("run").join(name)).unwrap();
    }
    desk.write("run/notes.txt", "of somebody else\n");
    assert!(desk.train(&pipeline, &[]).status.success(), "what a run does not write is no matter");
    // A run folder without a checkpoint is ours by what its resolved pipeline says.
    fs::remove_dir_all(desk.path("run/checkpoints")).unwrap();
    assert!(desk.train(&pipeline, &[]).status.success());
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_file_holds_nobody_up() {
    let desk = Desk::new();
    let file = desk.path("a.bin");
    fs::write(&file, tokens(16 * 400)).unwrap();
    let more = format!("{TOKENS}[checkpoint]\nevery_batches = 10\n[learn]\n");
    let pipeline = |batches: u64| desk.pipeline(&file, &format!("{more}batches = {batches}\n"));
    assert!(desk.train(&pipeline(20), &[]).status.success());
    let last = desk.path("run/checkpoints/step-0000000020");
    for name in ["model.safetensors", "circuit.json", "checkpoint.json"] {
        let path = last.join(name);
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let inspect =
            |path: &Path| within_a_minute(Command::new(env!("CARGO_BIN_EXE_anemone")).arg("inspect").arg(path));
        let found = inspect(&desk.path("run"));
        let said = String::from_utf8_lossy(&found.stderr);
        assert!(found.status.success() && said.contains(name) && said.contains("regular file"), "{said}");
        assert!(!inspect(&last).status.success(), "{name}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
    }
    fs::remove_file(last.join("optimizer.safetensors")).unwrap();
    assert!(Command::new("mkfifo").arg(last.join("optimizer.safetensors")).status().unwrap().success());
    let mut resume = Command::new(env!("CARGO_BIN_EXE_anemone"));
    resume.args(["train", "--quiet", "--resume", "--threads", "1", "--out"]).args([desk.path("run"), pipeline(30)]);
    let resumed = within_a_minute(&mut resume);
    let said = String::from_utf8_lossy(&resumed.stderr);
    assert!(resumed.status.success() && said.contains("optimizer.safetensors"), "{said}");
    assert_eq!(desk.last_step(), Some(30));
    // The same for the lines.
    fs::remove_file(desk.path("run/metrics.jsonl")).unwrap();
    assert!(Command::new("mkfifo").arg(desk.path("run/metrics.jsonl")).status().unwrap().success());
    let refused = within_a_minute(&mut resume);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("metrics.jsonl"));
    // And for a circuit, which is read more than once.
    let circuit = desk.path("circuit.json");
    assert!(Command::new("mkfifo").arg(&circuit).status().unwrap().success());
    let from_file =
        format!("[decode]\nwindow = 16\nvocab = 1000\n[circuit]\nmodel = 'file'\npath = '{}'\n", circuit.display());
    let from_file = desk.pipeline(&file, &from_file);
    for command in ["check", "train"] {
        let mut anemone = Command::new(env!("CARGO_BIN_EXE_anemone"));
        let refused = within_a_minute(anemone.current_dir(desk.dir.path()).arg(command).arg(&from_file));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("regular file"), "{refused:?}");
    }
}

/// Rows of zeros are learned, and half of the held-out rows are ones: without smoothing these have probability zero.
#[test]
fn held_out_rows_that_are_impossible_are_seen() {
    let desk = Desk::new();
    let (train, valid) = (desk.path("train.parquet"), desk.path("valid.parquet"));
    shards::write_rows(&train, vec![0; 256 * 4], 4, 64);
    shards::write_rows(&valid, (0..128 * 4).map(|i| u8::from(i / 4 % 2 == 1)).collect(), 4, 64);
    let more = format!(
        "[decode]\nkind = 'rows'\ncats = 2\n[batch]\nrows = 64\n[circuit]\nmodel = 'hmm'\nlatents = 2\n\
         [learn]\nstep = 1.0\n\
         momentum = 0.0\nsmoothing = 0.0\nepochs = 2\n[validate]\nfiles = '{}'\n",
        valid.display()
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
    command.args(["train", "--threads", "1", "--out"]).args([desk.path("run"), desk.pipeline(&train, &more)]);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("-inf") && text.contains("64 of 128 rows impossible") && !text.contains("best\n"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("held out") && line.contains("64 rows are impossible")), "{text}");
    let lines = fs::read_to_string(desk.path("run/metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let looks: Vec<_> = lines.iter().filter(|line| line["valid_impossible_rows"] == 64).collect();
    assert_eq!(looks.len(), 2, "once an epoch: {lines:?}");
    let is_about_zero = |value: &serde_json::Value| value.as_f64().is_some_and(|value| value.abs() < 1e-5); // f32
    assert!(
        looks.iter().all(|line| line["valid_ll"].is_null() && is_about_zero(&line["valid_possible_ll"])),
        "{looks:?}"
    );
    let eval = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
        let output = command.arg("eval").arg(desk.path("run")).args(flags).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let found: serde_json::Value = serde_json::from_str(&eval(&["--json"])).unwrap();
    assert!(found["mean_log_likelihood"].is_null() && found["impossible_rows"] == 64, "{found}");
    assert!(is_about_zero(&found["possible_log_likelihood"]), "{found}");
    let table = eval(&[]);
    assert!(table.contains("-inf nats") && table.contains("64 rows of probability zero"), "{table}");
    let table = eval(&["--rows", "2"]);
    assert!(table.contains("1 row of probability zero"), "{table}");
    // A benchmark does not rank an optimizer that rules out what happens by the rows that are left.
    let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
    let output = command.args(["bench", "--threads", "1"]).arg(desk.pipeline(&train, &more)).output().unwrap();
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(table.contains("  -inf") && table.contains("64 held-out rows are impossible"), "{table}");
}

/// Rows on standard input, as an Arrow stream.
fn piped(desk: &Desk, more: &str) -> Output {
    use std::io::Write;
    let column = arrow::array::StringArray::from_iter_values(shards::texts(200, 1));
    let batch = arrow::record_batch::RecordBatch::try_from_iter([("text", std::sync::Arc::new(column) as _)]).unwrap();
    let mut writer = arrow::ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let bytes = writer.into_inner().unwrap();
    let pipeline = desk.pipeline(Path::new("-"), more);
    let mut child = Command::new(env!("CARGO_BIN_EXE_anemone"))
        .args(["train", "--threads", "1", "--out"])
        .args([desk.path("run"), pipeline])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(&bytes); // a run that is refused does not read it
    child.wait_with_output().unwrap()
}

#[test]
fn a_live_stream_passes_once_and_says_so() {
    let desk = Desk::new();
    let output = piped(&desk, &format!("{TEXT}[learn]\nepochs = 2\n"));
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{error}");
    assert!(error.contains("learn.epochs = 2") && error.contains("passes once"), "{error}");
    assert!(out.contains("the data ended") && !out.contains("2 epochs"), "{out}");

    let desk = Desk::new();
    let output = piped(&desk, &format!("{TEXT}[learn]\noptimizer = 'full_batch_em'\n"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(NOT_UNDERSTOOD), "{error}");
    assert!(error.contains("full_batch_em") && error.contains("mini_batch_em"), "{error}");
}

#[test]
fn a_change_in_the_middle_of_a_file_is_noticed_where_all_of_it_is_compared() {
    for (digest, code) in [("ends", 0), ("whole", 4)] {
        let desk = Desk::new();
        let file = desk.path("a.bin");
        let tokens: Vec<u8> = (0..200_000u32).flat_map(|n| ((n % 7) as u16).to_le_bytes()).collect();
        fs::write(&file, &tokens).unwrap();
        let more = format!(
            "digest = '{digest}'\n[decode]\nvocab = 8\nwindow = 16\n[circuit]\nmodel = 'hmm'\nlatents = 2\n\
             [learn]\nbatches = 3\n"
        );
        let pipeline = desk.pipeline(&file, &more);
        let run = |resume: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
            command.args(["train", "--threads", "1", "--out"]).args([desk.path("run"), pipeline.clone()]).args(resume);
            command.output().unwrap()
        };
        assert!(run(&[]).status.success());
        let mut changed = tokens;
        changed[200_000] ^= 1;
        fs::write(&file, changed).unwrap();
        let output = run(&["--resume", "--set", "learn.batches=5"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{digest}: {error}");
    }
}
