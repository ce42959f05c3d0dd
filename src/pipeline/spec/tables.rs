//! Every key of a pipeline: the lists that the sections are read by.
//!
//! A key that is not here is refused, so whoever adds one writes its line; `anemone keys` and docs/REFERENCE.md follow.
//! Which models, kinds, formats, optimizers and schedules a key belongs to is not said here: the reader's own lists are
//! asked.

use super::key::Accepted::{Between, Counts, Length, Number, Other, Size, Text, Texts, Truth, Whole, Word};
use super::key::Unset::{Default, DefaultIf, Derived, Means, Required, Value};
use super::key::{Key, Table, for_all, key};
use super::{circuit, decode, learn, source};
use crate::data::schema::MOST_CATS;
use crate::optim::OPTIMIZERS;

/// The sections of a pipeline, in the order of the data.
pub(crate) const SECTIONS: [&Table; 10] =
    [&SOURCE, &DECODE, &BATCH, &CIRCUIT, &LEARN, &DRIFT, &VALIDATE, &CHECKPOINT, &METRICS, &PIPELINE];

/// Everything a pipeline may say, in the order of the file.
pub(crate) const ALL: [&Table; 17] = [
    &ROOT,
    &SOURCE,
    &SYNTHETIC,
    &KAFKA,
    &DECODE,
    &COLUMNS,
    &BATCH,
    &CIRCUIT,
    &LEARN,
    &SCHEDULE,
    &SMOOTHING,
    &AVERAGE,
    &DRIFT,
    &VALIDATE,
    &CHECKPOINT,
    &METRICS,
    &PIPELINE,
];

const FILES_ABOUT: &str = "Paths, patterns (`*`) or addresses; `${NAME}` is replaced by the environment";
const FORMAT: Key = key(
    "format",
    Word(&["parquet", "tokens", "jsonl", "csv", "npy", "arrow"]),
    Derived("by the ending of the files"),
    "What the files are",
);
const COLUMN_ABOUT: &str = "The one column to read: a text, an image, a list of numbers";
const DIGEST_ABOUT: &str = "What of a file a resumed run is held to: size, first and last 64 KiB, or every byte";
const FIELD_ABOUT: &str = "The former name of `column` for JSON lines";
const COLUMNS_ABOUT: &str = "The columns to read, one per variable; a name that ends in `*` is a prefix";

const DELIMITER_ABOUT: &str = "The character between cells";

pub(super) const ROOT: Table = Table {
    path: "",
    about: "One key stands before all sections.",
    owners: for_all,
    keys: &[key(
        "name",
        Other("text that can name a folder"),
        Means("the name of the file"),
        "What the run, and its folder, is called",
    )],
};

pub(super) const SOURCE: Table = Table {
    path: "source",
    about: "Where rows come from: `files`, `[source.synthetic]` or `[source.kafka]`.",
    owners: source::formats_with,
    keys: &[
        key("files", Texts, Required, FILES_ABOUT),
        FORMAT,
        key("column", Text, Means("what can only be meant; of JSON lines `text`, if that is a text"), COLUMN_ABOUT),
        key("columns", Texts, Means("what can only be meant"), COLUMNS_ABOUT),
        key("field", Text, Means("`column`"), FIELD_ABOUT),
        key(
            "delimiter",
            Text,
            Means("a tab in `.tsv`, else the most frequent of `,`, `;`, tab and `|` in the first line"),
            DELIMITER_ABOUT,
        ),
        key("tokens", Word(&["u16", "u32"]), Default, "How wide a token is in a flat token file"),
        key("digest", Word(&["ends", "whole"]), Value("\"ends\""), DIGEST_ABOUT),
        key(
            "follow",
            Truth,
            Value("false"),
            "Reads one `.jsonl` or `.bin` file as it is written, without an end, also when it is rotated",
        ),
        key(
            "watch",
            Truth,
            Value("false"),
            "Learns from files as they appear, by name, each once it is whole; has no end",
        ),
        key(
            "settle",
            Number("in [0, 86400]"),
            Derived("`2.0` where files are watched"),
            "Seconds for which a watched file must stay the same to be whole; one that is moved there is whole at once",
        ),
        key(
            "on_gap",
            Word(&["fail", "skip"]),
            Means("`\"fail\"`"),
            "What happens where what comes next is gone (of a followed or watched file): an error, or a note",
        ),
        key(
            "synthetic",
            Other("a section, `[source.synthetic]`"),
            Means("files are read"),
            "Rows from a random model, instead of files",
        ),
        key(
            "kafka",
            Other("a section, `[source.kafka]`"),
            Means("files are read"),
            "Messages of a topic, instead of files (feature `kafka`)",
        ),
    ],
};

