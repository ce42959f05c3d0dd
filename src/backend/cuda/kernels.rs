//! The kernels: their PTX, and one typed launch for each.
//!
//! A launch cannot check its arguments, so each kernel has exactly one wrapper, whose parameters have the types that
//! `kernels/README.md` gives them; the test below compares the list of every wrapper with the `.param` list that the
//! compiler wrote. Kernels that exist in several precisions are one wrapper with a variant.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use super::descriptors::*;
use super::driver_error;
use crate::backend::FlowPrecision;
use crate::error::{Error, Result};

/// How matrices are multiplied on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CudaPrecision {
    /// Operands of 10 bits of mantissa, on tensor cores.
    #[default]
    Tf32,
    /// Operands of 7 bits of mantissa, on tensor cores.
    Bf16,
    /// Operands as sums of two bf16, three products: 16 bits.
    Bf16x3,
    /// Plain f32. What `log_likelihoods` and `top_down` always use.
    F32,
}

/// A matrix product: its precision, and the tile that a block computes, 64 × 64 or 128 × 64 results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    Tf32,
    Bf16,
    Bf16x3,
    F32,
    Tf32Tall,
    Bf16Tall,
    Bf16x3Tall,
}

impl Product {
    /// With square tiles.
    pub fn square(precision: CudaPrecision) -> Self {
        match precision {
            CudaPrecision::Tf32 => Self::Tf32,
            CudaPrecision::Bf16 => Self::Bf16,
            CudaPrecision::Bf16x3 => Self::Bf16x3,
            CudaPrecision::F32 => Self::F32,
        }
    }

    /// With tall ones, where there are some.
    pub fn tall(precision: CudaPrecision) -> Option<Self> {
        match precision {
            CudaPrecision::Tf32 => Some(Self::Tf32Tall),
            CudaPrecision::Bf16 => Some(Self::Bf16Tall),
            CudaPrecision::Bf16x3 => Some(Self::Bf16x3Tall),
            CudaPrecision::F32 => None,
        }
    }
}

/// How the blocks of a launch are laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    blocks: [usize; 3],
    /// Threads of a block, where the kernel leaves the choice.
    threads: Option<u32>,
    shared_bytes: u32,
}

impl From<[usize; 1]> for Grid {
    fn from([x]: [usize; 1]) -> Self {
        [x, 1, 1].into()
    }
}

impl From<[usize; 2]> for Grid {
    fn from([x, y]: [usize; 2]) -> Self {
        [x, y, 1].into()
    }
}

impl From<[usize; 3]> for Grid {
    fn from(blocks: [usize; 3]) -> Self {
        Self { blocks, threads: None, shared_bytes: 0 }
    }
}

impl Grid {
    /// A warp a row with `stage` floats of shared memory each: as many warps in a block as shared memory holds, up to
    /// 8. Also what to tell the kernel about `stage`: 0 if not even one warp fits.
    pub fn staged(rows: usize, count: usize, stage: usize) -> (Self, i32) {
        const SHARED_BYTES: usize = 48 << 10;
        let fitting = [8, 4, 2, 1].into_iter().find(|warps| warps * stage * 4 <= SHARED_BYTES);
        let (warps, stage) = fitting.map_or((8, 0), |warps| (warps, stage));
        let grid = Self {
            blocks: [rows.div_ceil(warps), count, 1],
            threads: Some(32 * warps as u32),
            shared_bytes: (warps * stage * 4) as u32,
        };
        (grid, stage as i32)
    }

    /// For kernels over `n` numbers, each thread walking over many.
    pub fn over(n: usize) -> Self {
        [n.div_ceil(1024).clamp(1, 65_535)].into()
    }
}

/// One module of PTX.
struct Source {
    name: &'static str,
    ptx: &'static str,
}

macro_rules! sources {
    ($($name:ident)*) => {
        const SOURCES: &[Source] = &[$(Source {
            name: stringify!($name),
            ptx: include_str!(concat!("../../../kernels/ptx/", stringify!($name), ".ptx")),
        }),*];
    };
}
sources!(input product sum_forward report sum_backward sum_flows update average adam log_space renormalize);

