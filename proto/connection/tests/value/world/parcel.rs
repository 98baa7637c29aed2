//! The connection goes to another process in a parcel, with its sockets.

use super::World;
use evergate_connection::{Connection, ParcelLeg};

impl World<'_> {
    /// Goes on with what a parcel of the connection holds. False when it has to stay.
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
                assert!(waits, "it stays ({reason}) although it waits for nobody");
                return false;
            }
        };
        let (connection, leg) = Connection::import(&snapshot, &bytes).expect("a parcel is unpacked");
        let expected = self.conn.leg_id().zip(self.conn.leg_server());
        let expected = expected.map(|(leg, (pool, server))| ParcelLeg { leg, pool, server });
        assert_eq!(leg, expected);
        assert!(connection.export(&snapshot).as_ref() == Ok(&bytes), "another parcel of the same connection");
        for end in (0..bytes.len()).step_by(bytes.len() / 16 + 1) {
            assert!(Connection::import(&snapshot, &bytes[..end]).is_err(), "a parcel that is cut short");
        }
        self.conn = connection;
        true
    }
}
