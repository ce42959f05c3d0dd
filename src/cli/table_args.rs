//! Tables of answers: rows in, the same rows in the same order out, with new columns.
//!
//! What `score`, `marginals`, `impute` and `mpe` share. One thread reads, all threads answer a lot of rows at a time,
//! and one thread writes; what waits between them is bounded. The output appears whole or not at all, whatever ends the
//! command.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value};

use super::model_path::CheckpointArgs;
use super::output::{counted, note, note_json, note_lines, say, say_json, table, thousands};
use super::runtime;
use super::train::MachineArgs;
use super::understood::{ReadAs, Understood, text_columns};
use crate::backend::{Device, PlaceSpec};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::learner::model::{self, Model};
use crate::sink::answers::{Named, beside};
use crate::sink::{STANDARD_OUTPUT, TableFormat, TableSink};
use crate::source::ReadLimits;
use crate::source::whole_rows::{Lot, TableRows, WholeRows};

/// Rows that are answered at a time, at the most. A fixed number: draws depend on the seed and the number of the row.
const LOT_ROWS: usize = 512;

/// Memory for the parts of files.
const READ_BYTES: u64 = 512 << 20;

/// Which rows, which parameters, and where the answers go.
#[derive(Args, Clone, Debug)]
pub(super) struct TableArgs {
    /// A model, a checkpoint, or a run folder, whose latest checkpoint is used unless a flag names another
    model: PathBuf,
    #[command(flatten)]
    checkpoint: CheckpointArgs,
    /// Rows to ask about: .parquet, .arrow, .csv or .jsonl, as paths or patterns in quotes; - is standard input
    #[arg(long, value_name = "PATTERN", num_args = 1.., required = true)]
    data: Vec<String>,
    /// Where the answers go: .parquet, .arrow, .csv or .jsonl, which is replaced if it exists; - is an Arrow stream on
    /// standard output
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    read_as: ReadAs,
    #[command(flatten)]
    machine: MachineArgs,
    /// What was done as one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Which columns of the rows are carried along.
#[derive(Args, Clone, Debug)]
pub(super) struct KeysArgs {
    /// Carry only these columns of the rows along (all if left out)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    keys: Vec<String>,
}

/// The model that is asked, and how it understands the table.
pub(super) struct Opened {
    pub model: Model,
    pub place: PlaceSpec,
    pub understood: Understood,
    path: PathBuf,
    rows: WholeRows,
    runtime: tokio::runtime::Runtime,
}

/// Rows that are asked about.
pub(super) struct Asked<'a> {
    pub understood: &'a Understood,
    /// The rows with all their columns.
    pub lot: &'a Lot,
    /// What the model sees of them, before anything is given besides.
    pub known: Batch,
    /// What the model sees of them.
    pub batch: Batch,
}

impl Asked<'_> {
    /// How many rows.
    pub fn num_rows(&self) -> usize {
        self.batch.num_rows()
    }
}

/// What to write: the rows, perhaps changed, and new columns.
pub(super) struct Answer {
    /// Rows in place of those that came.
    pub rows: Option<TableRows>,
    /// New columns.
    pub new: Named,
}