/// Declares wrappers. `one` have one kernel; `many` have one for each value of a variant.
macro_rules! kernels {
    (
        one { $($one:ident($($arg:ident: $type:ty),* $(,)?) $threads:literal;)* }
        many { $(
            $many:ident[$($name:ident)+] by $variant:ty: ($($m_arg:ident: $m_type:ty),* $(,)?) $m_threads:literal;
        )* }
    ) => {
        /// The functions of all modules, and the stream that they are launched on.
        pub(super) struct Kernels {
            stream: Arc<CudaStream>,
            $($one: CudaFunction,)*
            $($many: Vec<CudaFunction>,)*
        }

        impl Kernels {
            /// Loads all modules; the driver compiles them for its device.
            pub fn load(context: &Arc<CudaContext>, stream: &Arc<CudaStream>) -> Result<Self> {
                let modules = SOURCES.iter().map(|source| {
                    let module = context.load_module(Ptx::from_src(source.ptx));
                    let what = || format!("the driver refuses the kernels in {}.ptx", source.name);
                    module.map_err(|e| driver_error(&what(), e))
                });
                let modules = modules.collect::<Result<Vec<_>>>()?;
                let find = |name: &str| {
                    let found = modules.iter().find_map(|module| module.load_function(name).ok());
                    found.ok_or_else(|| Error::device(format!("the driver does not accept the kernel {name}")))
                };
                Ok(Self {
                    $($one: find(stringify!($one))?,)*
                    $($many: [$(stringify!($name)),+].into_iter().map(find).collect::<Result<_>>()?,)*
                    stream: stream.clone(),
                })
            }

            $(
                #[allow(clippy::too_many_arguments)] // as many as the kernel has
                pub fn $one(&self, grid: impl Into<Grid>, $($arg: $type),*) -> Result<()> {
                    let Some(config) = config(grid.into(), $threads) else { return Ok(()) };
                    let mut launch = self.stream.launch_builder(&self.$one);
                    $(launch.arg(&$arg);)*
                    // SAFETY: the arguments have the types of the kernel's parameters (a test compares the lists), and
                    // whoever calls passes pointers that `Slabs` made large enough for the descriptors.
                    let launched = unsafe { launch.launch(config) };
                    launched.map(drop).map_err(|e| driver_error(concat!("launch of ", stringify!($one)), e))
                }
            )*
            $(
                #[allow(clippy::too_many_arguments)] // as many as the kernel has
                pub fn $many(&self, variant: $variant, grid: impl Into<Grid>, $($m_arg: $m_type),*) -> Result<()> {
                    let Some(config) = config(grid.into(), $m_threads) else { return Ok(()) };
                    let mut launch = self.stream.launch_builder(&self.$many[variant as usize]);
                    $(launch.arg(&$m_arg);)*
                    // SAFETY: the variants of a kernel have one list of parameters, which a test compares with the
                    // types of these arguments; pointers are those of `Slabs`, made large enough for the descriptors.
                    let launched = unsafe { launch.launch(config) };
                    launched.map(drop).map_err(|e| driver_error(concat!("launch of ", stringify!($many)), e))
                }
            )*
        }

        /// What the wrappers pass: name, bytes of each argument, threads of a block.
        #[cfg(test)]
        fn signatures() -> Vec<(&'static str, Vec<usize>, u32)> {
            let mut all = vec![$((stringify!($one), vec![$(size_of::<$type>()),*], $threads)),*];
            $(
                let bytes = vec![$(size_of::<$m_type>()),*];
                $(all.push((stringify!($name), bytes.clone(), $m_threads));)+
            )*
            all
        }
    };
}

/// A launch with blocks of `threads`; nothing where there are no blocks.
fn config(grid: Grid, threads: u32) -> Option<LaunchConfig> {
    let [x, y, z] = grid.blocks.map(|n| n as u32);
    let config = LaunchConfig {
        grid_dim: (x, y, z),
        block_dim: (grid.threads.unwrap_or(threads), 1, 1),
        shared_mem_bytes: grid.shared_bytes,
    };
    (x > 0 && y > 0 && z > 0).then_some(config)
}

