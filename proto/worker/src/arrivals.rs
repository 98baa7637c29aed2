//! Accepted sockets whose PROXY header is awaited, on listeners with trusted proxies.
//!
//! No connection exists before its header is whole: the header names the client that limits, rules and logs use. Its
//! bytes are peeked at until then, and exactly its bytes are consumed. In a cluster the gate acknowledges none of them
//! before the backups have the addresses: when this node fails earlier, the proxy sends its header again, and the next
//! owner accepts the connection.
//!
//! Invariants: at most [`ARRIVALS_MAX`] sockets wait, and none longer than `timeouts.handshake`. Only peers in the
//! listener's trusted networks wait.

use crate::host::{Host, Poll, Socket};
use crate::replication::ConnectionReplication;
use crate::slab::{Key, Slab, Source};
use crate::worker::Worker;
use evergate_base::net::{Event, Transfer};
use evergate_base::{Bucket, Micros};
use evergate_proxy_protocol::{Decoded, V2_BYTES_MAX, decode};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Most sockets of one worker that wait. One more ends the one that has waited longest.
const ARRIVALS_MAX: usize = 1024;

/// Addresses of an accepted connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Peer of the socket.
    pub(crate) peer: SocketAddr,
    /// Our address.
    pub(crate) local: SocketAddr,
    /// Addresses by a PROXY header: the client's, and the one that it connected to. A header without addresses leaves
    /// those of the socket.
    pub(crate) proxied: Option<(SocketAddr, SocketAddr)>,
}

impl Ends {
    /// Addresses of the socket, with IPv4-mapped ones as IPv4.
    pub(crate) fn of_socket(peer: SocketAddr, local: SocketAddr) -> Ends {
        Ends { peer, local, proxied: None }
    }

    /// The client's address, and the one that it connected to.
    pub(crate) fn of_client(&self) -> (SocketAddr, SocketAddr) {
        self.proxied.unwrap_or((self.peer, self.local))
    }

    /// The proxy, if a header came first.
    pub(crate) fn proxy(&self) -> Option<SocketAddr> {
        self.proxied.map(|_| self.peer)
    }
}

/// One accepted socket before its header is whole.
pub(crate) struct Arrival<H: Host> {
    pub(crate) socket: H::Socket,
    /// Name of the listener.
    pub(crate) listener: String,
    pub(crate) ends: Ends,
    /// In a cluster: its gated leg.
    pub(crate) gated: Option<ConnectionReplication<H>>,
    /// Time of the accept.
    pub(crate) since: Micros,
}

/// All sockets of a worker whose header is awaited.
pub(crate) struct Arrivals<H: Host> {
    waiting: Slab<(Arrival<H>, Micros)>,
    deadlines: BTreeSet<(Micros, Key)>,
}

impl<H: Host> Default for Arrivals<H> {
    fn default() -> Arrivals<H> {
        Arrivals { waiting: Slab::new(), deadlines: BTreeSet::new() }
    }
}

impl<H: Host> Arrivals<H> {
    /// Whether none waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.len() == 0
    }

    fn insert(&mut self, arrival: Arrival<H>, until: Micros) -> Key {
        let key = self.waiting.insert((arrival, until));
        self.deadlines.insert((until, key));
        key
    }

    fn remove(&mut self, key: Key) -> Option<Arrival<H>> {
        let (arrival, until) = self.waiting.remove(key)?;
        self.deadlines.remove(&(until, key));
        Some(arrival)
    }

    /// The one that is over at `now`. At the bound the one with the earliest deadline is over.
    fn over(&self, now: Micros) -> Option<Key> {
        let (until, key) = *self.deadlines.first()?;
        (until <= now || self.waiting.len() > ARRIVALS_MAX).then_some(key)
    }

    fn of_bucket(&self, bucket: Option<Bucket>) -> impl Iterator<Item = (Key, &Arrival<H>)> {
        let all = self.waiting.iter().map(|(key, (arrival, _))| (key, arrival));
        all.filter(move |(_, arrival)| {
            arrival.gated.as_ref().is_some_and(|gated| bucket.is_none_or(|bucket| gated.bucket == bucket))
        })
    }

    /// Whether a socket of the bucket was accepted after `since`.
    pub(crate) fn has_newer(&self, bucket: Bucket, since: Micros) -> bool {
        self.of_bucket(Some(bucket)).any(|(_, arrival)| arrival.since > since)
    }
}

