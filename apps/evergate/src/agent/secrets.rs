//! Secrets that the nodes of a cluster share, all derived from one key file.
//!
//! Each purpose has its own label, so that no secret reveals another one.

use anyhow::{Context, Result};
use evergate_bpf::{BucketKey, CookieKey};
use evergate_config::{Machine, World};
use evergate_connection::RequestKey;
use evergate_crypto::derive;
use std::path::Path;

/// Secrets of a cluster.
pub(crate) struct Secrets {
    /// Authenticates heartbeats.
    pub(crate) heartbeats: [u8; 32],
    /// Authenticates both ends of replication channels.
    pub(crate) channels: [u8; 32],
    /// Maps clients to buckets.
    pub(crate) buckets: BucketKey,
    /// Signs SYN-ACKs without state (SYN cookies).
    pub(crate) cookies: CookieKey,
    /// Source of the ticket keys.
    pub(crate) tickets: [u8; 32],
    /// Hashes requests.
    pub(crate) requests: RequestKey,
}

impl Secrets {
    /// Reads the key file.
    pub(crate) fn read(path: &Path) -> Result<Secrets> {
        let file = Machine.read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let key = evergate_config::cluster_key(&file).with_context(|| {
            format!(
                "{} does not consist of 64 hexadecimal digits; see `evergate cluster key`",
                path.display()
            )
        })?;
        Ok(Secrets::of(&key))
    }

    pub(crate) fn of(key: &[u8; 32]) -> Secrets {
        Secrets {
            heartbeats: derive(key, "heartbeats"),
            channels: derive(key, "replication channels"),
            buckets: BucketKey(words(key, "bucket hash")),
            cookies: CookieKey(words(key, "syn cookies")),
            tickets: derive(key, "session tickets"),
            requests: RequestKey(words(key, "request hash")),
        }
    }
}

fn words(key: &[u8; 32], label: &str) -> [u64; 2] {
    let bytes = derive::<16>(key, label);
    [0, 8].map(|at| bytes.get(at..at + 8).and_then(|half| half.try_into().ok()).map_or(0, u64::from_le_bytes))
}

/// A fresh key as its file holds it.
pub fn fresh_key() -> String {
    let bytes: [u8; 32] = evergate_crypto::random_bytes();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_key_is_readable_and_each_purpose_has_its_own_secret() {
        let text = fresh_key() + "\n";
        let key = evergate_config::cluster_key(text.as_bytes()).unwrap();
        let (secrets, again) = (Secrets::of(&key), Secrets::of(&key));
        assert_eq!(secrets.tickets, again.tickets);
        assert_ne!(secrets.heartbeats, secrets.channels);
        assert_ne!(secrets.channels, secrets.tickets);
        let BucketKey([a, b]) = secrets.buckets;
        assert!(a != b && a != 0);
        assert_ne!(secrets.cookies.0, secrets.buckets.0);
        assert!(![secrets.cookies.0, secrets.buckets.0, [0; 2]].contains(&secrets.requests.0));
        assert_ne!(fresh_key(), fresh_key());
    }
}
