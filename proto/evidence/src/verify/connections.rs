//! Check of `packet_seq`: the packets of a connection count 1, 2, … and its last record has their number.
//!
//! Memory: one entry for each open connection, at most a given number. Holes that another finding or a declared
//! deletion explains excuse one jump of each connection that was open then.

use std::collections::HashMap;

/// Bytes of memory for each open connection: entry and load of the table, while it grows.
pub(crate) const CONNECTION_BYTES: usize = 64;

#[derive(Debug)]
pub(crate) struct Connections {
    open: HashMap<u64, Progress>,
    open_max: usize,
    /// Number of holes in the stream so far.
    holes: u32,
    /// Whether a connection may have begun within a hole.
    is_incomplete: bool,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    last: u64,
    /// Holes of the stream when its last packet was read.
    holes: u32,
}

/// Reason why a connection does not count on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    /// Packet that follows another one than its number states.
    Hole { after: u64 },
    /// More connections are open than memory allows.
    Memory,
}

impl Connections {
    pub(crate) fn new(open_max: usize) -> Connections {
        Connections { open: HashMap::new(), open_max, holes: 0, is_incomplete: false }
    }

    /// The Recorder starts: no connection continues.
    pub(crate) fn on_start(&mut self) {
        self.open.clear();
        self.is_incomplete = false;
    }

    /// Records are missing here.
    pub(crate) fn on_hole(&mut self) {
        self.holes += 1;
        self.is_incomplete = true;
    }

    pub(crate) fn on_packet(&mut self, connection: u64, packet_seq: u64) -> Result<(), Break> {
        let holes = self.holes;
        if let Some(progress) = self.open.get_mut(&connection) {
            let after = progress.last;
            let is_excused = progress.holes < holes && packet_seq > after;
            *progress = Progress { last: packet_seq, holes };
            return match after.checked_add(1) == Some(packet_seq) || is_excused {
                true => Ok(()),
                false => Err(Break::Hole { after }),
            };
        }
        if self.open.len() >= self.open_max {
            return Err(Break::Memory);
        }
        self.open.insert(connection, Progress { last: packet_seq, holes });
        match packet_seq == 1 || self.is_incomplete {
            true => Ok(()),
            false => Err(Break::Hole { after: 0 }),
        }
    }

    /// The last record of a connection has this number of packets.
    pub(crate) fn on_final(&mut self, connection: u64, packets: u64) -> Result<(), Break> {
        let (after, is_excused) = match self.open.remove(&connection) {
            Some(progress) => (progress.last, progress.holes < self.holes && packets > progress.last),
            None => (0, self.is_incomplete),
        };
        if after == packets || is_excused { Ok(()) } else { Err(Break::Hole { after }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_count_without_a_hole() {
        let mut connections = Connections::new(8);
        assert_eq!(connections.on_packet(5, 1), Ok(()));
        assert_eq!(connections.on_packet(5, 2), Ok(()));
        assert_eq!(connections.on_packet(5, 4), Err(Break::Hole { after: 2 }));
        assert_eq!(connections.on_final(5, 5), Err(Break::Hole { after: 4 }));
        assert_eq!(connections.on_packet(6, 2), Err(Break::Hole { after: 0 }));
        assert_eq!(connections.on_final(6, 2), Ok(()));
        assert_eq!(connections.on_final(7, 0), Ok(()));
    }

    #[test]
    fn hole_of_the_stream_excuses_one_jump() {
        let mut connections = Connections::new(8);
        assert_eq!(connections.on_packet(5, 1), Ok(()));
        connections.on_hole();
        assert_eq!(connections.on_packet(5, 9), Ok(()));
        assert_eq!(connections.on_packet(5, 11), Err(Break::Hole { after: 9 }));
        assert_eq!(connections.on_packet(6, 3), Ok(()));
        connections.on_start();
        assert_eq!(connections.on_packet(5, 2), Err(Break::Hole { after: 0 }));
    }

    #[test]
    fn connections_beyond_the_bound_are_refused() {
        let mut connections = Connections::new(1);
        assert_eq!(connections.on_packet(1, 1), Ok(()));
        assert_eq!(connections.on_packet(2, 1), Err(Break::Memory));
        assert_eq!(connections.on_final(1, 1), Ok(()));
        assert_eq!(connections.on_packet(2, 1), Ok(()));
    }
}
