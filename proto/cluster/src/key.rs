//! Keys of the cluster: which are accepted, and which one signs.
//!
//! Rotation without a moment in which nodes do not understand each other: every node first *accepts* the new key, then
//! every node *sends* with it, then every node *removes* the old one.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// Length of the tag at the end of each datagram, in bytes.
pub const TAG_BYTES: usize = 32;

/// How many keys may be accepted at a time: rotation needs two, and one more when a rotation was left half done.
pub const KEYS_MAX: usize = 3;

/// Names a key on the wire.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct KeyId(pub u8);

/// A change of keys that is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Already [`KEYS_MAX`] keys.
    #[error("cannot accept cluster key {0:?}: already {KEYS_MAX} keys; remove an old one first")]
    TooMany(KeyId),
    /// The name is taken by other key bytes.
    #[error("cluster key {0:?} is already in use with other bytes; choose another id")]
    Taken(KeyId),
    /// No such key.
    #[error("no cluster key {0:?}; accept it first")]
    Unknown(KeyId),
    /// The key that signs cannot be removed.
    #[error("cluster key {0:?} signs our messages; send with another one before removing it")]
    InUse(KeyId),
}

/// The accepted keys and the one that signs.
#[derive(Clone, PartialEq, Eq)]
pub struct Keyring {
    accepted: Vec<(KeyId, Zeroizing<[u8; 32]>)>,
    sending: KeyId,
}

impl Keyring {
    /// A ring of one key.
    pub fn new(id: KeyId, key: [u8; 32]) -> Keyring {
        Keyring { accepted: vec![(id, Zeroizing::new(key))], sending: id }
    }

    /// Step one of a rotation: messages under this key are accepted from now on.
    pub fn accept(&mut self, id: KeyId, key: [u8; 32]) -> Result<(), KeyError> {
        if let Some((_, known)) = self.accepted.iter().find(|(known, _)| *known == id) {
            return if **known == key { Ok(()) } else { Err(KeyError::Taken(id)) };
        }
        if self.accepted.len() >= KEYS_MAX {
            return Err(KeyError::TooMany(id));
        }
        self.accepted.push((id, Zeroizing::new(key)));
        Ok(())
    }

    /// Step two: our messages are signed with this key.
    pub fn send_with(&mut self, id: KeyId) -> Result<(), KeyError> {
        if self.key(id).is_none() {
            return Err(KeyError::Unknown(id));
        }
        self.sending = id;
        Ok(())
    }

    /// Step three: messages under this key are refused from now on.
    pub fn remove(&mut self, id: KeyId) -> Result<(), KeyError> {
        if self.sending == id {
            return Err(KeyError::InUse(id));
        }
        let before = self.accepted.len();
        self.accepted.retain(|(known, _)| *known != id);
        if self.accepted.len() == before { Err(KeyError::Unknown(id)) } else { Ok(()) }
    }

    /// The key that signs.
    pub fn sending(&self) -> KeyId {
        self.sending
    }

    fn key(&self, id: KeyId) -> Option<&[u8; 32]> {
        self.accepted.iter().find(|(known, _)| *known == id).map(|(_, key)| &**key)
    }

    /// Appends the tag over `bytes`.
    pub(crate) fn seal(&self, bytes: &mut Vec<u8>) {
        if let Some(mac) = self.key(self.sending).and_then(|key| mac_of(key, bytes)) {
            bytes.extend_from_slice(&mac.finalize().into_bytes());
        }
    }

    /// What the tag covers, if the key is accepted and the tag right. `None` for an unknown key.
    pub(crate) fn verify(&self, id: KeyId, signed: &[u8], tag: &[u8]) -> Option<bool> {
        let mac = mac_of(self.key(id)?, signed)?;
        Some(mac.verify_slice(tag).is_ok())
    }
}

fn mac_of(key: &[u8; 32], bytes: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).ok()?;
    mac.update(bytes);
    Some(mac)
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<KeyId> = self.accepted.iter().map(|(id, _)| *id).collect();
        f.debug_struct("Keyring")
            .field("accepted", &ids)
            .field("sending", &self.sending)
            .finish_non_exhaustive()
    }
}

impl std::hash::Hash for Keyring {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // Key bytes stay out of hashes; the names tell states of a model apart.
        for (id, _) in &self.accepted {
            id.hash(state);
        }
        self.sending.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_every_pair_of_steps_understood() {
        let old = Keyring::new(KeyId(1), [1; 32]);
        let mut both = old.clone();
        both.accept(KeyId(2), [2; 32]).unwrap();
        let mut new = both.clone();
        new.send_with(KeyId(2)).unwrap();
        let mut last = new.clone();
        last.remove(KeyId(1)).unwrap();
        for (from, to) in
            [(&old, &both), (&both, &old), (&both, &new), (&new, &both), (&new, &last), (&last, &new)]
        {
            let mut bytes = vec![7; 50];
            from.seal(&mut bytes);
            let (signed, tag) = bytes.split_at(50);
            assert_eq!(to.verify(from.sending(), signed, tag), Some(true));
        }
        assert_eq!(last.verify(KeyId(1), &[7; 50], &[0; 32]), None);
        assert_eq!(new.remove(KeyId(2)), Err(KeyError::InUse(KeyId(2))));
    }

    #[test]
    fn key_bytes_are_not_printed() {
        assert!(!format!("{:?}", Keyring::new(KeyId(1), [0xAB; 32])).contains("171"));
    }
}
