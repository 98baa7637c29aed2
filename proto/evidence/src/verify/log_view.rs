//! View of the Master's log that checkpoints and inclusion proofs give: signatures, and contradictions between them.
//!
//! A proof names hashes of subtrees at fixed places. Two proofs of one log that name the same place must agree: so a
//! forked log is found without the log. Memory: [`ROOTS_MAX`] roots and [`NODES_MAX`] hashes of each trusted log; of
//! more hashes the newest proof's stay.

use super::finding::{FindingKind, Findings};
use super::trust::Trust;
use crate::checkpoint::{Checkpoint, SignedCheckpoint};
use crate::merkle::{Hash, node_hash, sha256};
use crate::note::{NoteError, SignatureVerifier, VerifyingKey};
use crate::proof::Receipt;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

const ROOTS_MAX: usize = 1 << 16;
const NODES_MAX: usize = 1 << 12;
const UNCONFIRMED_MAX: usize = 32;
/// Most stamped roots that one receipt is compared with.
const STAMPED_STEP_MAX: usize = 64;

/// View of the trusted logs.
pub struct LogView<'a> {
    trust: &'a Trust,
    keys: Vec<VerifyingKey>,
    signatures: &'a dyn SignatureVerifier,
    logs: BTreeMap<String, Log>,
    /// Hash of the last checkpoint whose signatures are valid.
    valid: Option<Hash>,
}

/// Facts of one log.
#[derive(Debug, Default)]
struct Log {
    roots: BTreeMap<u64, (Hash, Rc<str>)>,
    nodes: BTreeMap<Place, (Hash, Rc<str>)>,
    /// Hashes that the newest proof names.
    newest: Vec<(Place, Hash, Rc<str>)>,
    /// Sizes of checkpoints whose roots no proof has confirmed yet; the newest of them.
    unconfirmed: VecDeque<u64>,
    /// Roots of stamped checkpoints by size.
    stamped: BTreeMap<u64, Stamped>,
    /// Index behind the last receipt: smaller stamped roots were compared with it.
    next_index: u64,
}

/// Root of a stamped checkpoint.
#[derive(Debug)]
struct Stamped {
    root: Hash,
    path: Rc<str>,
    /// Whether receipts lead to it.
    is_confirmed: bool,
}

/// Level and index of a perfect subtree.
type Place = (u8, u64);

/// Answer to the question whether the log extends a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extension {
    /// The hashes lead to its root.
    Proved,
    /// They lead to another root.
    Forked,
    /// They do not lead to a root of its size.
    Unknown,
}

