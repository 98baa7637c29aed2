//! Feeds of switches: one thread listens, and one serves each switch.
//!
//! A thread reads messages and hands them to the digest thread. It acknowledges a message when the statement over its
//! record is on disk. Bounds: [`FEEDS_MAX`] connections, and [`PENDING_MAX`] messages of each without an
//! acknowledgement; then the thread reads no further, and the switch's queue fills.

use crate::record::job::Job;
use evergate_evidence::feed::{FEED_FRAME_BYTES_MAX, FeedHello, FeedSender, FromFeed, ToFeed};
use evergate_evidence::merkle::Hash;
use evergate_recorder::feed::Feeds;
use evergate_recorder::stream::RecordStream;
use evergate_submission::{Channel, ChannelError, FeedChannel, Identity, Trust, server_config};
use rustls::ServerConfig;
use std::collections::VecDeque;
use std::fs::Permissions;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Most connections of switches at a time.
const FEEDS_MAX: usize = 64;
/// Most messages of a switch that no statement on disk covers.
const PENDING_MAX: u64 = 8192;
/// Longest time without a look at acknowledgements.
const TURN: Duration = Duration::from_millis(10);
/// Limit of each step of a connection.
const LIMIT: Duration = Duration::from_secs(10);

/// Where switches connect.
#[derive(Debug)]
pub(crate) enum FeedListener {
    /// A Unix socket, at this path.
    Unix(UnixListener, PathBuf),
    /// TLS with certificates of these switches.
    Tls(TcpListener, Arc<ServerConfig>),
}

/// A message for the digest thread.
#[derive(Debug)]
pub(crate) struct FeedJob {
    sender: FeedSender,
    /// HELLO, or the frame of a message.
    message: Result<FeedHello, Vec<u8>>,
    progress: Arc<Progress>,
}

/// Progress of one switch's connection.
#[derive(Debug, Default)]
struct Progress {
    /// Highest number whose record is durable.
    durable: AtomicU64,
}

/// Messages whose records no statement on disk covers, in order of `seq`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uncovered(Arc<Mutex<VecDeque<Waiting>>>);

/// A message whose record no statement on disk covers.
#[derive(Debug)]
struct Waiting {
    seq: u64,
    number: u64,
    progress: Arc<Progress>,
}

impl Uncovered {
    fn push(&self, seq: u64, number: u64, progress: &Arc<Progress>) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back(Waiting { seq, number, progress: progress.clone() });
    }

    /// Takes a statement that is on disk.
    pub(crate) fn on_durable(&self, last_seq: u64) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(message) = waiting.pop_front_if(|message| message.seq <= last_seq) {
            message.progress.durable.fetch_max(message.number, Ordering::Release);
        }
    }
}

/// The digest thread's side: numbers of switches, and messages that wait for a statement.
#[derive(Debug, Default)]
pub(crate) struct FeedIntake {
    feeds: Feeds,
    uncovered: Uncovered,
}

impl FeedIntake {
    pub(crate) fn new(uncovered: Uncovered) -> FeedIntake {
        FeedIntake { feeds: Feeds::default(), uncovered }
    }

    /// Writes the record of a message. The thread of the feed has checked that it decodes.
    pub(crate) fn on_job(&mut self, job: FeedJob, now_ns: u64, stream: &mut RecordStream) {
        let FeedJob { sender, message, progress } = job;
        let frame = match message {
            Ok(hello) => return self.feeds.on_hello(&hello, now_ns),
            Err(frame) => frame,
        };
        let Ok(message) = ToFeed::decode(&frame) else { return };
        if let Some(number) = self.feeds.on_message(&sender, message, now_ns, stream) {
            self.uncovered.push(stream.next_seq() - 1, number, &progress);
        }
    }
}

impl FeedListener {
    /// Listens on a Unix socket: members of the process's group may connect. An old socket of a dead Recorder goes.
    pub(crate) fn unix(path: &Path) -> io::Result<FeedListener> {
        if std::os::unix::net::UnixStream::connect(path).is_err() {
            let _ = std::fs::remove_file(path);
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, Permissions::from_mode(0o660))?;
        listener.set_nonblocking(true)?;
        Ok(FeedListener::Unix(listener, path.to_owned()))
    }

