//! Walks over a subtree.
//!
//! Owns: [`Walk`], and the cursors that walks share, one for each group and node.
//! Invariants: a cursor names the group that the next step visits, always one of its root's subtree: a group that ends
//! moves the cursors that name it to the group after it. Walks that share a cursor visit each group of a round once between
//! them; a walk ends with the round that it joined, or with the one after if it joined at its very end.
//! Lock ranks: `MemcgTree` for each step. Used by: reclaim.

use super::tree::NONE;
use super::{MemcgId, Memcgs, ROOT, Slot};
use crate::platform::{IrqOff, Platform};

/// Where the walks from one group on one node are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    /// The group that is next, `NONE` for the root itself.
    next: Slot,
    round: u32,
}

impl Cursor {
    pub(super) const START: Self = Self {
        next: NONE,
        round: 0,
    };

    fn advance(&mut self, to: Option<Slot>) {
        match to {
            Some(next) => self.next = next,
            None => {
                self.next = NONE;
                self.round = self.round.wrapping_add(1);
            }
        }
    }
}

/// One walker's part of a round.
#[derive(Debug)]
pub(crate) struct Walk {
    root: MemcgId,
    node: u32,
    /// The round that it joined.
    round: Option<u32>,
}

impl Walk {
    /// Walks over `root` and below for `node`, together with others that do the same.
    pub(crate) fn new(root: MemcgId, node: u32) -> Self {
        Self {
            root,
            node,
            round: None,
        }
    }
}

impl<P: Platform> Memcgs<P> {
    /// The next group of a walk, parents first; `None` at the end of its round. It may be dying, and gone a moment later.
    pub(crate) fn step(&self, walk: &mut Walk, off: &IrqOff<P>) -> Option<MemcgId> {
        let mut tree = self.tree.lock(off);
        self.still(walk.root)?;
        let lruvec = self.lruvec_of(walk.root.slot, walk.node);
        let cursor = tree.cursors.get_mut(lruvec as usize)?;
        if *walk.round.get_or_insert(cursor.round) != cursor.round {
            return None;
        }
        let slot = if cursor.next == NONE {
            walk.root.slot
        } else {
            cursor.next
        };
        cursor.advance(self.successor(walk.root.slot, slot));
        self.named(slot)
    }

    /// The group after `at` in a walk over `root` and everything below it, parents first.
    /// Ends early if `at` left the tree meanwhile, whoever has its slot now.
    pub(crate) fn next_in_subtree(
        &self,
        root: MemcgId,
        at: MemcgId,
        off: &IrqOff<P>,
    ) -> Option<MemcgId> {
        let _tree = self.tree.lock(off);
        // While a group is in the tree, so is all that is above it: nobody else has the root's slot.
        self.still(at)?;
        self.named(self.successor(root.slot, at.slot)?)
    }

    /// The id of whoever has a slot.
    fn named(&self, slot: Slot) -> Option<MemcgId> {
        let generation = self.groups.get(slot as usize)?.generation();
        Some(MemcgId { slot, generation })
    }

