//! Scanning the lists of one lruvec.
//!
//! Owns: the inactive and the active scan, and the balance between them.
//! Invariants: at most 32 folios are in hand at a time; those that stay are back on a list, those that go are freed in
//! bulk, before the next 32 are taken. A hook that panics puts its folios back.
//! Lock ranks: `LruBatch`, `LruVec`, one after the other. Used by: entry.

use arrayvec::ArrayVec;

use super::evict::Evict;
use super::verdict::{Look, Tally, Verdict, judge};
use crate::addr::ZoneKind;
use crate::frame::{Flags, FrameNo};
use crate::lru::{Backing, ListKind, SCAN, Scanned};
use crate::memcg::{LruVecIndex, MemcgId};
use crate::mm::{Isolated, Mm};
use crate::platform::IrqOff;

/// Folios in hand, put back if dropped.
pub(super) type InHand<'m, P> = ArrayVec<Isolated<'m, P>, SCAN>;

/// Frames whose references were frozen; freed together when dropped, also if a later hook panics.
struct Frozen<'m, P: Evict> {
    mm: &'m Mm<P>,
    frames: Scanned,
}

impl<P: Evict> Drop for Frozen<'_, P> {
    fn drop(&mut self) {
        self.mm.free_dead(&self.frames, &IrqOff::new());
    }
}

/// What is still to be done, and what was done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// The group whose limit, or whose share of the machine, is in the way.
    pub(super) root: MemcgId,
    /// The highest zone whose frames are of use.
    pub(super) highest: ZoneKind,
    /// Base frames to free.
    pub(super) target: u64,
    /// Base frames freed.
    pub(super) freed: u64,
    /// Folios looked at.
    pub(super) scanned: u64,
    /// Objects that shrinkers freed, as they said.
    pub(super) objects: u64,
    /// How much of each list is looked at: its length shifted right by this.
    pub(super) priority: u32,
    /// Whether active lists are scanned even if the inactive ones are long enough.
    pub(super) force_deactivate: bool,
}

/// An lruvec, and the group that it must still belong to.
#[derive(Clone, Copy, Debug)]
struct LruVecOf {
    group: MemcgId,
    index: LruVecIndex,
}

impl Progress {
    pub(super) fn left(&self) -> u64 {
        self.target.saturating_sub(self.freed)
    }
}

impl<P: Evict> Mm<P> {
    /// Scans a group's lruvec on one node at the given priority, as long as the group is in the tree.
    pub(super) fn shrink_lruvec(&self, group: MemcgId, node: u32, progress: &mut Progress) {
        let lruvec = LruVecOf {
            group,
            index: self.memcgs().lruvec_of(group.slot, node),
        };
        for backing in [Backing::Anon, Backing::File] {
            let (mut inactive, active) = self.sizes(lruvec.index, backing, progress.highest);
            if progress.force_deactivate || inactive_is_low(inactive, active, P::PAGE_SHIFT) {
                self.shrink_active(lruvec, backing, active >> progress.priority, progress);
                // What was deactivated counts: or the last folios of a list would be out of a round's reach.
                (inactive, _) = self.sizes(lruvec.index, backing, progress.highest);
            }
            let mut tally = Tally::default();
            let mut left = inactive >> progress.priority;
            while left > 0 && progress.left() > 0 {
                // Never takes more in hand than are wanted: what is freed beyond the target would be faulted in again.
                let want = left.min(SCAN as u64).min(progress.left());
                if self.shrink_inactive(lruvec, backing, want as u32, progress, &mut tally) == 0 {
                    break;
                }
                left = left.saturating_sub(want);
            }
            // Once for the list, not for each 32: it takes the lock of every group above.
            let (written, stayed, off) = (tally.written, tally.stayed, IrqOff::new());
            self.view()
                .add_cost(lruvec.index, backing, written, stayed, &off);
        }
    }

    /// Scans up to `want` folios from an inactive list's old end. Returns how many were looked at.
    fn shrink_inactive(
        &self,
        lruvec: LruVecOf,
        backing: Backing,
        want: u32,
        progress: &mut Progress,
        tally: &mut Tally,
    ) -> u32 {
        let list = ListKind::inactive(backing);
        let (in_hand, scanned) = self.take_tail(lruvec, list, want, progress.highest);
        progress.scanned += u64::from(scanned);
        let mut freed = Frozen {
            mm: self,
            frames: Scanned::new(),
        };
        let (mut kept, mut started) = (InHand::new(), InHand::new());
        for folio in in_hand {
            match judge(folio, Look::First, tally) {
                Verdict::Free(frame) => self.let_go(frame, &mut freed, progress),
                Verdict::Started(folio) => started.push(folio),
                Verdict::Keep(folio) => kept.push(folio),
                Verdict::Activate(folio) => self.keep_active(folio, &mut kept),
            }
        }
        for folio in started {
            // What ended while it was isolated could not rotate the folio: nobody would, so it is looked at again, once.
            if folio.is_writeback() {
                kept.push(folio);
                continue;
            }
            match judge(folio, Look::Written, tally) {
                Verdict::Free(frame) => self.let_go(frame, &mut freed, progress),
                Verdict::Started(folio) | Verdict::Keep(folio) => kept.push(folio),
                Verdict::Activate(folio) => self.keep_active(folio, &mut kept),
            }
        }
        for folio in &kept {
            tally.stayed += folio.order().frames();
        }
        self.put_back_all(kept);
        drop(freed);
        scanned
    }

