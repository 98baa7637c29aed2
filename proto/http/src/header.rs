//! Header lines of a head: their positions in the buffer and the class of each name.

use crate::bytes::{ascii, is_plain_name_byte};
use evergate_base::name::is_same;

const SLOTS: usize = 128;
/// Most lines that [`crate::RequestHead::for_rules`] returns. The host of the target may need one line of its own.
pub const FOR_RULES_MAX: usize = SLOTS + 1;

/// Class of a header name that framing, routing or rewriting treats specially, decided once, when the line is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    Other,
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    /// `Keep-Alive`, `Proxy-Connection` and `HTTP2-Settings`, which are hop-by-hop, and `Proxy`, which CGI-style
    /// programs mistake for one of their settings. None of these is forwarded.
    HopByHop,
    Te,
    Upgrade,
    Expect,
    Cookie,
    Authorization,
    ProxyAuthorization,
    /// `WWW-Authenticate`, `Proxy-Authenticate`.
    Challenge,
    PersistentAuth,
    XForwardedFor,
    XForwardedProto,
    /// `Forwarded`, `X-Real-IP`, `Client-IP` and the rest of `X-Forwarded-*`: only a trusted hop may send these.
    Forwarded,
    XRequestId,
    /// A forwarding name with another byte in place of `-`. CGI-style servers treat both as one name, so it is never
    /// forwarded.
    Disguised,
}

impl Name {
    /// The class of a name; `None` when a server may mistake the name for one that frames the message.
    #[inline]
    pub(crate) fn of(name: &[u8]) -> Option<Name> {
        let known = Self::spelt(name, |name, word| name.eq_ignore_ascii_case(word.as_bytes()));
        // The names that must not be disguised have 9 bytes or more.
        if known != Name::Other || name.len() < 9 || name.iter().all(|&b| is_plain_name_byte(b)) {
            return Some(known);
        }
        Self::disguised(name)
    }

    /// Whether the field is forwarded unless `Connection` lists it.
    #[inline]
    pub(crate) fn may_be_listed(self) -> bool {
        matches!(self, Name::Other | Name::ProxyAuthorization | Name::Challenge | Name::PersistentAuth)
    }

    /// Whether rules may read such a header, unless `Connection` lists it.
    #[inline]
    pub(crate) fn is_for_rules(self, trust_forwarded: bool) -> bool {
        match self {
            Name::Disguised | Name::HopByHop | Name::XRequestId => false,
            Name::XForwardedFor | Name::XForwardedProto | Name::Forwarded => trust_forwarded,
            _ => true,
        }
    }

    #[cold]
    fn disguised(name: &[u8]) -> Option<Name> {
        // `Content_Length` is another name on the wire and the same name in a CGI-style environment.
        match Self::spelt(name, |name, word| is_same(name, word.as_bytes())) {
            Name::ContentLength | Name::TransferEncoding => None,
            Name::XForwardedFor | Name::XForwardedProto | Name::Forwarded | Name::XRequestId => {
                Some(Name::Disguised)
            }
            _ => Some(Name::Other),
        }
    }

    fn spelt(name: &[u8], same: impl Fn(&[u8], &str) -> bool) -> Name {
        let is = |word: &str| same(name, word);
        match name.len() {
            2 if is("te") => Name::Te,
            4 if is("host") => Name::Host,
            5 if is("proxy") => Name::HopByHop,
            6 if is("cookie") => Name::Cookie,
            6 if is("expect") => Name::Expect,
            7 if is("upgrade") => Name::Upgrade,
            9 if is("forwarded") || is("x-real-ip") || is("client-ip") => Name::Forwarded,
            10 if is("connection") => Name::Connection,
            10 if is("keep-alive") => Name::HopByHop,
            11 if is("x-forwarded") => Name::Forwarded,
            12 if is("x-request-id") => Name::XRequestId,
            13 if is("authorization") => Name::Authorization,
            13 if is("forwarded-for") => Name::Forwarded,
            14 if is("content-length") => Name::ContentLength,
            14 if is("http2-settings") => Name::HopByHop,
            15 if is("x-forwarded-for") => Name::XForwardedFor,
            15 if is("persistent-auth") => Name::PersistentAuth,
            16 if is("proxy-connection") => Name::HopByHop,
            16 if is("www-authenticate") => Name::Challenge,
            17 if is("transfer-encoding") => Name::TransferEncoding,
            17 if is("x-forwarded-proto") => Name::XForwardedProto,
            18 if is("proxy-authenticate") => Name::Challenge,
            19 if is("proxy-authorization") => Name::ProxyAuthorization,
            13.. if same(&name[..12], "x-forwarded-") => Name::Forwarded,
            _ => Name::Other,
        }
    }
}

/// Whether [`crate::RequestHead::for_rules`] can return headers of this name.
pub fn is_for_rules(name: &[u8], trust_forwarded: bool) -> bool {
    Name::of(name).is_some_and(|name| name.is_for_rules(trust_forwarded))
}

