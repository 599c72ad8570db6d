//! A lock that says how often it was taken, waited for, and how long it was held.
//!
//! Owns: [`CountedLock`], a wrapper for [`Platform::RawLock`](crate::Platform::RawLock); [`LockTable`], where it counts;
//! [`LockStats`], how it finds that. Its `RawLock` implementation is in lock.rs, with the other unsafe code.
//! Invariants: counts are lone words, each exact at rest. A table belongs to the port: the library has no statics.
//! Lock ranks: counts them; takes none. Used by: ports that want to know, report.

use core::marker::PhantomData;
// Not `sync::atomic`: counts order nothing, so models need not see them, and a port's table must be `const`.
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::CachePadded;
use crate::rank::Rank;

/// Where a port's [`CountedLock`]s count. One type without values.
///
/// ```
/// use framekeeper::sync::{CountedLock, LockStats, LockTable, SpinLock};
/// static LOCKS: LockTable = LockTable::new();
/// enum Counted {}
/// impl LockStats for Counted {
///     fn table() -> &'static LockTable {
///         &LOCKS
///     }
///     fn now() -> Option<u64> {
///         None // or the port's clock, for wait and hold times
///     }
/// }
/// // in `impl Platform`:
/// type RawLock = CountedLock<SpinLock, Counted>;
/// # let _ = |lock: RawLock| lock;
/// println!("{}", framekeeper::report::Lockstat::of(&LOCKS));
/// ```
pub trait LockStats: Send + Sync + 'static {
    /// The table.
    fn table() -> &'static LockTable;

    /// Nanoseconds since some fixed moment. Two readings for each use of a lock: without a clock nothing but counts are kept.
    fn now() -> Option<u64> {
        None
    }
}

/// A platform's lock, counted by rank. Costs two shared counters and two readings of the clock for each use, so it is for
/// looking, not for every day; a port that does not name it pays nothing.
#[derive(Debug)]
pub struct CountedLock<L, S> {
    pub(super) raw: L,
    rank: Rank,
    /// When it was taken. Written and read by the holder.
    since: AtomicU64,
    stats: PhantomData<fn() -> S>,
}

/// No reading of the clock.
const NO_TIME: u64 = u64::MAX;

impl<L, S: LockStats> CountedLock<L, S> {
    pub(super) fn around(raw: L, rank: Rank) -> Self {
        Self {
            raw,
            rank,
            since: AtomicU64::new(NO_TIME),
            stats: PhantomData,
        }
    }

    /// Counts that it was taken: after waiting since the moment given (if there is a clock), or at once.
    #[inline]
    pub(super) fn took(&self, waited_since: Option<Option<u64>>) {
        let row = S::table().row(self.rank);
        row.acquired.fetch_add(1, Relaxed);
        let now = S::now();
        self.since.store(now.unwrap_or(NO_TIME), Relaxed);
        if let Some(began) = waited_since {
            row.contended.fetch_add(1, Relaxed);
            if let (Some(began), Some(now)) = (began, now) {
                row.wait.add(now.saturating_sub(began));
            }
        }
    }

    /// Counts that it is about to be released.
    #[inline]
    pub(super) fn leaves(&self) {
        let since = self.since.load(Relaxed);
        if since != NO_TIME
            && let Some(now) = S::now()
        {
            let row = S::table().row(self.rank);
            row.hold.add(now.saturating_sub(since));
        }
    }
}

/// Counts of all locks of a port, by rank.
#[derive(Debug)]
pub struct LockTable([CachePadded<Row>; Rank::COUNT]);

#[derive(Debug)]
struct Row {
    acquired: AtomicU64,
    contended: AtomicU64,
    wait: Durations,
    hold: Durations,
}

#[derive(Debug)]
struct Durations {
    count: AtomicU64,
    total: AtomicU64,
    least: AtomicU64,
    most: AtomicU64,
}

/// What was counted of one rank. Times need [`LockStats::now`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockCounts {
    /// Whose locks.
    pub rank: Rank,
    /// Times that one was taken.
    pub acquired: u64,
    /// Of these, times that it was not free at first.
    pub contended: u64,
    /// How long was waited.
    pub wait: Times,
    /// How long they were held.
    pub hold: Times,
}

/// Durations in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// How many were measured.
    pub count: u64,
    /// Their sum.
    pub total: u64,
    /// The shortest; 0 of none.
    pub least: u64,
    /// The longest.
    pub most: u64,
}

impl Times {
    /// The mean; 0 of none.
    #[must_use]
    pub fn mean(&self) -> u64 {
        self.total.checked_div(self.count).unwrap_or(0)
    }
}

impl Durations {
    const fn new() -> Self {
        Self {
            count: AtomicU64::new(0),
            total: AtomicU64::new(0),
            least: AtomicU64::new(u64::MAX),
            most: AtomicU64::new(0),
        }
    }

    fn add(&self, ns: u64) {
        self.count.fetch_add(1, Relaxed);
        self.total.fetch_add(ns, Relaxed);
        self.least.fetch_min(ns, Relaxed);
        self.most.fetch_max(ns, Relaxed);
    }

    fn read(&self) -> Times {
        let count = self.count.load(Relaxed);
        let least = self.least.load(Relaxed);
        Times {
            count,
            total: self.total.load(Relaxed),
            least: if least == u64::MAX { 0 } else { least },
            most: self.most.load(Relaxed),
        }
    }

    fn reset(&self) {
        self.count.store(0, Relaxed);
        self.total.store(0, Relaxed);
        self.least.store(u64::MAX, Relaxed);
        self.most.store(0, Relaxed);
    }
}

impl Default for LockTable {
    fn default() -> Self {
        Self::new()
    }
}

impl LockTable {
    /// Nothing counted yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(
            [const {
                CachePadded(Row {
                    acquired: AtomicU64::new(0),
                    contended: AtomicU64::new(0),
                    wait: Durations::new(),
                    hold: Durations::new(),
                })
            }; Rank::COUNT],
        )
    }

    fn row(&self, rank: Rank) -> &Row {
        &self.0[rank as usize].0
    }

    /// What was counted of one rank.
    #[must_use]
    pub fn of(&self, rank: Rank) -> LockCounts {
        let row = self.row(rank);
        LockCounts {
            rank,
            acquired: row.acquired.load(Relaxed),
            contended: row.contended.load(Relaxed),
            wait: row.wait.read(),
            hold: row.hold.read(),
        }
    }

    /// Counts from zero again. What is counted meanwhile may be lost in part.
    pub fn reset(&self) {
        for CachePadded(row) in &self.0 {
            row.acquired.store(0, Relaxed);
            row.contended.store(0, Relaxed);
            row.wait.reset();
            row.hold.reset();
        }
    }
}
