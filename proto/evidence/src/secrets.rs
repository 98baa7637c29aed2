//! Traffic secrets of one connection: the content of a sealed envelope.
//!
//! A list names each secret by a label. TLS 1.3 has the secrets 2 to 5, TLS 1.2 has secret 1. No other secret of a
//! connection belongs here: an exporter, a resumption secret or a server's key opens more than one session. The list
//! has no heap memory of its own and erases itself.

use crate::cursor::{Cursor, Malformed};
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// Most bytes of a secret: a hash of SHA-512.
pub const SECRET_BYTES_MAX: usize = 64;
/// Most bytes of an encoded list.
pub const LIST_BYTES_MAX: usize = Label::ALL.len() * (2 + SECRET_BYTES_MAX);

/// Name of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Label {
    /// Master secret of TLS 1.2: `CLIENT_RANDOM` of RFC 9850.
    MasterSecret = 1,
    /// `CLIENT_HANDSHAKE_TRAFFIC_SECRET` of TLS 1.3.
    ClientHandshake = 2,
    /// `SERVER_HANDSHAKE_TRAFFIC_SECRET` of TLS 1.3.
    ServerHandshake = 3,
    /// `CLIENT_TRAFFIC_SECRET_0` of TLS 1.3. Every KeyUpdate follows from it.
    ClientTraffic = 4,
    /// `SERVER_TRAFFIC_SECRET_0` of TLS 1.3. Every KeyUpdate follows from it.
    ServerTraffic = 5,
}

impl Label {
    /// Every label, in the order of their numbers.
    pub const ALL: [Label; 5] = [
        Label::MasterSecret,
        Label::ClientHandshake,
        Label::ServerHandshake,
        Label::ClientTraffic,
        Label::ServerTraffic,
    ];

    /// Label of a number.
    pub fn of(number: u8) -> Option<Label> {
        Label::ALL.into_iter().find(|label| *label as u8 == number)
    }

    /// Label of a key log (RFC 9850).
    pub fn of_key_log(name: &str) -> Option<Label> {
        Label::ALL.into_iter().find(|label| label.key_log_name() == name)
    }

    /// Name in a key log (RFC 9850).
    pub fn key_log_name(self) -> &'static str {
        match self {
            Label::MasterSecret => "CLIENT_RANDOM",
            Label::ClientHandshake => "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
            Label::ServerHandshake => "SERVER_HANDSHAKE_TRAFFIC_SECRET",
            Label::ClientTraffic => "CLIENT_TRAFFIC_SECRET_0",
            Label::ServerTraffic => "SERVER_TRAFFIC_SECRET_0",
        }
    }

    fn place(self) -> usize {
        self as usize - 1
    }
}

/// Secrets of one connection by their labels. A secret has 1 to 64 bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretList {
    secrets: [Secret; Label::ALL.len()],
}

/// Secret, or none if its length is 0.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Secret {
    len: u8,
    bytes: [u8; SECRET_BYTES_MAX],
}

impl Default for Secret {
    fn default() -> Secret {
        Secret { len: 0, bytes: [0; SECRET_BYTES_MAX] }
    }
}

impl Secret {
    fn erase(&mut self) {
        self.len.zeroize();
        self.bytes.zeroize();
    }
}

impl Drop for SecretList {
    fn drop(&mut self) {
        self.secrets.iter_mut().for_each(Secret::erase);
    }
}

impl SecretList {
    /// Sets a secret. An error if its length is not 1 to 64 bytes.
    pub fn set(&mut self, label: Label, secret: &[u8]) -> Result<(), Malformed> {
        if secret.is_empty() || secret.len() > SECRET_BYTES_MAX {
            return Err(Malformed(format!(
                "secret of {} bytes, expected 1 to {SECRET_BYTES_MAX}",
                secret.len()
            )));
        }
        let place = &mut self.secrets[label.place()];
        place.erase();
        place.bytes[..secret.len()].copy_from_slice(secret);
        place.len = secret.len() as u8;
        Ok(())
    }

    /// Secret of a label.
    pub fn get(&self, label: Label) -> Option<&[u8]> {
        let secret = &self.secrets[label.place()];
        (secret.len > 0).then(|| &secret.bytes[..usize::from(secret.len)])
    }

    /// Labels and secrets, in the order of the labels.
    pub fn iter(&self) -> impl Iterator<Item = (Label, &[u8])> {
        Label::ALL.into_iter().filter_map(|label| Some((label, self.get(label)?)))
    }

