//! What lies on the device: tables of descriptors for good, working memory for some rows.
//!
//! A few large allocations, each with one subject. Working memory is made at the first pass, when the optimizer has its
//! buffers, and again when a larger batch comes; how many rows it holds depends on what is free then, or on the budget.

use super::descriptors::*;
use super::program::{BlockClass, Program, WorkingSizes};
use super::stream::{Device, Slab, in_words};
use crate::error::{Error, Result};

/// Items of a category that a block adds up; longer lists are cut into pieces.
pub(super) const PIECE: usize = 256;

/// Sections of a feed start at multiples of this many words.
const SECTION: usize = 64;

/// The descriptors of a program.
pub(super) struct Tables {
    pub inputs: Slab<InputDesc>,
    pub products: Slab<ProductDesc>,
    pub factors: Slab<FactorDesc>,
    pub panels: Slab<PanelDesc>,
    pub slices: Slab<SliceDesc>,
    pub groups: Slab<GroupDesc>,
    pub sum_descs: Slab<SumDesc>,
    pub pulls: Slab<PullDesc>,
    pub sources: Slab<PullSource>,
    pub gains: Slab<GroupDesc>,
    pub back_groups: Slab<GroupDesc>,
    pub targets: Slab<TargetDesc>,
    pub uses: Slab<UseDesc>,
    pub maps: Slab<u32>,
    /// The blocks, for what needs no partial sums over rows.
    pub params: Slab<ParamDesc>,
    /// Sums over tiles of categories, of θ and of flows.
    pub sums: Slab<f64>,
    /// Three numbers per param row: what an update of tables does to it.
    pub coefficients: Slab<f64>,
}

impl Tables {
    pub fn new(device: &Device, program: &Program) -> Result<Self> {
        let (forward, backward) = (&program.forward, &program.backward);
        let what = "descriptors";
        let (params, sizes) = program.params.for_rows(1);
        Ok(Self {
            inputs: device.table(what, &forward.inputs)?,
            products: device.table(what, &forward.products)?,
            factors: device.table(what, &forward.factors)?,
            panels: device.table(what, &forward.panels)?,
            slices: device.table(what, &forward.slices)?,
            groups: device.table(what, &forward.groups)?,
            sum_descs: device.table(what, &forward.sums)?,
            pulls: device.table(what, &backward.pulls)?,
            sources: device.table(what, &backward.sources)?,
            gains: device.table(what, &backward.gains)?,
            back_groups: device.table(what, &backward.groups)?,
            targets: device.table(what, &backward.targets)?,
            uses: device.table(what, &program.uses)?,
            maps: device.table(what, &program.maps)?,
            params: device.table(what, &params)?,
            sums: device.alloc("sums over categories", sizes.sums)?,
            coefficients: device.alloc("coefficients of tables", 3 * program.params.num_rows)?,
        })
    }
}

/// Where the parts of a feed lie, in words: what one micro-batch brings along.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FeedLayout {
    /// `[columns × capacity]` cells, at the beginning.
    pub cells: usize,
    /// A weight per row, as bits.
    pub weights_at: usize,
    /// Tables: where each category's items start.
    pub starts_at: usize,
    /// Tables: the item of all missing cells.
    pub missing_at: usize,
    /// Rows to be added up first, four words each.
    pub pieces_at: usize,
    /// Items, last: how many there are depends on the batch.
    pub items_at: usize,
    /// Words in all.
    pub len: usize,
}

/// How much memory some rows take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkspaceSizes {
    pub capacity: usize,
    values: usize,
    flows: usize,
    /// Where scratch rows for sums of flow rows begin in the flows.
    pub scratch_at: usize,
    scales: usize,
    extremes: usize,
    working: WorkingSizes,
    pub feed: FeedLayout,
}