pub(super) const SYNTHETIC: Table = Table {
    path: "source.synthetic",
    about: "Rows from a random model whose likelihood is known. The section may be empty.",
    owners: for_all,
    keys: &[
        key("kind", Word(&["hmm", "mixture"]), Default, "A hidden Markov model, or a mixture of independent variables"),
        key("num_vars", Between(1, 1 << 24), Default, "Variables in a row"),
        key("cats", Between(2, 65_536), Default, "Categories of a variable"),
        key("latents", Between(1, 1024), Default, "Hidden states, or components of the mixture"),
        key("seed", Whole(0), Default, "Decides the distribution and the rows"),
        key("rows", Whole(1), Means("endless"), "Rows in an epoch"),
        key(
            "drift",
            Whole(1),
            Means("no drift"),
            "The row from which on all rows come from a second distribution; before, ever more of them",
        ),
        key("changes", Counts(None), Means("no change"), "Rows from which on all rows come from another distribution"),
    ],
};

pub(super) const KAFKA: Table = Table {
    path: "source.kafka",
    about: "Messages of a topic of Apache Kafka. `column`, `columns` (JSON, Arrow) and `tokens` (ids) stand in \
            `[source]`.",
    owners: for_all,
    keys: &[
        key("brokers", Texts, Required, "Addresses, `host:port`; `${NAME}` is replaced by the environment"),
        key("topic", Text, Required, "The topic"),
        key(
            "partitions",
            Other("list of numbers of partitions"),
            Means("all, and those that appear later, from their beginning"),
            "The partitions to read",
        ),
        key(
            "start",
            Other("`\"earliest\"`, `\"latest\"`, or a time (RFC 3339)"),
            Default,
            "Where a run begins that has no checkpoint",
        ),
        key(
            "value",
            Word(&["json", "text", "ids", "arrow"]),
            Default,
            "What a message holds: columns or a list, a text, little-endian ids, an Arrow IPC stream",
        ),
        key(
            "order",
            Word(&["arrival", "round-robin"]),
            Default,
            "How partitions are merged; `round-robin` waits for the slowest, and is the same in every run",
        ),
        key(
            "on_gap",
            Word(&["fail", "skip"]),
            Default,
            "What happens where the broker has deleted what comes next: an error, or a warning",
        ),
        key(
            "group",
            Text,
            Means("nothing is committed"),
            "The group that offsets of checkpoints are committed for, to show lag; they are never read",
        ),
        key("timeout", Number("positive"), Default, "Seconds that brokers have to answer when the topic is opened"),
        key(
            "options",
            Other("table of texts, numbers and truths"),
            Means("none"),
            "Options of librdkafka, such as `\"security.protocol\"`; a secret must be `\"${NAME}\"`",
        ),
    ],
};

pub(super) const DECODE: Table = Table {
    path: "decode",
    about: "What records mean. `kind` decides which other keys there are.",
    owners: decode::kinds_with,
    keys: &[
        key(
            "kind",
            Word(&["text", "tokens", "image", "rows", "table"]),
            Derived("by the source, by the other keys, or by the first records"),
            "What the records are",
        ),
        key("tokenizer", Text, Default, "`gpt2`, or the path of a `tokenizer.json` (feature `tokenizer-json`)"),
        key("window", Between(1, decode::LONGEST_WINDOW as u64), Default, "Tokens in a row"),
        key(
            "rows",
            Word(&["windows", "texts"]),
            Means("`\"windows\"`"),
            "`windows` of all texts one after the other, or `texts` in rows of their own, the rest of each missing",
        ),
        key(
            "end_of_text",
            Truth,
            DefaultIf("unless `rows = \"texts\"`, which has them"),
            "Ends every text with the token that says so",
        ),
        key("vocab", Between(1, u32::MAX as u64), Default, "How many different tokens there are"),
        key(
            "patch",
            Whole(1),
            Means("images stay whole; then `size` is required"),
            "The side of the squares that images are cut into",
        ),
        key(
            "color",
            Word(&["ycocg-r", "ycocg", "rgb", "grey"]),
            Means("`\"grey\"` if the first images are grey, else `\"ycocg-r\"`"),
            "Which colours the circuit sees",
        ),
        key("levels", Between(2, 256), DefaultIf("for `rgb` and `grey`, which alone have it"), "Shades of a channel"),
        key(
            "size",
            Counts(Some(2)),
            Means("any size; then `patch` is required"),
            "Height and width that all images must have",
        ),
        key("cats", Between(1, u32::MAX as u64), Means("counted over the first rows"), "Categories of a variable"),
        key(
            "schema",
            Other("table, as a run writes it into `resolved.toml`"),
            Means("found in the first rows, and by what `[columns]` says"),
            "What every column of a table means",
        ),
    ],
};

