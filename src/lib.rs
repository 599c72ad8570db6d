//! framekeeper
#![no_std]

/// Numbers that name memory, CPUs and nodes.
pub mod addr;

/// The lock order.
pub mod rank;

/// What a port must give.
pub mod platform;

/// Locks, per-CPU data, grace periods.
pub mod sync;

/// Memory before there is an allocator.
pub mod boot;

/// A record for each frame that a memcg may own.
pub mod frame;

/// Groups that frames are charged to.
pub mod memcg;

/// Frames in the order of their use.
pub mod lru;

pub use addr::{CpuId, FrameRange, NodeId, Order, Pfn, PhysAddr, ZoneKind};
pub use platform::{Barrier, CpuIds, IrqOff, Platform, RawLock};
pub use rank::Rank;

#[cfg(test)]
extern crate self as framekeeper;

#[cfg(all(test, not(loom)))]
#[path = "../tests/common/host.rs"]
mod host;
