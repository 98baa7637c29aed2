//! Version 1: a line of text (section 2.1 of the specification).

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use crate::error::DecodeError;
use crate::header::{Command, Decoded, Endpoints, Header, V1_BYTES_MAX, Version};
use crate::tlv::Tlvs;

/// Bytes before the addresses of `PROXY TCP4 ` and `PROXY TCP6 `.
const TCP_HEAD: usize = 11;
/// Bytes of `PROXY UNKNOWN`.
const UNKNOWN_HEAD: usize = 13;

/// Reads a line whose first bytes are known to be a beginning of version 1.
pub(crate) fn decode_line(bytes: &[u8]) -> Result<Decoded<'_>, DecodeError> {
    let (endpoints, len) = match bytes.get(9) {
        Some(b'4') => match addresses(bytes, Kind::V4)? {
            Some((endpoints, len)) => (Some(endpoints), len),
            None => return Ok(Decoded::NeedMore),
        },
        Some(b'6') => match addresses(bytes, Kind::V6)? {
            Some((endpoints, len)) => (Some(endpoints), len),
            None => return Ok(Decoded::NeedMore),
        },
        _ => match unknown(bytes)? {
            Some(len) => (None, len),
            None => return Ok(Decoded::NeedMore),
        },
    };
    let header =
        Header { version: Version::V1, command: Command::Proxy, endpoints, tlvs: Tlvs::default(), len };
    Ok(Decoded::Header(header))
}

/// Length of a line `PROXY UNKNOWN`: the receiver "must ignore anything presented before the CRLF", but no CR or LF
/// alone.
fn unknown(bytes: &[u8]) -> Result<Option<usize>, DecodeError> {
    if bytes.get(UNKNOWN_HEAD).is_some_and(|byte| !b" \r".contains(byte)) {
        return Err(DecodeError::Line { at: UNKNOWN_HEAD });
    }
    for (at, &byte) in bytes.iter().enumerate().skip(UNKNOWN_HEAD) {
        match (byte, bytes.get(at + 1)) {
            (b'\r', Some(b'\n')) if at + 2 <= V1_BYTES_MAX => return Ok(Some(at + 2)),
            (b'\r', None) if at + 2 <= V1_BYTES_MAX => return Ok(None),
            _ if at + 2 >= V1_BYTES_MAX => return Err(DecodeError::LineTooLong),
            (b'\r', Some(_)) => return Err(DecodeError::Line { at: at + 1 }),
            (b'\n', _) => return Err(DecodeError::Line { at }),
            _ => {}
        }
    }
    Ok(None)
}

/// Syntax of a field.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    V4,
    V6,
    Port,
}

/// Endpoints and length of a `TCP4` or `TCP6` line; `None` when it is incomplete.
fn addresses(bytes: &[u8], family: Kind) -> Result<Option<(Endpoints, usize)>, DecodeError> {
    let mut at = TCP_HEAD;
    let mut text = [""; 4];
    let fields = [(family, b' '), (family, b' '), (Kind::Port, b' '), (Kind::Port, b'\r')];
    for ((kind, end), text) in fields.into_iter().zip(&mut text) {
        match field(bytes.get(at..).unwrap_or_default(), kind, end) {
            Field::Whole(field) => {
                at += field.len() + 1;
                *text = field;
            }
            Field::Partial => return Ok(None),
            Field::Fault(index) => return Err(DecodeError::Line { at: at + index }),
        }
    }
    match bytes.get(at) {
        Some(b'\n') => {}
        Some(_) => return Err(DecodeError::Line { at }),
        None => return Ok(None),
    }
    let [source, destination, source_port, destination_port] = text;
    let end = |ip: &str, port: &str| {
        let ip = IpAddr::from_str(ip).ok()?;
        Some(SocketAddr::new(ip, port.parse().ok()?))
    };
    let ends = end(source, source_port).zip(end(destination, destination_port));
    let (source, destination) = ends.ok_or(DecodeError::Line { at })?; // each field is valid: never
    Ok(Some((Endpoints::new(source, destination), at + 1)))
}

enum Field<'a> {
    Whole(&'a str),
    Partial,
    /// Index of the impossible byte.
    Fault(usize),
}

/// Reads a field up to the byte that ends it.
fn field(bytes: &[u8], kind: Kind, end: u8) -> Field<'_> {
    let mut prefix = Prefix::new(kind);
    for (at, &byte) in bytes.iter().enumerate() {
        if byte == end && prefix.may_end() {
            let text = bytes.get(..at).and_then(|field| std::str::from_utf8(field).ok());
            return text.map_or(Field::Fault(at), Field::Whole);
        }
        if !prefix.accepts(byte) {
            return Field::Fault(at);
        }
    }
    Field::Partial
}

/// Beginning of an address or port: whether a byte can continue it.
struct Prefix {
    kind: Kind,
    /// Decimal value of the current number, or digits of the current group.
    number: u32,
    digits: u32,
    /// Numbers or groups that ended.
    parts: u32,
    /// Whether `::` stands in the address.
    has_gap: bool,
    /// Colons directly before the current position.
    colons: u32,
}

