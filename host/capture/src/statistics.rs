//! Counters of an interface, by netlink (RTM_GETSTATS).
//!
//! The files below /sys/class/net have the same numbers. They belong to the network namespace in which /sys was
//! mounted, and each file is of another moment.

use crate::sockopt::{check, socket};
use std::io;
use std::os::fd::AsRawFd;

/// Length of a netlink header.
const HEADER: usize = 16;
/// Length of `struct if_stats_msg`.
const REQUEST: usize = 12;
/// Kinds of messages.
const ERROR: u16 = 2;
/// Attribute with `struct rtnl_link_stats64`, which is also bit 0 of the filter.
const LINK_64: u16 = 1;

/// Counters of an interface since it exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStatistics {
    /// Received packets.
    pub rx_packets: u64,
    /// Received bytes.
    pub rx_bytes: u64,
    /// Packets that the card had no buffer for.
    pub rx_missed_errors: u64,
    /// Packets lost by a full queue of the card.
    pub rx_fifo_errors: u64,
    /// Packets longer than the card's buffer.
    pub rx_over_errors: u64,
    /// Packets dropped above the card. Ambiguous: most drivers count packets here that captures have seen.
    pub rx_dropped: u64,
}

impl InterfaceStatistics {
    /// Packets lost below the kernel.
    pub fn missed(&self) -> u64 {
        self.rx_missed_errors.wrapping_add(self.rx_fifo_errors).wrapping_add(self.rx_over_errors)
    }
}

/// The counters of the interface with this index.
pub(crate) fn read(index: u32) -> io::Result<InterfaceStatistics> {
    let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
    let mut request = Vec::with_capacity(HEADER + REQUEST);
    request.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    request.extend(libc::RTM_GETSTATS.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request.extend([0; 8]); // sequence number and port: there is one request only
    request.extend([0; 4]); // family and padding
    request.extend(index.to_ne_bytes());
    request.extend(1u32.to_ne_bytes()); // only the 64-bit counters
    // SAFETY: pointer and length describe the message. Without an address the message goes to the kernel.
    let sent = unsafe { libc::send(socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
    check(sent as i32)?;
    let mut answer = [0u8; 1024];
    // SAFETY: pointer and length describe the buffer.
    let got = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    parse(&answer[..got.min(answer.len())])
}

fn parse(answer: &[u8]) -> io::Result<InterfaceStatistics> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "malformed answer of netlink");
    let (header, body) = answer.split_first_chunk::<HEADER>().ok_or_else(malformed)?;
    if u16::from_ne_bytes([header[4], header[5]]) == ERROR {
        let code: [u8; 4] = *body.first_chunk().ok_or_else(malformed)?;
        return Err(io::Error::from_raw_os_error(i32::from_ne_bytes(code).saturating_neg()));
    }
    let (attribute, values) =
        body.get(REQUEST..).and_then(<[u8]>::split_first_chunk::<4>).ok_or_else(malformed)?;
    if u16::from_ne_bytes([attribute[2], attribute[3]]) != LINK_64 {
        return Err(malformed());
    }
    let value = |at: usize| -> io::Result<u64> {
        let bytes: [u8; 8] = *values.get(at * 8..).and_then(<[u8]>::first_chunk).ok_or_else(malformed)?;
        Ok(u64::from_ne_bytes(bytes))
    };
    Ok(InterfaceStatistics {
        rx_packets: value(0)?,
        rx_bytes: value(2)?,
        rx_dropped: value(6)?,
        rx_over_errors: value(11)?,
        rx_fifo_errors: value(14)?,
        rx_missed_errors: value(15)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(kind: u16, attribute: u16, values: u64) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10 + REQUEST]);
        bytes.extend([0; 2]);
        bytes.extend(attribute.to_ne_bytes());
        (0..values).for_each(|value| bytes.extend(value.to_ne_bytes()));
        bytes
    }

    #[test]
    fn counters_are_read_by_their_offsets() {
        let read = parse(&answer(92, LINK_64, 24)).unwrap();
        let expected = InterfaceStatistics {
            rx_packets: 0,
            rx_bytes: 2,
            rx_missed_errors: 15,
            rx_fifo_errors: 14,
            rx_over_errors: 11,
            rx_dropped: 6,
        };
        assert_eq!(read, expected);
        assert_eq!(read.missed(), 40);
    }

    #[test]
    fn malformed_answers_are_errors() {
        let whole = answer(92, LINK_64, 24);
        for length in 0..whole.len() - 64 {
            assert!(parse(&whole[..length]).is_err(), "{length}");
        }
        assert!(parse(&answer(92, 2, 24)).is_err());
        let mut refused = answer(ERROR, 0, 0);
        refused[HEADER..HEADER + 4].copy_from_slice(&(-libc::ENODEV).to_ne_bytes());
        assert_eq!(parse(&refused).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
