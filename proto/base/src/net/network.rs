//! A network: an address with the length of its prefix (CIDR notation, RFC 4632 section 3.1, RFC 4291 section 2.3).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A network. Bits behind the prefix are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Network {
    address: IpAddr,
    /// Bits of the prefix.
    length: u8,
}

/// A text that names no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkError;

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no network: write an address, or one with the length of its prefix, as 10.0.0.0/8")
    }
}

impl std::error::Error for NetworkError {}

impl Network {
    /// The network of this address; `None` when the prefix is longer than the address.
    pub fn new(address: IpAddr, length: u8) -> Option<Network> {
        let address = match address {
            IpAddr::V4(address) => {
                let cleared = 32_u32.checked_sub(u32::from(length))?;
                let mask = u32::MAX.checked_shl(cleared).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let cleared = 128_u32.checked_sub(u32::from(length))?;
                let mask = u128::MAX.checked_shl(cleared).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        Some(Network { address, length })
    }

    /// First address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Length of the prefix, in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether the address is in the network. An IPv4 address in an IPv6 one (RFC 4291 section 2.5.5.2) counts as the
    /// IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        Network::new(address.to_canonical(), self.length).is_some_and(|network| network == *self)
    }
}

impl From<IpAddr> for Network {
    /// The network of one address.
    fn from(address: IpAddr) -> Network {
        Network { address, length: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    /// Reads `10.0.0.0/8`, or an address alone as the network of that address.
    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let (address, length) =
            text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
        let address: IpAddr = address.parse().map_err(|_| NetworkError)?;
        let Some(digits) = length else { return Ok(Network::from(address)) };
        let length = digits.parse().map_err(|_| NetworkError)?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        Network::new(address, length).filter(|_| is_number).ok_or(NetworkError)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_its_addresses_and_no_others() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.1.2.3/8", "10.0.0.0", "9.255.255.255"),
            ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
            ("192.0.2.0/24", "::ffff:192.0.2.1", "::ffff:192.0.3.1"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::"),
            ("::/0", "2001:db8::1", "10.0.0.1"),
        ] {
            let network: Network = text.parse().unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{text} has {inside}");
            assert!(!network.contains(outside.parse().unwrap()), "{text} lacks {outside}");
        }
        assert_eq!("10.1.2.3/8".parse::<Network>().unwrap().to_string(), "10.0.0.0/8");
    }

    #[test]
    fn text_that_names_no_network_is_refused() {
        for text in
            ["", "10.0.0.0/", "10.0.0.0/33", "10.0.0/8", "::/129", "10.0.0.0/+8", "a/8", "10.0.0.0/8/8"]
        {
            assert_eq!(text.parse::<Network>(), Err(NetworkError), "{text:?}");
        }
    }
}
