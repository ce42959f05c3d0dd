//! What the commands print, and how they fail.
//!
//! Paths, names of nodes and texts of errors come from files that others wrote. All of them pass here, where control
//! characters lose their power over a terminal: tables and messages have them written out, JSON has them escaped as
//! JSON does. Only drawn rows go past this file, through `sink`, which writes them out on a terminal alone.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use crate::error::{Error, ErrorKind, Result};

/// One line on standard output. Not `println!`, which panics when the reader has gone.
pub(super) fn say(line: impl Display) -> Result<()> {
    print(&harmless(&line.to_string(), &['\n', '\t']))
}

/// One JSON value on standard output. It is as harmless as any line, and still parses.
pub(super) fn say_json(value: impl Display) -> Result<()> {
    print(&harmless_json(&value.to_string()))
}

/// What a write into a terminal that was closed fails with (`EIO`): there is no reader left.
const TERMINAL_GONE: i32 = 5;

fn print(line: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()), // `| head`: the reader has what it wanted
        Err(e) if e.raw_os_error() == Some(TERMINAL_GONE) => Ok(()),
        written => written.map_err(|e| Error::io("standard output", &e)),
    }
}

/// Several lines on standard error.
pub(super) fn note_lines(lines: impl Display) {
    lines.to_string().lines().for_each(note);
}

/// One line on standard error; if nobody reads there, nobody is told.
pub(super) fn note(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{}", harmless(&line.to_string(), &['\t']));
}

/// One JSON value on standard error; if nobody reads there, nobody is told.
pub(super) fn note_json(value: impl Display) {
    let _ = writeln!(std::io::stderr(), "{}", harmless_json(&value.to_string()));
}

/// The text with control characters written out, but for those that are `meant`, so that no file name moves the cursor,
/// hides text or pretends to be another line.
pub(super) fn harmless<'a>(text: &'a str, meant: &[char]) -> Cow<'a, str> {
    write_out(text, meant, |c, out| out.extend(c.escape_default()))
}

/// The same for the text of a JSON value. JSON leaves DEL, C1 and marks of direction as they are; they stand only
/// inside its strings, where `\uXXXX` means the same.
fn harmless_json(text: &str) -> Cow<'_, str> {
    write_out(text, &['\n'], |c, out| {
        // A surrogate pair where one number is not enough.
        c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
    })
}

/// The text with `escape` in place of every harmful character that is not `meant`.
fn write_out<'a>(text: &'a str, meant: &[char], escape: impl Fn(char, &mut String)) -> Cow<'a, str> {
    // Those that change the direction of writing are not control characters to Unicode, and hide as well.
    let turns =
        |c: char| matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_harmful = |c: char| (c.is_control() || turns(c)) && !meant.contains(&c);
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_harmful(c) { escape(c, &mut out) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// What a command ends with.
pub(super) type Outcome = Result<()>;

/// Says what went wrong, in one line, and gives the exit code.
pub(super) fn report_failure(error: &Error) -> ExitCode {
    note(format_args!("error: {error}"));
    ExitCode::from(exit_code(error.kind()))
}

/// The one rule for exit codes, as in `cli/mod.rs` and docs/GUIDE.md: it depends on the kind of mistake, not on which
/// command finds it.
fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Io
        | ErrorKind::Device
        | ErrorKind::Diverged
        | ErrorKind::Cluster
        | ErrorKind::RankLost
        | ErrorKind::Internal => 1,
        ErrorKind::Option | ErrorKind::Path | ErrorKind::Unsupported => 2,
        ErrorKind::Data | ErrorKind::Format | ErrorKind::Circuit => 3,
        ErrorKind::State => 4,
    }
}

/// Names and what they are, one a line, side by side.
pub(super) fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:<width$}  {value}")).collect::<Vec<_>>().join("\n")
}

/// Whose answers are given: those of averaged parameters, or of the ones that are learned with.
pub(super) fn describe_answers(is_averaged: bool) -> &'static str {
    match is_averaged {
        true => "of averaged parameters: held-out rows, saved models",
        false => "of the latest parameters: held-out rows, saved models",
    }
}

/// So many things: `1 epoch`, `1,200 epochs`.
pub(super) fn counted(number: u64, one: &str, more: &str) -> String {
    format!("{} {}", thousands(number), if number == 1 { one } else { more })
}

/// A whole number with its thousands apart.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable_and_kinds_have_their_codes() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([1, 0, 1200].map(|n| counted(n, "batch", "batches")), ["1 batch", "0 batches", "1,200 batches"]);
        let errors =
            [Error::internal("x"), Error::option("x"), Error::missing_path("x"), Error::format("x"), Error::state("x")];
        assert_eq!(errors.map(|error| exit_code(error.kind())), [1, 2, 2, 3, 4]);
        let io = |kind: std::io::ErrorKind| exit_code(Error::io("a.bin", &kind.into()).kind());
        use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied, StorageFull};
        assert_eq!([NotFound, IsADirectory, NotADirectory, PermissionDenied, StorageFull].map(io), [2, 2, 2, 1, 1]);
        assert_eq!(table(&[("a", "1".into()), ("long", "2".into())]), "a     1\nlong  2");
    }

    #[test]
    fn control_characters_are_written_out_and_the_rest_stays() {
        let plain = "runs/größe-日本: 3 rows\n\tmore";
        assert_eq!(harmless(plain, &['\n', '\t']), plain);
        assert_eq!(harmless("a\u{1b}[2J\u{7}\rb\n\u{9b}1m\u{202e}", &[]), r"a\u{1b}[2J\u{7}\rb\n\u{9b}1m\u{202e}");
    }

    #[test]
    fn json_without_control_characters_means_the_same() {
        let name = "größe-日本 😀 \u{1b}[2J\n\u{7f}\u{85}\u{200f}\u{2066}";
        let value = serde_json::json!({ name: [name, 1] });
        for text in [value.to_string(), format!("{value:#}")] {
            let shown = harmless_json(&text);
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value, "{shown}");
            assert!(shown.contains(r"\u007f\u0085\u200f\u2066") && shown.contains("größe-日本 😀"), "{shown}");
            assert!(shown.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{200f}'), "{shown}");
        }
    }
}
