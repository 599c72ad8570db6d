//! Owner slots of dead groups, taken back while frames still name them.
//!
//! Owns: [`Mm::reown`]; when it runs.
//! Invariants: a frame that is given its living group's owner slot belongs to the same lruvec before and after: it changes
//! under that lruvec's lock, with a reference held.
//! Lock ranks: `LruVec`, one frame at a time. Used by: groups.

use super::Mm;
use crate::frame::{FrameNo, Put};
use crate::lru::View;
use crate::memcg::Standing;
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::Ordering;

/// Records looked at in one go.
const BATCH: usize = 4096;

/// Where a batch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Looked {
    /// Before the last record.
    Batch,
    /// At the last record: the next batch begins with the first.
    ToTheEnd,
}

impl<P: Platform> Mm<P> {
    /// Looks at some frames, and gives those of dead groups to the living group that they belong to by now.
    pub(super) fn reown(&self) -> Looked {
        let from = FrameNo(self.reown_from.load(Ordering::Relaxed));
        let mut last = None;
        for (frame, record) in self.frames.iter_from(from).take(BATCH) {
            last = Some(frame);
            let inherited = record.owner().is_some_and(|owner| {
                let standing = self.memcgs.owners().standing(owner);
                matches!(standing, Some(Standing::Inherited(_)))
            });
            // The reference keeps the frame, and with it the old owner's slot.
            if inherited && record.try_get() {
                let off = IrqOff::new();
                self.view().reown(frame, &off);
                if record.put() == Put::Last {
                    self.free_dead(&[frame], &off);
                }
            }
        }
        let next = last.map(|last| FrameNo(last.0 + 1));
        let more = next.filter(|&next| self.frames.iter_from(next).next().is_some());
        // Only a hint: batches that run at once look at some frames twice.
        self.reown_from
            .store(more.map_or(0, |next| next.0), Ordering::Relaxed);
        match more {
            Some(_) => Looked::Batch,
            None => Looked::ToTheEnd,
        }
    }

    /// Looks at every frame.
    pub(super) fn reown_all(&self) {
        self.reown_from.store(0, Ordering::Relaxed);
        // Batches of other threads move the cursor too; together they cover what is between.
        for _ in 0..=self.frames.len() / BATCH {
            if self.reown() == Looked::ToTheEnd {
                break;
            }
        }
    }
}

impl<P: Platform> View<'_, P> {
    /// Gives a frame, to which the caller holds a reference, the owner slot of the group that it belongs to.
    fn reown(self, frame: FrameNo, off: &IrqOff<P>) {
        // Pinned: if that group ends, what is counted for it here is counted before it is settled.
        let _pin = self.memcgs.pin();
        let record = self.frames.record(frame);
        let Some(held) = self.lock(frame, off) else {
            return;
        };
        let (Some(owner), Some(next)) = (record.owner(), self.memcgs.current_at(held.index)) else {
            return;
        };
        if owner != next {
            record.set_owner(Some(next));
            // After the frame names it no more: its slot may be free from here on.
            let frames = record.order().frames();
            self.memcgs
                .move_owner(owner, held.index, held.index, frames, off);
        }
    }
}
