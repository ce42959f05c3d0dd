//! What an image file says of itself before it is decoded.

use std::io::Cursor;

use image::{ImageDecoder as _, ImageReader};

use crate::decode::png_chunks::without_ancillary;

/// Returns true if the header of an image file says that it has shades and no colours; `None` if it has no such header.
pub fn is_grey(bytes: &[u8]) -> Option<bool> {
    use image::ExtendedColorType as Type;
    // Without what else a PNG may carry: a decoder unpacks it before it says a word.
    let reader = ImageReader::new(Cursor::new(without_ancillary(bytes))).with_guessed_format().ok()?;
    let color = reader.into_decoder().ok()?.original_color_type();
    Some(matches!(
        color,
        Type::L1
            | Type::La1
            | Type::L2
            | Type::La2
            | Type::L4
            | Type::La4
            | Type::L8
            | Type::La8
            | Type::L16
            | Type::La16
    ))
}

/// Returns true if a JPEG is of the kind that refines the whole image again and again.
pub(super) fn jpeg_is_progressive(file: &[u8]) -> bool {
    let mut rest = file.get(2..).unwrap_or_default(); // after the marker that begins it
    while let [0xff, marker, high, low, ..] = *rest {
        match marker {
            0xc2 | 0xc6 | 0xca | 0xce => return true,
            0xda => return false, // the data begins
            0xff => rest = &rest[1..],
            _ => {
                let length = usize::from(u16::from_be_bytes([high, low]));
                let Some(after) = rest.get(2 + length..) else { return false };
                rest = after;
            }
        }
    }
    false
}

/// Returns true if a JPEG reaches its end marker. The decoder would fill up what is missing with grey, and say nothing.
pub(super) fn jpeg_is_whole(file: &[u8]) -> bool {
    let mut rest = file;
    loop {
        // Anything up to the next marker is compressed data; 0xff is repeated before a marker at will.
        let Some(start) = rest.iter().position(|&byte| byte == 0xff) else { return false };
        let Some(skip) = rest[start..].iter().position(|&byte| byte != 0xff) else { return false };
        let marker = rest[start + skip];
        rest = &rest[start + skip + 1..];
        match marker {
            0xd9 => return true,
            0x00 | 0x01 | 0xd0..=0xd8 => {} // a 0xff in the data, or a marker that stands alone
            _ => {
                // A segment, whose length counts its own two bytes. It may hold a thumbnail with an end marker.
                let Some(&[high, low]) = rest.first_chunk() else { return false };
                let Some(after) = rest.get(usize::from(u16::from_be_bytes([high, low])).max(2)..) else { return false };
                rest = after;
            }
        }
    }
}
