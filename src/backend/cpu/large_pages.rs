//! Large buffers in large pages.
//!
//! A vocabulary of 50,000 words has its rows on 12,000 pages of 4 KiB, more than a processor remembers the places of;
//! looking one up takes longer than reading the row, in a virtual machine most of all. Pages of 2 MiB are few. Linux
//! hands them out to everybody, to nobody, or to those who ask, and this asks. Where they cannot be had nothing is
//! lost.

/// Room for `len` numbers, in large pages if they are many. Asked for before the first touch, when pages are chosen.
pub(super) fn reserved<T>(len: usize) -> Vec<T> {
    let mut memory = Vec::with_capacity(len);
    ask(&mut memory);
    memory
}

/// So many zeros.
pub(super) fn zeros(len: usize) -> Vec<f32> {
    // The pages are the system's, which has not touched them yet.
    let mut memory = vec![0.0; len];
    ask(&mut memory);
    memory
}

/// A copy.
pub(super) fn copied<T: Copy>(values: &[T]) -> Vec<T> {
    let mut copy = reserved(values.len());
    copy.extend_from_slice(values);
    copy
}

/// Smaller buffers are left alone: most of their pages would not be whole.
const LARGE_BYTES: usize = 4 << 20;

/// Asks for large pages for all that a vector has room for.
#[cfg(target_os = "linux")]
fn ask<T>(memory: &mut Vec<T>) {
    const PAGE: usize = 4096;
    let bytes = memory.capacity() * size_of::<T>();
    let start = memory.as_mut_ptr().cast::<u8>();
    let first = start.align_offset(PAGE);
    if bytes < LARGE_BYTES || first >= bytes {
        return;
    }
    // SAFETY: whole pages inside memory that this vector owns, up to the end of the last one that lies in it. The
    // advice changes how the kernel keeps them, never what is in them, and that it may be refused is no harm.
    unsafe { libc::madvise(start.add(first).cast(), (bytes - first) / PAGE * PAGE, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn ask<T>(_: &mut Vec<T>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_and_small_vectors_are_what_they_would_be() {
        for len in [0, 1, 1000, LARGE_BYTES / 4 + 17] {
            let values: Vec<u32> = (0..len as u32).collect();
            assert_eq!(copied(&values), values);
            assert!(reserved::<f32>(len).capacity() >= len);
            assert_eq!(zeros(len), vec![0.0; len]);
        }
    }

    /// Where the kernel gives them to those who ask, they are there.
    #[test]
    #[cfg(target_os = "linux")]
    fn large_pages_come_to_whoever_asks() {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        if !read("/sys/kernel/mm/transparent_hugepage/enabled").contains("[madvise]") {
            eprintln!("skipped: this kernel does not hand out large pages on request");
            return;
        }
        let numbers = copied(&vec![1u8; 16 * LARGE_BYTES]);
        let start = format!("{:x}", numbers.as_ptr().addr().next_multiple_of(4096));
        let maps = read("/proc/self/smaps");
        let own = maps.split(&format!("\n{start}-")).nth(1).expect("a mapping of its own");
        let flags = own.lines().find(|line| line.starts_with("VmFlags:")).expect("flags of a mapping");
        assert!(flags.split(' ').any(|flag| flag == "hg"), "not asked for: {flags}");
    }
}
