//! Frames that have one owner.
//!
//! Owns: [`Pages`]. Invariants: no two exist for one frame, and none for a frame that is free.
//! Lock ranks: none; dropping one may take Pageset and Shard. Used by: those who allocate, frame.

use core::fmt;
use core::mem;

use super::PageAllocator;
use super::place::Place;
use crate::addr::{FrameRange, NodeId, Order, Pfn, PhysAddr, ZoneKind};
use crate::platform::Platform;
use crate::zone::Block;

/// A block of `2^order` frames and the right to use them. Dropping it frees them.
#[must_use = "dropping it frees the frames"]
pub struct Pages<'a, P: Platform> {
    pub(super) allocator: &'a PageAllocator<P>,
    pub(super) place: Place,
}

impl<'a, P: Platform> Pages<'a, P> {
    /// The first frame.
    #[inline]
    #[must_use]
    pub fn pfn(&self) -> Pfn {
        let base = self.allocator.nodes.zone(self.place.zone()).base();
        Pfn(base.0 + u64::from(self.place.frame()))
    }

    /// The node whose memory the frames are.
    #[inline]
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.allocator.nodes.zones()[usize::from(self.place.zone())].node
    }

    /// The kind of the zone that the frames are in.
    #[inline]
    #[must_use]
    pub fn zone(&self) -> ZoneKind {
        self.allocator.nodes.zones()[usize::from(self.place.zone())].kind
    }

    /// Address of the first byte.
    #[inline]
    #[must_use]
    pub fn addr(&self) -> PhysAddr {
        self.pfn().addr(P::PAGE_SHIFT)
    }

    /// log2 of the number of frames.
    #[inline]
    #[must_use]
    pub fn order(&self) -> Order {
        self.place.sort().order()
    }

    /// All its frames.
    #[must_use]
    pub fn frames(&self) -> FrameRange {
        FrameRange::block(self.pfn(), self.order())
    }

    /// Gives the frames up for a bare number, for a page table that stores nothing else. The frames stay
    /// allocated until [`PageAllocator::try_from_raw`] takes the number back.
    pub fn into_raw(self) -> Pfn {
        let pfn = self.pfn();
        if let Some(codes) = self.allocator.codes.get(usize::from(self.place.zone())) {
            codes.give(pfn, self.order());
        }
        mem::forget(self);
        pfn
    }

    /// Where it came from.
    #[inline]
    pub(crate) fn allocator(&self) -> &'a PageAllocator<P> {
        self.allocator
    }

    /// Gives the frames up for a block, which a layer above keeps in its own form.
    #[inline]
    pub(crate) fn into_block(self) -> Block {
        let block = Block::new(self.pfn(), self.order());
        mem::forget(self);
        block
    }
}

impl<P: Platform> Drop for Pages<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.allocator.free(self.place);
    }
}

impl<P: Platform> fmt::Debug for Pages<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({}, order {})", self.pfn(), self.order())
    }
}
