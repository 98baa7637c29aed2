//! Merkle trees of RFC 6962: hashes of leaves and nodes, streaming roots, and the nodes that proofs are made from.
//!
//! A tree of n leaves splits at the largest power of two below n. Leaves and nodes hash under different prefixes, so no
//! node passes for a leaf. Proofs are made from hashes of *perfect* subtrees ([`Nodes`]): tiles store exactly those.

pub mod multi;
pub mod proof;

use sha2::{Digest, Sha256};

/// SHA-256 hash.
pub type Hash = [u8; 32];

/// Hash of a leaf whose bytes are the parts in a row.
pub fn leaf_hash(parts: &[&[u8]]) -> Hash {
    let mut hash = Sha256::new_with_prefix([0]);
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

/// Hash of an inner node.
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    let mut bytes = [1; 65];
    bytes[1..33].copy_from_slice(left);
    bytes[33..].copy_from_slice(right);
    Sha256::digest(bytes).into()
}

/// Root of the tree without leaves: SHA-256 of nothing.
pub fn empty_root() -> Hash {
    Sha256::digest([]).into()
}

/// Plain SHA-256, as `previous` of statements and digests of files have it.
pub fn sha256(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// Largest power of two below `size`; `size` is at least 2.
pub(crate) fn split(size: u64) -> u64 {
    1 << (u64::BITS - 1 - (size - 1).leading_zeros())
}

/// Tree that takes leaves in order and keeps one hash per perfect subtree: at most 64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    size: u64,
    /// Roots of the perfect subtrees from left to right: one per bit of `size`.
    peaks: Vec<Hash>,
}

impl Tree {
    /// Tree without leaves.
    pub fn new() -> Tree {
        Tree::default()
    }

    /// Tree of `size` leaves whose perfect subtrees `nodes` knows; `None` if one is missing.
    pub fn load(nodes: &impl Nodes, size: u64) -> Option<Tree> {
        let peaks = (0..u64::BITS as u8).rev().filter(|&level| size >> level & 1 == 1);
        let peaks = peaks.map(|level| nodes.node(level, (size >> level) - 1)).collect::<Option<_>>()?;
        Some(Tree { size, peaks })
    }

    /// Number of leaves.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Appends the hash of a leaf.
    pub fn push(&mut self, leaf: Hash) {
        self.push_with(leaf, |_, _, _| ());
    }

    /// Appends the hash of a leaf and passes each perfect subtree that it completes, the leaf first: its level, its
    /// index in that level and its hash.
    pub fn push_with(&mut self, leaf: Hash, mut completed: impl FnMut(u8, u64, &Hash)) {
        let mut node = leaf;
        completed(0, self.size, &node);
        for level in 0..self.size.trailing_ones() {
            let Some(left) = self.peaks.pop() else { break };
            node = node_hash(&left, &node);
            completed(level as u8 + 1, self.size >> (level + 1), &node);
        }
        self.peaks.push(node);
        self.size += 1;
    }

    /// Root over all leaves so far.
    pub fn root(&self) -> Hash {
        let mut peaks = self.peaks.iter().rev();
        let Some(&last) = peaks.next() else { return empty_root() };
        peaks.fold(last, |right, left| node_hash(left, &right))
    }
}

/// Root over the hashes of leaves.
pub fn root(leaves: &[Hash]) -> Hash {
    let mut tree = Tree::new();
    for leaf in leaves {
        tree.push(*leaf);
    }
    tree.root()
}

/// Source of hashes of perfect subtrees.
pub trait Nodes {
    /// Hash over the leaves `index << level .. (index + 1) << level`, or `None` if it is not stored.
    fn node(&self, level: u8, index: u64) -> Option<Hash>;
}

/// Leaves in memory: for batches, and for tests.
impl Nodes for [Hash] {
    fn node(&self, level: u8, index: u64) -> Option<Hash> {
        let first = usize::try_from(index.checked_shl(u32::from(level))?).ok()?;
        let last = first.checked_add(1_usize.checked_shl(u32::from(level))?)?;
        self.get(first..last).map(root)
    }
}

