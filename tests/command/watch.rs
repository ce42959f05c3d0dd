//! A folder that grows while it is learned from: killed, resumed, with half-written and corrupt shards in it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anemone::data::Digest;
use anemone::rng::Rng;

use crate::common::running::{last_checkpoint, outcome};
use crate::common::shards;

/// Rows in a shard, and values in a row.
const ROWS: usize = 96;
const WIDTH: usize = 12;

/// How many shards come, how far apart, and how often the run is killed: `ANEMONE_WATCH=120,1000,20` is the long
/// version.
fn sizes() -> (usize, Duration, usize) {
    let said = std::env::var("ANEMONE_WATCH").unwrap_or_else(|_| "12,500,4".into());
    let numbers: Vec<usize> = said.split(',').map(|number| number.parse().unwrap()).collect();
    (numbers[0], Duration::from_millis(numbers[1] as u64), numbers[2])
}

/// A shard's bytes.
fn shard(folder: &Path, number: usize) -> Vec<u8> {
    let mut rng = Rng::new(number as u64 + 1);
    let values = (0..ROWS * WIDTH).map(|i| u8::from(rng.uniform() < 0.1 + 0.07 * (i % WIDTH) as f64)).collect();
    let path = folder.join(format!("made-{number}"));
    shards::write_rows(&path, values, WIDTH as i32, 40);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    bytes
}

/// Lets shards appear: by rename, by slow copying, and a corrupt one among them.
fn deliver(made: &Path, into: &Path, name: &str, count: usize, apart: Duration) {
    for number in 0..count {
        let begun = Instant::now();
        let (mut bytes, path) = (shard(made, number), into.join(format!("{name}-{number:04}.parquet")));
        if number == count / 2 {
            let middle = bytes.len() / 2;
            bytes.truncate(middle); // whole by every sign, and no Parquet file
        }
        if number % 2 == 0 {
            let aside = made.join("aside");
            std::fs::write(&aside, bytes).unwrap();
            std::fs::rename(aside, path).unwrap();
        } else {
            use std::io::Write;
            let mut file = std::fs::File::create(path).unwrap();
            for part in bytes.chunks(bytes.len().div_ceil(4)) {
                file.write_all(part).unwrap();
                thread::sleep(apart.mul_f64(0.15));
            }
        }
        thread::sleep(apart.saturating_sub(begun.elapsed()));
    }
}

fn start(pipeline: &Path, out: &Path) -> Child {
    start_with(&["--quiet"], pipeline, out)
}

fn start_with(flags: &[&str], pipeline: &Path, out: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_anemone"))
        .args(["train", "--resume", "--threads", "1"])
        .args(flags)
        .arg("--out")
        .args([out, pipeline])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(mut child: Child, what: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(120);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap(); // by id
            let said = child.wait_with_output().unwrap();
            panic!("{what}: does not end: {}", String::from_utf8_lossy(&said.stderr));
        }
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{what}: {said}");
    said
}

