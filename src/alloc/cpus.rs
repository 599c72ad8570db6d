//! CPUs that come and go.
//!
//! Owns: [`PageAllocator::cpu_online`], [`PageAllocator::cpu_offline`]. Invariants: when a call returns, each pageset has the limits that
//! follow from the CPUs that run, and one of a CPU that does not is empty and stays so.
//! Lock ranks: Pageset, then Shard, one at a time. Used by: mm, kernels.

use super::PageAllocator;
use crate::addr::CpuId;
use crate::node::CpuError;
use crate::platform::{IrqOff, Platform};

impl<P: Platform> PageAllocator<P> {
    /// Gives a CPU its pagesets, and every pageset the limits for one CPU more. Before, the CPU is served by the shards alone.
    /// Returns how many pagesets got new limits.
    ///
    /// # Errors
    /// [`CpuError`], with nothing changed.
    pub fn cpu_online(&self, cpu: CpuId) -> Result<u32, CpuError> {
        self.change_cpus(cpu, || self.nodes.set_online(cpu))
    }

    /// Takes the pagesets of a CPU away and empties them, wherever the CPU is; it may even run on. Every other pageset gets the
    /// limits for one CPU less. Returns how many got new ones.
    ///
    /// # Errors
    /// [`CpuError`], with nothing changed.
    pub fn cpu_offline(&self, cpu: CpuId) -> Result<u32, CpuError> {
        let changed = self.change_cpus(cpu, || self.nodes.set_offline(cpu))?;
        // Limits are zero by now, so nothing is parked behind the drain's back.
        self.drain_cpu(cpu);
        Ok(changed)
    }

    /// Whether a CPU has pagesets.
    #[must_use]
    pub fn is_cpu_online(&self, cpu: CpuId) -> bool {
        self.nodes.is_online(cpu)
    }

    /// One change of the CPUs that run, with what follows for pagesets. A change that leaves the others' limits as they are
    /// looks at none of them: machines with thousands of CPUs bring them up one by one.
    fn change_cpus(
        &self,
        cpu: CpuId,
        change: impl FnOnce() -> Result<(), CpuError>,
    ) -> Result<u32, CpuError> {
        change()?;
        self.renew_drift();
        let mut changed = 0;
        for index in 0..self.nodes.zones().len() as u8 {
            let of_zone = self.pagesets.of_zone(index);
            let mut others = of_zone
                .filter(|&(other, _)| other != cpu && self.nodes.is_online(other))
                .peekable();
            // Always in this order, own last: of two changes at once, the later one finds the first pageset stale, or the
            // earlier one's walk behind it has seen both.
            let stale = others.peek().is_some_and(|&(other, pageset)| {
                let limits = pageset.lock(&IrqOff::new()).limits();
                limits != self.fresh_limits(index, other)
            });
            if stale {
                changed += others
                    .map(|(other, pageset)| self.refresh(index, other, pageset))
                    .sum::<u32>();
            }
            if let Some(own) = self.pagesets.of(cpu, u32::from(index)) {
                changed += self.refresh(index, cpu, own);
            }
        }
        Ok(changed)
    }
}
