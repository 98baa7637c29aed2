//! One direction of a connection: its cipher, its key generation and its sequence number.
//!
//! Invariants: a nonce is the IV and the sequence number; the sequence number rises by one with each record and returns
//! to zero only with a new key. The base secret is kept so that any generation can be reached again: records that the
//! peer has not acknowledged may belong to a generation older than the newest.

use zeroize::Zeroize;

use crate::aead::{AeadLibrary, Cipher};
use crate::error::RecordError;
use crate::schedule::{Secret, next_secret, traffic_keys};

/// Limit of key generations between the base secret and the newest: bounds the work that a peer can cause at a
/// failover.
pub(crate) const GENERATIONS_AHEAD_MAX: u32 = 1024;
/// Distance in generations between the base secret and those still in use from which the base moves.
pub(crate) const REBASE_AFTER: u32 = 256;
/// The highest key generation: no connection reaches it, and the next number never overflows.
pub(crate) const GENERATION_MAX: u32 = 1 << 31;

/// Protocol version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// Role of this end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client connected to this node.
    Server,
    /// This node connected to an upstream server.
    Client,
}

/// Record protection of a cipher suite, as needed after the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// AES-128-GCM, with SHA-256 in TLS 1.3.
    Aes128Gcm,
    /// AES-256-GCM, with SHA-384 in TLS 1.3.
    Aes256Gcm,
    /// ChaCha20-Poly1305, with SHA-256 in TLS 1.3.
    Chacha20Poly1305,
}

impl Suite {
    /// All suites.
    pub const ALL: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::Chacha20Poly1305];

    /// Name of the record protection alone, as in `aes-128-gcm`.
    pub fn name(self) -> &'static str {
        match self {
            Suite::Aes128Gcm => "aes-128-gcm",
            Suite::Aes256Gcm => "aes-256-gcm",
            Suite::Chacha20Poly1305 => "chacha20-poly1305",
        }
    }

    /// Length of a cipher key, in bytes.
    pub fn key_len(self) -> usize {
        match self {
            Suite::Aes128Gcm => 16,
            Suite::Aes256Gcm | Suite::Chacha20Poly1305 => 32,
        }
    }

    /// Length of a TLS 1.3 traffic secret, in bytes.
    pub(crate) fn secret_len(self) -> usize {
        match self {
            Suite::Aes256Gcm => 48,
            Suite::Aes128Gcm | Suite::Chacha20Poly1305 => 32,
        }
    }

    /// Limit of records under one key. RFC 8446 section 5.5: 2^24.5 full-size records for AES-GCM; for
    /// ChaCha20-Poly1305 "the record sequence number would wrap before the safety limit is reached".
    pub(crate) fn records_max(self) -> u64 {
        match self {
            Suite::Aes128Gcm | Suite::Aes256Gcm => 1 << 24,
            Suite::Chacha20Poly1305 => 1 << 62,
        }
    }
}

/// Position of a direction: the key generation (KeyUpdates so far) and the sequence number of its next record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// KeyUpdates since the handshake; always 0 in TLS 1.2.
    pub generation: u32,
    /// Sequence number of the next record under this generation's key.
    pub sequence: u64,
}

/// Start of a direction, and all of its state that an export needs besides its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// The application traffic secret of the base generation; keys and IVs of later generations follow from it.
    Tls13(Secret),
    /// The key and the IV (4 bytes of salt and the explicit part's start for GCM, all 12 for ChaCha20).
    Tls12 { key: Secret, iv: [u8; 12] },
}

impl Drop for Base {
    fn drop(&mut self) {
        if let Base::Tls12 { iv, .. } = self {
            iv.zeroize();
        }
    }
}

/// One direction.
pub(crate) struct Direction {
    pub(crate) cipher: Cipher,
    pub(crate) iv: [u8; 12],
    pub(crate) position: Position,
    /// The secret of the current generation if it is no longer the base: rare, so the box saves memory in idle
    /// connections.
    secret: Option<Box<Secret>>,
    base: Base,
    /// Generation of the base secret; records of older generations cannot be reached.
    base_generation: u32,
}

impl Drop for Direction {
    fn drop(&mut self) {
        self.iv.zeroize(); // the cipher and the secrets erase themselves
    }
}

impl Direction {
    /// The direction at generation 0 and the given sequence number.
    pub(crate) fn new(
        library: AeadLibrary,
        suite: Suite,
        base: Base,
        sequence: u64,
    ) -> Result<Direction, RecordError> {
        let (key, iv) = match &base {
            Base::Tls13(secret) => traffic_keys(suite, secret),
            Base::Tls12 { key, iv } => (key.clone(), *iv),
        };
        Direction::with_keys(library, suite, base, sequence, &key, iv)
    }

