//! Room for a few open files, kept for the moment when it is needed.
//!
//! A process may open only so many files, and others of its parts may use them up: connections, shards. What was
//! learned must be saved then all the same, so the folder of checkpoints holds a few descriptors and lets them go while
//! it writes.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

/// Files that are open at once while a checkpoint is written, synced and an old one removed, and some more for threads
/// that open something just then.
const DESCRIPTORS: usize = 8;

/// What is opened: it is there on every Unix, and costs nothing but the descriptor.
const PLACEHOLDER: &str = "/dev/null";

/// Open files that stand for those to come.
#[derive(Debug)]
pub(super) struct Reserve {
    held: Mutex<Vec<File>>,
}

impl Reserve {
    /// Takes as many descriptors as there are, up to what is wanted.
    pub fn new() -> Self {
        let reserve = Self { held: Mutex::default() };
        reserve.fill();
        reserve
    }

    /// Lets the descriptors go until the guard is dropped.
    pub fn release(&self) -> Released<'_> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Released { reserve: self }
    }

    fn fill(&self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        while held.len() < DESCRIPTORS
            && let Ok(file) = File::open(PLACEHOLDER)
        {
            held.push(file);
        }
    }
}

/// As long as this lives, the reserve is free to be used.
pub(super) struct Released<'a> {
    reserve: &'a Reserve,
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.reserve.fill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn what_was_let_go_is_taken_back() {
        let reserve = Reserve::new();
        let held = || reserve.held.lock().unwrap().len();
        assert_eq!(held(), DESCRIPTORS);
        let released = reserve.release();
        assert_eq!(held(), 0);
        drop(released);
        assert_eq!(held(), DESCRIPTORS);
    }
}
