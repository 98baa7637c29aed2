//! State machine of the chunked transfer coding (RFC 9112 section 7.1).
//!
//! Its state is a few integers, so another node can continue a body in the middle of a chunk size or of a trailer name.
//! Trailer names are therefore recognised by a running hash. A collision could only refuse a harmless trailer.

use crate::body::{take_u32, take_u64};
use crate::bytes::is_token_byte;
use crate::limits::{Limits, Refusal};
use evergate_base::name::folded;

/// Position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunked(State);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size {
        size: u64,
        digits: u32,
    },
    Extension {
        size: u64,
        line_bytes: u32,
        value: Value,
    },
    SizeLf {
        size: u64,
    },
    /// Never 0.
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    /// At the start of a trailer line, or of the empty line that ends the body.
    TrailerStart {
        section_bytes: u32,
    },
    TrailerName {
        section_bytes: u32,
        hash: u64,
    },
    /// After a space in or behind the name; the next byte decides the reason of the refusal.
    TrailerValue {
        section_bytes: u32,
    },
    TrailerLf {
        section_bytes: u32,
    },
    EndLf {
        section_bytes: u32,
    },
}

/// Quoting state of a chunk extension (RFC 9112 section 7.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// Outside quotes.
    Plain,
    /// Inside a quoted value.
    Quoted,
    /// After the backslash of a quoted pair.
    Escaped,
}

/// Limit of hexadecimal digits in a chunk size: sixteen hold every 64-bit size; more would only serve to overflow a
/// parser.
const SIZE_DIGITS_MAX: u32 = 16;
/// Flag in an encoded extension length: the extension is inside a quoted value.
const QUOTED: u32 = 1 << 31;
/// Flag in an encoded extension length: the next byte belongs to a quoted pair.
const ESCAPED: u32 = 1 << 30;

impl Chunked {
    pub(crate) const fn new() -> Self {
        Self(State::Size { size: 0, digits: 0 })
    }

    /// Consumes bytes of the body. Returns their number and whether the body is done; passes chunk data to `content`.
    pub(crate) fn advance(
        &mut self,
        data: &[u8],
        limits: &Limits,
        mut content: impl FnMut(&[u8]),
    ) -> Result<(usize, bool), Refusal> {
        let mut at = 0;
        while at < data.len() {
            if let State::Data { left } = self.0 {
                let rest = data.len() - at;
                let taken = usize::try_from(left).map_or(rest, |left| left.min(rest));
                content(&data[at..at + taken]);
                at += taken;
                let left = left - taken as u64;
                self.0 = if left == 0 { State::DataCr } else { State::Data { left } };
                continue;
            }
            let byte = data[at];
            at += 1;
            match self.0.step(byte, limits)? {
                Some(next) => self.0 = next,
                None => return Ok((at, true)),
            }
        }
        Ok((at, false))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (tag, long, short): (u8, Option<u64>, Option<u32>) = match self.0 {
            State::Size { size, digits } => (0, Some(size), Some(digits)),
            State::Extension { size, line_bytes, value } => (1, Some(size), Some(line_bytes | value.bits())),
            State::SizeLf { size } => (2, Some(size), None),
            State::Data { left } => (3, Some(left), None),
            State::DataCr => (4, None, None),
            State::DataLf => (5, None, None),
            State::TrailerStart { section_bytes } => (6, None, Some(section_bytes)),
            State::TrailerName { section_bytes, hash } => (7, Some(hash), Some(section_bytes)),
            State::TrailerValue { section_bytes } => (8, None, Some(section_bytes)),
            State::TrailerLf { section_bytes } => (9, None, Some(section_bytes)),
            State::EndLf { section_bytes } => (10, None, Some(section_bytes)),
        };
        out.push(tag);
        if let Some(long) = long {
            out.extend_from_slice(&long.to_le_bytes());
        }
        if let Some(short) = short {
            out.extend_from_slice(&short.to_le_bytes());
        }
    }

    pub(crate) fn decode(input: &mut &[u8]) -> Option<Self> {
        let (&tag, rest) = input.split_first()?;
        *input = rest;
        let size = |input: &mut &[u8]| take_u64(input).filter(|&size| size <= i64::MAX as u64);
        Some(Self(match tag {
            0 => {
                let size = size(input)?;
                let digits = take_u32(input).filter(|&digits| digits <= SIZE_DIGITS_MAX)?;
                State::Size { size, digits }
            }
            1 => {
                let (size, line) = (size(input)?, take_u32(input)?);
                let value = Value::of(line & (QUOTED | ESCAPED))?;
                State::Extension { size, line_bytes: line & !(QUOTED | ESCAPED), value }
            }
            2 => State::SizeLf { size: size(input)? },
            3 => State::Data { left: size(input).filter(|&left| left > 0)? },
            4 => State::DataCr,
            5 => State::DataLf,
            6 => State::TrailerStart { section_bytes: take_u32(input)? },
            7 => {
                let hash = take_u64(input)?;
                State::TrailerName { section_bytes: take_u32(input)?, hash }
            }
            8 => State::TrailerValue { section_bytes: take_u32(input)? },
            9 => State::TrailerLf { section_bytes: take_u32(input)? },
            10 => State::EndLf { section_bytes: take_u32(input)? },
            _ => return None,
        }))
    }
}