    /// Whether the list has no secret.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Whether the list has exactly the secrets that open a session of TLS 1.3 or of TLS 1.2.
    pub fn is_complete(&self) -> bool {
        let has = |label| self.get(label).is_some();
        let tls13 = &Label::ALL[1..];
        match has(Label::MasterSecret) {
            true => !tls13.iter().any(|&label| has(label)),
            false => tls13.iter().all(|&label| has(label)),
        }
    }

    /// List from exactly its bytes: labels in ascending order, each with a length and a secret.
    pub fn decode(bytes: &[u8]) -> Result<SecretList, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let mut list = SecretList::default();
        let mut last = 0;
        while cursor.end().is_err() {
            let number = cursor.u8()?;
            let label =
                Label::of(number).ok_or_else(|| Malformed(format!("secret of unknown label {number}")))?;
            if number <= last {
                return Err(Malformed::new("labels of secrets are not in ascending order"));
            }
            list.set(label, cursor.short()?)?;
            last = number;
        }
        match list.is_empty() {
            true => Err(Malformed::new("list without secrets")),
            false => Ok(list),
        }
    }

    /// Appends the list's bytes, at most [`LIST_BYTES_MAX`].
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        for (label, secret) in self.iter() {
            out.extend_from_slice(&[label as u8, secret.len() as u8]);
            out.extend_from_slice(secret);
        }
    }

    /// The list's bytes.
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        // The whole capacity at once: a vector that grows leaves copies behind.
        let mut out = Zeroizing::new(Vec::with_capacity(LIST_BYTES_MAX));
        self.encode_to(&mut out);
        out
    }
}

impl fmt::Debug for SecretList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(label, _)| label)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(secrets: &[(Label, &[u8])]) -> SecretList {
        let mut list = SecretList::default();
        secrets.iter().for_each(|(label, secret)| list.set(*label, secret).unwrap());
        list
    }

    #[test]
    fn list_is_complete_with_the_secrets_of_one_version() {
        let tls13: Vec<(Label, &[u8])> =
            Label::ALL[1..].iter().map(|label| (*label, &b"secret"[..])).collect();
        assert!(list(&tls13).is_complete());
        assert!(!list(&tls13[1..]).is_complete());
        assert!(list(&[(Label::MasterSecret, b"x")]).is_complete());
        assert!(!list(&[(Label::MasterSecret, b"x"), (Label::ClientTraffic, b"y")]).is_complete());
        assert!(!SecretList::default().is_complete());
    }

    #[test]
    fn other_encodings_are_refused() {
        for wrong in [
            &b""[..],
            b"\x00\x01a",
            b"\x06\x01a",
            b"\x01\x00",
            b"\x01\x02a",
            b"\x02\x01a\x01\x01b",
            b"\x01\x01a\x01\x01b",
        ] {
            assert!(SecretList::decode(wrong).is_err(), "{wrong:?}");
        }
        let long = [&[1, 65][..], &[7; 65]].concat();
        assert!(SecretList::decode(&long).is_err());
        assert!(SecretList::default().set(Label::MasterSecret, &[7; 65]).is_err());
        assert!(SecretList::default().set(Label::MasterSecret, b"").is_err());
    }

    #[test]
    fn shorter_secret_replaces_a_longer_one() {
        let mut list = list(&[(Label::ClientTraffic, &[9; 48])]);
        list.set(Label::ClientTraffic, b"short").unwrap();
        assert_eq!(list.get(Label::ClientTraffic), Some(&b"short"[..]));
        assert_eq!(list.secrets[3].bytes[5..], [0; 59]);
    }

    #[test]
    fn text_of_a_list_has_no_secret() {
        let list = list(&[(Label::MasterSecret, b"hidden")]);
        assert_eq!(format!("{list:?}"), "[MasterSecret]");
    }

    #[test]
    fn names_of_key_logs_lead_back_to_their_labels() {
        for label in Label::ALL {
            assert_eq!(Label::of_key_log(label.key_log_name()), Some(label));
            assert_eq!(Label::of(label as u8), Some(label));
        }
        assert_eq!(Label::of_key_log("EXPORTER_SECRET"), None);
    }

    proptest! {
        #[test]
        fn decoded_bytes_encode_to_themselves(
            secrets in proptest::collection::vec((1_u8..7, proptest::collection::vec(any::<u8>(), 0..66)), 0..6),
        ) {
            let mut bytes = Vec::new();
            for (label, secret) in &secrets {
                bytes.extend_from_slice(&[*label, secret.len() as u8]);
                bytes.extend_from_slice(secret);
            }
            if let Ok(list) = SecretList::decode(&bytes) {
                prop_assert_eq!(&list.encode()[..], &bytes[..]);
                prop_assert!(bytes.len() <= LIST_BYTES_MAX);
            }
        }
    }
}
