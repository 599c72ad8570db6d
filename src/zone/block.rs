//! Frames on their way between layers.
//!
//! Owns: [`Block`]. Invariants: it is the only claim to its frames; it is neither copied nor dropped silently.
//! Lock ranks: none. Used by: zone, pageset, alloc.

use crate::addr::{FrameRange, Order, Pfn};

/// `2^order` frames that nobody else has. Give it to a zone, or the frames are lost.
#[must_use = "dropping a block leaks its frames"]
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pfn: Pfn,
    order: Order,
}

impl Block {
    /// States that the caller owns these frames.
    #[inline]
    pub(crate) const fn new(pfn: Pfn, order: Order) -> Self {
        Self { pfn, order }
    }

    /// First frame.
    #[inline]
    pub(crate) const fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Its length's logarithm.
    #[inline]
    pub(crate) const fn order(&self) -> Order {
        self.order
    }

    /// Its frames.
    #[inline]
    pub(crate) const fn frames(&self) -> FrameRange {
        FrameRange::block(self.pfn, self.order)
    }

    /// Ends the claim: the caller keeps the frames in another form.
    #[inline]
    pub(crate) const fn into_parts(self) -> (Pfn, Order) {
        (self.pfn, self.order)
    }
}
