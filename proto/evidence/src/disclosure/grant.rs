//! Grant: what a recipient gets. It has the request and its proof, the facts of the connection, and its secrets under
//! the recipient's key.

use super::request::{REQUEST_BYTES_MAX, Request, RequestError};
use crate::cursor::{Cursor, Malformed, put_long};
use crate::entry::{Entry, Event};
use crate::envelope::{ENVELOPE_BYTES_MAX, Envelope, Point, TAG_BYTES, point};
use crate::merkle::Hash;
use crate::secrets::LIST_BYTES_MAX;

/// Most bytes of a proof.
pub const PROOF_BYTES_MAX: usize = 32 << 10;
/// Most bytes of a grant.
pub const GRANT_BYTES_MAX: usize = 60_000;
/// `info` of the recipient's context.
pub const INFO: &[u8] = b"evergate-audit reveal v1";
const MAGIC: &[u8; 8] = b"EVGGNT1\n";

/// Grant of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Place of entry 2 in the log.
    pub index: u64,
    /// Time of entry 2 in ms since 1970.
    pub received_ms: u64,
    /// The request's note.
    pub note: String,
    /// Receipt of entry 2 (tlog-proof).
    pub proof: Vec<u8>,
    /// The envelope that was opened; empty if the secrets come from the server's key.
    pub envelope: Vec<u8>,
    /// Encapsulated key of the recipient's context.
    pub enc: Point,
    /// Secrets under the recipient's key.
    pub sealed: Vec<u8>,
}

impl Grant {
    /// Grant from exactly its bytes. The note and the envelope in it must decode.
    pub fn decode(bytes: &[u8]) -> Result<Grant, Malformed> {
        if bytes.len() > GRANT_BYTES_MAX {
            return Err(Malformed(format!("grant of {} bytes, at most {GRANT_BYTES_MAX}", bytes.len())));
        }
        let mut cursor = Cursor::new(bytes);
        if cursor.bytes(MAGIC.len())? != MAGIC {
            return Err(Malformed::new("no grant of version 1"));
        }
        let grant = Grant {
            index: cursor.u64()?,
            received_ms: cursor.u64()?,
            note: cursor.long_text()?,
            proof: bounded(cursor.long()?, PROOF_BYTES_MAX)?,
            envelope: bounded(cursor.long()?, ENVELOPE_BYTES_MAX)?,
            enc: point(&mut cursor)?,
            sealed: bounded(cursor.long()?, LIST_BYTES_MAX + TAG_BYTES)?,
        };
        cursor.end()?;
        grant.request().map_err(|error| Malformed(error.to_string()))?;
        grant.envelope()?;
        Ok(grant)
    }

    /// The grant's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.index.to_be_bytes());
        out.extend_from_slice(&self.received_ms.to_be_bytes());
        for part in [self.note.as_bytes(), &self.proof, &self.envelope] {
            put_long(&mut out, part);
        }
        out.extend_from_slice(&self.enc);
        put_long(&mut out, &self.sealed);
        out
    }

    /// The request.
    pub fn request(&self) -> Result<Request, RequestError> {
        Ok(Request::parse(self.note.as_bytes())?.0)
    }

    /// The envelope; `None` if the secrets come from the server's key.
    pub fn envelope(&self) -> Result<Option<Envelope<'_>>, Malformed> {
        match &self.envelope[..] {
            [] => Ok(None),
            bytes => Envelope::decode(bytes).map(Some),
        }
    }

    /// Leaf of entry 2: what the proof proves.
    pub fn leaf(&self) -> Hash {
        Entry::Event(self.received_ms, Event::DisclosureRequest(self.note.clone())).leaf()
    }

    /// What the recipient's context authenticates.
    pub fn aad(&self) -> Vec<u8> {
        aad(&self.leaf(), self.index)
    }
}

/// What a recipient's context authenticates: the leaf of the request and its place in the log.
pub fn aad(leaf: &Hash, index: u64) -> Vec<u8> {
    [&leaf[..], &index.to_be_bytes()].concat()
}

fn bounded(bytes: &[u8], len_max: usize) -> Result<Vec<u8>, Malformed> {
    match bytes.len() <= len_max {
        true => Ok(bytes.to_vec()),
        false => Err(Malformed(format!("vector of {} bytes, at most {len_max}", bytes.len()))),
    }
}

const _: () = assert!(
    REQUEST_BYTES_MAX + PROOF_BYTES_MAX + ENVELOPE_BYTES_MAX + LIST_BYTES_MAX < GRANT_BYTES_MAX - 200
);
