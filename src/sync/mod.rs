//! Locks, per-CPU data, grace periods.
//!
//! Owns: [`Lock`] and its guard [`Held`] (UNSAFE 3, in lock.rs); [`PerCpu`]; [`Epoch`]; the choice of atomics.
//! Invariants: a lock is taken only under an [`IrqOff`](crate::IrqOff) token, in the order of [`Rank`](crate::Rank).
//! Lock ranks: checks them; has none of its own.
//! Used by: every layer above.

pub(crate) mod atomic;
mod claims;
mod epoch;
mod lock;
mod per_cpu;
pub(crate) mod twin;

pub(crate) use claims::{Claims, NoClaim};
pub use epoch::{Epoch, GraceBusy, Pinned, Pins};
pub use lock::{Held, Lock, Ranked};
pub use per_cpu::{CachePadded, PerCpu};

pub use crate::platform::RawLock;

/// The default choice for [`Platform::RawLock`](crate::Platform::RawLock): a test-and-test-and-set spin lock.
pub type SpinLock = spin::mutex::SpinMutex<()>;
