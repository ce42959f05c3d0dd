//! Checkpoints on a disk: what they say, that every damage is noticed, and that nothing is lost when writing fails.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anemone::ErrorKind;
use anemone::circuit::Categorical;
use anemone::data::Digest;
use anemone::learner::{CheckpointFolder, Hold, Identity, Snapshot, checkpoint, circuit_digest, latest, model};
use anemone::structure::hmm;
use serde_json::{Map, Value, json};

use super::{anemone, learner, optimizers, small, write};
use crate::common::bits;
use crate::common::cases::Case;

/// A small checkpoint with something in every part of it.
fn sample_snapshot(steps: usize) -> Snapshot {
    let case = small();
    let learner = learner(&case, &optimizers()[2], None);
    for i in 0..steps {
        learner.learn_blocking(case.batch(3, i as u64)).unwrap();
    }
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(learner.snapshot()).unwrap()
}

fn files(path: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn names(path: &Path) -> Vec<String> {
    files(path).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_string()).collect()
}

#[test]
fn a_checkpoint_says_what_it_was_given() {
    let home = tempfile::tempdir().unwrap();
    let snapshot = sample_snapshot(5);
    let identity =
        Identity { data: Digest::of(b"data"), optimizer: json!({"optimizer": "anemone"}), ..Identity::default() };
    let extra = json!({"best": {"step": 3, "log_likelihood": -0.1}, "é\"\n": "…"}).as_object().unwrap().clone();
    let path = checkpoint::write(home.path(), &snapshot, &identity, &extra).unwrap();
    assert_eq!(path, home.path().join("step-0000000005"));
    assert_eq!(names(&path), ["checkpoint.json", "circuit.json", "model.safetensors", "optimizer.safetensors"]);
    let loaded = checkpoint::load(&path).unwrap();
    assert_eq!((&loaded.meta.identity, &loaded.meta.extra), (&identity, &extra));
    assert_eq!(loaded.meta.progress, snapshot.progress);
    assert_eq!(loaded.optimizer, Some(snapshot.optimizer.clone()));
    assert_eq!(bits(&loaded.params), bits(&snapshot.params));
    assert_eq!(circuit_digest(&loaded.circuit), circuit_digest(&snapshot.circuit));
    assert_eq!(loaded.meta.files["circuit.json"].sha256, circuit_digest(&snapshot.circuit));
    let text = fs::read_to_string(path.join("checkpoint.json")).unwrap();
    assert!(serde_json::from_str::<Value>(&text).unwrap()["body"]["progress"]["step"] == 5, "it is JSON to others too");

    let kept = home.path().join("model");
    model::save(&kept, &snapshot, &identity, &extra).unwrap();
    assert_eq!(names(&kept), ["checkpoint.json", "circuit.json", "model.safetensors"]);
    for path in [&kept, &path] {
        let model = model::load(path).unwrap();
        assert_eq!(bits(&model.params), bits(&snapshot.params));
        assert_eq!(model.meta.extra, extra);
    }
    assert!(checkpoint::load(&kept).unwrap().optimizer.is_none());
    // A model does not need the optimizer's file even where one belongs.
    fs::remove_file(path.join("optimizer.safetensors")).unwrap();
    assert!(model::load(&path).is_ok() && checkpoint::load(&path).is_err());
    let error = model::load(&home.path().join("nowhere")).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn what_cannot_be_read_back_is_not_written() {
    let home = tempfile::tempdir().unwrap();
    let spoil: [fn(&mut Snapshot); 2] = [
        |snapshot| snapshot.progress.prequential.weight = f64::NAN,
        |snapshot| *snapshot.optimizer.numbers.get_mut("pending_weight").unwrap() = f64::INFINITY,
    ];
    for spoil in spoil {
        let mut snapshot = sample_snapshot(1);
        spoil(&mut snapshot);
        let error = checkpoint::write(home.path(), &snapshot, &Identity::default(), &Map::new()).unwrap_err();
        assert!(error.kind() == ErrorKind::State && error.to_string().contains("cannot be saved"), "{error}");
    }
    assert_eq!(names(home.path()), [] as [&str; 0]);
}

#[test]
fn every_flipped_cut_or_missing_byte_is_noticed() {
    let home = tempfile::tempdir().unwrap();
    let path = write(home.path(), &sample_snapshot(4));
    checkpoint::load(&path).unwrap();
    for file in files(&path) {
        let whole = fs::read(&file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap().to_string();
        let check = |bytes: &[u8], what: &str| {
            fs::write(&file, bytes).unwrap();
            let error = checkpoint::load(&path).expect_err(&format!("{name}: {what} goes unnoticed"));
            assert_eq!(error.kind(), ErrorKind::Format, "{name}: {what}: {error}");
            assert!(error.to_string().contains(&name), "{name}: {what}: {error}");
        };
        let stride = if name == "checkpoint.json" { 1 } else { 7 };
        for at in (0..whole.len()).step_by(stride) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            check(&bytes, &format!("a bit of byte {at}"));
        }
        for end in (0..whole.len()).step_by(97).chain([whole.len() - 1]) {
            check(&whole[..end], &format!("cut at {end}"));
        }
        check(&[&whole[..], b"\n"].concat(), "a byte too many");
        fs::remove_file(&file).unwrap();
        let error = checkpoint::load(&path).unwrap_err().to_string();
        assert!(error.contains(&name) && error.contains("is missing"), "{error}");
        fs::write(&file, &whole).unwrap();
    }
    checkpoint::load(&path).unwrap();
}

/// Rewrites a checkpoint's description so that its hash is right.
fn rewrite_meta(path: &Path, from: &str, to: &str) {
    let file = path.join("checkpoint.json");
    let text = fs::read_to_string(&file).unwrap();
    let hash_at = text.rfind(",\n\"sha256\"").unwrap();
    let body = &text["{\n\"body\": ".len()..hash_at];
    assert!(body.contains(from));
    let body = body.replacen(from, to, 1);
    fs::write(&file, format!("{{\n\"body\": {body},\n\"sha256\": \"{}\"\n}}\n", Digest::of(body.as_bytes()))).unwrap();
}

#[test]
fn the_latest_is_the_newest_that_is_whole_and_a_newer_format_is_never_skipped() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("checkpoints");
    assert!(latest(&dir).unwrap().found.is_none(), "a folder that is not there has no checkpoint");
    let paths: Vec<_> = [9, 10, 11, 100].into_iter().map(|steps| write(&dir, &sample_snapshot(steps))).collect();
    fs::create_dir(dir.join("step-200")).unwrap();
    fs::create_dir(dir.join("step-one")).unwrap();
    let folder = CheckpointFolder::open(&dir).unwrap();
    assert_eq!(folder.list().unwrap().iter().map(|(step, _)| *step).collect::<Vec<_>>(), [9, 10, 11, 100]);
    assert_eq!(folder.latest().unwrap().found.unwrap().0, paths[3]);

    fs::write(paths[3].join("model.safetensors"), "x").unwrap();
    fs::remove_file(paths[2].join("checkpoint.json")).unwrap();
    let found = folder.latest().unwrap();
    assert_eq!(found.found.unwrap().0, paths[1]);
    assert_eq!(found.damaged.iter().map(|(path, _)| path).collect::<Vec<_>>(), [&paths[3], &paths[2]]);
    assert!(found.damaged[0].1.to_string().contains("model.safetensors"));
    assert!(found.damaged[1].1.to_string().contains("is missing"));

    rewrite_meta(&paths[0], "\"epoch\": 0", "\"epoch\": \"none\"");
    rewrite_meta(&paths[1], "\"files\"", "\"flies\"");
    let none = folder.latest().unwrap();
    assert!(none.found.is_none() && none.damaged.len() == 4);

    write(&dir, &sample_snapshot(100));
    assert_eq!(folder.latest().unwrap().found.unwrap().0, paths[3], "a rerun replaces a damaged one");
    rewrite_meta(&paths[3], "\"format\": 1", "\"format\": 2");
    let error = folder.latest().unwrap_err();
    assert!(error.kind() == ErrorKind::Unsupported && error.to_string().contains("newer anemone"), "{error}");
}

