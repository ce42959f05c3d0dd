//! Folders that appear whole or not at all.
//!
//! A folder is filled under a name that begins with `.tmp-`, flushed, and renamed. Whatever goes wrong before the
//! rename leaves what was there before. Two renames are needed where a folder of that name is replaced: between them
//! the old one lives under a `.tmp-old-` name, from where [`recover`] fetches it if the process was killed just there.

use std::fs;
use std::io;
use std::path::Path;

use crate::error::{Error, Result};
use crate::files::{parent_of, sync_folder};

/// What names of unfinished folders begin with.
const UNFINISHED: &str = ".tmp-";
/// What names of folders begin with that are on their way out.
const OLD: &str = ".tmp-old-";

/// Makes the folder `target` of what `fill` writes into the folder it is given. A folder that is there already is
/// replaced if it holds nothing but files of the names in `ours`, and left alone otherwise.
pub(super) fn publish(target: &Path, ours: &[&str], fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let name = target
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| Error::option(format!("{}: name a folder to write, such as `model`", target.display())))?;
    let parent = parent_of(target);
    check_replaceable(target, ours)?;
    fs::create_dir_all(parent).map_err(|e| failed(parent, &e))?;
    let temporary = parent.join(format!("{UNFINISHED}{name}-{}", std::process::id()));
    let done = remove(&temporary).and_then(|()| fs::create_dir(&temporary).map_err(|e| failed(&temporary, &e)));
    let done = done.and_then(|()| fill(&temporary)).and_then(|()| sync(&temporary)).and_then(|()| {
        let old = parent.join(format!("{OLD}{name}"));
        let replaced = set_aside(target, &old)?;
        if let Err(e) = fs::rename(&temporary, target) {
            if replaced {
                let _ = fs::rename(&old, target); // the first failure is the one to tell
            }
            return Err(failed(target, &e));
        }
        sync(parent)?;
        if replaced { remove(&old) } else { Ok(()) }
    });
    if done.is_err() {
        let _ = remove(&temporary); // a full disk wants the room back; the first failure is the one to tell
    }
    done
}

/// Removes a folder so that it is never seen half: it goes under another name first.
pub(super) fn retire(folder: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name().and_then(|name| name.to_str())) else {
        return Err(Error::option(format!("{}: is no checkpoint", folder.display())));
    };
    let old = parent.join(format!("{UNFINISHED}{name}-retired"));
    set_aside(folder, &old)?;
    remove(&old)
}

/// Cleans up after processes that were killed: unfinished folders go, a folder that was being replaced comes back. Only
/// for whoever owns `dir`.
pub(super) fn recover(dir: &Path) -> Result<()> {
    let entries = fs::read_dir(dir).map_err(|e| failed(dir, &e))?;
    for entry in entries {
        let path = entry.map_err(|e| failed(dir, &e))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        match name.strip_prefix(OLD) {
            Some(target) if !dir.join(target).exists() => {
                fs::rename(&path, dir.join(target)).map_err(|e| failed(&path, &e))?;
            }
            _ if name.starts_with(UNFINISHED) => remove(&path)?,
            _ => {}
        }
    }
    Ok(())
}

/// Refuses to replace what we did not write: a slip in a path must not cost anybody their files.
fn check_replaceable(target: &Path, ours: &[&str]) -> Result<()> {
    let refuse = |what: &str| {
        Err(Error::missing_path(format!("{}: {what}; it is not replaced, choose another folder", target.display())))
    };
    match fs::read_dir(target) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => refuse("there is something that is no folder"),
        Err(e) => Err(failed(target, &e)),
        Ok(entries) => {
            for entry in entries {
                let name = entry.map_err(|e| failed(target, &e))?.file_name();
                if !name.to_str().is_some_and(|name| ours.contains(&name)) {
                    return refuse(&format!("the folder holds `{}`, which is no part of a model", name.display()));
                }
            }
            Ok(())
        }
    }
}

/// Moves a folder out of the way. Returns true if there was one.
fn set_aside(folder: &Path, old: &Path) -> Result<bool> {
    remove(old)?;
    match fs::rename(folder, old) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(failed(folder, &e)),
    }
}

/// Removes a folder or file, if it is there.
fn remove(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(path, &e)),
        _ => Ok(()),
    }
}

fn sync(folder: &Path) -> Result<()> {
    sync_folder(folder).map_err(|e| failed(folder, &e))
}

fn failed(path: &Path, error: &io::Error) -> Error {
    Error::io_at(path, error)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn fill(text: &'static str) -> impl Fn(&Path) -> Result<()> {
        move |folder| fs::write(folder.join("a"), text).map_err(|e| failed(folder, &e))
    }

    fn names(folder: &Path) -> Vec<PathBuf> {
        let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_appears_whole_and_replaces_its_like() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("runs/x");
        for text in ["one", "two"] {
            publish(&target, &["a"], fill(text)).unwrap();
            assert_eq!(fs::read_to_string(target.join("a")).unwrap(), text);
            assert_eq!(names(&home.path().join("runs")), std::slice::from_ref(&target));
        }
    }

    #[test]
    fn a_failure_leaves_what_was_there_and_no_litter() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("x");
        publish(&target, &["a"], fill("one")).unwrap();
        let failure = publish(&target, &["a"], |folder| {
            fill("two")(folder)?;
            Err(Error::data("no room"))
        });
        assert_eq!(failure.unwrap_err().to_string(), "no room");
        assert_eq!(fs::read_to_string(target.join("a")).unwrap(), "one");
        assert_eq!(names(home.path()), [target]);
    }

    #[test]
    fn what_we_did_not_write_is_not_replaced() {
        let home = tempfile::tempdir().unwrap();
        let target = home.path().join("x");
        fs::create_dir(&target).unwrap();
        fs::write(target.join("thesis.tex"), "years").unwrap();
        let error = publish(&target, &["a"], fill("one")).unwrap_err();
        assert!(error.to_string().contains("thesis.tex"), "{error}");
        let file = home.path().join("file");
        fs::write(&file, "years").unwrap();
        assert!(publish(&file, &["a"], fill("one")).is_err());
        assert_eq!(names(home.path()), [file.clone(), target.clone()]);
        assert_eq!(fs::read_to_string(file).unwrap(), "years");
        assert_eq!(names(&target), [target.join("thesis.tex")]);
        assert!(publish(Path::new("/"), &["a"], fill("one")).is_err());
    }

    #[test]
    fn a_replacement_that_was_killed_between_its_renames_is_undone() {
        let home = tempfile::tempdir().unwrap();
        for (name, text) in [(".tmp-old-x", "old"), (".tmp-x-123", "unfinished"), (".tmp-old-y", "old"), ("y", "new")] {
            fs::create_dir(home.path().join(name)).unwrap();
            fill(text)(&home.path().join(name)).unwrap();
        }
        recover(home.path()).unwrap();
        assert_eq!(names(home.path()), [home.path().join("x"), home.path().join("y")]);
        assert_eq!(fs::read_to_string(home.path().join("x/a")).unwrap(), "old");
        assert_eq!(fs::read_to_string(home.path().join("y/a")).unwrap(), "new");
    }
}
