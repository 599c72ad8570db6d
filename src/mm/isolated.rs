//! Folios off their list.
//!
//! Owns: [`Isolated`]. Invariants: holds the isolation's reference; nobody else may link the folio meanwhile. Dropping puts
//! it back on the list its flags name, on its owner's lruvec of that moment.
//! Lock ranks: takes `LruVec` when dropped. Used by: kernels (migration), reclaim.

use core::ops::Deref;

use arrayvec::ArrayVec;

use super::{FolioView, Mm, SplitError, SplitIsolated};
use crate::addr::{FrameRange, Order, Pfn};
use crate::boot::Refused;
use crate::frame::{Flags, FrameNo, State};
use crate::lru::SCAN;
use crate::platform::{IrqOff, Platform};

/// A folio taken off its LRU list; dropping puts it back.
#[must_use = "dropping puts the folio back on its list"]
pub struct Isolated<'m, P: Platform>(FolioView<'m, P>);

impl<'m, P: Platform> Isolated<'m, P> {
    pub(crate) fn new(mm: &'m Mm<P>, frame: FrameNo) -> Self {
        Self(FolioView { mm, frame })
    }

    /// Splits a large folio to which nobody else has a reference into isolated ones of order `to`.
    ///
    /// # Errors
    /// [`SplitError`], together with the folio, of which nothing was changed.
    pub fn split(self, to: Order) -> Result<SplitIsolated<'m, P>, Refused<SplitError, Self>> {
        match self.0.mm.split(self.0.frame, to) {
            Ok(parts) => {
                core::mem::forget(self);
                Ok(SplitIsolated(parts))
            }
            Err(error) => Err(Refused(error, self)),
        }
    }

    /// Lets go without putting it back: the caller takes over the isolation's reference.
    pub(crate) fn into_frame(self) -> FrameNo {
        let frame = self.0.frame;
        core::mem::forget(self);
        frame
    }
}

impl<P: Platform> Mm<P> {
    /// Takes every folio that starts in a range of frames off its list, and gives each to `each`, which may hold no lock of ours
    /// but may sleep. At most 32 frames are looked at between two calls of `each`, and one lruvec's lock is held at a time.
    /// Folios that wait in batches are on no list: [drain](Mm::drain_lru) them first.
    pub fn isolate_range<'m>(&'m self, range: FrameRange, mut each: impl FnMut(Isolated<'m, P>)) {
        let (mut next, end) = self.frames.numbers(range);
        while next < end {
            let isolated = self.isolate_some(&mut next, end);
            isolated.into_iter().for_each(&mut each);
        }
    }

    /// The numbers of a range's frames, half open.
    pub(crate) fn frame_numbers(&self, range: FrameRange) -> (FrameNo, FrameNo) {
        self.frames.numbers(range)
    }

    /// Base frames of the folios in a range that are on lists now.
    pub(crate) fn listed_frames(&self, range: FrameRange) -> u64 {
        let (first, end) = self.frames.numbers(range);
        (first.0..end.0)
            .map(|frame| self.frames.record(FrameNo(frame)).state())
            .filter(|state| state.count() > 0 && state.flags().contains(Flags::LRU))
            .map(State::frames)
            .sum()
    }

    /// First frame of the folio that a frame is in, unless it is that itself.
    pub(crate) fn head_of(&self, pfn: Pfn) -> Option<Pfn> {
        let orders = (1..=Order::MAX.get()).filter_map(Order::new);
        let mut heads = orders.map(|order| (Pfn(pfn.0 & !(order.frames() - 1)), order));
        let head = heads.find(|&(head, order)| {
            let state = self
                .frames
                .number(head)
                .map(|head| self.frames.record(head).state());
            state.is_some_and(|state| state.count() > 0 && state.order() >= order)
        });
        head.map(|(head, _)| head).filter(|&head| head != pfn)
    }

    /// Looks at the next 32 frames before `end`, and moves `next` past them.
    pub(crate) fn isolate_some(
        &self,
        next: &mut FrameNo,
        end: FrameNo,
    ) -> ArrayVec<Isolated<'_, P>, SCAN> {
        let off = IrqOff::new();
        let isolated = self.view().isolate_range(next, end, &off);
        drop(off);
        isolated
            .into_iter()
            .map(|frame| Isolated::new(self, frame))
            .collect()
    }
}

impl<P: Platform> Drop for Isolated<'_, P> {
    fn drop(&mut self) {
        let off = IrqOff::new();
        let dead = self.0.mm.view().put_back(&[self.0.frame], &off);
        self.0.mm.free_dead(&dead, &off);
    }
}

impl<'m, P: Platform> Deref for Isolated<'m, P> {
    type Target = FolioView<'m, P>;
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<P: Platform> core::fmt::Debug for Isolated<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Isolated({:?})", self.0)
    }
}
