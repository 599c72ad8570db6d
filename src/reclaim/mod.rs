//! Taking frames back under pressure.
//!
//! Owns: [`Evict`], what the kernel does for it; the entry points: [`Mm::alloc`](crate::Mm::alloc), [`Pages::charge_to`](crate::Pages::charge_to),
//! [`Mm::shrink_memcg`](crate::Mm::shrink_memcg), [`Mm::reclaim`](crate::Mm::reclaim), [`Mm::balance_node`](crate::Mm::balance_node).
//! Invariants: no lock is held across a hook, so hooks may sleep. One thread does not reclaim inside its own reclaim. Every loop is
//! bounded: by priorities, by list lengths, by retries.
//! Lock ranks: takes `LruBatch`, `LruVec`, `MemcgTree` in turn, none while a hook runs. Used by: kernels.

mod background;
mod balance;
mod compact;
mod entry;
mod evict;
mod hand;
mod objects;
mod oom;
mod refault;
mod relief;
mod scan;
mod throttle;
mod vacate;
mod verdict;
mod walk;

pub use background::{Background, BackgroundStop};
pub use compact::{CompactStop, Compacted, Copied, Migrate, Moving};
pub use entry::{Reclaimed, Stop};
pub use evict::{Evict, Evicted, Release, Unmap, WriteOut};
pub use objects::ShrinkError;
pub use oom::{Killed, Victim};
pub use throttle::Throttle;