/// What to say in the end, besides what all commands say: lines of a table, and the same for JSON.
pub(super) type Facts = (Vec<(&'static str, String)>, Map<String, Value>);

/// What is asked about every row.
pub(super) trait Question: Send {
    /// The answer for some rows, perhaps none: its columns are those of every other answer.
    fn answer(&mut self, asked: &Asked<'_>) -> Result<Answer>;

    /// What to say when all rows are answered.
    fn facts(&self) -> Facts;
}

impl TableArgs {
    /// Opens model and rows. `values` is about how many numbers the answer to a row has.
    pub fn open(&self, values: impl Fn(&Model) -> usize) -> Result<Opened> {
        TableFormat::of(&self.out).map_err(|error| error.at("--out"))?;
        let place = self.machine.understand()?;
        let path = match self.json {
            true => self.checkpoint.find_quietly(&self.model)?,
            false => self.checkpoint.find(&self.model)?,
        };
        let model = model::load(&path)?;
        // So many that the answers of a lot fit into memory, by the model alone.
        let lot_rows = ((1 << 24) / values(&model).max(1)).clamp(1, LOT_ROWS);
        let runtime = runtime()?;
        let limits = ReadLimits::of_memory(8 << 20, READ_BYTES);
        let texts = text_columns(&model)?;
        let rows = runtime.block_on(WholeRows::open(&self.data, lot_rows, limits, &texts))?;
        let understood = self.read_as.understand(&model, rows.schema())?;
        Ok(Opened { model, place, understood, path, rows, runtime })
    }

    /// Asks about all rows, in order, and writes the answers.
    pub fn run(&self, opened: Opened, keys: Option<&KeysArgs>, mut question: impl Question) -> Result<()> {
        let Opened { model, place, understood, path, rows, runtime } = opened;
        let carried = Carried::new(keys, &rows)?;
        let mut answered = |lot: &Lot| -> Result<_> {
            let (known, batch) = understood.see(lot)?;
            let asked = Asked { understood: &understood, lot, known, batch };
            let answer = question.answer(&asked).map_err(|error| at_its_place(error, lot))?;
            beside(answer.rows.as_ref().unwrap_or(&lot.rows), |name| carried.has(name), answer.new)
        };
        // What no rows have for an answer is the schema of the output.
        let schema = answered(&rows.no_rows())?.schema();
        let sink = TableSink::create(&self.out, &schema)?;
        let unfinished = Arc::new(Mutex::new(sink.unfinished().map(Path::to_path_buf)));
        runtime.block_on(async { remove_on_signals(&unfinished) })?;
        let bar = self.progress(rows.num_rows());
        let lots = read_ahead(rows);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(place.threads.unwrap_or(0)).build();
        let pool = pool.map_err(|e| Error::device(format!("cannot start threads: {e}")))?;
        let total = std::thread::scope(|scope| {
            let (to_write, answers) = sync_channel(2);
            let writer = scope.spawn(move || write_behind(sink, &answers));
            let (bar, answered) = (&bar, &mut answered);
            let asked = pool.install(move || answer_all(lots, &to_write, bar, answered));
            let written = writer.join().unwrap_or_else(|_| Err(Error::internal("the writer panicked")));
            // A writer that failed made the others stop, not the other way round.
            match (asked, written) {
                (_, Err(error)) | (Err(error), Ok(_)) => Err(error),
                (Ok(total), Ok(_)) => Ok(total),
            }
        });
        bar.finish_and_clear();
        *unfinished.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let total = total?;
        drop(runtime);
        self.tell(&path, &model, total, question.facts())
    }

    fn progress(&self, rows: Option<u64>) -> ProgressBar {
        let style = match rows {
            Some(_) => "{bar:30} {pos}/{len} rows, {per_sec}, {eta} left",
            None => "{spinner} {pos} rows, {per_sec}",
        };
        let bar = ProgressBar::with_draw_target(rows, ProgressDrawTarget::stderr());
        bar.with_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()))
    }

    /// Says what was done. Standard output is for rows where they go there.
    fn tell(&self, path: &Path, model: &Model, rows: u64, (lines, object): Facts) -> Result<()> {
        let is_taken = self.out == Path::new(STANDARD_OUTPUT);
        let out = if is_taken { "standard output".to_string() } else { self.out.display().to_string() };
        let (step, is_averaged) = (model.meta.progress.batches, model.meta.identity.is_averaged());
        if self.json {
            let mut all = Map::new();
            all.insert("model".into(), path.display().to_string().into());
            all.insert("step".into(), step.into());
            all.insert("averaged".into(), is_averaged.into());
            all.insert("rows".into(), rows.into());
            all.extend(object);
            all.insert("out".into(), out.into());
            let all = Value::Object(all);
            if !is_taken {
                return say_json(all);
            }
            note_json(all);
            return Ok(());
        }
        let parameters = if is_averaged { ", averaged" } else { "" };
        let mut all = vec![
            ("model", format!("{} (after {}{parameters})", path.display(), counted(step, "batch", "batches"))),
            ("rows", thousands(rows)),
        ];
        all.extend(lines);
        all.push(("written", out));
        if !is_taken {
            return say(table(&all));
        }
        note_lines(table(&all));
        Ok(())
    }
}

impl Opened {
    /// Says that questions other than likelihoods are answered on the CPU, to whoever wanted another device.
    pub fn note_device(&self) {
        if !matches!(self.place.device, Device::Auto | Device::Cpu) {
            note("note: this is answered on the CPU; a GPU answers `score` without --per-variable");
        }
    }
}

/// The columns that are carried along.
struct Carried(Option<Vec<String>>);

impl Carried {
    fn new(keys: Option<&KeysArgs>, rows: &WholeRows) -> Result<Self> {
        let keys = keys.map(|keys| keys.keys.clone()).filter(|keys| !keys.is_empty());
        let unknown = keys.iter().flatten().find(|key| rows.schema().field_with_name(key).is_err());
        match unknown {
            Some(key) => Err(Error::option(format!("--keys: no column `{key}` in the data"))),
            None => Ok(Self(keys)),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.0.as_ref().is_none_or(|keys| keys.iter().any(|key| key == name))
    }
}

/// Lots in order, read ahead on a thread of its own. Not waited for: standard input may never end.
fn read_ahead(mut rows: WholeRows) -> Receiver<Result<Lot>> {
    let (send, lots) = sync_channel(2);
    std::thread::spawn(move || {
        while let Some(lot) = rows.next_lot().transpose() {
            let is_over = lot.is_err();
            if send.send(lot).is_err() || is_over {
                return;
            }
        }
    });
    lots
}

/// What goes to the writer: rows, and the word that they were all.
enum ToWrite {
    Rows(TableRows),
    End,
}

/// Answers lot after lot. Returns how many rows there were.
fn answer_all(
    lots: Receiver<Result<Lot>>,
    to_write: &SyncSender<ToWrite>,
    bar: &ProgressBar,
    answered: &mut (impl FnMut(&Lot) -> Result<TableRows> + Send),
) -> Result<u64> {
    let mut total = 0;
    for lot in lots {
        let lot = lot?;
        if to_write.send(ToWrite::Rows(answered(&lot)?)).is_err() {
            return Ok(total); // the writer says why
        }
        total += lot.rows.num_rows() as u64;
        bar.set_position(total);
    }
    let _ = to_write.send(ToWrite::End);
    Ok(total)
}

/// Writes what comes. The table is whole only if it is said that it is.
fn write_behind(mut sink: TableSink, answers: &Receiver<ToWrite>) -> Result<()> {
    for answer in answers {
        match answer {
            ToWrite::Rows(rows) => {
                if !sink.write(&rows)? {
                    return Ok(());
                }
            }
            ToWrite::End => return sink.finish(),
        }
    }
    Ok(()) // what is dropped unfinished leaves nothing
}

/// An error about a row of a lot, with the file and the row there.
fn at_its_place(error: Error, lot: &Lot) -> Error {
    let Some(row) = error.row() else { return error };
    let (file, number) = lot.place(row as usize);
    let message = error.to_string();
    let message = message.strip_prefix(&format!("row {row}: ")).unwrap_or(&message);
    Error::new(error.kind(), message).at_row(number).at(file)
}

/// A signal ends the process at once, and leaves nothing of a table that is not whole.
fn remove_on_signals(unfinished: &Arc<Mutex<Option<PathBuf>>>) -> Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // The exit code is what a shell says of a process that the signal has ended.
        for (kind, code) in
            [(SignalKind::hangup(), 129), (SignalKind::interrupt(), 130), (SignalKind::terminate(), 143)]
        {
            let mut signals = signal(kind).map_err(|e| Error::io("cannot listen for signals", &e))?;
            let unfinished = unfinished.clone();
            tokio::spawn(async move {
                if signals.recv().await.is_some() {
                    if let Some(path) = &*unfinished.lock().unwrap_or_else(PoisonError::into_inner) {
                        let _ = std::fs::remove_file(path);
                    }
                    std::process::exit(code);
                }
            });
        }
    }
    #[cfg(not(unix))]
    let unfinished = unfinished.clone();
    #[cfg(not(unix))]
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            if let Some(path) = &*unfinished.lock().unwrap_or_else(PoisonError::into_inner) {
                let _ = std::fs::remove_file(path);
            }
            std::process::exit(130);
        }
    });
    Ok(())
}
