//! Hidden Chow-Liu trees on real data sets: a circuit that does not beat the plain Chow-Liu tree is broken.
//!
//! The data sets are not part of the repository. They are looked for in the folder named by `ANEMONE_DATA`, or in
//! `../shared/data`; where they are not there, these tests say so and pass.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anemone::backend::Backend;
use anemone::backend::cpu::{CpuBackend, CpuOptions};
use anemone::circuit::{Categorical, Params, Smoothing};
use anemone::data::{Batch, Values};
use anemone::optim::AnemoneSpec;
use anemone::structure::{HcltOptions, MutualInformation, Tree, hclt, mutual_information};
use arrow::array::{AsArray, UInt8Array};
use arrow::datatypes::UInt8Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::common::data_folder::data;

/// A Parquet file with one `uint8` column per variable.
fn read(path: &Path) -> Batch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap().build().unwrap();
    let mut columns: Vec<Vec<u8>> = Vec::new();
    for part in reader {
        let part = part.unwrap();
        columns.resize(part.num_columns(), Vec::new());
        for (values, array) in columns.iter_mut().zip(part.columns()) {
            let array: &UInt8Array = array.as_primitive::<UInt8Type>();
            values.extend_from_slice(array.values());
        }
    }
    Batch::from_columns(columns.into_iter().map(Values::U8).collect()).unwrap()
}

fn mean(lls: &[f64]) -> f64 {
    assert!(!lls.is_empty() && lls.iter().all(|ll| ll.is_finite()), "every row has a finite log-likelihood");
    lls.iter().sum::<f64>() / lls.len() as f64
}

/// Learns an HCLT on the training rows, keeps the parameters that are best on the validation rows, and gives the
/// test log-likelihood.
fn test_log_likelihood(folder: &Path, name: &str, latents: usize, epochs: usize) -> f64 {
    let [train, valid, test] =
        ["train", "valid", "test"].map(|split| read(&folder.join(format!("{name}.{split}.parquet"))));
    let tree = Tree::chow_liu(&mutual_information(&train, MutualInformation::Auto).unwrap()).unwrap();
    let coin = Categorical::new(2).unwrap();
    let circuit = Arc::new(hclt(&tree, latents, |_| coin.clone(), HcltOptions::default()).unwrap());
    let params = Params::random(&circuit, 1, 2.0).unwrap();
    let mut backend = CpuBackend::new(circuit, &params, &CpuOptions::default()).unwrap();
    // A little more smoothing than the default: dna has only 1,600 rows.
    let spec = AnemoneSpec { smoothing: Smoothing::Relative(1e-4), ..AnemoneSpec::paper() };
    let mut optimizer = spec.build(&mut backend).unwrap();
    let mut best = (f64::NEG_INFINITY, params);
    for _ in 0..epochs {
        for batch in train.chunks(256) {
            optimizer.learn(&mut backend, &batch).unwrap();
        }
        optimizer.end_epoch(&mut backend).unwrap();
        let valid_ll = mean(&backend.log_likelihoods(&valid).unwrap());
        if valid_ll > best.0 {
            best = (valid_ll, backend.params().unwrap());
        }
    }
    backend.set_params(&best.1).unwrap();
    mean(&backend.log_likelihoods(&test).unwrap())
}

#[test]
fn an_hclt_beats_the_chow_liu_tree_on_real_data() {
    let Some(folder) = data("debd") else { return };
    // The Chow-Liu column: exact trees with one pseudo-count, fitted to the training split.
    for (name, chow_liu) in [("nltcs", -6.759), ("plants", -16.524), ("jester", -58.230), ("dna", -87.680)] {
        let ll = test_log_likelihood(&folder, name, 32, 20);
        println!("{name:<8} HCLT {ll:.3}  Chow-Liu {chow_liu:.3}");
        assert!(ll > chow_liu, "{name}: HCLT {ll} does not beat the Chow-Liu tree {chow_liu}");
    }
}
