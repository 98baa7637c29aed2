//! Connections of Recorders and Revealers: two threads each, one connection for each id.
//!
//! The receiving thread checks messages and passes them to the sequencer. The sending thread sends answers. A refusal
//! is the last message of a connection.

use crate::escrow::Asked;
use crate::metrics::{Metrics, count};
use crate::reply::{Reply, reply};
use crate::sequencer::Input;
use evergate_evidence::cursor::Malformed;
use evergate_evidence::entry::Event;
use evergate_evidence::merkle::Hash;
use evergate_evidence::submission::{Refusal, RefusalCode, ToMaster, ToRecorder, UNANSWERED_MAX, VERSION};
use evergate_submission::{Channel, ChannelError, Receiver, Sender, id_text};
use rustls::ServerConfig;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connections that are in their handshake, beyond those of Recorders.
const HANDSHAKES_MAX: usize = 32;
/// Longest wait of a Recorder that connects again while its connection before ends.
const RECONNECT: Duration = Duration::from_secs(2);
/// Longest wait for the peer to read a refusal.
const FINISH: Duration = Duration::from_secs(1);

/// What all connections share.
pub struct Server {
    /// TLS of the Master.
    pub tls: Arc<ServerConfig>,
    /// Peers that may send.
    pub enrolled: BTreeMap<Hash, Peer>,
    /// The sequencer.
    pub inputs: SyncSender<Input>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Most Recorders at once.
    pub recorders_max: usize,
    /// Longest time for a handshake, and for a peer to take bytes.
    pub peer_limit: Duration,
    /// Ids of connected Recorders.
    pub live: Mutex<Vec<Hash>>,
    /// Threads of connections.
    pub threads: AtomicUsize,
    /// Second of the last line about a failed handshake or a refusal: one a second.
    pub logged_s: AtomicU64,
}

/// Peer that may send.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Whether it is a Revealer; else it is a Recorder.
    pub is_revealer: bool,
}

/// Place of a Recorder among the live ones; leaves it when dropped.
struct Live<'a>(&'a Server, Hash);

impl Drop for Live<'_> {
    fn drop(&mut self) {
        let Live(server, id) = self;
        let mut live = server.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|other| other != id);
        server.metrics.connected.store(live.len() as u64, Ordering::Relaxed);
    }
}

/// State that both threads of a connection share.
struct Link {
    sender: Sender,
    unanswered: AtomicUsize,
    is_refused: AtomicBool,
    /// Whether the receiving thread is done: the sending thread then ends without its last answers.
    is_ended: AtomicBool,
    name: String,
}

