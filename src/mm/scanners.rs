//! Where compaction is in each zone.
//!
//! Owns: [`Scanners`], and [`Scan`], the claim of whoever moves them.
//! Invariants: one thread moves a zone's scanners at a time; who finds them claimed does something else.
//! Lock ranks: none; a claim and a word. Used by: mm, reclaim (compaction).

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where the scanners of a zone are.
#[derive(Debug)]
pub(crate) struct Scanners {
    claimed: AtomicBool,
    /// The next line to empty in the low half, the line above the next to fill in the high half; 0 before the first call.
    /// Written by the holder of `claimed`.
    at: AtomicU64,
}

impl Scanners {
    pub(crate) fn new() -> Self {
        Self {
            claimed: AtomicBool::new(false),
            at: AtomicU64::new(0),
        }
    }
}

/// The claim of a zone's scanners; where they are is kept when it is dropped.
#[must_use]
pub(crate) struct Scan<'s> {
    scanners: &'s Scanners,
    /// The next line to empty.
    pub(crate) source: u32,
    /// The line that is being filled, plus one.
    pub(crate) target: u32,
}

impl<'s> Scan<'s> {
    /// Claims a zone's scanners; from the zone's ends if they met. `None` if someone has them.
    pub(crate) fn claim(scanners: &'s Scanners, lines: u32) -> Option<Self> {
        // Acquire pairs with the Release below: the last holder's places.
        let free =
            scanners
                .claimed
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        free.ok()?;
        let at = scanners.at.load(Ordering::Relaxed);
        let (source, target) = (at as u32, (at >> 32) as u32);
        let fresh = target == 0 || source >= target;
        Some(Self {
            scanners,
            source: if fresh { 0 } else { source },
            target: if fresh { lines } else { target.min(lines) },
        })
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        let at = u64::from(self.target) << 32 | u64::from(self.source);
        self.scanners.at.store(at, Ordering::Relaxed);
        self.scanners.claimed.store(false, Ordering::Release);
    }
}
