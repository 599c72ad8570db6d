//! Reclaim as the page allocator sees it.
//!
//! Owns: [`Relief`] for [`Mm`]. Invariants: a thread that reclaims is told so, and does not reclaim again.
//! Lock ranks: as reclaim's. Used by: the allocator's slow path, through [`Mm::alloc`].

use super::entry::Stop;
use super::evict::Evict;
use crate::alloc::{Caller, Compaction, Need, Oom, Progress, Relief};
use crate::memcg::MemcgId;
use crate::mm::Mm;

impl<P: Evict> Relief for Mm<P> {
    fn wake_background(&self, need: &Need) {
        P::wake_background(need.node);
    }

    fn reclaim(&self, need: &Need, frames: u64) -> Progress {
        let _stall = self.task_stalls(MemcgId::ROOT);
        let reclaimed = self.reclaim_subtree(MemcgId::ROOT, frames, need.highest);
        if let Some(reason) = reclaimed.throttle {
            P::throttle(reason);
        }
        match reclaimed.stop {
            Stop::Nested => Progress::Nested,
            Stop::Crowded => Progress::Crowded,
            // Objects may or may not have freed frames with them: worth another try.
            Stop::Enough | Stop::Exhausted if reclaimed.any() => {
                Progress::Freed(reclaimed.freed.max(1))
            }
            Stop::Enough | Stop::Exhausted => Progress::Exhausted,
        }
    }

    fn compact(&self, need: &Need) -> Compaction {
        match P::compact(self, need.node, need.order) {
            true => Compaction::Made,
            false => Compaction::Unmade,
        }
    }

    fn oom(&self, _need: &Need) -> Oom {
        self.out_of_memory(None)
    }

    fn caller(&self) -> Caller {
        match self.reclaimers.holds(P::task()) {
            true => Caller::Reclaiming,
            false => Caller::Ordinary,
        }
    }

    fn wait(&self) {
        P::relax();
    }
}
