//! PNG and JPEG files become rows of pixels.
//!
//! An image is cut into square patches, row by row, and every patch is a row; what is left over at the right and at the
//! bottom is dropped. Without patches, all images have the one size that is given, and an image is a row. Variables are
//! `[height, width, channels]`, channel fastest. Pixels have 8 bits: 16-bit images are reduced, alpha is dropped, grey
//! images become colours or colours grey as asked. Grey and RGB may have fewer shades than 256: a pixel becomes the
//! nearest of so many, evenly spaced from black to full. An image that cannot be decoded, or is too small, is a bad
//! record.
//!
//! [`ImageDecoder::colours`] is the way back, for whoever wants to look at rows. The colour transforms are in `ycocg`;
//! `image` reads files here and writes them in `mosaic`, and nowhere else.

use std::io::Cursor;
use std::sync::Arc;

use image::{DynamicImage, ImageDecoder as _, ImageFormat, ImageReader, Limits};

pub use super::image_spec::{Color, ImageSpec, MAX_LEVELS};
use super::png_chunks::without_ancillary;
use super::records::{self, decode_each};
use super::room::{Room, Taken};
use super::ycocg::{
    YCOCG_R_CATEGORIES, ycocg_from_bins, ycocg_inverse, ycocg_r, ycocg_r_from_categories, ycocg_r_inverse,
    ycocg_r_to_categories, ycocg_to_bins,
};
use super::{BadRecord, Decoded, Decoder, Output, RowShape, ValueKind};
use crate::data::{Table, Values};
use crate::error::{Error, Result};
use crate::source::Piece;

/// No side of an image may be longer.
const MAX_SIDE: usize = 1 << 16;

/// Bytes that decoding one image may take where nothing else is said: a header is a few bytes long and can claim
/// anything.
const MAX_BYTES: u64 = 512 << 20;

/// However small the memory of a run is, an image that takes this much is decoded.
const LEAST_BYTES: u64 = 64 << 20;

/// A progressive JPEG keeps all its coefficients until it is decoded, twice the bytes of its pixels.
const JPEG_COPIES: u64 = 3;

/// Whether the header of an image file says that it has shades and no colours; `None` if it has no such header.
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

/// Turns image files into rows of pixels.
#[derive(Clone, Debug)]
pub struct ImageDecoder {
    spec: ImageSpec,
    /// Height and width of a row.
    tile: (usize, usize),
    shape: RowShape,
    /// Bytes that decoding one image may take.
    max_bytes: u64,
    /// What all workers together decode in: half of that, or one image alone.
    room: Arc<Room>,
}

impl ImageDecoder {
    /// A decoder for such images.
    pub fn new(spec: ImageSpec) -> Result<Self> {
        let tile = match (spec.patch, spec.size) {
            (Some(patch), _) => (patch, patch),
            (None, Some(size)) => size,
            (None, None) => return Err(Error::option("images need `patch`, or `size` where an image is a row")),
        };
        if let Some((height, width)) = spec.size.filter(|&(height, width)| height == 0 || width == 0) {
            return Err(Error::option(format!("size = {height}×{width}: must be at least 1×1")));
        }
        if tile.0 == 0 {
            return Err(Error::option("patch = 0: must be at least 1"));
        }
        let (height, width) = spec.size.unwrap_or(tile);
        if height.max(width) > MAX_SIDE || tile.0.max(tile.1) > MAX_SIDE {
            return Err(Error::option(format!("size = {height}×{width}: must be at most {MAX_SIDE}×{MAX_SIDE}")));
        }
        if tile.0 > height || tile.1 > width {
            return Err(Error::option(format!("patch = {}: larger than the images, {height}×{width}", tile.0)));
        }
        if let Err(why) = spec.check_levels() {
            return Err(Error::option(format!("levels = {}: {why}", spec.categories())));
        }
        let channels = spec.color.channels();
        let values = ValueKind::Categories(spec.categories());
        let grid = Some(vec![tile.0, tile.1, channels]);
        let shape = RowShape { grid, ..RowShape::of(tile.0 * tile.1 * channels, values) };
        Ok(Self { spec, tile, shape, max_bytes: MAX_BYTES, room: Arc::new(Room::new(MAX_BYTES / 2)) })
    }

