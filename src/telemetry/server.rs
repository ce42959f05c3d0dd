//! The metrics of a run over HTTP, for Prometheus and for `curl`.
//!
//! A connection must not cost the run anything: a few connections at a time, each for a few seconds, whatever its other
//! end does or does not send. A connection takes a file descriptor, and without one no checkpoint could be written.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};

use super::Registry;
use super::health::{HEALTH, SILENCE};
use crate::error::{Error, Result};

/// Connections at a time, where files may be open by the thousand; further ones are closed at once. Far more than watch
/// a run.
const MOST_CONNECTIONS: usize = 64;

/// A connection ends after this time, whether it was asked anything or not. An answer takes milliseconds.
const LIFETIME: Duration = Duration::from_secs(10);

/// How long nothing is accepted after accepting failed, as it does while too many files are open.
const PAUSE: Duration = Duration::from_millis(500);

/// A running endpoint; ends when it is dropped, with the run.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Where it listens: the port that was chosen if none was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// `9000` and `:9000` are this machine only; another address must be written out, such as `0.0.0.0:9000`.
pub fn parse_address(text: &str) -> Result<SocketAddr> {
    let port = text.strip_prefix(':').unwrap_or(text);
    if let Ok(port) = port.parse::<u16>() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    let text = text.strip_prefix("localhost:").map_or_else(|| text.to_string(), |port| format!("127.0.0.1:{port}"));
    text.parse().map_err(|_| {
        Error::option(format!("{text}: is not an address to listen on; write a port, or an IP address and a port"))
    })
}

/// Shows the metrics at `/metrics`, and at `/healthz` and `/readyz` whether the run is alive and learning. Needs a
/// running tokio.
pub async fn serve(address: SocketAddr, registry: Registry) -> Result<Server> {
    let listener = TcpListener::bind(address).await.map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => {
            Error::option(format!("{address}: the port is taken; choose another for the metrics, or 0 for any"))
        }
        io::ErrorKind::AddrNotAvailable => {
            let what = "this machine has no such address; listen on one that it has, or on 0.0.0.0 for all of them";
            Error::option(format!("{address}: {what}"))
        }
        _ => Error::io(&address.to_string(), &e),
    })?;
    let address = listener.local_addr().map_err(|e| Error::io("the metrics address", &e))?;
    let metrics = move || {
        let text = registry.render();
        async move { ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text) }
    };
    let about = concat!(
        "anemone ",
        env!("CARGO_PKG_VERSION"),
        " is learning; its metrics are at /metrics, and /healthz \
                        and /readyz tell whether it is well\n"
    );
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { health_answer(HEALTH.silence()) }))
        .route("/readyz", get(|| async { ready_answer(HEALTH.is_ready()) }))
        .route("/", get(move || async move { about }));
    let listener = Doorkeeper { listener, places: Arc::new(Semaphore::new(most_connections())), lifetime: LIFETIME };
    let task = tokio::spawn(async move {
        let _ = axum::serve(listener, router).await; // ends only when aborted
    });
    Ok(Server { address, task })
}

/// Well, unless the run has been silent for too long.
fn health_answer(silence: Duration) -> (StatusCode, String) {
    match silence <= SILENCE {
        true => (StatusCode::OK, "alive\n".into()),
        false => (StatusCode::SERVICE_UNAVAILABLE, format!("silent for {} seconds\n", silence.as_secs())),
    }
}

/// Ready once everything is open and built.
fn ready_answer(is_ready: bool) -> (StatusCode, &'static str) {
    match is_ready {
        true => (StatusCode::OK, "learning\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "not learning yet, or not any more\n"),
    }
}

/// No more connections than an eighth of the files that this process may have open (`ulimit -n`), where the system
/// tells.
fn most_connections() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let files = files.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    files.map_or(MOST_CONNECTIONS, |files| (files / 8).clamp(2, MOST_CONNECTIONS))
}

