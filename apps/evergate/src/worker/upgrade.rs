//! Worker side of an upgrade: connections go to the same worker of the new process, or come from that of the old one.
//!
//! The engine exports and imports connections (`evergate_worker`, `passing`); this file carries their bytes and
//! descriptors. A worker that has passed everything stays until it is stopped. If the new process ends before it has
//! the connections of other workers, this one serves again.
//!
//! Bound: [`CONNECTIONS_PER_TURN`] connections move in one turn; a connection that the stream does not take yet waits
//! in it.

use super::event_loop::EventLoop;
use super::linux::{SplicePipe, TcpSocket};
use super::upgrade_frames::{CONFIRMED, END, UpgradeFrame};
use super::{Command, ListenerSocket};
use crate::control::console;
use crate::upgrade::{Link, Progress};
use evergate_base::Micros;
use evergate_base::net::Event;
use evergate_sys::Pipe;
use evergate_worker::host::{Host, Pipe as _, Poll};
use evergate_worker::{Carried, Key, Moving, Source};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Numbers of the streams among the descriptors of the event loop.
pub(super) const PREDECESSOR: u32 = 0;
const SUCCESSOR: u32 = 1;
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

/// A command of the control plane about another process.
pub enum UpgradeCommand {
    /// Receive connections of the old process on this non-blocking stream.
    Inherit(UnixStream),
    /// Accept no new connections, and pass all existing ones to the new process over this non-blocking stream.
    Handoff(UnixStream, Arc<Progress>),
    /// The new process is gone: serve again, on these sockets.
    TakeBack(Vec<ListenerSocket>),
}

impl From<UpgradeCommand> for Command {
    fn from(command: UpgradeCommand) -> Command {
        Command::Shell(command)
    }
}

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
}

impl EventLoop {
    /// Handles the commands about other processes, in order among those to the engine.
    pub(super) fn handle_upgrade_commands(&mut self) {
        while let Some(command) = self.engine.take_shell_command() {
            match command {
                UpgradeCommand::Inherit(stream) => self.begin_inheriting(stream),
                UpgradeCommand::Handoff(stream, progress) => self.begin_transfer(stream, progress),
                UpgradeCommand::TakeBack(listeners) => {
                    self.successor = None;
                    self.engine.take_back(listeners);
                }
            }
            self.engine.handle_commands();
        }
    }

