//! Witness: a request that owns its parts.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use serde::Serialize;

use crate::request::{Body, Request, TlsFacts};

/// A constructed request that satisfies a condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Witness {
    /// Listener.
    pub listener: String,
    /// Method.
    pub method: String,
    /// `http` or `https`.
    pub scheme: String,
    /// Host without port.
    pub host: String,
    /// Path.
    pub path: String,
    /// Query without `?`.
    pub query: String,
    /// Header lines.
    pub headers: Vec<(String, String)>,
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
    /// Properties of the TLS connection.
    pub tls: Option<WitnessTls>,
    /// The whole body.
    pub body: Vec<u8>,
}

/// A listener, as far as an example request depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entrance {
    /// Name of the listener.
    pub listener: String,
    /// Whether the listener terminates TLS: requests then have the scheme `https`.
    pub is_tls: bool,
}

impl Entrance {
    pub(super) fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }
}

/// TLS properties of a witness.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WitnessTls {
    /// Server name.
    pub sni: Option<String>,
    /// Application protocol.
    pub alpn: Option<String>,
    /// Version.
    pub version: String,
    /// Subject of the client certificate.
    pub client_subject: Option<String>,
}

impl Default for Witness {
    /// `GET https://host.example/` between documentation addresses (RFC 5737).
    fn default() -> Witness {
        Witness {
            listener: "listener".into(),
            method: "GET".into(),
            scheme: "https".into(),
            host: "host.example".into(),
            path: "/".into(),
            query: String::new(),
            headers: Vec::new(),
            client: (Ipv4Addr::new(192, 0, 2, 1), 40000).into(),
            local: (Ipv4Addr::new(198, 51, 100, 1), 443).into(),
            tls: None,
            body: Vec::new(),
        }
    }
}

impl Witness {
    /// Calls `use_it` with the request, its body read completely.
    pub fn with<R>(&self, use_it: impl FnOnce(&Request<'_>) -> R) -> R {
        let headers: Vec<(&[u8], &[u8])> =
            self.headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        use_it(&Request {
            listener: &self.listener,
            method: self.method.as_bytes(),
            scheme: &self.scheme,
            host: self.host.as_bytes(),
            path: self.path.as_bytes(),
            query: self.query.as_bytes(),
            headers: &headers,
            client: self.client,
            local: self.local,
            tls: self.tls.as_ref().map(|tls| TlsFacts {
                sni: tls.sni.as_deref(),
                alpn: tls.alpn.as_deref(),
                version: &tls.version,
                client_subject: tls.client_subject.as_deref(),
            }),
            body: Body::Complete(&self.body),
        })
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Witness::default();
        write!(f, "{} {}://{}{}", self.method, self.scheme, self.host, self.path)?;
        if !self.query.is_empty() {
            write!(f, "?{}", self.query)?;
        }
        for (name, value) in &self.headers {
            write!(f, "\n{name}: {value}")?;
        }
        if self.listener != default.listener {
            write!(f, "\n(listener {})", self.listener)?;
        }
        if self.client != default.client {
            write!(f, "\n(from {})", self.client)?;
        }
        if self.local != default.local {
            write!(f, "\n(to {})", self.local)?;
        }
        if let Some(tls) = &self.tls {
            write!(f, "\n({}", tls.version)?;
            let parts = [("sni", &tls.sni), ("alpn", &tls.alpn), ("client certificate", &tls.client_subject)];
            for (what, value) in parts {
                if let Some(value) = value {
                    write!(f, ", {what} {value}")?;
                }
            }
            write!(f, ")")?;
        }
        if !self.body.is_empty() {
            let (head, dots) =
                if self.body.len() > 512 { (&self.body[..512], "..") } else { (&self.body[..], "") };
            write!(f, "\n\n{}{dots}", String::from_utf8_lossy(head))?;
        }
        Ok(())
    }
}
