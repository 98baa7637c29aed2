//! Exported state of a record layer: the part of an established connection that a backup stores (59 to 137 bytes).
//!
//! Layout: one byte (format, suite, role, version), then for each direction, sending first: the secret (TLS 1.3) or key
//! and IV (TLS 1.2), the key generation and the sequence number, both as LEB128. In the second format the generation of
//! the secret, as LEB128, precedes these two: the base has moved after many key changes. Lengths follow from the first
//! byte. Invariant: `decode` accepts exactly the output of `encode`.

use crate::error::StateError;
use crate::keys::{Base, GENERATION_MAX, GENERATIONS_AHEAD_MAX, Position, Role, Suite, Version};
use crate::schedule::Secret;

const FORMAT: u8 = 0x10;
const FORMAT_REBASED: u8 = 0x20;

/// State of [`crate::Records`]. Erased when dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordsState {
    pub(crate) version: Version,
    pub(crate) role: Role,
    pub(crate) suite: Suite,
    pub(crate) tx: DirectionState,
    pub(crate) rx: DirectionState,
}

/// One direction of an exported record layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirectionState {
    pub(crate) base: Base,
    /// Key generation of the base.
    pub(crate) base_generation: u32,
    pub(crate) position: Position,
}

impl RecordsState {
    /// Protocol version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Position of sending.
    pub fn tx(&self) -> Position {
        self.tx.position
    }

    /// Position of receiving.
    pub fn rx(&self) -> Position {
        self.rx.position
    }

    /// Appends the encoding. The bytes are secret: the owner of the buffer must erase them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let suite = match self.suite {
            Suite::Aes128Gcm => 0,
            Suite::Aes256Gcm => 1,
            Suite::Chacha20Poly1305 => 2,
        };
        let role = u8::from(self.role == Role::Client);
        let version = u8::from(self.version == Version::Tls13);
        let rebased = self.tx.base_generation > 0 || self.rx.base_generation > 0;
        let format = if rebased { FORMAT_REBASED } else { FORMAT };
        out.push(format | suite << 2 | role << 1 | version);
        for DirectionState { base, base_generation, position } in [&self.tx, &self.rx] {
            match base {
                Base::Tls13(secret) => out.extend_from_slice(secret.as_slice()),
                Base::Tls12 { key, iv } => {
                    out.extend_from_slice(key.as_slice());
                    out.extend_from_slice(iv);
                }
            }
            if rebased {
                put_leb128(u64::from(*base_generation), out);
            }
            put_leb128(u64::from(position.generation), out);
            put_leb128(position.sequence, out);
        }
    }

    /// Decodes the output of [`encode`](Self::encode); no bytes may follow it.
    pub fn decode(bytes: &[u8]) -> Result<RecordsState, StateError> {
        let wrong_length = StateError::Length(bytes.len());
        let Some((&first, mut rest)) = bytes.split_first() else { return Err(wrong_length) };
        let suite = match (first & 0xf0, first >> 2 & 3) {
            (FORMAT | FORMAT_REBASED, 0) => Suite::Aes128Gcm,
            (FORMAT | FORMAT_REBASED, 1) => Suite::Aes256Gcm,
            (FORMAT | FORMAT_REBASED, 2) => Suite::Chacha20Poly1305,
            _ => return Err(StateError::Unknown(first)),
        };
        let rebased = first & 0xf0 == FORMAT_REBASED;
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
            let base_generation = if rebased { get_leb128(&mut rest)? } else { 0 };
            Some((base, base_generation, get_leb128(&mut rest)?, get_leb128(&mut rest)?))
        };
        let (Some(tx), Some(rx)) = (direction(), direction()) else { return Err(wrong_length) };
        if !rest.is_empty() {
            return Err(wrong_length);
        }
        if rebased && (tx.1, rx.1) == (0, 0) {
            return Err(StateError::Unknown(first)); // the other format encodes the same
        }
        let generation_max = if version == Version::Tls13 { GENERATION_MAX } else { 0 };
        let state = |(base, base_generation, generation, sequence): (Base, u64, u64, u64)| {
            let narrow = |value| u32::try_from(value).ok().filter(|value| *value <= generation_max);
            let (Some(base_generation), Some(generation)) = (narrow(base_generation), narrow(generation))
            else {
                return Err(StateError::Position);
            };
            let ahead = generation.checked_sub(base_generation);
            if sequence > 1 << 62 || ahead.is_none_or(|ahead| ahead > GENERATIONS_AHEAD_MAX) {
                return Err(StateError::Position);
            }
            Ok(DirectionState { base, base_generation, position: Position { generation, sequence } })
        };
        Ok(RecordsState { version, role, suite, tx: state(tx)?, rx: state(rx)? })
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

