//! ClientHello of a connection, borrowed from its message (RFC 8446 section 4.1.2).
//!
//! [`ClientHello::read`] accepts what a server may accept. [`ClientHello::check`] refuses what two readers could
//! understand differently: a router that does not end the handshake needs it, because the server reads the same bytes
//! again.

use crate::alert;
use crate::reader::Reader;

const CLIENT_HELLO: u8 = 1;

/// Reason why a ClientHello cannot be read, or not in one way only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloFault {
    /// A length or list is wrong.
    #[error("client hello: {0} is malformed")]
    Malformed(&'static str),
    /// An extension that occurs twice.
    #[error("client hello: extension {0} occurs twice")]
    Repeated(u16),
    /// `pre_shared_key` is not the last extension, or its binders do not fit its identities.
    #[error("client hello: pre_shared_key is not valid")]
    PreSharedKey,
}

impl HelloFault {
    /// The alert to send before the connection is closed.
    pub fn alert(&self) -> u8 {
        match self {
            HelloFault::Malformed(_) => alert::DECODE_ERROR,
            // RFC 8446 sections 4.2 and 4.2.11.
            HelloFault::Repeated(_) | HelloFault::PreSharedKey => alert::ILLEGAL_PARAMETER,
        }
    }
}

/// A ClientHello. Only the named extensions are read.
#[derive(Clone, Copy, Debug)]
pub struct ClientHello<'a> {
    /// `legacy_version`.
    pub legacy_version: u16,
    /// Random of the client.
    pub random: &'a [u8; 32],
    /// `legacy_session_id`: a TLS 1.2 session, or random bytes of a client of TLS 1.3. Not longer than 255 bytes.
    pub session_id: &'a [u8],
    suites: &'a [u8],
    extensions: Extensions<'a>,
    fault: Option<HelloFault>,
}

/// Bodies of the extensions that are read; of a repeated one the last.
#[derive(Clone, Copy, Debug, Default)]
struct Extensions<'a> {
    server_name: Option<&'a [u8]>,
    groups: Option<&'a [u8]>,
    signatures: Option<&'a [u8]>,
    alpn: Option<&'a [u8]>,
    ticket: Option<&'a [u8]>,
    psk: Option<&'a [u8]>,
    early_data: Option<&'a [u8]>,
    versions: Option<&'a [u8]>,
    shares: Option<&'a [u8]>,
    ech: Option<&'a [u8]>,
}

impl<'a> Extensions<'a> {
    fn slot(&mut self, kind: u16) -> Option<&mut Option<&'a [u8]>> {
        Some(match kind {
            0 => &mut self.server_name,
            10 => &mut self.groups,
            13 => &mut self.signatures,
            16 => &mut self.alpn,
            35 => &mut self.ticket,
            41 => &mut self.psk,
            42 => &mut self.early_data,
            43 => &mut self.versions,
            51 => &mut self.shares,
            0xfe0d => &mut self.ech,
            _ => return None,
        })
    }
}

/// Pre-shared keys that a client offers for TLS 1.3.
#[derive(Clone, Copy, Debug)]
pub struct PskOffer<'a> {
    identities: &'a [u8],
    binders: &'a [u8],
}

