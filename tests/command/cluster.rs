//! `anemone train` on several ranks under real launchers, where `.ci/mpi` has got MPICH and Open MPI (`ANEMONE_MPI`).
//!
//! `ANEMONE_CLUSTER_ALL=1` tries every pipeline on one to five ranks of every library, also resumed on others, and
//! `ANEMONE_MPI_KILLS=50` kills as many ranks; by default it is a few.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anemone::rng::Rng;

use crate::common::running::{any_checkpoint, newest_step, outcome};
use crate::common::shards::{picture, texts, write_images, write_rows, write_texts};
use crate::mpi::{Mpi, installed, wanted_kills};

/// No job takes longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// A job does not outlive a rank by more than this, without fault tolerance.
const END_OF_JOB: Duration = Duration::from_secs(5);

/// What a learned model must be: the bytes of parameters and optimizer, the counters and places.
type Outcome = (Vec<u8>, Vec<u8>, serde_json::Value);

/// A job of so many ranks that learns a pipeline.
fn job(mpi: &Mpi, ranks: usize, options: &[&str], pipeline: &Path, out: &Path, more: &[&str]) -> Command {
    let mut command = mpi.launcher(ranks, options);
    command.arg(env!("CARGO_BIN_EXE_anemone")).arg("train").arg(pipeline).arg("--out").arg(out);
    command.args(["--threads", "1", "--device", "cpu"]).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Waits for a job, and ends it by its id if it does not end by itself.
fn ended(mut child: Child) -> (Output, Duration) {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() && begun.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
    let time = begun.elapsed();
    if time >= PATIENCE {
        let _ = child.kill();
    }
    let output = child.wait_with_output().unwrap();
    assert!(time < PATIENCE, "the job did not end: {}", said(&output));
    (output, time)
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

fn succeeds(command: &mut Command, what: &str) -> Output {
    let (output, _) = ended(command.spawn().unwrap());
    assert!(output.status.success(), "{what}: {}", said(&output));
    output
}

/// Processes of this binary that write into a folder, by the order of their ids: those of ranks.
fn ranks_of(out: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(id) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        let is_rank = words[0] == env!("CARGO_BIN_EXE_anemone").as_bytes();
        if is_rank && words.contains(&out.as_os_str().as_encoded_bytes()) {
            found.push(id);
        }
    }
    found.sort_unstable();
    found
}

fn send(signal: &str, id: u32) {
    let _gone = Command::new("kill").args([signal, &id.to_string()]).stderr(Stdio::null()).status();
}

/// The newest checkpoint, if there is one.
fn step(out: &Path) -> Option<u64> {
    (out.join("checkpoints").is_dir() && any_checkpoint(out)).then(|| newest_step(out))
}

/// Waits until a run has written its first checkpoint.
fn wait_for_checkpoint(out: &Path) {
    let begun = Instant::now();
    while step(out).is_none() {
        assert!(begun.elapsed() < PATIENCE, "no checkpoint");
        thread::sleep(Duration::from_millis(5));
    }
}

/// An HMM on text in Parquet, a tree on images, and full-batch EM on text.
fn pipelines(dir: &Path) -> Vec<(&'static str, PathBuf)> {
    for part in 0..4 {
        write_texts(&dir.join(format!("text-{part}.parquet")), &texts(50, part), 6);
        let mut rng = Rng::new(part);
        let images: Vec<Vec<u8>> = (0..24).map(|_| picture(4, &mut rng)).collect();
        write_images(&dir.join(format!("images-{part}.parquet")), &images, 6);
    }
    write_texts(&dir.join("valid.parquet"), &texts(30, 9), 5);
    let text = format!(
        "[source]\nfiles = '{0}/text-*.parquet'\ncolumn = 'text'\n[decode]\nkind = 'text'\nwindow = 8\n[batch]\n\
         rows = 48\nshards = 8\nshuffle_window = '2KiB'\n[circuit]\nmodel = 'hmm'\nlatents = 3\n",
        dir.display()
    );
    let images = format!(
        "[source]\nfiles = '{0}/images-*.parquet'\n[decode]\nkind = 'image'\ncolor = 'rgb'\nsize = [4, 4]\n[batch]\n\
         rows = 16\nshards = 8\n[circuit]\nmodel = 'hclt'\nlatents = 3\n[learn]\nepochs = 2\n",
        dir.display()
    );
    let hmm = format!(
        "{text}[learn]\nepochs = 2\n[validate]\nfiles = '{}/valid.parquet'\nevery_batches = 9\n",
        dir.display()
    );
    let em = format!("{text}[learn]\noptimizer = 'full_batch_em'\nepochs = 3\n");
    let all = [("hmm", hmm), ("hclt", images), ("em", em)];
    let write = |(name, text): (&'static str, String)| {
        let path = dir.join(format!("{name}.toml"));
        std::fs::write(&path, text).unwrap();
        (name, path)
    };
    all.map(write).into()
}

/// What one process without a launcher learns.
fn alone(pipeline: &Path, out: &Path) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
    command.arg("train").arg(pipeline).arg("--out").arg(out).args(["--threads", "1", "--device", "cpu"]);
    succeeds(command.stdout(Stdio::piped()).stderr(Stdio::piped()), "one process");
    outcome(out)
}

