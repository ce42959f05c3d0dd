//! The cells of a row that was cut out.

use std::borrow::Cow;

use crate::data::Cell;

/// A cell, by its place in the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    start: usize,
    end: usize,
    is_quoted: bool,
    /// Two quotes inside stand for one.
    has_quotes: bool,
}

impl Span {
    /// What the cell says, of the row that it was found in.
    pub fn text<'a>(&self, row: &'a str) -> Cow<'a, str> {
        let text = &row[self.start..self.end];
        if self.has_quotes { Cow::Owned(text.replace("\"\"", "\"")) } else { Cow::Borrowed(text) }
    }

    /// Nothing is null, unless it is in quotes. Many writers quote everything, so quotes say nothing else of a type.
    pub fn cell<'a>(&self, row: &'a str) -> Cell<'a> {
        match (self.start == self.end, self.is_quoted) {
            (true, false) => Cell::Null,
            (true, true) => Cell::Text(Cow::Borrowed("")),
            (false, _) => Cell::Raw(self.text(row)),
        }
    }
}

/// Finds the cells of a row that the cutter calls good, the first `most` of them; returns how many there are.
pub fn spans(row: &[u8], delimiter: u8, most: usize, found: &mut Vec<Span>) -> usize {
    found.clear();
    let (mut at, mut count) = (0, 0);
    loop {
        let span = if row.get(at) == Some(&b'"') {
            let (mut end, mut has_quotes) = (at + 1, false);
            while let Some(quote) = row[end..].iter().position(|&byte| byte == b'"').map(|place| end + place) {
                end = quote;
                if row.get(quote + 1) != Some(&b'"') {
                    break;
                }
                has_quotes = true;
                end += 2;
            }
            // A quote that is not closed reaches to the end; the cutter lets no such row through.
            let end = end.min(row.len());
            Span { start: at + 1, end, is_quoted: true, has_quotes }
        } else {
            let end = row[at..].iter().position(|&byte| byte == delimiter).map_or(row.len(), |place| at + place);
            Span { start: at, end, is_quoted: false, has_quotes: false }
        };
        at = span.end + usize::from(span.is_quoted);
        count += 1;
        if found.len() < most {
            found.push(span);
        }
        if at >= row.len() {
            return count;
        }
        at += 1; // the delimiter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(row: &str) -> Vec<Cell<'_>> {
        let mut found = Vec::new();
        assert_eq!(spans(row.as_bytes(), b',', usize::MAX, &mut found), found.len());
        found.iter().map(|span| span.cell(row)).collect()
    }

    #[test]
    fn nothing_is_null_and_quotes_hold_anything() {
        let raw = |text: &'static str| Cell::Raw(text.into());
        assert_eq!(cells("a, b ,,\"\",\"1\""), [raw("a"), raw(" b "), Cell::Null, Cell::Text("".into()), raw("1")]);
        assert_eq!(cells("\"x,\ny\",\"\"\"q\"\"\",é"), [raw("x,\ny"), raw("\"q\""), raw("é")]);
        assert_eq!(cells(","), [Cell::Null, Cell::Null]);
        assert_eq!(cells("5\" pipe,\"\"\"\""), [raw("5\" pipe"), raw("\"")]);
        let mut found = Vec::new();
        assert_eq!((spans(b"a,b,c", b',', 2, &mut found), found.len()), (3, 2));
    }
}