    /// Decodes in so much memory, however many workers there are. An image that needs more is a bad record.
    pub fn with_memory(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes.max(LEAST_BYTES);
        self.room = Arc::new(Room::new(self.max_bytes / 2));
        self
    }

    /// Height and width of the picture that a row is.
    pub fn tile(&self) -> (usize, usize) {
        self.tile
    }

    /// Red, green and blue of every pixel of a row, `[height × width]`. Takes any categories, such as a circuit draws:
    /// what no colour maps to becomes the nearest one. Without loss for rows that [`Decoder::decode`] made, except in
    /// lossy YCoCg and where there are fewer levels than 256.
    pub fn colours(&self, row: &[u32]) -> Vec<[u8; 3]> {
        let byte = |category: u32| category.min(255) as u8;
        let shade = |category: u32| shade(category, self.spec.categories());
        let pixels = row.as_chunks::<3>().0.iter();
        match self.spec.color {
            Color::Grey => row.iter().map(|&category| [shade(category); 3]).collect(),
            Color::Rgb => pixels.map(|pixel| pixel.map(shade)).collect(),
            Color::Ycocg => pixels.map(|pixel| ycocg_inverse(ycocg_from_bins(pixel.map(byte)))).collect(),
            Color::YcocgR => {
                let narrow = |category: u32| category.min(YCOCG_R_CATEGORIES - 1) as u16;
                pixels.map(|pixel| ycocg_r_inverse(ycocg_r_from_categories(pixel.map(narrow)))).collect()
            }
        }
    }

    /// The rows of all images. `extend` takes the pixels of one line of a patch.
    fn rows<T>(&self, piece: &Piece, extend: impl Fn(&mut Vec<T>, &[u8])) -> Result<(Vec<T>, Vec<BadRecord>)> {
        let files = records::blobs(piece, "images")?;
        let mut rows = Vec::new();
        let mut is_too_much = false;
        let bad = decode_each(piece, |record| {
            if is_too_much {
                return Ok(()); // the piece is refused below
            }
            let pixels = self.open(files.get(record), size_of::<T>() as u64)?;
            let row_bytes = (rows.len() + pixels.bytes.len()) as u64 * size_of::<T>() as u64;
            is_too_much = !rows.is_empty() && row_bytes > self.max_bytes / 2;
            let (tile_height, tile_width) = self.tile;
            let channels = self.spec.color.channels();
            for top in 0..pixels.height / tile_height {
                for left in 0..pixels.width / tile_width {
                    for line in top * tile_height..(top + 1) * tile_height {
                        let start = (line * pixels.width + left * tile_width) * channels;
                        extend(&mut rows, &pixels.bytes[start..start + tile_width * channels]);
                    }
                }
            }
            Ok(())
        });
        if is_too_much {
            return Err(Error::option(format!(
                "{}: {} images that are read together become more than {} MiB of rows: raise pipeline.memory",
                piece.file,
                piece.num_records(),
                self.max_bytes >> 21
            )));
        }
        Ok((rows, bad))
    }

