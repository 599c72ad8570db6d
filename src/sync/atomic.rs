//! Atomics: core's, or loom's in the models.
//!
//! Owns: the switch. Invariants: every atomic of the crate comes from here. Lock ranks: none. Used by: all.

#[cfg(not(loom))]
#[allow(unused_imports, reason = "the layers above use them")]
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
};
#[cfg(loom)]
#[allow(unused_imports, reason = "the layers above use them")]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence,
};

pub(crate) use core::sync::atomic::Ordering;
