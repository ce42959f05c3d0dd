//! Laws of the stream: every row once per epoch, the same batches for any number of workers and from any cursor,
//! bounded memory, and one clear end for bad data.

#![allow(clippy::unwrap_used)]

mod bad_records;
mod laws;
mod made;
mod memory;
