//! A run as its user sees it: lines of text, with a progress bar on a terminal; lines of JSON; or nothing.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::columns::{SHOWN, describe_table};
use super::output::{counted, describe_answers, note, say, say_json, table, thousands};
use crate::backend::TrainingPrecision;
use crate::decode::{RowShape, ValueKind};
use crate::error::{Error, Result};
use crate::pipeline::observer::{
    Drift, EpochEnd, Event, Finished, RankWork, Start, StartKind, Started, StepLine, Validated,
};
use crate::pipeline::spec::OnDrift;
use crate::source::{ColumnInfo, Reading};

/// How a run is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Lines for people.
    Text,
    /// One JSON object a line, and nothing else on standard output.
    Json,
    /// Warnings only.
    Quiet,
}

/// Where there is no progress bar, a line of progress comes this often.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Shows the events of a run.
pub(super) struct Report {
    style: Style,
    bar: Option<ProgressBar>,
    /// Of what comes before the first batch.
    structure: StructureProgress,
    /// When progress was last shown in a line.
    last_line: Instant,
    /// Why nothing can be shown any more: the run continues, and its user is told at the end.
    failed: Option<Error>,
}

impl Report {
    pub fn new(style: Style) -> Self {
        Self { style, bar: None, structure: StructureProgress::default(), last_line: Instant::now(), failed: None }
    }

    /// Something a user should know about how the command was understood.
    pub fn note(&mut self, message: &str) {
        match self.style {
            Style::Json => self.say_json(serde_json::json!({"event": "note", "message": message})),
            Style::Text => note(format_args!("note: {message}")),
            Style::Quiet => {}
        }
    }

    pub fn show(&mut self, event: &Event) {
        if self.style == Style::Json {
            return self.say_json(event.to_json());
        }
        if let Event::Warning(message) = event {
            return self.beside_the_bar(|| note(format_args!("warning: {message}")));
        }
        if let Event::Drift(drift) = event {
            return self.beside_the_bar(|| note(drift_line(drift)));
        }
        if let (Event::Note(message), true) = (event, self.style == Style::Text) {
            return self.beside_the_bar(|| note(format_args!("note: {message}")));
        }
        if self.style == Style::Quiet {
            return;
        }
        match event {
            Event::Structure { share } => self.structure.show(*share),
            Event::Started(started) => {
                self.structure = StructureProgress::default();
                self.started(started);
            }
            Event::Step(line) => self.step(line),
            Event::Validated(validated) => self.say(validated_line(validated)),
            Event::EpochEnd(end) => self.say(epoch_line(end)),
            Event::Finished(finished) => {
                self.close();
                self.say(finished_lines(finished));
            }
            Event::Checkpointed { .. } | Event::Drift(_) | Event::Warning(_) | Event::Note(_) => {}
        }
    }

    /// Takes the progress bar away.
    pub fn close(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Returns the error of a line that could not be shown, if any.
    pub fn written(self) -> Result<()> {
        self.failed.map_or(Ok(()), Err)
    }

    fn started(&mut self, started: &Started) {
        let rows = started.rows.map_or(String::new(), |rows| format!("{} rows of ", thousands(rows)));
        let place = started.out.as_ref().map_or(String::new(), |out| format!(" in {}", out.display()));
        let mut rows = vec![
            ("run", format!("{}{place}", started.name)),
            ("source", format!("{}, {rows}{} variables", started.source, started.num_vars)),
        ];
        let columns = started.columns.as_ref().filter(|_| started.table.is_none());
        rows.extend(columns.map(|columns| ("columns", describe_columns(columns))));
        rows.extend(
            started.shape.as_ref().map(|shape| ("rows", format!("{}, {}", describe_rows(shape), started.input))),
        );
        let step = started.first_step.map_or(String::new(), |step| format!(", first step {step:.3}"));
        rows.push(("circuit", format!("{}, {} parameters", started.circuit, thousands(started.parameters))));
        rows.extend(started.start.map(|start| ("start", describe_start(start))));
        rows.extend([
            ("optimizer", format!("{}{step}", started.optimizer)),
            ("answers", describe_answers(started.is_averaged).to_string()),
        ]);
        let why = started.device_note.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        rows.push(("device", format!("{}{why}", started.device)));
        if started.precision != TrainingPrecision::F32 {
            let precision = started.precision;
            rows.push((
                "precision",
                format!("{precision} to learn, and of what is said before an update; held-out rows in f32"),
            ));
        }
        if let Some(path) = &started.resumed_from {
            rows.push(("resumed", format!("from {}", path.display())));
        }
        self.say(table(&rows));
        if let Some(columns) = &started.table {
            self.say(describe_table(columns, SHOWN));
        }
        if std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(started.batches, ProgressDrawTarget::stderr());
            let template = match started.batches {
                Some(_) => "[{bar:24}] {pos}/{len} batches  {msg}",
                None => "{spinner} {pos} batches  {msg}",
            };
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(style.progress_chars("=> "));
            bar.set_position(started.step);
            self.bar = Some(bar);
        }
    }

