//! Early segments: data from the peer of a connection that is being recovered, before its socket exists.

use crate::flow::address;
use crate::skeleton::types;
use evergate_base::net::{DivertedSegment, Flow, PeerPosition};
use std::net::IpAddr;

const TCP: u32 = 6;
const FIXED_HEADER: usize = 20;
/// Two NOPs and the timestamp option, as kernels write it.
const STAMPED: u32 = 0x0101_080a;
/// Bytes of a record before the segment: the flow.
const KEY_BYTES: usize = size_of::<types::flow_key>();

/// Reads a record of the ring: the flow's key and a segment from its TCP header on. `None` for a malformed record,
/// and for a wrong checksum: the kernel has not verified it yet.
pub(crate) fn read_segment(record: &[u8]) -> Option<DivertedSegment> {
    let (key, segment) = record.split_at_checked(KEY_BYTES)?;
    let word = |at: usize| Some(u32::from_ne_bytes(*key.get(at..)?.first_chunk()?));
    let ip = |at: usize| Some(address([word(at)?, word(at + 4)?, word(at + 8)?, word(at + 12)?]));
    let port = |at: usize| Some(u16::from_be_bytes(*key.get(at..)?.first_chunk()?));
    let (local, remote) = ((ip(0)?, port(32)?).into(), (ip(16)?, port(34)?).into());
    let flow = Flow::new(local, remote);
    let header = usize::from(segment.get(12)? >> 4) * 4;
    let field = |at: usize| Some(u32::from_be_bytes(*segment.get(at..)?.first_chunk()?));
    let stamped = header >= FIXED_HEADER + 12 && field(FIXED_HEADER)? == STAMPED;
    let timestamps = if stamped { (field(24)?, field(28)?) } else { (0, 0) };
    let window = field(12)? & 0xffff;
    let position = PeerPosition { seq: field(4)?, ack: field(8)?, window, count: 1, timestamps };
    let data = segment.get(header.max(FIXED_HEADER)..)?.to_vec();
    let whole = data.is_empty() || is_intact(segment, flow.local.ip(), flow.remote.ip());
    whole.then_some(DivertedSegment { flow, position, data })
}

/// Whether the checksum is right (RFC 9293, 3.1), or is still to be filled in: between virtual cards, and where the
/// kernel has joined segments that it found intact, it is the sum of the pseudo-header alone.
fn is_intact(segment: &[u8], local: IpAddr, remote: IpAddr) -> bool {
    let pseudo = words(&octets(local)) + words(&octets(remote)) + u64::from(TCP) + segment.len() as u64;
    let Some(field) = segment.get(16..18) else { return false };
    let field = u16::from_be_bytes([field[0], field[1]]);
    fold(words(segment) + pseudo) == u16::MAX || field == fold(pseudo)
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip.to_canonical() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn words(bytes: &[u8]) -> u64 {
    let pairs = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    pairs.sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::key_of;
    use crate::table::bytes;

    fn record(flow: &Flow, payload: &[u8], field: impl Fn(u64, u16) -> u16) -> Vec<u8> {
        let mut segment = vec![0; 32];
        for (at, word) in [(4, 77), (8, 99), (12, 8 << 28 | 500), (20, STAMPED), (24, 3), (28, 4)] {
            segment[at..at + 4].copy_from_slice(&u32::to_be_bytes(word));
        }
        segment.extend(payload);
        let pseudo =
            words(&octets(flow.local.ip())) + words(&octets(flow.remote.ip())) + 6 + segment.len() as u64;
        let sum = !fold(words(&segment) + pseudo);
        segment[16..18].copy_from_slice(&field(pseudo, sum).to_be_bytes());
        [bytes(&key_of(flow)), &segment[..]].concat()
    }

    #[test]
    fn intact_segments_are_read_and_others_are_not() {
        let flows = [("10.0.0.1:443", "10.0.0.2:5"), ("[fd00::1]:443", "[fd00::2]:5")];
        for (local, remote) in flows {
            let flow = Flow::new(local.parse().unwrap(), remote.parse().unwrap());
            let position = PeerPosition { seq: 77, ack: 99, window: 500, count: 1, timestamps: (3, 4) };
            for payload in [&b"x"[..], b"GET / HTTP/1.1\r\n\r\n"] {
                let expected = Some(DivertedSegment { flow, position, data: payload.to_vec() });
                assert_eq!(read_segment(&record(&flow, payload, |_, sum| sum)), expected);
                assert_eq!(
                    read_segment(&record(&flow, payload, |pseudo, _| fold(pseudo))),
                    expected,
                    "to be filled in"
                );
                assert_eq!(read_segment(&record(&flow, payload, |_, sum| sum ^ 4)), None);
                let mut damaged = record(&flow, payload, |_, sum| sum);
                *damaged.last_mut().unwrap() ^= 1;
                assert_eq!(read_segment(&damaged), None);
            }
            // A segment that was too long comes with its header only.
            let header = record(&flow, b"", |_, _| 1);
            assert_eq!(read_segment(&header), Some(DivertedSegment { flow, position, data: Vec::new() }));
            assert_eq!(read_segment(&header[..60]), None);
        }
        assert_eq!(read_segment(&[]), None);
    }
}
