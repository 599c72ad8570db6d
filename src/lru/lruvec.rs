//! The lists of one memcg on one node.
//!
//! Owns: [`LruVec`]; the choice of list.
//! Invariants: a frame linked here belongs to this lruvec, has `LRU` set unless someone with a reference just won it, and is on
//! the list that its flags name. Sizes are base frames, not entries. Unevictable frames are counted, not linked.
//! Lock ranks: data of `LruVec` locks. Used by: lru's batches and isolation, reclaim.

use super::ListKind;
use crate::frame::{Flags, FrameList, FrameNo, FrameTable, Record, Unlinked};
use crate::rank::Rank;
use crate::sync::Ranked;

/// Lists and sizes, under one lock.
#[derive(Debug, Default)]
pub(crate) struct LruVec {
    lists: [FrameList; ListKind::COUNT],
    /// Base frames on each list.
    frames: [u64; ListKind::COUNT],
    /// Base frames that are not to be reclaimed.
    unevictable: u64,
}

impl Ranked for LruVec {
    const RANK: Rank = Rank::LruVec;
}

impl LruVec {
    /// Base frames on a list.
    pub(crate) fn frames(&self, kind: ListKind) -> u64 {
        self.frames[kind as usize]
    }

    /// Base frames counted as unevictable.
    pub(crate) fn unevictable(&self) -> u64 {
        self.unevictable
    }

    /// The list itself, to walk.
    pub(crate) fn list(&self, kind: ListKind) -> &FrameList {
        &self.lists[kind as usize]
    }

    /// Links a frame at the head of the list that its flags name, and sets `LRU`.
    pub(super) fn link(&mut self, frames: &FrameTable, frame: FrameNo) {
        let record = frames.record(frame);
        let flags = record.flags();
        let size = record.order().frames();
        if flags.contains(Flags::UNEVICTABLE) {
            self.unevictable += size;
        } else {
            let kind = ListKind::of(flags);
            self.frames[kind as usize] += size;
            self.lists[kind as usize].push_front(frames, frame);
        }
        record.set(Flags::LRU);
    }

    /// Unlinks a frame whose `LRU` the caller won, or which is dying.
    pub(super) fn unlink(&mut self, frames: &FrameTable, frame: FrameNo) -> Unlinked {
        let record = frames.record(frame);
        let flags = record.flags();
        let size = record.order().frames();
        if flags.contains(Flags::UNEVICTABLE) {
            self.unevictable = self.unevictable.saturating_sub(size);
            return Unlinked::Done;
        }
        let kind = ListKind::of(flags) as usize;
        let unlinked = self.lists[kind].remove(frames, frame);
        if unlinked == Unlinked::Done {
            self.frames[kind] = self.frames[kind].saturating_sub(size);
        }
        unlinked
    }

    /// Moves a frame to the head of its own list: reclaim cannot have it now.
    pub(super) fn rotate(
        &mut self,
        frames: &FrameTable,
        frame: FrameNo,
        kind: ListKind,
    ) -> Unlinked {
        let unlinked = self.lists[kind as usize].remove(frames, frame);
        if unlinked == Unlinked::Done {
            self.lists[kind as usize].push_front(frames, frame);
        }
        unlinked
    }

    /// Takes over all of a dead child's frames, as colder than its own. Constant time.
    pub(super) fn splice(&mut self, frames: &FrameTable, child: &mut Self) {
        for kind in 0..ListKind::COUNT {
            self.lists[kind].splice_back(frames, &mut child.lists[kind]);
            self.frames[kind] += core::mem::take(&mut child.frames[kind]);
        }
        self.unevictable += core::mem::take(&mut child.unevictable);
    }

    /// Recounts one list: (entries, base frames), or the first frame whose flags do not name this list.
    pub(crate) fn recount(
        &self,
        frames: &FrameTable,
        kind: ListKind,
        mut belongs: impl FnMut(&Record) -> bool,
    ) -> Result<(u32, u64), FrameNo> {
        let (mut entries, mut size) = (0, 0);
        for (frame, record) in self.lists[kind as usize].iter(frames) {
            let flags = record.flags();
            if !flags.contains(Flags::LRU)
                || flags.contains(Flags::UNEVICTABLE)
                || ListKind::of(flags) != kind
                || !belongs(record)
            {
                return Err(frame);
            }
            entries += 1;
            size += record.order().frames();
        }
        Ok((entries, size))
    }
}
