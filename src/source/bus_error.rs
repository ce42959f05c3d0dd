//! A mapped file that loses a part of itself is an error, not the end of the process.
//!
//! Touching a page of a mapping that the file no longer has, or that the disk cannot deliver, raises SIGBUS. No check
//! before a read can rule that out, because the file may become shorter at any moment. So the signal is handled: where
//! the address lies in one of our mappings, pages of zeros are put over the rest of that mapping and the mapping is
//! marked as lost; the read continues, and its caller asks [`Region::is_lost`] afterwards and discards what it got. Any
//! other address goes to the handler that was installed before.
//!
//! The handler does nothing that a signal handler must not: it reads atomics, and makes one system call. Regions are
//! never freed and never reused, so that it cannot see half of one and half of another. Used by `mapped`.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

/// A mapping of a file.
#[derive(Debug)]
pub(super) struct Region {
    /// Its first address; `usize::MAX` once it is no mapping any more.
    start: AtomicUsize,
    /// The address after its last page.
    end: usize,
    lost: AtomicBool,
    /// The region that was watched before this one.
    next: AtomicPtr<Region>,
}

/// All regions, the latest first.
static REGIONS: AtomicPtr<Region> = AtomicPtr::new(std::ptr::null_mut());

/// Set before the handler is, which cannot ask.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The handler of the signal that was installed before.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

impl Region {
    /// Watches a mapping from now on. A few bytes per mapping stay for good.
    pub fn watch(map: &[u8]) -> &'static Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let start = map.as_ptr() as usize;
        let end = start + map.len().next_multiple_of(PAGE_BYTES.load(Ordering::Relaxed).max(1));
        let region = Box::leak(Box::new(Self {
            start: AtomicUsize::new(start),
            end,
            lost: AtomicBool::new(false),
            next: AtomicPtr::new(REGIONS.load(Ordering::Acquire)),
        }));
        let added = |first: *mut Self| {
            region.next.store(first, Ordering::Relaxed);
            Some(std::ptr::from_ref(region).cast_mut())
        };
        let _previous = REGIONS.fetch_update(Ordering::AcqRel, Ordering::Acquire, added);
        region
    }

    /// Returns true if a part of the mapping could not be read since it was watched.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// The mapping is about to go away.
    pub fn forget(&self) {
        self.start.store(usize::MAX, Ordering::Release);
    }
}

fn install() {
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_BYTES.store(usize::try_from(page).unwrap_or(4096), Ordering::Relaxed);
    // SAFETY: `sigaction` is plain data for which zeros are valid. `handle` has the signature that SA_SIGINFO asks for,
    // keeps to what a handler may do (see there), and is set on the alternative stack where the thread has one. The
    // handler before ours is kept before the first region exists, so that `handle` finds it.
    unsafe {
        let mut previous: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut previous) != 0 {
            return;
        }
        let _first = PREVIOUS.set(previous);
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = handle as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&mut ours.sa_mask);
        libc::sigaction(libc::SIGBUS, &ours, std::ptr::null_mut());
    }
}

/// Runs in the thread that touched the page, in the middle of the instruction that did.
extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid `info`; for SIGBUS it holds an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let mut region = REGIONS.load(Ordering::Acquire);
    // SAFETY: pointers in the list are null or come from `Box::leak` in `watch`: they stay valid until the process
    // ends.
    while let Some(found) = unsafe { region.as_ref() } {
        if (found.start.load(Ordering::Acquire)..found.end).contains(&address) {
            // Before the zeros: another thread that reads them without a signal must find it said.
            found.lost.store(true, Ordering::Release);
            if put_zeros(found, address) {
                return; // to the same instruction, which now reads zeros
            }
        }
        region = found.next.load(Ordering::Acquire);
    }
    hand_on(signal, info, context);
}

/// Puts pages of zeros over a mapping, from the page of an address to its end. Returns false if that failed.
fn put_zeros(region: &Region, address: usize) -> bool {
    let page = address & !(PAGE_BYTES.load(Ordering::Relaxed) - 1);
    // SAFETY: the range is a part of one of our mappings, which is still there: the thread that runs this reads from
    // it, and `forget` is called before it is unmapped. The mapping is read-only and its bytes may change at any time
    // (`Mapped::open`), so zeros are as good as what was there. `mmap` is a bare system call; `errno` is put back.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let mapped = libc::mmap(page as *mut _, region.end - page, libc::PROT_READ, flags, -1, 0);
        *errno = before;
        mapped != libc::MAP_FAILED
    }
}

/// Does what would have been done without us.
fn hand_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS.get();
    let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: the default action is always valid. The instruction is run again and ends the process.
        unsafe {
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &default, std::ptr::null_mut());
        }
        return;
    }
    let takes_info = previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: the kernel would have called this function in this way: its flags say which of the two signatures it has.
    unsafe {
        if takes_info {
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
            handler(signal);
        }
    }
}
