//! Finding a frame's lruvec: look up, lock, look again.
//!
//! Owns: [`View::lock`] and [`View::relock`].
//! Invariants: while an lruvec's lock is held, no owner that resolves to it can come to resolve elsewhere (reparenting holds
//! that lock), so a lookup that agrees after the lock was taken stays right until the lock is dropped. Lruvecs and owner
//! slots are type-stable: locking the wrong one is harmless.
//! Lock ranks: takes `LruVec`. Used by: every module that links or unlinks a frame.

use super::View;
use super::lruvec::LruVec;
use crate::frame::FrameNo;
use crate::memcg::LruVecIndex;
use crate::platform::{IrqOff, Platform};
use crate::sync::Held;

/// A locked lruvec, and which one it is.
pub(crate) struct Locked<'a, P: Platform> {
    pub(crate) index: LruVecIndex,
    pub(crate) lruvec: Held<'a, LruVec, P>,
}

impl<'a, P: Platform> View<'a, P> {
    /// Locks the lruvec that `frame` belongs to. `None` if it is not charged to anyone.
    pub(crate) fn lock(self, frame: FrameNo, off: &'a IrqOff<P>) -> Option<Locked<'a, P>> {
        loop {
            let index = self.lruvec_of(frame)?;
            let locked = self.lock_index(index, off)?;
            // Without this second look a reparent or a move between lookup and lock links the frame on a list that is not its own.
            if self.lruvec_of(frame) == Some(index) {
                return Some(locked);
            }
            drop(locked);
            P::relax();
        }
    }

    /// Keeps `held` if it is the lruvec of `frame`, else swaps it for the right one: one lock at a time along a batch.
    pub(crate) fn relock(
        self,
        frame: FrameNo,
        held: Option<Locked<'a, P>>,
        off: &'a IrqOff<P>,
    ) -> Option<Locked<'a, P>> {
        match held {
            // The held lock keeps this answer true.
            Some(held) if self.lruvec_of(frame) == Some(held.index) => Some(held),
            held => {
                drop(held);
                self.lock(frame, off)
            }
        }
    }

    /// Locks a lruvec by index.
    pub(crate) fn lock_index(
        self,
        index: LruVecIndex,
        off: &'a IrqOff<P>,
    ) -> Option<Locked<'a, P>> {
        let lruvec = self.lru.vecs.get(index as usize)?.lock(off);
        Some(Locked { index, lruvec })
    }

    /// The lruvec that `frame` belongs to at this moment.
    pub(crate) fn lruvec_of(self, frame: FrameNo) -> Option<LruVecIndex> {
        let record = self.frames.record(frame);
        loop {
            let owner = record.owner();
            let lruvec = self.memcgs.owners().resolve(owner?);
            // A frame that was given another owner meanwhile no longer keeps the old one's slot in use.
            if record.owner() == owner {
                return lruvec;
            }
        }
    }
}