    /// Decodes a file; an `Err` is the reason why it is bad. Sizes are checked before any pixel is decoded. A category
    /// of a row will take `category_bytes`.
    fn open(&self, file: &[u8], category_bytes: u64) -> std::result::Result<Pixels<'_>, String> {
        let format = match image::guess_format(file) {
            Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg)) => format,
            _ => return Err("neither PNG nor JPEG".into()),
        };
        if format == ImageFormat::Jpeg && !jpeg_is_whole(file) {
            return Err("the JPEG ends early".into());
        }
        let mut limits = Limits::default();
        limits.max_image_width = Some(MAX_SIDE as u32);
        limits.max_image_height = Some(MAX_SIDE as u32);
        limits.max_alloc = Some(self.max_bytes);
        let file = if format == ImageFormat::Png { without_ancillary(file) } else { file.into() };
        let mut reader = ImageReader::with_format(Cursor::new(&*file), format);
        reader.limits(limits);
        let decoder = reader.into_decoder().map_err(|error| error.to_string())?;
        let (width, height) = decoder.dimensions();
        self.check_size(height as usize, width as usize)?;
        let copies = if format == ImageFormat::Jpeg && jpeg_is_progressive(&file) { JPEG_COPIES } else { 1 };
        let row_bytes = u64::from(height) * u64::from(width) * self.spec.color.channels() as u64 * (1 + category_bytes);
        let needed = decoder.total_bytes().saturating_mul(copies).saturating_add(row_bytes);
        if needed > self.max_bytes {
            return Err(format!(
                "an image of {height}×{width} needs {} MiB to be decoded, more than {} MiB: raise pipeline.memory",
                needed.div_ceil(1 << 20),
                self.max_bytes >> 20
            ));
        }
        let taken = self.room.take(needed);
        let image = DynamicImage::from_decoder(decoder).map_err(|error| error.to_string())?;
        let bytes = match self.spec.color {
            Color::Grey if image.color().has_color() => grey(image.into_rgb8().as_raw()),
            Color::Grey => image.into_luma8().into_raw(),
            Color::YcocgR | Color::Ycocg | Color::Rgb => image.into_rgb8().into_raw(),
        };
        Ok(Pixels { height: height as usize, width: width as usize, bytes, _taken: taken })
    }

    fn check_size(&self, height: usize, width: usize) -> std::result::Result<(), String> {
        if let Some(size) = self.spec.size.filter(|&size| size != (height, width)) {
            return Err(format!("an image of {height}×{width} where all have {}×{}", size.0, size.1));
        }
        if height < self.tile.0 || width < self.tile.1 {
            return Err(format!("an image of {height}×{width} has no patch of {}×{}", self.tile.0, self.tile.1));
        }
        Ok(())
    }
}

impl Decoder for ImageDecoder {
    fn shape(&self) -> &RowShape {
        &self.shape
    }

    fn identity(&self) -> String {
        let patch = self.spec.patch.map(|patch| format!(" patch={patch}")).unwrap_or_default();
        let size = self.spec.size.map(|(height, width)| format!(" size={height}x{width}")).unwrap_or_default();
        // All 256 are not named, however they were asked for: rows are the same.
        let levels = self.spec.levels.filter(|&levels| levels != MAX_LEVELS);
        let levels = levels.map(|levels| format!(" levels={levels}")).unwrap_or_default();
        format!("image color={}{levels}{patch}{size}", self.spec.color.name())
    }

    fn expansion(&self) -> u64 {
        16 // a photograph as JPEG; a PNG grows less
    }

    fn decode(&self, piece: &Piece) -> Result<Decoded> {
        let (column, bad) = match self.spec.color {
            Color::Rgb | Color::Grey => {
                let levels: [u8; 256] = std::array::from_fn(|byte| nearest_level(byte as u8, self.spec.categories()));
                let level = |&byte: &u8| levels[usize::from(byte)];
                let (rows, bad) = self.rows(piece, |rows, line| rows.extend(line.iter().map(level)))?;
                (Values::U8(rows), bad)
            }
            Color::Ycocg => {
                let (rows, bad) = self.rows(piece, |rows, line| rows.extend(colours(line).flat_map(ycocg_to_bins)))?;
                (Values::U8(rows), bad)
            }
            Color::YcocgR => {
                let categories = |rgb| ycocg_r_to_categories(ycocg_r(rgb));
                let (rows, bad) = self.rows(piece, |rows, line| rows.extend(colours(line).flat_map(categories)))?;
                (Values::U16(rows), bad)
            }
        };
        let table = Table::new(self.shape.num_vars, column)?;
        Ok(Decoded { output: Output::Rows(table), records: piece.num_records() as u64, bad })
    }
}

