//! The only words that the data side and the model side share.
//!
//! The data side makes a [`Table`] of what it read, cuts it into [`Batch`]es and sends them as [`Item`]s, each with the
//! [`Cursor`] just after its last row. The model side learns from the batches and keeps the cursor with the parameters.

mod batch;
mod cursor;
mod digest;
mod position;
mod table;

pub use batch::{Batch, Element, LARGEST_REAL, Values};
pub use cursor::{Cursor, Item};
pub use digest::Digest;
pub use position::Position;
pub use table::Table;
