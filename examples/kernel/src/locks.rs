//! How often the library's locks are taken: as its counted lock says, and as its hooks around every hold say.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use framekeeper::Rank;
use framekeeper::report::Lockstat;
use framekeeper::sync::{CountedLock, LockStats, LockTable, SpinLock};

/// The lock of this port. A kernel that wants no counts takes `SpinLock` itself.
pub type Counted = CountedLock<SpinLock, Counts>;

/// Where it counts. Without times: they would read the clock twice for each hold.
#[derive(Debug)]
pub enum Counts {}

static TABLE: LockTable = LockTable::new();
static ACQUIRED: [AtomicU64; Rank::COUNT] = [const { AtomicU64::new(0) }; Rank::COUNT];
static RELEASED: [AtomicU64; Rank::COUNT] = [const { AtomicU64::new(0) }; Rank::COUNT];

impl LockStats for Counts {
    fn table() -> &'static LockTable {
        &TABLE
    }
}

pub fn acquired(rank: Rank) {
    ACQUIRED[rank as usize].fetch_add(1, Relaxed);
}

pub fn released(rank: Rank) {
    RELEASED[rank as usize].fetch_add(1, Relaxed);
}

/// The counts of the lock, and those of the hooks before and after every hold; they belong together if nothing runs.
pub fn counts() -> (Lockstat, [u64; Rank::COUNT], [u64; Rank::COUNT]) {
    let of =
        |counts: &[AtomicU64; Rank::COUNT]| Rank::ALL.map(|r| counts[r as usize].load(Relaxed));
    (Lockstat::of(&TABLE), of(&ACQUIRED), of(&RELEASED))
}