fn pipeline(folder: &Path, name: &str, shards: &Path, more: &str) -> PathBuf {
    let file = folder.join(name);
    let text = format!(
        "[source]\nfiles = '{}/*.parquet'\nwatch = true\nsettle = 0.4\n[batch]\nrows = 32\n\
         max_wait = 'never'\n[circuit]\n\
         model = 'hclt'\nlatents = 4\nstructure_rows = 90\n[checkpoint]\nevery_batches = 2\nkeep = 2\n[pipeline]\n\
         on_bad = 'quarantine'\n{more}",
        shards.display()
    );
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn shards_that_arrive_under_kills_are_learned_once_each_and_to_the_same_bits() {
    let (count, apart, kills) = sizes();
    let folder = tempfile::tempdir().unwrap();
    let (made, shards) = (folder.path().join("made"), folder.path().join("shards"));
    for folder in [&made, &shards] {
        std::fs::create_dir(folder).unwrap();
    }
    let rows = (count - 1) * ROWS;
    let file = pipeline(folder.path(), "watch.toml", &shards, &format!("[learn]\nrows = {rows}\n"));
    let is_over = Arc::new(AtomicBool::new(false));
    let producer = {
        let (made, shards, is_over) = (made, shards.clone(), is_over.clone());
        thread::spawn(move || {
            deliver(&made, &shards, "shard", count, apart);
            is_over.store(true, Ordering::SeqCst);
        })
    };
    let out = folder.path().join("killed");
    let mut rng = Rng::new(3);
    let mut killed = 0;
    let mean = apart.mul_f64(count as f64 / kills as f64);
    while killed < kills && !is_over.load(Ordering::SeqCst) {
        let mut child = start(&file, &out);
        thread::sleep(mean.mul_f64(0.4 + 0.9 * rng.uniform()));
        assert!(child.try_wait().unwrap().is_none(), "it ended: {}", finish(child, "a run before its end"));
        child.kill().unwrap(); // SIGKILL, by id
        child.wait().unwrap();
        killed += 1;
    }
    finish(start(&file, &out), "the last stretch");
    producer.join().unwrap();
    // The same files, all there from the beginning, and nobody kills.
    let whole = folder.path().join("whole");
    finish(start(&file, &whole), "the run that nobody killed");
    let (found, expected) = (outcome(&out), outcome(&whole));
    assert_eq!(found.2["rows"], rows, "every row of every whole shard once: {}", found.2);
    assert_eq!(found.2, expected.2, "place and counters");
    assert!(found.0 == expected.0, "parameters differ after {killed} kills");
    assert!(found.1 == expected.1, "optimizer state differs after {killed} kills");
    for run in [&out, &whole] {
        let ledger = std::fs::read_to_string(run.join("quarantine.jsonl")).unwrap();
        let corrupt = format!("shard-{:04}.parquet", count / 2);
        assert_eq!(ledger.lines().count(), 1, "{ledger}");
        assert!(ledger.contains(&corrupt), "{ledger}");
        let position = std::fs::read_to_string(last_checkpoint(run).join("checkpoint.json")).unwrap();
        assert!(position.contains(&corrupt), "the corrupt one was taken too");
    }
    println!("{count} shards, {killed} kills: same bits");
}

/// Two shards that wait for each other for ever: batches are a function of the files alone, whenever they come.
#[test]
fn shards_of_batches_have_files_of_their_own_and_the_same_bits_under_kills() {
    let (count, apart, kills) = sizes();
    let folder = tempfile::tempdir().unwrap();
    let (made, shards) = (folder.path().join("made"), folder.path().join("shards"));
    for folder in [&made, &shards] {
        std::fs::create_dir(folder).unwrap();
    }
    // Whose a file is follows from its name; the shorter shard decides how many batches there are.
    let own = |shard: u64| {
        let good = (0..count).filter(|&number| number != count / 2);
        let name = |number: usize| Digest::new().part(format!("data-{number:04}.parquet")).number();
        good.filter(|&number| name(number) % 2 == shard).count()
    };
    let batches = own(0).min(own(1)) * ROWS / 16;
    assert!(batches > 2 * count, "names that happen to be dealt out evenly: {batches}");
    let file = pipeline(folder.path(), "watch.toml", &shards, &format!("[learn]\nbatches = {batches}\n"));
    let text = std::fs::read_to_string(&file).unwrap().replace("[batch]\n", "[batch]\nshards = 2\n");
    std::fs::write(&file, text).unwrap();
    let producer = {
        let (made, shards) = (made, shards.clone());
        thread::spawn(move || deliver(&made, &shards, "data", count, apart))
    };
    let out = folder.path().join("killed");
    let mut rng = Rng::new(5);
    let mean = apart.mul_f64(0.7 * count as f64 / kills as f64);
    for _ in 0..kills {
        let mut child = start(&file, &out);
        thread::sleep(mean.mul_f64(0.4 + 0.9 * rng.uniform()));
        child.kill().unwrap(); // SIGKILL, by id; it may be over
        child.wait().unwrap();
    }
    finish(start(&file, &out), "the last stretch");
    producer.join().unwrap();
    let whole = folder.path().join("whole");
    finish(start(&file, &whole), "the run that nobody killed");
    let (found, expected) = (outcome(&out), outcome(&whole));
    assert_eq!(found.2["rows"], 32 * batches, "{}", found.2);
    assert_eq!(found.2["cursor"]["shards"].as_array().unwrap().len(), 2);
    assert_eq!(found.2, expected.2, "places and counters");
    assert!(found.0 == expected.0 && found.1 == expected.1, "the bits differ after {kills} kills");
}

#[test]
fn a_run_waits_for_its_first_file_says_so_and_a_corrupt_one_ends_it_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (made, shards) = (folder.path().join("made"), folder.path().join("shards"));
    std::fs::create_dir(&made).unwrap();
    let file = pipeline(folder.path(), "watch.toml", &shards, "");
    let strict = std::fs::read_to_string(&file).unwrap().replace("quarantine", "fail");
    std::fs::write(&file, strict).unwrap();
    // A check does not wait.
    let check = |what: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_anemone")).args(["check", "--threads", "1"]).arg(&file).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(said.contains(what), "{said}");
    };
    check("no file matches yet; a run would wait for the first");
    let child = start(&file, &folder.path().join("run"));
    thread::sleep(Duration::from_millis(600));
    std::fs::create_dir(&shards).unwrap();
    std::fs::write(shards.join("a.parquet"), shard(&made, 0)).unwrap();
    check("watched: 1 file now, of which the first decides columns and categories");
    thread::sleep(Duration::from_millis(600));
    std::fs::write(shards.join("b.parquet"), b"PAR1 and nothing else").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("waiting for the first file that matches") && said.contains("is not there"), "{said}");
    assert!(said.contains("watching ") && said.contains("batch.shuffle has no meaning"), "{said}");
    assert!(said.lines().last().unwrap().contains("b.parquet: not a whole Parquet file"), "{said}");
}

