//! Weighted rendezvous hashing: the preference of a bucket for nodes, equal on every node and stable when nodes change.

use crate::NodeId;
use evergate_base::{GAMMA, spread};

/// Preference of `bucket` for `id`; higher is better. A node of weight 0 scores below every other.
pub(crate) fn score(bucket: u16, id: NodeId, weight: u16) -> u64 {
    if weight == 0 {
        return u64::from(spread(u64::from(bucket) << 8 | u64::from(id.0)) as u16);
    }
    // Rank by -weight / ln(u), with u from the hash: the share of buckets won is proportional to the weight. The
    // logarithm is computed in integers, so that the nodes agree on any platform.
    let hash = spread((u64::from(bucket) << 8 | u64::from(id.0)) ^ GAMMA) | 1;
    let neg_log2 = neg_log2_q32(hash);
    (u64::from(u16::MAX) + 1)
        + (u128::from(weight) << 64)
            .checked_div(u128::from(neg_log2.max(1)))
            .map_or(0, |q| u64::try_from(q >> 17).unwrap_or(u64::MAX >> 1))
}

/// -log2(hash / 2^64) with 32 fractional bits, by repeated squaring.
fn neg_log2_q32(hash: u64) -> u64 {
    let leading = hash.leading_zeros();
    let mut mantissa = u128::from(hash << leading); // in [2^63, 2^64): m = mantissa / 2^63 in [1, 2)
    let mut fraction: u64 = 0;
    for bit in (0..32).rev() {
        mantissa = (mantissa * mantissa) >> 63;
        if mantissa >> 64 != 0 {
            fraction |= 1 << bit;
            mantissa >>= 1;
        }
    }
    // log2(hash) = 63 - leading + fraction; minus it from 64.
    (u64::from(leading + 1) << 32) - fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    fn winners(nodes: &[(u8, u16)]) -> Vec<u8> {
        let best = |bucket| nodes.iter().max_by_key(|(id, weight)| score(bucket, NodeId(*id), *weight));
        (0..1024).filter_map(best).map(|(id, _)| *id).collect()
    }

    #[test]
    fn shares_follow_weights() {
        let won = winners(&[(0, 100), (1, 100), (2, 200), (3, 0)]);
        let count = |id| won.iter().filter(|winner| **winner == id).count();
        assert!(
            (200..=312).contains(&count(0)) && (200..=312).contains(&count(1)),
            "{} {}",
            count(0),
            count(1)
        );
        assert!((440..=584).contains(&count(2)), "{}", count(2));
        assert_eq!(count(3), 0);
    }

    #[test]
    fn node_that_goes_moves_only_its_own_buckets() {
        let (with, without) = (winners(&[(0, 1), (1, 1), (2, 1)]), winners(&[(0, 1), (2, 1)]));
        assert!(with.iter().zip(&without).all(|(a, b)| a == b || *a == 1));
    }
}
