//! How a model understands a table: which columns are its variables, what their cells are to it, and how its answers
//! read.
//!
//! A model of a typed table knows the meaning of every column; one that has learned from numbers finds them by their
//! names, and its categories are called by their numbers. What was decided and what is not there is said on standard
//! error.

use clap::{Args, ValueEnum};

use super::output::note;
use super::rows_args::stored_pipeline;
use crate::circuit::{Circuit, NodeKind};
use crate::data::{Batch, Cell, CellType, Cells, ColumnSchema, Meaning, TableSchema, Values};
use crate::decode::rows::RowDecoder;
use crate::decode::table::TableDecoder;
use crate::decode::{Decoder, Output, ValueKind};
use crate::error::{Error, Result};
use crate::learner::model::Model;
use crate::pipeline::spec::{DecodeSpec, PipelineSpec, SourceSpec};
use crate::sink::answers::Layout;
use crate::source::whole_rows::cells::CellColumns;
use crate::source::whole_rows::numbers::NumberColumns;
use crate::source::whole_rows::{Lot, Part, TableColumns};
use crate::source::{Columns, Piece, Records, Wanted};

/// Which columns are meant, and what is known besides.
#[derive(Args, Clone, Debug)]
pub(super) struct ReadAs {
    /// The column that holds a list per row, if it is not called as in training
    #[arg(long, conflicts_with = "columns")]
    column: Option<String>,
    /// Columns of numbers, one for each variable, if they are not called as in training
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    columns: Vec<String>,
    /// Take this for known in every row, whatever the row says: NAME=VALUE, or the number of a variable where rows are
    /// lists. May be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    given: Vec<String>,
    /// What to do with a category that the model does not have and has no word for
    #[arg(long, value_enum, default_value_t = Unseen::Error)]
    unseen: Unseen,
    /// Refuse a table without one of the model's columns, instead of taking all its cells for missing
    #[arg(long)]
    strict: bool,
}

/// What to do with a category that the model does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Unseen {
    /// Stop, and name it.
    Error,
    /// Take the cell for missing.
    Missing,
}

/// A table as a model sees it.
pub(super) struct Understood {
    /// Where the variables are.
    pub layout: Layout,
    /// What they mean, one for each.
    pub columns: Vec<ColumnSchema>,
    seen: Seen,
    unseen: Unseen,
    /// What is known in every row, by variable.
    given: Vec<(usize, f32)>,
}

/// How rows become what the model sees.
enum Seen {
    /// By the numbers in columns or lists.
    Numbers(NumberColumns, RowDecoder),
    /// By what the columns mean.
    Cells(CellColumns, Box<TableDecoder>),
}

impl ReadAs {
    /// Finds the variables of a model in a table.
    pub fn understand(&self, model: &Model, table: &TableColumns) -> Result<Understood> {
        let learned = match stored_pipeline(model)? {
            Some(document) => Some(PipelineSpec::from_document(&document)?),
            None => None,
        };
        match learned {
            Some(PipelineSpec { decode: DecodeSpec { schema: Some(schema), .. }, .. }) => {
                self.understand_typed(model, schema, table)
            }
            learned => self.understand_numbers(model, learned.map(|spec| spec.source), table),
        }
    }

    /// Finds the columns of a model that knows what its columns mean.
    fn understand_typed(&self, model: &Model, schema: TableSchema, table: &TableColumns) -> Result<Understood> {
        if self.column.is_some() || !self.columns.is_empty() {
            let flag = if self.column.is_some() { "--column" } else { "--columns" };
            let why = "the model knows its columns by their names; rename those of the table";
            return Err(Error::option(format!("{flag}: {why}")));
        }
        if schema.num_vars() != model.circuit.num_vars() {
            let (columns, vars) = (schema.num_vars(), model.circuit.num_vars());
            return Err(Error::format(format!("the model has {vars} variables, and a schema of {columns} columns")));
        }
        let names: Vec<String> = schema.columns.iter().map(|column| column.name.clone()).collect();
        let cells = CellColumns::find(table, &names)?;
        self.tell_absent(cells.absent())?;
        let columns = schema.columns.clone();
        let decoder = Box::new(TableDecoder::new(schema, &names)?);
        let layout = Layout::Columns(names);
        let given = self.given.iter().map(|text| understand_given(text, &layout, &columns)).collect::<Result<_>>()?;
        Ok(Understood { layout, columns, seen: Seen::Cells(cells, decoder), unseen: self.unseen, given })
    }

