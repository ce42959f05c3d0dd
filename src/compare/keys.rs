//! Every key of a comparison file: the lists that `spec` reads it by, and that `anemone keys` prints.

use crate::pipeline::spec::Accepted::{Number, Other, Text, Texts, Whole};
use crate::pipeline::spec::Unset::{Means, Required, Value};
use crate::pipeline::spec::{Table, for_all, key};

/// Everything a comparison may say, in the order of the file.
pub(crate) const TABLES: [&Table; 4] = [&COMPARE, &SET, &CONTENDER, &REFERENCE];

const SEEDS: &str = "list of different whole numbers";
/// What a contender may say about the circuit: parameters, not structure, which all contenders share.
pub(super) const OF_A_START: [&str; 2] = ["circuit.start", "circuit.perturbation"];

const OR_TRY: &str = "as in a pipeline, or `{ try = […] }`, a list to search";

pub(super) const COMPARE: Table = Table {
    path: "compare",
    about: "What everybody shares.",
    owners: for_all,
    keys: &[
        key("pipeline", Text, Required, "The pipeline file that everybody learns; its path starts at this file"),
        key("epochs", Whole(1), Required, "How long everybody learns; `--epochs` changes it"),
        key("seeds", Other(SEEDS), Value("[1]"), "One run of each contender for each; `--seeds` changes them"),
        key("search_epochs", Whole(1), Means("`epochs`, and never more"), "How long each trial of a search is"),
        key("test", Texts, Means("no test rows"), "Files of test rows, scored at the best validation"),
        key("thresholds", Other("list of numbers"), Means("none"), "Log-likelihoods whose first crossing is asked for"),
        key("title", Text, Means("the name of the file"), "What is compared, in a line, for the report"),
        key("about", Text, Means("empty"), "The same in a few sentences"),
    ],
};

pub(super) const SET: Table = Table {
    path: "set",
    about: "What the pipeline is to have otherwise, for everybody. Not the limits of `[learn]`, nor `batch.seed` and \
            `circuit.seed`, which are the comparison's.",
    owners: for_all,
    keys: &[key(
        "SECTION.KEY",
        Other("as in a pipeline"),
        Means("as in the pipeline file"),
        "Any other key of a pipeline",
    )],
};

pub(super) const CONTENDER: Table = Table {
    path: "contender.NAME",
    about: "Somebody who learns the pipeline. A name has letters or digits, and no dot.",
    owners: for_all,
    keys: &[
        key("like", Text, Means("only what is written here"), "A contender above, to take everything else from"),
        key(
            "seeds",
            Other("list of some of the seeds of `[compare]`"),
            Means("all of them"),
            "The seeds it runs under",
        ),
        key("learn.KEY", Other(OR_TRY), Means("as in the pipeline"), "How it learns; not for how long"),
        key("batch.rows", Other(OR_TRY), Means("as in the pipeline"), "Rows in a batch"),
        key(OF_A_START[0], Other(OR_TRY), Means("as in the pipeline"), "What it starts from; the structure is shared"),
        key(OF_A_START[1], Other(OR_TRY), Means("as in the pipeline"), "How far apart its parameters start"),
    ],
};

pub(super) const REFERENCE: Table = Table {
    path: "reference.NAME",
    about: "A model to beat, by its log-likelihood per row.",
    owners: for_all,
    keys: &[
        key("valid", Number("a number"), Means("unknown"), "Of the held-out rows"),
        key("test", Number("a number"), Means("unknown"), "Of the test rows"),
    ],
};
