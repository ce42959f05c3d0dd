//! Files made to break a reader, run through the program as a user would: the exit code is the documented one, the
//! message says what to do, memory stays within `pipeline.memory` and a little, and what was learned before is kept.
//!
//! Small files are in `tests/fixtures/attack`. Others are looked for in the folder that `ANEMONE_ATTACK` names, or in
//! `../shared/attack`; a test that finds none says so and passes.

#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anemone::learner::list;

const FAILED: i32 = 1;
const BAD_DATA: i32 = 3;

const MIB: u64 = 1 << 20;

/// What the program itself takes: its code, a tokenizer, a small model, threads.
const BESIDE: u64 = 256 * MIB;

/// Nothing here takes so long; a test that hangs ends.
const LONGEST: Duration = Duration::from_secs(100);

/// A file of the collection, if it is there.
fn attack(name: &str) -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let elsewhere = std::env::var_os("ANEMONE_ATTACK").map_or_else(|| here.join("../shared/attack"), PathBuf::from);
    let found = [here.join("tests/fixtures/attack"), elsewhere].map(|folder| folder.join(name));
    let found = found.into_iter().find(|path| path.is_file());
    if found.is_none() {
        // Not `eprintln!`, which the test runner captures: a skipped test must not look like one that ran.
        let message = format!("skipped: {name} is not here; name its folder in ANEMONE_ATTACK\n");
        let _ = std::io::stderr().write_all(message.as_bytes());
    }
    found
}

/// How a run of the program ended.
struct Ended {
    /// `None` after a signal.
    code: Option<i32>,
    error: String,
    peak_bytes: u64,
    run: PathBuf,
}

impl Ended {
    fn expect(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.error);
        words.iter().for_each(|word| assert!(self.error.contains(word), "`{}` does not say `{word}`", self.error));
        assert!(!self.error.contains("panicked at"), "{}", self.error);
    }

    fn expect_peak(&self, memory: u64) {
        let (peak, most) = (self.peak_bytes / MIB, (memory + BESIDE) / MIB);
        println!("{peak} MiB at most, of {most}");
        assert!(peak <= most, "{peak} MiB, more than {most}: {}", self.error);
    }

    fn last_step(&self) -> u64 {
        list(&self.run.join("checkpoints")).unwrap_or_default().last().map_or(0, |(step, _)| *step)
    }
}

/// Trains in a folder; `beside` is called with the run folder while that runs, again and again until it is done.
#[allow(clippy::zombie_processes)] // waited for by `wait4`, which tells the peak of memory
fn train(dir: &Path, pipeline: &str, flags: &[&str], input: Option<&Path>, mut beside: impl FnMut(&Path)) -> Ended {
    let (file, run) = (dir.join("pipeline.toml"), dir.join("run"));
    fs::write(&file, pipeline).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_anemone"))
        .args(["train", "--quiet", "--threads", "1", "--out"])
        .arg(&run)
        .args(flags)
        .arg(&file)
        .stdin(input.map_or_else(Stdio::null, |path| Stdio::from(File::open(path).unwrap())))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        text
    });
    let begun = Instant::now();
    let pid = child.id() as libc::pid_t;
    let (status, usage) = loop {
        let mut status = 0;
        // SAFETY: `rusage` is plain data for which zeros are valid; the child is ours, and nothing else waits for it.
        let (ended, usage) = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            (libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage), usage)
        };
        if ended == pid {
            break (status, usage);
        }
        beside(&run);
        if begun.elapsed() > LONGEST {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(5));
    };
    Ended {
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        error: reader.join().unwrap(),
        peak_bytes: usage.ru_maxrss as u64 * 1024,
        run,
    }
}

/// A pipeline over a file with so much memory.
fn pipeline(file: &str, memory: u64, more: &str) -> String {
    format!("[source]\nfiles = '{file}'\n[pipeline]\nmemory = '{}MiB'\nworkers = 4\n{more}", memory / MIB)
}

/// Trains on an Arrow stream of rows of two categories.
fn stream(name: &str, more: &str) -> Option<(Ended, tempfile::TempDir)> {
    let (dir, file) = (tempfile::tempdir().unwrap(), attack(name)?);
    let rows = "[decode]\nkind = 'rows'\ncats = 24\n[circuit]\nmodel = 'hmm'\nlatents = 2\n";
    let ended = train(dir.path(), &pipeline("-", 64 * MIB, &[rows, more].concat()), &[], Some(&file), |_| ());
    ended.expect_peak(64 * MIB);
    Some((ended, dir))
}

#[test]
fn compressed_streams_of_many_rows_in_few_bytes_are_learned() {
    // One step per ten thousand rows.
    for (name, steps) in [("sparse64k.arrow", 7), ("sparse0.1pct.arrow", 100), ("zeros.arrow", 100)] {
        let Some((ended, _dir)) = stream(name, "[batch]\nrows = 10000\n") else { continue };
        ended.expect(0, &[]);
        assert_eq!(ended.last_step(), steps, "{name}");
    }
}

#[test]
fn a_stream_that_decompresses_to_gigabytes_is_refused_before_it_does() {
    let Some((ended, _dir)) = stream("bomb.arrow", "") else { return };
    ended.expect(BAD_DATA, &["standard input", "record batch 0", "a message takes 2862 MiB", "pipeline.memory"]);
}

