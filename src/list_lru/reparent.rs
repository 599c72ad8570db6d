//! The beginning and the end of a group's sub-lists.
//!
//! Owns: [`View::open`], [`View::reparent`].
//! Invariants: a dying group's objects become its parent's, and its sub-list dead, in one step under both locks, for every list and
//! node, before any owner forwards and before the id is given up. In the other order (unpublish, then splice, as Linux
//! had it for a while) a delete would lock the parent's chain for an object that is still on the child's.
//! No object is touched: the work is one splice for each list and node.
//! Lock ranks: `ListLru` twice, child before parent; `open` takes one at a time, under `MemcgTree`. Used by: mm.

use super::{State, View};
use crate::memcg::{MemcgId, Removal};
use crate::platform::{IrqOff, Platform};
use crate::sync::Lock;
use crate::sync::twin::left_out;

impl<P: Platform> View<'_, P> {
    /// Makes every sub-list of a new group live, before its id is published.
    pub(crate) fn open(self, memcg: MemcgId, off: &IrqOff<P>) {
        for list in self.lists.lists {
            for node in 0..self.memcgs.nodes() {
                if let Some(slot) = list.slot(self.memcgs.lruvec_of(memcg.slot, node)) {
                    let mut held = slot.list.lock(off);
                    debug_assert!(held.chain.is_empty(), "a dead list holds nothing");
                    held.state = State::Live(memcg.generation);
                }
            }
        }
    }

    /// Gives every object of a dying group to its parent. The oldest of the parent's from now on: nobody uses that group any more.
    pub(crate) fn reparent(self, removal: &Removal, off: &IrqOff<P>) {
        for list in self.lists.lists {
            for node in 0..self.memcgs.nodes() {
                let lruvecs =
                    [removal.child, removal.parent].map(|slot| self.memcgs.lruvec_of(slot, node));
                let [Some(child), Some(parent)] = lruvecs.map(|lruvec| list.slot(lruvec)) else {
                    continue;
                };
                let (mut from, mut to) = Lock::lock_pair(&child.list, &parent.list, off);
                to.chain.splice_front(&mut from.chain);
                let moved = child.len();
                child.set_len(0);
                parent.set_len(parent.len() + moved);
                if moved > 0 && !left_out::<P>("list_lru: the parent's bit") {
                    self.mark(list, lruvecs[1]);
                }
                if !left_out::<P>("list_lru: marking dead") {
                    from.state = State::Dead;
                }
            }
        }
    }
}
