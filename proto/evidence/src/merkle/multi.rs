//! Proof of several leaves of one tree together: what a bundle has for the records of one session in a batch.
//!
//! `P(range) = MTH(range)` if no wanted leaf is in it, nothing if it is one wanted leaf, else `P(left) ‖ P(right)`. The
//! proof is a function of tree and wanted leaves; verification accepts no other number of hashes.

use super::proof::ProofError;
use super::{Hash, Nodes, empty_root, node_hash, range, split};

/// Hashes that prove the wanted leaves, given in ascending order without repetition, in the tree of `size` leaves.
pub fn multi_proof<N: Nodes + ?Sized>(nodes: &N, size: u64, wanted: &[u64]) -> Result<Vec<Hash>, ProofError> {
    if !is_ascending(wanted.iter().copied(), size) {
        return Err(ProofError::Outside);
    }
    let mut out = Vec::new();
    if size > 0 {
        make(nodes, (0, size), wanted, &mut out)?;
    }
    Ok(out)
}

fn make<N: Nodes + ?Sized>(
    nodes: &N,
    (begin, end): (u64, u64),
    wanted: &[u64],
    out: &mut Vec<Hash>,
) -> Result<(), ProofError> {
    if wanted.is_empty() {
        let missing = ProofError::Missing { level: (end - begin).ilog2() as u8, index: begin };
        out.push(range(nodes, begin, end).ok_or(missing)?);
        return Ok(());
    }
    if end - begin == 1 {
        return Ok(());
    }
    let middle = begin + split(end - begin);
    let (left, right) = wanted.split_at(wanted.partition_point(|&leaf| leaf < middle));
    make(nodes, (begin, middle), left, out)?;
    make(nodes, (middle, end), right, out)
}

/// Root of the tree of `size` leaves to which wanted leaves, in ascending order of their index, and their proof lead.
pub fn root_from_multi(size: u64, wanted: &[(u64, Hash)], proof: &[Hash]) -> Result<Hash, ProofError> {
    if !is_ascending(wanted.iter().map(|&(index, _)| index), size) {
        return Err(ProofError::Outside);
    }
    let mut proof = proof.iter();
    let root = match size {
        0 => empty_root(),
        _ => fold((0, size), wanted, &mut proof)?,
    };
    if proof.next().is_some() { Err(ProofError::Length) } else { Ok(root) }
}

/// Depth is at most 64, and each call either takes a hash of the proof or leads to a wanted leaf.
fn fold(
    (begin, end): (u64, u64),
    wanted: &[(u64, Hash)],
    proof: &mut std::slice::Iter<'_, Hash>,
) -> Result<Hash, ProofError> {
    let Some((_, first)) = wanted.first() else { return proof.next().copied().ok_or(ProofError::Length) };
    if end - begin == 1 {
        return Ok(*first);
    }
    let middle = begin + split(end - begin);
    let (left, right) = wanted.split_at(wanted.partition_point(|&(leaf, _)| leaf < middle));
    let left = fold((begin, middle), left, proof)?;
    let right = fold((middle, end), right, proof)?;
    Ok(node_hash(&left, &right))
}

fn is_ascending(mut wanted: impl Iterator<Item = u64>, size: u64) -> bool {
    let Some(mut last) = wanted.next() else { return true };
    wanted.all(|index| std::mem::replace(&mut last, index) < index) && last < size
}

#[cfg(test)]
mod tests {
    use super::super::proof::inclusion_proof;
    use super::super::{leaf_hash, root};
    use super::*;
    use proptest::prelude::*;

    fn leaves(count: u64) -> Vec<Hash> {
        (0..count).map(|index| leaf_hash(&[&index.to_be_bytes()])).collect()
    }

    #[test]
    fn proof_of_all_leaves_is_empty() {
        let leaves = leaves(9);
        let all: Vec<u64> = (0..9).collect();
        assert_eq!(multi_proof(&leaves[..], 9, &all), Ok(Vec::new()));
        assert_eq!(multi_proof(&leaves[..], 9, &[]), Ok(vec![root(&leaves)]));
        assert_eq!(multi_proof(&leaves[..0], 0, &[]), Ok(Vec::new()));
        assert_eq!(root_from_multi(0, &[], &[]), Ok(empty_root()));
    }

    #[test]
    fn wanted_leaves_must_ascend_within_the_tree() {
        let leaves = leaves(4);
        for wanted in [&[4][..], &[1, 1], &[2, 1], &[0, u64::MAX]] {
            assert_eq!(multi_proof(&leaves[..], 4, wanted), Err(ProofError::Outside));
            let wanted: Vec<(u64, Hash)> = wanted.iter().map(|&index| (index, [0; 32])).collect();
            assert_eq!(root_from_multi(4, &wanted, &[]), Err(ProofError::Outside));
        }
    }

    proptest! {
        #[test]
        fn proof_leads_to_the_root_and_no_change_does(
            size in 1_u64..600, picks in proptest::collection::btree_set(0_u64..600, 0..40), at: usize, how in 0..4,
        ) {
            let leaves = leaves(size);
            let wanted: Vec<u64> = picks.into_iter().filter(|&index| index < size).collect();
            let proof = multi_proof(&leaves[..], size, &wanted).unwrap();
            let singly: usize = wanted.iter().map(|&i| inclusion_proof(&leaves[..], i, size).unwrap().len()).sum();
            prop_assert!(wanted.is_empty() || proof.len() <= singly);
            let mut pairs: Vec<(u64, Hash)> = wanted.iter().map(|&i| (i, leaves[i as usize])).collect();
            prop_assert_eq!(root_from_multi(size, &pairs, &proof), Ok(root(&leaves)));
            let mut proof = proof;
            match how {
                0 if !proof.is_empty() => { let at = at % proof.len(); proof[at][3] ^= 4 }
                1 if !pairs.is_empty() => { let at = at % pairs.len(); pairs[at].1[0] ^= 1 }
                2 if !proof.is_empty() => { proof.remove(at % proof.len()); }
                _ => proof.push([0; 32]),
            }
            prop_assert_ne!(root_from_multi(size, &pairs, &proof), Ok(root(&leaves)));
        }

        #[test]
        fn hostile_sizes_end_at_once(size: u64, wanted in proptest::collection::btree_set(any::<u64>(), 0..20)) {
            let wanted: Vec<(u64, Hash)> = wanted.into_iter().map(|index| (index, [1; 32])).collect();
            let _ = root_from_multi(size, &wanted, &[[2; 32]; 30]);
        }
    }
}
