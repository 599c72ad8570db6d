//! The lists of one memcg on one node.
//!
//! Owns: [`LruVec`]: lists, sizes, costs, counts of moves.
//! Invariants: a frame linked here belongs to this lruvec, has `LRU` set unless someone with a reference just won it, and is on
//! the list that its flags name. Sizes are base frames by zone, not entries; they grow before a frame is linked and shrink
//! after it is unlinked, so that they never run below 0. Unevictable frames are counted, not linked.
//! Lock ranks: data of `LruVec` locks. Used by: lru's batches and isolation, reclaim.

use super::ListKind;
use super::workingset::Costs;
use crate::addr::ZoneKind;
use crate::frame::{Flags, FrameList, FrameNo, FrameTable, Record, State, Unlinked};
use crate::rank::Rank;
use crate::sync::Ranked;

/// Lists and sizes, under one lock.
#[derive(Debug, Default)]
pub(crate) struct LruVec {
    lists: [FrameList; ListKind::COUNT],
    /// Base frames on each list, by zone.
    sizes: [[u64; ZoneKind::COUNT]; ListKind::COUNT],
    /// Base frames that are not to be reclaimed, by zone.
    unevictable: [u64; ZoneKind::COUNT],
    /// What reclaim of either backing cost lately.
    pub(crate) costs: Costs,
    /// Moves so far.
    pub(crate) moves: Moves,
}

/// Base frames that were moved, since the machine started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moves {
    /// From an inactive list to an active one.
    pub activated: u64,
    /// From an active list to an inactive one.
    pub deactivated: u64,
    /// To the old end of an inactive list.
    pub rotated: u64,
    /// To the file list, as contents that may be thrown away.
    pub lazy_freed: u64,
    /// From a list to the unevictable frames.
    pub locked: u64,
    /// From the unevictable frames to a list.
    pub rescued: u64,
    /// Unlocked while off their list: rescued when they come back.
    pub stranded: u64,
    /// Faulted in again soon after reclaim took them, so they became active at once.
    pub refault_activated: u64,
    /// Folios of inactive lists that reclaim looked at (`pgscan`).
    pub scanned: u64,
    /// Folios of active lists that reclaim looked at (`pgrefill`).
    pub refilled: u64,
}

/// An end of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The newest.
    Head,
    /// The oldest: reclaim looks there first.
    Tail,
}

impl Ranked for LruVec {
    const RANK: Rank = Rank::LruVec;
}

impl LruVec {
    /// Base frames on a list.
    pub(crate) fn frames(&self, kind: ListKind) -> u64 {
        self.sizes[kind as usize].iter().sum()
    }

    /// Base frames on a list whose zone is `highest` or below it.
    pub(crate) fn frames_up_to(&self, kind: ListKind, highest: ZoneKind) -> u64 {
        self.sizes[kind as usize][..=highest as usize].iter().sum()
    }

    /// Base frames on a list, by zone.
    pub(crate) fn frames_by_zone(&self, kind: ListKind) -> [u64; ZoneKind::COUNT] {
        self.sizes[kind as usize]
    }

    /// Base frames counted as unevictable.
    pub(crate) fn unevictable(&self) -> u64 {
        self.unevictable.iter().sum()
    }

    /// The list itself, to walk.
    pub(crate) fn list(&self, kind: ListKind) -> &FrameList {
        &self.lists[kind as usize]
    }

    /// The list itself, to link frames whose sizes are counted already.
    pub(super) fn list_mut(&mut self, kind: ListKind) -> &mut FrameList {
        &mut self.lists[kind as usize]
    }

    /// Links a frame at an end of the list that `flags` names, or counts it as unevictable.
    #[inline(always)]
    pub(super) fn insert(
        &mut self,
        frames: &FrameTable,
        (frame, record): (FrameNo, &Record),
        state: State,
        flags: Flags,
        end: End,
    ) {
        if flags.contains(Flags::UNEVICTABLE) {
            self.unevictable[state.zone()] += state.frames();
            return;
        }
        let kind = ListKind::index(flags);
        self.sizes[kind][state.zone()] += state.frames();
        let list = &mut self.lists[kind];
        match end {
            End::Head => list.push_front(frames, frame, record),
            End::Tail => list.push_back(frames, frame, record),
        }
    }