pub(super) const COLUMNS: Table = Table {
    path: "columns.NAME",
    about: "What a column of a table (`decode.kind = \"table\"`) means, where the rule is not what is meant; `anemone \
            check` shows what all of them are understood as, docs/GUIDE.md has the rule. `as` may be left out where \
            another key says it.",
    owners: for_all,
    keys: &[
        key(
            "as",
            Word(&[
                "category", "bool", "count", "number", "bins", "time", "minute", "hour", "weekday", "day", "month",
                "quarter", "ignore",
            ]),
            Means("by the rule"),
            "A name, a truth, how many, a number, its quantile bin, a date or time, a part of it; or not learned from",
        ),
        key(
            "categories",
            Between(2, MOST_CATS as u64),
            Derived("256"),
            "Categories of names, *other* among them: the most frequent of the first rows",
        ),
        key(
            "vocabulary",
            Other("list of names, or a file with one a line"),
            Means("the most frequent of the first rows"),
            "The names of the categories",
        ),
        key("unseen", Word(&["other", "error"]), Derived("`\"other\"`"), "What another name is: *other*, or bad data"),
        key("bins", Between(2, MOST_CATS as u64), Derived("16"), "Bins with about as many of the first rows each"),
        key(
            "distribution",
            Word(&[
                "categorical",
                "bernoulli",
                "binomial",
                "poisson",
                "negative-binomial",
                "gaussian",
                "discrete-logistic",
            ]),
            Means("categorical of names, truths and bins; negative binomial of counts; gaussian of numbers and times"),
            "What the inputs are",
        ),
        key(
            "trials",
            Between(1, MOST_CATS as u64),
            Derived("the largest of the first rows"),
            "How many a binomial count is out of",
        ),
        key(
            "range",
            Other("list of the least and the largest whole number"),
            Derived("that of the first rows"),
            "Of numbers with `distribution = \"discrete-logistic\"`",
        ),
    ],
};

pub(super) const BATCH: Table = Table {
    path: "batch",
    about: "How rows are put together.",
    owners: for_all,
    keys: &[
        key("rows", Whole(1), Default, "Rows in a batch"),
        key(
            "shards",
            Whole(1),
            Default,
            "Parts of a batch, each a stream of its own: as many ranks can learn together",
        ),
        key("shuffle", Truth, Default, "A random order of rows, another one every epoch"),
        key("seed", Whole(0), Default, "Decides that order"),
        key("drop_last", Truth, Default, "Leaves out a last, short batch of an epoch"),
        key(
            "shuffle_window",
            Size(1),
            Default,
            "Bytes of rows among which order is random, where rows cannot be read by number",
        ),
        key(
            "max_wait",
            Other("number of seconds, or `\"never\"`"),
            Derived("5 seconds for live sources whose order is that of arrival, or with `shards`; else `\"never\"`"),
            "How long the first row of a live batch waits for the last, and for shards without rows",
        ),
    ],
};