/// A decoded image, in as many channels as its colours are asked for.
struct Pixels<'a> {
    height: usize,
    width: usize,
    /// `[height × width × channels]`, channel fastest.
    bytes: Vec<u8>,
    /// Room for these and for the rows that are made of them, until they are.
    _taken: Taken<'a>,
}

/// The nearest of so many shades, evenly spaced from 0 to 255.
fn nearest_level(byte: u8, levels: u32) -> u8 {
    ((u32::from(byte) * (levels - 1) * 2 + 255) / 510) as u8
}

/// A shade of so many as a byte, the way back from [`nearest_level`].
fn shade(level: u32, levels: u32) -> u8 {
    let last = levels - 1;
    ((level.min(last) * 510 + last) / (2 * last)) as u8
}

fn colours(line: &[u8]) -> impl Iterator<Item = [u8; 3]> + '_ {
    line.as_chunks::<3>().0.iter().copied()
}

/// The luma of colours, by the weights of Rec. 709; grey colours stay what they are.
fn grey(rgb: &[u8]) -> Vec<u8> {
    let luma = |rgb: [u8; 3]| {
        let [red, green, blue] = rgb.map(u32::from);
        ((2126 * red + 7152 * green + 722 * blue + 5000) / 10_000) as u8
    };
    colours(rgb).map(luma).collect()
}