impl Value {
    fn after(self, byte: u8) -> Value {
        match (self, byte) {
            (Value::Plain, b'"') | (Value::Escaped, _) => Value::Quoted,
            (Value::Quoted, b'"') => Value::Plain,
            (Value::Quoted, b'\\') => Value::Escaped,
            (value, _) => value,
        }
    }

    fn bits(self) -> u32 {
        match self {
            Value::Plain => 0,
            Value::Quoted => QUOTED,
            Value::Escaped => QUOTED | ESCAPED,
        }
    }

    fn of(bits: u32) -> Option<Value> {
        [Value::Plain, Value::Quoted, Value::Escaped].into_iter().find(|value| value.bits() == bits)
    }
}

impl State {
    /// The state after one byte outside chunk data; `None` after the last byte of the body.
    fn step(self, byte: u8, limits: &Limits) -> Result<Option<State>, Refusal> {
        Ok(Some(match self {
            State::Size { size, digits } => size_byte(size, digits, byte)?,
            State::Extension { size, line_bytes, value } => {
                let line_bytes = line_bytes.saturating_add(1);
                if line_bytes as usize > limits.chunk_line_bytes_max.min(ESCAPED as usize - 1) {
                    return Err(Refusal::bad("chunk_line_too_long"));
                }
                match byte {
                    b'\n' => return Err(Refusal::bad("chunk_bare_lf")),
                    b'\r' if value == Value::Plain => State::SizeLf { size },
                    // A quoted value ends on its line, because some servers accept a line end inside it.
                    b'\r' => return Err(Refusal::bad("chunk_extension_quoted")),
                    b'\t' | 0x20..=0x7e | 0x80.. => {
                        State::Extension { size, line_bytes, value: value.after(byte) }
                    }
                    _ => return Err(Refusal::bad("chunk_extension_control")),
                }
            }
            State::SizeLf { size } => match (byte, size) {
                (b'\n', 0) => State::TrailerStart { section_bytes: 0 },
                (b'\n', left) => State::Data { left },
                _ => return Err(Refusal::bad("chunk_bare_cr")),
            },
            // The caller consumes data in bulk; a single byte has the same effect.
            State::Data { left } if left <= 1 => State::DataCr,
            State::Data { left } => State::Data { left: left - 1 },
            State::DataCr if byte == b'\r' => State::DataLf,
            State::DataLf if byte == b'\n' => State::Size { size: 0, digits: 0 },
            State::DataCr | State::DataLf => return Err(Refusal::bad("chunk_data_unterminated")),
            _ => return self.trailer_byte(byte, limits),
        }))
    }

    fn trailer_byte(self, byte: u8, limits: &Limits) -> Result<Option<State>, Refusal> {
        let (State::TrailerStart { section_bytes }
        | State::TrailerName { section_bytes, .. }
        | State::TrailerValue { section_bytes }
        | State::TrailerLf { section_bytes }
        | State::EndLf { section_bytes }) = self
        else {
            return Ok(Some(self));
        };
        let section_bytes = section_bytes.saturating_add(1);
        if section_bytes as usize > limits.trailer_bytes_max {
            return Err(Refusal::with(431, "trailer_too_large"));
        }
        let refused = |reason| Err(Refusal::bad(reason));
        Ok(Some(match (self, byte) {
            (State::EndLf { .. }, b'\n') => return Ok(None),
            (State::TrailerLf { .. }, b'\n') => State::TrailerStart { section_bytes },
            (State::EndLf { .. } | State::TrailerLf { .. }, _) => return refused("trailer_bare_cr"),
            (_, b'\n') => return refused("trailer_bare_lf"),
            (State::TrailerStart { .. }, b'\r') => State::EndLf { section_bytes },
            (State::TrailerStart { .. }, b' ' | b'\t') => return refused("trailer_obs_fold"),
            (State::TrailerStart { .. }, b':') => return refused("trailer_name_empty"),
            (State::TrailerStart { .. }, _) if is_token_byte(byte) => {
                State::TrailerName { section_bytes, hash: hash_byte(HASH_START, byte) }
            }
            (State::TrailerName { hash, .. }, b':') if FORBIDDEN.contains(&hash) => {
                return refused("trailer_forbidden");
            }
            (State::TrailerName { .. }, b':') => State::TrailerValue { section_bytes },
            (State::TrailerName { hash, .. }, _) if is_token_byte(byte) => match hash_byte(hash, byte) {
                FORWARDING => return refused("trailer_forbidden"),
                hash => State::TrailerName { section_bytes, hash },
            },
            (State::TrailerName { .. }, b'\r') => return refused("trailer_without_colon"),
            (State::TrailerName { .. } | State::TrailerStart { .. }, _) => {
                return refused("trailer_name_invalid");
            }
            (_, b'\r') => State::TrailerLf { section_bytes },
            (_, b'\t' | 0x20..=0x7e | 0x80..) => State::TrailerValue { section_bytes },
            _ => return refused("trailer_value_control"),
        }))
    }
}

