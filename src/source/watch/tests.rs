//! Files that come and go, read from any position.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use proptest::prelude::*;

use super::arrivals::{Arrivals, Next};
use super::place::{Mark, Taken};
use super::places::Places;
use super::*;
use crate::error::ErrorKind;
use crate::source::store::{Fetch, Looks, MemoryStore, Store, Trouble};
use crate::source::testing::{blobs_of, run};
use crate::source::{Arrived, Blobs, Block, BlockSource, Fetched, Piece, Positions, ReadLimits, Records};

/// Files of lines: a line is a block, its words are records. One that begins with `bad` cannot be read.
struct Words;

struct WordFile {
    manifest: Manifest,
    blocks: Vec<Block>,
    file: Arc<str>,
    lines: Vec<String>,
}

impl OpenFile for Words {
    fn open(&self, shard: Shard) -> BoxFuture<'_, Result<Option<Source>>> {
        Box::pin(async move {
            let text = String::from_utf8(shard.range(0..shard.size()).await?.to_vec()).unwrap();
            if text.starts_with("bad") {
                return Err(Error::format(format!("{}: cannot be read", shard.name())));
            }
            let lines: Vec<String> = text.lines().map(str::to_string).collect();
            if lines.is_empty() {
                return Ok(None);
            }
            let blocks = vec![Block { bytes: 1, fetch_bytes: 1 }; lines.len()];
            let file = WordFile { manifest: Manifest::default(), blocks, file: shard.name().clone(), lines };
            Ok(Some(Source::Blocks(Arc::new(file))))
        })
    }
}

impl BlockSource for WordFile {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    fn fetch(&self, block: usize, _: ReadLimits) -> BoxFuture<'_, Result<Fetched>> {
        Box::pin(async move {
            let pieces: Vec<Result<Piece>> = self.lines[block]
                .split(' ')
                .map(|word| {
                    let mut blobs = Blobs::default();
                    blobs.push(word.as_bytes());
                    let positions = Positions::Rows { first: 0 };
                    Ok(Piece { file: self.file.clone(), positions, records: Records::Blobs(blobs), bad: Vec::new() })
                })
                .collect();
            Ok(Fetched { pieces: Box::new(pieces.into_iter()) })
        })
    }
}

/// A folder that is watched by tests that do not wait.
struct Folder {
    folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    on_gap: OnGap,
}

impl Folder {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { folder: tempfile::tempdir().unwrap(), runtime, on_gap: OnGap::Fail }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn add(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).unwrap();
    }

    fn open(&self, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        self.open_in(self.folder.path(), from)
    }

    fn open_in(&self, folder: &Path, from: Option<&Position>) -> Result<Box<dyn LiveReader>> {
        let _inside = self.runtime.enter();
        self.watch(folder, Duration::ZERO).open(from)
    }

    /// Watches a folder with so much time between two looks.
    fn watch(&self, folder: &Path, every: Duration) -> Arc<Watched> {
        let options = WatchOptions { settle: Duration::ZERO, on_gap: self.on_gap };
        let patterns = [format!("{}/*.txt", folder.display())];
        let mut watched = Watched::new(&patterns, options, Arc::new(Words), "words").unwrap();
        watched.pace = Pace { every, pause: Duration::ZERO, share: 0, quiet: Duration::from_millis(1) };
        Arc::new(watched)
    }
}

fn limits() -> ReadLimits {
    ReadLimits::of_memory(1 << 10, 1 << 20)
}

fn word(piece: &Piece) -> String {
    String::from_utf8(blobs_of(piece)[0].2.clone().unwrap()).unwrap()
}

/// Everything until nothing comes any more: words, damage and notes; and where that is.
fn drain(reader: &mut dyn LiveReader) -> (Vec<String>, Option<Position>) {
    let (mut seen, mut end) = (Vec::new(), None);
    loop {
        match reader.next(&limits()).unwrap().expect("a folder has no end") {
            Arrived::Piece(piece) => seen.push(word(&piece)),
            Arrived::Damaged(error) => seen.push(format!("damaged {error}")),
            Arrived::Note(text) => seen.push(format!("note {text}")),
            Arrived::WindowEnd(position) => end = Some(position),
            Arrived::WindowLost(_) => seen.push("lost".into()),
            Arrived::WindowStart(_) => {}
            Arrived::Quiet => return (seen, end),
        }
    }
}

