//! Beginning of a PROXY protocol header, which a load balancer may send before a client's bytes. A listener without
//! trusted proxies accepts no such header; it is recognised so that the log names the cause.

use serde::{Deserialize, Serialize};

/// Version of a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary, with optional fields.
    V2,
}

/// PROXY header that begins a connection to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyHeader {
    /// Its version.
    pub version: ProxyVersion,
    /// Whether it has the server name of the client's TLS session.
    pub authority: bool,
    /// Whether it has the application protocol of the client's TLS session.
    pub alpn: bool,
    /// Whether it has the id of the connection: 16 hexadecimal digits.
    pub unique_id: bool,
}

/// Beginnings of a header of version 1 (text) and of version 2 (binary).
const BEGINNINGS: [&[u8]; 4] = [b"PROXY TCP4 ", b"PROXY TCP6 ", b"PROXY UNKNOWN", b"\r\n\r\n\0\r\nQUIT\n"];

/// Whether bytes begin with a PROXY header.
pub fn is_proxy_header(bytes: &[u8]) -> bool {
    BEGINNINGS.iter().any(|beginning| bytes.starts_with(beginning))
}

/// Whether bytes are a part of the beginning of a PROXY header: more bytes decide.
pub fn may_be_proxy_header(bytes: &[u8]) -> bool {
    BEGINNINGS.iter().any(|beginning| beginning.len() > bytes.len() && beginning.starts_with(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_recognised_in_any_segmentation() {
        let headers: [&[u8]; 4] = [
            b"PROXY TCP4 192.0.2.1 198.51.100.1 40000 443\r\n",
            b"PROXY TCP6 2001:db8::1 2001:db8::2 40000 443\r\n",
            b"PROXY UNKNOWN\r\n",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c",
        ];
        for header in headers {
            let verdict = |len| (is_proxy_header(&header[..len]), may_be_proxy_header(&header[..len]));
            let known = (0..=header.len()).find(|len| verdict(*len).0).unwrap();
            assert!((0..known).all(|len| verdict(len) == (false, true)), "{header:?}");
            assert!((known..=header.len()).all(|len| verdict(len) == (true, false)), "{header:?}");
        }
        for other in [
            &b"PROXY /x HTTP/1.1\r\n"[..],
            b"PROXY TCP5 ",
            b"POST / HTTP/1.1",
            b"\r\n\r\nGET / ",
            b"\x16\x03",
        ] {
            assert!(!is_proxy_header(other) && !may_be_proxy_header(other), "{other:?}");
        }
    }
}
