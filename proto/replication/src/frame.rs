//! Frames between the owner of a bucket and one of its backups.
//!
//! The channel below is reliable, ordered and authenticated, and belongs to one incarnation of each node; frames are
//! numbered by counting. The owner sends [`Frame`]s, and the backup answers with the number of processed frames
//! ([`Answer`]). A frame is length-prefixed (4 bytes, little endian) postcard.
//!
//! Invariants: a frame is at most [`FRAME_BYTES_MAX`] long; a frame that does not parse ends the channel.

use crate::codec::decode;
use crate::validate::check_settings;
use crate::{ConnectionId, ConnectionState, Entry, Urgency, WireError};
use evergate_base::session::{KeptSession, LearnedSession, SessionHash, SessionId};
use evergate_base::{Bucket, Incarnation, NodeId, Term};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The longest frame, in bytes, without its length.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// Length prefix.
const PREFIX: usize = 4;
const FRAME: &str = "replication frame";

/// Constant parameters of a TCP connection, with which another node can continue it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LegFacts {
    /// Our end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// Sequence number of the byte that we send at position 0.
    #[serde(with = "postcard::fixint::le")]
    pub sent: u32,
    /// Sequence number of the byte that we receive at position 0.
    #[serde(with = "postcard::fixint::le")]
    pub received: u32,
    /// Sequence number up to which the peer's data has been acknowledged for certain. It is below `received` when input
    /// of an earlier leg of the same TCP connection is unacknowledged, because some backups do not know yet that it is
    /// not needed.
    #[serde(with = "postcard::fixint::le")]
    pub acknowledged: u32,
    /// Largest segment, in bytes without options.
    pub mss: u16,
    /// Scales of the windows that the peer and we announce, when agreed on.
    pub window_scales: Option<(u8, u8)>,
    /// Selective acknowledgements are in use.
    pub sack: bool,
    /// Our timestamp and when it was taken, if timestamps are in use: in milliseconds of the sender's clock, which the
    /// receiver converts into its own ([`LegFacts::shift`]).
    pub timestamp: Option<(u32, u64)>,
    /// The node's interface: 0 is the outside, 1 the inside.
    pub interface: u8,
    /// Ethernet address that its packets go to.
    pub next_hop: [u8; 6],
}

impl LegFacts {
    /// Converts the times into the clock of a node that is `ahead_ms` ahead of the sender's.
    pub fn shift(&mut self, ahead_ms: i64) {
        if let Some((_, at_ms)) = &mut self.timestamp {
            *at_ms = at_ms.saturating_add_signed(ahead_ms);
        }
    }
}

/// Message of the owner to a backup.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Frame {
    /// First frame of a channel: the sending node, and its worker.
    Hello {
        /// Version of the frames.
        version: u8,
        /// The node.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Its worker.
        worker: u16,
        /// Its number of workers.
        workers: u16,
        /// The sender's clock at that moment, in milliseconds: times in further frames are of that clock.
        clock_ms: u64,
    },
    /// The term of the frames of this bucket that follow.
    Term {
        /// The bucket.
        bucket: Bucket,
        /// The owner's term.
        term: Term,
    },
    /// A connection begins, or begins again with its full state.
    Begin {
        /// The connection.
        connection: ConnectionId,
        /// Its bucket.
        bucket: Bucket,
        /// Full state so far; nothing when it was just accepted.
        state: Option<Box<ConnectionState>>,
        /// Its legs, by number: 0 is the client's.
        legs: BTreeMap<u32, LegFacts>,
    },
    /// A further leg of the connection, or a leg with more parameters known.
    Leg {
        /// The connection.
        connection: ConnectionId,
        /// Number of the leg.
        leg: u32,
        /// Its TCP parameters.
        facts: LegFacts,
    },
    /// Entries, oldest first.
    Entries {
        /// The connection.
        connection: ConnectionId,
        /// New entries, oldest first.
        entries: Vec<Entry>,
    },
    /// The connection is over.
    End {
        /// The connection.
        connection: ConnectionId,
    },
    /// The full state of the bucket was sent: connections without a `Begin` in this term are over.
    Complete {
        /// The bucket.
        bucket: Bucket,
    },
    /// Changes of sessions that nodes share, oldest first. Belongs to no connection, and may be missing.
    Sessions(Vec<SessionNews>),
    /// Directly after `Hello`: settings of the node, by name. Settings that the receiver has too must have the same
    /// values.
    Settings(BTreeMap<String, String>),
    /// The node's clock, once a minute: clocks of two machines drift.
    Clock {
        /// The clock in milliseconds.
        clock_ms: u64,
    },
}

/// Change of a session, sent to all nodes: of the cluster's own, which clients resume by id, or of foreign servers.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SessionNews {
    /// A new session, which clients may resume.
    Kept(KeptSession),
    /// An aborted session, which must not be resumed.
    Withdrawn(SessionId),
    /// A foreign server has this session.
    Learned(LearnedSession<u64>),
    /// A foreign server has this session no more.
    Forgotten {
        /// The session's name.
        hash: SessionHash,
        /// The server's name, equal on all nodes.
        server: u64,
    },
}

/// Message of the backup to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Answer {
    /// Number of frames processed since the channel began.
    pub frames: u64,
}

/// Version of the frames.
pub const FRAME_VERSION: u8 = 19;

