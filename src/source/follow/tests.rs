use std::io::Write;
use std::path::PathBuf;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::source::{Arrived, ReadLimits, Records};

const LIMITS: ReadLimits = ReadLimits { piece_bytes: 64, part_bytes: 1 << 20, record_bytes: 1 << 18 };

/// A file in a folder of its own that grows, and is rotated.
struct Grown {
    folder: TempDir,
    path: PathBuf,
    rotations: usize,
}

impl Grown {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, "").unwrap();
        Self { folder, path, rotations: 0 }
    }

    fn append(&self, bytes: impl AsRef<[u8]>) {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&self.path).unwrap();
        file.write_all(bytes.as_ref()).unwrap();
    }

    /// As `logrotate` does it: what was rotated before moves on, too.
    fn rotate(&mut self) {
        let numbered = |number: usize| self.folder.path().join(format!("a.jsonl.{number}"));
        for number in (1..=self.rotations).rev() {
            std::fs::rename(numbered(number), numbered(number + 1)).unwrap();
        }
        std::fs::rename(&self.path, numbered(1)).unwrap();
        self.rotations += 1;
        // Files are told apart by when they were made.
        std::thread::sleep(Duration::from_millis(12));
        std::fs::write(&self.path, "").unwrap();
    }

    fn follow(&self, on_gap: OnGap, window_bytes: u64) -> Arc<FollowedFile> {
        let columns = Columns::Many(vec!["a".into()]);
        let found = FollowedFile::json(&self.path, &columns, on_gap).unwrap();
        Arc::new(FollowedFile { window_bytes, quiet: Duration::from_millis(1), ..found })
    }
}

fn line(value: u32) -> String {
    format!("{{\"a\":{value}}}\n")
}

/// What a reader delivered: values, and the events between them.
#[derive(Debug, Default)]
struct Delivered {
    /// Every window with where it begins, and where it ends.
    windows: Vec<(Position, Vec<u32>, Position)>,
    notes: Vec<String>,
    bad: Vec<String>,
    lost: usize,
}

impl Delivered {
    fn values(&self) -> Vec<u32> {
        self.windows.iter().flat_map(|(_, values, _)| values.clone()).collect()
    }
}

/// Everything until nothing comes any more.
fn read(reader: &mut dyn LiveReader, into: &mut Delivered) -> Result<()> {
    let (mut start, mut values) = (None, Vec::new());
    loop {
        match reader.next(&LIMITS)?.expect("a followed file has no end") {
            Arrived::WindowStart(position) => start = Some(position),
            Arrived::Piece(piece) => {
                let Records::Lists(lists) = &piece.records else { panic!("{piece:?}") };
                values.extend((0..lists.values.len()).map(|at| lists.values.category(at).unwrap()));
                into.bad.extend(piece.bad.iter().map(|(_, reason)| reason.clone()));
            }
            Arrived::WindowEnd(end) => {
                into.windows.push((start.take().unwrap(), std::mem::take(&mut values), end));
            }
            Arrived::Note(note) => into.notes.push(note),
            Arrived::WindowLost(_) => into.lost += 1,
            Arrived::Quiet => return Ok(()),
            Arrived::Damaged(error) => panic!("{error}"),
        }
    }
}

fn read_from(source: &Arc<FollowedFile>, from: Option<&Position>) -> Result<Delivered> {
    let mut delivered = Delivered::default();
    read(&mut *source.clone().open(from)?, &mut delivered)?;
    Ok(delivered)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_line_comes_once_however_it_is_written_and_rotated_and_wherever_one_resumes(
        count in 1u32..60,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        rotations in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        window_bytes in prop_oneof![Just(5u64), Just(40), Just(200), Just(1 << 18)],
    ) {
        let mut grown = Grown::new("a.jsonl");
        grown.append(line(0));
        let source = grown.follow(OnGap::Fail, window_bytes);
        let mut reader = source.clone().open(None).unwrap();
        let mut delivered = Delivered::default();
        let lines: Vec<String> = (1..count).map(line).collect();
        let rotated: Vec<usize> = rotations.iter().map(|at| at.index(lines.len().max(1))).collect();
        let mut waiting = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            for _ in rotated.iter().filter(|&&rotation| rotation == at) {
                grown.append(std::mem::take(&mut waiting));
                grown.rotate();
            }
            waiting.extend_from_slice(line.as_bytes());
            for cut in cuts.iter().filter(|cut| cut.index(lines.len()) == at) {
                let rest = waiting.split_off(cut.index(waiting.len()));
                grown.append(std::mem::replace(&mut waiting, rest));
                read(&mut *reader, &mut delivered).unwrap();
            }
        }
        grown.append(&waiting);
        for _ in 0..3 {
            read(&mut *reader, &mut delivered).unwrap();
        }
        let all: Vec<u32> = (0..count).collect();
        prop_assert_eq!(delivered.values(), all.clone());
        prop_assert!(delivered.bad.is_empty(), "{:?}", delivered.bad);
        // A new process knows the folder as it is now.
        let again = grown.follow(OnGap::Fail, 1 << 18);
        let mut before = 0;
        for (start, values, end) in &delivered.windows {
            let from_start = read_from(&again, Some(start)).unwrap();
            prop_assert_eq!(&from_start.windows[0].1, values, "the same window again");
            prop_assert_eq!(from_start.values(), &all[before..]);
            before += values.len();
            prop_assert_eq!(read_from(&again, Some(end)).unwrap().values(), &all[before..]);
        }
    }
}

