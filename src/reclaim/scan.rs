//! Scanning the lists of one lruvec.
//!
//! Owns: [`Progress`]; the inactive and the active scan.
//! Invariants: at most 32 folios are in hand at a time; those that stay are back on a list, those that go are freed in
//! bulk, before the next 32 are taken. A hook that panics puts its folios back.
//! Lock ranks: `LruBatch`, `LruVec`, one after the other. Used by: walk.

use super::balance::{Balance, ListSizes, Protected, Split, frames_to_scan, inactive_is_low};
use super::evict::Evict;
use super::hand::{Gone, InHand};
use super::verdict::{Look, Tally, Verdict, judge};
use super::walk::{FIRST_PRIORITY, Pass};
use crate::addr::ZoneKind;
use crate::frame::Flags;
use crate::lru::{Backing, Costs, ListKind, SCAN, Swap};
use crate::memcg::{LruVecIndex, MemcgId};
use crate::mm::{Isolated, Mm};
use crate::platform::IrqOff;

/// Folios taken in hand at once for each that is still wanted. With more, more go back unseen; with fewer, more holds are made.
const LOOKS_AT_ONCE: u64 = 3;

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
    /// Base frames on inactive lists met at this priority.
    pub(super) inactive: u64,
    /// Folios that were still being written when they came round again.
    pub(super) waits: u64,
    /// Whether the machine's files would not make good its shortage.
    pub(super) file_is_tiny: bool,
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
            inactive: 0,
            waits: 0,
            file_is_tiny: false,
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
            let sum = parts.iter().map(|part| part.left).sum::<u64>();
            let batch = sum.min(SCAN as u64).min(progress.left() * LOOKS_AT_ONCE);
            for part in &mut parts {
                let share = u128::from(batch) * u128::from(part.left);
                let want = share.div_ceil(u128::from(sum.max(1))) as u64;
                if want > 0 && progress.left() > 0 {
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
            progress.waits += part.tally.waits;
            let (tally, view, off) = (&part.tally, self.view(), IrqOff::new());
            view.add_cost(
                lruvec.index,
                part.backing,
                tally.written,
                tally.stayed,
                &off,
            );
            view.count_looks(lruvec.index, tally.scanned, tally.refilled, &off);
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
            progress.inactive += inactive;
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
            anon_deactivates: deactivates(Backing::Anon),
            file_is_tiny: progress.file_is_tiny,
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
        let mut in_hand = InHand::unseen(self);
        let scanned = self.take_tail(lruvec, list, want, progress.highest, &mut in_hand);
        // Dropped in reverse order: those that stay first.
        let node = lruvec.index % self.memcgs().nodes();
        let isolated = in_hand.len() as u64;
        let mut gone = Gone::new(self, progress.root, node);
        let (mut kept, mut started) = (InHand::seen(self), InHand::seen(self));
        // What is freed beyond the target would be faulted in again.
        while progress.left() > 0
            && let Some(folio) = in_hand.next()
        {
            match judge(folio, Look::First, tally) {
                Verdict::Free(frame) => progress.freed += gone.let_go(frame),
                Verdict::Started(folio) => started.push(folio),
                Verdict::Keep(folio) => kept.push(folio),
                Verdict::Activate(folio) => keep_active(folio, &mut kept),
            }
        }
        for folio in started {
            // What ended while it was isolated could not rotate the folio: nobody would, so it is looked at again, once.
            if folio.is_writeback() {
                kept.push(folio);
                continue;
            }
            match judge(folio, Look::Written, tally) {
                Verdict::Free(frame) => progress.freed += gone.let_go(frame),
                Verdict::Started(folio) | Verdict::Keep(folio) => kept.push(folio),
                Verdict::Activate(folio) => keep_active(folio, &mut kept),
            }
        }
        let stayed = |&frame| self.frozen(frame).order().frames();
        tally.stayed += kept.iter().map(stayed).sum::<u64>();
        progress.scanned += u64::from(scanned) - in_hand.len() as u64;
        // What could not be won was looked at too.
        tally.scanned += u64::from(scanned) - isolated;
        scanned
    }

    /// Moves up to `want` folios from an active list's old end to the inactive one. Returns base frames moved.
    fn shrink_active(
        &self,
        lruvec: LruVecOf,
        backing: Backing,
        want: u64,
        progress: &Progress,
    ) -> u64 {
        let (mut left, mut moved, mut refilled) = (want, 0, 0);
        while left > 0 {
            let mut in_hand = InHand::unseen(self);
            let (list, some) = (ListKind::active(backing), left.min(SCAN as u64) as u32);
            let scanned = self.take_tail(lruvec, list, some, progress.highest, &mut in_hand);
            if scanned == 0 {
                break;
            }
            let mut inactive = InHand::seen(self);
            for folio in in_hand {
                // Clears the accessed bits: a use from now on, on the inactive list, is what saves it.
                P::referenced(&folio);
                folio.record().clear(Flags::ACTIVE);
                folio.record().set(Flags::WORKINGSET);
                moved += folio.order().frames();
                inactive.push(folio);
            }
            left = left.saturating_sub(u64::from(scanned));
            refilled += u64::from(scanned);
        }
        let off = IrqOff::new();
        self.view().count_looks(lruvec.index, 0, refilled, &off);
        moved
    }

    /// Isolates up to `want` folios from a list's old end. Returns how many entries were looked at.
    fn take_tail(
        &self,
        lruvec: LruVecOf,
        kind: ListKind,
        want: u32,
        highest: ZoneKind,
        hand: &mut InHand<'_, P>,
    ) -> u32 {
        let off = IrqOff::new();
        // A hook, or another thread, may have ended the group, and its lists may be another group's now.
        let take = || {
            self.view()
                .isolate_tail(lruvec.index, kind, want, highest, hand.frames(), &off)
        };
        let scanned = self.memcgs().while_still(lruvec.group, take);
        scanned.unwrap_or(0)
    }

    /// Base frames on each list, in zones up to `highest`, and what reclaim of them cost lately.
    fn sizes(&self, lruvec: LruVecIndex, highest: ZoneKind) -> (ListSizes, Costs) {
        let off = IrqOff::new();
        let held = self.view().lock_index(lruvec, &off);
        let sizes = held.map(|held| (held.lruvec.sizes_up_to(highest), held.lruvec.costs));
        sizes.unwrap_or_default()
    }
}

fn keep_active<'m, P: Evict>(folio: Isolated<'m, P>, kept: &mut InHand<'m, P>) {
    if !folio.record().flags().contains(Flags::ACTIVE) {
        folio.record().set(Flags::ACTIVE);
        folio.count_activation();
    }
    kept.push(folio);
}