/// Precisions of the two sides of `add_scaled`: from, into.
#[derive(Clone, Copy, Debug)]
pub(super) enum Precisions {
    SingleSingle,
    SingleDouble,
    DoubleSingle,
    DoubleDouble,
}

impl Precisions {
    pub fn of(from: FlowPrecision, into: FlowPrecision) -> Self {
        match (from, into) {
            (FlowPrecision::Single, FlowPrecision::Single) => Self::SingleSingle,
            (FlowPrecision::Single, FlowPrecision::Double) => Self::SingleDouble,
            (FlowPrecision::Double, FlowPrecision::Single) => Self::DoubleSingle,
            (FlowPrecision::Double, FlowPrecision::Double) => Self::DoubleDouble,
        }
    }
}

kernels! {
    one {
        input_forward(pass: Pass, inputs: Ptr<InputDesc>, params: Ptr<ParamDesc>) 256;
        product_forward(
            pass: Pass, products: Ptr<ProductDesc>, factors: Ptr<FactorDesc>, params: Ptr<ParamDesc>, maps: Ptr<u32>,
            stage: i32,
        ) 256;
        panel_gather(pass: Pass, panels: Ptr<PanelDesc>, slices: Ptr<SliceDesc>) 256;
        sum_finish(pass: Pass, sums: Ptr<SumDesc>, groups: Ptr<GroupDesc>, extremes: Ptr<u32>) 128;
        root_finish(
            pass: Pass, value: Buffer, flow: Buffer, weights: Ptr<f32>, gain: f64, log_likelihoods: Ptr<f64>,
        ) 256;
        batch_report(pass: Pass, weights: Ptr<f32>, log_likelihoods: Ptr<f64>, report: Ptr<f64>) 256;
        sum_gain(pass: Pass, groups: Ptr<GroupDesc>) 256;
        product_backward(
            pass: Pass, pulls: Ptr<PullDesc>, sources: Ptr<PullSource>, maps: Ptr<u32>, stage: i32,
        ) 256;
        rows_sum(pass: Pass, pieces: Ptr<Piece>, items: Ptr<u32>) 128;
        density_flows(
            pass: Pass, densities: Ptr<ParamDesc>, uses: Ptr<UseDesc>, partials: Ptr<f64>, rows_per_split: i32,
        ) 64;
        top_down_rows(pass: Pass, params: Ptr<ParamDesc>, uses: Ptr<UseDesc>, rows: Ptr<f64>) 128;
        weights_step(
            pass: Pass, weights: Ptr<ParamDesc>, partials: Ptr<f32>, flows: Ptr<f32>, chunks_per_split: i32,
            update: Update,
        ) 256;
        table_coefficients(
            tables: Ptr<ParamDesc>, sums: Ptr<f64>, coefficients: Ptr<f64>, num_rows: i64, update: Update,
        ) 128;
        table_masses(tables: Ptr<ParamDesc>, sums: Ptr<f64>, gain: f64, rows: Ptr<f64>) 128;
        blend_rows(into: Ptr<f64>, keep: f64, rows: Ptr<f64>, gain: f64, n: i64) 256;
        average(averages: Ptr<f32>, theta: Ptr<f32>, n: i64, weight: f32) 256;
        density_average(densities: Ptr<ParamDesc>, averages: Ptr<f32>, theta: Ptr<f32>, weight: f64) 64;
        adam(
            theta: Ptr<f32>, gradient: Ptr<f32>, first: Ptr<f32>, second: Ptr<f32>, n: i64, rate: f32,
            beta1: f32, beta2: f32, correct1: f32, correct2: f32, epsilon: f32,
        ) 256;
        ascend(theta: Ptr<f32>, gradient: Ptr<f32>, n: i64, rate: f32) 256;
        log_input(pass: LogPass, inputs: Ptr<InputDesc>, params: Ptr<ParamDesc>) 128;
        log_product(
            pass: LogPass, products: Ptr<ProductDesc>, factors: Ptr<FactorDesc>, params: Ptr<ParamDesc>, maps: Ptr<u32>,
        ) 128;
        log_panel(pass: LogPass, panels: Ptr<PanelDesc>, slices: Ptr<SliceDesc>) 128;
        log_sum(pass: LogPass, groups: Ptr<GroupDesc>) 256;
        log_root(pass: LogPass, value: Buffer, flow: Buffer, log_likelihoods: Ptr<f64>) 128;
        log_gain(pass: LogPass, groups: Ptr<GroupDesc>) 256;
        log_sum_backward(pass: LogPass, groups: Ptr<GroupDesc>, targets: Ptr<TargetDesc>) 128;
        log_product_backward(pass: LogPass, pulls: Ptr<PullDesc>, sources: Ptr<PullSource>, maps: Ptr<u32>) 128;
        renormalize_weights(pass: LogPass, weights: Ptr<ParamDesc>, uses: Ptr<UseDesc>, theta: Ptr<f32>) 256;
        renormalize_tables(tables: Ptr<ParamDesc>, masses: Ptr<f64>, theta: Ptr<f32>) 128;
        fill_f64(x: Ptr<f64>, value: f64, n: i64) 256;
    }
    many {
        sum_forward[
            sum_forward_tf32 sum_forward_bf16 sum_forward_bf16x3 sum_forward_f32
            sum_forward_tf32_tall sum_forward_bf16_tall sum_forward_bf16x3_tall
        ] by Product: (pass: Pass, groups: Ptr<GroupDesc>, extremes: Ptr<u32>) 128;
        sum_backward[
            sum_backward_tf32 sum_backward_bf16 sum_backward_bf16x3 sum_backward_f32
            sum_backward_tf32_tall sum_backward_bf16_tall sum_backward_bf16x3_tall
        ] by Product: (pass: Pass, groups: Ptr<GroupDesc>, targets: Ptr<TargetDesc>) 128;
        sum_flows[
            sum_flows_tf32 sum_flows_bf16 sum_flows_bf16x3 sum_flows_f32
            sum_flows_tf32_tall sum_flows_bf16_tall sum_flows_bf16x3_tall
        ] by Product:
            (pass: Pass, weights: Ptr<ParamDesc>, uses: Ptr<UseDesc>, partials: Ptr<f32>, chunks_per_split: i32) 128;
        weights_flows[weights_flows_f32 weights_flows_f64] by FlowPrecision:
            (
                pass: Pass, weights: Ptr<ParamDesc>, partials: Ptr<f32>, flows: Ptr<Count>, keep: f32,
                chunks_per_split: i32,
            ) 256;
        table_flows[table_flows_f32 table_flows_f64] by FlowPrecision:
            (
                pass: Pass, tables: Ptr<ParamDesc>, starts: Ptr<u32>, items: Ptr<u32>, missing: Ptr<u32>,
                flows: Ptr<Count>, keep: f32, sums: Ptr<f64>,
            ) 128;
        density_apply[density_apply_f32 density_apply_f64] by FlowPrecision:
            (
                pass: Pass, densities: Ptr<ParamDesc>, partials: Ptr<f64>, flows: Ptr<Count>, keep: f32,
                rows_per_split: i32,
            ) 64;
        weights_update[weights_update_f32 weights_update_f64] by FlowPrecision:
            (pass: Pass, weights: Ptr<ParamDesc>, flows: Ptr<Count>, update: Update) 256;
        weights_masses[weights_masses_f32 weights_masses_f64] by FlowPrecision:
            (weights: Ptr<ParamDesc>, flows: Ptr<Count>, gain: f64, rows: Ptr<f64>) 256;
        table_sums[table_sums_f32 table_sums_f64] by FlowPrecision:
            (pass: Pass, tables: Ptr<ParamDesc>, flows: Ptr<Count>, sums: Ptr<f64>) 128;
        table_move[table_move_f32 table_move_f64] by FlowPrecision:
            (pass: Pass, tables: Ptr<ParamDesc>, flows: Ptr<Count>, coefficients: Ptr<f64>, num_rows: i64) 128;
        density_update[density_update_f32 density_update_f64] by FlowPrecision:
            (pass: Pass, densities: Ptr<ParamDesc>, flows: Ptr<Count>, update: Update) 64;
        density_masses[density_masses_f32 density_masses_f64] by FlowPrecision:
            (densities: Ptr<ParamDesc>, flows: Ptr<Count>, gain: f64, rows: Ptr<f64>) 64;
        scale[scale_f32 scale_f64] by FlowPrecision: (x: Ptr<Count>, factor: f64, n: i64) 256;
        add_scaled[add_scaled_ff add_scaled_fd add_scaled_df add_scaled_dd] by Precisions:
            (from: Ptr<Count>, gain: f64, into: Ptr<Count>, n: i64) 256;
        gradient[gradient_f32 gradient_f64] by FlowPrecision:
            (pass: Pass, params: Ptr<ParamDesc>, flows: Ptr<Count>, gain: f64, top_down: Ptr<f64>) 256;
        log_weight_flows[log_weight_flows_f32 log_weight_flows_f64] by FlowPrecision:
            (pass: LogPass, weights: Ptr<ParamDesc>, uses: Ptr<UseDesc>, flows: Ptr<Count>) 128;
        log_table_flows[log_table_flows_f32 log_table_flows_f64] by FlowPrecision:
            (pass: LogPass, tables: Ptr<ParamDesc>, uses: Ptr<UseDesc>, flows: Ptr<Count>) 128;
        log_density_flows[log_density_flows_f32 log_density_flows_f64] by FlowPrecision:
            (pass: LogPass, densities: Ptr<ParamDesc>, uses: Ptr<UseDesc>, flows: Ptr<Count>) 128;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Bytes of the parameters and threads of a block of every kernel in some PTX.
    fn entries(ptx: &str) -> Vec<(String, Vec<usize>, u32)> {
        let mut found = Vec::new();
        for entry in ptx.split(".visible .entry ").skip(1) {
            let (name, rest) = entry.split_once('(').unwrap();
            let (params, rest) = rest.split_once(')').unwrap();
            let bytes = |param: &str| match param.split_once('[') {
                Some((_, size)) => size.trim_end().trim_end_matches(']').parse().unwrap(),
                None => match param.split_whitespace().nth(1).unwrap() {
                    ".u64" | ".f64" | ".b64" => 8,
                    ".u32" | ".f32" | ".b32" => 4,
                    other => panic!("{name}: a parameter of type {other}"),
                },
            };
            let params = params.split(',').filter(|p| !p.trim().is_empty()).map(bytes).collect();
            let (head, _) = rest.split_once('{').unwrap();
            let threads = head.split_once(".maxntid ").unwrap().1.split(',').next().unwrap().trim().parse().unwrap();
            found.push((name.to_string(), params, threads));
        }
        found
    }

    #[test]
    fn every_wrapper_passes_what_its_kernel_takes() {
        let compiled: BTreeMap<_, _> = SOURCES
            .iter()
            .flat_map(|s| entries(s.ptx))
            .map(|(name, params, threads)| (name, (params, threads)))
            .collect();
        let wrapped: BTreeMap<_, _> =
            signatures().into_iter().map(|(name, params, threads)| (name.to_string(), (params, threads))).collect();
        assert!(compiled.len() > 60);
        assert_eq!(wrapped, compiled);
    }

    #[test]
    fn a_warp_that_does_not_fit_gathers_from_global_memory() {
        let (grid, stage) = Grid::staged(100, 3, 300);
        assert_eq!((grid.blocks, grid.threads, grid.shared_bytes, stage), ([13, 3, 1], Some(256), 9600, 300));
        let (grid, stage) = Grid::staged(100, 3, 3000);
        assert_eq!((grid.blocks, grid.threads, grid.shared_bytes, stage), ([25, 3, 1], Some(128), 48_000, 3000));
        let (grid, stage) = Grid::staged(100, 3, 20_000);
        assert_eq!((grid.threads, grid.shared_bytes, stage), (Some(256), 0, 0));
    }
}
