//! Frames for the page tables of the `x86_64` crate.
//!
//! Owns: [`PageTableFrames`]. Invariants: a frame given out stays allocated until it is deallocated here, with its own size.
//! Lock ranks: `Pageset`, `Shard`, as any allocation. Used by: kernels that map with `x86_64::structures::paging`.
#![allow(unsafe_code)]

use ::x86_64::PhysAddr as TablePhysAddr;
use ::x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, PageSize, PhysFrame, Size1GiB, Size2MiB, Size4KiB,
};

use crate::addr::{Order, PhysAddr};
use crate::alloc::{PageAllocator, Request};
use crate::platform::Platform;

/// Allocates page frames of 4 KiB, 2 MiB and 1 GiB for page tables and mappings. Never reclaims: when memory is out,
/// mapping fails, and the kernel may reclaim and try again.
#[derive(Debug)]
pub struct PageTableFrames<'a, P: Platform>(pub &'a PageAllocator<P>);

/// A page size with the order of a block of it.
trait Sized4K: PageSize {
    const ORDER: Order = match Order::new((Self::SIZE.trailing_zeros() - 12) as u8) {
        Some(order) => order,
        None => panic!("no page is larger than the largest block"),
    };
}

impl Sized4K for Size4KiB {}
impl Sized4K for Size2MiB {}
impl Sized4K for Size1GiB {}

impl<P: Platform> PageTableFrames<'_, P> {
    fn allocate<S: Sized4K>(&self) -> Option<PhysFrame<S>> {
        const { assert!(P::PAGE_SHIFT == 12, "x86-64 has 4 KiB pages") };
        let pages = self.0.try_alloc(Request::new(S::ORDER)).ok()?;
        let addr = pages.addr();
        let frame = PhysFrame::from_start_address(TablePhysAddr::try_new(addr.0).ok()?).ok()?;
        let _given = pages.into_raw();
        Some(frame)
    }

    /// A frame that was not allocated here, or with another size, is left alone.
    fn deallocate<S: Sized4K>(&self, frame: PhysFrame<S>) {
        let pfn = PhysAddr(frame.start_address().as_u64()).pfn(P::PAGE_SHIFT);
        drop(self.0.try_from_raw(pfn, S::ORDER));
    }
}

macro_rules! frames_of {
    ($($size:ty),*) => {$(
        // SAFETY: `into_raw` gave up the only owner of a free block of exactly this size and alignment.
        unsafe impl<P: Platform> FrameAllocator<$size> for PageTableFrames<'_, P> {
            fn allocate_frame(&mut self) -> Option<PhysFrame<$size>> {
                self.allocate()
            }
        }

        impl<P: Platform> FrameDeallocator<$size> for PageTableFrames<'_, P> {
            unsafe fn deallocate_frame(&mut self, frame: PhysFrame<$size>) {
                self.deallocate(frame);
            }
        }
    )*};
}

frames_of!(Size4KiB, Size2MiB, Size1GiB);