    /// Hands a frozen folio's shadow to the kernel, and takes it out of the reckoning.
    fn let_go(&self, frame: FrameNo, freed: &mut Frozen<'_, P>, progress: &mut Progress) {
        let gone = self.evicted(frame, progress.root);
        progress.freed += gone.order.frames();
        freed.frames.push(frame); // before the hook, which may panic
        P::evicted(self, &gone);
    }

    fn keep_active<'m>(&self, folio: Isolated<'m, P>, kept: &mut InHand<'m, P>) {
        folio.record().set(Flags::ACTIVE);
        self.age_by(&folio);
        kept.push(folio);
    }

    /// Moves up to `want` folios from an active list's old end to the inactive one.
    fn shrink_active(&self, lruvec: LruVecOf, backing: Backing, want: u64, progress: &Progress) {
        let mut left = want;
        while left > 0 {
            let (in_hand, scanned) = self.take_tail(
                lruvec,
                ListKind::active(backing),
                left.min(SCAN as u64) as u32,
                progress.highest,
            );
            if scanned == 0 {
                break;
            }
            for folio in &in_hand {
                // Clears the accessed bits: a use from now on, on the inactive list, is what saves it.
                P::referenced(folio);
                folio.record().clear(Flags::ACTIVE);
                folio.record().set(Flags::WORKINGSET);
            }
            self.put_back_all(in_hand);
            left = left.saturating_sub(u64::from(scanned));
        }
    }

    /// Isolates up to `want` folios from a list's old end: those, and how many entries were looked at.
    fn take_tail(
        &self,
        lruvec: LruVecOf,
        kind: ListKind,
        want: u32,
        highest: ZoneKind,
    ) -> (InHand<'_, P>, u32) {
        let off = IrqOff::new();
        // A hook, or another thread, may have ended the group, and its lists may be another group's now.
        let take = || {
            self.view()
                .isolate_tail(lruvec.index, kind, want, highest, &off)
        };
        let tail = self
            .memcgs()
            .while_still(lruvec.group, take)
            .unwrap_or_default();
        (
            tail.isolated
                .into_iter()
                .map(|frame| Isolated::new(self, frame))
                .collect(),
            tail.scanned,
        )
    }

    /// Puts folios back under as few holds as their lruvecs need.
    pub(super) fn put_back_all(&self, kept: InHand<'_, P>) {
        let frames: ArrayVec<FrameNo, SCAN> = kept.into_iter().map(Isolated::into_frame).collect();
        let off = IrqOff::new();
        let dead = self.view().put_back(&frames, &off);
        self.free_dead(&dead, &off);
    }

    /// Base frames on the inactive and the active list, in zones up to `highest`.
    fn sizes(&self, lruvec: LruVecIndex, backing: Backing, highest: ZoneKind) -> (u64, u64) {
        let off = IrqOff::new();
        let sizes = self.view().lock_index(lruvec, &off).map(|held| {
            let size = |list| held.lruvec.frames_up_to(list, highest);
            (
                size(ListKind::inactive(backing)),
                size(ListKind::active(backing)),
            )
        });
        sizes.unwrap_or_default()
    }
}

/// Whether the inactive list is too short for folios to prove themselves on: inactive × ratio < active, with
/// ratio = ⌊√(10 × size in GiB)⌋, at least 1 (reclaim.md 3.2).
fn inactive_is_low(inactive: u64, active: u64, page_shift: u32) -> bool {
    let gib = (inactive + active) >> (30 - page_shift);
    let ratio = (10 * gib).isqrt().max(1);
    inactive * ratio < active
}

#[cfg(test)]
mod tests {
    use super::inactive_is_low;

    #[test]
    fn the_inactive_share_shrinks_with_the_square_root_of_the_size() {
        // reclaim.md 3.2: at 1 GiB a third may be inactive, at 10 GiB a tenth, at 1 TiB a hundred-and-first.
        for (gib, ratio) in [(0, 1), (1, 3), (4, 6), (10, 10), (100, 31), (1024, 101)] {
            let frames = (gib << 18).max(2560);
            let edge = frames / (ratio + 1);
            assert!(
                inactive_is_low(edge - 1, frames - edge + 1, 12),
                "{gib} GiB"
            );
            assert!(
                !inactive_is_low(edge + 1, frames - edge - 1, 12),
                "{gib} GiB"
            );
        }
    }
}
