//! What holds where a key is not written, found out by reading pipelines that do not write it.
//!
//! A default is said once, in the code that reads its section. Here the shortest pipelines of every model, kind,
//! format, optimizer and schedule are read, and what they resolve to is looked up. The same pipelines serve the tests,
//! which hold types and ranges of `tables` against what the reader accepts and says.

use serde_json::Value;

use super::document::{Document, inline};
use super::key::{Key, Table, Unset};
use super::{PipelineSpec, circuit, decode, learn, source};
use crate::error::Result;
use crate::optim::OPTIMIZERS;
use crate::pipeline::suggest::list;

/// Where nothing depends on a choice.
const NOBODY: &str = "";

/// What holds where a key is not written, for people: ``` `0.4` (anemone), `0.1` (mini_batch_em) ```.
pub(crate) fn default_words(table: &Table, key: &Key) -> Result<String> {
    let values = || -> Result<String> {
        let found = defaults(table, key)?;
        let words = found.iter().map(|(value, owners)| match found.len() {
            1 => format!("`{value}`"),
            _ => format!("`{value}` ({})", list(owners.iter().copied())),
        });
        Ok(words.collect::<Vec<_>>().join(", "))
    };
    Ok(match key.unset {
        Unset::Default => values()?,
        Unset::DefaultIf(condition) => format!("{} {condition}", values()?),
        Unset::Value(value) => format!("`{value}`"),
        Unset::Means(words) | Unset::Derived(words) => words.to_string(),
        Unset::Required => "required".to_string(),
    })
}

