//! Allocation and free of one block.
//!
//! Owns: the fast way of a request, and the ways of a free.
//! Invariants: a free always finds a place.
//! Lock ranks: Pageset (tried), Shard.
//! Used by: everyone who allocates.

use super::place::Place;
use super::{AllocError, PageAllocator, Pages, Request};
use crate::addr::{FrameRange, Pfn};
use crate::boot::fill_frames;
use crate::pageset::Pressure;
use crate::platform::{IrqOff, Platform};
use crate::zone::{Access, Block, Level};

impl<P: Platform> PageAllocator<P> {
    /// Allocates a block from what is free now, as far as the zones' watermarks leave it to the request: first above low,
    /// so that every zone and node is asked before any goes lower, then above min. Never waits for reclaim, and wakes
    /// nobody, so it may be called in an interrupt.
    ///
    /// # Errors
    /// [`AllocError`].
    // Always: a constant request folds into some thirty instructions, fewer than a call that takes it apart.
    #[inline(always)]
    pub fn try_alloc(&self, request: Request) -> Result<Pages<'_, P>, AllocError> {
        match self.alloc_at_once(request) {
            Some(pages) => Ok(pages),
            None => self.alloc_past_pageset(request),
        }
    }

    /// What waits in the CPU's pageset, if the request may have it. Watermarks do not count it as free.
    #[inline(always)]
    pub(super) fn alloc_at_once(&self, request: Request) -> Option<Pages<'_, P>> {
        if !request.is_local() || !request.sort().is_cached() {
            return None;
        }
        let pages = self.alloc_parked(request)?;
        if request.is_zeroed() {
            fill_frames::<P>(pages.frames(), 0);
        }
        Some(pages)
    }

    #[inline(never)]
    fn alloc_past_pageset(&self, request: Request) -> Result<Pages<'_, P>, AllocError> {
        self.prepared(request, || {
            request.check()?;
            match self.alloc_first(request) {
                Some(pages) => Ok(pages),
                None => self.alloc_last(request, Access::empty()),
            }
        })
    }

    /// The fast way: what the CPU's pageset of the first zone has on top.
    #[inline]
    fn alloc_parked(&self, request: Request) -> Option<Pages<'_, P>> {
        let off = IrqOff::<P>::new();
        let first = self.nodes.first(off.cpu(), request.highest())?;
        let mut cache = self.pagesets.at(first.pageset)?.try_lock(&off)?;
        let frame = cache.pop(request.sort().list())?;
        Some(Pages {
            allocator: self,
            place: Place::cached(first.zone, frame, request.sort()),
        })
    }

    /// Frees a block that the caller owns.
    #[inline]
    pub(super) fn free(&self, place: Place) {
        if self.free_parked(place).is_none() {
            self.free_with_work(place);
        }
    }

    /// The fast way: onto the top of the CPU's pageset. `None` if that takes more.
    #[inline]
    fn free_parked(&self, place: Place) -> Option<()> {
        let off = IrqOff::<P>::new();
        let mut cache = self.pagesets.of(off.cpu(), place.row())?.try_lock(&off)?;
        cache.push(place.sort().list(), place.frame()).then_some(())
    }

    /// [`free`](Self::free) with a trim, or past the pageset.
    #[cold]
    fn free_with_work(&self, place: Place) {
        let (index, frame) = (place.zone(), place.frame());
        let (order, list) = (place.sort().order(), place.sort().list());
        let entry = &self.nodes.zones()[usize::from(index)];
        let zone = &entry.zone;
        let pfn = Pfn(zone.base().0 + u64::from(frame));
        self.clear(|| FrameRange::block(pfn, order));
        let mut off = IrqOff::<P>::new();
        let cpu = off.cpu();
        let pageset = match place.sort().is_cached() {
            true => self.pagesets.of(cpu, u32::from(index)),
            false => None,
        };
        let parked = pageset.and_then(|pageset| {
            let mut cache = pageset.try_lock(&off)?;
            let trim = cache.push_growing(list, frame, entry.pressure(), zone, &off)?;
            let batch = cache.limits().batch << order.get();
            if trim > 0 {
                cache.trim(list, trim.min(batch), zone, &off);
                if entry.pressure() == Pressure::BelowHigh
                    && zone.free_frames() > zone.mark(Level::High)
                {
                    entry.rose_above_high();
                }
            }
            Some((pageset, trim.saturating_sub(batch), batch))
        });
        let Some((pageset, mut trim, batch)) = parked else {
            let given = zone.give(Block::new(pfn, order), &off);
            // Only a corrupted zone refuses; it counts the fault, and the frames stay out.
            debug_assert_eq!(given, Ok(()), "{pfn} of order {order}");
            self.reopen_pagesets(index);
            return;
        };
        // A batch per hold, with interrupts let in between: they may free here, or another CPU may drain what is left.
        while trim > 0 {
            drop(off);
            off = IrqOff::new();
            if off.cpu() != cpu {
                return;
            }
            let Some(mut cache) = pageset.try_lock(&off) else {
                return;
            };
            let step = trim.min(batch);
            cache.trim(list, step, zone, &off);
            trim -= step;
        }
    }
}
