//! The one door to files: a folder, an object store in memory, a cloud.
//!
//! A [`Shard`] is one file whose size is known and whose bytes are read by range, so that every format reads the same
//! way for every place. A passing failure (a connection that breaks) is retried here and nowhere else; what still fails
//! is an `Io` error with the file's name, which stops a run instead of counting as bad data. Shards come sorted by
//! name: the order of the data must not depend on the order of a listing. Used by every source that reads files.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::StreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use object_store::{ObjectStore, ObjectStoreExt, parse_url_opts};
use tokio::runtime::Handle;

use super::{FileEntry, glob};
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

static LOCAL: LazyLock<Arc<dyn ObjectStore>> = LazyLock::new(|| Arc::new(LocalFileSystem::new()));

/// One file, in any place.
#[derive(Clone)]
pub struct Shard {
    /// As the user wrote it, for messages.
    name: Arc<str>,
    size: u64,
    store: Arc<dyn ObjectStore>,
    location: Location,
    local: Option<PathBuf>,
}

impl Shard {
    /// The file as the user named it.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// How many bytes it has.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where it is, if it is a file of this machine.
    pub fn local_path(&self) -> Option<&Path> {
        self.local.as_deref()
    }

    /// Reads some bytes, all of them or none.
    pub async fn range(&self, range: Range<u64>) -> Result<Bytes> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        if range.end > self.size {
            return Err(Error::format(format!(
                "{}: bytes {}..{} are outside the {} bytes of the file: is it whole?",
                self.name, range.start, range.end, self.size
            )));
        }
        let bytes = retry(|| self.store.get_range(&self.location, range.clone())).await;
        let bytes = bytes.map_err(|error| failed(&self.name, &error))?;
        if bytes.len() as u64 != range.end - range.start {
            let shrunk = io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read");
            return Err(Error::io_at(&*self.name, &shrunk));
        }
        Ok(bytes)
    }

    /// What a manifest says of it.
    pub async fn entry(&self) -> Result<FileEntry> {
        let first = self.range(0..self.size.min(DIGEST_BYTES)).await?;
        let last = self.range(self.size.saturating_sub(DIGEST_BYTES)..self.size).await?;
        Ok(FileEntry {
            name: self.location.filename().unwrap_or_default().into(),
            bytes: self.size,
            digest: Digest::new().part(first).part(last).finish(),
        })
    }

    /// Digest of all its bytes, read a few at a time.
    pub async fn digest(&self) -> Result<String> {
        const AT_ONCE: u64 = 4 << 20;
        let mut digest = Digest::new();
        for start in (0..self.size).step_by(AT_ONCE as usize) {
            digest.update(self.range(start..(start + AT_ONCE).min(self.size)).await?);
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
    fn local(path: &Path) -> Result<Self> {
        let name = path.to_string_lossy();
        let wrong = |error: &io::Error| Error::io_at(&*name, error);
        let size = path.metadata().map_err(|error| wrong(&error))?.len();
        // The folder without links and dots, so that one file is not read twice under two names; the file itself may be
        // a link, and two links are two files.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut absolute = folder.canonicalize().map_err(|error| wrong(&error))?;
        absolute.extend(path.file_name());
        let location = Location::from_absolute_path(&absolute).map_err(|error| wrong(&io::Error::other(error)))?;
        Ok(Self { name: name.into(), size, store: LOCAL.clone(), location, local: Some(path.into()) })
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard({}, {} bytes)", self.name, self.size)
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
        match pattern.split_once("://") {
            None => shards.extend(resolve_local(pattern.clone()).await?),
            Some(("file", path)) => shards.extend(resolve_local(path_of_address(pattern, path)?).await?),
            Some((scheme, _)) => shards.extend(resolve_address(pattern, scheme).await?),
        }
    }
    in_order(shards)
}

/// Like [`resolve`], of paths and patterns in a given store.
pub async fn resolve_in(store: Arc<dyn ObjectStore>, patterns: &[String]) -> Result<Vec<Shard>> {
    let mut shards = Vec::new();
    for pattern in patterns {
        let whole = find_one(&store, pattern, location(pattern, pattern)?).await;
        let (folder, rest) = glob::split(pattern);
        match whole {
            // A file that is named like a pattern is meant itself.
            Err(error) if error.kind() == ErrorKind::Path && glob::is_pattern(pattern) => {
                shards.extend(find_many(&store, pattern, folder, location(pattern, folder)?, rest).await?);
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
    // Two stores may have the same path: what the files are called tells them apart.
    shards.retain(|shard| seen.insert((shard.local.is_none().then(|| shard.name.clone()), shard.location.clone())));
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
async fn resolve_address(pattern: &str, scheme: &str) -> Result<Vec<Shard>> {
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
    let (folder, rest) = if glob::is_pattern(pattern) { glob::split(pattern) } else { (pattern, "") };
    // What the clouds' own tools read; a bare REGION or TOKEN in the environment belongs to another program.
    let settings =
        std::env::vars().filter(|(key, _)| ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| key.starts_with(prefix)));
    let (store, place) =
        parse_url_opts(&parsed(pattern, folder)?, settings).map_err(|error| failed(pattern, &error))?;
    let store: Arc<dyn ObjectStore> = store.into();
    if rest.is_empty() {
        return Ok(vec![find_one(&store, pattern, place).await?]);
    }
    find_many(&store, pattern, folder, place, rest).await
}

/// Whatever type the caller needs: an address has the type of a crate that only the store knows.
fn parsed<T: FromStr<Err: fmt::Display>>(pattern: &str, text: &str) -> Result<T> {
    text.parse().map_err(|error| Error::option(format!("{pattern}: not an address: {error}")))
}

fn location(pattern: &str, path: &str) -> Result<Location> {
    Location::parse(path).map_err(|error| Error::option(format!("{pattern}: not a path in a store: {error}")))
}

/// The file at a place.
async fn find_one(store: &Arc<dyn ObjectStore>, name: &str, place: Location) -> Result<Shard> {
    match retry(|| store.head(&place)).await {
        Ok(meta) => {
            Ok(Shard { name: name.into(), size: meta.size, store: store.clone(), location: place, local: None })
        }
        Err(object_store::Error::NotFound { .. }) if matches!(store.list(Some(&place)).next().await, Some(Ok(_))) => {
            Err(is_folder(name))
        }
        Err(error) => Err(failed(name, &error)),
    }
}

/// The files under a place that fit a pattern; named like the place was.
async fn find_many(
    store: &Arc<dyn ObjectStore>,
    pattern: &str,
    folder: &str,
    place: Location,
    rest: &str,
) -> Result<Vec<Shard>> {
    let mut listing = store.list(Some(&place));
    let mut shards = Vec::new();
    while let Some(meta) = listing.next().await {
        let meta = meta.map_err(|error| failed(pattern, &error))?;
        let Some(parts) = meta.location.prefix_match(&place) else { continue };
        let below = parts.map(|part| part.as_ref().to_string()).collect::<Vec<_>>().join("/");
        if glob::matches(rest, &below) {
            let name = format!("{folder}{below}").into();
            shards.push(Shard { name, size: meta.size, store: store.clone(), location: meta.location, local: None });
        }
    }
    if shards.is_empty() { Err(matches_nothing(pattern)) } else { Ok(shards) }
}

fn is_folder(name: &str) -> Error {
    let folder = name.trim_end_matches('/');
    Error::missing_path(format!("{name}: is a folder: name its files, such as {folder}/*.parquet"))
}

fn matches_nothing(pattern: &str) -> Error {
    Error::io_at(pattern, &io::Error::new(io::ErrorKind::NotFound, "no file matches this pattern"))
}

/// What a store said, as our error.
fn failed(name: &str, error: &object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => {
            Error::io_at(name, &io::Error::new(io::ErrorKind::NotFound, "no such file"))
        }
        other => Error::io_at(name, &io::Error::other(other.to_string())),
    }
}

/// Does something until it works, a few times. What will not be different the next time is not tried again.
async fn retry<T, F>(mut act: impl FnMut() -> F) -> object_store::Result<T>
where
    F: Future<Output = object_store::Result<T>>,
{
    use object_store::Error as E;
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match act().await {
            Err(E::Generic { .. } | E::JoinError { .. }) => tokio::time::sleep(pause).await,
            done => return done,
        }
        pause *= 2;
    }
    act().await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use object_store::memory::InMemory;

    use super::*;

    fn names(shards: &[Shard]) -> Vec<String> {
        shards.iter().map(|shard| shard.name().to_string()).collect()
    }

    async fn resolve_str(patterns: &[&str]) -> Result<Vec<Shard>> {
        resolve(&patterns.iter().map(ToString::to_string).collect::<Vec<_>>()).await
    }

    async fn memory(files: &[(&str, &str)]) -> Arc<dyn ObjectStore> {
        let store = InMemory::new();
        for (name, content) in files {
            store.put(&Location::parse(name).unwrap(), content.to_string().into()).await.unwrap();
        }
        Arc::new(store)
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
        let store = memory(&[("a[1].bin", "x"), ("a1.bin", "y")]).await;
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
        let store = memory(&[("d/b.bin", "bb"), ("d/a.bin", "a"), ("d/e/c.bin", "ccc"), ("d/.t/x.bin", "")]).await;
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
        let shards = resolve_in(memory(&files).await, &["*/*".into()]).await.unwrap();
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
                        (true, true) => Err(object_store::Error::NotFound { path: "a".into(), source: "".into() }),
                        (true, false) => Err(object_store::Error::Generic { store: "test", source: "".into() }),
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
}
