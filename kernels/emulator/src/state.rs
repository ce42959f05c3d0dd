//! The emulated system: devices, and everything the program holds a handle of.
//!
//! The exported functions are thin; what they mean is here, in `stream` and in `graph`, as methods of [`System`]. Tests
//! make systems of their own; the shared library has one, made from the environment at first use.

use std::collections::{BTreeMap, HashMap};
use std::io::Write as _;
use std::sync::Arc;

use crate::collective::Cliques;
use crate::config::Config;
use crate::counters::{Counters, json_line};
use crate::decode::decode;
use crate::graph::{Capture, Graph};
use crate::machine::Shape;
use crate::memory::DeviceMemory;
use crate::parse::{Module, parse};
use crate::program::Kernel;
use crate::race::LaunchTags;
use crate::result::{Code, Fault};
use crate::stream::{Event, Op, Stream};

/// Names what the program holds. In C it looks like a pointer, and is never followed.
pub type Handle = u64;

/// Static and dynamic shared memory of a block together, unless a kernel asks for more.
pub const SHARED_DEFAULT: u32 = 48 << 10;
/// The most a kernel can ask for (compute capability 8.0).
pub const SHARED_LIMIT: u32 = 163 << 10;

/// One device.
#[derive(Debug)]
pub struct Device {
    /// Its memory.
    pub memory: DeviceMemory,
    /// The first fault on it: like a real context it answers nothing else from then on.
    pub sticky: Option<Code>,
    /// What stream 0 means.
    pub default_stream: Handle,
}

/// A loaded module.
#[derive(Debug)]
pub struct LoadedModule {
    device: usize,
    /// What it was loaded from.
    source: Arc<str>,
    module: Arc<Module>,
    /// Addresses and sizes of its variables.
    globals: HashMap<String, (u64, usize)>,
    /// Functions requested so far.
    functions: HashMap<String, Handle>,
}

/// PTX that was read before. A program makes many backends of one source, and reading it takes longer than a small
/// step.
#[derive(Debug)]
struct Known {
    module: Arc<Module>,
    /// Kernels that are the same wherever the module is loaded: those of a module without variables, which have
    /// addresses.
    kernels: HashMap<String, Arc<Kernel>>,
}

/// A kernel that was requested.
#[derive(Debug)]
pub struct Function {
    /// The device it was loaded on.
    pub device: usize,
    /// What it does.
    pub kernel: Arc<Kernel>,
    /// Dynamic shared memory it may be launched with.
    pub max_dynamic: u32,
}

/// The whole.
#[derive(Debug)]
pub struct System {
    /// Its settings.
    pub config: Config,
    /// Its devices.
    pub devices: Vec<Device>,
    known: HashMap<Arc<str>, Known>,
    pub(crate) modules: HashMap<Handle, LoadedModule>,
    pub(crate) functions: HashMap<Handle, Function>,
    /// By handle, which is by age.
    pub(crate) streams: BTreeMap<Handle, Stream>,
    pub(crate) events: HashMap<Handle, Event>,
    pub(crate) captures: HashMap<Handle, Capture>,
    pub(crate) graphs: HashMap<Handle, Arc<Graph>>,
    /// Page-locked host memory: address → length.
    pub(crate) pinned: BTreeMap<usize, usize>,
    pub(crate) cliques: Cliques,
    /// Counters by kernel.
    pub counters: BTreeMap<String, Counters>,
    /// Every report so far.
    pub reports: Vec<String>,
    next_handle: Handle,
    pub(crate) next_seq: u64,
    allocations: u64,
    next_tag: u32,
}

