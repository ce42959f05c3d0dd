//! An Arrow IPC stream, a record batch at a time.

use std::io::Read;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::super::arrow_stream::Batches;
use super::{FileRows, ReadLimits};
use crate::error::Result;

pub(super) struct ArrowRows {
    batches: Batches,
    limits: ReadLimits,
}

impl ArrowRows {
    /// Reads the schema. Waits until the producer has sent it.
    pub fn new(name: &str, read: Box<dyn Read + Send>, limits: ReadLimits) -> Result<Self> {
        Ok(Self { batches: Batches::begin(name, read, &limits)?, limits })
    }
}

impl FileRows for ArrowRows {
    fn schema(&self) -> &SchemaRef {
        self.batches.schema()
    }

    fn num_rows(&self) -> Option<u64> {
        None
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        self.batches.next(&self.limits)
    }
}