/// What a file of a test holds: its number of words in every line, or damage.
fn text(name: &str, lines: &[usize]) -> String {
    let line = |(at, words): (usize, &usize)| {
        (0..*words).map(|word| format!("{name}/{at}/{word}")).collect::<Vec<_>>().join(" ") + "\n"
    };
    lines.iter().enumerate().map(line).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn however_files_appear_and_wherever_it_is_resumed_every_row_comes_once_and_by_name(
        files in prop::collection::btree_map(0u8..40, prop::collection::vec(1usize..4, 0..4), 1..9),
        bad in prop::collection::btree_set(0u8..40, 0..3),
        order in any::<u64>(),
        sorted in any::<bool>(),
        steps in prop::collection::vec(0u8..12, 0..120),
    ) {
        let folder = Folder::new();
        let mut to_come: Vec<u8> = files.keys().copied().collect();
        if !sorted {
            crate::rng::Rng::new(order).shuffle(&mut to_come);
        }
        to_come.reverse();
        let name = |file: u8| format!("{file:02}.txt");
        let content = |file: u8| match bad.contains(&file) {
            true => "bad".to_string(),
            false => text(&name(file), &files[&file]),
        };
        let (mut present, mut taken) = (BTreeSet::new(), BTreeSet::new());
        let mut reader = folder.open(None).unwrap();
        // The last position, rows of its window that were delivered, and those that came in this stretch.
        let (mut cursor, mut delivered, mut came): (Option<Position>, usize, usize) = (None, 0, 0);
        let (mut words, mut damaged, mut order_taken) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut steps = steps.into_iter();
        let mut after_note = false;
        loop {
            match steps.next() {
                Some(0..3) if !after_note => {
                    if let Some(file) = to_come.pop() {
                        folder.add(&name(file), &content(file));
                        present.insert(file);
                    }
                }
                Some(3) if !after_note => {
                    reader = folder.open(cursor.as_ref()).unwrap();
                    came = 0;
                    continue;
                }
                None if !to_come.is_empty() && !after_note => {
                    let file = to_come.pop().unwrap();
                    folder.add(&name(file), &content(file));
                    present.insert(file);
                }
                _ => {}
            }
            after_note = false;
            match reader.next(&limits()).unwrap().unwrap() {
                Arrived::WindowStart(position) => {
                    let place: place::Place = position.read().unwrap();
                    let current = place.current.unwrap();
                    let file: u8 = current.name[..2].parse().unwrap();
                    if current.block == 0 && taken.insert(file) {
                        order_taken.push(file);
                    }
                    (cursor, came) = (Some(position), 0);
                }
                Arrived::Piece(piece) => {
                    came += 1;
                    if came > delivered {
                        words.push(word(&piece));
                        delivered = came;
                    }
                }
                Arrived::Damaged(error) => {
                    prop_assert_eq!(error.kind(), ErrorKind::Data);
                    damaged.insert(error.to_string());
                }
                Arrived::WindowEnd(position) => {
                    prop_assert_eq!(came, delivered, "fewer rows than before");
                    (cursor, delivered, came) = (Some(position), 0, 0);
                }
                Arrived::Note(note) => {
                    prop_assert!(note.contains("out of order") || note.contains("is empty"), "{}", note);
                    after_note = true;
                }
                Arrived::Quiet if to_come.is_empty() && steps.len() == 0 => break,
                Arrived::Quiet => {}
                other => panic!("{other:?}"),
            }
        }
        let is_good = |file: &u8| !bad.contains(file);
        let mut expected: Vec<String> = Vec::new();
        for file in order_taken.iter().filter(|file| is_good(file)) {
            expected.extend(content(*file).split_whitespace().map(str::to_string));
        }
        prop_assert_eq!(&words, &expected);
        let is_taken = |(file, lines): &(&u8, &_)| bad.contains(*file) || !Vec::is_empty(lines);
        let all: BTreeSet<u8> = files.iter().filter(is_taken).map(|(file, _)| *file).collect();
        prop_assert_eq!(&taken, &all);
        prop_assert_eq!(damaged.len(), files.keys().filter(|file| bad.contains(file)).count());
        if sorted {
            prop_assert!(order_taken.is_sorted(), "{:?}", order_taken);
        }
    }
}

