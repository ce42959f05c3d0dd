//! The circuit structures people use, each a function from a few options to a [`Circuit`].
//!
//! Sequences: [`hmm`], and [`monarch_hmm`] for many states. Tables: [`hclt`], over a [`Tree`] learned from data through
//! [`mutual_information`] (or a mixture of such trees, which starts from [`Clusters`] of rows), and [`rat_spn`], which
//! needs no data. Images and long sequences: [`pd`] over nested boxes, and [`pdhclt`], whose smallest boxes are trees.
//! Parameters may start from rows: trees and regions ([`start_from_rows`]), sequences ([`start_sequence`]), and inputs
//! that are densities ([`start_densities`]).
//!
//! The same options, data and seed give the same circuit, node for node, on any number of threads. Every function
//! documents the order in which it declares parameter blocks, so that callers can address them. A structure is made
//! once, at the start: `circuit` is below, `plan` reads the result.
//!
//! [`Circuit`]: crate::circuit::Circuit

mod clusters;
mod densities;
mod hclt;
mod hmm;
mod monarch;
mod mutual_information;
mod pd;
mod pdhclt;
mod rat_spn;
mod regions;
mod row_start;
mod sequence_start;
#[cfg(test)]
mod testing;
mod tree;

use std::sync::Arc;

pub use clusters::Clusters;
pub use densities::{Spread, Spreads, has_densities, start_densities};
pub use hclt::{HcltOptions, HcltParams, hclt};
pub use hmm::{Tying, hmm, hmm_of, hmm_with};
pub use monarch::{factor_latents, monarch_hmm};
pub use mutual_information::{InformationMatrix, MutualInformation, mutual_information, mutual_information_telling};
pub use pd::{PdOptions, pd};
pub use pdhclt::{pdhclt, pdhclt_telling};
pub use rat_spn::{RatSpnOptions, rat_spn};
pub use row_start::{ROWS_OF_A_START, start_from_clusters, start_from_rows};
pub use sequence_start::start_sequence;
pub use tree::Tree;

use crate::circuit::{CircuitBuilder, Distribution, ParamId};
use crate::error::{Error, Result};

/// Refuses an option that counts something and is 0.
fn at_least_one(option: &str, value: usize) -> Result<()> {
    match value {
        0 => Err(Error::option(format!("{option} = 0: must be at least 1"))),
        _ => Ok(()),
    }
}

/// Declares one block of `latents` input distributions per variable, in the order of the variables.
fn untied_inputs(
    circuit: &mut CircuitBuilder,
    num_vars: usize,
    latents: usize,
    distribution: impl Fn(usize) -> Arc<dyn Distribution>,
) -> Result<Vec<ParamId>> {
    (0..num_vars).map(|var| circuit.input_param(latents, distribution(var))).collect()
}
