//! HTTP/1.1 for the control plane: the admin API on its Unix socket, the metrics on TCP.
//!
//! Bounds: [`CONNECTIONS_MAX`] connections at a time, one request each, a small head, a time limit. At the bound the
//! next connection replaces the one that has waited longest for its caller: for the request head first, then for the
//! caller to read the response. A running command keeps its connection on the socket, and the next caller waits. On
//! TCP, where any client may connect, the oldest request is replaced too. Bodies are not read, because no request needs
//! one.

use super::api::{self, Surface};
use super::published::Control;
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
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinHandle};

const CONNECTIONS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Any client may connect to the metrics.
const METRICS_HEAD_TIMEOUT: Duration = Duration::from_secs(1);
/// A scraper's own limit is ten seconds, mostly.
const METRICS_TIMEOUT: Duration = Duration::from_secs(20);
/// A reload resolves host names, which may take its time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// At the end of the process.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// After a failed accept, which is out of descriptors most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the listener looks for a place: a command that was being carried out may wait for its reader by then.
const PLACE_PAUSE: Duration = Duration::from_millis(100);

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

    /// Accepts no further connections, and waits a moment until the open ones are answered.
    pub(super) async fn drain(&self) {
        self.stop();
        let all = self.permits.acquire_many(CONNECTIONS_MAX as u32);
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, all).await; // otherwise a client does not read its answer
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Serves the admin API on a listener that does not block.
pub(super) fn serve_admin(listener: UnixListener, control: Arc<Control>) -> io::Result<Serving> {
    let answer = move |stream, step| answer(stream, control.clone(), Surface::Admin, step);
    Ok(serve(tokio::net::UnixListener::from_std(listener)?, Surface::Admin, answer))
}

/// Serves the metrics on a listener that does not block.
pub(super) fn serve_metrics(listener: TcpListener, control: Arc<Control>) -> io::Result<Serving> {
    let answer = move |stream, step| answer(stream, control.clone(), Surface::Metrics, step);
    Ok(serve(tokio::net::TcpListener::from_std(listener)?, Surface::Metrics, answer))
}

/// Source of connections.
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

/// The step that a connection waits for. Steps follow each other in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The caller's request head.
    Head,
    /// The node, which carries out the request.
    Node,
    /// The caller, which reads the response.
    Reader,
}

/// The step of one connection, for the accepting task.
#[derive(Clone, Debug, Default)]
struct StepCell(Arc<AtomicU8>);

impl StepCell {
    fn set(&self, step: Step) {
        self.0.store(step as u8, Ordering::Relaxed);
    }

    fn is(&self, step: Step) -> bool {
        self.0.load(Ordering::Relaxed) == step as u8
    }
}

fn serve<L: Listen, A: Future<Output = ()> + Send + 'static>(
    listener: L,
    surface: Surface,
    answer: impl Fn(L::Stream, StepCell) -> A + Send + 'static,
) -> Serving {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let of_task = permits.clone();
    let task = tokio::spawn(async move {
        let mut callers = Callers::default();
        loop {
            let Ok(stream) = listener.next().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let Some(permit) = callers.place(&of_task, surface).await else { return };
            let step = StepCell::default();
            let answering = answer(stream, step.clone());
            let task = tokio::spawn(async move {
                answering.await;
                drop(permit);
            });
            callers.add(step, task);
        }
    });
    Serving { accepting: task.abort_handle(), permits }
}

/// Connections under way in the order in which they came.
#[derive(Default)]
struct Callers(VecDeque<(StepCell, JoinHandle<()>)>);

impl Callers {
    fn add(&mut self, step: StepCell, connection: JoinHandle<()>) {
        self.0.retain(|(_, other)| !other.is_finished());
        self.0.push_back((step, connection));
    }

    /// A place for one more connection; the connection that gives way for it ends. `None` at the end of the process.
    async fn place(&mut self, permits: &Arc<Semaphore>, surface: Surface) -> Option<OwnedSemaphorePermit> {
        loop {
            if permits.available_permits() == 0 {
                self.end_one(surface);
            }
            // In vain when every command is being carried out.
            if let Ok(permit) = tokio::time::timeout(PLACE_PAUSE, permits.clone().acquire_owned()).await {
                return permit.ok();
            }
        }
    }

    /// Ends the connection that has waited longest for its caller, if there is one.
    fn end_one(&mut self, surface: Surface) {
        let steps: &[Step] = match surface {
            Surface::Admin => &[Step::Head, Step::Reader],
            Surface::Metrics => &[Step::Head, Step::Reader, Step::Node],
        };
        self.0.retain(|(_, other)| !other.is_finished());
        let oldest_in = |step: &Step| self.0.iter().position(|(cell, _)| cell.is(*step));
        let oldest = steps.iter().find_map(oldest_in).and_then(|index| self.0.remove(index));
        if let Some((_, connection)) = oldest {
            connection.abort();
        }
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    control: Arc<Control>,
    surface: Surface,
    step: StepCell,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (control, step) = (control.clone(), step.clone());
        async move {
            step.set(Step::Node);
            let answer = api::answer(&control, surface, &request).await;
            step.set(Step::Reader);
            Ok::<_, Infallible>(answer)
        }
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

    /// Connections whose steps are given, then `more` in the step [`Step::Head`]; the numbers of those that end.
    async fn ended(surface: Surface, steps: &[Step], more: usize) -> Vec<usize> {
        let (to, listener) = unbounded_channel();
        let (begun, mut began) = unbounded_channel();
        let all = Arc::new(std::sync::Mutex::new(VecDeque::from(steps.to_vec())));
        let never = move |stream: DuplexStream, cell: StepCell| {
            cell.set(all.lock().unwrap().pop_front().unwrap_or(Step::Head));
            let begun = begun.clone();
            async move {
                let _stream = stream;
                begun.send(()).unwrap();
                std::future::pending::<()>().await;
            }
        };
        let _serving = serve(Mutex::new(listener), surface, never);
        let mut clients = Vec::new();
        for _ in 0..steps.len() + more {
            let (client, server) = duplex(64);
            to.send(server).unwrap();
            clients.push(client);
            began.recv().await.unwrap();
        }
        let mut ended = Vec::new();
        for (number, client) in clients.iter_mut().enumerate() {
            let is_over = tokio::time::timeout(Duration::ZERO, client.read(&mut [0])).await;
            ended.extend(is_over.is_ok().then_some(number));
        }
        ended
    }

    #[tokio::test]
    async fn longest_idle_caller_gives_its_place_to_the_next() {
        for surface in [Surface::Admin, Surface::Metrics] {
            assert_eq!(ended(surface, &[Step::Head; CONNECTIONS_MAX], 2).await, [0, 1]);
            let mut steps = [Step::Head; CONNECTIONS_MAX];
            steps[0] = Step::Node;
            steps[1] = Step::Reader;
            assert_eq!(ended(surface, &steps, 2).await, [2, 3], "a request under way outlasts idle callers");
            let mut steps = [Step::Reader; CONNECTIONS_MAX];
            steps[0] = Step::Node;
            assert_eq!(ended(surface, &steps, 1).await, [1]);
        }
        assert_eq!(ended(Surface::Metrics, &[Step::Node; CONNECTIONS_MAX], 1).await, [0]);
    }

    #[tokio::test]
    async fn admin_command_under_way_keeps_its_place() {
        let one_more = ended(Surface::Admin, &[Step::Node; CONNECTIONS_MAX], 1);
        assert!(tokio::time::timeout(PLACE_PAUSE * 3, one_more).await.is_err(), "the next caller waits");
    }
}
