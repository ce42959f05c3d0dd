//! What the columns of a table mean: found in its first rows and from what `[columns]` says, or known already.
//!
//! Called by `prepare` when it opens the data. What was understood is said before anything is learned
//! ([`TableReport`]), kept in the resolved pipeline (`decode.schema`), and with it in every checkpoint and model.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::open::Opened;
use super::spec::{ColumnsSpec, DecodeSpec};
use crate::data::schema::ask::ColumnAsk;
use crate::data::schema::infer::{ColumnReport, Observer};
use crate::data::{CellType, TableSchema};
use crate::decode::table::TableDecoder;
use crate::error::{Error, Result};
use crate::source::{Piece, Records};

/// Rows that are looked at.
const ROWS_TO_SEE: usize = 20_000;

/// What a user is told of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableReport {
    /// A line for every column that was read, those that are not learned from too.
    pub columns: Vec<ColumnLine>,
    /// Rows that were looked at; none where a schema was given.
    pub rows: u64,
}

/// What a user is told of a column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnLine {
    /// Its name.
    pub name: String,
    /// What its cells are, in words; nothing if all of those seen are missing.
    #[serde(rename = "type")]
    pub cell_type: String,
    /// What it is understood as, or that it is left out and why.
    pub understood_as: String,
    /// Categories of the variable, if these are what it has.
    pub categories: Option<u32>,
    /// Share of the cells that were looked at that are missing; `None` where none was looked at.
    pub missing: Option<f64>,
    /// What else a user should know.
    pub note: Option<String>,
}

/// The decoder of a table, and what a user is told of it.
pub(super) async fn open_table(
    decode: &DecodeSpec,
    columns: &ColumnsSpec,
    opened: &mut Opened,
) -> Result<(Arc<TableDecoder>, Arc<TableReport>)> {
    let names: Vec<String> = match &opened.reading {
        Some(reading) => reading.read.iter().map(|column| column.name.clone()).collect(),
        None => return Err(Error::option("kind = \"table\": the records have no columns with names")),
    };
    let asks = columns.asks()?;
    if let Some(schema) = &decode.schema {
        check_asks(&asks, schema)?;
        let report = TableReport { columns: schema.columns.iter().map(known).collect(), rows: 0 };
        return Ok((Arc::new(TableDecoder::new(schema.clone(), &names)?), Arc::new(report)));
    }
    let mut observer = Observer::new(&names);
    opened
        .look_and_hold(ROWS_TO_SEE, |piece| {
            if let Records::Cells(cells) = &piece.records {
                let is_good = |row: &usize| piece.bad.iter().all(|(bad, _)| bad != row);
                observer.see(cells, (0..cells.num_rows()).filter(is_good));
            }
            check_cells(piece)
        })
        .await?;
    let inferred = observer.infer(&asks)?;
    let line = |column: &ColumnReport| line_of(column, inferred.rows);
    let report = TableReport { columns: inferred.columns.iter().map(line).collect(), rows: inferred.rows };
    Ok((Arc::new(TableDecoder::new(inferred.schema, &names)?), Arc::new(report)))
}

fn check_cells(piece: &Piece) -> Result<()> {
    match &piece.records {
        Records::Cells(_) => Ok(()),
        Records::Blobs(_) | Records::Lists(_) => {
            Err(Error::option("kind = \"table\": the records are not rows of columns"))
        }
    }
}

/// What is said of a column must be what its schema says: a change of the one would be lost in the other.
fn check_asks(asks: &BTreeMap<String, ColumnAsk>, schema: &TableSchema) -> Result<()> {
    let differs = asks.iter().find(|(name, ask)| match schema.var(name) {
        Some(var) => !ask.agrees_with(&schema.columns[var]),
        None => !ask.is_ignored() && **ask != ColumnAsk::default(),
    });
    match differs {
        None => Ok(()),
        Some((name, _)) => Err(Error::option(format!(
            "[columns.{name}] says something else than decode.schema: remove decode.schema to have it found again"
        ))),
    }
}

fn known(column: &crate::data::ColumnSchema) -> ColumnLine {
    ColumnLine {
        name: column.name.clone(),
        cell_type: column.cell_type.name().into(),
        understood_as: column.understood_as(),
        categories: column.num_cats(),
        missing: None,
        note: None,
    }
}

fn line_of(column: &ColumnReport, rows: u64) -> ColumnLine {
    let others = column.names_left_out;
    let others = (others > 0).then(|| format!("{others} more names are `other`"));
    let notes: Vec<String> = [column.note.clone(), others].into_iter().flatten().collect();
    ColumnLine {
        name: column.name.clone(),
        cell_type: column.cell_type.map_or("nothing", CellType::name).into(),
        understood_as: column.understood_as.clone(),
        categories: column.categories,
        missing: (rows > 0).then(|| column.missing as f64 / rows as f64),
        note: (!notes.is_empty()).then(|| notes.join("; ")),
    }
}
