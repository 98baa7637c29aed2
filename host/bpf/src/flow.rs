//! A TCP flow as the gate's maps name it.

use crate::skeleton::types;
use evergate_base::net::Flow;
use std::net::IpAddr;

/// An address in wire order; IPv4 as ::ffff:a.b.c.d.
pub(crate) fn words(ip: IpAddr) -> [u32; 4] {
    let v6 = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(v6.octets().chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}

/// The reverse of [`words`].
pub(crate) fn address(words: [u32; 4]) -> IpAddr {
    let mut octets = [0; 16];
    for (bytes, word) in octets.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    IpAddr::from(octets).to_canonical()
}

/// The flow as a key of the maps.
pub(crate) fn key_of(flow: &Flow) -> types::flow_key {
    types::flow_key {
        local_addr: words(flow.local.ip()),
        remote_addr: words(flow.remote.ip()),
        local_port: flow.local.port().to_be(),
        remote_port: flow.remote.port().to_be(),
        zone: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_an_address_are_its_wire_order() {
        assert_eq!(words("10.0.0.1".parse().unwrap()), words("::ffff:10.0.0.1".parse().unwrap()));
        for ip in ["10.0.0.1", "fd00::1:2"].map(|ip| ip.parse().unwrap()) {
            assert_eq!(address(words(ip)), ip);
        }
    }
}