#[test]
fn a_half_written_line_is_not_taken_and_the_last_of_a_rotated_file_is() {
    let mut grown = Grown::new("a.jsonl");
    grown.append(line(1) + "{\"a\"");
    let source = grown.follow(OnGap::Fail, 1 << 18);
    let mut reader = source.clone().open(None).unwrap();
    let mut delivered = Delivered::default();
    read(&mut *reader, &mut delivered).unwrap();
    assert_eq!(delivered.values(), [1]);
    grown.append(":2}");
    grown.rotate();
    read(&mut *reader, &mut delivered).unwrap();
    assert_eq!(delivered.values(), [1], "the new one is empty: the old one may still be written to");
    grown.append(line(3));
    read(&mut *reader, &mut delivered).unwrap();
    assert_eq!(delivered.values(), [1, 2, 3]);
    assert!(delivered.notes.iter().any(|note| note.contains("another file has taken its place")), "{delivered:?}");
    let last_of_old = &delivered.windows[1];
    assert_eq!(read_from(&source, Some(&last_of_old.0)).unwrap().values(), [2, 3]);
    assert_eq!(read_from(&source, Some(&last_of_old.2)).unwrap().values(), [3]);
}

#[test]
fn a_writer_that_keeps_its_descriptor_after_the_rename_is_heard_out() {
    let mut grown = Grown::new("a.jsonl");
    grown.append(line(1));
    let mut writer = std::fs::OpenOptions::new().append(true).open(&grown.path).unwrap();
    let source = grown.follow(OnGap::Fail, 1 << 18);
    let mut reader = source.open(None).unwrap();
    let mut delivered = Delivered::default();
    read(&mut *reader, &mut delivered).unwrap();
    grown.rotate();
    read(&mut *reader, &mut delivered).unwrap();
    writer.write_all(line(2).as_bytes()).unwrap();
    read(&mut *reader, &mut delivered).unwrap();
    writer.write_all(line(3).as_bytes()).unwrap();
    grown.append(line(4));
    read(&mut *reader, &mut delivered).unwrap();
    assert_eq!(delivered.values(), [1, 2, 3, 4]);
}

#[test]
fn a_truncated_file_is_an_error_or_begins_anew() {
    for rewritten in ["", "{\"a\":7}\n", "{\"a\":70000}\n{\"a\":8}\n{\"a\":9}\n"] {
        for running in [true, false] {
            let read_after = |on_gap: OnGap| {
                let grown = Grown::new("a.jsonl");
                grown.append(line(1) + &line(2));
                let source = grown.follow(on_gap, 1 << 18);
                let mut reader = source.clone().open(None).unwrap();
                let mut delivered = Delivered::default();
                read(&mut *reader, &mut delivered).unwrap();
                std::fs::write(&grown.path, rewritten).unwrap(); // truncates, and keeps the inode
                let end = delivered.windows[0].2.clone();
                let mut after = Delivered::default();
                if !running {
                    reader = source.open(Some(&end))?;
                }
                read(&mut *reader, &mut after).map(|()| after)
            };
            let error = read_after(OnGap::Fail).unwrap_err().to_string();
            assert!(error.contains("a.jsonl: was truncated to") || error.contains("was written anew"), "{error}");
            assert!(error.contains("source.on_gap = \"skip\""), "{error}");
            let after = read_after(OnGap::Skip).unwrap();
            assert_eq!(after.windows.iter().map(|window| window.1.len()).sum::<usize>(), rewritten.lines().count());
            assert!(after.notes[0].contains("goes on with what there is"), "{after:?}");
            assert_eq!(after.lost, usize::from(!running));
        }
    }
}

