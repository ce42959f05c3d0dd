//! A device with its two streams: launches go to one, copies of coming batches to the other.
//!
//! Nothing orders the two but the events that are recorded and waited for by hand; `feed` does that. Memory is
//! allocated on the compute stream, and freed there, so that whatever was launched before is done with it.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr, DeviceRepr, DriverError, result, sys};

use super::descriptors::Ptr;
use super::{driver_error, probe};
use crate::error::{Error, Result};

/// A device and its streams.
pub(super) struct Device {
    pub context: Arc<CudaContext>,
    pub compute: Arc<CudaStream>,
    pub copy: Arc<CudaStream>,
    pub multiprocessors: usize,
}

/// Memory of the device, `len` elements.
pub(super) struct Slab<T> {
    // Kept for its Drop: kernels are given `ptr`.
    _memory: CudaSlice<T>,
    pub ptr: Ptr<T>,
    pub len: usize,
}

impl Device {
    pub fn open(ordinal: usize) -> Result<Self> {
        let context = probe::open(ordinal)?;
        // SAFETY: no slice of ours is ever given to `cudarc` to launch with, so it has nothing to track: order comes
        // from the streams and from the events in `feed`. Before anything is allocated, because slices carry their
        // events.
        unsafe { context.disable_event_tracking() };
        let stream = || context.new_stream().map_err(|e| driver_error("no stream could be made", e));
        let count = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
        let count = count.map_err(|e| driver_error("the device does not say how large it is", e))?;
        let multiprocessors = usize::try_from(count).unwrap_or(1);
        Ok(Self { compute: stream()?, copy: stream()?, context, multiprocessors })
    }

    /// Memory that holds anything. `what` it is for is named if there is not enough.
    pub fn alloc<T: DeviceRepr>(&self, what: &str, len: usize) -> Result<Slab<T>> {
        let len = len.max(1);
        // SAFETY: everything is written before it is read: by an upload, by `zero`, or by the kernels in their order.
        let memory = unsafe { self.compute.alloc::<T>(len) };
        let memory = memory.map_err(|e| self.allocation_error(what, len * size_of::<T>(), e))?;
        let (address, _) = memory.device_ptr(&self.compute);
        Ok(Slab { ptr: Ptr::new(address), len, _memory: memory })
    }

    /// Memory of zeros.
    pub fn zeros<T: DeviceRepr>(&self, what: &str, len: usize) -> Result<Slab<T>> {
        let slab = self.alloc(what, len)?;
        self.zero(slab.ptr, slab.len)?;
        Ok(slab)
    }

    /// A table that stays as it is.
    pub fn table<T: DeviceRepr>(&self, what: &str, values: &[T]) -> Result<Slab<T>> {
        let slab = self.alloc(what, values.len())?;
        self.upload(values, slab.ptr)?;
        Ok(slab)
    }

    /// Sets numbers to zero, in the order of the launches.
    pub fn zero<T>(&self, ptr: Ptr<T>, len: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: callers pass a slab of theirs, or a part of one.
        let set = unsafe { result::memset_d8_async(ptr.address(), 0, len * size_of::<T>(), self.compute.cu_stream()) };
        set.map_err(|e| driver_error("memory could not be set", e))
    }

    /// Copies from ordinary memory, in the order of the launches.
    pub fn upload<T: DeviceRepr>(&self, from: &[T], to: Ptr<T>) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: callers pass a slab that is large enough. The driver takes ordinary memory along before it returns.
        let copied = unsafe { result::memcpy_htod_async(to.address(), from, self.compute.cu_stream()) };
        copied.map_err(|e| driver_error("copy to the device", e))
    }

    /// Copies from one slab to another, in the order of the launches.
    pub fn copy_within<T: DeviceRepr>(&self, from: Ptr<T>, to: Ptr<T>, len: usize) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        self.bind()?;
        let (to, from, bytes) = (to.address(), from.address(), len * size_of::<T>());
        // SAFETY: callers pass two slabs of at least `len`.
        let copied = unsafe { result::memcpy_dtod_async(to, from, bytes, self.compute.cu_stream()) };
        copied.map_err(|e| driver_error("copy on the device", e))
    }

    /// Reads numbers back, after everything launched so far.
    pub fn download<T: DeviceRepr + Clone + Default>(&self, from: Ptr<T>, len: usize) -> Result<Vec<T>> {
        let mut values = vec![T::default(); len];
        if len == 0 {
            return Ok(values);
        }
        self.bind()?;
        // SAFETY: callers pass a slab of at least `len`; `values` lives until the stream has been waited for.
        let copied = unsafe { result::memcpy_dtoh_async(&mut values, from.address(), self.compute.cu_stream()) };
        let copied = copied.and_then(|()| self.compute.synchronize());
        copied.map_err(|e| driver_error("copy from the device", e))?;
        Ok(values)
    }

    /// An event; `is_timed` if it is to be a point in time.
    pub fn event(&self, is_timed: bool) -> Result<CudaEvent> {
        let flags = match is_timed {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        self.context.new_event(Some(flags)).map_err(|e| driver_error("no event could be made", e))
    }

    /// Bytes that are free, and all there are.
    pub fn memory(&self) -> Result<(usize, usize)> {
        // Frees are ordered by the stream too: what was given back counts only when it has come to that.
        self.synchronize()?;
        self.context.mem_get_info().map_err(|e| driver_error("the device's memory cannot be asked for", e))
    }

    /// Waits for all launches.
    pub fn synchronize(&self) -> Result<()> {
        self.compute.synchronize().map_err(|e| driver_error("the device failed", e))
    }

    pub fn name(&self) -> String {
        let name = self.context.name().unwrap_or_else(|_| "unknown device".into());
        format!("cuda:{} ({name})", self.context.ordinal())
    }

    /// Calls below `cudarc`'s safe ones need the context on the thread that they are made from.
    pub fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(|e| driver_error("the device's context is gone", e))
    }

    fn allocation_error(&self, what: &str, bytes: usize, error: DriverError) -> Error {
        if error.0 != sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return driver_error(&format!("memory for {what}"), error);
        }
        let (free, total) = self.context.mem_get_info().unwrap_or((0, 0));
        Error::device(format!(
            "{}: out of memory: {what} need {}, of {} there are {} free",
            self.name(),
            in_words(bytes),
            in_words(total),
            in_words(free)
        ))
    }
}

/// Bytes for people.
pub(super) fn in_words(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// Puts an event behind all that a stream has been given.
pub(super) fn record(event: &CudaEvent, stream: &CudaStream) -> Result<()> {
    event.record(stream).map_err(|e| driver_error("an event could not be recorded", e))
}

/// Keeps a stream from going on before an event.
pub(super) fn wait(stream: &CudaStream, event: &CudaEvent) -> Result<()> {
    stream.wait(event).map_err(|e| driver_error("a stream could not wait", e))
}
