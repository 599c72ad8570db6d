//! Counts by state: how they go up the tree, and to the parent at a group's end.
//!
//! Owns: pushing, flushing and folding of [`Stats`](super::stats::Stats); what a group's counts are.
//! Invariants: as stats.rs states. At a group's end its frames in each state are added to its parent's own; what was
//! pushed further up before stays as it is.
//! Lock ranks: `MemcgTree` for each step of a flush's walk. Used by: mm (account, removal), report.

use super::stats::{Delta, PageState};
use super::{LruVecIndex, MemcgId, Memcgs, ROOT, Slot};
use crate::platform::{IrqOff, Platform};
use crate::sync::Pinned;
use crate::sync::atomic::Ordering;
use crate::sync::twin::left_out;

impl<P: Platform> Memcgs<P> {
    /// Counts `frames` into a state of a lruvec, or with a negative number, out of it.
    #[inline]
    pub(crate) fn add_state(
        &self,
        lruvec: LruVecIndex,
        state: PageState,
        frames: i32,
        pin: &Pinned<'_, P>,
        off: &IrqOff<P>,
    ) {
        if self.stats.add(lruvec, state, frames, pin, off) {
            self.stats
                .unpushed_here(lruvec, pin, off)
                .for_each(|delta| self.push(lruvec, delta));
        }
    }

    /// Frames in a state that are charged to a lruvec's own group; exact at rest. A reader may see one CPU before a frame
    /// entered and another after it left, so it may be negative for a moment.
    pub(crate) fn raw_state(&self, lruvec: LruVecIndex, state: PageState) -> i64 {
        self.stats.local(lruvec, state, &self.pin())
    }

    /// Frames in a state that are charged to the group in `slot` or below it, as far as CPUs have pushed them.
    pub(crate) fn tree_state(&self, slot: Slot, node: u32, state: PageState) -> u64 {
        self.stats.tree(self.lruvec_of(slot, node), state).max(0) as u64
    }

    /// Pushes what CPUs have counted for a group and those below it, whether these CPUs run or not.
    pub(crate) fn flush_states(&self, id: MemcgId, off: &IrqOff<P>) -> Option<()> {
        self.id_of(id.slot).filter(|&living| living == id)?;
        let mut at = Some(id);
        while let Some(group) = at {
            self.flush_group(group);
            at = self.next_in_subtree(id, group, off);
        }
        Some(())
    }

    /// Gives a dead group's frames by state to its parent. Returns how many of its frames are charged.
    pub(super) fn fold_states(&self, slot: Slot, node: u32) -> u64 {
        let lruvec = self.lruvec_of(slot, node);
        // Only that the counts are reached under a pin: the group's end is this thread's.
        let pin = self.pin();
        self.flush_lruvec(lruvec, &pin);
        let (charged, states) = self.stats.take(lruvec, &pin);
        let parent = self.groups[slot as usize].parent.load(Ordering::Relaxed);
        for (state, frames) in PageState::ALL.into_iter().zip(states) {
            self.stats
                .add_local(self.lruvec_of(parent, node), Delta { state, frames });
        }
        charged
    }

    /// Pushes what CPUs have counted for a living group. One that ends pushes it itself: whoever does it meanwhile may add
    /// to its counts after these were given to the parent.
    fn flush_group(&self, group: MemcgId) {
        let early = left_out::<P>("states: the look under the pin") && self.is_live(group);
        // Pinned first: seen alive, its end waits.
        let pin = self.pin();
        if early || self.is_live(group) || left_out::<P>("states: a flush of the living only") {
            let lruvecs = (0..self.nodes).map(|node| self.lruvec_of(group.slot, node));
            lruvecs.for_each(|lruvec| self.flush_lruvec(lruvec, &pin));
        }
    }

    fn flush_lruvec(&self, lruvec: LruVecIndex, pin: &Pinned<'_, P>) {
        self.stats
            .unpushed(lruvec, pin)
            .for_each(|delta| self.push(lruvec, delta));
    }

    fn push(&self, lruvec: LruVecIndex, delta: Delta) {
        self.stats.add_local(lruvec, delta);
        let node = lruvec % self.nodes;
        for at in self.path(self.slot_of(lruvec)).chain([ROOT]) {
            self.stats.add_tree(self.lruvec_of(at, node), delta);
        }
    }
}
