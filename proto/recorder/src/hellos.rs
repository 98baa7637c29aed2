//! TLS hellos of a connection, read from the first bytes of both directions.

use crate::prefix::Prefix;
use evergate_evidence::connection_record::TlsHellos;
use evergate_tls::{HelloStatus, hello_status, read_hello};

/// Most bytes of a client that are searched for its hello.
const CLIENT_BYTES_MAX: usize = 16 << 10;
/// Most bytes of a server that are searched for its hello; a HelloRetryRequest may be before it.
const SERVER_BYTES_MAX: usize = 4 << 10;
/// Random of a HelloRetryRequest (RFC 8446 section 4.1.3).
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2,
    0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Reader of both hellos.
#[derive(Debug, Default)]
pub(crate) struct Hellos {
    client: Option<Box<Prefix>>,
    server: Option<Box<Prefix>>,
    pub(crate) tls: TlsHellos,
}

/// Side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Hellos {
    /// Reader of a new connection.
    pub(crate) fn new() -> Hellos {
        Hellos { client: Some(Box::default()), server: Some(Box::default()), tls: TlsHellos::default() }
    }

    /// Whether the reader needs more bytes of this side.
    pub(crate) fn wants(&self, side: Side) -> bool {
        match side {
            Side::Client => self.client.is_some(),
            Side::Server => self.server.is_some(),
        }
    }

    /// Sets the place of a side's first byte, behind its SYN.
    pub(crate) fn on_syn(&mut self, side: Side, seq: u32) {
        let prefix = match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        };
        if let Some(prefix) = prefix {
            prefix.start(seq.wrapping_add(1));
        }
    }

    /// Takes the payload of a segment.
    pub(crate) fn on_payload(&mut self, side: Side, seq: u32, payload: &[u8]) {
        match side {
            Side::Client => self.on_client(seq, payload),
            Side::Server => self.on_server(seq, payload),
        }
    }

    fn on_client(&mut self, seq: u32, payload: &[u8]) {
        let Some(prefix) = &mut self.client else { return };
        if !prefix.push(seq, payload, CLIENT_BYTES_MAX) {
            return;
        }
        match hello_status(prefix.bytes(), CLIENT_BYTES_MAX) {
            HelloStatus::Partial if prefix.bytes().len() < CLIENT_BYTES_MAX => {}
            HelloStatus::Complete { len } => {
                read_client(&mut self.tls, &prefix.bytes()[..len]);
                self.client = None;
            }
            _ => {
                // Not TLS: no hello of the server follows.
                self.client = None;
                self.server = None;
            }
        }
    }

    fn on_server(&mut self, seq: u32, payload: &[u8]) {
        let Some(prefix) = &mut self.server else { return };
        if !prefix.push(seq, payload, SERVER_BYTES_MAX) {
            return;
        }
        match find_server_hello(prefix.bytes()) {
            Search::Found(hello) => {
                (self.tls.server_random, self.tls.version, self.tls.suite) =
                    (hello.random, hello.version, hello.suite);
                self.server = None;
            }
            Search::More if prefix.bytes().len() < SERVER_BYTES_MAX => {}
            Search::More | Search::Absent => self.server = None,
        }
    }
}

fn read_client(tls: &mut TlsHellos, records: &[u8]) {
    const RANDOM: usize = 5 + 4 + 2; // record header, message header, version
    let Some(hello) = read_hello(records) else { return };
    let Some(random) = records.get(RANDOM..).and_then(|rest| rest.first_chunk::<32>()) else { return };
    let first_record =
        records.get(3..5).map_or(0, |length| usize::from(u16::from_be_bytes([length[0], length[1]])));
    if first_record < 4 + 2 + 32 {
        return; // the random lies in two records: no client does that
    }
    tls.client_random = *random;
    tls.sni = hello.sni.unwrap_or_default().into_bytes();
    tls.alpn = hello.alpn.into_iter().next().unwrap_or_default();
}

struct ServerHello {
    random: [u8; 32],
    version: u16,
    suite: u16,
}

enum Search {
    Found(ServerHello),
    More,
    Absent,
}

/// The ServerHello in these records; a HelloRetryRequest and change_cipher_spec before it are skipped.
fn find_server_hello(mut records: &[u8]) -> Search {
    const HANDSHAKE: u8 = 22;
    const CHANGE_CIPHER_SPEC: u8 = 20;
    loop {
        let Some((&[kind, major, _, high, low], rest)) = records.split_first_chunk::<5>() else {
            return Search::More;
        };
        if major != 3 || (kind != HANDSHAKE && kind != CHANGE_CIPHER_SPEC) {
            return Search::Absent;
        }
        let Some((record, next)) = rest.split_at_checked(usize::from(u16::from_be_bytes([high, low]))) else {
            return Search::More;
        };
        if kind == HANDSHAKE {
            match read_server_hello(record) {
                Some(hello) if hello.random == RETRY_RANDOM => {}
                Some(hello) => return Search::Found(hello),
                None => return Search::Absent,
            }
        }
        records = next;
    }
}

/// RFC 8446 section 4.1.3: the message at the start of a handshake record.
fn read_server_hello(message: &[u8]) -> Option<ServerHello> {
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
