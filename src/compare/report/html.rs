//! The page: everything in one file, without scripts, fonts or pictures from elsewhere.

use super::lines::Line;
use super::palette::{marker, variables};
use super::regret;
use super::table::Table;
use super::tables::{ablations, crossings, results, trials};
use crate::compare::analysis::{notes, verdict};
use crate::compare::findings::{Findings, Section};
use crate::compare::numbers::thousands;

/// A section as it is shown: what was found, its lines, its charts and what has to be said about them.
pub struct Shown<'a> {
    /// What was found.
    pub section: &'a Section,
    /// Its lines.
    pub lines: &'a [Line],
    /// Its charts, for the inside of a page. None if there is nothing to draw.
    pub charts: Vec<String>,
    /// What is said below them.
    pub chart_notes: Vec<String>,
}

/// The whole page.
pub fn page(findings: &Findings, sections: &[Shown<'_>]) -> String {
    let title = if findings.title.is_empty() { "Comparison" } else { &findings.title };
    let (light, dark) = variables();
    let style = format!(
        ":root {{ color-scheme: light dark; {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n\
         @media print {{ :root {{ color-scheme: light; {light} }} }}\n{}",
        include_str!("style.css")
    );
    let over_all = regret::tables(findings);
    let contents = if sections.len() > 1 { contents(sections, !over_all.is_empty()) } else { String::new() };
    let body: String = sections.iter().map(section).chain([regret_section(&over_all)]).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{style}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n{about}{contents}</header>\n\
         <main>\n{body}</main>\n</body>\n</html>\n",
        title = escape(title),
        about = about(findings),
    )
}

/// Date, machine and command.
fn about(findings: &Findings) -> String {
    let origins = findings.origins();
    let measured: Vec<&str> = origins.iter().map(|s| s.trim()).filter(|s| !s.is_empty()).collect();
    let mut html = String::new();
    if !measured.is_empty() {
        html += &format!("<p class=\"measured\">{}</p>\n", escape(&measured.join(" · ")));
    }
    if !findings.command.is_empty() {
        html += &format!("<pre><code>{}</code></pre>\n", escape(&findings.command));
    }
    html
}

/// No section of the findings is called so: their names have no underscores.
const OVER_ALL: &str = "over_all";

fn contents(sections: &[Shown<'_>], has_regret: bool) -> String {
    let entry = |shown: &Shown<'_>| {
        let Section { name, title, circuit, .. } = shown.section;
        format!("<li><a href=\"#{}\">{}</a> <small>{}</small></li>\n", escape(name), escape(title), escape(circuit))
    };
    let mut entries: String = sections.iter().map(entry).collect();
    if has_regret {
        entries += &format!("<li><a href=\"#{OVER_ALL}\">{}</a> <small>regret</small></li>\n", regret::TITLE);
    }
    format!("<nav aria-label=\"Contents\"><ol>\n{entries}</ol></nav>\n")
}

/// What only several sections together say.
fn regret_section(tables: &[Table]) -> String {
    if tables.is_empty() {
        return String::new();
    }
    let tables: String = tables.iter().map(Table::html).collect();
    format!("<section id=\"{OVER_ALL}\">\n<h2>{}</h2>\n{tables}</section>\n", regret::TITLE)
}

fn section(shown: &Shown<'_>) -> String {
    let section = shown.section;
    let mut html = format!("<section id=\"{}\">\n<h2>{}</h2>\n", escape(&section.name), escape(&section.title));
    if !section.about.trim().is_empty() {
        html += &format!("<p class=\"about\">{}</p>\n", escape(section.about.trim()));
    }
    html += &fact_list(section);
    html += &list("verdict", &verdict(section));
    html += &list("notes", &notes(section));
    html += &figures(shown);
    html += &results(section).html();
    html += &crossings(section).html();
    html += &ablations(section).html();
    html += &searched(section);
    html + "</section>\n"
}

