//! The first line of a CSV file: the names of its columns, and what is between cells.

use super::cells::{Span, spans};
use super::cutter::Cutter;
use crate::data::schema::parse_number;
use crate::error::{Error, Result};
use crate::source::store::read_error;

/// What may be between cells where nobody says, in order: the most frequent one of the first line is.
const DELIMITERS: [u8; 4] = [b',', b';', b'\t', b'|'];

/// How much of a first line is looked at for a delimiter.
const SNIFFED_BYTES: usize = 64 << 10;

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The columns.
    pub names: Vec<String>,
    /// What is between cells.
    pub delimiter: u8,
}

impl Header {
    /// Takes the first row for the names of the columns; refuses what cannot be names. Messages call the file `name`.
    pub fn read(cutter: &mut Cutter, name: &str) -> Result<Self> {
        let failed = |e: &std::io::Error| read_error(name, e);
        let refuse = |why: String| Error::data(format!("{name}: {why}"));
        if !cutter.wait_for_row().map_err(|e| failed(&e))? {
            let why = "is empty: a CSV file begins with a line that names its columns";
            return Err(refuse(why.into()));
        }
        let delimiter = cutter.delimiter();
        let Some(row) = cutter.next().map_err(|e| failed(&e))? else {
            return Err(Error::internal("a row that was there is gone"));
        };
        let bytes = row.bytes.map_err(|why| refuse(format!("the header: {why}")))?;
        let text = std::str::from_utf8(bytes).map_err(|e| {
            refuse(format!("the header is not UTF-8 at its byte {}: save it as UTF-8", e.valid_up_to()))
        })?;
        let mut found = Vec::new();
        spans(text.as_bytes(), delimiter, usize::MAX, &mut found);
        let names: Vec<String> = found.iter().map(|span: &Span| span.text(text).into_owned()).collect();
        check(&names).map_err(refuse)?;
        Ok(Self { names, delimiter })
    }
}

/// Why these cannot be the names of columns, if they cannot.
fn check(names: &[String]) -> std::result::Result<(), String> {
    if names.iter().any(|name| name.contains('\r')) && names.iter().all(|name| !name.contains('\n')) {
        return Err("the header has a carriage return inside: end lines with \\n or \\r\\n".into());
    }
    if names.iter().all(|name| parse_number(name).is_some()) {
        return Err("the first line is all numbers, so it looks as if there is no header: begin the file with a line \
                    that names the columns"
            .into());
    }
    if let Some(at) = names.iter().position(|name| name.trim().is_empty()) {
        return Err(format!(
            "column {} of {} has no name: give it one in the header (data frames write an index without a name; leave \
             it out)",
            at + 1,
            names.len()
        ));
    }
    let mut seen = std::collections::HashSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(name) => Err(format!("the header has `{name}` twice: give every column a name of its own")),
        None => Ok(()),
    }
}

/// The delimiter of a file that begins like this; `None` if more of its first line is needed.
pub(super) fn sniff(first: &[u8], is_at_end: bool) -> Option<u8> {
    let (mut counts, mut is_quoted) = ([0usize; DELIMITERS.len()], false);
    let mut has_end = is_at_end || first.len() >= SNIFFED_BYTES;
    for byte in &first[..first.len().min(SNIFFED_BYTES)] {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b'\n' if !is_quoted => {
                has_end = true;
                break;
            }
            _ if is_quoted => {}
            byte => {
                if let Some(at) = DELIMITERS.iter().position(|delimiter| delimiter == byte) {
                    counts[at] += 1;
                }
            }
        }
    }
    let most = counts.iter().max().copied().unwrap_or(0);
    has_end.then(|| counts.iter().position(|count| *count == most).map_or(b',', |at| DELIMITERS[at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, delimiter: Option<u8>) -> Result<Header> {
        let input = Box::new(std::io::Cursor::new(text.as_bytes().to_vec()));
        Header::read(&mut Cutter::new(input, 0, delimiter, 1000), "a.csv")
    }

    #[test]
    fn names_and_delimiter_are_found() {
        for (text, names, delimiter) in [
            ("a,b;c\n1,2;3", vec!["a", "b;c"], b','),
            ("\u{feff}a;b;c,d\r\n", vec!["a", "b", "c,d"], b';'),
            ("\n\"a\tx,y,z\"\t\"b \"\"q\"\"\"\n", vec!["a\tx,y,z", "b \"q\""], b'\t'),
            ("a|2|b", vec!["a", "2", "b"], b'|'),
            ("\"a\nb\";c,d;e\n", vec!["a\nb", "c,d", "e"], b';'),
            ("only", vec!["only"], b','),
        ] {
            assert_eq!(
                read(text, None).unwrap(),
                Header { names: names.iter().map(|n| n.to_string()).collect(), delimiter }
            );
        }
        assert_eq!(read("a;b,c\n", Some(b',')).unwrap().names, ["a;b", "c"]);
    }

    #[test]
    fn what_is_no_header_is_refused_with_what_to_do() {
        for (text, words) in [
            ("", "a.csv: is empty: a CSV file begins with a line that names"),
            ("\n\r\n", "is empty"),
            ("1,2.5,-3\n", "all numbers, so it looks as if there is no header"),
            (",a,b\n", "column 1 of 3 has no name"),
            ("a,b,\n", "column 3 of 3 has no name"),
            ("a,b,a\n", "the header has `a` twice"),
            ("a,\"b\nc,d\n", "the header: the quote at byte 2 opens a cell and is never closed"),
            ("a,b\r1,2\r", "carriage return"),
        ] {
            let error = read(text, None).unwrap_err().to_string();
            assert!(error.starts_with("a.csv: ") && error.contains(words), "{error}");
        }
        let latin: &[u8] = b"a,stra\xDFe\n";
        let mut cutter = Cutter::new(Box::new(latin), 0, None, 1000);
        let error = Header::read(&mut cutter, "a.csv").unwrap_err().to_string();
        assert_eq!(error, "a.csv: the header is not UTF-8 at its byte 6: save it as UTF-8");
    }
}
