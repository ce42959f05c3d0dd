//! What the kernels read to know where things lie: plain structs in device memory, and those passed by value.
//!
//! `kernels/README.md` defines every one of them, `kernels/common.cuh` declares them for the compiler of the kernels,
//! and the tests below hold sizes and offsets to that page. They hold no row counts, so they are built once per
//! circuit.

use std::marker::PhantomData;

use cudarc::driver::{DeviceRepr, ValidAsZeroBits, sys::CUdeviceptr};

/// Where something lies on the device. Typed, so that two arguments of a launch cannot change places unnoticed.
#[repr(transparent)]
#[derive(Debug)]
pub(super) struct Ptr<T> {
    address: CUdeviceptr,
    of: PhantomData<fn() -> T>,
}

impl<T> Ptr<T> {
    pub const NULL: Self = Self::new(0);

    pub const fn new(address: CUdeviceptr) -> Self {
        Self { address, of: PhantomData }
    }

    /// `count` elements further on.
    pub fn offset(self, count: usize) -> Self {
        Self::new(self.address + (count * size_of::<T>()) as CUdeviceptr)
    }

    pub fn address(self) -> CUdeviceptr {
        self.address
    }
}

impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

/// A flow buffer of either precision: the variant of the kernel says which.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {}

// SAFETY: a transparent address, which is what a pointer parameter of a kernel is.
unsafe impl<T> DeviceRepr for Ptr<T> {}

/// Declares descriptors: `repr(C)`, copied to the device as they are.
macro_rules! descriptors {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        // SAFETY: `repr(C)` with fields that have the same layout on the device, and no padding that is not named.
        unsafe impl DeviceRepr for $name {}

        // SAFETY: integers and floats only, for which zero bits are a value.
        unsafe impl ValidAsZeroBits for $name {}
    )*};
}

descriptors! {
    /// A buffer `[capacity × ld]` of a slab, with one scale per row.
    Buffer {
        at: i64,
        ld: i32,
        scale: i32,
    }
    /// The exponent of a row and a bound of its error.
    Scale {
        exponent: i64,
        loss: i64,
    }
    /// A parameter block.
    ParamDesc {
        theta_at: i64,
        stat_at: i64,
        row_at: i64,
        /// Weights: in `partials`; tables: in `sums`; densities: in `partials64`.
        partial_at: i64,
        /// Tables: first of `slots` + 1 numbers in `starts`.
        starts_at: i64,
        kind: i32,
        units: i32,
        slots: i32,
        ld: i32,
        first_use: i32,
        num_uses: i32,
        origin: f64,
        width: f64,
        min_std: f64,
        cats: i32,
        pad: i32,
    }
    /// A place where a block is used.
    UseDesc {
        gain: Buffer,
        panel: Buffer,
        flow: Buffer,
        gain_start: i32,
        panel_start: i32,
        cells: i32,
        pad: i32,
    }
    /// An input that has a value buffer.
    InputDesc {
        value: Buffer,
        param: i32,
        cells: i32,
    }
    /// A product.
    ProductDesc {
        value: Buffer,
        first_factor: i32,
        num_factors: i32,
        units: i32,
        pad: i32,
    }
    /// A factor of a product.
    FactorDesc {
        source: Buffer,
        map_at: i64,
        kind: i32,
        param: i32,
        cells: i32,
        units: i32,
        skew: i32,
        pad: i32,
    }
    /// A flow buffer that products flow into.
    PullDesc {
        target: Buffer,
        first_source: i32,
        num_sources: i32,
        units: i32,
        add: i32,
    }
    /// A product that flows there.
    PullSource {
        flow: Buffer,
        starts_at: i64,
        items_at: i64,
        units: i32,
        skew: i32,
    }
    /// A gathered panel.
    PanelDesc {
        panel: Buffer,
        first_slice: i32,
        num_slices: i32,
        units: i32,
        pad: i32,
    }
    /// A part of a gathered panel.
    SliceDesc {
        source: Buffer,
        start: i32,
        units: i32,
    }
    /// A group of a sum.
    GroupDesc {
        value: Buffer,
        flow: Buffer,
        panel: Buffer,
        theta_at: i64,
        extremes_at: i64,
        theta_ld: i32,
        start: i32,
        units: i32,
        panel_start: i32,
        cols: i32,
        first_target: i32,
        num_targets: i32,
        pad: i32,
    }
    /// Where the flow of some columns of a panel goes.
    TargetDesc {
        target: Buffer,
        start: i32,
        col: i32,
        units: i32,
        add: i32,
    }
    /// A sum.
    SumDesc {
        value: Buffer,
        first_group: i32,
        num_groups: i32,
        units: i32,
        one_panel: i32,
    }
    /// Rows to be added up into one.
    Piece {
        first: u32,
        count: u32,
        out: u32,
        units: u32,
    }
}

/// What a pass works on: the first argument of most kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub values: Ptr<f32>,
    pub flows: Ptr<f32>,
    pub scales: Ptr<Scale>,
    pub theta: Ptr<f32>,
    pub cells: Ptr<u32>,
    pub degenerate: Ptr<u32>,
    pub rows: i32,
    pub data_rows: i32,
    pub capacity: i32,
    pub flow_bits: i32,
}

/// An M-step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    pub scale: f64,
    pub offset: f64,
    pub gain: f64,
    pub epsilon: f64,
    pub retain: Ptr<f64>,
    pub masses: Ptr<f64>,
    pub absolute: i32,
    pub source: i32,
    pub keep: f32,
    pub pad: i32,
}