    fn step(&mut self, line: &StepLine) {
        if let Some(bar) = &self.bar {
            bar.set_position(line.step);
            bar.set_message(progress(line));
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            self.say(format_args!("step {:>9}  {}", thousands(line.step), progress(line)));
        }
    }

    /// A line on standard output; after the first failure nothing more.
    fn say(&mut self, line: impl std::fmt::Display) {
        if self.failed.is_none() {
            self.failed = self.beside_the_bar(|| say(line)).err();
        }
    }

    /// The same for a line of JSON.
    fn say_json(&mut self, line: impl std::fmt::Display) {
        if self.failed.is_none() {
            self.failed = self.beside_the_bar(|| say_json(line)).err();
        }
    }

    fn beside_the_bar<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }
}

/// How much of a structure has been learned: a bar on a terminal, elsewhere a line from time to time. Cleared when
/// dropped.
#[derive(Debug, Default)]
pub(super) struct StructureProgress {
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
}

impl StructureProgress {
    pub fn show(&mut self, share: f64) {
        if share == 0.0 {
            return; // it has only begun: most structures are learned in no time
        }
        let percent = (100.0 * share).round() as u64;
        if std::io::stderr().is_terminal() {
            let bar = self.bar.get_or_insert_with(|| {
                let bar = ProgressBar::with_draw_target(Some(100), ProgressDrawTarget::stderr());
                let style = ProgressStyle::with_template("[{bar:24}] learning the structure, {pos} %");
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
                bar
            });
            bar.set_position(percent);
        } else if self.last_line.is_none_or(|at| at.elapsed() >= LINE_INTERVAL) {
            // The first word comes at once: what follows may take minutes.
            self.last_line = Some(Instant::now());
            note(format_args!("learning the structure: {percent} %"));
        }
    }
}

impl Drop for StructureProgress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Columns that a line lists before it only counts them.
const LISTED: usize = 12;