    /// Finds the numbers that a model has learned from.
    fn understand_numbers(
        &self,
        model: &Model,
        learned: Option<SourceSpec>,
        table: &TableColumns,
    ) -> Result<Understood> {
        let circuit = &*model.circuit;
        let columns = match (&self.column, &self.columns[..], learned) {
            (Some(column), ..) => Columns::One(column.clone()),
            (None, [_, ..], _) => Columns::Many(self.columns.clone()),
            (None, [], Some(source)) if source.column.is_some() => Columns::One(source.column.unwrap_or_default()),
            (None, [], Some(source)) if !source.columns.is_empty() => Columns::Many(source.columns),
            _ => Columns::Only(Wanted::Rows),
        };
        let numbers = NumberColumns::find(table, &columns)?;
        self.tell_absent(numbers.absent())?;
        let num_vars = circuit.num_vars();
        if let Some(found) = numbers.num_vars().filter(|found| *found != num_vars) {
            return Err(Error::option(format!(
                "the table has {found} variables and the model {num_vars}: name those of the model with --columns, or \
                 the list with --column"
            )));
        }
        let layout = match numbers.is_list() {
            true => Layout::List { column: numbers.names()[0].clone(), num_vars },
            false => Layout::Columns(numbers.names().to_vec()),
        };
        let cats = num_cats(circuit);
        let columns: Vec<ColumnSchema> = (0..num_vars).map(|var| number_column(cats[var], &layout, var)).collect();
        let most = columns.iter().map(ColumnSchema::num_cats).max().flatten();
        let values = most.filter(|_| circuit.is_discrete()).map_or(ValueKind::Reals, ValueKind::Categories);
        let decoder = RowDecoder::new(num_vars, values)?;
        let given = self.given.iter().map(|text| understand_given(text, &layout, &columns)).collect::<Result<_>>()?;
        Ok(Understood { layout, columns, seen: Seen::Numbers(numbers, decoder), unseen: self.unseen, given })
    }

    fn tell_absent(&self, absent: &[String]) -> Result<()> {
        if absent.is_empty() {
            return Ok(());
        }
        let names = absent.join("`, `");
        if self.strict {
            return Err(Error::data(format!("no column `{names}`, which the model has learned from")));
        }
        note(format_args!("warning: no column `{names}`: all its cells are taken for missing"));
        Ok(())
    }
}

/// Marks categories that the model does not have as missing.
fn forget_numbers(piece: &mut Piece, decoder: &RowDecoder) {
    let (ValueKind::Categories(cats), Records::Lists(lists)) = (decoder.shape().values, &mut piece.records) else {
        return;
    };
    let unseen = |cell: usize| lists.values.category(cell).is_some_and(|category| category >= cats);
    let was = |cell: usize| lists.missing.as_ref().is_some_and(|marks| marks[cell]);
    let marks: Vec<bool> = (0..lists.values.len()).map(|cell| was(cell) || unseen(cell)).collect();
    lists.missing = marks.contains(&true).then_some(marks);
}

/// The columns of a typed table that are texts to the model: a file whose cells have no type may spell numbers there.
pub(super) fn text_columns(model: &Model) -> Result<Vec<String>> {
    let Some(document) = stored_pipeline(model)? else { return Ok(Vec::new()) };
    let columns = PipelineSpec::from_document(&document)?.decode.schema.map_or_else(Vec::new, |schema| schema.columns);
    let texts = columns.into_iter().filter(|column| column.cell_type == CellType::Text);
    Ok(texts.map(|column| column.name).collect())
}

/// What a variable of a model means that has learned from numbers.
fn number_column(cats: Option<u32>, layout: &Layout, var: usize) -> ColumnSchema {
    let name = match layout {
        Layout::Columns(names) => names[var].clone(),
        Layout::List { .. } => var.to_string(),
    };
    match cats {
        Some(cats) => {
            let high = i64::from(cats.max(1)) - 1;
            ColumnSchema { name, cell_type: CellType::Int, meaning: Meaning::Range { low: 0, high } }
        }
        None => ColumnSchema { name, cell_type: CellType::Float, meaning: Meaning::Number },
    }
}

/// How many categories each variable has; `None` where one of its inputs is over numbers.
pub(super) fn num_cats(circuit: &Circuit) -> Vec<Option<u32>> {
    let mut cats = vec![Some(0); circuit.num_vars()];
    for node in circuit.nodes() {
        if let NodeKind::Input { var, param } = &node.kind {
            let own = circuit.distribution(*param).num_cats();
            cats[*var] = cats[*var].zip(own).map(|(a, b): (u32, u32)| a.max(b));
        }
    }
    cats
}

/// The variable and the value of NAME=VALUE.
fn understand_given(text: &str, layout: &Layout, columns: &[ColumnSchema]) -> Result<(usize, f32)> {
    let refuse = |why: String| Error::option(format!("--given {text}: {why}"));
    let (name, value) = text.split_once('=').ok_or_else(|| refuse("expected NAME=VALUE".into()))?;
    let var = columns.iter().position(|column| column.name == name).ok_or_else(|| match layout {
        Layout::Columns(names) => {
            let listed: Vec<&str> = names.iter().take(20).map(String::as_str).collect();
            let more = if names.len() > 20 { ", …" } else { "" };
            refuse(format!("the model has no column `{name}`; it has {}{more}", listed.join(", ")))
        }
        Layout::List { num_vars, .. } => {
            refuse(format!("name a variable of the list by its number, from 0 to {}", num_vars - 1))
        }
    })?;
    let value = columns[var].encode(&Cell::Raw(value.into())).map_err(refuse)?;
    Ok((var, value.ok_or_else(|| refuse("is a missing value, which says nothing".into()))?))
}

