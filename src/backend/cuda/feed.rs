//! Batches on their way to the device: two slots of pinned memory, two of device memory, and the events between them.
//!
//! While the device works on one micro-batch the host encodes the next and the copy stream carries it over. A slot of
//! pinned memory may be written again when its copy is done (`copied`), a slot of the device when the launches that
//! read it are done (`read`), and launches may read it when the copy is done.

use std::ops::Range;

use cudarc::driver::{CudaEvent, PinnedHostSlice, result};

use super::descriptors::{MISSING, Piece, Ptr};
use super::driver_error;
use super::program::CellColumn;
use super::slabs::FeedLayout;
use super::sorted::Sorted;
use super::stream::{Device, Slab, record, wait};
use crate::data::{Batch, Values};
use crate::error::Result;

/// Two slots that take turns.
pub(super) struct Feed {
    layout: FeedLayout,
    capacity: usize,
    slots: [Slot; 2],
    next: usize,
}

struct Slot {
    pinned: PinnedHostSlice<u32>,
    device: Slab<u32>,
    copied: CudaEvent,
    read: CudaEvent,
}

/// A micro-batch on the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fed {
    /// Which slot: graphs hold its addresses.
    pub slot: usize,
    pub cells: Ptr<u32>,
    pub weights: Ptr<f32>,
    pub starts: Ptr<u32>,
    pub missing: Ptr<u32>,
    pub pieces: Ptr<Piece>,
    pub items: Ptr<u32>,
}

impl Feed {
    pub fn new(device: &Device, layout: FeedLayout, capacity: usize) -> Result<Self> {
        let slot = || {
            // SAFETY: words that are copied without having been written are read by no kernel.
            let pinned = unsafe { device.context.alloc_pinned::<u32>(layout.len.max(1)) };
            let pinned = pinned.map_err(|e| driver_error("pinned memory for batches", e))?;
            let memory = device.alloc("batches", layout.len)?;
            let (copied, read) = (device.event(false)?, device.event(false)?);
            // Memory is there from its place in the compute stream on: the copy stream has to wait for that, once.
            record(&read, &device.compute)?;
            Ok(Slot { pinned, device: memory, copied, read })
        };
        Ok(Self { layout, capacity, slots: [slot()?, slot()?], next: 0 })
    }

    /// Sends the cells and weights of some rows, and of one more in which everything is missing if `marginal`.
    pub fn send(
        &mut self,
        device: &Device,
        columns: &[CellColumn],
        batch: &Batch,
        rows: Range<usize>,
        marginal: bool,
    ) -> Result<Fed> {
        let (layout, capacity, index) = (self.layout, self.capacity, self.next);
        self.next = 1 - self.next;
        let slot = &mut self.slots[index];
        // Not that the host has waited for a report since: a pass for top-down probabilities alone has none.
        wait(&device.copy, &slot.read)?;
        let words = slot.writable()?;
        for (cells, column) in words.chunks_exact_mut(capacity.max(1)).zip(columns) {
            if !rows.is_empty() {
                encode(cells, batch, *column, rows.clone());
            }
            if marginal {
                cells[rows.len()] = MISSING;
            }
        }
        for (word, row) in words[layout.weights_at..].iter_mut().zip(rows) {
            *word = batch.weight(row).to_bits();
        }
        slot.carry(device, 0..layout.weights_at + capacity)?;
        let at = |offset: usize| slot.device.ptr.offset(offset).address();
        Ok(Fed {
            slot: index,
            cells: Ptr::new(at(0)),
            weights: Ptr::new(at(layout.weights_at)),
            starts: Ptr::new(at(layout.starts_at)),
            missing: Ptr::new(at(layout.missing_at)),
            pieces: Ptr::new(at(layout.pieces_at)),
            items: Ptr::new(at(layout.items_at)),
        })
    }

    /// Sends what the flows of tables need, after the cells of the same rows.
    pub fn send_sorted(&mut self, device: &Device, fed: Fed, sorted: &Sorted) -> Result<()> {
        let layout = self.layout;
        let slot = &mut self.slots[fed.slot];
        let words = slot.writable()?;
        let mut put = |at: usize, values: &[u32]| words[at..at + values.len()].copy_from_slice(values);
        put(layout.starts_at, &sorted.starts);
        put(layout.missing_at, &sorted.missing);
        put(layout.items_at, &sorted.items);
        for (i, piece) in sorted.pieces.iter().enumerate() {
            put(layout.pieces_at + 4 * i, &[piece.first, piece.count, piece.out, piece.units]);
        }
        slot.carry(device, layout.starts_at..layout.items_at + sorted.items.len())
    }

    /// Marks that all launches that read a micro-batch have been made.
    pub fn done(&self, device: &Device, fed: Fed) -> Result<()> {
        record(&self.slots[fed.slot].read, &device.compute)
    }
}

impl Drop for Slot {
    /// Pinned memory may not go while it is being copied. An error here is one that the next call meets too.
    fn drop(&mut self) {
        let _ = self.copied.synchronize();
    }
}

impl Slot {
    /// The pinned words, when the last copy has taken them along.
    fn writable(&mut self) -> Result<&mut [u32]> {
        let done = self.copied.synchronize().and_then(|()| self.pinned.as_mut_slice());
        done.map_err(|e| driver_error("a copy to the device failed", e))
    }

    /// Copies some words over and makes the compute stream wait for them.
    fn carry(&mut self, device: &Device, words: Range<usize>) -> Result<()> {
        let to = self.device.ptr.offset(words.start);
        let from = self.pinned.as_slice().map_err(|e| driver_error("a copy to the device failed", e))?;
        // SAFETY: both slots have `layout.len` words, of which these are a part; the pinned ones are not written before
        // `copied`, and live as long as this slot, which waits for that event before it goes.
        let copied = unsafe { result::memcpy_htod_async(to.address(), &from[words], device.copy.cu_stream()) };
        copied.map_err(|e| driver_error("copy to the device", e))?;
        record(&self.copied, &device.copy)?;
        wait(&device.compute, &self.copied)
    }
}

/// One column of cells: categories, or the bits of real numbers.
fn encode(cells: &mut [u32], batch: &Batch, column: CellColumn, rows: Range<usize>) {
    let missing = batch.missing(column.var);
    let mut put = |value: &dyn Fn(usize) -> u32| {
        for (cell, row) in cells.iter_mut().zip(rows.clone()) {
            let is_missing = missing.is_some_and(|m| m[row]);
            *cell = if is_missing { MISSING } else { value(row) };
        }
    };
    match batch.column(column.var) {
        values if column.is_real => put(&|row| (values.real(row) as f32).to_bits()),
        Values::U8(values) => put(&|row| u32::from(values[row])),
        Values::U16(values) => put(&|row| u32::from(values[row])),
        Values::U32(values) => put(&|row| values[row]),
        Values::F32(_) => put(&|_| MISSING), // `check_batch` lets real numbers through only where all are missing
    }
}
