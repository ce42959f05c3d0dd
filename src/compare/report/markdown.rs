//! The page once more, for places that take no HTML: notes, pull requests, a project's own documentation.

use super::html::{Shown, facts};
use super::regret;
use super::table::Table;
use super::tables::{ablations, crossings, results, trials};
use crate::compare::analysis::{notes, verdict};
use crate::compare::findings::{Findings, Section};

/// The whole page. Charts are named by where they lie beside it.
pub fn page(findings: &Findings, sections: &[Shown<'_>]) -> String {
    let title = if findings.title.is_empty() { "Comparison" } else { &findings.title };
    let origins = findings.origins();
    let measured: Vec<String> = origins.iter().map(|s| escape(s.trim())).filter(|s| !s.is_empty()).collect();
    let mut blocks = vec![format!("# {}", escape(title)), measured.join(" · ")];
    if !findings.command.is_empty() {
        blocks.push(format!("    {}", findings.command.replace('\n', " ")));
    }
    blocks.extend(sections.iter().map(section));
    let regrets = regret::tables(findings);
    if !regrets.is_empty() {
        blocks.push(format!("## {}", regret::TITLE));
        blocks.extend(regrets.iter().map(Table::markdown));
    }
    blocks.retain(|block| !block.is_empty());
    blocks.join("\n\n") + "\n"
}

fn section(shown: &Shown<'_>) -> String {
    let section = shown.section;
    let known = facts(section).into_iter().filter(|(_, fact)| !fact.is_empty());
    let known: Vec<String> = known.map(|(name, fact)| format!("{name}: {}", escape(&fact))).collect();
    let mut blocks = vec![format!("## {}", escape(&section.title)), escape(section.about.trim()), known.join("; ")];
    blocks.push(list('-', &verdict(section)));
    blocks.push(list('*', &notes(section))); // another mark is another list
    if !shown.charts.is_empty() {
        let chart = |axis| format!("![held-out log-likelihood against {axis}](charts/{}-{axis}.svg)", section.name);
        blocks.push(["epochs", "seconds"].map(chart).join("\n"));
        blocks.push(shown.chart_notes.iter().map(|note| escape(note)).collect::<Vec<_>>().join(" "));
    }
    blocks.extend([results(section), crossings(section), ablations(section)].map(|table| table.markdown()));
    blocks.extend(searched(section));
    blocks.retain(|block| !block.is_empty());
    blocks.join("\n\n")
}

fn list(mark: char, sentences: &[String]) -> String {
    sentences.iter().map(|sentence| format!("{mark} {}", escape(sentence))).collect::<Vec<_>>().join("\n")
}

/// What was tried.
fn searched(section: &Section) -> Vec<String> {
    let of_contender = section.contenders.iter().filter(|c| !c.trials.is_empty());
    of_contender.flat_map(|c| [format!("### Searched: {}", escape(&c.name)), trials(section, c).markdown()]).collect()
}

/// Text that stays text, on one line: nothing in it is markup, and nothing ends a cell of a table.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    // What makes a list, a heading or a rule of the line that it begins: a sign, or a number with a full stop or
    // bracket. (Not a number with decimals: a list needs room behind its mark.)
    let number = text.bytes().take_while(u8::is_ascii_digit).count();
    let is_item = number > 0 && text[number..].chars().nth(1).is_none_or(char::is_whitespace);
    for (at, c) in text.char_indices() {
        match c {
            '-' | '+' | '=' if at == 0 => escaped.extend(['\\', c]),
            '.' | ')' if at == number && is_item => escaped.extend(['\\', c]),
            '\\' | '|' | '*' | '_' | '`' | '[' | ']' | '<' | '>' | '#' | '~' | '$' => escaped.extend(['\\', c]),
            '&' => escaped.push_str("&amp;"),
            c if c.is_whitespace() => escaped.push(' '),
            c if c.is_control() => escaped.push('\u{FFFD}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_written_becomes_markup() {
        assert_eq!(escape("a|b *c* <i>\n&amp; \u{0}"), "a\\|b \\*c\\* \\<i\\> &amp;amp; \u{FFFD}");
        assert_eq!(escape("Ünïcode −1 ∞ (2 of 3: 8.5)"), "Ünïcode −1 ∞ (2 of 3: 8.5)");
        let lines = ["- a - b", "+ momentum", "---", "12. a 1. b", "3) c", "4.", ".5 and (x)", "0.25"].map(escape);
        let escaped = ["\\- a - b", "\\+ momentum", "\\---", "12\\. a 1. b", "3\\) c", "4\\.", ".5 and (x)", "0.25"];
        assert_eq!(lines, escaped);
    }
}
