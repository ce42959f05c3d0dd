//! The walls of the house: imports point down, and an outside crate has one door.
//!
//! Both lists are in docs/ARCHITECTURE.md and are read from there, so that the page cannot be wrong. Code of tests is
//! left out: it may reach wherever it likes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Dependencies without a door: words of the language, used wherever they are needed.
const EVERYWHERE: [&str; 9] =
    ["async_channel", "bytes", "libc", "metrics", "rayon", "serde", "serde_json", "sha2", "tokio"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap()
}

/// The paragraph that begins with these words, as one line.
fn paragraph(page: &str, words: &str) -> String {
    let start = page.find(words).unwrap_or_else(|| panic!("docs/ARCHITECTURE.md does not say {words:?}"));
    page[start..].split("\n\n").next().unwrap().replace('\n', " ")
}

/// Which floor each module of `src` is on, from 0 at the bottom.
fn floors(page: &str) -> BTreeMap<String, usize> {
    let said = page.find("Imports point down this list, never up:").expect("docs/ARCHITECTURE.md has the order");
    let rows: Vec<&str> = page[said..].split("\n\n").nth(1).unwrap().lines().rev().collect();
    let of_row =
        |(floor, row): (usize, &&str)| row.split(',').map(|name| (name.trim().to_string(), floor)).collect::<Vec<_>>();
    rows.iter().enumerate().flat_map(of_row).collect()
}

/// Crates and the files or folders of `src` that may name them.
fn doors(page: &str) -> BTreeMap<String, Vec<String>> {
    let text = paragraph(page, "An outside crate has one door");
    let mut doors: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut names, mut is_listed) = (Vec::new(), false);
    for word in text.split('`').skip(1).step_by(2) {
        if word.contains('/') {
            names.iter().for_each(|name: &String| doors.entry(name.clone()).or_default().push(word.to_string()));
            is_listed = true;
        } else {
            if std::mem::take(&mut is_listed) {
                names.clear();
            }
            names.push(word.replace('-', "_"));
        }
    }
    doors
}

/// The Rust files of `src` that ship, by their path below it, without comments and unit tests.
fn shipped() -> Vec<(String, String)> {
    let src = root().join("src");
    let mut paths = Vec::new();
    find(&src, &mut paths);
    paths.sort();
    let texts: Vec<(PathBuf, String)> =
        paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect();
    let mut tests = BTreeSet::new();
    for (path, text) in &texts {
        let folder = match path.file_stem().unwrap().to_str().unwrap() {
            "mod" | "lib" | "main" => path.parent().unwrap().to_path_buf(),
            _ => path.with_extension(""),
        };
        for after in text.split("#[cfg(test)]\n").skip(1) {
            if let Some(name) = after.lines().next().and_then(|line| line.strip_prefix("mod ")?.strip_suffix(';')) {
                tests.extend([folder.join(name).with_extension("rs"), folder.join(name).join("mod.rs")]);
            }
        }
    }
    let below = |path: &Path| path.strip_prefix(&src).unwrap().to_str().unwrap().to_string();
    let texts = texts.into_iter().filter(|(path, _)| !tests.contains(path));
    texts.map(|(path, text)| (below(&path), code(&text))).collect()
}

