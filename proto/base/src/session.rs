//! TLS sessions: those with an id, as nodes store and replicate them, and hashes of sessions of other servers.

use crate::Unix;
use crate::sip::Sip128;

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

/// Keyed hash of a session's public name, equal on all nodes of a cluster. Without the key it is uniform for peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(into = "[u8; 16]", from = "[u8; 16]")]
pub struct SessionHash(pub [u64; 2]);

impl SessionHash {
    /// Its form on the wire.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (to, half) in bytes.chunks_exact_mut(8).zip(self.0) {
            to.copy_from_slice(&half.to_le_bytes());
        }
        bytes
    }

    /// A hash from its form on the wire.
    pub fn from_bytes(bytes: [u8; 16]) -> SessionHash {
        let all = u128::from_le_bytes(bytes);
        SessionHash([all as u64, (all >> 64) as u64])
    }
}

impl From<SessionHash> for [u8; 16] {
    fn from(hash: SessionHash) -> [u8; 16] {
        hash.to_bytes()
    }
}

impl From<[u8; 16]> for SessionHash {
    fn from(bytes: [u8; 16]) -> SessionHash {
        SessionHash::from_bytes(bytes)
    }
}

/// A session of a foreign server, and the server that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedSession<S> {
    /// Hash of the name by which clients refer to it.
    pub hash: SessionHash,
    /// The server: its number in a table, its name on the wire.
    pub server: S,
    /// End of its lifetime.
    pub expires: Unix,
}

impl LearnedSession<u64> {
    /// Length on the wire, in bytes.
    pub const WIRE_BYTES: usize = 32;

    /// The session for other nodes, with a server name that is equal on all of them.
    pub fn to_bytes(&self) -> [u8; Self::WIRE_BYTES] {
        let mut bytes = [0; Self::WIRE_BYTES];
        let fields = self.hash.to_bytes().into_iter().chain(self.server.to_le_bytes());
        bytes.iter_mut().zip(fields.chain(self.expires.0.to_le_bytes())).for_each(|(to, from)| *to = from);
        bytes
    }

    /// A session from another node. Every value is valid: an unknown server, or an expiry in the past, is the caller's
    /// to refuse.
    pub fn from_bytes(bytes: &[u8; Self::WIRE_BYTES]) -> LearnedSession<u64> {
        let number = |at: usize| {
            let field = bytes.iter().skip(at).take(8).rev();
            field.fold(0, |number, &byte| number << 8 | u64::from(byte))
        };
        LearnedSession {
            hash: SessionHash([number(0), number(8)]),
            server: number(16),
            expires: Unix(number(24)),
        }
    }
}

impl serde::Serialize for LearnedSession<u64> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_bytes().serialize(serializer)
    }
}

impl<'de> serde::Deserialize<'de> for LearnedSession<u64> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <[u8; Self::WIRE_BYTES]>::deserialize(deserializer)?;
        Ok(Self::from_bytes(&bytes))
    }
}

/// Name by which a client refers to a session, or by which it is known without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionName {
    /// Session id of TLS 1.2 (RFC 5246 section 7.4.1.2).
    Id,
    /// Ticket of TLS 1.2 (RFC 5077).
    Ticket,
    /// Identity of a pre-shared key of TLS 1.3 (RFC 8446 section 4.2.11).
    Identity,
    /// Address of the client, 16 bytes: IPv4 as IPv6 (RFC 4291 section 2.5.5.2).
    Address,
    /// Server name that the client asks for, in lower case.
    ServerName,
}

/// Key of the hashes of a cluster.
#[derive(Clone, Copy)]
pub struct SessionHasher {
    key: [u64; 2],
}

impl std::fmt::Debug for SessionHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionHasher")
    }
}

impl SessionHasher {
    /// A hasher with the cluster's key.
    pub fn new(key: [u64; 2]) -> SessionHasher {
        SessionHasher { key }
    }

    /// Hash of a whole name.
    pub fn hash(&self, kind: SessionName, name: &[u8]) -> SessionHash {
        let mut state = self.start(kind);
        state.update(name);
        SessionHash(state.finish())
    }

    /// Hash of a name that arrives in pieces: finish it into a [`SessionHash`].
    pub fn start(&self, kind: SessionName) -> Sip128 {
        let mut state = Sip128::new(self.key);
        state.update(&[kind as u8]);
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_depends_on_key_kind_and_name() {
        let hasher = SessionHasher::new([1, 2]);
        let hash = hasher.hash(SessionName::Id, b"name");
        assert_eq!(SessionHasher::new([1, 2]).hash(SessionName::Id, b"name"), hash);
        assert_eq!(SessionHash::from_bytes(hash.to_bytes()), hash);
        assert_ne!(hasher.hash(SessionName::Ticket, b"name"), hash);
        assert_ne!(hasher.hash(SessionName::Id, b"nam"), hash);
        assert_ne!(SessionHasher::new([1, 3]).hash(SessionName::Id, b"name"), hash);
    }
}
