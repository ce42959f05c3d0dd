//! `[circuit]`: which model.

use serde::Serialize;

use super::document::Document;
use super::section::Section;
use super::tables;
use crate::circuit::distribution::STD_BOUNDS;
use crate::error::{Error, Result};
use crate::pipeline::suggest::list;

/// A circuit as it is written; `model` builds it for the rows that a decoder makes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CircuitSpec {
    /// The structure with its options.
    #[serde(flatten)]
    pub model: ModelSpec,
    /// What a variable is; `None` is categorical for categories and Gaussian for real numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<InputKind>,
    /// The least standard deviation of a Gaussian input, as a share of its column's; of a discrete logistic one, where
    /// all categories span 2.
    pub min_std: f64,
    /// Rows that are read before learning to find a tree, clusters, and a start for densities; the most that any start
    /// is found from.
    pub structure_rows: u64,
    /// Decides the start, and random structures.
    pub seed: u64,
    /// How far apart parameters start.
    pub perturbation: f64,
    /// What they start from; `None` where a file decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<StartSpec>,
}

/// What parameters start from. Densities start from rows in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StartSpec {
    /// Chance alone, as in PyJuice; of a mixture of trees, clusters of rows.
    Noise,
    /// Trees and regions: a whole row for every state, and sums near the identity. Sequences: the frequencies of rows
    /// in the tables, and states far apart.
    Rows,
}

/// How far apart parameters start where nothing is said.
const PERTURBATION: f64 = 2.0;

/// The same for sequences that start from rows: with less, the first epochs are spent on telling states apart.
const PERTURBATION_OF_SEQUENCES: f64 = 8.0;

/// A structure with its options.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "model", rename_all = "kebab-case")]
pub enum ModelSpec {
    /// A hidden Markov model.
    Hmm {
        /// Hidden states.
        latents: usize,
        /// Whether steps share their parameters.
        tying: TyingSpec,
    },
    /// A hidden Markov model whose transition is a Monarch matrix.
    MonarchHmm {
        /// Hidden states.
        latents: usize,
        /// Two numbers whose product is `latents`; `None` takes those nearest to a square.
        #[serde(skip_serializing_if = "Option::is_none")]
        factors: Option<(usize, usize)>,
    },
    /// A hidden Chow–Liu tree.
    Hclt {
        /// Values of a hidden variable.
        latents: usize,
        /// Trees that are mixed. One is not written out: runs from before there could be more go on.
        #[serde(skip_serializing_if = "is_one")]
        components: usize,
        /// Whether all variables share their input distributions.
        tie_inputs: bool,
    },
    /// A Poon–Domingos circuit.
    Pd(PdSpec),
    /// A Poon–Domingos circuit whose smallest boxes are hidden Chow–Liu trees.
    Pdhclt(PdSpec),
    /// A random circuit.
    RatSpn {
        /// Units of a region.
        latents: usize,
        /// How many times variables are cut; `None` is 4, or less where there are few variables.
        #[serde(skip_serializing_if = "Option::is_none")]
        depth: Option<usize>,
        /// Random partitions.
        repetitions: usize,
        /// Pieces that a cut makes.
        pieces: usize,
    },
    /// A circuit in a JSON file, with its parameters if the file has them.
    File {
        /// Where it is, as it was written: `${NAME}` is replaced when it is read.
        path: String,
    },
}

/// Options of Poon–Domingos circuits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PdSpec {
    /// Units of a region.
    pub latents: usize,
    /// How variables lie on a grid; `None` is the decoder's grid, or one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<usize>>,
    /// For each axis, the distance between places where a box may be cut; `None` makes at most 16 pieces of a line and
    /// 4 of the side of an image, and leaves colours together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intervals: Option<Vec<usize>>,
    /// The most products that a unit mixes; `None` is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_product_connections: Option<usize>,
    /// Units that pick their products together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<usize>,
}

/// Whether the steps of a sequence share their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TyingSpec {
    /// They do.
    Homogeneous,
    /// They do not.
    Inhomogeneous,
}

/// What an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputKind {
    /// A table with one probability for every category.
    Categorical,
    /// A normal distribution.
    Gaussian,
    /// Categories on a line, two parameters however many there are.
    DiscreteLogistic,
}