pub(super) const CIRCUIT: Table = Table {
    path: "circuit",
    about: "Which model. `model` decides which other keys there are.",
    owners: circuit::models_with,
    keys: &[
        key(
            "model",
            Word(&["hmm", "monarch-hmm", "hclt", "pd", "pdhclt", "rat-spn", "file"]),
            Derived("`\"hclt\"` for tables, else `\"hmm\"`"),
            "The structure",
        ),
        key(
            "input",
            Word(&["categorical", "gaussian", "discrete-logistic"]),
            Means("`categorical` for categories, `gaussian` for real numbers"),
            "What a variable is",
        ),
        key(
            "min_std",
            Number("in [1e-37, 1e37], which f32 can hold"),
            Default,
            "Least standard deviation of an input: as a share of its column's (Gaussian), of half the range (logistic)",
        ),
        key(
            "structure_rows",
            Whole(2),
            Default,
            "Rows that are read before learning, to find a tree, clusters and a start for densities",
        ),
        key("seed", Whole(0), Default, "Decides the start, and random structures"),
        key(
            "perturbation",
            Number("in [0, 80]"),
            Derived("`2.0`; `8.0` for `hmm` and `monarch-hmm` that start from rows"),
            "How far apart parameters start",
        ),
        key(
            "start",
            Word(&["noise", "rows"]),
            Default,
            "Chance; or a whole row for every state (trees, regions), frequencies of rows in the tables (sequences)",
        ),
        key("latents", Whole(1), Default, "Hidden states, or units of a region"),
        key("tying", Word(&["homogeneous", "inhomogeneous"]), Default, "Steps share their parameters, or do not"),
        key(
            "factors",
            Other("list of 2 whole numbers, each at least 2"),
            Means("the two nearest to a square"),
            "Two numbers whose product is `latents`",
        ),
        key("components", Whole(1), Value("1"), "Trees that are mixed"),
        key("tie_inputs", Truth, Default, "All variables share their input distributions"),
        key("shape", Counts(None), Means("the decoder's grid, or one line"), "How variables lie on a grid"),
        key(
            "intervals",
            Counts(None),
            Means("at most 16 pieces of a line, 4 of the side of an image; colours stay together"),
            "For each axis, the distance between places where a box may be cut",
        ),
        key("max_product_connections", Whole(1), Means("no limit"), "The most products that a unit mixes"),
        key(
            "block_size",
            Whole(1),
            Means("the largest power of two that divides `latents`, at most 16 up to 32 latents and 32 beyond"),
            "Units that pick their products together; divides `latents`",
        ),
        key("depth", Whole(1), Means("4, or less where there are few variables"), "How many times variables are cut"),
        key("repetitions", Whole(1), Default, "Random partitions"),
        key("pieces", Whole(2), Default, "Pieces that a cut makes"),
        key("path", Text, Required, "A circuit as JSON, with its parameters if the file has them"),
    ],
};

pub(super) const LEARN: Table = Table {
    path: "learn",
    about: "Which optimizer, and when to stop. `optimizer` decides which other keys there are; the first limit that is \
            reached ends the run.",
    owners: learn::optimizers_with,
    keys: &[
        key("optimizer", Word(&OPTIMIZERS), Value("\"anemone\""), "The rule that updates the parameters"),
        key("step", Other("number in (0, 1], or a schedule, `[learn.step]`"), Default, "α, the size of a step"),
        key("rate", Other("positive number, or a schedule, `[learn.rate]`"), Default, "The learning rate"),
        key("momentum", Number("in [0, 1)"), Default, "β of the momentum flows; 0 is none"),
        key("beta1", Number("in [0, 1)"), Default, "Decay of the first moment"),
        key("beta2", Number("in [0, 1)"), Default, "Decay of the second moment"),
        key("epsilon", Number("a positive number"), Default, "Added to the root of the second moment"),
        key("batches_per_update", Whole(1), Default, "Batches whose flows are averaged for one update"),
        key(
            "smoothing",
            Other("number, 0 or more, or `[learn.smoothing]`"),
            Default,
            "ε, which keeps parameters away from zero; a plain number is the relative rule",
        ),
        key(
            "retain",
            Word(&["top-down", "flows", "larger"]),
            Default,
            "How much of their old weights sums keep: as the model uses them, as the batch did, or the larger",
        ),
        key("retain_inputs", Word(&["top-down", "flows", "larger"]), Default, "The same for inputs"),
        key(
            "average",
            Other("`true`, `false`, or `[learn.average]`"),
            Default,
            "Whether held-out rows, answers and saved models are those of averaged parameters",
        ),
        key("epochs", Whole(1), DefaultIf("if there is no other limit; none for live sources"), "Passes over the data"),
        key(
            "window_rows",
            Whole(1),
            Means("a live stream has no epochs"),
            "Rows of a live stream that are one epoch: full-batch EM updates after as many",
        ),
        key("batches", Whole(1), Means("no limit"), "Batches to learn from, over all epochs"),
        key(
            "rows",
            Whole(1),
            Means("no limit"),
            "Rows to learn from, over all epochs; the batch that reaches them is the last",
        ),
        key("seconds", Number("positive"), Means("no limit"), "Seconds to learn for, over all resumptions"),
    ],
};

