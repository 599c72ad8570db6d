//! Where a request turns when too little is free.
//!
//! Owns: [`Relief`], what it is told and what it answers. Invariants: none of it is called under a lock.
//! Lock ranks: none. Used by: the slow path ([`PageAllocator::alloc_with`](super::PageAllocator::alloc_with)); reclaim
//! implements it for an [`Mm`](crate::Mm).

use crate::addr::{NodeId, Order, ZoneKind};

/// What a request lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// The node that is short: the first that was asked, or the one whose background is to wake.
    pub node: NodeId,
    /// The highest zone that may serve. Frames of higher ones are of no use.
    pub highest: ZoneKind,
    /// log2 of the number of frames that must lie together.
    pub order: Order,
}

/// What came of a reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// So many base frames were freed; with 0, this time nothing could be.
    Freed(u64),
    /// Everything was looked at and nothing could be freed: more rounds would be in vain.
    Exhausted,
    /// Too many others reclaim: try again when one of them is done.
    Crowded,
    /// The caller is inside its own reclaim, and must do with what is free.
    Nested,
}

/// What came of a compaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compaction {
    /// There is a block of the order now.
    Made,
    /// There is none yet; after more reclaim there may be.
    Unmade,
    /// Frames cannot be moved here.
    Impossible,
}

/// What to do when nothing can be reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Oom {
    /// Memory was, or will be, freed: try again.
    Retry,
    /// Let the request fail.
    Fail,
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caller {
    /// Anybody.
    Ordinary,
    /// It reclaims: what it is given helps to free more, so watermarks do not hold it back, and it does not reclaim again.
    Reclaiming,
    /// It was chosen to die and will give back what it has: half of the minimum is its own.
    Dying,
}

/// Makes room for requests. Called without any lock held, by the thread that allocates; may sleep if its callers may.
///
/// A kernel that uses a [`PageAllocator`](super::PageAllocator) alone implements it over its own caches;
/// [`Mm`](crate::Mm) has it from [`Evict`](crate::Evict).
pub trait Relief {
    /// Wakes the thread that reclaims `need.node` in the background. Called from every context that allocates with a
    /// request that does not forbid it.
    fn wake_background(&self, _need: &Need) {}

    /// Frees up to `frames` base frames now, in zones up to `need.highest`, near `need.node` first.
    fn reclaim(&self, need: &Need, frames: u64) -> Progress;

    /// Makes a block of `need.order` by moving what lies between free frames.
    fn compact(&self, _need: &Need) -> Compaction {
        Compaction::Impossible
    }

    /// At most so many frames could be freed if all went well: where even they would not do, no more rounds are made.
    fn reclaimable(&self, _need: &Need) -> u64 {
        u64::MAX
    }

    /// Nothing can be reclaimed for a request that may not simply fail.
    fn oom(&self, _need: &Need) -> Oom {
        Oom::Fail
    }

    /// Who the calling thread is.
    fn caller(&self) -> Caller {
        Caller::Ordinary
    }

    /// Others are at it: a good moment to give up the CPU for a tick.
    fn wait(&self) {
        core::hint::spin_loop();
    }
}
