//! Folios by state: mapped, dirty, being written, and what a kernel adds.
//!
//! Owns: changing a folio's state together with its group's count of it.
//! Invariants: a state's bit and the count of the folio's lruvec change together, once for each change of the bit. While
//! charges move out of a group, both change only under its lruvec's lock.
//! Lock ranks: none, or `LruVec` while a move out of the folio's group runs. Used by: kernels, mm (moves, frees), reclaim.
//!
//! Without a lock: pin; read the owner; see that nothing moves out of its group; **read the owner again**. A move marks the
//! group and waits a grace period before it moves a first frame, so it waits for whoever saw no mark. That leaves one who
//! starts after the grace period, reads the old owner, and stalls until the move is over and the mark is gone: only the
//! second look tells it that the frame is somebody else's by now.

use super::FolioView;
use crate::frame::{Flags, FrameNo};
use crate::lru::View;
use crate::memcg::PageState;
use crate::platform::{IrqOff, Platform};
use crate::sync::twin::left_out;

/// What happens to a folio's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateChange {
    /// It is in the state from now on.
    Enter,
    /// It no longer is.
    Leave,
}

impl<P: Platform> FolioView<'_, P> {
    /// Puts the folio into a state or takes it out, and counts it in its group. Says whether that changed anything.
    ///
    /// Takes no lock unless charges are being moved out of the group.
    #[inline]
    pub fn account(&self, state: PageState, change: StateChange) -> bool {
        self.mm
            .view()
            .account(self.frame, state, change, &IrqOff::new())
    }

    /// Brings a state in line with what the kernel counts itself, such as mappings: `is_in` is asked again after each
    /// change, so that two threads whose changes cross leave the state that their last count calls for.
    ///
    /// The kernel changes its count first, atomically, and then calls this.
    pub fn account_by(&self, state: PageState, mut is_in: impl FnMut() -> bool) {
        let mut wanted = is_in();
        loop {
            let change = if wanted {
                StateChange::Enter
            } else {
                StateChange::Leave
            };
            self.account(state, change);
            // A bit that follows a count is right only if the count is looked at after the bit was written.
            let now = is_in();
            if now == wanted {
                return;
            }
            wanted = now;
        }
    }

    /// Whether it is in a state.
    #[must_use]
    pub fn is_in(&self, state: PageState) -> bool {
        self.record()
            .flags()
            .contains(Flags::of_state(state.index()))
    }
}

impl<P: Platform> View<'_, P> {
    /// Changes a state of a frame to which the caller holds a reference, or which nobody can reach any more.
    #[inline]
    pub(crate) fn account(
        self,
        frame: FrameNo,
        state: PageState,
        change: StateChange,
        off: &IrqOff<P>,
    ) -> bool {
        let record = self.frames.record(frame);
        // Pinned: a move that has not begun waits, and so does the end of the group.
        let pin = self.memcgs.pin();
        let mut held = None;
        let lruvec = loop {
            let owner = record.owner();
            let lruvec = owner.and_then(|owner| self.memcgs.owners().resolve(owner));
            let Some(lruvec) = lruvec else {
                if record.owner() == owner {
                    debug_assert!(false, "only charged frames have states");
                    return false;
                }
                continue; // it got another owner, and the old one's slot is free
            };
            if !self.memcgs.is_moving(lruvec) {
                let left_out = left_out::<P>("account: the second look at the owner");
                if left_out || record.owner() == owner {
                    break lruvec;
                }
            } else {
                held = self.lock(frame, off);
                if let Some(held) = &held {
                    break held.index;
                }
            }
        };
        // Orders 0 to 18: a frame count fits.
        let frames = record.state().frames() as i32;
        let (changed, frames) = match change {
            StateChange::Enter => (record.enter_state(state.index()), frames),
            StateChange::Leave => (record.leave_state(state.index()), -frames),
        };
        if changed {
            self.memcgs.add_state(lruvec, state, frames, &pin, off);
        }
        drop(held);
        changed
    }

    /// Takes a dying frame out of the states that it was left in.
    pub(crate) fn leave_states(self, frame: FrameNo, off: &IrqOff<P>) {
        for state in PageState::ALL {
            self.account(frame, state, StateChange::Leave, off);
        }
    }
}