#[test]
fn one_model_on_any_number_of_ranks_and_any_library() {
    let dir = tempfile::tempdir().unwrap();
    let libraries = installed();
    if libraries.is_empty() {
        return;
    }
    let all = std::env::var_os("ANEMONE_CLUSTER_ALL").is_some();
    for (name, pipeline) in pipelines(dir.path()) {
        let want = alone(&pipeline, &dir.path().join(format!("{name}-alone")));
        assert_eq!(want.2["cursor"]["shards"].as_array().unwrap().len(), 8, "{name}");
        assert!(want.2["step"].as_u64().unwrap() > 10, "{name}");
        for mpi in &libraries {
            let ranks: &[usize] = match (mpi.is_open_mpi(), mpi.has_named_library(), name) {
                _ if all => &[1, 2, 3, 4, 5],
                (false, false, "hmm") => &[1, 2, 3, 4, 5],
                (true, _, "hmm") => &[2, 5],
                (false, false, _) => &[3],
                (true, _, _) => &[4],
                _ => &[],
            };
            for &ranks in ranks {
                let out = dir.path().join(format!("{name}-{}-{}-{ranks}", mpi.name, mpi.has_named_library()));
                let output = succeeds(&mut job(mpi, ranks, &[], &pipeline, &out, &[]), name);
                let text = said(&output);
                assert_eq!(text.matches("done  ").count(), 1, "one rank speaks: {text}");
                assert!(outcome(&out) == want, "{name}: {} with {ranks} ranks learned another model", mpi.name);
            }
            println!("{name}: {} with {ranks:?} ranks: one model", mpi.name);
            if !all && (mpi.is_open_mpi() || mpi.has_named_library()) {
                continue;
            }
            // Stopped in the midst of an epoch, and resumed on another number of ranks.
            let out = dir.path().join(format!("{name}-{}-{}-resumed", mpi.name, mpi.has_named_library()));
            let half = format!("learn.batches={}", want.2["step"].as_u64().unwrap() / 2 + 1);
            succeeds(&mut job(mpi, 3, &[], &pipeline, &out, &["--set", &half]), name);
            succeeds(&mut job(mpi, 2, &[], &pipeline, &out, &["--resume"]), name);
            assert!(outcome(&out) == want, "{name}: {} resumed on two ranks learned another model", mpi.name);
        }
    }
}

