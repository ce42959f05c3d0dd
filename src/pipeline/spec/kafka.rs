//! `[source.kafka]`: a topic, and how it is read.
//!
//! The resolved pipeline is written into the run folder, so no secret may be in it: a password that is written out is
//! refused, and `${NAME}` is kept as it is until the topic is opened.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::document::Document;
use super::section::Section;
use super::source::SourceSpec;
use super::tables;
use crate::error::{Error, Result};
use crate::pipeline::suggest::list;
use crate::source::kafka::spec::{
    DEFAULT_TIMEOUT, KafkaSpec, MergeOrder, MessageFormat, OWN_OPTIONS, OnGap, StartAt, is_secret,
};
use crate::source::token_width::TokenWidth;

/// What a message holds, by its name in files, with the keys of `[source]` that say how it is read.
const VALUES: [(&str, MessageFormat, &[&str]); 4] = [
    ("json", MessageFormat::Json, &["column", "columns"]),
    ("text", MessageFormat::Text, &[]),
    ("ids", MessageFormat::Ids, &["tokens"]),
    ("arrow", MessageFormat::Arrow, &["column", "columns"]),
];

/// A source that is a topic; `source` is the section around it.
pub(super) fn read(document: &Document, source: Section<'_>) -> Result<SourceSpec> {
    for key in ["files", "synthetic"] {
        if source.has(key) {
            return Err(source.refuse(key, "has no meaning beside [source.kafka]; keep one of them"));
        }
    }
    let section = Section::open(document, "source.kafka")?
        .only(tables::KAFKA.keys, |key| tables::SOURCE.key(key).map(|_| "source".to_string()))?;
    let required = |key: &str, what: &str| section.refuse(key, format!("is missing: say {what}"));
    let values = VALUES.map(|(name, value, _)| (name, value));
    let kafka = KafkaSpec {
        brokers: section.texts("brokers")?.ok_or_else(|| required("brokers", "where brokers are, host:port"))?,
        topic: match section.text("topic")?.ok_or_else(|| required("topic", "which topic to read"))? {
            topic if topic.is_empty() => return Err(section.refuse("topic", "must be the name of a topic")),
            topic => topic,
        },
        partitions: read_partitions(section)?,
        start: match section.text("start")? {
            None => StartAt::Earliest,
            Some(text) => StartAt::parse(&text).map_err(|must| section.refuse("start", must))?,
        },
        value: section.choice("value", &values)?.unwrap_or_default(),
        order: section
            .choice("order", &[("arrival", MergeOrder::Arrival), ("round-robin", MergeOrder::RoundRobin)])?
            .unwrap_or_default(),
        on_gap: section.choice("on_gap", &[("fail", OnGap::Fail), ("skip", OnGap::Skip)])?.unwrap_or_default(),
        group: match section.text("group")? {
            Some(group) if group.is_empty() => return Err(section.refuse("group", "must be the name of a group")),
            group => group,
        },
        timeout: section.number("timeout", |s| s > 0.0 && s <= 86_400.0, "positive")?.unwrap_or(DEFAULT_TIMEOUT),
        options: read_options(section)?,
    };
    let (name, _, known) = VALUES[VALUES.iter().position(|(_, value, _)| *value == kafka.value).unwrap_or(0)];
    if let Some(key) = source.keys().find(|key| *key != "kafka" && !known.contains(key)) {
        let takes =
            if known.is_empty() { "take no key".to_string() } else { format!("take {}", list(known.iter().copied())) };
        return Err(source.refuse(key, format!("has no meaning for a topic whose messages are {name}, which {takes}")));
    }
    let (column, columns) = (source.text("column")?, source.texts("columns")?.unwrap_or_default());
    if column.is_some() && !columns.is_empty() {
        return Err(source.refuse("columns", "has no meaning beside column; keep one of them"));
    }
    let tokens = source.choice("tokens", &[("u16", TokenWidth::U16), ("u32", TokenWidth::U32)])?;
    let tokens = tokens.or((kafka.value == MessageFormat::Ids).then_some(TokenWidth::U16));
    Ok(SourceSpec { column, columns, tokens, kafka: Some(kafka), ..SourceSpec::default() })
}

