//! How background reclaim of each node fared lately.
//!
//! Owns: [`Effort`]. Invariants: hints only: a lost update costs a run of background reclaim, or brings one.
//! Lock ranks: none. Used by: reclaim (background).

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Runs that freed nothing after which a node counts as hopeless (`MAX_RECLAIM_RETRIES`).
const MOST_FAILURES: u32 = 16;

/// One node's.
#[derive(Debug)]
pub(crate) struct Effort {
    /// Runs in a row that freed nothing.
    failures: AtomicU32,
    /// Frames that were free at the last of them.
    free: AtomicU64,
}

impl Effort {
    pub(super) fn new() -> Self {
        Self {
            failures: AtomicU32::new(0),
            free: AtomicU64::new(0),
        }
    }

    /// Whether more runs are in vain: until somebody frees something, by reclaim or otherwise.
    pub(crate) fn is_hopeless(&self, free: u64) -> bool {
        if self.failures.load(Relaxed) < MOST_FAILURES {
            return false;
        }
        let freed = free > self.free.load(Relaxed);
        if freed {
            self.renew();
        }
        !freed
    }

    /// Something was freed.
    pub(crate) fn renew(&self) {
        if self.failures.load(Relaxed) > 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// A run freed nothing while `free` frames were.
    pub(crate) fn fail(&self, free: u64) {
        self.free.store(free, Relaxed);
        let failures = self.failures.load(Relaxed).saturating_add(1);
        self.failures.store(failures, Relaxed);
    }
}
