//! Frames charged against limits.
//!
//! Owns: [`PageCounter`]: one group's usage, peak, limits and protected parts.
//! Invariants: a charge that succeeds never leaves `usage` above the `max` it saw; one that fails leaves it as it was. A
//! failing charge is counted for a moment, so a smaller one beside it may fail too. A parent's `children` is the sum of its
//! children's `own` parts.
//! Lock ranks: none; lone atomics, ordered by the group's life (see tree.rs). Used by: memcg.

use crate::platform::Platform;
use crate::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use crate::sync::twin::left_out;

/// No limit.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// Usage and limits of one group, in frames.
#[derive(Debug)]
pub(super) struct PageCounter {
    /// Frames charged, and those that CPUs keep in stock for this group or below.
    usage: AtomicU64,
    max: AtomicU64,
    /// The highest usage that was ever reached.
    peak: AtomicU64,
    /// Above it, charges are slowed down, not refused.
    high: AtomicU64,
    /// `max` was set below `usage`, and nobody has seen it fit since.
    squeezed: AtomicBool,
    min: Share,
    low: Share,
}

/// One kind of protection: frames that reclaim leaves to a group.
#[derive(Debug, Default)]
pub(super) struct Share {
    setting: AtomicU64,
    /// The part in use: the smaller of usage and setting. Stale for a moment while charges run.
    own: AtomicU64,
    /// Sum of the children's `own`.
    children: AtomicU64,
}

/// Which protection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protection {
    /// Never reclaimed from.
    Min,
    /// Reclaimed from only when nothing else is left.
    Low,
}

impl PageCounter {
    pub(super) fn new() -> Self {
        Self {
            usage: AtomicU64::new(0),
            max: AtomicU64::new(UNLIMITED),
            peak: AtomicU64::new(0),
            high: AtomicU64::new(UNLIMITED),
            squeezed: AtomicBool::new(false),
            min: Share::default(),
            low: Share::default(),
        }
    }

    /// As new. The group has no children, and gave its protected parts back.
    pub(super) fn reset(&self) {
        self.usage.store(0, Relaxed);
        self.max.store(UNLIMITED, Relaxed);
        self.peak.store(0, Relaxed);
        self.high.store(UNLIMITED, Relaxed);
    }

    pub(super) fn usage(&self) -> u64 {
        self.usage.load(Relaxed)
    }

    pub(super) fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    pub(super) fn high(&self) -> u64 {
        self.high.load(Relaxed)
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    pub(super) fn share(&self, kind: Protection) -> &Share {
        match kind {
            Protection::Min => &self.min,
            Protection::Low => &self.low,
        }
    }

    pub(super) fn set_high(&self, frames: u64) {
        self.high.store(frames, Relaxed);
    }

    /// Sets the limit; says whether usage is above it.
    pub(super) fn set_max(&self, frames: u64) -> bool {
        self.max.store(frames, SeqCst);
        self.is_over()
    }

    /// Whether usage is above the limit.
    pub(super) fn is_over(&self) -> bool {
        // Reads by writing: of this and a change of usage elsewhere, the later sees what the earlier one's thread did before.
        // So a charge sees the limit set before this, or its frames are seen here; and whoever leaves sees the mark set
        // before this, or that it left is seen here.
        self.usage.fetch_add(0, SeqCst) > self.max.load(SeqCst)
    }

    pub(super) fn squeezed(&self) -> &AtomicBool {
        &self.squeezed
    }

    /// Adds `frames` unless that exceeds the limit.
    pub(super) fn try_charge<P: Platform>(&self, frames: u64, parent: &Self) -> bool {
        touched();
        if left_out::<P>("limit: the look after the charge") && self.usage() >= self.max() {
            return false;
        }
        let before = self.usage.fetch_add(frames, SeqCst);
        // `usage` counts frames that exist, below 2^52, so neither sum wraps.
        let after = before.saturating_add(frames);
        if after > self.max.load(SeqCst) && !left_out::<P>("limit: the look after the charge") {
            touched();
            self.usage.fetch_sub(frames, SeqCst);
            return false;
        }
        self.changed(after, parent);
        true
    }

    /// Adds `frames` whatever the limit.
    pub(super) fn charge(&self, frames: u64, parent: &Self) {
        touched();
        let before = self.usage.fetch_add(frames, SeqCst);
        self.changed(before.saturating_add(frames), parent);
    }

    pub(super) fn uncharge(&self, frames: u64, parent: &Self) {
        touched();
        let before = self.usage.fetch_sub(frames, SeqCst);
        debug_assert!(before >= frames, "{frames} frames uncharged of {before}");
        self.share_changed(parent);
    }

    fn changed(&self, after: u64, parent: &Self) {
        if after > self.peak() {
            // In the line that was written a moment ago: no further miss.
            self.peak.fetch_max(after, Relaxed);
        }
        self.share_changed(parent);
    }

    fn share_changed(&self, parent: &Self) {
        self.min.changed(&self.usage, &parent.min);
        self.low.changed(&self.usage, &parent.low);
    }

    /// Sets one protection.
    pub(super) fn protect(&self, kind: Protection, frames: u64, parent: &Self) {
        let share = self.share(kind);
        share.setting.store(frames, SeqCst);
        share.changed(&self.usage, parent.share(kind));
    }
}

impl Share {
    /// What was asked for.
    pub(super) fn setting(&self) -> u64 {
        self.setting.load(Relaxed)
    }