fn find(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// A file without comments, and without the unit tests at its end.
fn code(text: &str) -> String {
    let shipped = text.find("\n#[cfg(test)]\nmod tests {").map_or(text, |end| &text[..end]);
    let without_comment = |line: &str| match line.find("//") {
        Some(at) if !line[..at].ends_with(':') => line[..at].to_string(),
        _ => line.to_string(),
    };
    shipped.lines().map(without_comment).collect::<Vec<_>>().join("\n")
}

/// The module of `src` that a file belongs to.
fn module(path: &str) -> &str {
    path.split('/').next().unwrap().trim_end_matches(".rs")
}

/// Modules of `src` that a file names, by `crate::x` or within `crate::{x, y::z}`.
fn named_modules(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, words) in code.match_indices("crate::") {
        if code[..at].ends_with(is_word) || code[..at].ends_with('$') {
            continue; // another name that ends like this; a macro's own crate
        }
        let rest = &code[at + words.len()..];
        match rest.strip_prefix('{') {
            None => found.extend(first_word(rest)),
            Some(group) => {
                let (mut depth, mut starts) = (0, true);
                for (at, c) in group.char_indices() {
                    match c {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => starts = true,
                        c if starts && is_word(c) => {
                            found.extend(first_word(&group[at..]));
                            starts = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    found
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn first_word(text: &str) -> Option<String> {
    Some(text.chars().take_while(|&c| is_word(c)).collect::<String>()).filter(|word| !word.is_empty())
}

/// What a file names that is not below it. Modules of the lowest floor are words for everybody, themselves included.
fn upward(path: &str, code: &str, floors: &BTreeMap<String, usize>) -> Vec<String> {
    let own = module(path);
    if matches!(path, "lib.rs" | "main.rs") {
        return Vec::new(); // the front door shows every floor
    }
    let Some(floor) = floors.get(own) else {
        return vec![format!("{path}: `{own}` is on no floor; docs/ARCHITECTURE.md has to give it one")];
    };
    let is_below = |other: &String| match floors.get(other) {
        Some(0) | None => true, // no module: an item of the root
        Some(of_other) => other == own || of_other < floor,
    };
    let above = named_modules(code).into_iter().filter(|other| !is_below(other));
    above.map(|other| format!("{path} imports `{other}`, which is not below it")).collect()
}

/// Crates that a file names and is no door of.
fn second_doors(path: &str, code: &str, doors: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let is_door = |door: &String| path == door || door.ends_with('/') && path.starts_with(door.as_str());
    let shut = doors.iter().filter(|(name, at)| names_crate(code, name) && !at.iter().any(is_door));
    shut.map(|(name, at)| format!("{path} names `{name}`, whose door is {}", at.join(", "))).collect()
}

/// Whether code names a crate: `name::…`, not as a part of a path, or `use name;`.
fn names_crate(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let starts = !before.ends_with(|c: char| is_word(c) || c == ':' || c == '.' || c == '"');
        let used = before.ends_with("use ") && (after.starts_with(';') || after.starts_with(" as "));
        starts && (after.starts_with("::") || used)
    })
}

#[test]
fn imports_point_down() {
    let floors = floors(&page());
    let files = shipped();
    assert!(files.len() > 100 && floors.len() > 10, "{} files, {floors:?}", files.len());
    for name in floors.keys() {
        assert!(files.iter().any(|(path, _)| module(path) == name), "docs/ARCHITECTURE.md: there is no `{name}`");
    }
    let found: Vec<String> = files.iter().flat_map(|(path, code)| upward(path, code, &floors)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn an_outside_crate_has_one_door() {
    let doors = doors(&page());
    let files = shipped();
    let found: Vec<String> = files.iter().flat_map(|(path, code)| second_doors(path, code, &doors)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    for (name, at) in &doors {
        for door in at {
            let mut behind = files.iter().filter(|(path, _)| path == door || path.starts_with(door.as_str()));
            assert!(behind.any(|(_, code)| names_crate(code, name)), "{door} is no door to `{name}`");
        }
    }
}

#[test]
fn every_dependency_has_a_door_or_none_on_purpose() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let doors = doors(&page());
    for name in manifest["dependencies"].as_table().unwrap().keys().map(|name| name.replace('-', "_")) {
        let (has_door, is_common) = (doors.contains_key(&name), EVERYWHERE.contains(&name.as_str()));
        assert!(has_door != is_common, "`{name}`: docs/ARCHITECTURE.md names its door, or `EVERYWHERE` has it");
    }
}

#[test]
fn what_is_planted_is_found() {
    let page = page();
    let floors = floors(&page);
    for (path, code, other) in [
        ("circuit/mod.rs", "use crate::learner::Learner;", "learner"),
        ("backend/cpu/mod.rs", "fn f() -> crate::optim::Rule {}", "optim"),
        ("data/batch.rs", "use crate::{error::{Error, Result}, circuit::Circuit};", "circuit"),
        ("plan/mod.rs", "use crate::structure::hmm;", "structure"), // on the same floor
        ("batcher.rs", "pub(in crate::pipeline) fn f() {}", "pipeline"),
    ] {
        assert_eq!(upward(path, code, &floors), [format!("{path} imports `{other}`, which is not below it")]);
    }
    for (path, code) in [
        ("learner/mod.rs", "use crate::circuit::{self, Circuit};\nuse crate::{Error, optim::Rule};"),
        ("files.rs", "use crate::error::Error;"),
        ("optim/adam.rs", "use crate::optim::Rule; $crate::cli::x!(); anticrate::cli"),
        ("lib.rs", "pub use crate::cli::run;"),
    ] {
        assert!(upward(path, code, &floors).is_empty(), "{path}");
    }
    assert!(upward("attic.rs", "", &floors)[0].contains("no floor"));

    let doors = doors(&page);
    for (path, code, name) in [
        ("pipeline/run.rs", "use toml::Table;", "toml"),
        ("source/jsonl.rs", "let map = memmap2::Mmap::map(&file);", "memmap2"),
        ("cli/train.rs", "use cudarc as driver;", "cudarc"),
        ("decode/text.rs", "use tiktoken_rs::CoreBPE;", "tiktoken_rs"),
    ] {
        let found = second_doors(path, code, &doors);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{path} names `{name}`")), "{path}: {found:?}");
    }
    for (path, code) in [
        ("backend/cuda/step.rs", "use cudarc::driver::CudaStream;"),
        ("cli/view.rs", "use crate::decode::image::ImageDecoder; let image = decode::image::x();"),
    ] {
        assert!(second_doors(path, code, &doors).is_empty(), "{path}");
    }
    assert!(
        !code("// use toml::Table;\nlet url = \"http://x\";\n#[cfg(test)]\nmod tests { toml::x }").contains("toml")
    );
}
