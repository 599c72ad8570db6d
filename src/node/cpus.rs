//! Which CPUs run.
//!
//! Owns: [`OnlineCpus`], and how many of them share the pagesets' part of a node. Invariants: at rest the counts equal the
//! CPUs marked online. A CPU is marked before the counts say so, and each change is followed by new limits for pagesets.
//! Lock ranks: none; lone atomics, read again under each pageset's lock. Used by: limits.rs, alloc.

use core::fmt;

use super::{Nodes, Shape};
use crate::addr::{CpuId, NodeId};
use crate::boot::{Bump, StorageFull};
use crate::platform::Platform;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Which CPUs run from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StartCpus {
    /// All that the instance was made for.
    #[default]
    All,
    /// CPU 0; the others are told of by [`cpu_online`](crate::PageAllocator::cpu_online).
    First,
}

/// Why a CPU's state cannot change. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CpuError {
    /// The instance was not made for this CPU: raise `Config::cpus`.
    Unknown(CpuId),
    /// It is online already.
    Online(CpuId),
    /// It is offline already.
    Offline(CpuId),
}

/// CPUs that run.
#[derive(Debug)]
pub(super) struct OnlineCpus {
    /// By CPU.
    cpus: &'static [AtomicBool],
    /// By node.
    by_node: &'static [AtomicU32],
    total: AtomicU32,
}

impl OnlineCpus {
    pub(super) fn build(
        bump: &mut Bump<'_>,
        nodes_of: &[NodeId],
        nodes: usize,
        shape: &Shape,
    ) -> Result<Self, StorageFull> {
        let runs = |cpu: usize| shape.start == StartCpus::All || cpu == 0;
        let cpus = bump.slots(shape.cpus as usize, |cpu| AtomicBool::new(runs(cpu)))?;
        let of_node = |node: usize| {
            let mine = nodes_of.iter().enumerate();
            mine.filter(|&(cpu, of)| usize::from(of.0) == node && runs(cpu))
                .count() as u32
        };
        let by_node = bump.slots(nodes, |node| AtomicU32::new(of_node(node)))?;
        let total = (0..shape.cpus as usize).filter(|&cpu| runs(cpu)).count() as u32;
        Ok(Self {
            cpus,
            by_node,
            total: AtomicU32::new(total),
        })
    }
}

impl<P: Platform> Nodes<P> {
    /// Whether `cpu` runs.
    pub(crate) fn is_online(&self, cpu: CpuId) -> bool {
        let cpu = self.online.cpus.get(cpu.0 as usize);
        cpu.is_some_and(|online| online.load(Relaxed))
    }

    /// Marks a CPU as running.
    pub(crate) fn set_online(&self, cpu: CpuId) -> Result<(), CpuError> {
        let online = self.known(cpu)?;
        if online.swap(true, Relaxed) {
            return Err(CpuError::Online(cpu));
        }
        self.count(cpu, |count| _ = count.fetch_add(1, Relaxed));
        Ok(())
    }

    /// Marks a CPU as not running.
    pub(crate) fn set_offline(&self, cpu: CpuId) -> Result<(), CpuError> {
        let online = self.known(cpu)?;
        if !online.swap(false, Relaxed) {
            return Err(CpuError::Offline(cpu));
        }
        self.count(cpu, |count| _ = count.fetch_sub(1, Relaxed));
        Ok(())
    }

    /// CPUs that share a node's zones: its own that run, or all that run if it has none.
    pub(super) fn cpus_near(&self, node: NodeId) -> u32 {
        let own = self.online.by_node.get(usize::from(node.0));
        // A count may be one behind for a moment, and so below zero while a CPU goes and comes.
        match own.map_or(0, |own| own.load(Relaxed)) as i32 {
            ..=0 => self.cpus_online(),
            own => own as u32,
        }
    }

    /// CPUs that run.
    pub(super) fn cpus_online(&self) -> u32 {
        // May be one behind for a moment, as above.
        (self.online.total.load(Relaxed) as i32).max(1) as u32
    }

    fn known(&self, cpu: CpuId) -> Result<&'static AtomicBool, CpuError> {
        let cpus = self.online.cpus;
        cpus.get(cpu.0 as usize).ok_or(CpuError::Unknown(cpu))
    }

    fn count(&self, cpu: CpuId, change: impl Fn(&AtomicU32)) {
        let node = usize::from(self.node_of_cpu(cpu).0);
        self.online.by_node.get(node).into_iter().for_each(&change);
        change(&self.online.total);
    }
}

impl fmt::Display for CpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(cpu) => write!(
                f,
                "there is no CPU {}: raise the number of CPUs in Config",
                cpu.0
            ),
            Self::Online(cpu) => write!(f, "CPU {} is online already", cpu.0),
            Self::Offline(cpu) => write!(f, "CPU {} is offline already", cpu.0),
        }
    }
}

impl core::error::Error for CpuError {}
