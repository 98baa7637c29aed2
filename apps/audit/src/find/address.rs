//! Condition on one end of a connection: address, prefix length and port, each optional.

use evergate_base::net::Network;
use std::fmt;
use std::net::IpAddr;

/// `10.0.0.0/8:443`, `10.0.0.1`, `2001:db8::1`, `[2001:db8::]/32:443`, `:443`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndFilter {
    /// Network of the address; `None`: any address.
    pub(crate) net: Option<Network>,
    /// Port; `None`: any port.
    pub(crate) port: Option<u16>,
}

/// First and last address of a prefix, as bytes of equal length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: Vec<u8>,
    pub(crate) last: Vec<u8>,
}

impl EndFilter {
    /// The condition that a text means.
    pub(crate) fn parse(text: &str) -> Result<EndFilter, String> {
        let wrong = || {
            format!(
                "{text:?} is no address: write 192.0.2.7, 10.0.0.0/8, 10.0.0.1:443, [2001:db8::]/32:443 or :443"
            )
        };
        let text = text.trim();
        let (net, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) = rest.split_once(']').ok_or_else(wrong)?;
                let (length, port) =
                    rest.split_once(':').map_or((rest, None), |(length, port)| (length, Some(port)));
                (format!("{address}{length}"), port)
            }
            None if text.matches(':').count() >= 2 => (text.to_owned(), None), // IPv6 without a port
            None => match text.split_once(':') {
                Some((net, port)) => (net.to_owned(), Some(port)),
                None => (text.to_owned(), None),
            },
        };
        let port = port.map(|port| port.parse().map_err(|_| wrong())).transpose()?;
        let net = if net.is_empty() { None } else { Some(net.parse().map_err(|_| wrong())?) };
        if net.is_none() && port.is_none() {
            return Err(wrong());
        }
        Ok(EndFilter { net, port })
    }

    /// Range of addresses; `None` without a condition on them.
    pub(crate) fn range(&self) -> Option<Range> {
        let net = self.net?;
        let first = match net.address() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let mut last = first.clone();
        for (at, byte) in last.iter_mut().enumerate() {
            let fixed = usize::from(net.length()).saturating_sub(at * 8).min(8);
            *byte |= (0xffu16 >> fixed) as u8;
        }
        Some(Range { first, last })
    }
}

impl Range {
    /// Whether an address lies in the range.
    pub(crate) fn contains(&self, address: &[u8]) -> bool {
        address.len() == self.first.len()
            && self.first.as_slice() <= address
            && address <= self.last.as_slice()
    }
}

impl fmt::Display for EndFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.net {
            Some(net) if net.address().is_ipv6() => write!(f, "[{}]/{}", net.address(), net.length())?,
            Some(net) => write!(f, "{net}")?,
            None => {}
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_their_conditions() {
        for (text, shown) in [
            ("192.0.2.7", "192.0.2.7/32"),
            ("10.1.2.3/8:443", "10.0.0.0/8:443"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            (":443", ":443"),
            ("2001:db8::1", "[2001:db8::1]/128"),
            ("2001:db8::1/32", "[2001:db8::]/32"),
            ("[2001:db8::]/32:443", "[2001:db8::]/32:443"),
            ("[::1]:80", "[::1]/128:80"),
        ] {
            assert_eq!(EndFilter::parse(text).map(|filter| filter.to_string()), Ok(shown.into()), "{text}");
            assert_eq!(EndFilter::parse(shown), EndFilter::parse(text));
        }
        for text in ["", "10.0.0.0/33", "x", "10.0.0.1:x", "[::1", ":", "10.0.0.1:70000", "::/129"] {
            assert!(EndFilter::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn prefix_is_a_range_of_its_family() {
        let range = EndFilter::parse("10.4.0.0/14").ok().and_then(|filter| filter.range()).expect("range");
        assert_eq!(
            (range.first.as_slice(), range.last.as_slice()),
            (&[10, 4, 0, 0][..], &[10, 7, 255, 255][..])
        );
        assert!(range.contains(&[10, 5, 1, 1]) && !range.contains(&[10, 8, 0, 0]));
        assert!(!range.contains(&[10, 5, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    }

    proptest::proptest! {
        #[test]
        fn any_text_never_panics(text: String) {
            if let Ok(filter) = EndFilter::parse(&text) {
                proptest::prop_assert_eq!(EndFilter::parse(&filter.to_string()), Ok(filter));
            }
        }
    }
}
