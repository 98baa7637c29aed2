//! TLS sessions that go by an id: what nodes keep of them and tell each other.

/// Names a TLS 1.2 session that its server keeps (RFC 5246 section 7.4.1.2); all of ours are this long.
pub type SessionId = [u8; 32];

/// A session as it is kept: encrypted by the provider, bound to its id and to what its server would check.
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
    /// When it may be resumed no more, in seconds since 1970.
    pub until_unix_s: u64,
    /// The session.
    pub sealed: Sealed,
}

/// The longest sealed session that is kept, in bytes: a chain of client certificates is in it.
pub const SEALED_BYTES_MAX: usize = 8 << 10;