    /// Listens for switches with these ids.
    pub(crate) fn tls(address: &str, identity: &Identity, switches: Vec<Hash>) -> io::Result<FeedListener> {
        let config = server_config(identity, &Trust::Pinned(switches)).map_err(io::Error::other)?;
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(FeedListener::Tls(listener, config))
    }

    /// Runs until the flag is set. Each switch has its own thread, which ends with the flag too.
    pub(crate) fn run(self, jobs: &Sender<Job>, stop: &Arc<AtomicBool>) {
        let open = Arc::new(AtomicUsize::new(0));
        while !stop.load(Ordering::Relaxed) {
            let connect = match self.accept() {
                Ok(connect) => connect,
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        eprintln!("evergate-audit: feed: cannot accept a switch: {error}");
                    }
                    std::thread::sleep(TURN);
                    continue;
                }
            };
            if open.fetch_add(1, Ordering::Relaxed) >= FEEDS_MAX {
                open.fetch_sub(1, Ordering::Relaxed);
                eprintln!("evergate-audit: feed: {FEEDS_MAX} switches are connected: another one is refused");
                continue;
            }
            let (jobs, stop, count) = (jobs.clone(), stop.clone(), open.clone());
            let thread = std::thread::Builder::new().name("feed-switch".to_owned()).spawn(move || {
                let ended = connect().and_then(|channel| serve(channel, &jobs, &stop));
                if let Err(error) = ended
                    && !matches!(error, ChannelError::Closed)
                {
                    eprintln!("evergate-audit: feed: connection of a switch ended: {error}");
                }
                count.fetch_sub(1, Ordering::Relaxed);
            });
            if thread.is_err() {
                open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// A connection that waits; the handshake belongs to its own thread.
    fn accept(&self) -> io::Result<Box<dyn FnOnce() -> Result<FeedChannel, ChannelError> + Send>> {
        match self {
            FeedListener::Unix(listener, _) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(false)?;
                Ok(Box::new(move || FeedChannel::of_unix(socket, LIMIT)))
            }
            FeedListener::Tls(listener, config) => {
                let (socket, _) = listener.accept()?;
                socket.set_nonblocking(false)?;
                let config = config.clone();
                Ok(Box::new(move || FeedChannel::of_tls(Channel::accept(socket, config, LIMIT)?)))
            }
        }
    }
}

impl Drop for FeedListener {
    fn drop(&mut self) {
        if let FeedListener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Serves one switch until it leaves or the Recorder stops.
fn serve(mut channel: FeedChannel, jobs: &Sender<Job>, stop: &AtomicBool) -> Result<(), ChannelError> {
    let first = channel.receive(LIMIT)?.ok_or(ChannelError::Slow(LIMIT))?;
    let ToFeed::Hello(hello) = ToFeed::decode(&first)? else {
        return refuse(&mut channel, "the first message is no HELLO");
    };
    if channel.peer().is_some_and(|peer| peer != hello.sender.switch) {
        return refuse(&mut channel, "the switch's id is not that of its certificate");
    }
    let progress = Arc::new(Progress { durable: AtomicU64::new(hello.next.saturating_sub(1)) });
    let send = |message| {
        let job = FeedJob { sender: hello.sender, message, progress: progress.clone() };
        jobs.send(Job::Feed(job)).is_ok()
    };
    send(Ok(hello));
    let (mut acknowledged, mut newest) = (hello.next.saturating_sub(1), hello.next.saturating_sub(1));
    while !stop.load(Ordering::Relaxed) {
        let durable = progress.durable.load(Ordering::Acquire);
        if durable > acknowledged {
            channel.send(&FromFeed::Acknowledged(durable).to_frame())?;
            acknowledged = durable;
        }
        if newest.saturating_sub(acknowledged) >= PENDING_MAX {
            std::thread::sleep(TURN);
            continue;
        }
        let Some(frame) = channel.receive(TURN)? else { continue };
        if frame.len() > FEED_FRAME_BYTES_MAX {
            return refuse(&mut channel, "a message is too long");
        }
        match ToFeed::decode(&frame)?.number() {
            None => return refuse(&mut channel, "a second HELLO"),
            Some(number) => newest = newest.max(number),
        }
        if !send(Err(frame)) {
            break;
        }
    }
    Ok(())
}

fn refuse(channel: &mut FeedChannel, reason: &str) -> Result<(), ChannelError> {
    eprintln!("evergate-audit: feed: a switch is refused: {reason}");
    channel.send(&FromFeed::Refused(reason.to_owned()).to_frame())
}
