//! The messages of the cluster, and their wire format.
//!
//! A datagram is a header, a body (both postcard: varints, no field names) and a tag over everything before it. The
//! first two bytes are version and key id, so that another version and an unknown key are distinguished from garbage.
//! The third marks a calm datagram ([`CALM_AT`]), so that a socket filter can read it before any thread wakes up.
//! [`Message::decode`] ignores the tag; the node checks the tag before anything else.
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

/// Version of the wire format.
pub const VERSION: u8 = 7;

/// Offset of the byte that is not zero in a datagram that may wait until its receiver's next turn: see
/// [`Header::calm`].
pub const CALM_AT: u32 = 2;

/// Size of the largest datagram that is sent or read, in bytes.
pub const DATAGRAM_BYTES_MAX: usize = 60_000;
/// Capacity for a heartbeat, the most frequent message, in bytes.
const HEARTBEAT_BYTES: usize = 256;

/// Most bucket operations in one datagram.
pub const OPS_MAX: usize = 512;

/// Most data epochs in one map: a cluster with more of them had as many total losses.
const DATA_EPOCHS_MAX: usize = BUCKETS as usize;

/// Sender, receiver and context of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Header {
    /// [`VERSION`].
    pub version: u8,
    /// Key of the tag.
    pub key: KeyId,
    /// A heartbeat without news: it proves that the sender lives, and needs no action at once.
    pub calm: bool,
    /// Cluster of the sender.
    pub cluster: ClusterId,
    /// The sender.
    pub from: Member,
    /// The receiver; its incarnation is unknown in a first heartbeat.
    pub to: Member,
    /// The sender's installed view.
    pub view: ViewId,
    /// Number that rises with every message of the sender to this receiver.
    pub sequence: u64,
}

/// One datagram.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Message {
    /// Sender and receiver.
    pub header: Header,
    /// Contents.
    pub body: Body,
}

/// Contents of a message.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// Liveness, the state of the sender, and perhaps a grant.
    Heartbeat(Heartbeat),
    /// Proposal of the next view.
    Prepare(Prepare),
    /// Acceptance of a view, with the claims of the sender.
    Promise(Promise),
    /// The next view and its map.
    Commit(Commit),
    /// Changes of buckets inside a view.
    Ops(Vec<Op>),
    /// The receiver's claims are older than this view: it must drop them.
    Yield(ViewId),
}

/// Phase that a node announces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AnnouncedPhase {
    /// Without state. Joins unless it is held down.
    #[default]
    Listen,
    /// Without state, and not to be asked to join yet.
    HeldDown,
    /// Member of its view; its gate may be open.
    Active,
    /// Member of its view; its gate is closed and may open again in this view.
    Fenced,
    /// Left the cluster; final, without state.
    Left,
}

/// Sent every few milliseconds, and at once to a node that does not know the sender yet. It uses every path; while
/// it has no news and both networks work, it alternates between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The sender's clock, in microseconds.
    pub clock_us: u64,
    /// The receiver's newest clock that the sender received; 0 for none. Only its owner compares it.
    pub echo_us: u64,
    /// A grant: the sender does not help to replace the receiver before [`crate::Timing::take`] has passed.
    pub grants: bool,
    /// The receiver, in this incarnation, is a member of the sender's installed view.
    pub includes_you: bool,
    /// The sender promised a view without the receiver.
    pub excludes_you: bool,
    /// The sender's phase.
    pub state: AnnouncedPhase,
    /// A witness has vouched for the sender as long as a lease lasts: it can promise a view without some of the nodes.
    pub witnessed: bool,
    /// The sender's view has lapsed: its gate is closed until all configured nodes agree again, in majority mode more
    /// than half. No other view that the sender accepted could open it.
    pub lapsed: bool,
    /// The highest view that the sender promised.
    pub promised: ViewId,
    /// Nodes from which the sender received heartbeats lately, inside and outside.
    pub receives_from: [MemberSet; 2],
    /// The sender's state of its networks, inside and outside.
    pub reach: [Reach; 2],
    /// First of the sender's incarnations whose gates are permanently closed; zero for none.
    pub closed_from: Incarnation,
    /// Last of the sender's incarnations whose gates are permanently closed; zero for none.
    pub closed_to: Incarnation,
    /// Number of buckets that the sender owns.
    pub owned: u16,
    /// The work of these buckets, in microseconds per second.
    pub work: u64,
    /// The sender's share of the load relative to other nodes.
    pub weight: u16,
    /// The sender moves its buckets away and receives none.
    pub draining: bool,
    /// Length of the leases that the sender grants, in microseconds. The sender waits longer before it helps to replace
    /// a node.
    pub lease_us: u64,
    /// Names of the configurations under which the sender can continue requests, newest first; 0 for none.
    pub configurations: [u64; CONFIGURATIONS],
}

impl Heartbeat {
    /// The heartbeat without clocks and loads: while this part is unchanged, no receiver has to act at once.
    pub(crate) fn substance(self) -> Heartbeat {
        Heartbeat { clock_us: 0, echo_us: 0, owned: 0, work: 0, ..self }
    }