/// What every share of a folder delivers now, and where each is then.
fn drain_shares(watched: &Arc<Watched>, from: &[Option<Position>]) -> (Vec<Vec<String>>, Vec<Option<Position>>) {
    let shards = from.len();
    let drained = from.iter().enumerate().map(|(shard, from)| {
        let (words, end) = drain(&mut *watched.clone().open_share(Share { shard, shards }, from.as_ref()).unwrap());
        (words, end.or(from.clone()))
    });
    drained.unzip()
}

#[test]
fn shares_have_each_file_once_by_its_name_alone_whatever_came_when() {
    let (early, late) = (Folder::new(), Folder::new());
    let name = |file: usize| format!("{file:02}.txt");
    for file in 0..24 {
        early.add(&name(file), &text(&name(file), &[2, 1]));
    }
    let shards = 3;
    let inside = early.runtime.enter();
    let (at_once, _) = drain_shares(&early.watch(early.folder.path(), Duration::ZERO), &vec![None; shards]);
    drop(inside);
    let mut all = at_once.concat();
    all.sort();
    let expected: Vec<String> = (0..24)
        .flat_map(|file| (0..3).map(move |word| (file, word)))
        .map(|(file, word)| {
            [(0, 0), (0, 1), (1, 0)].map(|(line, word)| format!("{}/{line}/{word}", name(file)))[word].clone()
        })
        .collect();
    assert_eq!(all, expected);
    for (shard, words) in at_once.iter().enumerate() {
        assert!(words.len() > 6 && words.is_sorted(), "by name: {words:?}");
        assert!(words.iter().all(|word| has_file(Share { shard, shards }, &word[..6])), "{words:?}");
    }
    // Another folder, where they come one by one, and every share is resumed after each.
    let _inside = late.runtime.enter();
    let watched = late.watch(late.folder.path(), Duration::ZERO);
    let (mut places, mut one_by_one) = (vec![None; shards], vec![Vec::new(); shards]);
    for file in 0..24 {
        late.add(&name(file), &text(&name(file), &[2, 1]));
        let (words, now) = drain_shares(&watched, &places);
        one_by_one.iter_mut().zip(words).for_each(|(all, words)| all.extend(words));
        places = now;
    }
    assert_eq!(one_by_one, at_once);
    let of_position = |place: &Option<Position>| place.as_ref().unwrap().read::<place::Place>().unwrap();
    let files: usize = places.iter().map(|place| of_position(place).taken.names().count()).sum();
    assert_eq!(files, 24, "a place of a share has its own files");
}

#[test]
fn shares_that_are_read_together_look_together_and_what_is_new_is_seen_by_its_own() {
    let folder = Folder::new();
    let _inside = folder.runtime.enter();
    let watched = folder.watch(folder.folder.path(), Duration::from_secs(3600));
    let share = |shard| Share { shard, shards: 2 };
    let mut readers = [0, 1].map(|shard| watched.clone().open_share(share(shard), None).unwrap());
    for reader in &mut readers {
        assert!(drain(&mut **reader).0.is_empty());
    }
    let begun = |watched: &Watched| watched.looked.lock().unwrap().as_ref().unwrap().0;
    let first = begun(&watched);
    // A routine look of one is good for the other, and one that has to be fresh is.
    assert_eq!(watched.look(share(0), first).unwrap().0, first);
    assert!(watched.look(share(1), Instant::now()).unwrap().0 > first);
    let names: Vec<String> = (0..8).map(|file| format!("{file}.txt")).collect();
    names.iter().for_each(|name| folder.add(name, &text(name, &[1])));
    let seen = |at: Instant, shard| watched.look(share(shard), at).unwrap().1.files.into_keys().collect::<Vec<_>>();
    assert!(seen(first, 0).is_empty(), "as of then");
    let now = Instant::now();
    let both = [seen(now, 0), seen(now, 1)];
    assert!(both[0].iter().all(|name| has_file(share(0), name)) && both.concat().len() == 8, "{both:?}");
    if !cfg!(target_os = "linux") {
        return;
    }
    // Changes are told of, so nobody waits for an hour.
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut words: Vec<String> = Vec::new();
    while words.len() < 8 && Instant::now() < deadline {
        readers.iter_mut().for_each(|reader| words.extend(drain(&mut **reader).0));
    }
    words.sort();
    assert!(words.iter().zip(&names).all(|(word, name)| word.starts_with(name)) && words.len() == 8, "{words:?}");
}