#[test]
fn pruning_keeps_the_last_ones_and_the_best() {
    let home = tempfile::tempdir().unwrap();
    let folder = CheckpointFolder::open(home.path()).unwrap();
    let mut snapshot = sample_snapshot(1);
    let steps: Vec<u64> = (1..=6).collect();
    for &step in &steps {
        snapshot.progress.batches = step;
        folder.write(&snapshot, &Identity::default(), &Map::new()).unwrap();
    }
    let left = || folder.list().unwrap().into_iter().map(|(step, _)| step).collect::<Vec<_>>();
    assert!(folder.prune(99, 0, &[]).is_err());
    assert_eq!(folder.prune(99, 9, &[]).unwrap(), [] as [PathBuf; 0]);
    assert_eq!(left(), steps);
    assert_eq!(folder.prune(99, 2, &[2]).unwrap().len(), 3);
    assert_eq!(left(), [2, 5, 6]);
    folder.prune(99, 1, &[6]).unwrap();
    assert_eq!(left(), [6]);
    let all: BTreeSet<String> = names(home.path()).into_iter().collect();
    assert_eq!(all, [".lock".to_string(), "step-0000000006".to_string()].into(), "nothing else is left");
}

#[test]
fn a_folder_has_one_writer_at_a_time_and_forgets_what_was_unfinished() {
    let home = tempfile::tempdir().unwrap();
    let first = CheckpointFolder::open(home.path()).unwrap();
    fs::create_dir(home.path().join(".tmp-step-0000000007-1")).unwrap();
    let error = CheckpointFolder::open(home.path()).unwrap_err();
    assert!(error.kind() == ErrorKind::State && error.to_string().contains("another run"), "{error}");
    assert_eq!(names(home.path()).len(), 2, "who has no lock touches nothing");
    drop(first);
    let second = CheckpointFolder::open(home.path()).unwrap();
    assert_eq!(names(home.path()), [".lock"]);
    let path = second.write(&sample_snapshot(1), &Identity::default(), &Map::new()).unwrap();
    assert_eq!(second.latest().unwrap().found.unwrap().0, path);
}

