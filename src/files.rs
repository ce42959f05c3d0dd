//! Small files that appear whole or not at all.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// Writes a small file whole or not at all: beside it first, under its name with `.tmp` behind, and renamed.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    let done = fs::write(&beside, text).and_then(|()| fs::rename(&beside, path));
    if done.is_err() {
        let _ = fs::remove_file(&beside); // a full disk wants the room back; the first failure is the one to tell
    }
    done.map_err(|e| Error::io(&path.display().to_string(), &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.html");
        write_whole(&path, "before").unwrap();
        write_whole(&path, "after").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "after");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_cannot_be_written_is_named_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a.html");
        fs::create_dir(&folder).unwrap();
        let error = write_whole(&folder, "text").unwrap_err();
        assert!(error.to_string().contains("a.html"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
