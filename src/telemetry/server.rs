//! The metrics of a run over HTTP, for Prometheus and for `curl`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

/// How often recorded histograms are folded while nobody asks: they would pile up.
const UPKEEP: Duration = Duration::from_secs(5);

/// A running endpoint; ends when it is dropped, with the run.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    tasks: [JoinHandle<()>; 2],
}

impl Server {
    /// Where it listens: the port that was chosen if none was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
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

/// Shows the metrics at `/metrics`. Needs a running tokio.
pub async fn serve(address: SocketAddr, handle: PrometheusHandle) -> Result<Server> {
    let listener = TcpListener::bind(address).await.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => {
            Error::option(format!("{address}: the port is taken; choose another for the metrics, or 0 for any"))
        }
        _ => Error::io(&address.to_string(), &e),
    })?;
    let address = listener.local_addr().map_err(|e| Error::io("the metrics address", &e))?;
    let upkeep = handle.clone();
    let metrics = move || {
        let text = handle.render();
        async move { ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text) }
    };
    let about = concat!("anemone ", env!("CARGO_PKG_VERSION"), " is learning; its metrics are at /metrics\n");
    let router = Router::new().route("/metrics", get(metrics)).route("/", get(move || async move { about }));
    let tasks = [
        tokio::spawn(async move {
            let _ = axum::serve(listener, router).await; // ends only when aborted
        }),
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                upkeep.run_upkeep();
            }
        }),
    ];
    Ok(Server { address, tasks })
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

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
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || metrics::counter!("rows_total").increment(7));
        let server = serve(parse_address("0").unwrap(), recorder.handle()).await.unwrap();
        let address = server.address();
        assert!(address.ip().is_loopback() && address.port() != 0);
        let answer = ask(address, "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("rows_total 7"), "{answer}");
        assert!(answer.contains("text/plain; version=0.0.4"), "{answer}");
        assert!(ask(address, "/").await.contains("/metrics"));
        assert!(ask(address, "/other").await.starts_with("HTTP/1.1 404"));

        let error = serve(address, recorder.handle()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Option);
        assert!(error.to_string().contains("the port is taken"), "{error}");
        drop(server);
        tokio::time::timeout(Duration::from_secs(2), async {
            while TcpStream::connect(address).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
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
