//! Proofs of RFC 6962 section 2.1: that a leaf is in a tree, and that one tree is the beginning of another.
//!
//! A proof has at most [`PROOF_MAX`] hashes. Verifiers need no tree: they accept a proof only if it has exactly the
//! hashes that the sizes ask for.

use super::{Hash, Nodes, empty_root, node_hash, range, split};

/// Most hashes in a proof.
pub const PROOF_MAX: usize = 64;

/// Reason why a proof was not made or does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// The leaf or the old tree is not within the tree.
    #[error("proof for a place outside the tree")]
    Outside,
    /// Hash that the source does not have.
    #[error("hash of {level}/{index} is missing")]
    Missing {
        /// Level of the subtree: its leaves are `2^level`.
        level: u8,
        /// Index within the level.
        index: u64,
    },
    /// Fewer or more hashes than the sizes ask for.
    #[error("proof has a wrong number of hashes")]
    Length,
    /// The hashes lead to another root.
    #[error("proof leads to another root")]
    Root,
}

/// Source that remembers what it lacked, so that the error names a tile.
struct Remember<'a, N: ?Sized> {
    nodes: &'a N,
    missing: std::cell::Cell<Option<(u8, u64)>>,
}

impl<N: Nodes + ?Sized> Nodes for Remember<'_, N> {
    fn node(&self, level: u8, index: u64) -> Option<Hash> {
        let found = self.nodes.node(level, index);
        if found.is_none() {
            self.missing.set(Some((level, index)));
        }
        found
    }
}

