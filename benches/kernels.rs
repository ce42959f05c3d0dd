//! The kernels of the CPU backend one by one: `cargo bench --bench kernels [-- FILTER]`.
//!
//! Answers which kernel is slow, on which instruction set. What a whole step makes of them is `anemone bench`.

use anemone::backend::cpu::{Isa, IsaCap, kernel_cases};
use criterion::{Criterion, Throughput};

fn kernels(criterion: &mut Criterion) {
    let mut seen = Vec::new();
    for (_, cap) in IsaCap::NAMES {
        let name = Isa::detect(cap).name();
        if seen.contains(&name) {
            continue; // a cap above what this machine has
        }
        seen.push(name);
        let mut group = criterion.benchmark_group("kernels");
        for mut case in kernel_cases(cap) {
            group.throughput(Throughput::Elements(case.work));
            group.bench_function(&case.name, |bencher| bencher.iter(|| (case.run)()));
        }
        group.finish();
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    kernels(&mut criterion);
    criterion.final_summary();
}
