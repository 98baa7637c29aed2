//! One direction of a captured connection, opened with the secrets that its owner disclosed.
//!
//! This module reads what other implementations sent: it enforces no rule on a peer, and its caller decides what a
//! record means. Invariants: only an authentic record opens; after an error the position is unchanged.

use std::ops::Range;

use sha2::{Digest, Sha256, Sha384};
use zeroize::Zeroizing;

use crate::aead::installed_aead;
use crate::error::RecordError;
use crate::keys::{Base, Direction, Position, Suite, Version};
use crate::opening::{EXPLICIT_NONCE, HEADER, TAG, has_explicit_nonce};
use crate::schedule::{Secret, prf};

/// Length of a master secret and of a premaster secret of TLS 1.2, in bytes.
const MASTER_BYTES: usize = 48;

impl Suite {
    /// Record protection of a cipher suite by its number; `None` for suites that are not AEADs of this crate.
    pub fn of_number(version: Version, number: u16) -> Option<Suite> {
        match (version, number) {
            (Version::Tls13, 0x1301) => Some(Suite::Aes128Gcm),
            (Version::Tls13, 0x1302) => Some(Suite::Aes256Gcm),
            (Version::Tls13, 0x1303) => Some(Suite::Chacha20Poly1305),
            // RFC 5288 and RFC 5487; below RFC 5289, 8442 and 7905.
            (Version::Tls12, 0x9c | 0x9e | 0xa0 | 0xa2 | 0xa4 | 0xa6 | 0xa8 | 0xaa | 0xac) => {
                Some(Suite::Aes128Gcm)
            }
            (Version::Tls12, 0x9d | 0x9f | 0xa1 | 0xa3 | 0xa5 | 0xa7 | 0xa9 | 0xab | 0xad) => {
                Some(Suite::Aes256Gcm)
            }
            (Version::Tls12, 0xc02b | 0xc02d | 0xc02f | 0xc031 | 0xd001) => Some(Suite::Aes128Gcm),
            (Version::Tls12, 0xc02c | 0xc02e | 0xc030 | 0xc032 | 0xd002) => Some(Suite::Aes256Gcm),
            (Version::Tls12, 0xcca8..=0xccae) => Some(Suite::Chacha20Poly1305),
            _ => None,
        }
    }
}

/// What the master secret of TLS 1.2 is bound to.
#[derive(Clone, Copy, Debug)]
pub enum MasterSeed<'a> {
    /// Randoms of both hellos, client's first (RFC 5246 section 8.1).
    Randoms(&'a [u8; 32], &'a [u8; 32]),
    /// All handshake messages up to ClientKeyExchange, with their headers (RFC 7627 section 4).
    Messages(&'a [&'a [u8]]),
}

/// Master secret of TLS 1.2 from the premaster secret of an RSA key exchange.
pub fn master_secret(
    suite: Suite,
    premaster: &[u8; MASTER_BYTES],
    seed: MasterSeed<'_>,
) -> Zeroizing<Vec<u8>> {
    let Some(secret) = Secret::new(premaster) else { return Zeroizing::default() };
    Zeroizing::new(match seed {
        MasterSeed::Randoms(client, server) => {
            let seed = [&client[..], &server[..]].concat();
            prf(suite, &secret, b"master secret", &seed, MASTER_BYTES)
        }
        MasterSeed::Messages(messages) => {
            let hash = session_hash(suite, messages);
            prf(suite, &secret, b"extended master secret", &hash, MASTER_BYTES)
        }
    })
}

/// Hash of handshake messages by the PRF's function.
fn session_hash(suite: Suite, messages: &[&[u8]]) -> Vec<u8> {
    fn hash<D: Digest>(messages: &[&[u8]]) -> Vec<u8> {
        let mut digest = D::new();
        messages.iter().for_each(|message| digest.update(message));
        digest.finalize().to_vec()
    }
    match suite {
        Suite::Aes256Gcm => hash::<Sha384>(messages),
        Suite::Aes128Gcm | Suite::Chacha20Poly1305 => hash::<Sha256>(messages),
    }
}

/// Opener of the records of one direction.
pub struct CapturedDirection {
    version: Version,
    suite: Suite,
    direction: Direction,
}

impl std::fmt::Debug for CapturedDirection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapturedDirection")
            .field("version", &self.version)
            .field("suite", &self.suite)
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}

impl CapturedDirection {
    /// A direction of TLS 1.3 from a traffic secret: of the handshake, or generation 0 of application data.
    pub fn tls13(suite: Suite, secret: &[u8]) -> Result<CapturedDirection, RecordError> {
        let secret = Secret::new(secret)
            .filter(|_| secret.len() == suite.secret_len())
            .ok_or(RecordError::Cipher("traffic secret of another length"))?;
        let base = Base::Tls13(secret);
        let direction = Direction::new(installed_aead().of(suite), suite, base, 0)?;
        Ok(CapturedDirection { version: Version::Tls13, suite, direction })
    }