/// Files with their sizes, as a look finds them.
fn looked(folder: &Path, names: &[&str]) -> BTreeMap<String, Shard> {
    names.iter().map(|name| (name.to_string(), Shard::local(&folder.join(name)).unwrap())).collect()
}

#[test]
fn a_file_is_whole_when_it_has_settled_or_was_moved_there_and_holds_back_those_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let settle = Duration::from_secs(2);
    let mut arrivals = Arrivals::new(settle);
    let (start, clock, none) = (Instant::now(), SystemTime::now(), HashSet::new());
    let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
    let mut taken = Taken::default();
    assert_eq!(arrivals.next(&taken), Next::Nothing);
    write("b", "x");
    write("c", "x");
    arrivals.see(looked(folder.path(), &["b", "c"]), &none, at(0.0), clock);
    assert_eq!(arrivals.next(&taken), Next::Settling(at(2.0)));
    // It grows: it starts anew, and what comes behind it has settled and waits all the same.
    write("b", "xy");
    arrivals.see(looked(folder.path(), &["b", "c"]), &none, at(1.5), clock);
    arrivals.see(looked(folder.path(), &["b", "c"]), &none, at(3.4), clock);
    assert_eq!(arrivals.next(&taken), Next::Settling(at(3.5)));
    assert_eq!(arrivals.waiting(&taken), (2, Some(at(0.0))));
    arrivals.see(looked(folder.path(), &["b", "c"]), &none, at(3.5), clock);
    assert_eq!(arrivals.next(&taken), Next::File("b".into()));
    let mark = |name: &str| {
        let shard = Shard::local(&folder.path().join(name)).unwrap();
        let entry = run(shard.entry()).unwrap();
        Mark::new(&shard, entry)
    };
    taken.add("b".into(), mark("b"));
    assert_eq!(arrivals.next(&taken), Next::File("c".into()));
    taken.add("c".into(), mark("c"));
    assert_eq!(arrivals.next(&taken), Next::Nothing);
    // A rename is whole at once, also when the kernel says so after the look that found it.
    write("a", "x");
    assert_eq!(taken.is_late("a"), Some("c"));
    arrivals.see(looked(folder.path(), &["a", "b", "c"]), &none, at(4.0), clock);
    assert_eq!(arrivals.next(&taken), Next::Settling(at(6.0)));
    arrivals.see(looked(folder.path(), &["a", "b", "c"]), &["a".to_string()].into(), at(4.1), clock);
    assert_eq!(arrivals.next(&taken), Next::File("a".into()));
    // Unless it is written to afterwards.
    write("a", "xyz");
    arrivals.see(looked(folder.path(), &["a", "b", "c"]), &none, at(4.2), clock);
    assert_eq!(arrivals.next(&taken), Next::Settling(at(6.2)));
    assert_eq!(arrivals.changed(&taken).count(), 0);
    // A file of long ago need not settle; one of a moment ago must, whatever the clock of its server says.
    for (seconds, is_whole) in [(61, true), (59, false)] {
        let mut arrivals = Arrivals::new(settle);
        arrivals.see(looked(folder.path(), &["a"]), &none, at(0.0), SystemTime::now() + Duration::from_secs(seconds));
        assert_eq!(arrivals.next(&Taken::default()) == Next::File("a".into()), is_whole, "{seconds}");
    }
}

