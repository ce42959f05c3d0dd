//! What a pipeline says of a topic: `[source.kafka]`.
//!
//! In every build, so that a pipeline file is understood also where Kafka is not built in. Read by `pipeline/spec`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use super::time::parse_time;
pub use crate::source::OnGap;

/// A topic, and how it is read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KafkaSpec {
    /// Addresses of brokers, `host:port`, as they were written: `${NAME}` is replaced when they are opened.
    pub brokers: Vec<String>,
    /// The topic.
    pub topic: String,
    /// The partitions to read; empty is all of them, and those that appear later.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<i32>,
    /// Where a run begins that has no checkpoint.
    pub start: StartAt,
    /// What a message holds.
    pub value: MessageFormat,
    /// In which order partitions are merged.
    pub order: MergeOrder,
    /// What happens where the broker has deleted what comes next.
    pub on_gap: OnGap,
    /// The group that offsets are committed for, for tools that show lag; `None` commits nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// How many seconds brokers have to answer when the topic is opened.
    pub timeout: f64,
    /// Options of librdkafka, as they were written. A secret is always `${NAME}`, which is replaced when it is used.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

/// Where to begin in every partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// The first message that the broker still has.
    Earliest,
    /// The first message after the topic was opened.
    Latest,
    /// The first message of that time, in milliseconds since 1970, and the time as it was written.
    Time(i64, String),
}

impl StartAt {
    /// What is written in a pipeline: a word, or a time.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "earliest" => Ok(Self::Earliest),
            "latest" => Ok(Self::Latest),
            time => Ok(Self::Time(parse_time(time)?, time.to_string())),
        }
    }
}

impl fmt::Display for StartAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Earliest => "earliest",
            Self::Latest => "latest",
            Self::Time(_, written) => written,
        })
    }
}

impl Serialize for StartAt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// What a message holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MessageFormat {
    /// A JSON object of columns, or a list of numbers.
    #[default]
    Json,
    /// A text.
    Text,
    /// Ids of tokens or categories, little-endian, of the width that `source.tokens` says.
    Ids,
    /// A whole Arrow IPC stream: a schema and rows.
    Arrow,
}

/// In which order the messages of several partitions come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MergeOrder {
    /// As they arrive: nobody waits, and another run may see another order.
    #[default]
    Arrival,
    /// So many messages of each partition in turn: the order is a function of the topic alone, and the slowest
    /// partition decides how fast it goes.
    RoundRobin,
}

/// Seconds that brokers have to answer where nothing is said.
pub const DEFAULT_TIMEOUT: f64 = 30.0;

/// Returns true if the value of an option of librdkafka must not be shown, or be written into a file.
pub fn is_secret(option: &str) -> bool {
    let option = option.to_ascii_lowercase();
    ["password", "secret", "passphrase"].iter().any(|word| option.contains(word))
        || ["ssl.key.pem", "sasl.oauthbearer.config", "sasl.jaas.config"].contains(&option.as_str())
}

/// Options of librdkafka that follow from the pipeline, and the key that decides them, if one does.
pub const OWN_OPTIONS: [(&str, Option<&str>); 11] = [
    ("bootstrap.servers", Some("brokers")),
    ("metadata.broker.list", Some("brokers")),
    ("group.id", Some("group")),
    ("group.instance.id", None),
    ("auto.offset.reset", Some("start")),
    ("enable.auto.commit", None),
    ("enable.auto.offset.store", None),
    ("enable.partition.eof", None),
    ("statistics.interval.ms", None),
    ("max.poll.interval.ms", None),
    ("test.mock.num.brokers", None),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_their_names() {
        for option in ["sasl.password", "ssl.key.password", "sasl.oauthbearer.client.secret", "ssl.key.pem"] {
            assert!(is_secret(option), "{option}");
        }
        for option in ["sasl.username", "security.protocol", "ssl.ca.location", "ssl.key.location"] {
            assert!(!is_secret(option), "{option}");
        }
    }
}
