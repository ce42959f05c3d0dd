//! Where a circuit lives: a device, and how much of it may be used.
//!
//! [`PlaceSpec`] is what was asked for, [`Place`] what was found. The learner and everything that evaluates a model go
//! through [`PlaceSpec::place_with`], so that a device is chosen, and given up for another, by one rule.

use std::sync::Arc;

use super::cpu::{CpuBackend, CpuOptions, IsaCap};
#[cfg(feature = "cuda")]
use super::cuda::{CudaBackend, CudaGroup, CudaOptions};
use super::{Backend, ClusterSums, Device, Replicated, TrainingPrecision};
use crate::circuit::{Circuit, Params};
use crate::cluster::{Alone, Ranks};
#[cfg(not(feature = "cuda"))]
use crate::error::Error;
use crate::error::{ErrorKind, Result};

/// Where a circuit is to live, and what it may use there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlaceSpec {
    /// The device. A run that is resumed may do so on another one.
    pub device: Device,
    /// Threads; `None` is one per core. The bits do not depend on it.
    pub threads: Option<usize>,
    /// Bytes for activations; `None` is the backend's default, or what a resumed run had. The bits depend on it: it
    /// decides where a batch is cut.
    pub memory_budget: Option<usize>,
    /// The most that may be used of the processor; `None` is all of it, or what a resumed run had. The bits depend on
    /// it.
    pub isa: Option<IsaCap>,
    /// How precisely training passes multiply matrices; `None` is the device's default, or what a resumed run had. The
    /// bits depend on it, but not those of an evaluation.
    pub precision: Option<TrainingPrecision>,
    /// The ranks that learn together, and the shards of their batches; `None` is this process alone, and no shards.
    pub ranks: Option<Ranks>,
    /// By which way the flows of ranks are summed. The bits do not depend on it.
    pub sums: ClusterSums,
}

/// Where a circuit lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device; never `Auto`.
    pub device: Device,
    /// Its name: `cpu`, or the number and name of a GPU.
    pub name: String,
    /// Why it is this device, if none was asked for.
    pub why: Option<String>,
    /// How precisely training passes multiply matrices there.
    pub precision: TrainingPrecision,
}

impl PlaceSpec {
    /// Bytes for activations.
    pub fn memory_budget(&self) -> usize {
        self.memory_budget.unwrap_or(CpuOptions::default().memory_budget)
    }

    /// What was left out, as a run that is resumed had it.
    pub fn or(self, earlier: &Self) -> Self {
        Self {
            device: self.device,
            threads: self.threads.or(earlier.threads),
            memory_budget: self.memory_budget.or(earlier.memory_budget),
            isa: self.isa.or(earlier.isa),
            precision: self.precision.or(earlier.precision),
            ranks: self.ranks,
            sums: self.sums,
        }
    }

    /// The same for batches of so many shards: where there are several and no cluster is said, this process has them
    /// all.
    pub fn with_shards(&self, shards: usize) -> Result<Self> {
        let ranks = match &self.ranks {
            None if shards > 1 => Some(Ranks::new(Box::new(Alone), shards)?),
            // One rank of one shard is this process alone.
            Some(ranks) if ranks.num_ranks() == 1 && shards == 1 => None,
            ranks => ranks.clone(),
        };
        Ok(Self { ranks, ..self.clone() })
    }

    /// The same for the CPU backend.
    pub fn cpu_options(&self) -> CpuOptions {
        CpuOptions {
            threads: self.threads,
            memory_budget: self.memory_budget(),
            isa: self.isa.unwrap_or_default(),
            precision: self.precision.unwrap_or_default().on_cpu(),
        }
    }

    /// Puts a circuit on the device.
    pub fn place(&self, circuit: &Arc<Circuit>, params: &Params) -> Result<(Box<dyn Backend>, Place)> {
        self.place_with(circuit, params, |_| Ok(())).map(|(backend, place, ())| (backend, place))
    }

    /// Puts a circuit on the device with what else it needs there. Where no device was asked for and a GPU has no room
    /// for it all, the CPU has it, and [`Place::why`] says so.
    pub fn place_with<T>(
        &self,
        circuit: &Arc<Circuit>,
        params: &Params,
        mut beside: impl FnMut(&mut dyn Backend) -> Result<T>,
    ) -> Result<(Box<dyn Backend>, Place, T)> {
        let (device, why) = self.device.settle_on(self.ranks.as_ref().map_or(0, Ranks::local_rank))?;
        let mut put = |device: Device, why: Option<String>| -> Result<_> {
            let (mut backend, place) = self.put(device, why, circuit.clone(), params)?;
            if let Some(ranks) = &self.ranks {
                backend = Box::new(Replicated::with_sums(backend, ranks.clone(), self.sums)?);
            }
            let beside = beside(&mut *backend)?;
            Ok((backend, place, beside))
        };
        match put(device, why) {
            Err(full) if self.device == Device::Auto && device.is_cuda() && full.kind() == ErrorKind::Device => {
                put(Device::Cpu, Some(format!("{device}: {full}")))
            }
            placed => placed,
        }
    }

    fn put(
        &self,
        device: Device,
        why: Option<String>,
        circuit: Arc<Circuit>,
        params: &Params,
    ) -> Result<(Box<dyn Backend>, Place)> {
        let precision = self.precision.unwrap_or(TrainingPrecision::default_of(device));
        #[cfg(feature = "cuda")]
        let mut options = CudaOptions { device: 0, memory_budget: self.memory_budget, precision: precision.on_cuda() };
        match device {
            Device::Auto | Device::Cpu => {
                let backend = Box::new(CpuBackend::new(circuit, params, &self.cpu_options())?);
                let precision = if precision == TrainingPrecision::Tf32 { TrainingPrecision::F32 } else { precision };
                Ok((backend, Place { device: Device::Cpu, name: Device::Cpu.to_string(), why, precision }))
            }
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(_) | Device::CudaGroup(_) => Err(Error::not_built("CUDA", "cuda")),
            #[cfg(feature = "cuda")]
            Device::Cuda(ordinal) => {
                options.device = ordinal;
                let backend = Box::new(CudaBackend::new(circuit, params, &options)?);
                let name = backend.device_name();
                Ok((backend, Place { device, name, why, precision }))
            }
            #[cfg(feature = "cuda")]
            Device::CudaGroup(ordinals) => {
                let devices: Vec<usize> = ordinals.iter().collect();
                let backend = Box::new(CudaGroup::new(&circuit, params, &options, &devices)?);
                let name = backend.device_name();
                Ok((backend, Place { device, name, why, precision }))
            }
        }
    }
}
