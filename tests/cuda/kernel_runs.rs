//! Runs the tests of `kernels` in processes that have the emulated driver: in both orders of blocks, with counters, and
//! on kernels with deliberate mistakes.

use std::path::Path;
use std::process::Command;

use crate::common::emulator;
use crate::kernels::{INSIDE, PTX, kernels_ptx};

/// Runs the tests of `kernels` whose names have `filter` in them under the emulator.
fn run_under_emulator(filter: &str, settings: &[(&str, &str)]) {
    if std::env::var_os(INSIDE).is_none() {
        let output = command(filter, settings).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(!text.contains(" 0 passed"), "nothing is called {filter}");
    }
}

fn command(filter: &str, settings: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    emulator::attach(command.args([filter, "--test-threads=2"])).env(INSIDE, "1");
    command.envs(settings.iter().map(|(name, value)| (format!("ANEMONE_EMULATOR_{name}"), value)));
    command
}

/// PTX with every line changed that can be.
fn changed(text: &str, change: impl Fn(&str) -> Option<String>) -> String {
    let mut changes = 0;
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let new = change(line);
        changes += usize::from(new.is_some());
        lines.push(new.unwrap_or_else(|| line.to_string()));
    }
    assert!(changes > 0, "there is nothing to change");
    lines.join("\n") + "\n"
}

fn without(instruction: &str) -> impl Fn(&str) -> Option<String> {
    move |line| line.contains(instruction).then(String::new)
}

/// Exchanges the first two registers of the left operand of every mma.
fn swapped(line: &str) -> Option<String> {
    let (start, rest) = line.split_once("}, {").filter(|_| line.contains("mma.sync"))?;
    let mut registers: Vec<&str> = rest.splitn(3, ',').collect();
    registers.swap(0, 1);
    Some(format!("{start}}}, {{{}", registers.join(",")))
}

/// Copies 16 bytes where fewer exist.
fn unbounded(line: &str) -> Option<String> {
    line.contains("cp.async.cg").then(|| line.split(", 16, ").next().unwrap_or(line).to_string() + ", 16;")
}

/// One thread too many.
fn off_by_one(line: &str) -> Option<String> {
    line.contains("setp.ge.s32").then(|| line.replace("setp.ge.s32", "setp.gt.s32"))
}

/// A sum where there should be a difference.
fn added(line: &str) -> Option<String> {
    line.contains("sub.f32").then(|| line.replace("sub.f32", "add.f32"))
}

#[test]
fn deliberate_mistakes_are_noticed() {
    if std::env::var_os(INSIDE).is_some() {
        return;
    }
    type Change = Box<dyn Fn(&str) -> Option<String>>;
    let mutants: [(&str, &str, Change, &str); 12] = [
        ("barrier removed", "sum_forward", Box::new(without("bar.sync")), "kernels::sums::sums"),
        ("barrier removed", "sum_backward", Box::new(without("bar.sync")), "kernels::sums::sums"),
        ("barrier of a warp removed", "product", Box::new(without("bar.warp.sync")), "kernels::products::products"),
        ("barrier removed", "report", Box::new(without("bar.sync")), "kernels::products::typical_root"),
        ("wait for copies removed", "sum_flows", Box::new(without("cp.async.wait_group")), "kernels::sums::sums"),
        ("end of a matrix ignored", "sum_forward", Box::new(unbounded), "kernels::sums::sums"),
        ("registers of mma exchanged", "sum_forward", Box::new(swapped), "kernels::sums::sums"),
        ("registers of mma exchanged", "sum_flows", Box::new(swapped), "kernels::sums::sums"),
        ("index off by one", "input", Box::new(off_by_one), "kernels::inputs::"),
        ("index off by one", "update", Box::new(off_by_one), "kernels::inputs::"),
        ("index off by one", "average", Box::new(off_by_one), "kernels::averages::"),
        ("sum for a difference", "average", Box::new(added), "kernels::averages::"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (what, file, change, filter) in mutants {
        for entry in std::fs::read_dir(kernels_ptx()).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        let path = folder.path().join(format!("{file}.ptx"));
        std::fs::write(&path, changed(&std::fs::read_to_string(&path).unwrap(), change)).unwrap();
        let output = command(filter, &[]).env(PTX, folder.path()).output().unwrap();
        assert!(!output.status.success(), "{what} in {file}: not noticed");
        // Not because it could not be loaded.
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains("INVALID_PTX"), "{what} in {file}: is no PTX\n{text}");
    }
}

#[test]
fn kernels_agree_with_double_precision() {
    run_under_emulator("kernels::", &[]);
}

#[test]
fn blocks_and_warps_may_run_in_any_order() {
    run_under_emulator("kernels::", &[("REVERSE", "1")]);
}

#[test]
fn counters_are_within_budget() {
    if std::env::var_os(INSIDE).is_some() {
        return;
    }
    // Counters are written when a process ends.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("counters.json");
    run_under_emulator("::typical", &[("COUNTERS", file.to_str().unwrap())]);
    let text = std::fs::read_to_string(&file).unwrap();
    let counters: serde_json::Value = serde_json::from_str(&text).unwrap();
    let budgets = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/budgets.toml")).unwrap();
    let budgets: toml::Table = budgets.parse().unwrap();
    let mut problems = Vec::new();
    for (name, budget) in budgets["kernel"].as_table().unwrap() {
        let Some(counted) = counters["kernels"].get(name) else {
            problems.push(format!("{name}: no typical test launches it"));
            continue;
        };
        let allowed = |what: &str| budget.get(what).unwrap_or(&budgets["default"][what]).as_float().unwrap();
        for memory in ["global_load", "global_store"] {
            let efficiency = counted[memory]["efficiency"].as_f64().unwrap();
            if efficiency < allowed("sectors") {
                problems.push(format!("{name}: {memory} uses {efficiency} of its sectors, not {}", allowed("sectors")));
            }
        }
        for memory in ["shared_load", "shared_store"] {
            let factor = counted[memory]["conflict_factor"].as_f64().unwrap();
            if factor > allowed("banks") {
                problems.push(format!(
                    "{name}: {memory} takes {factor} passes instead of one, more than {}",
                    allowed("banks")
                ));
            }
        }
        if counted["local"].as_u64() != Some(0) {
            problems.push(format!("{name}: uses local memory"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
