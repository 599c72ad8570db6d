//! Memory before there is an allocator: which ranges exist, and the bytes that the crate's own metadata takes.
//!
//! Owns: [`BootMap`], the region algebra (regions.rs) of usable and reserved memory (map.rs); [`Storage`] and [`Bump`], from which every layer's arrays are carved
//! (carve.rs, UNSAFE 1, which also holds every access through the direct map); [`Memory`], both together; [`LateMemory`], what comes
//! later; [`Refused`]; readers of what firmware says ([`firmware`]).
//! Invariants: regions are sorted, disjoint and maximal; reserved wins over usable; frame 0 is never free; no byte of storage is given twice.
//! Lock ranks: none; single-threaded until the instance exists.
//! Used by: every layer above, at construction.

mod carve;
mod error;
pub mod firmware;
mod map;
mod memory;
mod refused;
mod regions;

pub use carve::Storage;
pub(crate) use carve::{Bump, LateRun, LateSlots, Lent, fill_frames, find_other};
pub use error::{MapError, MemoryError, RegionKind, StorageError, StorageFull};
pub use map::{BootMap, PHYS_LIMIT, SECTION_BYTES, TAKE_FLOOR};
pub use memory::{LateMemory, Memory};
pub use refused::Refused;
pub use regions::Region;

#[cfg(all(test, not(loom)))]
mod carve_tests;
