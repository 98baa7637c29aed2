//! Content of a ClientHello, read for logs, rules, and what this crate decides before `rustls`: refusals, the order of
//! ciphers, and whether early data may follow.
//!
//! Invariant: these fields can refuse a hello; only `rustls`, which parses the same bytes again, completes a handshake.

use std::borrow::Cow;
use std::ops::Range;

use crate::client_hello::ClientHello;
use crate::hello::{HelloStatus, hello_status};
use crate::reader::Reader;

/// The parts of a ClientHello that are used outside `rustls`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HelloFacts {
    /// Random of the client.
    pub random: [u8; 32],
    /// Host name of the server name extension in lower case; `None` when absent or not a plausible DNS name.
    pub sni: Option<String>,
    /// Application protocols offered, in the client's order.
    pub alpn: Vec<Vec<u8>>,
    /// Protocol versions offered, in the client's order, GREASE left out: 0x0304 is TLS 1.3.
    pub versions: Vec<u16>,
    /// Cipher suites offered, in the client's order, GREASE left out.
    pub suites: Vec<u16>,
    /// `legacy_version`: the newest version of a client that lists no versions, otherwise 0x0303.
    pub legacy_version: u16,
    /// Whether the hello offers to resume a TLS 1.3 session.
    pub has_psk: bool,
    /// Whether the client announces early data (RFC 8446 section 4.2.10).
    pub has_early_data: bool,
    /// Key exchange groups offered, in the client's order, GREASE left out; `None` without the extension.
    pub groups: Option<Vec<u16>>,
    /// Whether the hello has `signature_algorithms` and `key_share`.
    pub(crate) has: Negotiation,
    /// The clear session id: a TLS 1.2 session, or random bytes in TLS 1.3.
    pub session_id: Vec<u8>,
    /// Length of the offered TLS 1.2 ticket (RFC 5077 section 3.2), in bytes: 0 if the client only announces that it
    /// accepts tickets, `None` if it does not accept them.
    pub ticket_bytes: Option<usize>,
}

/// Extensions that a full handshake of TLS 1.3 requires, besides the groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Negotiation {
    signatures: bool,
    shares: bool,
}

impl HelloFacts {
    /// The facts of a hello; `None` when one of its lists is malformed.
    pub fn from_hello(hello: &ClientHello<'_>) -> Option<HelloFacts> {
        Some(HelloFacts {
            random: *hello.random,
            sni: hello.server_name(),
            alpn: hello.alpn()?.into_iter().map(<[u8]>::to_vec).collect(),
            versions: hello.versions()?,
            suites: hello.suites()?,
            legacy_version: hello.legacy_version,
            has_psk: hello.has_psk(),
            has_early_data: hello.has_early_data(),
            groups: hello.groups()?,
            has: Negotiation { signatures: hello.has_signatures(), shares: hello.has_shares() },
            session_id: hello.session_id.to_vec(),
            ticket_bytes: hello.ticket().map(<[u8]>::len),
        })
    }

    /// The extension that a hello for TLS 1.3 lacks (RFC 8446 section 9.2).
    pub(crate) fn missing_extension(&self) -> Option<&'static str> {
        let Negotiation { signatures, shares } = self.has;
        match (self.groups.is_some(), shares) {
            (true, false) => Some("key_share"),
            (false, true) => Some("supported_groups"),
            _ if self.has_psk => None,
            (false, false) => Some("supported_groups"),
            _ => (!signatures).then_some("signature_algorithms"),
        }
    }

    /// Whether the client supports TLS 1.3.
    pub fn offers_tls13(&self) -> bool {
        self.versions.contains(&0x0304)
    }

    /// Whether the client supports nothing newer than TLS 1.1; false for a hello that could not be read.
    pub(crate) fn is_too_old(&self) -> bool {
        const TLS12: u16 = 0x0303;
        !self.versions.is_empty() && self.versions.iter().all(|version| *version < TLS12)
    }

    /// Whether the client offers a preferred key exchange group.
    pub(crate) fn offers_first_groups(&self) -> bool {
        const FIRST: [u16; 3] = [0x11ec, 0x001d, 0x0017]; // X25519MLKEM768, X25519, secp256r1
        self.groups.iter().flatten().any(|group| FIRST.contains(group))
    }

    /// Whether the hello is one of SSL 3.0 or older: "MUST abort the handshake" (RFC 8446 appendix D.5).
    pub(crate) fn is_ssl3(&self) -> bool {
        const SSL3: u16 = 0x0300;
        !self.versions.is_empty() && self.legacy_version <= SSL3
    }

    /// Whether the client prefers ChaCha20-Poly1305 over AES, which clients without AES instructions express by order.
    pub fn prefers_chacha(&self) -> bool {
        // TLS_CHACHA20_POLY1305_SHA256 and the ECDHE suites of RFC 7905.
        matches!(self.suites.first(), Some(0x1303 | 0xcca8 | 0xcca9))
    }
}

/// Reads a whole ClientHello from the records at the start of `raw`; `None` when it is incomplete or malformed.
pub fn read_hello(raw: &[u8]) -> Option<HelloFacts> {
    read_hello_message(&hello_message(raw)?)
}

