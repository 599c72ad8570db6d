//! Memory before there is an allocator: which ranges exist, and the bytes that the crate's own metadata takes.
//!
//! Owns: [`BootMap`], the region algebra; [`Storage`] and [`Bump`], from which every layer's arrays are carved
//! (carve.rs, UNSAFE 1, which also holds every access through the direct map); [`Memory`], both together.
//! Invariants: regions are sorted, disjoint and maximal; reserved wins over usable; frame 0 is never free; no byte of storage is given twice.
//! Lock ranks: none; single-threaded until the instance exists.
//! Used by: every layer above, at construction.

mod carve;
mod map;

pub use carve::{Bump, Memory, Storage, StorageError, StorageFull};
pub use map::{BootMap, MapError, Region};

#[cfg(all(test, not(loom)))]
mod carve_tests;
