//! Killed anywhere, it resumes bit-identically.
//!
//! Training is killed (SIGKILL) at random moments and resumed until it is through; parameters, optimizer state and
//! cursor must be those of the run that nobody killed.
//! `ANEMONE_KILLS=100 cargo test --release --test command -- kill:: --nocapture` kills a hundred times; the default is
//! a handful, for every day.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anemone::rng::Rng;

use crate::common::running::{
    ENDLESS, Running, any_checkpoint, finish, last_checkpoint, newest_step, outcome, wait_for_step_after,
};
use crate::common::shards;

/// Kills over all three cases.
fn wanted_kills() -> usize {
    std::env::var("ANEMONE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(9)
}

struct Case {
    name: &'static str,
    pipeline: String,
}

/// Text through BPE into an HMM, images into a tree, and full-batch EM, which must survive in mid-epoch.
fn cases(dir: &Path) -> Vec<Case> {
    for shard in 0..3 {
        shards::write_texts(&dir.join(format!("text-{shard}.parquet")), &shards::texts(150, shard), 40);
    }
    let mut rng = Rng::new(5);
    let images: Vec<Vec<u8>> = (0..160).map(|_| shards::picture(8, &mut rng)).collect();
    shards::write_images(&dir.join("images-0.parquet"), &images[..90], 24);
    shards::write_images(&dir.join("images-1.parquet"), &images[90..], 24);
    let snps = (0..900 * 40).map(|i| u8::from(rng.uniform() < 0.2 + 0.015 * f64::from(i % 40))).collect();
    shards::write_rows(&dir.join("snps.parquet"), snps, 40, 100);
    let at = |pattern: &str| dir.join(pattern).display().to_string();
    let common = "[checkpoint]\nevery_batches = 3\nkeep = 2\n";
    vec![
        Case {
            name: "hmm-text",
            pipeline: format!(
                "[source]\nfiles = '{}'\ncolumn = 'text'\n[decode]\nkind = 'text'\nwindow = 16\n[batch]\nrows = 16\n\
                 shuffle_window = '4KiB'\n[circuit]\nmodel = 'hmm'\nlatents = 8\n[learn]\nepochs = 4\n[validate]\n\
                 files = '{}'\nevery_batches = 7\n{common}",
                at("text-[01].parquet"),
                at("text-2.parquet")
            ),
        },
        Case {
            name: "hclt-images",
            pipeline: format!(
                "[source]\nfiles = '{}'\n[decode]\nkind = 'image'\npatch = 4\ncolor = 'ycocg-r'\n[batch]\nrows = 24\n\
                 [circuit]\nmodel = 'hclt'\nlatents = 8\nstructure_rows = 300\n[learn]\nepochs = 5\n{common}",
                at("images-*.parquet")
            ),
        },
        Case {
            name: "full-batch-snps",
            pipeline: format!(
                "[source]\nfiles = '{}'\n[batch]\nrows = 32\nshuffle_window = '8KiB'\n[circuit]\nmodel = 'hclt'\n\
                 latents = 12\n[learn]\noptimizer = 'full_batch_em'\nepochs = 8\n{common}",
                at("snps.parquet")
            ),
        },
    ]
}

fn start(pipeline: &Path, out: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_anemone"))
        .args(["train", "--quiet", "--resume", "--threads", "1", "--out"])
        .args([out, pipeline])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn killed_at_random_moments_and_resumed_it_learns_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let cases = cases(folder.path());
    let kills_each = wanted_kills().div_ceil(cases.len());
    let mut rng = Rng::new(17);
    for Case { name, pipeline } in cases {
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, pipeline).unwrap();
        let whole = folder.path().join(format!("{name}-whole"));
        let begun = Instant::now();
        finish(start(&file, &whole), name);
        let (time, expected) = (begun.elapsed(), outcome(&whole));
        assert!(!expected.0.is_empty());
        let (mut kills, mut runs, mut useful) = (0, 0, 0);
        while kills < kills_each {
            // One run, killed again and again until it is through.
            let out = folder.path().join(format!("{name}-killed-{runs}"));
            runs += 1;
            loop {
                let mut child = start(&file, &out);
                let moment = Duration::from_secs_f64(time.as_secs_f64() * rng.uniform());
                thread::sleep(moment);
                let is_through = child.try_wait().unwrap().is_some();
                if is_through || kills >= kills_each {
                    finish(child, name);
                    break;
                }
                child.kill().unwrap(); // SIGKILL, by id
                child.wait().unwrap();
                kills += 1;
                useful += usize::from(out.join("checkpoints").is_dir() && any_checkpoint(&out));
            }
            let found = outcome(&out);
            assert_eq!(found.2, expected.2, "{name}: place and counters");
            assert!(found.0 == expected.0, "{name}: parameters differ after {kills} kills");
            assert!(found.1 == expected.1, "{name}: optimizer state differs after {kills} kills");
        }
        println!("{name}: {kills} kills in {runs} runs, {useful} of them with a checkpoint to go on from: same bits");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_finishes_the_update_writes_a_checkpoint_and_exits_with_zero() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("endless.toml"), folder.path().join("run"));
    std::fs::write(&file, ENDLESS).unwrap();
    let mut last_step = 0;
    // A service manager may send two kinds at once: one request.
    for signals in [&["-TERM"][..], &["-INT"], &["-TERM", "-HUP"]] {
        let child = start(&file, &out);
        let deadline = Instant::now() + Duration::from_secs(60);
        // Until it has learned something new.
        while !(out.join("checkpoints").is_dir() && any_checkpoint(&out) && newest_step(&out) > last_step) {
            assert!(Instant::now() < deadline, "no checkpoint in a minute");
            thread::sleep(Duration::from_millis(20));
        }
        let before = newest_step(&out);
        let kill = |signal: &&str| Command::new("kill").args([*signal, &child.id().to_string()]).status();
        assert!(kill(&signals[0]).unwrap().success());
        let _gone = signals[1..].iter().map(kill).collect::<Vec<_>>(); // it may have ended by then
        finish(child, signals[0]); // exit code 0
        last_step = newest_step(&out);
        assert!(last_step >= before);
        anemone::learner::checkpoint::load(&last_checkpoint(&out)).unwrap();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_under_nohup_outlives_its_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("endless.toml"), folder.path().join("run"));
    std::fs::write(&file, ENDLESS).unwrap();
    let child = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_anemone")])
        .args(["train", "--quiet", "--threads", "1", "--out"])
        .args([&out, &file])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut run = Running(Some(child));
    wait_for_step_after(&out, 0);
    run.send("-HUP");
    let at = newest_step(&out);
    wait_for_step_after(&out, at + 50); // it continues
    assert!(run.child().try_wait().unwrap().is_none());
    run.send("-TERM");
    run.ends_well("nohup");
}

