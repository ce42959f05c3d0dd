//! Everything that is of x86-64: what the processor has, its kernels, and how plain loops are compiled for it.

pub(super) mod amx;
pub(super) mod avx2;
pub(super) mod avx512;
mod tile;

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::{IsaCap, Level};

/// The best level up to a cap.
pub(super) fn detect(cap: IsaCap) -> Level {
    let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let has_avx512 = has_avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match cap {
        IsaCap::Scalar => Level::Scalar,
        _ if has_avx512 && cap >= IsaCap::Amx && amx::is_usable() => Level::Amx,
        _ if has_avx512 && cap >= IsaCap::Avx512 => Level::Avx512,
        _ if has_avx2 => Level::Avx2,
        _ => Level::Scalar,
    }
}

/// See [`prefetch`](super::prefetch).
#[inline(always)]
pub(super) fn prefetch(row: &[f32]) {
    for line in row.chunks(16) {
        // SAFETY: a prefetch reads nothing that the program could see, and SSE is part of the architecture.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// Compiles a function once for every instruction set and calls the one that is asked for. The body is an
/// `#[inline(always)]` function of plain Rust, which takes on the features of whoever it is inlined into.
macro_rules! multiversion {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $body:path;
    )*) => {$(
        $(#[$meta])*
        #[allow(clippy::too_many_arguments, reason = "the body's own, and the instruction set")]
        $vis fn $name(isa: $crate::backend::cpu::Isa, $($arg: $type),*) $(-> $result)? {
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "the body's own")]
            fn avx2($($arg: $type),*) $(-> $result)? {
                $body($($arg),*)
            }
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            #[allow(clippy::too_many_arguments, reason = "the body's own")]
            fn avx512($($arg: $type),*) $(-> $result)? {
                $body($($arg),*)
            }
            use $crate::backend::cpu::kernels::Level;
            match isa.level() {
                // SAFETY: an `Isa` of this level exists only where `detect` has found its features.
                Level::Avx512 | Level::Amx => unsafe { avx512($($arg),*) },
                // SAFETY: `detect` gives this level only where it has found AVX2 and FMA.
                Level::Avx2 => unsafe { avx2($($arg),*) },
                Level::Scalar => $body($($arg),*),
            }
        }
    )*};
}
pub(in crate::backend::cpu) use multiversion;
