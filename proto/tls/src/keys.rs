//! One direction of a connection: its cipher, its key generation and its sequence number.
//!
//! Invariants: a nonce is the IV and the sequence number; the sequence number rises by one with each record and goes
//! back to zero only with a new key. The base secret is kept so that any generation can be reached again: records
//! that the peer has not acknowledged may belong to a generation older than the newest.

use zeroize::Zeroize;

use crate::aead::{AeadLibrary, Cipher};
use crate::error::RecordError;
use crate::schedule::{Secret, next_secret, traffic_keys};

/// Key generations between the base secret and the newest. Bounds what a peer can make a failover compute.
pub(crate) const GENERATIONS_AHEAD_MAX: u32 = 1024;
/// Generations between the base secret and those still in use from which on the base moves.
pub(crate) const REBASE_AFTER: u32 = 256;
/// The highest key generation: no connection comes near it, and the next number never overflows.
pub(crate) const GENERATION_MAX: u32 = 1 << 31;

/// Protocol version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// Which end of the connection we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The client connected to us.
    Server,
    /// We connected to an upstream server.
    Client,
}

/// The record protection, as far as it matters after the handshake.
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

    /// Bytes of a cipher key.
    pub fn key_len(self) -> usize {
        match self {
            Suite::Aes128Gcm => 16,
            Suite::Aes256Gcm | Suite::Chacha20Poly1305 => 32,
        }
    }

    /// Bytes of a TLS 1.3 traffic secret.
    pub(crate) fn secret_len(self) -> usize {
        match self {
            Suite::Aes256Gcm => 48,
            Suite::Aes128Gcm | Suite::Chacha20Poly1305 => 32,
        }
    }

    /// Records that one key may protect. RFC 8446 section 5.5: 2^24.5 full-size records for AES-GCM; for
    /// ChaCha20-Poly1305 "the record sequence number would wrap before the safety limit is reached".
    pub(crate) fn records_max(self) -> u64 {
        match self {
            Suite::Aes128Gcm | Suite::Aes256Gcm => 1 << 24,
            Suite::Chacha20Poly1305 => 1 << 62,
        }
    }
}

/// Where a direction stands: the key generation (KeyUpdates so far) and the next record's sequence number in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// KeyUpdates since the handshake; always 0 in TLS 1.2.
    pub generation: u32,
    /// Sequence number of the next record under this generation's key.
    pub sequence: u64,
}

/// What a direction starts from, and all that has to be exported of it besides its position.
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
    /// The current generation's secret when it is no longer the base: rare, so that it costs idle connections little.
    secret: Option<Box<Secret>>,
    base: Base,
    /// Generation that the base is the secret of; records of older ones are out of reach.
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

    /// The same when key and IV of generation 0 are known already.
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

    /// The direction at the first record of the generation that `base` is the secret of.
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

    /// Whether another KeyUpdate keeps within the bounds.
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

    /// Moves the base to a later generation: no record before it is sealed or opened again. Other moves do nothing.
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

    /// Nonce of TLS 1.3 and of ChaCha20 in TLS 1.2 (RFC 7905); also what we send as explicit nonce with GCM.
    pub(crate) fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, mask) in nonce[4..].iter_mut().zip(self.position.sequence.to_be_bytes()) {
            *byte ^= mask;
        }
        nonce
    }

    /// Nonce of GCM in TLS 1.2 (RFC 5288): our salt and the part the sender wrote into the record.
    pub(crate) fn explicit_nonce(&self, explicit: [u8; 8]) -> [u8; 12] {
        let mut nonce = self.iv;
        nonce[4..].copy_from_slice(&explicit);
        nonce
    }

    /// Moves on to the next generation (RFC 8446 section 7.2).
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
