//! Large folios into smaller ones.
//!
//! Owns: [`View::split`]. Invariants: the folio's references are frozen, so nobody takes it off its list or moves it. Sizes are
//! base frames, so a split changes none. The tails are linked next to their head before they have references: until then a
//! scan that meets one takes it for a dying frame and passes over it.
//! Lock ranks: `LruVec`, for constant time. Used by: mm.

use super::View;
use crate::addr::Order;
use crate::frame::{Flags, FrameList, FrameNo};
use crate::platform::{IrqOff, Platform};
use crate::sync::twin::left_out;

/// The reference of whoever splits, and of each part's holder.
const REFERENCE: u32 = 1;

impl<P: Platform> View<'_, P> {
    /// Makes folios of order `to` of a larger folio to which the caller has the only reference; each gets one. All are where
    /// the large one was: next to each other on its list, among the unevictable frames, or on no list. `Err` says how many
    /// references there are; then nothing was changed.
    pub(crate) fn split(self, head: FrameNo, to: Order, off: &IrqOff<P>) -> Result<(), u32> {
        let record = self.frames.record(head);
        let frozen = if left_out::<P>("split: the only reference is frozen") {
            record.count() == REFERENCE
        } else {
            // From here on nobody can take a reference, so nobody wins LRU.
            record.freeze(REFERENCE)
        };
        if !frozen {
            return Err(record.count());
        }
        let whole = record.state();
        let mut parts = Parts {
            view: self,
            head,
            count: (whole.frames() >> to.get()) as u32,
            order: to,
            split: false,
        };
        if left_out::<P>("split: parts are linked before they have references") {
            parts.give_births();
        }
        let flags = whole.flags();
        if flags.contains(Flags::LRU) && !flags.contains(Flags::UNEVICTABLE) {
            let mut chain = FrameList::default();
            for tail in parts.tails() {
                // Named before it is linked: whoever meets it there may ask whose it is.
                let tail_record = self.frames.record(tail);
                tail_record.set_owner(record.owner());
                chain.push_back(self.frames, tail, tail_record);
            }
            if let Some(mut held) = self.lock(head, off) {
                record.set_order(to);
                let list = held.lruvec.list_of(record);
                let list = held.lruvec.list_mut(list);
                list.splice_behind(self.frames, head, &mut chain);
                parts.split = true;
            }
        } else {
            record.set_order(to);
            parts.split = true;
        }
        Ok(())
    }
}

/// A folio whose references are frozen. When it is dropped, also by a port's lock hook that panics, each part that there is by then gets
/// its reference.
struct Parts<'a, P: Platform> {
    view: View<'a, P>,
    head: FrameNo,
    count: u32,
    order: Order,
    /// Whether it is parts.
    split: bool,
}

impl<P: Platform> Parts<'_, P> {
    fn tails(&self) -> impl Iterator<Item = FrameNo> + use<P> {
        let (head, step) = (self.head.0, self.order.frames() as u32);
        (1..self.count).map(move |i| FrameNo(head + i * step))
    }

    fn give_births(&self) {
        let record = self.view.frames.record(self.head);
        for tail in self.tails() {
            let tail = self.view.frames.record(tail);
            tail.set_note(record.note());
            tail.birth_like(record, self.order, REFERENCE);
        }
    }
}

impl<P: Platform> Drop for Parts<'_, P> {
    fn drop(&mut self) {
        let early = left_out::<P>("split: parts are linked before they have references");
        if self.split && !early {
            self.give_births();
        } else if !self.split {
            // Named ahead, for nothing.
            for tail in self.tails() {
                self.view.frames.record(tail).set_owner(None);
            }
        }
        self.view.frames.record(self.head).thaw(REFERENCE);
    }
}