#[test]
fn a_damaged_length_late_in_a_compressed_stream_costs_nothing_of_what_came_before() {
    let Some((ended, _dir)) = stream("damaged_length_late.arrow", "[batch]\nrows = 256\n") else { return };
    ended.expect(BAD_DATA, &["standard input", "record batch", "damaged"]);
    assert!(ended.last_step() > 0, "what was learned is kept");
}

#[test]
fn a_text_of_fifty_megabytes_is_refused_where_memory_is_small_and_learned_where_it_is_not() {
    let Some(file) = attack("bigstr_a.parquet") else { return };
    let text = "[decode]\nkind = 'text'\nwindow = 16\n[circuit]\nmodel = 'hmm'\nlatents = 2\n[learn]\nbatches = 2\n";
    let file = file.display().to_string();
    let dir = tempfile::tempdir().unwrap();
    let ended = train(dir.path(), &pipeline(&file, 64 * MIB, text), &[], None, |_| ());
    ended.expect(BAD_DATA, &["bigstr_a.parquet", "row group 0", "a page takes 51 MiB", "pipeline.memory", "on_bad"]);
    ended.expect_peak(64 * MIB);
    let dir = tempfile::tempdir().unwrap();
    let ended = train(dir.path(), &pipeline(&file, 256 * MIB, text), &[], None, |_| ());
    ended.expect(0, &[]);
    ended.expect_peak(256 * MIB);
}

#[test]
fn colour_profiles_inside_images_are_not_unpacked() {
    let Some(file) = attack("iccp.parquet") else { return };
    let dir = tempfile::tempdir().unwrap();
    let images = "[decode]\npatch = 4\n[circuit]\nmodel = 'rat-spn'\nlatents = 2\n";
    let ended = train(dir.path(), &pipeline(&file.display().to_string(), 64 * MIB, images), &[], None, |_| ());
    ended.expect(0, &[]);
    ended.expect_peak(64 * MIB);
}

#[test]
fn a_value_that_no_density_can_square_is_a_bad_record_with_its_file_and_row() {
    let Some(file) = attack("big.parquet") else { return };
    let dir = tempfile::tempdir().unwrap();
    let rows = "[circuit]\nmodel = 'hclt'\nlatents = 2\ninput = 'gaussian'\n[batch]\nrows = 64\n";
    let text = pipeline(&file.display().to_string(), 64 * MIB, rows);
    let ended = train(dir.path(), &text, &[], None, |_| ());
    ended.expect(BAD_DATA, &["big.parquet", "row 7:", "variable 1", "1e30", "on_bad"]);
    let ended = train(dir.path(), &text, &["--set", "pipeline.on_bad=quarantine"], None, |_| ());
    ended.expect(0, &[]);
    ended.expect_peak(64 * MIB);
    let ledger = fs::read_to_string(ended.run.join("quarantine.jsonl")).unwrap();
    assert!(ledger.contains("\"position\":7") && ledger.contains("big.parquet"), "{ledger}");
}

#[test]
fn held_out_rows_of_probability_zero_are_no_reason_to_fail() {
    let (Some(train_file), Some(valid_file)) = (attack("tr.npy"), attack("va.npy")) else { return };
    let dir = tempfile::tempdir().unwrap();
    let more = format!(
        "[circuit]\nmodel = 'hmm'\nlatents = 2\n[learn]\nstep = 1.0\nmomentum = 0.0\nsmoothing = 0.0\n\
         [validate]\nfiles = '{}'\n",
        valid_file.display()
    );
    let text = pipeline(&train_file.display().to_string(), 64 * MIB, &more);
    let ended = train(dir.path(), &text, &[], None, |_| ());
    ended.expect(0, &[]);
    ended.expect_peak(64 * MIB);
}

#[test]
fn mapped_files_that_shrink_while_they_are_read_end_the_run_with_an_error_and_a_checkpoint() {
    for (name, header) in [("a.bin", Vec::new()), ("a.npy", npy_header(1 << 20, 32))] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        // Zeros that take no room on the disk: as fast to map as to make.
        fs::write(&path, &header).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(header.len() as u64 + (64 << 20)).unwrap();
        let more = "[decode]\nwindow = 32\nvocab = 50\n[circuit]\nmodel = 'hmm'\nlatents = 2\n[batch]\nrows = 64\n\
                    [learn]\nepochs = 1000\n";
        let more = if name == "a.npy" { more.replace("window = 32\nvocab = 50", "cats = 50") } else { more.into() };
        let text = pipeline(&path.display().to_string(), 64 * MIB, &more);
        let mut is_cut = false;
        let ended = train(dir.path(), &text, &[], None, |run| {
            let is_learning = fs::metadata(run.join("metrics.jsonl")).is_ok_and(|file| file.len() > 0);
            if is_learning && !is_cut {
                file.set_len(10_000).unwrap();
                is_cut = true;
            }
        });
        assert!(is_cut, "{}", ended.error);
        ended.expect(FAILED, &[name, "shrank while it was read", "now has 10000"]);
        assert!(ended.last_step() > 0, "what was learned is kept");
    }
}

/// The header of an array of `u16`.
fn npy_header(rows: usize, columns: usize) -> Vec<u8> {
    let text = format!("{{'descr': '<u2', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    let text = format!("{text:117}\n");
    [&b"\x93NUMPY\x01\x00"[..], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}
