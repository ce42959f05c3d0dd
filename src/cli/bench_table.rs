//! What a benchmark found, for people: the machine, then one row per line, times in milliseconds per step.

use super::output::{counted, table, thousands};
use crate::bench::{Line, Standing};
use crate::pipeline::spec::show_size;

/// Explains the columns that do not explain themselves.
const SYNTHETIC_KEY: &str = "Times are milliseconds of the median step; from prepare to other they add up to it. of \
                             GEMM: GFLOP/s as a part of the reference.";
const STREAM_KEY: &str = "Times are milliseconds of the mean step; from wait to other they add up to it, read and \
                          decode go on beside them. of GEMM: GFLOP/s as a part of the reference.";

/// A column: its head and its cell of a line.
type Column = (&'static str, fn(&Line) -> String);

/// Columns of text, on the left.
const SYNTHETIC_WORDS: &[Column] =
    &[("circuit", circuit), ("optimizer", optimizer), ("device", device), ("precision", precision)];
const STREAM_WORDS: &[Column] = &[("optimizer", optimizer), ("device", device), ("precision", precision)];

/// Columns of numbers, on the right.
const RATES: &[Column] = &[("rows/s", |line| rate(line.speed.rows_per_second))];
const STEP: &[Column] = &[
    ("step", |line| milliseconds(line.speed.step_seconds)),
    ("fastest", |line| line.speed.step_seconds_min.map_or_else(none, milliseconds)),
];
const TOTAL: &[Column] = &[("seconds", |line| of_standing(line, |standing| format!("{:.1}", standing.seconds)))];
const STAGES: &[Column] = &[
    ("read", |line| milliseconds(line.speed.phases.read)),
    ("decode", |line| milliseconds(line.speed.phases.decode)),
    ("wait", |line| milliseconds(line.speed.phases.wait)),
];
const PHASES: &[Column] = &[
    ("prepare", |line| milliseconds(line.speed.phases.prepare)),
    ("forward", |line| milliseconds(line.speed.phases.forward)),
    ("backward", |line| milliseconds(line.speed.phases.backward)),
    ("flows", |line| milliseconds(line.speed.phases.flows)),
    ("update", |line| milliseconds(line.speed.phases.update)),
    ("other", |line| milliseconds(line.speed.other_seconds)),
];
const EPOCH_UPDATE: &[Column] = &[("epoch's update", |line| line.speed.update_seconds.map_or_else(none, milliseconds))];
const COSTS: &[Column] = &[
    ("GFLOP/row", |line| significant(line.speed.gflop_per_row)),
    ("GFLOP/s", |line| significant(line.speed.gflops)),
    ("of GEMM", |line| format!("{:.1} %", 100.0 * line.speed.bound)),
    ("memory", |line| line.host.peak_memory_bytes.map_or_else(none, show_size)),
];
const LIKELIHOOD: &[Column] = &[("nats/row", |line| nats(line.log_likelihood))];
const STANDINGS: &[Column] = &[
    ("equal rows", |line| of_standing(line, |standing| nats(standing.equal_rows_ll))),
    ("equal seconds", |line| of_standing(line, |standing| nats(standing.equal_seconds_ll))),
];

/// Steps on synthetic rows.
pub(super) fn synthetic_table(lines: &[Line]) -> String {
    let mut about = machine(lines);
    for line in lines {
        let subject = &line.subject;
        let name = circuit(line);
        if about.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let cats = subject.cats.map_or(String::new(), |cats| format!(" of {} categories", thousands(cats.into())));
        let (vars, rows) = (thousands(subject.vars as u64), thousands(subject.batch_rows as u64));
        let parameters = thousands(subject.parameters);
        about.push((name, format!("{vars} variables{cats}, {parameters} parameters, batches of {rows} rows")));
    }
    let waits = lines.iter().any(|line| line.speed.update_seconds.is_some());
    let updates = if waits { EPOCH_UPDATE } else { &[] };
    let numbers = [RATES, STEP, PHASES, updates, COSTS, LIKELIHOOD].concat();
    page(&about, &columns(SYNTHETIC_WORDS, &numbers, lines), SYNTHETIC_KEY)
}

/// Optimizers on one stream.
pub(super) fn stream_table(lines: &[Line]) -> String {
    let mut about = machine(lines);
    let mut key = STREAM_KEY.to_string();
    if let Some((line, standing)) = lines.iter().find_map(|line| Some((line, line.standing?))) {
        let subject = &line.subject;
        let (vars, parameters) = (thousands(subject.vars as u64), thousands(subject.parameters));
        let name = subject.pipeline.clone().unwrap_or_default();
        let rows = thousands(standing.rows);
        about.push((
            "pipeline".into(),
            format!("{name}: {rows} rows of {vars} variables in {}", counted(standing.epochs, "epoch", "epochs")),
        ));
        about.push(("circuit".into(), format!("{}, {parameters} parameters", subject.circuit)));
        let what = if standing.held_out { "held-out rows" } else { "rows when they were first seen" };
        key += &format!(
            "\nequal rows, equal seconds: nats per row of {what}, after all rows and after {:.1} s, which the fastest \
             took.",
            standing.equal_seconds
        );
    }
    let impossible: Vec<String> = lines.iter().filter_map(impossible).collect();
    let numbers = [RATES, TOTAL, STAGES, PHASES, COSTS, STANDINGS].concat();
    let key = [&[key][..], &impossible].concat().join("\n");
    page(&about, &columns(STREAM_WORDS, &numbers, lines), &key)
}

fn page(about: &[(String, String)], columns: &str, key: &str) -> String {
    let about: Vec<(&str, String)> = about.iter().map(|(name, what)| (name.as_str(), what.clone())).collect();
    format!("{}\n\n{columns}\n\n{key}", table(&about))
}

/// The machine and what it can do at best.
fn machine(lines: &[Line]) -> Vec<(String, String)> {
    let Some(last) = lines.last() else { return Vec::new() };
    let cpu = last.host.cpu.clone().unwrap_or_else(|| "unknown processor".into());
    let load = last.host.load_average.map_or(String::new(), |load| format!(", load {:.2}", load[0]));
    let (threads, gemm) = (last.subject.threads, last.speed.gemm_gflops);
    let threads = if threads == 1 { "1 thread".to_string() } else { format!("{threads} threads") };
    vec![
        ("machine".into(), format!("{cpu}, {threads}{load}")),
        ("reference".into(), format!("{} GFLOP/s, the best f32 matrix product of this run", significant(gemm))),
    ]
}

/// Words and numbers side by side under their heads.
fn columns(words: &[Column], numbers: &[Column], lines: &[Line]) -> String {
    let all = [words, numbers].concat();
    let mut cells: Vec<Vec<String>> = vec![all.iter().map(|(head, _)| (*head).to_string()).collect()];
    cells.extend(lines.iter().map(|line| all.iter().map(|(_, cell)| cell(line)).collect()));
    let width = |at: usize| cells.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..all.len()).map(width).collect();
    let row = |row: &Vec<String>| {
        let cell = |(at, text): (usize, &String)| match at < words.len() {
            true => format!("{text:<width$}", width = widths[at]),
            false => format!("{text:>width$}", width = widths[at]),
        };
        row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    cells.iter().map(row).collect::<Vec<_>>().join("\n")
}

fn circuit(line: &Line) -> String {
    let latents = line.subject.latents.map_or(String::new(), |latents| format!("-{latents}"));
    format!("{}{latents}", line.subject.circuit)
}

fn optimizer(line: &Line) -> String {
    line.subject.optimizer.replace('_', "-")
}

fn device(line: &Line) -> String {
    line.subject.device.clone()
}

fn precision(line: &Line) -> String {
    line.subject.precision.clone()
}

fn rate(value: f64) -> String {
    if value < 100.0 { significant(value) } else { thousands(value.round() as u64) }
}

fn milliseconds(seconds: f64) -> String {
    significant(1e3 * seconds)
}

/// About three digits.
fn significant(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        0.001.. => format!("{value:.4}"),
        0.0 => "0".into(),
        _ => format!("{value:.1e}"),
    }
}

