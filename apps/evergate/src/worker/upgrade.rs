//! Worker side of an upgrade: connections go to the same worker of the new process, or come from that of the old one.
//!
//! A connection moves between two turns of its own. All results of its last call are performed, unwritten output is in
//! its outlets, and spliced data is in a pipe, which moves along with its descriptors. A connection that cannot move
//! ([`Connection::export`] returns the reason) is served here and tried again soon. The sockets stay registered with
//! this worker's epoll until they are closed everywhere, so they are deregistered before they move.
//!
//! A worker that has passed everything stays until it is stopped. If the new process ends before it has the connections
//! of other workers, this one serves again.
//!
//! Bound: [`CONNECTIONS_PER_TURN`] connections move in one turn; a connection that the stream does not take yet waits
//! in it.

use super::linux::{SplicePipe, TcpSocket};
use super::slab::{Key, Source};
use super::upgrade_frames::{
    CONFIRMED, END, FIN_WAITS, HAS_PIPE_DOWN, HAS_PIPE_UP, HAS_SERVER, SERVER_FIN_WAITS, UpgradeFrame,
};
use super::upstreams::Upstream;
use super::{Client, Command, ListenerSocket, Pipes, Worker};
use crate::control::console;
use crate::upgrade::{Link, Progress};
use evergate_base::Micros;
use evergate_connection::{Connection, UpgradeLeg};
use evergate_sys::Pipe;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Connections that move in one turn.
const CONNECTIONS_PER_TURN: usize = 64;
/// Interval of attempts for connections that cannot move yet.
const POLL_EVERY: Micros = Micros::from_ms(5);
/// Longest sleep of the loop meanwhile, in milliseconds.
const WAIT_MS: i32 = 5;
/// Longest stall of the new process while the last frame is sent, when this process has to end.
const FINISHING: Duration = Duration::from_secs(1);
const NO_DESCRIPTORS: &str = "this process may not have more file descriptors: raise the limit of open files \
    (LimitNOFILE=, ulimit -n)";

/// The worker of the new process.
pub(super) struct Successor {
    link: Link,
    progress: Arc<Progress>,
    /// Connections to try next.
    turn: Vec<Key>,
    look_at: Micros,
    /// Every connection has been tried once.
    swept: bool,
    waiting: BTreeMap<&'static str, u64>,
    /// More can be done at once.
    busy: bool,
    ended: bool,
    confirmed: bool,
    /// Its end of the stream is closed.
    gone: bool,
    /// Nothing goes over the stream any more.
    broken: bool,
    /// The control plane knows that nothing is left here.
    reported: bool,
}

impl Successor {
    /// Milliseconds that the loop may sleep.
    pub(super) fn wait_ms(&self) -> i32 {
        if self.busy { 0 } else { WAIT_MS }
    }

    /// Whether the stream is broken: remaining connections then stay here.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }
}

impl Worker {
    /// Starts to pass everything to the new process, which already has the listeners' queues.
    pub(super) fn begin_transfer(&mut self, stream: UnixStream, progress: Arc<Progress>) {
        for listener in std::mem::take(&mut self.listeners).into_iter().flatten() {
            let _ = self.epoll.remove(listener.socket.as_raw_fd()); // it stays open in the new process
        }
        let link = Link::new(stream);
        if self.epoll.add(link.fd(), Source::Successor.token()).is_err() {
            self.counters.reason("epoll_failed"); // every turn polls it anyway
        }
        self.successor = Some(Box::new(Successor {
            link,
            progress,
            turn: self.waiting_last(),
            look_at: self.now,
            swept: false,
            waiting: BTreeMap::new(),
            busy: true,
            ended: false,
            confirmed: false,
            gone: false,
            broken: false,
            reported: false,
        }));
    }

    /// The connections in the order in which they are popped. Connections that wait for a server come last, so that
    /// they do not get the room of those that move.
    fn waiting_last(&self) -> Vec<Key> {
        let mut keys = self.clients.keys();
        keys.sort_by_key(|key| {
            self.clients.get(*key).is_none_or(|client| !client.connection.is_leg_queued())
        });
        keys
    }

    /// Whether the first pass is not over: room of connections that have only moved is not free.
    pub(super) fn is_sweeping(&self) -> bool {
        self.successor.as_ref().is_some_and(|successor| !successor.swept && !successor.broken)
    }

    /// The stream takes more data, or its other end is closed; the rest of the turn handles it.
    pub(super) fn successor_event(&mut self, event: evergate_sys::Event) {
        if let Some(successor) = &mut self.successor {
            successor.gone |= event.ended || event.broken;
        }
    }

