//! Batches as kernels see them: drained, turned off, waited for.
//!
//! Owns: [`BatchesOff`], the guard of whoever wants no batches; the wait for references that only batches hold.
//! Invariants: while a guard lives, no folio waits in a batch longer than the call that queued it.
//! Lock ranks: takes `LruBatch`, `LruVec`, one after the other.
//! Used by: kernels (migration, memory going offline), reclaim.

use super::{FolioView, Mm};
use crate::addr::CpuId;
use crate::lru::{Share, Switch};
use crate::platform::Platform;

/// Batches are off while one of these lives: each LRU move happens at once, so that no batch holds a reference.
#[must_use = "dropping it turns batches on again"]
#[derive(Debug)]
pub struct BatchesOff<'m, P: Platform>(&'m Mm<P>);

impl<P: Platform> Mm<P> {
    /// Completes every pending LRU move of every CPU. Callers at once share one drain that began after all of them called.
    pub fn drain_lru(&self) {
        self.view()
            .drain_all(Share::Any, |dead, off| self.free_dead(dead, off));
    }

    /// Completes every pending LRU move of one CPU, whether it runs or not.
    pub fn drain_lru_cpu(&self, cpu: CpuId) {
        self.view()
            .drain_cpu(cpu, &mut |dead, off| self.free_dead(dead, off));
    }

    /// Turns batches off, for as long as the guard lives. Moving many folios to other frames wants this: a reference in some
    /// batch would make each of them look used.
    pub fn batches_off(&self) -> BatchesOff<'_, P> {
        self.view()
            .switch_all(Switch::Off, |dead, off| self.free_dead(dead, off));
        BatchesOff(self)
    }
}

impl<P: Platform> FolioView<'_, P> {
    /// Whether the folio has exactly `expected` references once no batch holds any: looks, drains this CPU's batches, looks,
    /// drains everyone's, looks. That a folio is on its list does not say that no batch has it.
    #[must_use]
    pub fn settles_at(&self, expected: u32) -> bool {
        let settled = || self.references() == expected;
        if settled() {
            return true;
        }
        if self.references() < expected {
            return false;
        }
        self.mm.drain_lru_cpu(P::cpu());
        if settled() {
            return true;
        }
        self.mm.view().drain_all(Share::None, |dead, off| {
            self.mm.free_dead(dead, off);
        });
        settled()
    }
}

impl<P: Platform> Drop for BatchesOff<'_, P> {
    fn drop(&mut self) {
        self.0.view().switch_all(Switch::On, |_, _| ());
    }
}