impl<'a> PskOffer<'a> {
    fn read(body: &'a [u8]) -> Option<PskOffer<'a>> {
        let mut body = Reader(body);
        let offer = PskOffer { identities: body.vector(2)?, binders: body.vector(2)? };
        let (mut identities, mut binders) = (Reader(offer.identities), Reader(offer.binders));
        while !identities.is_empty() {
            identities.vector(2).filter(|identity| !identity.is_empty())?;
            identities.take(4)?; // obfuscated_ticket_age
            binders.vector(1).filter(|binder| binder.len() >= 32)?;
        }
        (body.is_empty() && binders.is_empty() && !offer.identities.is_empty()).then_some(offer)
    }

    /// Identities in the client's order. Their number is bounded by the length of the hello alone.
    pub fn identities(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = Reader(self.identities);
        std::iter::from_fn(move || {
            let identity = rest.vector(2)?;
            rest.take(4)?;
            Some(identity)
        })
    }

    /// Binders in the order of the identities.
    pub fn binders(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = Reader(self.binders);
        std::iter::from_fn(move || rest.vector(1))
    }
}

impl<'a> ClientHello<'a> {
    /// Reads a ClientHello message, its header included; bytes behind the message are ignored.
    ///
    /// # Errors
    /// The message is incomplete, or a length in it is wrong. Bodies of extensions are not read.
    pub fn read(message: &'a [u8]) -> Result<ClientHello<'a>, HelloFault> {
        let body = match message.split_first_chunk::<1>() {
            Some((&[CLIENT_HELLO], rest)) => Reader(rest).vector(3),
            _ => None,
        };
        let body = Reader(body.ok_or(HelloFault::Malformed("message"))?);
        read_body(body).ok_or(HelloFault::Malformed("list"))
    }

    /// Refuses a hello that the server could read in another way.
    ///
    /// # Errors
    /// An extension that this type reads is malformed or occurs twice, there are bytes behind the last field, or
    /// `pre_shared_key` is not valid (RFC 8446 section 4.2.11).
    pub fn check(&self) -> Result<(), HelloFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.session_id.len() > 32 {
            return Err(HelloFault::Malformed("session id"));
        }
        let Extensions { server_name, alpn, versions, psk, .. } = self.extensions;
        if server_name.is_some_and(|body| only_name(body).is_none()) {
            return Err(HelloFault::Malformed("server_name"));
        }
        if alpn.is_some_and(|body| !is_protocol_list(body)) {
            return Err(HelloFault::Malformed("application_layer_protocol_negotiation"));
        }
        if versions.is_some_and(|body| !is_version_list(body)) {
            return Err(HelloFault::Malformed("supported_versions"));
        }
        if self.suites().is_none() {
            return Err(HelloFault::Malformed("cipher suites"));
        }
        if psk.is_some_and(|body| PskOffer::read(body).is_none()) {
            return Err(HelloFault::PreSharedKey);
        }
        Ok(())
    }

    /// Host name of the server name extension in lower case, without a final dot; `None` when absent or not a
    /// plausible DNS name. With ECH it is the outer name.
    pub fn server_name(&self) -> Option<String> {
        read_sni(Reader(self.extensions.server_name?))
    }

    /// Application protocols offered, in the client's order; `None` when the list is malformed.
    pub fn alpn(&self) -> Option<Vec<&'a [u8]>> {
        let Some(body) = self.extensions.alpn else { return Some(Vec::new()) };
        let mut names = Reader(Reader(body).vector(2)?);
        let mut all = Vec::new();
        while !names.is_empty() {
            all.push(names.vector(1)?);
        }
        Some(all)
    }

    /// Protocol versions offered, in the client's order, GREASE left out; `legacy_version` without such a list. `None`
    /// when the list is malformed.
    pub fn versions(&self) -> Option<Vec<u16>> {
        let listed = match self.extensions.versions {
            Some(body) => u16_list(Reader(body).vector(1)?)?,
            None => Vec::new(),
        };
        Some(if listed.is_empty() { vec![self.legacy_version] } else { listed })
    }

    /// Cipher suites offered, in the client's order, GREASE left out; `None` when the list is malformed.
    pub fn suites(&self) -> Option<Vec<u16>> {
        u16_list(self.suites)
    }

    /// Key exchange groups offered, in the client's order, GREASE left out; `None` when the list is malformed.
    pub(crate) fn groups(&self) -> Option<Option<Vec<u16>>> {
        let Some(body) = self.extensions.groups else { return Some(None) };
        Some(Some(u16_list(Reader(body).vector(2)?)?))
    }

    /// Ticket of TLS 1.2 (RFC 5077 section 3.2): empty if the client only accepts tickets, `None` if it does not.
    pub fn ticket(&self) -> Option<&'a [u8]> {
        self.extensions.ticket
    }

    /// Pre-shared keys offered; `None` without the extension, or when it is malformed.
    pub fn psk(&self) -> Option<PskOffer<'a>> {
        PskOffer::read(self.extensions.psk?)
    }

    pub(crate) fn has_psk(&self) -> bool {
        self.extensions.psk.is_some()
    }

    /// Whether the client announces early data (RFC 8446 section 4.2.10).
    pub fn has_early_data(&self) -> bool {
        self.extensions.early_data.is_some()
    }

    /// Whether the hello has `encrypted_client_hello`. A client may send it without content for any server (GREASE), so
    /// the server name can still be the real one.
    pub fn has_ech(&self) -> bool {
        self.extensions.ech.is_some()
    }

    pub(crate) fn has_signatures(&self) -> bool {
        self.extensions.signatures.is_some()
    }

    pub(crate) fn has_shares(&self) -> bool {
        self.extensions.shares.is_some()
    }
}