fn read_partitions(section: Section<'_>) -> Result<Vec<i32>> {
    let Some(value) = section.value("partitions") else { return Ok(Vec::new()) };
    let expected = || section.refuse("partitions", "must be a list of numbers of partitions, from 0 on");
    let number = |item: &Value| item.as_u64().and_then(|number| i32::try_from(number).ok());
    let numbers = value.as_array().and_then(|items| items.iter().map(number).collect::<Option<Vec<i32>>>());
    let mut numbers = numbers.filter(|numbers| !numbers.is_empty()).ok_or_else(expected)?;
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

/// Options as they were written. A message never repeats a value: it may be a secret.
fn read_options(section: Section<'_>) -> Result<BTreeMap<String, String>> {
    let mut options = BTreeMap::new();
    let refuse = |text: String| Error::option(format!("{}: {text}", section.at("options")));
    match section.value("options") {
        None => {}
        Some(Value::Object(table)) => flatten("", table, &mut options)
            .map_err(|name| refuse(format!("`{name}` must be a text, a number, true or false")))?,
        Some(_) => return Err(refuse("must be a table: { \"security.protocol\" = \"sasl_ssl\", … }".into())),
    }
    for (name, value) in &options {
        if let Some((_, key)) = OWN_OPTIONS.iter().find(|(own, _)| own == name) {
            let instead =
                key.map_or_else(|| "it follows from the rest".into(), |key| format!("say source.kafka.{key}"));
            return Err(refuse(format!("`{name}` is not to be set here: {instead}")));
        }
        let is_variable = value.starts_with("${") && value.ends_with('}') && value.len() > 3;
        if is_secret(name) && !is_variable {
            return Err(refuse(format!(
                "`{name}` is a secret, and a pipeline is copied into the run folder: write \"${{NAME}}\" and set that \
                 variable of the environment"
            )));
        }
    }
    Ok(options)
}

/// `security.protocol = "ssl"` in a table of its own is a table in a table to TOML.
fn flatten(
    prefix: &str,
    table: &Map<String, Value>,
    into: &mut BTreeMap<String, String>,
) -> std::result::Result<(), String> {
    for (key, value) in table {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        let value = match value {
            Value::Object(table) => {
                flatten(&name, table, into)?;
                continue;
            }
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(truth) => truth.to_string(),
            _ => return Err(name),
        };
        into.insert(name, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::pipeline::spec::PipelineSpec;

    fn parse(rest: &str) -> crate::error::Result<PipelineSpec> {
        PipelineSpec::parse(&format!("[source.kafka]\nbrokers = \"a:9092\"\ntopic = \"t\"\n{rest}"), "p.toml")
    }

    #[test]
    fn a_topic_reads_back_from_its_resolved_form() {
        let rest = "partitions = [3, 0]\nstart = \"2026-11-18T09:30:00+01:00\"\norder = \"round-robin\"\n\
                    group = \"g\"\n\
                    [source.kafka.options]\nsecurity.protocol = \"sasl_plaintext\"\n\"sasl.password\" = \"${SECRET}\"\n\
                    \"socket.keepalive.enable\" = true\n";
        let spec = parse(rest).unwrap();
        let kafka = spec.source.kafka.as_ref().unwrap();
        assert_eq!((&kafka.partitions[..], kafka.options.len()), (&[0, 3][..], 3));
        assert!(spec.source.is_live() && spec.source.has_fixed_order());
        assert_eq!(spec.batch.max_wait, Some(Duration::MAX), "round-robin batches are full");
        let text = spec.to_toml().unwrap();
        assert!(text.contains("${SECRET}"), "{text}");
        assert_eq!(PipelineSpec::parse(&text, "resolved.toml").unwrap(), spec, "{text}");
        assert!(parse("").unwrap().batch.max_wait.is_some());
    }

    #[test]
    fn mistakes_have_their_place_and_secrets_are_never_repeated() {
        for (rest, wanted) in [
            ("options = { \"sasl.password\" = \"hunter2\" }", "`sasl.password` is a secret"),
            ("options = { \"group.id\" = \"hunter2\" }", "say source.kafka.group"),
            ("options = { \"enable.auto.commit\" = true }", "it follows from the rest"),
            ("options = { \"sasl.password\" = [\"hunter2\"] }", "`sasl.password` must be a text"),
            ("options = \"hunter2\"", "must be a table"),
            ("start = \"yesterday\"", "must be \"earliest\", \"latest\", or a time"),
            ("partitions = [-1]", "must be a list of numbers"),
            ("order = \"any\"", "unknown; there are arrival and round-robin"),
            ("columns = [\"a\"]", "did you mean `source.columns`?"),
            ("value = \"text\"\n[source]\ncolumns = [\"a\"]", "has no meaning for a topic whose messages are text"),
            ("[source]\nfiles = \"a.parquet\"", "has no meaning beside [source.kafka]"),
        ] {
            let text = parse(rest).map(|_| ()).unwrap_err().to_string();
            assert!(text.contains(wanted) && text.starts_with("p.toml"), "{text} should say {wanted}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