#[test]
fn every_format_is_watched_and_a_file_unlike_the_first_is_bad_data() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<Vec<u8>> = (0..60).map(|row| (0..8).map(|var| ((row * 7 + var * row) % 5) as u8).collect()).collect();
    let tokens = |range: std::ops::Range<usize>| -> Vec<u8> {
        rows[range].iter().flatten().flat_map(|&value| u16::from(value).to_le_bytes()).collect()
    };
    let npy = |rows: &[Vec<u8>], width: usize| -> Vec<u8> {
        let shape = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({}, {width}), }}", rows.len());
        let header = format!("{shape:<117}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(rows.iter().flat_map(|row| &row[..width]));
        bytes
    };
    let jsonl = |range: std::ops::Range<usize>| -> Vec<u8> {
        range
            .map(|row| format!("{{\"text\": \"{}\"}}\n", "sea sand fish ".repeat(row % 3 + 1)))
            .collect::<String>()
            .into()
    };
    let zstd = |bytes: Vec<u8>| zstd::encode_all(&bytes[..], 3).unwrap();
    // Of every format: two files that are alike, and one that is not.
    // Of Parquet: the same column of another type, which a list of numbers is not.
    let parquet = |column: Option<std::ops::Range<usize>>| -> Vec<u8> {
        let path = folder.path().join("made");
        match column {
            Some(range) => shards::write_rows(&path, rows[range].concat(), 8, 12),
            None => {
                let texts = arrow::array::StringArray::from_iter_values(["sea", "sand"]);
                shards::write_parquet(&path, "snps", Arc::new(texts), 12);
            }
        }
        std::fs::read(&path).unwrap()
    };
    let cases: [(&str, [Vec<u8>; 3], &str); 6] = [
        (
            "parquet",
            [parquet(Some(0..40)), parquet(Some(40..60)), parquet(None)],
            "has texts where the first file had rows of 8 whole numbers",
        ),
        ("npy", [npy(&rows[..40], 8), npy(&rows[40..], 8), npy(&rows[..9], 5)], "rows of shape [5]"),
        ("bin", [tokens(0..33), tokens(33..60), vec![7; 9]], "9 bytes are not whole"),
        ("bin.zst", [zstd(tokens(0..33)), zstd(tokens(33..60)), vec![7; 9]], "c.bin.zst"),
        ("jsonl", [jsonl(0..80), jsonl(80..200), b"no JSON\n".to_vec()], "c.jsonl"),
        ("jsonl.zst", [zstd(jsonl(0..80)), zstd(jsonl(80..200)), b"no zstd".to_vec()], "c.jsonl.zst"),
    ];
    for (ending, files, reason) in cases {
        let shards = folder.path().join(ending);
        std::fs::create_dir(&shards).unwrap();
        for (name, bytes) in ["a", "b", "c"].iter().zip(&files) {
            std::fs::write(shards.join(format!("{name}.{ending}")), bytes).unwrap();
        }
        let decode = match ending {
            "npy" | "parquet" => "",
            "jsonl" | "jsonl.zst" => "[decode]\nwindow = 4\n",
            _ => "[decode]\nwindow = 8\nvocab = 5\n",
        };
        // What files at rest hold: two of them, since the third cannot be read.
        let text = |files: &str, more: &str| {
            format!(
                "[source]\nfiles = '{}/{files}.{ending}'\n{more}\n{decode}[batch]\nrows = 16\nshuffle = false\n\
                 [circuit]\nmodel = 'hmm'\nlatents = 3\n[checkpoint]\nevery_batches = 100\n[pipeline]\n\
                 on_bad = 'quarantine'\n",
                shards.display()
            )
        };
        let at_rest = folder.path().join(format!("{ending}-rest.toml"));
        std::fs::write(&at_rest, text("[ab]", "") + "[learn]\nepochs = 1\n").unwrap();
        let rest = folder.path().join(format!("{ending}-rest"));
        finish(start(&at_rest, &rest), ending);
        let expected = outcome(&rest).2["rows"].as_u64().unwrap();
        assert!(expected >= 48, "{ending}: {expected}");
        let watched = folder.path().join(format!("{ending}.toml"));
        std::fs::write(&watched, text("*", "watch = true\nsettle = 0.1") + "[learn]\nseconds = 2.5\n").unwrap();
        let out = folder.path().join(format!("{ending}-watched"));
        finish(start(&watched, &out), ending);
        let found = outcome(&out).2["rows"].as_u64().unwrap();
        assert_eq!(found, expected / 16 * 16, "{ending}: full batches of the rows that files at rest have");
        let ledger = std::fs::read_to_string(out.join("quarantine.jsonl")).unwrap();
        assert!(ledger.lines().count() == 1 && ledger.contains(reason), "{ending}: {ledger}");
    }
}