/// A run that takes some seconds, with checkpoints all the time.
fn long_pipeline(dir: &Path) -> PathBuf {
    let text = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 6\nlatents = 3\nrows = 5000\n\
                [batch]\nrows = 16\nshards = 5\n[circuit]\nmodel = 'hmm'\nlatents = 4\n\
                [checkpoint]\nevery_batches = 10\n[learn]\nepochs = 9\nbatches = 400\n\
                [validate]\nrows = 100\nevery_batches = 100\n";
    let path = dir.join("long.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// Files of rows for a folder that is watched, by names that deal them out to three shards evenly.
fn write_watched(folder: &Path, files: usize, cats: u8) {
    std::fs::create_dir_all(folder).unwrap();
    for file in 0..files {
        let mut rng = Rng::new(file as u64);
        let values = (0..60 * 6).map(|_| (rng.uniform() * rng.uniform() * f64::from(cats)) as u8).collect();
        write_rows(&folder.join(format!("data-{file:04}.parquet")), values, 6, 20);
    }
}

#[test]
fn a_watched_folder_is_learned_alike_by_one_process_and_by_ranks_and_one_without_files_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let libraries = installed();
    let Some(mpi) = libraries.first() else { return };
    write_watched(&dir.path().join("shards"), 12, 5);
    let pipeline = |name: &str, batch: &str, learn: &str| {
        let text = format!(
            "[source]\nfiles = '{}/shards/*.parquet'\nwatch = true\nsettle = 0.1\n[batch]\nrows = 24\n{batch}\n\
             [circuit]\nmodel = 'hclt'\nlatents = 3\nstructure_rows = 200\n[learn]\n{learn}\n",
            dir.path().display()
        );
        let path = dir.path().join(format!("{name}.toml"));
        std::fs::write(&path, text).unwrap();
        path
    };
    // Every shard has rows: the same bits.
    let sure = pipeline("sure", "shards = 3\nmax_wait = 'never'", "batches = 7");
    let want = alone(&sure, &dir.path().join("alone"));
    assert_eq!((want.2["step"].as_u64(), want.2["rows"].as_u64()), (Some(7), Some(168)));
    let out = dir.path().join("ranks");
    succeeds(&mut job(mpi, 2, &[], &sure, &out, &[]), mpi.name);
    assert!(outcome(&out) == want, "two ranks learned another model");
    // Shards run out of files one after the other: every row is learned from all the same.
    let all = pipeline("all", "shards = 3\nmax_wait = 0.3", "rows = 720");
    let out = dir.path().join("all");
    succeeds(&mut job(mpi, 2, &[], &all, &out, &[]), mpi.name);
    assert_eq!(outcome(&out).2["rows"], 720);
    // Ranks that have seen other files first: what the first has understood is what is meant.
    for (folder, cats) in [("one", 5), ("two", 3)] {
        write_watched(&dir.path().join(folder).join("shards"), 12, cats);
    }
    let text = std::fs::read_to_string(&sure).unwrap().replace(&format!("{}/", dir.path().display()), "");
    std::fs::write(&sure, text).unwrap();
    let out = dir.path().join("unlike");
    let mut command = mpi.launcher(1, &["-wdir", dir.path().join("one").to_str().unwrap()]);
    for rank in 0..2 {
        if rank == 1 {
            command.args([":", "-n", "1", "-wdir"]).arg(dir.path().join("two"));
        }
        command.arg(env!("CARGO_BIN_EXE_anemone")).arg("train").arg(&sure).arg("--out").arg(&out);
        command.args(["--threads", "1", "--device", "cpu"]);
    }
    succeeds(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()), mpi.name);
    assert_eq!(outcome(&out).2["step"], 7);
}

#[test]
fn a_signal_to_one_rank_stops_all_and_others_resume() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = long_pipeline(dir.path());
    let libraries = installed();
    if libraries.is_empty() {
        return;
    }
    let want = alone(&pipeline, &dir.path().join("alone"));
    for mpi in libraries.iter().filter(|mpi| !mpi.has_named_library()) {
        let out = dir.path().join(mpi.name);
        for ranks in [2, 4] {
            let before = step(&out);
            let child = job(mpi, ranks, &[], &pipeline, &out, &["--resume"]).spawn().unwrap();
            let begun = Instant::now();
            while ranks_of(&out).len() < ranks || step(&out) == before {
                assert!(begun.elapsed() < PATIENCE);
                thread::sleep(Duration::from_millis(5));
            }
            send("-TERM", ranks_of(&out)[1]);
            let (output, _) = ended(child);
            assert!(output.status.success(), "{}: {}", mpi.name, said(&output));
        }
        succeeds(&mut job(mpi, 3, &[], &pipeline, &out, &["--resume"]), mpi.name);
        assert!(outcome(&out) == want, "{}: stopped and resumed on 2, 4 and 3 ranks", mpi.name);
    }
}

