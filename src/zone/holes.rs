//! Which frames of a line are not there, or must not be used.
//!
//! Owns: the records for the few lines of which not every frame is managed and good.
//! Invariants: a record belongs to one line from the moment it is taken until that line is plain again. What is awaited is bad,
//! and in use.
//! Lock ranks: none of its own; a record is written under the lock of its line's shard, and read by anyone. Taking one needs no lock.
//! Used by: shard, zone.

use arrayvec::ArrayVec;

use super::line::{Line, Words};
use crate::boot::{Bump, StorageFull};
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::atomic::{AtomicBool, AtomicU32};

/// Frames of one line that are never given.
#[derive(Debug, Default)]
pub(super) struct Hole {
    /// Frames that are not managed, bit by bit.
    pub(super) absent: Line,
    /// Frames that were found bad. They stay so while the line goes offline and comes back.
    pub(super) bad: Line,
    /// Those of them that somebody uses still, or a pageset parks.
    pub(super) awaited: Line,
}

/// All records of a zone. Number 0 stands for "none" and is not kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holes {
    records: &'static [Hole],
    /// Whether a line has the record: apart, since records fill their cache lines.
    taken: &'static [AtomicBool],
    /// One word: bad frames that were awaited and have come back, until [`Zone::take_returned`](super::Zone::take_returned).
    returned: &'static [AtomicU32],
}

/// Records for the lines in which a range begins and ends, taken before the range changes: others take records at any time. What
/// is left over goes back.
pub(super) struct Ahead {
    holes: Holes,
    numbers: ArrayVec<usize, 2>,
}

impl Ahead {
    /// One of them, or else any that no line has.
    pub(super) fn take(&mut self) -> Option<usize> {
        self.numbers.pop().or_else(|| self.holes.take())
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.numbers.iter().for_each(|&n| self.holes.give(n));
    }
}

impl Hole {
    /// Frames that are never given.
    pub(super) fn unusable(&self) -> Words {
        let (absent, bad) = (self.absent.load(), self.bad.load());
        core::array::from_fn(|i| absent[i] | bad[i])
    }

    /// Frames that are not free, and that nobody has.
    pub(super) fn out_of_use(&self) -> Words {
        let (unusable, awaited) = (self.unusable(), self.awaited.load());
        core::array::from_fn(|i| unusable[i] & !awaited[i])
    }
}

impl Holes {
    pub(super) fn build(bump: &mut Bump<'_>, count: usize) -> Result<Self, StorageFull> {
        Ok(Self {
            records: bump.slots(count, |_| Hole::default())?,
            taken: bump.slots(count, |_| AtomicBool::new(false))?,
            returned: bump.slots(1, |_| AtomicU32::new(0))?,
        })
    }

    /// The record with number `n`, from 1.
    pub(super) fn of(&self, n: usize) -> Option<&'static Hole> {
        self.records.get(n.checked_sub(1)?)
    }

    /// Number of a record that no line had, empty.
    pub(super) fn take(&self) -> Option<usize> {
        let n = self
            .taken
            .iter()
            // Acquire pairs with the Release of `give`: the last one's writes come before ours.
            .position(|taken| !taken.load(Relaxed) && !taken.swap(true, Acquire))?;
        let record = self.records.get(n)?;
        record.absent.store(&[0; 8]);
        record.bad.store(&[0; 8]);
        record.awaited.store(&[0; 8]);
        Some(n + 1)
    }

    /// So many records at once, two at most; `None` if there are too few.
    pub(super) fn ahead(&self, count: usize) -> Option<Ahead> {
        let mut ahead = Ahead {
            holes: *self,
            numbers: ArrayVec::new(),
        };
        for _ in 0..count {
            ahead.numbers.try_push(self.take()?).ok()?;
        }
        Some(ahead)
    }

    /// Gives a record back.
    pub(super) fn give(&self, n: usize) {
        if let Some(taken) = n.checked_sub(1).and_then(|n| self.taken.get(n)) {
            taken.store(false, Release);
        }
    }

    /// Frames of `mask` have come back. Those that were awaited are dropped, and counted as returned.
    pub(super) fn drop_awaited(&self, hole: &Hole, mask: &Words) {
        let awaited = hole.awaited.load();
        let here: u32 = (0..8).map(|i| (awaited[i] & mask[i]).count_ones()).sum();
        if here == 0 {
            return;
        }
        let left: Words = core::array::from_fn(|i| awaited[i] & !mask[i]);
        hole.awaited.store(&left);
        if let Some(returned) = self.returned.first() {
            // Release pairs with the Acquire of `take_returned`: whoever opens the pagesets again does so after the drop.
            returned.fetch_add(here, Release);
        }
    }

    /// Frames that have come back since the last call.
    #[inline]
    pub(super) fn take_returned(&self) -> u32 {
        match self.returned.first() {
            // Mostly none, and a load is not a write.
            Some(returned) if returned.load(Relaxed) != 0 => returned.swap(0, Acquire),
            _ => 0,
        }
    }
}
