//! What may be asked of a run from outside: to finish the update, write a checkpoint and end well, or to write one and
//! go on.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// A request to stop, or to write a checkpoint, shared by whoever may ask for it and the run that looks at it between
/// two batches.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    inner: Arc<Requests>,
}

#[derive(Debug, Default)]
struct Requests {
    stop: AtomicBool,
    checkpoint: AtomicBool,
    /// Wakes whoever waits for one of them.
    asked: Notify,
    /// When a signal asked for a stop first.
    signalled: OnceLock<Instant>,
    /// Whether nobody reads what it says.
    is_silent: AtomicBool,
}

/// Signals that come so shortly after the first are one request.
const TOGETHER: Duration = Duration::from_millis(200);

impl Stop {
    /// Nobody has asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on a signal is not commented on: another rank does.
    pub fn be_silent(&self) {
        self.inner.is_silent.store(true, Ordering::SeqCst);
    }

    /// Asks the run to stop.
    pub fn request(&self) {
        self.inner.stop.store(true, Ordering::SeqCst);
        self.inner.asked.notify_waiters();
    }

    /// Asks the run for a checkpoint at the next opportunity; it goes on.
    pub fn request_checkpoint(&self) {
        self.inner.checkpoint.store(true, Ordering::SeqCst);
        self.inner.asked.notify_waiters();
    }

    /// Returns true if somebody asked for a stop.
    pub fn is_requested(&self) -> bool {
        self.inner.stop.load(Ordering::SeqCst)
    }

    /// Waits until somebody asks for a stop.
    pub async fn requested(&self) {
        self.until(|| self.is_requested()).await;
    }

    /// Waits until somebody asks for a checkpoint, and takes the request.
    pub async fn checkpoint_requested(&self) {
        self.until(|| self.inner.checkpoint.swap(false, Ordering::SeqCst)).await;
    }

    async fn until(&self, is_asked: impl Fn() -> bool) {
        loop {
            let woken = self.inner.asked.notified(); // listen before looking
            if is_asked() {
                return;
            }
            woken.await;
        }
    }

    /// Stops on the first SIGINT or SIGTERM; a second one ends the process at once. One that follows in `TOGETHER` is
    /// the same request. SIGHUP asks for a checkpoint, as one does of a service; but where it comes because the
    /// terminal of the run was closed, it is a request to stop.
    #[cfg(unix)]
    pub fn on_signals(&self) -> crate::error::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let listen = |kind| signal(kind).map_err(|e| crate::error::Error::io("cannot listen for signals", &e));
        // The exit code of a second one is what a shell says of a process that the signal has ended.
        for (kind, code) in [(SignalKind::interrupt(), 130), (SignalKind::terminate(), 143)] {
            let (mut signals, stop) = (listen(kind)?, self.clone());
            tokio::spawn(async move {
                while signals.recv().await.is_some() {
                    stop.ask_or_exit(Some(code));
                }
            });
        }
        if is_ignored(SignalKind::hangup()) {
            return Ok(()); // `nohup` means that the run outlives its terminal
        }
        let had_terminal = has_terminal();
        let (mut signals, stop) = (listen(SignalKind::hangup())?, self.clone());
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                match had_terminal && !has_terminal() {
                    true => stop.ask_or_exit(None), // sent twice, and by nobody who does not want to wait
                    false => stop.request_checkpoint(),
                }
            }
        });
        Ok(())
    }

    fn ask_or_exit(&self, code: Option<i32>) {
        let asked = *self.inner.signalled.get_or_init(Instant::now);
        match code {
            // Asked twice: the user does not want to wait.
            Some(code) if self.is_requested() && asked.elapsed() > TOGETHER => std::process::exit(code),
            _ if self.is_requested() => {}
            _ => {
                if !self.inner.is_silent.load(Ordering::SeqCst) {
                    let _ = writeln!(std::io::stderr(), "stopping after this update; again to quit at once");
                }
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

/// Returns true if the process has a terminal that can still be opened. A service has none; one that was closed is
/// taken from all processes that had it.
#[cfg(unix)]
fn has_terminal() -> bool {
    std::fs::File::options().read(true).write(true).open("/dev/tty").is_ok()
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