/// Lets in so many connections at a time, each for so long.
struct Doorkeeper {
    listener: TcpListener,
    places: Arc<Semaphore>,
    lifetime: Duration,
}

impl Listener for Doorkeeper {
    type Io = Visit;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Visit, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    if let Ok(place) = self.places.clone().try_acquire_owned() {
                        let until = Box::pin(sleep(self.lifetime));
                        return (Visit { stream, until, _place: place }, address);
                    }
                    // Dropped, and with it closed: a descriptor of ours is not kept for a queue.
                }
                Err(_) => sleep(PAUSE).await, // too many files are open, or the other end is gone already
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends in time.
struct Visit {
    stream: TcpStream,
    until: Pin<Box<Sleep>>,
    _place: OwnedSemaphorePermit,
}

impl Visit {
    /// An error once the time is over; before that, the task that waits for the stream is woken when it is.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.until.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Visit {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::error::ErrorKind;

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn metrics_are_served_on_loopback_until_the_run_ends() {
        let registry = Registry::default();
        metrics::with_local_recorder(&registry, || metrics::counter!("rows_total").increment(7));
        let server = serve(parse_address("0").unwrap(), registry.clone()).await.unwrap();
        let address = server.address();
        assert!(address.ip().is_loopback() && address.port() != 0);
        let answer = ask(address, "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("rows_total 7"), "{answer}");
        assert!(answer.contains("text/plain; version=0.0.4"), "{answer}");
        assert!(ask(address, "/").await.contains("/metrics"));
        assert!(ask(address, "/other").await.starts_with("HTTP/1.1 404"));
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 503"), "no run in this process");

        let error = serve(address, registry.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Option);
        assert!(error.to_string().contains("the port is taken"), "{error}");
        // An address for documentation, which no machine has.
        let error = serve(parse_address("192.0.2.1:0").unwrap(), registry.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Option);
        assert!(error.to_string().contains("has no such address"), "{error}");
        drop(server);
        tokio::time::timeout(Duration::from_secs(2), async {
            while TcpStream::connect(address).await.is_ok() {
                sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
    }

    #[tokio::test]
    async fn connections_that_say_nothing_are_few_and_do_not_last() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let lifetime = Duration::from_millis(300);
        let keeper = Doorkeeper { listener, places: Arc::new(Semaphore::new(3)), lifetime };
        let router = Router::new().route("/", get(|| async { "here" }));
        let task = tokio::spawn(async move { axum::serve(keeper, router).await });
        let mut idle = Vec::new();
        for _ in 0..5 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // Half a request, or none if it is closed already.
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost:").await;
            idle.push(stream);
        }
        // All of them end: two at once, three when their time is over. Without a bound this would wait without end.
        for stream in &mut idle {
            let ended = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut [0; 64])).await;
            assert!(matches!(ended.unwrap(), Ok(0) | Err(_)), "closed without an answer");
        }
        assert!(ask(address, "/").await.ends_with("here"), "and there is room again");
        task.abort();
    }

    #[test]
    fn a_run_that_is_silent_for_long_is_not_well() {
        assert_eq!(health_answer(SILENCE).0, StatusCode::OK);
        let (code, text) = health_answer(SILENCE + Duration::from_secs(1));
        assert_eq!((code, text.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "silent for 601 seconds\n"));
        assert_eq!((ready_answer(true).0, ready_answer(false).0), (StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE));
    }

    #[test]
    fn only_a_written_address_leaves_this_machine() {
        for (text, want) in [
            ("9000", "127.0.0.1:9000"),
            (":9000", "127.0.0.1:9000"),
            ("localhost:9000", "127.0.0.1:9000"),
            ("0.0.0.0:9000", "0.0.0.0:9000"),
            ("[::1]:9000", "[::1]:9000"),
        ] {
            assert_eq!(parse_address(text).unwrap().to_string(), want);
        }
        for text in ["", "host", "70000", "1.2.3.4", "-1"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }
}
