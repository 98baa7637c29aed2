//! The messages of the cluster, and their wire form.
//!
//! A datagram is a header, a body (both postcard: varints, no field names) and a tag over everything before it. The
//! first two bytes are version and key id, so that a later version and an unknown key can be told apart from garbage; the
//! third says whether it may wait ([`CALM_AT`]), so that a socket can tell before anybody is woken.
//! [`Message::decode`] reads without looking at the tag; the node checks the tag before anything else.
//!
//! Invariants: a decoded message has only node ids, sets and counts within the limits; `encode` then `decode` is the
//! identity; a whole map of 1024 buckets stays below [`DATAGRAM_BYTES_MAX`].

use serde::{Deserialize, Serialize};

use crate::config::ClusterId;
use crate::key::{KeyId, Keyring, TAG_BYTES};
use crate::{
    BUCKETS, Bucket, CONFIGURATIONS, DataEpoch, Incarnation, Member, MemberSet, Members, NODES_MAX, NodeId,
    Reach, ViewId,
};

/// Version of the wire form.
pub const VERSION: u8 = 7;

/// Where in a datagram the byte is that is not zero when it may wait until its receiver's next turn: see [`Header::calm`].
pub const CALM_AT: u32 = 2;

/// The largest datagram that is sent or read, in bytes.
pub const DATAGRAM_BYTES_MAX: usize = 60_000;
/// Room for what is sent most.
const HEARTBEAT_BYTES: usize = 256;

/// How many bucket operations share a datagram.
pub const OPS_MAX: usize = 512;

/// How many generations a map can name; a cluster with more distinct ones has lived through as many total losses.
const GENERATIONS_MAX: usize = BUCKETS as usize;

/// Who says something to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub version: u8,
    /// Key of the tag.
    pub key: KeyId,
    /// A heartbeat that says what the one before said: it proves that the sender lives, and nobody need act on it at once.
    pub calm: bool,
    /// Cluster of the sender.
    pub cluster: ClusterId,
    /// The sender.
    pub from: Member,
    /// The receiver; its incarnation is unknown in a first heartbeat.
    pub to: Member,
    /// The view that the sender has installed.
    pub view: ViewId,
    /// Rises with every message of the sender to this receiver.
    pub sequence: u64,
}

/// One datagram.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Who says it to whom.
    pub header: Header,
    /// What is said.
    pub body: Body,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// I live; and perhaps a grant.
    Heartbeat(Heartbeat),
    /// Who shall be in the next view.
    Prepare(Prepare),
    /// I am in, and this is what I hold.
    Promise(Promise),
    /// The next view and its map.
    Commit(Commit),
    /// Changes of buckets inside a view.
    Ops(Vec<Op>),
    /// Your claims are older than this view: drop them.
    Yield(ViewId),
}

/// What a node says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AnnouncedPhase {
    /// No state. Ready to join unless held down.
    #[default]
    Listen,
    /// No state, and shall not be asked to join yet.
    HeldDown,
    /// In its view, and its gate may be open.
    Active,
    /// In its view, but its gate is closed; it may open again in this view.
    Fenced,
    /// Gone for good; no state.
    Left,
}

/// Sent every few milliseconds, and at once to a node that does not know us yet: on every path, but on one path after the
/// other while it says nothing new and both work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The sender's clock, in microseconds.
    pub clock_us: u64,
    /// The newest clock of the receiver that the sender has heard; 0 for none. Only its owner compares it.
    pub echo_us: u64,
    /// The sender will not help to replace the receiver before [`crate::Timing::take`] has passed.
    pub grants: bool,
    /// The receiver, in this life, is a member of the sender's installed view.
    pub includes_you: bool,
    /// The sender has promised a view without the receiver.
    pub excludes_you: bool,
    /// Who the sender is at the moment.
    pub state: AnnouncedPhase,
    /// A witness has vouched for the sender for as long as a lease lasts: it can promise views that are not of all nodes.
    pub witnessed: bool,
    /// The gate of the sender's view is closed until all configured nodes, or in majority mode more than half, agree again, and
    /// no other view that it has accepted could open it.
    pub lapsed: bool,
    /// The highest view that the sender promised.
    pub promised: ViewId,
    /// Nodes from which the sender got heartbeats lately, inside and outside.
    pub peer_input: [MemberSet; 2],
    /// What the sender can tell of its networks, inside and outside.
    pub reach: [Reach; 2],
    /// The gates of the sender's lives from this one..
    pub closed_from: Incarnation,
    /// ..to this one are closed for good; zero for none.
    pub closed_to: Incarnation,
    /// How many buckets the sender owns.
    pub owned: u16,
    /// The work that they make, in microseconds a second.
    pub work: u64,
    /// The sender's share of the load relative to others.
    pub weight: u16,
    /// The sender gives its buckets away and takes none.
    pub draining: bool,
    /// For how long the sender's grants are good, in microseconds: it waits longer than that before it helps to replace somebody.
    pub lease_us: u64,
    /// Names of the configurations that the sender can go on with requests under, newest first; 0 for none.
    pub configurations: [u64; CONFIGURATIONS],
}