    /// Moves every cursor that names a group about to be unlinked, which has no children. The tree is locked.
    pub(super) fn leave_cursors(&self, cursors: &mut [Cursor], slot: Slot) {
        for root in self.path(slot).chain([ROOT]) {
            for node in 0..self.nodes {
                let Some(cursor) = cursors.get_mut(self.lruvec_of(root, node) as usize) else {
                    continue;
                };
                if root == slot {
                    // Whoever walks from it sees the round end; the next group in its place starts anew.
                    cursor.advance(None);
                } else if cursor.next == slot {
                    cursor.advance(self.successor(root, slot));
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use crate::boot::Bump;
    use crate::host::{Host, storage};
    use crate::memcg::MemcgLimits;
    use std::vec::Vec;

    fn memcgs(groups: u32) -> Memcgs<Host> {
        let limits = MemcgLimits {
            groups,
            depth: 8,
            owners: groups,
            memory: crate::memcg::GroupMemory::Carved,
        };
        Memcgs::build(&mut Bump::new(&mut storage(1 << 20)), &limits, 1, 1).unwrap()
    }

    fn create(memcgs: &Memcgs<Host>, parent: MemcgId) -> MemcgId {
        memcgs.create(parent, &IrqOff::new(), |_| ()).unwrap()
    }

    fn remove(memcgs: &Memcgs<Host>, id: MemcgId) {
        let off = IrqOff::new();
        let removal = memcgs.begin_removal(id, &off).unwrap();
        let [child, parent] = [removal.child, removal.parent]
            .map(|slot| memcgs.current_at(memcgs.lruvec_of(slot, 0)).unwrap());
        memcgs.owners().forward(child, parent);
        memcgs.put_owners(removal.child);
        memcgs.finish_removal(removal, &off);
    }

    fn step(memcgs: &Memcgs<Host>, walk: &mut Walk) -> Option<Slot> {
        Some(memcgs.step(walk, &IrqOff::new())?.slot)
    }

    fn rest(memcgs: &Memcgs<Host>, walk: &mut Walk) -> Vec<Slot> {
        core::iter::from_fn(|| step(memcgs, walk)).collect()
    }

    #[test]
    fn walkers_of_one_round_share_the_groups_and_the_next_begins_where_one_stopped() {
        let memcgs = memcgs(8);
        let a = create(&memcgs, MemcgId::ROOT);
        let [b, c] = [0, 1].map(|_| create(&memcgs, a));
        let whole = rest(&memcgs, &mut Walk::new(MemcgId::ROOT, 0));
        assert_eq!(whole, [ROOT, a.slot, c.slot, b.slot]);
        let (mut one, mut two) = (Walk::new(MemcgId::ROOT, 0), Walk::new(MemcgId::ROOT, 0));
        let mut seen: Vec<_> = (0..2)
            .flat_map(|_| [step(&memcgs, &mut one), step(&memcgs, &mut two)])
            .collect();
        seen.sort();
        assert_eq!(seen, [ROOT, a.slot, b.slot, c.slot].map(Some));
        assert_eq!(
            (step(&memcgs, &mut one), step(&memcgs, &mut two)),
            (None, None)
        );
        // One that breaks off leaves the rest of its round to the next.
        let mut brief = Walk::new(MemcgId::ROOT, 0);
        assert_eq!(step(&memcgs, &mut brief), Some(ROOT));
        assert_eq!(rest(&memcgs, &mut Walk::new(MemcgId::ROOT, 0)), &whole[1..]);
        // Walks from another group have a cursor of their own.
        assert_eq!(rest(&memcgs, &mut Walk::new(a, 0)), &whole[1..]);
    }

    /// B15: at each step of a walk, the group that is next ends, or the one that was visited last.
    #[test]
    fn a_group_that_ends_under_a_cursor_is_skipped_and_every_other_is_visited_once() {
        for (at, victim) in (0..5).flat_map(|at| (0..5).map(move |victim| (at, victim))) {
            let memcgs = memcgs(8);
            let groups: Vec<_> = (0..5).map(|_| create(&memcgs, MemcgId::ROOT)).collect();
            let mut walk = Walk::new(MemcgId::ROOT, 0);
            let mut seen: Vec<_> = (0..=at).map_while(|_| step(&memcgs, &mut walk)).collect();
            remove(&memcgs, groups[victim]);
            seen.extend(rest(&memcgs, &mut walk));
            let mut once: Vec<_> = seen.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), seen.len(), "each once: {seen:?}");
            for (i, group) in groups.iter().enumerate() {
                assert!(i == victim || seen.contains(&group.slot), "{i} of {seen:?}");
            }
            assert_eq!(rest(&memcgs, &mut Walk::new(MemcgId::ROOT, 0)).len(), 5);
        }
    }

    /// B15: the dead group's own cursor, and those of all above it.
    #[test]
    fn a_walk_from_a_group_that_ends_stops_and_its_successor_starts_at_its_root() {
        let memcgs = memcgs(8);
        let parent = create(&memcgs, MemcgId::ROOT);
        let [left, right] = [0, 1].map(|_| create(&memcgs, parent));
        let (mut own, mut above) = (Walk::new(parent, 0), Walk::new(MemcgId::ROOT, 0));
        assert_eq!(step(&memcgs, &mut own), Some(parent.slot));
        assert_eq!(step(&memcgs, &mut above), Some(ROOT));
        for id in [right, left, parent] {
            remove(&memcgs, id);
        }
        assert_eq!(rest(&memcgs, &mut own), [0; 0]);
        assert_eq!(rest(&memcgs, &mut above), [0; 0]);
        let next = create(&memcgs, MemcgId::ROOT);
        assert_eq!(next.slot, parent.slot, "its place is taken");
        assert_eq!(rest(&memcgs, &mut Walk::new(next, 0)), [next.slot]);
        assert_eq!(
            rest(&memcgs, &mut Walk::new(MemcgId::ROOT, 0)),
            [ROOT, next.slot]
        );
    }
}
