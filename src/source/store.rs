//! The one door to files: a folder, an object store in memory, a cloud.
//!
//! A [`Shard`] is one file whose size is known and whose bytes are read by range, so that every format reads the same
//! way for every place. A passing failure (a connection that breaks) is retried here and nowhere else; what still fails
//! is an `Io` error with the file's name, which stops a run instead of counting as bad data. Shards come sorted by
//! name: the order of the data must not depend on the order of a listing. Used by every source that reads files.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use bytes::{Buf, Bytes};
use tokio::runtime::Handle;

use super::{BoxFuture, FileEntry, glob};
use crate::data::Digest;
use crate::error::{Error, ErrorKind, Result};

/// How often a read is tried before it counts as failed.
const TRIES: u32 = 3;
/// How long to wait before the second try; twice as long before the third.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How much of a file's beginning and end names its content.
const DIGEST_BYTES: u64 = 64 << 10;
/// What a blocking reader fetches at once.
pub(super) const READER_BYTES: u64 = 1 << 20;

/// A place that files are read from, by names with slashes: memory, a cloud.
pub trait Store: Send + Sync {
    /// How a file looks.
    fn look<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Fetch<Looks>>;

    /// Some bytes of a file; fewer where it ends early. With a version, of that one only: [`Trouble::Changed`] if it is
    /// another by now.
    fn read<'a>(&'a self, path: &'a str, range: Range<u64>, version: Option<&'a str>) -> BoxFuture<'a, Fetch<Bytes>>;

    /// All files below a folder; an empty name is the top.
    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Fetch<Vec<(String, Looks)>>>;
}

/// How a file looks without being read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// How many bytes it has.
    pub size: u64,
    /// When it was last written, if that is known.
    pub modified: Option<SystemTime>,
    /// What the store calls this content: another has another version. A folder has no word for it.
    pub version: Option<Arc<str>>,
}

/// What a store answers.
pub type Fetch<T> = std::result::Result<T, Trouble>;

/// Why a store has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// There is no such file.
    Missing,
    /// There is another file of this name by now.
    Changed,
    /// Something that may be over the next time.
    Passing(String),
    /// Something that will be the same the next time.
    Lasting(String),
}

/// Files in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    files: BTreeMap<String, Bytes>,
}

impl MemoryStore {
    /// Files by name.
    pub fn new(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        Self { files: files.into_iter().map(|(name, content)| (name, content.into())).collect() }
    }

    fn file(&self, path: &str) -> Fetch<&Bytes> {
        self.files.get(path).ok_or(Trouble::Missing)
    }
}

impl Store for MemoryStore {
    fn look<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Fetch<Looks>> {
        Box::pin(async move { Ok(looks(self.file(path)?)) })
    }

    fn read<'a>(&'a self, path: &'a str, range: Range<u64>, _: Option<&'a str>) -> BoxFuture<'a, Fetch<Bytes>> {
        Box::pin(async move {
            let file = self.file(path)?;
            let at = |place: u64| file.len().min(place as usize);
            Ok(file.slice(at(range.start)..at(range.end)))
        })
    }

    fn list<'a>(&'a self, folder: &'a str) -> BoxFuture<'a, Fetch<Vec<(String, Looks)>>> {
        let below =
            |(name, content): (&String, &Bytes)| below(name, folder).is_some().then(|| (name.clone(), looks(content)));
        Box::pin(async move { Ok(self.files.iter().filter_map(below).collect()) })
    }
}

/// Of a file in memory, which never changes.
fn looks(content: &Bytes) -> Looks {
    Looks { size: content.len() as u64, ..Looks::default() }
}

/// One file, in any place.
#[derive(Clone)]
pub struct Shard {
    /// As the user wrote it, for messages.
    name: Arc<str>,
    looks: Looks,
    origin: Origin,
}

/// Where a file is.
#[derive(Clone)]
enum Origin {
    /// On this machine: as it was found, and by the one name that it has.
    Local { path: PathBuf, absolute: PathBuf },
    /// In a store, by its name there.
    Store { store: Arc<dyn Store>, path: String },
}

