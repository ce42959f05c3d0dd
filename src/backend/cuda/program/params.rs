//! How parameters and their flows lie on the device, and back.
//!
//! Weights come first, then tables, then densities, whatever their order in the circuit, each row padded to 32 bytes: a
//! launch takes a run of blocks of one class, and copies of 16 bytes are aligned. Padding is zero and stays zero. One
//! number per param row lies as on the host. What is saved is always in the order of the host, so that a checkpoint
//! knows no device.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Extent, Span, padded, spans};
use crate::backend::cuda::descriptors::{ParamDesc, UseDesc, kind};
use crate::circuit::{Circuit, Distribution, Layout, ParamId, ParamKind};
use crate::error::{Error, Result};
use crate::plan::{Plan, Use};

/// Blocks start at multiples of 128 bytes.
const ALIGNMENT: usize = 32;

/// Rows of one use that a block of a kernel adds at once.
const CHUNK_ROWS: usize = 32;

/// Chunks of rows that are added up in single precision: 2048 rows, as on the CPU.
pub(in crate::backend::cuda) const CHUNKS_PER_SPLIT: usize = 64;

/// Rows of one use that a thread adds up for the statistics of a density.
pub(in crate::backend::cuda) const ROWS_PER_SPLIT: usize = 1024;

/// Categories of a table whose sums are kept apart.
const CATEGORY_TILE: usize = 32;

/// What the kernels tell blocks apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::backend::cuda) enum BlockClass {
    Weights,
    Table,
    Density,
}

/// Where all blocks lie on the device.
pub(in crate::backend::cuda) struct ParamLayout {
    host: Arc<Layout>,
    /// In the order of the device. `partial_at` is set for a number of rows, by [`Self::for_rows`].
    descs: Vec<ParamDesc>,
    /// By place on the device: which block it is.
    order: Vec<ParamId>,
    /// By block: where it is among those on the device.
    place: Vec<usize>,
    /// Runs of the three classes on the device.
    classes: [Range<usize>; 3],
    /// Length of the parameters.
    pub theta_len: usize,
    /// Length of a flow buffer.
    pub stats_len: usize,
    /// One number per param row.
    pub num_rows: usize,
    /// Length of `starts`.
    pub starts_len: usize,
}

/// Working memory that depends on how many rows are worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::backend::cuda) struct WorkingSizes {
    /// f32: products of the weights' flows, by split.
    pub partials: usize,
    /// f64: statistics of densities, by split.
    pub partials64: usize,
    /// f64: sums over tiles of categories.
    pub sums: usize,
}

impl ParamLayout {
    pub fn new(circuit: &Circuit) -> Result<Self> {
        let host = circuit.layout().clone();
        let mut order: Vec<ParamId> = circuit.param_ids().collect();
        order.sort_by_key(|id| class(&circuit.params()[id.index()].kind)); // stable: blocks of a class stay in order
        let mut place = vec![0; order.len()];
        let (mut theta_len, mut stats_len, mut starts_len) = (0usize, 0usize, 0usize);
        let mut descs = Vec::with_capacity(order.len());
        for (i, id) in order.iter().enumerate() {
            place[id.index()] = i;
            let (block, layout) = (&circuit.params()[id.index()], host.block(*id));
            let (rows, width) = match layout.unit_fastest {
                true => (layout.values_per_row, layout.units()),
                false => (layout.units(), layout.values_per_row),
            };
            let stat_rows = if layout.unit_fastest { layout.stats_per_row } else { rows };
            let ld = padded(width);
            let mut desc = ParamDesc {
                theta_at: theta_len as i64,
                stat_at: stats_len as i64,
                row_at: layout.rows.start as i64,
                starts_at: starts_len as i64,
                units: layout.units() as i32,
                slots: layout.values_per_row as i32,
                ld: ld as i32,
                ..ParamDesc::default()
            };
            match &block.kind {
                ParamKind::Sum { .. } => desc.kind = kind::WEIGHTS,
                ParamKind::Input(distribution) if distribution.is_table() => {
                    desc.kind = kind::TABLE;
                    starts_len += layout.values_per_row + 1;
                }
                ParamKind::Input(distribution) => describe_density(&mut desc, &**distribution)?,
            }
            theta_len = (theta_len + rows * ld).next_multiple_of(ALIGNMENT);
            stats_len = (stats_len + stat_rows * ld).next_multiple_of(ALIGNMENT);
            descs.push(desc);
        }
        let count = |c: BlockClass| order.iter().filter(|id| class(&circuit.params()[id.index()].kind) == c).count();
        let (weights, tables) = (count(BlockClass::Weights), count(BlockClass::Table));
        let classes = [0..weights, weights..weights + tables, weights + tables..order.len()];
        let num_rows = host.num_rows();
        Ok(Self { host, descs, order, place, classes, theta_len, stats_len, num_rows, starts_len })
    }

