//! Rate limits: a token bucket per rule and key, shared by the workers.
//!
//! Bound: [`KEYS_MAX`] keys per limit. At the bound, the fullest eighth of the buckets is forgotten, and all full
//! buckets, which hold no information. A forgotten bucket can only let requests pass, and as few as possible: an empty
//! bucket goes only when seven eighths of all are as empty. This scans all buckets, once for so many new keys that each
//! costs eight steps.

use evergate_rules::{RateKey, RateLimit, RuleId};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

const KEYS_MAX: usize = 65_536;
/// How many buckets are forgotten at once.
const FORGOTTEN_MAX: usize = KEYS_MAX / 8;

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
    /// Keyed at random, so that no client can choose names that share a bucket.
    hasher: RandomState,
    buckets: Mutex<HashMap<u64, TokenBucket>>,
}

#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: f64,
    filled_us: u64,
}

impl Rates {
    /// Buckets for these rules with their names: those of `former` where the same rule has the same limit, full ones
    /// otherwise. A reload that filled the buckets again would be a way around the limit.
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
        let key = limit.key_of(client, host);
        let mut buckets = limit.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= KEYS_MAX && !buckets.contains_key(&key) {
            limit.evict_fullest(&mut buckets, now_us);
        }
        let bucket = buckets.entry(key).or_insert(TokenBucket { tokens: limit.burst, filled_us: now_us });
        *bucket = limit.refill(*bucket, now_us);
        let pass = bucket.tokens >= 1.0;
        if pass {
            bucket.tokens -= 1.0;
        }
        pass
    }

    /// A request that passed does not count: another limit refused it.
    pub fn give_back(&self, rule: RuleId, client: IpAddr, host: &[u8]) {
        let Some(limit) = self.limits.get(&rule.0) else { return };
        let mut buckets = limit.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        // One that was forgotten meanwhile is full.
        if let Some(bucket) = buckets.get_mut(&limit.key_of(client, host)) {
            bucket.tokens = (bucket.tokens + 1.0).min(limit.burst);
        }
    }
}

/// The source whose connections and requests count together: an IPv4 address, or the first 64 bits of an IPv6 address.
/// A host has all addresses of its 64-bit prefix (RFC 7421), and would be another source with each of them.
pub fn source_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
    }
}

/// The IPv6 address that a host in brackets is: it has many spellings.
fn address(host: &[u8]) -> Option<Ipv6Addr> {
    let inner = host.strip_prefix(b"[")?.strip_suffix(b"]")?;
    std::str::from_utf8(inner).ok()?.parse().ok()
}

impl Limit {
    fn new(rule: &str, limit: &RateLimit) -> Limit {
        Limit {
            rule: rule.to_owned(),
            as_written: limit.clone(),
            per_s: f64::from(limit.requests_per_s),
            burst: f64::from(limit.burst.max(1)),
            hasher: RandomState::new(),
            buckets: Mutex::new(HashMap::new()),
        }
    }

    /// The bucket that a request takes from.
    fn key_of(&self, client: IpAddr, host: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        match self.as_written.key {
            RateKey::Source => source_of(client).hash(&mut hasher),
            RateKey::Host => match address(host) {
                Some(address) => address.hash(&mut hasher),
                None => host.to_ascii_lowercase().hash(&mut hasher),
            },
            RateKey::Global => {}
        }
        hasher.finish()
    }

    /// Forgets the buckets that are full again, or, if these are fewer than [`FORGOTTEN_MAX`], the fullest up to that
    /// number.
    #[cold]
    fn evict_fullest(&self, buckets: &mut HashMap<u64, TokenBucket>, now_us: u64) {
        let tokens_now = |bucket: &TokenBucket| self.refill(*bucket, now_us).tokens;
        let mut tokens: Vec<f64> = buckets.values().map(tokens_now).collect();
        let last = FORGOTTEN_MAX.min(tokens.len().saturating_sub(1));
        let (_, &mut least_kept, _) = tokens.select_nth_unstable_by(last, |a, b| b.total_cmp(a));
        let fuller = tokens[..last].iter().filter(|&&tokens| tokens > least_kept).count();
        let mut of_those_as_full = last - fuller;
        buckets.retain(|_, bucket| {
            let tokens = tokens_now(bucket);
            if tokens == least_kept && of_those_as_full > 0 {
                of_those_as_full -= 1;
                return false;
            }
            tokens <= least_kept && tokens < self.burst
        });
    }

