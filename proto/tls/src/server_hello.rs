//! The ServerHello of a handshake, read from the server's first bytes.

/// Random of a HelloRetryRequest (RFC 8446 section 4.1.3).
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// What the server chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerHello {
    /// Its random.
    pub random: [u8; 32],
    /// Version by its registered number.
    pub version: u16,
    /// Cipher suite by its registered number.
    pub suite: u16,
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

/// Reads the message at the start of `message`, its header included (RFC 8446 section 4.1.3); `None` if it is no whole
/// ServerHello. Bytes behind the message are ignored.
pub fn read_server_hello(message: &[u8]) -> Option<ServerHello> {
    const SUPPORTED_VERSIONS: [u8; 2] = [0, 43];
    let (&[2, _, _, _], body) = message.split_first_chunk::<4>()? else { return None };
    let (legacy, body) = body.split_first_chunk::<2>()?;
    let (random, body) = body.split_first_chunk::<32>()?;
    let (&[session], body) = body.split_first_chunk::<1>()?;
    let (suite, body) = body.get(usize::from(session)..)?.split_first_chunk::<2>()?;
    let mut hello = ServerHello {
        random: *random,
        version: u16::from_be_bytes(*legacy),
        suite: u16::from_be_bytes(*suite),
    };
    let Some((_, mut extensions)) = body.split_first_chunk::<3>() else { return Some(hello) };
    while let Some((&[a, b, high, low], rest)) = extensions.split_first_chunk::<4>() {
        let Some((value, next)) = rest.split_at_checked(usize::from(u16::from_be_bytes([high, low]))) else {
            break;
        };
        if [a, b] == SUPPORTED_VERSIONS && value.len() == 2 {
            hello.version = u16::from_be_bytes([value[0], value[1]]);
        }
        extensions = next;
    }
    Some(hello)
}
