//! Rate limits: a token bucket per rule and key, shared by the workers.
//!
//! Bound: so many keys per limit; beyond it the fullest buckets are forgotten, which can only let requests pass.

use evergate_rules::{RateKey, RateLimit, RuleId};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

const KEYS_MAX: usize = 65_536;

/// The limits of one generation.
#[derive(Debug, Default)]
pub struct Rates {
    limits: HashMap<u32, Limit>,
}

#[derive(Debug)]
struct Limit {
    per_s: f64,
    burst: f64,
    key: RateKey,
    buckets: Mutex<HashMap<u64, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    filled_us: u64,
}

impl Rates {
    /// Buckets for these rules.
    pub fn new<'a>(limits: impl Iterator<Item = (RuleId, &'a RateLimit)>) -> Rates {
        let limits = limits.map(|(rule, limit)| {
            let burst = f64::from(limit.burst.max(1));
            let per_s = f64::from(limit.requests_per_s);
            (rule.0, Limit { per_s, burst, key: limit.key, buckets: Mutex::new(HashMap::new()) })
        });
        Rates { limits: limits.collect() }
    }

    /// Whether one more request may pass now.
    pub fn allow(&self, rule: RuleId, client: IpAddr, host: &[u8], now_us: u64) -> bool {
        let Some(limit) = self.limits.get(&rule.0) else { return true };
        let mut hasher = DefaultHasher::new();
        match limit.key {
            RateKey::Source => client.hash(&mut hasher),
            RateKey::Host => host.to_ascii_lowercase().hash(&mut hasher),
            RateKey::Global => {}
        }
        let mut buckets = limit.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= KEYS_MAX {
            buckets.retain(|_, bucket| limit.refill(*bucket, now_us).tokens < limit.burst);
            if buckets.len() >= KEYS_MAX {
                buckets.clear();
            }
        }
        let bucket =
            buckets.entry(hasher.finish()).or_insert(Bucket { tokens: limit.burst, filled_us: now_us });
        *bucket = limit.refill(*bucket, now_us);
        let pass = bucket.tokens >= 1.0;
        if pass {
            bucket.tokens -= 1.0;
        }
        pass
    }
}

impl Limit {
    fn refill(&self, bucket: Bucket, now_us: u64) -> Bucket {
        let elapsed_s = now_us.saturating_sub(bucket.filled_us) as f64 / 1e6;
        Bucket {
            tokens: (bucket.tokens + elapsed_s * self.per_s).min(self.burst),
            filled_us: now_us.max(bucket.filled_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let limit = RateLimit { requests_per_s: 10, burst: 3, key: RateKey::Source };
        let rates = Rates::new([(RuleId(0), &limit)].into_iter());
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let allowed = |at: u64| rates.allow(RuleId(0), ip, b"", at);
        assert_eq!((0..5).filter(|_| allowed(0)).count(), 3);
        assert!(!allowed(99_000));
        assert!(allowed(100_000));
        assert!(!allowed(100_000));
        assert!(rates.allow(RuleId(0), "10.0.0.2".parse().unwrap(), b"", 100_000));
        assert!(rates.allow(RuleId(7), ip, b"", 0));
    }
}