#[test]
fn a_deleted_file_is_waited_for_and_a_replaced_one_is_finished_first() {
    let grown = Grown::new("a.jsonl");
    grown.append(line(1));
    let source = grown.follow(OnGap::Fail, 1 << 18);
    let mut reader = source.clone().open(None).unwrap();
    let mut delivered = Delivered::default();
    read(&mut *reader, &mut delivered).unwrap();
    grown.append(line(2));
    std::fs::remove_file(&grown.path).unwrap();
    for _ in 0..3 {
        read(&mut *reader, &mut delivered).unwrap();
    }
    assert_eq!(delivered.values(), [1, 2], "what was written before it was deleted");
    assert_eq!(delivered.notes.len(), 1, "said once: {:?}", delivered.notes);
    assert!(delivered.notes[0].contains("was deleted or renamed: waiting"), "{:?}", delivered.notes);
    grown.append(line(3));
    read(&mut *reader, &mut delivered).unwrap();
    let other = grown.folder.path().join("other");
    std::fs::write(&other, line(5)).unwrap();
    grown.append(line(4));
    std::fs::rename(&other, &grown.path).unwrap();
    read(&mut *reader, &mut delivered).unwrap();
    assert_eq!(delivered.values(), [1, 2, 3, 4, 5]);
}

#[test]
fn a_file_that_is_gone_after_a_restart_is_an_error_that_counts_its_bytes_or_is_skipped() {
    let mut grown = Grown::new("a.jsonl");
    grown.append((0..10).map(line).collect::<String>());
    let delivered = read_from(&grown.follow(OnGap::Fail, 20), None).unwrap();
    assert!(delivered.windows.len() > 3);
    grown.rotate();
    grown.append(line(10));
    std::fs::remove_file(grown.folder.path().join("a.jsonl.1")).unwrap();
    let (start, values, end) = &delivered.windows[1];
    assert_eq!(*values, [2, 3]);
    for (position, gone) in [(start, 64), (end, 48)] {
        let error = read_from(&grown.follow(OnGap::Fail, 20), Some(position)).unwrap_err().to_string();
        assert!(error.contains(&format!("at least {gone} bytes of it are gone")), "{error}");
        let after = read_from(&grown.follow(OnGap::Skip, 20), Some(position)).unwrap();
        assert_eq!((after.values(), after.lost), (vec![10], 1));
        assert!(after.notes[0].contains("are gone"), "{after:?}");
    }
}

#[test]
fn lines_that_are_longer_than_a_window_come_whole_and_those_that_are_too_long_are_bad() {
    let grown = Grown::new("a.jsonl");
    grown.append(format!("{{\"a\":1,\"b\":\"{}\"}}\n{}", "x".repeat(100_000), line(2)));
    grown.append(format!("{{\"b\":\"{}\"}}\n{}", "x".repeat(1 << 18), line(3)));
    let source = grown.follow(OnGap::Fail, 50);
    let delivered = read_from(&source, None).unwrap();
    assert_eq!(delivered.values(), [1, 2, 3]);
    assert_eq!(delivered.bad.len(), 1);
    assert!(delivered.bad[0].contains("is too long"), "{:?}", delivered.bad);
}

#[test]
fn tokens_come_in_whole_rows_and_a_rest_before_a_rotation_is_named() {
    let grown = Grown::new("a.bin");
    let bytes = |tokens: &[u16]| tokens.iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>();
    grown.append(bytes(&[1, 2, 3, 4, 5]));
    let open = || {
        let found = FollowedFile::tokens(&grown.path, TokenWidth::U16, 2, OnGap::Fail).unwrap();
        Arc::new(FollowedFile { quiet: Duration::from_millis(1), window_bytes: 5, ..found })
    };
    let mut reader = open().open(None).unwrap();
    let mut delivered = Delivered::default();
    read(&mut *reader, &mut delivered).unwrap();
    assert_eq!(delivered.values(), [1, 2, 3, 4]);
    grown.append(&bytes(&[6, 7])[..3]);
    read(&mut *reader, &mut delivered).unwrap();
    assert_eq!(delivered.values(), [1, 2, 3, 4, 5, 6]);
    std::fs::rename(&grown.path, grown.folder.path().join("a.bin.1")).unwrap();
    grown.append(bytes(&[8, 9]));
    read(&mut *reader, &mut delivered).unwrap();
    assert_eq!(delivered.values(), [1, 2, 3, 4, 5, 6, 8, 9]);
    assert!(delivered.notes[0].contains("its last 1 bytes are no whole row"), "{:?}", delivered.notes);
    for (start, values, end) in &delivered.windows {
        let again = read_from(&open(), Some(start)).unwrap();
        assert_eq!(again.windows[0].1, *values);
        assert_eq!(read_from(&open(), Some(end)).unwrap().values(), again.values()[values.len()..]);
    }
    let error = FollowedFile::tokens(&grown.folder.path().join("no.bin"), TokenWidth::U16, 2, OnGap::Fail).unwrap_err();
    assert!(error.to_string().contains("no such file to follow"), "{error}");
}
