//! Frames charged ahead, per CPU.
//!
//! Owns: [`Stock`]: for a few groups, how many frames this CPU may give out without touching their counters; for one owner slot,
//! how many bytes of frames that are charged already.
//! Invariants: frames in stock are counted in the usage of their group and of all above it. A group has one entry at most,
//! of at most [`BATCH`] frames; a free one may keep the name of its last group. Bytes in stock are fewer than two frames'.
//! Lock ranks: data of `MemcgStock` locks. A charge only tries its own CPU's; drains wait for any. Used by: memcg's charges.

use super::OwnerIndex;
use super::tree::{NONE, Slot};
use crate::rank::Rank;
use crate::sync::Ranked;

/// Frames that a charge takes from the counters at once, and the most an entry keeps (`MEMCG_CHARGE_BATCH`).
pub(super) const BATCH: u64 = 64;
/// Groups in one stock (`NR_MEMCG_STOCK`).
const GROUPS: usize = 7;

/// One group's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) group: Slot,
    pub(super) frames: u64,
}

/// Bytes of charged frames that no object uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LooseBytes {
    pub(super) owner: OwnerIndex,
    pub(super) bytes: u64,
}

const EMPTY: Entry = Entry {
    group: NONE,
    frames: 0,
};

/// One CPU's stock.
#[derive(Debug)]
pub(super) struct Stock {
    entries: [Entry; GROUPS],
    /// The entry that makes room next. In turn, which is as good as at random and needs no generator.
    next_out: usize,
    /// While it says 0 bytes, its owner slot may be anyone's.
    bytes: LooseBytes,
}

impl Ranked for Stock {
    const RANK: Rank = Rank::MemcgStock;
}

impl Default for Stock {
    fn default() -> Self {
        Self {
            entries: [EMPTY; GROUPS],
            next_out: 0,
            bytes: LooseBytes { owner: 0, bytes: 0 },
        }
    }
}

impl Stock {
    /// Takes `frames` for `group`, if its entry has them.
    #[inline]
    pub(super) fn consume(&mut self, group: Slot, frames: u64) -> bool {
        let entry = self.entries.iter_mut().find(|entry| entry.group == group);
        entry.is_some_and(|entry| {
            let enough = entry.frames >= frames;
            entry.frames -= if enough { frames } else { 0 };
            enough
        })
    }

    /// Puts `frames`, at most [`BATCH`], into the entry of `group`. Returns what must be uncharged: an entry that
    /// grew too big, or another group's that made room.
    #[inline]
    #[must_use]
    pub(super) fn refill(&mut self, group: Slot, frames: u64) -> Option<Entry> {
        // The group's own entry first, over all of them: one that is merely empty may stand before it, and two entries
        // of one group would be charged twice.
        let own = self.entries.iter().position(|entry| entry.group == group);
        if let Some(own) = own {
            let entry = &mut self.entries[own];
            entry.frames += frames;
            return (entry.frames > BATCH)
                .then(|| core::mem::replace(entry, Entry { group, frames: 0 }));
        }
        let empty = self.entries.iter().position(|entry| entry.frames == 0);
        let at = empty.unwrap_or_else(|| {
            self.next_out = (self.next_out + 1) % GROUPS;
            self.next_out
        });
        let before = core::mem::replace(&mut self.entries[at], Entry { group, frames });
        (before.frames > 0).then_some(before)
    }

    /// Empties the entries of the groups that `picks` accepts.
    pub(super) fn drain(&mut self, mut picks: impl FnMut(Slot) -> bool) -> [Entry; GROUPS] {
        self.entries.each_mut().map(|entry| {
            if entry.group != NONE && picks(entry.group) {
                core::mem::replace(entry, EMPTY)
            } else {
                EMPTY
            }
        })
    }

    /// Keeps bytes of `owner` from now on. Returns another owner's that were kept.
    pub(super) fn turn_bytes_to(&mut self, owner: OwnerIndex) -> Option<LooseBytes> {
        if self.bytes.owner == owner {
            return None;
        }
        let out = self.take_bytes();
        self.bytes.owner = owner;
        out
    }

    /// Takes bytes for an object of the owner that was turned to, if there are so many.
    pub(super) fn consume_bytes(&mut self, bytes: u64) -> bool {
        let enough = self.bytes.bytes >= bytes;
        self.bytes.bytes -= if enough { bytes } else { 0 };
        enough
    }

    /// Adds bytes of the owner that was turned to, then as [`consume_bytes`](Self::consume_bytes).
    pub(super) fn add_and_consume_bytes(&mut self, more: u64, bytes: u64) -> bool {
        self.bytes.bytes += more;
        self.consume_bytes(bytes)
    }

    /// Adds bytes of the owner that was turned to. Above one frame, takes out all whole frames, and says how many.
    #[must_use]
    pub(super) fn refill_bytes(&mut self, bytes: u64, frame: u64) -> u64 {
        let kept = &mut self.bytes.bytes;
        *kept += bytes;
        if *kept <= frame {
            return 0;
        }
        let frames = *kept / frame;
        *kept %= frame;
        frames
    }

    /// Takes out the bytes, if there are any.
    pub(super) fn take_bytes(&mut self) -> Option<LooseBytes> {
        let taken = self.bytes;
        self.bytes.bytes = 0;
        (taken.bytes > 0).then_some(taken)
    }

    /// All entries.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// B18.
    #[test]
    fn a_group_keeps_one_entry_even_when_an_empty_one_stands_before_it() {
        let mut stock = Stock::default();
        for group in 1..=7 {
            assert_eq!(stock.refill(group, 10), None);
        }
        assert!(stock.consume(1, 10));
        assert_eq!(stock.refill(3, 5), None);
        let of = |stock: &Stock, group| {
            let all = stock.entries().iter().filter(|entry| entry.group == group);
            (all.clone().count(), all.map(|entry| entry.frames).sum())
        };
        assert_eq!(of(&stock, 3), (1, 15));
        // A fresh entry holds what was put in, whatever its place held before.
        assert_eq!(stock.refill(9, 4), None);
        assert_eq!(of(&stock, 9), (1, 4));
        assert_eq!(of(&stock, 1), (0, 0));
    }

    #[test]
    fn an_entry_over_64_frames_leaves_in_full_and_an_eighth_group_evicts_one() {
        let mut stock = Stock::default();
        assert_eq!(stock.refill(1, 64), None);
        let over = Entry {
            group: 1,
            frames: 65,
        };
        assert_eq!(stock.refill(1, 1), Some(over));
        assert!(!stock.consume(1, 1));
        for group in 1..=7 {
            assert_eq!(stock.refill(group, 2), None);
        }
        let evicted = stock.refill(8, 3).unwrap();
        assert_eq!(evicted.frames, 2);
        assert!(!stock.consume(evicted.group, 1) && stock.consume(8, 3));
        let drained = stock.drain(|group| group != 7);
        assert_eq!(drained.iter().map(|entry| entry.frames).sum::<u64>(), 10);
        assert!(stock.consume(7, 2));
    }
}
