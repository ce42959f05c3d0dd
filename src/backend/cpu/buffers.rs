//! Flow buffers in single or double precision.

use super::large_pages;
use crate::backend::{FlowPrecision, Tensor};
use crate::error::{Error, Result};

/// One number per sufficient statistic.
#[derive(Clone, Debug)]
pub(super) enum FlowBuffer {
    Single(Vec<f32>),
    Double(Vec<f64>),
}

/// Part of a flow buffer, owned by one task.
pub(super) enum FlowSlice<'a> {
    Single(&'a mut [f32]),
    Double(&'a mut [f64]),
}

/// Does the same to either precision.
macro_rules! with_flows {
    ($buffer:expr, $values:ident => $body:expr) => {
        match $buffer {
            FlowBuffer::Single($values) => $body,
            FlowBuffer::Double($values) => $body,
        }
    };
}
pub(super) use with_flows;

impl FlowBuffer {
    pub fn new(precision: FlowPrecision, len: usize) -> Self {
        match precision {
            FlowPrecision::Single => Self::Single(written(len)),
            FlowPrecision::Double => Self::Double(written(len)),
        }
    }

    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            Self::Single(values) => values.iter().map(|&x| f64::from(x)).collect(),
            Self::Double(values) => values.clone(),
        }
    }

    pub fn save(&self) -> Tensor {
        match self {
            Self::Single(values) => Tensor::F32(values.clone()),
            Self::Double(values) => Tensor::F64(values.clone()),
        }
    }

    pub fn load(&mut self, saved: &Tensor) -> Result<()> {
        match (self, saved) {
            (Self::Single(values), Tensor::F32(saved)) if values.len() == saved.len() => values.copy_from_slice(saved),
            (Self::Double(values), Tensor::F64(saved)) if values.len() == saved.len() => values.copy_from_slice(saved),
            _ => return Err(Error::state("a saved flow buffer has another size or precision than this one")),
        }
        Ok(())
    }

    /// The whole buffer, to be cut into tasks' parts.
    pub fn slice(&mut self) -> FlowSlice<'_> {
        match self {
            Self::Single(values) => FlowSlice::Single(values),
            Self::Double(values) => FlowSlice::Double(values),
        }
    }

    /// Adds to one number.
    pub fn add(&mut self, position: usize, value: f64) {
        match self {
            Self::Single(values) => values[position] += value as f32,
            Self::Double(values) => values[position] += value,
        }
    }
}

impl FlowSlice<'_> {
    /// part += terms, from `at` on.
    pub fn add(&mut self, at: usize, terms: impl Iterator<Item = f64>) {
        match self {
            Self::Single(values) => values[at..].iter_mut().zip(terms).for_each(|(x, t)| *x += t as f32),
            Self::Double(values) => values[at..].iter_mut().zip(terms).for_each(|(x, t)| *x += t),
        }
    }
}

/// Zeros that have been written: memory that the system only promised would be found missing page by page, by the first
/// steps of learning.
fn written<T: Clone + Default>(len: usize) -> Vec<T> {
    let mut values = large_pages::reserved(len);
    values.resize(len, T::default());
    values
}
