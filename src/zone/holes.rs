//! Which frames of a line are not there, or must not be used.
//!
//! Owns: the records for the few lines of which not every frame is managed and good.
//! Invariants: a record belongs to one line from the moment it is taken until that line is plain again.
//! Lock ranks: none of its own; a record is written under the lock of its line's shard, and read by anyone.
//! Used by: shard, zone.

use super::line::{Line, Words};
use crate::boot::{Bump, StorageFull};
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Frames of one line that are never given.
#[derive(Debug, Default)]
pub(super) struct Hole {
    /// Frames that are not managed, bit by bit.
    pub(super) absent: Line,
    /// Frames that were found bad. They stay so while the line goes offline and comes back.
    pub(super) bad: Line,
    /// Whether a line has it.
    taken: AtomicBool,
}

/// All records of a zone. Number 0 stands for "none" and is not kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holes {
    records: &'static [Hole],
}

impl Hole {
    /// Frames that are never given.
    pub(super) fn unusable(&self) -> Words {
        let (absent, bad) = (self.absent.load(), self.bad.load());
        core::array::from_fn(|i| absent[i] | bad[i])
    }
}

impl Holes {
    pub(super) fn build(bump: &mut Bump<'_>, count: usize) -> Result<Self, StorageFull> {
        Ok(Self {
            records: bump.slots(count, |_| Hole::default())?,
        })
    }

    /// The record with number `n`, from 1.
    pub(super) fn of(&self, n: usize) -> Option<&'static Hole> {
        self.records.get(n.checked_sub(1)?)
    }

    /// Number of a record that no line had, empty.
    pub(super) fn take(&self) -> Option<usize> {
        let n = self
            .records
            .iter()
            .position(|record| !record.taken.load(Relaxed) && !record.taken.swap(true, Relaxed))?;
        self.records[n].absent.store(&[0; 8]);
        self.records[n].bad.store(&[0; 8]);
        Some(n + 1)
    }

    /// Gives a record back.
    pub(super) fn give(&self, n: usize) {
        if let Some(record) = self.of(n) {
            record.taken.store(false, Relaxed);
        }
    }

    /// Number of records that no line has.
    pub(super) fn left(&self) -> usize {
        self.records
            .iter()
            .filter(|record| !record.taken.load(Relaxed))
            .count()
    }
}
