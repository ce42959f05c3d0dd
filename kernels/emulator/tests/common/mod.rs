//! What the tests share: a system with one module loaded, and a short way to launch its kernels.

#![allow(dead_code)] // every test file uses its part of it
#![allow(clippy::unwrap_used)] // a test that cannot go on should say where

use cuda_emulator::config::Config;
use cuda_emulator::machine::Shape;
use cuda_emulator::result::Code;
use cuda_emulator::state::{Handle, System};
use cuda_emulator::stream::{HostBytes, Op};

/// A system with a module on device 0.
pub struct Rig {
    pub system: System,
    pub module: Handle,
    pub stream: Handle,
}

/// One kernel argument.
pub enum Arg {
    Pointer(u64),
    Int(i32),
    Float(f32),
}

impl Rig {
    /// Loads `tests/ptx/<name>.ptx`.
    pub fn new(name: &str) -> Rig {
        Rig::with(name, Config::default())
    }

    pub fn with(name: &str, config: Config) -> Rig {
        let path = format!("{}/tests/ptx/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
        Rig::from_text(&std::fs::read_to_string(path).unwrap(), config)
    }

    pub fn from_text(ptx: &str, config: Config) -> Rig {
        let mut system = System::new(config);
        let module = system.load_module(0, ptx).unwrap();
        let stream = system.new_stream(0, false);
        Rig { system, module, stream }
    }

    /// Device memory with these values.
    pub fn upload<T: Plain>(&mut self, values: &[T]) -> u64 {
        let address = self.alloc(size_of_val(values));
        self.write(self.stream, address, values);
        self.finish();
        address
    }

    /// Uploads in a stream, without waiting.
    pub fn write<T: Plain>(&mut self, stream: Handle, address: u64, values: &[T]) {
        let bytes = values.iter().flat_map(|v| v.bytes()).collect();
        self.system.submit(stream, Op::Upload { to: address, from: HostBytes::Taken(bytes) }).unwrap();
    }

    /// Device memory that nobody has written.
    pub fn alloc(&mut self, len: usize) -> u64 {
        self.system.alloc(0, len).unwrap()
    }

    /// Launches in the rig's stream and waits.
    pub fn run(&mut self, kernel: &str, grid: u32, block: u32, args: &[Arg]) -> Result<(), Code> {
        self.run_shared(kernel, grid, block, 0, args)
    }

    pub fn run_shared(&mut self, kernel: &str, grid: u32, block: u32, shared: u32, args: &[Arg]) -> Result<(), Code> {
        self.launch(self.stream, kernel, grid, block, shared, args)?;
        self.finish();
        self.system.status(0)
    }

    /// Launches without waiting.
    pub fn launch(
        &mut self,
        stream: Handle,
        kernel: &str,
        grid: u32,
        block: u32,
        shared: u32,
        args: &[Arg],
    ) -> Result<(), Code> {
        let function = self.system.function(self.module, kernel)?;
        let mut params = Vec::new();
        for arg in args {
            match arg {
                Arg::Pointer(p) => {
                    params.resize(params.len().next_multiple_of(8), 0);
                    params.extend(p.to_le_bytes());
                }
                Arg::Int(v) => params.extend(v.to_le_bytes()),
                Arg::Float(v) => params.extend(v.to_le_bytes()),
            }
        }
        let shape = Shape { grid: [grid, 1, 1], block: [block, 1, 1], shared };
        self.system.launch(stream, function, shape, params)
    }

    /// Waits for the rig's stream.
    pub fn finish(&mut self) {
        self.system.demand(self.stream, u64::MAX);
    }

    pub fn download<T: Plain>(&mut self, address: u64, count: usize) -> Vec<T> {
        self.finish();
        self.read(address, count)
    }

    /// What is in memory now, without waiting for anything.
    pub fn read<T: Plain>(&mut self, address: u64, count: usize) -> Vec<T> {
        let size = size_of::<T>();
        let device = cuda_emulator::memory::DeviceMemory::device_of(address).unwrap();
        let (region, at) = self.system.devices[device].memory.range(address, count * size).unwrap();
        region.bytes.data[at..at + count * size].chunks_exact(size).map(T::from_bytes).collect()
    }

    /// The last report, or nothing.
    pub fn report(&self) -> &str {
        self.system.reports.last().map_or("", String::as_str)
    }

    /// A launch that must be found at fault, with these words.
    #[track_caller]
    pub fn must_report(&mut self, kernel: &str, grid: u32, block: u32, args: &[Arg], code: Code, words: &str) {
        let result = self.run(kernel, grid, block, args);
        assert_eq!(result, Err(code), "`{}`", self.report());
        assert!(self.report().contains(words), "`{}` does not say `{words}`", self.report());
    }
}

/// Numbers that are their bytes.
pub trait Plain: Copy {
    fn bytes(self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Plain for $t {
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn from_bytes(bytes: &[u8]) -> Self {
                <$t>::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )*};
}

plain!(u8, u16, i32, u32, i64, u64, f32, f64);

/// Numbers without a pattern, the same in every run.
pub fn random(count: usize, seed: u64) -> Vec<u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.wrapping_mul(0x2545_f491_4f6c_dd1d)
        })
        .collect()
}