fn size_byte(size: u64, digits: u32, byte: u8) -> Result<State, Refusal> {
    let digit = match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        b'A'..=b'F' => byte - b'A' + 10,
        _ if digits == 0 && matches!(byte, b'\r' | b'\n' | b';') => {
            return Err(Refusal::bad("chunk_size_empty"));
        }
        b'\r' => return Ok(State::SizeLf { size }),
        b'\n' => return Err(Refusal::bad("chunk_bare_lf")),
        b';' => return Ok(State::Extension { size, line_bytes: digits + 1, value: Value::Plain }),
        // RFC 9112 section 7.1.1 allows whitespace before an extension; implementations skip different bytes.
        b' ' | b'\t' => return Err(Refusal::bad("chunk_size_space")),
        _ => return Err(Refusal::bad("chunk_size_malformed")),
    };
    if digits >= SIZE_DIGITS_MAX {
        return Err(Refusal::bad("chunk_size_too_long"));
    }
    // The size stays below 2^63, because servers often store it in a signed integer.
    if size >> 59 != 0 {
        return Err(Refusal::bad("chunk_size_overflow"));
    }
    Ok(State::Size { size: size << 4 | u64::from(digit), digits: digits + 1 })
}

const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a over the name in the spelling of CGI-style servers.
const fn hash_byte(hash: u64, byte: u8) -> u64 {
    (hash ^ folded(byte) as u64).wrapping_mul(0x0000_0100_0000_01b3)
}

const fn hash_name(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let mut hash = HASH_START;
    let mut i = 0;
    while i < bytes.len() {
        hash = hash_byte(hash, bytes[i]);
        i += 1;
    }
    hash
}

/// Trailers refused by RFC 9110 section 6.5.1: framing, routing, authentication, request modifiers and content
/// processing. A server that merges trailers into the head would apply them after the proxy has decided on the request.
const FORBIDDEN_NAMES: [&str; 43] = [
    "age",
    "authorization",
    "cache-control",
    "client-ip",
    "connection",
    "content-encoding",
    "content-length",
    "content-location",
    "content-range",
    "content-type",
    "cookie",
    "expect",
    "expires",
    "forwarded",
    "forwarded-for",
    "host",
    "http2-settings",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "location",
    "max-forwards",
    "origin",
    "pragma",
    "proxy",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "retry-after",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "www-authenticate",
    "x-forwarded",
    "x-real-ip",
    "x-request-id",
];

/// Prefix of names that only a trusted hop may send.
const FORWARDING: u64 = hash_name("x-forwarded-");

static FORBIDDEN: [u64; FORBIDDEN_NAMES.len()] = {
    let mut hashes = [0; FORBIDDEN_NAMES.len()];
    let mut i = 0;
    while i < FORBIDDEN_NAMES.len() {
        hashes[i] = hash_name(FORBIDDEN_NAMES[i]);
        i += 1;
    }
    hashes
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_states_do_not_decode() {
        let state = |tag: u8, size: u64, rest: &[u8]| [&[tag], &size.to_le_bytes()[..], rest].concat();
        let read = |bytes: Vec<u8>| Chunked::decode(&mut &bytes[..]).is_some();
        let digits = |digits: u32| state(0, 0, &digits.to_le_bytes());
        assert!(
            read(digits(SIZE_DIGITS_MAX)) && !read(digits(SIZE_DIGITS_MAX + 1)) && !read(digits(u32::MAX))
        );
        let most = i64::MAX as u64;
        for tag in [0, 1, 2, 3] {
            assert!(read(state(tag, most, &[0; 4])) && !read(state(tag, most + 1, &[0; 4])), "{tag}");
        }
        assert!(!read(state(3, 0, &[])), "data of no bytes");
        assert!(!read(vec![11; 16]) && !read(Vec::new()));
    }

    #[test]
    fn forbidden_trailers_are_found_in_any_case_without_collision() {
        for name in
            FORBIDDEN_NAMES.into_iter().chain(["x-forwarded-for", "x-forwarded-client-cert-of-nobody"])
        {
            let spellings =
                [name.to_string(), name.to_uppercase(), name.replace('-', "_"), name.replace('-', ".")];
            for spelling in spellings {
                let stream = format!("0\r\n{spelling}: x\r\n\r\n");
                let refusal =
                    Chunked::new().advance(stream.as_bytes(), &Limits::default(), |_| {}).unwrap_err();
                assert_eq!(refusal.reason, "trailer_forbidden", "{spelling}");
            }
        }
        for name in [
            "digest",
            "server-timing",
            "grpc-status",
            "x-checksum",
            "expires-in",
            "hos",
            "hostt",
            "x-forward",
        ] {
            let stream = format!("0\r\n{name}: x\r\n\r\n");
            assert_eq!(
                Chunked::new().advance(stream.as_bytes(), &Limits::default(), |_| {}),
                Ok((stream.len(), true))
            );
        }
    }
}
