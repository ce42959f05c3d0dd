//! What the command says when the system has no memory left.
//!
//! Sizes that a file or a pipeline declares are checked before anything is allocated, so this is for limits that nobody
//! declared: a container, a batch system, another program. The allocator is the system's; it remembers what a thread
//! was refused. Who can go on without does; otherwise Rust aborts, and the handler of SIGABRT, which runs in the same
//! thread, ends the process with one sentence and exit code 1. Of several ranks it names its own, for the launcher
//! shows what all of them say.
//!
//! The handler does nothing that a signal handler must not: it reads numbers, writes bytes and exits. Installed by
//! `main`, told of ranks by `join`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// The most bytes that this thread was refused at once; 0 if none were. What comes after it changes nothing: before
    /// it aborts, Rust may ask for a little more, for a backtrace. Without a destructor and without a first value to
    /// compute, so that to read and to set it allocates nothing.
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// The system's memory.
#[derive(Debug)]
pub struct SystemMemory;

// SAFETY: every request goes to the system's allocator as it came, and what that returns is returned.
unsafe impl GlobalAlloc for SystemMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        noted(layout.size(), unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
        noted(layout.size(), unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`; the memory came from `System`, as all of ours does.
        noted(size, unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`; the memory came from `System`, as all of ours does.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn noted(bytes: usize, memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        let _ends = REFUSED.try_with(|most| most.set(most.get().max(bytes))); // a thread that is ending says nothing
    }
    memory
}

#[cfg(unix)]
pub(super) use at_abort::{name_rank, say_so};

#[cfg(not(unix))]
pub(super) fn say_so() {}

#[cfg(unix)]
mod at_abort {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::REFUSED;

    /// One more than the number of this rank; 0 where there is one process.
    static RANK: AtomicUsize = AtomicUsize::new(0);

    /// This process is one of several ranks. Some MPI libraries handle the signal, too, from when they are joined on.
    #[cfg(feature = "mpi")]
    pub fn name_rank(rank: usize) {
        RANK.store(rank + 1, Ordering::Relaxed);
        say_so();
    }

    /// From now on a process that ends for want of memory says so.
    pub fn say_so() {
        // SAFETY: `sigaction` is plain data for which zeros are valid. `handle` has the signature of a plain handler
        // and keeps to what one may do (see there).
        unsafe {
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = handle as *const () as usize;
            ours.sa_flags = libc::SA_ONSTACK;
            libc::sigemptyset(&mut ours.sa_mask);
            libc::sigaction(libc::SIGABRT, &ours, std::ptr::null_mut());
        }
    }

    /// Runs in the thread that aborts. Where memory is not the reason it returns, and the process aborts.
    extern "C" fn handle(_signal: libc::c_int) {
        let refused = REFUSED.try_with(std::cell::Cell::get).unwrap_or(0);
        if refused == 0 {
            return;
        }
        let mut line = Line::default();
        line.text("error: ");
        if let Some(rank) = RANK.load(Ordering::Relaxed).checked_sub(1) {
            line.text("rank ");
            line.number(rank);
            line.text(": ");
        }
        line.text("no memory for ");
        line.number(refused);
        line.text(" more bytes; `anemone check` says what a pipeline takes: a smaller pipeline.memory, batch.rows or ");
        line.text("circuit takes less\n");
        // SAFETY: writes bytes of a buffer that is there, and ends the process; both may be called in a handler.
        unsafe {
            libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len);
            libc::_exit(1)
        }
    }

    /// A line that is made without allocating. What does not fit is left out.
    pub(super) struct Line {
        pub bytes: [u8; 256],
        pub len: usize,
    }

    impl Default for Line {
        fn default() -> Self {
            Self { bytes: [0; 256], len: 0 }
        }
    }

    impl Line {
        pub fn text(&mut self, text: &str) {
            for &byte in text.as_bytes() {
                self.push(byte);
            }
        }

        pub fn number(&mut self, number: usize) {
            let mut power = 1;
            while number / power >= 10 {
                power *= 10;
            }
            while power > 0 {
                self.push(b'0' + (number / power % 10) as u8);
                power /= 10;
            }
        }

        fn push(&mut self, byte: u8) {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
                self.len += 1;
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::at_abort::Line;

    #[test]
    fn a_line_has_its_numbers_in_digits_and_ends_where_there_is_no_room() {
        for number in [0, 7, 10, 999, 1_000, 40_960_000, usize::MAX] {
            let mut line = Line::default();
            line.text("n=");
            line.number(number);
            assert_eq!(&line.bytes[..line.len], format!("n={number}").as_bytes());
        }
        let mut line = Line::default();
        line.text(&"x".repeat(300));
        assert_eq!((line.len, line.bytes), (256, [b'x'; 256]));
    }
}