impl Prefix {
    fn new(kind: Kind) -> Prefix {
        Prefix { kind, number: 0, digits: 0, parts: 0, has_gap: false, colons: 0 }
    }

    fn accepts(&mut self, byte: u8) -> bool {
        match (self.kind, byte) {
            (Kind::V4, b'0'..=b'9') => self.accepts_digit(byte, 255),
            (Kind::Port, b'0'..=b'9') => self.accepts_digit(byte, 65535),
            (Kind::V4, b'.') => {
                let ends = self.digits > 0 && self.parts < 3;
                (self.number, self.digits, self.parts) = (0, 0, self.parts + 1);
                ends
            }
            (Kind::V6, b':') => self.accepts_colon(),
            (Kind::V6, _) if byte.is_ascii_hexdigit() => self.accepts_hex(),
            _ => false,
        }
    }

    /// "Heading zeroes are not permitted in front of numbers".
    fn accepts_digit(&mut self, byte: u8, max: u32) -> bool {
        let leading_zero = self.digits > 0 && self.number == 0;
        self.number = self.number * 10 + u32::from(byte - b'0');
        self.digits += 1;
        !leading_zero && self.number <= max
    }

    fn accepts_hex(&mut self) -> bool {
        // One colon alone begins no address.
        if self.parts == 0 && self.colons == 1 && !self.has_gap {
            return false;
        }
        (self.digits, self.colons) = (self.digits + 1, 0);
        self.digits <= 4 && self.parts < self.parts_max()
    }

    fn accepts_colon(&mut self) -> bool {
        match self.colons {
            0 => {
                self.parts += u32::from(self.digits > 0);
                (self.digits, self.colons) = (0, 1);
                // A group or a gap of at least one group follows.
                self.parts < self.parts_max() || self.parts == 7 && !self.has_gap
            }
            1 if !self.has_gap => {
                (self.has_gap, self.colons) = (true, 2);
                self.parts <= 7
            }
            _ => false,
        }
    }

    /// Groups that the address can have: a gap stands for at least one.
    fn parts_max(&self) -> u32 {
        if self.has_gap { 7 } else { 8 }
    }

    fn may_end(&self) -> bool {
        match self.kind {
            Kind::Port => self.digits > 0,
            Kind::V4 => self.digits > 0 && self.parts == 3,
            Kind::V6 => match self.colons {
                0 => self.has_gap || self.parts == 7,
                1 => false,
                _ => true,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    /// Whether a text is read as a whole field.
    fn whole(text: &str, kind: Kind) -> bool {
        matches!(field(format!("{text} ").as_bytes(), kind, b' '), Field::Whole(_))
    }

    /// Calls `act` with every text of at most `len` of these bytes.
    fn texts(alphabet: &[u8], len: usize, text: &mut String, act: &mut impl FnMut(&str)) {
        act(text);
        if len > 0 {
            for &byte in alphabet {
                text.push(char::from(byte));
                texts(alphabet, len - 1, text, act);
                text.pop();
            }
        }
    }

    #[test]
    fn addresses_are_those_of_the_standard_library() {
        let mut count = [0; 2];
        texts(b"1:", 15, &mut String::new(), &mut |text| {
            let valid = Ipv6Addr::from_str(text).is_ok();
            assert_eq!(whole(text, Kind::V6), valid, "{text}");
            count[usize::from(valid)] += 1;
        });
        texts(b"0129.", 7, &mut String::new(), &mut |text| {
            let valid = Ipv4Addr::from_str(text).is_ok();
            assert_eq!(whole(text, Kind::V4), valid, "{text}");
            count[usize::from(valid)] += 1;
        });
        assert!(count.iter().all(|&count| count > 500), "{count:?}");
        for text in ["255.255.255.255", "249.250.199.0"] {
            assert!(whole(text, Kind::V4), "{text}");
        }
        for text in ["256.1.1.1", "1.1.1.1.1", "01.1.1.1", "1.1.1", "1..1.1"] {
            assert!(!whole(text, Kind::V4), "{text}");
        }
        for text in ["::ffff:192.0.2.1", "fffff::", "g::", "1::1::1"] {
            assert!(!whole(text, Kind::V6), "{text}");
        }
    }

    #[test]
    fn byte_that_no_address_can_continue_is_a_fault() {
        // A prefix without a fault has a continuation that is an address.
        texts(b"1:", 15, &mut String::new(), &mut |text| {
            if matches!(field(text.as_bytes(), Kind::V6, b' '), Field::Partial) {
                let endings = (0..8)
                    .flat_map(|n| ["", "1", ":", ":1", "::", "1:"].map(|s| s.to_owned() + &":1".repeat(n)));
                let found =
                    endings.map(|ending| format!("{text}{ending}")).any(|text| whole(&text, Kind::V6));
                assert!(found, "{text} was accepted as a beginning");
            }
        });
    }

    #[test]
    fn ports_are_decimal_numbers_of_16_bits() {
        for (text, valid) in
            [("0", true), ("65535", true), ("65536", false), ("080", false), ("", false), ("+1", false)]
        {
            assert_eq!(whole(text, Kind::Port), valid, "{text}");
        }
    }
}