impl WorkspaceSizes {
    pub fn new(program: &Program, capacity: usize) -> Self {
        let (_, working) = program.params.for_rows(capacity);
        let (mut items, mut pieces, mut scratch) = (0, 0, 0);
        let tables = program.params.class(BlockClass::Table);
        for table in tables {
            // A list of n > 256 makes at most n/128 pieces, their sums n/16384 more; a few for missing cells.
            let cells = table.num_uses as usize * capacity;
            let most = cells / (PIECE / 2) + cells / (PIECE * PIECE / 4) + 4;
            items += cells + most;
            pieces += most;
            scratch += most * table.ld as usize;
        }
        let mut at = 0;
        let mut section = |len: usize| {
            let start = at;
            at = (at + len).next_multiple_of(SECTION);
            start
        };
        let cells = program.columns.len() * capacity;
        let feed = FeedLayout {
            cells: section(cells) + cells,
            weights_at: section(capacity),
            starts_at: section(program.params.starts_len),
            missing_at: section(tables.len()),
            pieces_at: section(4 * pieces),
            items_at: section(items),
            len: 0,
        };
        let feed = FeedLayout { len: at, ..feed };
        let scratch_at = program.flow_units * capacity;
        Self {
            capacity,
            values: program.value_units * capacity,
            flows: scratch_at + scratch,
            scratch_at,
            scales: program.num_scales * capacity,
            extremes: 2 * program.forward.extreme_tiles * capacity,
            working,
            feed,
        }
    }

    /// Bytes in all: two feeds, and what [`Workspace`] has.
    pub fn bytes(&self) -> usize {
        let floats =
            self.values + self.flows + self.extremes + self.working.partials + 2 * self.feed.len + self.capacity;
        4 * floats + 16 * self.scales + 8 * (self.working.partials64 + self.capacity)
    }

    /// The most rows, up to `wanted`, that take no more than `available` bytes.
    pub fn fitting(program: &Program, wanted: usize, available: usize) -> Result<Self> {
        let (mut fits, mut too_many) = (0, wanted + 1);
        while fits + 1 < too_many {
            let middle = (fits + too_many) / 2;
            match Self::new(program, middle).bytes() <= available {
                true => fits = middle,
                false => too_many = middle,
            }
        }
        // One row of a batch, and the one for top-down probabilities.
        if fits < 2.min(wanted) {
            let least = Self::new(program, 2).bytes();
            return Err(Error::device(format!(
                "out of memory: the smallest micro-batch, of one row, needs {} besides the parameters and {} are \
                 available; a smaller circuit or a larger budget would fit",
                in_words(least),
                in_words(available)
            )));
        }
        Ok(Self::new(program, fits))
    }
}

/// Working memory for up to `capacity` rows.
pub(super) struct Workspace {
    pub sizes: WorkspaceSizes,
    pub values: Slab<f32>,
    pub flows: Slab<f32>,
    pub scales: Slab<Scale>,
    pub degenerate: Slab<u32>,
    pub log_likelihoods: Slab<f64>,
    pub extremes: Slab<u32>,
    pub params: Slab<ParamDesc>,
    pub partials: Slab<f32>,
    pub partials64: Slab<f64>,
}

impl Workspace {
    pub fn new(device: &Device, program: &Program, sizes: WorkspaceSizes) -> Result<Self> {
        let what = format!("the values and flows of a micro-batch of {} rows", sizes.capacity.saturating_sub(1));
        let advice = |error: Error| match sizes.capacity {
            ..=2 => error,
            rows => Error::device(format!(
                "{error}; a memory budget of {} would hold {} rows",
                in_words(WorkspaceSizes::new(program, rows / 2).bytes()),
                rows / 2 - 1
            )),
        };
        let make = || {
            let (params, _) = program.params.for_rows(sizes.capacity);
            Ok(Self {
                values: device.alloc(&what, sizes.values)?,
                flows: device.alloc(&what, sizes.flows)?,
                scales: device.alloc(&what, sizes.scales)?,
                degenerate: device.alloc(&what, sizes.capacity)?,
                log_likelihoods: device.alloc(&what, sizes.capacity)?,
                extremes: device.alloc(&what, sizes.extremes)?,
                params: device.table(&what, &params)?,
                partials: device.alloc(&what, sizes.working.partials)?,
                partials64: device.alloc(&what, sizes.working.partials64)?,
                sizes,
            })
        };
        make().map_err(advice)
    }
}