impl System {
    /// A system with nothing in it.
    pub fn new(config: Config) -> System {
        let mut system = System {
            devices: Vec::new(),
            known: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            streams: BTreeMap::new(),
            events: HashMap::new(),
            captures: HashMap::new(),
            graphs: HashMap::new(),
            pinned: BTreeMap::new(),
            cliques: Cliques::default(),
            counters: BTreeMap::new(),
            reports: Vec::new(),
            next_handle: 0x1000,
            next_seq: 1,
            allocations: 0,
            next_tag: 1,
            config,
        };
        for device in 0..system.config.devices {
            let default_stream = system.new_stream(device, true);
            let memory = DeviceMemory::new(device, system.config.memory);
            system.devices.push(Device { memory, sticky: None, default_stream });
        }
        system
    }

    /// A handle that nothing else has.
    pub(crate) fn new_handle(&mut self) -> Handle {
        self.next_handle += 16;
        self.next_handle
    }

    /// Tells a person what went wrong.
    pub fn report(&mut self, what: &str) {
        if what.is_empty() {
            return;
        }
        eprintln!("cuda emulator: {what}");
        if let Some(path) = &self.config.log {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let _ = file.and_then(|mut f| writeln!(f, "{what}"));
        }
        self.reports.push(what.to_owned());
    }

    /// Reports and hands back the code.
    pub(crate) fn fail(&mut self, fault: &Fault) -> Code {
        self.report(&fault.what);
        fault.code
    }

    /// The device, if no fault has ended it.
    pub fn device(&mut self, device: usize) -> Result<&mut Device, Code> {
        let device = self.devices.get_mut(device).ok_or(Code::InvalidDevice)?;
        match device.sticky {
            Some(code) => Err(code),
            None => Ok(device),
        }
    }