/// Positions of one header line in the head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) name_start: u32,
    pub(crate) name_end: u32,
    pub(crate) value_start: u32,
    pub(crate) value_end: u32,
    pub(crate) name: Name,
}

const EMPTY: Slot = Slot { name_start: 0, name_end: 0, value_start: 0, value_end: 0, name: Name::Other };

/// Storage for the header positions of one head. Keep one per worker and reuse it: it borrows nothing between parses.
#[derive(Clone, Debug)]
pub struct HeaderSlots([Slot; SLOTS]);

impl HeaderSlots {
    /// Empty slots for 128 headers (about 2.5 KiB).
    pub const fn new() -> Self {
        Self([EMPTY; SLOTS])
    }

    /// Fills the slot at `index`; returns false when there is no such slot.
    #[inline]
    pub(crate) fn put(&mut self, index: usize, slot: Slot) -> bool {
        match self.0.get_mut(index) {
            Some(place) => {
                *place = slot;
                true
            }
            None => false,
        }
    }

    pub(crate) fn first(&self, count: usize) -> &[Slot] {
        self.0.get(..count).unwrap_or(&self.0)
    }
}

impl Default for HeaderSlots {
    fn default() -> Self {
        Self::new()
    }
}

/// One header line. The name is a token as sent; the value has no whitespace around it and no control bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Name as sent; compare it without regard to case.
    pub name: &'a str,
    /// Bytes 0x20 to 0xff except 0x7f, and HTAB.
    pub value: &'a [u8],
}

/// The header lines of a head, in the order received. Copy it freely: it is two slices.
#[derive(Clone, Copy)]
pub struct Headers<'a> {
    buf: &'a [u8],
    slots: &'a [Slot],
}

impl<'a> Headers<'a> {
    pub(crate) fn new(buf: &'a [u8], slots: &'a [Slot]) -> Self {
        Self { buf, slots }
    }

    /// Number of header lines.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether the head has no header lines.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The header line at `index`.
    pub fn at(&self, index: usize) -> Option<Header<'a>> {
        self.slots.get(index).map(|slot| self.header(slot))
    }

    /// The value of the first header of that name, without regard to case.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// The values of every header of that name, in the order received.
    pub fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a [u8]> + use<'a, 'n> {
        let Headers { buf, slots } = *self;
        slots
            .iter()
            .filter(move |slot| name_bytes(buf, slot).eq_ignore_ascii_case(name.as_bytes()))
            .map(move |slot| value_bytes(buf, slot))
    }

    /// Every header line in the order received.
    pub fn iter(&self) -> HeaderIter<'a> {
        HeaderIter { buf: self.buf, slots: self.slots.iter() }
    }

    /// The value of the line at `index`, where its name is of this class.
    pub(crate) fn value_of(&self, index: usize, class: Name) -> Option<&'a [u8]> {
        self.slots.get(index).filter(|slot| slot.name == class).map(|slot| value_bytes(self.buf, slot))
    }

    fn header(&self, slot: &Slot) -> Header<'a> {
        Header { name: ascii(name_bytes(self.buf, slot)), value: value_bytes(self.buf, slot) }
    }

    /// Name class, name and value of every line, for the writers.
    pub(crate) fn classified(&self) -> impl Iterator<Item = (Name, &'a [u8], &'a [u8])> + use<'a> {
        let buf = self.buf;
        self.slots.iter().map(move |slot| (slot.name, name_bytes(buf, slot), value_bytes(buf, slot)))
    }

    /// The values of the lines whose name is of that class.
    pub(crate) fn of(&self, name: Name) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.classified().filter(move |line| line.0 == name).map(|line| line.2)
    }
}

impl std::fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a> IntoIterator for Headers<'a> {
    type Item = Header<'a>;
    type IntoIter = HeaderIter<'a>;
    fn into_iter(self) -> HeaderIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Headers<'a> {
    type Item = Header<'a>;
    type IntoIter = HeaderIter<'a>;
    fn into_iter(self) -> HeaderIter<'a> {
        self.iter()
    }
}

/// Iterator over the lines of [`Headers`].
#[derive(Clone)]
pub struct HeaderIter<'a> {
    buf: &'a [u8],
    slots: std::slice::Iter<'a, Slot>,
}

impl<'a> Iterator for HeaderIter<'a> {
    type Item = Header<'a>;
    fn next(&mut self) -> Option<Header<'a>> {
        let slot = self.slots.next()?;
        Some(Header { name: ascii(name_bytes(self.buf, slot)), value: value_bytes(self.buf, slot) })
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.slots.size_hint()
    }
}

impl ExactSizeIterator for HeaderIter<'_> {}

#[inline]
fn name_bytes<'a>(buf: &'a [u8], slot: &Slot) -> &'a [u8] {
    buf.get(slot.name_start as usize..slot.name_end as usize).unwrap_or_default()
}

#[inline]
fn value_bytes<'a>(buf: &'a [u8], slot: &Slot) -> &'a [u8] {
    buf.get(slot.value_start as usize..slot.value_end as usize).unwrap_or_default()
}