    fn refill(&self, bucket: TokenBucket, now_us: u64) -> TokenBucket {
        let elapsed_s = now_us.saturating_sub(bucket.filled_us) as f64 / 1e6;
        TokenBucket {
            tokens: (bucket.tokens + elapsed_s * self.per_s).min(self.burst),
            filled_us: now_us.max(bucket.filled_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_passes_and_then_the_rate_holds() {
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
    fn returned_tokens_are_available_and_bounded_by_the_burst() {
        let limit = RateLimit { requests_per_s: 10, burst: 3, key: RateKey::Source };
        let rates = Rates::new([(RuleId(0), "a", &limit)].into_iter(), None);
        let ip: IpAddr = "10.0.0.1".parse().unwrap();
        let allowed = || rates.allow(RuleId(0), ip, b"", 0);
        assert!(allowed());
        (0..5).for_each(|_| rates.give_back(RuleId(0), ip, b""));
        assert_eq!((0..5).filter(|_| allowed()).count(), 3);
        rates.give_back(RuleId(0), ip, b"");
        assert!(allowed() && !allowed());
        rates.give_back(RuleId(7), ip, b"");
    }

    #[test]
    fn host_is_one_source_with_all_its_ipv6_addresses() {
        let limit = RateLimit { requests_per_s: 1, burst: 2, key: RateKey::Source };
        let rates = Rates::new([(RuleId(0), "a", &limit)].into_iter(), None);
        let passed = |clients: &[&str]| {
            clients.iter().filter(|ip| rates.allow(RuleId(0), ip.parse().unwrap(), b"", 0)).count()
        };
        assert_eq!(passed(&["2001:db8::1", "2001:db8::2", "2001:db8::ffff:0:0:1", "2001:db8::1"]), 2);
        assert_eq!(
            passed(&["2001:db8:0:1::1", "192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2", "192.0.2.1"]),
            4
        );
    }

    #[test]
    fn host_has_one_bucket_in_any_spelling() {
        let limit = RateLimit { requests_per_s: 1, burst: 2, key: RateKey::Host };
        let rates = Rates::new([(RuleId(0), "a", &limit)].into_iter(), None);
        let passed = |hosts: &[&str]| {
            hosts.iter().filter(|host| rates.allow(RuleId(0), [0; 4].into(), host.as_bytes(), 0)).count()
        };
        assert_eq!(passed(&["[2001:db8::1]", "[2001:DB8:0::1]", "[2001:db8:0:0::1]", "[2001:0db8::1]"]), 2);
        assert_eq!(passed(&["a.example", "A.example", "a.EXAMPLE", "[2001:db8::2]", "[]", "["]), 5);
    }

    /// Uses `count` keys once each, from number `from` on, one per microsecond.
    fn make_up_keys(rates: &Rates, from: u64, count: u64) {
        for n in from..from + count {
            rates.allow(RuleId(0), [0; 4].into(), format!("{n}.example").as_bytes(), n);
        }
    }

    fn kept(rates: &Rates) -> usize {
        rates.limits[&0].buckets.lock().unwrap().len()
    }

    #[test]
    fn made_up_keys_do_not_fill_a_bucket_that_is_used_up() {
        let limit = RateLimit { requests_per_s: 1, burst: 5, key: RateKey::Host };
        let rates = Rates::new([(RuleId(0), "a", &limit)].into_iter(), None);
        let passed =
            |at| (0..9).filter(|_| rates.allow(RuleId(0), [0; 4].into(), b"used.example", at)).count();
        assert_eq!(passed(0), 5);
        make_up_keys(&rates, 1, 140_000);
        assert_eq!(passed(140_001), 0);
        assert_eq!(passed(1_000_001), 1, "what it is owed since");
    }

    #[test]
    fn keys_are_bounded_and_few_are_forgotten_at_once() {
        // No bucket is full again within the test, and all keys that are used once are equally full.
        let limit = RateLimit { requests_per_s: 1, burst: 2, key: RateKey::Host };
        let rates = Rates::new([(RuleId(0), "a", &limit)].into_iter(), None);
        let mut least = usize::MAX;
        for n in 0..20 {
            make_up_keys(&rates, n * 8192, 8192);
            assert!(kept(&rates) <= KEYS_MAX);
            if n >= 8 {
                least = least.min(kept(&rates));
            }
        }
        assert!(least >= KEYS_MAX - FORGOTTEN_MAX, "{least}");
        // A known key makes no room.
        make_up_keys(&rates, 20 * 8192, (KEYS_MAX - kept(&rates)) as u64);
        rates.allow(RuleId(0), [0; 4].into(), b"163839.example", 200_000);
        assert_eq!(kept(&rates), KEYS_MAX);
        rates.allow(RuleId(0), [0; 4].into(), b"new.example", 200_000);
        assert_eq!(kept(&rates), KEYS_MAX - FORGOTTEN_MAX + 1);
    }

    #[test]
    fn limit_is_full_again_only_when_it_has_changed() {
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
