//! A table: words to the left, numbers to the right.

use super::html::escape;
use super::markdown;

/// A cell.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    /// Smaller, behind or below the text.
    small: String,
    is_number: bool,
    is_best: bool,
    is_below: bool,
    is_padded: bool,
}

impl Cell {
    /// Words.
    pub fn words(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A number.
    pub fn number(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_number: true, ..Self::default() }
    }

    /// Where there is no number.
    pub fn none() -> Self {
        Self::number("—")
    }

    /// With something small behind.
    pub fn small(mut self, small: impl Into<String>) -> Self {
        self.small = small.into();
        self
    }

    /// With something small below.
    pub fn below(mut self, small: impl Into<String>) -> Self {
        self.is_below = true;
        self.small(small)
    }

    /// In bold, if it is the best of its column.
    pub fn best_if(mut self, is_best: bool) -> Self {
        self.is_best = is_best;
        self
    }

    /// With room for something small behind, so that numbers with and without it stand below each other.
    pub fn padded_if(mut self, is_padded: bool) -> Self {
        self.is_padded = is_padded;
        self
    }

    fn html(&self, tag: &str) -> String {
        let class = match (self.is_number, self.is_below) {
            (true, _) => " class=\"n\"",
            (false, true) => " class=\"below\"",
            (false, false) => "",
        };
        let text = escape(&self.text);
        let text = if self.is_best { format!("<strong>{text}</strong>") } else { text };
        let small = match (self.small.is_empty(), self.is_below) {
            _ if self.is_padded => format!(" <small class=\"pad\">{}</small>", escape(&self.small)),
            (true, _) => String::new(),
            (false, true) => format!("<br><small>{}</small>", escape(&self.small)),
            (false, false) => format!(" <small>{}</small>", escape(&self.small)),
        };
        let close = tag.split(' ').next().unwrap_or(tag);
        format!("<{tag}{class}>{text}{small}</{close}>")
    }

    fn plain(&self) -> String {
        format!("{} {}", self.text, self.small).trim().to_string()
    }

    fn markdown(&self) -> String {
        let text = markdown::escape(&self.text);
        let text = if self.is_best && !text.is_empty() { format!("**{text}**") } else { text };
        let between = if self.is_below { ": " } else { " " };
        match self.small.is_empty() {
            true => text,
            false => format!("{text}{between}{}", markdown::escape(&self.small)),
        }
    }
}

/// Rows under heads. The first cell of a row is its head.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What it shows, in a line.
    pub title: String,
    /// What has to be known to read it.
    pub caption: String,
    /// Heads over several columns: the text and how many. May be empty.
    pub groups: Vec<(String, usize)>,
    /// One for each column.
    pub heads: Vec<Cell>,
    /// Rows.
    pub rows: Vec<Vec<Cell>>,
    /// Rows that are no contenders.
    pub quiet_rows: Vec<Vec<Cell>>,
}

impl Table {
    /// As HTML, with its title; nothing if it has no rows.
    pub fn html(&self) -> String {
        if self.rows.is_empty() && self.quiet_rows.is_empty() {
            return String::new();
        }
        let mut html = String::new();
        if !self.title.is_empty() {
            html += &format!("<h3>{}</h3>\n", escape(&self.title));
        }
        html += "<div class=\"table\" tabindex=\"0\"><table>\n<thead>\n";
        if !self.groups.is_empty() {
            let group = |(text, columns): &(String, usize)| match text.is_empty() {
                true => format!("<td colspan=\"{columns}\"></td>"),
                false => format!("<th class=\"group\" scope=\"colgroup\" colspan=\"{columns}\">{}</th>", escape(text)),
            };
            html += &format!("<tr>{}</tr>\n", self.groups.iter().map(group).collect::<String>());
        }
        let heads: String = self.heads.iter().map(|head| head.html("th scope=\"col\"")).collect();
        html += &format!("<tr>{heads}</tr>\n</thead>\n<tbody>\n");
        let row = |class: &str, cells: &Vec<Cell>| {
            let cell = |(at, cell): (usize, &Cell)| cell.html(if at == 0 { "th scope=\"row\"" } else { "td" });
            format!("<tr{class}>{}</tr>\n", cells.iter().enumerate().map(cell).collect::<String>())
        };
        html.extend(self.rows.iter().map(|cells| row("", cells)));
        html.extend(self.quiet_rows.iter().map(|cells| row(" class=\"quiet\"", cells)));
        html += "</tbody>\n</table></div>\n";
        if !self.caption.is_empty() {
            html += &format!("<p class=\"caption\">{}</p>\n", escape(&self.caption));
        }
        html
    }

    /// As Markdown, with its title; nothing if it has no rows. What stands over several heads is said in each.
    pub fn markdown(&self) -> String {
        if self.rows.is_empty() && self.quiet_rows.is_empty() {
            return String::new();
        }
        let over = self.groups.iter().flat_map(|(text, columns)| std::iter::repeat_n(text.as_str(), *columns));
        let heads = self.heads.iter().zip(over.chain(std::iter::repeat("")));
        let heads: Vec<String> = heads
            .map(|(head, over)| format!("{} {}", markdown::escape(over), head.markdown()).trim().to_string())
            .collect();
        let rule: Vec<&str> = self.heads.iter().map(|head| if head.is_number { "---:" } else { "---" }).collect();
        let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
        let mut lines = vec![line(&heads), format!("|{}|", rule.join("|"))];
        let rows = self.rows.iter().chain(&self.quiet_rows);
        lines.extend(rows.map(|cells| line(&cells.iter().map(Cell::markdown).collect::<Vec<_>>())));
        let title =
            if self.title.is_empty() { String::new() } else { format!("### {}", markdown::escape(&self.title)) };
        let blocks = [title, lines.join("\n"), markdown::escape(&self.caption)];
        blocks.into_iter().filter(|block| !block.is_empty()).collect::<Vec<_>>().join("\n\n")
    }
    /// For a terminal, with its title: columns stand below each other. Nothing if it has no rows.
    pub fn plain(&self) -> String {
        if self.rows.is_empty() && self.quiet_rows.is_empty() {
            return String::new();
        }
        let rows = self.rows.iter().chain(&self.quiet_rows);
        let rows: Vec<Vec<String>> =
            std::iter::once(&self.heads).chain(rows).map(|cells| cells.iter().map(Cell::plain).collect()).collect();
        let width = |at: usize| rows.iter().filter_map(|cells| cells.get(at)).map(|cell| cell.chars().count()).max();
        let line = |cells: &Vec<String>| {
            let cell = |(at, text): (usize, &String)| {
                let width = width(at).unwrap_or(0);
                if self.heads[at].is_number { format!("  {text:>width$}") } else { format!("  {text:<width$}") }
            };
            cells.iter().enumerate().take(self.heads.len()).map(cell).collect::<String>().trim_end().to_string()
        };
        let mut lines = vec![self.title.clone()];
        lines.extend(rows.iter().map(line));
        lines.push(format!("  {}", self.caption));
        lines.retain(|line| !line.trim().is_empty());
        lines.join("\n")
    }
}
