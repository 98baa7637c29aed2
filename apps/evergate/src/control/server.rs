//! HTTP/1.1 for the control plane: the admin API on its Unix socket, the metrics on TCP.
//!
//! Bounds: so many connections at a time (others wait in the kernel's queue), one request each, a small head, a limit
//! in time. Bodies are not read, because no request has one that says anything.

use super::api::{self, Surface};
use super::state::Control;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

const CONNECTIONS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Who connects to the metrics may be anybody: somebody who says nothing does not keep a scrape from its place for long.
const METRICS_HEAD_TIMEOUT: Duration = Duration::from_secs(1);
/// A reload resolves host names, which may take its time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// At the end of the process.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// After a failed accept, which is out of descriptors most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener that is being served; no longer when dropped. Requests under way are still answered.
#[derive(Debug)]
pub(super) struct Serving {
    accepting: AbortHandle,
    permits: Arc<Semaphore>,
}

impl Serving {
    /// Takes no further connections.
    pub(super) fn stop(&self) {
        self.accepting.abort();
    }

    /// Takes no further connections, and waits a moment until those that it has are answered.
    pub(super) async fn settle(&self) {
        self.stop();
        let all = self.permits.acquire_many(CONNECTIONS_MAX as u32);
        let _ = tokio::time::timeout(SETTLE_TIMEOUT, all).await; // else somebody does not take an answer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Serves the admin API on a listener that does not block.
pub(super) fn serve_admin(listener: UnixListener, control: Arc<Control>) -> io::Result<Serving> {
    Ok(serve(tokio::net::UnixListener::from_std(listener)?, control, Surface::Admin))
}

/// Serves the metrics on a listener that does not block.
pub(super) fn serve_metrics(listener: TcpListener, control: Arc<Control>) -> io::Result<Serving> {
    Ok(serve(tokio::net::TcpListener::from_std(listener)?, control, Surface::Metrics))
}

/// What connections come from.
trait Listen: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listen for tokio::net::UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn next(&self) -> io::Result<Self::Stream> {
        Ok(self.accept().await?.0)
    }
}

impl Listen for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn next(&self) -> io::Result<Self::Stream> {
        Ok(self.accept().await?.0)
    }
}

fn serve(listener: impl Listen, control: Arc<Control>, surface: Surface) -> Serving {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let of_task = permits.clone();
    let task = tokio::spawn(async move {
        loop {
            let Ok(permit) = of_task.clone().acquire_owned().await else { return };
            match listener.next().await {
                Ok(stream) => {
                    let control = control.clone();
                    tokio::spawn(async move {
                        answer(stream, control, surface).await;
                        drop(permit);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    });
    Serving { accepting: task.abort_handle(), permits }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, control: Arc<Control>, surface: Surface) {
    let service = service_fn(move |request: Request<Incoming>| {
        let control = control.clone();
        async move { Ok::<_, Infallible>(api::answer(&control, surface, &request).await) }
    });
    let head_timeout = match surface {
        Surface::Admin => HEAD_TIMEOUT,
        Surface::Metrics => METRICS_HEAD_TIMEOUT,
    };
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // A peer that goes away or sends nonsense is its own problem: hyper has answered it.
    let _ = tokio::time::timeout(REQUEST_TIMEOUT, connection).await;
}
