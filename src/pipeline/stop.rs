//! Stopping a run from outside: finish the update, write a checkpoint, end well.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A request to stop, shared by whoever may ask for it and the run that looks at it between two batches.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    inner: Arc<(AtomicBool, Notify)>,
}

impl Stop {
    /// Nobody has asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the run to stop.
    pub fn request(&self) {
        self.inner.0.store(true, Ordering::SeqCst);
        self.inner.1.notify_waiters();
    }

    /// Whether somebody asked.
    pub fn is_requested(&self) -> bool {
        self.inner.0.load(Ordering::SeqCst)
    }

    /// Waits until somebody asks.
    pub async fn requested(&self) {
        loop {
            let woken = self.inner.1.notified(); // listen before looking
            if self.is_requested() {
                return;
            }
            woken.await;
        }
    }

    /// Asks on the first SIGINT or SIGTERM; a second one ends the process at once.
    #[cfg(unix)]
    pub fn on_signals(&self) -> crate::error::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |e| crate::error::Error::io("cannot listen for signals", &e);
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let stop = self.clone();
        tokio::spawn(async move {
            loop {
                let code = tokio::select! {
                    _ = interrupt.recv() => 130,
                    _ = terminate.recv() => 143,
                };
                if stop.is_requested() {
                    std::process::exit(code); // asked twice: the user does not want to wait
                }
                let _ = writeln!(std::io::stderr(), "stopping after this update; again to quit at once");
                stop.request();
            }
        });
        Ok(())
    }

    /// Asks on the first Ctrl-C; a second one ends the process at once.
    #[cfg(not(unix))]
    pub fn on_signals(&self) -> crate::error::Result<()> {
        let stop = self.clone();
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                if stop.is_requested() {
                    std::process::exit(130);
                }
                let _ = writeln!(std::io::stderr(), "stopping after this update; again to quit at once");
                stop.request();
            }
        });
        Ok(())
    }
}
