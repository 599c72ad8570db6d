//! Allocation and free of one block.
//!
//! Owns: the ways of a request: pageset, its refill, the zones in order, the pagesets of other CPUs.
//! Invariants: a request ends after each zone was asked twice; a free always finds a place.
//! Lock ranks: Pageset (tried, or one waited for at a time), Shard.
//! Used by: everyone who allocates.

use super::{AllocError, PageAllocator, Pages, Request};
use crate::addr::{CpuId, Order, Pfn};
use crate::pageset::ListId;
use crate::platform::{IrqOff, Platform};
use crate::zone::{Block, Mobility};

impl<P: Platform> PageAllocator<P> {
    /// Allocates a block from what is free now. Never waits for reclaim, so it may be called in an interrupt.
    ///
    /// # Errors
    /// [`AllocError`].
    #[inline]
    pub fn try_alloc(&self, request: Request) -> Result<Pages<'_, P>, AllocError> {
        let off = IrqOff::<P>::new();
        let cpu = off.cpu();
        if let super::request::Nodes::Local = request.nodes
            && let Some(list) = ListId::new(request.order, request.mobility)
            && let Some(zone) = self.nodes.first_zone(cpu, request.highest())
            && let Some(pageset) = self.pagesets.of(cpu, zone)
            && let Some(mut cache) = pageset.try_lock(&off)
            && let Some(frame) = cache.pop(list)
        {
            return Ok(self.pages(zone, frame, request));
        }
        self.alloc_from_zones(request, cpu, &off)
    }

    #[inline]
    fn pages(&self, zone: u8, frame: u32, request: Request) -> Pages<'_, P> {
        Pages {
            allocator: self,
            frame,
            zone,
            order: request.order,
            mobility: request.mobility,
        }
    }

    /// Asks every zone that may serve; if none has a block, empties the pagesets of all CPUs and asks again.
    #[cold]
    fn alloc_from_zones(
        &self,
        request: Request,
        cpu: CpuId,
        off: &IrqOff<P>,
    ) -> Result<Pages<'_, P>, AllocError> {
        use super::request::Nodes;
        request.check()?;
        let node = match request.nodes {
            Nodes::Local => self.nodes.node_of_cpu(cpu),
            Nodes::Prefer(node) | Nodes::Only(node) => node,
        };
        let only = matches!(request.nodes, Nodes::Only(_));
        let in_scope = |zone: &u8| !only || self.nodes.zones()[usize::from(*zone)].node == node;
        let zones = self
            .nodes
            .zonelist(node, request.highest())
            .ok_or(AllocError::NoSuchNode(node))?
            .filter(in_scope);
        let first = zones
            .clone()
            .next()
            .ok_or(AllocError::NoSuchZone(request.highest()))?;
        let fits = |zone: u8| {
            let span = self.nodes.zone(zone).span();
            span.blocks(request.order)
                .any(|(_, order)| order == request.order)
        };
        if request.order > Order::PAGEBLOCK && !zones.clone().any(fits) {
            return Err(AllocError::TooLarge(request.order));
        }
        let ask = || {
            zones
                .clone()
                .find_map(|zone| self.take(zone, request, cpu, off))
        };
        if let Some(pages) = ask() {
            return Ok(pages);
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
        let zone = self.nodes.zone(index);
        let home = zone.home_shard(cpu);
        if let Some(list) = ListId::new(request.order, request.mobility)
            && let Some(pageset) = self.pagesets.of(cpu, index)
            && let Some(mut cache) = pageset.try_lock(off)
            && let Some(frame) = cache.refill(list, zone, home, off)
        {
            return Some(self.pages(index, frame, request));
        }
        let block = zone.take(request.order, request.mobility, home, off)?;
        let (pfn, _) = block.into_parts();
        let frame = (pfn.0 - zone.base().0) as u32;
        Some(self.pages(index, frame, request))
    }

    /// Frees a block that the caller owns.
    #[inline]
    pub(super) fn free(&self, zone: u8, frame: u32, order: Order, mobility: Mobility) {
        let off = IrqOff::<P>::new();
        if let Some(list) = ListId::new(order, mobility)
            && let Some(pageset) = self.pagesets.of(off.cpu(), zone)
            && let Some(mut cache) = pageset.try_lock(&off)
        {
            if cache.push(list, frame) {
                return;
            }
            drop(cache);
        }
        self.free_with_work(zone, frame, order, mobility, &off);
    }

    /// [`free`](Self::free) with a trim, or past the pageset.
    #[cold]
    fn free_with_work(
        &self,
        index: u8,
        frame: u32,
        order: Order,
        mobility: Mobility,
        off: &IrqOff<P>,
    ) {
        let zone = self.nodes.zone(index);
        if let Some(list) = ListId::new(order, mobility)
            && let Some(pageset) = self.pagesets.of(off.cpu(), index)
            && let Some(mut cache) = pageset.try_lock(off)
            && cache.push_and_trim(list, frame, zone, off)
        {
            return;
        }
        let pfn = Pfn(zone.base().0 + u64::from(frame));
        let given = zone.give(Block::new(pfn, order), off);
        // Only a corrupted zone refuses; it counts the fault, and the frames stay out.
        debug_assert_eq!(given, Ok(()), "{pfn} of order {order}");
    }
}