#[test]
fn a_replaced_file_is_named_once_and_one_that_was_deleted_and_comes_back_as_another_is_new() {
    let folder = Folder::new();
    folder.add("a.txt", "a1 a2\n");
    folder.add("b.txt", "b1\n");
    let mut reader = folder.open(None).unwrap();
    assert_eq!(drain(&mut *reader).0, ["a1", "a2", "b1"]);
    // Another content under the same name, in one step.
    folder.add("new", "a3\n");
    fs::rename(folder.at("new"), folder.at("a.txt")).unwrap();
    let (seen, _) = drain(&mut *reader);
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(seen[0].starts_with("note a.txt: was replaced"), "{seen:?}");
    assert!(drain(&mut *reader).0.is_empty(), "once");
    // The same content again is nothing.
    folder.add("a.txt", "a3\n");
    fs::File::options().write(true).open(folder.at("a.txt")).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert!(drain(&mut *reader).0.is_empty());
    fs::remove_file(folder.at("b.txt")).unwrap();
    assert!(drain(&mut *reader).0.is_empty());
    folder.add("b.txt", "b1\n");
    assert!(drain(&mut *reader).0.is_empty(), "it is back as it was");
    fs::remove_file(folder.at("b.txt")).unwrap();
    assert!(drain(&mut *reader).0.is_empty());
    folder.add("b.txt", "b2 b3\n");
    let (seen, end) = drain(&mut *reader);
    assert_eq!(seen, ["b2", "b3"]);
    // A resumed run knows of the replacement too, and does not name it again.
    let mut again = folder.open(end.as_ref()).unwrap();
    assert!(drain(&mut *again).0.is_empty());
}

#[test]
fn files_that_are_gone_are_forgotten_at_the_end_of_the_next_file() {
    let folder = Folder::new();
    folder.add("a.txt", "a1\n");
    let mut reader = folder.open(None).unwrap();
    drain(&mut *reader);
    fs::remove_file(folder.at("a.txt")).unwrap();
    assert!(drain(&mut *reader).0.is_empty());
    folder.add("b.txt", "b1\n");
    let (seen, end) = drain(&mut *reader);
    assert_eq!(seen, ["b1"]);
    let end = end.unwrap();
    assert!(!end.as_json().to_string().contains("a.txt"), "{end:?}");
    folder.add("a.txt", "a1\n");
    let (seen, _) = drain(&mut *folder.open(Some(&end)).unwrap());
    assert!(seen[0].contains("appeared after b.txt was taken") && seen[1..] == ["a1"], "{seen:?}");
}

#[test]
fn a_folder_that_is_deleted_is_waited_for_and_what_was_learned_is_not_learned_again() {
    let folder = Folder::new();
    let root = folder.at("shards");
    fs::create_dir(&root).unwrap();
    let write = |name: &str| fs::write(root.join(name), format!("{name}\n")).unwrap();
    write("a.txt");
    let mut reader = folder.open_in(&root, None).unwrap();
    assert_eq!(drain(&mut *reader).0, ["a.txt"]);
    fs::remove_dir_all(&root).unwrap();
    let (seen, _) = drain(&mut *reader);
    assert!(seen.len() == 1 && seen[0].contains("the watched folder is gone"), "{seen:?}");
    assert!(drain(&mut *reader).0.is_empty(), "said once");
    fs::create_dir(&root).unwrap();
    write("a.txt");
    write("b.txt");
    let (seen, _) = drain(&mut *reader);
    assert!(seen[0].contains("is there again") && seen[1..] == ["b.txt"], "{seen:?}");
}

#[test]
fn a_file_that_vanishes_or_changes_while_it_is_read_is_an_error_or_a_gap_that_is_named() {
    for change in ["gone", "another"] {
        let mut folder = Folder::new();
        folder.add("a.txt", "a1 a2\na3\n");
        folder.add("b.txt", "b1\n");
        let mut reader = folder.open(None).unwrap();
        let start = loop {
            if let Arrived::WindowEnd(position) = reader.next(&limits()).unwrap().unwrap() {
                break position;
            }
        };
        match change {
            "gone" => fs::remove_file(folder.at("a.txt")).unwrap(),
            _ => folder.add("a.txt", "other words\n"),
        }
        // The run that is under way, and one that is resumed.
        let running = reader.next(&limits()).unwrap_err();
        let resumed = folder.open(Some(&start)).err().expect("a gap");
        for error in [running, resumed] {
            assert_eq!(error.kind(), ErrorKind::State);
            let text = error.to_string();
            assert!(text.contains("a.txt: is ") && text.contains(change) && text.contains("on_gap"), "{text}");
            assert!(text.contains("only its first block was learned from"), "{text}");
        }
        folder.on_gap = OnGap::Skip;
        let (seen, _) = drain(&mut *folder.open(Some(&start)).unwrap());
        assert!(seen[0].contains("the rest is skipped") && seen[1..] == ["lost", "b1"], "{seen:?}");
    }
}

