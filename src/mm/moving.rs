//! Moving charged folios from one living group to another.
//!
//! Owns: [`Moving`]; the order of one folio's move.
//! Invariants: a folio's owner changes under its old lruvec's lock, and only while the mover has it off its list, or it was
//! never on one. Its states move with it, under the same lock. Counters are charged before and uncharged after, so a group is never
//! short of a frame that is charged to it.
//! Lock ranks: `LruVec`, `MemcgStock`, one at a time; waits for a grace period holding none. Used by: kernels.

use core::fmt;

use super::{Folio, Mm, NoSuchGroup};
use crate::frame::{Flags, FrameNo};
use crate::lru::View;
use crate::memcg::{LruVecIndex, MemcgId, PageState, Refusal};
use crate::platform::{IrqOff, Platform};
use crate::sync::twin::left_out;

/// A move of charges out of a group. While it lives, changes of state of that group's folios take a lock.
#[must_use = "a move ends when this is dropped"]
#[derive(Debug)]
pub struct Moving<'m, P: Platform> {
    mm: &'m Mm<P>,
    from: MemcgId,
    to: MemcgId,
}

/// Why a folio was not moved. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MoveError {
    /// One of the two groups ended.
    Gone(NoSuchGroup),
    /// It is not charged to the group that the move is out of.
    NotInGroup,
    /// The group it would move to, or one above that, is at its limit.
    Full {
        /// The group whose limit was hit; `None` if it was removed meanwhile.
        limited: Option<MemcgId>,
    },
    /// It waits in a CPU's batch, or someone has isolated it: drain, or try again.
    Busy,
    /// It belongs to another instance.
    Foreign,
}

impl<P: Platform> Mm<P> {
    /// Begins to move charges from one group to another. Waits for a grace period: not for interrupt handlers.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn begin_move(&self, from: MemcgId, to: MemcgId) -> Result<Moving<'_, P>, NoSuchGroup> {
        self.memcgs.max(to).ok_or(NoSuchGroup(to))?;
        // What waits in a batch cannot be moved.
        self.drain_lru();
        self.memcgs.begin_move(from).ok_or(NoSuchGroup(from))?;
        Ok(Moving { mm: self, from, to })
    }
}

impl<P: Platform> Moving<'_, P> {
    /// Moves one folio.
    ///
    /// # Errors
    /// [`MoveError`], with nothing changed.
    pub fn folio(&self, folio: &Folio<'_, P>) -> Result<(), MoveError> {
        if !core::ptr::eq(folio.mm(), self.mm) {
            return Err(MoveError::Foreign);
        }
        let off = IrqOff::new();
        self.mm
            .view()
            .move_charge(folio.frame, self.from, self.to, &off)
    }
}

impl<P: Platform> Drop for Moving<'_, P> {
    fn drop(&mut self) {
        self.mm.memcgs.end_move(self.from.slot);
    }
}

impl<P: Platform> View<'_, P> {
    /// Moves a frame, to which the caller holds a reference, between groups. The move out of `from` has begun.
    pub(crate) fn move_charge(
        self,
        frame: FrameNo,
        from: MemcgId,
        to: MemcgId,
        off: &IrqOff<P>,
    ) -> Result<(), MoveError> {
        // Pinned: groups that are seen alive stay so, and are reparented to nobody, until this frame is moved.
        let _pin = self.memcgs.pin();
        for id in [from, to] {
            if self.memcgs.id_of(id.slot) != Some(id) {
                return Err(MoveError::Gone(NoSuchGroup(id)));
            }
        }
        let lruvec = self.lruvec_of(frame);
        let lruvec = lruvec.filter(|&lruvec| self.memcgs.slot_of(lruvec) == from.slot);
        let lruvec = lruvec.ok_or(MoveError::NotInGroup)?;
        let frames = self.frames.record(frame).order().frames();
        self.memcgs
            .charge_move(from.slot, to.slot, frames, off)
            .map_err(|refusal| match refusal {
                Refusal::Gone => MoveError::Gone(NoSuchGroup(to)),
                Refusal::Full(slot) => MoveError::Full {
                    limited: self.memcgs.id_of(slot),
                },
            })?;
        let next = self.memcgs.lruvec_of(to.slot, lruvec % self.memcgs.nodes());
        let moved = self.take_and_rename(frame, lruvec, next, off);
        match moved {
            Ok(()) => self.memcgs.uncharge_move(from.slot, to.slot, frames),
            // What was charged ahead goes back.
            Err(_) => self.memcgs.uncharge_move(to.slot, from.slot, frames),
        }
        moved
    }

    /// Takes a frame off its list, if it is on one, gives it another owner, and puts it on that one's list.
    fn take_and_rename(
        self,
        frame: FrameNo,
        from: LruVecIndex,
        to: LruVecIndex,
        off: &IrqOff<P>,
    ) -> Result<(), MoveError> {
        // Only who won LRU may let a listed frame change lists. One that was never given to the LRU is on none.
        let listed = self.frames.record(frame).flags().contains(Flags::MEMBER);
        if listed && !self.isolate(frame, off) {
            return Err(MoveError::Busy);
        }
        let renamed = self.rename(frame, listed, from, to, off);
        if listed {
            let dead = self.put_back(&[frame], off);
            debug_assert!(dead.is_empty(), "the caller holds a reference");
        }
        renamed
    }

    /// Gives a frame another owner, and its states with it.
    fn rename(
        self,
        frame: FrameNo,
        listed: bool,
        from: LruVecIndex,
        to: LruVecIndex,
        off: &IrqOff<P>,
    ) -> Result<(), MoveError> {
        let record = self.frames.record(frame);
        let _held = self
            .lock(frame, off)
            .filter(|held| held.index == from)
            .ok_or(MoveError::NotInGroup)?;
        // Given to the LRU since the look at it: whoever links it waits for this lock, or has linked it already.
        if !listed && record.flags().contains(Flags::MEMBER) {
            return Err(MoveError::Busy);
        }
        let frames = record.order().frames();
        let owner = record.owner().ok_or(MoveError::NotInGroup)?;
        let next = self.memcgs.current_at(to).ok_or(MoveError::NotInGroup)?;
        if left_out::<P>("move: states are counted before the new owner is named") {
            record.set_owner(Some(next));
            // Within its bound, loom does not try every place for a switch: here it must.
            #[cfg(loom)]
            loom::thread::yield_now();
        }
        // Before the new owner is named: until then whoever changes a state of this frame waits for the lock held here,
        // from then on it may be counted at the new owner without one.
        let (flags, pin) = (record.flags(), self.memcgs.pin());
        for state in PageState::ALL {
            if flags.contains(Flags::of_state(state.index())) {
                self.memcgs
                    .add_state(from, state, -(frames as i32), &pin, off);
                self.memcgs.add_state(to, state, frames as i32, &pin, off);
            }
        }
        record.set_owner(Some(next));
        // After the frame names it no more: its slot may be free from here on.
        self.memcgs.move_owner(owner, from, to, frames, off);
        Ok(())
    }
}

impl fmt::Display for MoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(gone) => gone.fmt(f),
            Self::NotInGroup => f.write_str("the folio is charged to another group"),
            Self::Full { limited: Some(id) } => write!(f, "the group {id} is at its limit"),
            Self::Full { limited: None } => {
                f.write_str("a group that ended meanwhile was at its limit: try again")
            }
            Self::Busy => f.write_str("the folio waits in a batch, or is isolated: try again"),
            Self::Foreign => f.write_str("the folio is another instance's"),
        }
    }
}

impl core::error::Error for MoveError {}
