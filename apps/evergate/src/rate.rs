//! Rate limits: a token bucket per rule and key, shared by the workers.
//!
//! Bound: so many keys per limit; beyond it the fullest buckets are forgotten, which can only let requests pass.

use evergate_rules::{RateKey, RateLimit, RuleId};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

const KEYS_MAX: usize = 65_536;

/// The limits of one generation.
#[derive(Debug, Default)]
pub struct Rates {
    limits: HashMap<u32, Arc<Limit>>,
}

#[derive(Debug)]
struct Limit {
    /// Name of its rule.
    rule: String,
    as_written: RateLimit,
    per_s: f64,
    burst: f64,
    buckets: Mutex<HashMap<u64, Bucket>>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    filled_us: u64,
}

impl Rates {
    /// Buckets for these rules with their names: those of `former` where the same rule has the same limit, full ones otherwise.
    /// A reload that lets everybody in once more would be a way around the limit.
    pub fn new<'a>(
        limits: impl Iterator<Item = (RuleId, &'a str, &'a RateLimit)>,
        former: Option<&Rates>,
    ) -> Rates {
        let former: HashMap<&str, &Arc<Limit>> = former
            .iter()
            .flat_map(|former| former.limits.values().map(|limit| (limit.rule.as_str(), limit)))
            .collect();
        let limits = limits.map(|(id, rule, limit)| {
            let same = former.get(rule).filter(|known| known.as_written == *limit);
            (id.0, same.map_or_else(|| Arc::new(Limit::new(rule, limit)), |known| Arc::clone(known)))
        });
        Rates { limits: limits.collect() }
    }

    /// Whether one more request may pass now.
    pub fn allow(&self, rule: RuleId, client: IpAddr, host: &[u8], now_us: u64) -> bool {
        let Some(limit) = self.limits.get(&rule.0) else { return true };
        let mut hasher = DefaultHasher::new();
        match limit.as_written.key {
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
    fn new(rule: &str, limit: &RateLimit) -> Limit {
        Limit {
            rule: rule.to_owned(),
            as_written: limit.clone(),
            per_s: f64::from(limit.requests_per_s),
            burst: f64::from(limit.burst.max(1)),
            buckets: Mutex::new(HashMap::new()),
        }
    }

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
        let rates = Rates::new([(RuleId(0), "a", &limit)].into_iter(), None);
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let allowed = |at: u64| rates.allow(RuleId(0), ip, b"", at);
        assert_eq!((0..5).filter(|_| allowed(0)).count(), 3);
        assert!(!allowed(99_000));
        assert!(allowed(100_000));
        assert!(!allowed(100_000));
        assert!(rates.allow(RuleId(0), "10.0.0.2".parse().unwrap(), b"", 100_000));
        assert!(rates.allow(RuleId(7), ip, b"", 0));
    }

    #[test]
    fn a_limit_is_full_again_only_when_it_is_another() {
        let limit = RateLimit { requests_per_s: 1, burst: 2, key: RateKey::Global };
        let rates = Rates::new([(RuleId(0), "a", &limit), (RuleId(1), "b", &limit)].into_iter(), None);
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let passed = |rates: &Rates, rule| (0..9).filter(|_| rates.allow(RuleId(rule), ip, b"", 0)).count();
        assert_eq!((passed(&rates, 0), passed(&rates, 1)), (2, 2));
        let wider = RateLimit { burst: 3, ..limit.clone() };
        let next = [(RuleId(0), "b", &wider), (RuleId(1), "a", &limit), (RuleId(2), "c", &limit)];
        let next = Rates::new(next.into_iter(), Some(&rates));
        assert_eq!([0, 1, 2].map(|rule| passed(&next, rule)), [3, 0, 2]);
    }
}
