//! The exported functions of the driver, by the names and signatures of `cuda.h`.
//!
//! Each takes the one lock, finds the current context of its thread and calls [`System`]. Nothing unwinds into C: a
//! panic becomes `CUDA_ERROR_UNKNOWN`. Pointers are followed only where the driver's contract says they are good.

pub mod device;
pub mod event;
pub mod memory;
pub mod module;
pub mod stream;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::result::Code;
use crate::state::{Handle, System};
use crate::stream::Progress;

/// The shared library's system.
static SYSTEM: OnceLock<Mutex<System>> = OnceLock::new();
/// Rung after every call: a collective may have got its last rank.
static WAKE: Condvar = Condvar::new();

thread_local! {
    /// The device of this thread's current context, from 1; 0 for none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The system, made from the environment the first time.
pub(crate) fn system() -> MutexGuard<'static, System> {
    let mutex = SYSTEM.get_or_init(|| {
        // SAFETY: `at_exit` is a plain function that lives as long as this library, which is never unloaded before
        // exit.
        unsafe { atexit(at_exit) };
        Mutex::new(System::new(Config::from_env()))
    });
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" {
    /// Of the C library.
    fn atexit(function: extern "C" fn()) -> i32;
}

extern "C" fn at_exit() {
    let _ = catch_unwind(|| {
        // Not `lock`: a thread may have ended the process while it held it.
        if let Some(system) = SYSTEM.get().and_then(|m| m.try_lock().ok()) {
            system.write_counters();
        }
    });
}

/// A call that answers at once.
pub(crate) fn call(go: impl FnOnce(&mut System) -> Result<(), Code>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(|| go(&mut system())));
    WAKE.notify_all();
    number(result.unwrap_or(Err(Code::Unknown)))
}

/// A call that waits until work is done. `go` says what is wanted and is asked again while a collective lacks a rank.
pub(crate) fn call_waiting(mut go: impl FnMut(&mut System) -> Result<Progress, Code>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut system = system();
        let start = Instant::now();
        loop {
            let progress = go(&mut system)?;
            WAKE.notify_all();
            if progress == Progress::Done {
                return Ok(());
            }
            if start.elapsed().as_secs() >= system.config.wait_seconds {
                system.report("a collective waits for a rank that never calls it");
                return Err(Code::LaunchTimeout);
            }
            let waited = WAKE.wait_timeout(system, Duration::from_millis(100));
            system = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }));
    number(result.unwrap_or(Err(Code::Unknown)))
}

fn number(result: Result<(), Code>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(code) => code as i32,
    }
}

/// The device of the current context, if it is in order.
pub(crate) fn current(system: &System) -> Result<usize, Code> {
    let device = CURRENT.get().checked_sub(1).ok_or(Code::InvalidContext)?;
    system.status(device)?;
    Ok(device)
}

/// The stream a handle means: 0, 1 and 2 are names of the default one.
pub(crate) fn stream_of(system: &System, stream: Handle) -> Result<Handle, Code> {
    if stream <= 2 {
        return Ok(system.devices[current(system)?].default_stream);
    }
    let device = system.live_stream(stream)?.device;
    system.status(device)?;
    Ok(stream)
}

/// Writes through a pointer that C gave us; null is an invalid value.
///
/// # Safety
/// `to` is null or good for a write.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code::InvalidValue);
    }
    // SAFETY: not null, and the caller promises the rest.
    unsafe { to.write(value) };
    Ok(())
}
