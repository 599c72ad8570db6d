//! Finding a sub-list: look up, lock, look again.
//!
//! Owns: [`View::lock_for`] (where a group's objects go), [`View::lock_link`] (where an object is).
//! Invariants: a sub-list whose lock is held keeps its state, so one found live stays its group's until the lock is dropped. The lookups
//! are pinned: a group that was seen dying does not leave its slot, nor its parent die, before the parent's lock is held.
//! Lock ranks: takes `ListLru`, one. Used by: handle, walk.
//!
//! Why a link that still names list and owner, under a lock found from that owner, is on the chain behind that lock: a link's words
//! change only under the lock of the chain that it is on or comes to. A chain's links go elsewhere in one way, to the parent under
//! both locks, after which the chain is dead; the owner is made to forward only once all chains of the group are. So if the
//! owner still resolves to the group that the climb began at, the chain is that group's own if live, its parent's if dead.

use super::item::Link;
use super::{List, Slot, State, SubList, View};
use crate::memcg::{LruVecIndex, MemcgId};
use crate::platform::{IrqOff, Platform};
use crate::sync::Held;
use crate::sync::twin::left_out;

/// A locked, live sub-list, and which one it is.
pub(super) struct Place<'a, P: Platform> {
    pub(super) lruvec: LruVecIndex,
    pub(super) slot: &'a Slot<P>,
    pub(super) list: Held<'a, SubList, P>,
}

impl<P: Platform> Place<'_, P> {
    /// The group whose sub-list this is.
    pub(super) fn memcg(&self, view: View<'_, P>) -> MemcgId {
        let slot = view.memcgs.slot_of(self.lruvec);
        match self.list.state {
            State::Live(generation) => MemcgId { slot, generation },
            State::Dead => MemcgId::ROOT,
        }
    }
}

impl<'a, P: Platform> View<'a, P> {
    /// Locks the sub-list of a group, or of its parent if the group is dying and its own is dead. `None` if the id names no group
    /// any more, or the node does not exist.
    pub(super) fn lock_for(
        self,
        list: &'a List<P>,
        memcg: MemcgId,
        node: u32,
        off: &'a IrqOff<P>,
    ) -> Option<Place<'a, P>> {
        let _pin = self.memcgs.pin();
        let mut memcg = memcg;
        loop {
            if let Some(place) = self.lock_own(list, memcg, node, off) {
                return Some(place);
            }
            memcg = self.memcgs.heir_of(memcg)?;
        }
    }

    /// Locks the sub-list of a group if it is live.
    pub(super) fn lock_own(
        self,
        list: &'a List<P>,
        memcg: MemcgId,
        node: u32,
        off: &'a IrqOff<P>,
    ) -> Option<Place<'a, P>> {
        if node >= self.memcgs.nodes() {
            return None;
        }
        // In range: ids are made by the tree, from slots that it has. Another instance's may not be.
        let lruvec = memcg.slot.checked_mul(self.memcgs.nodes())? + node;
        self.lock_live(list, lruvec, off)
            .filter(|place| place.list.state == State::Live(memcg.generation))
    }

    /// Locks the sub-list that a link is on. `None` if it is not on `list`.
    pub(super) fn lock_link(
        self,
        list: &'a List<P>,
        link: &Link,
        off: &'a IrqOff<P>,
    ) -> Option<Place<'a, P>> {
        let _pin = self.memcgs.pin();
        loop {
            let (named, owner) = link.place()?;
            if named != list.address() {
                return None;
            }
            if let Some(first) = self.memcgs.owners().resolve(owner) {
                let place = self
                    .lock_live(list, first, off)
                    .or_else(|| self.lock_live(list, self.parents(first)?, off));
                // Without this second look, a reparent or a move between lookup and lock takes the object off a chain
                // that it is not on.
                if place.is_some()
                    && ((link.place() == Some((named, owner))
                        && self.memcgs.owners().resolve(owner) == Some(first))
                        || left_out::<P>("list_lru: the second look"))
                {
                    return place;
                }
            }
            P::relax();
        }
    }

    /// Locks a sub-list if it is any group's.
    pub(super) fn lock_live(
        self,
        list: &'a List<P>,
        lruvec: LruVecIndex,
        off: &'a IrqOff<P>,
    ) -> Option<Place<'a, P>> {
        let slot = list.slot(lruvec)?;
        let list = slot.list.lock(off);
        (list.state != State::Dead).then_some(Place { lruvec, slot, list })
    }

    /// The lruvec of the group above, on the same node.
    fn parents(self, lruvec: LruVecIndex) -> Option<LruVecIndex> {
        let parent = self.memcgs.parent_of(self.memcgs.slot_of(lruvec))?;
        let node = lruvec % self.memcgs.nodes();
        Some(self.memcgs.lruvec_of(parent, node))
    }
}
