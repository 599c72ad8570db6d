//! Large folios into smaller ones.
//!
//! Owns: [`View::split`]. Invariants: the caller froze the folio's references, so nobody takes it off its list or moves it. Sizes are
//! base frames, so a split changes none. The tails are linked next to their head before they have references: until then a
//! scan that meets one takes it for a dying frame and passes over it.
//! Lock ranks: `LruVec`, for constant time. Used by: mm.

use super::{ListKind, View};
use crate::addr::Order;
use crate::frame::{Flags, FrameList, FrameNo};
use crate::platform::{IrqOff, Platform};

impl<P: Platform> View<'_, P> {
    /// Makes folios of order `to` of one larger folio whose references are frozen, each with `references`. All are where the
    /// large one was: next to each other on its list, among the unevictable frames, or on no list.
    pub(crate) fn split(self, head: FrameNo, to: Order, references: u32, off: &IrqOff<P>) {
        let record = self.frames.record(head);
        let whole = record.state();
        let count = (whole.frames() >> to.get()) as u32;
        let step = to.frames() as u32;
        let tails = || (1..count).map(|i| FrameNo(head.0 + i * step));
        let flags = whole.flags();
        if flags.contains(Flags::LRU) && !flags.contains(Flags::UNEVICTABLE) {
            let mut chain = FrameList::default();
            for tail in tails() {
                // Named before it is linked: whoever meets it there may ask whose it is.
                let tail_record = self.frames.record(tail);
                tail_record.set_owner(record.owner());
                chain.push_back(self.frames, tail, tail_record);
            }
            if let Some(mut held) = self.lock(head, off) {
                record.set_order(to);
                let list = held.lruvec.list_mut(ListKind::of(flags));
                list.splice_behind(self.frames, head, &mut chain);
            }
        } else {
            record.set_order(to);
        }
        for tail in tails() {
            let tail = self.frames.record(tail);
            tail.set_mlocks(record.mlocks());
            tail.birth_like(record, to, references);
        }
        record.thaw(references);
    }
}