    /// Sum of the children's parts in use.
    pub(super) fn children(&self) -> u64 {
        self.children.load(Relaxed)
    }

    /// Brings `own` up to date, and tells the parent the difference.
    fn changed(&self, usage: &AtomicU64, parent: &Self) {
        // Two updates that cross may leave the older value; whoever wrote looks again, so at rest it is the right one.
        // The exchange makes each difference reach the parent exactly once.
        loop {
            let part = usage.load(SeqCst).min(self.setting.load(SeqCst));
            if part == self.own.load(Relaxed) {
                return;
            }
            touched();
            let before = self.own.swap(part, SeqCst);
            parent
                .children
                .fetch_add(part.wrapping_sub(before), Relaxed);
        }
    }
}

/// Counts an access to a counter that CPUs share, for the tests that state how many there are.
#[inline]
fn touched() {
    #[cfg(all(test, not(loom)))]
    testing::TOUCHED.set(testing::TOUCHED.get() + 1);
}

#[cfg(all(test, not(loom)))]
pub(super) mod testing {
    extern crate std;
    use core::cell::Cell;

    std::thread_local! {
        /// Read-modify-writes of this thread on page counters.
        pub(in crate::memcg) static TOUCHED: Cell<u64> = const { Cell::new(0) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::host::Host;

    #[test]
    fn a_charge_over_the_limit_changes_nothing_and_the_peak_stays() {
        let (root, group) = (PageCounter::new(), PageCounter::new());
        assert!(!group.set_max(10));
        assert!(group.try_charge::<Host>(8, &root));
        assert!(!group.try_charge::<Host>(3, &root));
        assert_eq!((group.usage(), group.peak()), (8, 8));
        group.charge(3, &root);
        assert!(group.is_over());
        group.uncharge(11, &root);
        assert_eq!((group.usage(), group.peak()), (0, 11));
        assert!(
            group.try_charge::<Host>(10, &root) && !group.try_charge::<Host>(u64::MAX / 2, &root)
        );
    }

    #[test]
    fn a_parent_knows_the_sum_of_the_parts_that_its_children_use() {
        let (parent, a, b) = (PageCounter::new(), PageCounter::new(), PageCounter::new());
        a.protect(Protection::Min, 5, &parent);
        b.protect(Protection::Low, 50, &parent);
        assert!(a.try_charge::<Host>(3, &parent) && b.try_charge::<Host>(40, &parent));
        let sums = || {
            (
                parent.share(Protection::Min).children(),
                parent.share(Protection::Low).children(),
            )
        };
        assert_eq!(sums(), (3, 40));
        assert!(a.try_charge::<Host>(30, &parent));
        assert_eq!(sums(), (5, 40));
        b.protect(Protection::Low, 7, &parent);
        a.uncharge(32, &parent);
        assert_eq!(sums(), (1, 7));
        a.protect(Protection::Min, 0, &parent);
        b.protect(Protection::Low, 0, &parent);
        assert_eq!(sums(), (0, 0));
    }
}