impl Heartbeat {
    /// What it says apart from clocks and loads: while this stays the same, nobody need act on it at once.
    pub(crate) fn substance(self) -> Heartbeat {
        Heartbeat { clock_us: 0, echo_us: 0, owned: 0, work: 0, ..self }
    }

    /// Whether the sender has neither state nor a witness, so that it cannot act by itself.
    pub(crate) fn is_empty_handed(&self) -> bool {
        matches!(self.state, AnnouncedPhase::Listen | AnnouncedPhase::HeldDown) && !self.witnessed
    }

    /// Whether the sender's gate stays closed until another node or a witness vouches for it.
    pub(crate) fn is_powerless(&self) -> bool {
        self.is_empty_handed() || (self.state == AnnouncedPhase::Fenced && self.lapsed && !self.witnessed)
    }

    /// Whether the sender got a heartbeat of this node lately, on either network.
    pub fn reports_reachable(&self, id: NodeId) -> bool {
        self.peer_input.iter().any(|peer_input| peer_input.contains(id))
    }
}

/// Proposes a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Prepare {
    /// Its name.
    pub view: ViewId,
    /// Its members.
    pub members: Members,
}

/// Answers a [`Prepare`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The proposed view.
    pub view: ViewId,
    /// What the promising node holds; `None` for one without state.
    pub held: Option<ClaimedState>,
}

/// The state of a node that is in a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimedState {
    /// The installed view.
    pub view: ViewId,
    /// Its members.
    pub members: Members,
    /// Claims, one for each bucket.
    pub claims: Vec<Claim>,
}

/// What a node holds of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Holds {
    /// Nothing that could be resumed.
    #[default]
    Nothing,
    /// Everything that was committed.
    InSync,
    /// It is the owner.
    Owner,
}

/// One bucket in a promise: the claim, and the map of the installed view for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Claim {
    /// What is held.
    pub holds: Holds,
    /// Moves in the installed view.
    pub moves: u32,
    /// Last entry of the log that is held.
    pub index: u64,
    /// Which state it is.
    pub generation: DataEpoch,
    /// Who the installed map lists in sync, its owner included.
    pub base_in_sync: MemberSet,
}

/// Installs a view. The map is data and never recomputed, so nodes of different versions agree on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Commit {
    /// The view.
    pub view: ViewId,
    /// Its members.
    pub members: Members,
    /// One for each bucket.
    pub map: Vec<Assignment>,
}

/// Who serves a bucket in a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// The owner.
    pub owner: NodeId,
    /// Backups that can resume.
    pub in_sync: MemberSet,
    /// All backups; those not in sync are to be mirrored to.
    pub listed: MemberSet,
    /// Which state; one that carries the view's own name begins empty.
    pub generation: DataEpoch,
}

/// One change of a bucket, between its owner and another member. The header's view applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Op {
    /// Which bucket.
    pub bucket: Bucket,
    /// Moves of it in this view, as the sender knows.
    pub moves: u32,
    /// What.
    pub change: Change,
}

/// See [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Change {
    /// Owner to backup: if you hold everything up to `index`, you are in sync from now on.
    Add {
        /// Which state.
        generation: DataEpoch,
        /// Last entry that the backup acknowledged before commits began to wait for it.
        index: u64,
    },
    /// Backup to owner: I am in sync.
    Added,
    /// Old owner to new owner: it is yours, I am a backup and will not act on it again in this view.
    Move {
        /// Which state.
        generation: DataEpoch,
        /// Last entry of the log.
        index: u64,
        /// Backups in sync, the receiver included.
        in_sync: MemberSet,
        /// All backups, the receiver included.
        listed: MemberSet,
        /// The work that it makes, in microseconds a second, as far as that is known.
        work: Option<u64>,
    },
    /// New owner to everyone: it is mine.
    Own,
    /// Everyone to the new owner: noted.
    Owned,
    /// Owner to backup: drop your mirror.
    Drop,
    /// Backup to owner: dropped.
    Dropped,
}