    /// The first error code of a device, or success.
    pub fn status(&self, device: usize) -> Result<(), Code> {
        match self.devices.get(device).and_then(|d| d.sticky) {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    /// Allocates device memory.
    pub fn alloc(&mut self, device: usize, len: usize) -> Result<u64, Code> {
        self.device(device)?;
        self.allocations += 1;
        if self.config.fail_alloc == Some(self.allocations) {
            return Err(Code::OutOfMemory);
        }
        self.device(device)?.memory.alloc(len)
    }

    /// Allocates device memory in the order of a stream: others have to wait for that place before they use it.
    pub fn alloc_in(&mut self, stream: Handle, len: usize) -> Result<u64, Code> {
        let device = self.live_stream(stream)?.device;
        let address = self.alloc(device, len)?;
        self.submit(stream, Op::Alloc { address })?;
        Ok(address)
    }

    /// Whether page-locked memory may go. Copies that are still on their way would use it afterwards: that ends their
    /// device.
    pub fn check_free_host(&mut self, at: usize, len: usize) -> Result<(), Code> {
        let Some(device) = self.copying(at, len) else { return Ok(()) };
        let what = format!("page-locked memory of {len} bytes is freed while a copy of it is on its way");
        let code = self.fail(&Fault::new(Code::IllegalAddress, what));
        self.devices[device].sticky.get_or_insert(code);
        Err(code)
    }

    /// Loads a module and places its variables.
    pub fn load_module(&mut self, device: usize, text: &str) -> Result<Handle, Code> {
        self.device(device)?;
        let (source, module) = match self.read(text) {
            Ok(found) => found,
            Err(what) => return Err(self.fail(&Fault::new(Code::InvalidPtx, what))),
        };
        if let Some(version) = ptx_version(text)
            && version > newest_ptx(self.config.driver_version)
        {
            let what = format!("PTX version {version} is newer than a driver {} reads", self.config.driver_version);
            return Err(self.fail(&Fault::new(Code::UnsupportedPtxVersion, what)));
        }
        let mut globals = HashMap::new();
        for variable in &module.globals {
            let size = variable.size.unwrap_or(0).max(1);
            let base = self.device(device)?.memory.alloc(size)?;
            let (region, _) = self.device(device)?.memory.range(base, size).map_err(|f| f.code)?;
            region.bytes.data.fill(0); // variables without a value start as zeros
            region.bytes.data[..variable.initial.len()].copy_from_slice(&variable.initial);
            region.bytes.mark(0, size);
            globals.insert(variable.name.clone(), (base, size));
        }
        let handle = self.new_handle();
        self.modules.insert(handle, LoadedModule { device, source, module, globals, functions: HashMap::new() });
        Ok(handle)
    }

    fn read(&mut self, text: &str) -> Result<(Arc<str>, Arc<Module>), String> {
        if let Some((source, known)) = self.known.get_key_value(text) {
            return Ok((source.clone(), known.module.clone()));
        }
        let (source, module) = (Arc::<str>::from(text), Arc::new(parse(text)?));
        self.known.insert(source.clone(), Known { module: module.clone(), kernels: HashMap::new() });
        Ok((source, module))
    }

    /// Unloads a module with its functions and variables.
    pub fn unload_module(&mut self, handle: Handle) -> Result<(), Code> {
        let gone = self.modules.remove(&handle).ok_or(Code::InvalidHandle)?;
        for function in gone.functions.values() {
            self.functions.remove(function);
        }
        for (base, _) in gone.globals.values() {
            let _ = self.devices[gone.device].memory.free(*base);
        }
        self.status(gone.device)
    }

    /// Decodes a kernel, once.
    pub fn function(&mut self, module: Handle, name: &str) -> Result<Handle, Code> {
        let loaded = self.modules.get(&module).ok_or(Code::InvalidHandle)?;
        if let Some(&known) = loaded.functions.get(name) {
            return Ok(known);
        }
        let entry = loaded.module.entries.get(name).ok_or(Code::NotFound)?;
        let places: HashMap<_, _> = loaded.globals.iter().map(|(name, (base, _))| (name.clone(), *base)).collect();
        let device = loaded.device;
        let known = self.known.get_mut(&loaded.source).expect("a module was read before it was loaded");
        let kernel = match known.kernels.get(name) {
            Some(kernel) => kernel.clone(),
            None => match decode(&loaded.module, &places, entry) {
                Ok(kernel) => Arc::new(kernel),
                Err(what) => return Err(self.fail(&Fault::new(Code::InvalidPtx, format!("kernel `{name}`, {what}")))),
            },
        };
        if places.is_empty() {
            known.kernels.insert(name.to_owned(), kernel.clone());
        }
        let max_dynamic = SHARED_DEFAULT.saturating_sub(kernel.shared_static as u32);
        let handle = self.new_handle();
        self.functions.insert(handle, Function { device, kernel, max_dynamic });
        self.modules.get_mut(&module).expect("found above").functions.insert(name.to_owned(), handle);
        Ok(handle)
    }

    /// Address and size of a module's variable.
    pub fn global(&self, module: Handle, name: &str) -> Result<(u64, usize), Code> {
        let loaded = self.modules.get(&module).ok_or(Code::InvalidHandle)?;
        loaded.globals.get(name).copied().ok_or(Code::NotFound)
    }

    /// Lets a kernel have more dynamic shared memory than the default.
    pub fn set_max_dynamic(&mut self, function: Handle, bytes: i32) -> Result<(), Code> {
        let function = self.functions.get_mut(&function).ok_or(Code::InvalidHandle)?;
        let all = i64::from(bytes) + function.kernel.shared_static as i64;
        if bytes < 0 || all > i64::from(SHARED_LIMIT) {
            return Err(Code::InvalidValue);
        }
        function.max_dynamic = bytes as u32;
        Ok(())
    }

    /// Checks a launch as a driver does and hands it to the stream. `params` is the parameter block.
    pub fn launch(&mut self, stream: Handle, function: Handle, shape: Shape, params: Vec<u8>) -> Result<(), Code> {
        let device = self.streams.get(&stream).ok_or(Code::InvalidHandle)?.device;
        self.status(device)?;
        let found = self.functions.get(&function).ok_or(Code::InvalidHandle)?;
        let (kernel, max_dynamic) = (found.kernel.clone(), found.max_dynamic);
        let threads = shape.threads();
        let [gx, gy, gz] = shape.grid;
        let [bx, by, bz] = shape.block;
        let sizes_fit = threads > 0 && threads <= 1024 && bx <= 1024 && by <= 1024 && bz <= 64;
        let grid_fits =
            shape.blocks() > 0 && gx <= i32::MAX as u32 && gy <= 65535 && gz <= 65535 && shape.blocks() < 1 << 30;
        let problem = if found.device != device {
            Some((Code::InvalidHandle, "the function belongs to another device".to_owned()))
        } else if !sizes_fit || !grid_fits {
            Some((Code::InvalidValue, format!("grid {:?} of blocks {:?} is not possible", shape.grid, shape.block)))
        } else if threads > kernel.max_threads as usize {
            let what = format!("{threads} threads where the kernel was compiled for at most {}", kernel.max_threads);
            Some((Code::InvalidValue, what))
        } else if shape.shared > max_dynamic {
            let what = format!("{} bytes of dynamic shared memory where {max_dynamic} are allowed", shape.shared);
            Some((Code::InvalidValue, what))
        } else if kernel.param_bytes > params.len() {
            Some((Code::InvalidValue, "parameters are missing".to_owned()))
        } else {
            None
        };
        if let Some((code, what)) = problem {
            return Err(self.fail(&Fault::new(code, format!("launch of `{}`: {what}", kernel.name))));
        }
        self.submit(stream, Op::Launch { kernel, params, shape }).map(drop)
    }

    /// Runs a kernel now.
    pub(crate) fn run_kernel(
        &mut self,
        device: usize,
        kernel: &Kernel,
        params: &[u8],
        shape: Shape,
    ) -> Result<(), Fault> {
        let blocks = shape.blocks() as u32;
        if self.next_tag > (1 << 31) - 1 - blocks {
            // Tags would run over: start again with clean ones.
            self.devices.iter_mut().for_each(|d| d.memory.clear_tags());
            self.next_tag = 1;
        }
        let tags = LaunchTags { first: self.next_tag };
        self.next_tag += blocks;
        let counters = self.counters.entry(kernel.name.clone()).or_default();
        crate::grid::launch(kernel, &self.config, &mut self.devices[device].memory, params, shape, counters, tags)
    }

    /// Appends the counters to their file.
    pub fn write_counters(&self) {
        let Some(path) = &self.config.counters else { return };
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        // One write, so that lines of several processes do not mix.
        if let Err(e) = file.and_then(|mut f| f.write_all(json_line(&self.counters).as_bytes())) {
            eprintln!("cuda emulator: {}: {e}", path.display());
        }
    }

    /// Whether a host range is page-locked.
    pub(crate) fn is_pinned(&self, at: usize, len: usize) -> bool {
        self.pinned.range(..=at).next_back().is_some_and(|(base, size)| at + len <= base + size)
    }
}

/// `.version 8.4` as 84.
fn ptx_version(text: &str) -> Option<i32> {
    let word = text.split(".version").nth(1)?.split_whitespace().next()?;
    let (major, minor) = word.split_once('.')?;
    Some(major.parse::<i32>().ok()? * 10 + minor.parse::<i32>().ok()?)
}

/// The newest PTX version that a driver of this CUDA version reads (CUDA 12.0 brought 8.0, 12.1 brought 8.1, …; 12.9 is
/// 8.8).
fn newest_ptx(driver: i32) -> i32 {
    let (major, minor) = (driver / 1000, driver % 1000 / 10);
    match (major, minor) {
        (..=11, _) => 70 + minor.min(8),
        (12, 0..=5) => 80 + minor,
        (12, 6 | 7) => 85,
        (12, _) => 87 + i32::from(minor >= 9),
        _ => 90 + minor,
    }
}
