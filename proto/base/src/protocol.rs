//! Protocol of a listener.

use serde::{Deserialize, Serialize};

/// Protocol that a listener and its clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1 over TLS, routed by request.
    Https,
    /// HTTP/1.1 in clear, routed by request.
    Http,
    /// TLS that this node terminates; the bytes inside are passed on.
    Tls,
    /// Bytes that are passed on.
    Tcp,
    /// TLS that a server terminates, routed by its ClientHello.
    Passthrough,
}

impl Protocol {
    /// Whether this node terminates TLS: a handshake comes first.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Tls)
    }

    /// Whether requests are read and routed one by one.
    pub fn is_http(self) -> bool {
        matches!(self, Self::Https | Self::Http)
    }

    /// Whether a connection is routed as a whole, and its bytes are passed on unread.
    pub fn is_raw(self) -> bool {
        !self.is_http()
    }

    /// Whether a relayed ClientHello decides about the connection.
    pub fn is_greeted(self) -> bool {
        self == Self::Passthrough
    }

    /// The name in a configuration file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Tls => "tls",
            Self::Tcp => "tcp",
            Self::Passthrough => "passthrough",
        }
    }
}
