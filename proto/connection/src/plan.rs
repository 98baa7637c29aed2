//! Records that need no entry, because every node makes them in the same way.
//!
//! A response whose length its head says is *planned*: each of its records is full, or ends the response. Whoever restores
//! the connection makes the very same records from what the server says again, so they leave without a round to the backups.
//! So does the close_notify of one whose request asked for the connection's end. Every other record is decided by an entry, also one inside such a response that could not wait until it is full.
//!
//! Law: in a planned response, a record that no entry names is full or the last. What follows from it: a restored connection
//! sends nothing else before the response under way has ended, because it does not know how much of it was sent.
//! Bodies without a length are not planned: a restored one might wait for ever for what fills its record.

use crate::Io;
use crate::connection::{Answering, ClientTls, Connection};
use crate::remote::Remote;
use evergate_http::Body;
use evergate_tls::PAYLOAD_MAX;

impl Remote {
    /// Whether what is to be sent waits until it makes a record that was decided, or may have been sent as planned.
    pub(crate) fn holds_back(&self) -> bool {
        self.replays() || (self.resumed && self.planned)
    }
}

impl Connection {
    /// A response begins; `framed` says that its length is known.
    pub(crate) fn begin_plan(&mut self, framed: bool) {
        let sealed = matches!(self.tls, ClientTls::Open(_));
        let leg = self.leg.as_ref().filter(|leg| !leg.is_tls()).map(|leg| leg.id);
        if let Some(remote) = &mut self.remote {
            remote.planned = framed && sealed;
            remote.resumed &= remote.planned; // what is not planned was sent with entries or not at all
            if let Some(leg) = leg.filter(|_| remote.planned && !remote.is_repeating()) {
                remote.retain_no_more(leg);
            }
        }
    }

    /// A restored connection goes on with the response that its server leg carries.
    pub(crate) fn resume_plan(&mut self) {
        let sealed = matches!(self.tls, ClientTls::Open(_));
        let within = matches!(self.answering, Answering::Body(Body::Length { .. }));
        if let Some(remote) = &mut self.remote {
            remote.planned = sealed && within;
            remote.resumed = sealed && (within || self.answering == Answering::Head);
        }
    }

    /// Whether a record of so many bytes is as planned. `last`: nothing of what is in hand follows it.
    pub(crate) fn is_planned(&self, length: usize, last: bool) -> bool {
        let ends = last && self.answering == Answering::Body(Body::Done);
        self.remote.as_ref().is_some_and(|remote| remote.planned) && (ends || length == PAYLOAD_MAX)
    }

    /// Whether so many bytes, the newest of a body, are kept back until more fills their record.
    pub(crate) fn waits_for_more(&self, length: usize) -> bool {
        let goes_on =
            matches!(self.answering, Answering::Body(Body::Length { left }) if left > length as u64);
        goes_on && self.remote.as_ref().is_some_and(|remote| remote.planned && !remote.is_repeating())
    }

    /// What was kept back is sent as a record of its own; whether there was something.
    pub(crate) fn send_held(&mut self, io: &mut Io<'_>) -> bool {
        let held = match &mut self.remote {
            Some(remote) if !remote.is_repeating() => std::mem::take(&mut remote.hold),
            _ => return false,
        };
        if !held.is_empty() {
            self.seal_copy(io, &held);
        }
        !held.is_empty()
    }

    /// A restored connection: the next record as planned, if it is full; whether it was.
    pub(crate) fn repeat_planned(&mut self, io: &mut Io<'_>) -> bool {
        let Some(remote) = self.remote.as_mut().filter(|remote| remote.planned) else { return false };
        if remote.hold.len() < PAYLOAD_MAX {
            return false;
        }
        let record: Vec<u8> = remote.hold.drain(..PAYLOAD_MAX).collect();
        self.repeat(|connection| connection.seal_copy(io, &record)).is_some()
    }

    /// A restored connection: what comes before a response (100, 103) was sent with entries or not at all.
    pub(crate) fn send_undecided(&mut self, io: &mut Io<'_>) {
        if let Some(remote) = self.remote.as_mut().filter(|remote| !remote.planned) {
            let held = std::mem::take(&mut remote.hold);
            self.frame_fresh(io, &held);
        }
    }

    /// A restored connection, when nothing keeps it from sending any more: what waited for that.
    pub(crate) fn send_waiting(&mut self, io: &mut Io<'_>) {
        let waits = |remote: &Remote| remote.owed > 0 || remote.end_after_replay.is_some();
        if self.remote.as_ref().is_some_and(|remote| !remote.is_repeating() && waits(remote)) {
            self.after_replay(io);
        }
    }

    /// The response under way is whole; whether the end of the connection is planned to follow it.
    pub(crate) fn end_plan(&mut self, io: &mut Io<'_>) -> bool {
        let next = self.next_record();
        let closes = self.leg.as_ref().is_some_and(|leg| leg.route.flags.close);
        let Some(remote) = &mut self.remote else { return false };
        let planned = std::mem::take(&mut remote.planned);
        if !remote.resumed {
            if !remote.replays() {
                remote.hold = Vec::new(); // an idle connection holds no buffer
            }
            return planned && closes;
        }
        remote.resumed = false;
        let held = std::mem::take(&mut remote.hold);
        let decided = remote.forced.front().is_some_and(|boundary| Some(boundary.first) == next);
        if !held.is_empty() {
            if !planned || decided {
                self.end_abruptly(io, "replay_differs"); // the first time it was longer
                return false;
            }
            self.repeat(|connection| connection.seal_copy(io, &held));
        }
        if let Some(remote) = self.remote.as_mut().filter(|_| planned && closes) {
            (remote.owed, remote.end_after_replay) = (0, None); // its place is the end's
        }
        self.frame_decided(io);
        planned && closes
    }

    /// The connection ends after its last response.
    pub(crate) fn end_as_planned(&mut self, io: &mut Io<'_>, planned: bool) {
        if let Some(remote) = &mut self.remote {
            remote.ends_as_planned = planned;
        }
        self.end_orderly(io, "");
        if let Some(remote) = &mut self.remote {
            remote.ends_as_planned = false;
        }
    }

    /// The connection ends: nothing is kept back any more.
    pub(crate) fn forget_plan(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.hold = Vec::new();
            (remote.planned, remote.resumed) = (false, false);
        }
    }
}
