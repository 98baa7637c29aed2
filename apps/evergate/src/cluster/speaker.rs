//! Tells the network where the movable addresses live, while this node is the one that answers for them.
//!
//! In steer mode the switch learns the place of the virtual MAC from what comes from it, and only announcements and answers
//! come from it. In flood mode the switch must never learn it: announcements come from the card's own address.

use super::Interface;
use evergate_base::Micros;
use evergate_sys::Announcer;
use std::io;
use std::net::IpAddr;

/// How long after the start an announcement is repeated, in milliseconds; the first may meet a gate that is just opening,
/// or get lost.
const REPEATS_MS: [u64; 4] = [0, 20, 100, 500];
/// Between announcements later on: well within the time after which switches forget.
const INTERVAL: Micros = Micros::from_ms(5000);

/// Announcements on both interfaces.
pub(crate) struct Speaker {
    places: Vec<(Announcer, Vec<IpAddr>)>,
    since: Option<Micros>,
    said: usize,
    next_at: Micros,
}

impl Speaker {
    /// `flood`: the switch must not learn where the virtual MAC lives.
    pub(crate) fn new(
        places: [(Interface, Vec<IpAddr>); 2],
        virtual_mac: [u8; 6],
        flood: bool,
    ) -> io::Result<Speaker> {
        let open = |(interface, addresses): (Interface, Vec<IpAddr>)| {
            let source = if flood { interface.mac } else { virtual_mac };
            Ok((Announcer::new(interface.index, virtual_mac, source)?, addresses))
        };
        let places = places.into_iter().map(open).collect::<io::Result<Vec<_>>>()?;
        Ok(Speaker { places, since: None, said: 0, next_at: Micros(0) })
    }

    /// When there is something to say; `None` while this node does not answer for the addresses.
    pub(crate) fn next_at(&self) -> Option<Micros> {
        self.since.map(|_| self.next_at)
    }

    /// `open`: whether this node's gate lets it speak for the addresses.
    pub(crate) fn tend(&mut self, now: Micros, open: bool) {
        if !open {
            self.since = None;
            return;
        }
        if self.since.is_none() {
            (self.since, self.said, self.next_at) = (Some(now), 0, now);
        }
        if now < self.next_at {
            return;
        }
        for (announcer, addresses) in &self.places {
            for ip in addresses {
                // It is said again soon.
                let _ = announcer.announce(*ip);
            }
        }
        self.said += 1;
        let since = self.since.unwrap_or(now);
        self.next_at = REPEATS_MS.get(self.said).map_or(now + INTERVAL, |ms| since + Micros::from_ms(*ms));
    }
}
