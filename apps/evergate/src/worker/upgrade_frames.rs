//! Frames between the workers of two processes at an upgrade: the worker's data of a connection, then its upgrade
//! state.

/// First byte of a frame: a connection, the end of all, and its confirmation.
const CONNECTION: u8 = 1;
pub(super) const END: u8 = 2;
pub(super) const CONFIRMED: u8 = 3;

pub(super) const HAS_SERVER: u8 = 1;
pub(super) const FIN_WAITS: u8 = 2;
pub(super) const SERVER_FIN_WAITS: u8 = 4;
pub(super) const HAS_PIPE_DOWN: u8 = 8;
pub(super) const HAS_PIPE_UP: u8 = 16;

/// Length of the header before the upgrade state: a kind, flags, and the numbers of [`UpgradeFrame`].
const CARGO_HEADER: usize = 2 + 5 * 8;

/// The worker's data of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UpgradeFrame {
    pub(super) flags: u8,
    /// When the connection got its server, and when the server's response began; 0 before that.
    pub(super) used_since: u64,
    pub(super) answered_at: u64,
    /// Destination and settings of the server connection: [`evergate_worker::pools::ServerRuntime::way`].
    pub(super) way: u64,
    /// Bytes inside the pipes.
    pub(super) down: u64,
    pub(super) up: u64,
}

impl UpgradeFrame {
    pub(super) fn encode(self, upgrade_state: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(CARGO_HEADER + upgrade_state.len());
        out.extend_from_slice(&[CONNECTION, self.flags]);
        for number in [self.used_since, self.answered_at, self.way, self.down, self.up] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(upgrade_state);
        out
    }

    /// The frame's data, and the upgrade state behind it.
    pub(super) fn decode(bytes: &[u8]) -> Option<(UpgradeFrame, &[u8])> {
        let ([CONNECTION, flags], rest) = bytes.split_first_chunk()? else { return None };
        let mut rest = rest;
        let mut number = || {
            let (bytes, behind) = rest.split_first_chunk()?;
            rest = behind;
            Some(u64::from_le_bytes(*bytes))
        };
        let cargo = UpgradeFrame {
            flags: *flags,
            used_since: number()?,
            answered_at: number()?,
            way: number()?,
            down: number()?,
            up: number()?,
        };
        Some((cargo, rest))
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn set(&mut self, flag: u8, value: bool) {
        self.flags |= if value { flag } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upgrade_frame_round_trips_and_rejects_truncation() {
        let mut cargo = UpgradeFrame {
            used_since: 1 << 40,
            answered_at: 5,
            way: 1 << 63,
            down: 77,
            up: u64::MAX,
            flags: 0,
        };
        cargo.set(HAS_SERVER, true);
        cargo.set(FIN_WAITS, false);
        cargo.set(HAS_PIPE_UP, true);
        let bytes = cargo.encode(b"export");
        assert_eq!(UpgradeFrame::decode(&bytes), Some((cargo, &b"export"[..])));
        assert_eq!(bytes.len(), CARGO_HEADER + 6);
        for end in 0..CARGO_HEADER {
            assert_eq!(UpgradeFrame::decode(&bytes[..end]), None);
        }
        assert_eq!(UpgradeFrame::decode(&[END]), None);
    }
}
