//! The state of an instance as text that existing parsers read.
//!
//! Owns: [`Buddyinfo`], [`Zoneinfo`], [`MemoryStat`], [`NumaStat`], [`MemoryEvents`], [`MemoryPressure`], [`Vmstat`], [`Lockstat`]: snapshots that print in the formats of Linux's files of those names,
//! with the counters that are really kept and no others.
//! Invariants: a snapshot changes nothing; its numbers were each right at some moment while it was taken.
//! Lock ranks: takes `Pageset`, `Shard`, `LruVec`, `MemcgTree`, one at a time. Used by: kernels' consoles and file systems, tests.

mod lockstat;
mod memory_events;
mod memory_pressure;
mod memory_stat;
mod vmstat;
mod zones;

pub use lockstat::Lockstat;
pub use memory_events::MemoryEvents;
pub use memory_pressure::MemoryPressure;
pub use memory_stat::{MemoryStat, NumaStat};
pub use vmstat::Vmstat;
pub use zones::{Buddyinfo, Zoneinfo};
