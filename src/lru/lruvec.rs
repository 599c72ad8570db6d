//! The lists of one memcg on one node.
//!
//! Owns: [`LruVec`]: lists, sizes, costs, counts of moves.
//! Invariants: a frame linked here belongs to this lruvec, has `LRU` set unless someone with a reference just won it, and is on
//! the list that the policy names for its flags and its record's note. Sizes are base frames by zone, not entries; they grow before a frame is linked and shrink
//! after it is unlinked, so that they never run below 0. Unevictable frames are counted, not linked.
//! Lock ranks: data of `LruVec` locks. Used by: lru's batches and isolation, reclaim.

use super::policy::{ListNo, ListNos, MOST_LISTS, Policy, State};
use super::workingset::Costs;
use super::{Backing, ListKind};
use crate::addr::ZoneKind;
use crate::frame::{self, Flags, FrameList, FrameNo, FrameTable, Record, Unlinked};
use crate::rank::Rank;
use crate::sync::Ranked;

/// A list, and how long it is.
#[derive(Debug, Default)]
struct List {
    entries: FrameList,
    /// Base frames, by zone.
    sizes: [u64; ZoneKind::COUNT],
}

/// Lists and sizes, under one lock.
#[derive(Debug)]
pub(crate) struct LruVec {
    policy: State,
    lists: [List; MOST_LISTS],
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
    /// Folios that reclaim looked at, but for those that the next line counts (`pgscan`).
    pub scanned: u64,
    /// Folios of active lists that reclaim looked at; with generations, those that had been in active use and still were
    /// (`pgrefill`).
    pub refilled: u64,
}

/// An end of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The newest.
    Head,
    /// The oldest: reclaim looks there first.
    Tail,
}

impl List {
    #[inline]
    fn frames(&self) -> u64 {
        self.sizes.iter().sum()
    }
}

impl Ranked for LruVec {
    const RANK: Rank = Rank::LruVec;
}

impl LruVec {
    /// Empty lists, ordered by a policy.
    pub(super) fn new(policy: Policy) -> Self {
        Self {
            policy: State::new(policy),
            lists: Default::default(),
            unevictable: [0; ZoneKind::COUNT],
            costs: Costs::default(),
            moves: Moves::default(),
        }
    }

    /// Base frames on the lists of each kind.
    pub(crate) fn sizes(&self) -> [u64; ListKind::COUNT] {
        self.policy.sizes(|list| self.lists[list].frames())
    }

    /// Base frames on the lists of each kind whose zone is `highest` or below it.
    pub(crate) fn sizes_up_to(&self, highest: ZoneKind) -> [u64; ListKind::COUNT] {
        let zones = ..=highest as usize;
        self.policy
            .sizes(|list| self.lists[list].sizes[zones].iter().sum())
    }

    /// Base frames on a list, by zone.
    pub(crate) fn frames_by_zone(&self, list: ListNo) -> [u64; ZoneKind::COUNT] {
        self.lists[list].sizes
    }

    /// Base frames counted as unevictable.
    pub(crate) fn unevictable(&self) -> u64 {
        self.unevictable.iter().sum()
    }

    /// The lists of a kind, the oldest first.
    pub(crate) fn lists_of(&self, kind: ListKind) -> ListNos {
        self.policy.lists_of(kind)
    }

    /// The lists that reclaim takes frames of a kind from, in this order. Ages them first, if too few frames are old.
    pub(super) fn candidates(&mut self, kind: ListKind) -> ListNos {
        let backing = match kind {
            ListKind::InactiveAnon | ListKind::ActiveAnon => Backing::Anon,
            ListKind::InactiveFile | ListKind::ActiveFile => Backing::File,
        };
        let lists = &self.lists;
        self.policy.age(backing, |list| lists[list].frames());
        self.policy.candidates(kind)
    }

    /// The list that a linked frame is on.
    pub(super) fn list_of(&self, record: &Record) -> ListNo {
        self.policy.list_of(record, record.flags())
    }

    /// A list itself, to walk.
    pub(crate) fn list(&self, list: ListNo) -> &FrameList {
        &self.lists[list].entries
    }

    /// A list itself, to link frames whose sizes are counted already.
    pub(super) fn list_mut(&mut self, list: ListNo) -> &mut FrameList {
        &mut self.lists[list].entries
    }

