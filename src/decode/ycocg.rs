//! Colour transforms: luma and two chroma values in place of red, green and blue.
//!
//! * **YCoCg-R** (Malvar and Sullivan 2003) is lossless, in integers: Y in 0..=255, Co and Cg in −255..=255. As
//!   categories, Y stays and Co and Cg are moved up by 256, so that all three have 512 categories and no chroma is
//!   category 256.
//! * **YCoCg** is lossy: all three in [−1, 1], then 256 bins of equal width; bin `b` is [−1 + b/128, −1 + (b+1)/128),
//!   and 1 belongs to the last. Black is (−1, 0, 0), white (1, 0, 0).
//!
//! The inverses take any categories, such as a circuit draws: what no colour maps to becomes the nearest colour by
//! clamping each channel. Used by `image`, and to look at samples.

/// Categories of every channel of YCoCg-R.
pub const YCOCG_R_CATEGORIES: u32 = 512;

/// Categories of every channel of lossy YCoCg.
pub const YCOCG_BINS: u32 = 256;

/// Where zero chroma lies among the categories of YCoCg-R.
const CHROMA_OFFSET: i16 = 256;

/// YCoCg-R of a colour: Y in 0..=255, Co and Cg in −255..=255.
pub fn ycocg_r([red, green, blue]: [u8; 3]) -> [i16; 3] {
    let [red, green, blue] = [red, green, blue].map(i16::from);
    // Co = R − B; t = B + ⌊Co/2⌋; Cg = G − t; Y = t + ⌊Cg/2⌋
    let co = red - blue;
    let t = blue + (co >> 1);
    let cg = green - t;
    [t + (cg >> 1), co, cg]
}

/// The colour of a YCoCg-R triple: the exact inverse of [`ycocg_r`].
pub fn ycocg_r_inverse([y, co, cg]: [i16; 3]) -> [u8; 3] {
    let t = y - (cg >> 1);
    let green = cg + t;
    let blue = t - (co >> 1);
    [blue + co, green, blue].map(|channel| channel.clamp(0, 255) as u8)
}

/// A YCoCg-R triple as three categories below 512.
pub fn ycocg_r_to_categories([y, co, cg]: [i16; 3]) -> [u16; 3] {
    [y, co + CHROMA_OFFSET, cg + CHROMA_OFFSET].map(|value| value as u16)
}

/// The YCoCg-R triple of three categories; the inverse of [`ycocg_r_to_categories`].
pub fn ycocg_r_from_categories(categories: [u16; 3]) -> [i16; 3] {
    let [y, co, cg] = categories.map(|category| category.min(511) as i16);
    [y, co - CHROMA_OFFSET, cg - CHROMA_OFFSET]
}

/// Lossy YCoCg of a colour, each channel in [−1, 1].
pub fn ycocg(rgb: [u8; 3]) -> [f32; 3] {
    let [red, green, blue] = rgb.map(|channel| f32::from(channel) / 255.0);
    // co = r − b; t = b + co/2; cg = g − t; y = 2t + cg − 1 (the paper prints + 1, which would end at 3)
    let co = red - blue;
    let t = blue + co / 2.0;
    let cg = green - t;
    [2.0 * t + cg - 1.0, co, cg]
}

/// The colour nearest to a lossy YCoCg triple.
pub fn ycocg_inverse([y, co, cg]: [f32; 3]) -> [u8; 3] {
    let t = (y + 1.0 - cg) / 2.0;
    let green = cg + t;
    let blue = t - co / 2.0;
    // `as` saturates, and makes 0 of what is not a number
    [blue + co, green, blue].map(|channel| (channel * 255.0).round() as u8)
}