#[test]
fn what_cannot_be_read_is_damage_by_name_and_the_next_file_follows() {
    let folder = Folder::new();
    folder.add("a.txt", "a1\n");
    folder.add("b.txt", "bad\n");
    folder.add("c.txt", "");
    folder.add("d.txt", "d1\n");
    let (seen, _) = drain(&mut *folder.open(None).unwrap());
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert!(seen[1].starts_with("damaged ") && seen[1].contains("b.txt: cannot be read"), "{seen:?}");
    assert!(seen[2].contains("c.txt: is empty"), "{seen:?}");
    assert_eq!((seen[0].as_str(), seen[3].as_str()), ("a1", "d1"));
}

/// A store whose objects change, with versions or without.
#[derive(Default)]
struct Changing {
    objects: Mutex<BTreeMap<String, (String, u64)>>,
    puts: AtomicU64,
}

impl Changing {
    fn put(&self, name: &str, text: &str) {
        let version = self.puts.fetch_add(1, Ordering::SeqCst);
        self.objects.lock().unwrap().insert(name.into(), (text.into(), version));
    }

    fn delete(&self, name: &str) {
        self.objects.lock().unwrap().remove(name).unwrap();
    }

    /// Every object was written at one and the same time: nothing but its version tells it from another of its size.
    fn looks((text, version): &(String, u64)) -> Looks {
        let version = Some(version.to_string().into());
        Looks { size: text.len() as u64, modified: Some(SystemTime::UNIX_EPOCH), version }
    }
}

impl Store for Changing {
    fn look<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Fetch<Looks>> {
        let found = self.objects.lock().unwrap().get(path).map(Self::looks).ok_or(Trouble::Missing);
        Box::pin(async { found })
    }

    fn read<'a>(&'a self, path: &'a str, range: Range<u64>, version: Option<&'a str>) -> BoxFuture<'a, Fetch<Bytes>> {
        let read = match self.objects.lock().unwrap().get(path) {
            None => Err(Trouble::Missing),
            Some((_, now)) if version.is_some_and(|wanted| wanted != now.to_string()) => Err(Trouble::Changed),
            Some((text, _)) => Ok(text.as_bytes()[range.start as usize..range.end as usize].to_vec().into()),
        };
        Box::pin(async { read })
    }

    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Fetch<Vec<(String, Looks)>>> {
        let objects = self.objects.lock().unwrap();
        let below = objects.iter().filter(|(name, _)| name.starts_with(folder));
        let found = below.map(|(name, object)| (name.clone(), Self::looks(object))).collect();
        Box::pin(async { Ok(found) })
    }
}

/// Files of lines that are read when a line is wanted, as large formats are.
struct LaterWords;

struct LaterFile {
    manifest: Manifest,
    blocks: Vec<Block>,
    shard: Shard,
}

impl OpenFile for LaterWords {
    fn open(&self, shard: Shard) -> BoxFuture<'_, Result<Option<Source>>> {
        Box::pin(async move {
            let text = shard.range(0..shard.size()).await?;
            let lines = text.iter().filter(|byte| **byte == b'\n').count();
            let blocks = vec![Block { bytes: 1, fetch_bytes: 1 }; lines];
            Ok(Some(Source::Blocks(Arc::new(LaterFile { manifest: Manifest::default(), blocks, shard }))))
        })
    }
}

impl BlockSource for LaterFile {
    fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    fn fetch(&self, block: usize, limits: ReadLimits) -> BoxFuture<'_, Result<Fetched>> {
        Box::pin(async move {
            let Some(Source::Blocks(words)) = Words.open(self.shard.clone()).await? else { panic!("it has lines") };
            words.fetch(block, limits).await
        })
    }
}

