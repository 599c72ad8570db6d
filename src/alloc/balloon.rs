//! Memory lent to the hypervisor.
//!
//! Owns: [`Balloon`]. Invariants: a lent block stays allocated, and counts neither as free nor as managed. Limits are recomputed
//! once for each call that lends or takes back.
//! Lock ranks: those of alloc, one at a time; none while the hypervisor is told. Used by: guests' balloon drivers.

use core::fmt;

use arrayvec::ArrayVec;

use super::{AllocError, PageAllocator, Pages, Request};
use crate::addr::FrameRange;
use crate::platform::Platform;

/// Up to `N` blocks that are the hypervisor's: the zones are smaller by them. A driver keeps as many of these as it needs.
/// Dropping one takes its blocks back without telling the hypervisor.
///
/// ```
/// # use framekeeper::{FrameRange, Order, PageAllocator, Platform, Request, alloc::Balloon};
/// # fn tell(_: FrameRange) {}
/// # fn shrink<P: Platform>(memory: &PageAllocator<P>) -> Result<(), Box<dyn core::error::Error>> {
/// let mut balloon = Balloon::<P, 256>::new(memory);
/// let lent = balloon.inflate(Request::new(Order::PAGEBLOCK), 8, tell)?;
/// assert_eq!(balloon.deflate(lent, tell), lent);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it takes the blocks back"]
pub struct Balloon<'a, P: Platform, const N: usize = 256> {
    allocator: &'a PageAllocator<P>,
    blocks: ArrayVec<Pages<'a, P>, N>,
}

impl<'a, P: Platform, const N: usize> Balloon<'a, P, N> {
    /// One without blocks.
    pub const fn new(allocator: &'a PageAllocator<P>) -> Self {
        Self {
            allocator,
            blocks: ArrayVec::new_const(),
        }
    }

    /// Lends up to `blocks` blocks like `request` asks for, and returns how many: fewer if it is full then, or memory is out.
    /// `tell` is told the frames of each once they are counted as lent.
    ///
    /// # Errors
    /// [`AllocError`] if not even one could be allocated.
    pub fn inflate(
        &mut self,
        request: Request,
        blocks: usize,
        mut tell: impl FnMut(FrameRange),
    ) -> Result<usize, AllocError> {
        let _limits = Limits(self.allocator);
        let blocks = blocks.min(self.blocks.remaining_capacity());
        for lent in 0..blocks {
            let pages = match self.allocator.try_alloc(request) {
                Ok(pages) => pages,
                Err(error) if lent == 0 => return Err(error),
                Err(_) => return Ok(lent),
            };
            let frames = pages.frames();
            let zone = self.allocator.nodes.zone(pages.place.zone());
            zone.inflate_balloon(frames.frames());
            self.blocks.push(pages);
            tell(frames);
        }
        Ok(blocks)
    }

    /// Takes up to `blocks` blocks back, those lent last first, and returns how many. `tell` is told the frames of each before they are
    /// free.
    pub fn deflate(&mut self, blocks: usize, mut tell: impl FnMut(FrameRange)) -> usize {
        let _limits = Limits(self.allocator);
        for back in 0..blocks {
            let Some(pages) = self.blocks.last() else {
                return back;
            };
            tell(pages.frames());
            if let Some(pages) = self.blocks.pop() {
                let zone = self.allocator.nodes.zone(pages.place.zone());
                zone.deflate_balloon(pages.order().frames());
            }
        }
        blocks
    }

    /// The frames of each block lent.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = FrameRange> {
        self.blocks.iter().map(Pages::frames)
    }
}

impl<P: Platform, const N: usize> Drop for Balloon<'_, P, N> {
    fn drop(&mut self) {
        self.deflate(N, |_| ());
    }
}

/// Recomputes the limits when dropped, also if the hypervisor cannot be told.
struct Limits<'a, P: Platform>(&'a PageAllocator<P>);

impl<P: Platform> Drop for Limits<'_, P> {
    fn drop(&mut self) {
        self.0.recompute();
    }
}

impl<P: Platform, const N: usize> fmt::Debug for Balloon<'_, P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frames: u64 = self.blocks().map(FrameRange::frames).sum();
        write!(f, "Balloon({} blocks, {frames} frames)", self.blocks.len())
    }
}