#[test]
fn a_signal_that_comes_before_the_ranks_have_met_stops_all() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = long_pipeline(dir.path());
    for mpi in installed().iter().filter(|mpi| !mpi.has_named_library()) {
        let out = dir.path().join(mpi.name);
        let go = dir.path().join(format!("go-{}", mpi.name));
        let (ready, go_on) = (go.to_str().unwrap(), "until [ -e \"$0\" ]; do sleep 0.05; done; exec \"$@\"");
        let late: &[&str] = &["sh", "-c", go_on, ready, env!("CARGO_BIN_EXE_anemone")];
        let mut command = mpi.launcher(1, &[]);
        for (rank, program) in [late, &[env!("CARGO_BIN_EXE_anemone")]].into_iter().enumerate() {
            command.args(if rank == 0 { &[][..] } else { &[":", "-n", "1"] }).args(program);
            command.arg("train").arg(&pipeline).arg("--out").arg(&out).args(["--threads", "1", "--device", "cpu"]);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        while !ranks_of(&out).first().is_some_and(|&id| catches_sigterm(id)) {
            if begun.elapsed() > Duration::from_secs(20) {
                std::fs::write(&go, "").unwrap();
                panic!("{}: waits for the others with its hands over its ears: {}", mpi.name, said(&ended(child).0));
            }
            thread::sleep(Duration::from_millis(5));
        }
        send("-TERM", ranks_of(&out)[0]);
        std::fs::write(&go, "").unwrap();
        let (output, _) = ended(child);
        assert!(output.status.success(), "{}: {}", mpi.name, said(&output));
        assert!(said(&output).contains("stopped by a signal before the first batch"), "{}", said(&output));
        assert_eq!(step(&out), None);
    }
}

/// Returns true if a process has a handler for SIGTERM.
fn catches_sigterm(id: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> 14 & 1 == 1)
}

#[test]
fn a_killed_rank_ends_the_job_and_others_resume_to_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = long_pipeline(dir.path());
    let libraries = installed();
    if libraries.is_empty() {
        return;
    }
    let want = alone(&pipeline, &dir.path().join("alone"));
    let mut rng = Rng::new(7);
    for mpi in libraries.iter().filter(|mpi| !mpi.has_named_library()) {
        let mut slowest = Duration::ZERO;
        for kill in 0..wanted_kills(1) {
            let out = dir.path().join(format!("{}-{kill}", mpi.name));
            let child = job(mpi, 3, &[], &pipeline, &out, &[]).spawn().unwrap();
            wait_for_checkpoint(&out);
            thread::sleep(Duration::from_millis(rng.below(300) as u64));
            let victims = ranks_of(&out);
            if victims.len() == 3 {
                send("-KILL", victims[rng.below(3)]);
                let (output, time) = ended(child);
                assert!(!output.status.success(), "{}: {}", mpi.name, said(&output));
                let text = said(&output);
                let words = ["signal 9", "SIGNAL: 9", "EXIT CODE: 9", "is gone"];
                assert!(words.iter().any(|word| text.contains(word)), "{}: {text}", mpi.name);
                assert!(time < END_OF_JOB, "{}: the job ended {time:?} after its rank: {text}", mpi.name);
                slowest = slowest.max(time);
            } else {
                ended(child); // it was faster
            }
            let ranks = 1 + rng.below(4);
            succeeds(&mut job(mpi, ranks, &[], &pipeline, &out, &["--resume"]), mpi.name);
            assert!(outcome(&out) == want, "{}: kill {kill}, resumed on {ranks}", mpi.name);
            std::fs::remove_dir_all(&out).unwrap();
        }
        println!("{}: {} killed; the job ended after at most {slowest:?}", mpi.name, wanted_kills(1));
    }
}

