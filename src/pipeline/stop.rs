//! Stopping a run from outside: finish the update, write a checkpoint, end well.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// A request to stop, shared by whoever may ask for it and the run that looks at it between two batches.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Whether, how to tell, and when a signal asked first.
    inner: Arc<(AtomicBool, Notify, OnceLock<Instant>)>,
}

/// Signals that come so shortly after the first are one request.
const TOGETHER: Duration = Duration::from_millis(200);

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

    /// Returns true if somebody asked.
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

    /// Asks on the first SIGINT, SIGTERM or SIGHUP; a second SIGINT or SIGTERM ends the process at once. One that
    /// follows in `TOGETHER` is the same request: a terminal that is closed sends SIGHUP twice, and a service manager
    /// SIGTERM and SIGHUP.
    #[cfg(unix)]
    pub fn on_signals(&self) -> crate::error::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        // The exit code of a second one is what a shell says of a process that the signal has ended.
        let listened = [
            (SignalKind::interrupt(), Some(130)),
            (SignalKind::terminate(), Some(143)),
            (SignalKind::hangup(), None), // nobody sends it because he does not want to wait
        ];
        for (kind, code) in listened {
            if kind == SignalKind::hangup() && is_ignored(kind) {
                continue; // `nohup` means that the run outlives its terminal
            }
            let mut signals = signal(kind).map_err(|e| crate::error::Error::io("cannot listen for signals", &e))?;
            let stop = self.clone();
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    stop.ask_or_exit(code);
                }
            });
        }
        Ok(())
    }

    fn ask_or_exit(&self, code: Option<i32>) {
        let asked = *self.inner.2.get_or_init(Instant::now);
        match code {
            // Asked twice: the user does not want to wait.
            Some(code) if self.is_requested() && asked.elapsed() > TOGETHER => std::process::exit(code),
            _ if self.is_requested() => {}
            _ => {
                let _ = writeln!(std::io::stderr(), "stopping after this update; again to quit at once");
                self.request();
            }
        }
    }

    /// Asks on the first Ctrl-C; a second one ends the process at once.
    #[cfg(not(unix))]
    pub fn on_signals(&self) -> crate::error::Result<()> {
        let stop = self.clone();
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                stop.ask_or_exit(Some(130));
            }
        });
        Ok(())
    }
}

/// Lets a file that may grow no more (`ulimit -f`) be a write that fails, as on a full disk: SIGXFSZ would end the
/// process without a last checkpoint. Needs a running tokio, and lasts.
pub fn survive_file_limits() {
    // A handler that does nothing, not `SIG_IGN`, which would need `unsafe`; the write fails with EFBIG either way.
    #[cfg(unix)]
    let _ = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::from_raw(libc::SIGXFSZ));
}

/// Returns true if whoever started the process let it ignore the signal. Only Linux tells without `unsafe`.
#[cfg(unix)]
fn is_ignored(signal: tokio::signal::unix::SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (signal.as_raw_value() - 1) & 1 == 1
}
