//! How often each rule matched, shared by the workers.

use evergate_rules::RuleSpec;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The counts of a set of rules.
#[derive(Debug)]
pub struct RuleHits {
    rules: Vec<RuleSpec>,
    counts: Vec<AtomicU64>,
    /// Since when they are counted, in seconds since 1970.
    pub since_unix_s: u64,
}

impl RuleHits {
    /// The counters of `former` if it counts the same rules. A counter that continued for other rules would fit
    /// neither.
    pub fn new(rules: &[RuleSpec], former: Option<&Arc<RuleHits>>, now_unix_s: u64) -> Arc<RuleHits> {
        if let Some(former) = former.filter(|former| former.rules == rules) {
            return former.clone();
        }
        let counts = rules.iter().map(|_| AtomicU64::new(0)).collect();
        Arc::new(RuleHits { rules: rules.to_vec(), counts, since_unix_s: now_unix_s })
    }

    /// The count of a rule by its index.
    pub fn get(&self, rule: usize) -> Option<&AtomicU64> {
        self.counts.get(rule)
    }
}
