//! Pictures side by side in one PNG, large enough for a person to see.
//!
//! Tiles of one size go left to right and top to bottom, with thin white gaps around each. A pixel of a tile is a
//! square of `scale` pixels: nothing is smoothed. `image` turns rows into the colours that go in.

use std::io::Cursor;

use image::{ImageFormat, RgbImage};

use crate::error::{Error, Result};

/// Pixels between tiles and around all of them.
pub const GAP: usize = 2;

/// The most pixels of a mosaic: 200 MB of colours.
const MOST_PIXELS: usize = 1 << 26;

/// A grid of tiles.
#[derive(Clone, Debug)]
pub struct Mosaic {
    /// Height and width of a tile, before it is scaled.
    tile: (usize, usize),
    /// Tiles in a line.
    columns: usize,
    scale: usize,
    /// Height and width in pixels.
    size: (usize, usize),
    /// `[height × width × 3]`, channel fastest.
    pixels: Vec<u8>,
    /// Tiles so far.
    filled: usize,
}

impl Mosaic {
    /// Room for `num_tiles` tiles of `[height, width]`, `columns` in a line.
    pub fn new(tile: (usize, usize), num_tiles: usize, columns: usize, scale: usize) -> Result<Self> {
        let columns = columns.clamp(1, num_tiles.max(1));
        let side = |pixels: usize, tiles: usize| {
            pixels.checked_mul(scale)?.checked_add(GAP)?.checked_mul(tiles)?.checked_add(GAP)
        };
        let size = side(tile.0, num_tiles.div_ceil(columns)).zip(side(tile.1, columns));
        let size =
            size.filter(|(height, width)| height.checked_mul(*width).is_some_and(|pixels| pixels <= MOST_PIXELS));
        let Some(size) = size else {
            let (height, width) = tile;
            return Err(Error::option(format!(
                "{num_tiles} tiles of {height}×{width} pixels, {scale} times as large, are more than a picture of \
                 {MOST_PIXELS} pixels holds: take fewer, or a smaller scale"
            )));
        };
        Ok(Self { tile, columns, scale, size, pixels: vec![255; 3 * size.0 * size.1], filled: 0 })
    }

    /// Height and width in pixels.
    pub fn size(&self) -> (usize, usize) {
        self.size
    }

    /// Puts a tile, `[height × width]` colours, on the next place. Panics where there is no room for one more, or if it
    /// is of another size.
    pub fn push(&mut self, colours: &[[u8; 3]]) {
        let ((height, width), scale) = (self.tile, self.scale);
        assert_eq!(colours.len(), height * width, "a tile has {height}×{width} pixels");
        let top = GAP + self.filled / self.columns * (height * scale + GAP);
        let left = GAP + self.filled % self.columns * (width * scale + GAP);
        for line in 0..height * scale {
            let start = 3 * ((top + line) * self.size.1 + left);
            let colours =
                colours[line / scale * width..][..width].iter().flat_map(|colour| std::iter::repeat_n(colour, scale));
            let pixels = self.pixels[start..start + 3 * width * scale].as_chunks_mut::<3>().0;
            pixels.iter_mut().zip(colours).for_each(|(pixel, colour)| *pixel = *colour);
        }
        self.filled += 1;
    }

    /// The picture as a PNG file.
    pub fn into_png(self) -> Result<Vec<u8>> {
        let (height, width) = self.size;
        let image =
            RgbImage::from_raw(width as u32, height as u32, self.pixels).expect("as many pixels as its size says");
        let mut file = Cursor::new(Vec::new());
        image
            .write_to(&mut file, ImageFormat::Png)
            .map_err(|error| Error::format(format!("writing a PNG: {error}")))?;
        Ok(file.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_lie_on_their_places_with_gaps_between() {
        let mut mosaic = Mosaic::new((1, 2), 3, 2, 2).unwrap();
        for tile in 0..3u8 {
            mosaic.push(&[[tile, 0, 0], [tile, 9, 0]]);
        }
        assert_eq!(mosaic.size(), (GAP + 2 * (2 + GAP), GAP + 2 * (4 + GAP)));
        let image = image::load_from_memory(&mosaic.into_png().unwrap()).unwrap().into_rgb8();
        assert_eq!(image.dimensions(), (14, 10));
        for (x, y, pixel) in image.enumerate_pixels() {
            let inside = |at: u32, side: u32| (at % (side + GAP as u32)).checked_sub(GAP as u32);
            let want = match (inside(x, 4), inside(y, 2), (y / 4 * 2 + x / 6) as u8) {
                (Some(across), Some(_), tile) if tile < 3 => [tile, if across < 2 { 0 } else { 9 }, 0],
                _ => [255; 3],
            };
            assert_eq!(pixel.0, want, "{x} {y}");
        }
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_is_made() {
        assert!(Mosaic::new((16, 16), usize::MAX, 8, 4).is_err());
        assert!(Mosaic::new((16, 16), 64, 8, usize::MAX / 8).is_err());
        assert!(Mosaic::new((16, 16), 1 << 20, 1 << 10, 4).unwrap_err().to_string().contains("smaller scale"));
        assert_eq!(Mosaic::new((16, 16), 3, 8, 1).unwrap().size(), (20, 2 + 3 * 18), "no line is wider than its tiles");
    }
}