const STEP: &str = "number; for `step` in (0, 1], for `rate` positive";

pub(super) const SCHEDULE: Table = Table {
    path: "learn.step",
    about: "A step that changes; `[learn.rate]` takes the same keys. `t` counts updates: `counts` is `min(most, \
            √c·max(floor, factor·(1 + t/delay)^−kappa))` where a batch uses each state `c` times, `power` is \
            `max(floor, from·(1 + t/delay)^−kappa)`. A length is a number of updates, or a text: `\"940 updates\"`, \
            `\"200000 rows\"`, `\"10 epochs\"`; epochs need a source whose number of rows is known. A step by counts \
            that falls begins again where an average is reset, and then stays at half of its first size. A step \
            without an end: `learn.step = { schedule = \"power\", from = 0.4, kappa = 0.33, delay = 20, floor = 0.05 \
            }`; one for a run of ten epochs: `learn.step = { schedule = \"cosine\", from = 0.4, to = 0.02, horizon = \
            \"10 epochs\" }`. `anemone check` says how large the step will be, and when.",
    owners: learn::schedules_with,
    keys: &[
        key(
            "schedule",
            Word(&["constant", "counts", "power", "cosine", "warmup_stable_decay"]),
            Required,
            "Not; by counts; by a power; half a cosine; up, flat and down",
        ),
        key("step", Other(STEP), Required, "The step, always"),
        key("factor", Number("a positive number"), Required, "Times √c is the first step"),
        key("most", Other(STEP), Required, "The largest step"),
        key("from", Other(STEP), Required, "The first step"),
        key("to", Other(STEP), Required, "The last step, which then stays"),
        key("kappa", Number("a number, 0 or more"), Means("required for power; 0 for counts"), "The exponent"),
        key("delay", Length("more than 0"), Means("required for power; 1 for counts"), "Before the decay is felt"),
        key(
            "floor",
            Other("number from 0 to `from` or `factor`"),
            Value("0.0"),
            "No step, or no factor of counts, is smaller; 0 is no floor",
        ),
        key("horizon", Length("more than 0"), Required, "From the first step to the last"),
        key("peak", Other(STEP), Required, "The step of the flat part"),
        key("warmup", Length("0 or more"), Required, "Going up"),
        key("stable", Length("0 or more"), Required, "On the flat part"),
        key("decay", Length("more than 0"), Required, "Going down"),
    ],
};

pub(super) const SMOOTHING: Table = Table {
    path: "learn.smoothing",
    about: "One of two rules, written out.",
    owners: for_all,
    keys: &[
        key(
            "relative",
            Other("number, 0 or more"),
            Means("the other one"),
            "The same pull towards uniform for every row of parameters",
        ),
        key(
            "absolute",
            Other("number, 0 or more"),
            Means("the other one"),
            "The rule of PyJuice: pulls rare nodes more than others",
        ),
    ],
};

pub(super) const AVERAGE: Table = Table {
    path: "learn.average",
    about: "How parameters are averaged; the section may be empty.",
    owners: for_all,
    keys: &[
        key("window", Number("a number, 0 or more"), Default, "Of about the last 1/(window + 1) of all updates"),
        key("every", Whole(1), Default, "Updates between two averages, once there have been 32 times as many"),
        key("cap", Whole(1), Default, "Updates that an average spans at the most"),
        key(
            "reset",
            Number("a number, 0 or more"),
            Default,
            "Starts anew after a batch so many deviations below those before it; 0 is never",
        ),
    ],
};

pub(super) const DRIFT: Table = Table {
    path: "drift",
    about: "Who watches for changes of the stream. Without the section nobody does, unless the source has no end.",
    owners: for_all,
    keys: &[
        key(
            "detector",
            Word(&["adwin", "page-hinkley", "both", "none"]),
            Default,
            "Who looks for falls of the log-likelihood of batches before they are learned from",
        ),
        key("delta", Number("in (0, 1)"), Default, "ADWIN: how likely a false alarm is at a batch of 64 rows or more"),
        key(
            "threshold",
            Number("positive"),
            Default,
            "Page–Hinkley: deviations below the usual, added up, for an alarm",
        ),
        key(
            "tolerance",
            Number("a number, 0 or more"),
            Default,
            "Page–Hinkley: deviations below the usual that do not count",
        ),
        key("mean_rows", Whole(1), Default, "Rows of the windowed log-likelihood in metrics and lines"),
        key(
            "on_drift",
            Word(&["report", "raise-step", "checkpoint", "stop"]),
            Default,
            "What happens besides the report: a larger step for a while, a checkpoint that is kept, or the end",
        ),
        key("keep", Whole(1), Default, "How many checkpoints of `on_drift = \"checkpoint\"` are kept"),
    ],
};

