//! Input of a decision: borrowed views of one request.

use std::net::SocketAddr;

/// One request as the rules see it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Name of the listener that accepted the connection.
    pub listener: &'a str,
    /// Method, as sent (methods are case-sensitive). Empty when a whole connection is routed, like all that only
    /// requests have.
    pub method: &'a [u8],
    /// `http` or `https`.
    pub scheme: &'a str,
    /// Host in lower case, without port.
    pub host: &'a [u8],
    /// Canonical path: exactly the bytes that are forwarded.
    pub path: &'a [u8],
    /// Query without the `?`; empty if there is none.
    pub query: &'a [u8],
    /// Header lines in order; names in any case.
    pub headers: &'a [(&'a [u8], &'a [u8])],
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
    /// Properties of the client's TLS connection; `None` on a plain one.
    pub tls: Option<TlsFacts<'a>>,
    /// The part of the body that is available.
    pub body: Body<'a>,
}

impl<'a> Request<'a> {
    /// A whole connection, which has no request: addresses, and TLS as far as the listener reads it.
    pub fn of_connection(
        listener: &'a str,
        client: SocketAddr,
        local: SocketAddr,
        tls: Option<TlsFacts<'a>>,
    ) -> Request<'a> {
        Request {
            listener,
            method: b"",
            scheme: "",
            host: b"",
            path: b"",
            query: b"",
            headers: &[],
            client,
            local,
            tls,
            body: Body::Complete(b""),
        }
    }
}

/// Properties of a TLS connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct TlsFacts<'a> {
    /// Server name of the ClientHello.
    pub sni: Option<&'a str>,
    /// Negotiated application protocol, for example `http/1.1`; of a relayed hello all that the client
    /// offers, separated by commas.
    pub alpn: Option<&'a str>,
    /// Version: `TLSv1.2` or `TLSv1.3`; of a relayed hello the newest that the client offers.
    pub version: &'a str,
    /// Subject of the verified client certificate in the format of RFC 4514: separators inside its parts are escaped.
    pub client_subject: Option<&'a str>,
}

/// Available part of a request's body.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// The request has a body, and none of it has been read for the rules.
    Pending,
    /// The limit was reached; the body is longer than these bytes.
    Prefix(&'a [u8]),
    /// The whole body; empty if the request has none.
    Complete(&'a [u8]),
}
