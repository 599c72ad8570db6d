//! What reclaim asks of the kernel.
//!
//! Owns: [`Evict`] and its answers. Invariants: hooks get an isolated folio: nobody links it or frees it meanwhile.
//! Lock ranks: none is held when a hook is called. Used by: reclaim.

use super::oom::{Killed, Victim};
use super::throttle::Throttle;
use crate::addr::{NodeId, Order, Pfn};
use crate::alloc::Oom;
use crate::lru::{Backing, Shadow, Swap};
use crate::memcg::MemcgId;
use crate::mm::{Isolated, Mm};
use crate::platform::Platform;

/// Whether a folio is mapped nowhere now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unmap {
    /// No mapping is left; the references that mappings held were dropped.
    Done,
    /// Some mapping must stay: keep the folio.
    Busy,
}

/// Whether a folio's contents are safe elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteOut {
    /// They are: the frame may go.
    Done,
    /// They are on their way. The kernel called [`start_writeback`](crate::FolioView::start_writeback), keeps a reference of its
    /// own to the folio (its place in a page or swap cache), and will call [`end_writeback`](crate::FolioView::end_writeback).
    Started,
    /// They are not, now: keep the folio.
    Busy,
}

/// A folio that was evicted, a moment before its frames are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evicted {
    /// Its first frame.
    pub pfn: Pfn,
    /// log2 of the number of frames.
    pub order: Order,
    /// The kernel's own word of the folio.
    pub word: u64,
    /// What backed it.
    pub backing: Backing,
    /// To be kept where its contents will be looked for, and given to
    /// [`Folio::add_refaulted`](crate::Folio::add_refaulted) when they are faulted in again.
    pub shadow: Shadow,
}

/// Whether the kernel let go of a folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Release {
    /// Every reference that the kernel itself kept was dropped.
    Done,
    /// It cannot now: keep the folio.
    Busy,
}

/// How a kernel takes part in reclaim. Hooks may sleep, take their own locks, and call
/// [`Mm::try_alloc`](crate::Mm::try_alloc); a call that would reclaim again is refused.
///
/// For one folio the hooks are called in this order: `referenced`, and if it is to go, `unmap`, `write_out` (if it is
/// anonymous or dirty), `release`, `evicted`. A folio that stays although `unmap` was done is given back by `remap`.
pub trait Evict: Platform {
    /// How many mappings used the folio since the last call; clears their accessed bits.
    fn referenced(folio: &Isolated<'_, Self>) -> u32;

    /// Removes every mapping of the folio and drops the references they held.
    fn unmap(folio: &Isolated<'_, Self>) -> Unmap;

    /// Makes the contents safe elsewhere: in swap, or in their file. An anonymous folio that was written out before is asked for again:
    /// `Done` if the copy still stands. Whether it does, the kernel notes in `unmap`, where it sees the dirty bits: by now the folio
    /// [counts as clean](crate::FolioView::is_dirty), so that what is written to it from here on marks it again.
    fn write_out(folio: &Isolated<'_, Self>) -> WriteOut;

    /// Drops what the kernel itself keeps of the folio: its place in a page cache, private data.
    fn release(_folio: &Isolated<'_, Self>) -> Release {
        Release::Done
    }

    /// The folio stays after all, although `unmap` was done (and perhaps `write_out` too): map it again, or keep a
    /// reference in some other place where its contents will be looked for ([`FolioView::reference`](crate::FolioView::reference) takes one). If nobody does, the
    /// last reference goes with the isolation's, and the contents with it.
    fn remap(folio: &Isolated<'_, Self>);

    /// The folio is gone: nobody has a reference to it, or can take one. If its place is still empty (a fault may have filled it
    /// since `release`), keep the shadow there.
    fn evicted(_mm: &Mm<Self>, _gone: &Evicted) {}

    /// Whether anonymous folios could be written out: what a refault competes with depends on it.
    fn swap() -> Swap {
        Swap::Left
    }

    /// A request for a block of `order` found none: make one by moving folios, before any is reclaimed, and say whether that
    /// worked. Kernels that implement [`Migrate`](super::Migrate) call [`Mm::compact`] here.
    fn compact(_mm: &Mm<Self>, _node: NodeId, _order: Order) -> bool {
        false
    }

    /// Free memory of the node is low: wake the thread that runs [`Mm::reclaim`](crate::Mm::reclaim).
    fn wake_background(_node: NodeId) {}

    /// Reclaim for a request got less than it wanted: wait for the reason to pass, [`Throttle::milliseconds`] at most.
    fn throttle(_reason: Throttle) {}

    /// Nothing could be reclaimed, and this is the group to blame: kill one of its programs, or all of `victim.whole` and below.
    /// What is killed should free its memory soon: the request is tried again, a bounded number of times. One thread is in this
    /// hook at a time. `No` leaves it to [`oom`](Self::oom).
    fn kill(_mm: &Mm<Self>, _victim: &Victim) -> Killed {
        Killed::No
    }

    /// Nothing could be reclaimed for a request, or for `memcg` if it is at its limit, and nothing was [killed](Self::kill).
    fn oom(_memcg: Option<MemcgId>) -> Oom {
        Oom::Fail
    }

    /// A number for the running thread that no other thread has now. The default suits kernels whose reclaim does not
    /// give up the CPU within a hook.
    fn task() -> u64 {
        u64::from(Self::cpu().0)
    }
}