/// Outcome of a look at the first bytes of a socket.
enum HeaderRead {
    /// The header is whole, and consumed.
    Whole {
        /// The client's address, and the one that it connected to; `None`: the socket's own count.
        named: Option<(SocketAddr, SocketAddr)>,
        /// Length of the header, in bytes.
        len: usize,
    },
    /// More bytes decide.
    Incomplete,
    /// The peer has sent nothing and is gone, as after a check of the port.
    Gone,
    /// The bytes are no header.
    Refused(&'static str),
}

fn read_header(socket: &impl Socket, ended: bool) -> HeaderRead {
    let mut bytes = [0; V2_BYTES_MAX];
    let count = match socket.peek(&mut bytes) {
        Transfer::Moved(count) => count,
        Transfer::Blocked if !ended => return HeaderRead::Incomplete,
        Transfer::Blocked | Transfer::End | Transfer::Broken(_) => return HeaderRead::Gone,
    };
    let (named, len) = match decode(bytes.get(..count).unwrap_or_default()) {
        Ok(Decoded::Header(header)) => {
            (header.endpoints.map(|ends| (ends.source(), ends.destination())), header.len)
        }
        Ok(Decoded::NeedMore) if ended => return HeaderRead::Refused("proxy_header_malformed"),
        Ok(Decoded::NeedMore) => return HeaderRead::Incomplete,
        Err(error) => return HeaderRead::Refused(error.reason()),
    };
    match bytes.get_mut(..len).map(|header| socket.read(header)) {
        Some(Transfer::Moved(read)) if read == len => HeaderRead::Whole { named, len },
        _ => HeaderRead::Gone, // reset since
    }
}

impl<H: Host> Worker<H> {
    /// Serves an accepted socket once its header is whole; most often it has arrived.
    pub(super) fn await_header(&mut self, arrival: Arrival<H>) {
        let seen = read_header(&arrival.socket, false);
        if !matches!(seen, HeaderRead::Incomplete) {
            return self.finish_arrival(arrival, seen);
        }
        if self.is_leaving(&arrival) {
            return self.drop_gated(arrival.socket, arrival.gated);
        }
        let descriptor = arrival.socket.descriptor();
        let newest = &self.current[self.current.len() - 1].generation.snapshot;
        let until = self.now + newest.timeouts.handshake;
        let key = self.arrivals.insert(arrival, until);
        if self.register(descriptor, Source::Arrival(key)).is_err() {
            self.refuse_arrival(key, None);
        }
        self.expire_arrivals();
    }

    /// Whether the next owner accepts the connection instead: the bucket is on hold, and no more of the header comes.
    fn is_leaving(&self, arrival: &Arrival<H>) -> bool {
        let bucket = arrival.gated.as_ref().map(|gated| gated.bucket);
        self.cluster.as_ref().zip(bucket).is_some_and(|(cluster, bucket)| cluster.is_frozen(bucket))
    }

    /// More of a header has come, or the end.
    pub(super) fn arrival_event(&mut self, key: Key, event: Event) {
        self.serve_arrival(key, event.ended || event.broken);
    }

    fn serve_arrival(&mut self, key: Key, ended: bool) {
        let Some((arrival, _)) = self.arrivals.waiting.get(key) else { return };
        let seen = read_header(&arrival.socket, ended);
        if matches!(seen, HeaderRead::Incomplete) {
            return;
        }
        let Some(arrival) = self.arrivals.remove(key) else { return };
        let _ = self.poll.remove(arrival.socket.descriptor()); // it comes back as a client's, or is closed
        self.finish_arrival(arrival, seen);
    }

    fn finish_arrival(&mut self, arrival: Arrival<H>, seen: HeaderRead) {
        let Arrival { socket, listener, mut ends, mut gated, .. } = arrival;
        let len = match seen {
            HeaderRead::Whole { named, len } => {
                ends.proxied = Some(named.unwrap_or((ends.peer, ends.local)));
                len
            }
            HeaderRead::Refused(reason) => {
                self.counters.reason(reason);
                self.counters.refused.add(1);
                return self.refuse_gated(socket, gated);
            }
            HeaderRead::Incomplete | HeaderRead::Gone => return self.refuse_gated(socket, gated),
        };
        if let Some(gated) = &mut gated {
            // Positions of the connection begin behind the header.
            gated.leg.handle_read(len, self.now);
            gated.leg.restart(self.now);
        }
        let Some(position) = self.newest_snapshot().listener_index(&listener) else {
            return self.refuse_gated(socket, gated); // removed since
        };
        let (client, _) = ends.of_client();
        let Some(share) = self.admit(&listener, client.ip()) else {
            self.counters.refused.add(1);
            return self.refuse_gated(socket, gated);
        };
        self.counters.accepted.add(1);
        self.serve_accepted(socket, position, &ends, share, gated);
    }

    /// Refuses one that waits, for this reason if there is one.
    fn refuse_arrival(&mut self, key: Key, reason: Option<&'static str>) {
        let Some(Arrival { socket, gated, .. }) = self.arrivals.remove(key) else { return };
        if let Some(reason) = reason {
            self.counters.reason(reason);
        }
        self.counters.refused.add(1);
        self.refuse_gated(socket, gated);
    }

    /// Ends one whose step panicked.
    pub(super) fn break_off_arrival(&mut self, key: Key) {
        self.refuse_arrival(key, None);
    }

    /// Refuses those whose header is late.
    pub(super) fn expire_arrivals(&mut self) {
        while let Some(key) = self.arrivals.over(self.now) {
            self.refuse_arrival(key, Some("proxy_header_timeout"));
        }
    }

    /// Drops those of a bucket that moves away, or of all buckets, without a packet: no byte of theirs is acknowledged,
    /// and the next owner accepts them when their proxies send again.
    pub(super) fn leave_arrivals(&mut self, bucket: Option<Bucket>) {
        let keys: Vec<Key> = self.arrivals.of_bucket(bucket).map(|(key, _)| key).collect();
        for key in keys {
            if let Some(Arrival { socket, gated, .. }) = self.arrivals.remove(key) {
                self.drop_gated(socket, gated);
            }
        }
    }

    /// Whether sockets wait for their header.
    pub fn has_arrivals(&self) -> bool {
        !self.arrivals.is_empty()
    }
}
