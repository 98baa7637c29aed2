//! Key logs of TLS implementations (RFC 9850): lines `LABEL CLIENT_RANDOM SECRET`.
//!
//! Only the secrets of one session are kept ([`Label`]): exporter and early secrets are left out. A set is complete
//! with the secrets of TLS 1.2 or of TLS 1.3.

use crate::merkle::Hash;
use crate::secrets::{Label, SECRET_BYTES_MAX, SecretList};
use std::collections::BTreeMap;
use zeroize::Zeroizing;

/// Most sets that wait for a secret.
pub const SETS_MAX: usize = 65_536;
/// Most bytes of a line.
pub const LINE_BYTES_MAX: usize = 512;

/// Reason why a line is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyLogError {
    /// Line that is no label, random and secret.
    #[error("no line of a key log: expected LABEL CLIENT_RANDOM SECRET")]
    Line,
    /// Second secret with this label that differs from the first.
    #[error("another secret of this connection has the same label")]
    Differs,
    /// More sets than the bound.
    #[error("more than {SETS_MAX} connections lack a secret")]
    Full,
}

/// Secrets of connections by their client randoms.
#[derive(Debug, Default)]
pub struct KeyLog {
    sets: BTreeMap<Hash, SecretList>,
}

impl KeyLog {
    /// Takes a line without its end. Whether a secret was kept: comments and other labels have none.
    pub fn push(&mut self, line: &[u8]) -> Result<bool, KeyLogError> {
        let line = std::str::from_utf8(line).map_err(|_| KeyLogError::Line)?.trim_end_matches('\r');
        if line.is_empty() || line.starts_with('#') {
            return Ok(false);
        }
        let mut parts = line.split(' ');
        let (Some(name), Some(random), Some(digits), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(KeyLogError::Line);
        };
        let Some(label) = Label::of_key_log(name) else { return Ok(false) };
        let mut client_random = Hash::default();
        let mut secret = Zeroizing::new([0; SECRET_BYTES_MAX]);
        unhex(random, &mut client_random).filter(|len| *len == 32).ok_or(KeyLogError::Line)?;
        let len = unhex(digits, &mut secret[..]).filter(|len| *len > 0).ok_or(KeyLogError::Line)?;
        if self.sets.len() >= SETS_MAX && !self.sets.contains_key(&client_random) {
            return Err(KeyLogError::Full);
        }
        let set = self.sets.entry(client_random).or_default();
        match set.get(label) {
            Some(known) if known != &secret[..len] => Err(KeyLogError::Differs),
            Some(_) => Ok(true),
            None => set.set(label, &secret[..len]).map(|()| true).map_err(|_| KeyLogError::Line),
        }
    }

    /// Complete sets, by their client randoms.
    pub fn complete(&self) -> impl Iterator<Item = (&Hash, &SecretList)> {
        self.sets.iter().filter(|(_, set)| set.is_complete())
    }

    /// Number of sets that lack a secret.
    pub fn incomplete(&self) -> usize {
        self.sets.values().filter(|set| !set.is_complete()).count()
    }
}

/// Bytes from hexadecimal digits of either case, at the begin of `out`: their number.
fn unhex(text: &str, out: &mut [u8]) -> Option<usize> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    for (byte, [high, low]) in out.get_mut(..pairs.len())?.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(pairs.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(label: &str, random: u8, secret: u8) -> Vec<u8> {
        let hex = |byte: u8, len: usize| format!("{byte:02x}").repeat(len);
        format!("{label} {} {}", hex(random, 32), hex(secret, 48)).into_bytes()
    }

    #[test]
    fn sets_are_complete_with_the_secrets_of_one_version() {
        let mut log = KeyLog::default();
        assert_eq!(log.push(b"# comment"), Ok(false));
        assert_eq!(log.push(&line("EXPORTER_SECRET", 1, 9)), Ok(false));
        for label in &Label::ALL[1..] {
            assert_eq!(log.complete().count(), 0);
            assert_eq!(log.push(&line(label.key_log_name(), 1, 7)), Ok(true));
        }
        assert_eq!(log.push(&line("CLIENT_RANDOM", 2, 8)), Ok(true));
        assert_eq!(log.push(&line("SERVER_TRAFFIC_SECRET_0", 3, 8)), Ok(true));
        let complete: Vec<u8> = log.complete().map(|(random, _)| random[0]).collect();
        assert_eq!((complete, log.incomplete()), (vec![1, 2], 1));
    }

    #[test]
    fn wrong_lines_are_refused() {
        let mut log = KeyLog::default();
        log.push(&line("CLIENT_RANDOM", 2, 8)).unwrap();
        assert_eq!(log.push(&line("CLIENT_RANDOM", 2, 8)), Ok(true));
        assert_eq!(log.push(&line("CLIENT_RANDOM", 2, 9)), Err(KeyLogError::Differs));
        let short = format!("CLIENT_RANDOM {} ", "02".repeat(32));
        let long = format!("CLIENT_RANDOM {} {}", "02".repeat(32), "07".repeat(65));
        for wrong in
            [&b"CLIENT_RANDOM"[..], b"CLIENT_RANDOM xx 00", b"\xff", short.as_bytes(), long.as_bytes()]
        {
            assert_eq!(log.push(wrong), Err(KeyLogError::Line), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn random_lines_never_panic(lines in proptest::collection::vec(any::<Vec<u8>>(), 0..20)) {
            let mut log = KeyLog::default();
            for line in lines {
                let _ = log.push(&line);
                let _ = log.push(&[b"CLIENT_RANDOM ", &line[..]].concat());
            }
        }
    }
}