    /// Whether the sender has neither state nor a witness, so that it cannot act by itself.
    pub(crate) fn lacks_state_and_witness(&self) -> bool {
        matches!(self.state, AnnouncedPhase::Listen | AnnouncedPhase::HeldDown) && !self.witnessed
    }

    /// Whether the sender's gate stays closed until another node or a witness vouches for it.
    pub(crate) fn cannot_act_alone(&self) -> bool {
        self.lacks_state_and_witness()
            || (self.state == AnnouncedPhase::Fenced && self.lapsed && !self.witnessed)
    }

    /// Whether the sender received a heartbeat of this node lately, on either network.
    pub fn reports_reachable(&self, id: NodeId) -> bool {
        self.receives_from.iter().any(|nodes| nodes.contains(id))
    }
}

/// Proposal of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Prepare {
    /// The view's number.
    pub view: ViewId,
    /// Its members.
    pub members: Members,
}

/// Answer to a [`Prepare`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The proposed view.
    pub view: ViewId,
    /// The state that the promising node holds; `None` for a node without state.
    pub claimed: Option<ClaimedState>,
}

/// The state of a node that is in a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimedState {
    /// The installed view.
    pub view: ViewId,
    /// Its members.
    pub members: Members,
    /// One claim for each bucket.
    pub claims: Vec<Claim>,
}

/// A node's hold on a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Holds {
    /// Nothing that could be resumed.
    #[default]
    Nothing,
    /// Every committed entry.
    InSync,
    /// Every entry, as the owner.
    Owner,
}

/// One bucket in a promise: the claim, and the installed view's map for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The node's hold on the bucket.
    pub holds: Holds,
    /// Moves in the installed view.
    pub moves: u32,
    /// Last entry of the log that the node holds.
    pub index: u64,
    /// The data epoch of the state.
    pub data_epoch: DataEpoch,
    /// The nodes that the installed map lists in sync, the owner included.
    pub base_in_sync: MemberSet,
}

/// Installs a view. The map is data and never recomputed, so that nodes of different versions agree on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Commit {
    /// The view.
    pub view: ViewId,
    /// Its members.
    pub members: Members,
    /// The map: one assignment for each bucket.
    pub map: Vec<Assignment>,
}

/// Owner and backups of a bucket in a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// The owner.
    pub owner: NodeId,
    /// Backups that can resume.
    pub in_sync: MemberSet,
    /// All backups. Those not in sync have to be filled.
    pub listed: MemberSet,
    /// The data epoch. The view's own number means that the bucket begins empty.
    pub data_epoch: DataEpoch,
}

/// One change of a bucket, between its owner and another member. It belongs to the header's view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Op {
    /// The bucket.
    pub bucket: Bucket,
    /// Number of the bucket's moves in this view, as the sender knows it.
    pub moves: u32,
    /// The change.
    pub change: Change,
}

/// Kind of an [`Op`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Change {
    /// Owner to backup: a backup that holds everything up to `index` is in sync from now on.
    Add {
        /// The data epoch.
        data_epoch: DataEpoch,
        /// Last entry that the backup acknowledged before commits began to wait for it.
        index: u64,
    },
    /// Backup to owner: the backup is in sync.
    Added,
    /// Old owner to new owner: the bucket is the receiver's. The sender is a backup and does not act on it again in
    /// this view.
    Move {
        /// The data epoch.
        data_epoch: DataEpoch,
        /// Last entry of the log.
        index: u64,
        /// Backups in sync, the receiver included.
        in_sync: MemberSet,
        /// All backups, the receiver included.
        listed: MemberSet,
        /// The bucket's work in microseconds per second, as far as it is known.
        work: Option<u64>,
    },
    /// New owner to all members: the sender owns the bucket.
    Own,
    /// Member to the new owner: acknowledges `Own`.
    Owned,
    /// Owner to backup: drop the replica.
    Drop,
    /// Backup to owner: the replica is dropped.
    Dropped,
}

/// A datagram that is not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than a tag or longer than [`DATAGRAM_BYTES_MAX`].
    #[error("cluster datagram of {0} bytes: too short or too long")]
    Length(usize),
    /// Another version of the wire format.
    #[error("cluster message of version {0}: this node uses {VERSION}")]
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

/// Whether its sender marked a datagram as calm: it may wait until its receiver's next turn. Any other datagram may
/// not.
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

    /// The datagram, signed with the sending key.
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
            Body::Promise(promise) => {
                promise.claimed.as_ref().map_or(Ok(()), |claimed| members(&claimed.members))
            }
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

/// The body on the wire: data epochs are listed once and then referred to by number.
#[derive(Serialize, Deserialize)]
enum WireBody {
    Heartbeat(Heartbeat),
    Prepare(Prepare),
    Promise { view: ViewId, claimed: Option<WireClaimedState> },
    Commit { view: ViewId, members: Members, data_epochs: Vec<DataEpoch>, map: Vec<WireAssignment> },
    Ops(Vec<Op>),
    Yield(ViewId),
}

