//! Small shards in the shapes that people bring: Parquet of text, images and lists.

use std::fs::File;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use anemone::rng::Rng;
use arrow::array::{ArrayRef, BinaryArray, FixedSizeListArray, StringArray, StructArray, UInt8Array};
use arrow::datatypes::{DataType, Field};
use arrow::record_batch::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

/// Writes one column into a Parquet file with row groups of `group_rows`.
pub fn write_parquet(path: &Path, name: &str, column: ArrayRef, group_rows: usize) {
    let batch = RecordBatch::try_from_iter([(name, column)]).unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group_rows))
        .set_compression(Compression::ZSTD(Default::default()))
        .build();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Lines of words that follow one another with some rule, so that there is something to learn.
pub fn texts(count: usize, seed: u64) -> Vec<String> {
    let words =
        ["the", "sea", "anemone", "drifts", "over", "sand", "and", "waits", "for", "small", "fish", "to", "come"];
    let mut rng = Rng::new(seed);
    let mut word = 0;
    (0..count)
        .map(|_| {
            let line: Vec<&str> = (0..rng.below(30))
                .map(|_| {
                    word = (word + 1 + rng.below(3)) % words.len();
                    words[word]
                })
                .collect();
            line.join(" ") + "\n"
        })
        .collect()
}

pub fn write_texts(path: &Path, texts: &[String], group_rows: usize) {
    write_parquet(path, "text", Arc::new(StringArray::from_iter_values(texts)), group_rows);
}

/// A PNG of a smooth random picture.
pub fn picture(size: u32, rng: &mut Rng) -> Vec<u8> {
    let (a, b, c) = (rng.uniform() * 3.0, rng.uniform() * 3.0, rng.uniform() * 200.0);
    let image = image::RgbImage::from_fn(size, size, |x, y| {
        let value = c + 20.0 * (a * f64::from(x) / 3.0).sin() + 20.0 * (b * f64::from(y) / 3.0).cos();
        let value = (value + 6.0 * rng.uniform()).clamp(0.0, 255.0) as u8;
        image::Rgb([value, value / 2 + 40, 255 - value])
    });
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

/// Images as Hugging Face lays them out: a struct of bytes and path.
pub fn write_images(path: &Path, images: &[Vec<u8>], group_rows: usize) {
    let bytes: ArrayRef = Arc::new(BinaryArray::from_iter_values(images));
    let paths: ArrayRef = Arc::new(StringArray::from_iter(images.iter().map(|_| None::<&str>)));
    let column = StructArray::from(vec![
        (Arc::new(Field::new("bytes", DataType::Binary, false)), bytes),
        (Arc::new(Field::new("path", DataType::Utf8, true)), paths),
    ]);
    write_parquet(path, "image", Arc::new(column), group_rows);
}

/// Rows of `width` values as a fixed-size list.
pub fn write_rows(path: &Path, values: Vec<u8>, width: i32, group_rows: usize) {
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let column = FixedSizeListArray::new(item, width, Arc::new(UInt8Array::from(values)), None);
    write_parquet(path, "snps", Arc::new(column), group_rows);
}
