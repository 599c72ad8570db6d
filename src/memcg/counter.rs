//! Frames charged against a limit.
//!
//! Owns: [`PageCounter`].
//! Invariants: a charge that succeeds never leaves `usage` above the `max` it saw; one that fails leaves it as it was. A
//! failing charge is counted for a moment, so a smaller one beside it may fail too.
//! Lock ranks: none; lone atomics, ordered by the group's life (see tree.rs). Used by: memcg.

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// No limit.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// Usage and limit of one group, in frames.
#[derive(Debug)]
pub(super) struct PageCounter {
    usage: AtomicU64,
    max: AtomicU64,
}

impl PageCounter {
    pub(super) fn new() -> Self {
        Self {
            usage: AtomicU64::new(0),
            max: AtomicU64::new(UNLIMITED),
        }
    }

    pub(super) fn reset(&self) {
        self.usage.store(0, Relaxed);
        self.max.store(UNLIMITED, Relaxed);
    }

    pub(super) fn usage(&self) -> u64 {
        self.usage.load(Relaxed)
    }

    pub(super) fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    pub(super) fn set_max(&self, frames: u64) {
        self.max.store(frames, Relaxed);
    }

    /// Adds `frames` unless that exceeds the limit.
    pub(super) fn try_charge(&self, frames: u64) -> bool {
        let before = self.usage.fetch_add(frames, Relaxed);
        // `usage` counts frames that exist, below 2^52, so neither sum wraps.
        if before.saturating_add(frames) <= self.max() {
            return true;
        }
        self.uncharge(frames);
        false
    }

    pub(super) fn uncharge(&self, frames: u64) {
        let before = self.usage.fetch_sub(frames, Relaxed);
        debug_assert!(before >= frames, "{frames} frames uncharged of {before}");
    }
}
