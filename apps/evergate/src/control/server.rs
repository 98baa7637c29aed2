//! HTTP/1.1 for the control plane: the admin API on its Unix socket, the metrics on TCP.
//!
//! Bounds: so many connections at a time, one request each, a small head, a limit in time. When there are more, on the socket
//! they wait in the kernel's queue; on TCP, where anybody may connect, the newest takes the place of the oldest: a scrape is done
//! long before so many others have come. Bodies are not read, because no request has one that says anything.

use super::api::{self, Surface};
use super::state::Control;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinHandle};

const CONNECTIONS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Who connects to the metrics may be anybody.
const METRICS_HEAD_TIMEOUT: Duration = Duration::from_secs(1);
/// A scraper's own limit is ten seconds, mostly.
const METRICS_TIMEOUT: Duration = Duration::from_secs(20);
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
    let answer = move |stream| answer(stream, control.clone(), Surface::Admin);
    Ok(serve(tokio::net::UnixListener::from_std(listener)?, WhenFull::Wait, answer))
}

/// Serves the metrics on a listener that does not block.
pub(super) fn serve_metrics(listener: TcpListener, control: Arc<Control>) -> io::Result<Serving> {
    let answer = move |stream| answer(stream, control.clone(), Surface::Metrics);
    Ok(serve(tokio::net::TcpListener::from_std(listener)?, WhenFull::EndOldest, answer))
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

/// What becomes of a connection that comes when there are [`CONNECTIONS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenFull {
    Wait,
    EndOldest,
}

fn serve<L: Listen, A: Future<Output = ()> + Send + 'static>(
    listener: L,
    when_full: WhenFull,
    answer: impl Fn(L::Stream) -> A + Send + 'static,
) -> Serving {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let of_task = permits.clone();
    let task = tokio::spawn(async move {
        let mut oldest = Oldest::default();
        loop {
            let Ok(stream) = listener.next().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            if when_full == WhenFull::EndOldest && of_task.available_permits() == 0 {
                oldest.end();
            }
            let Ok(permit) = of_task.clone().acquire_owned().await else { return };
            let answering = answer(stream);
            oldest.note(tokio::spawn(async move {
                answering.await;
                drop(permit);
            }));
        }
    });
    Serving { accepting: task.abort_handle(), permits }
}

/// Connections under way in the order in which they came.
#[derive(Default)]
struct Oldest(VecDeque<JoinHandle<()>>);

impl Oldest {
    fn note(&mut self, connection: JoinHandle<()>) {
        self.0.retain(|other| !other.is_finished());
        self.0.push_back(connection);
    }

    fn end(&mut self) {
        self.0.retain(|other| !other.is_finished());
        if let Some(oldest) = self.0.pop_front() {
            oldest.abort();
        }
    }
}

async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, control: Arc<Control>, surface: Surface) {
    let service = service_fn(move |request: Request<Incoming>| {
        let control = control.clone();
        async move { Ok::<_, Infallible>(api::answer(&control, surface, &request).await) }
    });
    let (head_timeout, timeout) = match surface {
        Surface::Admin => (HEAD_TIMEOUT, REQUEST_TIMEOUT),
        Surface::Metrics => (METRICS_HEAD_TIMEOUT, METRICS_TIMEOUT),
    };
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // A peer that goes away or sends nonsense is its own problem: hyper has answered it.
    let _ = tokio::time::timeout(timeout, connection).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, DuplexStream, duplex};
    use tokio::sync::Mutex;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    impl Listen for Mutex<UnboundedReceiver<DuplexStream>> {
        type Stream = DuplexStream;

        async fn next(&self) -> io::Result<DuplexStream> {
            self.lock().await.recv().await.ok_or_else(|| io::Error::other("no more"))
        }
    }

    #[tokio::test]
    async fn who_says_nothing_on_the_metrics_port_gives_its_place_to_the_next() {
        let (to, listener) = unbounded_channel();
        let never = |stream: DuplexStream| async move {
            let _stream = stream;
            std::future::pending::<()>().await;
        };
        let _serving = serve(Mutex::new(listener), WhenFull::EndOldest, never);
        let mut clients: Vec<DuplexStream> = (0..CONNECTIONS_MAX + 2)
            .map(|_| {
                let (client, server) = duplex(64);
                to.send(server).unwrap();
                client
            })
            .collect();
        let mut byte = [0];
        assert_eq!(clients[0].read(&mut byte).await.unwrap(), 0);
        assert_eq!(clients[1].read(&mut byte).await.unwrap(), 0);
        for kept in &mut clients[2..] {
            tokio::select! {
                biased;
                ended = kept.read(&mut byte) => panic!("a connection ended: {ended:?}"),
                () = std::future::ready(()) => {}
            }
        }
    }
}