/// Reads a ClientHello message, its header included; `None` when it is incomplete or malformed.
pub fn read_hello_message(message: &[u8]) -> Option<HelloFacts> {
    HelloFacts::from_hello(&ClientHello::read(message).ok()?)
}

/// Random of the ClientHello in the records at the start of `raw`; `None` when the hello is incomplete.
pub fn client_random(raw: &[u8]) -> Option<[u8; 32]> {
    const BEFORE: usize = 4 + 2; // header of the message, version
    hello_message(raw)?.get(BEFORE..)?.first_chunk().copied()
}

/// The ClientHello message in the records at the start of `raw`, header included; `None` when it is incomplete. It is
/// copied only if it has several records.
pub fn hello_message(raw: &[u8]) -> Option<Cow<'_, [u8]>> {
    let HelloStatus::Complete { len } = hello_status(raw, usize::MAX) else { return None };
    let (first, mut records) = split_record(raw.get(..len)?)?;
    let mut message = Cow::Borrowed(first);
    while let Some((body, next)) = split_record(records) {
        message.to_mut().extend_from_slice(body);
        records = next;
    }
    Some(message)
}

/// Body of the first record, and the records behind it.
fn split_record(records: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[_, _, _, hi, lo], rest) = records.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes([hi, lo])))
}

/// Range of the first host name in a ClientHello message.
pub(crate) fn name_range(message: &[u8]) -> Option<Range<usize>> {
    let (_, declared) = message.split_at_checked(1)?;
    let mut body = Reader(Reader(declared).vector(3)?); // after the type: the message of the declared length
    body.take(2 + 32)?; // version, random
    body.vector(1)?; // session id
    body.vector(2)?; // cipher suites
    body.vector(1)?; // compression methods
    let mut extensions = Reader(body.vector(2)?);
    while !extensions.is_empty() {
        let (kind, extension) = (extensions.u16()?, extensions.vector(2)?);
        if kind == 0 {
            let mut names = Reader(Reader(extension).vector(2)?);
            let kind = names.take(1)?;
            let name = names.vector(2).filter(|_| kind == [0])?;
            let start = name.as_ptr().addr().checked_sub(message.as_ptr().addr())?;
            return Some(start..start + name.len());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[0, kind, 0, body.len() as u8], body].concat()
    }

    fn hello(suites: &[u8], extensions: &[u8]) -> Vec<u8> {
        let body = [
            &[3, 3][..],
            &[9; 32],
            &[2, 0xaa, 0xbb],
            &[0, suites.len() as u8],
            suites,
            &[1, 0],
            &[0, extensions.len() as u8],
            extensions,
        ]
        .concat();
        let message = [&[1, 0, 0, body.len() as u8], &body[..]].concat();
        [&[22, 3, 1, 0, message.len() as u8], &message[..]].concat()
    }

    fn usual() -> Vec<u8> {
        let extensions = [
            extension(0, b"\x00\x0e\x00\x00\x0bExample.org"),
            extension(16, b"\x00\x0c\x02h2\x08http/1.1"),
            extension(43, &[6, 0x3a, 0x3a, 3, 4, 3, 3]),
            extension(41, &[0, 0]),
            extension(35, b"ticket"),
        ]
        .concat();
        hello(&[0x1a, 0x1a, 0x13, 3, 0x13, 1], &extensions)
    }

    #[test]
    fn hello_is_read_without_grease() {
        let facts = read_hello(&usual()).unwrap();
        assert_eq!(facts.sni.as_deref(), Some("example.org"));
        assert_eq!(facts.alpn, [b"h2".to_vec(), b"http/1.1".to_vec()]);
        assert_eq!(
            (facts.versions.as_slice(), facts.suites.as_slice()),
            (&[0x304, 0x303][..], &[0x1303, 0x1301][..])
        );
        assert!(facts.has_psk && facts.prefers_chacha() && facts.session_id == [0xaa, 0xbb]);
        assert_eq!(facts.ticket_bytes, Some(6));
    }

    #[test]
    fn final_dot_of_a_name_is_dropped() {
        let sni = |name: &[u8]| {
            let len = name.len() as u8;
            let list = [&[0, len + 3, 0, 0, len], name].concat();
            read_hello(&hello(&[0x13, 1], &extension(0, &list))).unwrap().sni
        };
        assert_eq!(sni(b"Example.org.").as_deref(), Some("example.org"));
        assert_eq!(sni(b"example.org..").as_deref(), Some("example.org."), "one dot is the root's");
        assert_eq!(sni(b"."), None);
    }

    #[test]
    fn implausible_name_is_ignored() {
        let facts = read_hello(&hello(&[0x13, 1], &extension(0, b"\x00\x06\x00\x00\x03a/b"))).unwrap();
        assert_eq!((facts.sni, facts.versions, facts.ticket_bytes), (None, vec![0x303], None));
    }

    #[test]
    fn reader_never_panics() {
        let whole = usual();
        for at in 0..whole.len() {
            assert_eq!(read_hello(&whole[..at]), None);
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut raw = whole.clone();
                raw[at] = value;
                let _ = read_hello(&raw);
            }
        }
    }
}