/// What is compared, in figures: names, and nothing where a figure is not known.
pub fn facts(section: &Section) -> [(&'static str, String); 7] {
    let count = |n: u64| if n == 0 { String::new() } else { thousands(n as f64) };
    [
        ("data", section.data.clone()),
        ("circuit", section.circuit.clone()),
        ("parameters", count(section.parameters)),
        ("variables", count(section.num_vars)),
        ("rows per epoch", count(section.rows)),
        ("held-out rows", count(section.valid_rows)),
        ("epochs", count(section.epochs)),
    ]
}

fn fact_list(section: &Section) -> String {
    let fact = |(name, fact): &(&str, String)| format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", escape(fact));
    let known: String = facts(section).iter().filter(|(_, fact)| !fact.is_empty()).map(fact).collect();
    format!("<dl>\n{known}</dl>\n")
}

fn list(class: &str, sentences: &[String]) -> String {
    if sentences.is_empty() {
        return String::new();
    }
    let items: String = sentences.iter().map(|s| format!("<li>{}</li>\n", escape(s))).collect();
    format!("<ul class=\"{class}\">\n{items}</ul>\n")
}

fn figures(shown: &Shown<'_>) -> String {
    if shown.charts.is_empty() {
        return "<p class=\"caption\">There is nothing to draw yet: no run has a held-out value.</p>\n".into();
    }
    let figures: String = shown.charts.iter().map(|svg| format!("<figure>\n{svg}</figure>\n")).collect();
    let notes: String = shown.chart_notes.iter().map(|note| format!("{} ", escape(note))).collect();
    format!(
        "<ul class=\"legend\">\n{}</ul>\n<div class=\"figures\">\n{figures}</div>\n<p class=\"caption\">{}</p>\n",
        shown.lines.iter().map(key).collect::<String>(),
        notes.trim_end()
    )
}

/// How a line looks, and whose it is.
fn key(line: &Line) -> String {
    let colour = line.colour().variable;
    let dashes = if line.is_ablation { " stroke-dasharray=\"7 4\"" } else { "" };
    let corner = |(x, y): &(f64, f64)| format!("{:.2},{:.2}", 18.0 + 4.0 * x, 8.0 + 4.0 * y);
    let corners = marker(line.place).iter().map(corner).collect::<Vec<_>>().join(" ");
    let none = if line.is_empty() { " <small>(nothing to draw)</small>" } else { "" };
    format!(
        "<li><svg width=\"36\" height=\"16\" viewBox=\"0 0 36 16\" aria-hidden=\"true\">\
         <line x1=\"1\" y1=\"8\" x2=\"35\" y2=\"8\" stroke=\"var({colour})\" stroke-width=\"2\"{dashes}/>\
         <polygon points=\"{corners}\" fill=\"var({colour})\"/></svg>{}{none}</li>\n",
        escape(&line.name)
    )
}

/// What was tried, folded away.
fn searched(section: &Section) -> String {
    let of = |contender: &crate::compare::findings::Contender| {
        format!("<div>\n<h4>{}</h4>\n{}</div>\n", escape(&contender.name), trials(section, contender).html())
    };
    let searched: Vec<String> = section.contenders.iter().filter(|c| !c.trials.is_empty()).map(of).collect();
    if searched.is_empty() {
        return String::new();
    }
    let tried: usize = section.contenders.iter().map(|c| c.trials.len()).sum();
    format!(
        "<details>\n<summary>Options that were searched: {tried} trials of {} contenders</summary>\n\
         <div class=\"searched\">\n{}</div>\n</details>\n",
        searched.len(),
        searched.concat()
    )
}

/// Text as it may stand between tags and inside quotes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() && !c.is_whitespace() => escaped.push('\u{FFFD}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_written_becomes_a_tag() {
        assert_eq!(escape("<b a=\"x\" c='y'>&\u{0}"), "&lt;b a=&quot;x&quot; c=&#39;y&#39;&gt;&amp;\u{FFFD}");
        assert_eq!(escape("Ünïcode −1 ∞"), "Ünïcode −1 ∞");
    }
}