impl Shard {
    /// The file as the user named it.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        self.looks.size
    }

    /// How it looked when it was found.
    pub(super) fn looks(&self) -> &Looks {
        &self.looks
    }

    /// The same file as it is now; `None` if it is gone.
    pub(super) async fn again(&self) -> Result<Option<Self>> {
        let again = match &self.origin {
            Origin::Local { path, .. } => Self::local(path),
            Origin::Store { store, path } => find_one(store, &self.name, path).await,
        };
        match again {
            Err(error) if error.kind() == ErrorKind::Path => Ok(None),
            again => again.map(Some),
        }
    }

    /// Where it is, if it is a file of this machine.
    pub fn local_path(&self) -> Option<&Path> {
        match &self.origin {
            Origin::Local { path, .. } => Some(path),
            Origin::Store { .. } => None,
        }
    }

    /// Reads some bytes, all of them or none.
    pub async fn range(&self, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        if range.end > self.size() {
            return Err(Error::format(format!(
                "{}: bytes {}..{} are outside the {} bytes of the file: is it whole?",
                self.name,
                range.start,
                range.end,
                self.size()
            )));
        }
        let bytes = match &self.origin {
            Origin::Local { absolute, .. } => retry(|| read_file(absolute.clone(), range.clone())).await,
            Origin::Store { store, path } => {
                retry(|| store.read(path, range.clone(), self.looks.version.as_deref())).await
            }
        };
        let bytes = bytes.map_err(|trouble| failed(&self.name, trouble))?;
        if bytes.len() as u64 != range.end - range.start {
            let shrunk = io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read");
            return Err(Error::io_at(&*self.name, &shrunk));
        }
        Ok(bytes)
    }

    /// What a manifest says of it.
    pub async fn entry(&self) -> Result<FileEntry> {
        let first = self.range(0..self.size().min(DIGEST_BYTES)).await?;
        let last = self.range(self.size().saturating_sub(DIGEST_BYTES)..self.size()).await?;
        Ok(FileEntry {
            name: self.file_name(),
            bytes: self.size(),
            digest: Digest::new().part(first).part(last).finish(),
        })
    }

    /// Its name without the folder.
    fn file_name(&self) -> String {
        match &self.origin {
            Origin::Local { absolute, .. } => absolute.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            Origin::Store { path, .. } => path.rsplit('/').next().unwrap_or_default().into(),
        }
    }

    /// Digest of all its bytes, read a few at a time.
    pub async fn digest(&self) -> Result<String> {
        const AT_ONCE: u64 = 4 << 20;
        let mut digest = Digest::new();
        for start in (0..self.size()).step_by(AT_ONCE as usize) {
            digest.update(self.range(start..(start + AT_ONCE).min(self.size())).await?);
        }
        Ok(digest.finish())
    }

    /// A stretch of the file for a blocking worker. Must be called where a runtime is, and read where none is.
    pub(super) fn reader(&self, range: Range<u64>) -> Result<ShardReader> {
        let handle = Handle::try_current()
            .map_err(|_| Error::unsupported(format!("{}: reading needs a tokio runtime", self.name)))?;
        Ok(ShardReader { shard: self.clone(), handle, rest: range, buffer: Bytes::new() })
    }

    /// A file of this machine.
    pub(super) fn local(path: &Path) -> Result<Self> {
        let name = path.to_string_lossy();
        let wrong = |error: &io::Error| Error::io_at(&*name, error);
        let metadata = path.metadata().map_err(|error| wrong(&error))?;
        let looks = Looks { size: metadata.len(), modified: metadata.modified().ok(), version: None };
        // The folder without links and dots, so that one file is not read twice under two names; the file itself may be
        // a link, and two links are two files.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut absolute = folder.canonicalize().map_err(|error| wrong(&error))?;
        absolute.extend(path.file_name());
        Ok(Self { name: name.into(), looks, origin: Origin::Local { path: path.into(), absolute } })
    }

    fn stored(name: &str, looks: Looks, store: &Arc<dyn Store>, path: String) -> Self {
        Self { name: name.into(), looks, origin: Origin::Store { store: store.clone(), path } }
    }
}