/// Connections that say nothing would take all descriptors, and no checkpoint could be written.
#[cfg(target_os = "linux")]
#[test]
fn idle_connections_do_not_keep_a_run_from_its_last_checkpoint() {
    use std::io::{BufRead, BufReader, Write};
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("endless.toml"), folder.path().join("run"));
    // No checkpoint but the last one.
    std::fs::write(&file, ENDLESS.replace("every_batches = 50", "every_seconds = 3600")).unwrap();
    let child = Command::new("sh")
        .args(["-c", "ulimit -n 64; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_anemone")])
        .args(["train", "--json", "--threads", "1", "--metrics-addr", "0", "--out"])
        .args([&out, &file])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut run = Running(Some(child));
    let mut lines = BufReader::new(run.child().stdout.take().unwrap()).lines().map(Result::unwrap);
    let address = lines.find_map(|line| {
        let (_, rest) = line.split_once("http://")?;
        Some(rest.split('/').next().unwrap().to_string())
    });
    let address = address.expect("the address of the metrics");
    lines.find(|line| line.contains("\"step\"")).expect("it learns");
    // A client that reads nothing would hold up the run at last.
    let reader = thread::spawn(move || lines.count());
    let connections: Vec<_> = (0..120)
        .filter_map(|_| {
            let mut stream = std::net::TcpStream::connect(&address).ok()?;
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost:"); // half a request
            Some(stream)
        })
        .collect();
    thread::sleep(Duration::from_secs(2)); // longer than it takes to accept all that will be
    run.send("-TERM");
    run.ends_well("idle connections");
    drop(connections);
    reader.join().unwrap();
    anemone::learner::checkpoint::load(&last_checkpoint(&out)).unwrap();
}

/// The folder is renamed while the run continues: it is made again, with all that a resume needs.
#[test]
fn a_run_whose_folder_was_moved_goes_on_in_a_new_one_that_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("endless.toml"), folder.path().join("run"));
    std::fs::write(&file, ENDLESS).unwrap();
    let mut child = Running(Some(start(&file, &out)));
    wait_for_step_after(&out, 0);
    std::fs::rename(&out, folder.path().join("moved")).unwrap();
    wait_for_step_after(&out, 0);
    // A line of metrics comes twice a second, of a process that gets its turn.
    let (lines, begun) = (out.join("metrics.jsonl"), Instant::now());
    while !std::fs::metadata(&lines).is_ok_and(|found| found.len() > 0) {
        assert!(begun.elapsed() < Duration::from_secs(60), "no line of metrics in the new folder");
        thread::sleep(Duration::from_millis(20));
    }
    child.send("-TERM");
    child.ends_well("the run");
    let metrics = std::fs::read_to_string(&lines).unwrap();
    assert!(metrics.lines().count() > 0);
    let output = Command::new(env!("CARGO_BIN_EXE_anemone"))
        .args(["train", "--resume", "--set", "learn.batches=1", "--out"])
        .arg(&out)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The folder is renamed and another run begins in its place: two writers would mix their checkpoints.
#[cfg(unix)]
#[test]
fn a_run_whose_folder_was_taken_ends_and_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("endless.toml"), folder.path().join("run"));
    std::fs::write(&file, ENDLESS).unwrap();
    let mut first = Running(Some(start(&file, &out)));
    wait_for_step_after(&out, 0);
    // Stopped for the moment in which the folder changes hands: it must not make it again itself.
    first.send("-STOP");
    std::fs::rename(&out, folder.path().join("moved")).unwrap();
    let mut second = Running(Some(start(&file, &out)));
    wait_for_step_after(&out, 0);
    first.send("-CONT");
    let ended = first.ended();
    let error = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{error}");
    assert!(error.contains("another process") && error.contains("run"), "{error}");
    second.send("-TERM");
    second.ends_well("the second");
    anemone::learner::checkpoint::load(&last_checkpoint(&out)).unwrap();
    anemone::learner::checkpoint::load(&last_checkpoint(&folder.path().join("moved"))).unwrap();
}