/// Hash over any range of leaves that begins at a multiple of its own rounded-up size, from stored nodes.
///
/// Every range that RFC 6962 names (`D[begin:end]` in proofs) has this form.
pub(crate) fn range(nodes: &(impl Nodes + ?Sized), begin: u64, end: u64) -> Option<Hash> {
    let mut end = end;
    let mut hash: Option<Hash> = None;
    while end > begin {
        // The largest perfect subtree that ends here and begins inside the range.
        let len = 1_u64 << (end - begin).trailing_zeros();
        let node = nodes.node(len.trailing_zeros() as u8, (end - len) >> len.trailing_zeros())?;
        hash = Some(hash.map_or(node, |right| node_hash(&node, &right)));
        end -= len;
    }
    Some(hash.unwrap_or_else(empty_root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 6962 section 2.1, word for word.
    fn naive(leaves: &[Hash]) -> Hash {
        match leaves {
            [] => empty_root(),
            [leaf] => *leaf,
            _ => {
                let (left, right) = leaves.split_at(split(leaves.len() as u64) as usize);
                node_hash(&naive(left), &naive(right))
            }
        }
    }

    fn leaves(count: u64) -> Vec<Hash> {
        (0..count).map(|index| leaf_hash(&[&index.to_be_bytes()])).collect()
    }

    fn hex(hash: &Hash) -> String {
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Vectors that implementations of Certificate Transparency share.
    #[test]
    fn roots_are_those_of_known_vectors() {
        let inputs: [&[u8]; 8] = [
            b"",
            b"\x00",
            b"\x10",
            b"\x20\x21",
            b"\x30\x31",
            b"\x40\x41\x42\x43",
            b"\x50\x51\x52\x53\x54\x55\x56\x57",
            b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
        ];
        let roots = [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
            "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
            "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
            "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
            "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
            "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
        ];
        let mut tree = Tree::new();
        assert_eq!(hex(&tree.root()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        for (input, root) in inputs.iter().zip(roots) {
            tree.push(leaf_hash(&[input]));
            assert_eq!(hex(&tree.root()), root);
        }
    }

    #[test]
    fn parts_hash_as_their_concatenation() {
        assert_eq!(leaf_hash(&[b"ab", b"", b"c"]), leaf_hash(&[b"abc"]));
        assert_ne!(leaf_hash(&[b"abc"]), leaf_hash(&[b"ab"]));
    }

    #[test]
    fn completed_subtrees_are_those_of_the_leaves() {
        let leaves = leaves(33);
        let mut tree = Tree::new();
        let mut seen = 0;
        for leaf in &leaves {
            tree.push_with(*leaf, |level, index, hash| {
                assert_eq!(leaves[..].node(level, index).as_ref(), Some(hash));
                seen += 1;
            });
        }
        assert_eq!(seen, 33 + 16 + 8 + 4 + 2 + 1);
    }

    proptest! {
        #[test]
        fn streaming_root_is_that_of_the_rfc(count in 0_u64..300) {
            let leaves = leaves(count);
            prop_assert_eq!(root(&leaves), naive(&leaves));
            prop_assert_eq!(range(&leaves[..], 0, count), Some(naive(&leaves)));
        }

        #[test]
        fn loaded_tree_continues_as_the_streamed_one(count in 0_u64..300, more in 0_u64..20) {
            let all = leaves(count + more);
            let mut tree = Tree::load(&LeafSlice(&all), count).unwrap();
            for leaf in &all[count as usize..] {
                tree.push(*leaf);
            }
            prop_assert_eq!(tree.root(), naive(&all));
        }
    }

    struct LeafSlice<'a>(&'a [Hash]);

    impl Nodes for LeafSlice<'_> {
        fn node(&self, level: u8, index: u64) -> Option<Hash> {
            self.0.node(level, index)
        }
    }
}