fn read_body(mut body: Reader<'_>) -> Option<ClientHello<'_>> {
    let legacy_version = body.u16()?;
    let random = body.array()?;
    let session_id = body.vector(1)?;
    let suites = body.vector(2)?;
    body.vector(1)?; // compression methods
    let (mut extensions, mut fault) = (Extensions::default(), None);
    if !body.is_empty() {
        let mut rest = Reader(body.vector(2)?);
        while !rest.is_empty() {
            let (kind, extension) = (rest.u16()?, rest.vector(2)?);
            if extensions.psk.is_some() {
                fault = fault.or(Some(HelloFault::PreSharedKey)); // "MUST be the last extension"
            }
            if let Some(slot) = extensions.slot(kind)
                && slot.replace(extension).is_some()
            {
                fault = fault.or(Some(HelloFault::Repeated(kind)));
            }
        }
    }
    if !body.is_empty() {
        fault = fault.or(Some(HelloFault::Malformed("end")));
    }
    Some(ClientHello { legacy_version, random, session_id, suites, extensions, fault })
}

/// Whether `name` can be a DNS host name: 1 to 253 bytes without the final dot.
pub fn is_host_name(name: &[u8]) -> bool {
    let plausible = |&byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=253).contains(&name.len()) && name.iter().all(plausible)
}

/// RFC 6066 section 3: the one entry of type host_name.
fn read_sni(mut extension: Reader<'_>) -> Option<String> {
    let mut names = Reader(extension.vector(2)?);
    while !names.is_empty() {
        let kind = names.take(1)?;
        let name = names.vector(2)?;
        let name = name.strip_suffix(b".").unwrap_or(name); // the final dot, as in `host`
        if kind == [0] && is_host_name(name) {
            return String::from_utf8(name.to_ascii_lowercase()).ok();
        }
    }
    None
}

/// The name, if the list has one entry of type host_name and nothing else: there is no other type, and "MUST NOT
/// contain more than one name of the same name_type".
fn only_name(body: &[u8]) -> Option<&[u8]> {
    let mut body = Reader(body);
    let mut names = Reader(body.vector(2)?);
    let kind = names.take(1)?;
    let name = names.vector(2)?;
    (kind == [0] && !name.is_empty() && names.is_empty() && body.is_empty()).then_some(name)
}

/// Whether a body is one list of protocol names, none of them empty (RFC 7301 section 3.1).
fn is_protocol_list(body: &[u8]) -> bool {
    let mut body = Reader(body);
    let Some(list) = body.vector(2).filter(|list| !list.is_empty()) else { return false };
    let mut list = Reader(list);
    while !list.is_empty() {
        if list.vector(1).is_none_or(<[u8]>::is_empty) {
            return false;
        }
    }
    body.is_empty()
}

/// Whether a body is one list of versions (RFC 8446 section 4.2.1).
fn is_version_list(body: &[u8]) -> bool {
    let mut body = Reader(body);
    let list = body.vector(1).filter(|list| !list.is_empty());
    list.is_some_and(|list| u16_list(list).is_some()) && body.is_empty()
}

