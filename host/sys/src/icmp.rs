//! ICMP errors in the peer's direction.

use crate::repair::TcpFacts;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;
const TCP: u8 = 6;
const UNREACHABLE_TOO_BIG: [u8; 2] = [3, 4];
const PACKET_TOO_BIG: [u8; 2] = [2, 0];

/// Adds up 16-bit words, for [`folded`]. The last of an odd number of bytes counts as a high one.
pub(crate) fn words(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

/// The checksum of RFC 1071 of a sum of words.
pub(crate) fn folded(mut sum: u32) -> [u8; 2] {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// The largest packet that the peer may send now that it was told `times` that it sends too large ones: 8 bytes less each time than
/// those of this segment size. `None` where that is less than a network has to carry (RFC 791, RFC 8200).
pub(crate) fn smaller_mtu(facts: &TcpFacts, times: u32) -> Option<u32> {
    let (headers, least) = if facts.local.is_ipv4() { (40, 576) } else { (60, 1280) };
    let mtu = (u32::from(facts.mss) + headers).saturating_sub(times.saturating_mul(8));
    (mtu >= least).then_some(mtu)
}

/// That a segment of the peer's was too big, with this sequence number: RFC 792 with RFC 1191, or RFC 4443.
pub(crate) fn too_big(facts: &TcpFacts, sequence: u32, mtu: u32) -> Vec<u8> {
    match (facts.local.ip(), facts.remote.ip()) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => v4(facts, [local, remote], sequence, mtu),
        (local, remote) => {
            let mapped = |ip| match ip {
                IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4),
                IpAddr::V6(v6) => v6,
            };
            v6(facts, [mapped(local), mapped(remote)], sequence, mtu)
        }
    }
}

fn v4(facts: &TcpFacts, [local, remote]: [Ipv4Addr; 2], sequence: u32, mtu: u32) -> Vec<u8> {
    let mut about = vec![0x45, 0];
    about.extend(facts.mss.saturating_add(40).to_be_bytes());
    about.extend([0, 0, 0x40, 0, 64, TCP, 0, 0]); // not to be fragmented
    about.extend(remote.octets());
    about.extend(local.octets());
    let sum = folded(words(&about));
    about[10..12].copy_from_slice(&sum);
    let mut message = UNREACHABLE_TOO_BIG.to_vec();
    message.extend([0; 4]);
    message.extend((mtu as u16).to_be_bytes());
    message.extend(about);
    message.extend(beginning(facts, sequence));
    let sum = folded(words(&message));
    message[2..4].copy_from_slice(&sum);
    message
}

fn v6(facts: &TcpFacts, [local, remote]: [Ipv6Addr; 2], sequence: u32, mtu: u32) -> Vec<u8> {
    let mut message = PACKET_TOO_BIG.to_vec();
    message.extend([0; 2]);
    message.extend(mtu.to_be_bytes());
    message.extend([0x60, 0, 0, 0]);
    message.extend(facts.mss.saturating_add(20).to_be_bytes());
    message.extend([TCP, 64]);
    message.extend(remote.octets());
    message.extend(local.octets());
    message.extend(beginning(facts, sequence));
    let ends = words(&local.octets()) + words(&remote.octets());
    let sum = folded(words(&message) + ends + u32::from(ICMPV6) + message.len() as u32);
    message[2..4].copy_from_slice(&sum);
    message
}

/// The first bytes of the peer's segment.
fn beginning(facts: &TcpFacts, sequence: u32) -> impl Iterator<Item = u8> {
    let ports = [facts.remote.port(), facts.local.port()].map(u16::to_be_bytes);
    ports.into_iter().flatten().chain(sequence.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(ends: [&str; 2], mss: u16) -> TcpFacts {
        let [local, remote] = ends.map(|end| end.parse().unwrap());
        TcpFacts { local, remote, mss, window_scales: None, sack: true, stamp: None }
    }

    #[test]
    fn what_was_too_big_is_quoted() {
        let message = too_big(&facts(["10.0.0.1:443", "10.0.0.2:5000"], 1460), 0x0102_0304, 1492);
        assert_eq!(folded(words(&message)), [0, 0]);
        assert_eq!((&message[..2], &message[6..8]), (&[3, 4][..], &1492u16.to_be_bytes()[..]));
        assert_eq!(folded(words(&message[8..28])), [0, 0]);
        assert_eq!(message[20..28], [10, 0, 0, 2, 10, 0, 0, 1]);
        assert_eq!(message[28..], [19, 136, 1, 187, 1, 2, 3, 4]);
        let message = too_big(&facts(["[fd77::1]:443", "[fd77::2]:5000"], 1440), 0x0102_0304, 1492);
        assert_eq!((&message[..2], &message[4..8]), (&[2, 0][..], &1492u32.to_be_bytes()[..]));
        assert_eq!(message[48..], [19, 136, 1, 187, 1, 2, 3, 4]);
    }

    #[test]
    fn packets_get_smaller_each_time_and_never_too_small() {
        let v4 = |mss, times| smaller_mtu(&facts(["10.0.0.1:443", "10.0.0.2:5000"], mss), times);
        assert_eq!([1, 2, 3].map(|times| v4(1460, times)), [Some(1492), Some(1484), Some(1476)]);
        assert_eq!([1, 2].map(|times| v4(544, times)), [Some(576), None]);
        assert_eq!(v4(u16::MAX, u32::MAX), None);
        let v6 = |mss, times| smaller_mtu(&facts(["[fd77::1]:443", "[fd77::2]:5000"], mss), times);
        assert_eq!((v6(1440, 1), v6(1228, 1), v6(1220, 1)), (Some(1492), Some(1280), None));
    }
}