    /// Starts to pass everything to the new process, which already has the listeners' queues.
    fn begin_transfer(&mut self, stream: UnixStream, progress: Arc<Progress>) {
        let link = Link::new(stream);
        if self.engine.poll_mut().add(link.fd(), Source::Shell(SUCCESSOR).token()).is_err() {
            self.engine.counters().reason("epoll_failed"); // every turn polls it anyway
        }
        self.successor = Some(Box::new(Successor {
            link,
            progress,
            turn: self.engine.begin_passing(),
            look_at: Micros(0),
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

    /// The stream takes more data, or its other end is closed; the rest of the turn handles it.
    pub(super) fn successor_event(&mut self, event: Event) {
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
        for command in self.engine.take_last_shell_commands() {
            match command {
                UpgradeCommand::Handoff(stream, progress) => {
                    end_stream(stream);
                    progress.skip();
                }
                UpgradeCommand::Inherit(stream) => self.end_inheriting(&Link::new(stream)),
                UpgradeCommand::TakeBack(_) => {}
            }
        }
    }

    /// Passes on what can go; once a turn.
    pub(super) fn transfer(&mut self) {
        let Some(mut successor) = self.successor.take() else { return };
        if !successor.broken
            && let Err(error) = self.pass_some(&mut successor)
        {
            console::error(format_args!("cannot pass connections to the new process: {error}"));
            (successor.broken, successor.busy) = (true, false);
            self.engine.break_passing();
            successor.progress.broken.store(true, Ordering::Relaxed);
        }
        // Only a drain shows that the new process lives without the stream.
        let ended = successor.broken && self.engine.is_drained();
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
            match self.engine.export(key, pack) {
                Some(Ok((bytes, descriptors))) => {
                    successor.link.push(&bytes, descriptors)?;
                    successor.progress.passed.fetch_add(1, Ordering::Relaxed);
                    self.engine.release_client(key);
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
        let left = self.engine.end_sweep();
        if !std::mem::replace(&mut successor.swept, true) {
            let mut all = successor.progress.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.into_iter().for_each(|(reason, count)| *all.entry(reason).or_default() += count);
            successor.progress.swept.fetch_add(1, Ordering::Relaxed);
        }
        let now = Micros(super::Linux.monotonic_us());
        if left.is_empty() && !self.engine.has_arrivals() {
            successor.link.push(&[END], Vec::new())?;
            successor.link.flush()?;
            successor.ended = true;
        } else if now >= successor.look_at {
            successor.look_at = now + POLL_EVERY;
            successor.turn = left;
        }
        Ok(())
    }
}

/// The frame of a connection, and its descriptors.
fn pack(
    moving: Moving,
    carried: Carried<&TcpSocket, &SplicePipe>,
    state: &[u8],
) -> Result<(Vec<u8>, Vec<OwnedFd>), &'static str> {
    let Ok((frame, descriptors)) = descriptors(moving, carried) else {
        return Err("descriptors"); // none is left until other connections have moved
    };
    Ok((frame.encode(state), descriptors))
}

fn descriptors(
    moving: Moving,
    carried: Carried<&TcpSocket, &SplicePipe>,
) -> io::Result<(UpgradeFrame, Vec<OwnedFd>)> {
    let Carried { client, server, down, up } = carried;
    let mut descriptors = vec![client.0.try_clone()?];
    if let Some(server) = server {
        descriptors.push(server.0.try_clone()?);
    }
    for pipe in [down, up].into_iter().flatten() {
        let (reader, writer) = pipe.0.descriptors()?;
        descriptors.extend([reader, writer]);
    }
    let held = |pipe: Option<&SplicePipe>| pipe.map(|pipe| pipe.held() as u64);
    Ok((UpgradeFrame { moving, has_server: server.is_some(), down: held(down), up: held(up) }, descriptors))
}

/// Sends the end on behalf of a worker that has ended. No answer is read.
pub fn end_stream(stream: UnixStream) {
    let _ = Link::new(stream).send(&[END], Vec::new()); // without it the new process logs the loss
}

/// The worker of the old process.
pub(super) struct Predecessor {
    link: Link,
}

impl EventLoop {
    /// Connections come on this stream.
    fn begin_inheriting(&mut self, stream: UnixStream) {
        let link = Link::new(stream);
        if let Err(error) = self.engine.poll_mut().add_input(link.fd(), Source::Shell(PREDECESSOR).token()) {
            self.engine.counters().reason("epoll_failed");
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
        let _ = self.engine.poll_mut().remove(link.fd());
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
            let whole = if frame.lost == 0 { Ok(()) } else { Err(NO_DESCRIPTORS.to_owned()) };
            if let Err(why) = whole.and_then(|()| self.adopt(&frame.bytes, frame.descriptors)) {
                self.engine.counters().reason("upgrade_transfer_failed");
                console::warning(format_args!("a connection of the process before is lost: {why}"));
            }
        }
        Ok(true)
    }

    /// Continues a connection of the old process here.
    fn adopt(&mut self, bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<(), String> {
        let (frame, state) = UpgradeFrame::decode(bytes).ok_or("the frame has another form")?;
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or_else(|| "a descriptor is missing".to_owned());
        let client = TcpSocket(next()?);
        let server = if frame.has_server { Some(TcpSocket(next()?)) } else { None };
        let mut pipe = |held: Option<u64>| match held {
            None => Ok(None),
            Some(held) => Ok::<_, String>(Some(SplicePipe(Pipe::of(next()?, next()?, held as usize)))),
        };
        let (down, up) = (pipe(frame.down)?, pipe(frame.up)?);
        // A panic has ended the connection, and is counted.
        self.engine.import(frame.moving, Carried { client, server, down, up }, state).unwrap_or(Ok(()))
    }
}
