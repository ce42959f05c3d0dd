//! Patterns that name many files: `*`, `?`, `[a-z]` and `**`.
//!
//! `*` and `?` stay within one folder and, like a shell's, do not match the dot of a hidden file; `**` as a whole part
//! stands for any number of folders, and at the end for everything in them. A pattern is matched part by part, whether
//! the names come from a folder or from an object store's listing. Used by `store`.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Returns true if a name has the marks of a pattern.
pub(super) fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// The folder before the first part with a mark, and the rest: `data/a/*.parquet` → (`data/a/`, `*.parquet`).
pub(super) fn split(pattern: &str) -> (&str, &str) {
    let mark = pattern.find(['*', '?', '[']).unwrap_or(pattern.len());
    pattern.split_at(pattern[..mark].rfind('/').map_or(0, |slash| slash + 1))
}

/// Returns true if a name, `/` between its parts, fits a pattern.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let name: Vec<&str> = name.split('/').collect();
    parts_match(&parts(pattern), &name)
}

/// The files that fit a pattern, in no particular order. They begin as the pattern begins: relative stays relative.
pub(super) fn files(pattern: &str) -> io::Result<Vec<PathBuf>> {
    let (folder, rest) = split(pattern);
    let mut found = Vec::new();
    walk(Path::new(folder), &parts(rest), &mut found)?;
    Ok(found)
}

fn parts(pattern: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
    if parts.last() == Some(&"**") {
        parts.push("*");
    }
    parts
}

fn walk(folder: &Path, parts: &[&str], found: &mut Vec<PathBuf>) -> io::Result<()> {
    let Some((part, rest)) = parts.split_first() else { return Ok(()) };
    if *part == "**" {
        walk(folder, rest, found)?;
        for entry in entries(folder)? {
            // `file_type` does not follow links: a link to a folder above would never end.
            if entry.file_type()?.is_dir() && !is_hidden(&entry.file_name().to_string_lossy()) {
                walk(&folder.join(entry.file_name()), parts, found)?;
            }
        }
        return Ok(());
    }
    for entry in entries(folder)? {
        if !part_matches(part, &entry.file_name().to_string_lossy()) {
            continue;
        }
        let path = folder.join(entry.file_name());
        if !rest.is_empty() {
            walk(&path, rest, found)?;
        } else if path.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

/// What a folder holds; nothing if it is not one.
fn entries(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if folder.is_dir() { fs::read_dir(folder)?.collect() } else { Ok(Vec::new()) }
}

fn is_hidden(name: &str) -> bool {
    name.starts_with('.')
}

fn parts_match(pattern: &[&str], name: &[&str]) -> bool {
    match pattern.split_first() {
        None => name.is_empty(),
        // Folders only: the last part of a name is left for the rest of the pattern.
        Some((&"**", rest)) => {
            parts_match(rest, name) || (name.len() > 1 && !is_hidden(name[0]) && parts_match(pattern, &name[1..]))
        }
        Some((part, rest)) => {
            name.split_first().is_some_and(|(first, others)| part_matches(part, first) && parts_match(rest, others))
        }
    }
}

/// Returns true if one part of a name fits one part of a pattern.
fn part_matches(pattern: &str, name: &str) -> bool {
    if is_hidden(name) && !is_hidden(pattern) {
        return false;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut seen) = (0, 0);
    // Where to continue if what follows the last `*` does not fit: it takes one character more. Earlier stars need no
    // second look, so this is quadratic at worst.
    let mut star: Option<(usize, usize)> = None;
    while seen < name.len() {
        let step = if pattern.get(at) == Some(&'*') {
            star = Some((at, seen));
            at += 1;
            continue;
        } else {
            one_matches(&pattern[at..], name[seen])
        };
        if let Some(length) = step {
            at += length;
            seen += 1;
        } else if let Some((star_at, taken)) = star {
            star = Some((star_at, taken + 1));
            at = star_at + 1;
            seen = taken + 1;
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|&mark| mark == '*')
}

/// If the first item of a pattern fits a character: how long the item is.
fn one_matches(pattern: &[char], c: char) -> Option<usize> {
    match *pattern.first()? {
        '?' => Some(1),
        '[' => match class_matches(pattern, c) {
            Some((fits, length)) => fits.then_some(length),
            None => (c == '[').then_some(1), // never closed: an ordinary bracket
        },
        other => (other == c).then_some(1),
    }
}

/// Returns true if a class `[a-z_]` or `[!a-z_]` has the character, and the length of the class; `None` if it is not
/// closed.
fn class_matches(pattern: &[char], c: char) -> Option<(bool, usize)> {
    let negated = matches!(pattern.get(1), Some('!' | '^'));
    let first = if negated { 2 } else { 1 };
    // A bracket in first place is a member: `[]]`.
    let close = (first + 1..pattern.len()).find(|&i| pattern[i] == ']')?;
    let (mut i, mut has) = (first, false);
    while i < close {
        if pattern[i + 1] == '-' && i + 2 < close {
            has |= (pattern[i]..=pattern[i + 2]).contains(&c);
            i += 3;
        } else {
            has |= pattern[i] == c;
            i += 1;
        }
    }
    Some((has != negated, close + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_mean_what_they_mean_in_a_shell() {
        for (pattern, name, fits) in [
            ("*.parquet", "a.parquet", true),
            ("*.parquet", "a.parquet.tmp", false),
            ("*.parquet", ".hidden.parquet", false),
            (".h*", ".hidden", true),
            ("a*b*c", "a-bb-b-c", true),
            ("a*b*c", "a-bb-b-", false),
            ("train-?.bin", "train-1.bin", true),
            ("train-?.bin", "train-12.bin", false),
            ("train-[0-3].bin", "train-2.bin", true),
            ("train-[0-3].bin", "train-4.bin", false),
            ("train-[!0-3].bin", "train-4.bin", true),
            ("x[]-]", "x]", true),
            ("x[]-]", "x-", true),
            ("x[ab", "x[ab", true),
            ("*/b", "a/b", true),
            ("*", "a/b", false),
            ("**/b", "b", true),
            ("**/b", "a/x/b", true),
            ("a/**/b*", "a/c/d/b1", true),
            ("a/**", "a/c/d", true),
            ("a/**/*", "a/c/d", true),
            ("a/**/*", "a/.git/d", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_begins_where_its_first_mark_is() {
        assert_eq!(split("data/a/*.parquet"), ("data/a/", "*.parquet"));
        assert_eq!(split("data/a*/b"), ("data/", "a*/b"));
        assert_eq!(split("*.x"), ("", "*.x"));
        assert_eq!(split("/x?/y"), ("/", "x?/y"));
    }

    #[test]
    fn a_folder_and_a_listing_give_the_same_files() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a.txt", "b.txt", "c.bin", "one/a.txt", "one/two/b.txt", "one/two/c.bin", ".hid/a.txt"];
        for name in names {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let root = folder.path().to_str().unwrap();
        for pattern in ["*.txt", "**/*.txt", "**/*", "one/*/*", "o*/**/b.txt", "[ab].txt", "*/a.txt", "*", "**", "x/*"]
        {
            let mut listed: Vec<String> =
                names.iter().filter(|name| matches(pattern, name)).map(|name| format!("{root}/{name}")).collect();
            let mut found: Vec<String> = files(&format!("{root}/{pattern}"))
                .unwrap()
                .into_iter()
                .map(|path| path.to_str().unwrap().to_string())
                .collect();
            listed.sort();
            found.sort();
            assert_eq!(found, listed, "{pattern}");
        }
    }
}
