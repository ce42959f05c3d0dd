//! How wide a token is in a file without a header.
//!
//! Flat token files (`.bin`, and `.bin.zst`) are nothing but little-endian integers, so their width must be told.
//! Used by `tokens` and `compressed_tokens`.

use serde::{Deserialize, Serialize};

use crate::data::Values;

/// Bytes of a token id in a file, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenWidth {
    /// Two bytes: vocabularies of at most 65,536 tokens, such as GPT-2's.
    U16,
    /// Four bytes.
    U32,
}

impl TokenWidth {
    /// How many bytes a token takes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }

    /// The name it has in a pipeline file.
    pub fn name(self) -> &'static str {
        match self {
            Self::U16 => "u16",
            Self::U32 => "u32",
        }
    }

    /// The tokens in some bytes. Bytes after the last whole token are left out: callers check lengths where they can
    /// name the file.
    pub fn column_from_le_bytes(self, bytes: &[u8]) -> Values {
        match self {
            Self::U16 => Values::U16(bytes.as_chunks().0.iter().map(|&token| u16::from_le_bytes(token)).collect()),
            Self::U32 => Values::U32(bytes.as_chunks().0.iter().map(|&token| u32::from_le_bytes(token)).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_little_endian_of_their_width() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(TokenWidth::U16.column_from_le_bytes(&bytes), Values::U16(vec![0x0201, 0x0403, 0x0605, 0x0807]));
        assert_eq!(TokenWidth::U32.column_from_le_bytes(&bytes), Values::U32(vec![0x0403_0201, 0x0807_0605]));
    }

    #[test]
    fn the_name_is_what_a_pipeline_file_says() {
        for width in [TokenWidth::U16, TokenWidth::U32] {
            assert_eq!(serde_json::to_string(&width).unwrap(), format!("\"{}\"", width.name()));
            assert_eq!(width.name(), format!("u{}", 8 * width.bytes()));
        }
    }
}
