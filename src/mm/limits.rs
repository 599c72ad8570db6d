//! Limits, protections and events of groups, as kernels handle them.
//!
//! Owns: what a group may have and what it keeps; forced charges; what CPUs hold for groups.
//! Invariants: setting a limit frees nothing. Ids that name no living group change nothing.
//! Lock ranks: takes `MemcgTree`, `MemcgStock` inside. Used by: kernels, reclaim.

use super::{Folio, Mm, NoSuchGroup};
use crate::addr::CpuId;
use crate::alloc::Pages;
use crate::boot::Refused;
use crate::memcg::{Event, Force, MemcgId, OomSetting, ProtectError, Protection, ROOT, Shield};
use crate::mm::ChargeError;
use crate::platform::{IrqOff, Platform};

impl<P: Platform> Mm<P> {
    /// A group's limit in frames, `u64::MAX` if it has none.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn memcg_max(&self, memcg: MemcgId) -> Result<u64, NoSuchGroup> {
        self.memcgs.max(memcg).ok_or(NoSuchGroup(memcg))
    }

    /// Sets a group's limit in frames. Frees nothing: further charges fail until usage falls below it
    /// ([`shrink_memcg_to`](Self::shrink_memcg_to) also reclaims).
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id, or the root, which has no limit.
    pub fn set_memcg_max(&self, memcg: MemcgId, frames: u64) -> Result<(), NoSuchGroup> {
        self.memcgs.set_max(memcg, frames).ok_or(NoSuchGroup(memcg))
    }

    /// Above how many frames a group's charges are to be slowed down, `u64::MAX` if they never are.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn memcg_high(&self, memcg: MemcgId) -> Result<u64, NoSuchGroup> {
        self.memcgs.high(memcg).ok_or(NoSuchGroup(memcg))
    }

    /// Sets that. Charges succeed all the same; the kernel asks [`memcg_high_delay`](Self::memcg_high_delay).
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id, or the root.
    pub fn set_memcg_high(&self, memcg: MemcgId, frames: u64) -> Result<(), NoSuchGroup> {
        self.memcgs
            .set_high(memcg, frames)
            .ok_or(NoSuchGroup(memcg))
    }

    /// How many milliseconds a thread that charged `frames` should sleep before it goes on, since the group or one above it
    /// is over its `high`; 0 if it need not. At most 2000. The kernel reclaims from the group first, and asks before the thread
    /// returns to its program, with no lock held.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn memcg_high_delay(&self, memcg: MemcgId, frames: u64) -> Result<u64, NoSuchGroup> {
        let delay = self.memcgs.high_delay(memcg, frames);
        delay.ok_or(NoSuchGroup(memcg))
    }

    /// Protects a group's first `frames` frames from reclaim of the groups above it.
    ///
    /// # Errors
    /// [`ProtectError`], with nothing changed.
    pub fn protect_memcg(
        &self,
        memcg: MemcgId,
        kind: Protection,
        frames: u64,
    ) -> Result<(), ProtectError> {
        self.memcgs.protect(memcg, kind, frames, &IrqOff::new())
    }

    /// How many frames of a group [`protect_memcg`](Self::protect_memcg) protects.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn memcg_protection(&self, memcg: MemcgId, kind: Protection) -> Result<u64, NoSuchGroup> {
        let setting = self.memcgs.protection(memcg, kind);
        setting.ok_or(NoSuchGroup(memcg))
    }

    /// The protections in effect for a group while frames are reclaimed from `root` and below: none for `root` itself.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn memcg_shield(&self, root: MemcgId, memcg: MemcgId) -> Result<Shield, NoSuchGroup> {
        for id in [root, memcg] {
            self.memcgs.max(id).ok_or(NoSuchGroup(id))?;
        }
        Ok(self.memcgs.shield(root.slot, memcg.slot))
    }

    /// The highest usage that a group ever reached. Frames that CPUs kept in stock for it, up to 64 each, count as used.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn memcg_peak(&self, memcg: MemcgId) -> Result<u64, NoSuchGroup> {
        self.memcgs.peak(memcg).ok_or(NoSuchGroup(memcg))
    }

    /// Sets how a group fares when memory runs out, beside what it has.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn set_memcg_oom(&self, memcg: MemcgId, setting: OomSetting) -> Result<(), NoSuchGroup> {
        self.memcgs
            .set_oom(memcg, setting)
            .ok_or(NoSuchGroup(memcg))
    }

    /// That setting.
    ///
    /// # Errors
    /// [`NoSuchGroup`] for a stale id.
    pub fn memcg_oom(&self, memcg: MemcgId) -> Result<OomSetting, NoSuchGroup> {
        self.memcgs.oom(memcg).ok_or(NoSuchGroup(memcg))
    }

    /// Counts an event that only the kernel sees, such as a task that it killed. No effect for a stale id.
    pub fn count_memcg_event(&self, memcg: MemcgId, event: Event) {
        self.memcgs.raise(memcg, event);
    }

    /// Completes what a CPU holds for groups, when it goes offline, or when exact numbers are wanted of it: pending LRU
    /// moves, frames charged ahead. The CPU may run meanwhile.
    pub fn drain_memcg_cpu(&self, cpu: CpuId) {
        self.drain_lru_cpu(cpu);
        self.memcgs.drain_stock(cpu, ROOT, &IrqOff::new());
    }
}

impl<'m, P: Platform> Pages<'m, P> {
    /// Charges the frames to a group whatever its limit: for requests that must not fail. Counts as an
    /// [`Event::Max`] if a limit is exceeded by it.
    ///
    /// # Errors
    /// [`ChargeError`], together with the pages, if the group does not exist or the pages are another instance's.
    pub fn force_charge_to(
        self,
        mm: &'m Mm<P>,
        memcg: MemcgId,
    ) -> Result<Folio<'m, P>, Refused<ChargeError, Self>> {
        match self.charge_or_full(mm, memcg, Force::Within) {
            Ok(folio) => Ok(folio),
            Err((refusal, pages)) => {
                mm.note_refusal(refusal);
                pages
                    .charge_or_full(mm, memcg, Force::Over)
                    .map_err(|(refusal, pages)| Refused(mm.charge_error(memcg, refusal), pages))
            }
        }
    }
}