#[test]
fn with_fault_tolerance_those_that_are_left_learn_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = long_pipeline(dir.path());
    let libraries = installed();
    let Some(mpi) = libraries.iter().find(|mpi| mpi.is_open_mpi()) else { return };
    let want = alone(&pipeline, &dir.path().join("alone"));
    let mut rng = Rng::new(11);
    let (mut killed, mut of_first) = (0, 0);
    for kill in 0..wanted_kills(2) {
        let out = dir.path().join(kill.to_string());
        let child = job(mpi, 3, &["--with-ft", "ulfm"], &pipeline, &out, &[]).spawn().unwrap();
        wait_for_checkpoint(&out);
        thread::sleep(Duration::from_millis(rng.below(300) as u64));
        let victims = ranks_of(&out);
        let victim = rng.below(3);
        if victims.len() == 3 {
            send("-KILL", victims[victim]);
            killed += 1;
            of_first += usize::from(victim == 0);
        }
        let (output, _) = ended(child);
        assert!(outcome(&out) == want, "kill {kill} of rank {victim}: {}", said(&output));
        std::fs::remove_dir_all(&out).unwrap();
    }
    println!("{}: {killed} ranks killed, {of_first} of them the first; the others learned the same model", mpi.name);
}

#[test]
fn what_ranks_cannot_do_together_is_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let libraries = installed();
    let Some(mpi) = libraries.first() else { return };
    let pipeline = long_pipeline(dir.path());
    let out = dir.path().join("out");
    let anemone = env!("CARGO_BIN_EXE_anemone");
    let fails = |command: &mut Command, wanted: &str| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (output, _) = ended(command.spawn().unwrap());
        let text = said(&output);
        assert!(!output.status.success(), "{text}");
        let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "{text}");
        assert!(errors[0].contains(wanted), "{wanted:?} is not in {text}");
    };
    fails(
        &mut job(mpi, 3, &[], &pipeline, &out, &["--set", "batch.shards=2"]),
        "batch.shards = 2: fewer than the 3 ranks",
    );
    // Ranks with commands of their own: `:` between them.
    let run_by = |options: &[&[&str]], programs: [&[&str]; 2], words: [&[&str]; 2]| {
        let mut command = mpi.launcher(1, options[0]);
        for (rank, more) in words.into_iter().enumerate() {
            if rank == 1 {
                command.args([":", "-n", "1"]).args(options[1]);
            }
            command.args(programs[rank]).arg("train").args(more).arg("--out").arg(&out).args(["--threads", "1"]);
        }
        command
    };
    let each = |options: &[&[&str]], words: [&[&str]; 2]| run_by(options, [&[anemone]; 2], words);
    let pipeline = pipeline.to_str().unwrap();
    // One byte more: another build of the same version.
    let other = dir.path().join("anemone");
    std::fs::copy(anemone, &other).unwrap();
    std::io::Write::write_all(&mut std::fs::File::options().append(true).open(&other).unwrap(), b"\0").unwrap();
    fails(
        &mut run_by(&[&[], &[]], [&[anemone], &[other.to_str().unwrap()]], [&[pipeline]; 2]),
        "rank 1 runs another build of this version than rank 0",
    );
    std::fs::remove_file(&other).unwrap();
    fails(
        &mut each(&[&[], &[]], [&[pipeline], &[pipeline, "--set", "batch.rows=32"]]),
        "rank 1 has another pipeline than rank 0: `rows = 32` where rank 0 has `rows = 16`",
    );
    fails(&mut each(&[&[], &[]], [&[pipeline], &["nowhere.toml"]]), "rank 1: nowhere.toml");
    fails(
        &mut each(&[&[], &[]], [&[pipeline], &[pipeline, "--isa", "scalar"]]),
        "rank 1 was started with other flags, or has another processor, than rank 0",
    );
    // The same names in other folders: other data, and data that is not there.
    for (folder, seed) in [("one", 1), ("two", 2), ("three", 3)] {
        let folder = dir.path().join(folder);
        std::fs::create_dir(&folder).unwrap();
        if seed < 3 {
            write_texts(&folder.join("text.parquet"), &texts(50, seed), 6);
        }
    }
    let text = dir.path().join("text.toml");
    std::fs::write(
        &text,
        "[source]\nfiles = 'text.parquet'\ncolumn = 'text'\n[decode]\nkind = 'text'\nwindow = 8\n[batch]\nrows = 8\n\
         shards = 2\n[circuit]\nmodel = 'hmm'\nlatents = 3\n",
    )
    .unwrap();
    let text: &[&str] = &[text.to_str().unwrap()];
    let folder = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (one, two, three) = (folder("one"), folder("two"), folder("three"));
    fails(
        &mut each(&[&["-wdir", &one], &["-wdir", &two]], [text, text]),
        "rank 1 reads other data than rank 0: text.parquet of ",
    );
    fails(&mut each(&[&["-wdir", &one], &["-wdir", &three]], [text, text]), "rank 1: source: text.parquet");
    let mut bytes = std::fs::read(dir.path().join("one/text.parquet")).unwrap();
    bytes[100] ^= 1;
    std::fs::write(dir.path().join("three/text.parquet"), bytes).unwrap();
    fails(
        &mut each(&[&["-wdir", &one], &["-wdir", &three]], [text, text]),
        "rank 1 reads other data than rank 0: files of the same names have other contents",
    );
    assert_eq!(step(&out), None, "nothing was learned");
    // The same by its length and both ends, which is all that ranks compare: known once it is the turn of those rows.
    let path = dir.path().join("one/text.parquet");
    write_texts(&path, &texts(30_000, 1), 1000);
    let mut bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() > 5 * 65536, "{}", bytes.len());
    let (begin, end) = (bytes.len() * 2 / 5, bytes.len() * 3 / 5);
    bytes[begin..end].fill(0xA5);
    std::fs::write(dir.path().join("three/text.parquet"), bytes).unwrap();
    let text = &[text, &["--set", "batch.rows=256"]].concat()[..];
    fails(&mut each(&[&["-wdir", &one], &["-wdir", &three]], [text, text]), "rank 1: text.parquet");
    assert!(step(&out).is_some(), "what was learned before is kept");
}