/// Some bytes of a local file, read on a blocking worker. It is open no longer than that: a run may have thousands.
async fn read_file(path: PathBuf, range: Range<u64>) -> Fetch<Bytes> {
    let read = move || {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let mut file = File::open(path)?;
        io::Seek::seek(&mut file, io::SeekFrom::Start(range.start))?;
        io::Read::read_to_end(&mut io::Read::take(file, range.end - range.start), &mut bytes)?;
        Ok(Bytes::from(bytes))
    };
    let done = tokio::task::spawn_blocking(read).await;
    done.map_err(io::Error::other).flatten().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Trouble::Missing,
        _ => Trouble::Passing(error.to_string()),
    })
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard({}, {} bytes)", self.name, self.looks.size)
    }
}

/// Reads a stretch of a shard in ranges of a mebibyte, blocking. Its errors carry ours: see [`read_error`].
pub(super) struct ShardReader {
    shard: Shard,
    handle: Handle,
    rest: Range<u64>,
    buffer: Bytes,
}

impl io::Read for ShardReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.buffer.is_empty() && !self.rest.is_empty() {
            let next = self.rest.start..self.rest.end.min(self.rest.start + READER_BYTES);
            self.buffer = self.handle.block_on(self.shard.range(next.clone())).map_err(io::Error::other)?;
            self.rest.start = next.end;
        }
        let taken = into.len().min(self.buffer.len());
        self.buffer.copy_to_slice(&mut into[..taken]);
        Ok(taken)
    }
}

/// What a decompressor's error means: ours if the store failed, else damaged data at `place`.
pub(super) fn read_error(place: &str, error: &io::Error) -> Error {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(ours) => ours.clone(),
        None => Error::format(format!("{place}: damaged or cut off: {error}")),
    }
}

/// The files that names, patterns and addresses stand for: sorted by name, each once.
///
/// A name is a path, a pattern (`data/*.parquet`, `data/**/train-[0-9]*.jsonl`), `file://…`, or, with the cargo feature
/// of its cloud, an address such as `s3://bucket/data/*.parquet`. A pattern that matches nothing is an error.
pub async fn resolve(patterns: &[String]) -> Result<Vec<Shard>> {
    let mut shards = Vec::new();
    for pattern in patterns {
        match locate(pattern)? {
            Located::Here(pattern) => shards.extend(resolve_local(pattern).await?),
            Located::Stored { store, folder, place, rest } if rest.is_empty() => {
                debug_assert_eq!(&folder, pattern);
                shards.push(find_one(&store, pattern, &place).await?);
            }
            Located::Stored { store, folder, place, rest } => {
                let found = find_many(&store, pattern, &folder, &place, &rest).await?;
                if found.is_empty() {
                    return Err(matches_nothing(pattern));
                }
                shards.extend(found);
            }
        }
    }
    in_order(shards)
}

/// Where the files of a name, a pattern or an address are looked for.
#[cfg_attr(not(feature = "cloud"), allow(dead_code))] // then nothing is in a store
pub(super) enum Located {
    /// On this machine: a path or a pattern.
    Here(String),
    /// In a store: the files below `place`, which the user calls `folder`, that fit `rest`; the one file at `place`
    /// where there is no rest.
    Stored { store: Arc<dyn Store>, folder: String, place: String, rest: String },
}

/// Finds out where that is; opens a cloud, and asks it nothing.
pub(super) fn locate(pattern: &str) -> Result<Located> {
    match pattern.split_once("://") {
        None => Ok(Located::Here(pattern.into())),
        Some(("file", path)) => Ok(Located::Here(path_of_address(pattern, path)?)),
        Some((scheme, _)) => locate_address(pattern, scheme),
    }
}