impl<'a> LogView<'a> {
    /// View without facts.
    pub fn new(trust: &'a Trust, signatures: &'a dyn SignatureVerifier) -> LogView<'a> {
        let keys = trust.logs.iter().chain(&trust.witnesses).cloned().collect();
        LogView { trust, keys, signatures, logs: BTreeMap::new(), valid: None }
    }

    /// Size of the largest tree of a log, if one of its checkpoints was accepted.
    pub fn size(&self, origin: &str) -> Option<u64> {
        self.logs.get(origin)?.roots.last_key_value().map(|(size, _)| *size)
    }

    /// Size of the largest tree of all logs.
    pub fn size_max(&self) -> u64 {
        self.logs.keys().filter_map(|origin| self.size(origin)).max().unwrap_or(0)
    }

    /// Accepts a receipt of this leaf, or adds findings.
    pub fn accept_receipt(
        &mut self,
        receipt: &Receipt,
        leaf: Hash,
        place: (&Rc<str>, u64),
        findings: &mut Findings,
    ) -> bool {
        if let Err(error) = receipt.verify_leaf(&leaf) {
            findings.add(FindingKind::Receipt, place.0, Some(place.1), error);
            return false;
        }
        if !self.accept_checkpoint(&receipt.checkpoint, place, findings) {
            return false;
        }
        let checkpoint = receipt.checkpoint.checkpoint();
        let known = known_nodes(leaf, receipt.index, checkpoint.size, &receipt.path);
        let log = self.logs.entry(checkpoint.origin.clone()).or_default();
        log.make_room();
        log.newest = known.iter().map(|(at, hash)| (*at, *hash, place.0.clone())).collect();
        for (at, hash) in known {
            if let Some(other) = log.learn(at, hash, place.0) {
                let detail =
                    "this inclusion proof contradicts another proof of the same log: the log has forked";
                findings.add(FindingKind::Fork, place.0, Some(place.1), detail);
                findings.add_once(
                    FindingKind::Fork,
                    &other,
                    "an inclusion proof here contradicts a later one",
                );
                return false;
            }
        }
        if let Some(other) = log.confirm_stamped(receipt.index, checkpoint.size) {
            let detail = "this proof contradicts a stamped checkpoint: the log has forked";
            findings.add(FindingKind::Fork, place.0, Some(place.1), detail);
            findings.add_once(FindingKind::Fork, &other, "receipts lead to another root of its size");
            return false;
        }
        if let Some((size, other)) = log.contradicted() {
            let detail = format!("this proof contradicts the checkpoint of size {size}: the log has forked");
            findings.add(FindingKind::Fork, place.0, Some(place.1), detail);
            findings.add_once(FindingKind::Fork, &other, format!("a later proof contradicts size {size}"));
            return false;
        }
        true
    }

    /// Accepts a checkpoint, or adds findings.
    pub fn accept_checkpoint(
        &mut self,
        checkpoint: &SignedCheckpoint,
        (path, offset): (&Rc<str>, u64),
        findings: &mut Findings,
    ) -> bool {
        let digest = sha256(&checkpoint.to_bytes());
        if self.valid != Some(digest) {
            if let Err(error) = self.check_signatures(checkpoint, path, findings) {
                findings.add(FindingKind::Signature, path, Some(offset), error);
                return false;
            }
            self.valid = Some(digest);
        }
        let Checkpoint { origin, size, root } = checkpoint.checkpoint();
        let log = self.logs.entry(origin.clone()).or_default();
        if !log.roots.contains_key(size) {
            log.unconfirmed.push_back(*size);
            if log.unconfirmed.len() > UNCONFIRMED_MAX {
                log.unconfirmed.pop_front();
            }
        }
        let (known, other) = log.roots.entry(*size).or_insert_with(|| (*root, path.clone()));
        if known != root {
            let detail = format!("two roots of size {size}: the log has forked; the other one is in {other}");
            findings.add(FindingKind::Fork, path, Some(offset), detail);
            findings.add_once(FindingKind::Fork, other, format!("two roots of size {size}"));
            return false;
        }
        if log.roots.len() > ROOTS_MAX {
            log.roots.pop_first();
        }
        true
    }

    /// Accepts a stamped checkpoint before the receipts, or adds findings. The log need not reach its size.
    pub(crate) fn accept_stamped(
        &mut self,
        checkpoint: &SignedCheckpoint,
        path: &Rc<str>,
        findings: &mut Findings,
    ) -> bool {
        if let Err(error) = self.check_signatures(checkpoint, path, findings) {
            findings.add(FindingKind::Signature, path, None, error);
            return false;
        }
        let Checkpoint { origin, size, root } = checkpoint.checkpoint();
        let stamped = Stamped { root: *root, path: path.clone(), is_confirmed: false };
        self.logs.entry(origin.clone()).or_default().stamped.insert(*size, stamped);
        true
    }

    /// Whether receipts lead to the root of the stamped checkpoint.
    pub(crate) fn leads_to_stamped(&self, origin: &str, size: u64) -> bool {
        let stamped = self.logs.get(origin).and_then(|log| log.stamped.get(&size));
        stamped.is_some_and(|stamped| stamped.is_confirmed)
    }

    /// Error unless a trusted log signed. Warns of trial keys, and finds unknown keys and missing witnesses.
    fn check_signatures(
        &self,
        checkpoint: &SignedCheckpoint,
        path: &str,
        findings: &mut Findings,
    ) -> Result<(), NoteError> {
        let verified = checkpoint.note().verify(&self.keys, self.signatures)?;
        let origin = &checkpoint.checkpoint().origin;
        let logs = verified.keys.iter().filter_map(|(index, _)| self.trust.logs.get(*index));
        let mut signers = logs.filter(|key| key.name() == origin).peekable();
        if signers.peek().is_none() {
            return Err(NoteError::Unsigned(format!("a trusted key of log '{origin}'")));
        }
        for key in signers.filter(|key| self.trust.is_trial(key)) {
            let id = key.id();
            let detail =
                format!("key {id:08x} of log {origin} is for trials: its holder can copy it from a file");
            findings.warn(FindingKind::Trial, "checkpoint", detail);
        }
        for key in &verified.foreign {
            let detail = format!("signature of an unknown key {key}");
            findings.add_once(FindingKind::Signature, path, detail);
        }
        let witnesses = verified.keys.iter().filter(|(index, _)| *index >= self.trust.logs.len()).count();
        if witnesses < self.trust.witness_threshold {
            let threshold = self.trust.witness_threshold;
            let detail = format!("{witnesses} trusted witnesses signed; the trust file asks for {threshold}");
            findings.add_once(FindingKind::Witness, path, detail);
        }
        Ok(())
    }

    /// Whether the trees of its log extend this checkpoint.
    pub(crate) fn extends(&self, expected: &Checkpoint) -> Extension {
        let Some(log) = self.logs.get(&expected.origin) else { return Extension::Unknown };
        let root = log.roots.get(&expected.size).map(|(root, _)| *root).or_else(|| log.root(expected.size));
        match root {
            None => Extension::Unknown,
            Some(root) if root == expected.root => Extension::Proved,
            Some(_) => Extension::Forked,
        }
    }

    /// Origins of the accepted checkpoints.
    pub fn origins(&self) -> impl Iterator<Item = &str> {
        self.logs.iter().filter(|(_, log)| !log.roots.is_empty()).map(|(origin, _)| origin.as_str())
    }
}