/// Which columns are learned, and which are left out.
pub(super) fn describe_columns(columns: &Reading) -> String {
    let list = |columns: &[ColumnInfo]| {
        let shown = columns.iter().take(LISTED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match columns.len() {
            many if many > LISTED => format!("{shown} and {} more", thousands((many - LISTED) as u64)),
            _ => shown,
        }
    };
    match &columns.left_out[..] {
        [] => list(&columns.read),
        left_out => format!("{}; left out: {}", list(&columns.read), list(left_out)),
    }
}

/// What parameters start from.
pub(super) fn describe_start(start: Start) -> String {
    let rows = counted(start.rows, "row", "rows");
    match start.from {
        StartKind::Noise => "noise".to_string(),
        StartKind::Rows => rows,
        StartKind::Clusters => format!("clusters of {rows}"),
        StartKind::Densities => format!("noise, densities from {rows}"),
        StartKind::File => "as the circuit's file says".to_string(),
    }
}

/// What rows look like, in a few words.
pub(super) fn describe_rows(shape: &RowShape) -> String {
    let values = match shape.values {
        ValueKind::Categories(cats) => format!("{} categories", thousands(u64::from(cats))),
        ValueKind::Reals => "real numbers".to_string(),
        ValueKind::Mixed => "each a column of its own kind".to_string(),
    };
    let grid = shape.grid.as_ref().map_or(String::new(), |grid| {
        format!(" ({})", grid.iter().map(ToString::to_string).collect::<Vec<_>>().join("×"))
    });
    format!("rows of {} variables{grid}, {values}", thousands(shape.num_vars as u64))
}

fn progress(line: &StepLine) -> String {
    let mut text =
        format!("epoch {}  {} nats  {:.0} rows/s", line.epoch + 1, number(line.log_likelihood), line.rows_per_second);
    if !line.bound.is_empty() {
        text += &format!("  bound by {}", line.bound);
    }
    if line.bad_records > 0 {
        text += &format!("  {} bad records", thousands(line.bad_records));
    }
    text
}

fn epoch_line(end: &EpochEnd) -> String {
    let (rows, seconds) = (thousands(end.rows), end.seconds);
    format!("epoch {:>4}  train {:>12}  {rows} rows, {seconds:.1} s", end.epoch, number(end.log_likelihood))
}

fn validated_line(found: &Validated) -> String {
    let mut line =
        format!("step {:>5}  valid {:>12}  ", found.step, held_out(found.log_likelihood, found.impossible_rows));
    if found.impossible_rows > 0 {
        let (impossible, rows) = (thousands(found.impossible_rows), thousands(found.rows));
        line += &format!("{impossible} of {rows} rows impossible, the others {}", number(found.possible_ll));
    } else if let (Some(bits), Some(perplexity)) = (found.bits_per_dim, found.perplexity) {
        line += &format!("{bits:.4} bits per dimension, perplexity {perplexity:.4}"); // a density has neither
    }
    if found.best {
        line += "  best";
    }
    line
}

fn drift_line(drift: &Drift) -> String {
    let Drift { detector, rows, rows_ago, before_ll, after_ll, action, .. } = drift;
    let what = match action {
        OnDrift::Report => "",
        OnDrift::RaiseStep if drift.is_new_start => "; parameters start again from the new rows",
        OnDrift::RaiseStep => "; the step is raised",
        OnDrift::Checkpoint => "; a checkpoint is kept",
        OnDrift::Stop => "; the run ends",
    };
    format!(
        "drift at row {}: log-likelihood fell from {before_ll:.4} to {after_ll:.4} nats per row about {} ago \
         ({}){what}",
        thousands(*rows),
        counted(*rows_ago, "row", "rows"),
        detector.name()
    )
}

fn finished_lines(finished: &Finished) -> String {
    let (rows, batches) = (counted(finished.rows, "row", "rows"), counted(finished.step, "batch", "batches"));
    let mut lines = vec![("done", format!("{}: {batches}, {rows} in {:.1} s", finished.reason, finished.seconds))];
    let impossible = finished.valid_impossible_rows.unwrap_or(0);
    if finished.valid_ll.is_some() || impossible > 0 {
        let valid = held_out(finished.valid_ll, impossible);
        let best = number(finished.best_valid_ll);
        let source = finished.source_ll.map_or(String::new(), |ll| format!("; the source itself {ll:.4}"));
        let rows = match impossible {
            0 => String::new(),
            rows => format!("; {} impossible", counted(rows, "row is", "rows are")),
        };
        lines.push(("held out", format!("{valid} nats per row (best {best}){rows}{source}")));
    }
    if finished.bad_records > 0 {
        lines.push(("left out", format!("{} records that could not be read", thousands(finished.bad_records))));
    }
    if !finished.bound.is_empty() {
        lines.push(("bound by", finished.bound.clone()));
    }
    if !finished.ranks.is_empty() {
        lines.push(("ranks", ranks_line(&finished.ranks)));
    }
    if let Some(path) = &finished.checkpoint {
        lines.push(("checkpoint", path.display().to_string()));
    }
    table(&lines)
}

/// What ranks did together: how fast, how evenly, and at what cost.
fn ranks_line(ranks: &[RankWork]) -> String {
    let most = |number: fn(&RankWork) -> f64| ranks.iter().map(number).fold(0.0, f64::max);
    let mean = |number: fn(&RankWork) -> f64| ranks.iter().map(number).sum::<f64>() / ranks.len() as f64;
    let (compute, sums) = (|rank: &RankWork| rank.compute_seconds, |rank: &RankWork| rank.sum_seconds);
    let uneven = if mean(compute) > 0.0 { most(compute) / mean(compute) } else { 1.0 };
    format!(
        "{}; computed {:.1} s and summed {:.1} s each, the slowest {uneven:.2} times the mean; read {:.1} MiB each, at \
         most {:.1}",
        ranks.len(),
        mean(compute),
        mean(sums),
        mean(|rank| rank.bytes_read as f64) / 1048576.0,
        most(|rank| rank.bytes_read as f64) / 1048576.0
    )
}

/// A mean over held-out rows: one that is impossible makes it infinite.
fn held_out(mean: Option<f64>, impossible: u64) -> String {
    if impossible > 0 { "-inf".into() } else { number(mean) }
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(|| "none".to_string(), |value| format!("{value:.4}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_matters() {
        let found = Validated {
            step: 7,
            log_likelihood: Some(-12.5),
            possible_ll: Some(-12.5),
            bits_per_dim: Some(1.25),
            perplexity: Some(2.5),
            rows: 2000,
            best: true,
            ..Validated::default()
        };
        let line = validated_line(&found);
        for word in ["-12.5000", "1.2500 bits", "best"] {
            assert!(line.contains(word), "{line}");
        }
        let line = validated_line(&Validated { log_likelihood: None, impossible_rows: 3, best: false, ..found });
        for word in ["-inf", "3 of 2,000 rows impossible, the others -12.5000"] {
            assert!(line.contains(word), "{line}");
        }
        let density = validated_line(&Validated { bits_per_dim: None, perplexity: None, ..found });
        assert!(!density.contains("bits") && !density.contains("perplexity"), "{density}");
        assert!(progress(&StepLine::default()).starts_with("epoch 1 "), "counted as in the lines at its end");
        let finished = Finished {
            reason: "3 epochs".into(),
            valid_ll: Some(-2.0),
            best_valid_ll: Some(-1.5),
            source_ll: Some(-1.25),
            ..Finished::default()
        };
        let lines = finished_lines(&finished);
        for word in ["3 epochs", "-2.0000 nats per row (best -1.5000)", "the source itself -1.2500"] {
            assert!(lines.contains(word), "{lines}");
        }
    }
}
