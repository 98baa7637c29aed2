//! Listener for channels of other nodes' workers: a new channel has a few seconds to send its identity.
//!
//! Until then any machine may be at the other end. Bounds: from one node's address at most [`NAMELESS_PER_WORKER`] for
//! each of its workers, from all other addresses together [`UNLISTED_MAX`], and unlisted ones never get one of the last
//! descriptors. One more takes the place of the oldest of its kind, so idle connections cannot block the listener.

use super::backup::Incoming;
use crate::host::{Channel, Channels, Host, Poll};
use crate::slab::Source;
use crate::worker::{Worker, canonical};
use evergate_base::Micros;
use evergate_membership::NodeId;
use std::io;
use std::net::SocketAddr;

/// Channels from other nodes at a time.
const INCOMING_MAX: usize = 1024;
/// Most unidentified channels from addresses of no node.
const UNLISTED_MAX: usize = 16;
/// Most unidentified channels from a node's address, for each of its workers: a worker may reconnect before the end of
/// its last channel arrives.
const NAMELESS_PER_WORKER: usize = 2;
/// Time limit of the TLS handshake and the first frame.
const NAMELESS_FOR: Micros = Micros::from_ms(5_000);
/// Most channels accepted in one turn.
const BATCH: usize = 64;

/// Place for another channel from the address of `host`: a free one, or that of the oldest unidentified channel of the
/// same kind.
fn place<H: Host>(all: &[Option<Incoming<H>>], host: Option<NodeId>, workers: usize) -> Option<usize> {
    let max = host.map_or(UNLISTED_MAX, |_| NAMELESS_PER_WORKER * workers);
    let taken = all.iter().enumerate().filter_map(|(index, of)| Some((index, of.as_ref()?)));
    let nameless = taken.filter(|(_, incoming)| incoming.from.is_none() && incoming.host == host);
    let free = all.iter().position(Option::is_none).unwrap_or(all.len());
    if free < INCOMING_MAX && nameless.clone().count() < max {
        return Some(free);
    }
    nameless.min_by_key(|(_, incoming)| incoming.since).map(|(index, _)| index)
}

impl<H: Host> Worker<H> {
    /// Accepts channels of other nodes' workers. The listener is reported again if there are more.
    pub(crate) fn accept_channels(&mut self) {
        for _ in 0..BATCH {
            let Some(cluster) = &self.cluster else { return };
            match cluster.transport.accept() {
                Ok(Some((channel, address))) => self.accept_channel(channel, address),
                Ok(None) => return,
                Err(error) => return self.pause_channels(&error),
            }
        }
    }

    fn accept_channel(&mut self, channel: <H::Channels as Channels>::Channel, address: SocketAddr) {
        let Some(cluster) = &mut self.cluster else { return };
        let host = cluster.layout.node_at(canonical(address).ip());
        let has_descriptor = host.is_some() || self.shared.room.allows(channel.descriptor());
        let place =
            place(&cluster.channels.incoming, host, cluster.layout.workers).filter(|_| has_descriptor);
        let Some(index) = place else { return self.counters.reason("replication_channels_max") };
        let incoming = Incoming::new(channel, host, self.now);
        if self.poll.add(incoming.descriptor(), Source::Incoming(index as u32).token()).is_err() {
            return self.counters.reason("epoll_failed");
        }
        match cluster.channels.incoming.get_mut(index) {
            Some(place) => {
                if place.replace(incoming).is_some() {
                    self.counters.reason("replication_channels_max");
                }
            }
            None => cluster.channels.incoming.push(Some(incoming)),
        }
    }

    /// Stops accepting channels for a moment: an immediate retry would return the same error endlessly.
    fn pause_channels(&mut self, error: &io::Error) {
        self.log_shortage(error);
        self.counters.reason("accept_failed");
        let Some(cluster) = &mut self.cluster else { return };
        cluster.channels.paused =
            cluster.transport.listener().is_some_and(|listener| self.poll.remove(listener).is_ok());
    }

    /// Accepts channels again after a pause.
    pub(crate) fn resume_channels(&mut self) {
        let Some(cluster) = self.cluster.as_mut().filter(|cluster| cluster.channels.paused) else { return };
        let Some(listener) = cluster.transport.listener() else { return };
        cluster.channels.paused = self.poll.add_input(listener, Source::Channels.token()).is_err();
    }

    /// Closes channels whose identity is overdue.
    pub(super) fn end_nameless(&mut self) {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return };
        let is_late =
            |incoming: &mut Incoming<H>| incoming.from.is_none() && now.since(incoming.since) >= NAMELESS_FOR;
        for slot in &mut cluster.channels.incoming {
            if slot.take_if(is_late).is_some() {
                self.counters.reason("replication_channel_refused");
            }
        }
    }
}
