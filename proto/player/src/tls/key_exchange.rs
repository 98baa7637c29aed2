//! RSA key exchange of TLS 1.2 (RFC 5246 section 7.4.7.1): what the owner of the server's key needs to find the master
//! secret. Other key exchanges have forward secrecy: no key of the server opens them.

use crate::event::Side;
use evergate_tls::{MasterSeed, ServerHello, Suite, Version, master_secret};
use zeroize::Zeroizing;

/// Most bytes of a direction's handshake that are kept.
const HANDSHAKE_BYTES_MAX: usize = 256 << 10;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO_DONE: u8 = 14;
const CLIENT_KEY_EXCHANGE: u8 = 16;
const EXTENDED_MASTER_SECRET: [u8; 2] = [0, 23];
/// Suites with RSA key exchange whose records this program opens (RFC 5288).
const SUITES: [u16; 2] = [0x009c, 0x009d];

/// Handshake messages in clear of both directions.
#[derive(Debug, Default)]
pub(super) struct HandshakeBytes {
    /// Contents of handshake records: client, server. `None` beyond the bound.
    sides: [Option<Vec<u8>>; 2],
}

/// A client's RSA key exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RsaExchange {
    suite: Suite,
    randoms: [[u8; 32]; 2],
    version: [u8; 2],
    encrypted: Vec<u8>,
    /// Messages up to the exchange, if both hellos have the extended master secret.
    messages: Option<Vec<u8>>,
}

impl HandshakeBytes {
    /// Before the first record.
    pub(super) fn new() -> HandshakeBytes {
        HandshakeBytes { sides: [Some(Vec::new()), Some(Vec::new())] }
    }

    /// Takes the content of a handshake record in clear.
    pub(super) fn push(&mut self, side: Side, content: &[u8]) {
        let kept = &mut self.sides[side.index()];
        match kept {
            Some(bytes) if bytes.len() + content.len() <= HANDSHAKE_BYTES_MAX => {
                bytes.extend_from_slice(content)
            }
            _ => *kept = None,
        }
    }

    /// Bytes of memory.
    pub(super) fn buffered(&self) -> usize {
        self.sides.iter().flatten().map(Vec::len).sum()
    }

    /// The key exchange; `None` until the handshake has it. An error names what this program does not open.
    pub(super) fn exchange(&self, server: &ServerHello) -> Result<Option<RsaExchange>, &'static str> {
        let [Some(client), Some(other)] = &self.sides else {
            return Err("the handshake is longer than 256 KiB");
        };
        let suite = rsa_suite(server.version, server.suite)?;
        let exchange = || {
            let (hello, rest) = message(client).filter(|(hello, _)| hello[0] == CLIENT_HELLO)?;
            let (version, random) = hello_head(hello)?;
            let flight = other.get(..flight_len(other)?)?;
            let (encrypted, through) = key_exchange(rest)?;
            let has_extension = has_extended_master_secret(other);
            let messages = has_extension.then(|| [hello, flight, through].concat());
            let randoms = [random, server.random];
            Some(RsaExchange { suite, randoms, version, encrypted: encrypted.to_vec(), messages })
        };
        Ok(exchange())
    }
}

impl RsaExchange {
    /// Random of the ClientHello.
    pub fn client_random(&self) -> &[u8; 32] {
        &self.randoms[0]
    }

    /// The premaster secret under the server's key.
    pub fn encrypted(&self) -> &[u8] {
        &self.encrypted
    }

    /// Master secret from what the server's key decrypted; `None` if that is no premaster secret of this ClientHello.
    pub fn master_secret(&self, premaster: &[u8; 48]) -> Option<Zeroizing<Vec<u8>>> {
        if premaster[..2] != self.version {
            return None;
        }
        let [client, server] = &self.randoms;
        Some(match &self.messages {
            Some(messages) => master_secret(self.suite, premaster, MasterSeed::Messages(&[messages])),
            None => master_secret(self.suite, premaster, MasterSeed::Randoms(client, server)),
        })
    }
}

/// Record protection of a suite with RSA key exchange, by registered numbers of version and suite.
pub fn rsa_suite(version: u16, suite: u16) -> Result<Suite, &'static str> {
    match Suite::of_number(Version::Tls12, suite) {
        _ if version != 0x0303 => Err("only TLS 1.2 has RSA key exchange here"),
        Some(found) if SUITES.contains(&suite) => Ok(found),
        Some(_) => Err("the key exchange is not RSA: the server's key does not open this session"),
        None => Err("the suite has no AES-GCM: this program does not open its records"),
    }
}

/// The first message with its header, and the rest.
fn message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let &[_, a, b, c] = bytes.first_chunk::<4>()?;
    bytes.split_at_checked(4 + u32::from_be_bytes([0, a, b, c]) as usize)
}

fn hello_head(hello: &[u8]) -> Option<([u8; 2], [u8; 32])> {
    let (version, rest) = hello.get(4..)?.split_first_chunk::<2>()?;
    Some((*version, *rest.first_chunk::<32>()?))
}

/// Length of the server's messages to ServerHelloDone.
fn flight_len(server: &[u8]) -> Option<usize> {
    let mut rest = server;
    loop {
        let (found, next) = message(rest)?;
        rest = next;
        if found[0] == SERVER_HELLO_DONE {
            return Some(server.len() - rest.len());
        }
    }
}

