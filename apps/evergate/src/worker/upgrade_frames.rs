//! Frames between the workers of two processes at an upgrade: the worker's data of a connection, then its upgrade
//! state.

use evergate_base::Micros;
use evergate_worker::Moving;

/// First byte of a frame: a connection, the end of all, and its confirmation.
const CONNECTION: u8 = 1;
pub(super) const END: u8 = 2;
pub(super) const CONFIRMED: u8 = 3;

const HAS_SERVER: u8 = 1;
const FIN_WAITS: u8 = 2;
const SERVER_FIN_WAITS: u8 = 4;
const HAS_PIPE_DOWN: u8 = 8;
const HAS_PIPE_UP: u8 = 16;

/// Length of the header before the upgrade state: a kind, flags, and five numbers.
const HEADER_BYTES: usize = 2 + 5 * 8;

/// The header of a connection's frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UpgradeFrame {
    pub(super) moving: Moving,
    pub(super) has_server: bool,
    /// Bytes inside the pipe to the client, if there is one, and inside the one to the server.
    pub(super) down: Option<u64>,
    pub(super) up: Option<u64>,
}

impl UpgradeFrame {
    pub(super) fn encode(self, state: &[u8]) -> Vec<u8> {
        let Moving { used_since, answered_at, way, fin_waits, server_fin_waits } = self.moving;
        let flags = [
            (HAS_SERVER, self.has_server),
            (FIN_WAITS, fin_waits),
            (SERVER_FIN_WAITS, server_fin_waits),
            (HAS_PIPE_DOWN, self.down.is_some()),
            (HAS_PIPE_UP, self.up.is_some()),
        ];
        let flags = flags.iter().filter(|(_, is_set)| *is_set).fold(0, |all, (flag, _)| all | flag);
        let mut out = Vec::with_capacity(HEADER_BYTES + state.len());
        out.extend_from_slice(&[CONNECTION, flags]);
        let answered_at = answered_at.map_or(0, |at| at.0);
        let pipes = [self.down, self.up].map(Option::unwrap_or_default);
        for number in [used_since.0, answered_at, way, pipes[0], pipes[1]] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(state);
        out
    }

    /// The header, and the upgrade state behind it.
    pub(super) fn decode(bytes: &[u8]) -> Option<(UpgradeFrame, &[u8])> {
        let ([CONNECTION, flags], rest) = bytes.split_first_chunk()? else { return None };
        let mut rest = rest;
        let mut number = || {
            let (bytes, behind) = rest.split_first_chunk()?;
            rest = behind;
            Some(u64::from_le_bytes(*bytes))
        };
        let has = |flag: u8| flags & flag != 0;
        let (used_since, answered_at, way) = (Micros(number()?), number()?, number()?);
        let (down, up) = (number()?, number()?);
        let moving = Moving {
            used_since,
            answered_at: (answered_at > 0).then_some(Micros(answered_at)),
            way,
            fin_waits: has(FIN_WAITS),
            server_fin_waits: has(SERVER_FIN_WAITS),
        };
        let frame = UpgradeFrame {
            moving,
            has_server: has(HAS_SERVER),
            down: has(HAS_PIPE_DOWN).then_some(down),
            up: has(HAS_PIPE_UP).then_some(up),
        };
        Some((frame, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upgrade_frame_round_trips_and_rejects_truncation() {
        let moving = Moving {
            used_since: Micros(1 << 40),
            answered_at: Some(Micros(5)),
            way: 1 << 63,
            fin_waits: false,
            server_fin_waits: true,
        };
        for (has_server, down, up) in [(true, None, Some(u64::MAX)), (false, Some(77), None)] {
            let frame = UpgradeFrame { moving, has_server, down, up };
            let bytes = frame.encode(b"export");
            assert_eq!(UpgradeFrame::decode(&bytes), Some((frame, &b"export"[..])));
            assert_eq!(bytes.len(), HEADER_BYTES + 6);
            for end in 0..HEADER_BYTES {
                assert_eq!(UpgradeFrame::decode(&bytes[..end]), None);
            }
        }
        assert_eq!(UpgradeFrame::decode(&[END]), None);
    }
}