/// Like [`resolve`], of paths and patterns in a given store.
pub async fn resolve_in(store: Arc<dyn Store>, patterns: &[String]) -> Result<Vec<Shard>> {
    let mut shards = Vec::new();
    for pattern in patterns {
        let whole = find_one(&store, pattern, pattern).await;
        let (folder, rest) = glob::split(pattern);
        match whole {
            // A file that is named like a pattern is meant itself.
            Err(error) if error.kind() == ErrorKind::Path && glob::is_pattern(pattern) => {
                let found = find_many(&store, pattern, folder, folder, rest).await?;
                if found.is_empty() {
                    return Err(matches_nothing(pattern));
                }
                shards.extend(found);
            }
            found => shards.push(found?),
        }
    }
    in_order(shards)
}

fn in_order(mut shards: Vec<Shard>) -> Result<Vec<Shard>> {
    if shards.is_empty() {
        return Err(Error::option("no file to read: name at least one"));
    }
    shards.sort_by(|a, b| a.name.cmp(&b.name));
    let mut seen = HashSet::new();
    shards.retain(|shard| {
        seen.insert(match &shard.origin {
            Origin::Local { absolute, .. } => (None, absolute.clone()),
            // Two stores may have the same path: what the files are called tells them apart.
            Origin::Store { path, .. } => (Some(shard.name.clone()), path.into()),
        })
    });
    Ok(shards)
}

/// Listing a folder may take long: it runs on a blocking worker.
async fn resolve_local(pattern: String) -> Result<Vec<Shard>> {
    let name = pattern.clone();
    tokio::task::spawn_blocking(move || {
        local_paths(&pattern)?.iter().map(|path| Shard::local(path)).collect::<Result<Vec<_>>>()
    })
    .await
    .map_err(|error| Error::io_at(&*name, &io::Error::other(error)))?
}

fn local_paths(pattern: &str) -> Result<Vec<PathBuf>> {
    match Path::new(pattern).metadata() {
        Ok(found) if found.is_file() => Ok(vec![pattern.into()]),
        Ok(found) if found.is_dir() => Err(is_folder(pattern)),
        Ok(_) => Err(Error::data(format!("{pattern}: not a regular file, which is read more than once"))),
        Err(_) if glob::is_pattern(pattern) => {
            let paths = glob::files(pattern).map_err(|error| Error::io_at(pattern, &error))?;
            if paths.is_empty() { Err(matches_nothing(pattern)) } else { Ok(paths) }
        }
        Err(error) => Err(Error::io_at(pattern, &error)),
    }
}

/// The path in `file:///data/a%20b.parquet`.
fn path_of_address(address: &str, path: &str) -> Result<String> {
    let path = path.strip_prefix("localhost").unwrap_or(path);
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| byte == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    match String::from_utf8(bytes) {
        Ok(path) if path.starts_with('/') => Ok(path),
        _ => Err(Error::option(format!("{address}: not the address of a file here, such as file:///data/a.parquet"))),
    }
}

/// Files in a cloud or behind a web address.
fn locate_address(pattern: &str, scheme: &str) -> Result<Located> {
    let (feature, enabled) = match scheme {
        "s3" | "s3a" => ("aws", cfg!(feature = "aws")),
        "gs" => ("gcp", cfg!(feature = "gcp")),
        "az" | "adl" | "azure" | "abfs" | "abfss" => ("azure", cfg!(feature = "azure")),
        "http" | "https" => ("http", cfg!(feature = "http")),
        _ => {
            return Err(Error::option(format!(
                "{pattern}: unknown kind of address; there are paths, file://, s3://, gs://, az:// and https://"
            )));
        }
    };
    if !enabled {
        return Err(Error::unsupported(format!(
            "{pattern}: this build reads local files only; build it with `--features {feature}`"
        )));
    }
    #[cfg(feature = "cloud")]
    {
        let (folder, rest) = if glob::is_pattern(pattern) { glob::split(pattern) } else { (pattern, "") };
        let (store, place) = super::cloud::open(pattern, folder)?;
        Ok(Located::Stored { store, folder: folder.into(), place, rest: rest.into() })
    }
    #[cfg(not(feature = "cloud"))]
    unreachable!("every cloud's feature has the feature `cloud`")
}

