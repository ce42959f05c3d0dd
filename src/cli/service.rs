//! A run as a service of systemd: it says when it is ready, that it is alive, what it does, and when it stops.
//!
//! The manager gives the address of a socket in `NOTIFY_SOCKET`, and in `WATCHDOG_USEC` how long it lets a service say
//! nothing. A thread asks the run's [`Health`](crate::telemetry::Health) and passes it on, so that a run that hangs is
//! silent here too, however long its batches take otherwise. Without such an address nothing happens.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::telemetry::HEALTH;

/// Tells the manager until it is dropped, and then that the service stops.
pub(super) struct Service {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How often the run is asked.
const INTERVAL: Duration = Duration::from_millis(500);

/// What a run does is said no more often than this.
const STATUS_INTERVAL: Duration = Duration::from_secs(10);

impl Service {
    /// Begins to tell, if there is a manager that listens.
    pub fn begin() -> Option<Self> {
        let socket = socket::Socket::from_environment()?;
        let watchdog = watchdog(|name| env::var(name).ok(), std::process::id());
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let run = move || tell(&socket, watchdog, &over);
        let thread = thread::Builder::new().name("anemone-service".into()).spawn(run).ok()?;
        Some(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ended = thread.join();
        }
    }
}

/// How long the manager lets this process be silent; `None` if it does not watch it.
fn watchdog(variable: impl Fn(&str) -> Option<String>, process: u32) -> Option<Duration> {
    if variable("WATCHDOG_PID").is_some_and(|id| id != process.to_string()) {
        return None; // meant for another one
    }
    let micros = variable("WATCHDOG_USEC")?.parse().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros))
}

fn tell(socket: &socket::Socket, watchdog: Option<Duration>, is_over: &AtomicBool) {
    let mut is_ready = false;
    let mut status: Option<(Instant, String)> = None;
    // Twice as often as it must be.
    let interval = watchdog.map_or(INTERVAL, |watchdog| INTERVAL.min(watchdog / 2));
    while !is_over.load(Ordering::SeqCst) {
        if HEALTH.is_ready() && !is_ready {
            is_ready = true;
            socket.send("READY=1");
        }
        if watchdog.is_some_and(|watchdog| HEALTH.silence() < watchdog) {
            socket.send("WATCHDOG=1");
        }
        let now = HEALTH.status();
        if !now.is_empty() && status.as_ref().is_none_or(|(at, last)| *last != now && at.elapsed() >= STATUS_INTERVAL) {
            socket.send(&format!("STATUS={now}"));
            status = Some((Instant::now(), now));
        }
        thread::park_timeout(interval);
    }
    socket.send("STOPPING=1");
}

#[cfg(target_os = "linux")]
mod socket {
    use std::env;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    /// Where the manager listens.
    pub struct Socket {
        socket: UnixDatagram,
        address: SocketAddr,
    }

    impl Socket {
        pub fn from_environment() -> Option<Self> {
            let name = env::var("NOTIFY_SOCKET").ok().filter(|name| !name.is_empty())?;
            let address = match name.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(&name),
            };
            Some(Self { socket: UnixDatagram::unbound().ok()?, address: address.ok()? })
        }

        /// Sends a message. One that is not heard costs the run nothing.
        pub fn send(&self, message: &str) {
            let _unheard = self.socket.send_to_addr(message.as_bytes(), &self.address);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod socket {
    /// There is no systemd here.
    pub struct Socket;

    impl Socket {
        pub fn from_environment() -> Option<Self> {
            None
        }

        pub fn send(&self, _: &str) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_is_for_the_process_that_it_names() {
        let with = |pid: Option<&str>, micros: Option<&str>| {
            let (pid, micros) = (pid.map(str::to_string), micros.map(str::to_string));
            watchdog(move |name| if name == "WATCHDOG_PID" { pid.clone() } else { micros.clone() }, 42)
        };
        assert_eq!(with(None, None), None);
        assert_eq!(with(None, Some("3000000")), Some(Duration::from_secs(3)));
        assert_eq!(with(Some("42"), Some("3000000")), Some(Duration::from_secs(3)));
        assert_eq!(with(Some("41"), Some("3000000")), None);
        assert_eq!(with(None, Some("0")), None);
        assert_eq!(with(None, Some("soon")), None);
    }
}
