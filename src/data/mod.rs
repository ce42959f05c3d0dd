//! The only words that the data side and the model side share.
//!
//! The data side makes a [`Table`] of what it read, cuts it into [`Batch`]es and sends them as [`Item`]s, each with the
//! [`Cursor`] just after its last row. The model side learns from the batches and keeps the cursor with the parameters.
//! A [`TableSchema`] says what the variables of a table mean; it travels with the model.

mod batch;
mod cell;
#[doc(hidden)]
pub mod civil;
mod cursor;
mod digest;
mod position;
#[doc(hidden)]
pub mod schema;
mod table;

pub use batch::{Batch, Element, LARGEST_REAL, ShardRows, Values};
pub use cell::{Cell, CellType, Cells};
pub use cursor::{Cursor, Item};
pub use digest::Digest;
pub use position::Position;
pub use schema::{ColumnSchema, InputSpec, Label, Meaning, TableSchema};
pub use table::Table;
