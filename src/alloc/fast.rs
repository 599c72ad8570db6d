//! Allocation and free of one block.
//!
//! Owns: the ways of a request: pageset, its refill, the zones in order, the pagesets of other CPUs.
//! Invariants: a request ends after each zone was asked twice; a free always finds a place.
//! Lock ranks: Pageset (tried, or one waited for at a time), Shard.
//! Used by: everyone who allocates.

use super::place::Place;
use super::request::Nodes;
use super::{AllocError, Contents, PageAllocator, Pages, Request};
use crate::addr::{CpuId, FrameRange, Pfn};
use crate::boot::fill_frames;
use crate::platform::{IrqOff, Platform};
use crate::zone::Block;

impl<P: Platform> PageAllocator<P> {
    /// Allocates a block from what is free now. Never waits for reclaim, so it may be called in an interrupt.
    ///
    /// # Errors
    /// [`AllocError`].
    // Always: a constant request folds into some thirty instructions, fewer than a call that takes it apart.
    #[inline(always)]
    pub fn try_alloc(&self, request: Request) -> Result<Pages<'_, P>, AllocError> {
        if request.is_local()
            && request.sort().is_cached()
            && let Some(pages) = self.alloc_parked(request)
        {
            if request.is_zeroed() {
                fill_frames::<P>(pages.frames(), 0);
            }
            return Ok(pages);
        }
        self.alloc_slowly(request)
    }

    /// The other ways, with what must be done to the block's contents.
    #[inline(never)]
    fn alloc_slowly(&self, request: Request) -> Result<Pages<'_, P>, AllocError> {
        if self.config.contents != Contents::Keep || request.is_zeroed() {
            return self.alloc_checked(request);
        }
        self.alloc_refilling(request)
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

    /// The next way: a batch from the first zone.
    pub(super) fn alloc_refilling(&self, request: Request) -> Result<Pages<'_, P>, AllocError> {
        request.check()?;
        let off = IrqOff::<P>::new();
        let cpu = off.cpu();
        if request.is_local()
            && let Some(first) = self.nodes.first(cpu, request.highest())
            && let Some(pages) = self.take(first.zone, request, cpu, &off)
        {
            return Ok(pages);
        }
        drop(off);
        self.alloc_from_zones(request)
    }

    /// Asks every zone that may serve; if none has a block, empties the pagesets of all CPUs and asks again.
    #[cold]
    fn alloc_from_zones(&self, request: Request) -> Result<Pages<'_, P>, AllocError> {
        let off = &IrqOff::<P>::new();
        let cpu = off.cpu();
        let node = match request.nodes() {
            Nodes::Local => self.nodes.node_of_cpu(cpu),
            Nodes::Prefer(node) | Nodes::Only(node) => node,
        };
        let order = request.order();
        let only = matches!(request.nodes(), Nodes::Only(_));
        let in_scope = |zone: &u8| !only || self.nodes.zones()[usize::from(*zone)].node == node;
        let zones = self
            .nodes
            .zonelist(node, request.highest())
            .ok_or(AllocError::NoSuchNode(node))?
            .filter(in_scope);
        // A zone that is not all online yet grows before the next one is asked: each turn brings a section at least.
        let take = |zone| {
            loop {
                let taken = self.take(zone, request, cpu, off);
                if taken.is_some() || !self.grow_on_demand(zone, order) {
                    return taken;
                }
            }
        };
        let ask = || zones.clone().find_map(take);
        if let Some(pages) = ask() {
            return Ok(pages);
        }
        let first = zones
            .clone()
            .next()
            .ok_or(AllocError::NoSuchZone(request.highest()))?;
        let fits = |zone: u8| {
            let span = self.nodes.zone(zone).span();
            span.blocks(order).any(|(_, fits)| fits == order)
        };
        if !zones.clone().any(fits) {
            return Err(AllocError::TooLarge(order));
        }
        // Frames may be parked by CPUs that do not need them: no request fails while they are.
        self.drain_zones(zones.clone(), off);
        ask().ok_or_else(|| {
            let zone = &self.nodes.zones()[usize::from(first)];
            AllocError::OutOfMemory {
                node: zone.node,
                zone: zone.kind,
            }
        })
    }

    /// One zone's attempt: its pageset with a refill, else the shards.
    fn take(
        &self,
        index: u8,
        request: Request,
        cpu: CpuId,
        off: &IrqOff<P>,
    ) -> Option<Pages<'_, P>> {
        if request.sort().is_cached()
            && let Some(pages) = self.take_cached(index, request, cpu, off)
        {
            return Some(pages);
        }
        let zone = &self.nodes.zones().get(usize::from(index))?.zone;
        let block = zone.take(request.order(), request.kind(), zone.home_shard(cpu), off)?;
        let (pfn, _) = block.into_parts();
        let frame = (pfn.0 - zone.base().0) as u32;
        Some(Pages {
            allocator: self,
            place: self.place_of(index, frame, request.sort()),
        })
    }

    /// From the CPU's pageset, after a refill if there is nothing.
    fn take_cached(
        &self,
        index: u8,
        request: Request,
        cpu: CpuId,
        off: &IrqOff<P>,
    ) -> Option<Pages<'_, P>> {
        let entry = self.nodes.zones().get(usize::from(index))?;
        let pageset = self.pagesets.of(cpu, u32::from(index))?;
        let mut cache = pageset.try_lock(off)?;
        let frame = cache.refill(
            request.sort().list(),
            request.order(),
            &entry.zone,
            entry.zone.home_shard(cpu),
            entry.pressure(),
            off,
        )?;
        Some(Pages {
            allocator: self,
            place: self.place_of(index, frame, request.sort()),
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
            }
            Some((pageset, trim.saturating_sub(batch), batch))
        });
        let Some((pageset, mut trim, batch)) = parked else {
            let given = zone.give(Block::new(pfn, order), &off);
            // Only a corrupted zone refuses; it counts the fault, and the frames stay out.
            debug_assert_eq!(given, Ok(()), "{pfn} of order {order}");
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
