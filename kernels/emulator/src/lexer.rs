//! PTX text → words and punctuation, each with its line.

/// One token.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    /// A word (letters, digits, `_ $ % .` and `::`), a quoted string with its quotes, or one punctuation character.
    pub text: String,
    /// Line in the text, from 1.
    pub line: u32,
}

/// Splits PTX text. Comments disappear.
pub fn tokens(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut line = 1;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let c = rest[0];
        if c == b'\n' {
            line += 1;
            at += 1;
        } else if c.is_ascii_whitespace() || c == 0 {
            at += 1;
        } else if rest.starts_with(b"//") {
            at += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
        } else if rest.starts_with(b"/*") {
            let end = rest.windows(2).position(|w| w == b"*/").map_or(rest.len(), |p| p + 2);
            line += rest[..end].iter().filter(|&&b| b == b'\n').count() as u32;
            at += end;
        } else {
            let len = if c == b'"' {
                rest.iter().skip(1).position(|&b| b == b'"').map_or(rest.len(), |p| p + 2)
            } else {
                word_len(rest).max(1)
            };
            out.push(Token { text: String::from_utf8_lossy(&rest[..len]).into_owned(), line });
            at += len;
        }
    }
    out
}

/// Length of the word at the start, 0 if there is none. A single `:` ends it (a label); `::` does not (`.L2::128B`).
fn word_len(rest: &[u8]) -> usize {
    let mut len = 0;
    while len < rest.len() {
        let c = rest[len];
        if c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.') {
            len += 1;
        } else if len > 0 && rest[len..].starts_with(b"::") {
            len += 2;
        } else {
            break;
        }
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_labels_and_comments_are_told_apart() {
        let words: Vec<String> =
            tokens("$L1: // gone\n@!%p1 ld.global.L2::128B.f32 %f1, [%rd2+-4]; /* a\nb */ \"x y\"")
                .into_iter()
                .map(|t| t.text)
                .collect();
        let expected = [
            "$L1",
            ":",
            "@",
            "!",
            "%p1",
            "ld.global.L2::128B.f32",
            "%f1",
            ",",
            "[",
            "%rd2",
            "+",
            "-",
            "4",
            "]",
            ";",
            "\"x y\"",
        ];
        assert_eq!(words, expected);
    }
}
