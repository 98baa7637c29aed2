//! TLS hellos of a connection, read from the first bytes of both directions.

use crate::prefix::Prefix;
use evergate_evidence::connection_record::TlsHellos;
use evergate_tls::{
    HelloStatus, ServerHelloSearch, client_random, find_server_hello, hello_status, read_hello,
};

/// Most bytes of a client that are searched for its hello.
const CLIENT_BYTES_MAX: usize = 16 << 10;
/// Most bytes of a server that are searched for its hello; a HelloRetryRequest may be before it.
const SERVER_BYTES_MAX: usize = 4 << 10;
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
            ServerHelloSearch::Found(hello) => {
                (self.tls.server_random, self.tls.version, self.tls.suite) =
                    (hello.random, hello.version, hello.suite);
                self.server = None;
            }
            ServerHelloSearch::Partial if prefix.bytes().len() < SERVER_BYTES_MAX => {}
            ServerHelloSearch::Partial | ServerHelloSearch::Absent => self.server = None,
        }
    }
}

fn read_client(tls: &mut TlsHellos, records: &[u8]) {
    let (Some(hello), Some(random)) = (read_hello(records), client_random(records)) else { return };
    tls.client_random = random;
    tls.sni = hello.sni.unwrap_or_default().into_bytes();
    tls.alpn = hello.alpn.into_iter().next().unwrap_or_default();
}
