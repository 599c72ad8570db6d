//! One walk over the zones that may serve a request.
//!
//! Owns: [`Attempt`], how much a walk must leave free; the order of zones; what a zone gives.
//! Invariants: frames leave a zone only as far as its watermark, by a count that cannot be wrong near it, allows the attempt:
//! a refill takes no more than what is above. Of several CPUs at once each may take as much, as in Linux.
//! Lock ranks: Pageset (tried, or one waited for at a time), Shard. Used by: the ways of a request past its pageset.

use super::deferred::Arrival;
use super::error::{AllocError, Cause, Shortage};
use super::request::{Nodes, Reclaim};
use super::{PageAllocator, Pages, Request};
use crate::addr::{CpuId, NodeId, Order};
use crate::node::NodeZone;
use crate::pageset::Pressure;
use crate::platform::{IrqOff, Platform};
use crate::zone::{Access, Block, Level, Mobility, Zone};

/// How far an attempt may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Attempt {
    floor: Floor,
    access: Access,
}

/// What must stay free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Floor {
    /// A watermark with its boost.
    Level(Level),
    /// The minimum without boost: a boost asks the background for more room, and fails nobody in the end.
    PlainMin,
    /// Nothing.
    Nothing,
}

impl Floor {
    /// How many frames of a zone that is, before reserves.
    fn mark<P: Platform>(self, zone: &Zone<P>) -> u64 {
        match self {
            Self::Level(level) => zone.mark(level),
            Self::PlainMin => zone.levels().min,
            Self::Nothing => 0,
        }
    }
}

impl Attempt {
    /// The first: above low, and nothing that only some may use.
    #[inline]
    pub(super) const fn first(request: Request) -> Self {
        Self {
            floor: Floor::Level(Level::Low),
            access: movable_access(request),
        }
    }

    /// With all that the request's urgency grants it, above min. `more`: what the caller is granted.
    pub(super) fn min(request: Request, more: Access) -> Self {
        Self {
            floor: Floor::Level(Level::Min),
            access: full_access(request) | more,
        }
    }

    /// Above high: whether others freed much meanwhile.
    pub(super) const fn high(request: Request) -> Self {
        Self {
            floor: Floor::Level(Level::High),
            access: movable_access(request),
        }
    }

    /// The most that the request may have.
    pub(super) fn last(request: Request, more: Access) -> Self {
        match request.ignores_watermarks() {
            true => Self::unlimited(request),
            false => Self {
                floor: Floor::PlainMin,
                access: full_access(request) | more,
            },
        }
    }

    /// Down to the last frame.
    pub(super) fn unlimited(request: Request) -> Self {
        Self {
            floor: Floor::Nothing,
            access: full_access(request),
        }
    }

    /// Whether a zone would do with `more` frames free, all of it counted by exact sums.
    pub(super) fn could_suffice<P: Platform>(
        self,
        entry: &NodeZone<P>,
        request: Request,
        more: u64,
    ) -> bool {
        let zone = &entry.zone;
        let (mark, reserve) = self.kept(entry, request);
        let free = zone.free_frames_exact();
        let most = free.saturating_add(more).min(zone.managed());
        zone.suffices(request.order(), mark, reserve, self.access, most)
    }

    /// How many frames of a zone it must leave: its mark, and what is reserved from requests like this one.
    #[inline]
    fn kept<P: Platform>(self, entry: &NodeZone<P>, request: Request) -> (u64, u64) {
        let reserve = match self.floor {
            Floor::Nothing => 0,
            Floor::Level(_) | Floor::PlainMin => entry.reserve(request.highest()),
        };
        (self.floor.mark(&entry.zone), reserve)
    }

    /// Whether it goes further than an ordinary request may.
    fn is_privileged(self) -> bool {
        let beyond = Access::MIN_RESERVE | Access::HIGHATOMIC | Access::OOM;
        self.floor == Floor::Nothing || self.access.intersects(beyond)
    }

    /// Whether frames that are kept for urgent requests are there for this one, when there are no others.
    fn takes_kept(self) -> bool {
        self.floor == Floor::Nothing || self.access.intersects(Access::OOM | Access::NON_BLOCK)
    }
}

/// What follows from the mobility alone.
const fn movable_access(request: Request) -> Access {
    match request.kind() {
        Mobility::Movable => Access::CMA,
        _ => Access::empty(),
    }
}

/// What a request may use when it comes to that.
fn full_access(request: Request) -> Access {
    let mut access = movable_access(request);
    access.set(Access::MIN_RESERVE, request.is_urgent());
    access.set(Access::NON_BLOCK, request.reclaims() != Reclaim::Direct);
    let atomic = access.contains(Access::MIN_RESERVE | Access::NON_BLOCK);
    access.set(Access::HIGHATOMIC, atomic && request.order() > Order::ZERO);
    access
}

