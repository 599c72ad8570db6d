//! Groups that charges are moved out of.
//!
//! Owns: the mark that a move is under way, and the counters' part of a move.
//! Invariants: from the end of the grace period after a mark is set until it is cleared, nobody changes a state of a frame
//! of that group without its lruvec's lock (see mm/account.rs). The counters above both groups are not touched by a move, so a
//! full group above does not refuse one.
//! Lock ranks: none; waits for grace periods. Used by: mm (account, moving).

use super::{LruVecIndex, MemcgId, Memcgs, OwnerIndex, ROOT, Refusal, Slot, Standing};
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::{AtomicU32, Ordering};

impl<P: Platform> Memcgs<P> {
    /// Whether frames of the lruvec may be changing owners.
    #[inline]
    pub(crate) fn is_moving(&self, lruvec: LruVecIndex) -> bool {
        // Acquire pairs with the Release of `end_move`: who sees the mark gone sees the new owners too.
        let moves = self.moving.get(lruvec as usize);
        moves.is_some_and(|moves| moves.load(Ordering::Acquire) != 0)
    }

    fn moves_out_of(&self, slot: Slot) -> impl Iterator<Item = &AtomicU32> {
        let nodes = 0..self.nodes;
        nodes.filter_map(move |node| self.moving.get(self.lruvec_of(slot, node) as usize))
    }

    /// Marks a group, and waits until everyone sees the mark who changes states from now on. `None` for a stale id.
    pub(crate) fn begin_move(&self, from: MemcgId) -> Option<()> {
        {
            let _pin = self.epoch.pin();
            self.live(from)?;
            // The grace period below orders it: a pin that it did not wait for sees the mark.
            let marks = self.moves_out_of(from.slot);
            marks.for_each(|moves| _ = moves.fetch_add(1, Ordering::Relaxed));
        }
        self.wait_for_charges();
        Some(())
    }

    /// Takes one mark off the group in `slot`, which may be another group's place by now: marks are counted by place.
    pub(crate) fn end_move(&self, slot: Slot) {
        // Release pairs with the Acquire of `is_moving`.
        let marks = self.moves_out_of(slot);
        marks.for_each(|moves| _ = moves.fetch_sub(1, Ordering::Release));
    }

    /// Charges `frames` to `to` and those above it that are not above `from` too. The caller is pinned.
    pub(crate) fn charge_move(
        &self,
        from: Slot,
        to: Slot,
        frames: u64,
        off: &IrqOff<P>,
    ) -> Result<(), Refusal> {
        let common = self.common(from, to);
        let charge = || self.try_charge_path(to, common, frames);
        let Err(full) = charge() else { return Ok(()) };
        if self.drain_stocks(full, off) > 0 && charge().is_ok() {
            return Ok(());
        }
        Err(Refusal::Full(full))
    }

    /// Uncharges `frames` from `from` and those above it that are not above `to` too.
    pub(crate) fn uncharge_move(&self, from: Slot, to: Slot, frames: u64) {
        self.uncharge_path(from, self.common(from, to), frames);
    }

    /// Counts a frame's move from `owner`, which resolves to lruvec `from`, to the current owner of lruvec `to`. Both groups
    /// live; the caller is pinned.
    pub(crate) fn move_owner(
        &self,
        owner: OwnerIndex,
        from: LruVecIndex,
        to: LruVecIndex,
        frames: u64,
        off: &IrqOff<P>,
    ) {
        let pin = self.epoch.pin();
        self.stats.charged(to, frames as i64, &pin, off);
        match self.owners.standing(owner) {
            Some(Standing::Living(_)) => self.stats.charged(from, -(frames as i64), &pin, off),
            Some(Standing::Inherited(_)) | None => self.owners.put(owner, frames),
        }
    }

    /// The group nearest to both that is at or above both.
    fn common(&self, one: Slot, other: Slot) -> Slot {
        self.path(one)
            .find(|&at| self.is_at_or_below(other, at))
            .unwrap_or(ROOT)
    }
}