#[test]
fn a_folder_that_was_removed_is_made_again_and_one_that_was_taken_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("checkpoints");
    let first = CheckpointFolder::open(&dir).unwrap();
    let write = |folder: &CheckpointFolder| folder.write(&sample_snapshot(1), &Identity::default(), &Map::new());
    assert_eq!(first.hold().unwrap(), Hold::Held);
    fs::rename(&dir, home.path().join("moved")).unwrap();
    assert_eq!(first.hold().unwrap(), Hold::Renewed);
    write(&first).unwrap();
    assert!(CheckpointFolder::open(&dir).is_err(), "the new one is locked too");

    fs::remove_dir_all(&dir).unwrap();
    let second = CheckpointFolder::open(&dir).unwrap();
    assert_eq!(first.hold().unwrap(), Hold::Taken);
    let error = write(&first).unwrap_err();
    assert!(error.to_string().contains("another process"), "{error}");
    assert_eq!(names(&dir), [".lock"], "nothing was written");
    write(&second).unwrap();
    drop(second);
    assert_eq!(first.hold().unwrap(), Hold::Taken, "what the other one left stays its own");
}

/// Runs itself once more in a process that may open few files, and has opened all of them.
#[cfg(target_os = "linux")]
#[test]
fn a_checkpoint_is_written_by_a_process_that_can_open_no_more_files() {
    const ASKED: &str = "ANEMONE_TEST_NO_DESCRIPTORS";
    if let Ok(dir) = std::env::var(ASKED) {
        let folder = CheckpointFolder::open(Path::new(&dir)).unwrap();
        let snapshots = [1, 2, 3].map(sample_snapshot);
        let taken: Vec<fs::File> = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
        for snapshot in &snapshots {
            folder.write(snapshot, &Identity::default(), &Map::new()).unwrap();
            folder.prune(snapshot.progress.batches, 1, &[]).unwrap();
            assert!(fs::File::open("/dev/null").is_err(), "the reserve is taken back");
        }
        println!("{} files were open", taken.len());
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let test = "learner::checkpoints::a_checkpoint_is_written_by_a_process_that_can_open_no_more_files";
    let child = Command::new("sh")
        .args(["-c", &format!("ulimit -n 64; exec \"$0\" --exact {test} --nocapture")])
        .arg(std::env::current_exe().unwrap())
        .env(ASKED, home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("files were open"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    let found = latest(home.path()).unwrap().found.unwrap();
    assert_eq!(found.1.meta.progress.batches, 3);
}

/// Runs itself once more in a process that may write only very small files: the nearest thing to a full disk.
#[cfg(unix)]
#[test]
fn a_full_disk_is_an_error_that_costs_nothing() {
    const ASKED: &str = "ANEMONE_TEST_FULL_DISK";
    let large = || {
        let case = Case::new("hmm", hmm(2, 16, Categorical::new(500).unwrap()).unwrap());
        let learner = learner(&case, &anemone(), None);
        learner.learn_blocking(case.batch(3, 1)).unwrap();
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(learner.snapshot()).unwrap()
    };
    if let Ok(dir) = std::env::var(ASKED) {
        let folder = CheckpointFolder::open(Path::new(&dir)).unwrap();
        let error = folder.write(&large(), &Identity::default(), &Map::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("model.safetensors"), "{error}");
        assert_eq!(names(Path::new(&dir)).len(), 2, "nothing unfinished is left");
        println!("the disk was full");
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let mut before = large();
    before.progress.batches = 0;
    let kept = write(home.path(), &before);
    let child = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact \"$1\" --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .arg("learner::checkpoints::a_full_disk_is_an_error_that_costs_nothing")
        .env(ASKED, home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("the disk was full"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    let found = latest(home.path()).unwrap();
    assert!(found.damaged.is_empty());
    assert_eq!(found.found.unwrap().0, kept);
}
