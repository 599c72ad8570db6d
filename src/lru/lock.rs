//! Finding a frame's lruvec: look up, lock, look again.
//!
//! Owns: [`View::lock`] and [`View::hold`].
//! Invariants: while an lruvec's lock is held, no owner that resolves to it can come to resolve elsewhere (reparenting holds
//! that lock), so a lookup that agrees after the lock was taken stays right until the lock is dropped. Lruvecs and owner
//! slots are type-stable: locking the wrong one is harmless.
//! Lock ranks: takes `LruVec`. Used by: every module that links or unlinks a frame.

use super::View;
use super::lruvec::LruVec;
use crate::frame::{FrameNo, Record};
use crate::memcg::{LruVecIndex, OwnerIndex};
use crate::platform::{IrqOff, Platform};
use crate::sync::Held;

/// A locked lruvec, and which one it is.
pub(crate) struct Locked<'a, P: Platform> {
    pub(crate) index: LruVecIndex,
    /// An owner that resolves to it for as long as it is locked.
    owner: Option<OwnerIndex>,
    pub(crate) lruvec: Held<'a, LruVec, P>,
}

/// Whose lruvec is held.
pub(crate) enum Hold<'h, 'a, P: Platform> {
    /// The frame's.
    Its(&'h mut Locked<'a, P>),
    /// Another's.
    Other,
    /// None: the frame is not charged to anyone.
    Nobodys,
}

/// A frame that is linked, but whose `LRU` was won: when this is dropped, it is as before.
struct Won<'r>(&'r Record);

impl Drop for Won<'_> {
    fn drop(&mut self) {
        self.0.lose();
    }
}

impl<P: Platform> Locked<'_, P> {
    /// Whether frames of this owner belong here, as far as is known without a look at the owner.
    #[inline]
    fn is_of(&self, owner: Option<OwnerIndex>) -> bool {
        owner.is_some() && owner == self.owner
    }
}

impl<'a, P: Platform> View<'a, P> {
    /// Makes `held` the lruvec of `frame`, whose record is given: kept if it is, else swapped, so that one lock is held at a time
    /// along a batch. `None` if the frame is not charged to anyone.
    #[inline]
    pub(crate) fn hold<'h>(
        self,
        held: &'h mut Option<Locked<'a, P>>,
        frame: FrameNo,
        record: &Record,
        off: &'a IrqOff<P>,
    ) -> Option<&'h mut Locked<'a, P>> {
        // The held lock keeps this answer true.
        if !held.as_ref().is_some_and(|held| held.is_of(record.owner())) {
            *held = self.relock(frame, held.take(), off);
        }
        held.as_mut()
    }

    /// As [`hold`](Self::hold), but keeps what is held: `Other` if the frame is not its lruvec's.
    #[inline]
    pub(crate) fn hold_one<'h>(
        self,
        held: &'h mut Option<Locked<'a, P>>,
        frame: FrameNo,
        record: &Record,
        off: &'a IrqOff<P>,
    ) -> Hold<'h, 'a, P> {
        match held {
            None => *held = self.lock(frame, off),
            // The held lock keeps this answer true.
            Some(held) if held.is_of(record.owner()) => {}
            Some(held) if self.lruvec_of(frame) == Some(held.index) => {}
            Some(_) => return Hold::Other,
        }
        held.as_mut().map_or(Hold::Nobodys, Hold::Its)
    }

    /// As [`hold`](Self::hold), for a frame whose `LRU` the caller won: the flag goes back if a port's hook panics before the lock
    /// is held, since the frame is still linked.
    #[inline]
    pub(crate) fn hold_won<'h>(
        self,
        held: &'h mut Option<Locked<'a, P>>,
        frame: FrameNo,
        record: &Record,
        off: &'a IrqOff<P>,
    ) -> Option<&'h mut Locked<'a, P>> {
        let won = Won(record);
        let held = self.hold(held, frame, record, off);
        core::mem::forget(won);
        held
    }

    /// Locks the lruvec that `frame` belongs to. `None` if it is not charged to anyone.
    pub(crate) fn lock(self, frame: FrameNo, off: &'a IrqOff<P>) -> Option<Locked<'a, P>> {
        let record = self.frames.record(frame);
        loop {
            let owner = record.owner()?;
            let index = self.memcgs.owners().resolve(owner)?;
            let mut locked = self.lock_index(index, off)?;
            // Without this second look a reparent or a move between lookup and lock links the frame on a list that is not its own.
            if record.owner() == Some(owner) && self.memcgs.owners().resolve(owner) == Some(index) {
                locked.owner = Some(owner);
                return Some(locked);
            }
            drop(locked);
            P::relax();
        }
    }

    /// Keeps `held` if it is the lruvec of `frame`, else swaps it for the right one.
    fn relock(
        self,
        frame: FrameNo,
        held: Option<Locked<'a, P>>,
        off: &'a IrqOff<P>,
    ) -> Option<Locked<'a, P>> {
        match held {
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
        Some(Locked {
            index,
            owner: None,
            lruvec,
        })
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
