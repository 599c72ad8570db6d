//! Meeting points with other crates, each behind an optional feature of that crate's name.
//!
//! Owns: adapters only. Invariants: no adapter keeps state of its own. Lock ranks: as the calls it makes.
//! Used by: kernels that use those crates.

#[cfg(feature = "x86_64")]
mod x86_64;

#[cfg(feature = "x86_64")]
pub use self::x86_64::PageTableFrames;