    /// Ends the transfers of a worker that ends.
    pub(super) fn end_transfers(&mut self) {
        if let Some(Successor { progress, swept, reported, .. }) = self.successor.take().as_deref() {
            progress.swept.fetch_add(usize::from(!swept), Ordering::Relaxed);
            progress.done.fetch_add(usize::from(!reported), Ordering::Relaxed);
        }
        if let Some(predecessor) = self.predecessor.take() {
            self.end_inheriting(&predecessor.link);
        }
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Handoff(stream, progress) => {
                    end_stream(stream);
                    progress.skip();
                }
                Command::Inherit(stream) => self.end_inheriting(&Link::new(stream)),
                _ => {}
            }
        }
    }

    /// The new process is gone: this one serves again.
    pub(super) fn take_back(&mut self, listeners: Vec<ListenerSocket>) {
        self.successor = None;
        self.draining = false;
        self.change_listeners(listeners, &[]);
    }

    /// Passes on what can go; once a turn.
    pub(super) fn transfer(&mut self) {
        let Some(mut successor) = self.successor.take() else { return };
        if !successor.broken
            && let Err(error) = self.pass_some(&mut successor)
        {
            console::error(format_args!("cannot pass connections to the new process: {error}"));
            (successor.broken, successor.busy) = (true, false);
            successor.progress.broken.store(true, Ordering::Relaxed);
        }
        // Only a drain shows that the new process lives without the stream.
        let ended = successor.broken && self.draining && self.clients.len() == 0;
        let done = successor.confirmed || ended;
        if done && !std::mem::replace(&mut successor.reported, true) {
            successor.progress.done.fetch_add(1, Ordering::Relaxed);
        }
        self.successor = Some(successor);
    }

    /// Sends the rest of the frame on its way to the new process, before this process ends: no other process has its
    /// connection.
    pub(super) fn finish_transfer(&mut self) {
        if let Some(successor) = self.successor.as_mut().filter(|successor| !successor.broken)
            && let Err(error) = successor.link.finish(FINISHING)
        {
            console::error(format_args!("cannot pass a connection to the new process: {error}"));
        }
    }

    fn pass_some(&mut self, successor: &mut Successor) -> io::Result<()> {
        successor.busy = false;
        while successor.ended && !successor.confirmed {
            if let Some(frame) = successor.link.take()? {
                successor.confirmed = *frame.bytes == [CONFIRMED];
            } else if !successor.link.fill()? {
                break;
            }
        }
        if successor.gone && !successor.confirmed {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for _ in 0..CONNECTIONS_PER_TURN {
            if !successor.link.flush()? || successor.ended {
                return Ok(());
            }
            let Some(key) = successor.turn.pop() else { return self.end_sweep(successor) };
            let mut packed = None; // none after a panic, which ends the connection here
            self.guarded(Some(Source::Client(key)), |worker| packed = worker.pack(key));
            match packed {
                Some(Ok((bytes, descriptors))) => {
                    successor.link.push(&bytes, descriptors)?;
                    successor.progress.passed.fetch_add(1, Ordering::Relaxed);
                    self.release_client(key);
                }
                Some(Err(reason)) => *successor.waiting.entry(reason).or_default() += 1,
                None => {}
            }
        }
        successor.busy = true;
        Ok(())
    }

    fn end_sweep(&mut self, successor: &mut Successor) -> io::Result<()> {
        let waiting = std::mem::take(&mut successor.waiting);
        if !std::mem::replace(&mut successor.swept, true) {
            let mut all = successor.progress.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.into_iter().for_each(|(reason, count)| *all.entry(reason).or_default() += count);
            successor.progress.swept.fetch_add(1, Ordering::Relaxed);
        }
        if self.clients.len() == 0 {
            successor.link.push(&[END], Vec::new())?;
            successor.link.flush()?;
            successor.ended = true;
        } else if self.now >= successor.look_at {
            successor.look_at = self.now + POLL_EVERY;
            successor.turn = self.clients.keys();
        }
        Ok(())
    }

    /// Everything of a connection; or why it has to stay.
    #[expect(clippy::type_complexity, reason = "one frame: its bytes and its descriptors")]
    fn pack(&mut self, key: Key) -> Option<Result<(Vec<u8>, Vec<OwnedFd>), &'static str>> {
        let client = self.clients.get(key)?;
        #[cfg(test)]
        super::faults::strike_at("pack", Some(client.connection.client_address()));
        let newest = &self.current.last()?.generation.snapshot;
        let upgrade_state = match client.connection.export(newest) {
            Ok(upgrade_state) => upgrade_state,
            Err(reason) => return Some(Err(reason)),
        };
        let upstream = client.upstream.and_then(|upstream| self.upstreams.get(upstream));
        let (leg, bound) = (client.connection.leg_id(), client.connection.bound_leg());
        let has_server = leg.or(bound).is_some() && !client.connection.is_leg_queued();
        if has_server != upstream.is_some() {
            return Some(Err("no_server_socket"));
        }
        let packed = descriptors(client, upstream);
        Some(match packed {
            Ok((cargo, descriptors)) => Ok((cargo.encode(&upgrade_state), descriptors)),
            Err(_) => Err("descriptors"), // none is left until other connections have moved
        })
    }

    /// Drops a connection that is on its way: its sockets close here and stay open there.
    fn release_client(&mut self, key: Key) {
        let Some(client) = self.clients.get(key) else { return };
        let _ = self.epoll.remove(client.fd());
        if let Some(upstream) = client.upstream.and_then(|upstream| self.upstreams.get(upstream)) {
            let _ = self.epoll.remove(upstream.fd());
        }
        if client.connection.is_leg_queued() {
            self.stop_waiting(key);
        }
        self.forget(key);
    }
}