fn u16_list(bytes: &[u8]) -> Option<Vec<u16>> {
    let (pairs, []) = bytes.as_chunks::<2>() else { return None };
    // RFC 8701: values 0x?a?a with equal bytes are reserved to be ignored.
    let grease = |value: &u16| value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff;
    Some(pairs.iter().map(|&pair| u16::from_be_bytes(pair)).filter(|value| !grease(value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), body].concat()
    }

    fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
        let extensions = extensions.concat();
        let len = (extensions.len() as u16).to_be_bytes();
        let head = [&[3, 3][..], &[9; 32], &[2, 0xaa, 0xbb, 0, 4, 0x1a, 0x1a, 0x13, 1, 1, 0]].concat();
        let body = [&head[..], &len, &extensions].concat();
        let [_, a, b, c] = (body.len() as u32).to_be_bytes();
        [&[1, a, b, c], &body[..]].concat()
    }

    fn psk(identities: &[&[u8]], binders: &[&[u8]]) -> Vec<u8> {
        let listed = |len: usize, prefix: usize| len.to_be_bytes()[8 - prefix..].to_vec();
        let identity = |id: &&[u8]| [&listed(id.len(), 2)[..], id, &[0, 0, 0, 7]].concat();
        let identities: Vec<u8> = identities.iter().flat_map(identity).collect();
        let binders: Vec<u8> = binders.iter().flat_map(|b| [&listed(b.len(), 1)[..], b].concat()).collect();
        extension(
            41,
            &[&listed(identities.len(), 2)[..], &identities, &listed(binders.len(), 2), &binders].concat(),
        )
    }

    fn fault(extensions: &[Vec<u8>]) -> Option<HelloFault> {
        ClientHello::read(&hello(extensions)).unwrap().check().err()
    }

    #[test]
    fn fields_for_routing_are_read() {
        let message = hello(&[
            extension(0x2a2a, &[]), // GREASE
            extension(0, b"\x00\x0b\x00\x00\x08Out.Test"),
            extension(0xfe0d, &[0, 1]),
            extension(16, b"\x00\x0c\x02h2\x08http/1.1"),
            extension(35, b"ticket"),
            extension(43, &[6, 0x3a, 0x3a, 3, 4, 3, 3]),
            extension(42, &[]),
            psk(&[b"one", b"two"], &[&[1; 32], &[2; 48]]),
        ]);
        let hello = ClientHello::read(&message).unwrap();
        assert_eq!(hello.check(), Ok(()));
        assert_eq!(hello.server_name().as_deref(), Some("out.test"));
        assert_eq!(hello.alpn().unwrap(), [&b"h2"[..], b"http/1.1"]);
        assert_eq!((hello.versions().unwrap(), hello.suites().unwrap()), (vec![0x304, 0x303], vec![0x1301]));
        assert_eq!((hello.session_id, hello.ticket()), (&[0xaa, 0xbb][..], Some(&b"ticket"[..])));
        let offer = hello.psk().unwrap();
        assert_eq!(offer.identities().collect::<Vec<_>>(), [b"one", b"two"]);
        assert_eq!(offer.binders().map(<[u8]>::len).collect::<Vec<_>>(), [32, 48]);
        assert!(hello.has_ech() && hello.has_early_data());
    }

    #[test]
    fn hello_that_two_readers_could_differ_on_is_refused() {
        let name = |name: &str| {
            let len = name.len() as u8;
            extension(0, &[&[0, len + 3, 0, 0, len], name.as_bytes()].concat())
        };
        let good = psk(&[b"one"], &[&[1; 32]]);
        assert_eq!(fault(&[]), None);
        assert_eq!(fault(&[name("a.test"), good.clone()]), None);
        assert_eq!(fault(&[extension(7, &[]), extension(7, &[])]), None, "an extension that is not read");
        for (extensions, expected) in [
            (vec![name("a.test"), name("b.test")], HelloFault::Repeated(0)),
            (vec![good.clone(), name("a.test")], HelloFault::PreSharedKey),
            (vec![psk(&[b"one", b"two"], &[&[1; 32]])], HelloFault::PreSharedKey),
            (vec![psk(&[b"one"], &[&[1; 32], &[2; 32]])], HelloFault::PreSharedKey),
            (vec![psk(&[b"one"], &[&[1; 31]])], HelloFault::PreSharedKey),
            (vec![psk(&[b""], &[&[1; 32]])], HelloFault::PreSharedKey),
            (vec![psk(&[], &[])], HelloFault::PreSharedKey),
            (vec![extension(0, &[])], HelloFault::Malformed("server_name")),
            (vec![extension(0, b"\0\x08\0\0\x01a\0\0\x01b")], HelloFault::Malformed("server_name")),
            (
                vec![extension(16, b"\0\x01\0")],
                HelloFault::Malformed("application_layer_protocol_negotiation"),
            ),
            (vec![extension(43, &[3, 3, 4, 3])], HelloFault::Malformed("supported_versions")),
            (vec![extension(16, b"\0\0")], HelloFault::Malformed("application_layer_protocol_negotiation")),
            (vec![extension(43, &[0])], HelloFault::Malformed("supported_versions")),
            (vec![extension(43, &[2, 3, 4, 3])], HelloFault::Malformed("supported_versions")),
        ] {
            assert_eq!(fault(&extensions), Some(expected), "{extensions:?}");
        }
        let mut message = hello(&[]);
        message.push(0);
        message[3] += 1;
        assert_eq!(ClientHello::read(&message).unwrap().check(), Err(HelloFault::Malformed("end")));
        let mut message = self::hello(&[]);
        (message[42], message[43]) = (3, 0x1a); // an odd length
        assert!(ClientHello::read(&message).and_then(|hello| hello.check().map(|()| hello)).is_err());
        assert_eq!(HelloFault::Malformed("end").alert(), alert::DECODE_ERROR);
        assert_eq!(HelloFault::Repeated(0).alert(), alert::ILLEGAL_PARAMETER);
    }

    #[test]
    fn incomplete_hello_is_not_read() {
        let message = hello(&[psk(&[b"one"], &[&[1; 32]])]);
        for len in 0..message.len() {
            assert!(ClientHello::read(&message[..len]).is_err());
        }
    }
}