/// Every model by its name in files, with the keys of its own.
pub(crate) const MODELS: [(&str, &[&str]); 7] = [
    ("hmm", &["latents", "tying", "start"]),
    ("monarch-hmm", &["latents", "factors", "start"]),
    ("hclt", &["latents", "components", "tie_inputs", "start"]),
    ("pd", &["latents", "shape", "intervals", "max_product_connections", "block_size", "start"]),
    ("pdhclt", &["latents", "shape", "intervals", "max_product_connections", "block_size", "start"]),
    ("rat-spn", &["latents", "depth", "repetitions", "pieces", "start"]),
    ("file", &["path"]),
];

/// What learns a table where nothing is said.
const MODEL_OF_TABLES: &str = "hclt";

/// Keys of every model.
pub(crate) const COMMON: [&str; 6] = ["model", "input", "min_std", "structure_rows", "seed", "perturbation"];

/// The models that a key belongs to; empty for keys of all.
pub(super) fn models_with(key: &str) -> Vec<&'static str> {
    MODELS.iter().filter(|(_, keys)| keys.contains(&key)).map(|(name, _)| *name).collect()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(number: &usize) -> bool {
    *number == 1
}

impl ModelSpec {
    /// The name in files.
    pub fn name(&self) -> &'static str {
        let index = match self {
            Self::Hmm { .. } => 0,
            Self::MonarchHmm { .. } => 1,
            Self::Hclt { .. } => 2,
            Self::Pd(_) => 3,
            Self::Pdhclt(_) => 4,
            Self::RatSpn { .. } => 5,
            Self::File { .. } => 6,
        };
        MODELS[index].0
    }

    /// Returns true if all variables share one input.
    pub fn ties_inputs(&self) -> bool {
        match self {
            Self::Hmm { tying, .. } => *tying == TyingSpec::Homogeneous,
            Self::Hclt { tie_inputs, .. } => *tie_inputs,
            Self::MonarchHmm { .. } => true,
            Self::Pd(_) | Self::Pdhclt(_) | Self::RatSpn { .. } | Self::File { .. } => false,
        }
    }

    /// Returns true for models of sequences.
    pub fn is_sequence(&self) -> bool {
        matches!(self, Self::Hmm { .. } | Self::MonarchHmm { .. })
    }

    /// What parameters start from where nothing is said; `None` where a file decides. Regions start from noise: rows
    /// did better there with one seed, which is too few to change what a pipeline means.
    fn default_start(&self) -> Option<StartSpec> {
        match self {
            Self::Hmm { .. } | Self::MonarchHmm { .. } | Self::Hclt { .. } | Self::Pdhclt(_) => Some(StartSpec::Rows),
            Self::Pd(_) | Self::RatSpn { .. } => Some(StartSpec::Noise),
            Self::File { .. } => None,
        }
    }

    /// Hidden states, or units of a region; `None` where a file decides.
    pub fn latents(&self) -> Option<usize> {
        match self {
            Self::Hmm { latents, .. }
            | Self::MonarchHmm { latents, .. }
            | Self::Hclt { latents, .. }
            | Self::Pd(PdSpec { latents, .. })
            | Self::Pdhclt(PdSpec { latents, .. })
            | Self::RatSpn { latents, .. } => Some(*latents),
            Self::File { .. } => None,
        }
    }
}

