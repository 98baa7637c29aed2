//! The connection moves to another process, with its sockets.

use super::World;
use evergate_connection::{Connection, UpgradeLeg};

impl World<'_> {
    /// Exports the connection and continues with the import. False when it has to stay.
    pub(crate) fn pass(&mut self) -> bool {
        if self.closed.is_some() {
            return false;
        }
        let snapshot = self.node.snapshot.clone();
        let bytes = match self.conn.export(&snapshot) {
            Ok(bytes) => bytes,
            Err(reason) => {
                assert!(["handshake", "connecting"].contains(&reason), "it stays because of {reason}");
                let waits = self.conn.is_handshaking() || !self.dials.is_empty();
                assert!(waits, "it stays ({reason}) although it waits for nothing");
                return false;
            }
        };
        let (connection, leg) = Connection::import(&snapshot, &bytes).expect("a state is imported");
        let expected = self.conn.leg_id().zip(self.conn.leg_server());
        let idles = self.conn.bound_leg().map(|leg| (leg, (0, self.legs[&leg].server)));
        let expected = expected.or(idles);
        let expected = expected.map(|(leg, (pool, server))| UpgradeLeg { leg, pool, server: Some(server) });
        assert_eq!(leg, expected);
        assert!(connection.export(&snapshot).as_ref() == Ok(&bytes), "another state of the same connection");
        for end in (0..bytes.len()).step_by(bytes.len() / 16 + 1) {
            assert!(Connection::import(&snapshot, &bytes[..end]).is_err(), "a truncated state");
        }
        self.conn = connection;
        true
    }

    /// States with other bits are refused or imported; an imported connection can be inspected and exported again.
    pub(crate) fn spoil_upgrade_state(&mut self, spoils: usize) {
        let snapshot = self.node.snapshot.clone();
        let Ok(bytes) = self.conn.export(&snapshot) else { return };
        for _ in 0..spoils {
            let mut other = bytes.clone();
            for _ in 0..=self.rng.below(3) {
                let at = self.rng.below(other.len());
                other[at] ^= 1 << self.rng.below(8);
            }
            if let Ok((connection, leg)) = Connection::import(&snapshot, &other) {
                assert_eq!(connection.leg_id().or(connection.bound_leg()), leg.map(|leg| leg.leg));
                let _ = (connection.wants_client(), connection.splice_down(), connection.export(&snapshot));
            }
        }
    }
}