/// Returns true if a JPEG is of the kind that refines the whole image again and again.
fn jpeg_is_progressive(file: &[u8]) -> bool {
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

/// Whether a JPEG reaches its end marker. The decoder would fill up what is missing with grey, and say nothing.
fn jpeg_is_whole(file: &[u8]) -> bool {
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

#[cfg(test)]
mod tests {
    use image::{GrayAlphaImage, GrayImage, ImageBuffer, Luma, Rgb, RgbImage, RgbaImage};
    use proptest::prelude::*;

    use super::super::records::testing::{blobs, lists};
    use super::*;
    use crate::error::ErrorKind;

    fn decoder(color: Color, patch: impl Into<Option<usize>>, size: impl Into<Option<(usize, usize)>>) -> ImageDecoder {
        with_levels(color, None, patch, size)
    }

    fn with_levels(
        color: Color,
        levels: impl Into<Option<u32>>,
        patch: impl Into<Option<usize>>,
        size: impl Into<Option<(usize, usize)>>,
    ) -> ImageDecoder {
        let (levels, patch, size) = (levels.into(), patch.into(), size.into());
        ImageDecoder::new(ImageSpec { patch, color, levels, size }).unwrap()
    }

    fn encode(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
        let mut file = Cursor::new(Vec::new());
        image.into().write_to(&mut file, format).unwrap();
        file.into_inner()
    }

    fn png(image: impl Into<DynamicImage>) -> Vec<u8> {
        encode(image, ImageFormat::Png)
    }

    /// A red of 10·row + column.
    fn numbered(height: u32, width: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| Rgb([(10 * y + x) as u8, 1, 2]))
    }

    fn rows(decoder: &ImageDecoder, files: &[&[u8]]) -> Values {
        let decoded = decoder.decode(&blobs(files)).unwrap();
        assert_eq!(decoded.bad, []);
        let Output::Rows(table) = decoded.output else { panic!("rows") };
        table.values().clone()
    }

    fn reason(decoder: &ImageDecoder, file: &[u8]) -> String {
        let decoded = decoder.decode(&blobs(&[file])).unwrap();
        assert_eq!(decoded.output, Output::Rows(Table::new(decoder.shape.num_vars, empty(decoder)).unwrap()));
        assert_eq!((decoded.records, decoded.bad.len()), (1, 1));
        decoded.bad[0].reason.clone()
    }

    fn empty(decoder: &ImageDecoder) -> Values {
        if decoder.spec.color == Color::YcocgR { Values::U16(vec![]) } else { Values::U8(vec![]) }
    }

    #[test]
    fn only_a_jpeg_that_refines_itself_is_progressive() {
        let file =
            |frame: u8| [&[0xff, 0xd8, 0xff, 0xe0, 0, 4, 9, 9, 0xff, frame, 0, 3, 1][..], &[0xff, 0xda, 0, 2]].concat();
        assert!(jpeg_is_progressive(&file(0xc2)) && !jpeg_is_progressive(&file(0xc0)));
        // The marker inside a segment, or after the data has begun, is none; nor is a file that is cut off.
        assert!(!jpeg_is_progressive(&[0xff, 0xd8, 0xff, 0xe0, 0, 6, 0xff, 0xc2, 0, 3, 0xff, 0xda, 0, 2]));
        assert!(!jpeg_is_progressive(&[0xff, 0xd8, 0xff, 0xda, 0, 2, 0xff, 0xc2, 0, 3]));
        (0..13).for_each(|length| assert!(!jpeg_is_progressive(&file(0xc0)[..length])));
    }

    #[test]
    fn an_image_that_needs_more_memory_than_there_is_is_bad_and_so_are_many_together() {
        let small = decoder(Color::YcocgR, 2, None).with_memory(1);
        assert_eq!(small.max_bytes, LEAST_BYTES);
        // 3 bytes a pixel to decode, and 9 more as a row.
        let side = 2 * ((LEAST_BYTES / 12) as f64).sqrt() as u32 / 2;
        assert_eq!(small.decode(&blobs(&[&png(RgbImage::new(side - 8, side - 8))])).unwrap().bad, []);
        let why = reason(&small, &png(RgbImage::new(side + 8, side + 8)));
        assert!(why.contains("MiB to be decoded, more than 64 MiB: raise pipeline.memory"), "{why}");
        let half = png(RgbImage::new(side / 2, side / 2));
        let error = small.decode(&blobs(&[&half[..]; 5])).unwrap_err();
        assert!(error.kind() == ErrorKind::Option && error.to_string().contains("5 images"), "{error}");
    }

    #[test]
    fn patches_go_row_by_row_with_the_channel_fastest_and_the_remainder_is_dropped() {
        let decoder = decoder(Color::Rgb, 2, None);
        assert_eq!(decoder.shape.grid, Some(vec![2, 2, 3]));
        let Values::U8(values) = rows(&decoder, &[&png(numbered(5, 4))]) else { panic!("bytes") };
        let reds: Vec<u8> = values.iter().copied().step_by(3).collect();
        assert_eq!(reds, [0, 1, 10, 11, 2, 3, 12, 13, 20, 21, 30, 31, 22, 23, 32, 33]);
        assert!(values.chunks(3).all(|pixel| pixel[1..] == [1, 2]));
    }

    #[test]
    fn a_whole_image_is_a_row() {
        let decoder = decoder(Color::Rgb, None, (2, 3));
        assert_eq!((decoder.shape.num_vars, decoder.shape.grid.clone()), (18, Some(vec![2, 3, 3])));
        assert_eq!(rows(&decoder, &[&png(numbered(2, 3))]), Values::U8(numbered(2, 3).into_raw()));
        assert_eq!(reason(&decoder, &png(numbered(3, 2))), "an image of 3×2 where all have 2×3");
    }

    #[test]
    fn colours_are_transformed_pixel_by_pixel() {
        let file = png(RgbImage::from_raw(2, 1, vec![255, 255, 255, 255, 0, 0]).unwrap());
        assert_eq!(rows(&decoder(Color::YcocgR, 1, None), &[&file]), Values::U16(vec![255, 256, 256, 63, 511, 129]));
        assert_eq!(rows(&decoder(Color::Ycocg, 1, None), &[&file]), Values::U8(vec![255, 128, 128, 64, 255, 64]));
        assert_eq!(rows(&decoder(Color::Grey, 1, None), &[&file]), Values::U8(vec![255, 54]));
    }

    #[test]
    fn a_row_is_a_picture_again() {
        let image = RgbImage::from_fn(6, 4, |x, y| Rgb([(40 * x) as u8, (60 * y) as u8, (9 * x * y) as u8]));
        let colours: Vec<[u8; 3]> = image.pixels().map(|pixel| pixel.0).collect();
        let back = |color: Color, image: DynamicImage| {
            let decoder = decoder(color, None, (4, 6));
            let row = rows(&decoder, &[&png(image)]);
            let row: Vec<u32> = (0..row.len()).map(|at| row.category(at).unwrap()).collect();
            assert_eq!(decoder.tile(), (4, 6));
            decoder.colours(&row)
        };
        for color in [Color::Rgb, Color::YcocgR] {
            assert_eq!(back(color, image.clone().into()), colours);
        }
        let near = back(Color::Ycocg, image.clone().into());
        assert!(near.as_flattened().iter().zip(colours.as_flattened()).all(|(a, b)| a.abs_diff(*b) <= 2));
        let grey = GrayImage::from_fn(6, 4, |x, y| Luma([(40 * x + y) as u8]));
        let want: Vec<[u8; 3]> = grey.pixels().map(|pixel| [pixel.0[0]; 3]).collect();
        assert_eq!(back(Color::Grey, grey.into()), want);
    }

    #[test]
    fn fewer_levels_are_the_nearest_shades_from_black_to_white() {
        let bytes: Vec<u8> = (0..=255).collect();
        let file = png(GrayImage::from_raw(256, 1, bytes.clone()).unwrap());
        for levels in [2, 3, 5, 16, 100, 255, 256] {
            let decoder = with_levels(Color::Grey, levels, None, (1, 256));
            assert_eq!(decoder.shape.values, ValueKind::Categories(levels));
            let Values::U8(row) = rows(&decoder, &[&file]) else { panic!("bytes") };
            assert_eq!((row[0], u32::from(row[255])), (0, levels - 1));
            let shades: Vec<u8> =
                decoder.colours(&(0..levels).collect::<Vec<_>>()).into_iter().map(|[grey, ..]| grey).collect();
            assert_eq!((shades[0], shades[levels as usize - 1]), (0, 255));
            for (&byte, &level) in bytes.iter().zip(&row) {
                let away = |shade: u8| f64::from(shade.abs_diff(byte));
                let nearest = shades.iter().map(|&shade| away(shade)).fold(f64::INFINITY, f64::min);
                // Shades are rounded to bytes, by half a step at most.
                assert!(away(shades[usize::from(level)]) <= nearest + 1.0, "{byte} is level {level} of {levels}");
            }
        }
        let three = with_levels(Color::Rgb, 3, 1, None);
        let file = png(RgbImage::from_raw(2, 1, vec![0, 63, 64, 191, 192, 255]).unwrap());
        assert_eq!(rows(&three, &[&file]), Values::U8(vec![0, 0, 1, 1, 2, 2]));
        assert_eq!(three.colours(&[0, 1, 2]), [[0, 128, 255]]);
    }

    #[test]
    fn levels_of_all_256_shades_change_nothing() {
        let file = png(GrayImage::from_raw(256, 1, (0..=255).collect()).unwrap());
        assert_eq!(rows(&with_levels(Color::Grey, 256, 1, None), &[&file]), Values::U8((0..=255).collect()));
        assert_eq!(
            with_levels(Color::Grey, 256, 4, None).identity(),
            with_levels(Color::Grey, None, 4, None).identity()
        );
    }

    #[test]
    fn levels_that_cannot_be_are_refused() {
        for (color, levels, words) in [
            (Color::Grey, 1, "levels = 1: must be in 2..=256"),
            (Color::Rgb, 257, "levels = 257: must be in 2..=256"),
            (Color::Ycocg, 16, "levels = 16: has no meaning for color = \"ycocg\""),
        ] {
            let error =
                ImageDecoder::new(ImageSpec { patch: Some(4), color, levels: Some(levels), size: None }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Option);
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    #[test]
    fn categories_that_no_image_has_are_a_colour_too() {
        for color in [Color::Rgb, Color::YcocgR, Color::Ycocg, Color::Grey] {
            let decoder = decoder(color, 2, None);
            let colours = decoder.colours(&vec![u32::MAX; 4 * color.channels()]);
            assert_eq!(colours, [[255; 3]; 4].map(|white| if color == Color::Ycocg { colours[0] } else { white }));
        }
    }

    #[test]
    fn every_kind_of_image_becomes_grey_or_colour_of_8_bits() {
        let files = [
            png(GrayImage::from_raw(1, 1, vec![77]).unwrap()),
            png(GrayAlphaImage::from_raw(1, 1, vec![77, 3]).unwrap()),
            png(RgbImage::from_raw(1, 1, vec![77, 77, 77]).unwrap()),
            png(RgbaImage::from_raw(1, 1, vec![77, 77, 77, 0]).unwrap()),
            png(ImageBuffer::<Luma<u16>, _>::from_raw(1, 1, vec![77 * 257 + 100]).unwrap()),
            png(ImageBuffer::<Rgb<u16>, _>::from_raw(1, 1, vec![77 * 257 - 100; 3]).unwrap()),
            encode(GrayImage::from_raw(1, 1, vec![77]).unwrap(), ImageFormat::Jpeg),
        ];
        for file in &files {
            assert_eq!(rows(&decoder(Color::Grey, 1, None), &[file]), Values::U8(vec![77]));
            assert_eq!(rows(&decoder(Color::Rgb, 1, None), &[file]), Values::U8(vec![77, 77, 77]));
        }
    }

    #[test]
    fn jpegs_are_decoded_and_one_that_is_cut_is_bad() {
        let image = RgbImage::from_fn(32, 32, |x, y| Rgb([(8 * x) as u8, (8 * y) as u8, 128]));
        let file = encode(image.clone(), ImageFormat::Jpeg);
        let Values::U8(values) = rows(&decoder(Color::Rgb, None, (32, 32)), &[&file]) else { panic!("bytes") };
        assert!(values.iter().zip(image.as_raw()).all(|(value, original)| value.abs_diff(*original) < 40));
        for length in 2..file.len() {
            assert!(!jpeg_is_whole(&file[..length]));
        }
        assert_eq!(reason(&decoder(Color::Rgb, 8, None), &file[..file.len() / 2]), "the JPEG ends early");
    }

    #[test]
    fn a_png_that_is_cut_or_damaged_is_bad_with_the_reason_of_the_decoder() {
        let decoder = decoder(Color::YcocgR, 16, None);
        let file = png(RgbImage::from_fn(32, 32, |x, y| Rgb([(x * y) as u8, (x ^ y) as u8, (x * 77 + y * 31) as u8])));
        assert!(!reason(&decoder, &file[..file.len() / 2]).is_empty());
        let mut damaged = file.clone();
        damaged[file.len() / 2] ^= 1;
        assert!(reason(&decoder, &damaged).contains("CRC"), "{}", reason(&decoder, &damaged));
        assert_eq!(reason(&decoder, b"GIF89a"), "neither PNG nor JPEG");
        assert_eq!(reason(&decoder, b""), "neither PNG nor JPEG");
    }

    #[test]
    fn a_bad_image_leaves_nothing_behind_and_the_others_are_rows() {
        let decoder = decoder(Color::Grey, 2, None);
        let good = png(GrayImage::from_raw(2, 2, vec![1, 2, 3, 4]).unwrap());
        let small = png(GrayImage::from_raw(2, 1, vec![1, 2]).unwrap());
        let mut piece = blobs(&[&good, &small, &good, &good]);
        piece.bad.push((2, "null".into()));
        let decoded = decoder.decode(&piece).unwrap();
        assert_eq!(decoded.output, Output::Rows(Table::new(4, Values::U8(vec![1, 2, 3, 4, 1, 2, 3, 4])).unwrap()));
        let lines: Vec<String> = decoded.bad.iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["shard: row 101: an image of 1×2 has no patch of 2×2", "shard: row 102: null"]);
    }

    #[test]
    fn a_header_that_claims_too_much_is_refused_before_anything_is_decoded() {
        let decoder = decoder(Color::Grey, 1, None);
        for side in [60_000u32, 70_000, 0x7fff_ffff] {
            // The header chunk is the length, `IHDR`, width, height, five bytes more, and its checksum.
            let mut file = png(GrayImage::from_raw(1, 1, vec![0]).unwrap());
            file[16..20].copy_from_slice(&side.to_be_bytes());
            file[20..24].copy_from_slice(&side.to_be_bytes());
            let checksum = crc32(&file[12..29]);
            file[29..33].copy_from_slice(&checksum.to_be_bytes());
            let reason = reason(&decoder, &file);
            assert!(
                reason.contains("MiB") || reason.contains("limit") || reason.contains("exceed"),
                "{side}: {reason}"
            );
        }
    }

    /// The checksum of PNG chunks, bit by bit.
    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
        })
    }

    #[test]
    fn impossible_options_and_numbers_are_refused() {
        for (patch, size) in [
            (None, None),
            (Some(0), None),
            (None, Some((0, 3))),
            (Some(4), Some((8, 3))),
            (Some(4), Some((0, 3))),
            (Some(MAX_SIDE + 1), None),
            (None, Some((1, MAX_SIDE + 1))),
            (Some(usize::MAX), None),
        ] {
            let error = ImageDecoder::new(ImageSpec { patch, color: Color::Rgb, levels: None, size }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Option, "{error}");
        }
        let error = decoder(Color::Rgb, 1, None).decode(&lists(Values::U8(vec![1]), &[1])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn the_decoder_is_named_with_all_that_decides_its_rows() {
        assert_eq!(decoder(Color::YcocgR, 16, None).identity(), "image color=ycocg-r patch=16");
        assert_eq!(decoder(Color::Grey, None, (28, 30)).identity(), "image color=grey size=28x30");
        assert_eq!(with_levels(Color::Grey, 16, 28, None).identity(), "image color=grey levels=16 patch=28");
        let spec: ImageSpec = serde_json::from_str(r#"{"patch": 16, "color": "ycocg-r", "size": [32, 32]}"#).unwrap();
        assert_eq!(ImageDecoder::new(spec).unwrap().identity(), "image color=ycocg-r patch=16 size=32x32");
        for color in [Color::YcocgR, Color::Ycocg, Color::Rgb, Color::Grey] {
            assert_eq!(serde_json::to_string(&color).unwrap(), format!("{:?}", color.name()));
        }
    }

    proptest! {
        /// Nothing that a file contains makes the decoder panic.
        #[test]
        fn damaged_files_are_decoded_or_bad(
            jpeg in any::<bool>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            length in any::<prop::sample::Index>(),
            cut in any::<bool>(),
        ) {
            let format = if jpeg { ImageFormat::Jpeg } else { ImageFormat::Png };
            let mut file = encode(numbered(16, 9), format);
            for (place, value) in damage {
                let place = place.index(file.len());
                file[place] = value;
            }
            if cut {
                file.truncate(length.index(file.len()));
            }
            let decoded = decoder(Color::Rgb, 8, None).decode(&blobs(&[&file])).unwrap();
            let Output::Rows(table) = decoded.output else { panic!("rows") };
            prop_assert_eq!(table.num_rows() == 0, decoded.bad.len() == 1);
        }
    }
}
