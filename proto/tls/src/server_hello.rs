//! The ServerHello of a handshake, read from the server's first bytes.

use crate::reader::Reader;

/// Random of a HelloRetryRequest (RFC 8446 section 4.1.3).
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// What the server chose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerHello {
    /// Its random.
    pub random: [u8; 32],
    /// Version by its registered number.
    pub version: u16,
    /// Cipher suite by its registered number.
    pub suite: u16,
    /// Session id. In TLS 1.3 it repeats the client's.
    pub session_id: ServerSessionId,
    /// Index of the accepted pre-shared key of TLS 1.3 in the client's offer.
    pub selected_psk: Option<u16>,
}

/// Session id of a ServerHello: at most 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerSessionId {
    bytes: [u8; 32],
    len: u8,
}

impl ServerSessionId {
    fn new(id: &[u8]) -> Option<ServerSessionId> {
        let mut bytes = [0; 32];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        Some(ServerSessionId { bytes, len: id.len() as u8 })
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl ServerHello {
    /// Whether it is a HelloRetryRequest: another ClientHello and ServerHello follow.
    pub fn is_retry(&self) -> bool {
        self.random == RETRY_RANDOM
    }
}

/// Result of a search for the ServerHello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerHelloSearch {
    /// The hello.
    Found(ServerHello),
    /// The bytes end before it does.
    Partial,
    /// Something else comes first.
    Absent,
}

/// The ServerHello in these records; a HelloRetryRequest and change_cipher_spec before it are skipped.
pub fn find_server_hello(mut records: &[u8]) -> ServerHelloSearch {
    const HANDSHAKE: u8 = 22;
    const CHANGE_CIPHER_SPEC: u8 = 20;
    loop {
        let Some((&[kind, major, _, high, low], rest)) = records.split_first_chunk::<5>() else {
            return ServerHelloSearch::Partial;
        };
        if major != 3 || (kind != HANDSHAKE && kind != CHANGE_CIPHER_SPEC) {
            return ServerHelloSearch::Absent;
        }
        let Some((record, next)) = rest.split_at_checked(usize::from(u16::from_be_bytes([high, low]))) else {
            return ServerHelloSearch::Partial;
        };
        if kind == HANDSHAKE {
            match read_server_hello(record) {
                Some(hello) if hello.is_retry() => {}
                Some(hello) => return ServerHelloSearch::Found(hello),
                None => return ServerHelloSearch::Absent,
            }
        }
        records = next;
    }
}

/// Reads the message at the start of `message`, its header included (RFC 8446 section 4.1.3); `None` if it is no
/// ServerHello. A message without its end is read as far as it goes. Bytes behind the message are ignored.
pub fn read_server_hello(message: &[u8]) -> Option<ServerHello> {
    const PRE_SHARED_KEY: u16 = 41;
    const SUPPORTED_VERSIONS: u16 = 43;
    let (&[2, a, b, c], rest) = message.split_first_chunk::<4>()? else { return None };
    let mut body = Reader(rest.get(..u32::from_be_bytes([0, a, b, c]) as usize).unwrap_or(rest));
    let (legacy, random) = (body.u16()?, body.array()?);
    let session_id = ServerSessionId::new(body.vector(1)?)?;
    let mut hello =
        ServerHello { random: *random, version: legacy, suite: body.u16()?, session_id, selected_psk: None };
    body.take(1 + 2); // compression method, length of the extensions
    while let (Some(kind), Some(value)) = (body.u16(), body.vector(2)) {
        let number = value.try_into().ok().map(u16::from_be_bytes);
        match (kind, number) {
            (SUPPORTED_VERSIONS, Some(version)) => hello.version = version,
            (PRE_SHARED_KEY, Some(index)) => hello.selected_psk = Some(index),
            _ => {}
        }
    }
    Some(hello)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(session_id: &[u8], extensions: &[u8]) -> Vec<u8> {
        let len = session_id.len() as u8;
        let head = [&[3, 3][..], &[9; 32], &[len], session_id, &[0x13, 1, 0], extensions].concat();
        [&[2, 0, 0, head.len() as u8], &head[..]].concat()
    }

    #[test]
    fn choices_of_the_server_are_read() {
        let hello =
            read_server_hello(&message(&[7; 32], &[0, 12, 0, 43, 0, 2, 3, 4, 0, 41, 0, 2, 0, 1])).unwrap();
        assert_eq!((hello.version, hello.suite, hello.selected_psk), (0x0304, 0x1301, Some(1)));
        assert_eq!(hello.session_id.as_slice(), [7; 32]);
        let old = read_server_hello(&message(&[], &[])).unwrap();
        assert_eq!((old.version, old.selected_psk, old.session_id.as_slice()), (0x0303, None, &[][..]));
        assert_eq!(read_server_hello(&message(&[7; 33], &[])), None, "longer than any session id");
    }

    #[test]
    fn bytes_behind_the_message_are_ignored() {
        let mut bytes = message(&[], &[]);
        bytes.extend_from_slice(&[0, 6, 0, 43, 0, 2, 3, 4]);
        assert_eq!(read_server_hello(&bytes).unwrap().version, 0x0303);
    }
}