    /// Both directions of TLS 1.2, client's first, from the master secret and the randoms of both hellos.
    pub fn tls12(
        suite: Suite,
        master: &[u8],
        client_random: &[u8; 32],
        server_random: &[u8; 32],
    ) -> Result<[CapturedDirection; 2], RecordError> {
        let secret = Secret::new(master)
            .filter(|_| master.len() == MASTER_BYTES)
            .ok_or(RecordError::Cipher("master secret of another length"))?;
        // RFC 5246 section 6.3: no MAC keys for AEADs; client's key, server's key, client's IV, server's IV.
        let iv_len = if has_explicit_nonce(Version::Tls12, suite) { 4 } else { 12 };
        let (key_len, seed) = (suite.key_len(), [&server_random[..], &client_random[..]].concat());
        let block = Zeroizing::new(prf(suite, &secret, b"key expansion", &seed, 2 * (key_len + iv_len)));
        let (keys, ivs) = block.split_at(2 * key_len);
        let direction = |number: usize| -> Result<CapturedDirection, RecordError> {
            let key = Secret::new(&keys[number * key_len..][..key_len]).ok_or(RecordError::Cipher("key"))?;
            let mut iv = [0; 12];
            iv[..iv_len].copy_from_slice(&ivs[number * iv_len..][..iv_len]);
            let base = Base::Tls12 { key, iv };
            let direction = Direction::new(installed_aead().of(suite), suite, base, 0)?;
            Ok(CapturedDirection { version: Version::Tls12, suite, direction })
        };
        Ok([direction(0)?, direction(1)?])
    }

    /// Opens `record`, one whole record with its header, in place. Answers its content type and the place of its
    /// content.
    pub fn open(&mut self, record: &mut [u8]) -> Result<(u8, Range<usize>), RecordError> {
        let len = record.len();
        let Some((header, body)) = record.split_first_chunk_mut::<HEADER>() else {
            return Err(RecordError::Slot { len, reason: "not a whole record" });
        };
        if self.direction.position.sequence >= 1 << 62 {
            return Err(RecordError::Exhausted("receiving key"));
        }
        let (content, place) = self.direction.open(self.version, self.suite, header, body)?;
        Ok((content, HEADER + place.start..HEADER + place.end))
    }

    /// Position of the next record.
    pub fn position(&self) -> Position {
        self.direction.position
    }

    /// Moves forward by this many records, whose bytes the capture does not have.
    pub fn skip(&mut self, records: u64) {
        let sequence = &mut self.direction.position.sequence;
        *sequence = sequence.saturating_add(records).min(1 << 62);
    }

    /// Moves back to an earlier sequence number of the current keys.
    pub fn rewind(&mut self, sequence: u64) {
        self.direction.position.sequence = sequence.min(1 << 62);
    }

    /// Moves to the next key generation (RFC 8446 section 7.2). Generations are not limited; older ones are gone.
    pub fn update(&mut self) -> Result<(), RecordError> {
        self.direction.update(self.suite)?;
        let generation = self.direction.position.generation;
        self.direction.rebase(self.suite, generation);
        Ok(())
    }

    /// Bytes of a record beside its content, without padding.
    pub fn overhead(&self) -> usize {
        let nonce = if has_explicit_nonce(self.version, self.suite) { EXPLICIT_NONCE } else { 0 };
        HEADER + nonce + TAG + usize::from(self.version == Version::Tls13)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Role;
    use crate::records::{ContentType, Records};
    use crate::state::{DirectionState, RecordsState};

    fn sender(suite: Suite, secret: &[u8]) -> Records {
        let base = Base::Tls13(Secret::new(secret).unwrap());
        let direction = DirectionState { base, base_generation: 0, position: Position::default() };
        let (tx, rx) = (direction.clone(), direction);
        Records::import(&RecordsState { version: Version::Tls13, role: Role::Server, suite, tx, rx }).unwrap()
    }

    fn sealed(records: &mut Records, payload: &[u8]) -> Vec<u8> {
        let layout = records.layout();
        let mut slot = vec![0; layout.header];
        slot.extend_from_slice(payload);
        slot.resize(slot.len() + layout.trailer, 0);
        records.seal(ContentType::ApplicationData, &mut slot).unwrap();
        slot
    }

    #[test]
    fn records_of_every_suite_and_generation_open() {
        for suite in Suite::ALL {
            let secret = vec![7; suite.secret_len()];
            let (mut sender, mut reader) =
                (sender(suite, &secret), CapturedDirection::tls13(suite, &secret).unwrap());
            for generation in 0..5 {
                let mut record = sealed(&mut sender, b"payload");
                assert_eq!(record.len(), reader.overhead() + 7);
                let (content, place) = reader.open(&mut record).unwrap();
                assert_eq!((content, &record[place]), (23, &b"payload"[..]));
                let mut update = Vec::new();
                sender.seal_key_update(false, &mut update);
                let (content, place) = reader.open(&mut update).unwrap();
                assert_eq!((content, &update[place]), (22, &[24, 0, 0, 1, 0][..]));
                reader.update().unwrap();
                assert_eq!(reader.position(), Position { generation: generation + 1, sequence: 0 });
            }
        }
    }

    #[test]
    fn foreign_record_leaves_the_position() {
        let secret = [7; 32];
        let mut sender = sender(Suite::Aes128Gcm, &secret);
        let mut reader = CapturedDirection::tls13(Suite::Aes128Gcm, &secret).unwrap();
        let (first, second) = (sealed(&mut sender, b"first"), sealed(&mut sender, b"second"));
        assert!(reader.open(&mut second.clone()).is_err());
        assert_eq!(reader.position().sequence, 0);
        reader.skip(1);
        assert!(reader.open(&mut second.clone()).is_ok());
        reader.rewind(0);
        assert!(reader.open(&mut first.clone()).is_ok());
        for length in 0..first.len() {
            assert!(reader.open(&mut first[..length].to_vec()).is_err());
        }
    }

    #[test]
    fn secrets_of_other_lengths_are_refused() {
        assert!(CapturedDirection::tls13(Suite::Aes256Gcm, &[7; 32]).is_err());
        assert!(CapturedDirection::tls13(Suite::Aes128Gcm, &[7; 49]).is_err());
        assert!(CapturedDirection::tls12(Suite::Aes128Gcm, &[7; 47], &[1; 32], &[2; 32]).is_err());
    }
}