impl Frame {
    /// Urgency of the frame. That of entries is known where they are queued ([`crate::Log::urgency`]).
    pub fn urgency(&self) -> Urgency {
        match self {
            Frame::Entries { .. } | Frame::Begin { state: None, .. } | Frame::End { .. } => Urgency::None,
            _ => Urgency::Full,
        }
    }

    /// Appends the frame with its length.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        append(self, out)
    }

    /// Decodes the frame at the front of `bytes`, and returns its length, or nothing while it is incomplete. Entries
    /// are checked as by [`Entry::decode`].
    pub fn decode(bytes: &[u8]) -> Result<Option<(Frame, usize)>, WireError> {
        let Some(body) = body_of(bytes)? else { return Ok(None) };
        let frame: Frame = decode(FRAME, body, FRAME_BYTES_MAX)?;
        let checked = match &frame {
            Frame::Entries { entries, .. } => entries.iter().try_for_each(Entry::check),
            Frame::Begin { state: Some(state), .. } => state.check(),
            Frame::Sessions(news) => news.iter().try_for_each(SessionNews::check),
            Frame::Settings(all) => check_settings(all),
            _ => Ok(()),
        };
        checked.map_err(|source| WireError::Value { what: FRAME, source })?;
        Ok(Some((frame, PREFIX + body.len())))
    }

    /// Removes the complete frames at the front of `input`, and passes each on with its length. After an error `input`
    /// still has them all: its channel is over.
    pub fn drain<E: From<WireError>>(
        input: &mut Vec<u8>,
        mut take: impl FnMut(Frame, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = 0;
        while let Some((frame, length)) = Frame::decode(&input[at..])? {
            at += length;
            take(frame, length)?;
        }
        input.drain(..at);
        Ok(())
    }
}

impl Answer {
    /// Appends the answer with its length.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        append(self, out)
    }

    /// Reads the answer at the front of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Answer, usize)>, WireError> {
        let Some(body) = body_of(bytes)? else { return Ok(None) };
        Ok(Some((decode(FRAME, body, FRAME_BYTES_MAX)?, PREFIX + body.len())))
    }
}

fn too_long(length: usize) -> WireError {
    WireError::TooLong { what: FRAME, length, max: FRAME_BYTES_MAX }
}

fn append<T: serde::Serialize>(value: &T, out: &mut Vec<u8>) -> Result<(), WireError> {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    let taken = std::mem::take(out);
    *out =
        postcard::to_extend(value, taken).map_err(|source| WireError::Malformed { what: FRAME, source })?;
    let length = out.len() - start - PREFIX;
    if length > FRAME_BYTES_MAX {
        out.truncate(start);
        return Err(too_long(length));
    }
    out[start..start + PREFIX].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

fn body_of(bytes: &[u8]) -> Result<Option<&[u8]>, WireError> {
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let length = u32::from_le_bytes(*prefix) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(too_long(length));
    }
    Ok(rest.get(..length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_converted_into_the_receivers_clock() {
        let address = "192.0.2.1:1".parse().unwrap();
        let mut facts = LegFacts {
            local: address,
            remote: address,
            sent: 0,
            received: 0,
            acknowledged: 0,
            mss: 0,
            window_scales: None,
            sack: false,
            timestamp: Some((7, 1_000)),
            interface: 0,
            next_hop: [0; 6],
        };
        for (ahead_ms, at_ms) in [(500, 1_500), (-600, 900), (-2_000, 0)] {
            facts.shift(ahead_ms);
            assert_eq!(facts.timestamp, Some((7, at_ms)));
        }
    }

    /// The bytes of [`FRAME_VERSION`] 19.
    #[test]
    fn term_is_encoded_as_four_numbers() {
        let view = evergate_base::ViewId { epoch: 300, proposer: NodeId(1), incarnation: Incarnation(101) };
        let mut bytes = Vec::new();
        Frame::Term { bucket: Bucket(3), term: Term { view, moves: 4 } }.encode(&mut bytes).unwrap();
        assert_eq!(bytes, [7, 0, 0, 0, 1, 3, 0xac, 2, 1, 101, 4]);
    }

    /// The bytes of [`FRAME_VERSION`] 19.
    #[test]
    fn learned_sessions_have_a_fixed_length() {
        let (hash, server) = (SessionHash([0x0807_0605_0403_0201, u64::MAX]), 7);
        let entry = LearnedSession { hash, server, expires: evergate_base::Unix(300) };
        let news = vec![SessionNews::Learned(entry), SessionNews::Forgotten { hash, server }];
        let frame = Frame::Sessions(news);
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        let mut expected = vec![0, 0, 0, 0, 7, 2, 2];
        expected.extend(entry.to_bytes());
        expected.push(3);
        expected.extend(hash.to_bytes());
        expected.push(7);
        expected[0] = (expected.len() - PREFIX) as u8;
        assert_eq!(bytes, expected);
        assert_eq!(Frame::decode(&bytes).unwrap(), Some((frame, bytes.len())));
        for length in PREFIX..bytes.len() {
            let mut cut = bytes[..length].to_vec();
            cut[0] = (length - PREFIX) as u8;
            assert!(Frame::decode(&cut).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn urgency_is_none_for_frames_without_dependent_output() {
        let connection = ConnectionId(1);
        assert_eq!(Frame::Entries { connection, entries: Vec::new() }.urgency(), Urgency::None);
        assert_eq!(Frame::End { connection }.urgency(), Urgency::None);
        assert_eq!(Frame::Complete { bucket: Bucket(1) }.urgency(), Urgency::Full);
    }
}