impl Understood {
    /// What is known in every row, by variable.
    pub fn given(&self) -> &[(usize, f32)] {
        &self.given
    }

    /// What the model sees of some rows: as they are, and with what is given. A row that it cannot see is an error:
    /// every row has an answer.
    pub fn see(&self, lot: &Lot) -> Result<(Batch, Batch)> {
        let mut known: Option<Batch> = None;
        for part in &lot.parts {
            let seen = self.see_part(part)?;
            match &mut known {
                None => known = Some(seen),
                Some(known) => known.append(&seen)?,
            }
        }
        let nothing = || Batch::from_columns((0..self.columns.len()).map(|var| self.constant(var, 0.0, 0)).collect());
        let known = known.map_or_else(nothing, Ok)?;
        let batch = if self.given.is_empty() { known.clone() } else { self.with_given(&known)? };
        Ok((known, batch))
    }

    fn see_part(&self, part: &Part) -> Result<Batch> {
        let decoded = match &self.seen {
            Seen::Numbers(numbers, decoder) => {
                let mut piece = numbers.piece(part)?;
                if self.unseen == Unseen::Missing {
                    forget_numbers(&mut piece, decoder);
                }
                decoder.decode(&piece)?
            }
            Seen::Cells(columns, decoder) => {
                let mut piece = columns.piece(part)?;
                if self.unseen == Unseen::Missing {
                    self.forget_cells(&mut piece, decoder);
                }
                decoder.decode(&piece)?
            }
        };
        if let Some(bad) = decoded.bad.first() {
            let is_unseen = ["is outside 0..", "is not among the "].iter().any(|words| bad.reason.contains(words));
            let advice = if is_unseen { "; --unseen missing takes it for missing" } else { "" };
            return Err(Error::data(format!("{bad}{advice}")));
        }
        match decoded.output {
            Output::Rows(table) => match self.seen {
                Seen::Numbers(..) => table.into_batch(),
                Seen::Cells(..) => table.into_batch_of(|var| self.columns[var].num_cats()),
            },
            Output::Tokens(_) => Err(Error::internal("rows became tokens")),
        }
    }

    /// Takes names that the model does not have, and has no word for, for missing.
    fn forget_cells(&self, piece: &mut Piece, decoder: &TableDecoder) {
        let Records::Cells(cells) = &piece.records else { return };
        let mut known = Cells::new(cells.width());
        for row in 0..cells.num_rows() {
            for (var, column) in self.columns.iter().enumerate() {
                let cell = cells.get(row, var);
                let is_name = matches!(column.meaning, Meaning::Category { .. });
                let is_unseen = is_name && decoder.encode(var, &cell).is_err();
                known.push(if is_unseen { &Cell::Null } else { &cell });
            }
        }
        piece.records = Records::Cells(known);
    }

    /// The rows with what is given in place of what they say.
    fn with_given(&self, rows: &Batch) -> Result<Batch> {
        let value_of = |var: usize| self.given.iter().rev().find(|(given, _)| *given == var).map(|(_, value)| *value);
        let columns = (0..rows.num_vars()).map(|var| match value_of(var) {
            None => rows.column(var).clone(),
            Some(value) => self.constant(var, value, rows.num_rows()),
        });
        let batch = Batch::from_columns(columns.collect())?;
        Ok(batch.with_missing(|row, var| value_of(var).is_none() && rows.is_missing(row, var)))
    }

    fn constant(&self, var: usize, value: f32, num_rows: usize) -> Values {
        match self.columns[var].num_cats() {
            Some(_) => Values::U32(vec![value as u32; num_rows]),
            None => Values::F32(vec![value; num_rows]),
        }
    }

    /// One row in which only what is given is known.
    pub fn only_given(&self) -> Result<Batch> {
        let columns = (0..self.columns.len()).map(|var| self.constant(var, 0.0, 1)).collect();
        let nothing = Batch::from_columns(columns)?.with_missing(|_, _| true);
        self.with_given(&nothing)
    }

    /// The numbers that the categories of a variable stand for; `None` where one of them is none.
    pub fn numbers_of(&self, var: usize) -> Option<Vec<f64>> {
        let column = &self.columns[var];
        (0..column.num_cats()?)
            .map(|category| match column.decode(category as f32) {
                Cell::Int(number) => Some(number as f64),
                Cell::Float(number) => Some(number),
                _ => None,
            })
            .collect()
    }

    /// What a value of a variable without categories is in the units of the table; of a date or a time days since 1970.
    pub fn number_at(&self, var: usize, value: f64) -> f64 {
        match &self.columns[var].meaning {
            Meaning::Time { origin } => value + *origin as f64 / 86_400e6,
            _ => value,
        }
    }

    /// The name of a category.
    pub fn category_name(&self, var: usize, category: u32) -> String {
        self.columns[var].category_name(category).unwrap_or_else(|| category.to_string())
    }
}