/// The encrypted premaster secret, and the client's messages to its own. A certificate may come before it.
fn key_exchange(client: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = client;
    loop {
        let (found, next) = message(rest)?;
        rest = next;
        if found[0] == CLIENT_KEY_EXCHANGE {
            let (&[high, low], encrypted) = found.get(4..)?.split_first_chunk::<2>()?;
            let is_whole = encrypted.len() == usize::from(u16::from_be_bytes([high, low]));
            return is_whole.then(|| (encrypted, &client[..client.len() - rest.len()]));
        }
    }
}

/// Whether the ServerHello, the first message, has the extension of RFC 7627.
fn has_extended_master_secret(server: &[u8]) -> bool {
    let extensions = || {
        let (hello, _) = message(server)?;
        let body = hello.get(4 + 2 + 32..)?;
        let (&[session], body) = body.split_first_chunk::<1>()?;
        body.get(usize::from(session) + 2 + 1 + 2..)
    };
    let mut rest = extensions().unwrap_or_default();
    while let Some((&[a, b, high, low], value)) = rest.split_first_chunk::<4>() {
        if [a, b] == EXTENDED_MASTER_SECRET {
            return true;
        }
        rest = value.get(usize::from(u16::from_be_bytes([high, low]))..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind, 0, (body.len() >> 8) as u8, body.len() as u8], body].concat()
    }

    fn hello(kind: u8, random: u8, extensions: &[u8]) -> Vec<u8> {
        let offer: &[u8] = if kind == CLIENT_HELLO { &[0, 2, 0, 0x9c, 1, 0] } else { &[0, 0x9c, 0] };
        let length = [0, extensions.len() as u8];
        framed(kind, &[&[3, 3][..], &[random; 32], &[0], offer, &length, extensions].concat())
    }

    fn server() -> ServerHello {
        ServerHello { random: [2; 32], version: 0x0303, suite: 0x9c, ..ServerHello::default() }
    }

    /// Messages of the client and of the server.
    fn messages(extensions: &[u8]) -> [Vec<Vec<u8>>; 2] {
        let client = vec![
            hello(CLIENT_HELLO, 1, extensions),
            framed(11, &[9; 70]),
            framed(CLIENT_KEY_EXCHANGE, &[&[1, 0][..], &[5; 256]].concat()),
            framed(15, &[8; 40]),
        ];
        let server = vec![hello(2, 2, extensions), framed(11, &[7; 900]), framed(SERVER_HELLO_DONE, &[])];
        [client, server]
    }

    #[test]
    fn exchange_is_found_in_records_of_any_size() {
        let [client, other] = messages(&[0, 23, 0, 0]).map(|messages| messages.concat());
        for size in [1, 7, 100, 5000] {
            let mut bytes = HandshakeBytes::new();
            other.chunks(size).for_each(|chunk| bytes.push(Side::Server, chunk));
            for chunk in client.chunks(size) {
                bytes.push(Side::Client, chunk);
            }
            let exchange = bytes.exchange(&server()).unwrap().unwrap();
            assert_eq!(exchange.encrypted(), [5; 256]);
            assert_eq!(exchange.client_random(), &[1; 32]);
            // Nothing behind the key exchange counts.
            let (hello, rest) = message(&client).unwrap();
            assert_eq!(exchange.messages.unwrap(), [hello, &other, &rest[..rest.len() - 44]].concat());
        }
    }

    #[test]
    fn master_secret_depends_on_extension_and_version() {
        let exchange = |extensions: &[u8]| {
            let [client, other] = messages(extensions).map(|messages| messages.concat());
            let mut bytes = HandshakeBytes::new();
            bytes.push(Side::Client, &client);
            bytes.push(Side::Server, &other);
            bytes.exchange(&server()).unwrap().unwrap()
        };
        let (plain, extended) = (exchange(&[0, 10, 0, 0]), exchange(&[0, 10, 0, 0, 0, 23, 0, 0]));
        assert!(plain.messages.is_none() && extended.messages.is_some());
        let mut premaster = [9; 48];
        assert!(plain.master_secret(&premaster).is_none());
        premaster[..2].copy_from_slice(&[3, 3]);
        assert_ne!(plain.master_secret(&premaster), extended.master_secret(&premaster));
    }

    #[test]
    fn other_suites_and_unfinished_handshakes_are_named() {
        let [client, other] = messages(&[]).map(|messages| messages.concat());
        let mut bytes = HandshakeBytes::new();
        bytes.push(Side::Client, &client[..client.len() - 100]);
        bytes.push(Side::Server, &other);
        assert_eq!(bytes.exchange(&server()), Ok(None));
        for (version, suite, reason) in
            [(0x0303, 0xc02f, "not RSA"), (0x0303, 0x2f, "AES-GCM"), (0x0304, 0x1301, "TLS 1.2")]
        {
            let error = bytes.exchange(&ServerHello { version, suite, ..server() }).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        bytes.push(Side::Server, &vec![0; HANDSHAKE_BYTES_MAX]);
        assert!(bytes.exchange(&server()).unwrap_err().contains("256 KiB"));
        assert!(bytes.buffered() <= 2 * HANDSHAKE_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn changed_bytes_never_panic(at in 0_usize..1500, byte: u8, cut in 0_usize..1500, noise: Vec<u8>) {
            let [mut client, mut other] = messages(&[0, 23, 0, 0]).map(|messages| messages.concat());
            for bytes in [&mut client, &mut other] {
                let length = bytes.len();
                bytes[at % length] = byte;
                bytes.truncate(cut.min(length));
            }
            for [client, other] in [[&client, &other], [&noise, &other], [&client, &noise]] {
                let mut bytes = HandshakeBytes::new();
                bytes.push(Side::Client, client);
                bytes.push(Side::Server, other);
                let _ = bytes.exchange(&server());
            }
        }
    }
}
