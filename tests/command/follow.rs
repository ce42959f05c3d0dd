//! Rows that arrive while they are learned from: a followed file that is rotated, under kills; standard input.
//!
//! `ANEMONE_FOLLOW_SECONDS=120 ANEMONE_KILLS=20 cargo test --test command -- follow:: --nocapture` writes a burst of
//! lines every second for two minutes and kills twenty times; the default is a few seconds, for every day.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anemone::rng::Rng;

const COLUMNS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const BURST_ROWS: usize = 160;

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Rows with something to learn: neighbours are alike. Some values are missing.
fn lines(rows: usize, rng: &mut Rng) -> Vec<String> {
    let line = |_| {
        let mut value = rng.below(4);
        let fields: Vec<String> = COLUMNS
            .iter()
            .map(|name| {
                if rng.uniform() < 0.3 {
                    value = rng.below(4);
                }
                if rng.uniform() < 0.05 { format!("\"{name}\":null") } else { format!("\"{name}\":{value}") }
            })
            .collect();
        format!("{{{}}}\n", fields.join(","))
    };
    (0..rows).map(line).collect()
}

fn pipeline(folder: &Path, source: &str, rows: usize) -> PathBuf {
    let file = folder.join("rows.toml");
    let text = format!(
        "[source]\n{source}\ncolumns = ['a', 'b', 'c', 'd', 'e', 'f']\n[decode]\nkind = 'rows'\ncats = 4\n[batch]\n\
         rows = 32\nmax_wait = 'never'\n[circuit]\nmodel = 'hmm'\nlatents = 6\n[learn]\nrows = {rows}\n[checkpoint]\n\
         every_batches = 3\nkeep = 2\n"
    );
    std::fs::write(&file, text).unwrap();
    file
}

