//! Last references.
//!
//! Owns: putting references back, one or many; freeing what has none.
//! Invariants: a dead frame leaves its list, its group, and returns to the allocator, in that order. At most 32 frames leave lists
//! under one hold of an lruvec's lock.
//! Lock ranks: takes `LruVec`, then `Pageset`, `Shard`, one after the other. Used by: mm, reclaim, kernels.

use arrayvec::ArrayVec;

use super::{Folio, Mm};
use crate::frame::{Flags, FrameNo, Put, Record};
use crate::lru::SCAN;
use crate::memcg::OwnerIndex;
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering;
use crate::zone::Block;

/// Frames without references, and their records.
type Records<'a> = ArrayVec<(FrameNo, &'a Record), SCAN>;

/// Frames whose last reference was dropped, to be freed together: when there are [`SCAN`], or when this is dropped, also by a caller's
/// iterator that panics.
struct Dying<'m, P: Platform> {
    mm: &'m Mm<P>,
    frames: Records<'m>,
    owners: Owners,
}

impl<P: Platform> Mm<P> {
    /// Drops many references at the price of few: folios whose last one goes leave their lists, their groups and return to the
    /// allocator together, 32 at a time, in order of their lruvecs.
    pub fn release_all<'m>(&'m self, folios: impl IntoIterator<Item = Folio<'m, P>>) {
        let mut dying = Dying {
            mm: self,
            frames: ArrayVec::new(),
            owners: Owners::None,
        };
        for folio in folios {
            if !core::ptr::eq(folio.mm(), self) {
                continue; // another instance's: its drop frees it there
            }
            let frame = folio.0.frame;
            core::mem::forget(folio);
            let record = self.frames.record(frame);
            if self.put_is_last(record) {
                dying.push(frame, record);
            }
        }
    }

    /// Drops one reference; frees the folio with the last.
    #[inline]
    pub(super) fn put(&self, frame: FrameNo) {
        let record = self.frames.record(frame);
        if self.put_is_last(record) {
            self.free_some(&[(frame, record)], &IrqOff::new());
        }
    }

    #[inline]
    fn put_is_last(&self, record: &Record) -> bool {
        match record.put() {
            Put::Shared => false,
            Put::Last => true,
            Put::Refused => {
                self.refused_puts.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    /// Frees frames without references: off their lists, out of their groups, back to the allocator.
    #[inline]
    pub(crate) fn free_dead(&self, dead: &[FrameNo], off: &IrqOff<P>) {
        if !dead.is_empty() {
            self.free_many(dead, off);
        }
    }

    #[inline(never)]
    fn free_many(&self, dead: &[FrameNo], off: &IrqOff<P>) {
        for dead in dead.chunks(SCAN) {
            let records = dead.iter().map(|&frame| (frame, self.frames.record(frame)));
            self.free_some(&records.collect::<Records<'_>>(), off);
        }
    }

    /// Frees at most [`SCAN`] frames.
    fn free_some(&self, dead: &[(FrameNo, &Record)], off: &IrqOff<P>) {
        if dead.is_empty() {
            return;
        }
        self.view().remove_dead(dead, off);
        // One uncharge for a run of frames of one owner.
        let mut run = None;
        let mut uncharge = |next: Option<(u32, u64)>| {
            match (&mut run, next) {
                (Some((owner, frames)), Some((next, more))) if *owner == next => {
                    *frames += more;
                    return;
                }
                (Some((owner, frames)), _) => self.memcgs.uncharge(*owner, *frames, off),
                (None, _) => {}
            }
            run = next;
        };
        for &(frame, record) in dead {
            let state = record.state();
            if let Some(owner) = record.owner() {
                if state.flags().intersects(Flags::STATES) {
                    self.view().leave_states(frame, off);
                }
                record.set_owner(None);
                uncharge(Some((owner, state.frames())));
            }
        }
        uncharge(None);
        let block = |&(frame, record): &(FrameNo, &Record)| {
            Block::new(self.frames.pfn(frame), record.order())
        };
        self.alloc.free_blocks(dead.iter().map(block));
    }
}

impl<'m, P: Platform> Dying<'m, P> {
    #[inline]
    fn push(&mut self, frame: FrameNo, record: &'m Record) {
        self.owners.meet(record.owner());
        self.frames.push((frame, record));
        if self.frames.is_full() {
            self.free();
        }
    }

    fn free(&mut self) {
        // Taken out first: a port's hook that panics must not have them freed again.
        let mut frames = core::mem::take(&mut self.frames);
        if core::mem::replace(&mut self.owners, Owners::None) == Owners::Many {
            let view = self.mm.view();
            frames.sort_unstable_by_key(|&(frame, record)| (view.lruvec_of(frame), record.owner()));
        }
        self.mm.free_some(&frames, &IrqOff::new());
    }
}

impl<P: Platform> Drop for Dying<'_, P> {
    fn drop(&mut self) {
        self.free();
    }
}

/// Whose the frames of a group of dead ones are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owners {
    None,
    One(Option<OwnerIndex>),
    Many,
}

impl Owners {
    #[inline]
    fn meet(&mut self, owner: Option<OwnerIndex>) {
        *self = match *self {
            Self::None => Self::One(owner),
            Self::One(one) if one == owner => return,
            _ => Self::Many,
        };
    }
}