/// The values that the reader gives to a key that is not written, each with those choices for which it does.
fn defaults(table: &Table, key: &Key) -> Result<Vec<(String, Vec<&'static str>)>> {
    let mut found: Vec<(String, Vec<&'static str>)> = Vec::new();
    for (owner, document) in shortest_with(table, key)? {
        let resolved = serde_json::to_value(PipelineSpec::from_document(&document)?).unwrap_or_default();
        let path = table.path_of(key);
        let value = path.split('.').try_fold(&resolved, |value: &Value, part| value.get(part));
        let Some(value) = value.filter(|_| document.get(&path).is_none()).map(inline) else { continue };
        match found.iter_mut().find(|(known, _)| *known == value) {
            Some((_, owners)) if owners.contains(&owner) => {}
            Some((_, owners)) => owners.push(owner),
            None => found.push((value, vec![owner])),
        }
    }
    Ok(found)
}

/// The shortest pipelines in which a key has a meaning, each with the choice it stands for.
fn shortest_with(table: &Table, key: &Key) -> Result<Vec<(&'static str, Document)>> {
    let owners = (table.owners)(key.name);
    let all = shortest(table).into_iter().filter(|(owner, _)| owners.is_empty() || owners.contains(owner));
    all.map(|(owner, text)| Ok((owner, Document::parse(&text, "defaults")?))).collect()
}

/// Pipelines that write as little as possible, one for each choice that the keys of a section depend on.
fn shortest(table: &Table) -> Vec<(&'static str, String)> {
    const SYNTHETIC: &str = "[source.synthetic]\n";
    let files = |format: &'static str| {
        let files = if format == source::Format::Arrow.name() { source::STANDARD_INPUT } else { "a" };
        (format, format!("files = \"{files}\"\nformat = \"{format}\"\n"))
    };
    let formats = || source::FORMATS.iter().map(|(name, _)| files(name));
    match table.path {
        "source" => formats().map(|(name, files)| (name, format!("[source]\n{files}"))).collect(),
        "validate" => {
            let held_out = formats().map(|(name, files)| (name, format!("[source]\n{files}[validate]\n{files}")));
            held_out.chain([("synthetic", format!("{SYNTHETIC}[validate]\n"))]).collect()
        }
        "decode" => {
            let kind = |name: &str, more: &str| {
                format!("[source]\nfiles = \"a.parquet\"\n[decode]\nkind = \"{name}\"\n{more}")
            };
            let image = decode::DecodeKind::Image.name();
            let kinds = decode::KINDS.iter().map(|(name, ..)| match *name == image {
                true => (*name, kind(name, "patch = 4\n")),
                false => (*name, kind(name, "")),
            });
            kinds.chain([(image, kind(image, "size = [4, 4]\ncolor = \"grey\"\n"))]).collect()
        }
        "circuit" => {
            let models = circuit::MODELS.iter().map(|(name, _)| {
                let path = if *name == "file" { "path = \"a.json\"\n" } else { "" };
                (*name, format!("{SYNTHETIC}[circuit]\nmodel = \"{name}\"\n{path}"))
            });
            models.collect()
        }
        "learn" => {
            let optimizers = OPTIMIZERS.iter();
            optimizers.map(|name| (*name, format!("{SYNTHETIC}[learn]\noptimizer = \"{name}\"\n"))).collect()
        }
        "learn.step" => {
            let schedules = learn::SCHEDULES.iter().map(|(name, needed, others)| {
                let keys: String = needed.iter().chain(*others).map(|key| format!("{key} = 1\n")).collect();
                (*name, format!("{SYNTHETIC}[learn.step]\nschedule = \"{name}\"\n{keys}"))
            });
            schedules.collect()
        }
        "columns.NAME" => vec![(NOBODY, "[source]\nfiles = \"a.parquet\"\n[columns.NAME]\n".to_string())],
        "source.kafka" => vec![(NOBODY, "[source.kafka]\nbrokers = \"a:9092\"\ntopic = \"t\"\n".to_string())],
        _ => vec![(NOBODY, SYNTHETIC.to_string())],
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::key::Accepted;
    use super::super::tables;
    use super::*;
    use crate::source::synthetic;

    /// Every key with its table and the pipelines that it has a meaning in.
    fn every_key() -> Vec<(&'static Table, &'static Key, Vec<Document>)> {
        let mut all = Vec::new();
        for table in tables::ALL {
            for key in table.keys {
                let documents = shortest_with(table, key).unwrap();
                assert!(!documents.is_empty(), "{}: no pipeline has it", table.path_of(key));
                all.push((table, key, documents.into_iter().map(|(_, document)| document).collect()));
            }
        }
        all
    }

    /// What the reader says to a value; `None` if it takes it.
    fn complaint(document: &Document, path: &str, value: Value) -> Option<String> {
        let mut document = document.clone();
        document.set(path, value, "--set").unwrap();
        match PipelineSpec::from_document(&document) {
            Err(error) => Some(error.to_string()),
            // Its ranges are its own, and looked at when it is opened.
            Ok(spec) => {
                let refused = spec.source.synthetic.and_then(|spec| synthetic::check(&spec).err());
                refused.map(|error| format!("source.synthetic.{error}"))
            }
        }
    }

    #[test]
    fn every_shortest_pipeline_is_understood() {
        for table in tables::ALL {
            for (owner, text) in shortest(table) {
                if let Err(error) = PipelineSpec::parse(&text, "p.toml") {
                    panic!("{} {owner}: {error}\n{text}", table.path);
                }
            }
        }
    }

    #[test]
    fn every_key_of_every_choice_is_documented_once() {
        let names = |table: &Table| table.keys.iter().map(|key| key.name).collect::<Vec<_>>();
        for table in tables::ALL {
            let mut names = names(table);
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), table.keys.len(), "{}: a key is there twice", table.path);
        }
        let own_keys = circuit::MODELS.iter().flat_map(|(_, keys)| keys.iter().copied()).chain(circuit::COMMON);
        own_keys.for_each(|key| assert!(names(&tables::CIRCUIT).contains(&key), "circuit.{key}"));
        for key in OPTIMIZERS.iter().flat_map(|name| learn::default_options(name).keys().cloned().collect::<Vec<_>>()) {
            assert!(names(&tables::LEARN).contains(&key.as_str()), "learn.{key}");
        }
        let kinds = decode::KINDS.iter().flat_map(|(.., keys)| keys.iter());
        kinds.for_each(|key| assert!(names(&tables::DECODE).contains(key), "decode.{key}"));
    }

    #[test]
    fn the_documented_default_is_what_an_unwritten_key_means() {
        for (table, key, documents) in every_key() {
            let path = table.path_of(key);
            let found = defaults(table, key).unwrap();
            match key.unset {
                Unset::Default | Unset::DefaultIf(_) => assert!(!found.is_empty(), "{path} has no default"),
                Unset::Means(_) => assert!(found.is_empty(), "{path} has a default: {found:?}"),
                Unset::Value(value) => {
                    assert!(found.is_empty() || found[0].0 == value, "{path}: {found:?}");
                    let value = super::super::parse_value(value).unwrap();
                    let same = documents.iter().any(|document| {
                        let mut without = document.clone();
                        without.remove(&path);
                        let (mut with, unset) = (without.clone(), PipelineSpec::from_document(&without));
                        with.set(&path, value.clone(), "--set").unwrap();
                        unset.is_ok() && unset == PipelineSpec::from_document(&with)
                    });
                    assert!(same, "{path}: {value} is not what an unwritten key means");
                }
                Unset::Required => {
                    for mut document in documents {
                        document.remove(&path);
                        let error = PipelineSpec::from_document(&document).unwrap_err().to_string();
                        assert!(error.contains(&format!("{path}: is missing")), "{path}: {error}");
                    }
                }
                Unset::Derived(_) => {}
            }
        }
    }

    #[test]
    fn documented_types_and_ranges_are_those_of_the_reader() {
        for (table, key, documents) in every_key() {
            let path = table.path_of(key);
            let says = |value: Value, words: &str| {
                let said: Vec<_> = documents.iter().map(|d| complaint(d, &path, value.clone())).collect();
                let heard = said.iter().flatten().any(|said| said.contains(&path) && said.contains(words));
                assert!(heard, "{path} = {value}: no `{words}` in {said:?}");
            };
            // In one of the pipelines at least: other keys may forbid what the range allows.
            let takes = |value: Value| {
                let said: Vec<_> = documents.iter().map(|d| complaint(d, &path, value.clone())).collect();
                let is_range = |said: &Option<String>| said.as_ref().is_some_and(|said| said.contains("must be "));
                assert!(!said.iter().all(is_range), "{path} = {value}: {said:?}");
            };
            match key.values {
                Accepted::Text => says(json!(3), "expected a text in quotes"),
                Accepted::Texts => says(json!(3), "expected a text in quotes, or a list of them"),
                Accepted::Truth => says(json!(3), "expected true or false"),
                Accepted::Whole(least) => {
                    says(json!("x"), "expected a whole number");
                    says(json!(least as i64 - 1), &format!("must be at least {least}"));
                    takes(json!(least));
                }
                Accepted::Between(least, most) => {
                    says(json!("x"), "expected a whole number");
                    let whole = ["decode.levels", "source.synthetic.cats"].contains(&path.as_str());
                    let words = |end: String| if whole { format!("must be in {least}..={most}") } else { end };
                    says(json!(least - 1), &words(format!("must be at least {least}")));
                    says(json!(most + 1), &words(format!("must be at most {most}")));
                    takes(json!(least));
                    takes(json!(most));
                }
                Accepted::Number(must) => {
                    says(json!("x"), "expected a number");
                    says(json!(-1.0), &format!("must be {must}"));
                }
                Accepted::Length(must) => {
                    for none in [json!("x"), json!("3 weeks"), json!(-1), json!(true)] {
                        says(none, "expected a number of updates, or a text such as \"10 epochs\"");
                    }
                    match must {
                        "0 or more" => takes(json!("0 epochs")),
                        _ => says(json!("0 epochs"), &format!("= \"0 epochs\": must be {must}")),
                    }
                    [json!(1), json!(0.5), json!("1e4 rows")].into_iter().for_each(takes);
                }
                Accepted::Size(least) => {
                    says(json!("x"), "expected a size");
                    says(json!(least - 1), &format!("must be at least {least} bytes"));
                    takes(json!(least));
                }
                Accepted::Word(words) => {
                    let all = list(words.iter().copied());
                    says(json!("quite another word"), &format!("unknown; there are {all}"));
                    for word in words {
                        let unknown =
                            |d: &Document| complaint(d, &path, json!(word)).is_some_and(|s| s.contains("unknown;"));
                        assert!(!documents.iter().any(unknown), "{path} = {word}");
                    }
                }
                Accepted::Counts(None) => says(json!(3), "expected a list of whole numbers"),
                Accepted::Counts(Some(length)) => {
                    says(json!([1]), &format!("expected a list of {length} whole numbers"))
                }
                Accepted::Other(_) => {}
            }
        }
    }
}
