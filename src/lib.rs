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

/// Spans of frames, handed out in blocks of orders 0 to 18.
pub mod zone;

/// Each CPU's cache of free frames.
pub mod pageset;

/// Nodes, and which zone is asked first.
pub mod node;

/// The page allocator.
pub mod alloc;

pub use addr::{CpuId, FrameRange, NodeId, Order, Pfn, PhysAddr, ZoneKind};
pub use alloc::{AllocError, Config, InitError, PageAllocator, Pages, RawError, Request};
pub use platform::{Barrier, CpuIds, IrqOff, Platform, RawLock};
pub use rank::Rank;
pub use zone::Mobility;

#[cfg(test)]
extern crate self as framekeeper;

#[cfg(all(test, not(loom)))]
#[path = "../tests/common/host.rs"]
mod host;
