//! What an instance is made of.
//!
//! Owns: [`MmConfig`], [`MmInitError`], construction. Invariants: building only carves, so that it runs once to measure and once to build.
//! Lock ranks: none. Used by: mm.

use core::fmt;

use super::{Effort, Mm, Scanners};
use crate::alloc::{self, PageAllocator};
use crate::boot::{BootMap, Bump, MemoryError, StorageFull};
use crate::frame::{FrameTable, FrameTableFault};
use crate::list_lru::ListLrus;
use crate::lru::{BatchSize, Lru, Policy, Sizes};
use crate::memcg::{GroupMemory, MemcgFault, MemcgLimits, Memcgs};
use crate::platform::Platform;
use crate::shrinker::Shrinkers;
use crate::sync::Claims;
use crate::sync::atomic::{AtomicU32, AtomicU64};

/// Numbers that an instance is built for.
#[derive(Clone, Debug)]
pub struct MmConfig {
    /// The page allocator's.
    pub alloc: alloc::Config,
    /// How many groups.
    pub memcgs: MemcgLimits,
    /// Lists of the kernel's objects: each takes 128 bytes for each group and node.
    pub list_lrus: u32,
    /// Shrinkers: each takes 8 bytes for each group and node.
    pub shrinkers: u32,
    /// How many folios wait in a CPU's batch of LRU moves.
    pub lru_batch: BatchSize,
    /// Which folios go first.
    pub policy: Policy,
    /// How much reclaim prefers anonymous folios over file folios that cost the same: 0 hardly takes any, 100 makes no
    /// difference, 200 takes no file folios. More counts as 200.
    pub swappiness: u8,
}

/// As Linux's.
const SWAPPINESS: u8 = 60;

impl MmConfig {
    /// For `cpus` CPUs and `groups` memcgs beside the root, 16 levels deep, on a machine of one node.
    #[must_use]
    pub fn new(cpus: u32, groups: u32) -> Self {
        let alloc = alloc::Config {
            cpus,
            nodes: 1,
            ..alloc::Config::default()
        };
        let groups = groups.saturating_add(1);
        // As many again for dead groups whose frames are still in use.
        Self {
            alloc,
            memcgs: MemcgLimits {
                groups,
                depth: 16,
                owners: groups.saturating_mul(2),
                memory: GroupMemory::Carved,
            },
            list_lrus: 4,
            shrinkers: 16,
            lru_batch: BatchSize::default(),
            policy: Policy::default(),
            swappiness: SWAPPINESS,
        }
    }

    /// The same for a machine of `nodes` nodes.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.alloc.nodes = nodes;
        self.memcgs.owners = self.memcgs.groups.saturating_mul(2).saturating_mul(nodes);
        self
    }
}

/// Why no instance could be made. Nothing was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MmInitError {
    /// The page allocator refused.
    Alloc(alloc::InitError),
    /// The frame table cannot number the frames.
    Frames(FrameTableFault),
    /// No group, more than 2^31 owner slots, or fewer owner slots than nodes.
    Memcgs(MemcgLimits),
}

impl<P: Platform> Mm<P> {
    pub(super) fn build<const N: usize>(
        bump: &mut Bump<'_>,
        map: &BootMap<N>,
        config: &MmConfig,
    ) -> Result<Self, MmInitError> {
        let mut alloc = PageAllocator::build(bump, map, &config.alloc)?;
        // Reserved frames too: some are freed later.
        let ranges = || map.usable_frames(P::PAGE_SHIFT).map(|(_, range)| range);
        let comes_late = |section| alloc.comes_late(section);
        let frames = FrameTable::build(bump, P::PAGE_SHIFT, ranges, comes_late)
            .map_err(MmInitError::Frames)?;
        alloc.set_prepare(frames.prepare());
        let (nodes, cpus) = (config.alloc.nodes, config.alloc.cpus);
        let limits = &config.memcgs;
        let memcgs = Memcgs::build(bump, limits, nodes, cpus).map_err(|fault| match fault {
            MemcgFault::Limits => MmInitError::Memcgs(*limits),
            MemcgFault::Storage(full) => full.into(),
        })?;
        // `Memcgs::build` checked the product.
        let sizes = Sizes {
            groups: limits.groups,
            nodes,
            cpus,
            frames: alloc.span().frames(),
            batch: config.lru_batch,
            policy: config.policy,
        };
        let lru = Lru::build(bump, &sizes)?;
        let shrinkers = Shrinkers::build(bump, config.shrinkers, limits.groups * nodes)?;
        let list_lrus = ListLrus::build(bump, config.list_lrus, limits.groups, nodes, cpus)?;
        let reclaimers = Claims::new(bump.slots(cpus as usize * 2, |_| AtomicU64::new(0))?);
        let killers = Claims::new(bump.slots(1, |_| AtomicU64::new(0))?);
        let scanners = bump.slots(alloc.zone_count() as usize, |_| Scanners::new())?;
        Ok(Self {
            alloc,
            frames,
            memcgs,
            lru,
            shrinkers,
            list_lrus,
            refused_puts: AtomicU64::new(0),
            reown_from: AtomicU32::new(0),
            reclaimers,
            killers,
            scanners,
            efforts: bump.slots(nodes as usize, |_| Effort::new())?,
            swappiness: config.swappiness,
        })
    }
}

impl From<alloc::InitError> for MmInitError {
    fn from(error: alloc::InitError) -> Self {
        Self::Alloc(error)
    }
}

impl From<MemoryError> for MmInitError {
    fn from(error: MemoryError) -> Self {
        Self::Alloc(error.into())
    }
}

impl From<StorageFull> for MmInitError {
    fn from(full: StorageFull) -> Self {
        Self::Frames(FrameTableFault::Storage(full))
    }
}

impl fmt::Display for MmInitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alloc(error) => error.fmt(f),
            Self::Frames(fault) => fault.fmt(f),
            Self::Memcgs(limits) => write!(
                f,
                "{} groups with {} owner slots are out of range: 1 group or more, an owner slot for each group and node, at most 2^31",
                limits.groups, limits.owners
            ),
        }
    }
}

impl core::error::Error for MmInitError {}
