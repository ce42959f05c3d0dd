//! Flow buffers and row buffers on the device, and how they are saved.
//!
//! What is saved has the order of the host, without padding: the bits that the CPU backend saves and loads.

use super::descriptors::Ptr;
use super::passes::FlowPtr;
use super::program::ParamLayout;
use super::stream::{Device, Slab};
use crate::backend::{FlowPrecision, Tensor};
use crate::error::{Error, Result};

/// One number per sufficient statistic, padded.
pub(super) enum FlowBuffer {
    Single(Slab<f32>),
    Double(Slab<f64>),
}

impl FlowBuffer {
    /// Zeros, and zero its padding stays.
    pub fn new(device: &Device, precision: FlowPrecision, layout: &ParamLayout) -> Result<Self> {
        let (what, len) = ("a flow buffer", layout.stats_len);
        Ok(match precision {
            FlowPrecision::Single => Self::Single(device.zeros(what, len)?),
            FlowPrecision::Double => Self::Double(device.zeros(what, len)?),
        })
    }

    pub fn ptr(&self) -> FlowPtr {
        match self {
            Self::Single(slab) => FlowPtr { precision: FlowPrecision::Single, ptr: Ptr::new(slab.ptr.address()) },
            Self::Double(slab) => FlowPtr { precision: FlowPrecision::Double, ptr: Ptr::new(slab.ptr.address()) },
        }
    }

    /// The numbers, in the order of the host.
    pub fn save(&self, device: &Device, layout: &ParamLayout) -> Result<Tensor> {
        Ok(match self {
            Self::Single(slab) => Tensor::F32(layout.flows_to_host(&device.download(slab.ptr, layout.stats_len)?)),
            Self::Double(slab) => Tensor::F64(layout.flows_to_host(&device.download(slab.ptr, layout.stats_len)?)),
        })
    }

    pub fn load(&mut self, device: &Device, layout: &ParamLayout, num_stats: usize, saved: &Tensor) -> Result<()> {
        match (self, saved) {
            (Self::Single(slab), Tensor::F32(saved)) if saved.len() == num_stats => {
                device.upload(&layout.flows_to_device(saved), slab.ptr)
            }
            (Self::Double(slab), Tensor::F64(saved)) if saved.len() == num_stats => {
                device.upload(&layout.flows_to_device(saved), slab.ptr)
            }
            _ => Err(Error::state("a saved flow buffer has another size or precision than this one")),
        }
    }
}
