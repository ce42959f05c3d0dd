//! What a section may say, as data: one [`Key`] a line, in one [`Table`] a section.
//!
//! The same tables decide which keys a file may have (`Section::only`) and are what `anemone keys` prints, so a key
//! that can be written is a key that is documented. `tables` holds those of a pipeline; `defaults` asks the reader
//! itself what it makes of a key that is not written.

use std::borrow::Cow;

use super::size::write_size;

/// A section of a file.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    /// Its path, as in `learn.step`; empty for keys outside any section.
    pub path: &'static str,
    /// What it decides, in a sentence or two.
    pub about: &'static str,
    /// Its keys, in the order in which people think of them.
    pub keys: &'static [Key],
    /// The choices that a key has a meaning for: models, optimizers, …; empty if it has one for all.
    pub owners: fn(&str) -> Vec<&'static str>,
}

/// A key of a section.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    /// As it is written.
    pub name: &'static str,
    /// What may stand behind it.
    pub values: Accepted,
    /// What holds where it is left out.
    pub unset: Unset,
    /// What it decides, in a phrase.
    pub about: &'static str,
}

/// What may be written. A test holds all of it, but for `Other`, against what the reader accepts and says.
#[derive(Clone, Copy)]
pub(crate) enum Accepted {
    /// A text in quotes.
    Text,
    /// A text, or a list of them.
    Texts,
    /// `true` or `false`.
    Truth,
    /// A whole number of at least this.
    Whole(u64),
    /// A whole number from the first to the second.
    Between(u64, u64),
    /// A number; the phrase is what the reader says it must be.
    Number(&'static str),
    /// A length of a schedule; the phrase is what the reader says it must be.
    Length(&'static str),
    /// A size of at least so many bytes.
    Size(u64),
    /// One of these.
    Word(&'static [&'static str]),
    /// A list of whole numbers of at least 1, so many of them if that is given.
    Counts(Option<usize>),
    /// Anything else, in words.
    Other(&'static str),
}

/// What holds where a key is not written.
#[derive(Clone, Copy)]
pub(crate) enum Unset {
    /// The reader's default, which `defaults` finds out.
    Default,
    /// The same, under a condition.
    DefaultIf(&'static str),
    /// This value, which the reader knows and does not write out.
    Value(&'static str),
    /// No value of its own: what happens, in words.
    Means(&'static str),
    /// A value that depends on other keys, in words.
    Derived(&'static str),
    /// The file is refused.
    Required,
}

impl Table {
    /// The key of that name.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// The path of one of its keys.
    pub fn path_of(&self, key: &Key) -> String {
        if self.path.is_empty() { key.name.to_string() } else { format!("{}.{}", self.path, key.name) }
    }

    /// Its keys, without those whose name `keep` does not want.
    pub fn filtered(&self, keep: impl Fn(&str) -> bool) -> Vec<Key> {
        self.keys.iter().filter(|key| keep(key.name)).copied().collect()
    }
}

/// For tables whose keys do not depend on a choice.
pub(crate) fn for_all(_: &str) -> Vec<&'static str> {
    Vec::new()
}

/// A line of a table.
pub(crate) const fn key(name: &'static str, values: Accepted, unset: Unset, about: &'static str) -> Key {
    Key { name, values, unset, about }
}

impl Accepted {
    /// The type and range for people.
    pub fn words(&self) -> Cow<'static, str> {
        match *self {
            Self::Text => "text".into(),
            Self::Texts => "text, or list of texts".into(),
            Self::Truth => "`true` or `false`".into(),
            Self::Whole(0) => "whole number".into(),
            Self::Whole(least) => format!("whole number, at least {least}").into(),
            Self::Between(least, most) => format!("whole number, {least} to {most}").into(),
            // The reader says "must be in [0, 1]", but "must be a positive number".
            Self::Number(must) if must.contains("number") => must.trim_start_matches("a ").into(),
            Self::Number(must) => format!("number, {must}").into(),
            Self::Length(must) => format!("length, {must}").into(),
            Self::Size(1) => "size such as `\"64MiB\"`, or bytes".into(),
            Self::Size(least) => format!("size such as `\"64MiB\"`, or bytes; at least {}", write_size(least)).into(),
            Self::Word(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("`\"{word}\"`")).collect();
                format!("one of {}", quoted.join(", ")).into()
            }
            Self::Counts(None) => "list of whole numbers, each at least 1".into(),
            Self::Counts(Some(length)) => format!("list of {length} whole numbers, each at least 1").into(),
            Self::Other(words) => words.into(),
        }
    }
}
