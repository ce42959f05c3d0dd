//! Kernels on the emulated driver: descriptors as `kernels/README.md` defines them, slabs, launches, comparisons.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, DevicePtr, DeviceRepr};
use cudarc::nvrtc::Ptx;

macro_rules! descriptors {
    ($($name:ident ($size:literal) { $($field:ident: $type:ty),* $(,)? })*) => {$(
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name { $(pub $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
        // SAFETY: plain numbers, laid out as C does.
        unsafe impl DeviceRepr for $name {}
    )*};
}

descriptors! {
    Buffer (16) { at: i64, ld: i32, scale: i32 }
    ScalePair (16) { exponent: i64, loss: i64 }
    ParamDesc (96) {
        theta_at: i64, stat_at: i64, row_at: i64, partial_at: i64, starts_at: i64,
        kind: i32, units: i32, slots: i32, ld: i32, first_use: i32, num_uses: i32,
        origin: f64, width: f64, min_std: f64, cats: i32, pad: i32,
    }
    UseDesc (64) { gain: Buffer, panel: Buffer, flow: Buffer, gain_start: i32, panel_start: i32, cells: i32, pad: i32 }
    InputDesc (24) { value: Buffer, param: i32, cells: i32 }
    ProductDesc (32) { value: Buffer, first_factor: i32, num_factors: i32, units: i32, pad: i32 }
    FactorDesc (48) {
        source: Buffer, map_at: i64, kind: i32, param: i32, cells: i32, units: i32, skew: i32, pad: i32,
    }
    PullDesc (32) { target: Buffer, first_source: i32, num_sources: i32, units: i32, add: i32 }
    PullSource (40) { flow: Buffer, starts_at: i64, items_at: i64, units: i32, skew: i32 }
    PanelDesc (32) { panel: Buffer, first_slice: i32, num_slices: i32, units: i32, pad: i32 }
    SliceDesc (24) { source: Buffer, start: i32, units: i32 }
    GroupDesc (96) {
        value: Buffer, flow: Buffer, panel: Buffer, theta_at: i64, extremes_at: i64,
        theta_ld: i32, start: i32, units: i32, panel_start: i32, cols: i32, first_target: i32,
        num_targets: i32, pad: i32,
    }
    TargetDesc (32) { target: Buffer, start: i32, col: i32, units: i32, add: i32 }
    SumDesc (32) { value: Buffer, first_group: i32, num_groups: i32, units: i32, one_panel: i32 }
    Piece (16) { first: u32, count: u32, out: u32, units: u32 }
    Pass (64) {
        values: u64, flows: u64, scales: u64, theta: u64, cells: u64, degenerate: u64,
        rows: i32, data_rows: i32, capacity: i32, flow_bits: i32,
    }
    Update (64) {
        scale: f64, offset: f64, gain: f64, epsilon: f64, retain: u64, masses: u64,
        absolute: i32, source: i32, keep: f32, pad: i32,
    }
    LogPass (96) {
        values: u64, gains: u64, flows: u64, theta: u64, cells: u64, masses: u64, row_ids: u64, root_flow: u64,
        negligible: f64, rows: i32, capacity: i32, cells_capacity: i32, pad: i32, pad2: i64,
    }
}

/// Kinds of parameter blocks.
pub const WEIGHTS: i32 = 0;
pub const TABLE: i32 = 1;
pub const GAUSSIAN: i32 = 2;
pub const DISCRETE_LOGISTIC: i32 = 3;

/// The category of a missing cell.
pub const MISSING: u32 = u32::MAX;

/// The emulated device with all kernels.
pub struct Device {
    pub stream: Arc<CudaStream>,
    kernels: HashMap<String, CudaFunction>,
}

impl Device {
    pub fn new(ptx: &Path) -> Self {
        let context = CudaContext::new(0).expect("a device");
        // SAFETY: one stream, and every slice outlives its launches: `down` synchronises.
        unsafe { context.disable_event_tracking() };
        let stream = context.default_stream();
        let mut kernels = HashMap::new();
        for file in std::fs::read_dir(ptx).expect("kernels/ptx") {
            let text = std::fs::read_to_string(file.expect("a file").path()).expect("PTX");
            let module = context.load_module(Ptx::from_src(text.clone())).expect("a module");
            for line in text.lines().filter_map(|line| line.strip_prefix(".visible .entry ")) {
                let name = line.trim_end_matches('(');
                kernels
                    .insert(name.to_string(), module.load_function(name).unwrap_or_else(|e| panic!("{name}: {e:?}")));
            }
        }
        Self { stream, kernels }
    }

    pub fn kernel(&self, name: &str) -> &CudaFunction {
        self.kernels.get(name).unwrap_or_else(|| panic!("there is no kernel {name}"))
    }

    pub fn up<T: DeviceRepr>(&self, data: &[T]) -> CudaSlice<T> {
        self.stream.clone_htod(data).expect("an upload")
    }

    /// Memory that was never written: a read before a kernel writes it is found out.
    pub fn fresh<T: DeviceRepr>(&self, len: usize) -> CudaSlice<T> {
        // SAFETY: plain numbers; the host never reads them.
        unsafe { self.stream.alloc(len) }.expect("memory")
    }

    pub fn down<T: DeviceRepr>(&self, data: &CudaSlice<T>) -> Vec<T> {
        let data = self.stream.clone_dtoh(data).expect("a download");
        self.stream.synchronize().expect("kernels that end well");
        data
    }

    pub fn at<T>(&self, data: &CudaSlice<T>) -> u64 {
        data.device_ptr(&self.stream).0
    }
}

/// Launches a kernel; arguments are numbers, descriptors or device addresses.
macro_rules! launch {
    ($device:expr, $name:expr, $grid:expr, $block:expr, $shared:expr; $($arg:expr),* $(,)?) => {{
        let config = cudarc::driver::LaunchConfig {
            grid_dim: crate::kernels::device::grid($grid),
            block_dim: ($block as u32, 1, 1),
            shared_mem_bytes: $shared as u32,
        };
        let mut builder = $device.stream.launch_builder($device.kernel($name));
        $(let arg = $arg; cudarc::driver::PushKernelArg::arg(&mut builder, &arg);)*
        // SAFETY: the arguments are those of kernels/README.md.
        unsafe { builder.launch(config) }.unwrap_or_else(|e| panic!("{}: {e:?}", $name));
        $device.stream.synchronize().unwrap_or_else(|e| panic!("{}: {e:?}", $name));
    }};
}
pub(crate) use launch;

pub trait Grid {
    fn three(self) -> (u32, u32, u32);
}
impl Grid for usize {
    fn three(self) -> (u32, u32, u32) {
        (self as u32, 1, 1)
    }
}
impl Grid for (usize, usize) {
    fn three(self) -> (u32, u32, u32) {
        (self.0 as u32, self.1 as u32, 1)
    }
}
impl Grid for (usize, usize, usize) {
    fn three(self) -> (u32, u32, u32) {
        (self.0 as u32, self.1 as u32, self.2 as u32)
    }
}

pub fn grid(of: impl Grid) -> (u32, u32, u32) {
    of.three()
}

/// A slab on its way to the device: buffers one after the other, all NaN until set, so that a kernel that reads too
/// much shows.
pub struct Slab {
    pub capacity: usize,
    pub values: Vec<f32>,
    pub scales: Vec<ScalePair>,
}

impl Slab {
    pub fn new(capacity: usize) -> Self {
        Self { capacity, values: Vec::new(), scales: Vec::new() }
    }

    pub fn take(&mut self, units: usize) -> Buffer {
        let ld = units.next_multiple_of(8);
        let at = self.values.len() / self.capacity;
        let scale = self.scales.len() / self.capacity;
        self.values.resize(self.values.len() + ld * self.capacity, f32::NAN);
        self.scales.resize(self.scales.len() + self.capacity, ScalePair { exponent: 0, loss: super::scaled::NO_LOSS });
        Buffer { at: at as i64, ld: ld as i32, scale: scale as i32 }
    }

    pub fn row_at(&self, buffer: Buffer, row: usize) -> usize {
        buffer.at as usize * self.capacity + row * buffer.ld as usize
    }

    pub fn fill(&mut self, buffer: Buffer, rows: usize, units: usize, mut value: impl FnMut(usize, usize) -> f32) {
        for row in 0..rows {
            let at = self.row_at(buffer, row);
            for unit in 0..units {
                self.values[at + unit] = value(row, unit);
            }
        }
    }

    pub fn scale(&mut self, buffer: Buffer, row: usize) -> &mut ScalePair {
        &mut self.scales[buffer.scale as usize * self.capacity + row]
    }
}

/// A row of a buffer in a downloaded slab.
pub fn row<T>(values: &[T], capacity: usize, buffer: Buffer, row: usize, start: usize, units: usize) -> &[T] {
    let at = buffer.at as usize * capacity + row * buffer.ld as usize + start;
    &values[at..at + units]
}

/// Fails unless two numbers agree; NaN agrees with nothing.
#[track_caller]
pub fn close(got: f64, want: f64, tolerance: f64, what: impl Fn() -> String) {
    let good = got == want || (got - want).abs() <= tolerance * want.abs();
    assert!(good, "{}: {got:e} is not {want:e}", what());
}

/// A small generator: the same numbers in every run.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// In [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }

    /// In (0.01, 1.01).
    pub fn positive(&mut self) -> f32 {
        (self.uniform() + 0.01) as f32
    }
}

pub fn tiles(n: usize, size: usize) -> usize {
    n.div_ceil(size)
}
