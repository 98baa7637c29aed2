//! Classification of a client's first bytes: a ClientHello (whole or in part), plain HTTP, or something else.
//!
//! Invariants: the answer depends on the bytes alone, never on their segmentation; a complete hello is whole records
//! (the handshake's seed is bound to exactly these bytes). The message itself is checked by `rustls`.

use evergate_base::{is_proxy_header, may_be_proxy_header};

/// Limit of a plaintext record's fragment (RFC 8446 section 5.1), in bytes.
const FRAGMENT_MAX: usize = 1 << 14;
/// Requests that start a plain HTTP/1 connection, and the HTTP/2 preface.
const METHODS: [&[u8]; 10] = [
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"TRACE ",
    b"PRI * HTTP/2",
];

/// Class of a client's first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloStatus {
    /// The bytes are valid so far; more are needed.
    Partial,
    /// A whole ClientHello.
    Complete {
        /// Raw bytes of the records that hold it.
        len: usize,
    },
    /// An HTTP request in clear: answer 400, without TLS.
    PlainHttp,
    /// A header of the PROXY protocol: close without an answer.
    ProxyHeader,
    /// Not a TLS record: send an alert and close.
    NotTls,
    /// TLS, but a record or message other than a ClientHello, also between its fragments, or an empty fragment.
    Unexpected,
    /// A record longer than a plaintext record may be.
    Overflow {
        /// Its length, header included, in bytes.
        len: usize,
    },
    /// The hello does not end within the limit.
    TooLong,
}

/// Classifies the bytes that a client has sent so far; `bytes_max` limits the raw length of the hello's records.
pub fn hello_status(raw: &[u8], bytes_max: usize) -> HelloStatus {
    HelloScan::new(bytes_max).advance(raw)
}

/// Incremental classification that visits each record once.
///
/// Each verdict belongs to the byte that causes it, and earlier bytes are checked first, so segmentation cannot change
/// it.
#[derive(Debug)]
pub struct HelloScan {
    bytes_max: usize,
    /// Start of the current record.
    at: usize,
    /// Handshake type and 24-bit length, possibly split over records.
    head: [u8; 4],
    /// Message bytes in the records before `at`.
    message: usize,
}

impl HelloScan {
    /// Starts a classification; `bytes_max` limits the raw length of the hello's records.
    pub fn new(bytes_max: usize) -> HelloScan {
        HelloScan { bytes_max, at: 0, head: [0; 4], message: 0 }
    }

    /// Classifies `raw`, which starts with the bytes of the previous call.
    pub fn advance(&mut self, raw: &[u8]) -> HelloStatus {
        loop {
            let record = raw.get(self.at..).unwrap_or_default();
            // RFC 8446 section 5.1: type handshake(22); legacy_record_version "MUST be ignored for all purposes", and
            // RFC 5246 appendix E.1: "MUST accept any value {03,XX}". There is no other major version.
            match record.first() {
                Some(22) | None => {}
                Some(20..=23) => return HelloStatus::Unexpected,
                Some(_) if self.at > 0 => return HelloStatus::Unexpected,
                Some(_) => return foreign(raw),
            }
            if record.get(1).is_some_and(|&byte| byte != 3) {
                return HelloStatus::NotTls;
            }
            let Some((&[_, _, _, hi, lo], rest)) = record.split_first_chunk() else {
                return HelloStatus::Partial;
            };
            let len = usize::from(u16::from_be_bytes([hi, lo]));
            // "Implementations MUST NOT send zero-length fragments of Handshake types".
            if len == 0 {
                return HelloStatus::Unexpected;
            }
            if len > FRAGMENT_MAX {
                return HelloStatus::Overflow { len: 5 + len };
            }
            let end = self.at + 5 + len;
            if end > self.bytes_max {
                return HelloStatus::TooLong;
            }
            let body = rest.get(..len).unwrap_or(rest);
            for (to, from) in self.head.iter_mut().skip(self.message).zip(body) {
                *to = *from;
            }
            if self.message + body.len() > 0 && self.head[0] != 1 {
                return HelloStatus::Unexpected;
            }
            if body.len() < len {
                return HelloStatus::Partial;
            }
            self.message += len;
            self.at = end;
            if self.message >= self.head.len() {
                let [_, a, b, c] = self.head;
                let wanted = self.head.len() + u32::from_be_bytes([0, a, b, c]) as usize;
                if self.message >= wanted {
                    return HelloStatus::Complete { len: end };
                }
                if end + 5 + (wanted - self.message) > self.bytes_max {
                    return HelloStatus::TooLong;
                }
            }
        }
    }
}