/// A few rows in log space.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct LogPass {
    pub values: Ptr<f64>,
    pub gains: Ptr<f64>,
    pub flows: Ptr<f64>,
    pub theta: Ptr<f32>,
    pub cells: Ptr<u32>,
    pub masses: Ptr<f64>,
    pub row_ids: Ptr<u32>,
    pub root_flow: Ptr<f64>,
    pub negligible: f64,
    pub rows: i32,
    pub capacity: i32,
    pub cells_capacity: i32,
    pub pad: i32,
    pub pad2: u64,
}

// SAFETY: `repr(C)`, all fields as on the device, no padding that is not named.
unsafe impl DeviceRepr for Pass {}
// SAFETY: `Update` is `repr(C)`, its fields are numbers and device pointers, and its padding is named.
unsafe impl DeviceRepr for Update {}
// SAFETY: `LogPass` is `repr(C)`, its fields are numbers and device pointers, and `pad` and `pad2` are its padding.
unsafe impl DeviceRepr for LogPass {}

/// A cell without a value; an item that is not there.
pub(super) const MISSING: u32 = u32::MAX;

/// Kinds of parameter blocks, as `ParamDesc.kind`.
pub(super) mod kind {
    pub const WEIGHTS: i32 = 0;
    pub const TABLE: i32 = 1;
    pub const GAUSSIAN: i32 = 2;
    pub const DISCRETE_LOGISTIC: i32 = 3;
}

/// Kinds of factors, as `FactorDesc.kind`.
pub(super) mod factor {
    pub const VALUE: i32 = 0;
    pub const TABLE: i32 = 1;
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::mem::offset_of;

    use super::*;

    /// Offsets of the fields, as `kernels/README.md` gives them, by struct: (size, field → offset).
    fn page() -> HashMap<String, (usize, HashMap<String, usize>)> {
        let page = include_str!("../../../kernels/README.md");
        let mut found: HashMap<String, (usize, HashMap<String, usize>)> = HashMap::new();
        let mut current = String::new();
        let blocks = page.split("```").skip(1).step_by(2);
        for line in blocks.flat_map(str::lines) {
            let mut words: Vec<&str> = line.split_whitespace().collect();
            if !line.starts_with(' ') && !words.is_empty() {
                current = words.remove(0).to_string();
                let size = words.first().and_then(|w| w.strip_prefix('(')).and_then(|w| w.strip_suffix(')'));
                let size = size.map(|size| size.parse().unwrap());
                if size.is_some() {
                    words.remove(0);
                }
                // The size of structs that are passed by value is given in a sentence.
                found.insert(current.clone(), (size.unwrap_or(0), HashMap::new()));
            }
            for three in words.windows(3) {
                let types = ["i64", "i32", "u32", "u64", "f32", "f64", "Buffer", "f32*", "f64*", "u32*", "Scale*"];
                if let ([offset, kind, name], true) = (three, types.contains(&three[1])) {
                    let fields = &mut found.get_mut(&current).unwrap().1;
                    if let Ok(offset) = offset.parse() {
                        assert!(!kind.is_empty());
                        fields.entry((*name).to_string()).or_insert(offset);
                    }
                }
            }
        }
        found
    }

    macro_rules! check {
        ($page:expr, $name:ident, $size:expr, [$($field:ident),*]) => {
            let (size, fields) = &$page[stringify!($name)];
            assert_eq!(size_of::<$name>(), $size, stringify!($name));
            assert!(*size == 0 || *size == $size, "{} on the page", stringify!($name));
            $(
                let name = stringify!($name.$field);
                assert_eq!(fields.get(stringify!($field)), Some(&offset_of!($name, $field)), "{name}");
            )*
        };
    }

    #[test]
    fn descriptors_lie_as_the_kernels_read_them() {
        let page = page();
        check!(page, Buffer, 16, [at, ld, scale]);
        check!(
            page,
            ParamDesc,
            96,
            [
                theta_at, stat_at, row_at, partial_at, starts_at, kind, units, slots, ld, first_use, num_uses, origin,
                width, min_std, cats
            ]
        );
        check!(page, UseDesc, 64, [gain, panel, flow, gain_start, panel_start, cells]);
        check!(page, InputDesc, 24, [value, param, cells]);
        check!(page, ProductDesc, 32, [value, first_factor, num_factors, units]);
        check!(page, FactorDesc, 48, [source, map_at, kind, param, cells, units, skew]);
        check!(page, PullDesc, 32, [target, first_source, num_sources, units, add]);
        check!(page, PullSource, 40, [flow, starts_at, items_at, units, skew]);
        check!(page, PanelDesc, 32, [panel, first_slice, num_slices, units]);
        check!(page, SliceDesc, 24, [source, start, units]);
        check!(
            page,
            GroupDesc,
            96,
            [
                value,
                flow,
                panel,
                theta_at,
                extremes_at,
                theta_ld,
                start,
                units,
                panel_start,
                cols,
                first_target,
                num_targets
            ]
        );
        check!(page, TargetDesc, 32, [target, start, col, units, add]);
        check!(page, SumDesc, 32, [value, first_group, num_groups, units, one_panel]);
        check!(page, Piece, 16, [first, count, out, units]);
        check!(page, Pass, 64, [values, flows, scales, theta, cells, degenerate, rows, data_rows, capacity, flow_bits]);
        check!(page, Update, 64, [scale, offset, gain, epsilon, retain, masses, absolute, source, keep]);
        check!(
            page,
            LogPass,
            96,
            [
                values,
                gains,
                flows,
                theta,
                cells,
                masses,
                row_ids,
                root_flow,
                negligible,
                rows,
                capacity,
                cells_capacity
            ]
        );
        assert_eq!(size_of::<Scale>(), 16);
    }
}
