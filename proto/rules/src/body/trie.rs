//! Wanted paths of a tree-shaped body, followed step by step while the body is read.

use std::collections::HashMap;

use crate::field::FieldId;

/// A node of [`Trie`].
pub(crate) type Node = u32;

/// A set of paths; each names a field.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    nodes: Vec<Branch>,
}

/// Children of a node, and the field that ends there.
type Branch = (HashMap<Vec<u8>, Node>, Option<FieldId>);

impl Trie {
    pub(crate) fn insert(&mut self, path: impl Iterator<Item = String>, field: FieldId) {
        if self.nodes.is_empty() {
            self.nodes.push(Default::default());
        }
        let mut node = 0;
        for segment in path {
            let next = self.nodes.len() as Node;
            node = *self.nodes[node as usize].0.entry(segment.into_bytes()).or_insert(next);
            if node == next {
                self.nodes.push(Default::default());
            }
        }
        self.nodes[node as usize].1 = Some(field);
    }

    pub(crate) fn root(&self) -> Option<Node> {
        (!self.nodes.is_empty()).then_some(0)
    }

    /// The child of a node; `None` if no wanted path goes there.
    pub(crate) fn child(&self, node: Option<Node>, segment: &[u8]) -> Option<Node> {
        self.nodes[node? as usize].0.get(segment).copied()
    }

    /// Whether a wanted path goes below the node.
    pub(crate) fn has_children(&self, node: Option<Node>) -> bool {
        node.is_some_and(|node| !self.nodes[node as usize].0.is_empty())
    }

    pub(crate) fn field(&self, node: Option<Node>) -> Option<FieldId> {
        self.nodes[node? as usize].1
    }
}