impl<P: Platform> PageAllocator<P> {
    /// A batch from the first zone, or else a block from any, above low.
    pub(super) fn alloc_first(&self, request: Request) -> Option<Pages<'_, P>> {
        let attempt = Attempt::first(request);
        let off = IrqOff::<P>::new();
        let cpu = off.cpu();
        if request.is_local()
            && let Some(first) = self.nodes.first(cpu, request.highest())
            && let Some(entry) = self.nodes.zones().get(usize::from(first.zone))
            && has_own(&entry.zone, request)
            && let Some(pages) = self.take(first.zone, request, attempt, cpu, &off)
        {
            return Some(pages);
        }
        drop(off);
        self.attempt(request, attempt)
    }

    /// The end of a request that nobody will reclaim for: down to the minimum; if that fails, empties the pagesets of all
    /// CPUs and asks again.
    ///
    /// # Errors
    /// Why there is no block.
    #[cold]
    pub(super) fn alloc_last(
        &self,
        request: Request,
        more: Access,
    ) -> Result<Pages<'_, P>, AllocError> {
        self.feasible(request)?;
        let attempt = Attempt::last(request, more);
        loop {
            let arrived = self.arrived();
            let pages = self.attempt(request, attempt).or_else(|| {
                // Frames may be parked by CPUs that do not need them: no request fails while they are.
                self.drain_for(request);
                self.attempt(request, attempt)
            });
            // Nor while other CPUs are bringing memory.
            match pages {
                Some(pages) => return Ok(pages),
                None if self.await_arrival(request, arrived) == Arrival::Came => {}
                None => return Err(self.shortage(request, attempt)),
            }
        }
    }

    /// Asks every zone that may serve, in order.
    #[cold]
    pub(super) fn attempt(&self, request: Request, attempt: Attempt) -> Option<Pages<'_, P>> {
        let off = &IrqOff::<P>::new();
        let cpu = off.cpu();
        let zones = self.zones_for(request, cpu).ok()?;
        let all = self.nodes.zones();
        let entry = |zone: u8| &all[usize::from(zone)];
        // A zone that is not all online yet grows before the next one is asked: each turn brings a section at least.
        let take = |zone| {
            loop {
                let taken = self.take(zone, request, attempt, cpu, off);
                if taken.is_some() || !self.grow_on_demand(zone, request.order()) {
                    return taken;
                }
            }
        };
        if attempt != Attempt::first(request) {
            return zones.clone().find_map(take);
        }
        let near = entry(zones.clone().next()?).node;
        // Where a lower zone of the node can serve, kinds need not mix in the first; that is better than a far node, too.
        let own = zones
            .clone()
            .take_while(|&zone| entry(zone).node == near)
            .filter(|&zone| has_own(&entry(zone).zone, request) || self.can_grow(zone));
        if let Some(pages) = { own }.find_map(take) {
            return Some(pages);
        }
        // A node that is being reclaimed is left alone while others have enough.
        let several = all.first().map(|zone| zone.node) != all.last().map(|zone| zone.node);
        let mut skipped = false;
        for zone in zones.clone() {
            if several && entry(zone).pressure() == Pressure::Reclaiming {
                skipped = true;
            } else if let Some(pages) = take(zone) {
                return Some(pages);
            }
        }
        if skipped {
            return { zones }.find_map(take);
        }
        None
    }

    /// One zone's attempt: its pageset with a refill, else the shards.
    fn take(
        &self,
        index: u8,
        request: Request,
        attempt: Attempt,
        cpu: CpuId,
        off: &IrqOff<P>,
    ) -> Option<Pages<'_, P>> {
        let entry = self.nodes.zones().get(usize::from(index))?;
        let spare = self.spare(entry, request, attempt);
        let (zone, order) = (&entry.zone, request.order());
        let parked = || {
            let pageset = self.pagesets.of(cpu, u32::from(index))?;
            let mut cache = pageset.try_lock(off)?;
            // What only some may use is not parked, where anybody would get it.
            let most = match attempt.is_privileged() {
                true => 0,
                false => spare.unwrap_or(0) >> order.get(),
            };
            // What is parked already is not free, so no watermark counts it.
            let (list, home) = (request.sort().list(), zone.home_shard(cpu));
            cache.refill(list, order, zone, home, entry.pressure(), most, off)
        };
        let frame = match request.sort().is_cached() {
            true => parked(),
            false => None,
        };
        let frame = frame.or_else(|| {
            spare?;
            let block = take_block(zone, request, attempt, cpu, off)?;
            let (pfn, _) = block.into_parts();
            Some((pfn.0 - zone.base().0) as u32)
        })?;
        Some(Pages {
            allocator: self,
            place: self.place_of(index, frame, request.sort()),
        })
    }

    /// How many frames of a zone are above what the attempt must leave; `None` if it cannot give the block.
    pub(super) fn spare(
        &self,
        entry: &NodeZone<P>,
        request: Request,
        attempt: Attempt,
    ) -> Option<u64> {
        let (order, zone) = (request.order(), &entry.zone);
        let reserve = entry.reserve(request.highest());
        match attempt.floor {
            Floor::Nothing => Some(u64::MAX),
            floor @ Floor::PlainMin => {
                zone.spare_above(order, floor.mark(zone), reserve, attempt.access)
            }
            Floor::Level(level) => {
                let spare = zone.spare(order, level, reserve, attempt.access);
                if level == Level::Low && entry.pressure() == Pressure::None {
                    let to_high = zone.mark(Level::High).saturating_sub(zone.mark(level));
                    if spare.is_none_or(|spare| spare <= to_high) {
                        entry.fell_below_high();
                    }
                }
                spare
            }
        }
    }

    /// The zones that may serve, in the order in which they are asked.
    pub(super) fn zones_for(
        &self,
        request: Request,
        cpu: CpuId,
    ) -> Result<impl Iterator<Item = u8> + Clone + use<P>, AllocError> {
        let node = self.node_for(request, cpu);
        let only = matches!(request.nodes(), Nodes::Only(_));
        let all = self.nodes.zones();
        let in_scope = move |zone: &u8| !only || all[usize::from(*zone)].node == node;
        let zones = self.nodes.zonelist(node, request.highest());
        Ok(zones.ok_or(AllocError::NoSuchNode(node))?.filter(in_scope))
    }

    /// The node that a request is about.
    pub(super) fn node_for(&self, request: Request, cpu: CpuId) -> NodeId {
        match request.nodes() {
            Nodes::Local => self.nodes.node_of_cpu(cpu),
            Nodes::Prefer(node) | Nodes::Only(node) => node,
        }
    }

    /// Whether the machine could serve the request at all: if not, nobody need reclaim for it.
    pub(super) fn feasible(&self, request: Request) -> Result<(), AllocError> {
        let zones = self.zones_for(request, P::cpu())?;
        let zone = |zone: u8| self.nodes.zone(zone);
        let mut managed = zones.filter(|&index| self.has_memory(index)).peekable();
        if managed.peek().is_none() {
            return Err(AllocError::NoSuchZone(request.highest()));
        }
        let order = request.order();
        let fits = |index| {
            zone(index)
                .span()
                .blocks(order)
                .any(|(_, fits)| fits == order)
        };
        if managed.any(fits) {
            Ok(())
        } else {
            Err(AllocError::TooLarge(order))
        }
    }

    /// Empties the pagesets of the zones that may serve.
    pub(super) fn drain_for(&self, request: Request) {
        let off = &IrqOff::<P>::new();
        if let Ok(zones) = self.zones_for(request, off.cpu()) {
            self.drain_zones(zones, off);
        }
    }

    /// Why an attempt failed, as the first zone says.
    pub(super) fn shortage(&self, request: Request, attempt: Attempt) -> AllocError {
        let zones = self.zones_for(request, P::cpu());
        let entry = zones.ok().and_then(|mut zones| {
            let managed = |zone: &u8| self.nodes.zone(*zone).managed() > 0;
            Some(&self.nodes.zones()[usize::from(zones.find(managed)?)])
        });
        let Some(entry) = entry else {
            return AllocError::NoSuchZone(request.highest());
        };
        let (zone, order) = (&entry.zone, request.order());
        let (free, min) = (zone.free_frames_exact(), zone.levels().min);
        let (mark, reserve) = attempt.kept(entry, request);
        let level = match attempt.floor {
            Floor::Level(level) => level,
            Floor::PlainMin | Floor::Nothing => Level::Min,
        };
        // As many single frames would do.
        let singles = free.saturating_sub(order.frames() - 1);
        let cause = if zone.suffices(Order::ZERO, mark, reserve, attempt.access, singles) {
            Cause::Fragmented
        } else {
            let kept = attempt.access.lowered(mark).saturating_add(reserve);
            Cause::Watermark { level, kept }
        };
        AllocError::OutOfMemory(Shortage {
            node: entry.node,
            zone: entry.kind,
            order,
            free,
            min,
            cause,
        })
    }
}

/// Whether the zone seems able to serve the request from lines of its own kind, or wholly free ones.
#[inline]
fn has_own<P: Platform>(zone: &Zone<P>, request: Request) -> bool {
    zone.could_serve(request.order(), zone.grouped(request.kind()))
}

/// A block from the shards: one that was kept for urgent requests if this is one, and more is kept then.
fn take_block<P: Platform>(
    zone: &Zone<P>,
    request: Request,
    attempt: Attempt,
    cpu: CpuId,
    off: &IrqOff<P>,
) -> Option<Block> {
    let (order, home) = (request.order(), zone.home_shard(cpu));
    let kept = || zone.take_unmixed(order, Mobility::HighAtomic, home, off);
    let ordinary = || zone.take(order, request.kind(), home, off);
    if attempt.access.contains(Access::HIGHATOMIC) {
        return kept().or_else(|| {
            let block = ordinary()?;
            zone.reserve_highatomic(block.pfn(), order, off);
            Some(block)
        });
    }
    ordinary().or_else(|| attempt.takes_kept().then(kept).flatten())
}