fn descriptors(client: &Client, upstream: Option<&Upstream>) -> io::Result<(UpgradeFrame, Vec<OwnedFd>)> {
    let mut cargo = UpgradeFrame::default();
    let mut descriptors = vec![client.socket.0.try_clone()?];
    if let Some(upstream) = upstream {
        descriptors.push(upstream.socket.0.try_clone()?);
        cargo.used_since = upstream.used_since.0;
        cargo.answered_at = upstream.answered_at.map_or(0, |at| at.0);
        cargo.way = upstream.server.way(upstream.tls_fingerprint);
    }
    cargo.set(HAS_SERVER, upstream.is_some());
    cargo.set(FIN_WAITS, client.fin_waits);
    cargo.set(SERVER_FIN_WAITS, client.server_fin_waits);
    if let Some(pipes) = &client.pipes {
        for (pipe, flag) in [(&pipes.down, HAS_PIPE_DOWN), (&pipes.up, HAS_PIPE_UP)] {
            let Some(pipe) = pipe else { continue };
            let (reader, writer) = pipe.0.descriptors()?;
            descriptors.extend([reader, writer]);
            cargo.set(flag, true);
            let held = if flag == HAS_PIPE_DOWN { &mut cargo.down } else { &mut cargo.up };
            *held = pipe.0.held() as u64;
        }
    }
    Ok((cargo, descriptors))
}

/// Sends the end on behalf of a worker that has ended. No answer is read.
pub fn end_stream(stream: UnixStream) {
    let _ = Link::new(stream).send(&[END], Vec::new()); // without it the new process logs the loss
}

/// The worker of the old process.
pub(super) struct Predecessor {
    link: Link,
}

impl Worker {
    /// Connections come on this stream.
    pub(super) fn begin_inheriting(&mut self, stream: UnixStream) {
        let link = Link::new(stream);
        if let Err(error) = self.epoll.add_input(link.fd(), Source::Predecessor.token()) {
            self.counters.reason("epoll_failed");
            console::warning(format_args!("cannot take connections of the process before: {error}"));
            return self.end_inheriting(&link); // the old process notices, and ends them
        }
        self.predecessor = Some(Predecessor { link });
    }

    /// Connections have come, or the old process has ended.
    pub(super) fn predecessor_event(&mut self) {
        let Some(mut predecessor) = self.predecessor.take() else { return };
        match self.inherit_some(&mut predecessor.link) {
            Ok(true) => self.predecessor = Some(predecessor),
            Ok(false) => self.end_inheriting(&predecessor.link),
            Err(error) => {
                self.end_inheriting(&predecessor.link);
                console::warning(format_args!(
                    "the process before ended before it had passed all its connections: {error}"
                ));
            }
        }
    }