/// A datagram that is not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than a tag or longer than [`DATAGRAM_BYTES_MAX`].
    #[error("cluster datagram of {0} bytes: too short or too long")]
    Length(usize),
    /// Another version of the wire form.
    #[error("cluster message of version {0}: this node speaks {VERSION}")]
    Version(u8),
    /// Not a well-formed encoding.
    #[error("malformed cluster message: {0}")]
    Malformed(#[from] postcard::Error),
    /// Bytes after the end.
    #[error("cluster message with {0} bytes after its end")]
    Trailing(usize),
    /// A value out of range.
    #[error("cluster message with {0} out of range")]
    Range(&'static str),
}

/// Whether a datagram may wait until its receiver's next turn, as its sender says. What is not a message may not.
pub fn is_calm(datagram: &[u8]) -> bool {
    datagram.get(CALM_AT as usize).is_some_and(|calm| *calm != 0)
}

impl Message {
    /// Reads a datagram without checking its tag.
    pub fn decode(datagram: &[u8]) -> Result<Message, DecodeError> {
        let length = datagram.len();
        let signed_bytes = length.checked_sub(TAG_BYTES).ok_or(DecodeError::Length(length))?;
        let signed = datagram.get(..signed_bytes).ok_or(DecodeError::Length(length))?;
        if length > DATAGRAM_BYTES_MAX {
            return Err(DecodeError::Length(length));
        }
        match signed.first() {
            None => return Err(DecodeError::Length(length)),
            Some(&version) if version != VERSION => return Err(DecodeError::Version(version)),
            Some(_) => {}
        }
        let (header, rest): (Header, &[u8]) = postcard::take_from_bytes(signed)?;
        let (body, rest): (WireBody, &[u8]) = postcard::take_from_bytes(rest)?;
        if !rest.is_empty() {
            return Err(DecodeError::Trailing(rest.len()));
        }
        let message = Message { header, body: body.open()? };
        message.check()?;
        Ok(message)
    }

    /// The datagram, signed with the key that sends.
    pub fn encode(&self, keys: &Keyring) -> Result<Vec<u8>, DecodeError> {
        let bytes = postcard::to_extend(&self.header, Vec::with_capacity(HEARTBEAT_BYTES))?;
        let mut bytes = postcard::to_extend(&WireBody::close(&self.body)?, bytes)?;
        keys.seal(&mut bytes);
        if bytes.len() > DATAGRAM_BYTES_MAX {
            return Err(DecodeError::Length(bytes.len()));
        }
        Ok(bytes)
    }

    fn check(&self) -> Result<(), DecodeError> {
        let id = |id: NodeId, what| {
            if usize::from(id.0) < NODES_MAX { Ok(()) } else { Err(DecodeError::Range(what)) }
        };
        id(self.header.from.id, "sender")?;
        id(self.header.to.id, "receiver")?;
        let members = |members: &Members| members.0.keys().try_for_each(|m| id(*m, "member"));
        match &self.body {
            Body::Prepare(prepare) => members(&prepare.members),
            Body::Promise(promise) => promise.held.as_ref().map_or(Ok(()), |held| members(&held.members)),
            Body::Commit(commit) => {
                members(&commit.members)?;
                commit.map.iter().try_for_each(|a| id(a.owner, "owner"))
            }
            Body::Ops(ops) if ops.len() > OPS_MAX => Err(DecodeError::Range("number of operations")),
            Body::Ops(ops) if ops.iter().any(|op| op.bucket.0 >= BUCKETS) => {
                Err(DecodeError::Range("bucket"))
            }
            Body::Heartbeat(_) | Body::Ops(_) | Body::Yield(_) => Ok(()),
        }
    }
}

/// The body as it travels: generations are named once and then by number.
#[derive(Serialize, Deserialize)]
enum WireBody {
    Heartbeat(Heartbeat),
    Prepare(Prepare),
    Promise { view: ViewId, held: Option<WireClaimedState> },
    Commit { view: ViewId, members: Members, generations: Vec<DataEpoch>, map: Vec<WireAssignment> },
    Ops(Vec<Op>),
    Yield(ViewId),
}

#[derive(Serialize, Deserialize)]
struct WireClaimedState {
    view: ViewId,
    members: Members,
    generations: Vec<DataEpoch>,
    claims: Vec<WireClaim>,
}

#[derive(Serialize, Deserialize)]
struct WireClaim {
    holds: Holds,
    moves: u32,
    index: u64,
    generation: u16,
    base_in_sync: MemberSet,
}

#[derive(Serialize, Deserialize)]
struct WireAssignment {
    owner: NodeId,
    in_sync: MemberSet,
    syncing: MemberSet,
    generation: u16,
}

/// Numbers for generations, in order of first use.
#[derive(Default)]
struct Names(Vec<DataEpoch>);

impl Names {
    fn number(&mut self, generation: DataEpoch) -> Result<u16, DecodeError> {
        let at = self.0.iter().position(|known| *known == generation).unwrap_or_else(|| {
            self.0.push(generation);
            self.0.len() - 1
        });
        u16::try_from(at).map_err(|_| DecodeError::Range("number of generations"))
    }
}

impl WireBody {
    fn close(body: &Body) -> Result<WireBody, DecodeError> {
        Ok(match body {
            Body::Heartbeat(heartbeat) => WireBody::Heartbeat(*heartbeat),
            Body::Prepare(prepare) => WireBody::Prepare(prepare.clone()),
            Body::Promise(promise) => {
                let held = promise.held.as_ref().map(WireClaimedState::close).transpose()?;
                WireBody::Promise { view: promise.view, held }
            }
            Body::Commit(commit) => {
                let mut names = Names::default();
                let close = |a: &Assignment| -> Result<WireAssignment, DecodeError> {
                    let (owner, in_sync, syncing) = (a.owner, a.in_sync, a.listed.minus(a.in_sync));
                    Ok(WireAssignment { owner, in_sync, syncing, generation: names.number(a.generation)? })
                };
                let map = commit.map.iter().map(close).collect::<Result<_, _>>()?;
                let members = commit.members.clone();
                WireBody::Commit { view: commit.view, members, generations: names.0, map }
            }
            Body::Ops(ops) => WireBody::Ops(ops.clone()),
            Body::Yield(view) => WireBody::Yield(*view),
        })
    }

    fn open(self) -> Result<Body, DecodeError> {
        Ok(match self {
            WireBody::Heartbeat(heartbeat) => Body::Heartbeat(heartbeat),
            WireBody::Prepare(prepare) => Body::Prepare(prepare),
            WireBody::Promise { view, held } => {
                Body::Promise(Promise { view, held: held.map(WireClaimedState::open).transpose()? })
            }
            WireBody::Commit { view, members, generations, map } => {
                check_counts(&generations, map.len())?;
                let open = |a: WireAssignment| -> Result<Assignment, DecodeError> {
                    let listed = a.in_sync.union(a.syncing);
                    let generation = generation_at(&generations, a.generation)?;
                    Ok(Assignment { owner: a.owner, in_sync: a.in_sync, listed, generation })
                };
                let map = map.into_iter().map(open).collect::<Result<_, _>>()?;
                Body::Commit(Commit { view, members, map })
            }
            WireBody::Ops(ops) => Body::Ops(ops),
            WireBody::Yield(view) => Body::Yield(view),
        })
    }
}

impl WireClaimedState {
    fn close(held: &ClaimedState) -> Result<WireClaimedState, DecodeError> {
        let mut names = Names::default();
        let close = |c: &Claim| -> Result<WireClaim, DecodeError> {
            let generation = names.number(c.generation)?;
            let Claim { holds, moves, index, base_in_sync, .. } = *c;
            Ok(WireClaim { holds, moves, index, generation, base_in_sync })
        };
        let claims = held.claims.iter().map(close).collect::<Result<_, _>>()?;
        Ok(WireClaimedState { view: held.view, members: held.members.clone(), generations: names.0, claims })
    }

    fn open(self) -> Result<ClaimedState, DecodeError> {
        check_counts(&self.generations, self.claims.len())?;
        let open = |c: WireClaim| -> Result<Claim, DecodeError> {
            let generation = generation_at(&self.generations, c.generation)?;
            let WireClaim { holds, moves, index, base_in_sync, .. } = c;
            Ok(Claim { holds, moves, index, generation, base_in_sync })
        };
        let claims = self.claims.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(ClaimedState { view: self.view, members: self.members, claims })
    }
}

fn check_counts(generations: &[DataEpoch], buckets: usize) -> Result<(), DecodeError> {
    if generations.len() > GENERATIONS_MAX || buckets > usize::from(BUCKETS) {
        return Err(DecodeError::Range("size of the map"));
    }
    Ok(())
}

fn generation_at(generations: &[DataEpoch], number: u16) -> Result<DataEpoch, DecodeError> {
    generations.get(usize::from(number)).copied().ok_or(DecodeError::Range("generation"))
}
