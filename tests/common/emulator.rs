//! Gives a child process the emulated CUDA driver of `kernels/emulator`.
//!
//! `cargo test` builds the emulator as `target/…/deps/libcuda_emulator.so`, because it is a dev-dependency. It does not
//! have the name that `cudarc` looks for: `deps` is on the library path of every test, and there it would be found by
//! all of them. [`folder`] makes a folder with links by the right names (`libcuda.so`, `libcuda.so.1`, `libnccl.so`,
//! `libnccl.so.2`); a process that starts with this folder in front of its `LD_LIBRARY_PATH` loads the emulator.
//!
//! The dynamic loader reads that variable once, when a process starts. A test therefore either drives a child:
//!
//! ```ignore
//! let mut command = Command::new(env!("CARGO_BIN_EXE_anemone"));
//! emulator::attach(&mut command).env("ANEMONE_EMULATOR_STREAMS", "lazy");
//! ```
//!
//! or runs itself again under the emulator, and lets the copy do the work:
//!
//! ```ignore
//! #[test]
//! fn a_step_on_the_device_agrees_with_the_cpu() {
//!     emulator::within("a_step_on_the_device_agrees_with_the_cpu", &[("STREAMS", "lazy")], || { … });
//! }
//! ```
//!
//! What orders streams by events runs in every mode that streams have: [`within_each`] with [`STREAM_MODES`].
//!
//! The settings are described in `kernels/emulator/README.md`.
//!
//! On a machine with a GPU, `ANEMONE_TEST_REAL_DRIVER=1` makes [`within`] leave the emulator out: the copy finds the
//! machine's own driver, as any program does. Tests that need what no driver offers (no device, a failing allocation)
//! stay with the emulator. `kernels/first-day` runs them so.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Asks for the machine's own driver.
const REAL_DRIVER: &str = "ANEMONE_TEST_REAL_DRIVER";

/// Set in a process that `within` has started.
const INSIDE: &str = "ANEMONE_TEST_INSIDE_EMULATOR";

/// All ways that streams of the emulator go: what they hide and what they find is in `kernels/emulator/README.md`.
pub const STREAM_MODES: [&str; 3] = ["eager", "lazy", "others-first"];

/// The folder with the links, for `LD_LIBRARY_PATH`.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = library().with_file_name("emulator-links");
        std::fs::create_dir_all(&folder).expect("a folder beside the emulator");
        for name in ["libcuda.so", "libcuda.so.1", "libnccl.so", "libnccl.so.2"] {
            // Relative and always the same, so that it does not matter which of several processes makes it.
            match std::os::unix::fs::symlink("../libcuda_emulator.so", folder.join(name)) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => panic!("{}: {name}: {e}", folder.display()),
                _ => {}
            }
        }
        folder
    })
}

/// The emulator as `cargo` built it: in `deps`, where the test's own executable lies.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test has an executable");
    let deps = test.parent().expect("it lies in a folder");
    for folder in [deps, &deps.join("deps"), deps.parent().unwrap_or(deps)] {
        let library = folder.join("libcuda_emulator.so");
        if library.exists() {
            return library;
        }
    }
    panic!("{}: no libcuda_emulator.so; `cargo test` builds it with the tests", deps.display());
}

/// Makes a child load the emulator. All of its settings start from their defaults, whatever this process has.
pub fn attach(command: &mut Command) -> &mut Command {
    let mut paths = vec![folder().to_path_buf()];
    paths.extend(std::env::var_os("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ANEMONE_EMULATOR_") {
            command.env_remove(name);
        }
    }
    command.env("LD_LIBRARY_PATH", std::env::join_paths(paths).expect("no colon in a path"))
}

/// Makes a child find no emulator. A real driver in the system's own folders cannot be hidden: a test that needs a
/// machine without one should skip where [`has_real_driver`] is true.
pub fn detach(command: &mut Command) -> &mut Command {
    command.env_remove("LD_LIBRARY_PATH")
}

/// Returns true if the machine has a CUDA driver of its own.
pub fn has_real_driver() -> bool {
    Path::new("/proc/driver/nvidia/version").exists()
}

/// Runs `body` in a second process of this test executable, with the emulator and these settings (names without their
/// prefix `ANEMONE_EMULATOR_`). `test` is the full name of the calling test. Fails if the other process fails, with its
/// output.
///
/// Where the machine's own driver is asked for, the process has that one: unless there is a setting besides the order
/// of streams, which a real driver chooses itself.
pub fn within(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(REAL_DRIVER).is_none() || settings.iter().any(|(name, _)| *name != "STREAMS") {
        return within_emulator(test, settings, body);
    }
    if is_inside(test) {
        return body();
    }
    // A process of its own here too: after a failed launch a context is of no use to other tests.
    let output = again(test, Driver::Real);
    assert!(output.status.success(), "{test} on this machine's driver:\n{}", text(&output));
}

/// As [`within`], once for each way that streams may go. A real driver has its own way, and is asked once.
pub fn within_each(modes: &[&str], test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if is_inside(test) || std::env::var_os(REAL_DRIVER).is_some() && settings.is_empty() {
        return within(test, settings, body);
    }
    for mode in modes {
        let settings = [&[("STREAMS", *mode)], settings].concat();
        within_emulator(test, &settings, || unreachable!("done by the other process"));
    }
}

/// As [`within`], always with the emulator.
pub fn within_emulator(test: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if is_inside(test) {
        return body();
    }
    let output = again(test, Driver::Emulated(settings));
    assert!(output.status.success(), "{test} under the emulator with {settings:?}:\n{}", text(&output));
}

/// As [`within_emulator`], but the other process must fail, and say `report`: for deliberate mistakes that must be
/// found.
pub fn within_fails(test: &str, settings: &[(&str, &str)], report: &str, body: impl FnOnce()) {
    if is_inside(test) {
        return body();
    }
    let output = again(test, Driver::Emulated(settings));
    assert!(!output.status.success(), "{test} under the emulator with {settings:?} should have failed");
    let text = text(&output);
    assert!(text.contains(report), "{test}: no word of `{report}` in\n{text}");
}

/// What a process finds where a driver is looked for.
#[derive(Clone, Copy)]
enum Driver<'a> {
    Emulated(&'a [(&'a str, &'a str)]),
    Real,
}

fn is_inside(test: &str) -> bool {
    std::env::var_os(INSIDE).is_some_and(|inside| inside == test)
}

fn again(test: &str, driver: Driver<'_>) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("a test has an executable"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(INSIDE, test);
    if let Driver::Emulated(settings) = driver {
        attach(&mut command);
        command.envs(settings.iter().map(|(name, value)| (format!("ANEMONE_EMULATOR_{name}"), value)));
    }
    let output = command.output().expect("the test runs again");
    let ran = String::from_utf8_lossy(&output.stdout).contains("running 1 test");
    assert!(ran, "there is no test called {test}: its full name is needed, with its module");
    output
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