    /// Where a block is among those on the device.
    pub fn index(&self, param: ParamId) -> i32 {
        self.place[param.index()] as i32
    }

    pub fn desc(&self, param: ParamId) -> &ParamDesc {
        &self.descs[self.place[param.index()]]
    }

    /// The blocks of a class, in the order of the device.
    pub fn class(&self, class: BlockClass) -> &[ParamDesc] {
        &self.descs[self.classes[class as usize].clone()]
    }

    /// Length of the parameters of weights and tables, which come before densities.
    pub fn densities_at(&self) -> usize {
        self.class(BlockClass::Density).first().map_or(self.theta_len, |d| d.theta_at as usize)
    }

    /// The launches over the blocks of a class. `cols` is the number of slots.
    pub fn spans(&self, class: BlockClass) -> Vec<Span> {
        let extents: Vec<Extent> = (self.class(class).iter())
            .map(|d| Extent { units: d.units as usize, cols: d.slots as usize, ..Extent::default() })
            .collect();
        spans(self.classes[class as usize].start, &extents)
    }

    /// The launches over all blocks.
    pub fn all_spans(&self) -> Vec<Span> {
        let extents: Vec<Extent> =
            self.descs.iter().map(|d| Extent { units: d.units as usize, ..Extent::default() }).collect();
        spans(0, &extents)
    }

    /// The most splits that any block of a class has for `data_rows` rows.
    pub fn most_splits(&self, class: BlockClass, data_rows: usize) -> usize {
        self.class(class).iter().map(|d| splits(d, data_rows)).max().unwrap_or(0)
    }

    /// Lists the uses, by block in the order of the device, and notes where each block's are.
    pub(super) fn take_uses(&mut self, plan: &Plan, describe: impl Fn((usize, &Use)) -> UseDesc) -> Vec<UseDesc> {
        let mut uses = Vec::new();
        for (desc, id) in self.descs.iter_mut().zip(&self.order) {
            desc.first_use = uses.len() as i32;
            desc.num_uses = plan.uses[id.index()].len() as i32;
            uses.extend(plan.uses[id.index()].iter().map(|u| describe((id.index(), u))));
        }
        uses
    }

    /// The descriptors, with room for the partial sums of up to `capacity` rows.
    pub fn for_rows(&self, capacity: usize) -> (Vec<ParamDesc>, WorkingSizes) {
        let mut sizes = WorkingSizes::default();
        let mut descs = self.descs.clone();
        for desc in &mut descs {
            let (units, ld, splits) = (desc.units as usize, desc.ld as usize, splits(desc, capacity));
            let (used, more) = match desc.kind {
                kind::WEIGHTS => (&mut sizes.partials, splits * units * ld),
                kind::TABLE => (&mut sizes.sums, 2 * (desc.slots as usize).div_ceil(CATEGORY_TILE) * ld),
                _ => (&mut sizes.partials64, splits * 3 * ld),
            };
            desc.partial_at = *used as i64;
            *used = (*used + more).next_multiple_of(ALIGNMENT);
        }
        (descs, sizes)
    }

    /// Parameters as the device has them.
    pub fn theta_to_device(&self, values: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.theta_len];
        self.each_row(true, |host, device| out[device].copy_from_slice(&values[host]));
        out
    }

    /// Parameters as the host has them.
    pub fn theta_to_host(&self, values: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.host.num_values()];
        self.each_row(true, |host, device| out[host].copy_from_slice(&values[device]));
        out
    }

    /// Flows as the device has them.
    pub fn flows_to_device<T: Copy + Default>(&self, values: &[T]) -> Vec<T> {
        let mut out = vec![T::default(); self.stats_len];
        self.each_row(false, |host, device| out[device].copy_from_slice(&values[host]));
        out
    }

    /// Flows as the host has them.
    pub fn flows_to_host<T: Copy + Default>(&self, values: &[T]) -> Vec<T> {
        let mut out = vec![T::default(); self.host.num_stats()];
        self.each_row(false, |host, device| out[host].copy_from_slice(&values[device]));
        out
    }

    /// Visits the places, on the host and on the device, of every contiguous row of parameters or of flows.
    fn each_row(&self, is_theta: bool, mut visit: impl FnMut(Range<usize>, Range<usize>)) {
        for (desc, id) in self.descs.iter().zip(&self.order) {
            let layout = self.host.block(*id);
            let (host, device) = match is_theta {
                true => (layout.values.clone(), desc.theta_at as usize),
                false => (layout.stats.clone(), desc.stat_at as usize),
            };
            let width = if layout.unit_fastest { layout.units() } else { layout.values_per_row };
            for (row, start) in host.step_by(width.max(1)).enumerate() {
                let device = device + row * desc.ld as usize;
                visit(start..start + width, device..device + width);
            }
        }
    }
}