fn start(pipeline: &Path, out: &Path, input: Stdio) -> Child {
    Command::new(env!("CARGO_BIN_EXE_anemone"))
        .args(["train", "--quiet", "--resume", "--threads", "1", "--out"])
        .args([out, pipeline])
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(child: Child, what: &str) {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Parameters and optimizer of the last checkpoint, and how many rows they have seen.
fn outcome(out: &Path) -> (Vec<u8>, Vec<u8>, serde_json::Value) {
    let checkpoints = std::fs::read_dir(out.join("checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let is_step = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("step-");
    let last = checkpoints.filter(is_step).max().expect("a finished run has a checkpoint");
    let read = |name: &str| std::fs::read(last.join(name)).unwrap();
    let meta: serde_json::Value = serde_json::from_slice(&read("checkpoint.json")).unwrap();
    (read("model.safetensors"), read("optimizer.safetensors"), meta["body"]["progress"]["rows"].clone())
}

/// What nobody interrupts: all rows are in the file from the beginning.
fn uninterrupted(folder: &Path, text: &str, rows: usize) -> (Vec<u8>, Vec<u8>, serde_json::Value) {
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("events.jsonl"), text).unwrap();
    let source = format!("files = '{}'\nfollow = true", folder.join("events.jsonl").display());
    let out = folder.join("out");
    finish(start(&pipeline(folder, &source, rows), &out, Stdio::null()), "whole");
    let outcome = outcome(&out);
    assert_eq!(outcome.2, rows, "every row once");
    outcome
}

#[test]
fn a_followed_file_that_is_rotated_is_learned_once_under_kills_and_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let (bursts, pause) = match number("ANEMONE_FOLLOW_SECONDS") {
        Some(seconds) => (seconds, Duration::from_secs(1)),
        None => (32, Duration::from_millis(150)),
    };
    let kills = number("ANEMONE_KILLS").unwrap_or(5);
    let rows = bursts * BURST_ROWS;
    let lines = lines(rows, &mut Rng::new(21));
    let expected = uninterrupted(&dir.path().join("whole"), &lines.concat(), rows);

    let folder = dir.path().join("live");
    std::fs::create_dir(&folder).unwrap();
    let events = folder.join("events.jsonl");
    std::fs::write(&events, "").unwrap();
    let source = format!("files = '{}'\nfollow = true", events.display());
    let (pipeline, out) = (pipeline(&folder, &source, rows), folder.join("out"));
    let rotate_every = (bursts / 5).max(1);
    let writer = thread::spawn(move || {
        let mut rng = Rng::new(22);
        let mut rotations = 0;
        for (burst, some) in lines.chunks(BURST_ROWS).enumerate() {
            if burst > 0 && burst % rotate_every == 0 {
                for number in (1..=rotations).rev() {
                    let name = |number: usize| folder.join(format!("events.jsonl.{number}"));
                    std::fs::rename(name(number), name(number + 1)).unwrap();
                }
                std::fs::rename(&events, folder.join("events.jsonl.1")).unwrap();
                rotations += 1;
            }
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&events).unwrap();
            // In two writes, cut anywhere: half a line is there for a moment.
            let text = some.concat();
            let (first, second) = text.split_at(rng.below(text.len()));
            file.write_all(first.as_bytes()).unwrap();
            thread::sleep(pause / 3);
            file.write_all(second.as_bytes()).unwrap();
            thread::sleep(pause - pause / 3);
        }
        rotations
    });
    let begun = Instant::now();
    let whole = pause * u32::try_from(bursts).unwrap();
    let mut rng = Rng::new(23);
    for kill in 0..kills {
        let mut child = start(&pipeline, &out, Stdio::null());
        let until = whole.mul_f64((kill as f64 + rng.uniform()) / kills as f64);
        thread::sleep(until.saturating_sub(begun.elapsed()).max(Duration::from_millis(150)));
        assert!(child.try_wait().unwrap().is_none(), "kill {kill}: it has ended before");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    finish(start(&pipeline, &out, Stdio::null()), "after the last kill");
    let rotations = writer.join().unwrap();
    assert!(rotations >= 4);
    let found = outcome(&out);
    assert_eq!(found.2, rows, "every row once");
    assert!(found.0 == expected.0 && found.1 == expected.1, "the same bits as nobody interrupted");
    println!(
        "{kills} kills, {rotations} rotations, {rows} rows, {:.0} s: the same bits",
        begun.elapsed().as_secs_f64()
    );
}

#[test]
fn lines_on_standard_input_are_learned_like_those_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let rows = 1280;
    let text = lines(rows, &mut Rng::new(31)).concat();
    let expected = uninterrupted(&dir.path().join("whole"), &text, rows);
    let folder = dir.path().join("piped");
    std::fs::create_dir(&folder).unwrap();
    let pipeline = pipeline(&folder, "files = '-'\nformat = 'jsonl'", rows);
    let mut child = start(&pipeline, &folder.join("out"), Stdio::piped());
    let mut input = child.stdin.take().unwrap();
    for some in text.as_bytes().chunks(777) {
        input.write_all(some).unwrap();
    }
    drop(input);
    finish(child, "standard input");
    assert!(outcome(&folder.join("out")) == expected, "the same bits as from a file");
}

#[test]
fn flags_learn_from_json_lines_on_standard_input_and_mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut runs = 0;
    let mut run = |flags: &[&str], input: &str| {
        runs += 1;
        let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
        command.args(["train", "--quiet", "--data", "-", "--out"]).arg(dir.path().join(format!("out-{runs}")));
        command.args(flags).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _it_may_refuse = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let rows = lines(200, &mut Rng::new(5)).concat();
    let jsonl = ["--format", "jsonl", "--latents", "2", "--batch-rows", "50"];
    let with = |more: &[&'static str]| [&jsonl[..], more].concat();
    let (code, error) = run(&with(&["--set", "decode.cats=4"]), &rows);
    assert_eq!(code, Some(0), "{error}");
    for (flags, input, words) in [
        (with(&[]), &rows[..], "decode.cats"),
        (with(&[]), "{\"a\":1,\"b\":\"x\"}\n", "source.columns = [\"a\"]"),
        (with(&["--set", "decode.cats=4"]), "", "ended before the first line"),
        (with(&["--set", "decode.cats=4"]), "{\"a\":1}\nnot json\n", "byte 8: not a JSON object"),
        (with(&["--set", "decode.cats=4", "--column", "q"]), "{\"a\":1}\n", "no column `q` in the first lines"),
        (with(&["--follow"]), "", "standard input goes on for as long as it is open"),
    ] {
        let (code, error) = run(&flags, input);
        assert_ne!(code, Some(0), "{words}");
        assert!(error.contains(words), "{error}\n{words}");
    }
}
