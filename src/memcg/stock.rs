//! Frames charged ahead, per CPU.
//!
//! Owns: [`Stock`]: for a few groups, how many frames this CPU may give out without touching their counters.
//! Invariants: frames in stock are counted in the usage of their group and of all above it. A group has one entry at most,
//! of at most [`BATCH`] frames; a free one may keep the name of its last group.
//! Lock ranks: data of `MemcgStock` locks. A charge only tries its own CPU's; drains wait for any. Used by: memcg's charges.

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
}

impl Ranked for Stock {
    const RANK: Rank = Rank::MemcgStock;
}

impl Default for Stock {
    fn default() -> Self {
        Self {
            entries: [EMPTY; GROUPS],
            next_out: 0,
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

    /// All entries.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_group_keeps_one_entry_even_when_an_empty_one_stands_before_it() {
        // B18
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
