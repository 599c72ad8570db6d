//! Lists of frames, linked by number through their records.
//!
//! Owns: [`FrameList`].
//! Invariants: `len` frames are linked from `head` to `tail`, each pointing back at the one before. A frame whose
//! neighbours do not point back at it is not unlinked: the damage is reported and stays where it is.
//! Lock ranks: none; whoever holds the list exclusively may change the links of the frames on it.
//! Used by: lru.

use super::record::Record;
use super::table::{FrameNo, FrameTable};
use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A doubly linked list of frames.
#[derive(Debug)]
pub(crate) struct FrameList {
    head: FrameNo,
    tail: FrameNo,
    /// Entries, not frames: a large folio is one.
    len: u32,
}

/// What came of unlinking a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unlinked {
    /// It is on no list now.
    Done,
    /// Its links and its neighbours' disagree: nothing was changed.
    Damaged,
}

impl Default for FrameList {
    fn default() -> Self {
        Self {
            head: FrameNo::NONE,
            tail: FrameNo::NONE,
            len: 0,
        }
    }
}

impl FrameList {
    /// Entries.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Links `frame`, whose record is given, at the newest entry's end.
    #[inline]
    pub(crate) fn push_front(&mut self, frames: &FrameTable, frame: FrameNo, record: &Record) {
        store(&record.prev, FrameNo::NONE);
        store(&record.next, self.head);
        if self.head == FrameNo::NONE {
            self.tail = frame;
        } else {
            store(&frames.record(self.head).prev, frame);
        }
        self.head = frame;
        self.len += 1;
    }

    /// Links `frame`, whose record is given, at the oldest entry's end.
    #[inline]
    pub(crate) fn push_back(&mut self, frames: &FrameTable, frame: FrameNo, record: &Record) {
        store(&record.prev, self.tail);
        store(&record.next, FrameNo::NONE);
        if self.tail == FrameNo::NONE {
            self.head = frame;
        } else {
            store(&frames.record(self.tail).next, frame);
        }
        self.tail = frame;
        self.len += 1;
    }

    /// Puts all of `other` next to `at`, which is on this list, on its older side, leaving `other` empty. Constant time.
    pub(crate) fn splice_behind(&mut self, frames: &FrameTable, at: FrameNo, other: &mut Self) {
        let other = core::mem::take(other);
        if other.len == 0 {
            return;
        }
        let next = load(&frames.record(at).next);
        link(frames, at, other.head);
        link(frames, other.tail, next);
        if next == FrameNo::NONE {
            self.tail = other.tail;
        }
        self.len += other.len;
    }

    /// The oldest entry, still linked.
    #[inline]
    pub(crate) fn back(&self) -> Option<FrameNo> {
        (self.tail != FrameNo::NONE).then_some(self.tail)
    }

    /// Unlinks `frame`, whose record is given, and which the caller knows to be on this list.
    #[inline]
    pub(crate) fn remove(
        &mut self,
        frames: &FrameTable,
        frame: FrameNo,
        record: &Record,
    ) -> Unlinked {
        // Each neighbour's record is looked up once: lookups are most of what this costs.
        let (prev, next) = (load(&record.prev), load(&record.next));
        let before = (prev != FrameNo::NONE).then(|| &frames.record(prev).next);
        let after = (next != FrameNo::NONE).then(|| &frames.record(next).prev);
        let points_here = |link: Option<&AtomicU32>, end| link.map_or(end, load) == frame;
        if !points_here(before, self.head) || !points_here(after, self.tail) || self.len == 0 {
            return Unlinked::Damaged;
        }
        match before {
            Some(link) => store(link, next),
            None => self.head = next,
        }
        match after {
            Some(link) => store(link, prev),
            None => self.tail = prev,
        }
        store(&record.prev, FrameNo::NONE);
        store(&record.next, FrameNo::NONE);
        self.len -= 1;
        Unlinked::Done
    }

    /// Appends all of `other` behind the oldest entry, leaving `other` empty. Constant time.
    pub(crate) fn splice_back(&mut self, frames: &FrameTable, other: &mut Self) {
        let other = core::mem::take(other);
        if other.len == 0 {
            return;
        }
        if self.len == 0 {
            *self = other;
            return;
        }
        link(frames, self.tail, other.head);
        self.tail = other.tail;
        self.len += other.len;
    }

    /// Puts all of `other` before the newest entry, leaving `other` empty. Constant time.
    pub(crate) fn splice_front(&mut self, frames: &FrameTable, other: &mut Self) {
        let mut mine = core::mem::replace(self, core::mem::take(other));
        self.splice_back(frames, &mut mine);
    }

    /// The entries from newest to oldest; at most `len` of them, whatever the links say.
    pub(crate) fn iter<'a>(
        &self,
        frames: &'a FrameTable,
    ) -> impl Iterator<Item = (FrameNo, &'a Record)> + use<'a> {
        let mut next = self.head;
        (0..self.len).map_while(move |_| {
            let frame = (next != FrameNo::NONE).then_some(next)?;
            let record = frames.record(frame);
            next = load(&record.next);
            Some((frame, record))
        })
    }
}

/// Makes `prev` and `next` neighbours; either may be the end.
#[inline]
fn link(frames: &FrameTable, prev: FrameNo, next: FrameNo) {
    if prev != FrameNo::NONE {
        store(&frames.record(prev).next, next);
    }
    if next != FrameNo::NONE {
        store(&frames.record(next).prev, prev);
    }
}

// Relaxed: the lock of the list orders all accesses.
#[inline]
fn load(link: &AtomicU32) -> FrameNo {
    FrameNo(link.load(Relaxed))
}

#[inline]
fn store(link: &AtomicU32, frame: FrameNo) {
    link.store(frame.0, Relaxed);
}
