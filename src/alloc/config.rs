//! What an instance is made for.
//!
//! Owns: [`Config`], and the errors of making an instance from it.
//! Invariants: none; [`Config::check`] says whether one can be built.
//! Lock ranks: none. Used by: [`PageAllocator::new`](super::PageAllocator::new).

use core::fmt;

use super::Contents;
use crate::addr::{CpuId, NodeId, PhysAddr};
use crate::boot::{MemoryError, StorageFull};
use crate::node::formulas::most_scale_factor;
use crate::node::{MAX_NODES, StartCpus, Tuning, ZoneLimits};

/// The most CPUs an instance may have.
pub const MAX_CPUS: u32 = 8192;

/// What a [`PageAllocator`](super::PageAllocator) is made for. Every field has a default; set those that differ:
///
/// ```
/// use framekeeper::Config;
/// let config = Config { cpus: 4, ..Config::default() };
/// assert!(config.raw_codes);
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// CPUs that get caches of their own: ids 0 up to this. Default 1.
    pub cpus: u32,
    /// The node that a CPU is on. Default: all on node 0.
    pub node_of: fn(CpuId) -> NodeId,
    /// Nodes of the machine: ids 0 up to this. Default [`MAX_NODES`].
    pub nodes: u32,
    /// Distance between two nodes as firmware gives it: 10 to itself, more to others. Default: 20 to every other.
    pub distance: fn(NodeId, NodeId) -> u8,
    /// Where zones end, and what is movable only.
    pub zones: ZoneLimits,
    /// Shards per zone; `None` chooses by CPUs and size. One shard is the classical zone with a single lock.
    pub shards: Option<u32>,
    /// Frames that one CPU may park in one zone, at most. Default 4096. Costs 4 bytes a frame, CPU and zone.
    pub pageset_slots: u32,
    /// Watermarks and pageset limits. Default: Linux's watermarks, and pagesets of a fixed size.
    pub tuning: Tuning,
    /// What is done to the contents of frames. Default: nothing.
    pub contents: Contents,
    /// Whether to hand over only the low zones and the first section or two of each node's highest zone at construction, for a fast boot.
    /// CPUs then bring the rest online by [`deferred_init`](super::PageAllocator::deferred_init), and
    /// [`finish_deferred`](super::PageAllocator::finish_deferred) must follow: before it there are no watermarks. Default false.
    pub deferred: bool,
    /// Which CPUs have pagesets from the start. Default: all.
    pub start_cpus: StartCpus,
    /// Whether to keep the codes (a quarter of a byte a frame) that [`try_from_raw`](super::PageAllocator::try_from_raw)
    /// needs. Default true.
    pub raw_codes: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cpus: 1,
            node_of: |_| NodeId(0),
            nodes: MAX_NODES as u32,
            distance: |a, b| if a == b { 10 } else { 20 },
            zones: ZoneLimits::default(),
            shards: None,
            pageset_slots: 4096,
            tuning: Tuning::default(),
            contents: Contents::Keep,
            deferred: false,
            start_cpus: StartCpus::All,
            raw_codes: true,
        }
    }
}

/// Why no instance can be made. The memory comes back with it, as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InitError {
    /// `Config::cpus` is 0 or above [`MAX_CPUS`].
    Cpus(u32),
    /// `Config::nodes` is 0 or above [`MAX_NODES`].
    Nodes(u32),
    /// Memory or a CPU is on a node that is not below `Config::nodes`.
    NodeOutOfRange(NodeId),
    /// A distance between two nodes is 0, below the distance of the first to itself, or differs the other way round.
    Distance(NodeId, NodeId),
    /// More shards than a zone can have, or 0.
    Shards(u32),
    /// `Tuning::scale_factor` is 0 or above 3000, or above 1000 by Linux 5.4's rule.
    ScaleFactor(u32),
    /// `Tuning::fraction` is below 8.
    Fraction(u32),
    /// Contents are to be changed, and the direct map does not reach this memory.
    Unmapped(PhysAddr),
    /// A zone would span 2^32 frames or more, which its frame numbers cannot express.
    ZoneTooLarge(NodeId),
    /// `Tuning::min_free_kib` would keep all memory free: give less.
    MinFree {
        /// KiB asked for.
        kib: u64,
        /// KiB of memory that there are.
        memory_kib: u64,
    },
    /// The metadata could not be placed.
    Memory(MemoryError),
}

