//! Keeps what was recorded, and writes it as Prometheus text.
//!
//! A [`Registry`] is a recorder of the `metrics` facade. Counters and gauges are atomics, a histogram is a lock around
//! a few numbers: they are touched once per batch. The text has counters, gauges and histograms, each by name, so that
//! two looks at one state are the same text. Served by `server`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::atomics::AtomicU64;
use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Upper ends of the buckets of a histogram, in seconds: steps take from a millisecond to a minute.
const BUCKETS: [f64; 14] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 180.0];

/// Everything that was recorded. Clones are handles to the same numbers.
#[derive(Clone, Default)]
pub struct Registry {
    kept: Arc<Kept>,
}

/// A series: its name and its labels, as they are written between braces.
type Series = (String, String);

#[derive(Default)]
struct Kept {
    meanings: Mutex<BTreeMap<String, SharedString>>,
    counters: Mutex<BTreeMap<Series, Arc<AtomicU64>>>,
    /// Bits of `f64`.
    gauges: Mutex<BTreeMap<Series, Arc<AtomicU64>>>,
    histograms: Mutex<BTreeMap<Series, Arc<Distribution>>>,
}

impl Registry {
    /// What was recorded so far, in the text format of Prometheus.
    pub fn render(&self) -> String {
        let mut page = Page { text: String::new(), meanings: &lock(&self.kept.meanings), family: None };
        for ((name, labels), value) in &*lock(&self.kept.counters) {
            page.family(name, "counter");
            page.line(name, "", labels, None, value.load(Ordering::Acquire));
        }
        for ((name, labels), bits) in &*lock(&self.kept.gauges) {
            page.family(name, "gauge");
            page.line(name, "", labels, None, f64::from_bits(bits.load(Ordering::Acquire)));
        }
        for ((name, labels), distribution) in &*lock(&self.kept.histograms) {
            page.family(name, "histogram");
            let counts = *lock(&distribution.0);
            for (end, count) in BUCKETS.iter().zip(counts.up_to) {
                page.line(name, "_bucket", labels, Some(&end.to_string()), count);
            }
            page.line(name, "_bucket", labels, Some("+Inf"), counts.all);
            page.line(name, "_sum", labels, None, counts.sum);
            page.line(name, "_count", labels, None, counts.all);
        }
        page.end()
    }

    fn describe(&self, name: &KeyName, meaning: SharedString) {
        lock(&self.kept.meanings).entry(valid(name.as_str(), ":")).or_insert(meaning);
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registry")
    }
}

impl Recorder for Registry {
    fn describe_counter(&self, name: KeyName, _unit: Option<Unit>, meaning: SharedString) {
        self.describe(&name, meaning);
    }

    fn describe_gauge(&self, name: KeyName, _unit: Option<Unit>, meaning: SharedString) {
        self.describe(&name, meaning);
    }

    fn describe_histogram(&self, name: KeyName, _unit: Option<Unit>, meaning: SharedString) {
        self.describe(&name, meaning);
    }

    fn register_counter(&self, key: &Key, _metadata: &Metadata<'_>) -> Counter {
        Counter::from_arc(lock(&self.kept.counters).entry(series(key)).or_default().clone())
    }

    fn register_gauge(&self, key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(lock(&self.kept.gauges).entry(series(key)).or_default().clone())
    }

    fn register_histogram(&self, key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(lock(&self.kept.histograms).entry(series(key)).or_default().clone())
    }
}

/// A histogram's numbers.
#[derive(Default)]
struct Distribution(Mutex<Counts>);

#[derive(Clone, Copy, Default)]
struct Counts {
    /// Values up to the end of each bucket: every bucket has those below it, too.
    up_to: [u64; BUCKETS.len()],
    all: u64,
    sum: f64,
}

impl HistogramFn for Distribution {
    fn record(&self, value: f64) {
        let mut counts = lock(&self.0);
        for (end, count) in BUCKETS.iter().zip(&mut counts.up_to) {
            *count += u64::from(value <= *end);
        }
        counts.all += 1;
        counts.sum += value;
    }
}

/// The text, family by family.
struct Page<'a> {
    text: String,
    meanings: &'a BTreeMap<String, SharedString>,
    /// The family that is being written.
    family: Option<String>,
}

