//! How far a zone's sum of free frames may lag behind its shards.
//!
//! Owns: [`Drift`]. Invariants: no shard keeps more from the sum than readers reckon with: a threshold that falls is followed by a look at
//! every shard before they reckon with less. Nobody sets two at once: node has turns for it.
//! Lock ranks: `Shard`, one at a time.
//! Used by: exchange (which keeps changes back), watermark (which reckons with them), node (which computes it).

use super::Zone;
use crate::platform::{IrqOff, Platform};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A threshold for each shard, in frames. None is kept back until one is set.
#[derive(Debug, Default)]
pub(super) struct Drift {
    /// A change of a shard's free count is kept from the sum up to this.
    kept: AtomicU64,
    /// What readers reckon with; more while the threshold changes.
    reckoned: AtomicU64,
}

impl Drift {
    /// Whether a change is large enough to be added to the sum. Asked under the shard's lock.
    #[inline]
    pub(super) fn tells(&self, change: i64) -> bool {
        change.unsigned_abs() > self.kept.load(Relaxed)
    }
}

impl<P: Platform> Zone<P> {
    /// By how much [`free_frames`](Self::free_frames) may be wrong.
    #[must_use]
    pub fn drift(&self) -> u64 {
        self.drift.reckoned.load(Relaxed) * self.shards.len() as u64
    }

    /// By how much each shard may contribute to that.
    #[must_use]
    pub fn drift_threshold(&self) -> u64 {
        self.drift.kept.load(Relaxed)
    }

    /// Sets the threshold. The sum over one shard is that shard's, so there it stays zero.
    pub(crate) fn set_drift_threshold(&self, frames: u64, off: &IrqOff<P>) {
        if frames < self.drift_threshold() {
            self.drift.kept.store(frames, Relaxed);
            // Whoever takes a lock after this one sees the new threshold; what was kept before goes to the sum now.
            for cell in self.shards {
                self.with(cell, off, |_| {});
            }
        }
        self.drift.reckoned.store(frames, Relaxed);
        self.drift.kept.store(frames, Relaxed);
    }
}