    fn end_inheriting(&mut self, link: &Link) {
        let _ = self.epoll.remove(link.fd());
        if self.shared.inheriting.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.shared.room.hold_back(0);
        }
    }

    /// False when that was all.
    fn inherit_some(&mut self, link: &mut Link) -> io::Result<bool> {
        link.fill()?;
        while let Some(frame) = link.take()? {
            if *frame.bytes == [END] {
                // The first and only frame in this direction: the socket takes it, unless that worker has ended.
                let _ = link.push(&[CONFIRMED], Vec::new()).and_then(|()| link.flush());
                return Ok(false);
            }
            self.shared.room.hold_back_less(frame.descriptors.len() + frame.lost);
            self.guarded(None, |worker| {
                let whole = if frame.lost == 0 { Ok(()) } else { Err(NO_DESCRIPTORS.to_owned()) };
                if let Err(why) = whole.and_then(|()| worker.adopt(&frame.bytes, frame.descriptors)) {
                    worker.counters.reason("upgrade_transfer_failed");
                    console::warning(format_args!("a connection of the process before is lost: {why}"));
                }
            });
        }
        Ok(true)
    }

    /// Continues a connection of the old process here.
    fn adopt(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let missing = || "a descriptor is missing".to_owned();
        let (cargo, upgrade_state) = UpgradeFrame::decode(bytes).ok_or("the frame has another form")?;
        let snapshot = self.current[self.current.len() - 1].generation.snapshot.clone();
        let (connection, leg) =
            Connection::import(&snapshot, upgrade_state).map_err(|error| format!("{error:?}"))?;
        let mut descriptors = descriptors.into_iter();
        let socket = descriptors.next().ok_or_else(missing)?;
        let server = cargo.has(HAS_SERVER).then(|| descriptors.next().ok_or_else(missing)).transpose()?;
        if leg.is_some_and(|leg| leg.server.is_some()) != server.is_some() {
            return Err("a server leg without its socket".to_owned());
        }
        let mut pipes = Pipes::default();
        let mut pipe = |flag: u8, held: u64| match cargo.has(flag) {
            false => Ok(None),
            true => {
                let (reader, writer) = descriptors.next().zip(descriptors.next()).ok_or_else(missing)?;
                Ok::<_, String>(Some(SplicePipe(Pipe::of(reader, writer, held as usize))))
            }
        };
        pipes.down = pipe(HAS_PIPE_DOWN, cargo.down)?;
        pipes.up = pipe(HAS_PIPE_UP, cargo.up)?;
        let held = self.acquire_limits(connection.listener_name(), connection.client_address().ip());
        let mut client = Client::new(TcpSocket(socket), connection, held);
        client.readable = true;
        client.fin_waits = cargo.has(FIN_WAITS);
        client.server_fin_waits = cargo.has(SERVER_FIN_WAITS);
        if pipes.down.is_some() || pipes.up.is_some() {
            client.connection.handle_piped(cargo.down, cargo.up);
            client.pipes = Some(Box::new(pipes));
        }
        let fd = client.fd();
        let key = self.clients.insert(client);
        self.list(key);
        self.counters.open.set(self.clients.len() as u64);
        self.counters.inherited.add(1);
        if self.epoll.add(fd, Source::Client(key).token()).is_err() {
            self.forget(key);
            return Err("epoll does not take its socket".to_owned());
        }
        let waits = leg.is_some() && server.is_none();
        if let Some((server, leg)) = server.zip(leg) {
            self.adopt_server(key, server, leg, cargo);
        }
        if waits {
            self.with(key, |connection, io| connection.handle_leg_resumed(io));
            self.perform(key);
        }
        self.count_buffered(key);
        self.pump(key);
        if self.draining {
            self.with(key, |connection, io| connection.handle_drain(io));
            self.perform(key);
        }
        self.schedule(key);
        Ok(())
    }

    /// Continues a server connection. If it leads elsewhere or was made otherwise than new ones, it serves its request
    /// and is not pooled, as after a reload.
    fn adopt_server(&mut self, key: Key, socket: OwnedFd, leg: UpgradeLeg, cargo: UpgradeFrame) {
        let pools = &self.current[self.current.len() - 1].generation.pools;
        let pool = pools.get(leg.pool as usize);
        let known = pool.zip(leg.server).and_then(|(pool, index)| {
            Some((pool.servers.get(index as usize)?.clone(), index, pool.tls_fingerprint))
        });
        let Some((server, index, tls_fingerprint)) = known else {
            return self.forget(key); // unreachable: the snapshot has the server
        };
        let is_todays = server.way(tls_fingerprint) == cargo.way;
        let server = if is_todays { server } else { Arc::new(server.of_before()) };
        server.enter_resumed();
        let upstream = Upstream {
            index,
            owner: Some((key, leg.leg)),
            used_since: Micros(cargo.used_since),
            answered_at: (cargo.answered_at > 0).then_some(Micros(cargo.answered_at)),
            tls_fingerprint,
            readable: true,
            writable: true,
            ..Upstream::new(TcpSocket(socket), server)
        };
        self.add_upstream(key, upstream);
        self.note_bound(key);
    }
}