fn nats(value: Option<f64>) -> String {
    value.map_or_else(none, |value| format!("{value:.4}"))
}

fn of_standing(line: &Line, show: impl Fn(&Standing) -> String) -> String {
    line.standing.as_ref().map_or_else(none, show)
}

fn none() -> String {
    "-".into()
}

/// Says why a mean is −∞.
fn impossible(line: &Line) -> Option<String> {
    let rows = line.standing.map(|standing| standing.impossible_rows).filter(|rows| *rows > 0)?;
    let rows = counted(rows, "held-out row is", "held-out rows are");
    Some(format!("{}: {rows} impossible at the end, and the mean -inf.", optimizer(line)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::host::Host;
    use crate::bench::{Speed, Subject};

    fn line(optimizer: &str) -> Line {
        let subject = Subject {
            bench: "synthetic",
            circuit: "hmm".into(),
            latents: Some(256),
            cats: Some(50_257),
            optimizer: optimizer.into(),
            device: "cpu".into(),
            precision: "f32".into(),
            threads: 2,
            ..Subject::default()
        };
        let speed = Speed { rows_per_second: 1234.0, step_seconds: 0.0415, bound: 0.5, ..Speed::default() };
        Line { subject, speed, log_likelihood: Some(-1.5), standing: None, host: Host::default() }
    }

    #[test]
    fn columns_are_aligned_and_circuits_named_once() {
        let text = synthetic_table(&[line("anemone"), line("full_batch_em")]);
        assert_eq!(text.matches("hmm-256").count(), 3, "{text}");
        for words in ["1,234", "41.5", "50.0 %", "-1.5000", "full-batch-em", "50,257 categories", "2 threads"] {
            assert!(text.contains(words), "no `{words}` in:\n{text}");
        }
        assert!(!text.contains("epoch's update"), "nobody has one:\n{text}");
        let rows: Vec<&str> = text.lines().filter(|line| line.contains("f32  ")).collect();
        assert_eq!(rows.len(), 2, "{text}");
        assert_eq!(rows[0].chars().count(), rows[1].chars().count());
    }

    #[test]
    fn a_stream_shows_where_everybody_stood() {
        let standing =
            Standing { equal_rows_ll: Some(-7.25), equal_seconds: 3.5, impossible_rows: 4, ..Standing::default() };
        let text = stream_table(&[Line { standing: Some(standing), ..line("anemone") }]);
        for words in ["-7.2500", "after 3.5 s", "first seen", "4 held-out rows are impossible"] {
            assert!(text.contains(words), "no `{words}` in:\n{text}");
        }
    }

    #[test]
    fn numbers_have_about_three_digits() {
        let shown = [1234.4, 12.34, 1.234, 0.1234, 0.000_012_3, 0.0].map(significant);
        assert_eq!(shown, ["1234", "12.3", "1.23", "0.1234", "1.2e-5", "0"]);
    }
}
