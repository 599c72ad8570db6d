//! A folio's life goes on in other frames.
//!
//! Owns: [`Frozen`], an isolated folio that nobody can reach; its move to a new block.
//! Invariants: the new frames, of the same node, take over owner, flags and word, so no charge changes: there are as many charged frames as before. A
//! frozen folio is thawed, and put back, if it is dropped.
//! Lock ranks: takes `Shard` when the old frames go. Used by: reclaim (compaction).

use super::{Isolated, Mm};
use crate::addr::Order;
use crate::frame::FrameNo;
use crate::platform::{IrqOff, Platform};
use crate::zone::Block;

/// References of an isolated folio that nothing else uses.
const ISOLATION: u32 = 1;

/// An isolated folio without references but the isolation's, which is frozen: nobody can take one.
#[must_use = "dropping it puts the folio back"]
#[derive(Debug)]
pub(crate) struct Frozen<'m, P: Platform> {
    mm: &'m Mm<P>,
    frame: FrameNo,
}

impl<'m, P: Platform> Isolated<'m, P> {
    /// Freezes the references if nobody else has one.
    pub(crate) fn freeze(self) -> Result<Frozen<'m, P>, Self> {
        if !self.record().freeze(ISOLATION) {
            return Err(self);
        }
        let mm = self.mm();
        Ok(Frozen {
            mm,
            frame: self.into_frame(),
        })
    }
}

impl<'m, P: Platform> Frozen<'m, P> {
    /// Gives the references back.
    pub(crate) fn thaw(self) -> Isolated<'m, P> {
        let (mm, frame) = (self.mm, self.frame);
        core::mem::forget(self);
        mm.frames.record(frame).thaw(ISOLATION);
        Isolated::new(mm, frame)
    }

    /// Lets the block stand for the folio, and frees its old frames. The block is as large as the folio. `Err` gives both back if
    /// the block's frames have no records.
    pub(crate) fn move_to(self, block: Block) -> Result<Isolated<'m, P>, (Self, Block)> {
        let Some(to) = self.mm.frames.number(block.pfn()) else {
            return Err((self, block));
        };
        let (mm, from) = (self.mm, self.frame);
        let Some(zone) = mm.alloc.zone_of(block.pfn()) else {
            return Err((self, block));
        };
        core::mem::forget(self);
        let (_, order) = block.into_parts(); // the record stands for it now
        let (old, new) = (mm.frames.record(from), mm.frames.record(to));
        new.set_note(old.note());
        new.birth_moved(old, order, ISOLATION, zone);
        old.set_owner(None);
        let freed = Block::new(mm.frames.pfn(from), order);
        mm.alloc.give_to_zone(freed, &IrqOff::new());
        Ok(Isolated::new(mm, to))
    }

    /// What the kernel's copy needs to know: first frame, order, word.
    pub(crate) fn parts(&self) -> (crate::addr::Pfn, Order, u64) {
        let record = self.mm.frames.record(self.frame);
        (
            self.mm.frames.pfn(self.frame),
            record.order(),
            record.word(),
        )
    }
}

impl<P: Platform> Drop for Frozen<'_, P> {
    fn drop(&mut self) {
        // Only a hook that panics leaves it to this.
        self.mm.frames.record(self.frame).thaw(ISOLATION);
        drop(Isolated::new(self.mm, self.frame));
    }
}
