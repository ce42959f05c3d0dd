//! A prefix of an S3 bucket that grows, on a server that speaks S3: killed and resumed; an object that is replaced.
//!
//! Clouds are not part of the usual build, so both come from the environment: `ANEMONE_S3` is the address of a server
//! on loopback that takes unsigned requests (`moto_server -p 5005`: `http://127.0.0.1:5005`), `ANEMONE_S3_COMMAND` the
//! command, built with `--features aws`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::running::{Running, outcome, wait_for_step_after};

const ROWS: usize = 64;

/// A request without credentials, which must succeed.
fn put(server: &str, path: &str, body: &str) {
    let host = server.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let head =
        format!("PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    let _closed = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
}

/// Rows of an object: lists of four numbers.
fn rows(number: usize) -> String {
    (0..ROWS).map(|row| format!("[{},{},{},{}]\n", row % 2, row / 2 % 2, number % 2, (row + number) % 2)).collect()
}

fn start(command: &str, server: &str, pipeline: &Path, out: &Path) -> Child {
    let settings = [
        ("AWS_ENDPOINT", server),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", "test"),
    ];
    let mut train = Command::new(command);
    train.args(["train", "--resume", "--threads", "1", "--out"]).args([out, pipeline]).envs(settings);
    train.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_prefix_that_grows_is_learned_once_under_kills_and_what_is_replaced_is_named() {
    let (Ok(server), Ok(command)) = (std::env::var("ANEMONE_S3"), std::env::var("ANEMONE_S3_COMMAND")) else {
        eprintln!("skipped: ANEMONE_S3 and ANEMONE_S3_COMMAND do not name an S3 server and a command built with `aws`");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let bucket = format!("/tide-{}", std::process::id());
    put(&server, &bucket, "");
    let object = |prefix: &str, number: usize| format!("{bucket}/{prefix}/part-{number:03}.jsonl");
    let pipeline = |prefix: &str, objects: usize| {
        let file = folder.path().join(format!("{prefix}.toml"));
        let text = format!(
            "[source]\nfiles = 's3:/{bucket}/{prefix}/*.jsonl'\nwatch = true\nsettle = 0.2\n[decode]\nkind = 'rows'\n\
             cats = 2\n[batch]\nrows = 32\nmax_wait = 'never'\n[circuit]\nmodel = 'hmm'\nlatents = 3\n\
             [learn]\nrows = {}\n[checkpoint]\nevery_batches = 1\nkeep = 2\n",
            objects * ROWS
        );
        std::fs::write(&file, text).unwrap();
        file
    };
    for number in 0..2 {
        put(&server, &object("grows", number), &rows(number));
    }
    let (file, out) = (pipeline("grows", 6), folder.path().join("grows"));
    let mut step = 0;
    for number in 2..6 {
        let mut run = Running(Some(start(&command, &server, &file, &out)));
        wait_for_step_after(&out, step);
        step += 1;
        put(&server, &object("grows", number), &rows(number));
        if number == 4 {
            thread::sleep(Duration::from_secs(1));
        }
        run.child().kill().unwrap(); // SIGKILL, by id
        run.child().wait().unwrap();
    }
    // The first object is long over: another one in its place, of the same size.
    put(&server, &object("grows", 0), &rows(1));
    let begun = Instant::now();
    let output = Running(Some(start(&command, &server, &file, &out))).ended();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    println!("the last stretch took {:.1?}", begun.elapsed());
    assert_eq!(outcome(&out).2["rows"], 6 * ROWS);
    assert_eq!(said.matches("part-000.jsonl: was replaced after it was learned from").count(), 1, "{said}");

    // The same rows, all there at once, and nobody kills: the same bits.
    for number in 0..6 {
        put(&server, &object("rests", number), &rows(number));
    }
    let whole = folder.path().join("rests");
    Running(Some(start(&command, &server, &pipeline("rests", 6), &whole))).ends_well("objects at rest");
    let (found, expected) = (outcome(&out), outcome(&whole));
    assert!(found.0 == expected.0, "parameters differ");
    assert!(found.1 == expected.1, "the optimizer's state differs");
}
