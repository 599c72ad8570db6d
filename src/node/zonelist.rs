//! In which order nodes are asked for memory.
//!
//! Owns: the choice of the next node (spec: Linux's `find_next_best_node`), as a pure function of distances.
//! Invariants: a list starts with its own node if that has memory, and names each memory node once.
//! Lock ranks: none. Used by: [`Nodes`](super::Nodes), at construction.

use arrayvec::ArrayVec;

use super::MAX_NODES;
use crate::addr::NodeId;

/// A set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct NodeSet(u64);

impl NodeSet {
    /// Ids of [`MAX_NODES`] and above are never members.
    pub(crate) fn insert(&mut self, node: NodeId) {
        self.0 |= 1u64.checked_shl(u32::from(node.0)).unwrap_or(0);
    }

    pub(crate) fn contains(self, node: NodeId) -> bool {
        self.0.checked_shr(u32::from(node.0)).unwrap_or(0) & 1 == 1
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = NodeId> {
        (0..MAX_NODES as u8)
            .map(NodeId)
            .filter(move |&node| self.contains(node))
    }
}

/// Builds the lists of all nodes, in order of their ids.
pub(crate) struct NodeOrders<D: Fn(NodeId, NodeId) -> u8> {
    pub(crate) memory: NodeSet,
    pub(crate) cpus: NodeSet,
    pub(crate) distance: D,
    /// How often a node was chosen at the start of a new distance: rotates nodes of equal distance between lists.
    load: [u32; MAX_NODES],
}

impl<D: Fn(NodeId, NodeId) -> u8> NodeOrders<D> {
    pub(crate) fn new(memory: NodeSet, cpus: NodeSet, distance: D) -> Self {
        Self {
            memory,
            cpus,
            distance,
            load: [0; MAX_NODES],
        }
    }

    /// The next list: for `local`, which must be called for every node in ascending order to share the load evenly.
    pub(crate) fn of(&mut self, local: NodeId) -> ArrayVec<NodeId, MAX_NODES> {
        let mut order = ArrayVec::new();
        let mut previous = local;
        if self.memory.contains(local) {
            order.push(local);
        }
        while let Some(next) = self.nearest(local, &order) {
            if (self.distance)(local, next) != (self.distance)(local, previous) {
                self.load[usize::from(next.0)] += 1;
            }
            previous = next;
            order.push(next);
        }
        order
    }

    fn nearest(&self, local: NodeId, used: &[NodeId]) -> Option<NodeId> {
        let key = |node: &NodeId| {
            let penalty = u32::from(node.0 < local.0) + u32::from(self.cpus.contains(*node));
            (u32::from((self.distance)(local, *node)) + penalty) * MAX_NODES as u32
                + self.load[usize::from(node.0)]
        };
        self.memory
            .iter()
            .filter(|node| !used.contains(node))
            .min_by_key(key)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    fn set(nodes: impl IntoIterator<Item = u8>) -> NodeSet {
        let mut set = NodeSet::default();
        nodes.into_iter().for_each(|n| set.insert(NodeId(n)));
        set
    }

    fn flat(a: NodeId, b: NodeId) -> u8 {
        if a == b { 10 } else { 20 }
    }

    #[test]
    fn a_node_asks_itself_first_and_each_memory_node_once() {
        let mut orders = NodeOrders::new(set(0..4), set(0..4), flat);
        for local in (0..4).map(NodeId) {
            let order = orders.of(local);
            assert_eq!(order[0], local);
            let mut sorted: Vec<_> = order.to_vec();
            sorted.sort();
            assert_eq!(sorted, (0..4).map(NodeId).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_node_without_memory_is_asked_by_none_and_asks_the_nearest() {
        let line = |a: NodeId, b: NodeId| 10 + a.0.abs_diff(b.0) * 10;
        let mut orders = NodeOrders::new(set([0, 1]), set([0, 1, 2]), line);
        assert_eq!(orders.of(NodeId(0))[..], [NodeId(0), NodeId(1)]);
        assert_eq!(orders.of(NodeId(1))[..], [NodeId(1), NodeId(0)]);
        assert_eq!(orders.of(NodeId(2))[..], [NodeId(1), NodeId(0)]);
    }

    #[test]
    fn a_near_node_without_cpus_comes_before_one_with_cpus() {
        let mut orders = NodeOrders::new(set(0..3), set([0, 1]), flat);
        assert_eq!(orders.of(NodeId(0))[..], [NodeId(0), NodeId(2), NodeId(1)]);
    }

    #[test]
    fn nodes_at_one_distance_take_turns_as_the_second_choice() {
        // 2.2: node 1 was node 0's second choice, so node 2, 3 prefer others where the penalty allows it.
        let mut orders = NodeOrders::new(set(0..4), set([]), flat);
        let second: Vec<_> = (0..4).map(|n| orders.of(NodeId(n))[1].0).collect();
        assert_eq!(second, [1, 2, 3, 0]);
    }
}
