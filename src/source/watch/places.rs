//! What is there now: one look at all folders and stores that are watched.
//!
//! Where nothing matches yet, and where a folder is gone, a look finds nothing; that is no error. Files are called by
//! what follows the folder of their pattern, so that a position in a folder that was moved still means the same files;
//! where there are several patterns, by their whole names. What is ignored under a pattern: names that begin with `.`
//! or `_`, of files and of folders below, and endings of files that are being written. Used by `reader`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};
use crate::source::glob;
use crate::source::store::{Located, Shard, find_many, find_one, is_folder, locate};

/// How programs call files that they have not finished, in small letters.
const UNFINISHED: [&str; 8] = [".tmp", ".temp", ".part", ".partial", ".crdownload", ".inprogress", ".swp", "~"];

/// The places that are watched.
pub(super) struct Places {
    places: Vec<Place>,
}

struct Place {
    pattern: String,
    located: Located,
}

/// What a look found.
#[derive(Default)]
pub(super) struct Look {
    /// The files by name, in the order in which they are learned from.
    pub files: BTreeMap<String, Shard>,
    /// A folder that is not there.
    pub missing: Option<String>,
}

impl Places {
    /// Where these paths, patterns or addresses are.
    pub fn open(patterns: &[String]) -> Result<Self> {
        let open = |pattern: &String| Ok(Place { pattern: pattern.clone(), located: locate(pattern)? });
        let places = patterns.iter().map(open).collect::<Result<Vec<_>>>()?;
        if places.is_empty() {
            return Err(Error::option("no file to watch for: name at least one"));
        }
        Ok(Self { places })
    }

    /// Patterns in a given store.
    #[cfg(test)]
    pub fn in_store(store: &std::sync::Arc<dyn crate::source::store::Store>, patterns: &[&str]) -> Self {
        let place = |pattern: &&str| {
            let (folder, rest) = glob::split(pattern);
            let located = Located::Stored {
                store: store.clone(),
                folder: folder.into(),
                place: folder.into(),
                rest: rest.into(),
            };
            Place { pattern: (*pattern).into(), located }
        };
        Self { places: patterns.iter().map(place).collect() }
    }

    /// The patterns, for messages.
    pub fn describe(&self) -> String {
        let patterns: Vec<&str> = self.places.iter().map(|place| place.pattern.as_str()).collect();
        patterns.join(", ")
    }

    /// Returns true if some of it is in a store.
    pub fn has_store(&self) -> bool {
        self.places.iter().any(|place| matches!(place.located, Located::Stored { .. }))
    }

    /// The folders of this machine that files appear in, where all files of a pattern are in one, and what comes before
    /// a file's own name in what a look calls it.
    pub fn folders(&self) -> Vec<(PathBuf, String)> {
        let is_alone = self.places.len() == 1;
        let folder = |place: &Place| match &place.located {
            Located::Here(pattern) => {
                let (folder, rest) = folder_of(pattern);
                let called = if is_alone { "" } else { glob::split(pattern).0 };
                (!rest.contains('/')).then(|| (folder, called.to_string()))
            }
            Located::Stored { .. } => None,
        };
        self.places.iter().filter_map(folder).collect()
    }

    /// Looks once.
    pub async fn look(&self) -> Result<Look> {
        let mut look = Look::default();
        for place in &self.places {
            let (found, missing) = place.look().await?;
            look.missing = look.missing.or(missing);
            for (name, shard) in found {
                let name = if self.places.len() == 1 { name } else { shard.name().to_string() };
                look.files.insert(name, shard);
            }
        }
        Ok(look)
    }
}

/// Files with the names that follow the folder of their pattern, and that folder if it is not there.
type Found = (Vec<(String, Shard)>, Option<String>);

impl Place {
    async fn look(&self) -> Result<Found> {
        match &self.located {
            Located::Here(pattern) => {
                let (pattern, name) = (pattern.clone(), pattern.clone());
                let looked = tokio::task::spawn_blocking(move || look_here(&pattern)).await;
                looked.map_err(|error| Error::io_at(&name, &io::Error::other(error)))?
            }
            Located::Stored { store, place, rest, .. } if rest.is_empty() => {
                match find_one(store, &self.pattern, place).await {
                    Ok(shard) => Ok((vec![(last_part(&self.pattern).into(), shard)], None)),
                    Err(error) if error.kind() == ErrorKind::Path => Ok((Vec::new(), None)),
                    Err(error) => Err(error),
                }
            }
            Located::Stored { store, folder, place, rest } => {
                let found = match find_many(store, &self.pattern, folder, place, rest).await {
                    Err(error) if error.kind() == ErrorKind::Path => Vec::new(),
                    found => found?,
                };
                let named = found.into_iter().filter_map(|shard| {
                    let name = shard.name().strip_prefix(folder.as_str())?.to_string();
                    (!is_ignored(&name)).then_some((name, shard))
                });
                Ok((named.collect(), None))
            }
        }
    }
}