#[test]
fn a_file_that_is_replaced_after_it_was_learned_from_is_named_and_not_learned_from_again() {
    let folder = tempfile::tempdir().unwrap();
    let (made, shards, out) = (folder.path().join("made"), folder.path().join("shards"), folder.path().join("run"));
    for folder in [&made, &shards] {
        std::fs::create_dir(folder).unwrap();
    }
    let put = |number: usize, name: &str| {
        let aside = made.join("aside");
        std::fs::write(&aside, shard(&made, number)).unwrap();
        std::fs::rename(aside, shards.join(name)).unwrap();
    };
    let file = |rows: usize| pipeline(folder.path(), "watch.toml", &shards, &format!("[learn]\nrows = {rows}\n"));
    put(0, "a.parquet");
    put(2, "b.parquet");
    finish(start(&file(ROWS + 32), &out), "the first file and some of the second");
    // Between two runs, and during one.
    put(1, "a.parquet");
    let mut child = start_with(&[], &file(3 * ROWS), &out);
    let deadline = Instant::now() + Duration::from_secs(60);
    while outcome(&out).2["rows"] != 2 * ROWS {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "{}", finish(child, "b.parquet"));
        thread::sleep(Duration::from_millis(20));
    }
    put(3, "b.parquet");
    thread::sleep(Duration::from_millis(1500)); // for the replacement to be seen before the last file ends the run
    put(4, "c.parquet");
    let said = finish(child, "three files");
    for name in ["a.parquet", "b.parquet"] {
        assert_eq!(said.matches(&format!("{name}: was replaced after it was learned from")).count(), 1, "{said}");
    }
    let position = &outcome(&out).2["cursor"]["position"];
    assert_eq!(outcome(&out).2["rows"], 3 * ROWS, "{position}");
    // The same rows from files that nobody replaced: the same parameters.
    let at_rest = folder.path().join("shards-at-rest");
    std::fs::create_dir(&at_rest).unwrap();
    for (number, name) in [(0, "a.parquet"), (2, "b.parquet"), (4, "c.parquet")] {
        std::fs::write(at_rest.join(name), shard(&made, number)).unwrap();
    }
    let whole = folder.path().join("whole");
    let file = pipeline(folder.path(), "rest.toml", &at_rest, &format!("[learn]\nrows = {}\n", 3 * ROWS));
    finish(start(&file, &whole), "files at rest");
    assert!(outcome(&out).0 == outcome(&whole).0, "parameters differ");
}