/// The most shards a zone may be asked to have.
pub(crate) const MAX_SHARDS: u32 = 1 << 14;

impl Config {
    /// Whether an instance can be built, as far as the memory does not matter.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub(crate) fn check(&self) -> Result<(), InitError> {
        if self.cpus == 0 || self.cpus > MAX_CPUS {
            return Err(InitError::Cpus(self.cpus));
        }
        if self.nodes == 0 || self.nodes as usize > MAX_NODES {
            return Err(InitError::Nodes(self.nodes));
        }
        if let Some(shards) = self.shards
            && !(1..=MAX_SHARDS).contains(&shards)
        {
            return Err(InitError::Shards(shards));
        }
        let most = most_scale_factor(self.tuning.edition);
        if !(1..=most).contains(&self.tuning.scale_factor) {
            return Err(InitError::ScaleFactor(self.tuning.scale_factor));
        }
        if let Some(fraction @ 0..8) = self.tuning.fraction {
            return Err(InitError::Fraction(fraction));
        }
        for cpu in 0..self.cpus {
            self.check_node((self.node_of)(CpuId(cpu)))?;
        }
        let node = |n: u32| NodeId(n as u8);
        for a in (0..self.nodes).map(node) {
            for b in (0..self.nodes).map(node) {
                let distance = (self.distance)(a, b);
                let sound = distance > 0
                    && distance >= (self.distance)(a, a)
                    && distance == (self.distance)(b, a);
                if !sound {
                    return Err(InitError::Distance(a, b));
                }
            }
        }
        Ok(())
    }

    /// Whether the machine has such a node.
    pub(crate) fn check_node(&self, node: NodeId) -> Result<(), InitError> {
        if u32::from(node.0) < self.nodes {
            Ok(())
        } else {
            Err(InitError::NodeOutOfRange(node))
        }
    }
}

impl From<MemoryError> for InitError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

impl From<StorageFull> for InitError {
    fn from(error: StorageFull) -> Self {
        Self::Memory(MemoryError::Full(error))
    }
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(cpus) => write!(f, "{cpus} CPUs: at least 1 and at most {MAX_CPUS}"),
            Self::Nodes(nodes) => write!(f, "{nodes} nodes: at least 1 and at most {MAX_NODES}"),
            Self::NodeOutOfRange(node) => {
                write!(
                    f,
                    "node {} has memory or CPUs: configure more nodes",
                    node.0
                )
            }
            Self::Distance(a, b) => write!(
                f,
                "the distance of nodes {} and {} is 0, below the local one, or not symmetric",
                a.0, b.0
            ),
            Self::Shards(shards) => {
                write!(f, "{shards} shards: at least 1 and at most {MAX_SHARDS}")
            }
            Self::ScaleFactor(factor) => {
                write!(
                    f,
                    "scale factor {factor}: at least 1 and at most 3000, 1000 by Linux 5.4's rule"
                )
            }
            Self::Fraction(fraction) => {
                write!(
                    f,
                    "pagesets may hold a part of at most an eighth, not 1/{fraction}"
                )
            }
            Self::Unmapped(address) => write!(
                f,
                "the direct map does not reach {address}, so contents cannot be changed: keep them or map it"
            ),
            Self::ZoneTooLarge(node) => write!(
                f,
                "a zone of node {} spans 2^32 frames or more: use larger pages or split the node",
                node.0
            ),
            Self::MinFree { kib, memory_kib } => {
                write!(
                    f,
                    "min_free of {kib} KiB is all of the {memory_kib} KiB there are: give less"
                )
            }
            Self::Memory(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for InitError {}