/// The bins of a colour's lossy YCoCg, each below 256.
///
/// In integers, so that a value on the border of two bins is not moved by rounding: with v = k/1020 the place of a
/// value in [−1, 1], its bin is ⌊256·v⌋.
pub fn ycocg_to_bins([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let [red, green, blue] = [red, green, blue].map(i32::from);
    // (y+1)/2 = (R + 2G + B)/1020; (co+1)/2 = (R − B + 255)/510; (cg+1)/2 = (2G − R − B + 510)/1020
    let places = [red + 2 * green + blue, 2 * (red - blue + 255), 2 * green - red - blue + 510];
    places.map(|place| (place * 256 / 1020).min(255) as u8)
}

/// The lossy YCoCg triple in the middle of three bins.
pub fn ycocg_from_bins(bins: [u8; 3]) -> [f32; 3] {
    bins.map(|bin| (f32::from(bin) + 0.5) / 128.0 - 1.0)
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;

    /// Some colour among all 2²⁴ for which a law does not hold.
    fn counterexample(law: impl Fn([u8; 3]) -> bool + Sync) -> Option<[u8; 3]> {
        let colours = (0..1u32 << 24).into_par_iter();
        colours.map(|colour| [(colour >> 16) as u8, (colour >> 8) as u8, colour as u8]).find_any(|&rgb| !law(rgb))
    }

    #[test]
    fn ycocg_r_is_reversible_for_every_colour() {
        let broken = counterexample(|rgb| {
            let ycc = ycocg_r(rgb);
            let categories = ycocg_r_to_categories(ycc);
            ycocg_r_inverse(ycc) == rgb
                && ycocg_r_from_categories(categories) == ycc
                && categories[0] < 256
                && categories.iter().all(|&category| u32::from(category) < YCOCG_R_CATEGORIES)
        });
        assert_eq!(broken, None);
    }

    #[test]
    fn ycocg_r_of_known_colours() {
        for (rgb, ycc) in [
            ([0, 0, 0], [0, 0, 0]),
            ([255, 255, 255], [255, 0, 0]),
            ([255, 0, 0], [63, 255, -127]),
            ([0, 255, 0], [127, 0, 255]),
            ([0, 0, 255], [63, -255, -127]),
            ([255, 0, 255], [127, 0, -255]),
        ] {
            assert_eq!(ycocg_r(rgb), ycc, "{rgb:?}");
        }
        assert_eq!(ycocg_r_to_categories([255, 0, -255]), [255, 256, 1]);
    }

    #[test]
    fn ycocg_of_the_eight_corners() {
        for (rgb, ycc, bins) in [
            ([0, 0, 0], [-1.0, 0.0, 0.0], [0, 128, 128]),
            ([255, 255, 255], [1.0, 0.0, 0.0], [255, 128, 128]),
            ([255, 0, 0], [-0.5, 1.0, -0.5], [64, 255, 64]),
            ([0, 255, 0], [0.0, 0.0, 1.0], [128, 128, 255]),
            ([0, 0, 255], [-0.5, -1.0, -0.5], [64, 0, 64]),
            ([255, 255, 0], [0.5, 1.0, 0.5], [192, 255, 192]),
            ([0, 255, 255], [0.5, -1.0, 0.5], [192, 0, 192]),
            ([255, 0, 255], [0.0, 0.0, -1.0], [128, 128, 0]),
        ] {
            assert_eq!(ycocg(rgb), ycc, "{rgb:?}");
            assert_eq!(ycocg_to_bins(rgb), bins, "{rgb:?}");
            assert_eq!(ycocg_inverse(ycc), rgb);
        }
    }

    #[test]
    fn a_value_lies_in_its_bin_and_the_middle_of_a_bin_is_a_near_colour() {
        let broken = counterexample(|rgb| {
            let (ycc, middle) = (ycocg(rgb), ycocg_from_bins(ycocg_to_bins(rgb)));
            // half a bin, and what f32 loses near 1
            ycocg_inverse(ycc) == rgb
                && ycc.iter().zip(middle).all(|(value, middle)| (value - middle).abs() <= 1.0 / 256.0 + 1e-6)
                && rgb.into_iter().zip(ycocg_inverse(middle)).all(|(channel, near)| channel.abs_diff(near) <= 2)
        });
        assert_eq!(broken, None);
    }

    #[test]
    fn categories_that_no_colour_has_are_clamped() {
        assert_eq!(ycocg_r_inverse(ycocg_r_from_categories([0, 0, 256])), [0, 0, 128]);
        assert_eq!(ycocg_r_inverse(ycocg_r_from_categories([u16::MAX; 3])), [255, 255, 255]);
        assert_eq!(ycocg_inverse([f32::NAN, 0.0, 0.0]), [0, 0, 0]);
    }
}
