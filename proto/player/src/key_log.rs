//! Key logs of TLS (RFC 9850, the format of NSS): one secret a line, `LABEL CLIENT_RANDOM SECRET`.
//!
//! Labels that a disclosed session does not have are left out, such as exporter secrets. Memory: 400 bytes for each
//! connection of the log, at most [`CONNECTIONS_MAX`].

use evergate_evidence::secrets::{Label, SecretList};
use std::collections::HashMap;

/// Most connections of a key log.
pub const CONNECTIONS_MAX: usize = 1 << 20;

/// Secrets by the random of the ClientHello.
#[derive(Clone, Debug, Default)]
pub struct KeyLog {
    secrets: HashMap<[u8; 32], SecretList>,
}

/// Error in a line of a key log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct KeyLogError {
    /// Number of the line, from 1 on.
    pub line: usize,
    /// What is wrong.
    pub reason: &'static str,
}

impl KeyLog {
    /// Key log of these bytes. Empty lines, comments (`#`) and other labels are skipped.
    pub fn parse(bytes: &[u8]) -> Result<KeyLog, KeyLogError> {
        let mut log = KeyLog::default();
        for (line, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
            log.add_line(text).map_err(|reason| KeyLogError { line, reason })?;
        }
        Ok(log)
    }

    /// Secrets of a connection.
    pub fn get(&self, client_random: &[u8; 32]) -> Option<&SecretList> {
        self.secrets.get(client_random)
    }

    /// Adds the secrets of a connection. They replace those of the same labels.
    pub fn add(&mut self, client_random: [u8; 32], secrets: &SecretList) -> Result<(), &'static str> {
        if self.secrets.len() >= CONNECTIONS_MAX && !self.secrets.contains_key(&client_random) {
            return Err("more than 1,048,576 connections");
        }
        let list = self.secrets.entry(client_random).or_default();
        for (label, secret) in secrets.iter() {
            list.set(label, secret).map_err(|_| "secret of another length")?;
        }
        Ok(())
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.secrets.len()
    }

    /// Whether the log has no secret.
    pub fn is_empty(&self) -> bool {
        self.secrets.is_empty()
    }

    /// Randoms of the connections, in order.
    pub fn client_randoms(&self) -> Vec<[u8; 32]> {
        let mut randoms: Vec<_> = self.secrets.keys().copied().collect();
        randoms.sort_unstable();
        randoms
    }

    /// Adds a line without its end. Empty lines, comments (`#`) and other labels are skipped.
    pub fn add_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let mut words =
            line.trim_ascii().split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let Some(name) = words.next().filter(|name| !name.starts_with(b"#")) else { return Ok(()) };
        let (Some(random), Some(secret), None) = (words.next(), words.next(), words.next()) else {
            return Err("a line has a label, a client random and a secret");
        };
        let Some(label) = std::str::from_utf8(name).ok().and_then(Label::of_key_log) else { return Ok(()) };
        let random = digits(random).and_then(|random| <[u8; 32]>::try_from(random).ok());
        let random = random.ok_or("the client random is not 64 hexadecimal digits")?;
        let secret = zeroize::Zeroizing::new(digits(secret).ok_or("the secret is not hexadecimal")?);
        let mut list = SecretList::default();
        list.set(label, &secret).map_err(|_| "the secret does not have 1 to 64 bytes")?;
        self.add(random, &list)
    }
}

/// Lines of a key log with the secrets of one connection.
pub fn lines_of(client_random: &[u8; 32], secrets: &SecretList) -> String {
    let line = |(label, secret): (Label, &[u8])| {
        format!("{} {} {}\n", label.key_log_name(), hex(client_random), hex(secret))
    };
    secrets.iter().map(line).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digits(text: &[u8]) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    pairs.iter().map(|&[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_written() {
        let random = "ab".repeat(32);
        let text = format!(
            "# a comment\r\n\r\nCLIENT_TRAFFIC_SECRET_0 {random} 0102\nEXPORTER_SECRET {random} 03\n\
             CLIENT_RANDOM {random} ff"
        );
        let log = KeyLog::parse(text.as_bytes()).unwrap();
        let secrets = log.get(&[0xab; 32]).unwrap();
        assert_eq!(secrets.get(Label::ClientTraffic), Some(&[1, 2][..]));
        let lines = lines_of(&[0xab; 32], secrets);
        assert_eq!(lines, format!("CLIENT_RANDOM {random} ff\nCLIENT_TRAFFIC_SECRET_0 {random} 0102\n"));
        assert_eq!(KeyLog::parse(lines.as_bytes()).unwrap().get(&[0xab; 32]), Some(secrets));
    }

    #[test]
    fn damaged_lines_are_refused_with_their_number() {
        for (text, reason) in [
            ("CLIENT_RANDOM", "a line has"),
            ("CLIENT_RANDOM ab 01", "64 hexadecimal"),
            (&format!("CLIENT_RANDOM {} 0", "ab".repeat(32))[..], "not hexadecimal"),
            (&format!("CLIENT_RANDOM {} {}", "ab".repeat(32), "00".repeat(65)), "1 to 64"),
        ] {
            let error = KeyLog::parse(format!("\n{text}\n").as_bytes()).unwrap_err();
            assert!(error.line == 2 && error.reason.contains(reason), "{text}: {error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_never_panic(bytes: Vec<u8>) {
            let _ = KeyLog::parse(&bytes);
        }
    }
}