fn foreign(raw: &[u8]) -> HelloStatus {
    if is_proxy_header(raw) {
        return HelloStatus::ProxyHeader;
    }
    let mut status = if may_be_proxy_header(raw) { HelloStatus::Partial } else { HelloStatus::NotTls };
    for method in METHODS {
        if raw.starts_with(method) {
            return HelloStatus::PlainHttp;
        }
        if method.starts_with(raw) {
            status = HelloStatus::Partial;
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(body: &[u8], fragment: usize) -> Vec<u8> {
        let mut message = vec![1, 0, (body.len() >> 8) as u8, body.len() as u8];
        message.extend_from_slice(body);
        let mut raw = Vec::new();
        for part in message.chunks(fragment) {
            raw.extend_from_slice(&[22, 3, 1, (part.len() >> 8) as u8, part.len() as u8]);
            raw.extend_from_slice(part);
        }
        raw
    }

    #[test]
    fn hello_is_partial_until_its_last_byte() {
        for fragment in [1, 2, 3, 4, 5, 100, 1000] {
            let mut raw = hello(&[7; 300], fragment);
            let len = raw.len();
            for end in 0..len {
                assert_eq!(hello_status(&raw[..end], 1 << 16), HelloStatus::Partial, "{fragment} {end}");
            }
            raw.extend_from_slice(b"more");
            assert_eq!(hello_status(&raw, 1 << 16), HelloStatus::Complete { len });
            assert_eq!(hello_status(&raw, len), HelloStatus::Complete { len });
            assert_eq!(hello_status(&raw, len - 1), HelloStatus::TooLong);
        }
    }

    #[test]
    fn verdict_does_not_depend_on_the_segmentation() {
        let mut seen = [0; 7];
        for seed in 0..3000_usize {
            let mut raw = hello(&[7; 60], 1 + seed % 70);
            let at = seed * 7919 % raw.len();
            raw[at] = [0, 1, 22, 0x40, 0xff][seed % 5];
            let whole = hello_status(&raw, 150);
            let mut scan = HelloScan::new(150);
            let verdict =
                (0..=raw.len()).map(|end| scan.advance(&raw[..end])).find(|v| *v != HelloStatus::Partial);
            assert_eq!(verdict.unwrap_or(HelloStatus::Partial), whole, "{raw:?}");
            seen[match whole {
                HelloStatus::Partial => 0,
                HelloStatus::Complete { .. } => 1,
                HelloStatus::NotTls => 2,
                HelloStatus::TooLong => 3,
                HelloStatus::Unexpected => 4,
                HelloStatus::Overflow { .. } => 5,
                HelloStatus::PlainHttp | HelloStatus::ProxyHeader => 6,
            }] += 1;
        }
        assert!(seen[..6].iter().all(|&count| count > 20), "{seen:?}");
    }

    #[test]
    fn hello_that_announces_too_much_is_refused_at_once() {
        let raw = [22, 3, 1, 0, 4, 1, 0, 200, 0];
        assert_eq!(hello_status(&raw, 16 << 10), HelloStatus::TooLong);
        assert_eq!(hello_status(&raw, 64 << 10), HelloStatus::Partial);
        assert_eq!(hello_status(&[22, 3, 1, 4, 0], 1000), HelloStatus::TooLong);
    }

    #[test]
    fn plain_http_is_distinguished_from_tls_and_noise() {
        for (raw, status) in [
            (&b""[..], HelloStatus::Partial),
            (b"G", HelloStatus::Partial),
            (b"GET", HelloStatus::Partial),
            (b"GET / HTTP/1.1\r\n", HelloStatus::PlainHttp),
            (b"POST /", HelloStatus::PlainHttp),
            (b"PRI * HTTP/2.0\r\n", HelloStatus::PlainHttp),
            (b"GETX", HelloStatus::NotTls),
            (b"PROXY TCP", HelloStatus::Partial),
            (b"PROXY TCP4 ", HelloStatus::ProxyHeader),
            (b"PROXY /", HelloStatus::NotTls),
            (b"\r\n\r\n\0\r\nQUIT", HelloStatus::Partial),
            (b"\r\n\r\n\0\r\nQUIT\n", HelloStatus::ProxyHeader),
            (b"\r\n\r\nG", HelloStatus::NotTls),
            (b"SSH-2.0-x", HelloStatus::NotTls),
            (&[0x80, 0x2e, 1, 0, 2], HelloStatus::NotTls),
            (&[22, 2], HelloStatus::NotTls),
            (&[22, 3, 1, 0, 0], HelloStatus::Unexpected),
            (&[22, 3, 1, 0x40, 1], HelloStatus::Overflow { len: 16390 }),
            (&[22, 3, 1, 0, 4, 2], HelloStatus::Unexpected),
            (&[22, 3, 1, 0, 1, 1, 21, 3, 1], HelloStatus::Unexpected),
            (&[22, 3, 1, 0, 1, 1, 0], HelloStatus::Unexpected),
            (&[22, 3, 1, 0, 1, 1, 22, 2], HelloStatus::NotTls),
            (&[22, 3, 0xfe, 0, 1, 1], HelloStatus::Partial),
            (&[20, 3, 1, 0, 1, 1], HelloStatus::Unexpected),
            (&[21, 3, 1, 0, 2, 2, 40], HelloStatus::Unexpected),
            (&[23, 3, 1, 0, 2, 2, 40], HelloStatus::Unexpected),
        ] {
            assert_eq!(hello_status(raw, 1000), status, "{raw:?}");
        }
    }
}
