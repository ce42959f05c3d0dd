//! Single kernels to be measured, for `benches/kernels.rs`: not part of the library's face.

use super::kernels::flow_sums::{FlowScratch, FlowSums};
use super::kernels::max_product::multiply_max;
use super::kernels::product::{LeftScratch, Matrix, MatrixMut, Packed, multiply};
use super::kernels::{Arithmetic, Isa, IsaCap, Precision};
use super::lazy::{Cells, LazyTable};
use super::shared::SharedSlice;
use super::tables::{Moves, add_and_move};
use crate::circuit::ParamId;

/// One kernel on operands of its own.
pub struct KernelCase {
    /// What it does, and on what.
    pub name: String,
    /// Operations or numbers that one run is worth.
    pub work: u64,
    /// Runs it once.
    pub run: Box<dyn FnMut()>,
}

/// Rows of a tile, as training has them.
const ROWS: usize = 129;

/// The kernels of an instruction set, as far as this machine has it.
pub fn kernel_cases(cap: IsaCap) -> Vec<KernelCase> {
    let isa = Isa::detect(cap);
    let mut cases = Vec::new();
    for precision in [Precision::F32, Precision::Bf16] {
        let arithmetic = Arithmetic::new(isa, precision);
        for units in [32, 64, 256, 1024] {
            cases.extend(matrix_cases(arithmetic, &format!("{} {precision}", isa.name()), units));
        }
    }
    cases.extend([32, 64, 256].map(|units| max_case(isa, units)));
    cases.extend([64, 256, 1024].map(|units| replay_case(isa, units)));
    cases.extend([64, 256, 1024].map(|units| move_case(isa, units)));
    cases
}

fn ones(len: usize) -> Vec<f32> {
    vec![1.0; len] // neither grows nor shrinks
}

fn matrix_cases(arithmetic: Arithmetic, set: &str, units: usize) -> Vec<KernelCase> {
    let flops = 2 * (ROWS * units * units) as u64;
    let (left, weights) = (ones(ROWS * units), ones(units * units));
    let mut packed = Packed::default();
    packed.pack(arithmetic, Matrix::new(&weights, units, units, units));
    let (mut out, mut scratch) = (ones(ROWS * units), LeftScratch::default());
    let product = Box::new(move || {
        let to = MatrixMut::new(&mut out, ROWS, units, units);
        multiply(arithmetic, to, Matrix::new(&left, ROWS, units, units), &packed, &mut scratch);
    });

    let (gains, values) = (ones(ROWS * units), ones(ROWS * units));
    let (mut sums, mut scratch) = (FlowSums::default(), FlowScratch::default());
    sums.prepare(arithmetic, units, units, ROWS);
    let flows = Box::new(move || {
        let (gains, values) = (Matrix::new(&gains, ROWS, units, units), Matrix::new(&values, ROWS, units, units));
        sums.add(arithmetic, gains, values, &mut scratch);
    });

    let weights = ones(units * units);
    let mut packed = Packed::default();
    let pack = Box::new(move || {
        let weights = Matrix::new(&weights, units, units, units);
        packed.pack(arithmetic, weights);
        packed.pack_transposed(arithmetic, weights);
    });
    vec![
        KernelCase { name: format!("{set}: {ROWS}×{units} times {units}×{units}"), work: flops, run: product },
        KernelCase { name: format!("{set}: flows of {units}×{units} from {ROWS} rows"), work: flops, run: flows },
        KernelCase {
            name: format!("{set}: packing {units}×{units} both ways"),
            work: 2 * (units * units) as u64,
            run: pack,
        },
    ]
}

fn some_moves(units: usize) -> Moves {
    Moves { keep: vec![0.5; units], take: vec![0.25; units], add: vec![0.25; units] }
}

/// The product of `matrix_cases` with the largest term in the place of the sum.
fn max_case(isa: Isa, units: usize) -> KernelCase {
    let arithmetic = Arithmetic::new(isa, Precision::F32);
    let (left, weights) = (ones(ROWS * units), ones(units * units));
    let mut packed = Packed::default();
    packed.pack(arithmetic, Matrix::new(&weights, units, units, units));
    let (mut out, mut scratch) = (ones(ROWS * units), LeftScratch::default());
    let run = Box::new(move || {
        let to = MatrixMut::new(&mut out, ROWS, units, units);
        multiply_max(arithmetic, to, Matrix::new(&left, ROWS, units, units), &packed, &mut scratch);
    });
    let name = format!("{}: largest terms of {ROWS}×{units} times {units}×{units}", isa.name());
    KernelCase { name, work: 2 * (ROWS * units * units) as u64, run }
}

/// A row of a large table that missed 32 updates.
fn replay_case(isa: Isa, units: usize) -> KernelCase {
    const MISSED: usize = 32;
    let mut table = LazyTable::new(ParamId(0), 2);
    (0..MISSED).for_each(|_| table.updated(0.9, some_moves(units), std::iter::empty()));
    let (mut theta, mut flows) = (ones(2 * units), ones(2 * units));
    let run = Box::new(move || {
        flows.fill(1.0);
        let cells =
            Cells { theta: SharedSlice::new(&mut theta), flows: SharedSlice::new(&mut flows), average: None, units };
        // SAFETY: nobody else has these cells.
        unsafe { table.replay(isa, cells, &[1]) };
    });
    let name = format!("{}: replaying {MISSED} updates of a table's row of {units}", isa.name());
    KernelCase { name, work: (MISSED * units) as u64, run }
}

/// Flows and update of one row of a table.
fn move_case(isa: Isa, units: usize) -> KernelCase {
    let (mut theta, mut flows, segment, moves) = (ones(units), ones(units), ones(units), some_moves(units));
    let run = Box::new(move || add_and_move(isa, &mut theta, &mut flows, &segment, 0.5, &moves));
    KernelCase { name: format!("{}: updating a table's row of {units}", isa.name()), work: units as u64, run }
}