impl Log {
    /// Forgets all hashes but those of the newest proof, if the next proof could exceed the bound.
    fn make_room(&mut self) {
        const PROOF_NODES_MAX: usize = 4 * 64; // the leaf, its siblings, their parents, and what they complete
        if self.nodes.len() + PROOF_NODES_MAX > NODES_MAX {
            self.nodes.clear();
            for (place, hash, path) in std::mem::take(&mut self.newest) {
                self.learn(place, hash, &path);
            }
        }
    }

    /// Learns a hash and those of the subtrees that it completes. `Some`: the file of a proof with another hash.
    fn learn(&mut self, place: Place, hash: Hash, path: &Rc<str>) -> Option<Rc<str>> {
        let ((mut level, mut index), mut hash) = (place, hash);
        loop {
            match self.nodes.get(&(level, index)) {
                Some((known, other)) => return (*known != hash).then(|| other.clone()),
                None => self.nodes.insert((level, index), (hash, path.clone())),
            };
            let sibling = self.nodes.get(&(level, index ^ 1))?.0;
            hash = if index & 1 == 0 { node_hash(&hash, &sibling) } else { node_hash(&sibling, &hash) };
            (level, index) = (level + 1, index >> 1);
        }
    }

    /// Compares unconfirmed roots with those that the known hashes lead to; the size and file of one that differs.
    fn contradicted(&mut self) -> Option<(u64, Rc<str>)> {
        let mut contradicted = None;
        for size in std::mem::take(&mut self.unconfirmed) {
            match (self.root(size), self.roots.get(&size)) {
                (Some(root), Some((known, path))) if root != *known => {
                    contradicted = Some((size, path.clone()))
                }
                (None, Some(_)) => self.unconfirmed.push_back(size),
                _ => {}
            }
        }
        contradicted
    }

    /// Compares stamped roots with those that the known hashes or accepted checkpoints lead to; the file of one that
    /// differs.
    fn confirm_stamped(&mut self, index: u64, size: u64) -> Option<Rc<str>> {
        let first = std::mem::replace(&mut self.next_index, index + 1);
        if self.stamped.is_empty() || first > size {
            return None;
        }
        let mut stamped = std::mem::take(&mut self.stamped);
        let mut differs = None;
        let open = stamped.range_mut(first..=size).filter(|(_, stamped)| !stamped.is_confirmed);
        for (size, stamped) in open.take(STAMPED_STEP_MAX) {
            let root = self.roots.get(size).map(|(root, _)| *root).or_else(|| self.root(*size));
            match root {
                Some(root) if root == stamped.root => stamped.is_confirmed = true,
                Some(_) => differs = Some(stamped.path.clone()),
                None => {}
            }
        }
        self.stamped = stamped;
        differs
    }