pub(super) const VALIDATE: Table = Table {
    path: "validate",
    about: "What held-out likelihood is measured on. Without the section nothing is held out.",
    owners: source::formats_with,
    keys: &[
        key("files", Texts, Derived("required; rows after those learned from for synthetic data"), FILES_ABOUT),
        FORMAT,
        key("column", Text, Derived("as in `[source]`"), COLUMN_ABOUT),
        key("columns", Texts, Derived("as in `[source]`"), COLUMNS_ABOUT),
        key("field", Text, Means("`column`"), FIELD_ABOUT),
        key("delimiter", Text, Derived("as in `[source]`"), DELIMITER_ABOUT),
        key("tokens", Word(&["u16", "u32"]), Derived("as in `[source]`"), "How wide a token is in a flat token file"),
        key(
            "every_epochs",
            Whole(1),
            DefaultIf("if `every_batches` is not given"),
            "At the end of every so many epochs",
        ),
        key("every_batches", Whole(1), Means("at ends of epochs only"), "After every so many batches"),
        key("every_rows", Whole(1), Means("not by rows"), "With the first batch that reaches so many rows more"),
        key(
            "every_seconds",
            Number("positive"),
            Derived("300 for live sources, if nothing else is said"),
            "After every so many seconds",
        ),
        key("rows", Whole(1), DefaultIf("for synthetic data; else all"), "No more rows than this"),
    ],
};

pub(super) const CHECKPOINT: Table = Table {
    path: "checkpoint",
    about: "What is kept, and how often. One more is written at the end.",
    owners: for_all,
    keys: &[
        key("every_batches", Whole(1), Means("by seconds only"), "After every so many batches"),
        key("every_rows", Whole(1), Means("by seconds only"), "With the first batch that reaches so many rows more"),
        key(
            "every_seconds",
            Number("positive"),
            DefaultIf("if neither `every_batches` nor `every_rows` is given"),
            "After every so many seconds",
        ),
        key("keep", Whole(1), Default, "How many of the latest are kept"),
        key("keep_best", Truth, Default, "Keeps the one of best held-out likelihood besides"),
    ],
};

pub(super) const METRICS: Table = Table {
    path: "metrics",
    about: "The lines of `metrics.jsonl`. Each look at held-out rows has one besides.",
    owners: for_all,
    keys: &[
        key("every_batches", Whole(1), Means("by seconds only"), "After every so many batches"),
        key("every_rows", Whole(1), Means("by seconds only"), "With the first batch that reaches so many rows more"),
        key(
            "every_seconds",
            Number("positive"),
            DefaultIf("if neither `every_batches` nor `every_rows` is given"),
            "With the first batch after so many seconds",
        ),
        key(
            "rotate",
            Size(4 << 10),
            Default,
            "A file that is larger becomes `metrics-000001.jsonl`, the next one `metrics-000002.jsonl`, and so on",
        ),
        key("keep", Whole(1), Default, "How many of those are kept"),
    ],
};

pub(super) const PIPELINE: Table = Table {
    path: "pipeline",
    about: "How the stages run. Nothing here changes what is learned, except which bad records are left out.",
    owners: for_all,
    keys: &[
        key(
            "memory",
            Size(1 << 20),
            Default,
            "Bytes that rows on their way may take; held-out rows take half as much besides",
        ),
        key("workers", Between(1, 256), Means("one a core, at most 8"), "Decoding workers"),
        key("prefetch", Between(1, 1024), Default, "Blocks that are fetched ahead"),
        key("on_bad", Word(&["fail", "skip", "quarantine"]), Default, "What happens to records that cannot be read"),
        key("max_bad", Whole(0), Default, "With more bad records than this in an epoch the run stops"),
        key(
            "max_bad_fraction",
            Number("in [0, 1]"),
            Default,
            "With a larger part of bad records than this in an epoch the run stops",
        ),
    ],
};
