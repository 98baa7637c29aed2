//! The key of the cluster, under which datagrams are signed and accepted.
//!
//! There is one key: a change of it stops all nodes. The key's id is on the wire, so that a datagram under another key
//! is distinguished from a forged one.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Length of the tag at the end of each datagram, in bytes.
pub const TAG_BYTES: usize = 32;

/// Name of a key on the wire.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct KeyId(pub u8);

/// The cluster's key, and its id.
#[derive(Clone, PartialEq, Eq)]
pub struct Keyring {
    id: KeyId,
    key: Zeroizing<[u8; 32]>,
}

impl Keyring {
    /// A keyring of this key, by this id.
    pub fn new(id: KeyId, key: [u8; 32]) -> Keyring {
        Keyring { id, key: Zeroizing::new(key) }
    }

    /// Id of the key that signs.
    pub fn sending(&self) -> KeyId {
        self.id
    }

    /// Appends the tag over `bytes`.
    pub(crate) fn seal(&self, bytes: &mut Vec<u8>) {
        if let Some(mac) = mac_of(&self.key, bytes) {
            bytes.extend_from_slice(&mac.finalize().into_bytes());
        }
    }

    /// Whether the tag is right; `None` for an unknown key.
    pub(crate) fn verify(&self, id: KeyId, signed: &[u8], tag: &[u8]) -> Option<bool> {
        if id != self.id {
            return None;
        }
        Some(mac_of(&self.key, signed)?.verify_slice(tag).is_ok())
    }
}

fn mac_of(key: &[u8; 32], bytes: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).ok()?;
    mac.update(bytes);
    Some(mac)
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyring").field("id", &self.id).finish_non_exhaustive()
    }
}

impl std::hash::Hash for Keyring {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state); // key bytes stay out of hashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_is_right_under_its_key_alone() {
        let own = Keyring::new(KeyId(1), [1; 32]);
        let mut bytes = vec![7; 50];
        own.seal(&mut bytes);
        let (signed, tag) = bytes.split_at(50);
        assert_eq!(own.verify(own.sending(), signed, tag), Some(true));
        assert_eq!(Keyring::new(KeyId(1), [2; 32]).verify(KeyId(1), signed, tag), Some(false));
        assert_eq!(own.verify(KeyId(2), signed, tag), None);
    }

    #[test]
    fn key_bytes_are_not_printed() {
        assert!(!format!("{:?}", Keyring::new(KeyId(1), [0xAB; 32])).contains("171"));
    }
}