/// The file at a place.
pub(super) async fn find_one(store: &Arc<dyn Store>, name: &str, place: &str) -> Result<Shard> {
    let place = place.trim_matches('/');
    match retry(|| store.look(place)).await {
        Ok(looks) => Ok(Shard::stored(name, looks, store, place.into())),
        Err(Trouble::Missing) if store.list(place).await.is_ok_and(|files| !files.is_empty()) => Err(is_folder(name)),
        Err(trouble) => Err(failed(name, trouble)),
    }
}

/// The files under a place that fit a pattern, perhaps none; named like the place was.
pub(super) async fn find_many(
    store: &Arc<dyn Store>,
    pattern: &str,
    folder: &str,
    place: &str,
    rest: &str,
) -> Result<Vec<Shard>> {
    let place = place.trim_matches('/');
    let listed = retry(|| store.list(place)).await.map_err(|trouble| failed(pattern, trouble))?;
    let mut shards = Vec::new();
    for (path, looks) in listed {
        let Some(below) = below(&path, place).filter(|below| glob::matches(rest, below)) else { continue };
        shards.push(Shard::stored(&format!("{folder}{below}"), looks, store, path.clone()));
    }
    Ok(shards)
}

/// What is left of a path below a folder; `None` if it is elsewhere.
fn below<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    match folder {
        "" => Some(path),
        _ => path.strip_prefix(folder)?.strip_prefix('/'),
    }
}

pub(super) fn is_folder(name: &str) -> Error {
    let folder = name.trim_end_matches('/');
    Error::missing_path(format!("{name}: is a folder: name its files, such as {folder}/*.parquet"))
}

fn matches_nothing(pattern: &str) -> Error {
    Error::io_at(pattern, &io::Error::new(io::ErrorKind::NotFound, "no file matches this pattern"))
}

/// What a store said, as our error.
fn failed(name: &str, trouble: Trouble) -> Error {
    match trouble {
        Trouble::Missing => Error::io_at(name, &io::Error::new(io::ErrorKind::NotFound, "no such file")),
        Trouble::Changed => Error::io_at(name, &io::Error::other("another file took its place while it was read")),
        Trouble::Passing(what) | Trouble::Lasting(what) => Error::io_at(name, &io::Error::other(what)),
    }
}

/// Does something until it works, a few times. What will not be different the next time is not tried again.
async fn retry<T, F>(mut act: impl FnMut() -> F) -> Fetch<T>
where
    F: Future<Output = Fetch<T>>,
{
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match act().await {
            Err(Trouble::Passing(_)) => tokio::time::sleep(pause).await,
            done => return done,
        }
        pause *= 2;
    }
    act().await
}

