//! PNG files without what is not needed for their pixels.
//!
//! A PNG may carry texts and colour profiles, compressed: a kilobyte of profile becomes half a gigabyte, for every
//! image and in every worker, and nothing here reads it. Such chunks are *ancillary*: the format says so in their
//! names, and a reader may pass over all it does not know. Of these only the transparency is kept, which decides what a
//! pixel is. Used by `image`.

use std::borrow::Cow;

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Length and name before the content of a chunk, checksum after it.
const AROUND: usize = 4 + 4 + 4;

/// The file without ancillary chunks. Where its chunks cannot be followed, the rest stays as it is: the decoder says
/// what is wrong with it.
pub(super) fn without_ancillary(file: &[u8]) -> Cow<'_, [u8]> {
    let Some(mut rest) = file.strip_prefix(SIGNATURE) else { return file.into() };
    let mut kept: Option<Vec<u8>> = None;
    while let Some((chunk, after)) = split_chunk(rest) {
        let before = file.len() - rest.len();
        if is_ancillary(chunk) {
            kept.get_or_insert_with(|| file[..before].to_vec());
        } else if let Some(kept) = &mut kept {
            kept.extend_from_slice(chunk);
        }
        rest = after;
    }
    match kept {
        None => file.into(),
        Some(mut kept) => {
            kept.extend_from_slice(rest);
            kept.into()
        }
    }
}

/// The first chunk, and what follows it; `None` where there is no whole one.
fn split_chunk(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_be_bytes(*bytes.first_chunk()?);
    bytes.split_at_checked(usize::try_from(length).ok()?.checked_add(AROUND)?)
}

/// A small first letter says so.
fn is_ancillary(chunk: &[u8]) -> bool {
    chunk[4] & 0x20 != 0 && &chunk[4..8] != b"tRNS"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(name: &[u8], content: &[u8]) -> Vec<u8> {
        [&(content.len() as u32).to_be_bytes()[..], name, content, b"sum."].concat()
    }

    #[test]
    fn only_what_pixels_need_is_left_and_a_damaged_rest_stays() {
        let (header, trns, data) = (chunk(b"IHDR", b"size"), chunk(b"tRNS", b"x"), chunk(b"IDAT", b"pixels"));
        let plain = [SIGNATURE, &header, &trns, &data].concat();
        assert!(matches!(without_ancillary(&plain), Cow::Borrowed(same) if same == plain));
        let profile = chunk(b"iCCP", b"profile");
        let full = [SIGNATURE, &header, &profile, &trns, &chunk(b"zTXt", b"text"), &data].concat();
        assert_eq!(*without_ancillary(&full), *plain);
        let cut = [&full[..], b"\0\0\0\x09IDATcut"].concat();
        assert_eq!(*without_ancillary(&cut), [&plain[..], b"\0\0\0\x09IDATcut"].concat());
        assert_eq!(*without_ancillary(b"\xff\xd8JPEG"), *b"\xff\xd8JPEG");
    }
}