impl Page<'_> {
    /// Meaning and type of a family, ahead of its first line.
    fn family(&mut self, name: &str, kind: &str) {
        if self.family.as_deref() == Some(name) {
            return;
        }
        if self.family.replace(name.into()).is_some() {
            self.text.push('\n');
        }
        if let Some(meaning) = self.meanings.get(name) {
            self.write(format_args!("# HELP {name} {}\n", escaped(meaning, false)));
        }
        self.write(format_args!("# TYPE {name} {kind}\n"));
    }

    /// A value. `le` is the upper end of a bucket.
    fn line(&mut self, name: &str, suffix: &str, labels: &str, le: Option<&str>, value: impl fmt::Display) {
        let le = le.map(|le| format!("le=\"{le}\"")).unwrap_or_default();
        let comma = if labels.is_empty() || le.is_empty() { "" } else { "," };
        let (open, close) = if labels.is_empty() && le.is_empty() { ("", "") } else { ("{", "}") };
        self.write(format_args!("{name}{suffix}{open}{labels}{comma}{le}{close} {value}\n"));
    }

    fn write(&mut self, what: fmt::Arguments<'_>) {
        let _ = self.text.write_fmt(what); // a string takes everything
    }

    fn end(mut self) -> String {
        if self.family.is_some() {
            self.text.push('\n');
        }
        self.text
    }
}

fn series(key: &Key) -> Series {
    let label = |label: &metrics::Label| format!("{}=\"{}\"", valid(label.key(), ""), escaped(label.value(), true));
    (valid(key.name(), ":"), key.labels().map(label).collect::<Vec<_>>().join(","))
}

/// A name with an underscore for every character that names must not have; `more` are allowed besides the usual ones.
fn valid(name: &str, more: &str) -> String {
    let is_valid = |(at, c): (usize, char)| {
        c == '_' || more.contains(c) || c.is_ascii_alphabetic() || at > 0 && c.is_ascii_digit()
    };
    name.chars().enumerate().map(|(at, c)| if is_valid((at, c)) { c } else { '_' }).collect()
}

/// A text on one line; in the value of a label, quotes are escaped as well.
fn escaped(text: &str, is_quoted: bool) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => line.push_str("\\n"),
            '\\' => line.push_str("\\\\"),
            '"' if is_quoted => line.push_str("\\\""),
            _ => line.push(c),
        }
    }
    line
}

/// A number that somebody left half-way by a panic is a number still.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

    use super::*;

    /// To the letter what the exporter wrote that was here before, but for the order of families.
    #[test]
    fn the_text_is_that_of_prometheus_to_the_letter() {
        let registry = Registry::default();
        metrics::with_local_recorder(&registry, || {
            describe_counter!("rows_total", Unit::Count, "rows, \"all\" of them\nand C:\\more");
            describe_gauge!("wait seconds", Unit::Seconds, "waiting");
            describe_gauge!("never", Unit::Count, "not set, not shown");
            describe_histogram!("step_seconds", Unit::Seconds, "steps");
            counter!("rows_total").increment(5);
            counter!("rows_total").increment(2);
            counter!("2nd:total").absolute(9);
            counter!("2nd:total").absolute(4);
            gauge!("wait seconds", "stage" => "decode", "side" => "input").set(2.5);
            gauge!("wait seconds", "stage" => "a\"b\\c\nd", "2 sides" => "").set(f64::NEG_INFINITY);
            gauge!("level").increment(0.25);
            for seconds in [0.001, 0.02, 0.02, 500.0] {
                histogram!("step_seconds").record(seconds);
            }
            histogram!("step_seconds", "device" => "cpu").record(4.0);
        });
        let buckets = |labels: &str, counts: [u64; 14]| {
            let line = |(end, count): (&f64, u64)| format!("step_seconds_bucket{{{labels}le=\"{end}\"}} {count}\n");
            BUCKETS.iter().zip(counts).map(line).collect::<String>()
        };
        let wanted = [
            "# TYPE _nd:total counter\n_nd:total 9\n\n",
            "# HELP rows_total rows, \"all\" of them\\nand C:\\\\more\n# TYPE rows_total counter\nrows_total 7\n\n",
            "# TYPE level gauge\nlevel 0.25\n\n",
            "# HELP wait_seconds waiting\n# TYPE wait_seconds gauge\n",
            "wait_seconds{stage=\"a\\\"b\\\\c\\nd\",__sides=\"\"} -inf\n",
            "wait_seconds{stage=\"decode\",side=\"input\"} 2.5\n\n",
            "# HELP step_seconds steps\n# TYPE step_seconds histogram\n",
            &buckets("", [1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3]),
            "step_seconds_bucket{le=\"+Inf\"} 4\nstep_seconds_sum 500.041\nstep_seconds_count 4\n",
            &buckets("device=\"cpu\",", [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
            "step_seconds_bucket{device=\"cpu\",le=\"+Inf\"} 1\nstep_seconds_sum{device=\"cpu\"} 4\n",
            "step_seconds_count{device=\"cpu\"} 1\n\n",
        ];
        assert_eq!(registry.render(), wanted.concat());
    }

    #[test]
    fn nothing_recorded_is_nothing_written() {
        let registry = Registry::default();
        metrics::with_local_recorder(&registry, || describe_counter!("rows_total", "rows"));
        assert_eq!(registry.render(), "");
    }
}
