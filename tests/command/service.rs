//! A run that is a service: it tells its manager how it is, writes a checkpoint when asked, and ends with its terminal.

#![cfg(target_os = "linux")]

use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::running::{ENDLESS, Running, any_checkpoint, last_checkpoint, newest_step, wait_for_step_after};

/// An endless run without checkpoints of its own accord.
fn endless(folder: &Path) -> std::path::PathBuf {
    let file = folder.join("endless.toml");
    std::fs::write(&file, ENDLESS.replace("every_batches = 50", "every_seconds = 3600")).unwrap();
    file
}

fn train(file: &Path, out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
    command.args(["train", "--quiet", "--threads", "1", "--out"]).args([out, file]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    heeds_hangup(&mut command);
    command
}

/// Tests that are run under `nohup` hand down that SIGHUP is ignored, which a run respects.
fn heeds_hangup(command: &mut Command) {
    // SAFETY: between fork and exec only async-signal-safe calls are allowed, and `signal` is one.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            Ok(())
        });
    }
}

/// Messages of the run to its manager, until one begins with `wanted`.
fn wait_for(manager: &UnixDatagram, wanted: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut buffer = [0; 1024];
    while Instant::now() < deadline {
        if let Ok(length) = manager.recv(&mut buffer) {
            let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if message.starts_with(wanted) {
                return message;
            }
        }
    }
    panic!("no {wanted} in a minute");
}

#[test]
fn a_service_is_ready_alive_and_stopping_and_hangup_asks_for_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (endless(folder.path()), folder.path().join("run"));
    let socket = folder.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let child = train(&file, &out).env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "2000000").spawn().unwrap();
    let mut run = Running(Some(child));
    wait_for(&manager, "READY=1");
    wait_for(&manager, "WATCHDOG=1");
    let status = wait_for(&manager, "STATUS=");
    assert!(status.contains(" rows learned, ") && status.contains(" nats a row"), "{status}");
    assert!(!any_checkpoint(&out), "nobody has asked for one");
    // Not the end: a checkpoint each time, and it goes on.
    let mut before = 0;
    for _ in 0..2 {
        run.send("-HUP");
        wait_for_step_after(&out, before);
        before = newest_step(&out);
        anemone::learner::checkpoint::load(&last_checkpoint(&out)).unwrap();
        assert!(run.child().try_wait().unwrap().is_none(), "it continues");
    }
    // A run that is stopped says nothing, so its manager would notice.
    run.send("-STOP");
    thread::sleep(Duration::from_millis(300));
    while manager.recv(&mut [0; 1024]).is_ok() {} // what was said before
    assert!(manager.recv(&mut [0; 1024]).is_err());
    run.send("-CONT");
    wait_for(&manager, "WATCHDOG=1");
    run.send("-TERM");
    wait_for(&manager, "STOPPING=1");
    run.ends_well("the service");
}

/// `script` gives a run a terminal, and closes it when it is killed.
#[test]
fn a_run_ends_with_its_terminal_and_leaves_a_checkpoint() {
    if !Path::new("/usr/bin/script").exists() {
        eprintln!("skipped: there is no `script`, which would give the run a terminal");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (endless(folder.path()), folder.path().join("run"));
    let command = format!(
        "exec '{}' train --threads 1 --out '{}' '{}'",
        env!("CARGO_BIN_EXE_anemone"),
        out.display(),
        file.display()
    );
    let mut script = Command::new("/usr/bin/script");
    script.args(["-qfec", &command, "/dev/null"]).stdin(Stdio::null()).stdout(Stdio::null());
    heeds_hangup(&mut script);
    let mut terminal = Running(Some(script.spawn().unwrap()));
    let deadline = Instant::now() + Duration::from_secs(60);
    let out_name = out.display().to_string();
    while !std::fs::read_to_string(out.join("metrics.jsonl")).is_ok_and(|text| text.lines().count() > 1) {
        assert!(Instant::now() < deadline, "it does not learn");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(processes_with(&out_name).len(), 2, "`script` and the run");
    terminal.child().kill().unwrap(); // by id; its terminal is gone with it
    terminal.child().wait().unwrap();
    while !processes_with(&out_name).is_empty() {
        assert!(Instant::now() < deadline, "it outlives its terminal");
        thread::sleep(Duration::from_millis(20));
    }
    anemone::learner::checkpoint::load(&last_checkpoint(&out)).unwrap();
}

/// Processes that have a text among their arguments.
fn processes_with(text: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let arguments = processes.filter_map(|entry| {
        let bytes = std::fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    });
    arguments.filter(|arguments| arguments.contains(text)).collect()
}
