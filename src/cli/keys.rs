//! `anemone keys`: every key of a pipeline and of a comparison, with type, default and meaning.
//!
//! The lists are those that files are read by, and defaults are asked of the reader, so what is printed is what holds.
//! `--markdown` is the page docs/REFERENCE.md, which a test compares byte for byte.

use std::fmt::Write;

use clap::Args;

use super::output::{Outcome, say};
use crate::compare::keys::TABLES as COMPARISON_TABLES;
use crate::error::{Error, Result};
use crate::pipeline::spec::{Key, PIPELINE_TABLES, Table, default_words};
use crate::pipeline::suggest::{list, nearest};

/// Every key of pipeline and comparison files: type, default and meaning.
#[derive(Args, Clone, Debug)]
pub(super) struct KeysArgs {
    /// A section or a key, such as `learn` or `learn.step`; everything if left out
    #[arg(conflicts_with = "markdown")]
    path: Option<String>,
    /// The whole as a Markdown page
    #[arg(long)]
    markdown: bool,
}

pub(super) fn run(args: &KeysArgs) -> Outcome {
    let text = match &args.path {
        Some(path) => some(path.trim_matches(['[', ']']))?,
        None if args.markdown => markdown()?,
        None => tables().map(section_text).collect::<Result<Vec<_>>>()?.join("\n"),
    };
    say(text.trim_end())
}

fn tables() -> impl Iterator<Item = &'static Table> {
    PIPELINE_TABLES.into_iter().chain(COMPARISON_TABLES)
}

/// What is at one path: a key, a section, or, as `learn.step`, both.
fn some(path: &str) -> Result<String> {
    let mut found = Vec::new();
    for table in tables() {
        for key in table.keys.iter().filter(|key| table.path_of(key) == path) {
            found.push(key_text(table, key)?);
        }
    }
    for table in tables().filter(|table| !path.is_empty() && (table.path == path || is_named(table.path, path))) {
        found.push(section_text(table)?);
    }
    if found.is_empty() {
        let keys = tables().flat_map(|table| table.keys.iter().map(|key| table.path_of(key)));
        let known: Vec<String> = tables().map(|table| table.path.to_string()).chain(keys).collect();
        let hint = match nearest(path, known.iter().map(String::as_str).filter(|known| !known.is_empty())) {
            Some(known) => format!("did you mean `{known}`?"),
            None => format!("there are {}", list(tables().map(|table| table.path).filter(|path| !path.is_empty()))),
        };
        return Err(Error::option(format!("{path}: unknown key or section; {hint}")));
    }
    Ok(found.join("\n"))
}

/// Returns true if `contender` is meant by a path whose table is `contender.NAME`.
fn is_named(table: &str, path: &str) -> bool {
    table.strip_suffix(".NAME") == Some(path)
}

fn section_text(table: &Table) -> Result<String> {
    let mut text = match table.path {
        "" => String::new(),
        path => format!("[{path}]\n"),
    };
    text += &format!("{}\n\n", plain(table.about));
    for key in table.keys {
        text += &key_text(table, key)?;
    }
    Ok(text)
}

fn key_text(table: &Table, key: &Key) -> Result<String> {
    let mut text = format!("{}\n    {}\n", table.path_of(key), plain(key.about));
    text += &format!("    type     {}\n", plain(&key.values.words()));
    text += &format!("    default  {}\n", plain(&default_words(table, key)?));
    let owners = (table.owners)(key.name);
    if !owners.is_empty() {
        text += &format!("    for      {}\n", list(owners));
    }
    Ok(text)
}

/// Without the marks of Markdown.
fn plain(text: &str) -> String {
    text.replace('`', "")
}

const INTRODUCTION: &str = "\
# Every key of a file

<!-- Made by `cargo run -- keys --markdown > docs/REFERENCE.md`; a test holds it against the program. -->

What a pipeline and a comparison may say, with what holds where it is not said. `anemone keys` prints the same,
`anemone keys learn.step` one key. A key that is not here is refused with the nearest one that is. `--set
learn.step=0.3` sets any key of a pipeline for one run. In words `-` and `_` are the same; sizes have a unit
(`\"64MiB\"`, `\"500MB\"`) or are bytes. `anemone inspect FILE.toml` prints a pipeline with its defaults filled in.
";

fn markdown() -> Result<String> {
    let mut page = INTRODUCTION.to_string();
    page += "\n## Pipelines\n\nIn the order of the data. Only `[source]` must be there.\n";
    PIPELINE_TABLES.iter().try_for_each(|table| section_markdown(table, &mut page))?;
    page += "\n## Comparisons\n\nRead by `anemone compare`; the README shows a file.\n";
    COMPARISON_TABLES.iter().try_for_each(|table| section_markdown(table, &mut page))?;
    Ok(page)
}

/// A paragraph in lines of at most 120 columns.
fn wrapped(text: &str) -> String {
    const COLUMNS: usize = 120;
    let (mut lines, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let width = word.chars().count();
        match column {
            0 => {}
            _ if column + 1 + width > COLUMNS => {
                lines.push('\n');
                column = 0;
            }
            _ => {
                lines.push(' ');
                column += 1;
            }
        }
        lines += word;
        column += width;
    }
    lines
}

fn section_markdown(table: &Table, page: &mut String) -> Result<()> {
    let has_owners = table.keys.iter().any(|key| !(table.owners)(key.name).is_empty());
    let (heading, rule) = match has_owners {
        true => ("| key | type | default | for | meaning |", "|---|---|---|---|---|"),
        false => ("| key | type | default | meaning |", "|---|---|---|---|"),
    };
    let title = if table.path.is_empty() { "At the top".to_string() } else { format!("`[{}]`", table.path) };
    let about = wrapped(table.about);
    let _ = write!(page, "\n### {title}\n\n{about}\n\n{heading}\n{rule}\n"); // a string takes everything
    for key in table.keys {
        let owners = match (has_owners, (table.owners)(key.name)) {
            (false, _) => None,
            (true, owners) if owners.is_empty() => Some("all".to_string()),
            (true, owners) => Some(owners.join(", ")),
        };
        let cells = [format!("`{}`", key.name), key.values.words().into_owned(), default_words(table, key)?];
        let cells = cells.into_iter().chain(owners).chain([key.about.to_string()]);
        let cells: Vec<String> = cells.map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_says_type_default_and_meaning() {
        for table in tables() {
            assert!(!table.about.is_empty(), "{}", table.path);
            for key in table.keys {
                let default = default_words(table, key).unwrap();
                for words in [&key.values.words(), default.as_str(), key.about] {
                    assert!(!words.trim().is_empty() && words.trim() == words, "{}: `{words}`", table.path_of(key));
                }
                assert!(!key.about.ends_with('.') && key.about.len() < 110, "{}", table.path_of(key));
            }
        }
    }

    #[test]
    fn a_path_finds_its_key_its_section_or_both() {
        assert!(some("batch.rows").unwrap().starts_with("batch.rows\n    Rows in a batch\n    type     whole number"));
        let both = some("learn.step").unwrap();
        assert!(
            both.contains("\"counts\" } (anemone), 0.1 (mini_batch_em)") && both.contains("learn.step.horizon"),
            "{both}"
        );
        assert!(some("contender").unwrap().contains("contender.NAME.like"));
        assert!(some("name").unwrap().contains("the name of the file"));
    }
}