#[test]
fn a_prefix_of_a_store_grows_and_what_is_replaced_in_it_is_noticed_by_its_version() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _inside = runtime.enter();
    let objects = Arc::new(Changing::default());
    let store: Arc<dyn Store> = objects.clone();
    let open = |on_gap: OnGap, from: Option<&Position>| {
        let options = WatchOptions { settle: Duration::ZERO, on_gap };
        let places = Places::in_store(&store, &["p/*.txt"]);
        let mut watched = Watched::of(places, options, Arc::new(LaterWords), "words").unwrap();
        assert_eq!(watched.pace.every, Duration::from_secs(5), "every look is paid for");
        let (every, quiet) = (Duration::ZERO, Duration::from_millis(1));
        watched.pace = Pace { every, pause: every, share: 0, quiet };
        Arc::new(watched).open(from)
    };
    objects.put("p/a.txt", "a1 a2\n");
    objects.put("q/a.txt", "elsewhere\n");
    let mut reader = open(OnGap::Fail, None).unwrap();
    assert_eq!(drain(&mut *reader).0, ["a1", "a2"]);
    objects.put("p/b.txt", "b1\nb2\n");
    objects.put("p/c.txt", "c1\n");
    let (seen, end) = drain(&mut *reader);
    assert_eq!(seen, ["b1", "b2", "c1"]);
    assert!(drain(&mut *open(OnGap::Fail, end.as_ref()).unwrap()).0.is_empty(), "a resumed run has learned all");
    // Another content of the same size and time.
    objects.put("p/c.txt", "c2\n");
    let (seen, _) = drain(&mut *reader);
    assert!(seen.len() == 1 && seen[0].starts_with("note c.txt: was replaced"), "{seen:?}");
    objects.put("p/c.txt", "c2\n");
    assert!(drain(&mut *reader).0.is_empty(), "the same content is nothing new");

    // Replaced, or deleted, while it is read: nothing of another object is taken for the rest of this one.
    for is_deleted in [false, true] {
        objects.put("p/d.txt", "d1\nd2\n");
        let mut reader = open(OnGap::Fail, end.as_ref()).unwrap();
        let middle = loop {
            match reader.next(&limits()).unwrap().unwrap() {
                Arrived::WindowEnd(position) => break position,
                Arrived::Quiet => panic!("d.txt is there"),
                _ => {}
            }
        };
        if is_deleted {
            objects.delete("p/d.txt")
        } else {
            objects.put("p/d.txt", "x1\nx2\n")
        }
        let running = reader.next(&limits()).unwrap_err();
        let resumed = open(OnGap::Fail, Some(&middle)).err().expect("a gap");
        let wanted = if is_deleted { "d.txt: is gone" } else { "d.txt: is another file now" };
        for error in [running, resumed] {
            assert!(error.kind() == ErrorKind::State && error.to_string().contains(wanted), "{error}");
        }
        let (seen, _) = drain(&mut *open(OnGap::Skip, Some(&middle)).unwrap());
        assert!(seen[0].contains("the rest is skipped") && seen[1..] == ["lost"], "{seen:?}");
        if !is_deleted {
            objects.delete("p/d.txt");
        }
    }
}

#[test]
fn objects_of_a_store_come_like_files() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _inside = runtime.enter();
    let files = [("p/b.txt", "b1\n"), ("p/a.txt", "a1 a2\na3\n"), ("q/c.txt", "c1\n")];
    let files = files.map(|(name, text)| (name.to_string(), text.as_bytes().to_vec()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(files));
    let options = WatchOptions { settle: Duration::from_millis(30), on_gap: OnGap::Fail };
    let places = Places::in_store(&store, &["p/*.txt"]);
    let watched = Arc::new(Watched::of(places, options, Arc::new(Words), "words").unwrap());
    let mut reader = watched.open(None).unwrap();
    let mut seen = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while seen.len() < 4 && Instant::now() < deadline {
        seen.extend(drain(&mut *reader).0);
    }
    assert_eq!(seen, ["a1", "a2", "a3", "b1"]);
}