/// Accepts connections until the process ends.
pub fn accept(listener: &TcpListener, server: &Arc<Server>) {
    loop {
        let Ok((socket, address)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(100)); // out of descriptors
            continue;
        };
        if server.threads.load(Ordering::Relaxed) >= server.recorders_max + HANDSHAKES_MAX {
            count(&server.metrics.handshake_failures);
            continue;
        }
        server.threads.fetch_add(1, Ordering::Relaxed);
        let shared = server.clone();
        let thread = std::thread::Builder::new().name("recorder".into()).stack_size(512 << 10);
        let started = thread.spawn(move || {
            if let Err(error) = shared.serve(socket, address) {
                shared.log_failure(address, &error);
            }
            shared.threads.fetch_sub(1, Ordering::Relaxed);
        });
        if started.is_err() {
            server.threads.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Server {
    /// Whether a line about a foreign peer may be written: one a second.
    fn may_log(&self) -> bool {
        let now_s = crate::sequencer::wall_ms() / 1000;
        self.logged_s.swap(now_s, Ordering::Relaxed) != now_s
    }

    fn log_failure(&self, address: SocketAddr, error: &ChannelError) {
        if self.may_log() {
            eprintln!("evergate-master: connection from {address} ended: {error}");
        }
    }

    /// One connection from handshake to end.
    fn serve(&self, socket: TcpStream, address: SocketAddr) -> Result<(), ChannelError> {
        keep_alive(&socket)?;
        let channel = Channel::accept(socket, self.tls.clone(), self.peer_limit)
            .inspect_err(|_| count(&self.metrics.handshake_failures))?;
        let id = channel.peer();
        let (sender, receiver) = channel.split();
        let name = self.enrolled.get(&id).map_or_else(|| id_text(&id), |peer| peer.name.clone());
        let (is_refused, is_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let link = Arc::new(Link { sender, unanswered: AtomicUsize::new(0), is_refused, is_ended, name });
        let live = match self.admit(id) {
            Ok(live) => live,
            Err(refusal) => {
                self.send_refusal(&link, refusal);
                finish(&link, receiver);
                return Ok(());
            }
        };
        eprintln!("evergate-master: Recorder '{}' connected from {address}", link.name);
        let ended = self.converse(&link, id, receiver);
        drop(live);
        link.sender.close();
        let reason = ended.as_ref().map_or_else(ToString::to_string, |()| "refused".into());
        eprintln!("evergate-master: Recorder '{}' disconnected: {reason}", link.name);
        Ok(())
    }

    fn admit(&self, id: Hash) -> Result<Live<'_>, Refusal> {
        let refuse = |code, text: &str| Err(Refusal { code, text: text.into() });
        if !self.enrolled.contains_key(&id) {
            let text =
                format!("Recorder {} is not enrolled: add it to the Master's configuration", id_text(&id));
            return refuse(RefusalCode::NotEnrolled, &text);
        }
        let begin = Instant::now();
        let mut live = loop {
            let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
            if !live.contains(&id) {
                break live;
            }
            if begin.elapsed() > RECONNECT {
                let text = "a Recorder with this certificate is connected already";
                return refuse(RefusalCode::SecondConnection, text);
            }
            drop(live);
            std::thread::sleep(Duration::from_millis(10));
        };
        if live.len() >= self.recorders_max {
            return refuse(RefusalCode::Full, "the Master has as many Recorders as it may");
        }
        live.push(id);
        self.metrics.connected.store(live.len() as u64, Ordering::Relaxed);
        Ok(Live(self, id))
    }

    fn send_refusal(&self, link: &Link, refusal: Refusal) {
        if link.is_refused.swap(true, Ordering::Relaxed) {
            return;
        }
        self.metrics.record_refused(refusal.code);
        if self.may_log() {
            eprintln!("evergate-master: refused Recorder '{}': {}", link.name, refusal.text);
        }
        let _ = link.sender.send(&ToRecorder::Refused(refusal).to_frame());
        link.sender.finish();
    }

    /// Receives until the end; the other thread sends.
    fn converse(&self, link: &Arc<Link>, id: Hash, mut receiver: Receiver) -> Result<(), ChannelError> {
        let (connection, reply, answers) = reply();
        std::thread::scope(|scope| {
            scope.spawn(move || self.send_answers(link, &answers));
            let mut is_greeted = false;
            let mut limit = self.peer_limit;
            let ended = loop {
                if link.is_refused.load(Ordering::Relaxed) {
                    break Ok(());
                }
                let frame = match receiver.receive(limit) {
                    Ok(Some(frame)) => frame,
                    Ok(None) if is_greeted => continue,
                    Ok(None) => break Err(ChannelError::Slow(limit)),
                    Err(ChannelError::Malformed(error)) => {
                        self.send_refusal(link, malformed(&error.to_string()));
                        break Ok(());
                    }
                    Err(error) => break Err(error),
                };
                let unavailable =
                    || Refusal { code: RefusalCode::Unavailable, text: "the Master stops".into() };
                let input = self.input(link, &id, &frame, is_greeted, &reply);
                if let Err(refusal) =
                    input.and_then(|input| self.inputs.send(input).map_err(|_| unavailable()))
                {
                    self.send_refusal(link, refusal);
                }
                is_greeted = true;
                limit = Duration::from_secs(1);
            };
            drop((connection, reply));
            link.is_ended.store(true, Ordering::Relaxed);
            if ended.is_ok() {
                finish(link, receiver);
            } else {
                link.sender.close();
            }
            ended
        })
    }

    /// Input of a frame.
    fn input(
        &self,
        link: &Link,
        id: &Hash,
        frame: &[u8],
        is_greeted: bool,
        reply: &Reply,
    ) -> Result<Input, Refusal> {
        let (reply, arrived) = (reply.clone(), Instant::now());
        let message = ToMaster::decode(frame).map_err(|error| undecoded(frame, &error))?;
        if !matches!(message, ToMaster::Hello(_))
            && link.unanswered.fetch_add(1, Ordering::Relaxed) >= UNANSWERED_MAX
        {
            let text = format!("more than {UNANSWERED_MAX} messages without an answer");
            return Err(Refusal { code: RefusalCode::TooMany, text });
        }
        let is_own = |recorder: &Hash| match recorder == id {
            true => Ok(()),
            false => Err(malformed("it names another Recorder than the certificate")),
        };
        let is_revealer = self.enrolled.get(id).is_some_and(|peer| peer.is_revealer);
        if let Some(asked) = revealer_request(&message) {
            if !is_greeted || !is_revealer {
                return Err(malformed("a message of a Revealer, from a peer that is none"));
            }
            return revealer_input(message, Asked { number: asked, reply })
                .ok_or_else(|| malformed("a message at the wrong time"));
        }
        if is_revealer && !matches!(message, ToMaster::Hello(_)) {
            return Err(malformed("a message of a Recorder, from a Revealer"));
        }
        match message {
            ToMaster::Hello(hello) if !is_greeted => Ok(Input::Hello { recorder: *id, hello, reply }),
            ToMaster::Hello(_) => Err(malformed("a second HELLO")),
            _ if !is_greeted => Err(malformed("no HELLO")),
            ToMaster::Statement(statement) => {
                is_own(&statement.recorder)?;
                Ok(Input::Statement { statement: Box::new(statement), reply, arrived })
            }
            ToMaster::Event { request, event } => {
                match &event {
                    Event::Deletion(deletion) => is_own(&deletion.recorder)?,
                    Event::Hold(hold) => is_own(&hold.recorder)?,
                    _ => return Err(malformed("an event that only the Master makes")),
                }
                Ok(Input::Event { request, event, reply, arrived })
            }
            _ => Err(malformed("a message at the wrong time")),
        }
    }

    /// Sends answers until the receiving thread ends.
    fn send_answers(&self, link: &Link, answers: &mpsc::Receiver<ToRecorder>) {
        loop {
            let answer = match answers.recv_timeout(Duration::from_millis(100)) {
                Ok(answer) => answer,
                Err(RecvTimeoutError::Timeout) if !link.is_ended.load(Ordering::Relaxed) => continue,
                Err(_) => return,
            };
            let mut frames = Vec::new();
            let mut number = 0;
            let mut next = Some(answer);
            while let Some(answer) = next {
                match answer {
                    ToRecorder::Refused(refusal) => {
                        let _ = link.sender.send(&frames);
                        return self.send_refusal(link, refusal);
                    }
                    ToRecorder::Welcome(_) => {}
                    _ => number += 1,
                }
                frames.extend(answer.to_frame());
                next = answers.try_recv().ok();
            }
            link.unanswered.fetch_sub(number, Ordering::Relaxed);
            if link.sender.send(&frames).is_err() {
                return link.sender.close();
            }
            if number > 0 {
                crate::test_points::reached(crate::test_points::Step::Answered);
            }
        }
    }
}

/// Input of a Revealer's message.
fn revealer_input(message: ToMaster, asked: Asked) -> Option<Input> {
    match message {
        ToMaster::Disclose { seen, note, envelope, .. } => {
            Some(Input::Disclose { seen, note, envelope, asked })
        }
        ToMaster::Report { outcome, .. } => Some(Input::Report { outcome, asked }),
        ToMaster::Destroy { epoch, order, .. } => Some(Input::Destroy { epoch, order, asked }),
        ToMaster::Announce { epoch, inner, .. } => Some(Input::Announce { epoch, inner, asked }),
        _ => None,
    }
}

/// Number of a message that only a Revealer sends.
fn revealer_request(message: &ToMaster) -> Option<u64> {
    match message {
        ToMaster::Disclose { request, .. }
        | ToMaster::Report { request, .. }
        | ToMaster::Announce { request, .. }
        | ToMaster::Destroy { request, .. } => Some(*request),
        ToMaster::Hello(_) | ToMaster::Statement(_) | ToMaster::Event { .. } => None,
    }
}

fn malformed(what: &str) -> Refusal {
    Refusal { code: RefusalCode::Malformed, text: format!("malformed message: {what}") }
}

/// Refusal of a frame that is no message.
fn undecoded(frame: &[u8], error: &Malformed) -> Refusal {
    match frame {
        [1, version, ..] if *version != VERSION => {
            Refusal { code: RefusalCode::Version, text: error.to_string() }
        }
        _ => malformed(&error.to_string()),
    }
}

/// Reads and drops what the peer still sends, so that a reset does not destroy the refusal on its way.
fn finish(link: &Link, mut receiver: Receiver) {
    let deadline = Instant::now() + FINISH;
    while Instant::now() < deadline {
        if receiver.receive(deadline.saturating_duration_since(Instant::now())).is_err() {
            break;
        }
    }
    link.sender.close();
}

/// Finds peers that are gone without a word within half a minute.
fn keep_alive(socket: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(5))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    Ok(())
}