pub(super) fn read(
    document: &Document,
    is_table: bool,
    elsewhere: impl Fn(&str) -> Option<String>,
) -> Result<CircuitSpec> {
    let section = Section::open(document, "circuit")?;
    // Columns of a table come in no order, and are not alike.
    let usual = if is_table { MODEL_OF_TABLES } else { MODELS[0].0 };
    let model = section.choice("model", &MODELS.map(|(name, _)| (name, name)))?.unwrap_or(usual);
    let own = MODELS.iter().find(|(name, _)| *name == model).map_or(&[][..], |(_, keys)| keys);
    let known = tables::CIRCUIT.filtered(|key| COMMON.contains(&key) || own.contains(&key));
    let is_foreign = |key: &&str| tables::CIRCUIT.key(key).is_some() && known.iter().all(|known| known.name != *key);
    if let Some(key) = section.keys().find(is_foreign) {
        let keys = list(own.iter().copied());
        return Err(section.refuse(key, format!("has no meaning for model = \"{model}\", which takes {keys}")));
    }
    let section = section.only(&known, elsewhere)?;
    let inputs = [
        ("categorical", InputKind::Categorical),
        ("gaussian", InputKind::Gaussian),
        ("discrete-logistic", InputKind::DiscreteLogistic),
    ];
    let model = read_model(section, model)?;
    let start = section.choice("start", &[("noise", StartSpec::Noise), ("rows", StartSpec::Rows)])?;
    let start = start.or(model.default_start());
    let perturbation = match start {
        Some(StartSpec::Rows) if model.is_sequence() => PERTURBATION_OF_SEQUENCES,
        _ => PERTURBATION,
    };
    Ok(CircuitSpec {
        model,
        input: section.choice("input", &inputs)?,
        min_std: section
            .number("min_std", |x| (STD_BOUNDS.0..=STD_BOUNDS.1).contains(&x), "in [1e-37, 1e37], which f32 can hold")?
            .unwrap_or(0.01),
        structure_rows: section.whole("structure_rows", 2)?.unwrap_or(20_000),
        seed: section.whole("seed", 0)?.unwrap_or(1),
        perturbation: section
            .number("perturbation", |x| (0.0..=80.0).contains(&x), "in [0, 80]")?
            .unwrap_or(perturbation),
        start,
    })
}

fn read_model(section: Section<'_>, model: &str) -> Result<ModelSpec> {
    let latents = section.count("latents", 1)?.unwrap_or(64);
    Ok(match model {
        "hmm" => {
            let tyings = [("homogeneous", TyingSpec::Homogeneous), ("inhomogeneous", TyingSpec::Inhomogeneous)];
            ModelSpec::Hmm { latents, tying: section.choice("tying", &tyings)?.unwrap_or(TyingSpec::Homogeneous) }
        }
        "monarch-hmm" => {
            let factors = section.counts("factors", Some(2))?.map(|factors| (factors[0], factors[1]));
            if let Some((first, second)) = factors {
                if first < 2 || second < 2 {
                    return Err(section.refuse("factors", "must both be at least 2"));
                }
                let product = first.checked_mul(second);
                if section.has("latents") && product != Some(latents) {
                    return Err(section.refuse("factors", format!("must multiply to latents = {latents}")));
                }
                let latents = product.ok_or_else(|| section.refuse("factors", "are too large for this machine"))?;
                return Ok(ModelSpec::MonarchHmm { latents, factors });
            }
            ModelSpec::MonarchHmm { latents, factors }
        }
        "hclt" => ModelSpec::Hclt {
            latents,
            components: section.count("components", 1)?.unwrap_or(1),
            tie_inputs: section.truth("tie_inputs", false)?,
        },
        "pd" => ModelSpec::Pd(read_pd(section, latents)?),
        "pdhclt" => ModelSpec::Pdhclt(read_pd(section, latents)?),
        "rat-spn" => ModelSpec::RatSpn {
            latents,
            depth: section.count("depth", 1)?,
            repetitions: section.count("repetitions", 1)?.unwrap_or(10),
            pieces: section.count("pieces", 2)?.unwrap_or(2),
        },
        _ => match section.text("path")? {
            Some(path) => ModelSpec::File { path },
            None => return Err(section.refuse("path", "is missing: model = \"file\" reads a circuit from it")),
        },
    })
}

fn read_pd(section: Section<'_>, latents: usize) -> Result<PdSpec> {
    let spec = PdSpec {
        latents,
        shape: section.counts("shape", None)?,
        intervals: section.counts("intervals", None)?,
        max_product_connections: section.count("max_product_connections", 1)?,
        block_size: section.count("block_size", 1)?,
    };
    let wrong = |why: String| -> Result<PdSpec> { Err(section.refuse("intervals", why)) };
    match (&spec.shape, &spec.intervals) {
        (Some(shape), Some(intervals)) if shape.len() != intervals.len() => {
            wrong(format!("must have one number for each axis of shape, which has {}", shape.len()))
        }
        _ => match spec.block_size {
            Some(size) if !latents.is_multiple_of(size) => {
                Err::<PdSpec, Error>(section.refuse("block_size", format!("must divide latents = {latents}")))
            }
            _ => Ok(spec),
        },
    }
}
