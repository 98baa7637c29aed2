//! Trust in `X-Forwarded-For`: which peers' forwarding fields count, and which client such a field names.
//!
//! The decision is a function of the peer's address and of the request head. Another node that receives the same head
//! derives the same client.

use crate::bytes::trim_ows;
use crate::header::{Headers, Name};
use evergate_base::net::Network;
use std::net::{IpAddr, SocketAddr};

/// Most members of `X-Forwarded-For` that are read, from the last one on.
const MEMBERS_MAX: usize = 64;

/// Which peers' forwarding fields count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ForwardedTrust {
    /// None: the fields of every peer are replaced.
    #[default]
    NoPeer,
    /// All: the fields are forwarded, and the peer counts as the client.
    AllPeers,
    /// Those in these networks: their fields are forwarded, and `X-Forwarded-For` names the client.
    Networks(Vec<Network>),
}

impl ForwardedTrust {
    /// Whether a peer may be trusted at all.
    pub fn is_possible(&self) -> bool {
        *self != ForwardedTrust::NoPeer
    }

    /// Whether the forwarding fields of this peer are forwarded, and visible to rules.
    pub fn trusts(&self, peer: IpAddr) -> bool {
        match self {
            ForwardedTrust::NoPeer => false,
            ForwardedTrust::AllPeers => true,
            ForwardedTrust::Networks(networks) => has(networks, peer),
        }
    }

    /// The client that a trusted peer names in the `X-Forwarded-For` lines of a head; `None` when the peer counts as
    /// the client.
    ///
    /// All lines form one list. Each proxy appends the address of its own peer, so the list is read from its end: the
    /// client is the last address outside the trusted networks. A member that is no address ends the reading at the
    /// address behind it, as does member number 64 from the end.
    pub fn client(&self, peer: IpAddr, headers: Headers<'_>) -> Option<IpAddr> {
        let ForwardedTrust::Networks(networks) = self else { return None };
        if !has(networks, peer) {
            return None;
        }
        let mut client = None;
        for member in members_from_the_end(headers).take(MEMBERS_MAX) {
            let Some(address) = address(member) else { break };
            client = Some(address);
            if !has(networks, address) {
                break;
            }
        }
        client
    }
}

fn has(networks: &[Network], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(address))
}

/// Non-empty members (RFC 9110 section 5.6.1.2) of all lines, the last one first.
fn members_from_the_end<'a>(headers: Headers<'a>) -> impl Iterator<Item = &'a [u8]> {
    let lines = (0..headers.len()).rev().filter_map(move |at| headers.value_of(at, Name::XForwardedFor));
    lines.flat_map(|line| line.rsplit(|byte| *byte == b',')).map(trim_ows).filter(|member| !member.is_empty())
}

