//! The device that a pipeline runs on, and what it may use of it.

use std::sync::Arc;

use crate::backend::cpu::{CpuBackend, CpuOptions, IsaCap};
#[cfg(feature = "cuda")]
use crate::backend::cuda::{CudaBackend, CudaGroup, CudaOptions};
use crate::backend::{Backend, Device, TrainingPrecision};
use crate::circuit::{Circuit, Params};
#[cfg(not(feature = "cuda"))]
use crate::error::Error;
use crate::error::{ErrorKind, Result};

/// The device and what it may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Where the circuit is to live. A run that is resumed may do so on another device.
    pub device: Device,
    /// Threads; `None` is one a core. The bits do not depend on it.
    pub threads: Option<usize>,
    /// Bytes for activations; `None` is the backend's default, or what a resumed run had. The bits depend on it: it
    /// decides where a batch is cut.
    pub memory_budget: Option<usize>,
    /// The most that may be used of the processor; `None` is all of it, or what a resumed run had. The bits depend on
    /// it.
    pub isa: Option<IsaCap>,
    /// How precisely training passes multiply matrices; `None` is what the device does by itself, or what a resumed run
    /// had. The bits depend on it, but not those of an evaluation.
    pub precision: Option<TrainingPrecision>,
}

/// A circuit on a device.
pub struct Placed {
    /// The circuit.
    pub backend: Box<dyn Backend>,
    /// Where: `cpu`, or the number and name of a GPU.
    pub device: String,
    /// Why it is there, if nobody asked for it.
    pub why: Option<String>,
    /// How precisely it learns.
    pub precision: TrainingPrecision,
}

impl Machine {
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
        }
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
    pub fn place(&self, circuit: &Arc<Circuit>, params: &Params) -> Result<Placed> {
        self.place_with(circuit, params, |_| Ok(())).map(|(placed, ())| placed)
    }

    /// Puts a circuit on the device with what else it needs there. Where nobody asked for a GPU and one has no room for
    /// it all, the CPU has it, and `why` says so.
    pub fn place_with<T>(
        &self,
        circuit: &Arc<Circuit>,
        params: &Params,
        mut beside: impl FnMut(&mut dyn Backend) -> Result<T>,
    ) -> Result<(Placed, T)> {
        let (device, why) = self.device.settle()?;
        let mut put = |device: Device, why: Option<String>| -> Result<(Placed, T)> {
            let mut placed = self.put(device, why, circuit.clone(), params)?;
            let beside = beside(&mut *placed.backend)?;
            Ok((placed, beside))
        };
        match put(device, why) {
            Err(full) if self.device == Device::Auto && device.is_cuda() && full.kind() == ErrorKind::Device => {
                put(Device::Cpu, Some(format!("{device}: {full}")))
            }
            placed => placed,
        }
    }

    fn put(&self, device: Device, why: Option<String>, circuit: Arc<Circuit>, params: &Params) -> Result<Placed> {
        let precision = self.precision.unwrap_or(TrainingPrecision::default_of(device));
        #[cfg(feature = "cuda")]
        let mut options = CudaOptions { device: 0, memory_budget: self.memory_budget, precision: precision.on_cuda() };
        match device {
            Device::Auto | Device::Cpu => {
                let backend = Box::new(CpuBackend::new(circuit, params, &self.cpu_options())?);
                let precision = if precision == TrainingPrecision::Tf32 { TrainingPrecision::F32 } else { precision };
                Ok(Placed { backend, device: device.to_string(), why, precision })
            }
            #[cfg(not(feature = "cuda"))]
            Device::Cuda(_) | Device::CudaGroup(_) => Err(Error::not_built("CUDA", "cuda")),
            #[cfg(feature = "cuda")]
            Device::Cuda(ordinal) => {
                options.device = ordinal;
                let backend = Box::new(CudaBackend::new(circuit, params, &options)?);
                Ok(Placed { device: backend.device_name(), backend, why, precision })
            }
            #[cfg(feature = "cuda")]
            Device::CudaGroup(ordinals) => {
                let devices: Vec<usize> = ordinals.iter().collect();
                let backend = Box::new(CudaGroup::new(&circuit, params, &options, &devices)?);
                Ok(Placed { device: backend.device_name(), backend, why, precision })
            }
        }
    }
}