/// Decodes a number; refuses encodings longer than needed, so that a state has one encoding.
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

    /// Positions come with the generation of their base.
    fn state(
        version: Version,
        suite: Suite,
        role: Role,
        tx: (u32, Position),
        rx: (u32, Position),
    ) -> RecordsState {
        let base = |fill: u8| match version {
            Version::Tls13 => Base::Tls13(Secret::new(&[fill; 48][..suite.secret_len()]).unwrap()),
            Version::Tls12 => {
                Base::Tls12 { key: Secret::new(&[fill; 48][..suite.key_len()]).unwrap(), iv: [fill; 12] }
            }
        };
        let direction = |fill, (base_generation, position)| DirectionState {
            base: base(fill),
            base_generation,
            position,
        };
        RecordsState { version, role, suite, tx: direction(1, tx), rx: direction(2, rx) }
    }

    proptest! {
        #[test]
        fn state_decodes_only_from_its_exact_encoding(
            tls13 in any::<bool>(), client in any::<bool>(), suite in 0..3,
            bases in (0..=GENERATION_MAX - 1024, 0..=GENERATION_MAX - 1024), is_rebased in any::<bool>(),
            ahead in (0..=1024_u32, 0..=1024_u32), sequences in (0_u64..1 << 62, 0_u64..1 << 24),
        ) {
            let version = if tls13 { Version::Tls13 } else { Version::Tls12 };
            let suite = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::Chacha20Poly1305][suite as usize];
            let role = if client { Role::Client } else { Role::Server };
            let direction = |base: u32, ahead: u32, sequence| {
                let base = if tls13 && is_rebased { base } else { 0 };
                (base, Position { generation: if tls13 { base + ahead } else { 0 }, sequence })
            };
            let tx = direction(bases.0, ahead.0, sequences.0);
            let rx = direction(bases.1, ahead.1, sequences.1);
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
        fn decoder_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(state) = RecordsState::decode(&bytes) {
                let mut encoded = Vec::new();
                state.encode(&mut encoded);
                prop_assert_eq!(encoded, bytes);
            }
        }
    }

    #[test]
    fn state_with_unreachable_positions_is_refused() {
        let of = |base, generation| {
            let position = (base, Position { generation, sequence: 0 });
            let mut bytes = Vec::new();
            state(Version::Tls13, Suite::Aes128Gcm, Role::Server, position, position).encode(&mut bytes);
            RecordsState::decode(&bytes).map(|_| ())
        };
        assert_eq!(
            (of(0, 1024), of(500, 1524), of(GENERATION_MAX, GENERATION_MAX)),
            (Ok(()), Ok(()), Ok(()))
        );
        for (base, generation) in [(0, 1025), (500, 1525), (500, 499), (GENERATION_MAX, GENERATION_MAX + 1)] {
            assert_eq!(of(base, generation), Err(StateError::Position), "{base} {generation}");
        }
    }

    #[test]
    fn encoded_sizes_are_those_that_replication_expects() {
        let fresh = Position { generation: 0, sequence: 2 };
        let late = |generation| Position { generation, sequence: 1 << 24 };
        for (version, suite, position, len) in [
            (Version::Tls12, Suite::Aes128Gcm, (0, fresh), 61),
            (Version::Tls13, Suite::Aes128Gcm, (0, fresh), 69),
            (Version::Tls13, Suite::Aes256Gcm, (0, fresh), 101),
            (Version::Tls13, Suite::Aes256Gcm, (0, late(1024)), 109),
            (Version::Tls13, Suite::Aes256Gcm, (GENERATION_MAX - 1024, late(GENERATION_MAX)), 125),
        ] {
            let mut bytes = Vec::new();
            state(version, suite, Role::Server, position, position).encode(&mut bytes);
            assert_eq!(bytes.len(), len, "{version:?} {suite:?}");
        }
    }
}
