//! Physical memory for Rust kernels: page frames handed out fast, charged to groups, kept in use order, and taken back
//! under pressure.
//!
//! ```text
//!   firmware's memory map                                             kernel
//!      │ BootMap                                                        ▲ │ faults, page tables, swap
//!      ▼                                              Pages, Folio      │ ▼ Evict hooks
//!   nodes, zones ──► shard of lines ──► pageset (per CPU) ──► Pages ──► Folio ──► add batch (per CPU)
//!                        ▲                   ▲               charge_to(memcg)        │
//!                        └───────────────────┴── freed in bulk ◄── reclaim ◄── lruvec (memcg, node)
//!                                                                          ◄─► activate batch (per CPU)
//! ```
//!
//! The layers below, bottom up: a module names only modules above it in this file. `tests/layering.rs` holds them to it,
//! and `tests/life_of_a_frame.rs` walks the picture once.
//!
//! [`PageAllocator`] is the left half, usable alone. [`Mm`] is all of it. A port gives a [`Platform`], and [`Evict`] to
//! reclaim. README.md has an example and the porting page.
#![no_std]

// Numbers that name memory, CPUs and nodes.
pub mod addr;

// The lock order.
pub mod rank;

// What a port must give.
pub mod platform;

// Locks, per-CPU data, grace periods.
pub mod sync;

// Memory before there is an allocator.
pub mod boot;

// Spans of frames, handed out in blocks of orders 0 to 18.
pub mod zone;

// Each CPU's cache of free frames.
pub mod pageset;

// Nodes, and which zone is asked first.
pub mod node;

// The page allocator.
pub mod alloc;

// A record for each frame that a memcg may own.
mod frame;

// Groups that frames are charged to.
pub mod memcg;

// Frames in the order of their use.
pub mod lru;

// Caches of the kernel's own objects, asked for less under pressure.
pub mod shrinker;

// Lists of the kernel's own objects, by group and node.
pub mod list_lru;

// The memory manager: all layers together, and the handles that callers hold.
pub mod mm;

// Taking frames back under pressure.
pub mod reclaim;

// The state of an instance as text that existing parsers read.
pub mod report;

// Meeting points with other crates, behind optional features.
pub mod integrate;

pub use addr::{CpuId, FrameRange, NodeId, Order, Pfn, PhysAddr, ZoneKind};
pub use alloc::{
    AllocError, Balloon, Cma, CmaBlock, CmaError, Config, Contig, ContigError, FinishError,
    HotplugError, InitError, Moved, OnlineError, Oom, PageAllocator, Pages, RawError, Reclaim,
    ReleaseError, Released, Relief, Reported, Request,
};
pub use boot::{BootMap, LateMemory, MapError, Memory, Refused, Storage};
pub use frame::FrameTableFault;
pub use list_lru::ListLru;
pub use lru::{Backing, BatchSize, ListKind, Moves, Policy, Refault, Shadow, Swap};
pub use memcg::{CreateError, MemcgId, OomScope, OomSetting, PageState, RemoveError};
pub use mm::{
    BatchesOff, ByteCharge, ChargeError, Folio, FolioView, Isolated, LruError, LruStat, Mm,
    MmConfig, MmInitError, NoSuchGroup, ShadowIndex, ShadowNodes, Split, SplitError, SplitIsolated,
    StateChange, TakenOut, Task,
};
pub use node::{CpuError, StartCpus};
pub use platform::{Barrier, CpuIds, IrqOff, Platform, RawLock};
pub use rank::Rank;
pub use reclaim::{
    Background, BackgroundStop, CompactStop, Compacted, Copied, Evict, Evicted, Killed, Migrate,
    Moving, Reclaimed, Release, Stop, Throttle, Unmap, Victim, WriteOut,
};
pub use shrinker::{Shrinker, ShrinkerConfig, ShrinkerId};
pub use zone::{MarkError, Mobility, WasBad};

#[cfg(test)]
extern crate self as framekeeper;

#[cfg(all(test, not(loom)))]
#[path = "../tests/common/host.rs"]
mod host;

#[cfg(all(test, not(loom)))]
#[path = "../tests/common/stepper.rs"]
mod stepper;

#[cfg(all(test, loom))]
#[path = "../tests/common/loom_host.rs"]
mod loom_host;

#[cfg(all(test, loom))]
#[path = "../tests/common/loom_machine.rs"]
mod loom_machine;

/// README's examples are compiled and run with the rest of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
