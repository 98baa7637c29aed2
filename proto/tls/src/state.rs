//! The exported state of a record layer: what a backup holds of an established connection (59 to 117 bytes).
//!
//! Layout: one byte (format, suite, role, version), then for each direction, ours to send first: the secret (TLS 1.3)
//! or key and IV (TLS 1.2), the key generation and the sequence number, both as LEB128. Lengths follow from the first
//! byte. Invariant: `decode` accepts exactly what `encode` wrote.

use crate::error::StateError;
use crate::keys::{Base, GENERATION_MAX, Position, Role, Suite, Version};
use crate::schedule::Secret;

const FORMAT: u8 = 0x10;

/// What [`crate::Records`] is made of. Erased when dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsState {
    pub(crate) version: Version,
    pub(crate) role: Role,
    pub(crate) suite: Suite,
    pub(crate) tx: (Base, Position),
    pub(crate) rx: (Base, Position),
}

impl RecordsState {
    /// Protocol version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Where sending stood.
    pub fn tx(&self) -> Position {
        self.tx.1
    }

    /// Where receiving stood.
    pub fn rx(&self) -> Position {
        self.rx.1
    }

    /// Appends the encoding. The bytes are secret: what holds them has to erase them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let suite = match self.suite {
            Suite::Aes128Gcm => 0,
            Suite::Aes256Gcm => 1,
            Suite::Chacha20Poly1305 => 2,
        };
        let role = u8::from(self.role == Role::Client);
        let version = u8::from(self.version == Version::Tls13);
        out.push(FORMAT | suite << 2 | role << 1 | version);
        for (base, position) in [&self.tx, &self.rx] {
            match base {
                Base::Tls13(secret) => out.extend_from_slice(secret.as_slice()),
                Base::Tls12 { key, iv } => {
                    out.extend_from_slice(key.as_slice());
                    out.extend_from_slice(iv);
                }
            }
            put_leb128(u64::from(position.generation), out);
            put_leb128(position.sequence, out);
        }
    }

    /// Reads what [`encode`](Self::encode) wrote; nothing may follow it.
    pub fn decode(bytes: &[u8]) -> Result<RecordsState, StateError> {
        let wrong_length = StateError::Length(bytes.len());
        let Some((&first, mut rest)) = bytes.split_first() else { return Err(wrong_length) };
        let suite = match (first & 0xf0, first >> 2 & 3) {
            (FORMAT, 0) => Suite::Aes128Gcm,
            (FORMAT, 1) => Suite::Aes256Gcm,
            (FORMAT, 2) => Suite::Chacha20Poly1305,
            _ => return Err(StateError::Unknown(first)),
        };
        let role = if first & 2 == 0 { Role::Server } else { Role::Client };
        let version = if first & 1 == 0 { Version::Tls12 } else { Version::Tls13 };
        let mut direction = || {
            let base = match version {
                Version::Tls13 => Base::Tls13(Secret::new(take(&mut rest, suite.secret_len())?)?),
                Version::Tls12 => {
                    let key = Secret::new(take(&mut rest, suite.key_len())?)?;
                    Base::Tls12 { key, iv: take(&mut rest, 12)?.try_into().ok()? }
                }
            };
            Some((base, get_leb128(&mut rest)?, get_leb128(&mut rest)?))
        };
        let (Some(tx), Some(rx)) = (direction(), direction()) else { return Err(wrong_length) };
        if !rest.is_empty() {
            return Err(wrong_length);
        }
        let generation_max = if version == Version::Tls13 { GENERATION_MAX } else { 0 };
        let position = |(base, generation, sequence): (Base, u64, u64)| match u32::try_from(generation) {
            Ok(generation) if generation <= generation_max && sequence <= 1 << 62 => {
                Ok((base, Position { generation, sequence }))
            }
            _ => Err(StateError::Position),
        };
        Ok(RecordsState { version, role, suite, tx: position(tx)?, rx: position(rx)? })
    }
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

fn put_leb128(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Refuses encodings longer than needed, so that a state has one encoding.
fn get_leb128(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return (byte != 0 || shift == 0).then_some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state(version: Version, suite: Suite, role: Role, tx: Position, rx: Position) -> RecordsState {
        let base = |fill: u8| match version {
            Version::Tls13 => Base::Tls13(Secret::new(&[fill; 48][..suite.secret_len()]).unwrap()),
            Version::Tls12 => {
                Base::Tls12 { key: Secret::new(&[fill; 48][..suite.key_len()]).unwrap(), iv: [fill; 12] }
            }
        };
        RecordsState { version, role, suite, tx: (base(1), tx), rx: (base(2), rx) }
    }

    proptest! {
        #[test]
        fn a_state_survives_its_encoding_and_no_cut_or_surplus_is_accepted(
            tls13 in any::<bool>(), client in any::<bool>(), suite in 0..3,
            generations in (0..=GENERATION_MAX, 0..=GENERATION_MAX), sequences in (0_u64..1 << 62, 0_u64..1 << 24),
        ) {
            let version = if tls13 { Version::Tls13 } else { Version::Tls12 };
            let suite = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::Chacha20Poly1305][suite as usize];
            let role = if client { Role::Client } else { Role::Server };
            let generation = |g| if tls13 { g } else { 0 };
            let tx = Position { generation: generation(generations.0), sequence: sequences.0 };
            let rx = Position { generation: generation(generations.1), sequence: sequences.1 };
            let state = state(version, suite, role, tx, rx);
            let mut bytes = Vec::new();
            state.encode(&mut bytes);
            prop_assert_eq!(RecordsState::decode(&bytes), Ok(state));
            for end in 0..bytes.len() {
                prop_assert!(RecordsState::decode(&bytes[..end]).is_err());
            }
            bytes.push(0);
            prop_assert!(RecordsState::decode(&bytes).is_err());
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(state) = RecordsState::decode(&bytes) {
                let mut again = Vec::new();
                state.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn the_sizes_are_those_the_mirror_reckons_with() {
        let fresh = Position { generation: 0, sequence: 2 };
        let late = Position { generation: GENERATION_MAX, sequence: 1 << 24 };
        for (version, suite, position, len) in [
            (Version::Tls12, Suite::Aes128Gcm, fresh, 61),
            (Version::Tls13, Suite::Aes128Gcm, fresh, 69),
            (Version::Tls13, Suite::Aes256Gcm, fresh, 101),
            (Version::Tls13, Suite::Aes256Gcm, late, 109),
        ] {
            let mut bytes = Vec::new();
            state(version, suite, Role::Server, position, position).encode(&mut bytes);
            assert_eq!(bytes.len(), len, "{version:?} {suite:?}");
        }
    }
}
