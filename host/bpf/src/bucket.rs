//! Which bucket a flow belongs to: the same answer as the eBPF programs give.

use crate::Flow;
use crate::flow::words;
use evergate_base::Sip;
use std::ops::RangeInclusive;

/// Number of buckets.
pub const BUCKETS: usize = 1024;

/// One of the 1024 classes of flows that move between nodes as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(u16);

impl Bucket {
    /// The bucket of this number; `None` outside 0..1024.
    pub fn new(number: usize) -> Option<Bucket> {
        (number < BUCKETS).then_some(Bucket(number as u16))
    }

    /// All buckets in order.
    pub fn all() -> impl Iterator<Item = Bucket> {
        (0..BUCKETS as u16).map(Bucket)
    }

    /// Its number.
    pub fn number(self) -> usize {
        usize::from(self.0)
    }
}

/// Key of the hash over client legs: equal on all nodes, unknown to clients, so that nobody can aim at one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BucketKey(pub [u64; 2]);

/// Local ports of server legs: one block of equal length per bucket, from `first` on. Two blocks never overlap, so a
/// packet from a server tells its bucket by its destination port alone.
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
        let end = usize::from(first) + usize::from(block) * BUCKETS;
        (first > 0 && block > 0 && end <= 65_536).then_some(PortBlocks { first, block })
    }

    /// All ports. The sysctl `net.ipv4.ip_local_port_range` must cover them.
    pub fn range(self) -> RangeInclusive<u16> {
        self.first..=(usize::from(self.first) + usize::from(self.block) * BUCKETS - 1) as u16
    }

    /// The ports of one bucket.
    pub fn of(self, bucket: Bucket) -> RangeInclusive<u16> {
        let first = self.first + self.block * bucket.0;
        first..=first + (self.block - 1)
    }

    /// The bucket that a server leg's local port lies in.
    pub fn bucket(self, local_port: u16) -> Option<Bucket> {
        let offset = local_port.checked_sub(self.first)?;
        Bucket::new(usize::from(offset / self.block))
    }

    pub(crate) fn first(self) -> u16 {
        self.first
    }

    pub(crate) fn block(self) -> u16 {
        self.block
    }
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
    Bucket((state.finish() % BUCKETS as u64) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_of_a_block_tells_its_bucket() {
        let blocks = PortBlocks::DEFAULT;
        for bucket in Bucket::all() {
            for port in blocks.of(bucket) {
                assert_eq!(blocks.bucket(port), Some(bucket));
            }
        }
        assert_eq!(blocks.bucket(32_767), None);
        assert_eq!(blocks.bucket(blocks.range().end() + 1), None);
        assert_eq!(PortBlocks::new(40_000, 26), None);
    }

    #[test]
    fn flows_spread_over_all_buckets_and_the_key_matters() {
        let flow = |port| Flow::new("10.0.0.1:443".parse().unwrap(), ([10, 1, 2, 3], port).into());
        let count = |key| {
            let mut seen = [0u32; BUCKETS];
            (1..=u16::MAX).for_each(|port| seen[bucket_of(key, &flow(port)).number()] += 1);
            seen
        };
        let seen = count(BucketKey([1, 2]));
        assert!(seen.iter().all(|n| (20..130).contains(n)), "{seen:?}");
        assert_ne!(seen, count(BucketKey([1, 3])));
    }
}
