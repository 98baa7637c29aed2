//! Weighted rendezvous hashing: every server bids for the client, and the best bid wins. The bids of other servers do
//! not change when a server is added or removed.

use crate::picker::ServerLoad;
use evergate_base::SplitMix64;
use std::net::{IpAddr, Ipv6Addr};

/// The server for a client address. Each server is a stable hash of its name, its weight, and its eligibility. An IPv4
/// address and the IPv6 address that maps it are the same client.
///
/// When a server is removed, only its clients move, by weight. When a weight grows, clients only move to that server.
pub fn source_server(ip: IpAddr, servers: &[(u64, u32, bool)]) -> Option<usize> {
    highest_bid(source_key(ip), servers.iter().copied())
}

/// Consistent hashing with bounded loads: the server with the best bid for `key` (any hash) among those below the
/// bound.
///
/// With one more request in total, no server may have more than `load_percent_max` percent of its share by weight
/// (rounded up; at least 100, so that some server is always below its bound). `names` are stable hashes of the servers'
/// names, as for [`source_server`]; a server without a name is left out.
pub fn bounded_server(
    key: u64,
    names: &[u64],
    servers: &[ServerLoad],
    load_percent_max: u32,
) -> Option<usize> {
    let usable = |server: &&ServerLoad| server.eligible && server.weight > 0;
    let (mut weight, mut outstanding) = (0u128, 1u128);
    for server in servers.iter().filter(usable) {
        weight += u128::from(server.weight);
        outstanding += u128::from(server.outstanding);
    }
    let percent = u128::from(load_percent_max.max(100));
    let has_room = |server: &ServerLoad| {
        // Below the bound rounded up: outstanding < ceil(share), without division.
        u128::from(server.outstanding) * weight * 100 < percent * outstanding * u128::from(server.weight)
    };
    let bidders = names.iter().zip(servers);
    highest_bid(
        key,
        bidders.map(|(&name, server)| (name, server.weight, server.eligible && has_room(server))),
    )
}

fn highest_bid(client: u64, servers: impl Iterator<Item = (u64, u32, bool)>) -> Option<usize> {
    let mut best: Option<(f64, u64, usize)> = None;
    for (index, (name, weight, eligible)) in servers.enumerate() {
        if !eligible || weight == 0 {
            continue;
        }
        // Mixing the name first separates servers whose names hash to neighbouring values.
        let cost = exponential(mix(client ^ mix(name ^ NAME_SALT))) / f64::from(weight);
        // The name breaks ties of equal costs, so that the order of the servers never matters.
        if best.is_none_or(|(least, other, _)| cost < least || (cost == least && name < other)) {
            best = Some((cost, name, index));
        }
    }
    best.map(|(_, _, index)| index)
}

const NAME_SALT: u64 = 0x6a09_e667_f3bc_c908;

/// The hash of a client address that [`source_server`] uses, for [`bounded_server`].
pub fn source_key(ip: IpAddr) -> u64 {
    let address = match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let bits = Ipv6Addr::to_bits(address);
    mix((bits >> 64) as u64 ^ mix(bits as u64))
}

fn mix(value: u64) -> u64 {
    SplitMix64(value).bits()
}

/// An exponentially distributed value: `-ln` of the hash as a fraction in (0, 1). The least of exponentials divided by
/// weights falls on each server in proportion to its weight.
///
/// The logarithm is computed from additions, multiplications and divisions, which IEEE 754 defines to the bit. A
/// platform's `ln` may differ in the last digit, and two nodes would then choose different servers.
fn exponential(hash: u64) -> f64 {
    let fraction = ((hash >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
    let bits = fraction.to_bits();
    // fraction = mantissa * 2^exponent with the mantissa brought to [sqrt(1/2), sqrt(2)), where the series is short.
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa >= std::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    // ln m = 2 (s + s^3/3 + s^5/5 + ...) with s = (m - 1) / (m + 1)
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut sum = 0.0;
    for odd in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / odd;
    }
    -(2.0 * s * sum + f64::from(exponent) * std::f64::consts::LN_2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_is_minus_the_logarithm() {
        let mut hash = 1u64;
        for _ in 0..100_000 {
            hash = mix(hash);
            let fraction = ((hash >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
            let (ours, theirs) = (exponential(hash), -fraction.ln());
            assert!((ours - theirs).abs() <= 1e-9 * theirs, "{hash}: {ours} {theirs}");
        }
        for hash in [0, 1, u64::MAX, u64::MAX - 1, 1 << 63, (1 << 63) - 1] {
            assert!(exponential(hash) > 0.0 && exponential(hash).is_finite());
        }
    }

    /// Nodes of different versions must agree: these values must not change.
    #[test]
    fn assignments_are_stable_across_versions() {
        let servers = [(11, 1, true), (22, 2, true), (33, 3, true), (44, 4, true)];
        let picks: Vec<_> = (0..16u8)
            .map(|i| {
                source_server(IpAddr::from([192, 0, 2, i]), &servers)
                    .map_or('-', |s| (b'0' + s as u8) as char)
            })
            .collect();
        assert_eq!(picks.into_iter().collect::<String>(), "0323321223223231");
    }
}
