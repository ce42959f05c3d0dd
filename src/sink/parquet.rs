//! A Parquet file in the making, compressed with zstd.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::failed;
use crate::error::Result;
use crate::files::WholeFile;

/// Bytes of a row group that are held before it is written.
const GROUP_BYTES: usize = 32 << 20;

pub(super) struct ParquetFile {
    writer: ArrowWriter<WholeFile>,
}

impl ParquetFile {
    pub fn new(file: WholeFile, schema: &SchemaRef, name: &str) -> Result<Self> {
        let compression = Compression::ZSTD(ZstdLevel::default());
        let properties = WriterProperties::builder().set_compression(compression).build();
        let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties));
        Ok(Self { writer: writer.map_err(|e| failed(name, &e))? })
    }

    pub fn write(&mut self, rows: &RecordBatch, name: &str) -> Result<()> {
        let mut written = self.writer.write(rows);
        if written.is_ok() && self.writer.in_progress_size() > GROUP_BYTES {
            written = self.writer.flush();
        }
        written.map_err(|e| failed(name, &e))
    }

    pub fn finish(self, name: &str) -> Result<()> {
        self.writer.into_inner().map_err(|e| failed(name, &e))?.finish()
    }
}
