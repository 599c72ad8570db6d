//! Scanning the lists of one lruvec.
//!
//! Owns: [`Progress`]; the inactive and the active scan.
//! Invariants: at most 32 folios are in hand at a time; those that stay are back on a list, those that go are freed in
//! bulk, before the next 32 are taken. A hook that panics puts its folios back.
//! Lock ranks: `LruBatch`, `LruVec`, one after the other. Used by: walk.

use arrayvec::ArrayVec;

use super::balance::{Balance, ListSizes, Protected, Split, frames_to_scan, inactive_is_low};
use super::evict::Evict;
use super::verdict::{Look, Tally, Verdict, judge};
use super::walk::{FIRST_PRIORITY, Pass};
use crate::addr::ZoneKind;
use crate::frame::{Flags, FrameNo};
use crate::lru::{Backing, Costs, ListKind, SCAN, Scanned, Swap};
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
    /// The node whose frames are of use, if only one's are.
    pub(super) node: Option<u32>,
    /// Whether the walk is shared with nobody.
    pub(super) alone: bool,
    /// Whether anonymous folios are left alone.
    pub(super) spares_anon: bool,
    /// How much of each list is looked at: its length shifted right by this.
    pub(super) priority: u32,
    /// What is spared no longer.
    pub(super) pass: Pass,
    /// Whether a group was spared, or partly, for what `low` protects.
    pub(super) low_spared: bool,
    /// Base frames of the longest list met at this priority.
    pub(super) longest: u64,
}

/// An lruvec, and the group that it must still belong to.
#[derive(Clone, Copy, Debug)]
struct LruVecOf {
    group: MemcgId,
    index: LruVecIndex,
}

impl Progress {
    /// Nothing done yet.
    pub(super) fn new(root: MemcgId, highest: ZoneKind, target: u64) -> Self {
        Self {
            root,
            highest,
            target,
            freed: 0,
            scanned: 0,
            objects: 0,
            node: None,
            alone: false,
            spares_anon: false,
            priority: FIRST_PRIORITY,
            pass: Pass::Gentle,
            low_spared: false,
            longest: 0,
        }
    }

    pub(super) fn left(&self) -> u64 {
        self.target.saturating_sub(self.freed)
    }
}

/// One backing's part of a round over an lruvec.
#[derive(Clone, Copy, Debug)]
struct Part {
    backing: Backing,
    /// Base frames still to be looked at.
    left: u64,
    tally: Tally,
}

impl<P: Evict> Mm<P> {
    /// Scans a group's lruvec on one node at the given priority, as long as the group is in the tree.
    pub(super) fn shrink_lruvec(
        &self,
        group: MemcgId,
        node: u32,
        protected: Protected,
        progress: &mut Progress,
    ) {
        let lruvec = LruVecOf {
            group,
            index: self.memcgs().lruvec_of(group.slot, node),
        };
        let mut parts = self.parts(lruvec, protected, progress);
        while progress.left() > 0 {
            // Never takes more in hand than are wanted: what is freed beyond the target would be faulted in again.
            let sum = parts.iter().map(|part| part.left).sum::<u64>();
            let batch = sum.min(SCAN as u64).min(progress.left());
            for part in &mut parts {
                let share = u128::from(batch) * u128::from(part.left);
                let want = share.div_ceil(u128::from(sum.max(1))) as u64;
                let want = want.min(progress.left());
                if want > 0 {
                    let scanned = self.shrink_inactive(lruvec, want as u32, progress, part);
                    part.left = if scanned == 0 { 0 } else { part.left - want };
                }
            }
            if parts.iter().all(|part| part.left == 0) {
                break;
            }
        }
        for part in parts {
            // Once for the list, not for each 32: it takes the lock of every group above.
            let (written, stayed, off) = (part.tally.written, part.tally.stayed, IrqOff::new());
            let view = self.view();
            view.add_cost(lruvec.index, part.backing, written, stayed, &off);
            view.count_lapsed(lruvec.index, part.tally.lapsed, &off);
        }
    }

    /// What is to be looked at of each backing. Makes active folios inactive where those are few, if the policy has that done by
    /// scans.
    fn parts(&self, lruvec: LruVecOf, protected: Protected, progress: &mut Progress) -> [Part; 2] {
        let (sizes, costs) = self.sizes(lruvec.index, progress.highest);
        let inactive = |backing| sizes[ListKind::inactive(backing) as usize];
        let active = |backing| sizes[ListKind::active(backing) as usize];
        let by_scan = self.policy().deactivates();
        for backing in [Backing::Anon, Backing::File] {
            let (inactive, active) = (inactive(backing), active(backing));
            let longest = match by_scan {
                true => inactive.max(active),
                false => inactive + active,
            };
            progress.longest = progress.longest.max(longest);
        }
        let deactivates = |backing| {
            progress.pass >= Pass::Deactivate
                || inactive_is_low(inactive(backing), active(backing), P::PAGE_SHIFT)
        };
        let balance = Balance {
            swap: if progress.spares_anon {
                Swap::Full
            } else {
                P::swap()
            },
            swappiness: self.swappiness(),
            priority: progress.priority,
            of_group: progress.root != MemcgId::ROOT,
            file_deactivates: deactivates(Backing::File),
        };
        let split = Split::new(&sizes, costs, &balance);
        let ending = !self.memcgs().is_live(lruvec.group);
        [Backing::Anon, Backing::File].map(|backing| {
            let part = |size| {
                let frames = frames_to_scan(size, protected, progress.priority, ending);
                split.part(frames, backing, ending)
            };
            let (mut reach, active) = (inactive(backing), active(backing));
            if !by_scan {
                reach += active;
            } else if reach + active > 0 && deactivates(backing) {
                // What was deactivated counts: or the last folios of a list would be out of a round's reach.
                reach += self.shrink_active(lruvec, backing, part(active), progress);
            }
            Part {
                backing,
                left: part(reach),
                tally: Tally::default(),
            }
        })
    }

    /// Scans up to `want` folios from an inactive list's old end. Returns how many were looked at.
    fn shrink_inactive(
        &self,
        lruvec: LruVecOf,
        want: u32,
        progress: &mut Progress,
        part: &mut Part,
    ) -> u32 {
        let (list, tally) = (ListKind::inactive(part.backing), &mut part.tally);
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
        if !folio.record().flags().contains(Flags::ACTIVE) {
            folio.record().set(Flags::ACTIVE);
            folio.count_activation();
        }
        kept.push(folio);
    }

    /// Moves up to `want` folios from an active list's old end to the inactive one. Returns base frames moved.
    fn shrink_active(
        &self,
        lruvec: LruVecOf,
        backing: Backing,
        want: u64,
        progress: &Progress,
    ) -> u64 {
        let (mut left, mut moved) = (want, 0);
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
                moved += folio.order().frames();
            }
            self.put_back_all(in_hand);
            left = left.saturating_sub(u64::from(scanned));
        }
        moved
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

    /// Base frames on each list, in zones up to `highest`, and what reclaim of them cost lately.
    fn sizes(&self, lruvec: LruVecIndex, highest: ZoneKind) -> (ListSizes, Costs) {
        let off = IrqOff::new();
        let sizes = self.view().lock_index(lruvec, &off).map(|held| {
            let size = |list| held.lruvec.frames_up_to(list, highest);
            (ListKind::ALL.map(size), held.lruvec.costs)
        });
        sizes.unwrap_or_default()
    }
}
