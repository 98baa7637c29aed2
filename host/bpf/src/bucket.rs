//! Which bucket a flow belongs to: the same answer as the eBPF programs give.

use crate::Flow;
use crate::flow::words;
use evergate_base::{BUCKETS, Bucket, Sip};
use std::ops::RangeInclusive;

/// Key of the hash over client legs: equal on all nodes, and unknown to clients, so that no client can aim at one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketKey(pub [u64; 2]);

/// Local ports of server legs: one block of equal length per bucket, from `first` on. Two blocks never overlap, so the
/// destination port of a packet from a server alone gives its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortBlocks {
    first: u16,
    block: u16,
}

impl PortBlocks {
    /// Linux's default ephemeral range, 27 ports a bucket.
    pub const DEFAULT: PortBlocks = PortBlocks { first: 32_768, block: 27 };

    /// Blocks of `block` ports from `first` on; `None` when they are empty or do not fit below 65,536.
    pub fn new(first: u16, block: u16) -> Option<PortBlocks> {
        let end = usize::from(first) + usize::from(block) * usize::from(BUCKETS);
        (first > 0 && block > 0 && end <= 65_536).then_some(PortBlocks { first, block })
    }

    /// All ports. The sysctl `net.ipv4.ip_local_port_range` must cover them.
    pub fn range(self) -> RangeInclusive<u16> {
        self.first..=(usize::from(self.first) + usize::from(self.block) * usize::from(BUCKETS) - 1) as u16
    }

    /// The ports of one bucket; `None` for a bucket outside the table.
    pub fn of(self, bucket: Bucket) -> Option<RangeInclusive<u16>> {
        let first = self.first + self.block * in_table(bucket)?.0;
        Some(first..=first + (self.block - 1))
    }

    /// The bucket that a server leg's local port lies in.
    pub fn bucket(self, local_port: u16) -> Option<Bucket> {
        let offset = local_port.checked_sub(self.first)?;
        in_table(Bucket(offset / self.block))
    }

    pub(crate) fn first(self) -> u16 {
        self.first
    }

    pub(crate) fn block(self) -> u16 {
        self.block
    }
}

/// The bucket if the tables of the programs have an entry for it.
pub(crate) fn in_table(bucket: Bucket) -> Option<Bucket> {
    (bucket.0 < BUCKETS).then_some(bucket)
}

/// The bucket of a client leg: SipHash-1-3 of remote address, local address, remote port and local port.
pub fn bucket_of(key: BucketKey, flow: &Flow) -> Bucket {
    let (remote, local) = (words(flow.remote.ip()), words(flow.local.ip()));
    let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    let ports = u32::from(flow.local.port().to_be()) << 16 | u32::from(flow.remote.port().to_be());
    let mut state = Sip::new(key.0);
    state.word(pair(remote[0], remote[1]));
    state.word(pair(remote[2], remote[3]));
    state.word(pair(local[0], local[1]));
    state.word(pair(local[2], local[3]));
    state.word(pair(ports, 36 << 24));
    Bucket((state.finish() % u64::from(BUCKETS)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_of_a_block_has_its_bucket() {
        let blocks = PortBlocks::DEFAULT;
        for bucket in Bucket::all() {
            for port in blocks.of(bucket).unwrap() {
                assert_eq!(blocks.bucket(port), Some(bucket));
            }
        }
        assert_eq!(blocks.bucket(32_767), None);
        assert_eq!(blocks.bucket(blocks.range().end() + 1), None);
        assert_eq!(PortBlocks::new(40_000, 26), None);
        assert_eq!(blocks.of(Bucket(BUCKETS)), None);
    }

    #[test]
    fn flows_spread_over_all_buckets_and_the_key_matters() {
        let flow = |port| Flow::new("10.0.0.1:443".parse().unwrap(), ([10, 1, 2, 3], port).into());
        let count = |key| {
            let mut seen = [0u32; BUCKETS as usize];
            (1..=u16::MAX).for_each(|port| seen[bucket_of(key, &flow(port)).index()] += 1);
            seen
        };
        let seen = count(BucketKey([1, 2]));
        assert!(seen.iter().all(|n| (20..130).contains(n)), "{seen:?}");
        assert_ne!(seen, count(BucketKey([1, 3])));
    }
}