    /// Root of the first `size` entries, if the hashes of its perfect subtrees are known.
    fn root(&self, size: u64) -> Option<Hash> {
        let levels = (0..u64::BITS as u8).filter(|level| size >> level & 1 == 1);
        let mut peaks =
            levels.map(|level| self.nodes.get(&(level, (size >> level) - 1)).map(|(hash, _)| *hash));
        let first = peaks.next()??;
        peaks.try_fold(first, |right, left| Some(node_hash(&left?, &right)))
    }
}

/// Hashes of perfect subtrees that a valid inclusion proof names: its siblings, and the subtrees of the leaf itself.
fn known_nodes(leaf: Hash, index: u64, size: u64, path: &[Hash]) -> Vec<(Place, Hash)> {
    let (mut node, mut last, mut level, mut hash) = (index, size - 1, 0u8, leaf);
    let mut known = vec![((0, index), leaf)];
    let is_perfect =
        |level: u8, node: u64| (u128::from(node) + 1) << u32::from(level).min(64) <= u128::from(size);
    for sibling in path {
        if node == last {
            let shift = node.trailing_zeros().min(63); // a lone last node has no sibling on these levels
            (node, last, level) = (node >> shift, last >> shift, level + shift as u8);
        }
        if node & 1 == 1 {
            known.push(((level, node - 1), *sibling));
            hash = node_hash(sibling, &hash);
        } else {
            if is_perfect(level, node + 1) {
                known.push(((level, node + 1), *sibling));
            }
            hash = node_hash(&hash, sibling);
        }
        (node, last, level) = (node >> 1, last >> 1, level + 1);
        if is_perfect(level, node) {
            known.push(((level, node), hash));
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merkle::proof::inclusion_proof;
    use crate::merkle::{Nodes, leaf_hash, root};

    fn leaves(count: u64) -> Vec<Hash> {
        (0..count).map(|index| leaf_hash(&[&index.to_be_bytes()])).collect()
    }

    #[test]
    fn known_nodes_are_those_of_the_tree() {
        let leaves = leaves(70);
        for size in 1..=70 {
            for index in 0..size {
                let path = inclusion_proof(&leaves[..], index, size).expect("within");
                for ((level, place), hash) in known_nodes(leaves[index as usize], index, size, &path) {
                    assert_eq!(leaves[..size as usize].node(level, place), Some(hash), "{index} of {size}");
                }
            }
        }
    }

    #[test]
    fn newest_proof_stays_when_room_is_made() {
        let (leaves, path) = (leaves(2500), Rc::from("a"));
        let mut log = Log::default();
        for index in 0..2500u64 {
            log.make_room();
            let proof = inclusion_proof(&leaves[..], index, index + 1).expect("within");
            let known = known_nodes(leaves[index as usize], index, index + 1, &proof);
            log.newest = known.iter().map(|(at, hash)| (*at, *hash, Rc::clone(&path))).collect();
            for (place, hash) in known {
                assert_eq!(log.learn(place, hash, &path), None);
            }
            assert!(log.nodes.len() <= NODES_MAX);
            assert!(log.root(index + 1).is_some());
        }
    }

    #[test]
    fn proofs_of_all_leaves_lead_to_every_root() {
        let (leaves, path) = (leaves(40), Rc::from("a"));
        let mut log = Log::default();
        for index in 0..40 {
            let size = index + 1;
            let proof = inclusion_proof(&leaves[..], index, size).expect("within");
            for (place, hash) in known_nodes(leaves[index as usize], index, size, &proof) {
                assert_eq!(log.learn(place, hash, &path), None);
            }
            assert_eq!(log.root(size), Some(root(&leaves[..size as usize])));
        }
        assert_eq!(log.root(41), None);
        assert_eq!(log.learn((0, 7), [0; 32], &path), Some(path.clone()));
    }
}