/// Pieces into which the rows of all uses of a block are cut.
fn splits(desc: &ParamDesc, data_rows: usize) -> usize {
    let uses = desc.num_uses as usize;
    match desc.kind {
        kind::WEIGHTS => (uses * data_rows.div_ceil(CHUNK_ROWS)).div_ceil(CHUNKS_PER_SPLIT),
        kind::TABLE => 0,
        _ => uses * data_rows.div_ceil(ROWS_PER_SPLIT),
    }
}

fn class(kind: &ParamKind) -> BlockClass {
    match kind {
        ParamKind::Sum { .. } => BlockClass::Weights,
        ParamKind::Input(distribution) if distribution.is_table() => BlockClass::Table,
        ParamKind::Input(_) => BlockClass::Density,
    }
}

/// The constants of a density, from the options that it is written to a file with.
fn describe_density(desc: &mut ParamDesc, distribution: &dyn Distribution) -> Result<()> {
    let options: Map<String, Value> = distribution.options();
    let number = |name: &str| {
        let unknown = || Error::unsupported(format!("the CUDA backend finds no `{name}` of {}", distribution.name()));
        options.get(name).and_then(Value::as_f64).ok_or_else(unknown)
    };
    match distribution.name() {
        "gaussian" => {
            desc.kind = kind::GAUSSIAN;
            (desc.origin, desc.min_std) = (number("origin")?, number("min_sigma")?);
        }
        "discrete_logistic" => {
            desc.kind = kind::DISCRETE_LOGISTIC;
            let (low, high, cats) = (number("low")?, number("high")?, number("cats")?);
            (desc.origin, desc.width, desc.min_std) = (low, (high - low) / cats, number("min_std")?);
            desc.cats = cats as i32;
        }
        name => {
            return Err(Error::unsupported(format!(
                "the CUDA backend has no kernels for {name} inputs: use --device cpu for this circuit"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::circuit::{Categorical, CircuitBuilder, Factor, Gaussian};

    /// A table, a density and two blocks of weights, declared so that the device has another order.
    fn mixed() -> Circuit {
        let mut circuit = CircuitBuilder::new(2);
        let table = circuit.input_param(5, Categorical::new(3).unwrap()).unwrap();
        let density = circuit.input_param(5, Gaussian::new(0.1, 2.0).unwrap()).unwrap();
        let weights = circuit.sum_param(1, 5).unwrap();
        let left = circuit.input(0, table).unwrap();
        let right = circuit.input(1, density).unwrap();
        let right = Factor { node: right, map: Some([4u32, 3, 2, 1, 0].into()) };
        let product = circuit.mapped_product(vec![Factor { node: left, map: None }, right]).unwrap();
        circuit.sum(&[product], weights).unwrap();
        circuit.finish().unwrap()
    }

    #[test]
    fn what_goes_to_the_device_comes_back() {
        let circuit = mixed();
        let layout = ParamLayout::new(&circuit).unwrap();
        let values: Vec<f32> = (0..circuit.layout().num_values()).map(|i| 1.0 + i as f32).collect();
        let device = layout.theta_to_device(&values);
        assert_eq!(layout.theta_to_host(&device), values);
        assert_eq!(device.iter().filter(|x| **x != 0.0).count(), values.len(), "padding is zero");
        let flows: Vec<f64> = (0..circuit.layout().num_stats()).map(|i| 1.0 + i as f64).collect();
        assert_eq!(layout.flows_to_host(&layout.flows_to_device(&flows)), flows);
    }

    #[test]
    fn blocks_are_aligned_and_classes_in_order() {
        let layout = ParamLayout::new(&mixed()).unwrap();
        let kinds: Vec<i32> = layout.descs.iter().map(|d| d.kind).collect();
        assert_eq!(kinds, [kind::WEIGHTS, kind::TABLE, kind::GAUSSIAN]);
        assert!(layout.descs.iter().all(|d| d.theta_at % 32 == 0 && d.stat_at % 32 == 0 && d.ld == 8));
        assert_eq!(layout.descs[2].origin, 2.0);
        assert_eq!(layout.class(BlockClass::Table)[0].stat_at, layout.class(BlockClass::Table)[0].theta_at);
        assert_eq!(layout.stats_len, layout.theta_len, "a third statistic fits into the padding");
    }
}
