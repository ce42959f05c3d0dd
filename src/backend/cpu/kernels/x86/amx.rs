//! AMX: eight tile registers and the instruction that multiplies bf16 tiles.
//!
//! The standard library has neither the intrinsics nor the detection in stable Rust, so both are here. Nothing about
//! the tiles is asked of the processor: some hypervisors answer with zeros where their sizes should be (CPUID leaf
//! 0x1D), so palette 1, which every AMX processor has, is taken as known, and a product is computed before any is
//! relied on. This file was written on a machine without AMX. What has been run is its driver (`tile_product`), on a
//! model.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

use crate::backend::cpu::kernels::tile_product::{TileUnit, self_test};

/// Whether tiles can be used: the processor has them, the system saves and has granted them, and they compute.
pub(super) fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| {
        // SAFETY: what comes before has found the instructions, and that they will not be refused.
        has_tiles() && saves_tiles() && ask_for_tiles() && unsafe { self_test::<Amx>() }
    })
}

/// CPUID 7.0, EDX: bit 22 is AMX-BF16, bit 24 AMX-TILE.
fn has_tiles() -> bool {
    const BITS: u32 = 1 << 22 | 1 << 24;
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & BITS == BITS
}

/// XCR0: the system saves the tiles' configuration (bit 17) and data (bit 18) when threads take turns.
fn saves_tiles() -> bool {
    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: register 0 exists wherever the instruction does.
        unsafe { _xgetbv(0) }
    }
    const BITS: u64 = 1 << 17 | 1 << 18;
    // SAFETY: the instruction is there, and the system has enabled it.
    is_x86_feature_detected!("xsave") && unsafe { xcr0() } & BITS == BITS
}

/// Linux gives a process tile data only if it asks, because tiles make the frames of signals larger: all threads of the
/// process then have them. It refuses where a thread's signal stack is too small.
#[cfg(target_os = "linux")]
fn ask_for_tiles() -> bool {
    const ARCH_PRCTL: u64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const TILE_DATA: u64 = 18;
    let result: i64;
    // SAFETY: a system call with two numbers, which touches no memory of ours; it clobbers rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Elsewhere nobody has tried.
#[cfg(not(target_os = "linux"))]
fn ask_for_tiles() -> bool {
    false
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row, by tile; there are eight.
    row_bytes: [u16; 16],
    /// Rows, by tile.
    rows: [u8; 16],
}

const _: () = assert!(size_of::<TileConfig>() == 64);

/// Eight tiles of 16 rows of 64 bytes.
static CONFIG: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// The tile registers of this thread, from `begin` until it is dropped.
///
/// They keep their contents from one `asm!` block to the next: the compiler, not told that there is AMX, never uses
/// them, blocks that are not `pure` keep their order, and whoever holds this calls nothing else in between that does.
pub(in crate::backend::cpu::kernels) struct Amx(());

impl TileUnit for Amx {
    unsafe fn begin() -> Self {
        // SAFETY: the caller has found the instruction. It reads 64 bytes, the size of `CONFIG`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, preserves_flags)) };
        Self(())
    }

    #[inline(always)]
    unsafe fn zero<const T: u8>(&mut self) {
        // SAFETY: tiles are configured, because `self` is.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nostack, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn load<const T: u8>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: tiles are configured, because `self` is; the caller has 16 rows of 64 bytes at `from`.
        unsafe {
            asm!(
                "tileloadd tmm{t}, [{from} + 1*{stride}]",
                t = const T, from = in(reg) from, stride = in(reg) stride,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn dot<const C: u8, const A: u8, const B: u8>(&mut self) {
        // SAFETY: tiles are configured, because `self` is, with shapes that fit each other.
        unsafe {
            asm!(
                "tdpbf16ps tmm{c}, tmm{a}, tmm{b}",
                c = const C, a = const A, b = const B,
                options(nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn store<const T: u8>(&self, to: *mut u8, stride: usize) {
        // SAFETY: tiles are configured, because `self` is; the caller has room for 16 rows of 64 bytes at `to`.
        unsafe {
            asm!(
                "tilestored [{to} + 1*{stride}], tmm{t}",
                t = const T, to = in(reg) to, stride = in(reg) stride,
                options(nostack, preserves_flags),
            );
        }
    }
}

impl Drop for Amx {
    fn drop(&mut self) {
        // SAFETY: the instruction is there, because `self` is. Tiles out of use need not be saved between threads.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says which of the steps refused, so that a log of a run on another machine tells.
    #[test]
    fn tiles_are_used_only_where_every_step_of_the_probe_agrees() {
        let (has, saves) = (has_tiles(), saves_tiles());
        println!("amx: processor {has}, system {saves}, usable {}", is_usable());
        assert!(has && saves || !is_usable());
    }
}
