//! Whether a run is alive and ready: what `/healthz`, `/readyz` and a service manager's watchdog ask.
//!
//! One run a process, so this is one place, as the metrics are. The run says that it is alive between two batches,
//! while it waits for rows, and between two batches of held-out rows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A run that says nothing for so long is not well. Long enough for a batch that is far too large.
pub const SILENCE: Duration = Duration::from_secs(600);

/// What a run says of itself.
#[derive(Debug, Default)]
pub struct Health {
    begun: OnceLock<Instant>,
    /// Milliseconds after `begun`.
    last_alive: AtomicU64,
    is_ready: AtomicBool,
    status: Mutex<String>,
}

/// That of this process.
pub static HEALTH: Health = Health::new();

impl Health {
    const fn new() -> Self {
        Self {
            begun: OnceLock::new(),
            last_alive: AtomicU64::new(0),
            is_ready: AtomicBool::new(false),
            status: Mutex::new(String::new()),
        }
    }

    /// Says that the run is alive.
    pub fn alive(&self) {
        let begun = self.begun.get_or_init(Instant::now);
        self.last_alive.store(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Says that everything is open and built, or that this is over.
    pub fn set_ready(&self, is_ready: bool) {
        self.alive();
        self.is_ready.store(is_ready, Ordering::SeqCst);
    }

    /// Says what the run does, in a line.
    pub fn set_status(&self, status: String) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// What the run does, in a line.
    pub fn status(&self) -> String {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true while rows can be learned from.
    pub fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::SeqCst)
    }

    /// How long the run has said nothing. What is done before the first batch may take as long as it likes.
    pub fn silence(&self) -> Duration {
        let begun = self.begun.get_or_init(Instant::now);
        let last = Duration::from_millis(self.last_alive.load(Ordering::Relaxed));
        if self.is_ready() { begun.elapsed().saturating_sub(last) } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_that_is_ready_can_be_silent() {
        let health = Health::new();
        assert!(!health.is_ready());
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(health.silence(), Duration::ZERO, "nobody knows how long a tree takes");
        health.set_ready(true);
        std::thread::sleep(Duration::from_millis(30));
        assert!(health.silence() >= Duration::from_millis(25));
        health.alive();
        assert!(health.silence() < Duration::from_millis(25));
        health.set_status("7 rows".into());
        assert_eq!(health.status(), "7 rows");
    }
}