    /// The direction at generation 0, with known key and IV.
    pub(crate) fn with_keys(
        library: AeadLibrary,
        suite: Suite,
        base: Base,
        sequence: u64,
        key: &Secret,
        iv: [u8; 12],
    ) -> Result<Direction, RecordError> {
        let cipher = Cipher::new(library, suite, key.as_slice())?;
        let position = Position { generation: 0, sequence };
        Ok(Direction { cipher, iv, position, secret: None, base, base_generation: 0 })
    }

    /// The direction at the first record of the generation of `base`.
    pub(crate) fn based(
        library: AeadLibrary,
        suite: Suite,
        base: Base,
        generation: u32,
    ) -> Result<Direction, RecordError> {
        let mut direction = Direction::new(library, suite, base, 0)?;
        direction.position.generation = generation;
        direction.base_generation = generation;
        Ok(direction)
    }

    pub(crate) fn base_generation(&self) -> u32 {
        self.base_generation
    }

    /// Whether another KeyUpdate stays within the limits.
    pub(crate) fn may_update(&self) -> bool {
        let next = self.position.generation.saturating_add(1);
        next <= GENERATION_MAX && next - self.base_generation <= GENERATIONS_AHEAD_MAX
    }

    /// The secret of a generation from the base's to the newest.
    fn secret_of(&self, suite: Suite, generation: u32) -> Option<Secret> {
        let Base::Tls13(base) = &self.base else { return None };
        if !(self.base_generation..=self.position.generation).contains(&generation) {
            return None;
        }
        if let Some(current) = self.secret.as_ref().filter(|_| generation == self.position.generation) {
            return Some(Secret::clone(current));
        }
        let steps = self.base_generation..generation;
        Some(steps.fold(base.clone(), |secret, _| next_secret(suite, &secret)))
    }

    /// Moves the base to a later generation: no record before it can be sealed or opened again. Other moves have no
    /// effect.
    pub(crate) fn rebase(&mut self, suite: Suite, generation: u32) {
        if generation > self.base_generation
            && let Some(secret) = self.secret_of(suite, generation)
        {
            if generation == self.position.generation {
                self.secret = None;
            }
            (self.base, self.base_generation) = (Base::Tls13(secret), generation);
        }
    }

    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// Nonce of TLS 1.3 and of ChaCha20 in TLS 1.2 (RFC 7905); also the explicit nonce that this end sends with GCM.
    pub(crate) fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, mask) in nonce[4..].iter_mut().zip(self.position.sequence.to_be_bytes()) {
            *byte ^= mask;
        }
        nonce
    }

    /// Nonce of GCM in TLS 1.2 (RFC 5288): the salt and the part that the sender wrote into the record.
    pub(crate) fn explicit_nonce(&self, explicit: [u8; 8]) -> [u8; 12] {
        let mut nonce = self.iv;
        nonce[4..].copy_from_slice(&explicit);
        nonce
    }

    /// Moves to the next generation (RFC 8446 section 7.2).
    pub(crate) fn update(&mut self, suite: Suite) -> Result<(), RecordError> {
        let next = Position { generation: self.position.generation + 1, sequence: 0 };
        self.seek(suite, next)
    }

    /// Moves to any position, forward or backward.
    pub(crate) fn seek(&mut self, suite: Suite, to: Position) -> Result<(), RecordError> {
        if to.generation != self.position.generation {
            let refused = |reason| RecordError::Seek { generation: to.generation, reason };
            let Base::Tls13(base) = &self.base else {
                return Err(refused("tls 1.2 has one generation"));
            };
            if to.generation < self.base_generation {
                return Err(refused("its keys are erased"));
            }
            if to.generation > GENERATION_MAX || to.generation - self.base_generation > GENERATIONS_AHEAD_MAX
            {
                return Err(refused("it is beyond the limit"));
            }
            let (mut secret, from) = match &self.secret {
                Some(current) if to.generation > self.position.generation => {
                    (Secret::clone(current), self.position.generation)
                }
                _ => (base.clone(), self.base_generation),
            };
            for _ in from..to.generation {
                secret = next_secret(suite, &secret);
            }
            let (key, iv) = traffic_keys(suite, &secret);
            self.cipher = Cipher::new(self.cipher.library(), suite, key.as_slice())?;
            self.iv = iv;
            self.secret = (to.generation > self.base_generation).then(|| Box::new(secret));
        }
        self.position = to;
        Ok(())
    }
}