/// Waits for all of these, `most` at a time. Results come in their order, and so do errors: the first of them ends it.
pub(super) async fn side_by_side<T, F>(jobs: impl IntoIterator<Item = F>, most: usize) -> Result<Vec<T>>
where
    F: Future<Output = Result<T>>,
{
    let mut jobs = jobs.into_iter();
    let mut started = VecDeque::new();
    let mut results = Vec::new();
    poll_fn(move |context| {
        loop {
            while started.len() < most
                && let Some(job) = jobs.next()
            {
                started.push_back((Box::pin(job), None));
            }
            for (job, result) in started.iter_mut().filter(|(_, result)| result.is_none()) {
                if let Poll::Ready(done) = job.as_mut().poll(context) {
                    *result = Some(done);
                }
            }
            let before = results.len();
            while let Some(result) = started.front_mut().and_then(|(_, result)| result.take()) {
                match result {
                    Ok(result) => results.push(result),
                    Err(error) => return Poll::Ready(Err(error)),
                }
                started.pop_front();
            }
            if started.is_empty() && results.len() == before {
                return Poll::Ready(Ok(std::mem::take(&mut results)));
            }
            if results.len() == before {
                return Poll::Pending; // there is no room for another: those that were started wake us
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    fn names(shards: &[Shard]) -> Vec<String> {
        shards.iter().map(|shard| shard.name().to_string()).collect()
    }

    async fn resolve_str(patterns: &[&str]) -> Result<Vec<Shard>> {
        resolve(&patterns.iter().map(ToString::to_string).collect::<Vec<_>>()).await
    }

    fn memory(files: &[(&str, &str)]) -> Arc<dyn Store> {
        Arc::new(MemoryStore::new(files.iter().map(|(name, content)| (name.to_string(), content.as_bytes().to_vec()))))
    }

    #[tokio::test]
    async fn files_come_sorted_and_once_however_they_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        for name in ["b.bin", "a.bin", "sub/c.bin", "x y.bin"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let patterns = [
            format!("{root}/b.bin"),
            format!("{root}/**/*.bin"),
            format!("{root}/sub/../a.bin"),
            format!("file://{root}/x%20y.bin"),
        ];
        let shards = resolve(&patterns).await.unwrap();
        let expected = ["a.bin", "b.bin", "sub/c.bin", "x y.bin"].map(|name| format!("{root}/{name}"));
        assert_eq!(names(&shards), expected);
        assert_eq!(&shards[2].range(0..9).await.unwrap()[..], b"sub/c.bin");
        assert_eq!(&shards[2].range(4..5).await.unwrap()[..], b"c");
        assert_eq!(shards[2].local_path(), Some(folder.path().join("sub/c.bin").as_path()));
    }

    #[tokio::test]
    async fn a_relative_path_stays_relative() {
        let shards = resolve_str(&["src/source/st*.rs", "Cargo.toml"]).await.unwrap();
        assert_eq!(names(&shards), ["Cargo.toml", "src/source/store.rs"]);
        assert_eq!(&shards[0].range(0..9).await.unwrap()[..], b"[package]");
    }

    #[tokio::test]
    async fn a_file_that_is_named_like_a_pattern_is_meant_itself() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a[1].bin", "a1.bin"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let name = format!("{}/a[1].bin", folder.path().to_str().unwrap());
        let shards = resolve_str(&[&name]).await.unwrap();
        assert_eq!(names(&shards), [name]);
        assert_eq!(&shards[0].range(0..8).await.unwrap()[..], b"a[1].bin");
        let store = memory(&[("a[1].bin", "x"), ("a1.bin", "y")]);
        assert_eq!(names(&resolve_in(store, &["a[1].bin".into()]).await.unwrap()), ["a[1].bin"]);
    }

    #[tokio::test]
    async fn what_is_not_there_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let missing = resolve_str(&[&format!("{root}/a.bin")]).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Path);
        assert!(missing.to_string().contains("a.bin: No such file"), "{missing}");
        let nothing = resolve_str(&[&format!("{root}/*.bin")]).await.unwrap_err().to_string();
        assert!(nothing.contains("*.bin: no file matches"), "{nothing}");
        let directory = resolve_str(&[&format!("{root}/")]).await.unwrap_err().to_string();
        assert!(directory.ends_with(&format!("is a folder: name its files, such as {root}/*.parquet")), "{directory}");
        assert_eq!(resolve_str(&[]).await.unwrap_err().kind(), ErrorKind::Option);
        assert_eq!(resolve_str(&["ftp://a/b"]).await.unwrap_err().kind(), ErrorKind::Option);
        assert_eq!(resolve_str(&["file://host/b"]).await.unwrap_err().kind(), ErrorKind::Option);
    }

    #[cfg(not(feature = "aws"))]
    #[tokio::test]
    async fn a_cloud_needs_its_feature() {
        let error = resolve_str(&["s3://bucket/*.parquet"]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("--features aws"), "{error}");
    }

    #[tokio::test]
    async fn a_store_is_searched_like_a_folder() {
        let store = memory(&[("d/b.bin", "bb"), ("d/a.bin", "a"), ("d/e/c.bin", "ccc"), ("d/.t/x.bin", "")]);
        let find = async |pattern: &str| resolve_in(store.clone(), &[pattern.to_string()]).await;
        assert_eq!(names(&find("d/*.bin").await.unwrap()), ["d/a.bin", "d/b.bin"]);
        assert_eq!(names(&find("**/*.bin").await.unwrap()), ["d/a.bin", "d/b.bin", "d/e/c.bin"]);
        let one = find("d/e/c.bin").await.unwrap();
        assert_eq!((one[0].size(), one[0].local_path()), (3, None));
        assert_eq!(&one[0].range(1..3).await.unwrap()[..], b"cc");
        assert!(find("d").await.unwrap_err().to_string().contains("d/*.parquet"));
        assert!(find("f").await.unwrap_err().to_string().contains("f: no such file"));
        assert!(find("f/*").await.unwrap_err().to_string().contains("no file matches"));
    }

    #[tokio::test]
    async fn a_range_outside_the_file_or_a_file_that_shrank_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        fs::write(&path, "0123456789").unwrap();
        let shard = resolve_str(&[path.to_str().unwrap()]).await.unwrap().remove(0);
        assert_eq!(shard.range(5..11).await.unwrap_err().kind(), ErrorKind::Format);
        assert!(shard.range(3..3).await.unwrap().is_empty());
        fs::write(&path, "01234567").unwrap();
        let error = shard.range(5..10).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("shorter"), "{error}");
        fs::remove_file(&path).unwrap();
        assert!(shard.range(5..10).await.unwrap_err().to_string().contains("no such file"));
    }

    #[tokio::test]
    async fn an_entry_names_content_not_place() {
        let middle = |byte: &str| format!("{}{byte}{}", "a".repeat(1 << 16), "b".repeat(1 << 16));
        let files = [("x/f", &*middle("1")), ("y/f", &*middle("1")), ("z/f", &*middle("")), ("z/g", "")];
        let shards = resolve_in(memory(&files), &["*/*".into()]).await.unwrap();
        let mut entries = Vec::new();
        for shard in &shards {
            entries.push(shard.entry().await.unwrap());
        }
        assert_eq!(entries[0], entries[1]);
        assert_eq!(entries[0].name, "f");
        assert_eq!(entries[0].digest, entries[2].digest);
        assert_ne!(entries[0].bytes, entries[2].bytes);
        assert_ne!(entries[2].digest, entries[3].digest);
    }

    #[tokio::test]
    async fn passing_trouble_is_retried_and_a_missing_file_is_not() {
        let calls = Cell::new(0);
        let attempt = |failures: u32, missing: bool| {
            calls.set(0);
            let calls = &calls;
            retry(move || {
                calls.set(calls.get() + 1);
                let failed = calls.get() <= failures;
                async move {
                    match (failed, missing) {
                        (false, _) => Ok(7),
                        (true, true) => Err(Trouble::Missing),
                        (true, false) => Err(Trouble::Passing("broken".into())),
                    }
                }
            })
        };
        assert_eq!(attempt(2, false).await.unwrap(), 7);
        assert_eq!(calls.get(), 3);
        assert!(attempt(3, false).await.is_err());
        assert_eq!(calls.get(), 3);
        assert!(attempt(1, true).await.is_err());
        assert_eq!(calls.get(), 1);
    }

    #[tokio::test]
    async fn results_come_in_order_and_only_so_many_are_waited_for_at_once() {
        let (running, most) = (Cell::new(0), Cell::new(0));
        let job = |number: u64| {
            let (running, most) = (&running, &most);
            async move {
                running.set(running.get() + 1);
                most.set(running.get().max(most.get()));
                tokio::time::sleep(Duration::from_millis(number * 7 % 5)).await;
                running.set(running.get() - 1);
                if number < 30 { Ok(number) } else { Err(Error::data(format!("job {number}"))) }
            }
        };
        assert_eq!(side_by_side((0..20).map(job), 4).await.unwrap(), (0..20).collect::<Vec<_>>());
        assert_eq!((running.get(), most.get()), (0, 4));
        assert!(side_by_side((0..0).map(job), 4).await.unwrap().is_empty());
        // Of 32 to 35, which start together, 35 fails at once and 32 last, after 4 ms.
        for first in [20, 30, 31, 32, 33] {
            let error = side_by_side((first..40).map(job), 4).await.unwrap_err();
            assert_eq!(error.to_string(), format!("job {}", first.max(30)));
        }
    }
}