    /// Links a frame at an end of the list that the policy names for `flags`, or counts it as unevictable.
    #[inline(always)]
    pub(super) fn insert(
        &mut self,
        frames: &FrameTable,
        (frame, record): (FrameNo, &Record),
        state: frame::State,
        flags: Flags,
        end: End,
    ) {
        if flags.contains(Flags::UNEVICTABLE) {
            self.unevictable[state.zone()] += state.frames();
            return;
        }
        let list = &mut self.lists[self.policy.add(record, flags, end)];
        list.sizes[state.zone()] += state.frames();
        match end {
            End::Head => list.entries.push_front(frames, frame, record),
            End::Tail => list.entries.push_back(frames, frame, record),
        }
    }

    /// Unlinks a frame that was linked with `flags`.
    #[inline(always)]
    pub(super) fn take_out(
        &mut self,
        frames: &FrameTable,
        (frame, record): (FrameNo, &Record),
        state: frame::State,
        flags: Flags,
    ) -> Unlinked {
        let size = if flags.contains(Flags::UNEVICTABLE) {
            &mut self.unevictable[state.zone()]
        } else {
            let list = &mut self.lists[self.policy.list_of(record, flags)];
            if list.entries.remove(frames, frame, record) == Unlinked::Damaged {
                return Unlinked::Damaged;
            }
            &mut list.sizes[state.zone()]
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
        list: ListNo,
    ) -> Unlinked {
        let list = self.list_mut(list);
        let unlinked = list.remove(frames, frame, record);
        if unlinked == Unlinked::Done {
            list.push_front(frames, frame, record);
        }
        unlinked
    }

    /// Takes over all of a dead child's frames, each list as colder than its own of the same number, and what was counted of it.
    /// Constant time. Generations of one number may differ in age: then they are out of order until they went once.
    pub(super) fn splice(&mut self, frames: &FrameTable, child: &mut Self) {
        for (list, child) in self.lists.iter_mut().zip(&mut child.lists) {
            list.entries.splice_back(frames, &mut child.entries);
            take_all(&mut list.sizes, &mut child.sizes);
        }
        take_all(&mut self.unevictable, &mut child.unevictable);
        self.costs.inherit(core::mem::take(&mut child.costs));
        self.moves.inherit(core::mem::take(&mut child.moves));
    }

    /// Recounts one list: (entries, base frames by zone), or the first frame that does not belong on it.
    pub(crate) fn recount(
        &self,
        frames: &FrameTable,
        list: ListNo,
        mut belongs: impl FnMut(&Record) -> bool,
    ) -> Result<(u32, [u64; ZoneKind::COUNT]), FrameNo> {
        let (mut entries, mut sizes) = (0, [0; ZoneKind::COUNT]);
        for (frame, record) in self.list(list).iter(frames) {
            let state = record.state();
            let flags = state.flags();
            if !flags.contains(Flags::LRU)
                || flags.contains(Flags::UNEVICTABLE)
                || state.count() == 0
                || self.policy.list_of(record, flags) != list
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
        let list = self.policy.lists_of(kind)[0];
        self.lists[list].sizes[0] = frames;
    }
}

impl Moves {
    pub(crate) fn inherit(&mut self, child: Self) {
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
        let many = (1 << 31) + 1;
        for policy in [Policy::TwoLists, Policy::Generations] {
            let [mut parent, mut child] = [policy; 2].map(LruVec::new);
            for kind in ListKind::ALL {
                child.pretend(kind, many);
                parent.pretend(kind, 7);
            }
            child.unevictable[2] = many;
            child.moves.activated = many;
            child.costs.file = many;
            parent.splice(&frames, &mut child);
            for kind in ListKind::ALL {
                let [own, gone] = [&parent, &child].map(|lruvec| lruvec.sizes()[kind as usize]);
                assert_eq!((own, gone), (many + 7, 0));
                assert_eq!(parent.sizes_up_to(ZoneKind::Dma)[kind as usize], many + 7);
            }
            assert_eq!((parent.unevictable(), child.unevictable()), (many, 0));
            assert_eq!((parent.moves.activated, parent.costs.file), (many, many));
            assert_eq!(child.moves, Moves::default());
        }
    }
}