/// What a local pattern finds now.
fn look_here(pattern: &str) -> Result<Found> {
    let (folder, _) = folder_of(pattern);
    if !folder.is_dir() {
        return Ok((Vec::new(), Some(folder.display().to_string())));
    }
    let paths = match Path::new(pattern).metadata() {
        Ok(found) if found.is_dir() => return Err(is_folder(pattern)),
        Ok(_) => vec![PathBuf::from(pattern)],
        Err(_) if glob::is_pattern(pattern) => match glob::files(pattern) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(), // a folder went away meanwhile
            found => found.map_err(|error| Error::io_at(pattern, &error))?,
        },
        Err(_) => Vec::new(),
    };
    let begins = glob::split(pattern).0;
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let whole = path.to_string_lossy();
        let name = whole.strip_prefix(begins).unwrap_or(&whole).to_string();
        if is_ignored(&name) && whole != pattern {
            continue;
        }
        match Shard::local(&path) {
            Ok(shard) => files.push((name, shard)),
            Err(error) if error.kind() == ErrorKind::Path => {} // it went away meanwhile
            Err(error) => return Err(error),
        }
    }
    Ok((files, None))
}

/// The folder of a pattern, and what follows it.
fn folder_of(pattern: &str) -> (PathBuf, &str) {
    let (folder, rest) = glob::split(pattern);
    (if folder.is_empty() { ".".into() } else { folder.into() }, rest)
}

fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Returns true for names that no shard has: markers of other programs, and files that are being written.
fn is_ignored(name: &str) -> bool {
    let small = name.to_ascii_lowercase();
    name.split('/').any(|part| part.starts_with(['.', '_'])) || UNFINISHED.iter().any(|ending| small.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::*;
    use crate::source::store::{MemoryStore, Store};
    use crate::source::testing::run;

    fn names(look: &Look) -> Vec<&str> {
        look.files.keys().map(String::as_str).collect()
    }

    #[test]
    fn a_look_finds_what_is_there_by_its_name_below_the_folder_and_nothing_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("shards");
        let pattern = format!("{}/*", root.display());
        let places = Places::open(&[pattern]).unwrap();
        let look = run(places.look()).unwrap();
        assert!(look.files.is_empty() && look.missing.is_some_and(|missing| missing.ends_with("shards/")));
        fs::create_dir_all(root.join("sub")).unwrap();
        for name in ["b.bin", "a.bin", ".c.bin", "_SUCCESS", "d.bin.tmp", "e.bin.PART", "f.bin~", "sub/g.bin"] {
            fs::write(root.join(name), "xy").unwrap();
        }
        let look = run(places.look()).unwrap();
        assert_eq!((names(&look), look.missing.clone()), (vec!["a.bin", "b.bin"], None));
        assert_eq!(look.files["a.bin"].size(), 2);
        assert!(look.files["a.bin"].looks().modified.is_some());
        assert_eq!(places.folders(), [(PathBuf::from(format!("{}/", root.display())), String::new())]);

        let deep = Places::open(&[format!("{}/**/*.bin", root.display())]).unwrap();
        assert_eq!(names(&run(deep.look()).unwrap()), ["a.bin", "b.bin", "sub/g.bin"]);
        assert!(deep.folders().is_empty(), "files appear in folders below");

        // Several patterns may find the same names: they are told apart by all of them.
        let both = [format!("{}/a*", root.display()), format!("{}/sub/*", root.display())];
        let look = run(Places::open(&both).unwrap().look()).unwrap();
        let whole = |name: &str| root.join(name).display().to_string();
        assert_eq!(names(&look), [whole("a.bin"), whole("sub/g.bin")]);
        let error = Places::open(&[root.display().to_string()]).unwrap();
        assert!(run(error.look()).is_err_and(|error| error.to_string().contains("is a folder: name its files")));
    }

    #[test]
    fn a_file_by_its_own_name_may_come_later_and_may_be_called_anything() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("_one.bin");
        let places = Places::open(&[path.display().to_string()]).unwrap();
        assert!(run(places.look()).unwrap().files.is_empty());
        fs::write(&path, "x").unwrap();
        assert_eq!(names(&run(places.look()).unwrap()), ["_one.bin"]);
    }

    #[test]
    fn a_store_is_looked_at_like_a_folder() {
        let files = ["d/b.bin", "d/a.bin", "d/_c.bin", "e/x.bin"].map(|name| (name.to_string(), vec![1, 2]));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(files));
        let look = run(Places::in_store(&store, &["d/*.bin"]).look()).unwrap();
        assert_eq!(names(&look), ["a.bin", "b.bin"]);
        assert!(run(Places::in_store(&store, &["f/*.bin"]).look()).unwrap().files.is_empty());
    }
}
