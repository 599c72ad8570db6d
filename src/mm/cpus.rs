//! CPUs that come and go.
//!
//! Owns: [`Mm::cpu_online`], [`Mm::cpu_offline`]. Invariants: a CPU that went keeps nothing back: no frame, no move of the LRU, no
//! charge; its counts stay in the sums, which go over all CPUs.
//! Lock ranks: `MemcgStock`, `LruBatch`, `LruVec`, `Pageset`, `Shard`, as the drains take them. Used by: kernels.

use super::Mm;
use crate::addr::CpuId;
use crate::memcg::MemcgId;
use crate::node::CpuError;
use crate::platform::{IrqOff, Platform};

impl<P: Platform> Mm<P> {
    /// Gives a CPU its pagesets: [`PageAllocator::cpu_online`](crate::PageAllocator::cpu_online).
    ///
    /// # Errors
    /// [`CpuError`], with nothing changed.
    pub fn cpu_online(&self, cpu: CpuId) -> Result<u32, CpuError> {
        self.alloc.cpu_online(cpu)
    }

    /// Takes a CPU's pagesets away, and completes and gives back what it holds: batches of LRU moves, charges in stock, parked
    /// frames. Call it once the CPU has stopped: what it queues later waits for the next drain of all.
    ///
    /// # Errors
    /// [`CpuError`], with nothing changed.
    pub fn cpu_offline(&self, cpu: CpuId) -> Result<u32, CpuError> {
        let changed = self.alloc.cpu_offline(cpu)?;
        self.drain_lru_cpu(cpu);
        self.memcgs
            .drain_stock(cpu, MemcgId::ROOT.slot, &IrqOff::new());
        Ok(changed)
    }
}