#[test]
fn a_rank_that_runs_out_of_memory_ends_the_job_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let pipeline = dir.path().join("large.toml");
    let text = "[source.synthetic]\nkind = 'hmm'\nnum_vars = 8\ncats = 20000\nlatents = 3\nrows = 5000\n[batch]\n\
                rows = 16\nshards = 2\n[circuit]\nmodel = 'hmm'\nlatents = 512\n[learn]\nepochs = 900\n";
    std::fs::write(&pipeline, text).unwrap();
    for mpi in installed().iter().filter(|mpi| !mpi.has_named_library()) {
        // What MPI and the program itself map fits, the parameters (42 MB, in several places) do not.
        let small: &[&str] = &["sh", "-c", "ulimit -v 600000; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_anemone")];
        let mut command = mpi.launcher(1, &[]);
        for (rank, program) in [&[env!("CARGO_BIN_EXE_anemone")], small].into_iter().enumerate() {
            command.args(if rank == 0 { &[][..] } else { &[":", "-n", "1"] }).args(program);
            command.arg("train").arg(&pipeline).arg("--out").arg(dir.path().join(mpi.name)).args(["--threads", "1"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (output, time) = ended(command.spawn().unwrap());
        let text = said(&output);
        assert!(!output.status.success(), "{}: {text}", mpi.name);
        assert!(text.contains("error: rank 1: no memory for ") && text.contains(" more bytes"), "{}: {text}", mpi.name);
        println!("{}: a rank without memory ended the job {time:?} after its start", mpi.name);
    }
}