/// `192.0.2.1`, `2001:db8::1` or `[2001:db8::1]`; also with a port behind it, as some proxies write it.
fn address(member: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(member).ok()?;
    let plain = || text.parse::<IpAddr>().ok();
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    plain().or_else(bracketed).or_else(with_port).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeaderSlots, Limits, Parsed, parse_request};
    use proptest::prelude::*;

    const PROXY: &str = "10.0.0.1";

    fn networks(texts: &[&str]) -> ForwardedTrust {
        ForwardedTrust::Networks(texts.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn client_of(trust: &ForwardedTrust, peer: &str, lines: &[&str]) -> String {
        let fields: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut slots = HeaderSlots::new();
        let Ok(Parsed::Complete(head)) = parse_request(head.as_bytes(), &Limits::default(), &mut slots)
        else {
            panic!("{head:?}")
        };
        let peer = peer.parse().unwrap();
        trust.client(peer, head.headers).map_or("peer".to_owned(), |client| client.to_string())
    }

    #[test]
    fn client_is_the_last_address_outside_trusted_networks() {
        let trust = networks(&["10.0.0.0/8", "2001:db8::/32"]);
        for (lines, client) in [
            (&["X-Forwarded-For: 192.0.2.1"][..], "192.0.2.1"),
            (&["X-Forwarded-For: 203.0.113.9, 192.0.2.1"], "192.0.2.1"),
            (&["X-Forwarded-For: 203.0.113.9, 192.0.2.1, 10.1.1.1,10.2.2.2"], "192.0.2.1"),
            (&["X-Forwarded-For: 203.0.113.9", "x-forwarded-for: 192.0.2.1", "Via: x"], "192.0.2.1"),
            (&["X-Forwarded-For: 192.0.2.1", "x-forwarded-for: 10.3.3.3"], "192.0.2.1"),
            (&["X-Forwarded-For: 10.1.1.1, 10.2.2.2"], "10.1.1.1"),
            (&["X-Forwarded-For: 192.0.2.1, ,"], "192.0.2.1"),
            (&["X-Forwarded-For: ::ffff:192.0.2.1"], "192.0.2.1"),
            (&["X-Forwarded-For: ::ffff:10.0.0.9, 2001:db8::1"], "10.0.0.9"),
            (&["X-Forwarded-For: 2001:db9::1, [2001:db8::1]"], "2001:db9::1"),
            (&["X-Forwarded-For: 192.0.2.1:4711, [2001:db8::1]:80"], "192.0.2.1"),
            (&["X-Forwarded-For: "], "peer"),
            (&["Via: 192.0.2.1"], "peer"),
        ] {
            assert_eq!(client_of(&trust, PROXY, lines), client, "{lines:?}");
        }
    }

    #[test]
    fn member_that_is_no_address_ends_the_reading() {
        let trust = networks(&["10.0.0.0/8"]);
        for (list, client) in [
            ("192.0.2.1, unknown, 10.1.1.1", "10.1.1.1"),
            ("192.0.2.1, unknown", "peer"),
            ("192.0.2.1, 10.1.1.1:99999", "peer"),
            ("192.0.2.1, 10.1.1.1:", "peer"),
            ("192.0.2.1, [10.1.1.1], 10.2.2.2", "10.2.2.2"),
            ("192.0.2.1, \"10.1.1.1\", 10.2.2.2", "10.2.2.2"),
            ("192.0.2.1, 10.1.1, 10.2.2.2", "10.2.2.2"),
            ("192.0.2.1, 10.1.1.1 10.2.2.2", "peer"),
        ] {
            let line = format!("X-Forwarded-For: {list}");
            assert_eq!(client_of(&trust, PROXY, &[&line]), client, "{list}");
        }
    }

    #[test]
    fn reading_ends_at_its_bound() {
        let trust = networks(&["10.0.0.0/8"]);
        let line = |proxies: usize| {
            let list: Vec<String> =
                (0..proxies).map(|at| format!("10.1.{}.{}", at / 256, at % 256)).collect();
            format!("X-Forwarded-For: 192.0.2.1, {}", list.join(", "))
        };
        assert_eq!(client_of(&trust, PROXY, &[&line(MEMBERS_MAX - 1)]), "192.0.2.1");
        assert_eq!(client_of(&trust, PROXY, &[&line(MEMBERS_MAX)]), "10.1.0.0");
        assert_eq!(client_of(&trust, PROXY, &[&line(MEMBERS_MAX + 300)]), "10.1.1.44");
    }

    #[test]
    fn field_of_another_peer_names_no_client() {
        let lines = ["X-Forwarded-For: 192.0.2.1"];
        assert_eq!(client_of(&networks(&["10.0.0.0/8"]), "11.0.0.1", &lines), "peer");
        assert_eq!(client_of(&networks(&["10.0.0.0/8"]), "::ffff:10.9.9.9", &lines), "192.0.2.1");
        assert_eq!(client_of(&ForwardedTrust::NoPeer, PROXY, &lines), "peer");
        assert_eq!(client_of(&ForwardedTrust::AllPeers, PROXY, &lines), "peer");
    }

    proptest! {
        /// What a client writes in front cannot change the address that the outermost trusted proxy appended.
        #[test]
        fn clients_own_members_never_count(
            forged in "[ -~]{0,60}",
            client in any::<[u8; 4]>().prop_filter("outside", |bytes| bytes[0] != 10),
            proxies in proptest::collection::vec(any::<[u8; 3]>(), 0..5),
            split in any::<bool>(),
        ) {
            let client = IpAddr::from(client);
            let tail: String = proxies.iter().map(|[a, b, c]| format!(", 10.{a}.{b}.{c}")).collect();
            let lines = if split {
                vec![format!("X-Forwarded-For: {forged}"), format!("X-Forwarded-For: {client}{tail}")]
            } else {
                vec![format!("X-Forwarded-For: {forged}, {client}{tail}")]
            };
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            prop_assert_eq!(client_of(&networks(&["10.0.0.0/8"]), PROXY, &lines), client.to_string());
        }

        /// Any text: the client is the peer, or an address of the list; every member behind it is trusted.
        #[test]
        fn members_behind_the_client_are_trusted(
            list in proptest::collection::vec(
                prop_oneof![Just("10.1.1.1"), Just("192.0.2.1"), Just("x"), Just(""), Just("10.2.2.2:80")], 0..9),
        ) {
            let line = format!("X-Forwarded-For: {}", list.join(","));
            let got = client_of(&networks(&["10.0.0.0/8"]), PROXY, &[&line]);
            let members: Vec<&str> = list.into_iter().filter(|member| !member.is_empty()).collect();
            let behind = members.iter().rev().take_while(|member| member.starts_with("10.")).count();
            let stop = members.len().checked_sub(behind + 1).map(|at| members[at]);
            let last = behind.checked_sub(1).map_or("peer", |_| members[members.len() - behind]);
            let expected = if stop == Some("192.0.2.1") { "192.0.2.1" } else { last };
            prop_assert_eq!(got, expected.trim_end_matches(":80"));
        }
    }
}
