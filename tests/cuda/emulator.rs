//! The emulated CUDA driver is there for the tests that ask for it, and for no others.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::common::emulator;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

const NOW: c_int = 2;

/// A function without arguments but one number, by name.
fn call(library: *mut c_void, name: &CStr, argument: u32) -> c_int {
    // SAFETY: `library` was opened by the caller, and both functions called here take one unsigned number.
    unsafe {
        let function = dlsym(library, name.as_ptr());
        assert!(!function.is_null(), "{name:?} is not exported");
        std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> c_int>(function)(argument)
    }
}

fn open(name: &CStr) -> *mut c_void {
    // SAFETY: opening a library runs its initialisers; the emulator has none, and a real driver is made for it.
    unsafe { dlopen(name.as_ptr(), NOW) }
}

#[test]
fn a_test_does_not_find_the_emulator_by_itself() {
    if !emulator::has_real_driver() {
        assert!(open(c"libcuda.so").is_null());
    }
}

#[test]
fn a_test_that_asks_gets_the_emulator() {
    emulator::within_emulator("emulator::a_test_that_asks_gets_the_emulator", &[], || {
        let cuda = open(c"libcuda.so");
        assert!(!cuda.is_null());
        assert_eq!(call(cuda, c"cuInit", 0), 0);
        assert_eq!(
            (open(c"libcuda.so.1"), open(c"libnccl.so"), open(c"libnccl.so.2")),
            (cuda, cuda, cuda),
            "one state for all"
        );
    });
}

#[test]
fn settings_reach_the_emulator() {
    emulator::within_emulator("emulator::settings_reach_the_emulator", &[("DEVICES", "0")], || {
        assert_eq!(call(open(c"libcuda.so"), c"cuInit", 0), 100, "CUDA_ERROR_NO_DEVICE");
    });
}

#[test]
fn a_failure_inside_is_a_failure_outside() {
    emulator::within_fails("emulator::a_failure_inside_is_a_failure_outside", &[], "must be seen", || {
        panic!("this must be seen")
    });
}