    /// Unlinks a frame that is on the list `flags` names.
    #[inline(always)]
    pub(super) fn take_out(
        &mut self,
        frames: &FrameTable,
        (frame, record): (FrameNo, &Record),
        state: State,
        flags: Flags,
    ) -> Unlinked {
        let size = if flags.contains(Flags::UNEVICTABLE) {
            &mut self.unevictable[state.zone()]
        } else {
            let kind = ListKind::index(flags);
            if self.lists[kind].remove(frames, frame, record) == Unlinked::Damaged {
                return Unlinked::Damaged;
            }
            &mut self.sizes[kind][state.zone()]
        };
        debug_assert!(*size >= state.frames(), "a list's size fell below 0");
        *size = size.saturating_sub(state.frames());
        Unlinked::Done
    }

    /// Moves a frame to the head of its own list: reclaim cannot have it now.
    pub(super) fn rotate(
        &mut self,
        frames: &FrameTable,
        (frame, record): (FrameNo, &Record),
        kind: ListKind,
    ) -> Unlinked {
        let unlinked = self.lists[kind as usize].remove(frames, frame, record);
        if unlinked == Unlinked::Done {
            self.lists[kind as usize].push_front(frames, frame, record);
        }
        unlinked
    }

    /// Takes over all of a dead child's frames, as colder than its own, and what was counted of it. Constant time.
    pub(super) fn splice(&mut self, frames: &FrameTable, child: &mut Self) {
        for kind in 0..ListKind::COUNT {
            self.lists[kind].splice_back(frames, &mut child.lists[kind]);
            take_all(&mut self.sizes[kind], &mut child.sizes[kind]);
        }
        take_all(&mut self.unevictable, &mut child.unevictable);
        self.costs.inherit(core::mem::take(&mut child.costs));
        self.moves.inherit(core::mem::take(&mut child.moves));
    }

    /// Recounts one list: (entries, base frames by zone), or the first frame whose flags do not name this list.
    pub(crate) fn recount(
        &self,
        frames: &FrameTable,
        kind: ListKind,
        mut belongs: impl FnMut(&Record) -> bool,
    ) -> Result<(u32, [u64; ZoneKind::COUNT]), FrameNo> {
        let (mut entries, mut sizes) = (0, [0; ZoneKind::COUNT]);
        for (frame, record) in self.lists[kind as usize].iter(frames) {
            let state = record.state();
            let flags = state.flags();
            if !flags.contains(Flags::LRU)
                || flags.contains(Flags::UNEVICTABLE)
                || state.count() == 0
                || ListKind::of(flags) != kind
                || !belongs(record)
            {
                return Err(frame);
            }
            entries += 1;
            sizes[state.zone()] += state.frames();
        }
        Ok((entries, sizes))
    }

    /// Makes a size what it would be in a machine of many more frames.
    #[cfg(all(test, not(loom)))]
    pub(super) fn pretend(&mut self, kind: ListKind, frames: u64) {
        self.sizes[kind as usize][0] = frames;
    }
}

impl Moves {
    fn inherit(&mut self, child: Self) {
        self.activated += child.activated;
        self.deactivated += child.deactivated;
        self.rotated += child.rotated;
        self.lazy_freed += child.lazy_freed;
        self.locked += child.locked;
        self.rescued += child.rescued;
        self.stranded += child.stranded;
        self.refault_activated += child.refault_activated;
        self.scanned += child.scanned;
        self.refilled += child.refilled;
    }
}

fn take_all<const N: usize>(to: &mut [u64; N], from: &mut [u64; N]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += core::mem::take(from);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::boot::Bump;
    use crate::host::storage;

    /// B25: a whole list's size is moved as a 64-bit number; and B24: none is ever below 0.
    #[test]
    fn a_parent_gains_lists_of_more_than_2_to_the_31_frames() {
        let mut storage = storage(4096);
        let frames = FrameTable::build(
            &mut Bump::new(&mut storage),
            12,
            core::iter::empty::<crate::addr::FrameRange>,
            |_| false,
        )
        .expect("no frames fit anywhere");
        let (mut parent, mut child) = (LruVec::default(), LruVec::default());
        let many = (1 << 31) + 1;
        for kind in ListKind::ALL {
            child.pretend(kind, many);
            parent.pretend(kind, 7);
        }
        child.unevictable[2] = many;
        child.moves.activated = many;
        child.costs.file = many;
        parent.splice(&frames, &mut child);
        for kind in ListKind::ALL {
            assert_eq!((parent.frames(kind), child.frames(kind)), (many + 7, 0));
            assert_eq!(parent.frames_up_to(kind, ZoneKind::Dma), many + 7);
        }
        assert_eq!((parent.unevictable(), child.unevictable()), (many, 0));
        assert_eq!((parent.moves.activated, parent.costs.file), (many, many));
        assert_eq!(child.moves, Moves::default());
    }
}
