//! TLS sessions with an id, as nodes store and replicate them.

/// Id of a stored TLS 1.2 session (RFC 5246 section 7.4.1.2); ids of this server always have this length.
pub type SessionId = [u8; 32];

/// A stored session: encrypted by the provider, bound to its id and to the checks of its server.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Sealed(pub Vec<u8>);

impl std::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealed({} bytes)", self.0.len())
    }
}

/// A session under its id.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KeptSession {
    /// The id.
    pub id: SessionId,
    /// End of its resumption, in seconds since 1970.
    pub until_unix_s: u64,
    /// The session.
    pub sealed: Sealed,
}

/// Limit of a stored sealed session, in bytes; it includes a chain of client certificates.
pub const SEALED_BYTES_MAX: usize = 8 << 10;