fn collect<N: Nodes + ?Sized>(
    nodes: &N,
    make: impl FnOnce(&Remember<'_, N>) -> Option<Vec<Hash>>,
) -> Result<Vec<Hash>, ProofError> {
    let nodes = Remember { nodes, missing: std::cell::Cell::new(None) };
    make(&nodes).ok_or_else(|| match nodes.missing.get() {
        Some((level, index)) => ProofError::Missing { level, index },
        None => ProofError::Outside,
    })
}

/// Proof that leaf `index` is in the tree of the first `size` leaves, from the leaf's sibling upwards.
pub fn inclusion_proof<N: Nodes + ?Sized>(nodes: &N, index: u64, size: u64) -> Result<Vec<Hash>, ProofError> {
    if index >= size {
        return Err(ProofError::Outside);
    }
    collect(nodes, |nodes| {
        let (mut begin, mut end) = (0, size);
        let mut path = Vec::new();
        while end - begin > 1 {
            let middle = begin + split(end - begin);
            if index < middle {
                path.push(range(nodes, middle, end)?);
                end = middle;
            } else {
                path.push(range(nodes, begin, middle)?);
                begin = middle;
            }
        }
        path.reverse();
        Some(path)
    })
}

/// Proof that the tree of the first `old` leaves is the beginning of the tree of the first `new` leaves. Empty if `old`
/// is 0 or `new`.
pub fn consistency_proof<N: Nodes + ?Sized>(nodes: &N, old: u64, new: u64) -> Result<Vec<Hash>, ProofError> {
    if old > new {
        return Err(ProofError::Outside);
    }
    if old == 0 || old == new {
        return Ok(Vec::new());
    }
    collect(nodes, |nodes| {
        let (mut begin, mut end) = (0, new);
        let mut path = Vec::new();
        while end != old {
            let middle = begin + split(end - begin);
            if old <= middle {
                path.push(range(nodes, middle, end)?);
                end = middle;
            } else {
                path.push(range(nodes, begin, middle)?);
                begin = middle;
            }
        }
        // The old tree itself is known to the verifier; a smaller subtree of it is not.
        if begin != 0 {
            path.push(range(nodes, begin, end)?);
        }
        path.reverse();
        Some(path)
    })
}

/// Root of the tree of `size` leaves to which an inclusion proof leads.
pub fn root_from_inclusion(leaf: &Hash, index: u64, size: u64, proof: &[Hash]) -> Result<Hash, ProofError> {
    if index >= size {
        return Err(ProofError::Outside);
    }
    let (mut node, mut last) = (index, size - 1);
    let mut hash = *leaf;
    for sibling in proof {
        if last == 0 {
            return Err(ProofError::Length);
        }
        if node & 1 == 1 || node == last {
            hash = node_hash(sibling, &hash);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            hash = node_hash(&hash, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    if last == 0 { Ok(hash) } else { Err(ProofError::Length) }
}

/// Error unless the proof shows that the leaf is in the tree.
pub fn verify_inclusion(
    leaf: &Hash,
    index: u64,
    size: u64,
    proof: &[Hash],
    root: &Hash,
) -> Result<(), ProofError> {
    match root_from_inclusion(leaf, index, size, proof)? == *root {
        true => Ok(()),
        false => Err(ProofError::Root),
    }
}

/// Error unless the proof shows that the old tree is the beginning of the new one.
pub fn verify_consistency(
    (old_size, old_root): (u64, &Hash),
    (new_size, new_root): (u64, &Hash),
    proof: &[Hash],
) -> Result<(), ProofError> {
    if old_size > new_size {
        return Err(ProofError::Outside);
    }
    if old_size == 0 || old_size == new_size {
        let is_same = if old_size == 0 { *old_root == empty_root() } else { old_root == new_root };
        return match (proof.is_empty(), is_same) {
            (false, _) => Err(ProofError::Length),
            (true, false) => Err(ProofError::Root),
            (true, true) => Ok(()),
        };
    }
    let (mut node, mut last) = (old_size - 1, new_size - 1);
    while node & 1 == 1 {
        node >>= 1;
        last >>= 1;
    }
    let mut proof = proof.iter();
    let first = if node == 0 { *old_root } else { *proof.next().ok_or(ProofError::Length)? };
    let (mut old, mut new) = (first, first);
    for sibling in proof {
        if last == 0 {
            return Err(ProofError::Length);
        }
        if node & 1 == 1 || node == last {
            old = node_hash(sibling, &old);
            new = node_hash(sibling, &new);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            new = node_hash(&new, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    match (last == 0, old == *old_root && new == *new_root) {
        (false, _) => Err(ProofError::Length),
        (true, false) => Err(ProofError::Root),
        (true, true) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{leaf_hash, root};
    use super::*;
    use proptest::prelude::*;

    fn leaves(count: u64) -> Vec<Hash> {
        (0..count).map(|index| leaf_hash(&[&index.to_be_bytes()])).collect()
    }

    #[test]
    fn inclusion_holds_for_all_small_trees() {
        let leaves = leaves(70);
        for size in 1..=leaves.len() as u64 {
            let root = root(&leaves[..size as usize]);
            for index in 0..size {
                let proof = inclusion_proof(&leaves[..], index, size).unwrap();
                let leaf = &leaves[index as usize];
                verify_inclusion(leaf, index, size, &proof, &root).unwrap();
                for wrong in [index ^ 1, index + 1] {
                    assert!(verify_inclusion(leaf, wrong, size, &proof, &root).is_err());
                }
            }
        }
    }

    #[test]
    fn consistency_holds_for_all_small_trees() {
        let leaves = leaves(50);
        let roots: Vec<Hash> = (0..=50).map(|size| root(&leaves[..size])).collect();
        for new in 0..=50_u64 {
            for old in 0..=new {
                let proof = consistency_proof(&leaves[..], old, new).unwrap();
                let (old_root, new_root) = (&roots[old as usize], &roots[new as usize]);
                verify_consistency((old, old_root), (new, new_root), &proof).unwrap();
                if old > 0 && new > old {
                    assert!(verify_consistency((old, new_root), (new, new_root), &proof).is_err());
                    assert!(verify_consistency((old, old_root), (new, old_root), &proof).is_err());
                }
            }
        }
    }

    #[test]
    fn places_outside_the_tree_are_refused() {
        let leaves = leaves(4);
        assert_eq!(inclusion_proof(&leaves[..], 4, 4), Err(ProofError::Outside));
        assert_eq!(consistency_proof(&leaves[..], 5, 4), Err(ProofError::Outside));
        let missing = ProofError::Missing { level: 2, index: 1 };
        assert_eq!(inclusion_proof(&leaves[..], 0, 8), Err(missing));
        assert_eq!(root_from_inclusion(&leaves[0], 0, 0, &[]), Err(ProofError::Outside));
    }

    /// A proof is bound to one size, except that a leaf's path can be equal in trees of several sizes by RFC 6962.
    fn changed(mut proof: Vec<Hash>, at: usize, how: u8) -> Option<Vec<Hash>> {
        match how {
            0 => proof.get_mut(at)?[at % 32] ^= 1 << (at % 8),
            1 => drop((at < proof.len()).then(|| proof.remove(at))?),
            2 => proof.insert(at.min(proof.len()), [7; 32]),
            _ => {
                let other = (at + 1) % proof.len().max(1);
                (at < proof.len() && other != at && proof[at] != proof[other])
                    .then(|| proof.swap(at, other))?;
            }
        }
        Some(proof)
    }

    proptest! {
        #[test]
        fn changed_inclusion_proofs_are_refused(
            size in 1_u64..2000, index: u64, at in 0_usize..12, how in 0_u8..4,
        ) {
            let leaves = leaves(size);
            let index = index % size;
            let proof = inclusion_proof(&leaves[..], index, size).unwrap();
            prop_assert!(proof.len() <= PROOF_MAX);
            if let Some(changed) = changed(proof, at, how) {
                let leaf = &leaves[index as usize];
                prop_assert!(verify_inclusion(leaf, index, size, &changed, &root(&leaves)).is_err());
            }
        }

        #[test]
        fn changed_consistency_proofs_are_refused(
            new in 2_u64..2000, old: u64, at in 0_usize..12, how in 0_u8..4,
        ) {
            let leaves = leaves(new);
            let old = 1 + old % (new - 1);
            let proof = consistency_proof(&leaves[..], old, new).unwrap();
            if let Some(changed) = changed(proof, at, how) {
                let old_root = root(&leaves[..old as usize]);
                prop_assert!(verify_consistency((old, &old_root), (new, &root(&leaves)), &changed).is_err());
            }
        }

        #[test]
        fn hostile_sizes_end_at_once(index: u64, size: u64, proof in proptest::collection::vec(any::<Hash>(), 0..70)) {
            let leaf = [0; 32];
            prop_assert!(verify_inclusion(&leaf, index, size, &proof, &[9; 32]).is_err());
            prop_assert!(verify_consistency((index, &leaf), (size, &[9; 32]), &proof).is_err());
        }
    }
}
