//! Where a circuit is to live, and how precisely it is to learn there.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::cpu;
#[cfg(feature = "cuda")]
use super::cuda::{CudaPrecision, check_device, device_count};
use crate::error::{Error, Result};

/// A device, as somebody asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The first GPU if there is one that can be used, otherwise the CPU. On several ranks of one machine, each takes
    /// the next GPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
    /// Several GPUs together, each with a part of every batch.
    CudaGroup(Ordinals),
}

/// Numbers of GPUs, below 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ordinals(u64);

impl Ordinals {
    /// The numbers, from the lowest.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..64).filter(move |ordinal| self.0 >> ordinal & 1 == 1)
    }

    /// Adds one; `None` if it is there, or too large.
    fn with(self, ordinal: usize) -> Option<Self> {
        let bit = u32::try_from(ordinal).ok().and_then(|ordinal| 1u64.checked_shl(ordinal))?;
        (self.0 & bit == 0).then_some(Self(self.0 | bit))
    }
}

impl Device {
    /// Whether it is a GPU, or several.
    pub fn is_cuda(self) -> bool {
        matches!(self, Self::Cuda(_) | Self::CudaGroup(_))
    }

    /// One that is there: `Auto` becomes a GPU or the CPU, and if it is the CPU, why. A GPU that was asked for and
    /// cannot be used is an error.
    pub fn settle(self) -> Result<(Self, Option<String>)> {
        self.settle_on(0)
    }

    /// The same on one of several ranks, the `local_rank`-th of its machine from 0: `Auto` becomes the GPU of that
    /// number, counted round where there are fewer GPUs than ranks.
    pub fn settle_on(self, local_rank: usize) -> Result<(Self, Option<String>)> {
        match self {
            Self::Cpu => Ok((Self::Cpu, None)),
            Self::Cuda(ordinal) => check_device(ordinal).map(|()| (self, None)),
            Self::CudaGroup(ordinals) => {
                ordinals.iter().try_for_each(check_device)?;
                Ok((self, None))
            }
            Self::Auto => Ok(
                match device_count().and_then(|count| {
                    let ordinal = local_rank % count.max(1);
                    check_device(ordinal).map(|()| ordinal)
                }) {
                    Ok(ordinal) => (Self::Cuda(ordinal), None),
                    Err(why) => (Self::Cpu, Some(why.to_string())),
                },
            ),
        }
    }
}

/// No GPU can be used by a build that has no backend for it.
#[cfg(not(feature = "cuda"))]
fn device_count() -> Result<usize> {
    Err(Error::not_built("CUDA", "cuda"))
}

#[cfg(not(feature = "cuda"))]
fn check_device(_ordinal: usize) -> Result<()> {
    Err(Error::not_built("CUDA", "cuda"))
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let unknown = || Error::option("unknown; there are auto, cpu and cuda:N");
                let list = name.strip_prefix("cuda:").ok_or_else(unknown)?;
                let wrong = || Error::option("expected a number after cuda:, or several, such as cuda:0,1");
                let mut ordinals = Ordinals::default();
                for number in list.split(',') {
                    ordinals = number.parse().ok().and_then(|n| ordinals.with(n)).ok_or_else(wrong)?;
                }
                let mut all = ordinals.iter();
                match (all.next(), all.next()) {
                    (Some(only), None) => Ok(Self::Cuda(only)),
                    _ => Ok(Self::CudaGroup(ordinals)),
                }
            }
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::CudaGroup(ordinals) => {
                let numbers: Vec<String> = ordinals.iter().map(|ordinal| ordinal.to_string()).collect();
                write!(f, "cuda:{}", numbers.join(","))
            }
        }
    }
}

/// How precisely training passes multiply matrices, on any device. Evaluation is always in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainingPrecision {
    /// As they are. What a CPU uses if it is told nothing.
    #[default]
    F32,
    /// 11 significant bits, on the tensor cores of a GPU. What a GPU uses if it is told nothing.
    Tf32,
    /// 16 significant bits, as sums of two bf16.
    Bf16x3,
    /// 8 significant bits.
    Bf16,
}

impl TrainingPrecision {
    /// All of them, by name.
    const NAMES: [(&'static str, Self); 4] =
        [("f32", Self::F32), ("tf32", Self::Tf32), ("bf16x3", Self::Bf16x3), ("bf16", Self::Bf16)];

    /// What a device uses if it is told nothing.
    pub fn default_of(device: Device) -> Self {
        match device {
            Device::Auto | Device::Cpu => Self::F32,
            Device::Cuda(_) | Device::CudaGroup(_) => Self::Tf32,
        }
    }

    /// On the CPU, where a run that was made on a GPU in tf32 goes on in f32.
    pub fn on_cpu(self) -> cpu::Precision {
        match self {
            Self::F32 | Self::Tf32 => cpu::Precision::F32,
            Self::Bf16x3 => cpu::Precision::Bf16x3,
            Self::Bf16 => cpu::Precision::Bf16,
        }
    }

    /// On a GPU.
    #[cfg(feature = "cuda")]
    #[cfg_attr(docsrs, doc(cfg(feature = "cuda")))]
    pub fn on_cuda(self) -> CudaPrecision {
        match self {
            Self::F32 => CudaPrecision::F32,
            Self::Tf32 => CudaPrecision::Tf32,
            Self::Bf16x3 => CudaPrecision::Bf16x3,
            Self::Bf16 => CudaPrecision::Bf16,
        }
    }
}

impl FromStr for TrainingPrecision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::NAMES.iter().find(|(known, _)| *known == name);
        known.map(|(_, precision)| *precision).ok_or_else(|| {
            let names: Vec<_> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            Error::option(format!("precision {name:?} is not known; there are {}", names.join(", ")))
        })
    }
}

impl fmt::Display for TrainingPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, precision)| precision == self).map_or("f32", |(name, _)| name);
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_as_they_are_written() {
        for name in ["auto", "cpu", "cuda:0", "cuda:3", "cuda:0,1", "cuda:1,2,63"] {
            assert_eq!(name.parse::<Device>().unwrap().to_string(), name);
        }
        assert_eq!("cuda:1,0".parse::<Device>().unwrap().to_string(), "cuda:0,1");
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::Cuda(0));
        for wrong in ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:0,0", "cuda:64", "cuda:0,", "CPU", ""] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn without_its_feature_a_gpu_is_refused_and_auto_says_why_it_is_the_cpu() {
        let wanted = "CUDA is not in this build: it needs the feature \"cuda\"";
        assert_eq!(Device::Auto.settle().unwrap(), (Device::Cpu, Some(wanted.to_string())));
        assert_eq!(Device::Cpu.settle().unwrap(), (Device::Cpu, None));
        for name in ["cuda:0", "cuda:0,1"] {
            assert_eq!(name.parse::<Device>().unwrap().settle().unwrap_err().to_string(), wanted);
        }
    }

    #[test]
    fn precisions_have_the_names_they_are_stored_by() {
        for (name, precision) in TrainingPrecision::NAMES {
            assert_eq!(serde_json::to_value(precision).unwrap(), name);
            assert_eq!(
                (name.parse::<TrainingPrecision>().unwrap(), precision.to_string()),
                (precision, name.to_string())
            );
        }
    }
}