#[derive(Serialize, Deserialize)]
struct WireClaimedState {
    view: ViewId,
    members: Members,
    data_epochs: Vec<DataEpoch>,
    claims: Vec<WireClaim>,
}

#[derive(Serialize, Deserialize)]
struct WireClaim {
    holds: Holds,
    moves: u32,
    index: u64,
    data_epoch: u16,
    base_in_sync: MemberSet,
}

#[derive(Serialize, Deserialize)]
struct WireAssignment {
    owner: NodeId,
    in_sync: MemberSet,
    syncing: MemberSet,
    data_epoch: u16,
}

/// Numbers of data epochs, in order of first use.
#[derive(Default)]
struct Names(Vec<DataEpoch>);

impl Names {
    fn number(&mut self, data_epoch: DataEpoch) -> Result<u16, DecodeError> {
        let at = self.0.iter().position(|known| *known == data_epoch).unwrap_or_else(|| {
            self.0.push(data_epoch);
            self.0.len() - 1
        });
        u16::try_from(at).map_err(|_| DecodeError::Range("number of data epochs"))
    }
}

impl WireBody {
    fn close(body: &Body) -> Result<WireBody, DecodeError> {
        Ok(match body {
            Body::Heartbeat(heartbeat) => WireBody::Heartbeat(*heartbeat),
            Body::Prepare(prepare) => WireBody::Prepare(prepare.clone()),
            Body::Promise(promise) => {
                let claimed = promise.claimed.as_ref().map(WireClaimedState::close).transpose()?;
                WireBody::Promise { view: promise.view, claimed }
            }
            Body::Commit(commit) => {
                let mut names = Names::default();
                let close = |a: &Assignment| -> Result<WireAssignment, DecodeError> {
                    let (owner, in_sync, syncing) = (a.owner, a.in_sync, a.listed.minus(a.in_sync));
                    Ok(WireAssignment { owner, in_sync, syncing, data_epoch: names.number(a.data_epoch)? })
                };
                let map = commit.map.iter().map(close).collect::<Result<_, _>>()?;
                let members = commit.members.clone();
                WireBody::Commit { view: commit.view, members, data_epochs: names.0, map }
            }
            Body::Ops(ops) => WireBody::Ops(ops.clone()),
            Body::Yield(view) => WireBody::Yield(*view),
        })
    }

    fn open(self) -> Result<Body, DecodeError> {
        Ok(match self {
            WireBody::Heartbeat(heartbeat) => Body::Heartbeat(heartbeat),
            WireBody::Prepare(prepare) => Body::Prepare(prepare),
            WireBody::Promise { view, claimed } => {
                Body::Promise(Promise { view, claimed: claimed.map(WireClaimedState::open).transpose()? })
            }
            WireBody::Commit { view, members, data_epochs, map } => {
                check_counts(&data_epochs, map.len())?;
                let open = |a: WireAssignment| -> Result<Assignment, DecodeError> {
                    let listed = a.in_sync.union(a.syncing);
                    let data_epoch = data_epoch_at(&data_epochs, a.data_epoch)?;
                    Ok(Assignment { owner: a.owner, in_sync: a.in_sync, listed, data_epoch })
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
    fn close(claimed: &ClaimedState) -> Result<WireClaimedState, DecodeError> {
        let mut names = Names::default();
        let close = |c: &Claim| -> Result<WireClaim, DecodeError> {
            let data_epoch = names.number(c.data_epoch)?;
            let Claim { holds, moves, index, base_in_sync, .. } = *c;
            Ok(WireClaim { holds, moves, index, data_epoch, base_in_sync })
        };
        let claims = claimed.claims.iter().map(close).collect::<Result<_, _>>()?;
        Ok(WireClaimedState {
            view: claimed.view,
            members: claimed.members.clone(),
            data_epochs: names.0,
            claims,
        })
    }

    fn open(self) -> Result<ClaimedState, DecodeError> {
        check_counts(&self.data_epochs, self.claims.len())?;
        let open = |c: WireClaim| -> Result<Claim, DecodeError> {
            let data_epoch = data_epoch_at(&self.data_epochs, c.data_epoch)?;
            let WireClaim { holds, moves, index, base_in_sync, .. } = c;
            Ok(Claim { holds, moves, index, data_epoch, base_in_sync })
        };
        let claims = self.claims.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(ClaimedState { view: self.view, members: self.members, claims })
    }
}

fn check_counts(data_epochs: &[DataEpoch], buckets: usize) -> Result<(), DecodeError> {
    if data_epochs.len() > DATA_EPOCHS_MAX || buckets > usize::from(BUCKETS) {
        return Err(DecodeError::Range("size of the map"));
    }
    Ok(())
}

fn data_epoch_at(data_epochs: &[DataEpoch], number: u16) -> Result<DataEpoch, DecodeError> {
    data_epochs.get(usize::from(number)).copied().ok_or(DecodeError::Range("data epoch"))
}
